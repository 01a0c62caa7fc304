"""Timing of one launch: cold, hot, host and plan, with their spread.

cold  the L2 cache is flushed before each launch; events around each launch
hot   launches back to back; events around groups of them
host  perf_counter around run(), which only enqueues
plan  perf_counter around plan() on an idle GPU; plan() copies the index arrays to the host, so
      this is what a serving loop pays before each step

For cold and hot the whole series is queued behind a spin kernel, so that the host is never what is
measured: a device reports when the host fell behind, and the series is taken again.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, Protocol

from targets.launch import Launch

COLD, HOT, HOST, PLAN = 30, 30, 30, 15  # repetitions, if the budget allows
LEAST = 5  # repetitions, whatever the budget
GROUP = 8  # launches of one hot sample
BUDGET_US = 500_000.0  # GPU time of a point's series together
SAMPLES = 50  # kept in the record

# Reasons that make a measurement worth retaking. Idle, application clocks, sync boost, display
# clocks say what the clock policy is; the software power cap is the steady state of a kernel that
# keeps the tensor cores busy, and a retake would only meet it again. All are recorded.
RETAKE_REASONS = frozenset(
    {"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
)
RETAKES = 2


class Clock(Protocol):
    """What timing asks of a device. Times are microseconds."""

    def synchronize(self) -> None: ...
    def estimate(self, run: Callable[[], None]) -> float: ...
    def cold(self, run: Callable[[], None], n: int) -> list[float]: ...
    def hot(self, run: Callable[[], None], n: int, group: int) -> list[float]: ...
    def clocks(self) -> dict[str, Any] | None: ...


def measure(device: Clock, launch: Launch) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """(timing, clocks) of the record of one launch.

    ``clocks`` is None if the device cannot tell them. While a throttle reason of RETAKE_REASONS
    shows after the series, it is taken again, RETAKES times at most; the last one stands.
    """
    for retakes in range(RETAKES + 1):
        before = device.clocks()
        timing = _series(device, launch)
        after = device.clocks()
        if after is None or not RETAKE_REASONS & set(after["throttle"]):
            break
    clocks = None
    if before is not None and after is not None:
        clocks = {"before": before, "after": after, "retakes": retakes}
    return timing, clocks


def _series(device: Clock, launch: Launch) -> dict[str, Any]:
    _reset(launch)
    each = max(device.estimate(launch.run), 1.0)
    group = repetitions(GROUP, BUDGET_US / 3 / LEAST, each, least=1)
    _reset(launch)
    cold = device.cold(launch.run, repetitions(COLD, BUDGET_US / 3, each))
    _reset(launch)
    hot = device.hot(launch.run, repetitions(HOT, BUDGET_US / 3, each * group), group)
    _reset(launch)
    host = _host(device, launch.run, repetitions(HOST, BUDGET_US / 3, each))
    plan = None if launch.plan is None else summary(_plan(device, launch.plan))
    return {"cold": summary(cold), "hot": summary(hot), "host": summary(host), "plan": plan}


def _reset(launch: Launch) -> None:
    if launch.reset is not None:
        launch.reset()


def repetitions(wanted: int, budget: float, each: float, least: int = LEAST) -> int:
    """How many repetitions of ``each`` us fit ``budget`` us: at least ``least``."""
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
    while len(times) < PLAN and (len(times) < LEAST or sum(times) < BUDGET_US / 3):
        device.synchronize()
        start = perf_counter()
        plan()
        times.append((perf_counter() - start) * 1e6)
    return times


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """{"unit", "median", "q25", "q75", "n", "samples"} of times in us, four significant digits.

    Quartiles interpolate between samples. Raises ValueError if there are no samples.
    """
    if not samples:
        raise ValueError("no samples to summarise")
    several = len(samples) > 1
    quartiles = statistics.quantiles(samples, n=4, method="inclusive") if several else samples * 3
    low, median, high = (significant(value) for value in quartiles)
    kept = [significant(value) for value in samples[:SAMPLES]]
    n = len(samples)
    return {"unit": "us", "median": median, "q25": low, "q75": high, "n": n, "samples": kept}


def significant(value: float, digits: int = 4) -> float:
    """``value`` rounded to ``digits`` significant digits."""
    return float(f"{value:.{digits}g}")
