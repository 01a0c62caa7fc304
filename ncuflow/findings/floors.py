"""The noise floors of a target: what its launches and its repeated captures show, by column."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from ncuflow.findings.noise import MEASURED, RATES, TIMED, launch_floor
from ncuflow.model import Measurement, NoiseFloor, Point

# The floor covers all but this fraction of what repeats showed; with fewer than 20 values it is the
# largest.
COVERED = 0.95


def repeat_floors(repeats: Sequence[Iterable[Measurement]]) -> dict[str, NoiseFloor]:
    """Floors by column from repeated captures (A/A) of the same points: the measurement rows of each."""
    rows = [row for capture in repeats for row in capture]
    frame = pd.DataFrame(rows, columns=["point", *MEASURED]).set_index("point").astype(float)
    by_point = frame.groupby(level="point")
    middle = by_point.mean().abs()
    spreads = (by_point.max() - by_point.min()) / middle
    spreads = spreads.where((by_point.count() > 1) & (middle > 0))
    known = {str(name): spread.dropna().tolist() for name, spread in spreads.items()}
    how = f"largest relative difference between {len(repeats)} captures"
    return {name: _floor(found, len(repeats), how) for name, found in known.items() if found}


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
    words = f"{how}, over {len(known)} point(s) ({COVERED:.0%} quantile)"
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
