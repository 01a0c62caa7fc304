"""A sweep of what somebody runs: FlashInfer's benchmark lists, trace workloads, and what a server called; and its points with
how often each ran: of files, of an engine that was annotated, or of a model by its name.
"""

import json
import re
import shlex
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, Literal, NoReturn

from ncuflow import answer
from ncuflow.expression import evaluate, holds
from ncuflow.io import (
    BadInput,
    JsonObject,
    UsageError,
    below,
    clean,
    parsed,
    read_json,
    read_yaml,
    sniff,
)
from ncuflow.sweep import points as sweep
from ncuflow.sweep.points import Planned, points, read_points
from ncuflow.target.contract import Target, known, load
from ncuflow.target.workload import Block, Definition, Entry, RefusedError, Routine

Case = tuple[str, Block, str]  # target, a block of one point, and its id
# Axes of a definition that stay the same from call to call, as the names of definitions abbreviate them.
CONSTANTS = {"num_qo_heads": "h", "num_kv_heads": "kv", "head_dim": "d", "page_size": "ps"}
CONSTANTS |= {"hidden_size": "h", "vocab_size": "v"}
PUBLISHED = "bfloat16"  # the type of the definitions that are published, which do not say it
QUOTED = re.compile(r"[\"'\\#]")  # what makes more of a line than its words
LONGEST_NAME = 250
DATA_SET = "workloads"  # the folder of a data set that has them
LONGEST_LINE = 1 << 14  # characters; a case of a test list has some hundred
MOST_BYTES = 64_000_000
MOST_CASES = 10_000  # that differ: to capture so many takes a night


class WorkloadAnswer(answer.Answer):
    """A sweep that was written of what somebody runs."""

    ROWS: ClassVar[tuple[str, ...]] = ("refused",)
    command: Literal["workload"] = "workload"
    """The command that wrote this JSON."""
    out: str
    """The configuration that was written."""
    sweep: str
    """The name of the sweep in it."""
    points: int
    """How many points it has."""
    cases: dict[str, int]
    """How many of these each kernel target has."""
    refusals: int
    """How many cases no target measures."""
    refused: list[str]
    """Each of these cases, with the reason."""


def read(files: list[Path]) -> tuple[dict[str, list[Block]], list[str], int]:
    """(sweep by target, a line for each refused case, points) of all files. Raises BadInput for more than MOST_CASES."""
    blocks: dict[str, list[Block]] = {}
    points: set[str] = set()
    refused = []
    for number, made in enumerate(cases(files)):
        if number == MOST_CASES:
            raise BadInput(files[0], f"more than {MOST_CASES} different cases in all")
        try:
            target, block, point = made()
        except BadInput:
            raise
        except ValueError as error:
            refused.append(str(error))
            continue
        if point not in points:
            points.add(point)
            blocks.setdefault(target, []).append(block)
    return blocks, refused, len(points)


def cases(files: list[Path]) -> Iterator[Callable[[], Case]]:
    """What each case of the files asks for; calling one raises RefusedError where no target measures it."""
    definitions = []
    for path in files:
        if path.is_dir():
            for one in dumped(path):
                try:
                    definitions.append(_definition_of(one))
                except BadInput as error:
                    yield partial(_refuse, str(error))
        elif path.suffix == ".json":
            definitions.append(_definition_of(path))
        else:
            yield from _cases_of_lines(path)
    for name, definition in _planned(definitions):
        yield _named(name, definition)


def dumped(folder: Path) -> list[Path]:
    """The files that FLASHINFER_TRACE_DUMP=1 left in a folder. Raises BadInput where there is none, or more than MOST_CASES."""
    found = sorted(folder.rglob("*.json"))
    if not found:
        raise BadInput(folder, "a folder without a definition (*.json)")
    if len(found) > MOST_CASES:
        raise BadInput(folder, f"{len(found)} definitions, of at most {MOST_CASES}")
    return found


def _cases_of_lines(path: Path) -> Iterator[Callable[[], Case]]:
    """The cases of a file, each that differs from those before it."""
    seen: set[Any] = set()
    for number, line in enumerate(lines(path), 1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        if len(text) > LONGEST_LINE:
            what = (
                f"line {number} has {len(text)} characters, more than a case has ({LONGEST_LINE})"
            )
            raise BadInput(path, what)
        if text.startswith("{"):
            name, axes, source = _workload(path, number, text)
            if _is_new((name, json.dumps([axes, source], sort_keys=True)), seen):
                try:
                    indptr = _indptr(path, source)
                except RefusedError as error:
                    yield partial(_refuse, f"{path.name} line {number}, {name}: {error}")
                    continue
                yield _named(name, Definition(*_parts(name), PUBLISHED, axes, indptr))
        elif text.startswith("--"):
            if _is_new(text, seen):
                routine = _routine(path, number, text)
                yield _named(f"{path.name} line {number}, {routine.name}", routine)
        else:
            raise BadInput(path, f"line {number} is neither a case of a test list nor a workload")


def _is_new(case: Any, seen: set[Any]) -> bool:
    new = case not in seen
    seen.add(case)
    return new


def lines(path: Path) -> list[str]:
    """The lines of a file of at most MOST_BYTES. Raises BadInput."""
    if (
        sniff(path)[0] == "empty"
    ):  # refuses what is no file, such as a pipe, which would be waited for
        return []
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise BadInput(path, f"{size / 1e6:.0f} MB, of at most {MOST_BYTES / 1e6:.0f}")
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    return [clean(line) for line in text.splitlines()]


def _named(name: str, entry: Entry) -> Callable[[], Case]:
    def made() -> Case:
        try:
            target, block = _taken(entry)
            (point,) = sweep.points(target, [block])
        except ValueError as error:
            _refuse(f"{name}: {error}")
        return target.name, block, point.id

    return made


def _taken(entry: Entry) -> tuple[Target, Block]:
    """The first target that takes a case, and the block that it reads from it. Raises RefusedError where none does."""
    for target in sorted(known().values(), key=lambda target: target.generic):
        block = target.workload.takes(entry)
        if block is not None:
            return target, block
    raise RefusedError(f"no target measures this {entry.noun}")


def _refuse(why: str) -> NoReturn:
    raise RefusedError(re.sub(r"\s", " ", clean(why))) from None  # what JSON escapes is among it


# --- a benchmark's command line ----------------------------------------------------------------


def _routine(path: Path, number: int, line: str) -> Routine:
    """The case of a command line. Raises BadInput for a line that is none."""
    try:
        words = shlex.split(line, comments=True) if QUOTED.search(line) else line.split()
    except ValueError as error:
        raise BadInput(path, f"line {number}: {error}") from None
    found: dict[str, list[str]] = {}
    name = ""
    for word in words:
        if re.match(r"-{1,2}[a-z]", word):
            name = word.lstrip("-").replace("-", "_")
            found[name] = []
        else:
            found.setdefault(name, []).append(word)
    if not found.get("routine"):
        raise BadInput(path, f"line {number} names no --routine")
    return Routine(found["routine"][0], found)


# --- FlashInfer-Trace --------------------------------------------------------------------------


def _workload(path: Path, number: int, line: str) -> tuple[str, JsonObject, Any]:
    """(definition, axes, what says where each sequence's pages begin) of a line."""
    try:
        found = parsed(line)
        workload = found["workload"]
        name, axes, inputs = found["definition"], workload["axes"], workload.get("inputs") or {}
        whole = all(type(value) is int and value > 0 for value in axes.values())
        source = inputs.get("kv_indptr")
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BadInput(path, f"line {number} is no workload: definition, workload, axes") from None
    if not whole:
        raise BadInput(path, f"line {number}: an axis that is no number from 1")
    if not _is_name(name):
        raise BadInput(path, f"line {number}: a definition without a name")
    return name, axes, source


def _is_name(found: Any) -> bool:
    """Whether this is the name of a definition, which is that of a file."""
    return isinstance(found, str) and len(found) <= LONGEST_NAME


def _indptr(path: Path, source: Any) -> list[int] | None:
    """Where each sequence's pages begin, from the safetensors file that an input names; None where it names none.

    Raises RefusedError where that is not there, or lies elsewhere, and BadInput where it is none.
    """
    if not isinstance(source, dict) or source.get("type") != "safetensors":
        return None
    named = str(source.get("path"))
    file = next((found for place in _folders(path) if (found := _inside(place, named))), None)
    if file is None:
        raise RefusedError(f"its lengths are missing: {named} is no file of the workload's folder")
    if file.stat().st_size > MOST_BYTES:
        raise BadInput(file, f"more than {MOST_BYTES / 1e6:.0f} MB")
    data = file.read_bytes()
    try:
        (size,) = struct.unpack("<Q", data[:8])
        tensor = parsed(data[8 : 8 + size].decode())[source["tensor_key"]]
        begin, end = (8 + size + offset for offset in tensor["data_offsets"])
        kind = {"I32": "i", "I64": "q"}[tensor["dtype"]]
        values = [one for (one,) in struct.iter_unpack(f"<{kind}", data[begin:end])]
    except (ValueError, KeyError, TypeError, struct.error):
        raise BadInput(file, "not the indices of a workload") from None
    if len(values) < 2 or values[0] != 0 or any(b < a for a, b in pairwise(values)):
        raise BadInput(file, "indices that do not begin at 0 or that fall")
    return values


def _folders(path: Path) -> list[Path]:
    """Where the files of a workload lie: beside it, or in the data set that has it as workloads/KIND/NAME.jsonl."""
    above = path.absolute().parents
    return [above[0], *(folder.parent for folder in above if folder.name == DATA_SET)]


def _inside(folder: Path, name: str) -> Path | None:
    """A file of a workload's folder; in the cache of Hugging Face's hub, whose files are links into the repository's blobs."""
    hub = folder.parent.name == "snapshots"
    return below(folder, name, within=folder.parents[1] if hub else None)


def _definition_of(path: Path) -> tuple[str, Definition]:
    """A definition by its name, and what is known of its calls."""
    try:
        found = parsed("\n".join(lines(path)))
        axes, inputs = found.get("axes") or {}, (found.get("inputs") or {}).values()
        values = {axis: one.get("value") for axis, one in axes.items()}
        dtypes = [str(one["dtype"]) for one in inputs if one.get("shape")]
        name = found["name"]
        if not _is_name(name):
            raise ValueError(name)
    except BadInput:
        raise
    except (ValueError, TypeError, KeyError, AttributeError):
        raise BadInput(path, "no definition: a JSON object with a name") from None
    kind, sizes = _parts(name)
    sizes |= {CONSTANTS[a]: v for a, v in values.items() if a in CONSTANTS and type(v) is int}
    return name, Definition(kind, sizes, dtypes[0] if dtypes else PUBLISHED, {})


def _planned(found: list[tuple[str, Definition]]) -> Iterator[tuple[str, Definition]]:
    """The calls among the definitions of a folder, each with what the definition of its plan() alone tells: the cache's
    heads and pages. A call that was planned in several ways is as many cases."""
    plans: dict[str, list[Mapping[str, int]]] = {}
    for _, one in found:
        plans.setdefault(one.kind, []).append(one.sizes)
    for name, one in found:
        if one.kind.endswith("_plan"):
            continue
        plans_of_call = [
            sizes
            for sizes in plans.get(f"{one.kind}_plan", [])
            if all(sizes.get(k, v) == v for k, v in one.sizes.items())
        ]
        for sizes in plans_of_call or [{}]:
            yield name, replace(one, sizes={**sizes, **one.sizes})


def _parts(name: str) -> tuple[str, dict[str, int]]:
    """("gqa_paged_decode", {"h": 32, "kv": 8}) of gqa_paged_decode_h32_kv8."""
    sizes = {}
    while match := re.fullmatch(r"(\w+?)_([a-z]+)(\d+)", name):
        name, sizes[match[2]] = match[1], int(match[3])
    return name, sizes


MODELS = Path(__file__).with_name("models.yaml")


@dataclass(frozen=True)
class ServedPoint:
    """A point, and how often it was called; plans: how often plan() was, None where that is not known."""

    point: Planned
    count: int = 1
    plans: int | None = None


def of_points(paths: Sequence[Path]) -> dict[str, list[Planned]]:
    """The points of files of points, by target. Raises BadInput for another file."""
    found: dict[str, list[Planned]] = {}
    for path in paths:
        content = read_json(path)
        try:
            target = load(content[0]["target"])
        except (LookupError, TypeError):
            raise BadInput(path, "not a list of points") from None
        except ValueError as error:
            raise BadInput(path, str(error)) from None
        found.setdefault(target.name, []).extend(read_points(path, target))
    return found


def of_files(paths: Sequence[Path]) -> tuple[dict[str, list[Planned]], list[str]]:
    """(points by target, what was refused). Raises BadInput where there are none."""
    blocks, refused = _blocks(paths)
    try:
        return {name: points(load(name), some) for name, some in blocks.items()}, refused
    except ValueError as error:
        raise BadInput(paths[0], str(error)) from None


def _blocks(paths: Sequence[Path]) -> tuple[Mapping[str, list[Any]], list[str]]:
    """(blocks by target, what was refused): of the configuration of a sweep, or of what `ncuflow workload` reads."""
    if len(paths) == 1 and paths[0].is_file():
        sniff(paths[0])
        if paths[0].suffix == ".json":
            content = read_json(paths[0])
            if isinstance(content, dict) and isinstance(content.get("sweeps"), dict):
                name = content.get("sweep")
                sweeps = content["sweeps"]
                if name not in sweeps or not isinstance(sweeps[name], dict):
                    raise BadInput(paths[0], f"a configuration without its sweep {name!r}")
                return sweeps[name], []
    blocks, refused, _ = read(list(paths))
    if not blocks:
        raise BadInput(paths[0], "holds no case that can be measured")
    return blocks, refused


def counted(paths: Sequence[Path]) -> tuple[list[ServedPoint], list[str]]:
    """(the points of a workload with their counts, what was refused): of points.json files and folders of these, which
    `ncuflow step annotate --workload` writes, or of any other workload, in which each point counts once."""
    listed = [file for path in paths for file in _point_files(path)]
    if not listed:
        of_targets, refused = of_files(paths)
        return [ServedPoint(point) for some in of_targets.values() for point in some], refused
    served = []
    for file in listed:
        (found,) = of_points([file]).values()
        counts = {row["id"]: row.get("count", 1) for row in read_json(file)}
        for point in found:
            count = counts[point.id]
            if type(count) is not int or count < 1:
                raise BadInput(file, f"{point.id}: a count that is no number from 1")
            served.append(ServedPoint(point, count))
    return served, []


def _point_files(path: Path) -> list[Path]:
    """The files of points that a path is or holds; none where it is another workload."""
    files = (
        sorted(path.glob("*.json")) if path.is_dir() else [path] if path.suffix == ".json" else []
    )
    return [file for file in files if isinstance(read_json(file), list)]


@cache
def _known() -> Any:
    return read_yaml(MODELS)


def of_model(name: str, steps: Sequence[JsonObject] | None = None) -> list[ServedPoint]:
    """What steps of a model call, by its public configuration: its usual ones, one of each, unless given with their "times" and
    over how many "ranks". Raises UsageError for a model that is not known."""
    models = _known()["models"]
    if name not in models:
        raise UsageError(f"--model {name!r}: choose from {', '.join(models)}")
    model = {"kv_heads": None, "mla_heads": None, **models[name]}
    every = [
        {**_divided(model, step.get("ranks", 1)), **step} for step in steps or _known()["steps"]
    ]
    return joined(
        [
            _called(call, sizes)
            for sizes in every
            for call in _known()["calls"]
            if holds(call["where"], sizes)
        ]
    )


def _divided(model: Mapping[str, Any], ranks: int) -> JsonObject:
    """The sizes of one rank of a model."""
    parts = ("qo_heads", "kv_heads", "mla_heads", "intermediate")
    return {k: max(1, v // ranks) if v and k in parts else v for k, v in model.items()}


def _called(call: Mapping[str, Any], sizes: Mapping[str, Any]) -> ServedPoint:
    params = {name: int(evaluate(str(text), sizes)) for name, text in call["params"].items()}
    (point,) = points(load(call["target"]), [{**call.get("set", {}), **params}])
    times, plans = sizes.get("times", 1), call.get("plans")
    count = int(evaluate(str(call["calls"]), sizes))
    return ServedPoint(point, count * times, plans and plans * times)


def joined(served: Sequence[ServedPoint]) -> list[ServedPoint]:
    """Each point once, as often as it was called in all."""
    found: dict[str, ServedPoint] = {}
    for one in served:
        before = found.get(one.point.id)
        if before is not None:
            plans = (
                None
                if None in (before.plans, one.plans)
                else (before.plans or 0) + (one.plans or 0)
            )
            one = ServedPoint(one.point, before.count + one.count, plans)
        found[one.point.id] = one
    return list(found.values())
