"""Where a kernel's change went: instructions, waiting by reason, active warps, clock, idle SMs.

A scheduler's active cycles are (Little's law) instructions × cycles a warp spends per instruction
÷ active warps, and a duration is those cycles ÷ clock, stretched by the time in which SMs hold no
warp. The factors multiply, so their logarithms add; the logarithmic mean of both durations turns
them into nanoseconds that add up to the change exactly (the logarithmic mean Divisia
decomposition). Cycles per instruction are a sum over the stall reasons, so that term splits
further, again without a remainder.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import log
from typing import Any

Row = dict[str, Any]
# part -> (registry key, its sign in ln(duration))
FACTORS = {
    "instructions": ("inst_executed", 1),
    "latency": ("warp_latency_per_issue", 1),
    "active warps": ("warps_active_per_scheduler", -1),
    "SM clock": ("sm_clock_hz", -1),
    "SMs": ("sm_count", -1),
}
ROUNDING = 1e-9  # of the duration
OPTIONAL = ("SMs",)  # equal on one GPU; old reports do not say


@dataclass(frozen=True)
class Part:
    """One term of a kernel's change: both values in ``unit``, and what it did to the duration.

    kind: instructions | stall | scheduler | active warps | SM clock | SMs | idle SMs
    """

    kind: str
    what: str
    base: float | None
    head: float | None
    unit: str
    delta_ns: float


UNITS = {"instructions": "", "active warps": "warps a scheduler", "SM clock": "hz", "SMs": ""}


def logarithmic_mean(a: float, b: float) -> float:
    """(b − a) / ln(b / a), and a where both are equal; a and b are positive."""
    return a if a == b else (b - a) / log(b / a)


def parts(base: Row, head: Row) -> list[Part]:
    """Terms of the change between two launches, the largest first; they add up to the change.

    base, head: kernel rows with ``duration_ns``, ``metrics`` by registry key and ``stalls``. Empty
    where either lacks a factor.
    """
    times = base["duration_ns"], head["duration_ns"]
    if not all(times):
        return []
    known = {name: _both(base, head, key) for name, (key, _) in FACTORS.items()}
    if any(values is None for name, values in known.items() if name not in OPTIONAL):
        return []
    scale = logarithmic_mean(*times)
    out = []
    for name, values in known.items():
        if values is None:
            continue
        if name == "latency":
            out += _latency(base["stalls"], head["stalls"], values, scale)
        else:
            term = FACTORS[name][1] * log(values[1] / values[0])
            out.append(Part(name, name, *values, UNITS[name], scale * term))
    rest = times[1] - times[0] - sum(part.delta_ns for part in out)
    out.append(Part("idle SMs", "launch, tail and uneven SMs", *_idle(known, times), "of 1", rest))
    moved = (part for part in out if abs(part.delta_ns) > ROUNDING * times[1])
    return sorted(moved, key=lambda part: -abs(part.delta_ns))


def _both(base: Row, head: Row, key: str) -> tuple[float, float] | None:
    """A factor on both sides; a factor has no logarithm unless it is positive."""
    a, b = base["metrics"].get(key), head["metrics"].get(key)
    return (a, b) if a and b and a > 0 and b > 0 else None


def _latency(
    base: Iterable[Row], head: Iterable[Row], total: tuple[float, float], scale: float
) -> list[Part]:
    """Cycles per issued instruction by reason; what the reasons miss is one more part."""
    before, after = _ratios(base), _ratios(head)
    each = scale / logarithmic_mean(*total)
    unit = "cycles per instruction"
    if not before or not after:
        return [Part("stall", "all waiting", *total, unit, each * (total[1] - total[0]))]
    out = []
    for reason in before | after:
        a, b = before.get(reason, 0.0), after.get(reason, 0.0)
        kind = "scheduler" if reason in ("selected", "not_selected") else "stall"
        out.append(Part(kind, reason, a, b, unit, each * (b - a)))
    a, b = total[0] - sum(before.values()), total[1] - sum(after.values())
    out.append(Part("stall", "not attributed to a reason", a, b, unit, each * (b - a)))
    return out


def _ratios(stalls: Iterable[Row]) -> dict[str, float]:
    return {s["reason"]: s["ratio"] for s in stalls if s["ratio"] is not None}


def _idle(
    known: dict[str, tuple[float, float] | None], times: tuple[float, float]
) -> tuple[float | None, float | None]:
    """Fraction of each duration outside active cycles; None where the SM count is not known."""
    out: list[float | None] = []
    for side in (0, 1):
        value = 1.0
        for name, (_, sign) in FACTORS.items():
            values = known[name]
            if values is None:
                return None, None
            value *= values[side] ** sign
        # four schedulers an SM, on every architecture since Volta
        out.append(1 - value / 4 * 1e9 / times[side])
    return out[0], out[1]
