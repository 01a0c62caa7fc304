"""Several ranks that launch what the first one launches, on stand-ins that need no GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ncuflow.gpu import use
from ncuflow.target import ranks
from ncuflow.target.contract import load

STAND_IN = "rank_stand_in:program"
Started = Callable[..., ranks.Peers]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    made: list[ranks.Peers] = []

    def start(world: int, **how: Any) -> ranks.Peers:
        made.append(ranks.Peers(STAND_IN, world, **how))
        return made[-1]

    yield start
    for one in made:
        one.close()


def test_every_rank_does_what_the_first_was_told_as_often_and_in_order(started: Started) -> None:
    peers = started(3)
    first = peers.open({"name": "a", "runs": 5})
    second = peers.open({"name": "b", "runs": 1})
    for _ in range(3):
        peers.go(first)
    peers.board.issue(ranks.RESET, first)
    for _ in range(5):
        peers.go(first)
    peers.go(second)
    assert peers.ask(ranks.CHECK, first) == [1, 1] and peers.ask(ranks.CHECK, second) == [1, 1]
    opened = {path.name for path in peers.folder.glob("opened*")}
    assert opened == {f"opened{rank}-{name}" for rank in (1, 2) for name in "ab"}
    peers.go(second)  # once too often
    assert peers.ask(ranks.CHECK, second) == [0, 0]


def test_more_commands_than_a_peer_may_be_behind_wait_for_it(started: Started) -> None:
    peers, runs = started(2), 3 * ranks.RING
    member = peers.open({"name": "a", "runs": runs})
    for _ in range(runs):
        peers.go(member)
    assert peers.ask(ranks.CHECK, member) == [1]


def test_a_rank_that_dies_ends_all_with_one_line_and_leaves_nothing(started: Started) -> None:
    said: list[str] = []
    peers = started(3, on_death=said.append)
    member = peers.open({"name": "a", "runs": 1, "dies": 2})
    peers.go(member)
    with pytest.raises(RuntimeError, match="a rank does not answer"):
        peers.ask(ranks.CHECK, member)
    peers.watching.join(10)
    assert said == ["error: rank 2 of 3 ended with status 7: the kernel of this rank is lost"]
    assert not peers.folder.exists() and all(one.poll() is not None for one in peers.processes)


def test_ncu_is_known_by_the_job_that_it_is_started_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(use.JOB, raising=False)
    assert ranks.JOB == use.JOB and not ranks.counted()
    for job, counted in (("ncu allreduce sweep", True), ("nsys allreduce trace", False)):
        monkeypatch.setenv(use.JOB, job)
        assert ranks.counted() is counted


@pytest.mark.parametrize(
    ("world", "tokens", "chosen", "parts"),
    [
        (2, 128, "oneshot", 1),
        (2, 8192, "oneshot", 1),
        (4, 512, "oneshot", 3),
        (4, 1024, "twoshot", 1.5),  # half of what each has goes round twice
    ],
)
def test_what_is_chosen_and_sent_goes_by_the_message_and_the_ranks(
    world: int, tokens: int, chosen: str, parts: float
) -> None:
    target = load("allreduce")
    p = {**target.parameters, "ranks": world, "tokens": tokens}
    assert target.resolves(p, "9.0") == {"variant": chosen}
    module = __import__("ncuflow.targets.allreduce", fromlist=["sent"])
    assert module.sent(p) == module.sent({**p, "variant": chosen}) == parts * tokens * 8192 * 2
