"""Verdicts on runs: false alarms on A/A, real changes found, noise admitted."""

from __future__ import annotations

import random

import pytest
from compare_data import runs

from ncuflow.findings import statistics
from ncuflow.findings.statistics import ASSUMED_FLOOR, Estimate, decide, estimates


def verdicts(sides: list, threshold: float = 0.03, floor: float | None = None) -> list[Estimate]:
    found, _ = estimates(sides, 0.05, floor)
    return decide(found, 0.05, threshold)


def many(seed: int, count: int, points: int = 30, between: float = 0.01) -> list:
    rng = random.Random(seed)
    both = [[runs(rng, 100.0, count, between=between) for _ in "ab"] for _ in range(points)]
    return [tuple(sides) for sides in both]


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nothing_changes_between_runs_of_one_binary(count: int, seed: int) -> None:
    found = verdicts(many(seed, count))
    assert {e.verdict for e in found} <= {statistics.SAME, statistics.NOISY}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_launches_of_one_run_do_not_count_as_independent(seed: int) -> None:
    """10 % between runs, 0.4 % within: within-run tests would call nearly every point."""
    found = verdicts(many(seed, 3, between=0.1))
    assert {e.verdict for e in found} <= {statistics.SAME, statistics.NOISY}
    assert all(e.high - e.low > 0.05 for e in found if e.low is not None and e.high is not None)


def test_a_change_among_many_points_is_found_and_its_interval_holds_it() -> None:
    sides = many(4, 5)
    base, head = sides[7]
    sides[7] = (base, [[1.08 * us for us in run] for run in head])
    found = verdicts(sides)
    assert [i for i, e in enumerate(found) if e.verdict == statistics.SLOWER] == [7]
    slower = found[7]
    assert slower.low is not None and slower.high is not None and slower.q is not None
    assert slower.low < 0.08 < slower.high
    assert slower.basis == "runs" and slower.runs == (5, 5) and slower.q <= 0.05


def test_faster_is_the_mirror_of_slower() -> None:
    sides = many(4, 5)
    sides[7] = (sides[7][0], [[us / 1.08 for us in run] for run in sides[7][1]])
    assert verdicts(sides)[7].verdict == statistics.FASTER
    assert verdicts([(b, a) for a, b in sides])[7].verdict == statistics.SLOWER


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    found = [e for seed in range(20) for e in verdicts(many(seed, 3, points=20))]
    covered = [e.low <= 0 <= e.high for e in found if e.low is not None and e.high is not None]
    assert 0.92 < sum(covered) / len(covered) < 0.98


def test_the_floor_is_that_of_the_runs_furthest_apart_and_holds_where_a_side_has_few() -> None:
    _, floor = estimates([([[100.0], [101.0], [104.0]], [[100.0]])], 0.05)
    assert floor.value == pytest.approx(0.04) and floor.pairs == 3
    rng = random.Random(1)
    for count, held in ((3, True), (5, False)):
        sides = [(runs(rng, 100.0, 5), runs(rng, 100.0, count))]
        (found,), floor = estimates(sides, 0.05)
        assert found.floor == (floor.value if held else None)


def test_the_correction_counts_all_points() -> None:
    """Alone a p of 0.03 is significant; beside 99 that show nothing it is not."""
    lone = Estimate(100, 104, 0.04, 0.01, 0.07, 0.03, None, "runs", (5, 5), (50, 50))
    quiet = Estimate(100, 100, 0.0, -0.01, 0.01, 0.8, None, "runs", (5, 5), (50, 50))
    assert decide([lone], 0.05, 0.03)[0].verdict == statistics.SLOWER
    assert decide([lone] + [quiet] * 99, 0.05, 0.03)[0].verdict == statistics.NOISY


def test_a_significant_change_within_the_threshold_is_the_same() -> None:
    small = Estimate(100, 101, 0.01, 0.008, 0.012, 1e-9, None, "runs", (9, 9), (90, 90))
    assert decide([small], 0.05, 0.03)[0].verdict == statistics.SAME
    assert decide([small], 0.05, 0.005)[0].verdict == statistics.SLOWER


def test_one_run_a_side_needs_more_than_the_assumed_floor() -> None:
    """336 µs against 376 µs: the same binary twice."""
    rng = random.Random(5)
    calm = {"between": 0.0, "within": 0.003}
    verdict_of = {376: statistics.NOISY, 420: statistics.SLOWER, 336: statistics.SAME}
    sides = [tuple(runs(rng, of, 1, 30, **calm) for of in (336, us)) for us in verdict_of]
    found, floor = estimates(sides, 0.05)
    assert (floor.value, floor.source) == (ASSUMED_FLOOR, "assumed")
    assert [e.verdict for e in decide(found, 0.05, 0.03)] == list(verdict_of.values())
    assert {e.basis for e in found} == {"samples"}


def test_a_floor_from_elsewhere_replaces_the_assumed_one_but_not_a_measured_one() -> None:
    rng = random.Random(5)
    single = [(runs(rng, 100, 1, between=0), runs(rng, 108, 1, between=0))]
    assert verdicts(single)[0].verdict == statistics.NOISY
    assert verdicts(single, floor=0.05)[0].verdict == statistics.SLOWER
    _, floor = estimates(many(1, 3), 0.05, 0.5)
    assert floor.source == "repeats" and floor.value < 0.1


@pytest.mark.parametrize("floor", [0.5, 1.0, 1.2])
def test_a_floor_holds_for_falls_as_it_does_for_rises(floor: float) -> None:
    def changed(ratio: float) -> str:
        known = Estimate(100, 100 * ratio, ratio - 1, -1, 1, 1e-9, floor, "runs", (3, 3), (30, 30))
        return decide([known], 0.05, 0.03)[0].verdict

    beyond, within = 1.05 * (1 + floor), 0.95 * (1 + floor)
    assert (changed(beyond), changed(1 / beyond)) == (statistics.SLOWER, statistics.FASTER)
    assert changed(within) == changed(1 / within) == statistics.NOISY


def test_a_point_measured_once_borrows_the_variance_of_the_others() -> None:
    sides = many(6, 4)
    sides[0] = tuple(side[:1] for side in sides[0])
    alone = verdicts(sides)[0]
    assert alone.basis == "runs" and alone.runs == (1, 1)
    assert alone.low is not None and alone.high is not None
    assert alone.high - alone.low > 0.03


def test_a_change_of_fifty_times_between_too_few_samples_is_not_tested_and_not_noise() -> None:
    (one,) = verdicts([([[100.0]], [[5000.0]])])
    assert (one.p, one.low, one.basis, one.verdict) == (None, None, "none", statistics.UNTESTED)
    assert one.relative == pytest.approx(49)
    (two,) = verdicts([([[100.0, 101.0, 99.0]], [[5000.0, 5001.0]])])
    told = [statistics.verdict_in_words(found) for found in (one, two)]
    assert told == ["not tested: one sample", "not tested: 2 samples"]


def test_equal_samples_are_the_same() -> None:
    same = [[10.0] * 20]
    assert verdicts([(same, same)])[0].verdict == statistics.SAME


@pytest.mark.parametrize("side", [[], [[]], [[0.0, 0.0, 0.0]]])
def test_a_side_without_a_positive_time_is_refused(side: list) -> None:
    with pytest.raises(ValueError, match="positive"):
        estimates([([[1.0, 1.1, 1.2]], side)], 0.05)


def test_no_points_no_verdicts() -> None:
    assert verdicts([]) == []
