"""What no stored file may hold: values of secret variables, names of machine and user, absolute paths."""

import getpass
import os
import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

Bytes = bytes | bytearray
Known = Mapping[str, re.Pattern[bytes]]
SENSITIVE = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|_KEY$|^KEY"
    r"|(?:^|_)(?:PW|PWD|PAT|PASS|PASSPHRASE|KEY_ID|AUTH|DSN)(?:_|$)",
    re.IGNORECASE,
)
LOGIN = r"[\w.%+-]+:[\w.%+!$&*=-]+(?=@)"
URL_LOGIN = re.compile(r"(?<=://)" + LOGIN)
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
NAME = rb"[\w.+@~\x80-\xff-]+"
PATH = re.compile(rb"/(?=(%b(?:/%b)+))" % (NAME, NAME))
ANYWHERE = 3  # names from which a path is one wherever it stands; one of two stands alone
SHORTEST_PATH = 6  # bytes; shorter ones are chance in tables of numbers
SOURCE = re.compile(rb"\.(?:cuh?|h|hpp|inl|cpp|cc|c|py)$")
INSIDE = re.compile(rb"[\w.~$@>}/-]")  # before a slash, says that the path starts earlier
# Letters before a slash that are none of its path: a line break in a string of JSON, an option such as -I.
APART = re.compile(rb"(?:\\[nrt]|(?:^|[\s\"'\0])-[A-Za-z])$")
# What stands around a path of two names: NUL in tables of strings (DWARF's follows a 1), else quotes and blanks.
IN_TABLE = re.compile(rb"[\0\1]"), re.compile(rb"\0")
IN_TEXT = re.compile(rb"[\s\"'`=(,;]"), re.compile(rb"[\s\"'`),:;\\]")
TAGS = rb"[\n\x12\x1a]"  # protobuf: texts of the fields 1, 2 and 3
LENGTH = re.compile(TAGS + rb"/[^\0-\x1f\x7f]{%d}" % ord("/"))  # a slash that counts what follows
PUBLIC = re.compile(  # the same everywhere, or masked
    rb"/usr/(?:local/)?(?:include|lib\w*|s?bin|share)(?:/|$)|/(?:usr/local|opt)/(?:cuda|nvidia)[\w.-]*(?:/|$)"
    rb"|/(?:lib\w*|s?bin|proc|sys|etc)/|/dev/(?!shm/)|/x+/"
)
PACKAGE = re.compile(rb"(?:/include)?/flashinfer/(?!.*/flashinfer/).*|/(?:site|dist)-packages/.*")
LAST = re.compile(rb"/[^/]+/[^/]+\.[^/]+$|/[^/]+$")
OWN = re.compile(rb"/(?:home|Users)/[^/]+|/[^/]+")  # never kept: a user's folder, or the first
FOLDERS = re.compile(r"""(?<![^\s'"`(\[=:,])(/[^\s/:,'"]+)*/(?=[\w.])""")


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
    # Each pattern starts with what is rare, since to look behind at every byte of a report takes seconds.
    found["a URL with a password"] = re.compile(b"://" + LOGIN.encode())
    for what, name in (("the host name", platform.node()), ("the user name", _user())):
        if len(name) >= SHORTEST_NAME and name.lower() not in COMMON_NAMES:
            word = re.escape(name.encode())
            found[what] = re.compile(rb"%b(?<![\w.-]%b)(?![\w-])" % (word, word))
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


def paths(data: Bytes) -> Iterator[tuple[int, bytes]]:
    """(start, path) of the absolute paths in a file, of two names or more.

    In a report, the name of a source stands behind the byte that is its length, whatever letter that is.
    """
    binary = b"\0" in data
    for match in PATH.finditer(data):
        start, path = match.start(), b"/" + match[1]
        before = data[max(start - 3, 0) : start]
        if INSIDE.match(before[-1:]) and not APART.search(before):
            path = path[: before[-1]] if before[-1] <= len(path) else b""
            path = path if SOURCE.search(path) else b""
        elif binary and LENGTH.match(data, max(start - 1, 0)):
            continue
        elif path.count(b"/") < ANYWHERE:
            after = data[start + len(path) : start + len(path) + 1]
            path = path if _alone(before, path, after, binary) else b""
        if path and _is_text(path):
            yield start, path


def _alone(before: Bytes, path: bytes, after: Bytes, binary: bool) -> bool:
    """Whether a path is all of a string, in a table of strings or in text; before and after: the bytes there."""
    first, last = IN_TABLE if binary else IN_TEXT
    begins = not before or first.match(before[-1:]) or APART.search(before)
    return bool(len(path) >= SHORTEST_PATH and begins and (not after or last.match(after)))


def _is_text(path: bytes) -> bool:
    try:
        return path.decode("utf-8").isprintable()
    except UnicodeDecodeError:
        return False


def find_path(data: bytes) -> str | None:
    """An absolute path that only one machine has, if these bytes hold one."""
    found = (path for _, path in paths(data) if masked_path(path) != path)
    return next((path.decode("utf-8") for path in found), None)


def masked_path(path: bytes) -> bytes:
    """A path of the same length in which the folders that the machine chose are x.

    Kept is what says which file it is: from `flashinfer` or site-packages on, else the last two names
    of a file, the last of a folder; of these never the first folder, nor a user's own.
    """
    if PUBLIC.match(path):
        return path
    kept = PACKAGE.search(path) or LAST.search(path, _own(path))
    start = kept.start() if kept else len(path)
    return re.sub(rb"[^/]", b"x", path[:start]) + path[start:]


def _own(path: bytes) -> int:
    """Where the first folder of a path ends, or a user's."""
    own = OWN.match(path)
    return own.end() if own else 0


def masked(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Text that may be stored: secrets replaced by the names of their variables."""
    for name, value in sorted(secrets(environ).items(), key=lambda item: -len(item[1])):
        text = text.replace(value, f"[{name}]")
    return URL_LOGIN.sub("[login]", text)


def masked_line(text: str) -> str:
    """A line of a tool that may be shown: masked, with files by their names alone."""
    return FOLDERS.sub("", masked(text))


def _user() -> str:
    try:
        return getpass.getuser()
    except (ImportError, KeyError, OSError):
        return Path.home().name
