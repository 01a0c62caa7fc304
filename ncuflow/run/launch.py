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
from typing import Annotated, Any, Literal

from cyclopts import Parameter

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
from ncuflow.target.contract import Target, load


@dataclass(frozen=True, kw_only=True)
class LaunchAsked:
    """What a run is given."""

    points: Path
    """points.json of one batch"""
    out: Path
    """file of the records"""
    mode: Literal["check", "time", "trace"] = "check"
    """what is done"""
    pairs: Path | None = None
    """time: points to time in turns, two by two"""
    pairs_out: Path | None = None
    """time: for the records of the pairs"""
    repeats: int | None = None
    """launches measured or traced per point"""
    seed: int = 0
    """of the random inputs"""
    order: int = 0
    """time: number of the random order of the points"""
    rounds: int = timing.ROUNDS
    """time: visits per point"""
    visit_all: bool = False
    """time: also the points that pairs time"""
    no_flush: bool = False
    """trace: leave the L2 cache alone"""
    after_builds: bool = False
    """trace: begin when nobody compiles anything"""
    unchecked: bool = False
    """trace: another run compares these points (a second check costs time, and nsys 2023.4 loses the kernels after a cuBLAS call
    under a CUDA 13 driver, which the references make)"""
    alone: Annotated[bool, Parameter(show=False)] = False
    """a restart"""


def measure(asked: LaunchAsked, target: Target, points: Sequence[Planned]) -> int:
    """Run, in this process, what OUT.partial does not hold yet; returns the exit status.

    Each record says with what it was made. A broken CUDA context leaves the rest to the next process.
    """
    journal, job = _journal(asked), f"{asked.mode} {target.name}"
    builds_left = WaitForBuild(target, points, asked.mode != "trace", asked.after_builds)

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
    what, rest = _run_of(asked, target, device), journal.rest()
    what.done, what.rest, what.series = rest.refused | journal.done(), rest.records, rest.series
    what.pairs = _pairs(asked, target)
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
        own = {*chain(*_names(asked, target, points))}
        refused = {name: how for name, how in what.done.items() if name not in own}
        journal.leave(Rest(what.rest, what.series, made, refused))
    return status


def _run_of(asked: LaunchAsked, target: Target, device: Any) -> Run:
    what = Run(device, target, asked.mode, asked.repeats, asked.seed)
    what.order, what.rounds, what.flush = asked.order, asked.rounds, not asked.no_flush
    what.visits_all = asked.visit_all
    what.faults, what.watch = planted_faults(os.environ), builds.CompilerWatch()
    what.checked = not (asked.unchecked and asked.mode == "trace")
    return what


def _journal(asked: LaunchAsked) -> Journal:
    return Journal(asked.out, *([asked.pairs_out] if asked.pairs_out else []))


def _names(asked: LaunchAsked, target: Target, points: Sequence[Planned]) -> list[list[str]]:
    """What the records of each file are of, in their order."""
    names = [[point.id for point in points]]
    return [*names, [pair_name(*pair) for pair in _pairs(asked, target)]] if asked.pairs else names


def _pairs(asked: LaunchAsked, target: Target) -> list[tuple[Planned, Planned]]:
    return pairs_of(read_points(asked.pairs, target, empty=True)) if asked.pairs else []


def close_lost(asked: LaunchAsked, target: Target, why: str) -> None:
    """Close the files of a timing that ended before its time: what it had not finished is lost."""
    journal, points = _journal(asked), read_points(asked.points, target)
    if not journal.partial.exists():
        journal.begin()
    done = journal.lines()
    left: list[Record] = [
        new_record(target, point, "lost", why) for point in points if point.id not in done
    ]
    for pair in _pairs(asked, target):
        if pair_name(*pair) not in done:
            left.append(new_pair(*pair).model_copy(update={"status": "lost", "reason": why}))
    made = next((json.loads(line)["origin"] for line in done.values()), None)
    journal.close(_names(asked, target, points), Rest(left, origin=made))


def _apart(asked: LaunchAsked, target: Target) -> int:
    """``measure`` in a process of its own, which keeps the GPU's lock and dies with this one."""
    given = ["mode", "points", "out", "pairs", "pairs_out", "seed", "order", "rounds", "repeats"]
    values = {name.replace("_", "-"): getattr(asked, name) for name in given}
    words = [f"--{name}={value}" for name, value in values.items() if value is not None]
    words += ["--visit-all"] * asked.visit_all
    command = [sys.executable, "-m", "ncuflow", "launch", target.name, *words, "--alone"]
    env = python_environment(os.environ)
    return subprocess.call(command, env=env, close_fds=False, preexec_fn=die_with_parent)


def command(target: str, /, *, asked: Annotated[LaunchAsked, Parameter(name="*")]) -> int:
    """Returns the exit status; raises BadInput on bad input.

    Args:
        target: kernel target
    """
    try:
        found = load(target)
    except ValueError as error:
        return _fail(str(error), 2)
    return launched(found, asked)


def launched(target: Target, asked: LaunchAsked) -> int:
    """The exit status of a run."""
    if asked.repeats is not None and asked.repeats < 1:
        raise UsageError("--repeats must be at least 1")
    if bool(asked.pairs) != bool(asked.pairs_out) or (asked.pairs and asked.mode != "time"):
        raise UsageError("--pairs and --pairs-out go together, with --mode time")
    try:
        planted_faults(os.environ)
    except ValueError as error:
        return _fail(str(error), 2)
    points = read_points(asked.points, target)
    if asked.alone:
        return measure(asked, target, points)
    journal, names = _journal(asked), _names(asked, target, points)
    if asked.mode == "trace":
        return with_restarts(journal, names, lambda: measure(asked, target, points), restarts=0)
    return with_restarts(journal, names, lambda: _apart(asked, target))


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
    # points of other batches that no pair is timed with
    refused: dict[str, Done] = field(default_factory=dict)


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
