"""The bottleneck of a launch: Speed of Light and issue activity first, stall reasons second.

A stall reason alone never decides: it says what a warp waited for, not whether the wait cost anything.
The threshold is that of NVIDIA's own Speed-of-Light rule: below 60 % of both ceilings a launch is bound
by latency.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

BUSY = 60.0  # per cent of peak sustained throughput
FILLED = 0.9  # waves: from here on a larger grid has next to no free slot to fill
LEVEL_SLACK = 10.0  # percentage points between memory levels that count as equally busy
MEMORY_LEVELS = {  # farthest from the SM first
    "dram": "dram_throughput_pct",
    "l2": "l2_throughput_pct",
    "l1": "l1_throughput_pct",
}


@dataclass(frozen=True)
class Bottleneck:
    """limiter: memory | compute | balanced | latency | grid (too few blocks) | merge | unknown.

    unit: the unit that leads (dram, l2, l1, tensor, sm); pct: its use in per cent of peak, or None
    (of merge: the kernel's share of the point's time).
    """

    limiter: str
    unit: str | None = None
    pct: float | None = None


def judge(metrics: Mapping[str, float | None]) -> Bottleneck:
    """Judge one launch from its metrics by registry key; ``unknown`` where throughput is missing."""
    compute, memory = metrics.get("sm_throughput_pct"), metrics.get("memory_throughput_pct")
    if compute is None or memory is None:
        return Bottleneck("unknown")
    if max(compute, memory) < BUSY:
        waves = metrics.get("waves")
        if waves is not None and waves < FILLED:
            return Bottleneck("grid", "sm", 100 * waves)
        return Bottleneck("latency", "sm", max(compute, memory))
    if min(compute, memory) >= BUSY and abs(compute - memory) < 10:
        return Bottleneck("balanced", _memory_level(metrics, memory)[0], memory)
    if memory >= compute:
        level, pct = _memory_level(metrics, memory)
        return Bottleneck("memory", level, memory if pct is None else pct)
    unit = "tensor" if (metrics.get("tensor_pipe_pct") or 0) >= 0.5 * compute else "sm"
    return Bottleneck("compute", unit, compute)


def _memory_level(
    metrics: Mapping[str, float | None], memory: float
) -> tuple[str | None, float | None]:
    """The level that limits: the farthest from the SM among those that are about as busy as the busiest.

    What DRAM delivers passes through L2 and L1, so a launch that waits for DRAM keeps those busy, too. A
    level's own throughput counts more than memory throughput does of it (and L1's only active cycles):
    none is taken for busier than the memory throughput that decides.
    """
    known = {
        level: min(use, memory)
        for level, key in MEMORY_LEVELS.items()
        if (use := metrics.get(key)) is not None
    }
    busiest = max(known.values(), default=0.0)
    for level, pct in known.items():
        if pct >= busiest - LEVEL_SLACK:
            return level, pct
    return None, None
