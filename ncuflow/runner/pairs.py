"""Pairs: two points of a target timed in turns (A, B, then B, A), to price what differs between them.

What drifts between two points that are measured minutes apart, clocks above all, falls on both sides
of a pair alike.

A pair has as many samples of either side as a point's own visit takes, of launches up to 4 ms, so it gives the records of its
points as well: a point is made ready and timed once for both, and a launch that the next pair needs stays.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ncuflow.record import PairRecord, PointRecord, Status, TimedSide
from ncuflow.runner import builds, timing
from ncuflow.runner.job import Record, Run
from ncuflow.runner.ready import begun, broken, failed, ready, timed, warm
from ncuflow.sweep.points import Planned
from ncuflow.target.launch import Launch

ROUNDS = 6
LAUNCHES = 5  # per side and round
Pair = tuple[Planned, Planned]


class ReadySide(NamedTuple):
    """A point that is ready, and its record as far as it is known."""

    record: PointRecord
    launch: Launch


class RefusedSideError(RuntimeError):
    """A side of a pair that is not timed. lost: the GPU was lost at it."""

    def __init__(
        self, point: Planned, status: Status, reason: str | None, lost: bool = False
    ) -> None:
        super().__init__(f"{point.id}: {reason}")
        self.status, self.lost = status, lost


def pairs_of(points: Sequence[Planned]) -> list[Pair]:
    """Consecutive points, two by two. Raises ValueError where one has no partner."""
    if len(points) % 2:
        raise ValueError("an odd number of points makes no pairs")
    return list(zip(points[::2], points[1::2], strict=True))


def name(base: Planned, other: Planned) -> str:
    """What the record of a pair is called."""
    return f"{base.id} | {other.id}"


def left(run: Run) -> list[Pair]:
    """The pairs that the run has not finished, in the order in which they are timed: those of one base follow each other,
    and the bases are in a random order, the same for the same order number."""
    bases = list(dict.fromkeys(base.id for base, _ in run.pairs))
    random.Random(f"{run.order}/pairs").shuffle(bases)
    ordered = sorted(run.pairs, key=lambda pair: bases.index(pair[0].id))
    return [pair for pair in ordered if name(*pair) not in run.done]


def unpaired(run: Run, points: Sequence[Planned]) -> list[Planned]:
    """The points without a record that no pair gives: they are visited by themselves.

    Such are those of no pair that is left; those of a pair that failed by neither side's known error, which may have been
    by this point: its own visit tells; and all where visits are asked for, or other than as many launches as a pair has.
    """
    missing = [point for point in points if point.id not in run.done]
    repeats = run.repeats or timing.REPEATS
    if run.visits_all or run.rounds > 1 or repeats != ROUNDS * LAUNCHES:
        return missing
    errors = {one for one, (status, _) in run.done.items() if status == "error"}
    failing = [{side.id for side in pair} for pair in run.pairs if name(*pair) in errors]
    suspects = set().union(*(sides for sides in failing if not sides & errors))
    awaited = {side.id for pair in left(run) for side in pair} - suspects
    return [point for point in missing if point.id not in awaited]


def new_pair(base: Planned, other: Planned) -> PairRecord:
    """A record of which nothing is known."""
    return PairRecord(
        point=name(base, other), target=base.target, base=base.id, other=other.id, status="ok"
    )


def lost(pair: Pair, culprit: Record) -> PairRecord:
    """The record of a pair that was not come to."""
    record = new_pair(*pair)
    record.status = "lost"
    record.reason = f"the GPU was lost at {culprit.point}: {culprit.reason}"
    return record


@dataclass
class Pairing:
    """The pairs of a run, one after the other. points: ids of those whose records they give too, which are those of the batch:
    the other side of a pair may be another's. finish: is told of each record; kept: what stays ready for the next pair."""

    run: Run
    points: frozenset[str]
    finish: Callable[[Record], None]
    kept: dict[str, ReadySide] = field(default_factory=dict)

    def time(self, pair: Pair) -> Record | None:
        """Time a pair, and finish it and those of its points that have no record; returns the record at which the
        GPU was lost.

        A pair of which one side is skipped, fails or is wrong has that status and reason, and no times.
        """
        culprit = self._time(pair)
        if culprit is None:
            wanted = {point.id for pair in left(self.run)[:1] for point in pair}
            self.kept = {one: side for one, side in self.kept.items() if one in wanted}
            self.run.device.release()
        return culprit

    def _time(self, pair: Pair) -> Record | None:
        record, gone = new_pair(*pair), False
        try:
            base = self._ready(pair[0], self.kept)
            # A point beside itself is prepared twice: its sides differ in their addresses, as others' do.
            other = self._ready(pair[1], self.kept if pair[0].id != pair[1].id else {})
            with warm(self.run):
                found = timing.pair(self.run.device, (base.launch, other.launch), ROUNDS, LAUNCHES)
            record.sides = [TimedSide(**dict(s.timing()), clocks=s.conditions()) for s in found]
        except RefusedSideError as refused:
            record.status, record.reason, gone = refused.status, str(refused), refused.lost
        except Exception as error:
            record.status, record.reason = "error", builds.one_line(error)
            gone = not self.run.device.alive()
        if record.status == "error":
            self.kept.clear()  # points that are visited by themselves now are alone on the GPU
        self.finish(record)
        if record.sides is None:
            return record if gone else None
        return self._give(base, found[0]) or self._give(other, found[1])

    def _ready(self, point: Planned, kept: dict[str, ReadySide]) -> ReadySide:
        """A side that is right, which ``kept`` has then. Raises RefusedSideError where there is none to be timed."""
        status, reason = self.run.done.get(point.id, ("ok", None))
        if status != "ok":
            raise RefusedSideError(point, status, reason)
        if point.id in kept:
            return kept[point.id]
        record = begun(self.run, point)
        launch = ready(self.run, point, record)
        if launch is not None:
            kept[point.id] = ReadySide(record, launch)
            return kept[point.id]
        gone = broken(self.run, record)
        # What fails beside another launch, of memory above all, may not fail alone: the point's own visit tells.
        if gone or record.status != "error":
            self._refuse(record)
        raise RefusedSideError(point, record.status, record.reason, gone)

    def _refuse(self, record: PointRecord) -> None:
        """Finish a point of the batch that is not to be timed; of another's it is kept in mind for its further pairs."""
        if record.point in self.run.done:
            return
        if record.point in self.points:
            self.finish(record)
        else:
            self.run.done[record.point] = record.status, record.reason

    def _give(self, side: ReadySide, series: timing.PointTiming) -> PointRecord | None:
        """Finish a point of the batch that has no record, by what its pair measured and the sustained rate; returns the
        record if the GPU was lost at it."""
        run, record = self.run, side.record
        if record.point not in self.points or record.point in run.done:
            return None
        try:
            with warm(run):
                timing.complete(run.device, side.launch, series)
            timed(run, record, series, place=len(self.points & run.done.keys()))
        except Exception as error:
            failed(record, error)
        self.finish(record)
        return record if broken(run, record) else None
