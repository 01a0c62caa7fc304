"""The join: events, nsys and ncu on the point id, into one measurement row (``columns.py``) a point.

Everything here is a pure function over plain rows, so that it can be tested without a report.
A value that any of its terms lacks is None, never zero.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from statistics import median
from typing import Any

from ncuflow.findings import bottleneck, ceilings
from ncuflow.findings.columns import COLUMNS

Row = dict[str, Any]
SUMMED = {
    "flops_tensor_counted": ("tensor_flops",),
    "flops_counted": ("tensor_flops", "fp32_flops", "fp16_flops"),
    "bytes_dram_counted": ("dram_bytes_read", "dram_bytes_write"),
    "bytes_l2_counted": ("l2_bytes",),
    "bytes_l1_counted": ("l1_bytes",),
}
MERGE = "PersistentVariableLengthMergeStates"  # merges what a split over the KV cache left
OF_MAIN = {
    "sol_sm_pct": "sm_throughput_pct",
    "sol_memory_pct": "memory_throughput_pct",
    "sol_dram_pct": "dram_throughput_pct",
    "sol_l2_pct": "l2_throughput_pct",
    "sol_l1_pct": "l1_throughput_pct",
    "tensor_pipe_pct": "tensor_pipe_pct",
    "issue_active": "issue_active",
    "achieved_occupancy_pct": "achieved_occupancy_pct",
    "theoretical_occupancy_pct": "theoretical_occupancy_pct",
    "waves": "waves",
}


def ratio(numerator: float | None, denominator: float | None, scale: float = 1.0) -> float | None:
    """``numerator / denominator * scale``; None if either is None or the denominator is 0."""
    if numerator is None or not denominator:
        return None
    return numerator / denominator * scale


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None if there is nothing to add or any term is unknown."""
    terms = list(values)
    if not terms or any(term is None for term in terms):
        return None
    return sum(term for term in terms if term is not None)


def row(
    timing: Row,
    kernels: list[Row],
    launches: list[Row],
    machine: Row,
    provenance: Row,
    problems: Iterable[str] = (),
) -> Row:
    """One measurement row.

    timing: a row of the timing table; kernels: this point's kernels, each with ``metrics`` (by registry
    key) and ``stalls``; launches: this point's timeline rows; machine: ``ceilings.machine`` of the evidence.
    """
    out: Row = dict.fromkeys(column.name for column in COLUMNS)
    params = timing.get("params") or {}
    out |= {
        "point": timing["point"],
        "target": timing["target"],
        "tier": provenance["tier"],
        "gpu": provenance["gpu"],
        "architecture": architecture(provenance),
        "status": timing["status"],
        "dtype": params.get("dtype"),
    }
    out |= _times(timing) | _insitu(launches) | _counted(kernels)
    main = main_kernel(kernels)
    out |= _of_main(main, kernels)
    out |= ceilings.of_point(machine, main["metrics"] if main else {}, str(params.get("dtype")))
    out |= _derived(out)
    named = list(problems) + [f"{k['name']}: {k['problems']}" for k in kernels if k["problems"]]
    out["problems"] = "; ".join(named) or None
    return out


def architecture(provenance: Row) -> str | None:
    """``sm_90`` from compute capability ``9.0``."""
    capability = provenance.get("compute_capability")
    return "sm_" + str(capability).replace(".", "") if capability else None


def main_kernel(kernels: list[Row]) -> Row | None:
    """The longest kernel of a point: the one whose throughput, stalls and occupancy stand for it.

    None where a kernel has no time: it may be the longest.
    """
    if not kernels or any(kernel["duration_ns"] is None for kernel in kernels):
        return None
    return max(kernels, key=lambda kernel: kernel["duration_ns"])


def _times(timing: Row) -> Row:
    return {
        "time_cold_us": timing["cold_us"],
        "time_cold_q25_us": timing["cold_q25_us"],
        "time_cold_q75_us": timing["cold_q75_us"],
        "time_cold_n": timing["cold_n"],
        "time_hot_us": timing["hot_us"],
        "time_hot_q25_us": timing["hot_q25_us"],
        "time_hot_q75_us": timing["hot_q75_us"],
        "time_hot_n": timing["hot_n"],
        "host_launch_us": timing["host_us"],
        "plan_us": timing["plan_us"],
        "flops_analytic": timing["flops"],
        "bytes_analytic": timing["bytes"],
        "convention": timing["convention"],
    }


def _insitu(launches: list[Row]) -> Row:
    """Kernel time and idle time inside a launch, as nsys saw them beside everything else."""
    by_launch: dict[int, list[Row]] = defaultdict(list)
    for launch in launches:
        if launch["kind"] in ("kernel", "graph") and launch["duration_ns"] is not None:
            by_launch[launch["launch"]].append(launch)
    if not by_launch:
        return {}
    busy = [sum(r["duration_ns"] for r in rows) for rows in by_launch.values()]
    idle = [idle_us((r["start_ns"], r["end_ns"]) for r in rows) for rows in by_launch.values()]
    return {
        "time_insitu_us": median(busy) / 1e3,
        "insitu_n": len(busy),
        "kernel_gap_us": median(idle),
    }


def idle_us(spans: Iterable[tuple[int, int]]) -> float:
    """µs between the first start and the last end (both in ns) in which nothing ran."""
    ordered = sorted(spans)
    idle, until = 0, ordered[0][0]
    for start, end in ordered:
        idle += max(0, start - until)
        until = max(until, end)
    return idle / 1e3


def _counted(kernels: list[Row]) -> Row:
    out: Row = {"kernel_count": len(kernels) or None}
    out["time_ncu_us"] = ratio(total(k["duration_ns"] for k in kernels), 1e3)
    counts = [_idle_tensor_flops(kernel["metrics"]) | kernel["metrics"] for kernel in kernels]
    for name, keys in SUMMED.items():
        out[name] = total(metrics.get(key) for metrics in counts for key in keys)
    return out


def _idle_tensor_flops(metrics: Row) -> Row:
    """No tensor FLOPs where the tensor pipe never ran: some reports leave their counts out then."""
    pipe = (metrics.get("tensor_pipe_pct"), metrics.get("tensor_pipe_elapsed_pct"))
    return {"tensor_flops": 0.0} if 0 in pipe else {}


def _verdict(main: Row, kernels: list[Row]) -> bottleneck.Bottleneck:
    """Of the longest kernel; a merge that takes longer than what it merges is the finding itself."""
    if len(kernels) > 1 and main["name"].startswith(MERGE):
        whole = sum(kernel["duration_ns"] for kernel in kernels)
        return bottleneck.Bottleneck("merge", "kernel", 100 * main["duration_ns"] / whole)
    return bottleneck.of_kernel(main["metrics"])


def _of_main(main: Row | None, kernels: list[Row]) -> Row:
    if main is None:
        return {"bottleneck": "unknown"}
    metrics, verdict = main["metrics"], _verdict(main, kernels)
    stalls = sorted(
        (s for s in main["stalls"] if s["kind"] == "stall" and s["share"] is not None),
        key=lambda s: -s["share"],
    )
    first, second = [*stalls, {}, {}][:2]
    return {column: metrics.get(key) for column, key in OF_MAIN.items()} | {
        "main_kernel": main["name"],
        "grid_size": main["grid_size"],
        "block_size": main["block_size"],
        "registers": main["registers"],
        "smem_bytes": total((main["smem_static_bytes"], main["smem_dynamic_bytes"])),
        "sm_clock_ghz": ratio(metrics.get("sm_clock_hz"), 1e9),
        "top_stall": first.get("reason"),
        "top_stall_share": first.get("share"),
        "second_stall": second.get("reason"),
        "second_stall_share": second.get("share"),
        "bottleneck": verdict.limiter,
        "bottleneck_unit": verdict.unit,
        "bottleneck_pct": verdict.pct,
    }


def _derived(r: Row) -> Row:
    """Ratios, rates and fractions, each as its column's formula says."""
    rates = {
        "tflops": ratio(r["flops_analytic"], r["time_cold_us"], 1e-6),
        "gbs": ratio(r["bytes_analytic"], r["time_cold_us"], 1e-3),
        "gbs_hot": ratio(r["bytes_analytic"], r["time_hot_us"], 1e-3),
        "tensor_tflops_counted": ratio(r["flops_tensor_counted"], r["time_ncu_us"], 1e-6),
        "dram_gbs_counted": ratio(r["bytes_dram_counted"], r["time_ncu_us"], 1e-3),
    }
    fractions = {}
    for source in ceilings.SOURCES:
        memory = rates["dram_gbs_counted" if source == "counter" else "gbs"]
        tensor = rates["tensor_tflops_counted" if source == "counter" else "tflops"]
        fractions[f"gbs_fraction_{source}"] = ratio(memory, r[f"ceiling_dram_gbs_{source}"])
        fractions[f"tflops_fraction_{source}"] = ratio(tensor, r[f"ceiling_tensor_tflops_{source}"])
    return (
        rates
        | fractions
        | {
            "replay_distortion": ratio(r["time_ncu_us"], r["time_insitu_us"]),
            "flops_ratio": ratio(
                r["flops_analytic"], r["flops_tensor_counted"] or r["flops_counted"]
            ),
            "bytes_ratio": ratio(r["bytes_analytic"], r["bytes_dram_counted"]),
            "ai_analytic": ratio(r["flops_analytic"], r["bytes_analytic"]),
            "ai_counted": ratio(r["flops_counted"], r["bytes_dram_counted"]),
            "ai_l2_counted": ratio(r["flops_counted"], r["bytes_l2_counted"]),
            "ai_l1_counted": ratio(r["flops_counted"], r["bytes_l1_counted"]),
        }
    )
