"""Which reader reads a file: its content tells. A report or a trace on the terminal, as JSON or as CSV; a trace of either tool as
a timeline, whose reader has numpy, which reports do without."""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import shlex
import zlib
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Literal

from ncuflow import parquet
from ncuflow.answer import Answer, AnswerColumn, AnswerPart, cut
from ncuflow.format import Sheet, in_column, in_one_unit, short, with_unit
from ncuflow.io import BadInput, inert, printable, sniff, sniff_packed
from ncuflow.model import Row
from ncuflow.parsers import ncu, ncu_text
from ncuflow.parsers.registry import METRICS
from ncuflow.parsers.stalls import RATIO, STALL_REASONS

if TYPE_CHECKING:
    from ncuflow.parsers.nsys import Trace
    from ncuflow.parsers.timeline import Timeline

HINTS = {"lfs": "fetch it with `git lfs pull`"}
# One of these stands at the beginning of what torch's profiler wrote.
OF_TORCH = (b'"traceEvents"', b'"deviceProperties"', b'"schemaVersion"')
BEGINNING = 1 << 18  # bytes: a harness may write what it measured before them


def of_torch(path: str | Path) -> bool:
    """Whether a JSON file, also packed, begins as what torch's profiler wrote."""
    opened = {"xz": lzma.open, "gzip": gzip.open}.get(sniff(path)[0], Path.open)
    try:
        with opened(Path(path), "rb") as file:  # type: ignore[operator]
            head = file.read(BEGINNING)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return False
    return any(word in head for word in OF_TORCH)


def strange(path: str | Path, of: str, kind: str, words: str) -> BadInput:
    """Of a file that is no report of these tools: what it is, and what reads it."""
    hint = f" ({HINTS[kind]})" if kind in HINTS else ""
    if kind in ("json", "gzip") and of_torch(path):
        words = "a trace of torch's profiler"
        hint = f": `ncuflow step {shlex.quote(str(path))}` reads it"
    return BadInput(path, f"not a report of {of} but {words}{hint}")


def as_csv(rows: Sequence[Row]) -> str:
    """CSV with a header; None is empty. No cell is one that a spreadsheet would compute."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: inert(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


# --- a trace of Nsight Systems ------------------------------------------------------------------

FIELDS = (
    "index", "kind", "name", "demangled", "point", "nvtx", "launch", "start_ns", "duration_ns",
    "gap_before_ns", "stream_gap_before_ns", "api_name", "api_start_ns", "api_duration_ns",
    "device", "stream", "grid", "block", "graph", "bytes",
)  # fmt: skip


def show_trace(path: str) -> tuple[Sheet, Row, list[Row]]:
    """(table, document, a row per operation) of a trace. Raises BadInput where it cannot be read."""
    from ncuflow.parsers import nsys

    return of_trace(nsys.read(path))


def of_trace(trace: Trace) -> tuple[Sheet, Row, list[Row]]:
    """The same of a trace that was read."""
    launches = [{name: row.get(name) for name in FIELDS} for row in trace.timeline]
    found = summary(trace.timeline)
    return _trace_sheet(trace, found), trace_document(trace, found, launches), launches


def trace_document(trace: Trace, found: list[Row], launches: list[Row]) -> Row:
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


def _trace_sheet(trace: Trace, found: list[Row]) -> Sheet:
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


NSYS, TORCH = ("sqlite", "nsys-rep"), ("json", "gzip")


def is_trace(path: Path) -> bool:
    """Whether a file may be one."""
    return sniff_packed(path)[0] in NSYS + TORCH


def read_trace(path: Path) -> Timeline:
    """A trace of nsys or of torch's profiler. Raises BadInput for any other file."""
    kind, words = sniff_packed(path)
    if kind in NSYS:
        from ncuflow.parsers import nsys

        return nsys.read_timeline(path)
    if kind in TORCH:
        from ncuflow.parsers import torch_trace

        return torch_trace.read(path)
    hint = ": `ncuflow explain` reads it" if kind == "ncu-rep" else ""
    raise BadInput(path, f"neither an nsys export nor torch's profiler's JSON but {words}{hint}")


# --- a report of Nsight Compute -----------------------------------------------------------------

ROUGH = 0.05  # a stall sum further off than this is of passes that were not alike, and its shares are marked
THROUGHPUT = {
    "sm": "sm_throughput_pct",
    "memory": "memory_throughput_pct",
    "dram": "dram_throughput_pct",
    "l2": "l2_throughput_pct",
    "l1": "l1_throughput_pct",
}


def show_report(path: str) -> tuple[Sheet, Row, list[Row]]:
    """(table, document, a row per kernel) of a report. Raises BadInput where it cannot be read."""
    return of_report(ncu.read(path, with_lines=False))


def exported(path: str) -> tuple[Sheet, Row, list[Row]]:
    """The same of what ncu printed."""
    return of_report(ncu_text.read(path))


def of_report(report: ncu.Report) -> tuple[Sheet, Row, list[Row]]:
    """The same of a report that was read."""
    metrics, stalls = _by_kernel(report.metrics), _by_kernel(report.stalls)
    kernels = [_kernel(r, metrics[r["kernel"]], stalls[r["kernel"]]) for r in report.kernels]
    return _report_sheet(report, kernels), report_document(report, kernels), _csv(kernels)


def report_document(report: ncu.Report, kernels: list[Row]) -> Row:
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


def _report_sheet(report: ncu.Report, kernels: list[Row]) -> Sheet:
    version = f"ncu {report.ncu_version}, " if report.ncu_version else ""
    devices = ", ".join(report.devices) or "no device name"
    head = f"{Path(report.file).name}: {version}{devices}, {with_unit(len(kernels), 'kernels')}"
    unit, took = in_one_unit([k["duration_ns"] and k["duration_ns"] / 1e3 for k in kernels])
    columns = ("#", "kernel", "grid", unit, "SM %", "mem %", "DRAM %", "issue", "top stall")
    rates = [[k["throughput"][of] for k in kernels] for of in ("sm", "memory", "dram")]
    rates.append([k["metrics"].get("issue_active") for k in kernels])
    rows = [_line(*one) for one in zip(kernels, took, *map(in_column, rates), strict=True)]
    notes = [f"! {problem}" for problem in report.problems]
    notes += [f"! {k['index']} {k['name']}: {p}" for k in kernels for p in k["problems"]]
    return Sheet(columns, rows, head, notes)


def _line(kernel: Row, *numbers: str) -> list[str]:
    top = kernel["top_stall"]
    rough = "≈" if abs((kernel["stall_sum"] or 1) - 1) > ROUGH else ""
    grid = None if kernel["grid"] is None else "×".join(str(n) for n in kernel["grid"])
    if grid is None and kernel["grid_size"] is not None:
        grid = f"{kernel['grid_size']} blk"  # old versions count the blocks without their shape
    return [
        str(kernel["index"]),
        kernel["name"],
        short(grid.removesuffix("×1").removesuffix("×1") if grid else None, 11),
        *numbers,
        f"{short(top['reason'], 15)} {rough}{100 * top['share']:.0f} %" if top else "–",
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
    """The name of the file."""
    devices: list[str]
    """The names of the GPUs."""
    ncu_version: str | None = None
    """The version of ncu; null for a trace."""
    nsys_version: str | None = None
    """The version of nsys; null for a report of ncu."""
    ranges: int
    """How many ranges of results there are; for a trace, how many NVTX ranges."""
    kernels: int | None = None
    """How many launches were profiled; null for a trace."""
    operations: int | None = None
    """How many operations a trace has."""
    span_ns: int | None = None
    """For a trace: the time from the first start to the last end, ns."""
    problems: list[str] | None = None
    """What is wrong with the file; for a trace this stands beside it."""


class TopStall(AnswerPart):
    """The largest stall reason."""

    reason: str
    """The name that ncu gives the reason."""
    share: float
    """The share of all stalls, of 1."""


class ShownKernel(AnswerPart):
    """One profiled launch."""

    index: int
    """The index of the launch in its report."""
    trace: str
    """The words before the name of a metric that `ncuflow trace` takes."""
    name: str
    """The function name."""
    demangled: str | None
    """The name with template arguments."""
    nvtx: list[str]
    """The NVTX ranges open at the launch, outermost first."""
    device: str | None
    """The GPU."""
    grid: list[int] | None
    """The blocks in x, y, z."""
    block: list[int] | None
    """The threads in x, y, z."""
    grid_size: int | None
    """The number of blocks."""
    block_size: int | None
    """The number of threads of a block."""
    duration_ns: float | None
    """The GPU time under ncu, ns."""
    throughput: dict[str, float | None]
    """The throughput by unit, each as a share of its sustained peak."""
    metrics: dict[str, float | None]
    """The metrics by key of the registry (docs/metrics.md); a key that the report does not have is absent."""
    stalls: dict[str, float | None]
    """The warps in each stall state per issued instruction, by reason."""
    top_stall: TopStall | None
    """The largest stall reason; null where not all reasons were counted."""
    stall_sum: float | None
    """The sum of all reasons over the warp latency; it is 1 except for what replay passes differ in."""
    problems: list[str]
    """What is wrong with the data of this launch."""


class ReportAnswer(Answer):
    """A report of ncu."""

    command: Literal["show"] = "show"
    """The command that wrote this JSON."""
    report: Shown
    """The file."""
    kernels: list[ShownKernel]
    """The launches of the report."""


class ShownSum(AnswerPart):
    """Operations of one kind and name."""

    name: str
    """The name of the kernel, or the kind of copy."""
    kind: str
    """One of: kernel, memcpy, memset, graph."""
    count: int
    """How many operations there are."""
    total_ns: int
    """The sum of their times, ns; for overlapping work it exceeds the wall time."""
    median_ns: float
    """The median time, ns."""
    min_ns: int
    """The shortest time, ns."""
    max_ns: int
    """The longest time, ns."""


class TraceAnswer(Answer):
    """A trace of nsys."""

    command: Literal["show"] = "show"
    """The command that wrote this JSON."""
    report: Shown
    """The file."""
    summary: list[ShownSum]
    """A row for each kind and name, the longest total first."""
    launches: list[dict[str, int | float | bool | str | None]]
    """A row for each operation, with the columns of `timeline` in docs/tables.md and ``trace``."""
    ranges: list[dict[str, int | str | None]]
    """The NVTX ranges of the host, as in docs/tables.md."""
    problems: list[str]
    """What is missing or was left out."""


def answer_of(document: Row, path: str, limit: int | None) -> ReportAnswer | TraceAnswer:
    """The answer of a report's document; path: the report as it was named."""
    named = printable(path)
    if "kernels" in document:
        kernels, left_out = cut(document["kernels"], limit)
        rows = [{"trace": shlex.quote(f"{named}#{k['index']}"), **k} for k in kernels]
        held = {f"metrics.{key}" for k in kernels for key in k["metrics"]}
        columns = {n: c for n, c in counted().items() if n in held or not n.startswith("metrics.")}
        return ReportAnswer.model_validate(
            {
                "report": document["report"],
                "kernels": rows,
                "columns": columns,
                "left_out": left_out,
            }
        )
    parts = {name: cut(document[name], limit) for name in ("summary", "launches", "ranges")}
    found: Row = {name: rows for name, (rows, _) in parts.items()}
    found["launches"] = [
        {"trace": shlex.quote(f"{named}#{row['index']}"), **row} for row in found["launches"]
    ]
    left_out = sum(n for _, n in parts.values())
    return TraceAnswer.model_validate(document | found | {"columns": timed(), "left_out": left_out})


def _column(unit: str, metric: str) -> AnswerColumn:
    return AnswerColumn(unit=unit, metric=metric, tier=RECORDED)


@cache
def counted() -> dict[str, AnswerColumn]:
    """What the columns of a report's kernels are."""
    return {
        "duration_ns": _column("ns", "duration_ns"),
        **{
            f"throughput.{unit}": _column(METRICS[key].unit, key)
            for unit, key in THROUGHPUT.items()
        },
        **{
            f"metrics.{metric.key}": _column(metric.unit, metric.key) for metric in METRICS.values()
        },
        **{f"stalls.{reason}": _column("cycle", f"stall_{reason}") for reason in STALL_REASONS},
        "top_stall.share": _column("of 1", "top_stall_share"),
        "stall_sum": _column("of 1", f"{RATIO.format('*')} over warp_latency_per_issue"),
    }


@cache
def timed() -> dict[str, AnswerColumn]:
    """What the columns of a trace's operations are."""
    about = parquet.columns("timeline").items()
    own = {name: _column(one.unit, name) for name, one in about if one.unit}
    return own | {
        f"{what}_ns": _column("ns", "duration_ns") for what in ("total", "median", "min", "max")
    }


READERS = {
    "ncu-rep": show_report, "csv": exported, "text": exported,
    "sqlite": show_trace, "nsys-rep": show_trace,
}  # fmt: skip
