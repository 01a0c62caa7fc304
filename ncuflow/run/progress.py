"""Progress of a run on stderr: a line per point, rewritten in place on a terminal; and the time that is left."""

import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import TextIO


def left(elapsed: float, done: float, ahead: float, trust: float = 0.0) -> float | None:
    """Seconds for what is ahead, at the pace of what was done in ``elapsed`` seconds; None where nothing tells.

    done, ahead: in one unit, be it points, visits or expected seconds. trust: of expected seconds, how many count as
    done in the time expected, before anything is.
    """
    known = done + trust
    return ahead * (elapsed + trust) / known if known > 0 else None


class Progress:
    """Tells how many of ``total`` points are done, and how long the rest may take.

    before: points that an earlier process of the run has done; visits: how often a point is visited; begun: visits
    that an earlier process made of points that it has not done.
    """

    def __init__(
        self,
        total: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        before: int = 0,
        visits: int = 1,
        begun: Mapping[str, int] | None = None,
    ) -> None:
        self.total, self.count, self.visits = total, before, visits
        self.stream = sys.stderr if stream is None else stream
        self.terminal = self.stream.isatty()
        self.clock, self.start = clock, clock()
        self._of = Counter(begun or {})
        self._made, self._ahead = 0, (total - before) * visits - self._of.total()

    def visited(self, point: str) -> None:
        """A point was visited once more, and may be again. Only a terminal shows it."""
        self._of[point] += 1
        self._made, self._ahead = self._made + 1, self._ahead - 1
        if self.terminal:
            self._tell(f"{point}: visit {self._of[point]} of {self.visits}", "")

    def done(self, point: str, status: str, reason: str | None) -> None:
        """One more point is done. A point that is not ok keeps its line, with the reason."""
        self.count += 1
        seen = self._of.pop(point, 0)
        self._made += not seen
        self._ahead -= self.visits - seen  # one that failed is not visited again
        why = f" ({reason})" if reason else ""
        keeps = not self.terminal or reason or self.count == self.total
        self._tell(f"{point}: {status}{why}", "\n" if keeps else "")

    def _tell(self, what: str, end: str) -> None:
        elapsed = self.clock() - self.start
        rest = left(elapsed, self._made, self._ahead) or 0.0
        line = (
            f"[{self.count}/{self.total}] {what}, {elapsed:.0f} s elapsed, about {rest:.0f} s left"
        )
        start = "\r\x1b[K" if self.terminal else ""
        self.stream.write(f"{start}{line}{end}")
        self.stream.flush()
