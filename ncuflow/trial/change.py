"""A change of FlashInfer: a unified patch, or a folder that is laid over the installed package.

Paths in it may be those of FlashInfer's repository (include/flashinfer/…, csrc/…, flashinfer/decode.py) or of the
installed package (flashinfer/data/include/…, data/csrc/…).
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ncuflow.format import short
from ncuflow.io import BadInput, CommandError, clean
from ncuflow.process import QUERY_S, run_child

PACKAGE = "flashinfer"
DATA = "data"  # of the package: what the repository has at its top
MOVED = ("include", "csrc")
MOST_NAME = 80  # characters of a path that a complaint quotes
STRIPS = (1, 0, 2)  # a/decode.py as git writes it, decode.py, and a/a/decode.py of two folders
# What git says of a hunk, the line being that of the file as it should be, and of anything else.
_FAILED = re.compile(r"error: patch failed: (.+):(\d+)$")
_SAID = re.compile(r"(?:error|fatal): (.+)$")


@dataclass(frozen=True)
class Patch:
    """A change that was read, and not applied yet.

    files: of the package that it adds, changes or removes, by their paths below it; elsewhere: what it has that is no
    file of the package (tests, documentation), which is left out; strip: of a patch, leading folders of its paths (-p).
    """

    path: Path
    files: tuple[PurePosixPath, ...]
    elsewhere: tuple[str, ...] = ()
    strip: int | None = None
    named: tuple[str, ...] = ()  # by the change itself: `files`, in the same order


def read(path: Path, package: Path) -> Patch:
    """The change in a file or folder, held against an installed package.

    Raises BadInput where it is no patch, or changes nothing of the package.
    """
    if path.is_dir():
        names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
        found = _change(path, package, [name for name in names if _is_source(name)])
        same = [file for file in found.files if _same(path, found, file, package)]
        kept = [(f, n) for f, n in zip(found.files, found.named, strict=True) if f not in same]
        found = Patch(
            path, tuple(f for f, _ in kept), found.elsewhere, None, tuple(n for _, n in kept)
        )
    else:
        found = _patch(path, package)
    if not found.files:
        named = f", but {short(found.elsewhere[0], MOST_NAME)}" if found.elsewhere else ""
        raise BadInput(path, f"changes no file of the installed package {PACKAGE}{named}")
    return found


def apply(change: Patch, package: Path) -> None:
    """Make the change in a copy of the package, a folder named flashinfer. Raises BadInput that names file and hunk."""
    if change.strip is None:
        for name, file in zip(change.named, change.files, strict=True):
            target = package / file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copyfile(change.path / name, target)
        return
    by_folder: dict[str, list[str]] = {}
    for name in change.named:
        by_folder.setdefault(_folder(PurePosixPath(name)), []).append(name)
    for folder, names in by_folder.items():
        # git holds the names that it may touch against those behind the folder.
        below = [f"--include={_literal(str(PurePosixPath(folder, name)))}" for name in names]
        _git(change.path, package.parent, f"-p{change.strip}", f"--directory={folder}", *below)


def home(path: PurePosixPath, package: Path) -> PurePosixPath | None:
    """Where a path of a change lies below the package; None where that has no such folder, or it leads elsewhere."""
    if path.is_absolute():
        return None
    inside = PurePosixPath(_folder(path), path).relative_to(PACKAGE)
    if ".." in inside.parts or not inside.parts:
        return None
    known = (package / inside).exists() or (
        len(inside.parts) > 1 and (package / inside.parent).is_dir()
    )
    return inside if known else None


def _folder(path: PurePosixPath) -> str:
    """The folder that a path of a change is relative to, seen from where the package lies."""
    first = path.parts[0] if path.parts else ""
    if first == PACKAGE:
        return ""
    return f"{PACKAGE}/{DATA}" if first in MOVED else PACKAGE


def _patch(path: Path, package: Path) -> Patch:
    if not path.is_file():
        raise BadInput(path, "no such file or folder")
    if shutil.which("git") is None:
        raise CommandError("a patch is applied by git, which is not installed here")
    found, refused = [], []
    for strip in STRIPS:
        try:
            found.append(_change(path, package, _touched(path, strip), strip))
        except BadInput as error:  # a path has no so many folders, or it is no patch at all
            refused.append(error)
    if not found:
        raise refused[0]
    # The first of equal ones; a new file tells less than one that is there.
    return max(found, key=lambda c: (sum((package / f).exists() for f in c.files), len(c.files)))


def _change(path: Path, package: Path, names: Iterable[str], strip: int | None = None) -> Patch:
    homes = [(name, home(PurePosixPath(name), package)) for name in names]
    inside = [(name, file) for name, file in homes if file is not None]
    elsewhere = tuple(clean(name) for name, file in homes if file is None)
    return Patch(path, tuple(f for _, f in inside), elsewhere, strip, tuple(n for n, _ in inside))


def _touched(path: Path, strip: int) -> list[str]:
    """The files that a patch names, as git reads it."""
    listed = _git(path, path.absolute().parent, "--numstat", "-z", f"-p{strip}")
    return [entry.split("\t", 2)[2] for entry in "\n".join(listed).split("\0") if "\t" in entry]


def _git(patch: Path, folder: Path, *words: str) -> list[str]:
    """The lines that `git apply` prints in a folder, which is taken for no part of a repository."""
    # Of a repository around the folder git would pass over what lies outside of that.
    env = {"PATH": os.environ.get("PATH", ""), "LC_ALL": "C", "GIT_DIR": os.devnull}
    env |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull}
    lines: list[str] = []
    command = ["git", "apply", *words, "--", str(patch.absolute())]
    ended = run_child(command, env=env, cwd=folder, timeout=QUERY_S, on_line=lines.append)
    if ended.returncode:
        raise BadInput(patch, _why(lines))
    return lines


def _why(lines: Sequence[str]) -> str:
    """What git complains of, in one line: file and hunk where there is one."""
    for line in lines:
        if found := _FAILED.match(line):
            return clean(f"does not apply to {found[1]}: its hunk at line {found[2]} does not fit")
    said = next((found[1] for line in lines if (found := _SAID.match(line))), "git refused it")
    return clean(f"does not apply: {said}")


def _literal(name: str) -> str:
    """A name as a pattern that it alone matches."""
    return re.sub(r"([\\*?\[\]])", r"\\\1", name)


def _is_source(name: str) -> bool:
    """Whether a folder's file is none of a repository's own, or of Python's caches."""
    return not any(part.startswith(".") or part == "__pycache__" for part in name.split("/"))


def _same(path: Path, change: Patch, file: PurePosixPath, package: Path) -> bool:
    """Whether a folder's file is the installed one."""
    theirs = package / file
    ours = path / change.named[change.files.index(file)]
    return theirs.is_file() and ours.read_bytes() == theirs.read_bytes()
