"""Choices and their measured price: pairs of points that differ in one parameter and nothing else.

Two medians are told apart by a Mann-Whitney test on the launches themselves; a difference that the
noise floor of the evidence (``ncuflow.findings.noise``) covers is within noise whatever the test says.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ncuflow.findings import noise
from ncuflow.model import Measurement, NoiseFloor, Point, Results
from ncuflow.target import Choice

Fixed = tuple[tuple[str, Any], ...]
ALPHA = 0.01
FEWEST_SAMPLES = 8  # a side, for the normal approximation
# column -> the samples in the results file that it is the median of
SAMPLES = {"time_cold_us": "cold_us", "time_hot_us": "hot_us", "host_launch_us": "host_us"}


@dataclass(frozen=True)
class Price:
    """One pair. change: other / base − 1; floor: relative noise floor of that, or None.

    verdict: differs | within noise | not tested (this evidence keeps no spread);
    p: of the two-sided test, None where it was not made.
    """

    metric: str
    base_point: str
    other_point: str
    fixed: Fixed
    base: float
    other: float
    change: float
    p: float | None
    floor: float | None
    verdict: str


def prices(choice: Choice, results: Results) -> list[Price]:
    """The price of a choice at every pair that the evidence has, in the order of its points."""
    points = [point for point in results["points"] if point["status"] == "ok"]
    floors = results.get("noise") or {}
    found = (
        price(points[base], points[other], metric, floors, choice.fixed(points[base]["params"]))
        for base, other in choice.pairs([point["params"] for point in points])
        for metric in choice.metrics
    )
    return [one for one in found if one]


def price(
    base: Point, other: Point, metric: str, floors: Mapping[str, NoiseFloor], fixed: Fixed = ()
) -> Price | None:
    """Compare one metric of two points; None where either lacks it."""
    a, b = base["measurement"].get(metric), other["measurement"].get(metric)
    if not a or b is None:
        return None
    key, change = SAMPLES.get(metric), b / a - 1
    p = mann_whitney(_samples(base, key), _samples(other, key))
    floor = _floor(metric, (base["measurement"], other["measurement"]), floors)
    verdict = _verdict(p, change, floor)
    return Price(metric, base["point"], other["point"], fixed, a, b, change, p, floor, verdict)


def _samples(point: Point, key: str | None) -> list[float]:
    return list((point.get("samples") or {}).get(key) or ()) if key else []


def _floor(
    metric: str, rows: tuple[Measurement, Measurement], floors: Mapping[str, NoiseFloor]
) -> float | None:
    """Floor of a ratio: the relative floors of both sides, added in quadrature."""
    sides = [noise.floor_at(metric, row, floors) for row in rows]
    known = [side for side in sides if side is not None]
    return math.hypot(*known) if known else None


def _verdict(p: float | None, change: float, floor: float | None) -> str:
    # As a factor: half the time is as far from no change as twice the time.
    if floor is not None and abs(math.log1p(change)) <= math.log1p(floor):
        return "within noise"
    if p is None:
        return "not tested"
    return "differs" if p < ALPHA else "within noise"


def mann_whitney(a: Sequence[float], b: Sequence[float]) -> float | None:
    """Two-sided p of the Mann-Whitney U test: normal approximation, tie and continuity corrected.

    None below eight samples a side.
    """
    n, m = len(a), len(b)
    if min(n, m) < FEWEST_SAMPLES:
        return None
    values = sorted([(x, True) for x in a] + [(x, False) for x in b])
    rank_sum, ties, start = 0.0, 0.0, 0
    while start < n + m:
        end = start
        while end < n + m and values[end][0] == values[start][0]:
            end += 1
        rank_sum += sum(of_a for _, of_a in values[start:end]) * (start + end + 1) / 2
        ties += (end - start) ** 3 - (end - start)
        start = end
    u = rank_sum - n * (n + 1) / 2
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)))
    if variance <= 0:
        return 1.0
    z = max(0.0, abs(u - n * m / 2) - 0.5) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


def summary(found: list[Price]) -> dict[str, Any] | None:
    """How a choice fares over its pairs; None without pairs.

    {pairs, differs, within, untested: counts; least, median, most: change over all of them}
    """
    if not found:
        return None
    verdicts = [p.verdict for p in found]
    changes = [p.change for p in found]
    return {
        "pairs": len(found),
        "differs": verdicts.count("differs"),
        "within": verdicts.count("within noise"),
        "untested": verdicts.count("not tested"),
        "least": min(changes),
        "median": median(changes),
        "most": max(changes),
    }
