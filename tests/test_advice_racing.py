"""The race of choices, by simulation with fixed seeds: no winner among equals, planted differences found, runs that agree."""

from statistics import median
from typing import Any

import numpy as np
import pytest
from conftest import some, some_by_default

from ncuflow.race import EFFECT
from ncuflow.race.rounds import AA, ALPHA, LOOKS, Race, advised
from scripts.archive import same_winners

RUNS = 100


def raced(random: Any, true: Any, spread: float = 0.01, placement: float = 0.0, drift: float = 0.0):
    """A race of choices with these times. spread: of a burst; placement: what each launch is off by for good, as buffers of
    its own make it; drift: of the GPU, a round."""
    race = Race(list(true), next(iter(true)))
    off = {name: np.exp(random.normal(0, placement)) for name in race.times}
    over = False
    while not over:
        slow = (1 + drift) ** race.rounds
        race.add(
            {
                name: true[name.removesuffix(AA)] * off[name] * slow * np.exp(random.normal(0, spread))
                for name in race.order()
            }
        )  # fmt: skip
        over = race.look()
    return race


def equal(count: int, **others: float) -> dict[str, float]:
    return {f"c{n}": 100.0 for n in range(count)} | others


@pytest.mark.parametrize(
    "case", some_by_default([(n, s) for n in (2, 20, 6) for s in (0.002, 0.03, 0.01)], 4)
)
def test_equals_have_no_winner_and_nobody_leaves(case):
    count, spread = case
    random = np.random.default_rng(count)
    races = [raced(random, equal(count), spread, drift=0.001) for _ in range(RUNS)]
    left = sum(bool(race.left) for race in races)
    assert left <= 1.5 * ALPHA * RUNS
    assert not any(race.decision() == "winner" for race in races)


def test_what_differs_by_its_buffers_alone_does_not_win() -> None:
    """Two launches of the same kernel, 0.3 % apart for good in the mean square."""
    random = np.random.default_rng(7)
    races = [raced(random, equal(2), 0.002, placement=0.003) for _ in range(RUNS)]
    assert sum(race.decision() == "winner" for race in races) <= ALPHA * RUNS


@pytest.mark.parametrize("count", some_by_default([6, 2, 20], 3))
def test_a_planted_loss_of_5_per_cent_is_found(count):
    random = np.random.default_rng(count)
    true = {"default": 105.0} | equal(count - 1)
    races = [raced(random, true) for _ in range(RUNS)]
    assert sum("default" in race.remaining for race in races) <= 0.05 * RUNS
    for race in some(races):
        found = race.against("default", race.leader)
        assert found.low < 0.06 and found.high > 0.04


def test_what_takes_long_leaves_at_the_first_look() -> None:
    race = raced(np.random.default_rng(0), equal(3, slow=400.0, slower=700.0))
    assert {race.left[name].rounds for name in ("slow", "slower")} == {LOOKS[0]}
    assert len(race.times["slow"]) == LOOKS[0] and race.rounds > LOOKS[0]


def test_the_default_is_timed_to_the_end_though_it_lost() -> None:
    race = raced(np.random.default_rng(0), {"default": 150.0, "a": 100.0, "b": 100.0})
    assert race.left["default"].rounds == LOOKS[0]
    assert len(race.times["default"]) == len(race.times["a"]) == race.rounds


def test_two_runs_agree_and_regret_little_against_all_times_to_the_end() -> None:
    random = np.random.default_rng(11)
    regrets, pairs = [], []
    for _ in range(60):
        true = {f"c{n}": 100 * float(np.exp(random.normal(0, 0.15))) for n in range(8)}
        first, second = (raced(random, true, 0.005) for _ in range(2))
        pairs.append((first.remaining, second.remaining))
        taken = advised(first, {name: int(name != "c0") for name in true})
        regrets.append(true[taken] / min(true.values()) - 1)
    same, decided = same_winners(pairs)
    assert decided > 40 and same >= 0.95 * decided
    assert median(regrets) == 0 and max(regrets) <= EFFECT


def test_of_a_tie_the_default_is_taken_and_else_what_departs_from_it_least() -> None:
    race = Race(["default", "near", "far"], "default")
    for _ in range(LOOKS[0]):
        race.add({"default": 101.0, f"default{AA}": 101.0, "near": 100.5, "far": 100.0})
    departures = {"default": 0, "near": 1, "far": 2}
    assert advised(race, departures) == "default"
    race.fail("default")
    assert advised(race, departures) == "near"


def test_a_turn_comes_back_the_way_it_went() -> None:
    race = Race(["a", "b", "c"], None)
    orders = []
    for _ in range(4):
        orders.append(race.order())
        race.add(dict.fromkeys("abc", 1.0))
    assert orders == [["a", "b", "c"], ["c", "b", "a"], ["b", "c", "a"], ["a", "c", "b"]]


def test_a_choice_that_fails_is_out_of_the_race() -> None:
    race = Race(["a", "b"], "a")
    race.fail("a")
    assert race.running == [f"a{AA}", "b"] or race.running == ["b", f"a{AA}"]
    assert race.remaining == ["b"] and race.noise() == race.effect / 2


def test_a_choice_alone_has_a_time_as_well() -> None:
    race = raced(np.random.default_rng(1), {"only": 100.0})
    assert race.rounds == 2 and race.time_us("only") == pytest.approx(100, rel=0.05)
