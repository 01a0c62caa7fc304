"""How far a command is, and how long the rest may take."""

import threading
from pathlib import Path

import pytest

from ncuflow.experiments.build import compiled, watched
from ncuflow.race.eta import BURSTS, PROFILED_S, PROFILER_S, SECONDS, TIMED_S, MeteredSide, TrialEta
from ncuflow.race.sides import SideError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Answering:
    """A side that takes twice the time that is expected of it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def ask(self, do: str, limit_s: float, **words: object) -> dict[str, object]:
        if do == "fail":
            raise SideError("x")
        self.clock.now += 2 * SECONDS[do]
        return dict(words)


def timed(side: MeteredSide, rounds: int) -> None:
    for _ in range(3):
        side.ask("open", 1)
    for _ in range(6 * rounds):
        side.ask("burst", 1)
    for _ in range(3):
        side.ask("close", 1)


def test_what_went_by_scales_what_is_left() -> None:
    clock, said = Clock(), list[str]()
    eta = TrialEta(said.append, 2, 3, 10, 0, clock)
    side = MeteredSide(Answering(clock), eta)
    eta("first")
    assert said == ["first, 0 s elapsed"]  # nothing tells yet
    for _ in range(10):
        assert side.ask("check", 1, n=1) == {"n": 1}
    each = 10 * SECONDS["check"] + 3 * TIMED_S
    assert eta.left == pytest.approx(2 * (2 * each - 10 * SECONDS["check"]))
    for _ in range(3):
        timed(side, BURSTS // 6)
    assert eta.left == pytest.approx(2 * each)
    eta.ended()
    assert eta.left == pytest.approx(2 * each)
    eta("second")
    assert said[-1] == f"second, {2 * each:.0f} s elapsed, about {2 * each:.0f} s left"


@pytest.mark.parametrize("rounds", [6, 40])
def test_a_point_is_done_however_many_rounds_it_took(rounds: int) -> None:
    clock = Clock()
    eta = TrialEta(lambda line: None, 1, 4, 0, 0, clock)
    side = MeteredSide(Answering(clock), eta)
    timed(side, rounds)
    took = clock.now
    assert eta.left == pytest.approx(3 * took)


def test_a_change_that_ends_early_leaves_those_after_it() -> None:
    clock = Clock()
    eta = TrialEta(lambda line: None, 3, 4, 10, 2, clock)
    side = MeteredSide(Answering(clock), eta)
    side.ask("check", 1)
    with pytest.raises(SideError):
        side.ask("fail", 1)
    eta.ended()
    clock.now = 50.0
    assert eta.left == pytest.approx(100.0)
    eta.ended()
    eta.ended()
    assert eta.left == 0


def test_processes_under_a_profiler_count_when_the_next_begins() -> None:
    clock, said = Clock(), list[str]()
    eta = TrialEta(said.append, 1, 2, 0, 2, clock)
    side = MeteredSide(Answering(clock), eta)
    timed(side, BURSTS // 6)
    timed(side, BURSTS // 6)
    profiler = PROFILER_S + 2 * PROFILED_S
    eta.profiling("base")
    clock.now += 2 * profiler
    eta.profiling("change")
    assert eta.left == pytest.approx(2 * profiler)


def test_compilers_are_watched_by_the_files_that_they_make(tmp_path: Path) -> None:
    (tmp_path / "build.ninja").write_text(
        "build a.o: c a.c\nbuild b.o: c b.c\nbuild m.so: l a.o b.o\n"
    )
    files = [tmp_path / name for name in ("a.o", "b.o")]
    assert compiled(files, 10.0) == "0 of 2 files compiled, 10 s elapsed"
    said, heard = list[str](), threading.Event()

    def tell(line: str) -> None:
        said.append(line)
        heard.set()

    with watched(tell, [tmp_path], 0.01):
        (tmp_path / "a.o").touch()
        heard.clear()
        assert heard.wait(60)
    assert any(line.startswith("1 of 2 files compiled") and "s left" in line for line in said)
    count = len(said)
    (tmp_path / "b.o").touch()
    with watched(tell, [tmp_path], 0.01):
        pass
    assert len(said) == count  # nothing is left to compile
