"""Plans: what a call's plan() takes on the host, beside the kernels that it plans.

plan() runs once a step and its kernels once a layer: as many layers as its time is times theirs take as long as it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from ncuflow.findings.join import is_merge
from ncuflow.model import Point


@dataclass(frozen=True)
class PlanTime:
    """plan() of the points at which one kernel does the work: its host time at the median, beside the cold time of the call.

    least, median, most: of that quotient; layers: after how many the kernels have taken as long, at the least and at the most.
    """

    kernel: str
    points: int
    plan_us: float
    least: float
    median: float
    most: float

    @property
    def layers(self) -> tuple[int, int]:
        return math.ceil(self.least), math.ceil(self.most)


def planned(points: Sequence[Point]) -> list[PlanTime]:
    """A row per kernel that does the work of a planned call, in the order of the points."""
    found: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        plan, cold = (point["measurement"].get(name) for name in ("plan_us", "time_cold_us"))
        own = [kernel for kernel in point["kernels"] if not is_merge(kernel)]
        if plan and cold and own:
            longest = max(own, key=lambda kernel: kernel["duration_ns"] or 0)
            found.setdefault(longest["name"], []).append((plan, plan / cold))
    return [_row(name, *zip(*times, strict=True)) for name, times in found.items()]


def _row(name: str, plans: Sequence[float], quotients: Sequence[float]) -> PlanTime:
    least, most = min(quotients), max(quotients)
    return PlanTime(name, len(plans), median(plans), least, median(quotients), most)
