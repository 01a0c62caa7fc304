"""Noise floors: how far two measurements of the same thing lie apart, as a fraction of the value.

Two sources, the larger one counts. Within a run, the spread of the launches bounds the median.
Between runs (A/A: the same points captured again), the captures themselves differ; clocks and
placement change there that one run never sees. Counters have no spread within a run, so only
repeats give them a floor.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from ncuflow.findings.columns import COLUMNS

Row = dict[str, Any]
# McGill, Tukey and Larsen (1978): two medians whose notches of this many IQR/√n do not overlap
# differ at about the 95 % level. It needs no assumption on the shape, and launches have a long
# right tail.
NOTCH = 1.57
# The floor covers all but this fraction of what repeats showed; with fewer than 20 values it is the
# largest.
COVERED = 0.95
TIMED = {"time_cold_us": "time_cold", "time_hot_us": "time_hot"}
MEASURED = tuple(
    c.name for c in COLUMNS if c.kind == "float" and c.source in ("events", "nsys", "ncu")
)
# A column that is a count over a time is as uncertain as that time.
BASE = {
    **dict.fromkeys(
        ("tflops", "gbs", "gbs_fraction_datasheet", "gbs_fraction_measured",
         "tflops_fraction_datasheet", "tflops_fraction_measured"), "time_cold_us"),
    "gbs_hot": "time_hot_us",
    **dict.fromkeys(
        ("tensor_tflops_counted", "dram_gbs_counted", "gbs_fraction_counter",
         "tflops_fraction_counter"), "time_ncu_us"),
}  # fmt: skip


def half_width(
    q25: float | None, q75: float | None, n: int | None, median: float | None
) -> float | None:
    """Relative half-width of a median's notch:

    1.57 × IQR / √n / median; None where a term is missing.
    """
    if q25 is None or q75 is None or not n or not median:
        return None
    return NOTCH * (q75 - q25) / math.sqrt(n) / abs(median)


def of_row(row: Row, name: str) -> float | None:
    """The floor of one point's column from the spread of its own launches; None for counters."""
    prefix = TIMED.get(BASE.get(name, name))
    if prefix is None:
        return None
    return half_width(
        row.get(f"{prefix}_q25_us"),
        row.get(f"{prefix}_q75_us"),
        row.get(f"{prefix}_n"),
        row.get(f"{prefix}_us"),
    )


def floor(rows_by_repeat: Sequence[Iterable[Row]]) -> dict[str, Row]:
    """Floors by column from repeated captures (A/A) of the same points.

    rows_by_repeat: one collection of measurement rows a capture. Returns {column: {"floor":
    relative, "n": captures, "points": points compared, "how": sentence}}.
    """
    by_point: dict[str, list[Row]] = defaultdict(list)
    for rows in rows_by_repeat:
        for row in rows:
            by_point[row["point"]].append(row)
    out = {}
    for name in MEASURED:
        spreads = [_spread([row.get(name) for row in rows]) for rows in by_point.values()]
        known = [spread for spread in spreads if spread is not None]
        if known:
            out[name] = {
                "floor": _quantile(known, COVERED),
                "n": len(rows_by_repeat),
                "points": len(known),
                "how": f"largest relative difference between {len(rows_by_repeat)} captures, "
                f"over {len(known)} point(s) ({COVERED:.0%} quantile)",
            }
    return out


def within(rows: Iterable[Row]) -> dict[str, Row]:
    """Floors by column from the launches of one capture; a rate has the floor of its time."""
    rows = list(rows)
    out: dict[str, Row] = {}
    for name in (*TIMED, *BASE):
        known = [width for row in rows if (width := of_row(row, name)) is not None]
        if known:
            count = f"{TIMED[BASE.get(name, name)]}_n"
            out[name] = {
                "floor": _quantile(known, COVERED),
                "n": min(row[count] for row in rows if row.get(count)),
                "points": len(known),
                "how": f"1.57 × IQR / √n of the launches of a point, over {len(known)} point(s) "
                f"({COVERED:.0%} quantile)",
            }
    return out


def of_results(results: Row, repeats: Sequence[Iterable[Row]] = ()) -> dict[str, Row]:
    """The ``noise`` field of a target's results: per column the larger of both floors.

    repeats: measurement rows of further captures of the same points, where the evidence holds them.
    """
    rows = [point["measurement"] for point in results["points"]]
    floors = within(rows)
    for name, found in (floor([rows, *repeats]) if repeats else {}).items():
        if name not in floors or found["floor"] > floors[name]["floor"]:
            floors[name] = found
    return floors


def of_value(name: str, row: Row, floors: dict[str, Row]) -> float | None:
    """The floor of one column at one point:

    its own launches' or the target's, whichever is larger.
    """
    stated = floors.get(name) or floors.get(BASE.get(name, name))
    known = [f for f in (of_row(row, name), stated["floor"] if stated else None) if f is not None]
    return max(known, default=None)


def _spread(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    if len(known) < 2 or not fmean(known):
        return None
    return (max(known) - min(known)) / abs(fmean(known))


def _quantile(values: list[float], fraction: float) -> float:
    """Nearest rank: a value that occurred, never one between two."""
    return sorted(values)[math.ceil(fraction * len(values)) - 1]
