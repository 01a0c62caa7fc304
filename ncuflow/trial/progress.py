"""How far a command is, and how long the rest may take: said with each line, and while compilers run.

Of the seconds that a step is expected to take only their shares count: those that went by scale them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ncuflow.runner import progress
from ncuflow.trial.reach import objects
from ncuflow.trial.sides import Answer, TrialSide

Tell = Callable[[str], None]
EVERY_S = 10.0  # between two lines while compilers run
TICK_S = 0.5
# Expected seconds of what a side is asked for, as one H100 takes them, and of a process under ncu.
SECONDS = {"check": 0.8, "open": 1.0, "burst": 0.12, "close": 0.0}
SIDES, BURSTS = (
    3,
    9 * 6,
)  # of a point: sides that open it, and bursts of the rounds that most points take
TIMED_S = SIDES * SECONDS["open"] + BURSTS * SECONDS["burst"]
PROFILER_S, PROFILED_S = 12.0, 1.5  # a process under ncu, and each point in it


class Meter:
    """Says lines with the time that went by and the time that is left of all changes of a command.

    points: of each change; cases: its inputs, each checked once; profilers: processes under ncu, none where nothing is
    counted.
    """

    def __init__(
        self,
        tell: Tell,
        changes: int,
        points: int,
        cases: int,
        profilers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._say, self._clock, self._start = tell, clock, clock()
        self._changes = changes
        self._profiler = PROFILER_S + points * PROFILED_S
        self._each = cases * SECONDS["check"] + points * TIMED_S + profilers * self._profiler
        self._ended = 0  # changes
        self._spent = 0.0  # expected seconds of the change at work
        self._point = 0.0  # of these, those of the point that is timed
        self._profiling = False

    @property
    def left(self) -> float | None:
        """Seconds that the rest may take; None while nothing tells."""
        done = self._ended * self._each + min(self._spent, self._each)
        return progress.left(self._clock() - self._start, done, self._changes * self._each - done)

    def __call__(self, line: str) -> None:
        left = self.left
        rest = "" if left is None else f", about {left:.0f} s left"
        self._say(f"{line}, {self._clock() - self._start:.0f} s elapsed{rest}")

    def asked(self, do: str) -> None:
        """A side has answered."""
        seconds = SECONDS.get(do, 0.0)
        self._spent += seconds
        if do == "check":
            return
        self._point += seconds
        if do == "close" and self._point:  # fewer rounds than expected, or more
            self._spent += TIMED_S - self._point
            self._point = 0.0

    def profiling(self, line: str) -> None:
        """A process under ncu begins, and the one before it has ended."""
        self._spent += self._profiler if self._profiling else 0.0
        self._profiling = True
        self(line)

    def ended(self) -> None:
        """A change is through, whichever way."""
        self._ended, self._spent, self._point, self._profiling = self._ended + 1, 0.0, 0.0, False


class MeteredSide:
    """A side whose answers count."""

    def __init__(self, side: TrialSide, meter: Meter) -> None:
        self._side, self._meter = side, meter

    def ask(self, do: str, limit_s: float, **words: Any) -> Answer:
        found = self._side.ask(do, limit_s, **words)
        self._meter.asked(do)
        return found


@contextmanager
def watched(
    tell: Tell,
    folders: Sequence[Path],
    every_s: float = EVERY_S,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[None]:
    """Say now and then, for the length of the block, how many files of modules in these folders are compiled."""
    missing = [path for folder in folders for path in objects(folder) if not path.exists()]
    ended = threading.Event()
    thread = threading.Thread(
        target=_watch, args=(tell, missing, ended, every_s, clock), daemon=True
    )
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _watch(
    tell: Tell,
    missing: Sequence[Path],
    ended: threading.Event,
    every_s: float,
    clock: Callable[[], float],
) -> None:
    start = said = clock()
    while missing and not ended.wait(min(TICK_S, every_s)):
        if clock() - said >= every_s:
            said = clock()
            tell(compiled(missing, said - start))


def compiled(files: Sequence[Path], elapsed_s: float) -> str:
    """How many of some files are there, and how long the others may take at that pace."""
    done = sum(path.exists() for path in files)
    left = progress.left(elapsed_s, done, len(files) - done)
    rest = "" if left is None else f", about {left:.0f} s left"
    return f"{done} of {len(files)} files compiled, {elapsed_s:.0f} s elapsed{rest}"
