"""What no stored file may hold: values of secret variables, names of machine and user, absolute paths."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

Known = Mapping[str, re.Pattern[bytes]]
SENSITIVE = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|_KEY$|^KEY"
    r"|(?:^|_)(?:PW|PWD|PAT|PASS|PASSPHRASE|KEY_ID|AUTH|DSN)(?:_|$)",
    re.IGNORECASE,
)
URL_LOGIN = re.compile(r"(?<=://)[\w.%+-]+:[\w.%+!$&*=-]+(?=@)")
SHORTEST_SECRET = 6
SHORTEST_NAME = 4
COMMON_NAMES = frozenset(
    [
        "root",
        "user",
        "ubuntu",
        "runner",
        "docker",
        "admin",
        "nobody",
        "localhost",
        "build",
        "worker",
    ]
)
# A path of three names or more; so long that chance does not make one of a kernel's machine code.
PATH = re.compile(rb"(?=(/[A-Za-z_][\w.+@-]+(?:/[\w.+@-]{2,}){2,}))(?=[\w./+@-]{16})")
SOURCE = re.compile(rb"\.(?:cuh?|h|hpp|inl|cpp|cc|c|py)$")
INSIDE = re.compile(
    rb"[\w.~$@>/:-]"
)  # before a slash, says that the path starts earlier, or is a URL
PUBLIC = re.compile(
    rb"/(?:usr|opt|lib64|bin|proc|sys|dev|etc)/|/x+/"
)  # the same everywhere, or masked
KEPT = re.compile(
    rb"(?:/include)?/flashinfer/(?!.*/flashinfer/).*|/(?:site|dist)-packages/.*"
    rb"|/[^/]+/[^/]+\.[^/]+$|/[^/]+$"
)


def secrets(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """{name: value} of the variables whose names say that they hold a secret."""
    environ = os.environ if environ is None else environ
    return {
        name: value
        for name, value in environ.items()
        if SENSITIVE.search(name) and len(value) >= SHORTEST_SECRET
    }


def patterns(environ: Mapping[str, str] | None = None) -> dict[str, re.Pattern[bytes]]:
    """{what it is: how it looks}: values of secret variables, logins in URLs, host, user, own folders.

    Names are matched as whole words, and only if they are long and rare enough to mean something.
    """
    environ = os.environ if environ is None else environ
    found = {
        f"the value of {name}": re.compile(re.escape(value.encode()))
        for name, value in secrets(environ).items()
    }
    found["a URL with a password"] = re.compile(URL_LOGIN.pattern.encode())
    for what, name in (("the host name", os.uname().nodename), ("the user name", _user())):
        if len(name) >= SHORTEST_NAME and name.lower() not in COMMON_NAMES:
            found[what] = re.compile(rb"(?<![\w.-])" + re.escape(name.encode()) + rb"(?![\w-])")
    for what, folder in (
        ("the home folder", environ.get("HOME", "")),
        ("the working folder", str(Path.cwd())),
        ("the JIT cache", environ.get("FLASHINFER_WORKSPACE_BASE", "")),
    ):
        if folder.rstrip("/").count("/") > 1:
            found[what] = re.compile(re.escape(folder.rstrip("/").encode()) + rb"(?![\w-])")
    return found


def find_secret(data: bytes, known: Known) -> str | None:
    """What secret these bytes hold, if any."""
    return next((what for what, pattern in known.items() if pattern.search(data)), None)


def paths(data: bytes | bytearray) -> Iterator[tuple[int, bytes]]:
    """(start, path) of the absolute paths in a file.

    In a report, the name of a source stands behind the byte that is its length, whatever letter that is.
    """
    for match in PATH.finditer(data):
        start, path = match.start(), match[1]
        before = data[start - 1 : start]
        if before and INSIDE.match(before):
            path = path[: before[0]] if before[0] <= len(path) else b""
            path = path if SOURCE.search(path) else b""
        if path:
            yield start, path


def find_path(data: bytes) -> str | None:
    """An absolute path that only one machine has, if these bytes hold one."""
    found = (path for _, path in paths(data) if masked_path(path) != path)
    return next((path.decode() for path in found), None)


def masked_path(path: bytes) -> bytes:
    """A path of the same length in which the folders that the machine chose are x.

    Kept is what says which file it is: from `flashinfer` or site-packages on, else the last two names
    of a file, the last of a folder.
    """
    if PUBLIC.match(path):
        return path
    kept = KEPT.search(path)
    start = kept.start() if kept else len(path)
    return re.sub(rb"[^/]", b"x", path[:start]) + path[start:]


def masked(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Text that may be stored: secrets replaced by the names of their variables."""
    for name, value in sorted(secrets(environ).items(), key=lambda item: -len(item[1])):
        text = text.replace(value, f"[{name}]")
    return URL_LOGIN.sub("[login]", text)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return Path.home().name
