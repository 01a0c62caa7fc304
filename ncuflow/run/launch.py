"""A run: one process, many points of one kernel target.

    ncuflow launch TARGET --mode check|time|trace --points points.json --out out.jsonl
    ncuflow launch TARGET --mode time --points P --out O --pairs pairs.json --pairs-out pairs.jsonl

check  compare each point with its float32 reference
time   check, then time it (``ncuflow/run/timing.py``); then the pairs, each two points in turns
       (``ncuflow/run/visits.py``), which are not timed by themselves as well where one visit each is asked for
trace  check, then launch it for a profiler: cudaProfilerStart/Stop around each point, an NVTX range
       named exactly as the point around each launch, "plan:<id>" around one plan() before them;
       --unchecked leaves out the check, for points that a timing compares

A wrong result is never timed or traced. Records go to OUT.partial, one per point, flushed as they
come; OUT appears when all are there. Run it under `ncuflow lock`, so that nobody else measures meanwhile.

A point that breaks the CUDA context of its process is an error, and a fresh process goes on with the others. A trace stays in
one process, whose profiler is started again without the point (``ncuflow/run/profiler.py``).

exit  0 all points ok or skipped    1 nothing could be run    2 bad input
      3 some points wrong or in error    4 the GPU was lost in mid-run; OUT names the culprit
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from signal import Signals
from typing import Any

from ncuflow.evidence.provenance import origin
from ncuflow.gpu import lock, use
from ncuflow.io import UsageError, write_text
from ncuflow.model import Origin
from ncuflow.process import die_with_parent, python_environment
from ncuflow.run import FATAL, LOST, OK, SOME_FAILED, builds, gpu, timing
from ncuflow.run.builds import WaitForBuild, build_begun, nobody_compiles
from ncuflow.run.prepare import BAD, Done, Record, Run, new_record, planted_faults
from ncuflow.run.progress import Progress
from ncuflow.run.timing import PointTiming
from ncuflow.run.visits import new_pair, pair_name, pairs_of, run_points
from ncuflow.sweep.points import Planned, read_points
from ncuflow.target.contract import Target, known, load


def measure(args: argparse.Namespace, target: Target, points: Sequence[Planned]) -> int:
    """Run, in this process, what OUT.partial does not hold yet; returns the exit status.

    Each record says with what it was made. A broken CUDA context leaves the rest to the next process.
    """
    journal, job = _journal(args), f"{args.mode} {args.target}"
    builds_left = WaitForBuild(target, points, args.mode != "trace", args.after_builds)

    def load() -> None:
        build_begun()
        # Beside a build it may have to wait for its modules, and what waits under ncu with a context takes a core of the host.
        if nobody_compiles():
            gpu.begin_context()
        gpu.load_libraries()

    def prepare() -> None:
        with gpu.cuda_not_begun():
            builds_left.begin()
        # Of what it takes to begin, only the wait for others is no part of a profiler's time limit.
        print(lock.STARTS, file=sys.stderr, flush=True)
        gpu.begin_cuda()
        print(lock.WAITS, file=sys.stderr, flush=True)

    try:
        pause = lock.hold(load, job, prepare)
        device = gpu.Gpu()
        use.note(use.READY, os.environ.get("CUDA_VISIBLE_DEVICES", ""), job)
    except (ImportError, RuntimeError) as error:
        return _fail(builds.one_line(error), FATAL)
    what, rest = _run_of(args, target, device), journal.rest()
    what.done, what.rest, what.series = rest.refused | journal.done(), rest.records, rest.series
    what.pairs = _pairs(args, target)
    what.first = lambda left: builds_left.first(left, pause)
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
    what.faults, what.watch = planted_faults(os.environ), builds.CompilerWatch()
    what.checked = not (args.unchecked and args.mode == "trace")
    return what


def _journal(args: argparse.Namespace) -> Journal:
    return Journal(args.out, *([args.pairs_out] if args.pairs_out else []))


def _names(args: argparse.Namespace, target: Target, points: Sequence[Planned]) -> list[list[str]]:
    """What the records of each file are of, in their order."""
    names = [[point.id for point in points]]
    return [*names, [pair_name(*pair) for pair in _pairs(args, target)]] if args.pairs else names


def _pairs(args: argparse.Namespace, target: Target) -> list[tuple[Planned, Planned]]:
    return pairs_of(read_points(args.pairs, target, empty=True)) if args.pairs else []


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
        if pair_name(*pair) not in done:
            left.append(new_pair(*pair).model_copy(update={"status": "lost", "reason": why}))
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
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)  # a restart


def run(args: argparse.Namespace) -> int:
    """Returns the exit status; raises BadInput on bad input."""
    if args.repeats is not None and args.repeats < 1:
        raise UsageError("--repeats must be at least 1")
    if bool(args.pairs) != bool(args.pairs_out) or (args.pairs and args.mode != "time"):
        raise UsageError("--pairs and --pairs-out go together, with --mode time")
    try:
        planted_faults(os.environ)
        target = load(args.target)
    except ValueError as error:
        return _fail(str(error), 2)
    points = read_points(args.points, target)
    if args.alone:
        return measure(args, target, points)
    journal, names = _journal(args), _names(args, target, points)
    if args.mode == "trace":
        return with_restarts(journal, names, lambda: measure(args, target, points), restarts=0)
    return with_restarts(journal, names, lambda: _apart(args))


def _fail(message: str, status: int) -> int:
    print(f"error: {message}", file=sys.stderr)
    return status


RESTARTS = 10  # of a run: each costs the start of Python, torch and FlashInfer


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


def with_restarts(
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
