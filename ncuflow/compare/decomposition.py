"""Where a kernel's change went: instructions, waiting by reason, active warps, clock, idle SMs.

A scheduler's active cycles are (Little's law) instructions × cycles that a warp spends per instruction
÷ active warps, and a duration is those cycles ÷ clock, stretched by the time in which SMs hold no
warp. The factors multiply, so their logarithms add; the logarithmic mean of both durations turns
them into microseconds that add up to the change exactly (the logarithmic mean Divisia
decomposition). Cycles per instruction are a sum over the stall reasons, so that term splits
further, again without a remainder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from math import log

from ncuflow.compare.records import Part
from ncuflow.model import Kernel, Stall

Pair = tuple[float, float]
# part -> (registry key, its sign in ln(duration))
FACTORS = {
    "instructions": ("inst_executed", 1),
    "latency": ("warp_latency_per_issue", 1),
    "active warps": ("warps_active_per_scheduler", -1),
    "SM clock": ("sm_clock_hz", -1),
    "SMs": ("sm_count", -1),
}
ROUNDING = 1e-9  # of the duration
PASSES = "passes"  # a kind of part: what counters of different replay passes disagree by, which no change caused
OPTIONAL = ("SMs",)  # equal on one GPU; old reports do not say


UNITS = {"instructions": "", "active warps": "warps per scheduler", "SM clock": "hz", "SMs": ""}


def logarithmic_mean(a: float, b: float) -> float:
    """(b − a) / ln(b / a), and a where both are equal; a and b are positive."""
    return a if a == b else (b - a) / log(b / a)


def parts(base: Kernel, head: Kernel) -> list[Part]:
    """Terms of the change between two launches, the largest first; they add up to the change.

    Empty where either launch lacks a factor.
    """
    if not base["duration_ns"] or not head["duration_ns"]:
        return []
    before, after = base["duration_ns"] / 1e3, head["duration_ns"] / 1e3
    known = {name: _both(base, head, key) for name, (key, _) in FACTORS.items()}
    if any(values is None for name, values in known.items() if name not in OPTIONAL):
        return []
    scale = logarithmic_mean(before, after)
    found: list[Part] = []
    for name, values in known.items():
        if values is not None and name == "latency":
            found += _latency(base["stalls"], head["stalls"], values, scale)
        elif values is not None:
            term = scale * FACTORS[name][1] * log(values[1] / values[0])
            found.append(Part(name, name, *values, UNITS[name], term))
    change = after - before
    rest = change - sum(part.delta_us for part in found)
    idle = _idle(known, 0, before), _idle(known, 1, after)
    found.append(Part("idle SMs", "launch, tail and uneven SMs", *idle, "of 1", rest))
    found.sort(key=lambda part: -abs(part.delta_us))
    return [
        replace(part, share_of_cause=part.delta_us / change if change else None)
        for part in found
        if abs(part.delta_us) > ROUNDING * after
    ]


def causes(found: Iterable[Part], least: float) -> list[Part]:
    """Of the parts those that a page names: at least ``least`` of the change, and not what passes disagree by."""
    return [p for p in found if p.kind != PASSES and abs(p.share_of_cause or 0) >= least]


def _both(base: Kernel, head: Kernel, key: str) -> Pair | None:
    """A factor on both sides; a factor has no logarithm unless it is positive."""
    a, b = base["metrics"].get(key), head["metrics"].get(key)
    return (a, b) if a and b and a > 0 and b > 0 else None


def _latency(
    base: Iterable[Stall], head: Iterable[Stall], total: Pair, scale: float
) -> Iterator[Part]:
    """Cycles per issued instruction by reason; what the reasons miss is one more part, whatever they count too much too."""
    before, after = _ratios(base), _ratios(head)
    each = scale / logarithmic_mean(*total)
    unit = "cycles per instruction"
    if not before or not after:
        yield Part("stall", "all waiting", *total, unit, each * (total[1] - total[0]))
        return
    for reason in before | after:
        a, b = before.get(reason, 0.0), after.get(reason, 0.0)
        kind = "scheduler" if reason in ("selected", "not_selected") else "stall"
        yield Part(kind, reason, a, b, unit, each * (b - a))
    a, b = total[0] - sum(before.values()), total[1] - sum(after.values())
    if min(a, b) < -ROUNDING * max(total):
        # The total is counted in another replay pass than the reasons: no wait is negative, so this is none.
        yield Part(PASSES, "replay passes that disagree", None, None, unit, each * (b - a))
        return
    yield Part("stall", "not attributed to a reason", a, b, unit, each * (b - a))


def _ratios(stalls: Iterable[Stall]) -> dict[str, float]:
    return {s["reason"]: s["ratio"] for s in stalls if s["ratio"] is not None}


def _idle(known: dict[str, Pair | None], side: int, duration_us: float) -> float | None:
    """Fraction of a duration outside active cycles; None where the SM count is not known."""
    value = 1.0
    for name, (_, sign) in FACTORS.items():
        values = known[name]
        if values is None:
            return None
        value *= values[side] ** sign
    # four schedulers per SM, on every architecture since Volta
    return 1 - value / 4 * 1e6 / duration_us
