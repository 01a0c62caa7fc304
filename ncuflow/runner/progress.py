"""Progress of a run on stderr: a line per point, rewritten in place on a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO


class Progress:
    """Tells how many of ``total`` points are done, and how long the rest may take.

    ``before``: points that an earlier process of the run has done.
    """

    def __init__(
        self,
        total: int,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        before: int = 0,
    ) -> None:
        self.total, self.count, self.before = total, before, before
        self.stream = sys.stderr if stream is None else stream
        self.clock, self.start = clock, clock()

    def done(self, point: str, status: str, reason: str | None) -> None:
        """One more point is done. A point that is not ok keeps its line, with the reason."""
        self.count += 1
        elapsed = self.clock() - self.start
        left = elapsed / (self.count - self.before) * (self.total - self.count)
        why = f" ({reason})" if reason else ""
        line = f"[{self.count}/{self.total}] {point}: {status}{why}"
        line += f", {elapsed:.0f} s elapsed, about {left:.0f} s left"
        terminal = self.stream.isatty()
        last = self.count == self.total
        end = "\n" if not terminal or reason or last else ""
        start = "\r\x1b[K" if terminal else ""
        self.stream.write(f"{start}{line}{end}")
        self.stream.flush()
