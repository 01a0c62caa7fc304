"""Pairs: two points of a target timed in turns (A, B, then B, A), to price what differs between them.

What drifts between two points that are measured minutes apart, clocks above all, falls on both sides
of a pair alike.

The process that timed the points times their pairs as well: a point is compared with its reference once in a process,
and a launch that the next pair needs stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ncuflow.record import PairRecord, Status, TimedSide
from ncuflow.runner import builds, faults, timing
from ncuflow.runner.check import check, warm_up
from ncuflow.runner.job import LOST, OK, SOME_FAILED, Done, Record, Run
from ncuflow.sweep.points import Planned
from ncuflow.target.launch import Launch

ROUNDS = 6
LAUNCHES = 5  # per side and round


class RefusedSideError(RuntimeError):
    """A side of a pair that is not timed."""

    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def pairs_of(points: Sequence[Planned]) -> list[tuple[Planned, Planned]]:
    """Consecutive points, two by two. Raises ValueError where one has no partner."""
    if len(points) % 2:
        raise ValueError("an odd number of points makes no pairs")
    return list(zip(points[::2], points[1::2], strict=True))


def name(base: Planned, other: Planned) -> str:
    """What the record of a pair is called."""
    return f"{base.id} | {other.id}"


def run_pairs(
    run: Run, pairs: Sequence[tuple[Planned, Planned]], emit: Callable[[PairRecord], None]
) -> int:
    """Time every pair and emit a record of each; returns the exit status of ``run_points``.

    A pair of which one side is skipped, fails or is wrong has that status and reason, and no times. After one
    that broke the CUDA context the others are left to ``run.rest``.
    """
    statuses: set[str] = set()
    kept: dict[str, Launch] = {}
    run.rest = []
    left = [pair for pair in in_turn(pairs) if name(*pair) not in run.done]
    for number, pair in enumerate(left):
        record = new_pair(*pair)
        alive = _run_pair(run, pair, record, kept)
        statuses.add(record.status)
        emit(record)
        following = left[number + 1 :]
        if not alive:
            run.rest = [lost(other, record) for other in following]
            break
        wanted = {point.id for point in following[0]} if following else set()
        for gone in kept.keys() - wanted:
            del kept[gone]
        run.device.release()
    if run.rest:
        return LOST
    return SOME_FAILED if statuses & {"wrong", "error"} else OK


def in_turn(pairs: Sequence[tuple[Planned, Planned]]) -> list[tuple[Planned, Planned]]:
    """The pairs in the order in which they are timed: those of one base follow each other."""
    first = {base.id: place for place, (base, _) in reversed(list(enumerate(pairs)))}
    return sorted(pairs, key=lambda pair: first[pair[0].id])


def new_pair(base: Planned, other: Planned) -> PairRecord:
    """A record of which nothing is known."""
    return PairRecord(
        point=name(base, other), target=base.target, base=base.id, other=other.id, status="ok"
    )


def lost(pair: tuple[Planned, Planned], culprit: Record) -> PairRecord:
    """The record of a pair that was not come to."""
    record = new_pair(*pair)
    record.status = "lost"
    record.reason = f"the GPU was lost at {culprit.point}: {culprit.reason}"
    return record


def _run_pair(
    run: Run, points: tuple[Planned, Planned], record: PairRecord, kept: dict[str, Launch]
) -> bool:
    """Fill the record of a pair; whether the device still answers. ``kept``: launches of the pair before it, and then
    of this one."""
    try:
        base = _prepared(run, points[0], kept)
        # A point beside itself is prepared twice: its sides differ in their addresses, as others' do.
        other = _prepared(run, points[1], kept if points[0].id != points[1].id else {})
        found = timing.pair(run.device, (base, other), ROUNDS, LAUNCHES)
        record.sides = [TimedSide(**dict(s.timing()), clocks=s.conditions()) for s in found]
    except RefusedSideError as refused:
        record.status, record.reason = refused.status, str(refused)
    except Exception as error:
        record.status, record.reason = "error", builds.one_line(error)
        kept.clear()
        return bool(run.device.alive())
    return True


def _prepared(run: Run, point: Planned, kept: dict[str, Launch]) -> Launch:
    """A launch, warm and checked, which ``kept`` has then. Raises RefusedSideError where there is none to be timed.

    What the run found of the point counts, whichever process it was: the inputs are the same.
    """
    if point.id in kept:
        return kept[point.id]
    skipped = run.target.skip(point.params, run.device.facts())
    known: Done | None = ("skipped", skipped) if skipped else run.done.get(point.id)
    if known and known[0] != "ok":
        raise RefusedSideError(known[0], f"{point.id}: {known[1]}")
    launch = faults.apply(run.target.prepare(point.params, run.seed), point.id, run.faults)
    warm_up(run.device, launch)
    if known is None:
        wrong = check(run.device, launch).wrong
        run.done[point.id] = ("ok", None) if wrong is None else ("wrong", wrong)
        if wrong is not None:
            raise RefusedSideError("wrong", f"{point.id}: {wrong}")
    kept[point.id] = launch
    return launch
