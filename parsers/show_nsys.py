"""A trace of Nsight Systems as a table, a JSON document and rows."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from ncuflow.format import Sheet, in_one_unit
from ncuflow.model import Row

if TYPE_CHECKING:
    from ncuflow.parsers.nsys import Trace

FIELDS = (
    "index", "kind", "name", "demangled", "point", "nvtx", "launch", "start_ns", "duration_ns",
    "gap_before_ns", "stream_gap_before_ns", "api_name", "api_start_ns", "api_duration_ns",
    "device", "stream", "grid", "block", "graph", "bytes",
)  # fmt: skip


def show_trace(path: str) -> tuple[Sheet, Row, list[Row]]:
    """(table, document, a row per operation) of a trace. Raises BadInput where it cannot be read."""
    from ncuflow.parsers import nsys  # with numpy, which a report does without

    return show(nsys.read(path))


def show(trace: Trace) -> tuple[Sheet, Row, list[Row]]:
    """The same of a trace that was read."""
    launches = [{name: row.get(name) for name in FIELDS} for row in trace.timeline]
    found = summary(trace.timeline)
    return _table(trace, found), document(trace, found, launches), launches


def document(trace: Trace, found: list[Row], launches: list[Row]) -> Row:
    """The JSON form: {"report", "summary", "launches", "problems"}."""
    return {
        "report": {
            "file": Path(trace.file).name,
            "devices": list(trace.devices.values()),
            "nsys_version": trace.nsys_version,
            "operations": len(trace.timeline),
            "ranges": len(trace.ranges),
            "span_ns": _span(trace.timeline),
        },
        "summary": found,
        "launches": launches,
        "ranges": trace.ranges,
        "problems": trace.problems,
    }


def summary(rows: list[Row]) -> list[Row]:
    """A row per kind and name, longest total first. Totals of overlapping work exceed wall time."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        groups[row["kind"], row["name"] or "–"].append(row["duration_ns"])
    out = [
        {
            "name": name,
            "kind": kind,
            "count": len(times),
            "total_ns": sum(times),
            "median_ns": median(times),
            "min_ns": min(times),
            "max_ns": max(times),
        }
        for (kind, name), times in groups.items()
    ]
    return sorted(out, key=lambda row: (-row["total_ns"], row["name"]))


def _span(rows: list[Row]) -> int | None:
    if not rows:
        return None
    starts, ends = [row["start_ns"] for row in rows], [row["end_ns"] for row in rows]
    return int(max(ends) - min(starts))


def _table(trace: Trace, found: list[Row]) -> Sheet:
    version = f"nsys {trace.nsys_version}, " if trace.nsys_version else ""
    devices = ", ".join(dict.fromkeys(trace.devices.values())) or "no device name"
    head = f"{Path(trace.file).name}: {version}{devices}, {len(trace.timeline)} operations"
    named = ("total", "median", "min", "max")
    units, took = zip(
        *(in_one_unit([row[f"{one}_ns"] / 1e3 for row in found]) for one in named), strict=True
    )
    header = (
        "name",
        "kind",
        "n",
        *(f"{one}, {unit}" for one, unit in zip(named, units, strict=True)),
    )
    rows = [
        [row["name"], row["kind"], str(row["count"]), *of]
        for row, *of in zip(found, *took, strict=True)
    ]
    return Sheet(header, rows, head, [f"! {problem}" for problem in trace.problems], long=(0,))
