"""What was written is read again: a file is what its name says where it has that shape, and what in it cannot be is null."""

import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from ncuflow.findings import columns, sanity
from ncuflow.format import with_unit
from ncuflow.io import BadInput, JsonObject, clean, conforming, present, read_json
from ncuflow.model import Results
from ncuflow.record import Strict
from ncuflow.target.contract import known

SUFFIX = "_results.json"
Number = Annotated[int, Field(gt=0)]  # of a line, from 1
Seconds = Annotated[float, Field(ge=0)]


class _Span(Strict):
    file: str
    line: Number
    line_end: Number | None = None


class _Symbol(Strict):
    file: str
    line: Number
    symbol: str


class _Indexed(Strict):
    api: dict[str, _Symbol]
    files: dict[str, str]
    templates: list[str]
    kernels: list[_Symbol]


class _Read(Strict):
    file: str
    line: Number
    default: str | None


class _Parameter(Strict):
    name: str
    kind: Literal["positional", "keyword", "var_positional", "var_keyword"]
    default: str | None


class _SourceIndex(Strict):
    """``source_index.json``; an older one lacks what was added since."""

    version: str | None
    targets: dict[str, _Indexed]
    missing: dict[str, str] | None = None
    scheduler: dict[str, _Span] | None = None
    environment: dict[str, Annotated[list[_Read], Field(min_length=1)]]
    functions: dict[str, list[Annotated[tuple[Number, Number, str], Field(strict=False)]]]
    templates: dict[str, list[list[str]]] | None = None
    signatures: dict[str, list[_Parameter]] | None = None
    exports: list[str] | None = None


class _Flags(Strict):
    flags: dict[str, list[str]] = Field(default_factory=dict)


class _Cold(Strict):
    uri: str | None = None
    error: str | None = None
    generation_s: Seconds | None = None
    write_ninja_s: Seconds | None = None
    build_s: Seconds | None = None
    load_s: Seconds | None = None
    library_bytes: Number | None = None
    ninja: _Flags | None = None


class _Disk(Strict):
    build_and_load_s: Seconds | None = None
    build_and_load_s_samples: list[Seconds] | None = None
    memory_hit_s: Seconds | None = None
    memory_hit_s_samples: list[Seconds] | None = None
    generation_s: Seconds | None = None
    generation_s_samples: list[Seconds] | None = None
    up_to_date_check_s: Seconds | None = None
    up_to_date_check_s_samples: list[Seconds] | None = None


class _First(Strict):
    first_launch_s: Seconds | None = None
    later_launch_s: Seconds | None = None


class _Module(Strict):
    target: str
    aot: bool
    cold: _Cold
    disk: _Disk | None = None
    first_launch: _First | None = None
    cache: dict[str, Annotated[int, Field(ge=0)]] | None = None


class _Jit(Strict):
    """``jit_analysis.json``, as it was measured and, with what was added to it, among results."""

    modules: dict[str, _Module]
    method: str
    cpu_count: Number | None
    environment: dict[str, str] | None = None
    provenance: JsonObject | None = None
    summary: list[JsonObject] | None = None


class _Of(Strict):
    provenance: JsonObject


class _Machine(_Of):
    findings: list[JsonObject]
    ceilings: JsonObject


SHAPES: dict[str, tuple[Any, str]] = {
    "claims.json": (list[JsonObject], "decided claims"),
    "claims_summary.json": (_Of, "a summary of decided claims"),
    "environment_info.json": (_Machine, "what is known of a machine"),
    "jit_analysis.json": (_Jit, "what was measured of the JIT"),
    "source_index.json": (_SourceIndex, "an index of FlashInfer's source"),
}


def written(path: Path, kind: str | None = None) -> Any:
    """A file's content, which has the shape that its name stands for, where it stands for one; BadInput otherwise.

    kind: the name that it would have, of a file that may be called anything.
    """
    content = read_json(path)
    if shape := SHAPES.get(kind or path.name.removesuffix(".xz")):
        conforming(path, content, *shape)
    return content


def optional(path: Path) -> Any:
    """What was written into a file that evidence or a run may lack, or None."""
    found = present(path)
    return written(found) if found else None


def folder(
    place: Path, targets: Iterable[str] | None = None, struck: bool = True
) -> dict[str, Results]:
    """Results by target: of these targets (the JIT is none), or of all that a folder holds; ``struck`` as of ``results``.

    Raises BadInput where there are none, or where one that is named is not there.
    """
    paths = sorted(place.glob(f"*{SUFFIX}"))
    if targets is not None:  # others may be left of an earlier run
        paths = [place / f"{name}{SUFFIX}" for name in sorted(targets) if name != "jit"]
    if not paths:
        raise BadInput(place, f"no results here: a run leaves *{SUFFIX} in outputs/MACHINE/results")
    every = [results(path, struck) for path in paths]
    return {found["target"]: found for found in every}


def results(path: Path, struck: bool = True) -> Results:
    """The results of a target: each point with all parameters that the target declares, and null for each column that it lacks.

    struck: also for each number that cannot be, with all that is computed from it; a line on standard error names them.
    Raises BadInput where the file is none, or of another target than its name says.
    """
    kept = _kept.pop(path, None)  # whom it is given to may change it
    found = kept[1] if kept and kept[0] == _state(path) else _read(path)
    if struck and (violations := sanity.strike(found)):
        many = with_unit(len(violations), "impossible numbers")
        _warn_once(f"{path}: {many} taken as missing (`ncuflow check sanity`): {violations[0]}")
    return found


def _read(path: Path) -> Results:
    content = read_json(path)
    target = conforming(path, content, Results, "the results of a target", strict=True)["target"]
    if path.name != target + SUFFIX:
        raise BadInput(path, f"has the results of {target}")
    if declared := known().get(target):
        for point in content["points"]:
            try:
                point["params"] = declared.completed(point["params"])
            except ValueError as error:
                raise BadInput(path, f"{point['point']}: {error}") from None
    found = cast(Results, content)
    for point in found["points"]:
        row = dict.fromkeys(columns.BY_NAME) | point["measurement"]
        point["measurement"] = row | {"point": point["point"], "tier": point["tier"]}
    for floor in found["noise"].values():
        floor.setdefault("by_time", [])  # of what is no time
    return found


_kept: dict[Path, tuple[tuple[int, int], Results]] = {}
LARGE = 8_000_000  # bytes of a file that is not kept


def share(words: Iterable[str]) -> None:
    """Read the results that the words of a command name, files or folders, for the children of this process to find.

    What cannot be read, or is large, is left to those who ask for it.
    """
    for place in map(Path, words):
        with suppress(BadInput, OSError):
            folder = inner if (inner := place / "results").is_dir() else place
            for path in [place] if place.name.endswith(SUFFIX) else folder.glob(f"*{SUFFIX}"):
                state = _state(path)
                if state[0] < LARGE and (path not in _kept or _kept[path][0] != state):
                    _kept[path] = state, _read(path)


def _state(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_size, found.st_mtime_ns


@cache
def _warn_once(text: str) -> None:
    """Say it once, however often a command reads the file."""
    print(" ".join(clean(text).split()), file=sys.stderr)
