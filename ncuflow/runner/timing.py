"""Timing of one launch: cold, hot, host and plan, with their spread.

cold  the L2 cache is flushed before each launch; events around each launch
hot   launches back to back; events around groups of them
host  perf_counter around run(), which only enqueues
plan  perf_counter around plan() on an idle GPU; plan() copies the index arrays to the host, so
      this is what a serving loop pays before each step

For cold and hot the whole series is queued behind a spin kernel, so that the host is never what is
measured. ``queued`` is false where the host fell behind all the same: then the gaps it left are in
the numbers.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

from ncuflow.runner.launch import Launch

REPEATS = 30  # cold, hot and host repetitions, if the budget allows
PLANS = 15  # repetitions of plan()
LEAST = 5  # repetitions, whatever the budget
GROUP = 8  # launches of one hot sample
BUDGET_US = 500_000.0  # of a point's series together
SAMPLES = 50  # kept in the record

# Reasons that make a measurement worth retaking. Idle, application clocks, sync boost, display
# clocks say what the clock policy is; the software power cap is the steady state of a kernel that
# keeps the tensor cores busy, and a retake would only meet it again. All are recorded.
RETAKE_REASONS = frozenset(
    {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
)
RETAKES = 2

Series = tuple[list[float], bool]  # times in us; whether the host stayed ahead of the GPU


class Clock(Protocol):
    """What timing asks of a device."""

    def synchronize(self) -> None: ...
    def cold(self, run: Callable[[], None], n: int) -> Series: ...
    def hot(self, run: Callable[[], None], n: int, group: int) -> Series: ...
    def clocks(self) -> dict[str, Any] | None: ...


def measure(
    device: Clock, launch: Launch, repeats: int = REPEATS
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(timing, clocks) of the record of one launch.

    ``clocks`` is None if the device cannot tell them. While a throttle reason of RETAKE_REASONS
    shows after the series, it is taken again, RETAKES times at most; the last one stands.
    """
    retakes = 0
    while True:
        before = device.clocks()
        timing = _series(device, launch, repeats)
        after = device.clocks()
        if before is None or after is None:
            return timing, None
        if retakes == RETAKES or not RETAKE_REASONS & set(after["throttle"]):
            return timing, {"before": before, "after": after, "retakes": retakes}
        retakes += 1


def _series(device: Clock, launch: Launch, repeats: int) -> dict[str, Any]:
    share = BUDGET_US / 3
    _reset(launch)
    each = max(min(device.cold(launch.run, 3)[0]), 1.0)
    group = repetitions(GROUP, share / LEAST, each, least=1)
    _reset(launch)
    cold, ahead_cold = device.cold(launch.run, repetitions(repeats, share, each))
    _reset(launch)
    hot, ahead_hot = device.hot(launch.run, repetitions(repeats, share, each * group), group)
    _reset(launch)
    host = _host(device, launch.run, repetitions(repeats, share, each))
    _reset(launch)
    return {
        "cold": {**summary(cold), "queued": ahead_cold},
        "hot": {**summary(hot), "queued": ahead_hot},
        "host": summary(host),
        "plan": None if launch.plan is None else summary(_plan(device, launch.plan)),
    }


def _reset(launch: Launch) -> None:
    if launch.reset is not None:
        launch.reset()


def repetitions(wanted: int, budget: float, each: float, least: int = LEAST) -> int:
    """Repetitions of ``each`` us in ``budget`` us: ``wanted`` at most, ``least`` at least."""
    return max(least, min(wanted, int(budget / each)))


def _host(device: Clock, run: Callable[[], None], n: int) -> list[float]:
    device.synchronize()
    times = []
    for _ in range(n):
        start = perf_counter()
        run()
        times.append((perf_counter() - start) * 1e6)
    device.synchronize()
    return times


def _plan(device: Clock, plan: Callable[[], None]) -> list[float]:
    times: list[float] = []
    while len(times) < PLANS and (len(times) < LEAST or sum(times) < BUDGET_US / 3):
        device.synchronize()
        start = perf_counter()
        plan()
        times.append((perf_counter() - start) * 1e6)
    return times


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """{"unit", "median", "q25", "q75", "n", "samples"} of times in us, four significant digits.

    Quartiles interpolate between samples. Raises ValueError if there are no samples.
    """
    low, median, high = (significant(value) for value in quartiles(samples))
    kept = [significant(value) for value in samples[:SAMPLES]]
    return {
        "unit": "us",
        "median": median,
        "q25": low,
        "q75": high,
        "n": len(samples),
        "samples": kept,
    }


def quartiles(samples: Sequence[float]) -> list[float]:
    """[lower quartile, median, upper quartile]. Raises ValueError if there are no samples."""
    if not samples:
        raise ValueError("no samples to summarise")
    if len(samples) == 1:
        return [samples[0]] * 3
    return statistics.quantiles(samples, n=4, method="inclusive")


def significant(value: float, digits: int = 4) -> float:
    """``value`` rounded to ``digits`` significant digits."""
    return float(f"{value:.{digits}g}")
