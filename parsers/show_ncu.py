"""A report of Nsight Compute as a table, a JSON document and rows; and what `ncuflow show --json` says of it, or of a trace."""

from __future__ import annotations

import shlex
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from ncuflow.answer import Answer, AnswerColumn, AnswerPart, cut
from ncuflow.format import aligned, number, quantity, short
from ncuflow.model import Row
from ncuflow.parsers import ncu, ncu_text, schema
from ncuflow.parsers.registry import METRICS
from ncuflow.parsers.stalls import RATIO, STALL_REASONS

ROUGH = 0.05  # a stall sum further off than this is of passes that were not alike, and its shares are marked
THROUGHPUT = {
    "sm": "sm_throughput_pct",
    "memory": "memory_throughput_pct",
    "dram": "dram_throughput_pct",
    "l2": "l2_throughput_pct",
    "l1": "l1_throughput_pct",
}


def shown(path: str) -> tuple[str, Row, list[Row]]:
    """(text, document, a row per kernel) of a report. Raises BadInput where it cannot be read."""
    return of(ncu.read(path, with_lines=False))


def exported(path: str) -> tuple[str, Row, list[Row]]:
    """The same of what ncu printed."""
    return of(ncu_text.read(path))


def of(report: ncu.Report) -> tuple[str, Row, list[Row]]:
    """The same of a report that was read."""
    metrics, stalls = _by_kernel(report.metrics), _by_kernel(report.stalls)
    kernels = [_kernel(r, metrics[r["kernel"]], stalls[r["kernel"]]) for r in report.kernels]
    return _table(report, kernels), document(report, kernels), _csv(kernels)


def document(report: ncu.Report, kernels: list[Row]) -> Row:
    """The JSON form: {"report": {...}, "kernels": [...]}."""
    return {
        "report": {
            "file": Path(report.file).name,
            "devices": report.devices,
            "ncu_version": report.ncu_version,
            "ranges": report.ranges,
            "kernels": len(report.kernels),
            "problems": report.problems,
        },
        "kernels": kernels,
    }


def _by_kernel(rows: list[Row]) -> dict[int, list[Row]]:
    out: dict[int, list[Row]] = defaultdict(list)
    for row in rows:
        out[row["kernel"]].append(row)
    return out


def _kernel(row: Row, metric_rows: list[Row], stall_rows: list[Row]) -> Row:
    metrics = {m["key"]: m["value"] for m in metric_rows}
    return {
        "index": row["kernel"],
        "name": row["name"],
        "demangled": row["demangled"],
        "nvtx": row["nvtx_ranges"],
        "device": row["device"],
        "grid": dims(row["grid"]),
        "block": dims(row["block"]),
        "grid_size": row["grid_size"],
        "block_size": row["block_size"],
        "duration_ns": row["duration_ns"],
        "throughput": {unit: metrics.get(key) for unit, key in THROUGHPUT.items()},
        "metrics": metrics,
        "stalls": {s["reason"]: s["ratio"] for s in stall_rows},
        "top_stall": _top(stall_rows),
        "stall_sum": stall_sum(stall_rows, metrics.get("warp_latency_per_issue")),
        "problems": row["problems"].split("; ") if row["problems"] else [],
    }


def dims(text: str | None) -> list[int] | None:
    """[8, 1, 1] of "8,1,1"."""
    return None if text is None else [int(part) for part in text.split(",")]


def _top(stalls: list[Row]) -> Row | None:
    """The stall with the largest share, or None."""
    known = [s for s in stalls if s["share"]]
    top = max(known, key=lambda s: s["share"], default=None)
    return None if top is None else {"reason": top["reason"], "share": top["share"]}


def stall_sum(stalls: Sequence[Any], latency: float | None) -> float | None:
    """The ratios of all reasons over the warp latency: 1, but for what replay passes differ in."""
    ratios = [s["ratio"] for s in stalls]
    return sum(ratios) / latency if ratios and None not in ratios and latency else None


def _table(report: ncu.Report, kernels: list[Row]) -> str:
    version = f"ncu {report.ncu_version}, " if report.ncu_version else ""
    count = f"{len(kernels)} kernel{'s' * (len(kernels) != 1)}"
    devices = ", ".join(report.devices) or "no device name"
    head = f"{Path(report.file).name}: {version}{devices}, {count}\n\n"
    columns = ("#", "kernel", "grid", "time", "SM", "mem", "DRAM", "issue", "top stall")
    body = aligned(columns, [_line(kernel) for kernel in kernels], left=2)
    notes = [f"! {problem}\n" for problem in report.problems]
    notes += [f"! {k['index']} {k['name']}: {p}\n" for k in kernels for p in k["problems"]]
    return head + body + ("\n" + "".join(notes) if notes else "")


def _line(kernel: Row) -> list[str]:
    top, metrics = kernel["top_stall"], kernel["metrics"]
    rough = "≈" if abs((kernel["stall_sum"] or 1) - 1) > ROUGH else ""
    percent = [kernel["throughput"][unit] for unit in ("sm", "memory", "dram")]
    grid = None if kernel["grid"] is None else "×".join(str(n) for n in kernel["grid"])
    if grid is None and kernel["grid_size"] is not None:
        grid = f"{kernel['grid_size']} blk"  # old versions count the blocks without their shape
    return [
        str(kernel["index"]),
        short(kernel["name"], 26),
        short(grid.removesuffix("×1").removesuffix("×1") if grid else None, 11),
        quantity(kernel["duration_ns"], "ns"),
        *("–" if value is None else f"{value:.0f}%" for value in percent),
        number(metrics.get("issue_active")),
        f"{short(top['reason'], 15)} {rough}{100 * top['share']:.0f}%" if top else "–",
    ]


def _csv(kernels: list[Row]) -> list[Row]:
    plain = ("index", "name", "demangled", "device")
    rows = []
    for kernel in kernels:
        row = {name: kernel[name] for name in plain}
        row["nvtx"] = "/".join(kernel["nvtx"])
        row |= {n: "x".join(map(str, kernel[n])) if kernel[n] else None for n in ("grid", "block")}
        row |= {key: kernel["metrics"].get(key) for key in METRICS}
        row |= {f"stall_{reason}": kernel["stalls"].get(reason) for reason in STALL_REASONS}
        row["problems"] = "; ".join(kernel["problems"])
        rows.append(row)
    return rows


# --- the answer with --json ------------------------------------------------------------------

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


def answer_of(document: Row, path: str, limit: int | None) -> ReportAnswer | TraceAnswer:
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
