"""The points of a run, one after the other: visits in rounds, and pairs in turns.

A pair is two points of a target timed in turns (A, B, then B, A), to price what differs between them: what drifts between two
points that are measured minutes apart, clocks above all, falls on both sides of a pair alike.

A pair has as many samples of either side as a point's own visit takes, of launches up to 4 ms, so it gives the records of its
points as well: a point is prepared and timed once for both, and a launch that the next pair needs stays.
"""

import random
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import NamedTuple

from ncuflow.record import PairRecord, PointRecord, Status, TimedSide
from ncuflow.run import LOST, OK, SOME_FAILED, builds, timing
from ncuflow.run.prepare import BAD, Record, Run, begun, broken, failed, lost, prepare, timed, warm
from ncuflow.sweep.points import Planned
from ncuflow.target.launch import Launch

PAIR_ROUNDS = 6
PAIR_LAUNCHES = 5  # per side and round
Pair = tuple[Planned, Planned]


class PreparedSide(NamedTuple):
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


def pair_name(base: Planned, other: Planned) -> str:
    """What the record of a pair is called."""
    return f"{base.id} | {other.id}"


def pairs_left(run: Run) -> list[Pair]:
    """The pairs that the run has not finished, in the order in which they are timed: those of one base follow each other,
    and the bases are in a random order, the same for the same order number."""
    bases = list(dict.fromkeys(base.id for base, _ in run.pairs))
    random.Random(f"{run.order}/pairs").shuffle(bases)
    ordered = sorted(run.pairs, key=lambda pair: bases.index(pair[0].id))
    return [pair for pair in ordered if pair_name(*pair) not in run.done]


def unpaired(run: Run, points: Sequence[Planned]) -> list[Planned]:
    """The points without a record that no pair gives: they are visited by themselves.

    Such are those of no pair that is left; those of a pair that failed by neither side's known error, which may have been
    by this point: its own visit tells; and all where visits are asked for, or other than as many launches as a pair has.
    """
    missing = [point for point in points if point.id not in run.done]
    repeats = run.repeats or timing.REPEATS
    if run.visits_all or run.rounds > 1 or repeats != PAIR_ROUNDS * PAIR_LAUNCHES:
        return missing
    errors = {one for one, (status, _) in run.done.items() if status == "error"}
    failing = [{side.id for side in pair} for pair in run.pairs if pair_name(*pair) in errors]
    suspects = set().union(*(sides for sides in failing if not sides & errors))
    in_pairs = {side.id for pair in pairs_left(run) for side in pair} - suspects
    return [point for point in missing if point.id not in in_pairs]


def new_pair(base: Planned, other: Planned) -> PairRecord:
    """A record of which nothing is known."""
    return PairRecord(
        point=pair_name(base, other), target=base.target, base=base.id, other=other.id, status="ok"
    )


def lost_pair(pair: Pair, culprit: Record) -> PairRecord:
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
    kept: dict[str, PreparedSide] = field(default_factory=dict)

    def time(self, pair: Pair) -> Record | None:
        """Time a pair, and finish it and those of its points that have no record; returns the record at which the
        GPU was lost.

        A pair of which one side is skipped, fails or is wrong has that status and reason, and no times.
        """
        culprit = self._time(pair)
        if culprit is None:
            wanted = {point.id for pair in pairs_left(self.run)[:1] for point in pair}
            self.kept = {one: side for one, side in self.kept.items() if one in wanted}
            self.run.device.release()
        return culprit

    def _time(self, pair: Pair) -> Record | None:
        record, gone = new_pair(*pair), False
        try:
            base = self._prepared(pair[0], self.kept)
            # A point beside itself is prepared twice: its sides differ in their addresses, as others' do.
            other = self._prepared(pair[1], self.kept if pair[0].id != pair[1].id else {})
            with warm(self.run):
                found = timing.pair(
                    self.run.device, (base.launch, other.launch), PAIR_ROUNDS, PAIR_LAUNCHES
                )
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

    def _prepared(self, point: Planned, kept: dict[str, PreparedSide]) -> PreparedSide:
        """A side that is right, which ``kept`` has then. Raises RefusedSideError where there is none to be timed."""
        status, reason = self.run.done.get(point.id, ("ok", None))
        if status != "ok":
            raise RefusedSideError(point, status, reason)
        if point.id in kept:
            return kept[point.id]
        record = begun(self.run, point)
        launch = prepare(self.run, point, record)
        if launch is not None:
            kept[point.id] = PreparedSide(record, launch)
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

    def _give(self, side: PreparedSide, series: timing.PointTiming) -> PointRecord | None:
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


TRACE_REPEATS = 5


def run_points(run: Run, points: Sequence[Planned], emit: Callable[[Record], None]) -> int:
    """Run the points, and the pairs of a timing, and emit a record of each; returns the exit status.

    A point that fails is an error of that point, and the next one follows. One after which the GPU no longer
    answers ends the run: what is known of the points and pairs that follow goes to ``run.rest``.
    """
    # Finished rounds of earlier processes count: a point that is lost in a later one keeps what they gave.
    latest = {
        record.point: record
        for record in run.rest
        if isinstance(record, PointRecord) and record.status == "ok"
    }
    run.rest = []

    def finish(record: Record) -> None:
        run.done[record.point] = record.status, record.reason
        emit(record)

    culprit = (
        _time_all(run, points, latest, finish)
        if run.mode == "time"
        else _run_all(run, points, finish)
    )
    if culprit is not None:
        left = [point for point in points if point.id not in run.done]
        run.rest += [latest.get(point.id) or lost(run, point, culprit) for point in left]
        run.rest += [lost_pair(pair, culprit) for pair in pairs_left(run)]
    if run.rest:
        return LOST
    return SOME_FAILED if BAD & {status for status, _ in run.done.values()} else OK


def _run_all(
    run: Run, points: Sequence[Planned], finish: Callable[[Record], None]
) -> PointRecord | None:
    """Check or trace the points; returns the record at which the GPU was lost."""
    left = [point for point in points if point.id not in run.done]
    while left:
        point = run.first(left)
        left.remove(point)
        record, alive = run_point(run, point)
        finish(record)
        if not alive:
            return record
    return None


def _time_all(
    run: Run,
    points: Sequence[Planned],
    latest: dict[str, PointRecord],
    finish: Callable[[Record], None],
) -> Record | None:
    """Time the points that no pair times, and then the pairs, after each of which a point may turn out to be such a one;
    returns the record at which the GPU was lost."""
    pairing = Pairing(run, frozenset(point.id for point in points), finish)
    culprit: Record | None = None
    while culprit is None:
        if alone := unpaired(run, points):
            culprit = _visit_all(run, points, {point.id for point in alone}, latest, finish)
        elif following := pairs_left(run):
            culprit = pairing.time(following[0])
        else:
            break
    return culprit


@dataclass
class Visit:
    """One round of a point: what earlier rounds gave, and the point's place in the order of this one."""

    series: timing.PointTiming
    place: int
    last: bool


def _visit_all(
    run: Run,
    points: Sequence[Planned],
    chosen: AbstractSet[str],
    latest: dict[str, PointRecord],
    finish: Callable[[Record], None],
) -> PointRecord | None:
    """Visit the chosen points once per round, in a random order of its own, and finish each at its last visit; returns the
    record at which the GPU was lost.

    What earlier processes of the run measured of a point counts. latest: what the finished rounds of each gave.
    """
    for number in range(run.rounds):
        for index, point in enumerate(shuffled(points, run.order, number)):
            series = run.series.setdefault(point.id, timing.PointTiming())
            done = point.id in run.done or number < len(series.positions)
            if point.id not in chosen or done:
                continue
            # Of a single round pairs are a part: what is finished came before.
            place = index if run.rounds > 1 else sum(other.id in run.done for other in points)
            visit = Visit(series, place, number == run.rounds - 1)
            record, alive = run_point(run, point, visit)
            run.visited(point.id)
            latest[point.id] = record
            if visit.last or record.status != "ok":
                finish(record)
            if not alive:
                return record
    return None


def shuffled(points: Sequence[Planned], order: int, number: int) -> list[Planned]:
    """The points in the random order of one round: the same for the same order number."""
    chosen = list(points)
    random.Random(f"{order}/{number}").shuffle(chosen)
    return chosen


def run_point(run: Run, point: Planned, visit: Visit | None = None) -> tuple[PointRecord, bool]:
    """(record of one point, whether the device still answers). ``visit``: to time it, else None."""
    record = begun(run, point)
    if record.status == "skipped":
        return record, True
    _run(run, point, record, visit)
    alive = not broken(run, record)
    if alive:
        run.device.release()
    return record, alive


def _run(run: Run, point: Planned, record: PointRecord, visit: Visit | None) -> None:
    """Make one point ready, measure it if it is right, and fill its record."""
    launch = prepare(run, point, record)
    if launch is None:
        return
    try:
        with warm(run):
            if visit is not None:
                _time(run, launch, record, visit)
            elif run.mode == "trace":
                trace(run, point, launch)
    except Exception as error:
        failed(record, error)


def _time(run: Run, launch: Launch, record: PointRecord, visit: Visit) -> None:
    repeats = run.repeats or timing.REPEATS
    timing.visit(run.device, launch, visit.series, repeats, run.rounds, visit.last)
    timed(run, record, visit.series, visit.place)


def trace(run: Run, point: Planned, launch: Launch) -> None:
    """Launch the point for a profiler. The L2 flush is outside the NVTX range.

    With it the launches are those of a timing, and begin from settled clocks as well.
    """
    timing.reset(launch)
    if run.flush:
        run.device.settle()
    with run.device.profiled():
        if launch.plan is not None:
            with run.device.range(f"plan:{point.id}"):
                launch.plan()
        for _ in range(run.repeats or TRACE_REPEATS):
            if run.flush:
                run.device.flush()
            with run.device.range(point.id):
                launch.run()
