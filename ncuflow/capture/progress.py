"""What a profiler prints, as one line per kernel: point n of m, kernels, elapsed, left."""

from __future__ import annotations

import re
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ncuflow.evidence.points import read_progress
from ncuflow.gpu.turns import BEGINS, STARTS, WAITS
from ncuflow.private import told
from ncuflow.runner.progress import left

PROFILING = re.compile(r'==PROF==\s+Profiling\s+"(?P<name>.*?)"\s+-\s+(?P<number>\d+)')
REFUSED = re.compile(r"ERR_NVGPUCTRPERM")
NOISE = re.compile(r"==PROF==")
COMPLAINT = re.compile(r"\b(error|fail\w*|could not|cannot|unable|not found|missing)\b", re.I)
BAR = re.compile(r"\d+ ?%")  # of what a tool draws while it works
TAIL_LINES = 20


class ProfilerOutput:
    """Collects a profiler's output lines and reports how far the batch is.

    `records` is the JSONL file to which the profiled program appends one record per finished point.
    """

    def __init__(
        self, label: str, points: int, records: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.label, self.points, self.records, self.clock = label, points, records, clock
        self.started = clock()
        self.kernels = 0
        self.refused = False
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._waits: float | None = None  # since when the program waits for its GPU
        self._waited = 0.0
        self._last = ""

    def line(self, text: str) -> None:
        """One line of output."""
        self.refused = self.refused or bool(REFUSED.search(text))
        if text in (WAITS, STARTS, BEGINS):
            self._waited = self.waited()
            self._waits = self.clock() if text == WAITS else None
            print(text, file=sys.stderr, flush=True)
        elif PROFILING.search(text):
            self.kernels += 1
            self._report()
        elif text.strip() and not NOISE.search(text):
            self.tail.append(text)

    @property
    def last(self) -> str:
        """The last line that complains, else that says something, without folders of the machine; "" where none does."""
        said = [line.strip() for line in reversed(self.tail) if not BAR.search(line)]
        complaints = [line for line in said if COMPLAINT.search(line)]
        return told(next(iter(complaints + said), ""))

    def waited(self) -> float:
        """Seconds that the program has waited for its GPU."""
        return self._waited + (0.0 if self._waits is None else self.clock() - self._waits)

    def describe(self) -> str:
        """`decode sweep: point 3 of 12, 7 kernels, 14 s elapsed, about 40 s left`."""
        done = min(len(read_progress(self.records)), self.points)
        elapsed = self.clock() - self.started - self.waited()
        seconds = left(elapsed, done, self.points - done)
        rest = "" if seconds is None else f", about {seconds:.0f} s left"
        current = min(done + 1, self.points)
        point = f"{self.label}: point {current} of {self.points}, {self.kernels} kernels"
        return f"{point}, {elapsed:.0f} s elapsed{rest}"

    def _report(self) -> None:
        text = self.describe()
        if text != self._last:
            print(text, file=sys.stderr, flush=True)
            self._last = text
