"""Output checksums: each file as a run made it, so that one that was damaged since is noticed and made again.

Snakemake looks at times alone: a file that was cut short is newer than all that it was made of. A note has none, so that
it is the same of two runs that made the same. What is looked at are the outputs that the rules declare, whatever a note
of an outputs folder from elsewhere names; captures are not, as they cost hours.
"""

import os
import re
import shutil
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import IO

from ncuflow.io import SHARED, BadInput, digest, locked, read_as, write_json

NOTE = "made.json"
CAPTURES = "captures"
_HELD: dict[Path, IO[str]] = {}  # locked for as long as this process lives
Patterns = Sequence[re.Pattern[str]]


def note(outputs: str, patterns: Patterns) -> None:
    """Write down how the files of each folder of the outputs are now.

    patterns: the names of the rules' outputs, of which one may be a folder. What other runs noted of outputs that are
    none of this one's stays.
    """
    for folder in _folders(outputs):
        before, there = _noted(folder), set(folder.rglob("*"))
        files = (path for path in there if path.is_file() and _output(outputs, path, patterns))
        made = {path.relative_to(folder).as_posix(): path for path in files}
        found = {name: entry for name, entry in before.items() if folder / name in there}
        found |= {name: _digest(path) for name, path in made.items()}
        if made:
            write_json(folder / NOTE, dict(sorted(found.items())), 1)


def remove_damaged(outputs: str, patterns: Patterns) -> None:
    """Remove the outputs that are not as they were noted, with a line each; those that nobody noted stay."""
    for folder in _folders(outputs):
        there = set(folder.rglob("*"))
        for name, noted in _noted(folder).items():
            path = folder / name  # it may be anything, also what no file can be called
            output = _output(outputs, path, patterns)
            whole = path in there and path.is_file() and _digest(path) == noted
            if output and output in there and not whole:
                what = "changed since it was made: removed, and made again where it is asked for"
                print(f"{output}: {what}", file=sys.stderr)
                there.discard(output)
                _remove(output)


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
    free = locked(held.fileno(), wait=False)
    if free:
        held.truncate(0)
        held.write(str(os.getpid()))
        held.flush()
        for left in (lock.parent / "locks").glob("*"):
            left.unlink()
    else:
        held.seek(0)
        what = f"process {held.read() or '?'} is at work in this folder: wait for it, and do not unlock"
        print(f"error: {what}", file=sys.stderr)
    locked(held.fileno(), SHARED)  # of all that are at work here
    return free


def _folders(outputs: str) -> list[Path]:
    """What lies below the outputs: a folder of each machine, of each recording, and of all comparisons."""
    return sorted(path for path in Path(outputs).glob("[!.]*") if path.is_dir())


def _output(outputs: str, path: Path, patterns: Patterns) -> Path | None:
    """The output of a rule that a file is or lies in; None for what no rule makes, and for captures."""
    for at in (path, *path.parents):
        place = at.relative_to(outputs) if at.is_relative_to(outputs) else Path()
        name = f"{outputs}/{place.as_posix()}"  # as the rules write it, who say so of a setting
        if CAPTURES not in place.parts[1:2] and any(found.fullmatch(name) for found in patterns):
            return at
    return None


def _remove(output: Path) -> None:
    if output.is_dir() and not output.is_symlink():
        shutil.rmtree(output)
    else:
        output.unlink()


def _digest(path: Path) -> str:
    """The sha256 of a file, which one process computes again only where size or time are others."""
    state = path.stat()
    return _computed(path, state.st_size, state.st_mtime_ns)


@cache
def _computed(path: Path, _size: int, _changed: int) -> str:
    return digest(path)


def _noted(folder: Path) -> dict[str, str]:
    """What an earlier run noted; nothing where that is no note."""
    try:
        return read_as(folder / NOTE, dict[str, str], "a note of what was made")
    except BadInput:
        return {}
