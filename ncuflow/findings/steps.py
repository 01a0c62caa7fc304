"""Steps: what the measured parts of a model's step add up to, by its shape; and what plan() takes on the host beside its kernels.

Attention makes a step; what targets declare as parts of it are points of as many tokens and the same heads (``Target.part``).
A part that no point was measured of is in no sum.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from ncuflow.findings.join import is_merge
from ncuflow.findings.noise import FASTER
from ncuflow.model import Point, Results
from ncuflow.record import quartiles
from ncuflow.target.contract import StepPart, known

# --- plans -----------------------------------------------------------------------------------

# plan() runs once a step and its kernels once a layer: as many layers as its time is times theirs take as long as it.


@dataclass(frozen=True)
class PlanTime:
    """plan() of the points at which one kernel does the work: its host time at the median, beside the cold time of the call.

    low, median, high: quartiles of that quotient; layers: after how many the kernels have taken as long, by the outer ones.
    """

    kernel: str
    points: int
    plan_us: float
    low: float
    median: float
    high: float

    @property
    def layers(self) -> tuple[int, int]:
        return math.ceil(self.low), math.ceil(self.high)


def planned(points: Sequence[Point]) -> list[PlanTime]:
    """A row per kernel that does the work of a planned call, or per backend where no kernel was traced, in the order of the
    points."""
    found: dict[str, list[tuple[float, float]]] = {}
    for point in points:
        plan, cold = (point["measurement"].get(name) for name in ("plan_us", "time_cold_us"))
        if plan and cold:
            found.setdefault(_worker(point), []).append((plan, plan / cold))
    return [_row(name, *zip(*times, strict=True)) for name, times in found.items()]


def _worker(point: Point) -> str:
    own = [kernel for kernel in point["kernels"] if not is_merge(kernel)]
    if own:
        return max(own, key=lambda kernel: kernel["duration_ns"] or 0)["name"]
    return str(point["info"].get("backend") or point["params"].get("backend", "not traced"))


def _row(name: str, plans: Sequence[float], quotients: Sequence[float]) -> PlanTime:
    return PlanTime(name, len(plans), median(plans), *quartiles(quotients))


LAYERS = 32  # of the step that pages add up


@dataclass(frozen=True)
class Step:
    """A step: its point of attention, what that is part of, plan_us of the host, and the time of each measured part in µs."""

    point: str
    attention: StepPart
    plan_us: float | None
    parts: Mapping[StepPart, float]

    @property
    def times(self) -> dict[str, float]:
        """Cold time of each part by its name."""
        return {part.name: time for part, time in self.parts.items()}

    @property
    def shape(self) -> tuple[int | None, ...]:
        """Query heads, KV heads and head dimension."""
        return self.attention.qo_heads, self.attention.kv_heads, self.attention.head_dim

    def total(self, layers: int = LAYERS) -> float:
        """The measured parts one after another, plan() among them, in µs."""
        runs = ((part.per_layer * layers or 1) * time for part, time in self.parts.items())
        return (self.plan_us or 0) + sum(runs)


def steps(results: Mapping[str, Results]) -> list[Step]:
    """Steps of which more was measured than attention, those of most parts first, then of fewest KV heads.

    Of several points of one part, attention among them, the fastest choice stands for it, the first of those that are as fast,
    and of attention's data type if there is one.
    """
    points = [found for name in results for found in _parts(name, results[name])]
    fastest: dict[tuple[object, ...], tuple[StepPart, Point]] = {}
    least: dict[tuple[StepPart, object], float] = {}  # µs of each part in each data type
    for part, point in points:
        # of attention, one length of the cache
        key = part, point["measurement"]["bytes_analytic"]
        if not part.phase:
            typed = part, point["params"].get("dtype")
            least[typed] = min(_us(point), least.get(typed, math.inf))
        elif key not in fastest or _us(point) < (1 - FASTER) * _us(fastest[key][1]):
            fastest[key] = part, point
    every = (_step(attention, point, least) for attention, point in fastest.values())
    found = [step for step in every if len(step.parts) > 1]
    return sorted(
        found, key=lambda s: (-len(s.parts), s.attention.kv_heads or 0, s.attention.phase)
    )


def _parts(name: str, results: Results) -> Iterator[tuple[StepPart, Point]]:
    """FlashInfer's points of a target that are part of a step, with a time and of 16 bits."""
    target = known().get(name)
    for point in results["points"] if target else ():
        rival = "rival" in point.get("info", {})
        if point["status"] == "ok" and point["measurement"]["time_cold_us"] and not rival:
            part = target.part(target.completed(point["params"])) if target else None
            if part:
                yield part, point


def _us(point: Point) -> float:
    return float(point["measurement"]["time_cold_us"] or 0)


def _step(
    attention: StepPart, point: Point, least: Mapping[tuple[StepPart, object], float]
) -> Step:
    parts: dict[str, tuple[int, bool, float, StepPart]] = {}
    for (part, dtype), us in least.items():
        if part.belongs(attention):
            # A step has one type: a part of another stands for it only where its own was not measured.
            found = part.rank, dtype != point["params"].get("dtype"), us, part
            if part.name not in parts or found[:3] < parts[part.name][:3]:
                parts[part.name] = found
    times = {part: time for *_, time, part in parts.values()}
    plan_us = point["measurement"]["plan_us"]
    return Step(point["point"], attention, plan_us, {attention: _us(point)} | times)
