"""The crossing: where, along a sweep, a kernel stops being latency-bound and one of its units could limit it.

Read off the limiter of each point, not off a model: between two neighbouring points of a line
the verdict changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ncuflow.findings.limiter import WAITS
from ncuflow.model import Point
from ncuflow.parsers.breakdown import UNITS

Fixed = tuple[tuple[str, Any], ...]
FEWEST = 3  # points of a line that say anything about where it crosses


@dataclass(frozen=True)
class Crossing:
    """One line of a sweep: all parameters but ``axis`` equal.

    kind: crosses | always (a unit could at each point) | never | mixed (falls back at a larger size);
    below, above: the neighbouring axis values, None where it does not cross; before, after: their
    limiters; ``after`` of a line that does not cross is the limiter of its largest point.
    """

    axis: str
    fixed: Fixed
    values: tuple[Any, ...]
    kind: str
    after: str
    point: str
    below: Any = None
    above: Any = None
    before: str | None = None


def other_parameters(point: Point, axis: str) -> Fixed:
    """The parameters of a point other than ``axis``, hashable."""
    return tuple((k, v) for k, v in sorted(point["params"].items()) if k != axis)


def lines(points: Sequence[Point], axis: str) -> list[list[Point]]:
    """Points of status ok in lines along ``axis``, each sorted by it, the longest line first."""
    groups: dict[Fixed, list[Point]] = {}
    for point in points:
        if point["status"] == "ok" and axis in point["params"]:
            groups.setdefault(other_parameters(point, axis), []).append(point)
    ordered = [sorted(g, key=lambda p: p["params"][axis]) for g in groups.values()]
    return sorted(ordered, key=lambda g: -len(g))


def where_it_crosses(line: list[Point], axis: str) -> Crossing | None:
    """Where one line crosses; None if fewer than three of its points have a verdict."""
    judged = [p for p in line if p["measurement"]["limiter"] in (*UNITS, *WAITS)]
    if len(judged) < FEWEST:
        return None
    bound = [p["measurement"]["limiter"] in UNITS for p in judged]
    first = bound.index(True) if any(bound) else None
    if first is None or all(bound):
        kind, after = ("never" if first is None else "always"), judged[-1]
    else:
        kind = "crosses" if first and all(bound[first:]) else "mixed"
        after = judged[first]
    before = judged[first - 1] if first else None
    return Crossing(
        axis,
        other_parameters(line[0], axis),
        tuple(p["params"][axis] for p in judged),
        kind,
        after["measurement"]["limiter"],
        after["point"],
        before["params"][axis] if before else None,
        after["params"][axis] if kind in ("crosses", "mixed") else None,
        before["measurement"]["limiter"] if before else None,
    )


def crossings(points: Sequence[Point], axis: str) -> list[Crossing]:
    """The crossing of each line of a sweep that is long enough to have one."""
    found = (where_it_crosses(line, axis) for line in lines(points, axis))
    return [crossing for crossing in found if crossing]
