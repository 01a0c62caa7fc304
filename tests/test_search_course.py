"""The course of a search, on sides that are no processes: who is checked, timed, confirmed, and what ends whom."""

from typing import Any

import pytest
import trial_data
from conftest import some, some_by_default
from test_trial_course import Local

from ncuflow.experiments.choices import Variant
from ncuflow.experiments.record import SearchedShape
from ncuflow.experiments.search import FRESH, SearchedVariant, SearchRun, regret
from ncuflow.race.eta import Eta, halving_s
from ncuflow.race.rounds import RUNGS
from ncuflow.race.sides import BaseError
from ncuflow.race.worker import SEEDS
from ncuflow.sweep.points import Planned
from ncuflow.verbs.advise import search_status

SHAPE = Planned("fake/p1", "fake", {"n": 1})


class Searching:
    """Candidates "us=…" that take these times; the default takes 100 µs."""

    def __init__(self, *times: float, **kinds: Any) -> None:
        self.log: list[str] = []
        self.said: list[str] = []
        self.base, self.control = Local(self.log, "base"), Local(self.log, "control")
        self.sides = [Local(self.log, f"c{us:g}", us, **kinds) for us in times]
        self.variants = [
            SearchedVariant(Variant((("us", int(us)),)), side, {SHAPE.id: SHAPE})
            for us, side in zip(times, self.sides, strict=True)
        ]
        self.now = 0.0
        self.eta = Eta(self.said.append, [2.0, halving_s(len(times))], self.clock)
        base, control = self.base, self.control
        run = (base.target, base, control, self.variants, 0.02, 5.0, self.eta, self.clock)
        self.on = SearchRun(*run)

    def clock(self) -> float:
        self.now += 1.0
        return self.now

    def run(self, budget_s: float | None = None) -> SearchedShape:
        self.on.check()
        return self.on.search(SHAPE, budget_s)

    def fates(self, found: SearchedShape) -> dict[str, str]:
        return {one.name: one.fate for one in found.candidates}

    def asked(self, name: str, do: str) -> int:
        return sum(line.startswith(f"{name} {do}") for line in self.log)


def test_the_fastest_is_the_winner_and_the_default_has_its_price() -> None:
    search = Searching(120.0, 80.0, 110.0, 90.0)
    found = search.run()
    assert (found.found, found.candidate) == ("winner", "us=80")
    assert found.price is not None and found.confirmed is not None
    assert found.price.low < 0.25 < found.price.high  # 100 µs against 80
    assert found.price.estimate == pytest.approx(0.25, abs=0.01)
    assert [one.name for one in found.candidates] == ["us=80", "us=90", "us=110", "us=120"]
    fates = {"us=80": "kept", "us=90": "kept", "us=110": "left", "us=120": "left"}
    assert search.fates(found) == fates
    assert found.rounds == RUNGS[0] and found.default_us == pytest.approx(100, rel=0.01)
    # Only the one that is confirmed is timed beyond the halving, and what left is closed at once.
    assert search.asked("c80", "burst") > search.asked("c90", "burst") == RUNGS[0]
    assert search.log.index("c120 close") < search.log.index("c90 close")


def test_the_price_is_the_winners_gain_the_other_way_round() -> None:
    timing = trial_data.timing(100.0, 80.0)
    timing.change.low, timing.change.high = -0.25, -0.1
    found = regret(timing)
    assert (found.estimate, found.low, found.high) == pytest.approx((0.25, 1 / 9, 1 / 3))


@pytest.mark.parametrize(
    ("outcomes", "wanted"),
    [
        (("winner", "default"), 0),
        (("winner", "undecided"), 3),
        (("default", "none"), 3),
        (("none", "none"), 1),
    ],
)
def test_the_status_says_whether_each_shape_has_an_answer(outcomes, wanted):
    timing = trial_data.timing(1.0, 1.0)
    of = {"shape": "x", "params": {}, "candidates": []}
    shapes = [
        SearchedShape(**of, found=found, confirmed=None if found == "none" else timing)
        for found in outcomes
    ]
    assert search_status(shapes) == wanted


@pytest.mark.parametrize("us", some_by_default([99.0, 101.0, 130.0], 3))
def test_the_default_stands_where_no_candidate_is_faster_by_what_matters(us: float) -> None:
    found = Searching(us).run()
    assert (found.found, found.price, found.candidate) == ("default", None, f"us={us:.0f}")
    assert found.confirmed is not None and found.default_us == pytest.approx(100, rel=0.01)


def test_a_wrong_variant_is_timed_nowhere() -> None:
    search = Searching(80.0, 90.0)
    search.sides[0].target.prepare = Local(search.log, "wrong", 80.0, p10=2.5).target.prepare
    found = search.run()
    assert search.asked("c80", "open") == search.asked("c80", "burst") == 0
    assert search.fates(found)["us=80"] == "wrong" and found.candidate == "us=90"
    assert "fake/p10: relative L2 error 0.25" in str(found.candidates[-1].reason)


def test_the_base_is_asked_once_about_a_point_at_which_variants_are_wrong() -> None:
    search = Searching(80.0, 90.0, p10=2.5)
    search.on.check()
    assert [one.outcome for one in search.variants] == ["wrong", "wrong"]
    assert search.asked("base", "check fake/p10") == 1


def test_what_is_wrong_on_fresh_inputs_does_not_win_and_the_next_is_confirmed() -> None:
    search = Searching(80.0, 90.0)
    prepare = search.sides[0].target.prepare

    def wrong_later(p: dict[str, Any], seed: int = 0) -> Any:
        launch = prepare(p, seed)
        launch.output = lambda: (2.5 if seed == FRESH else 2.0,)
        return launch

    search.sides[0].target.prepare = wrong_later
    found = search.run()
    assert FRESH not in SEEDS
    assert (found.found, found.candidate) == ("winner", "us=90")
    assert search.fates(found)["us=80"] == "wrong"
    assert "on fresh inputs" in str(found.candidates[0].reason)


def test_the_confirmation_has_inputs_that_the_search_had_not() -> None:
    search = Searching(80.0)
    seeds: list[int] = []
    for side in (search.base, search.control, search.sides[0]):
        prepare = side.target.prepare

        def noting(p: dict[str, Any], seed: int = 0, prepare: Any = prepare) -> Any:
            seeds.append(seed)
            return prepare(p, seed)

        side.target.prepare = noting
    search.run()
    fresh = seeds.index(FRESH)
    assert set(seeds[:fresh]) == set(SEEDS) and set(seeds[fresh:]) == {FRESH}
    assert seeds[fresh:] == [FRESH] * 4  # the check of the variant, and three sides to time


def test_the_chance_of_a_false_winner_is_divided_among_the_shapes_of_the_run() -> None:
    def half(shapes: int) -> float:
        search = Searching(90.0)
        search.on.shapes = shapes
        found = search.on.search(SHAPE, None).confirmed
        assert found is not None and found.rounds == RUNGS[0]
        return found.change.high - found.change.low

    assert half(50) > 1.5 * half(1)


def test_one_that_is_lost_costs_itself_alone() -> None:
    search = Searching(80.0, 90.0)
    search.sides[0].lost_at = ("burst", "")
    found = search.run()
    assert search.fates(found) == {"us=90": "kept", "us=80": "lost"}
    assert (found.found, found.candidate) == ("winner", "us=90")


def test_without_a_variant_nothing_is_found() -> None:
    search = Searching(80.0)
    search.sides[0].lost_at = ("check", SHAPE.id)
    found = search.run()
    assert (found.found, found.reason) == ("none", "no variant could be timed")


def test_a_default_that_does_not_run_is_said_and_one_that_is_lost_ends_the_search() -> None:
    search = Searching(80.0)
    search.base.target.prepare = Local(search.log, "x", p1=2.5).target.prepare
    found = search.run()
    assert found.found == "none" and "the default: relative L2 error" in str(found.reason)
    lost = Searching(80.0)
    lost.base.lost_at = ("burst", "")
    with pytest.raises(BaseError, match="the base: did not end"):
        lost.run()


def test_a_budget_of_seconds_ends_the_rounds_after_the_first_rung() -> None:
    def noisy() -> Searching:
        search = Searching(80.0, 81.0)
        for side in search.sides:
            own = side.device.random.random
            side.device.random.gauss = lambda mean, spread, own=own: 0.5 + own()  # type: ignore
        return search

    free, short = noisy().run(), noisy().run(budget_s=0.5)
    assert free.rounds == RUNGS[-1] and short.rounds == RUNGS[0]


def test_progress_says_what_is_left_and_ends_at_nothing() -> None:
    search = Searching(80.0, 120.0)
    search.run()
    lines = [line for line in some(search.said) if "s elapsed" in line]
    assert lines == search.said and "us=80: right" in lines[0]
    assert any("variant" in line and "left" in line for line in lines)
    assert search.eta.left == 0
    eta = Eta(search.said.append, [2.0, halving_s(4)], search.clock)
    eta.advance(0.5)
    assert eta.left is not None and eta.left > 0
    assert halving_s(12) > halving_s(4)
