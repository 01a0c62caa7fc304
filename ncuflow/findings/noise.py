"""Noise floors: how far two measurements of the same thing lie apart, as a fraction of the value.

Two sources, the larger one counts. Within a run, the spread of the launches bounds the median.
Between runs (A/A: the same points captured again), the captures themselves differ; clocks and
placement change there that one run never sees. Counters have no spread within a run, so only
repeats give them a floor.

A time is the noisier the shorter it is: what launching and reading a clock adds is fractions of a µs, whatever runs.
So points are held against what points of about their duration showed, and not against the shortest of their target.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import fmean

from ncuflow.findings.columns import BY_NAME, COLUMNS, clock
from ncuflow.format import with_unit
from ncuflow.model import Measurement, NoiseFloor, Point

# McGill, Tukey and Larsen (1978): two medians whose notches of this many IQR/√n do not overlap
# differ at about the 95 % level. It needs no assumption on the shape, and launches have a long
# right tail.
NOTCH = 1.57
CONFIDENCE = 0.95  # of the intervals that pages show
FASTER = 0.02  # of the time: less is no gain to go for
MEASURED = tuple(
    c.name for c in COLUMNS if c.kind == "float" and c.source in ("events", "nsys", "ncu")
)
# Times whose launches were kept, so that their own spread is known.
TIMED = tuple(name for name in BY_NAME if f"{name.removesuffix('_us')}_q25_us" in BY_NAME)
# Least µs of each class of durations. Between runs the median of a launch below 10 µs moves by up to a tenth, of one
# between 10 and 100 µs seldom by more than a fiftieth, of a longer one by less than that, unless power moves the clock of
# the SMs: prefill of 160 µs by up to a fifteenth.
CLASSES = (0.0, 10.0, 100.0)
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


def duration(name: str, row: Measurement) -> float | None:
    """µs that a column's floor goes by: a time, of a rate its time; None of anything else."""
    time = RATES.get(name, name)
    return row.get(time) if time in TIMED else None


def floor_at(name: str, row: Measurement, stated: Mapping[str, NoiseFloor]) -> float | None:
    """The floor of one column at one point: its own launches', or what points of its duration showed, if that is larger."""
    of_target = stated.get(name) or stated.get(RATES.get(name, name))
    floors = (
        launch_floor(row, name),
        _stated(of_target, duration(name, row)) if of_target else None,
    )
    return max((floor for floor in floors if floor is not None), default=None)


def _stated(found: NoiseFloor, us: float | None) -> float:
    classes = [
        floor for least, floor in found.get("by_time") or () if us is not None and us >= least
    ]
    return classes[-1] if classes else found["floor"]


# --- the floors of a target: what its launches and its repeated captures show, by column -----

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
