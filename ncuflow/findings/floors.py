"""The noise floors of a target: what its launches and its repeated captures show, by column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from ncuflow.findings.noise import CLASSES, MEASURED, RATES, TIMED, duration, launch_floor
from ncuflow.format import with_unit
from ncuflow.model import Measurement, NoiseFloor, Point

# The floor covers all but this fraction of what repeats showed; with fewer than 20 values it is the
# largest.
COVERED = 0.95
# Points that a class of durations has at least; with fewer those of the shorter classes, which are noisier, are added.
FEWEST = 4
Spread = tuple[float, float | None]  # relative, and the µs of what it is of


def repeat_floors(repeats: Sequence[Iterable[Measurement]]) -> dict[str, NoiseFloor]:
    """Floors by column from repeated captures (A/A) of the same points: the measurement rows of each."""
    by_column: dict[str, dict[str, list[Spread]]] = {name: {} for name in MEASURED}
    for row in (row for capture in repeats for row in capture):
        for name, by_point in by_column.items():
            if row.get(name) is not None:
                found = float(row[name]), duration(name, row)
                by_point.setdefault(row["point"], []).append(found)
    known = {name: list(_spreads(by_point.values())) for name, by_point in by_column.items()}
    how = f"largest relative difference between {len(repeats)} captures"
    return {name: _floor(found, len(repeats), how) for name, found in known.items() if found}


def _spreads(found: Iterable[Sequence[Spread]]) -> Iterator[Spread]:
    """Largest less smallest over the mean, of each that was measured more than once, with the mean of its durations."""
    for measured in found:
        values, times = zip(*measured, strict=True)
        middle = abs(fmean(values))
        if len(values) > 1 and middle > 0:
            us = None if None in times else fmean(times)
            yield (max(values) - min(values)) / middle, us


def launch_floors(rows: Sequence[Measurement]) -> dict[str, NoiseFloor]:
    """Floors by column from the launches of one capture; a rate has the floor of its time."""
    out: dict[str, NoiseFloor] = {}
    for name in (*TIMED, *RATES):
        known = [
            (width, duration(name, row))
            for row in rows
            if (width := launch_floor(row, name)) is not None
        ]
        if known:
            count = f"{RATES.get(name, name).removesuffix('_us')}_n"
            least = min(row[count] for row in rows if row.get(count))
            out[name] = _floor(known, least, "1.57 × IQR / √n of the launches of a point")
    return out


def _floor(known: list[Spread], n: int, how: str) -> NoiseFloor:
    words = f"{how}, over {with_unit(len(known), 'points')} ({COVERED:.0%} quantile)"
    every = _quantile([spread for spread, _ in known], COVERED)
    out: NoiseFloor = {"floor": every, "n": n, "points": len(known), "how": words}
    timed = [(spread, us) for spread, us in known if us is not None]
    return out | {"by_time": _by_time(timed)} if timed else out


def _by_time(known: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """(least µs, floor) of each class of durations."""
    out = []
    for at, least in enumerate(CLASSES):
        below = CLASSES[at + 1] if at + 1 < len(CLASSES) else math.inf
        for longest in (*reversed(CLASSES[: at + 1]), None):
            reach = known if longest is None else [k for k in known if longest <= k[1] < below]
            if len(reach) >= FEWEST or longest is None:
                out.append((least, _quantile([spread for spread, _ in reach], COVERED)))
                break
    return out


def floors(
    points: Iterable[Point], repeats: Sequence[Iterable[Measurement]] = ()
) -> dict[str, NoiseFloor]:
    """The ``noise`` field of a target's results: per column the larger of both floors.

    repeats: measurement rows of further captures of the same points, where the evidence holds them.
    """
    rows = [point["measurement"] for point in points]
    out = launch_floors(rows)
    for name, found in (repeat_floors([rows, *repeats]) if repeats else {}).items():
        out[name] = _larger(out[name], found) if name in out else found
    return out


def _larger(a: NoiseFloor, b: NoiseFloor) -> NoiseFloor:
    """The larger floor, in each class of durations too."""
    by_time = zip(a.get("by_time") or (), b.get("by_time") or (), strict=True)
    larger = [(least, max(floor, other)) for (least, floor), (_, other) in by_time]
    found = max(a, b, key=lambda one: one["floor"])
    return found | {"by_time": larger} if larger else found


def _quantile(values: list[float], fraction: float) -> float:
    """Nearest rank: a value that occurred, never one between two."""
    return sorted(values)[math.ceil(fraction * len(values)) - 1]
