"""A job: what a run does with each of its points, and the statuses that it ends with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any

from ncuflow.record import PairRecord, PointRecord, Status
from ncuflow.runner.faults import Fault
from ncuflow.runner.timing import ROUNDS, PointTiming
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target

Record = PointRecord | PairRecord
Done = tuple[Status, str | None]  # and the reason for it
OK, FATAL, SOME_FAILED, LOST = 0, 1, 3, 4


@dataclass
class Run:
    """What to do with each point. ``device`` is a ncuflow.runner.gpu.Gpu, or a test's."""

    device: Any
    target: Target
    mode: str
    repeats: int | None = None
    seed: int = 0
    flush: bool = True
    faults: list[Fault] = field(default_factory=list)
    watch: Any = None  # builds.CompilerWatch
    pairs: Sequence[tuple[Planned, Planned]] = ()  # timed in turns when the points are
    first: Callable[[Sequence[Planned]], Planned] = itemgetter(0)  # which of those left is the next
    checked: bool = True  # False: an earlier run compared these points with their references
    order: int = 0  # of the points when they are timed: another order per number
    rounds: int = ROUNDS  # in which they are timed
    visits_all: bool = False  # also those that pairs time, as a further run without pairs does
    done: dict[str, Done] = field(
        default_factory=dict
    )  # by the names of the points and pairs that the run finished, in this process or an earlier one
    rest: list[Record] = field(default_factory=list)  # records of points that a broken context left
    series: dict[str, PointTiming] = field(
        default_factory=dict
    )  # what earlier processes measured of them
    visited: Callable[[str], object] = id  # is told of each visit of a point that is timed
