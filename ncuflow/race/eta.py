"""How far a command is, and how long the rest may take: said with each line.

Of the seconds that a step is expected to take only their shares count: those that went by scale them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from ncuflow.race.rounds import RUNGS
from ncuflow.race.sides import Answer, Side
from ncuflow.run import progress

Tell = Callable[[str], None]
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

    def __init__(self, side: Side, meter: Meter) -> None:
        self._side, self._meter = side, meter

    def ask(self, do: str, limit_s: float, **words: Any) -> Answer:
        found = self._side.ask(do, limit_s, **words)
        self._meter.asked(do)
        return found


def expected(candidates: int) -> float:
    """Seconds that a shape with so many candidates takes: of these only shares count, see ``Meter``."""
    seconds, before, left = (candidates + 2) * SECONDS["open"], 0, candidates
    for rung in RUNGS:
        seconds += (rung - before) * (left + 2) * SECONDS["burst"]
        before, left = rung, (left + 1) // 2
    return seconds + TIMED_S


class Pace:
    """Says lines with the time that went by and the time that is left.

    checks: inputs that are checked, at so many at a time; shapes: how many candidates each has.
    """

    def __init__(
        self,
        tell: Tell,
        checks: float,
        shapes: list[int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tell, self._clock, self._start = tell, clock, clock()
        self._parts = [checks * SECONDS["check"], *map(expected, shapes)]
        self._done = 0.0

    @property
    def left(self) -> float | None:
        """Seconds that the rest may take; None while nothing tells."""
        ahead = sum(self._parts) - self._done
        return progress.left(self._clock() - self._start, self._done, ahead)

    def __call__(self, line: str) -> None:
        left = self.left
        rest = "" if left is None else f", about {left:.0f} s left"
        self._tell(f"{line}, {self._clock() - self._start:.0f} s elapsed{rest}")

    def checked(self, share: float) -> None:
        """So much of the checks is done, of 1."""
        self._done = share * self._parts[0]

    def ended(self, shapes: int) -> None:
        """So many shapes are through, whatever they took."""
        self._done = sum(self._parts[: shapes + 1])
