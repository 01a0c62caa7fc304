"""Progress: what is told while a run goes on."""

import io

import pytest

from ncuflow.run.progress import Progress, left


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_plain_lines_where_there_is_no_terminal() -> None:
    stream, clock = io.StringIO(), iter([0.0, 10.0, 20.0])
    progress = Progress(4, stream, lambda: next(clock))
    progress.done("a/1", "ok", None)
    progress.done("a/2", "wrong", "off by 1")
    assert stream.getvalue() == (
        "[1/4] a/1: ok, 10 s elapsed, about 30 s left\n"
        "[2/4] a/2: wrong (off by 1), 20 s elapsed, about 20 s left\n"
    )


def test_progress_rewrites_its_line_on_a_terminal_but_keeps_what_failed() -> None:
    stream = Terminal()
    progress = Progress(3, stream, lambda: 0.0)
    for status, reason in (("ok", None), ("error", "no"), ("ok", None)):
        progress.done("a", status, reason)
    parts = stream.getvalue().split("\r\x1b[K")
    assert [part.endswith("\n") for part in parts] == [False, False, True, True]


def test_what_is_left_goes_on_at_the_pace_of_what_was_done_and_of_what_was_expected() -> None:
    assert left(0, 0, 5) is None
    assert left(20, 2, 3) == 30
    assert left(0, 0, 40, trust=10) == 40  # as expected
    assert left(20, 10, 20, trust=10) == pytest.approx(30)


def test_from_ten_seconds_on_visits_tell_when_a_run_of_several_rounds_ends() -> None:
    now, stream = [0.0], Terminal()
    progress = Progress(5, stream, lambda: now[0], visits=3)
    names = [f"p{number}" for number in range(5)]
    ends = []
    for number in range(3):
        for name in names:
            now[0] += 2.0
            progress.visited(name)
            if number == 2:
                progress.done(name, "ok", None)
            told = float(stream.getvalue().split("about ")[-1].split(" s left")[0])
            ends += [now[0] + told] * (now[0] >= 10)
    assert ends == pytest.approx([30.0] * 11, rel=0.15)


def test_a_point_that_failed_is_not_expected_again_and_no_visit_counts_twice() -> None:
    now, stream = [0.0], io.StringIO()
    progress = Progress(3, stream, lambda: now[0], visits=3, begun={"b": 2})
    now[0] = 4.0
    progress.visited("a")
    progress.done("a", "error", "no kernel")
    # one visit of b and three of c are left, of 4 s each
    assert stream.getvalue().endswith("4 s elapsed, about 16 s left\n")
