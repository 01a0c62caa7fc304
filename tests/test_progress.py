"""Progress: what is told while a run goes on."""

from __future__ import annotations

import io

from ncuflow.runner.progress import Progress


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
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    stream = Terminal()
    progress = Progress(3, stream, lambda: 0.0)
    for status, reason in (("ok", None), ("error", "no"), ("ok", None)):
        progress.done("a", status, reason)
    parts = stream.getvalue().split("\r\x1b[K")
    assert [part.endswith("\n") for part in parts] == [False, False, True, True]
