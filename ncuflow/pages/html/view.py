"""The page of reports of any program: one HTML file, to read, to compare and to pass on, without a network.

It is given its records as JSON, in blocks that are unpacked when they are opened. No number is computed here: the records and
the findings have them.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from ncuflow.compare import reports
from ncuflow.explain.record import as_text
from ncuflow.findings import limiter, statistics
from ncuflow.format import short
from ncuflow.io import JsonObject
from ncuflow.pages.html import page
from ncuflow.pages.html.columns import KERNEL, columns, kernel_columns, meanings
from ncuflow.parsers.breakdown import UNITS
from ncuflow.parsers.ncu import FAILED
from ncuflow.view import model

# Bytes of a page beside its script, style and libraries: what does not fit is left out from the end, and counted.
BUDGET = 1_600_000
MOST_MISSES = 32  # blocks that did not fit, after which nothing more is tried
Blocks = Iterator[tuple[str, Any]]  # (name, value) of what is unpacked when it is opened
SAME = "`ncuflow explain` and `ncuflow show` print the same of each report."


def rendered(view: model.View, budget: int = BUDGET) -> str:
    """The page's text. Blocks that do not fit into `budget` bytes are left out; the page counts them by their absence."""
    names = [*(one.file for one in view.reports), *(one.file for one in view.traces)]
    packed = [page.packed_block("main", main_block(view))]
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


def _traces(view: model.View) -> Blocks:
    for number, trace in enumerate(view.traces):
        yield f"trace {number}", trace_block(trace)


def _panels(view: model.View) -> Blocks:
    most = max((len(report.kernels) for report in view.reports), default=0)
    for first in range(0, most, TOGETHER):
        for number, report in enumerate(view.reports):
            if places := range(first, min(first + TOGETHER, len(report.kernels))):
                panels = [kernel_block(report, at) for at in places]
                yield f"kernels {number} {first // TOGETHER}", panels


def _codes(view: model.View) -> Blocks:
    for report, number, at in _ranked(view):
        if (found := code_block(report, at)) is not None:
            yield f"code {number} {at}", found


def _counters(view: model.View) -> Blocks:
    for report, number, at in _ranked(view):
        if (found := counters_block(report, at)) is not None:
            yield f"counters {number} {at}", found


def _ranked(view: model.View) -> Iterator[tuple[model.ReportView, int, int]]:
    """(report, its number, place of a kernel): the longest kernels of all reports first."""
    most = max((len(report.kernels) for report in view.reports), default=0)
    for at in range(most):
        for number, report in enumerate(view.reports):
            if at < len(report.kernels):
                yield report, number, at


WIDE = 160  # characters of a line of what explain says: a page has no terminal
TOGETHER = 8  # kernels whose panels are packed as one: they say much in the same words
DIGITS = 5  # of values that are only drawn
MOST_LAUNCHES = 32  # of a kernel that have a panel; all are in its distribution
SEPARATORS = re.compile(r"[<>(),*&\s]+")  # between the words of a full name
MOST_LABEL = 28  # letters of what tells kernels of one name apart
MOST_VALUES = 200  # of a distribution that a page draws
MOST_OPERATIONS = 20_000  # of a trace that are drawn one by one
MOST_POINTS = 2000  # of a comparison
OPERATION = (
    "kind", "name", "start_ns", "duration_ns", "gap_before_ns", "stream", "api_start_ns", "api_duration_ns",
)  # fmt: skip
INSTRUCTION = ("pc", "sass", "file", "line", "executed", "threads", "sectors", "wavefronts")
# Of the launch that is shown first, beside the kernel in the list and in a comparison.
LISTED = (
    "sm_throughput_pct", "memory_throughput_pct", "dram_throughput_pct", "l2_throughput_pct", "l1_throughput_pct",
    "issue_active", "achieved_occupancy_pct", "theoretical_occupancy_pct", "registers", "waves", "dram_bytes_read",
    "dram_bytes_write", "l2_hit_pct", "l1_hit_pct", "inst_executed", "sm_clock_hz",
)  # fmt: skip


def main_block(view: model.View) -> JsonObject:
    """The block that the first view needs, and what names of metrics, units and stalls mean."""
    return {
        "together": TOGETHER,
        "reports": [_report(report) for report in view.reports],
        "traces": [_trace(trace) for trace in view.traces],
        "comparisons": [_compared(one) for one in view.comparisons],
        "units": {name: unit.meaning for name, unit in UNITS.items()},
        **meanings(),
    }


def _report(report: model.ReportView) -> JsonObject:
    shown = [kernel.longest_launch for kernel in report.kernels]
    listed = [_listed(report, kernel) for kernel in report.kernels]
    return {
        "file": report.file,
        "tool": report.tool,
        "devices": report.devices,
        "version": report.version,
        "problems": report.problems,
        "lacks": report.missing,
        "nvtx": [_node(node) for node in report.nvtx],
        "kernels": columns(listed, listed[0] if listed else ())
        | {"label": labels(report.kernels)}
        | columns([launch.kernel["metrics"] for launch in shown], LISTED),
    }


def _listed(report: model.ReportView, kernel: model.KernelView) -> JsonObject:
    """What the list says of one kernel."""
    launch = kernel.longest_launch
    row, close = launch.kernel, report.details.get(launch.index)
    durations = [one.kernel["duration_ns"] for one in kernel.launches]
    stalls = [s for s in row["stalls"] if s["kind"] == "stall" and s["share"]]
    top = max(stalls, key=lambda s: s["share"] or 0, default=None)
    static, dynamic = row["smem_static_bytes"], row["smem_dynamic_bytes"]
    return {
        "name": kernel.name,
        "demangled": kernel.demangled,
        "n": len(kernel.launches),
        "duration": kernel.duration and asdict(kernel.duration),
        "values": evenly(durations, MOST_VALUES) if len(durations) > 1 else [],
        "index": launch.index,
        "words": launch.words,
        "kind": limiter.kind(launch.row),
        "nature": limiter.nature(launch.row),
        "limiter": launch.limiter.name,
        "room": launch.limiter.room,
        "grid": row["grid"],
        "block": row["block"],
        "smem": None if static is None or dynamic is None else static + dynamic,
        "stall": top and [top["reason"], top["share"]],
        "problems": sum(bool(one.kernel["problems"]) for one in kernel.launches),
        "failed": all(FAILED in (one.kernel["problems"] or "") for one in kernel.launches),
        "code": close is not None and close.code is not None,
        "counters": close is not None,
    }


def labels(kernels: Sequence[model.KernelView]) -> list[str]:
    """Names of kernels; behind a name that several have, the words of their full names in which they differ."""
    alike: dict[str, list[list[str]]] = defaultdict(list)
    for kernel in kernels:
        alike[kernel.name].append(_words(kernel.demangled or ""))
    differ = {name: _differing(words) for name, words in alike.items() if len(words) > 1}
    return [_label(kernel, differ.get(kernel.name)) for kernel in kernels]


def _differing(alike: Sequence[Sequence[str]]) -> list[int]:
    """The places at which lists of words are not all the same; every place of the longest where they are not as long."""
    if len({len(words) for words in alike}) > 1:
        return list(range(max(map(len, alike))))
    return [at for at, words in enumerate(zip(*alike, strict=True)) if len(set(words)) > 1]


def _label(kernel: model.KernelView, differ: Sequence[int] | None) -> str:
    if not differ:
        return kernel.name
    words = _words(kernel.demangled or "")
    own = ", ".join(words[at] for at in differ if at < len(words))
    return f"{kernel.name} <{short(own, MOST_LABEL)}>"


def _words(full: str) -> list[str]:
    return [word for word in SEPARATORS.split(full) if word]


def evenly(values: Sequence[Any], most: int) -> list[Any]:
    """At most so many of the values, evenly over their order, the first and the last among them."""
    if len(values) <= most:
        return list(values)
    return [values[round(at * (len(values) - 1) / (most - 1))] for at in range(most)]


def _node(node: model.NvtxNode) -> list[Any]:
    """[name, count, total ns, [[kernel, ns]], children]."""
    kernels = [[name, ns] for name, ns in node.kernels.items()]
    return [
        node.name,
        node.count,
        node.total_ns,
        kernels[:12],
        [_node(one) for one in node.children],
    ]


def _compared(one: model.ComparedReports) -> JsonObject:
    """What a comparison says of each kernel that both have."""
    found = one.found
    if found is None:
        return {"head": one.head, "why": one.why}
    return {
        "head": one.head,
        "notes": found.statistics.notes,
        "differences": [asdict(difference) for difference in found.differences],
        "only_base": found.only_base,
        "only_head": found.only_head,
        "all": len(found.points),
        "points": [
            {
                "id": point.id, "name": point.target, "base": point.base, "head": point.head,
                "relative": point.relative, "interval": point.interval and list(point.interval),
                "verdict": statistics.verdict_in_words(point),
                "causes": [
                    {"what": c.what, "base": c.base, "head": c.head,
                     "facts": [asdict(fact) for fact in c.facts][:8],
                     "parts": [[p.what, p.base, p.head, p.unit, p.delta_us] for p in c.parts][:6]}
                    for c in point.causes
                ],
            }
            for point in found.points[:MOST_POINTS]
        ],
    }  # fmt: skip


# --- one kernel ---------------------------------------------------------------------------------


def kernel_block(report: model.ReportView, at: int) -> JsonObject:
    """The panel of a kernel: some of its launches as columns, the one that is shown first among them."""
    of = report.kernels[at]
    places = sorted({*evenly(range(len(of.launches)), MOST_LAUNCHES), of.longest})
    launches = [of.launches[place] for place in places]
    index = of.longest_launch.index
    close, explained = report.details.get(index), report.explained.get(index)
    return {
        "first": places.index(of.longest),
        "all": len(of.launches),
        "explained": explained and as_text(explained, WIDE),
        "launches": columns([one.kernel for one in launches], (*KERNEL, "nvtx", "device", "compute_capability"))
        | kernel_columns([one.kernel for one in launches])
        | columns([_judged(one) for one in launches], ("verdict", "occupancy", "roofline")),
        "close": close and _close(close),
    }  # fmt: skip


def _judged(launch: model.LaunchView) -> JsonObject:
    found = launch.limiter
    return {
        "verdict": {"words": launch.words, "room": found.room, "units": _shares(found.units), "waits": _shares(found.waits)},
        "occupancy": launch.occupancy and asdict(launch.occupancy),
        "roofline": launch.roofline and asdict(launch.roofline),
    }  # fmt: skip


def _shares(shares: Sequence[limiter.Share]) -> list[list[Any]]:
    """[name, label, per cent, the counter that says so]."""
    return [[one.name, limiter.label(one.name, one.counter), one.pct, one.counter] for one in shares]  # fmt: skip


def _close(close: model.LaunchDetail) -> JsonObject:
    detail = close.detail
    return {
        "memory": close.memory and asdict(close.memory),
        "tables": close.tables,
        "pipes": close.pipes,
        "opcodes": close.opcodes,
        "spread": close.spread,
        "curves": {name: _steps(curve) for name, curve in detail.curves.items()},
        "series": [
            [name, unit, [(ns, float(f"{value:.{DIGITS}g}")) for ns, value in values]]
            for name, (unit, values) in detail.series.items()
        ],
    }


def _steps(curve: Sequence[tuple[int, float]]) -> list[tuple[int, float]]:
    """The places of a curve where its value changes, its first and its last."""
    last = len(curve) - 1
    return [(x, y) for at, (x, y) in enumerate(curve) if at in (0, last) or y != curve[at - 1][1]]


def code_block(report: model.ReportView, at: int) -> JsonObject | None:
    """The instructions of a kernel with samples and sources; None where its report has none."""
    close = report.details.get(report.kernels[at].longest_launch.index)
    if close is None or close.code is None:
        return None
    found = close.code
    samples: dict[int, list[list[Any]]] = defaultdict(list)
    for row in found.samples:
        samples[row["pc"]].append([row["reason"], row["samples"], row["samples_not_issued"]])
    ptx: dict[str, int] = {}
    return {
        **{name: [getattr(one, name) for one in found.instructions] for name in INSTRUCTION},
        "ptx": [one.ptx and ptx.setdefault(one.ptx, len(ptx)) for one in found.instructions],
        "ptx_texts": list(ptx),
        "samples": [samples.get(one.pc, []) for one in found.instructions],
        "files": reports.distinct(found.files),
        "sources": [found.sources.get(place) for place in range(len(found.files))],
        "found": [found.found.get(place) for place in range(len(found.files))],
    }


def counters_block(report: model.ReportView, at: int) -> JsonObject | None:
    """Every counter that the report holds of a kernel: {name, value, unit}; None where it was not read."""
    close = report.details.get(report.kernels[at].longest_launch.index)
    if close is None:
        return None
    found = sorted(close.detail.counters.items())
    return {
        "name": [name for name, _ in found],
        "value": [counter.value for _, counter in found],
        "unit": [counter.unit for _, counter in found],
    }


# --- traces -------------------------------------------------------------------------------------


def _trace(trace: model.TraceView) -> JsonObject:
    return {
        "file": trace.file,
        "devices": trace.devices,
        "version": trace.version,
        "problems": trace.problems,
        "span_ns": trace.span_ns,
        "count": len(trace.operations),
        "summary": [
            row | {"durations_ns": evenly(row["durations_ns"], MOST_VALUES)}
            for row in trace.summary
        ],
        "nvtx": [_node(node) for node in trace.nvtx],
    }


def trace_block(found: model.TraceView) -> JsonObject:
    """The operations of a trace as columns, times from the first of them."""
    rows = found.operations[:MOST_OPERATIONS]
    start = min((row["start_ns"] for row in rows), default=0)
    called = [row["api_start_ns"] for row in rows if row["api_start_ns"] is not None]
    start = min([start, *called])
    moved = [
        row
        | {
            name: None if row[name] is None else row[name] - start
            for name in ("start_ns", "api_start_ns")
        }
        for row in rows
    ]
    return columns(moved, OPERATION)
