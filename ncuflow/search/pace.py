"""How far a search is, and how long the rest may take: said with each line, as a trial says it."""

from __future__ import annotations

import time
from collections.abc import Callable

from ncuflow.runner import progress
from ncuflow.search.halving import RUNGS
from ncuflow.trial.progress import SECONDS, TIMED_S

Tell = Callable[[str], None]


def expected(candidates: int) -> float:
    """Seconds that a shape with so many candidates takes: of these only shares count, see ``ncuflow.trial.progress``."""
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
