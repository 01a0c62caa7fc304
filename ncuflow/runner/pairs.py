"""Pairs: two points of a target timed in turns (A, B, then B, A), to price what differs between them.

What drifts between two points that are measured minutes apart, clocks above all, falls on both sides
of a pair alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ncuflow.record import PairRecord, TimedSide
from ncuflow.runner import builds, faults, timing
from ncuflow.runner.check import check, warm_up
from ncuflow.runner.job import LOST, OK, SOME_FAILED, Run
from ncuflow.sweep.points import Planned
from ncuflow.target.launch import Launch

ROUNDS = 6
LAUNCHES = 5  # per side and round


class RefusedSideError(RuntimeError):
    """A side of a pair that is not timed."""

    def __init__(self, status: Literal["skipped", "wrong"], reason: str) -> None:
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
    culprit: PairRecord | None = None
    run.rest = []
    for base, other in pairs:
        if name(base, other) in run.done:
            continue
        record = PairRecord(
            point=name(base, other), target=base.target, base=base.id, other=other.id, status="ok"
        )
        if culprit is not None:
            record.status = "lost"
            record.reason = f"the GPU was lost at {culprit.point}: {culprit.reason}"
            run.rest.append(record)
            continue
        culprit = None if _run_pair(run, (base, other), record) else record
        statuses.add(record.status)
        emit(record)
    if run.rest:
        return LOST
    return SOME_FAILED if statuses & {"wrong", "error"} else OK


def _run_pair(run: Run, points: tuple[Planned, Planned], record: PairRecord) -> bool:
    """Fill the record of a pair; whether the device still answers."""
    try:
        base, other = (_prepared(run, point) for point in points)
        found = timing.pair(run.device, (base, other), ROUNDS, LAUNCHES)
        record.sides = [TimedSide(**dict(s.timing()), clocks=s.conditions()) for s in found]
    except RefusedSideError as refused:
        record.status, record.reason = refused.status, str(refused)
    except Exception as error:
        record.status, record.reason = "error", builds.one_line(error)
        if not run.device.alive():
            return False
    run.device.release()
    return True


def _prepared(run: Run, point: Planned) -> Launch:
    """A launch, warm and checked. Raises RefusedSideError where there is none to be timed."""
    skipped = run.target.skip(point.params, run.device.facts())
    if skipped is not None:
        raise RefusedSideError("skipped", f"{point.id}: {skipped}")
    launch = faults.apply(run.target.prepare(point.params, run.seed), point.id, run.faults)
    warm_up(run.device, launch)
    wrong = check(run.device, launch)[1]
    if wrong is not None:
        raise RefusedSideError("wrong", f"{point.id}: {wrong}")
    return launch
