"""An overlay: a copy of the installed FlashInfer with a change in it. The installed one stays as it is.

Files are hard links where the file system has them across, else copies; those that the change touches are always
copies. Folders of `data/` that it leaves alone (CUTLASS, CCCL) are symbolic links: FlashInfer resolves those to the
installed ones, which hold the same. Nothing else may be a symbolic link, or it would find its way back by `resolve()`.
"""

from __future__ import annotations

import difflib
import filecmp
import os
import shutil
from collections.abc import Iterator, Set
from dataclasses import dataclass
from itertools import accumulate, takewhile
from pathlib import Path, PurePosixPath

from ncuflow.io import BadInput
from ncuflow.trial.change import DATA, PACKAGE, Patch, apply

PREBUILT = f"{DATA}/aot"  # of the package: FlashInfer loads <name>/<name>.so from here, and asks no compiler

MOST_DIFF = 40_000  # characters of a difference that a record keeps


@dataclass(frozen=True)
class Overlay:
    """package: the changed copy; workspace: a base folder for its JIT cache; files: of the package that differ; candidate:
    the function that stands in place of an API, and then the package and the workspace are the base's; whole: it is another
    FlashInfer altogether."""

    package: Path
    workspace: Path | None
    files: frozenset[PurePosixPath]
    candidate: str = ""
    whole: bool = False

    @property
    def loaded(self) -> Path | None:
        """The package that is loaded in place of the installed one."""
        return None if self.candidate else self.package

    @property
    def words(self) -> tuple[str, ...]:
        """Of the command of a side, beside what each has."""
        return (f"--candidate={self.candidate}",) if self.candidate else ()


def lay(change: Patch, installed: Path, folder: Path) -> Overlay:
    """The overlay of a change in an empty folder. Raises BadInput where the change does not apply, or changes nothing."""
    package = folder / "lib" / PACKAGE
    _link(installed, package, PurePosixPath(), frozenset(change.files))
    before = _files(package)
    apply(change, package)
    # A patch that renames a file says its new name alone.
    named = frozenset(change.files) | (before - _files(package))
    files = frozenset(file for file in named if not _same(installed / file, package / file))
    if not files:
        raise BadInput(change.path, f"leaves all files of {PACKAGE} as they are")
    (folder / "jit").mkdir()
    return Overlay(package, folder / "jit", files)


def _same(one: Path, other: Path) -> bool:
    return one.is_file() and other.is_file() and filecmp.cmp(one, other, shallow=False)


def difference(overlay: Overlay, installed: Path) -> str | None:
    """What an overlay changes, as a unified diff of its files; cut at MOST_DIFF characters, with how many lines follow. None
    of what is no change of the installed package."""
    if overlay.whole or overlay.candidate:
        return None
    lines = [
        line
        for file in sorted(overlay.files)
        for line in _of_file(file, installed, overlay.package)
    ]
    room = list(
        takewhile(lambda end: end <= MOST_DIFF, accumulate(len(line) + 1 for line in lines))
    )
    left = len(lines) - len(room)
    kept = [*lines[: len(room)], *([f"… {left} more lines"] if left else [])]
    return "".join(f"{line}\n" for line in kept)


def _of_file(file: PurePosixPath, base: Path, change: Path) -> Iterator[str]:
    before, after = _lines(base / file), _lines(change / file)
    names = [
        os.devnull if lines is None else f"{side}/{file}"
        for side, lines in (("a", before), ("b", after))
    ]
    found = difflib.unified_diff(before or [], after or [], names[0], names[1], lineterm="")
    return (line.rstrip("\r\n") for line in found)


def _lines(path: Path) -> list[str] | None:
    return path.read_text("utf-8", "replace").splitlines() if path.is_file() else None


def _link(source: Path, target: Path, at: PurePosixPath, touched: Set[PurePosixPath]) -> None:
    """Copy a folder of the package, `at` below it."""
    target.mkdir(parents=True)
    for entry in sorted(source.iterdir()):
        here = at / entry.name
        if entry.name == "__pycache__" or str(here) == PREBUILT:
            continue
        alone = at == PurePosixPath(DATA) and not any(f.is_relative_to(here) for f in touched)
        if entry.is_dir() and alone:
            (target / entry.name).symlink_to(entry.resolve(), target_is_directory=True)
        elif entry.is_dir():
            _link(entry, target / entry.name, here, touched)
        elif here in touched or not hard_link(entry, target / entry.name):
            shutil.copy2(entry, target / entry.name)


def hard_link(source: Path, target: Path) -> bool:
    """Whether a hard link could be made: not across file systems, nor of another user's file."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        return False
    return True


def _files(package: Path) -> frozenset[PurePosixPath]:
    """Files of an overlay, but not those behind its symbolic links."""
    return frozenset(
        PurePosixPath(folder, name).relative_to(package)
        for folder, _, names in os.walk(package)
        for name in names
    )
