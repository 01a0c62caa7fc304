"""Files of any of the kinds that ``ncuflow show`` reads → one view."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ncuflow.compare import reports
from ncuflow.compare.records import Thresholds
from ncuflow.io import BadInput, sniff_packed
from ncuflow.parsers import ncu, ncu_text, nsys
from ncuflow.parsers.show import strange
from ncuflow.view import kernels, traces
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
        return traces.viewed(nsys.read(path))
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
