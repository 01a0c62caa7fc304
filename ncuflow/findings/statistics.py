"""Is one set of runs slower than another? Tests, intervals and verdicts for many points at once.

A *run* is one process that timed every point; a *side* is the list of its runs. Launches within a
run share clocks and placement, and two runs of one binary differ by more than their own spread
says. So where a side was repeated, the run is the unit: its median is one observation, and the
variance between runs, which few repeats estimate badly, is moderated across points (Smyth 2004, an
F distribution fitted by scipy, which only this needs). Where nothing was repeated, launches are all there is:
Mann-Whitney's test, the bootstrap standard error of the median, and a floor that stands for the
variation between runs that was not measured.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from math import ceil, erfc, exp, expm1, hypot, isfinite, lgamma, log, log1p, sqrt
from operator import mul
from statistics import NormalDist, fmean, median
from typing import Annotated

from pydantic import Field

from ncuflow.record import Change, Count, Measure

Runs = list[list[float]]  # the samples of each run, µs

# Without repeats, two runs of one binary are taken to differ by this much: GQA decode at batch 128
# on one H200 gave 336 µs in one run and 376 µs in the next.
ASSUMED_FLOOR = 0.12
# From this many runs per side the moderated test alone keeps false alarms rare, two-moded points
# included; with fewer a change must also exceed the noise floor (docs/compare.md shows both).
ENOUGH_RUNS = 5
FEWEST_POINTS = 8  # that a common variance is estimated from
AA_QUANTILE = 0.99
TIMER_STEP = 1e-4  # variances below its square are the timer's resolution, not stability
MOST_PRIOR_DF = 50.0
SLOWER, FASTER, SAME, NOISY = "slower", "faster", "same", "inconclusive"
Time = Annotated[float, Field(gt=0, le=3.6e9)]
Probability = Annotated[float, Field(ge=0, le=1)]
UNTESTED = "not tested"  # noise is no reason where a side has too few samples to know it
# Of a host time: two processes differ by their host, and nothing of two recordings tells that from a version.
NOT_JUDGED = "not judged"
VERDICTS = (SLOWER, FASTER, SAME, NOISY, UNTESTED, NOT_JUDGED)


@dataclass(frozen=True)
class Estimate:
    """One metric of one point. Times in µs; ``low`` and ``high`` bound the relative change.

    base, head: geometric mean over runs of their medians; p: None where there is nothing to test;
    q: p after the correction; floor: the noise floor that the change had to exceed, None where
    the runs sufficed; basis: runs | samples | none (a single value per side).
    """

    base: Time
    head: Time
    relative: Change
    low: Change | None
    high: Change | None
    p: Probability | None
    floor: Measure | None
    basis: str
    runs: tuple[Count, Count]
    samples: tuple[Count, Count]
    q: Probability | None = None
    verdict: Annotated[str, Field(pattern=f"^({'|'.join(VERDICTS)})$")] = UNTESTED


@dataclass(frozen=True)
class Floor:
    """The noise floor of a metric: how far two runs of one side lie apart, and what it rests on.

    value: the longer of two times over the shorter, − 1.
    """

    value: float
    pairs: int
    source: str  # repeats | configured | assumed


@dataclass(frozen=True)
class Prior:
    """Common between-run variance of log time; ``df`` 0 says that there is none."""

    variance: float = 0.0
    df: float = 0.0


def estimates(
    sides: Sequence[tuple[Runs, Runs]],
    alpha: float,
    configured_floor: float | None = None,
    enough_runs: float = ENOUGH_RUNS,
) -> tuple[list[Estimate], Floor]:
    """An estimate for each (base, head) and the metric's noise floor; verdicts by ``decide``.

    alpha: 1 − confidence of the intervals; configured_floor: a fraction known from elsewhere, used
    where this evidence has no repeats; enough_runs: from so many per side the floor no longer
    applies. Raises ValueError on a side without a positive sample.
    """
    medians = [tuple(_log_medians(runs) for runs in side) for side in sides]
    floor = _floor([m for pair in medians for m in pair], configured_floor)
    own = [_own_variance(pair) for pair in medians]
    prior = _prior(own)
    out: list[Estimate | None] = [None] * len(sides)
    by_run = [i for i, (_, df) in enumerate(own) if df + prior.df > 0]
    tests = _by_runs([medians[i] for i in by_run], [own[i] for i in by_run], prior, alpha)
    for i, found in zip(by_run, tests, strict=True):
        out[i] = _estimate(sides[i], medians[i], found, "runs")
    rest = [i for i, estimate in enumerate(out) if estimate is None]
    for i, found in zip(rest, _by_samples([sides[i] for i in rest], alpha), strict=True):
        basis = "none" if found[0] is None else "samples"
        out[i] = _estimate(sides[i], medians[i], found, basis)
    return [_with_floor(e, floor, enough_runs) for e in out if e is not None], floor


def _with_floor(e: Estimate, floor: Floor, enough_runs: float) -> Estimate:
    """The estimate with the floor that its change must exceed, where its runs are too few."""
    return e if min(e.runs) >= enough_runs else replace(e, floor=floor.value)


def decide(found: Sequence[Estimate], alpha: float, threshold: float) -> list[Estimate]:
    """The same with q values (Benjamini-Hochberg over all that were tested) and verdicts.

    slower, faster: significant, beyond ± threshold and beyond the floor that applies, as ratios;
    same: the interval lies within ± threshold; not tested: a side has fewer than three samples; inconclusive:
    everything else.
    """
    tested = [i for i, e in enumerate(found) if e.p is not None]
    q_values = _corrected([e.p for e in found if e.p is not None])
    corrected = dict(zip(tested, q_values, strict=True))
    out = []
    for i, estimate in enumerate(found):
        q = corrected.get(i)
        out.append(replace(estimate, q=q, verdict=_verdict(estimate, q, alpha, threshold)))
    return out


def _corrected(p_values: Sequence[float]) -> list[float]:
    """Benjamini and Hochberg's q of each p."""
    count, least = len(p_values), 1.0
    q = [least] * count
    order = sorted(range(count), key=p_values.__getitem__)
    for rank in range(count, 0, -1):
        q[order[rank - 1]] = least = min(least, p_values[order[rank - 1]] * count / rank)
    return q


def _verdict(e: Estimate, q: float | None, alpha: float, threshold: float) -> str:
    if q is None or e.low is None or e.high is None:
        return UNTESTED
    if q <= alpha and abs(e.relative) > threshold and beyond(e.relative, e.floor or 0.0):
        return SLOWER if e.relative > 0 else FASTER
    return SAME if max(abs(e.low), abs(e.high)) <= threshold else NOISY


def verdict_in_words(e: Estimate) -> str:
    """A verdict as it is printed: with why, where there is none for want of samples."""
    if e.verdict != UNTESTED:
        return e.verdict
    few = min(e.samples)
    return f"{UNTESTED}: {'one sample' if few == 1 else f'{few} samples'}"


def beyond(relative: float, floor: float) -> bool:
    """Whether a change exceeds a floor in its direction: beyond 1 lie what more than doubled and what more than halved."""
    return abs(log1p(relative)) > log1p(floor)


# --- the run as the unit ----------------------------------------------------------------------


def _log_medians(runs: Runs) -> list[float]:
    medians = [median(run) for run in runs if run]
    if not medians or min(medians) <= 0:
        raise ValueError("a side without a positive time")
    return [log(m) for m in medians]


def _own_variance(pair: tuple[list[float], ...]) -> tuple[float, int]:
    """(variance between the runs of a side, pooled over both sides; its degrees of freedom)."""
    df = sum(len(side) - 1 for side in pair)
    squares = sum((one - fmean(side)) ** 2 for side in pair for one in side)
    return (max(squares / df, TIMER_STEP**2), df) if df else (0.0, 0)


def _prior(own: Sequence[tuple[float, int]]) -> Prior:
    """What the other points say of a point's variance: s² / variance ~ F(own df, df)."""
    common = Counter(df for _, df in own if df)
    if not common:
        return Prior()
    df = max(common, key=lambda d: (common[d], d))
    variances = [variance for variance, own_df in own if own_df == df]
    if len(variances) < FEWEST_POINTS:
        return Prior()
    from scipy import stats  # a second of its own

    _, prior_df, _, variance = stats.f.fit(variances, fdfn=df, floc=0)
    if not (isfinite(prior_df) and isfinite(variance) and variance > 0):
        return Prior(median(variances), MOST_PRIOR_DF)
    return Prior(float(variance), float(min(prior_df, MOST_PRIOR_DF)))


Found = tuple[float | None, float | None, float | None]  # p, low and high of the log ratio


def _by_runs(
    medians: Sequence[tuple[list[float], ...]],
    own: Sequence[tuple[float, int]],
    prior: Prior,
    alpha: float,
) -> list[Found]:
    """Moderated t-test on the log medians of the runs."""
    if not medians:
        return []
    from scipy import stats

    total = [df + prior.df for _, df in own]
    change = [_change(pair) for pair in medians]
    error = [
        sqrt((df * variance + prior.df * prior.variance) / of * sum(1 / len(side) for side in pair))
        for pair, (variance, df), of in zip(medians, own, total, strict=True)
    ]
    beyond_error = [abs(one) / its for one, its in zip(change, error, strict=True)]
    p = 2 * stats.t.sf(beyond_error, total)
    half = stats.t.ppf(1 - alpha / 2, total) * error
    return list(zip(p.tolist(), (change - half).tolist(), (change + half).tolist(), strict=True))


def _change(pair: tuple[list[float], ...]) -> float:
    base, head = pair
    return fmean(head) - fmean(base)


# --- the launch as the unit -------------------------------------------------------------------


def _by_samples(sides: Sequence[tuple[Runs, Runs]], alpha: float) -> list[Found]:
    """Mann-Whitney's p and a normal interval from the bootstrap standard errors of both medians."""
    return [
        _launches(pair, alpha) if min(len(side[0]) for side in pair) > 2 else (None, None, None)
        for pair in sides
    ]


def _launches(sides: tuple[Runs, Runs], alpha: float) -> Found:
    base, head = ([log(one) for one in side[0]] for side in sides)
    change = median(head) - median(base)
    error = max(hypot(_median_error(base), _median_error(head)), TIMER_STEP)
    half = NormalDist().inv_cdf(1 - alpha / 2) * error
    return _mann_whitney(base, head), change - half, change + half


def _mann_whitney(base: Sequence[float], head: Sequence[float]) -> float:
    """The two-sided p of its normal approximation, with corrections for ties and continuity; 1 where all samples are equal."""
    n, m = len(base), len(head)
    ties = Counter(base)
    ties.update(head)
    ranks, below = {}, 0
    for value in sorted(ties):
        ranks[value] = below + (ties[value] + 1) / 2  # of equal samples their mean
        below += ties[value]
    u = sum(map(ranks.__getitem__, base)) - n * (n + 1) / 2
    total = n + m
    tied = sum(count**3 - count for count in ties.values()) / (total * (total - 1))
    spread = sqrt(n * m / 12 * (total + 1 - tied))
    return (
        min(1.0, erfc((max(u, n * m - u) - n * m / 2 - 0.5) / spread / sqrt(2))) if spread else 1.0
    )


def _median_error(side: Sequence[float]) -> float:
    """Maritz and Jarrett's standard error of the median: the bootstrap's, without resampling."""
    first, weights = _median_weights(len(side))
    middle = median(side)  # it squares: keep what differs
    near = [one - middle for one in sorted(side)[first : first + len(weights)]]
    mean = sum(map(mul, near, weights))
    return sqrt(
        max(sum(one * one * weight for one, weight in zip(near, weights, strict=True)) - mean**2, 0)
    )


# Gauss and Legendre's rule of eight points, (place, weight) of those above 0.
_LEGENDRE = (
    (0.18343464249564980, 0.36268378337836198), (0.52553240991632899, 0.31370664587788729),
    (0.79666647741362674, 0.22238103445337447), (0.96028985649753623, 0.10122853629037626),
)  # fmt: skip


@cache
def _median_weights(n: int) -> tuple[int, list[float]]:
    """(first, weights): the chance that each of n ordered samples from the first on is the bootstrap's median: a beta density
    over its n-th part of 0 to 1. Those that are further than twelve of its standard deviations from the middle have none."""
    middle = int(n / 2 + 0.5)
    a, b = middle - 1, n - middle
    scale = lgamma(a + b) - lgamma(a) - lgamma(b) - log(2 * n)
    first, last = max(0, middle - ceil(6 * sqrt(n))), min(n, middle + ceil(6 * sqrt(n)))
    places = [(sign * node, part) for node, part in _LEGENDRE for sign in (-1, 1)]

    def share(sample: int) -> float:
        found = 0.0
        for node, part in places:
            x = (sample + (node + 1) / 2) / n
            found += part * exp((a - 1) * log(x) + (b - 1) * log1p(-x) + scale)
        return found

    return first, [share(sample) for sample in range(first, last)]


def of_launches(
    pairs: Iterable[tuple[Sequence[float], Sequence[float]]], alpha: float
) -> list[Found]:
    """(p, low, high) of each pair of sample lists in µs: Mann-Whitney's p, and the interval of the log ratio.

    All None where a side has fewer than three samples.
    """
    return _by_samples([([list(base)], [list(head)]) for base, head in pairs], alpha)


# --- the floor --------------------------------------------------------------------------------


def _floor(sides: Iterable[list[float]], configured: float | None) -> Floor:
    """At least 99 % of the A/A pairs (two runs of one side, one point) lie no further apart than this."""
    pairs = [abs(a - b) for side in sides for a, b in combinations(side, 2)]
    if pairs:
        furthest = sorted(pairs)[ceil(AA_QUANTILE * (len(pairs) - 1))]
        return Floor(expm1(furthest), len(pairs), "repeats")
    if configured is not None:
        return Floor(configured, 0, "configured")
    return Floor(ASSUMED_FLOOR, 0, "assumed")


def _estimate(
    side: tuple[Runs, Runs],
    medians: tuple[list[float], ...],
    found: Found,
    basis: str,
) -> Estimate:
    p, low, high = found
    base, head = (exp(fmean(m)) for m in medians)
    return Estimate(
        base=base,
        head=head,
        relative=expm1(_change(medians)),
        low=None if low is None else expm1(low),
        high=None if high is None else expm1(high),
        p=p,
        floor=None,
        basis=basis,
        runs=(len(medians[0]), len(medians[1])),
        samples=(sum(map(len, side[0])), sum(map(len, side[1]))),
    )
