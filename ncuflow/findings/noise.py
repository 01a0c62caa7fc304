"""Noise floors: how far two measurements of the same thing lie apart, as a fraction of the value.

Two sources, the larger one counts. Within a run, the spread of the launches bounds the median.
Between runs (A/A: the same points captured again), the captures themselves differ; clocks and
placement change there that one run never sees. Counters have no spread within a run, so only
repeats give them a floor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from ncuflow.findings.columns import BY_NAME, COLUMNS, clock
from ncuflow.model import Measurement, NoiseFloor, Point

# McGill, Tukey and Larsen (1978): two medians whose notches of this many IQR/√n do not overlap
# differ at about the 95 % level. It needs no assumption on the shape, and launches have a long
# right tail.
NOTCH = 1.57
# The floor covers all but this fraction of what repeats showed; with fewer than 20 values it is the
# largest.
COVERED = 0.95
MEASURED = tuple(
    c.name for c in COLUMNS if c.kind == "float" and c.source in ("events", "nsys", "ncu")
)
# Times whose launches were kept, so that their own spread is known.
TIMED = tuple(name for name in BY_NAME if f"{name.removesuffix('_us')}_q25_us" in BY_NAME)
# A count over a time is as uncertain as that time.
RATES = {name: time for name in MEASURED if (time := clock(name)) is not None}


def half_width(
    q25: float | None, q75: float | None, n: int | None, median: float | None
) -> float | None:
    """Relative half-width of a median's notch, 1.57 × IQR / √n / median; None where a term is missing."""
    if q25 is None or q75 is None or not n or not median:
        return None
    return NOTCH * (q75 - q25) / math.sqrt(n) / abs(median)


def launch_floor(row: Measurement, name: str) -> float | None:
    """The floor of one point's column from the spread of its own launches; None for counters."""
    time = RATES.get(name, name)
    if time not in TIMED:
        return None
    stem = time.removesuffix("_us")
    names = f"{stem}_q25_us", f"{stem}_q75_us", f"{stem}_n", time
    return half_width(*map(row.get, names))


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


def floor_at(name: str, row: Measurement, stated: Mapping[str, NoiseFloor]) -> float | None:
    """The floor of one column at one point: its own launches' or the target's, whichever is larger."""
    of_target = stated.get(name) or stated.get(RATES.get(name, name))
    floors = (launch_floor(row, name), of_target["floor"] if of_target else None)
    return max((floor for floor in floors if floor is not None), default=None)


def _quantile(values: list[float], fraction: float) -> float:
    """Nearest rank: a value that occurred, never one between two."""
    return sorted(values)[math.ceil(fraction * len(values)) - 1]
