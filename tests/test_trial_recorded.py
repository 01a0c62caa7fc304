"""Trials that a GPU made of changes whose effect is known: a comment, another name, or 3 % of the time spent in spinning."""

import pytest
from conftest import ROOT, some

from ncuflow.experiments.record import Trial, read

FOLDER = ROOT / "tests/data/trials"
PLANTED = {"nothing": ("same", 0.0), "slower": ("slower", 0.03), "faster": ("faster", -0.03)}


def trials(name: str) -> list[Trial]:
    return read(FOLDER / f"{name}.json.xz")


@pytest.mark.parametrize("name", PLANTED)
def test_what_was_planted_was_found_ten_times_of_ten(name):
    outcome, change = PLANTED[name]
    assert [trial.outcome for trial in trials(name)] == [outcome] * 10
    for trial in some(trials(name)):
        (point,) = trial.points
        assert point.timing.change.low < point.timing.change.estimate < point.timing.change.high
        assert point.timing.change.estimate == pytest.approx(change, abs=trial.effect / 10)
        # What is called slower or faster is so for sure by more than the base differs from itself.
        beyond = abs(point.timing.change.estimate) - abs(point.timing.noise.estimate)
        assert (beyond > trial.effect) == (name != "nothing")
