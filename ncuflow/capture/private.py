"""What no stored file may hold, and the search for it."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path

from ncuflow.capture.process import SENSITIVE

SHORTEST_SECRET = 8
SHORTEST_NAME = 4
COMMON_NAMES = {
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
}


def patterns(environ: Mapping[str, str] | None = None) -> dict[str, re.Pattern[bytes]]:
    """{what it is: how it looks}: secret-looking variables' values, host, home folder, user.

    Names are matched as whole words, and only if they are long and rare enough to mean something.
    """
    environ = os.environ if environ is None else environ
    found = {
        f"the value of {name}": re.compile(re.escape(value.encode()))
        for name, value in environ.items()
        if SENSITIVE.search(name) and len(value) >= SHORTEST_SECRET
    }
    for what, name in (("the host name", os.uname().nodename), ("the user name", _user())):
        if len(name) >= SHORTEST_NAME and name.lower() not in COMMON_NAMES:
            found[what] = re.compile(rb"(?<![\w.-])" + re.escape(name.encode()) + rb"(?![\w-])")
    home = environ.get("HOME", "").rstrip("/")
    if home.count("/") > 1:
        found["the home folder"] = re.compile(re.escape(home.encode()) + rb"(?![\w-])")
    return found


def find_secret(data: bytes, known: Mapping[str, re.Pattern[bytes]]) -> str | None:
    """What secret these bytes hold, if any."""
    return next((what for what, pattern in known.items() if pattern.search(data)), None)


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return Path.home().name
