"""The page of reports of any program: one HTML file, to read, to compare and to pass on, without a network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ncuflow.pages.html import page, view_columns
from ncuflow.pages.html.view_columns import TOGETHER
from ncuflow.view.model import ReportView, View

# Bytes of a page beside its script, style and libraries: what does not fit is left out from the end, and counted.
BUDGET = 1_600_000
MOST_MISSES = 32  # blocks that did not fit, after which nothing more is tried
Blocks = Iterator[tuple[str, Any]]  # (name, value) of what is unpacked when it is opened
SAME = "`ncuflow explain` and `ncuflow show` print the same of each report."


def rendered(view: View, budget: int = BUDGET) -> str:
    """The page's text. Blocks that do not fit into `budget` bytes are left out; the page counts them by their absence."""
    names = [*(one.file for one in view.reports), *(one.file for one in view.traces)]
    packed = [page.packed_block("main", view_columns.main(view))]
    used = 0
    for blocks, share in ((_traces, 0.4), (_panels, 0.78), (_codes, 0.92), (_counters, 1.0)):
        found = list(_fitting(blocks(view), round(share * budget) - used))
        used += sum(map(len, found))
        packed += found
    return page.assembled("view", " → ".join(names), ", ".join(names), SAME, packed)


def _fitting(blocks: Blocks, budget: int) -> Iterator[str]:
    misses = 0
    for name, value in blocks:
        block = page.packed_block(name, value)
        if len(block) <= budget:
            budget -= len(block)
            yield block
        elif (misses := misses + 1) > MOST_MISSES:
            return


def _traces(view: View) -> Blocks:
    for number, trace in enumerate(view.traces):
        yield f"trace {number}", view_columns.trace(trace)


def _panels(view: View) -> Blocks:
    most = max((len(report.kernels) for report in view.reports), default=0)
    for first in range(0, most, TOGETHER):
        for number, report in enumerate(view.reports):
            if places := range(first, min(first + TOGETHER, len(report.kernels))):
                panels = [view_columns.kernel(report, at) for at in places]
                yield f"kernels {number} {first // TOGETHER}", panels


def _codes(view: View) -> Blocks:
    for report, number, at in _ranked(view):
        if (found := view_columns.code(report, at)) is not None:
            yield f"code {number} {at}", found


def _counters(view: View) -> Blocks:
    for report, number, at in _ranked(view):
        if (found := view_columns.counters(report, at)) is not None:
            yield f"counters {number} {at}", found


def _ranked(view: View) -> Iterator[tuple[ReportView, int, int]]:
    """(report, its number, place of a kernel): the longest kernels of all reports first."""
    most = max((len(report.kernels) for report in view.reports), default=0)
    for at in range(most):
        for number, report in enumerate(view.reports):
            if at < len(report.kernels):
                yield report, number, at
