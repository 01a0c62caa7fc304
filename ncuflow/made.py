"""What a run made: each file as it was, so that one that was damaged since is noticed and made again.

Snakemake looks at times alone: a file that was cut short is newer than all that it was made of.
"""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path
from typing import IO, Any

from ncuflow.io import BadInput, digest, read_json, write_json

NOTE = "made.json"
FOLDERS = ("tables", "results", "figures", "reports")
_HELD: dict[Path, IO[str]] = {}  # locked for as long as this process lives
Entry = list[Any]  # size in bytes, time of the last change in ns, sha256


def note(outputs: Path) -> None:
    """Write down how the files of an evidence's outputs are now."""
    before = _noted(outputs)
    found = {
        str(path.relative_to(outputs)): path
        for folder in FOLDERS
        for path in sorted((outputs / folder).rglob("*"))
        if path.is_file()
    }
    if found:
        write_json(
            outputs / NOTE, {name: _entry(found[name], before.get(name)) for name in found}, 1
        )


def remove_damaged(outputs: Path) -> list[Path]:
    """Remove the files that are not as they were noted, with a line each; those that nobody noted stay."""
    damaged = []
    for name, entry in _noted(outputs).items():
        path = outputs / name
        if path.is_file() and _entry(path, entry)[2] != entry[2]:
            print(f"{path}: changed since it was made; it is made again", file=sys.stderr)
            path.unlink()
            damaged.append(path)
    return damaged


def alone() -> bool:
    """Whether no other run is at work in this folder; where one is, a line names its process.

    Where none is, the locks that a killed run left are removed: Snakemake's outlive their run, while the lock here is
    gone with its process.
    """
    lock = Path(".snakemake/ncuflow.lock").absolute()
    if lock in _HELD:
        return True
    lock.parent.mkdir(exist_ok=True)
    _HELD[lock] = held = lock.open("a+")
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        held.seek(0)
        what = f"process {held.read() or '?'} is at work in this folder: wait for it, and do not unlock"
        print(f"error: {what}", file=sys.stderr)
        free = False
    else:
        free = True
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        for left in (lock.parent / "locks").glob("*"):
            left.unlink()
    fcntl.flock(held, fcntl.LOCK_SH)  # of all that are at work here
    return free


def _entry(path: Path, known: Entry | None) -> Entry:
    """Size, time and digest of a file; the digest is the known one where size and time are."""
    state = path.stat()
    seen = [state.st_size, state.st_mtime_ns]
    return known if known and known[:2] == seen else [*seen, digest(path)]


def _noted(outputs: Path) -> dict[str, Entry]:
    try:
        found: dict[str, Entry] = read_json(outputs / NOTE)
    except BadInput:
        return {}
    return found
