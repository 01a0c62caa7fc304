"""What was written is read again: a file is what its name says where it has that shape, and what in it cannot be is null; and
where a point's results are: in outputs of this folder, or in a recording, of whose captures they are then made.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import Field

from ncuflow.evidence import location, manifest
from ncuflow.findings import columns, sanity
from ncuflow.findings import results as joined
from ncuflow.format import with_unit
from ncuflow.io import (
    BadInput,
    JsonObject,
    UsageError,
    clean,
    conforming,
    present,
    read_json,
    scratch,
    status_line,
    write_json,
)
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


def is_recording(folder: Path) -> bool:
    """Whether a folder is a recording, and no outputs."""
    return (folder / manifest.FILE).is_file() and not (folder / "results").is_dir()


@contextmanager
def results_of(folder: Path, targets: Iterable[str] | None) -> Iterator[Path]:
    """The folder of the results of outputs, or of a recording; of this they are made, and gone on exit."""
    if is_recording(folder):
        with scratch() as made:
            make_results(folder, targets, made)
            yield made / "results"
    else:
        yield folder / "results" if (folder / "results").is_dir() else folder


def make_results(recording: Path, targets: Iterable[str] | None, outputs: Path) -> None:
    """Tables and results of targets of a recording (by default of all), below ``outputs``.

    Raises BadInput where it is no recording, is not as it was recorded, or lacks a target.
    """
    try:
        batches = manifest.read(recording).targets
    except BadInput:
        raise
    except ValueError as error:
        raise BadInput(recording, str(error).removeprefix(f"{recording}: ")) from None
    import pyarrow  # noqa: F401  of all that tables need, the first that one who lacks it is told of

    from ncuflow.parsers import tables  # of a recording alone

    for target in batches if targets is None else targets:
        if target not in batches:
            raise BadInput(recording, f"no target {target!r} in it; it has {', '.join(batches)}")
        status_line.at = f"{location.name(recording)}: {target}"
        folder = outputs / "tables" / target
        reports = [recording / target / batch for batch in sorted(batches[target])]
        tables.write(tables.collect(recording, reports, tables.packed), folder)
        found = joined.results(target, folder, recording, location.name(recording))
        write_json(outputs / "results" / f"{target}{SUFFIX}", found, levels=3)


FEW = 3  # names that an error lists


@dataclass(frozen=True)
class Place:
    """A folder with ``results`` and ``tables``. named: the folder that these are of; recording: whether that is a recording,
    of which they were made just now."""

    outputs: Path
    named: Path
    recording: bool

    def results(self, target: str) -> Results:
        """The results of one target. Raises BadInput where it has none."""
        return results(self.outputs / "results" / f"{target}{SUFFIX}")


def is_point(text: str) -> bool:
    """Whether a text may be the id of a point: a target, and what follows it."""
    target, slash, rest = text.partition("/")
    return bool(slash and rest) and target in known()


@contextmanager
def of_point(point: str, folder: Path | None = None) -> Iterator[Place]:
    """Where the results of a point's target are: in the folder of outputs or the recording that is named, else in the one
    below ``outputs/`` that has the point, else in the recording that ships.

    Raises BadInput where no place has the point, UsageError where several have it.
    """
    target = point.split("/", 1)[0]
    found = location.here(folder) if folder else _holder(point) or shipped()
    if not is_recording(found):
        _check(point, found)
        yield Place(found, found, False)
        return
    with scratch() as made:
        make_results(found, [target], made)
        _check(point, made, found)
        yield Place(made, found, True)


def shipped() -> Path:
    """The recording that the pages show unless a setting names another. Raises UsageError where there is none."""
    try:
        return location.default()
    except ValueError as error:
        raise UsageError(str(error)) from None


def _holder(point: str) -> Path | None:
    """The one folder below ``outputs/`` that has the point; None where there is none."""
    name = point.split("/", 1)[0] + SUFFIX
    files = sorted(Path("outputs").glob(f"*/results/{name}"))
    holders = [path.parents[1] for path in files if point in _ids(path)]
    if len(holders) > 1:
        said = ", ".join(map(str, holders))
        raise UsageError(f"name the folder of the results; under outputs/ these have it: {said}")
    return holders[0] if holders else None


def _ids(path: Path) -> list[str]:
    return [point["point"] for point in results(path)["points"]]


def _check(point: str, outputs: Path, named: Path | None = None) -> None:
    """Raises BadInput where the outputs lack the point, with the nearest that they have."""
    target = point.split("/", 1)[0]
    path = outputs / "results" / f"{target}{SUFFIX}"
    if not path.exists():
        raise BadInput(path, f"no results of target {target!r} here")
    ids = _ids(path)
    if point not in ids:
        near = ", ".join(get_close_matches(point, ids, FEW, 0)) or "none"
        raise BadInput(named or path, f"no point {point!r}; the nearest of {len(ids)}: {near}")
