"""Files of any of the kinds that ``ncuflow show`` reads → one view."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ncuflow.compare import reports
from ncuflow.compare.records import Thresholds
from ncuflow.io import BadInput, sniff_packed
from ncuflow.model import Row
from ncuflow.parsers import ncu, ncu_text, nsys, show_nsys
from ncuflow.parsers.show import strange
from ncuflow.record import quartiles
from ncuflow.view import kernels, model
from ncuflow.view.model import ComparedReports, ReportView, TraceView, View

REPORT, PRINTED, TRACE = ("ncu-rep",), ("csv", "text"), ("sqlite", "nsys-rep")


def view(paths: Sequence[str | Path], source: Path | None = None) -> View:
    """All files in their order; source: a folder below which source files are looked for.

    Raises BadInput where one cannot be read.
    """
    found = [(path, kind_of(path)) for path in paths]
    named = zip(found, reports.distinct([str(path) for path in paths]), strict=True)
    read = [replace(_viewed(path, kind, source), file=name) for (path, kind), name in named]
    return View(
        reports=[one for one in read if isinstance(one, ReportView)],
        traces=[one for one in read if isinstance(one, TraceView)],
        comparisons=list(_comparisons(found)) if any(k not in TRACE for _, k in found) else [],
    )


def kind_of(path: str | Path) -> str:
    """What a file is, by its content. Raises BadInput where it is no report of ncu or nsys."""
    kind, words = sniff_packed(path)
    if kind not in (*REPORT, *PRINTED, *TRACE):
        raise strange(path, "ncu or nsys", kind, words)
    return kind


def _viewed(path: str | Path, kind: str, source: Path | None) -> ReportView | TraceView:
    if kind in TRACE:
        return _trace_view(nsys.read(path))
    if kind in PRINTED:
        return kernels.viewed(ncu_text.read(path), "ncu csv")
    return kernels.viewed(ncu.read(path, with_lines=False), "ncu", source, path)


def _comparisons(found: Sequence[tuple[str | Path, str]]) -> Iterator[ComparedReports]:
    """The first report with each further one; ``head`` counts reports, traces aside."""
    (base, kind), *others = [(Path(path), kind) for path, kind in found if kind not in TRACE]
    for head, (path, its) in enumerate(others, 1):
        if {kind, its} - set(REPORT):
            yield ComparedReports(head, None, "what ncu printed is not compared: it has no lines")
            continue
        try:
            yield ComparedReports(head, reports.compare(base, path, Thresholds()))
        except BadInput as error:
            yield ComparedReports(head, None, error.what)


def _trace_view(trace: nsys.Trace) -> TraceView:
    """The view of a trace that was read."""
    ranges = [(row["nvtx"].split("/") if row["nvtx"] else []) for row in trace.timeline]
    document = show_nsys.document(trace, _summary(trace.timeline), [])
    return TraceView(
        file=Path(trace.file).name,
        devices=list(dict.fromkeys(trace.devices.values())),
        version=trace.nsys_version,
        problems=trace.problems,
        span_ns=document["report"]["span_ns"],
        summary=document["summary"],
        operations=trace.timeline,
        ranges=trace.ranges,
        nvtx=model.tree(
            (names, row["name"], row["duration_ns"])
            for names, row in zip(ranges, trace.timeline, strict=True)
        ),
    )


def _summary(rows: list[Row]) -> list[Row]:
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
