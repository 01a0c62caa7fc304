"""A kernel's change split into terms that add up: what its warps executed, waited for, and at which rates.

A scheduler's active cycles are instructions × cycles a warp spends per instruction ÷ active warps (Little's law); the
duration is those cycles ÷ clock, stretched by the time in which SMs hold no warp. Factors multiply, so their logarithms
add; the logarithmic mean of both durations turns them into microseconds that add up to the change exactly (the
logarithmic mean Divisia decomposition). Cycles per instruction are a sum over the stall reasons, so that term splits
further, again without a remainder.

The clock is that of the timing run: what ncu runs at belongs to ncu. Where it ran the two sides at other clocks, their
durations say nothing of each other, and the kernel is compared in elapsed cycles, or in active ones where a report has no
others: then idle SMs are no part. A kernel that DRAM limits does not follow
the SM clock: it is compared in time, and from one GPU to another its duration is DRAM bytes ÷ (peak × share of the peak).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from math import log
from typing import Literal

from ncuflow.compare.records import ChangeTerm
from ncuflow.findings import limiter
from ncuflow.model import Kernel, Stall

Pair = tuple[float, float]
# part -> (registry key, its sign in ln(duration))
FACTORS = {
    "instructions": ("inst_executed", 1),
    "latency": ("warp_latency_per_issue", 1),
    "active warps": ("warps_active_per_scheduler", -1),
    "SMs": ("sm_count", -1),
}
ROUNDING = 1e-9  # of the duration
PASSES = "passes"  # a kind of part: what counters of different replay passes disagree by, which no change caused
OPTIONAL = ("SMs",)  # equal on one GPU; old reports do not say
CLOCK, BANDWIDTH = "SM clock", "DRAM bandwidth"
# What a GPU or its state gives: told before what the warps of a kernel make of it.
RATES = (BANDWIDTH, CLOCK, "SMs")
# as a logarithm, between ncu's clocks of two sides and those of their timing runs
CLOCKS_DIFFER = 0.02


UNITS = {"instructions": "", "active warps": "warps per scheduler", "SMs": ""}


@dataclass(frozen=True)
class LaunchRates:
    """What the timed launches of a side had: their GPU, its SM clock in GHz and its published DRAM bandwidth in GB/s."""

    gpu: str | None = None
    clock_ghz: float | None = None
    dram_gbs: float | None = None


Sides = tuple[LaunchRates, LaunchRates]
UNKNOWN: Sides = (LaunchRates(), LaunchRates())


@dataclass(frozen=True)
class Split:
    """A kernel's change in µs and its parts, the rates first, then the largest; none where a factor is not known.

    cycles: of which it is that, at the clocks of the timing runs, as ncu ran the sides at clocks of its own; "" of durations.
    """

    delta_us: float
    parts: list[ChangeTerm]
    cycles: Literal["", "elapsed", "active"] = ""


def logarithmic_mean(a: float, b: float) -> float:
    """(b − a) / ln(b / a), and a where both are equal; a and b are positive."""
    return a if a == b else (b - a) / log(b / a)


def of_other_gpus(sides: Sides) -> bool:
    """Whether the two sides are known to be of two GPUs."""
    return None not in (sides[0].gpu, sides[1].gpu) and sides[0].gpu != sides[1].gpu


def limits(kernel: Kernel) -> limiter.Share | None:
    """The unit that limits a launch, from 60 % of its peak on; None where none does or nothing is known."""
    units = limiter.judge(kernel.get("breakdown") or (), kernel["metrics"]).units
    return units[0] if units and units[0].pct >= limiter.LATENCY else None


def split(base: Kernel, head: Kernel, sides: Sides = UNKNOWN) -> Split:
    """The change between two launches of one kernel that were timed, and its parts, which add up to it."""
    before, after = (base["duration_ns"] or 0.0) / 1e3, (head["duration_ns"] or 0.0) / 1e3
    by_dram = any(unit and unit.name == "dram" for unit in map(limits, (base, head)))
    if by_dram and of_other_gpus(sides):
        by_rate = _by_bandwidth(base, head, sides, (before, after))
        return Split(after - before, _sorted(by_rate, after - before, after))
    known = {name: _both(base, head, key) for name, (key, _) in FACTORS.items()}
    if any(values is None for name, values in known.items() if name not in OPTIONAL):
        return Split(after - before, [])
    ncu = _positive(profiled_hz(base), profiled_hz(head))
    clock = _positive(sides[0].clock_ghz, sides[1].clock_ghz)
    apart = ncu is not None and abs(_log(ncu) - _log(clock)) > CLOCKS_DIFFER
    elapsed = _both(base, head, "cycles_elapsed")
    idle = _idle(known, ncu, 0, before), _idle(known, ncu, 1, after)
    cycles: Literal["", "elapsed", "active"] = ""
    if apart and not by_dram:
        cycles = "elapsed" if elapsed else "active"
        a, b = elapsed or (_active(known, 0), _active(known, 1))
        after = before * b / a * (clock[0] / clock[1] if clock else 1)
    scale = logarithmic_mean(before, after)
    found = list(_factors(base, head, known, scale, ncu if by_dram else None))
    if clock and not by_dram:
        found.append(
            ChangeTerm(CLOCK, CLOCK, clock[0] * 1e9, clock[1] * 1e9, "hz", -scale * _log(clock))
        )
    if cycles != "active":
        rest = after - before - sum(part.delta_us for part in found)
        found.append(ChangeTerm("idle SMs", "launch, tail and uneven SMs", *idle, "of 1", rest))
    return Split(after - before, _sorted(found, after - before, after), cycles)


def _sorted(found: Iterable[ChangeTerm], change: float, after: float) -> list[ChangeTerm]:
    """Rates of the GPU, then the largest; without what is nothing, each with its share."""
    return [
        replace(part, share_of_cause=part.delta_us / change if change else None)
        for part in sorted(found, key=lambda part: (part.kind not in RATES, -abs(part.delta_us)))
        if abs(part.delta_us) > ROUNDING * after
    ]


def _by_bandwidth(base: Kernel, head: Kernel, sides: Sides, times: Pair) -> Iterator[ChangeTerm]:
    """duration = DRAM bytes ÷ (published bandwidth × share of it that was reached)."""
    peak = _positive(sides[0].dram_gbs, sides[1].dram_gbs)
    moved = _positive(dram_bytes(base), dram_bytes(head))
    if not (peak and moved):
        return
    scale = logarithmic_mean(*times)
    shares = [100 * n / us / 1e3 / gbs for n, us, gbs in zip(moved, times, peak, strict=True)]
    unit = limits(head)
    why = (
        f", as {limiter.label(unit.name)} limits it ({unit.pct:.0f} %)"
        if unit and unit.name != "dram"
        else ""
    )
    yield ChangeTerm(
        BANDWIDTH,
        "DRAM bandwidth, published",
        1e9 * peak[0],
        1e9 * peak[1],
        "B/s",
        -scale * _log(peak),
    )
    yield ChangeTerm("DRAM bytes", "DRAM bytes", *moved, "byte", scale * _log(moved))
    what = f"share of that bandwidth that the kernel reaches{why}"
    yield ChangeTerm(
        "DRAM share", what, shares[0], shares[1], "%", -scale * log(shares[1] / shares[0])
    )


def dram_bytes(kernel: Kernel) -> float | None:
    """What a launch read and wrote; None where either is not counted."""
    values = [kernel["metrics"].get(f"dram_bytes_{way}") for way in ("read", "write")]
    return sum(v for v in values if v is not None) if None not in values else None


def profiled_hz(kernel: Kernel) -> float | None:
    """The SM clock of a launch's duration under ncu: elapsed cycles ÷ duration, which are of one replay pass. The counted clock
    is that of another pass, up to a tenth apart: it stands in only where no cycles were counted."""
    cycles, ns = kernel["metrics"].get("cycles_elapsed"), kernel["duration_ns"]
    return cycles / ns * 1e9 if cycles and ns else kernel["metrics"].get("sm_clock_hz")


def _factors(
    base: Kernel, head: Kernel, known: dict[str, Pair | None], scale: float, ghz: Pair | None
) -> Iterator[ChangeTerm]:
    """What the warps executed and waited for; waits in ns where ncu's clocks are given, else in cycles."""
    for name, values in known.items():
        if values is not None and name == "latency":
            hz = (ghz[0] / 1e9, ghz[1] / 1e9) if ghz else (1.0, 1.0)
            yield from _latency(base["stalls"], head["stalls"], values, scale, hz)
        elif values is not None:
            yield ChangeTerm(
                name, name, *values, UNITS[name], scale * FACTORS[name][1] * _log(values)
            )


def causes(found: Iterable[ChangeTerm], least: float) -> list[ChangeTerm]:
    """Of the parts those that a page names: at least ``least`` of the change, and not what passes disagree by."""
    return [p for p in found if p.kind != PASSES and abs(p.share_of_cause or 0) >= least]


def _both(base: Kernel, head: Kernel, key: str) -> Pair | None:
    """A factor on both sides; a factor has no logarithm unless it is positive."""
    return _positive(base["metrics"].get(key), head["metrics"].get(key))


def _positive(a: float | None, b: float | None) -> Pair | None:
    return (a, b) if a and b and a > 0 and b > 0 else None


def _log(values: Pair | None) -> float:
    """Of the second by the first; 0 where they are not known."""
    return log(values[1] / values[0]) if values else 0.0


def _latency(
    base: Iterable[Stall], head: Iterable[Stall], total: Pair, scale: float, ghz: Pair
) -> Iterator[ChangeTerm]:
    """Time per issued instruction by reason; what the reasons miss is one more part, whatever they count too much too."""
    before, after = _ratios(base, ghz[0]), _ratios(head, ghz[1])
    total = (total[0] / ghz[0], total[1] / ghz[1])
    each = scale / logarithmic_mean(*total)
    unit = "cycles per instruction" if ghz == (1.0, 1.0) else "ns per instruction"
    if not before or not after:
        yield ChangeTerm("stall", "all waiting", *total, unit, each * (total[1] - total[0]))
        return
    for reason in before | after:
        a, b = before.get(reason, 0.0), after.get(reason, 0.0)
        kind = "scheduler" if reason in ("selected", "not_selected") else "stall"
        yield ChangeTerm(kind, reason, a, b, unit, each * (b - a))
    a, b = total[0] - sum(before.values()), total[1] - sum(after.values())
    if min(a, b) < -ROUNDING * max(total):
        # The total is counted in another replay pass than the reasons: no wait is negative, so this is none.
        yield ChangeTerm(PASSES, "replay passes that disagree", None, None, unit, each * (b - a))
        return
    yield ChangeTerm("stall", "not attributed to a reason", a, b, unit, each * (b - a))


def _ratios(stalls: Iterable[Stall], ghz: float) -> dict[str, float]:
    return {s["reason"]: s["ratio"] / ghz for s in stalls if s["ratio"] is not None}


def _active(known: dict[str, Pair | None], side: int) -> float:
    """Active cycles of an SM, times its four schedulers; of one SM where their number is not known."""
    value = 1.0
    for name, (_, sign) in FACTORS.items():
        values = known[name]
        value *= values[side] ** sign if values else 1.0
    return value


def _idle(
    known: dict[str, Pair | None], ncu: Pair | None, side: int, duration_us: float
) -> float | None:
    """Fraction of a duration outside active cycles, at the clock that ncu counted them at; None where that is not known."""
    if ncu is None or known["SMs"] is None:
        return None
    # four schedulers per SM, on every architecture since Volta
    return 1 - _active(known, side) / 4 / ncu[side] * 1e6 / duration_us
