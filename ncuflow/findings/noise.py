"""Noise floors: how far two measurements of the same thing lie apart, as a fraction of the value.

Two sources, the larger one counts. Within a run, the spread of the launches bounds the median.
Between runs (A/A: the same points captured again), the captures themselves differ; clocks and
placement change there that one run never sees. Counters have no spread within a run, so only
repeats give them a floor.

A time is the noisier the shorter it is: what launching and reading a clock adds is fractions of a µs, whatever runs.
So points are held against what points of about their duration showed, and not against the shortest of their target.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ncuflow.findings.columns import BY_NAME, COLUMNS, clock
from ncuflow.model import Measurement, NoiseFloor

# McGill, Tukey and Larsen (1978): two medians whose notches of this many IQR/√n do not overlap
# differ at about the 95 % level. It needs no assumption on the shape, and launches have a long
# right tail.
NOTCH = 1.57
CONFIDENCE = 0.95  # of the intervals that pages show
MEASURED = tuple(
    c.name for c in COLUMNS if c.kind == "float" and c.source in ("events", "nsys", "ncu")
)
# Times whose launches were kept, so that their own spread is known.
TIMED = tuple(name for name in BY_NAME if f"{name.removesuffix('_us')}_q25_us" in BY_NAME)
# Least µs of each class of durations. Between runs the median of a launch below 10 µs moves by up to a tenth, of one
# between 10 and 100 µs seldom by more than a fiftieth, of a longer one by less than a hundredth.
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
