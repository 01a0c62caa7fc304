"""The noise floors of a target: what its launches and its repeated captures show, by column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean

from ncuflow.findings.noise import MEASURED, RATES, TIMED, launch_floor
from ncuflow.format import with_unit
from ncuflow.model import Measurement, NoiseFloor, Point

# The floor covers all but this fraction of what repeats showed; with fewer than 20 values it is the
# largest.
COVERED = 0.95


def repeat_floors(repeats: Sequence[Iterable[Measurement]]) -> dict[str, NoiseFloor]:
    """Floors by column from repeated captures (A/A) of the same points: the measurement rows of each."""
    by_column: dict[str, dict[str, list[float]]] = {name: {} for name in MEASURED}
    for row in (row for capture in repeats for row in capture):
        for name, by_point in by_column.items():
            if row.get(name) is not None:
                by_point.setdefault(row["point"], []).append(float(row[name]))
    known = {name: list(_spreads(by_point.values())) for name, by_point in by_column.items()}
    how = f"largest relative difference between {len(repeats)} captures"
    return {name: _floor(found, len(repeats), how) for name, found in known.items() if found}


def _spreads(found: Iterable[Sequence[float]]) -> Iterator[float]:
    """Largest less smallest over the mean, of each that was measured more than once."""
    for values in found:
        middle = abs(fmean(values))
        if len(values) > 1 and middle > 0:
            yield (max(values) - min(values)) / middle


def launch_floors(rows: Sequence[Measurement]) -> dict[str, NoiseFloor]:
    """Floors by column from the launches of one capture; a rate has the floor of its time."""
    out: dict[str, NoiseFloor] = {}
    for name in (*TIMED, *RATES):
        known = [width for row in rows if (width := launch_floor(row, name)) is not None]
        if known:
            count = f"{RATES.get(name, name).removesuffix('_us')}_n"
            least = min(row[count] for row in rows if row.get(count))
            out[name] = _floor(known, least, "1.57 × IQR / √n of the launches of a point")
    return out


def _floor(known: list[float], n: int, how: str) -> NoiseFloor:
    words = f"{how}, over {with_unit(len(known), 'points')} ({COVERED:.0%} quantile)"
    return {"floor": _quantile(known, COVERED), "n": n, "points": len(known), "how": words}


def floors(
    points: Iterable[Point], repeats: Sequence[Iterable[Measurement]] = ()
) -> dict[str, NoiseFloor]:
    """The ``noise`` field of a target's results: per column the larger of both floors.

    repeats: measurement rows of further captures of the same points, where the evidence holds them.
    """
    rows = [point["measurement"] for point in points]
    out = launch_floors(rows)
    for name, found in (repeat_floors([rows, *repeats]) if repeats else {}).items():
        if name not in out or found["floor"] > out[name]["floor"]:
            out[name] = found
    return out


def _quantile(values: list[float], fraction: float) -> float:
    """Nearest rank: a value that occurred, never one between two."""
    return sorted(values)[math.ceil(fraction * len(values)) - 1]
