"""How long a run may take: what its steps work on, and which of them run beside each other."""

from __future__ import annotations

import pytest

from ncuflow.flow import display
from ncuflow.flow.display import LAST_S, LOAD_S, PLANS_S, STANDS_S


def test_a_step_counts_the_points_that_it_works_on() -> None:
    def batch(*names: str) -> list[dict[str, str]]:
        return [{"id": name} for name in names]

    plans = {
        ("rope", "b1"): batch("a", "b", "c"),
        ("rope", "deep"): batch("c"),
        ("decode", "b2"): batch("a"),
    }

    def count(rule: str, **wildcards: str) -> int:
        return display.points_of(plans, rule, wildcards)

    assert count("profile", target="rope", batch="b1") == 3
    assert count("profile_deep", target="rope") == 1
    assert count("tables", target="rope") == 3
    assert count("build") == 4
    assert count("preflight") == 0


def test_a_timing_takes_as_long_as_its_pairs_and_the_points_of_none() -> None:
    one, other, third = ({"id": name} for name in "abc")
    plans, place = {("rope", "b1"): [one, other, third]}, {"target": "rope", "batch": "b1"}
    step = display.STEPS["time"]
    alone = display.work_of(plans, {}, "time", place)
    assert alone == (3, pytest.approx(step.start_s + 3 * step.point_s))
    pairs = {("rope", "b1"): [one, other, one, one]}
    paired = display.work_of(plans, pairs, "time", place)
    assert paired == (3, pytest.approx(step.start_s + step.point_s + 2 * display.PAIR_S))


def ahead(*jobs: tuple[str, float] | tuple[str, float, float]) -> list[display.Ahead]:
    """Jobs of (rule, expected seconds), of which all is left unless a third says how much."""
    return [display.Ahead(job[0], job[1], job[-1]) for job in jobs]


def test_alone_each_program_of_a_gpu_is_loaded_and_ends_before_the_next() -> None:
    jobs = ahead(("build", 100.0), ("profile", 10.0), ("time", 20.0), ("pages", 2.0))
    assert display.rest(jobs, together=False) == 132 + 2 * LOAD_S


@pytest.mark.parametrize(
    ("jobs", "seconds"),
    [
        (
            [("build", 100.0), ("profile", 80.0)],
            PLANS_S + STANDS_S + 80,
        ),  # some of it beside the build
        ([("build", 100.0), ("profile", 30.0)], PLANS_S + 100),
        ([("build", 100.0, 40.0), ("profile", 70.0)], 40 + 30),  # modules stand
        ([("build", 100.0, 90.0), ("profile", 80.0)], 90 + 80 - (100 - STANDS_S)),
        ([("build", 20.0), ("profile", 70.0)], PLANS_S + 20 + 70),
        ([("preflight", 7.0), ("build", 100.0)], PLANS_S + 100),
        ([("preflight", 7.0), ("build", 100.0, 105 - STANDS_S)], 105 - STANDS_S + 2),
        ([("build", 100.0, 90.0), ("build", 50.0)], 140),  # one has begun: its plans are made
        ([("preflight", 7.0)], 7),
        ([("profile", 30.0), ("time", 20.0)], 50),  # which loads meanwhile
        ([("time", 20.0), ("trace", 1.0)], 21 + LOAD_S),
        ([("time", 20.0), ("tables", 30.0)], 20 + LOAD_S + LAST_S),
        ([("tables", 30.0), ("html", 1.0)], 31),
    ],
)
def test_beside_each_other_only_what_waits_for_another_takes_time(
    jobs: list[tuple[str, float]], seconds: float
) -> None:
    assert display.rest(ahead(*jobs), together=True) == seconds
