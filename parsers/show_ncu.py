"""A report of Nsight Compute as a table, a JSON document and rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncuflow.format import aligned, number, quantity, short
from ncuflow.model import Row
from ncuflow.parsers import ncu, ncu_csv
from ncuflow.parsers.registry import METRICS
from ncuflow.parsers.stalls import STALL_REASONS

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
    return of(ncu_csv.read(path))


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
        "grid": _dims(row["grid"]),
        "block": _dims(row["block"]),
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


def _dims(text: str | None) -> list[int] | None:
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
