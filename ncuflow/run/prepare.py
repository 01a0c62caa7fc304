"""A point prepared: with planted faults, warm, and held against its reference; and the record that says so.

A point is prepared for its own visit or as a side of a pair (``ncuflow/run/visits.py``).

Faults are what tests and demonstrations break on purpose. ``NCUFLOW_FAULT`` holds faults separated by ";":
``wrong:<id-glob>`` corrupts the output, ``delay:<id-glob>:<us>`` makes the host wait in each run(),
``copy:<id-glob>`` adds a device copy after the kernel, ``break:<id-glob>`` a kernel whose assertion fails,
after which the process's CUDA context is of no use.
"""

from __future__ import annotations

import fnmatch
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import Any, NamedTuple

from ncuflow.io import JsonObject
from ncuflow.record import Check, Order, PairRecord, PointRecord, Status, WorkRecord
from ncuflow.run import builds, timing
from ncuflow.run.gpu import Gpu
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target
from ncuflow.target.launch import Launch, NotHereError, Tensor

Record = PointRecord | PairRecord
Done = tuple[Status, str | None]  # and the reason for it
BAD = frozenset({"wrong", "error"})


@dataclass
class Run:
    """What to do with each point. ``device`` is a ncuflow.run.gpu.Gpu, or a test's."""

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
    rounds: int = timing.ROUNDS  # in which they are timed
    visits_all: bool = False  # also those that pairs time, as a further run without pairs does
    # by the names of the points and pairs that the run finished, in this process or an earlier one
    done: dict[str, Done] = field(default_factory=dict)
    rest: list[Record] = field(default_factory=list)  # records of points that a broken context left
    # what earlier processes measured of them
    series: dict[str, timing.PointTiming] = field(default_factory=dict)
    visited: Callable[[str], object] = id  # is told of each visit of a point that is timed


WARM_RUNS = 2
EXTREME = 2e-2  # relative L2 error with extreme inputs: the tolerance of 8 bits of mantissa


class CheckedLaunch(NamedTuple):
    """check: of the record; wrong: why the result is wrong, None where it is right; worst: then its element that is farthest
    from the reference."""

    check: Check
    wrong: str | None = None
    worst: JsonObject | None = None


def warm_up(device: Gpu, launch: Launch) -> None:
    """Run until every module is built, loaded and cached."""
    for _ in range(WARM_RUNS):
        launch.run()
    device.synchronize()


def check(device: Gpu, launch: Launch) -> CheckedLaunch:
    """Hold a launch against its reference.

    Outputs are filled with NaN before the run, so that one that was not written cannot pass for
    an earlier run's. ``rel_l2`` and ``max_abs`` are the worst over the outputs, None if not finite.
    """
    device.poison(launch)
    timing.reset(launch)
    launch.run()
    device.synchronize()
    return _judged(device, launch, launch.output())


def check_on_side_stream(device: Gpu, launch: Launch) -> CheckedLaunch:
    """As `check`, from a stream of its own while the default one is busy: what was launched on another stream than the
    caller's is not there when that one's work is done."""
    device.poison(launch)
    timing.reset(launch)
    return _judged(device, launch, device.on_side_stream(launch))


def check_extreme(device: Gpu, launch: Launch) -> CheckedLaunch:
    """As `check`, of inputs that hold infinities: an output is right that is infinite where the reference is, to the same
    side; where the reference is no number nothing is asked of it. Large logits leave few digits: the tolerance is EXTREME."""
    device.poison(launch)
    timing.reset(launch)
    launch.run()
    device.synchronize()
    few = replace(launch, tolerance=max(launch.tolerance, EXTREME))
    return _compared(device, few, *device.comparable(few.output(), few.reference()))


def _judged(device: Gpu, launch: Launch, outputs: tuple[Tensor, ...]) -> CheckedLaunch:
    written = device.written(launch)
    return _compared(device, launch, outputs, launch.reference(), written)


def _compared(
    device: Gpu,
    launch: Launch,
    outputs: tuple[Tensor, ...],
    expected: tuple[Tensor, ...],
    written: bool = True,
) -> CheckedLaunch:
    pairs = device.differences(outputs, expected)
    rel_l2, max_abs = (_worst([pair[i] for pair in pairs]) for i in range(2))
    found = Check(rel_l2=rel_l2, max_abs=max_abs, tolerance=launch.tolerance)
    if rel_l2 is None or not written:
        wrong = "the output is not finite everywhere"
    elif rel_l2 > launch.tolerance:
        wrong = f"relative L2 error {rel_l2:.3g} is above {launch.tolerance:.3g}"
    else:
        return CheckedLaunch(found)
    return CheckedLaunch(found, wrong, device.worst(outputs, expected))


def _worst(values: list[float]) -> float | None:
    """The largest value; None if there is none, or one is NaN or infinite."""
    return max(values) if values and all(map(math.isfinite, values)) else None


VARIABLE = "NCUFLOW_FAULT"
_KINDS = ("wrong", "delay", "copy", "break")


@dataclass(frozen=True)
class Fault:
    """One planted fault; ``microseconds`` is for a delay."""

    kind: str
    glob: str
    microseconds: float = 0.0


def planted_faults(environment: Mapping[str, str]) -> list[Fault]:
    """Faults that the environment asks for. Raises ValueError for one that is not understood."""
    return [_parse_one(text) for text in environment.get(VARIABLE, "").split(";") if text]


def _parse_one(text: str) -> Fault:
    kind, _, rest = text.partition(":")
    try:
        if kind == "delay":
            glob, _, amount = rest.rpartition(":")
            fault = Fault(kind, glob, float(amount))
        else:
            fault = Fault(kind, rest)
    except ValueError:
        fault = Fault("", "")
    if fault.kind not in _KINDS or not fault.glob:
        raise ValueError(
            f"{VARIABLE}: {text!r} is not wrong:GLOB, delay:GLOB:US, copy:GLOB or break:GLOB"
        )
    return fault


def plant(launch: Launch, point: str, faults: list[Fault]) -> Launch:
    """The launch with the faults that match the point id."""
    for fault in faults:
        if fnmatch.fnmatchcase(point, fault.glob):
            planted = {"wrong": _wrong, "delay": _delay, "copy": _copy, "break": _break}[fault.kind]
            launch = planted(launch, fault)
    return launch


def _wrong(launch: Launch, fault: Fault) -> Launch:
    output = launch.output
    return replace(launch, output=lambda: tuple(t * 1.25 for t in output()))


def _delay(launch: Launch, fault: Fault) -> Launch:
    run = launch.run

    def delayed() -> None:
        run()
        until = time.perf_counter() + fault.microseconds * 1e-6
        while time.perf_counter() < until:
            pass

    return replace(launch, run=delayed)


def _copy(launch: Launch, fault: Fault) -> Launch:
    run = launch.run
    scratch_of: dict[int, Tensor] = {}

    def copied() -> None:
        run()
        for index, tensor in enumerate(launch.buffers()):
            if index not in scratch_of:
                scratch_of[index] = tensor.clone()
            scratch_of[index].copy_(tensor)

    return replace(launch, run=copied)


def _break(launch: Launch, fault: Fault) -> Launch:
    run = launch.run

    def broken() -> None:
        import torch

        run()
        torch._assert_async(torch.zeros(1, device="cuda"))

    return replace(launch, run=broken)


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


def prepare(run: Run, point: Planned, record: PointRecord) -> Launch | None:
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
    launch = plant(launch, point.id, run.faults)
    record.info = dict(launch.info)
    if launch.work:
        record.work = WorkRecord(**launch.work)
    warm_up(run.device, launch)
    record.peak_memory_bytes = run.device.peak_memory()
    series = run.series.setdefault(point.id, timing.PointTiming())
    record.check = series.check
    if run.checked and record.check is None:
        with warm(run):
            record.check, wrong, _ = check(run.device, launch)
        if wrong is None:
            series.check = record.check
        else:
            record.status, record.reason = "wrong", wrong
    return launch


def timed(run: Run, record: PointRecord, series: timing.PointTiming, place: int) -> None:
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
