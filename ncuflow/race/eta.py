"""How far a command is, and how long the rest may take: said with each line.

Of the seconds that a step is expected to take only their shares count: those that went by scale them.
"""

import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

from ncuflow.io import JsonObject, clean, status_line
from ncuflow.race import rounds, sides
from ncuflow.run import progress

Tell = Callable[[str], None]
# Expected seconds of what a side is asked for, as one H100 takes them, and of a process under ncu.
SECONDS = {"check": 0.8, "open": 1.0, "burst": 0.12, "close": 0.0}
SIDES = 3  # of a point, that open it
BURSTS = 9 * 6  # of a point: of the rounds that most take
TIMED_S = SIDES * SECONDS["open"] + BURSTS * SECONDS["burst"]
PROFILER_S, PROFILED_S = 12.0, 1.5  # a process under ncu, and each point in it


def tell(line: str) -> None:
    """Say on stderr how far the command is."""
    status_line.clear()
    print(clean(line), file=sys.stderr, flush=True)


class Eta:
    """Says lines with the time that went by and the time that is left. steps: expected seconds of each, in their order."""

    def __init__(
        self, tell: Tell, steps: Sequence[float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell, self._clock, self._start = tell, clock, clock()
        self._steps = steps
        self._ended = 0  # steps
        self.spent = 0.0  # expected seconds of the step at work

    @property
    def left(self) -> float | None:
        """Seconds that the rest may take; None while nothing tells."""
        at_work = self._steps[self._ended] if self._ended < len(self._steps) else 0.0
        done = sum(self._steps[: self._ended]) + min(self.spent, at_work)
        return progress.left(self._clock() - self._start, done, sum(self._steps) - done)

    def __call__(self, line: str) -> None:
        left = self.left
        rest = "" if left is None else f", about {left:.0f} s left"
        self._tell(f"{line}, {self._clock() - self._start:.0f} s elapsed{rest}")

    def advance(self, share: float) -> None:
        """So much of the step at work is done, of 1."""
        self.spent = share * self._steps[self._ended]

    def ended(self) -> None:
        """The step at work is through, whatever it took."""
        self._ended, self.spent = self._ended + 1, 0.0


class TrialEta(Eta):
    """Of the trials of a command, a step each. points: of each; cases: its inputs, each checked once; profilers: processes under
    ncu, none where nothing is counted."""

    def __init__(
        self,
        tell: Tell,
        trials: int,
        points: int,
        cases: int,
        profilers: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._profiler = PROFILER_S + points * PROFILED_S
        each = cases * SECONDS["check"] + points * TIMED_S + profilers * self._profiler
        super().__init__(tell, [each] * trials, clock)
        self._point = 0.0  # of what is spent, that of the point that is timed
        self._profiling = False

    def asked(self, do: str) -> None:
        """A side has answered."""
        seconds = SECONDS.get(do, 0.0)
        self.spent += seconds
        if do == "check":
            return
        self._point += seconds
        if do == "close" and self._point:  # fewer rounds than expected, or more
            self.spent += TIMED_S - self._point
            self._point = 0.0

    def profiling(self, line: str) -> None:
        """A process under ncu begins, and the one before it has ended."""
        self.spent += self._profiler if self._profiling else 0.0
        self._profiling = True
        self(line)

    def ended(self) -> None:
        super().ended()
        self._point, self._profiling = 0.0, False


class MeteredSide:
    """A side whose answers count."""

    def __init__(self, side: sides.Side, eta: TrialEta) -> None:
        self._side, self._eta = side, eta

    def ask(self, do: str, limit_s: float, **words: Any) -> JsonObject:
        found = self._side.ask(do, limit_s, **words)
        self._eta.asked(do)
        return found


def halving_s(variants: int) -> float:
    """Expected seconds of a shape at which so many variants are halved, and one is confirmed."""
    seconds, before, left = (variants + 2) * SECONDS["open"], 0, variants
    for rung in rounds.RUNGS:
        seconds += (rung - before) * (left + 2) * SECONDS["burst"]
        before, left = rung, (left + 1) // 2
    return seconds + TIMED_S
