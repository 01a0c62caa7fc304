"""Series: how the points of a sweep fall into lines of a figure or rows of a table."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
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
    groups: dict[tuple[Any, ...], list[Point]] = defaultdict(list)
    for point in points:
        if point["measurement"][axis.rate] is not None and axis.name in point["params"]:
            groups[tuple(point["params"].get(n) for n in axis.others)].append(point)
    lines = sorted((g for g in groups.items() if len(g[1]) > 1), key=lambda g: -len(g[1]))[
        :MOST_SERIES
    ]
    shared = _constant(tuple(key for key, _ in lines), axis.others)
    return [_series(key, members, axis, shared) for key, members in lines]


def _constant(keys: tuple[tuple[Any, ...], ...], names: tuple[str, ...]) -> set[str]:
    """Parameters that do not tell these lines apart, so that no label repeats them."""
    return {name for i, name in enumerate(names) if len({key[i] for key in keys}) <= 1}


def _series(key: tuple[Any, ...], members: list[Point], axis: Axis, shared: set[str]) -> Series:
    members = sorted(members, key=lambda p: p["params"][axis.name])
    rows = [p["measurement"] for p in members]
    label = ", ".join(
        f"{name} {value}"
        for name, value in zip(axis.others, key, strict=True)
        if name not in shared
    )
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
