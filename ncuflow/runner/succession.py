"""A succession: the processes of one run, each of which goes on where the one before it lost its CUDA context.

After an illegal memory access, or an assertion that fails in a kernel, no call of CUDA works any more in the
process that made it. The point is an error, and a fresh process runs the points that are left.
"""

from __future__ import annotations

import json
import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals

from ncuflow.io import write_text
from ncuflow.model import Origin
from ncuflow.runner.job import FATAL, LOST, OK, SOME_FAILED, Done, Record
from ncuflow.runner.timing import PointTiming

RESTARTS = 10  # of a run: each costs the start of Python, torch and FlashInfer
BAD = frozenset({"wrong", "error"})


@dataclass
class Rest:
    """What a process leaves whose CUDA context broke."""

    records: list[Record] = field(default_factory=list)  # they stand if no other process goes on
    series: dict[str, PointTiming] = field(default_factory=dict)  # of points that it has visited
    origin: Origin | None = None  # of the run: its processes have one
    refused: dict[str, Done] = field(
        default_factory=dict
    )  # points of other batches that no pair is timed with


class Journal:
    """The records of a run, beside its OUT: OUT.partial has a line for each point or pair that is finished, OUT.rest what
    a process left to the next. others: files for further records, which appear with OUT."""

    def __init__(self, out: Path, *others: Path) -> None:
        self.outs = (out, *others)
        self.partial = out.with_name(out.name + ".partial")
        self._rest = out.with_name(out.name + ".rest")

    def begin(self) -> None:
        """Empty, whatever a killed run left."""
        for out in self.outs:
            out.parent.mkdir(parents=True, exist_ok=True)
        self.partial.write_text("", encoding="utf-8")
        self._rest.unlink(missing_ok=True)

    def lines(self) -> dict[str, str]:
        """The line of each finished point or pair, by its name. A line without an end is none: its writer was killed."""
        lines = self.partial.read_text("utf-8").splitlines(keepends=True)
        return {json.loads(line)["point"]: line for line in lines if line.endswith("\n")}

    def done(self) -> dict[str, Done]:
        """How each finished point or pair ended, by its name."""
        records = map(json.loads, self.lines().values())
        return {one["point"]: (one["status"], one["reason"]) for one in records}

    @property
    def broken(self) -> bool:
        """Whether the last process that used the GPU left points to another."""
        return self._rest.exists()

    def leave(self, rest: Rest) -> None:
        """Leave points to the next process."""
        self._rest.write_bytes(pickle.dumps(rest))

    def rest(self) -> Rest:
        """What is left to this process, which takes it over."""
        if not self.broken:
            return Rest()
        rest: Rest = pickle.loads(self._rest.read_bytes())
        self._rest.unlink()
        return rest

    def close(self, names: Sequence[Sequence[str]], rest: Rest) -> int:
        """All records to OUT and the other files, in the order of the names of each; returns the status of the run."""
        left = {record.point: line_of(record, rest.origin) for record in rest.records}
        lines = left | self.lines()
        for out, chosen in zip(self.outs, names, strict=True):
            write_text(out, "".join(lines[name] for name in chosen))
        self.partial.unlink()
        if rest.records:
            return LOST
        found = {json.loads(lines[name])["status"] for chosen in names for name in chosen}
        return SOME_FAILED if BAD & found else OK


def line_of(record: Record, origin: Origin | None) -> str:
    """A record, and with what it was made, as a line of a file."""
    content = record.model_dump() | {"origin": origin}
    return json.dumps(content, allow_nan=False, ensure_ascii=False) + "\n"


def succeed(
    journal: Journal,
    names: Sequence[Sequence[str]],
    start: Callable[[], int],
    restarts: int = RESTARTS,
) -> int:
    """``start`` a process, and after one that broke its context another; returns the status of the run.

    Where the next one cannot use the GPU at all, or ``restarts`` are used up, the points that are left are lost.
    """
    journal.begin()
    status = start()
    left = restarts
    while journal.broken and status != FATAL and left:
        left -= 1
        status = start()
    if not journal.broken and status not in (OK, SOME_FAILED):
        if status == FATAL:
            journal.partial.unlink()
        if status >= 0:
            return status
        print(f"error: the process was ended by {Signals(-status).name}", file=sys.stderr)
        return 128 - status
    rest = journal.rest()
    if status != FATAL and restarts:
        for record in rest.records:
            if record.status == "lost":
                record.reason = (
                    f"{record.reason}; {restarts + 1} points did so, and no further process tries"
                )
    return journal.close(names, rest)
