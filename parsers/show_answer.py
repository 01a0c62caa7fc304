"""What `ncuflow show --json` prints: the document of a report, or of a trace, with what its numbers are."""

from __future__ import annotations

import shlex
from typing import Any, Literal

from ncuflow.answer import Answer, AnswerColumn, AnswerPart, cut
from ncuflow.model import Row
from ncuflow.parsers import schema
from ncuflow.parsers.registry import METRICS
from ncuflow.parsers.show_ncu import THROUGHPUT
from ncuflow.parsers.stalls import RATIO, STALL_REASONS

RECORDED: Literal["C"] = "C"  # a file was made elsewhere, or at another time


class Shown(AnswerPart):
    """A report as `ncuflow show` sees it."""

    file: str
    """its name"""
    devices: list[str]
    """names of the GPUs"""
    ncu_version: str | None = None
    """of ncu; null of a trace"""
    nsys_version: str | None = None
    """of nsys; null of a report of ncu"""
    ranges: int
    """ranges of results, or of a trace NVTX ranges"""
    kernels: int | None = None
    """launches that were profiled; null of a trace"""
    operations: int | None = None
    """of a trace"""
    span_ns: int | None = None
    """of a trace: from the first start to the last end"""
    problems: list[str] | None = None
    """what is wrong with the file; of a trace they stand beside it"""


class TopStall(AnswerPart):
    """The largest stall reason."""

    reason: str
    """ncu's name"""
    share: float
    """of all stalls, of 1"""


class ShownKernel(AnswerPart):
    """One profiled launch."""

    index: int
    """in its report"""
    trace: str
    """the words before the name of a metric that `ncuflow trace` takes"""
    name: str
    """function name"""
    demangled: str | None
    """with template arguments"""
    nvtx: list[str]
    """NVTX ranges open at the launch, outermost first"""
    device: str | None
    """GPU"""
    grid: list[int] | None
    """blocks in x, y, z"""
    block: list[int] | None
    """threads in x, y, z"""
    grid_size: int | None
    """blocks in all"""
    block_size: int | None
    """threads of a block in all"""
    duration_ns: float | None
    """GPU time under ncu"""
    throughput: dict[str, float | None]
    """by unit: of its sustained peak"""
    metrics: dict[str, float | None]
    """by key of the registry (docs/metrics.md); what the report has not is not there"""
    stalls: dict[str, float | None]
    """by reason: warps in this state per issued instruction"""
    top_stall: TopStall | None
    """null where not all reasons were counted"""
    stall_sum: float | None
    """of all reasons over the warp latency: 1, but for what replay passes differ in"""
    problems: list[str]
    """what is wrong with this launch's data"""


class ReportAnswer(Answer):
    """A report of ncu."""

    command: Literal["show"] = "show"
    """the command that answers"""
    report: Shown
    """the file"""
    kernels: list[ShownKernel]
    """its launches"""


class ShownSum(AnswerPart):
    """Operations of one kind and name."""

    name: str
    """of the kernel, or the kind of copy"""
    kind: str
    """kernel, memcpy, memset or graph"""
    count: int
    """how many"""
    total_ns: int
    """added up; of overlapping work more than the wall time"""
    median_ns: float
    """of one"""
    min_ns: int
    """the shortest"""
    max_ns: int
    """the longest"""


class TraceAnswer(Answer):
    """A trace of nsys."""

    command: Literal["show"] = "show"
    """the command that answers"""
    report: Shown
    """the file"""
    summary: list[ShownSum]
    """a row per kind and name, the longest total first"""
    launches: list[dict[str, int | float | bool | str | None]]
    """a row per operation, its columns those of `timeline` in docs/tables.md, and ``trace``"""
    ranges: list[dict[str, int | str | None]]
    """NVTX ranges of the host, as in docs/tables.md"""
    problems: list[str]
    """what is missing or was left out"""


ANSWER = ReportAnswer | TraceAnswer


def of(document: Row, path: str, limit: int | None) -> ReportAnswer | TraceAnswer:
    """The answer of a report's document; path: the report as it was named."""
    if "kernels" in document:
        kernels, left_out = cut(document["kernels"], limit)
        rows = [{"trace": shlex.quote(f"{path}#{k['index']}"), **k} for k in kernels]
        held = {f"metrics.{key}" for k in kernels for key in k["metrics"]}
        columns = {n: c for n, c in COUNTED.items() if n in held or not n.startswith("metrics.")}
        return ReportAnswer.model_validate(
            {
                "report": document["report"],
                "kernels": rows,
                "columns": columns,
                "left_out": left_out,
            }
        )
    parts = {name: cut(document[name], limit) for name in ("summary", "launches", "ranges")}
    found: dict[str, Any] = {name: rows for name, (rows, _) in parts.items()}
    found["launches"] = [
        {"trace": shlex.quote(f"{path}#{row['index']}"), **row} for row in found["launches"]
    ]
    left_out = sum(n for _, n in parts.values())
    return TraceAnswer.model_validate(document | found | {"columns": TIMED, "left_out": left_out})


def _column(unit: str, metric: str) -> AnswerColumn:
    return AnswerColumn(unit=unit, metric=metric, tier=RECORDED)


COUNTED = {
    "duration_ns": _column("ns", "duration_ns"),
    **{f"throughput.{unit}": _column(METRICS[key].unit, key) for unit, key in THROUGHPUT.items()},
    **{f"metrics.{metric.key}": _column(metric.unit, metric.key) for metric in METRICS.values()},
    **{f"stalls.{reason}": _column("cycle", f"stall_{reason}") for reason in STALL_REASONS},
    "top_stall.share": _column("of 1", "top_stall_share"),
    "stall_sum": _column("of 1", f"{RATIO.format('*')} over warp_latency_per_issue"),
}
TIMED = {
    **{
        field.name: _column(field.metadata[b"unit"].decode(), field.name)
        for field in schema.schema("timeline")
        if field.metadata[b"unit"]
    },
    **{f"{what}_ns": _column("ns", "duration_ns") for what in ("total", "median", "min", "max")},
}
