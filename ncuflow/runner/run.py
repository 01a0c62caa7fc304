"""A run: one process, many points of one kernel target.

    ncuflow launch TARGET --mode check|time|trace --points points.json --out out.jsonl
    ncuflow launch TARGET --mode time --points P --out O --pairs pairs.json --pairs-out pairs.jsonl

check  compare each point with its float32 reference
time   check, then time it (``ncuflow/runner/timing.py``); then the pairs, each two points in turns
       (``ncuflow/runner/pairs.py``), which are not timed by themselves as well where one visit each is asked for
trace  check, then launch it for a profiler: cudaProfilerStart/Stop around each point, an NVTX range
       named exactly as the point around each launch, "plan:<id>" around one plan() before them;
       --unchecked leaves out the check, for points that a timing compares

A wrong result is never timed or traced. Records go to OUT.partial, one per point, flushed as they
come; OUT appears when all are there. Run it under `ncuflow lock`, so that nobody else measures meanwhile.

A point that breaks the CUDA context of its process is an error, and a fresh process goes on with the others
(``ncuflow/runner/succession.py``). A trace stays in one process, whose profiler is started again without the point
(``ncuflow/capture/profiler.py``).

exit  0 all points ok or skipped    1 nothing could be run    2 bad input
      3 some points wrong or in error    4 the GPU was lost in mid-run; OUT names the culprit
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ncuflow.evidence.provenance import origin
from ncuflow.gpu import turns, use
from ncuflow.io import UsageError
from ncuflow.process import die_with_parent, python_environment
from ncuflow.record import PointRecord
from ncuflow.runner import builds, faults, gpu, pairs, timing
from ncuflow.runner.awaited import Awaited, build_begun, nobody_compiles
from ncuflow.runner.job import FATAL, LOST, OK, SOME_FAILED, Record, Run
from ncuflow.runner.progress import Progress
from ncuflow.runner.ready import begun, broken, failed, lost, new_record, ready, timed, warm
from ncuflow.runner.succession import BAD, Journal, Rest, line_of, succeed
from ncuflow.sweep.points import Planned, read_points
from ncuflow.target.contract import Target, known, load
from ncuflow.target.launch import Launch

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
        run.rest += [pairs.lost(pair, culprit) for pair in pairs.left(run)]
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
    pairing = pairs.Pairing(run, frozenset(point.id for point in points), finish)
    culprit: Record | None = None
    while culprit is None:
        if alone := pairs.unpaired(run, points):
            culprit = _visit_all(run, points, {point.id for point in alone}, latest, finish)
        elif following := pairs.left(run):
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
    launch = ready(run, point, record)
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
    if launch.reset is not None:
        launch.reset()
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


def measure(args: argparse.Namespace, target: Target, points: Sequence[Planned]) -> int:
    """Run, in this process, what OUT.partial does not hold yet; returns the exit status.

    Each record says with what it was made. A broken CUDA context leaves the rest to the next process.
    """
    journal, job = _journal(args), f"{args.mode} {args.target}"
    awaited = Awaited(target, points, args.mode != "trace", args.after_builds)

    def load() -> None:
        build_begun()
        # Beside a build it may have to wait for its modules, and what waits under ncu with a context takes a core of the host.
        if nobody_compiles():
            gpu.begin_context()
        gpu.load_libraries()

    def ready() -> None:
        with gpu.cuda_not_begun():
            awaited.begin()
        # Of what it takes to begin, only the wait for others is no part of a profiler's time limit.
        print(turns.STARTS, file=sys.stderr, flush=True)
        gpu.begin_cuda()
        print(turns.WAITS, file=sys.stderr, flush=True)

    try:
        pause = turns.hold(load, job, ready)
        device = gpu.Gpu()
        use.note(use.READY, os.environ.get("CUDA_VISIBLE_DEVICES", ""), job)
    except (ImportError, RuntimeError) as error:
        return _fail(builds.one_line(error), FATAL)
    what, rest = _run_of(args, target, device), journal.rest()
    what.done, what.rest, what.series = rest.refused | journal.done(), rest.records, rest.series
    what.pairs = _pairs(args, target)
    what.first = lambda left: awaited.first(left, pause)
    made = rest.origin or origin(device.facts()["name"], device.driver())
    progress = Progress(
        len(points) + len(what.pairs),
        before=len(what.done),
        visits=what.rounds if what.mode == "time" else 1,
        begun={name: len(s.positions) for name, s in what.series.items() if name not in what.done},
    )
    what.visited = progress.visited
    with journal.partial.open("a", encoding="utf-8", newline="\n") as file:

        def emit(record: Record) -> None:
            file.write(line_of(record, made))
            file.flush()
            progress.done(record.point, record.status, record.reason)

        status = run_points(what, points, emit)
    use.note(use.DONE, os.environ.get("CUDA_VISIBLE_DEVICES", ""), job)
    if status == LOST:
        own = {*chain(*_names(args, target, points))}
        refused = {name: how for name, how in what.done.items() if name not in own}
        journal.leave(Rest(what.rest, what.series, made, refused))
    return status


def _run_of(args: argparse.Namespace, target: Target, device: Any) -> Run:
    what = Run(device, target, args.mode, args.repeats, args.seed)
    what.order, what.rounds, what.flush = args.order, args.rounds, not args.no_flush
    what.visits_all = args.visit_all
    what.faults, what.watch = faults.parse(os.environ), builds.CompilerWatch()
    what.checked = not (args.unchecked and args.mode == "trace")
    return what


def _journal(args: argparse.Namespace) -> Journal:
    return Journal(args.out, *([args.pairs_out] if args.pairs_out else []))


def _names(args: argparse.Namespace, target: Target, points: Sequence[Planned]) -> list[list[str]]:
    """What the records of each file are of, in their order."""
    names = [[point.id for point in points]]
    return [*names, [pairs.name(*pair) for pair in _pairs(args, target)]] if args.pairs else names


def _pairs(args: argparse.Namespace, target: Target) -> list[tuple[Planned, Planned]]:
    return pairs.pairs_of(read_points(args.pairs, target, empty=True)) if args.pairs else []


def close_lost(args: argparse.Namespace, target: Target, why: str) -> None:
    """Close the files of a timing that ended before its time: what it had not finished is lost."""
    journal, points = _journal(args), read_points(args.points, target)
    if not journal.partial.exists():
        journal.begin()
    done = journal.lines()
    left: list[Record] = [
        new_record(target, point, "lost", why) for point in points if point.id not in done
    ]
    for pair in _pairs(args, target):
        if pairs.name(*pair) not in done:
            left.append(pairs.new_pair(*pair).model_copy(update={"status": "lost", "reason": why}))
    made = next((json.loads(line)["origin"] for line in done.values()), None)
    journal.close(_names(args, target, points), Rest(left, origin=made))


def _apart(args: argparse.Namespace) -> int:
    """``measure`` in a process of its own, which keeps the GPU's lock and dies with this one."""
    given = ["mode", "points", "out", "pairs", "pairs_out", "seed", "order", "rounds", "repeats"]
    values = {name.replace("_", "-"): getattr(args, name) for name in given}
    words = [f"--{name}={value}" for name, value in values.items() if value is not None]
    words += ["--visit-all"] * args.visit_all
    command = [sys.executable, "-m", "ncuflow", "launch", args.target, *words, "--alone"]
    env = python_environment(os.environ)
    return subprocess.call(command, env=env, close_fds=False, preexec_fn=die_with_parent)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", help=", ".join(known()))
    parser.add_argument("--mode", choices=("check", "time", "trace"), default="check")
    parser.add_argument("--points", type=Path, required=True, help="points.json of one batch")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pairs", type=Path, help="time: points to time in turns, two by two")
    parser.add_argument("--pairs-out", type=Path, help="time: for the records of the pairs")
    parser.add_argument("--repeats", type=int, help="launches measured or traced per point")
    parser.add_argument("--seed", type=int, default=0, help="of the random inputs")
    parser.add_argument(
        "--order", type=int, default=0, help="time: number of the random order of the points"
    )
    parser.add_argument("--rounds", type=int, default=timing.ROUNDS, help="time: visits per point")
    parser.add_argument(
        "--visit-all", action="store_true", help="time: also the points that pairs time"
    )
    parser.add_argument("--no-flush", action="store_true", help="trace: leave the L2 cache alone")
    parser.add_argument(
        "--after-builds", action="store_true", help="trace: begin when nobody compiles anything"
    )
    parser.add_argument(
        "--unchecked",
        action="store_true",
        help="trace: another run compares these points (a second check costs time, and nsys 2023.4"
        " loses the kernels after a cuBLAS call under a CUDA 13 driver, which the references make)",
    )
    parser.add_argument(
        "--alone", action="store_true", help=argparse.SUPPRESS
    )  # one of a succession


def run(args: argparse.Namespace) -> int:
    """Returns the exit status; raises BadInput on bad input."""
    if args.repeats is not None and args.repeats < 1:
        raise UsageError("--repeats must be at least 1")
    if bool(args.pairs) != bool(args.pairs_out) or (args.pairs and args.mode != "time"):
        raise UsageError("--pairs and --pairs-out go together, with --mode time")
    try:
        faults.parse(os.environ)
        target = load(args.target)
    except ValueError as error:
        return _fail(str(error), 2)
    points = read_points(args.points, target)
    if args.alone:
        return measure(args, target, points)
    journal, names = _journal(args), _names(args, target, points)
    if args.mode == "trace":
        return succeed(journal, names, lambda: measure(args, target, points), restarts=0)
    return succeed(journal, names, lambda: _apart(args))


def _fail(message: str, status: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status
