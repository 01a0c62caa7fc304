"""What a change reaches: the JIT modules that must be compiled anew, each with why.

FlashInfer's ninja writes down which headers a module read. One is reused where its build file, its generated sources and
every file that it read are those of the base; in doubt it is compiled.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from ncuflow.process import output_of
from ncuflow.trial.change import DATA
from ncuflow.trial.overlay import PREBUILT, Overlay

NOTED, LOG = ".ninja_deps", ".ninja_log"
_OBJECT = re.compile(r"^build (\S+\.o):", re.MULTILINE)


class Module(BaseModel):
    """A JIT module of one side, after its sources and its build file were generated."""

    name: str
    folder: Path
    """with build.ninja and, once it is built, what ninja noted"""
    library: Path
    """its .so; it may not be there"""
    files: int = 1
    """that are compiled for it"""


@dataclass(frozen=True)
class Roots:
    """Where one side has its package, and what FlashInfer makes of it (FLASHINFER_WORKSPACE_DIR)."""

    package: Path
    workspace: Path


def reached(
    base: Sequence[Module], other: Sequence[Module], sides: tuple[Roots, Roots], overlay: Overlay
) -> dict[str, str]:
    """Modules of the change that must be compiled, by name, with why."""
    known = {module.name: module for module in base}
    why = {m.name: _why(known.get(m.name), m, sides, overlay) for m in other}
    return {name: reason for name, reason in why.items() if reason is not None}


def reuse(base: Sequence[Module], anew: Mapping[str, str], overlay: Overlay) -> list[str]:
    """Copy the base's other modules to where the overlay's FlashInfer takes them for prebuilt; returns their names."""
    kept = [module for module in base if module.name not in anew and module.library.is_file()]
    for module in kept:
        target = overlay.package / PREBUILT / module.name / f"{module.name}.so"
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(module.library, target)
    return [module.name for module in kept]


def _why(
    base: Module | None, other: Module, sides: tuple[Roots, Roots], overlay: Overlay
) -> str | None:
    """Why a module of the change is not the base's; None if it is."""
    if base is None or not base.library.is_file():
        return "the base has none of this name"
    read = files_read(base.folder)
    if read is None:
        return "which files the base's read is not known"
    flags = {_masked(module.folder / "build.ninja", sides) for module in (base, other)}
    if len(flags) > 1:
        return "its flags or sources differ"
    return _file_that_differs(read, sides, overlay)


def _file_that_differs(
    read: Mapping[Path, Sequence[Path]], sides: tuple[Roots, Roots], overlay: Overlay
) -> str | None:
    package, workspace = sides[0].package, sides[0].workspace.resolve()
    # By what they resolve to: folders of an installation from source are links.
    changed = {Path(os.path.realpath(package / file)): file for file in overlay.files}
    for path in sorted({path for paths in read.values() for path in paths}):
        if path in changed:
            return f"it reads {changed[path]}"
        if path.is_relative_to(workspace):
            theirs = sides[1].workspace / path.relative_to(workspace)
            if _masked(path, sides) != _masked(theirs, sides):
                return f"its generated {path.name} differs"
    added = [file for file in overlay.files if not (package / file).exists()]
    # A new header may be found before the one that was read; the host's compiler names none of the package (-MMD).
    hosted = [o for o in read if not o.name.endswith(".cuda.o")]
    data = sorted(file for file in overlay.files if file.parts[0] == DATA)
    if data and hosted:
        return f"{hosted[0].name} may read {data[0]}: the host's compiler does not tell"
    if new := [file for file in added if file.parts[0] == DATA]:
        return f"{sorted(new)[0]} is new, and may be found before another of its name"
    return None


def files_read(folder: Path) -> dict[Path, list[Path]] | None:
    """Files that a module's compilers read, by object, as ninja noted them; None where it does not know them of each."""
    if not (folder / NOTED).is_file():
        return None
    listed = output_of(["ninja", "-C", str(folder), "-t", "deps"])
    found: dict[Path, list[Path]] = {}
    for line in (listed or "").splitlines():
        if ": #deps " in line:
            if "(VALID)" not in line:
                return None
            current = found.setdefault(folder / line.split(": #deps ")[0], [])
        elif line.startswith("    ") and found:
            current.append(Path(os.path.realpath(folder / line.strip())))
    made = set(objects(folder))
    return found if made and made <= found.keys() else None


def compiling(module: Module) -> dict[Path, tuple[float, float]]:
    """When each object of a module and its library began to be made and were there, seconds of ninja's clock, as it noted."""
    made = {*objects(module.folder), module.library}
    found = {}
    for line in _text(module.folder / LOG).splitlines():
        # start and end (ms), time of the file, file, digest of the command; a file's last line counts
        match line.split("\t"):
            case [start, end, _, file, _] if module.folder / file in made:
                found[module.folder / file] = int(start) / 1e3, int(end) / 1e3
    return found


def objects(folder: Path) -> list[Path]:
    """The object files of a module, by its build file."""
    return [folder / name for name in _OBJECT.findall(_text(folder / "build.ninja"))]


def _masked(path: Path, sides: tuple[Roots, Roots]) -> str:
    """A file of one side, as it would be on the other; the overlay's links lead into the base's package."""
    text = _text(path)
    for word, roots in (
        ("<package>", [side.package for side in sides]),
        ("<workspace>", [side.workspace for side in sides]),
    ):
        for root in roots:
            for spelled in (str(root.resolve()), str(root)):
                text = text.replace(spelled, word)
    return text


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError:
        return ""
