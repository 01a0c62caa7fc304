"""Noise floors: how far two measurements of the same thing lie apart, as a fraction of the value.

Two sources, the larger one counts. Within a run, the spread of the launches bounds the median.
Between runs (A/A: the same points captured again), the captures themselves differ; clocks and
placement change there that one run never sees. Counters have no spread within a run, so only
repeats give them a floor.
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


def floor_at(name: str, row: Measurement, stated: Mapping[str, NoiseFloor]) -> float | None:
    """The floor of one column at one point: its own launches' or the target's, whichever is larger."""
    of_target = stated.get(name) or stated.get(RATES.get(name, name))
    floors = (launch_floor(row, name), of_target["floor"] if of_target else None)
    return max((floor for floor in floors if floor is not None), default=None)
