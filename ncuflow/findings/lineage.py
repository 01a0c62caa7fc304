"""Trace: from a number on a page back to the report, kernel and metric that it comes from.

    ncuflow trace decode/B32_L2048_H32_K32_D128_P16_f16_cc gbs_fraction_counter

Prints the column's formula, the columns under it, and at the bottom each metric with its report and kernel.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from ncuflow.findings import stored
from ncuflow.findings.columns import BY_NAME, Column
from ncuflow.findings.join import main_kernel
from ncuflow.findings.results import grouped, read
from ncuflow.io import BadInput, UsageError
from ncuflow.model import MetricRow, Point

LEAST_PCT = 1.0  # of a breakdown: the counters below it decide nothing
Metrics = dict[tuple[str, int], list[MetricRow]]


def trace(outputs: Path, point: str, column: str) -> Iterator[str]:
    """Lines of the trace. Raises BadInput for a point or column that is not there."""
    if column not in BY_NAME:
        raise BadInput(column, f"no such column; there are: {', '.join(BY_NAME)}")
    target = point.split("/", 1)[0]
    path = outputs / "results" / f"{target}_results.json"
    if not path.exists():
        raise BadInput(path, f"no results of target {target!r} here")
    for entry in stored.results(path)["points"]:
        if entry["point"] == point:
            metrics = grouped(read(outputs / "tables" / target, "metrics"), "report", "kernel")
            yield f"{point}  ({entry['measurement']['gpu']}, tier {entry['tier']})"
            yield from _column(entry, metrics, column, 0, set())
            return
    raise BadInput(path, f"no point {point!r}")


def _column(point: Point, metrics: Metrics, name: str, depth: int, seen: set[str]) -> Iterator[str]:
    """A column, then what it is computed from, one step further in; each column once in full."""
    column, value = BY_NAME[name], point["measurement"][name]
    shown = "null" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    said = f"{name} = {shown} {column.unit}".rstrip()
    yield f"{'  ' * depth}{said}   [{column.source}: {column.formula}]"
    if name in seen:
        return
    seen.add(name)
    for term in column.terms:
        yield from _column(point, metrics, term, depth + 1, seen)
    yield from (f"{'  ' * (depth + 1)}{line}" for line in _evidence(point, metrics, column))


def _evidence(point: Point, metrics: Metrics, column: Column) -> Iterator[str]:
    """Where a column without terms was read: its metrics by kernel, the main kernel's stalls, or a file."""
    main = main_kernel(point["kernels"])
    for kernel in ([main] if main else []) if column.main else point["kernels"]:
        where = f"{kernel['report']}  kernel {kernel['kernel']} {kernel['name']}"
        for row in metrics[kernel["report"], kernel["kernel"]]:
            if row["key"] in column.keys:
                yield f"{where}  {row['key']} ({row['metric']}) = {row['value']} {row['unit']}"
        for stall in kernel["stalls"] if column.evidence == "stalls" else ():
            if stall["kind"] == "stall" and stall["share"]:
                cycles = f"{stall['ratio']} cycles per instruction, share {stall['share']}"
                yield f"{where}  {stall['reason']}: {cycles}"
        for part in kernel["breakdown"] if column.evidence == "breakdown" else ():
            if part["pct"] >= LEAST_PCT:
                yield f"{where}  {part['unit']}: {part['counter']} = {part['pct']} %"
    if column.evidence not in ("", "stalls", "breakdown"):
        yield column.evidence


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("point", help="point id")
    parser.add_argument("column", help="column of the measurement table")
    parser.add_argument(
        "outputs", type=Path, nargs="?", help="outputs/<machine>, where there are several"
    )


def run(args: argparse.Namespace) -> None:
    folders = (
        [args.outputs]
        if args.outputs
        else sorted(p.parent for p in Path("outputs").glob("*/results"))
    )
    if len(folders) != 1:
        named = ", ".join(map(str, folders)) or "none"
        raise UsageError(f"name the folder of the results; under outputs/: {named}")
    for line in trace(folders[0], args.point, args.column):
        print(line)
