"""A point made ready: prepared, warm and held against its reference; and the record that says so.

A point is made ready for its own visit (``ncuflow/runner/run.py``) or as a side of a pair (``ncuflow/runner/pairs.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ncuflow.record import Order, PointRecord, Status, WorkRecord
from ncuflow.runner import builds, faults
from ncuflow.runner.check import check, warm_up
from ncuflow.runner.job import Record, Run
from ncuflow.runner.timing import PointTiming
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target
from ncuflow.target.launch import Launch, NotHereError


class LateCompileError(RuntimeError):
    """A compiler ran after the warm-up: what was measured is not the kernel alone."""


@contextmanager
def warm(run: Run) -> Iterator[None]:
    """What is inside must start no compiler. Raises LateCompileError where one ran."""
    before = _compilers(run)
    yield
    if _compilers(run) != before:
        raise LateCompileError("ninja or nvcc ran after the warm-up")


def _compilers(run: Run) -> int:
    return 0 if run.watch is None else int(run.watch.started)


def new_record(target: Target, point: Planned, status: Status, reason: str | None) -> PointRecord:
    """A record of which nothing but the status and the analytic work is known."""
    return PointRecord(
        point=point.id,
        target=point.target,
        params=dict(point.params),
        status=status,
        reason=reason,
        work=WorkRecord(**target.work(point.params)._asdict()),
    )


def begun(run: Run, point: Planned) -> PointRecord:
    """The record of a point that is to be made ready, skipped where it is not for this device."""
    reason = run.target.skip(point.params, run.device.facts())
    return new_record(run.target, point, "ok" if reason is None else "skipped", reason)


def lost(run: Run, point: Planned, culprit: Record) -> PointRecord:
    """The record of a point that was not come to."""
    why = f"the GPU was lost at {culprit.point}: {culprit.reason}"
    return new_record(run.target, point, "lost", why)


def ready(run: Run, point: Planned, record: PointRecord) -> Launch | None:
    """The launch of a point, warm and right; None where there is none to be measured, and then the record says why."""
    if record.status != "ok":
        return None
    try:
        launch = _prepared(run, point, record)
    except Exception as error:
        failed(record, error)
    return launch if record.status == "ok" else None


def _prepared(run: Run, point: Planned, record: PointRecord) -> Launch:
    """A launch, whose record then says what it is and whether it is right.

    A check that the run made before counts, whichever process made it: the inputs are the same.
    """
    run.device.begin()
    launch = run.target.prepare(point.params, run.seed)
    launch = faults.apply(launch, point.id, run.faults)
    record.info = dict(launch.info)
    if launch.work:
        record.work = WorkRecord(**launch.work)
    warm_up(run.device, launch)
    record.peak_memory_bytes = run.device.peak_memory()
    series = run.series.setdefault(point.id, PointTiming())
    record.check = series.check
    if run.checked and record.check is None:
        with warm(run):
            record.check, wrong, _ = check(run.device, launch)
        if wrong is None:
            series.check = record.check
        else:
            record.status, record.reason = "wrong", wrong
    return launch


def timed(run: Run, record: PointRecord, series: PointTiming, place: int) -> None:
    """Fill the record by what was measured of its point, whose place in the order of this round it was."""
    series.positions.append(place)
    record.timing, record.clocks = series.timing(), series.conditions()
    record.order = Order(run=run.order, positions=list(series.positions))


def broken(run: Run, record: PointRecord) -> bool:
    """Whether the GPU was lost at the point."""
    return record.status == "error" and not run.device.alive()


def failed(record: PointRecord, error: Exception) -> None:
    """Fill the record by why its point was not measured."""
    skipped = isinstance(error, NotHereError)
    record.status = "skipped" if skipped else "error"
    record.reason = str(error) if skipped else builds.one_line(error)
    record.timing = record.clocks = record.order = None
