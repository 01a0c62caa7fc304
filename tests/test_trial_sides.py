"""Sides that are processes: what hangs, ends or breaks costs its side alone, and leaves nothing running."""

import os
import select
import sys
from pathlib import Path

import pytest

from ncuflow.race.sides import LostError, Process, SideError

# Answers as a worker does; what is asked says how it goes wrong.
PROGRAM = """
import json, os, subprocess, sys, time
answers = os.fdopen(int(sys.argv[1].partition("=")[2]), "w")
print("a library says hello")
for line in sys.stdin:
    request = json.loads(line)
    what = request.pop("do")
    if what == "start":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        request["pid"] = child.pid
    if what == "hang":
        time.sleep(600)
    if what == "exit":
        sys.exit("SystemError: the driver is gone")
    if what == "die":
        os.kill(os.getpid(), 9)
    print(json.dumps({"error": "x", "alive": what == "fail"} if what in ("fail", "break") else request), file=answers, flush=True)
"""


@pytest.fixture
def side(tmp_path: Path):
    found = Process([sys.executable, "-c", PROGRAM], os.environ, (), tmp_path / "log")
    yield found
    found.close()


def test_a_side_answers_line_by_line(side: Process) -> None:
    assert side.ask("say", 60, text="é\n") == {"text": "é\n"}
    assert side.ask("say", 60, text="x" * 100_000) == {"text": "x" * 100_000}


def test_what_fails_is_an_error_and_the_side_goes_on(side: Process) -> None:
    with pytest.raises(SideError) as failed:
        side.ask("fail", 60)
    assert not isinstance(failed.value, LostError)
    assert side.ask("say", 60, n=1) == {"n": 1}
    with pytest.raises(LostError):  # its CUDA context is broken
        side.ask("break", 60)


def test_what_hangs_is_stopped_at_its_limit_with_what_it_started(side: Process) -> None:
    child = os.pidfd_open(side.ask("start", 60)["pid"])
    with pytest.raises(LostError, match=r"did not end within 0.1 s, and was stopped"):
        side.ask("hang", 0.1)
    assert select.select([child], [], [], 60)[0], "what it started runs on"
    os.close(child)
    with pytest.raises(LostError):
        side.ask("say", 60)


@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("exit", "its process ended with status 1: SystemError: the driver is gone"),
        ("die", "its process ended with signal 9"),
    ],
)
def test_what_ends_says_how_and_its_last_words(side: Process, what: str, said: str) -> None:
    with pytest.raises(LostError) as lost:
        side.ask(what, 60)
    assert str(lost.value).startswith(said)


def test_it_holds_no_pipe_of_another_side(tmp_path: Path) -> None:
    """A side's answers end when it does, whichever sides were started after it."""
    one, two = (
        Process([sys.executable, "-c", PROGRAM], os.environ, (), tmp_path / name) for name in "ab"
    )
    try:
        assert two.ask("say", 60) == {}
        with pytest.raises(LostError, match="signal 9"):
            one.ask("die", 60)
        assert two.ask("say", 60) == {}
    finally:
        one.close()
        two.close()
