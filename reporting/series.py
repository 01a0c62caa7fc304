"""Series: how the points of a sweep fall into lines of a figure or rows of a table."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import mode
from typing import Any

Point = dict[str, Any]
MOST_SERIES = 8
COMPUTE_INTENSITY = 50.0  # FLOP per byte above which a target's rate is read in FLOPS


@dataclass(frozen=True)
class Axis:
    """name: the parameter along x; rate: the measurement column along y; others: what also varies."""

    name: str
    rate: str
    others: tuple[str, ...]


@dataclass(frozen=True)
class Series:
    """One line: x, the rate, and the rate at the quartiles of the time."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]


def varying(points: list[Point]) -> dict[str, list[Any]]:
    """Parameters that take more than one value over the points, with their values in first-seen order."""
    values: dict[str, list[Any]] = defaultdict(list)
    for point in points:
        for name, value in point["params"].items():
            if value not in values[name]:
                values[name].append(value)
    return {name: found for name, found in values.items() if len(found) > 1}


def axis_of(points: list[Point]) -> Axis:
    """The numeric parameter with most values is x; a target of high intensity is read in FLOPS."""
    found = varying(points)
    numeric = [n for n, v in found.items() if all(type(x) in (int, float) for x in v)]
    name = max(numeric, key=lambda n: len(found[n]), default="point")
    intensities = sorted(p["measurement"]["ai_analytic"] or 0 for p in points) or [0]
    rate = "tflops" if intensities[len(intensities) // 2] > COMPUTE_INTENSITY else "gbs"
    return Axis(name, rate, tuple(n for n in found if n != name))


def series_of(points: list[Point], axis: Axis) -> list[Series]:
    """Lines of at least two points, the longest first, at most eight; the tables hold the rest."""
    base = [value for _, value in usual(points, axis)]
    return [
        _series(_label(key, base, axis.others), members, axis)
        for key, members in _lines(points, axis)
    ]


def drawn(points: list[Point], axis: Axis) -> list[Point]:
    """The points of these lines: what is drawn, and what its ceilings are those of."""
    return [point for _, members in _lines(points, axis) for point in members]


def usual(points: list[Point], axis: Axis) -> list[tuple[str, Any]]:
    """The most frequent setting, over the lines, of each parameter beside the axis."""
    keys = [key for key, _ in _lines(points, axis)]
    return (
        [(name, mode(key[i] for key in keys)) for i, name in enumerate(axis.others)] if keys else []
    )


def _lines(points: list[Point], axis: Axis) -> list[tuple[tuple[Any, ...], list[Point]]]:
    groups: dict[tuple[Any, ...], list[Point]] = defaultdict(list)
    for point in points:
        if point["measurement"][axis.rate] is not None and axis.name in point["params"]:
            groups[tuple(point["params"].get(n) for n in axis.others)].append(point)
    lines = [group for group in groups.items() if len(group[1]) > 1]
    return sorted(lines, key=lambda group: -len(group[1]))[:MOST_SERIES]


def _label(key: tuple[Any, ...], base: list[Any], names: tuple[str, ...]) -> str:
    """What sets a line apart from the usual settings; ``base`` where nothing does."""
    apart = [
        _setting(name, value)
        for name, value, common in zip(names, key, base, strict=True)
        if value != common
    ]
    return ", ".join(apart) or "base"


def _setting(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return value if isinstance(value, str) else f"{name} {value}"


def _series(label: str, members: list[Point], axis: Axis) -> Series:
    members = sorted(members, key=lambda p: p["params"][axis.name])
    rows = [p["measurement"] for p in members]
    rates = [r[axis.rate] for r in rows]
    cold = [r["time_cold_us"] for r in rows]
    slow = [r["time_cold_q75_us"] or r["time_cold_us"] for r in rows]
    fast = [r["time_cold_q25_us"] or r["time_cold_us"] for r in rows]
    return Series(
        label,
        [p["params"][axis.name] for p in members],
        rates,
        [y * t / s for y, t, s in zip(rates, cold, slow, strict=True)],
        [y * t / f for y, t, f in zip(rates, cold, fast, strict=True)],
    )


def spread(items: list[Any], most: int) -> list[Any]:
    """At most ``most`` of the items, evenly over their order, first and last kept."""
    if len(items) <= most:
        return items
    step = (len(items) - 1) / (most - 1)
    return [items[round(i * step)] for i in range(most)]
