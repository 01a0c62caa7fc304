"""The sequential test: rounds are added until the interval is narrow enough for the wanted effect.

A round times the base, the change and the base again in turns, there and back, so that a drift falls on all alike. It
gives one ratio of the change to the base, and one of the base to itself. The rounds are looked at a few times; the
chance of a false alarm is divided among the looks and the points (Bonferroni), so it holds for the whole run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import expm1, log, sqrt
from statistics import fmean, stdev
from typing import Literal

from ncuflow.race.record import Relative

ALPHA = 0.05  # of a run: the chance that it calls a change slower or faster that is neither
LOOKS = (6, 9, 13, 19, 28, 40)  # rounds after which is looked
FINE = 0.1  # of a large effect, that its interval may be wide to either side
Verdict = Literal["faster", "same", "slower", "undecided"]


@dataclass(frozen=True)
class Interval:
    """A relative change of the time, of 1, and the bounds between which it lies."""

    estimate: float
    low: float
    high: float

    @property
    def relative(self) -> Relative:
        """As records have it."""
        return Relative(estimate=self.estimate, low=self.low, high=self.high)

    @property
    def half(self) -> float:
        return (self.high - self.low) / 2

    @property
    def farthest(self) -> float:
        """The largest change, to either side, that is within the bounds."""
        return max(abs(self.low), abs(self.high))


@dataclass(frozen=True)
class Judged:
    """What rounds say. final: no further round is needed; noise: the base held against itself."""

    verdict: Verdict
    change: Interval
    noise: Interval
    final: bool


def look(
    change: Sequence[float], noise: Sequence[float], effect: float, points: int
) -> Judged | None:
    """The judgement after so many rounds; None where this number of them is not looked at.

    change, noise: ratios of times of each round; effect: the relative change that matters, of 1; points: how many are
    tested in the run.
    """
    if len(change) not in LOOKS:
        return None
    alpha = ALPHA / (len(LOOKS) * points)
    found, against_itself = interval(change, alpha), interval(noise, alpha)
    # The change runs in a process of its own, as the base does twice: what these differ by is not the change's.
    verdict = judge(found, effect, against_itself.farthest)
    narrow = found.half <= max(effect / 2, FINE * abs(found.estimate))
    final = (verdict != "undecided" and narrow) or len(change) == LOOKS[-1]
    return Judged(verdict, found, against_itself, final)


def judge(found: Interval, effect: float, noise: float = 0.0) -> Verdict:
    """slower: longer for sure by more than the base differs from itself, and perhaps by the effect; same: less than the
    effect to either side for sure."""
    if found.farthest < effect:
        return "same"
    if found.low > noise:
        return "slower"
    return "faster" if found.high < -noise else "undecided"


def interval(ratios: Sequence[float], alpha: float) -> Interval:
    """Student's interval of the mean of the logarithms. Raises StatisticsError for less than two ratios."""
    logs = [log(ratio) for ratio in ratios]
    middle = fmean(logs)
    half = _quantile(len(logs) - 1, alpha) * stdev(logs) / sqrt(len(logs))
    return Interval(expm1(middle), expm1(middle - half), expm1(middle + half))


@cache
def _quantile(freedom: int, alpha: float) -> float:
    from scipy import stats  # a second of its own

    return float(stats.t.ppf(1 - alpha / 2, freedom))
