"""A trace of nsys as a view: what ran as distributions, the tree of its ranges, and its operations in order."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from ncuflow.model import Row
from ncuflow.parsers import nsys, show_nsys
from ncuflow.record import quartiles
from ncuflow.view import nvtx
from ncuflow.view.model import TraceView


def viewed(trace: nsys.Trace) -> TraceView:
    """The view of a trace that was read."""
    ranges = [(row["nvtx"].split("/") if row["nvtx"] else []) for row in trace.timeline]
    document = show_nsys.document(trace, summary(trace.timeline), [])
    return TraceView(
        file=Path(trace.file).name,
        devices=list(dict.fromkeys(trace.devices.values())),
        version=trace.nsys_version,
        problems=trace.problems,
        span_ns=document["report"]["span_ns"],
        summary=document["summary"],
        operations=trace.timeline,
        ranges=trace.ranges,
        nvtx=nvtx.tree(
            (names, row["name"], row["duration_ns"])
            for names, row in zip(ranges, trace.timeline, strict=True)
        ),
    )


def summary(rows: list[Row]) -> list[Row]:
    """As ``show`` has it, with the quartiles and the durations in order."""
    times: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        times[row["kind"], row["name"] or "–"].append(row["duration_ns"])
    out = []
    for row in show_nsys.summary(rows):
        found = times[row["kind"], row["name"]]
        q25, _, q75 = quartiles(found)
        out.append(row | {"q25_ns": q25, "q75_ns": q75, "durations_ns": found})
    return out
