"""Successive halving, by simulation with fixed seeds: noise does not win, and a planted gain of 5 % is found."""

from collections.abc import Mapping
from itertools import pairwise

import numpy as np
import pytest
from conftest import some

from ncuflow.experiments.search import DEFAULT
from ncuflow.race.rounds import AA, ALPHA, LOOKS, RUNGS, Halving, Verdict, look

RUNS = 100
EFFECT = 0.02


def halved(
    random: np.random.Generator, true: Mapping[str, float], spread: float, drift: float = 0.0
) -> Halving:
    """A halving of variants with these times, the default's among them. spread: of a burst; drift: of the GPU, a round."""
    race = Halving(list(true), DEFAULT)
    over = False
    while not over:
        slow = (1 + drift) ** race.rounds
        race.add(
            {
                name: true[name.removesuffix(AA)] * slow * np.exp(random.normal(0, spread))
                for name in race.order()
            }
        )
        over = race.look()
    return race


def confirmed(random: np.random.Generator, ratio: float, spread: float) -> Verdict:
    """What the confirmation says of a variant with this share of the default's time."""
    change: list[float] = []
    noise: list[float] = []
    judged = None
    while judged is None or not judged.final:
        base, other, again = np.exp(random.normal(0, spread, 3))
        change.append(ratio * other / base)
        noise.append(again / base)
        judged = look(change, noise, EFFECT, 1) or judged
    return judged.verdict


def equal(count: int, **others: float) -> dict[str, float]:
    return {DEFAULT: 100.0} | {f"c{n}": 100.0 for n in range(count)} | others


def searched(
    random: np.random.Generator, true: Mapping[str, float], spread: float
) -> tuple[Halving, str, Verdict]:
    """(the halving, the variant that it would confirm, what the confirmation says of it)."""
    race = halved(random, true, spread, drift=0.001)
    best, *_ = race.best(dict.fromkeys(true, 1))
    return race, best, confirmed(random, true[best] / true[DEFAULT], spread)


@pytest.mark.parametrize("count", [2, 12])
@pytest.mark.parametrize("spread", [0.002, 0.01, 0.03])
def test_noise_wins_nothing_and_sends_nobody_home(count: int, spread: float) -> None:
    random = np.random.default_rng(count)
    found = [searched(random, equal(count), spread) for _ in range(RUNS)]
    assert sum(bool(race.left) for race, _, _ in found) <= 1.5 * ALPHA * RUNS
    assert sum(verdict == "faster" for _, _, verdict in found) <= ALPHA * RUNS


@pytest.mark.parametrize("count", [1, 4, 12])
def test_a_planted_gain_of_5_per_cent_is_found(count: int) -> None:
    random = np.random.default_rng(count)
    true = equal(count, planted=100 / 1.05)
    found = [searched(random, true, 0.01) for _ in range(RUNS)]
    won = [(best, verdict) == ("planted", "faster") for _, best, verdict in found]
    assert sum(won) >= 0.95 * RUNS


def test_what_takes_long_leaves_first_and_never_more_than_the_slower_half() -> None:
    slow = {f"s{n}": 150.0 + 10 * n for n in range(9)}
    race = halved(np.random.default_rng(0), {DEFAULT: 100.0, "good": 90.0, **slow}, 0.003)
    left = {rung: [n for n, s in race.left.items() if s.rounds == rung] for rung in RUNGS}
    assert left[RUNGS[0]] == ["s4", "s5", "s6", "s7", "s8"]  # of ten; the five fastest go on
    assert len(race.times["s8"]) == RUNGS[0]
    # Then nothing is open any more: the others are slower for sure, and need no further round.
    assert race.rounds == RUNGS[0] and race.ranking[0] == "good"


def test_variants_that_are_not_told_apart_get_twice_the_rounds() -> None:
    true = {DEFAULT: 100.0, "a": 90.0, "b": 91.0, "slow": 130.0, "slower": 140.0}
    race = halved(np.random.default_rng(3), true, 0.02)
    assert race.rounds > RUNGS[0] and {"a", "b"} <= set(race.ranking)
    assert {race.left[n].rounds for n in some(race.left)} <= set(RUNGS)
    assert all(late == 2 * early for early, late in pairwise(RUNGS))
    assert len(RUNGS) + 1 <= len(LOOKS)  # with that of a budget which is up


def test_the_default_and_its_twin_stay_to_the_end_and_are_no_variants() -> None:
    race = halved(np.random.default_rng(0), {DEFAULT: 200.0, "a": 100.0, "b": 101.0}, 0.01)
    assert len(race.times[DEFAULT]) == len(race.times[DEFAULT + AA]) == race.rounds
    assert set(race.ranking) == {"a", "b"} and DEFAULT not in race.left


def test_of_variants_that_are_the_same_the_one_that_departs_least_comes_first() -> None:
    race = Halving([DEFAULT, "far", "near", "slow"], DEFAULT)
    for _ in range(RUNGS[0]):
        race.add({DEFAULT: 100.0, DEFAULT + AA: 100.0, "far": 90.0, "near": 90.5, "slow": 99.0})
    departs = {"far": 2, "near": 1, "slow": 1}
    assert race.best(departs) == ["near", "far", "slow"]


def test_one_that_fails_is_out_and_without_any_it_is_over() -> None:
    race = Halving([DEFAULT, "a"], DEFAULT)
    race.fail("a")
    assert race.ranking == [] and race.look()
