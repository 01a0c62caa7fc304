"""Several changes in order of their times."""

import trial_data

from ncuflow.experiments.record import ChangeRecord, PointTrial, Trial
from ncuflow.experiments.text import ranked, ranking
from ncuflow.race.record import Outcome


def trial(name: str, outcome: Outcome, *changes: float, half: float = 0.01) -> Trial:
    """A change with these differences at its points, each known to ± half."""
    timings = [trial_data.timing(10.0, 10.0 * (1 + change), half) for change in changes]
    points = [
        PointTrial(point=f"p{at}", outcome=outcome, timing=one) for at, one in enumerate(timings)
    ]
    change = ChangeRecord(name=name, files=[], elsewhere=[])
    return trial_data.trial(change=change, outcome=outcome, points=points)


def ranks(*trials: Trial) -> list[tuple[int | None, str]]:
    return [(rank, found.change.name) for rank, found in ranked(trials)]


def test_what_intervals_do_not_tell_apart_shares_a_rank() -> None:
    near = trial("near", "faster", -0.101), trial("also", "faster", -0.1)
    assert ranks(trial("far", "same", 0.0), *near) == [(1, "near"), (1, "also"), (3, "far")]


def test_one_point_that_tells_them_apart_is_enough() -> None:
    both = trial("even", "same", 0.0, 0.0), trial("mixed", "slower", -0.1, 0.1)
    assert [rank for rank, _ in ranked(both)] == [1, 2]


def test_a_chain_of_overlaps_is_not_one_rank() -> None:
    chain = [trial(str(n), "same", 0.015 * n) for n in range(3)]
    assert ranks(*chain) == [(1, "0"), (1, "1"), (3, "2")]


def test_what_was_not_timed_at_every_point_has_no_rank() -> None:
    half_timed = trial("half", "lost", -0.5, -0.5)
    half_timed.points[1].timing = None
    found = ranks(trial("wrong", "wrong"), half_timed, trial("right", "same", 0.0, 0.0))
    assert found == [(1, "right"), (None, "wrong"), (None, "half")]
    rows = ranking([trial("wrong", "wrong"), trial("right", "same", 0.0)]).splitlines()
    assert rows[-2].split() == ["–", "wrong", "–", "wrong"]
