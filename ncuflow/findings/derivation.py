"""Trace: from a number on a page back to the report, kernel and metric that it comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

from pydantic import BaseModel, ConfigDict

from ncuflow import answer, parquet
from ncuflow.findings import join, profiled, stored
from ncuflow.findings.columns import BY_NAME, Column
from ncuflow.findings.results import grouped, read
from ncuflow.format import with_unit
from ncuflow.io import BadInput, sniff_packed
from ncuflow.model import Kernel, MetricRow, Point, Stall
from ncuflow.parsers.stalls import RATIO

if TYPE_CHECKING:
    from ncuflow.parsers.nsys import Trace

LINES = "lines"  # the name of all samples by instruction
FEW = 5  # names that are offered for one that is none
MOST_DIGITS = 12  # of an index: no report holds so many launches
LEAST_PCT = 1.0  # of a breakdown: the counters below it decide nothing
Metrics = dict[tuple[str, int], list[MetricRow]]


class TraceStep(BaseModel):
    """One step from a number towards its report: a column with its formula, or what was read."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False, use_attribute_docstrings=True)

    depth: int
    """How many columns are above this step."""
    said: str
    """The step in words."""
    name: str | None = None
    """The column, the key of the registry, or the stall reason."""
    value: float | int | str | None = None
    """The value; null where it is not known."""
    unit: str = ""
    """The unit of the value."""
    source: str | None = None
    """For a column: the tool whose evidence it needs."""
    formula: str | None = None
    """For a column: the formula that computes it."""
    report: str | None = None
    """For what was read: the report."""
    kernel: int | None = None
    """For what was read: the index of the launch."""
    metric: str | None = None
    """For what was read: the counter."""


class TraceSteps(answer.Answer):
    """From a number back to its report, kernel and metric."""

    ROWS: ClassVar[tuple[str, ...]] = ("steps",)
    command: Literal["trace"] = "trace"
    """The command that wrote this JSON."""
    point: str
    """The id of the point that was asked about, or REPORT#INDEX."""
    name: str
    """The number of it that was asked for."""
    steps: list[TraceStep]
    """The steps: the number first, below it what it is computed from, and at the bottom what was read."""


def line(step: TraceStep) -> str:
    """A step as it is printed."""
    return "  " * step.depth + step.said


def steps(outputs: Path, point: str, name: str) -> Iterator[TraceStep]:
    """The steps from a number of a point that is there; name: a column, a key of the registry, ``stall_<reason>``, a rule of
    NVIDIA's or FILE:LINE. Raises BadInput for a name that is not there."""
    target = point.split("/", 1)[0]
    results = stored.results(outputs / "results" / f"{target}{stored.SUFFIX}")
    entry = next(one for one in results["points"] if one["point"] == point)
    metrics = grouped(read(outputs / "tables" / target, "metrics"), "report", "kernel")
    yield _head(f"{point}  ({entry['measurement']['gpu']}, tier {entry['tier']})")
    if name in BY_NAME:
        yield from _column(entry, metrics, name, 0, set())
    else:
        main = join.main_kernel(entry["kernels"])
        some = [main] if main else []
        some += [kernel for kernel in results["deep"] if kernel["point"] == point]
        yield from _found(_facts(some, metrics, name), name)


def steps_of_launch(report: str, index: int, name: str) -> Iterator[TraceStep]:
    """The same of a launch of any report of ncu, by its index there, or of a kernel of a trace of nsys."""
    if sniff_packed(report)[0] in profiled.TRACES:
        return _steps_of_operation(profiled.trace(report), index, name)
    return _steps_of_kernel(report, index, name)


def _steps_of_operation(trace: Trace, index: int, name: str) -> Iterator[TraceStep]:
    """A column of the timeline, of one operation."""
    if index >= len(trace.timeline):
        raise BadInput(trace.file, f"no operation {index}; it has {len(trace.timeline)}")
    row = trace.timeline[index]
    if name not in row:
        raise BadInput(name, f"a trace does not have it; it has {', '.join(row)}")
    named = Path(trace.file).name
    yield _head(
        f"{named}#{index} {row['name']}  ({trace.devices.get(row['device'])}, tier {profiled.RECORDED})"
    )
    about = parquet.columns("timeline")[name]
    said = f"{name} = {row[name]} {about.unit}".rstrip()
    yield TraceStep(
        depth=0, said=f"{said}   [nsys: {about.meaning}]", name=name, value=row[name], unit=about.unit,
        source="nsys", formula=about.meaning, report=named, kernel=index,
    )  # fmt: skip


def _steps_of_kernel(report: str, index: int, name: str) -> Iterator[TraceStep]:
    found = profiled.read(report)
    named = Path(found.file).name
    launches = {kernel["kernel"]: kernel for kernel in profiled.kernels(found, named)}
    if index not in launches:
        raise BadInput(report, f"no launch {index}; it has {len(launches)}")
    kernel = launches[index]
    metrics: Metrics = grouped([{**m, "report": named} for m in found.metrics], "report", "kernel")
    origin = profiled.provenance(kernel, found.ncu_version)
    row = profiled.row(kernel, origin)
    yield _head(f"{named}#{index} {kernel['name']}  ({origin['gpu']}, tier {origin['tier']})")
    if name in BY_NAME:
        entry = cast(Point, {"measurement": row, "kernels": [kernel]})
        yield from _column(entry, metrics, name, 0, set())
    else:
        yield from _found(_facts([kernel], metrics, name), name)


def _head(said: str) -> TraceStep:
    return TraceStep(depth=0, said=said)


def _found(facts: Iterator[TraceStep], name: str) -> Iterator[TraceStep]:
    """What was read under a name. Raises BadInput where that is nothing."""
    read_here = list(facts)
    if not read_here:
        what = "no such column, and no metric, stall, rule or line of this kernel"
        raise BadInput(name, f"{what}; {_near(name)}")
    return iter(read_here)


def _near(name: str) -> str:
    """The columns whose names are most alike."""
    names = ", ".join(get_close_matches(name, BY_NAME, FEW, 0))
    return f"columns like it: {names}; --json of `show` and `explain` names what a report has"


def _facts(kernels: Sequence[Kernel], metrics: Metrics, name: str) -> Iterator[TraceStep]:
    """What the reports of some kernels hold under a name that is no column."""
    for kernel in kernels:
        for row in metrics[kernel["report"], kernel["kernel"]]:
            if row["key"] == name:
                yield _metric(kernel, row, 0)
        for stall in kernel["stalls"]:
            if name == f"stall_{stall['reason']}":
                yield _stall(kernel, stall, 0)
        for rule in kernel["rules"]:
            if rule["rule"] == name:
                said = f"{rule['rule']}: {rule['message']}"
                yield _read(kernel, 0, said, name=name, value=rule["speedup_pct"], unit="%")
        for at in kernel.get("lines") or ():
            if name in (f"{at['file']}:{at['line']}", LINES):
                samples = with_unit(at["samples"], "samples")
                said = f"{at['sass'] or 'an instruction'} at {at['pc']}: {at['reason']}: {samples}"
                yield _read(kernel, 0, said, name=at["reason"], value=at["samples"], unit="samples")


def _column(
    point: Point, metrics: Metrics, name: str, depth: int, seen: set[str]
) -> Iterator[TraceStep]:
    """A column, then what it is computed from, one step further in; each column once in full."""
    column, value = BY_NAME[name], point["measurement"][name]
    shown = "null" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    said = f"{name} = {shown} {column.unit}".rstrip()
    yield TraceStep(
        depth=depth, said=f"{said}   [{column.source}: {column.formula}]", name=name, value=value,
        unit=column.unit, source=column.source, formula=column.formula,
    )  # fmt: skip
    if name in seen:
        return
    seen.add(name)
    for term in column.terms:
        yield from _column(point, metrics, term, depth + 1, seen)
    yield from _evidence(point, metrics, column, depth + 1)


def _evidence(point: Point, metrics: Metrics, column: Column, depth: int) -> Iterator[TraceStep]:
    """Where a column without terms was read: its metrics by kernel, the main kernel's stalls, or a file."""
    main = join.main_kernel(point["kernels"])
    for kernel in ([main] if main else []) if column.main else point["kernels"]:
        for row in metrics[kernel["report"], kernel["kernel"]]:
            if row["key"] in column.keys:
                yield _metric(kernel, row, depth)
        for stall in kernel["stalls"] if column.evidence == "stalls" else ():
            if stall["kind"] == "stall" and stall["share"]:
                yield _stall(kernel, stall, depth)
        for part in kernel["breakdown"] if column.evidence == "breakdown" else ():
            if part["pct"] >= LEAST_PCT:
                said = f"{part['unit']}: {part['counter']} = {part['pct']} %"
                yield _read(
                    kernel, depth, said, name=part["unit"], value=part["pct"], unit="%",
                    metric=part["counter"],
                )  # fmt: skip
    if column.evidence not in ("", "stalls", "breakdown"):
        yield TraceStep(depth=depth, said=column.evidence)


def _metric(kernel: Kernel, row: MetricRow, depth: int) -> TraceStep:
    said = f"{row['key']} ({row['metric']}) = {row['value']} {row['unit']}"
    return _read(
        kernel, depth, said, name=row["key"], value=row["value"], unit=row["unit"], metric=row["metric"]
    )  # fmt: skip


def _stall(kernel: Kernel, stall: Stall, depth: int) -> TraceStep:
    cycles = f"{stall['ratio']} cycles per instruction, share {stall['share']}"
    return _read(
        kernel, depth, f"{stall['reason']}: {cycles}", name=stall["reason"], value=stall["share"],
        unit="of 1", metric=RATIO.format(stall["reason"]),
    )  # fmt: skip


def _read(kernel: Kernel, depth: int, said: str, **found: Any) -> TraceStep:
    """What the report has of a kernel."""
    where = f"{kernel['report']}  kernel {kernel['kernel']} {kernel['name']}"
    return TraceStep(
        depth=depth, said=f"{where}  {said}", report=kernel["report"], kernel=kernel["kernel"], **found
    )  # fmt: skip


def found(point: str, name: str, folder: Path | None = None) -> list[TraceStep]:
    """All steps from a number; point: an id, or REPORT#INDEX; folder: outputs or a recording, where several have it.

    Raises BadInput for what is not there.
    """
    report, sign, index = point.rpartition("#")
    if sign and index.isdecimal():
        if len(index) > MOST_DIGITS:
            raise BadInput(report, f"no launch has an index of {len(index)} digits")
        return list(steps_of_launch(report, int(index), name))
    if not stored.is_point(point) and folder is None:
        raise BadInput(point, "neither a point (TARGET/…) nor REPORT#INDEX of a launch")
    if name not in BY_NAME and not stored.is_point(point):
        raise BadInput(name, f"no such column; {_near(name)}")
    with stored.of_point(point, folder) as where:
        return list(steps(where.outputs, point, name))
