"""Steps: what the measured parts of a model's step add up to, by its shape.

Attention makes a step; what targets declare as parts of it are points of as many tokens and the same heads (``Target.part``).
A part that no point was measured of is in no sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ncuflow.model import Point, Results
from ncuflow.target.contract import StepPart, known

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

    Of several points of one part, attention among them, the fastest choice stands for it, and of attention's
    data type if there is one.
    """
    points = [(part, point) for name in results for part, point in _parts(name, results[name])]
    fastest: dict[tuple[object, ...], Step] = {}
    for attention, point in points:
        if not attention.phase:
            continue
        step = _step(attention, point, points)
        key = (attention, point["measurement"]["bytes_analytic"])  # one length of the cache
        if key not in fastest or step.times[attention.name] < fastest[key].times[attention.name]:
            fastest[key] = step
    found = [step for step in fastest.values() if len(step.parts) > 1]
    return sorted(
        found, key=lambda s: (-len(s.parts), s.attention.kv_heads or 0, s.attention.phase)
    )


def _parts(name: str, results: Results) -> Iterator[tuple[StepPart, Point]]:
    """The points of a target that are part of a step, with a time and of 16 bits."""
    target = known().get(name)
    for point in results["points"] if target else ():
        if point["status"] == "ok" and point["measurement"]["time_cold_us"]:
            part = target.part(target.completed(point["params"])) if target else None
            if part:
                yield part, point


def _step(attention: StepPart, point: Point, points: list[tuple[StepPart, Point]]) -> Step:
    row = point["measurement"]
    parts: dict[str, tuple[int, bool, float, StepPart]] = {}
    for part, other in points:
        if part.phase or not part.belongs(attention):
            continue
        # A step has one type: a part of another stands for it only where its own was not measured.
        strange = other["params"].get("dtype") != point["params"].get("dtype")
        found = (part.rank, strange, float(other["measurement"]["time_cold_us"] or 0), part)
        if part.name not in parts or found[:3] < parts[part.name][:3]:
            parts[part.name] = found
    times = {part: time for *_, time, part in parts.values()}
    return Step(
        point["point"],
        attention,
        row["plan_us"],
        {attention: float(row["time_cold_us"] or 0)} | times,
    )
