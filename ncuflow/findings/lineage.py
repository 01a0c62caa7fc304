"""Trace: from a number on a page back to the report, kernel and metric that it comes from.

    python -m ncuflow.findings.lineage outputs/recorded-h200 decode/B32_L2048_H32_K32_D128_P16_f16_cc gbs_fraction_counter

Prints the column's formula, the columns under it, and at the bottom each metric with its report and kernel.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ncuflow.findings.columns import BY_NAME, COLUMNS
from ncuflow.findings.results import grouped, read
from ncuflow.io import BadInput, main_guard, read_json
from ncuflow.parsers.registry import METRICS

Row = dict[str, Any]
Metrics = dict[tuple[str, int], list[Row]]
MEDIANS = {
    c.name
    for c in COLUMNS
    if (c.source == "events" and "median" in c.formula) or "quartile" in c.formula
}
EVENTS = {"time_cold": "cold", "time_hot": "hot", "host_launch": "host", "plan": "plan"}


def trace(outputs: Path, point: str, column: str) -> Iterator[str]:
    """Lines of the trace. Raises BadInput for a point or column that is not there."""
    if column not in BY_NAME:
        raise BadInput(column, f"no such column; there are: {', '.join(c.name for c in COLUMNS)}")
    target = point.split("/", 1)[0]
    path = outputs / "results" / f"{target}_results.json"
    if not path.exists():
        raise BadInput(path, f"no results of target {target!r} here")
    for entry in read_json(path)["points"]:
        if entry["point"] == point:
            metrics = grouped(read(outputs / "tables" / target, "metrics"), "report", "kernel")
            yield f"{point}  ({entry['measurement']['gpu']}, tier {entry['tier']})"
            yield from _column(entry, metrics, column, 0, set())
            return
    raise BadInput(path, f"no point {point!r}")


def _column(entry: Row, metrics: Metrics, name: str, depth: int, seen: set[str]) -> Iterator[str]:
    column = BY_NAME[name]
    value = entry["measurement"][name]
    shown = "null" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
    yield (
        f"{'  ' * depth}{name} = {shown} {column.unit}".rstrip()
        + f"   [{column.source}: {column.formula}]"
    )
    if name in seen:
        return
    seen.add(name)
    words = re.findall(r"\w+", column.formula)
    for word in dict.fromkeys(words):
        if word in METRICS and word == name:
            yield from _metric(entry, metrics, word, depth + 1, "main kernel" in column.formula)
        elif word in BY_NAME and word != name and BY_NAME[word].kind != "text":
            yield from _column(entry, metrics, word, depth + 1, seen)
        elif word in METRICS:
            yield from _metric(entry, metrics, word, depth + 1, "main kernel" in column.formula)
    yield from (f"{'  ' * (depth + 1)}{line}" for line in _evidence(entry, column.source, name))
    if "gpu__time_duration" in words:
        for kernel in entry["kernels"]:
            yield _line(kernel, "gpu__time_duration.sum", kernel["duration_ns"], "ns", depth + 1)


def _evidence(entry: Row, source: str, name: str) -> Iterator[str]:
    """The file behind a column that no formula leads further down from."""
    series = next((s for stem, s in EVENTS.items() if name.startswith(stem)), None)
    if source == "events" and series and name in MEDIANS:
        yield f"timing.jsonl of the point's batch, series {series!r}"
    elif name in ("time_insitu_us", "insitu_n", "kernel_gap_us"):
        yield "trace.sqlite of the point's batch: the kernels in its NVTX range (tables/<target>/timeline)"
    elif name.startswith("ceiling") and name.endswith(("datasheet", "measured")):
        yield f"{'analysis/datasheets.yaml' if name.endswith('datasheet') else 'ceilings.json of the evidence'}"
    elif "stall" in name:
        main = max(entry["kernels"], key=lambda k: k["duration_ns"] or 0)
        for stall in main["stalls"]:
            if stall["kind"] == "stall" and stall["share"]:
                where = f"{main['report']}  kernel {main['kernel']} {main['name']}"
                yield f"{where}  {stall['reason']}: {stall['ratio']} cycles an instruction, share {stall['share']}"


def _metric(entry: Row, metrics: Metrics, key: str, depth: int, main_only: bool) -> Iterator[str]:
    kernels = entry["kernels"]
    if main_only and kernels:
        kernels = [max(kernels, key=lambda k: k["duration_ns"] or 0)]
    for kernel in kernels:
        for row in metrics[kernel["report"], kernel["kernel"]]:
            if row["key"] == key:
                yield _line(kernel, f"{key} ({row['metric']})", row["value"], row["unit"], depth)


def _line(kernel: Row, metric: str, value: Any, unit: str, depth: int) -> str:
    where = f"{kernel['report']}  kernel {kernel['kernel']} {kernel['name']}"
    return f"{'  ' * depth}{where}  {metric} = {value} {unit}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "outputs", type=Path, help="folder of one machine's results, outputs/<machine>"
    )
    parser.add_argument("point", help="point id")
    parser.add_argument("column", help="column of the measurement table")
    args = parser.parse_args()
    for line in trace(args.outputs, args.point, args.column):
        print(line)


if __name__ == "__main__":
    main_guard(main)
