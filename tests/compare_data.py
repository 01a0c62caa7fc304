"""Synthetic sides of a comparison: points with runs, kernels whose counters obey Little's law."""

from __future__ import annotations

import copy
import json
import math
import random
from dataclasses import asdict
from typing import Any

import results_data
from results_data import launched

from ncuflow.compare import attribution, decomposition, verdict
from ncuflow.compare.records import Thresholds
from ncuflow.compare.verdict import Side

Row = dict[str, Any]
PROVENANCE: Row = results_data.PROVENANCE | {
    "tier": "C", "driver": "580.1", "cuda": "13.0", "torch": "2.11", "flashinfer": "0.6.18", "ncu": "2025.3.1",
    "nsys": "2025.3", "python": "3.12", "date": "2026-01-09", "recording": "base", "clock_policy": "none",
}  # fmt: skip
STALLS = {
    "long_scoreboard": 5.0,
    "short_scoreboard": 3.6,
    "barrier": 2.9,
    "wait": 0.7,
    "selected": 1.0,
}
DECODE = (
    "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, "
    "(unsigned int){stages}, (unsigned int){tile}, (unsigned int)8, (unsigned int)16, "
    "(unsigned int)1, (unsigned int)8, "
    "flashinfer::DefaultAttention<(bool)0, (bool)0, (bool)0, (bool)0>, Params>(T9)"
)


def kernel(
    name: str = "BatchDecodeWithPagedKVCacheKernel",
    *,
    stages: int = 2,
    tile: int = 4,
    instructions: float = 77e6,
    warps: float = 5.4,
    clock: float = 1.9e9,
    busy: float = 0.91,
    registers: int = 70,
    grid: str = "32,32,1",
    **stalls: float,
) -> Row:
    """A kernel row whose duration follows from its counters; ``busy``: share of active cycles."""
    ratios = STALLS | stalls
    latency = sum(ratios.values())
    cycles = instructions / (132 * 4) * latency / warps
    metrics = {
        "inst_executed": instructions, "warp_latency_per_issue": latency, "sm_count": 132.0,
        "warps_active_per_scheduler": warps, "sm_clock_hz": clock, "issue_active": warps / latency,
        "dram_bytes_read": 1.07e9, "l2_bytes": 1.6e9, "occupancy_limit_registers": 65536 // (registers * 128),
        "occupancy_limit_shared_mem": 6.0,
    }  # fmt: skip
    waits = [
        {"reason": reason, "kind": "stall", "ratio": ratio, "share": None}
        for reason, ratio in ratios.items()
    ]
    return launched(
        name, demangled=DECODE.format(stages=stages, tile=tile), grid=grid, block="16,1,8", registers=registers,
        smem_dynamic_bytes=36864, duration_ns=cycles / clock * 1e9 / busy, metrics=metrics, stalls=waits,
    )  # fmt: skip


def point(name: str, us: float, kernels: list[Row] | None = None, host: float = 15.0) -> Row:
    """A point of a results file without its runs (``with_runs``)."""
    found = [kernel()] if kernels is None else kernels
    clock = (found[0]["metrics"]["sm_clock_hz"] or 1.9e9) if found else 1.9e9
    measured = {"time_cold_us": us, "host_launch_us": host, "plan_us": None, "kernel_gap_us": 0.0}
    measured |= {"sm_clock_ghz": 1.9, "clock_cold_mhz": clock / 1e6}
    return {
        "point": name, "target": name.split("/")[0], "tier": "C", "status": "ok", "reason": None, "params": {},
        "measurement": measured, "info": {}, "kernels": found, "deep": [],
    }  # fmt: skip


def runs(
    rng: random.Random,
    us: float,
    count: int,
    n: int = 20,
    between: float = 0.01,
    within: float = 0.004,
) -> list[list[float]]:
    """``count`` runs of ``n`` launches: each run has a level of its own, each launch some noise."""
    out = []
    for _ in range(count):
        level = us * math.exp(rng.gauss(0, between))
        out.append([level * math.exp(rng.gauss(0, within)) for _ in range(n)])
    return out


def with_runs(rng: random.Random, row: Row, count: int = 5, between: float = 0.01) -> Row:
    """The point as one side measured it."""
    measured = row["measurement"]
    host = [[run[0]] for run in runs(rng, measured["host_launch_us"], count, 1, between=0.02)]
    cold = runs(rng, measured["time_cold_us"], count, between=between)
    return copy.deepcopy(row) | {"runs": {"cold_us": cold, "host_us": host}}


def side(name: str, points: list[Row], **provenance: Any) -> Side:
    """A side of these points."""
    origin = PROVENANCE | {"recording": name} | provenance
    return Side(name, origin, {p["point"]: p for p in points})


def sweep(count: int = 24) -> list[Row]:
    """Points of several durations, all with the same kernel's counters."""
    return [point(f"decode/B{i}", 10.0 * 1.2**i) for i in range(1, count + 1)]


def pair(
    base: list[Row],
    head: list[Row] | None = None,
    seed: int = 1,
    count: int = 5,
    between: float = 0.01,
) -> tuple[Side, Side]:
    """Two sides, measured independently; without ``head`` both are the same: A/A."""
    rng = random.Random(seed)
    sides = []
    for name, points in (("base", base), ("head", base if head is None else head)):
        sides.append(side(name, [with_runs(rng, row, count, between) for row in points]))
    return sides[0], sides[1]


def compare(base: Side, head: Side, settings: Thresholds) -> Row:
    """The comparison as ``compare.json`` holds it."""
    return json.loads(json.dumps(asdict(verdict.compare(base, head, settings))))


def profile(row: Row) -> attribution.Profile:
    """What a point of these says beside its times."""
    measured = row["measurement"]
    rates = decomposition.LaunchRates("NVIDIA H200", measured["clock_cold_mhz"] / 1e3, 4800.0)
    beside = (measured["kernel_gap_us"], row["info"], row.get("traced"), rates)
    return attribution.Profile(row["kernels"], row["deep"], *beside)


def explain(base: Row, head: Row, delta_us: float) -> tuple[list[Row], float]:
    """Causes as rows, and what they leave, of points whose times differ by so much."""
    found = attribution.explain(profile(base), profile(head), 0.0, delta_us)
    return [asdict(cause) for cause in found.causes], found.unexplained


def delta(row: Row) -> float:
    """Head minus base of a change as a row, µs."""
    return float(row["head"] - row["base"])
