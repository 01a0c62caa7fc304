"""What a run says while it goes: the step at work and how long the rest may take, a result per finished target, and of
a failure its cause, its log and what to do.

A handler of Snakemake's log, put in the place of the one that tells of each job all that it reads and writes. `-p` leaves
that one where it is, and the log file below .snakemake/log always has it. On a terminal the last line is rewritten in
place; anywhere else there are plain lines only.
"""

import logging
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from ncuflow import format as form
from ncuflow.findings import join, limiter
from ncuflow.gpu import lock, use
from ncuflow.io import BadInput, JsonObject, read_json
from ncuflow.model import DEEP
from ncuflow.process import cause, last_line
from ncuflow.run import progress

# (target, batch) -> its points, as in points.json
Plans = Mapping[tuple[str, str], list[JsonObject]]

FIRST, COMPILES, PROFILES, TIMES, TRACES, HOST = KINDS = range(6)


class Ahead(NamedTuple):
    """A job that is not done: its rule, its expected seconds, and those that are left of them."""

    rule: str
    seconds: float
    left: float


class RuleCost(NamedTuple):
    """A rule: what it does, its seconds (of a start, with a GPU from when it has one; and of a point), and when it can run."""

    does: str
    start_s: float
    point_s: float
    kind: int = HOST


# Seconds of H100 hosts with 16 cores: benchmarks/RESULTS.md. They are what a run says first; the seconds that went by scale them
# ever more. A rule that is not here is quick. Of `time` they are of a point of no pair; that several rounds visit the others as
# well is not known here.
STEPS = {
    "preflight": RuleCost("preflight and ceilings", 4.0, 0.0, FIRST),
    "source_index": RuleCost("index of FlashInfer's source", 12.0, 0.0),
    "build": RuleCost("build modules", 51.0, 0.45, COMPILES),
    "time": RuleCost("time", 0.2, 0.4, TIMES),
    "time_again": RuleCost("time again", 0.2, 0.4, TIMES),
    "trace": RuleCost("trace (nsys)", 0.2, 0.04, TRACES),
    "profile": RuleCost("profile (ncu)", 2.2, 0.91, PROFILES),
    "profile_deep": RuleCost("deep profile (ncu)", 1.2, 2.1, PROFILES),
    "jit_measure": RuleCost("measure the JIT", 200.0, 0.0, FIRST),
    "tables": RuleCost("read reports", 1.0, 0.02),
    "findings": RuleCost("join", 0.5, 0.01),
    "target_page": RuleCost("page", 1.0, 0.0),
    "environment_page": RuleCost("page of the machine", 0.5, 0.0),
    "claims": RuleCost("claims", 0.7, 0.0),
    "hotlines": RuleCost("hot lines", 0.5, 0.0),
    "pages": RuleCost("pages over all targets", 1.5, 0.0),
    "html": RuleCost("report.html", 1.0, 0.0),
}
QUICK = 0.3
PAIR_S = 0.5  # of a pair with its points, in the process that times a batch
PLANS_S = 2.0  # until a build begins
STANDS_S = 27.0  # of a build, until a module stands; the preflight has the GPU meanwhile
LOAD_S = 6.0  # Python, torch and FlashInfer, before a program has a GPU
LAST_S = 4.0  # tables and pages after what is measured last; those before are made beside
BATCHES = {"profile_deep": DEEP}  # rules with a batch of their own, which is no wildcard


def kind(rule: str) -> int:
    return STEPS[rule].kind if rule in STEPS else HOST


def needs_gpu(rule: str) -> bool:
    """Whether its seconds begin when it has a GPU."""
    return kind(rule) in (PROFILES, TIMES, TRACES)


def points_of(plans: Plans, rule: str, wildcards: Mapping[str, str]) -> int:
    """How many points a job of this rule works on; 0 where its time does not grow with them."""
    if rule not in STEPS or not STEPS[rule].point_s:
        return 0
    target, batch = wildcards.get("target"), BATCHES.get(rule, wildcards.get("batch"))
    return len(
        {
            (name, point["id"])
            for (name, its_batch), points in plans.items()
            if target in (None, name) and batch in (None, its_batch)
            for point in points
        }
    )


def work_of(
    plans: Plans, pairs: Plans, rule: str, wildcards: Mapping[str, str]
) -> tuple[int, float]:
    """How many points a job of this rule works on, and how many seconds that may take."""
    step = STEPS.get(rule, RuleCost("", QUICK, 0.0))
    points = points_of(plans, rule, wildcards)
    if rule != "time":
        return points, step.start_s + step.point_s * points
    place = wildcards["target"], wildcards["batch"]
    paired = pairs.get(place, [])
    alone = {point["id"] for point in plans.get(place, [])} - {point["id"] for point in paired}
    seconds = step.start_s + step.point_s * len(alone) + PAIR_S * len(paired) / 2
    return points, seconds


def rest(left: Iterable[Ahead], together: bool) -> float:
    """Seconds in which these jobs end, by themselves or beside each other.

    Beside each other, profilers have a GPU as soon as a module of a build stands, while what is timed and traced loads after it.
    """
    jobs = list(left)
    of = dict.fromkeys(KINDS, 0.0)
    for job in jobs:
        of[kind(job.rule)] += job.left
    if not together:
        return sum(of.values()) + LOAD_S * sum(needs_gpu(job.rule) for job in jobs)
    builds = [job for job in jobs if kind(job.rule) == COMPILES]
    beside = sum(max(0.0, min(job.left, job.seconds - STANDS_S)) for job in builds)
    first = max(0.0, of[FIRST] - (of[COMPILES] - beside))
    profiles = max(0.0, of[PROFILES] - beside)
    loads = LOAD_S * (bool(of[TIMES] or of[TRACES]) and not profiles)
    plans = PLANS_S * (bool(builds) and all(job.left == job.seconds for job in builds))
    measures = plans + first + of[COMPILES] + profiles + of[TIMES] + of[TRACES] + loads
    return measures + (min(of[HOST], LAST_S) if measures else of[HOST])


LONG = 10.0  # seconds from which on a plain log is told that a step begins
NEARLY = 0.9
TICK_S = 0.5
# What Snakemake says of a failed job beside the record of it.
ECHOES = ("RuleException", "Exiting because a job execution failed", "WorkflowError:\nAt least one")
REMEDIES = {
    "No space left": "make room, then run the same command again",
    "no GPU": "free a GPU (or name another with CUDA_VISIBLE_DEVICES), then run the same command again",
    "needs --config": "add that to the same command",
    "ERR_NVGPUCTRPERM": "as it says; or without counters: --config ncu='{\"enabled\": false}'",
}
AGAIN = "run the same command again: what is finished is kept (-p shows Snakemake's own report)"


class Job:
    """A job of the run: what is said of it, how long it may take, and what it left."""

    def __init__(self, record: Any, points: int, seconds: float, clock: float) -> None:
        target = dict(record.wildcards or {}).get("target")
        step = STEPS.get(record.rule_name)
        name = step.does if step else record.rule_name
        self.rule, self.known = record.rule_name, step is not None
        self.name = f"{name} {target}" if target else name
        self.points, self.seconds, self.since = points, seconds, clock
        self._worked = 0.0
        self._works: float | None = None if needs_gpu(self.rule) else clock
        self.output, self.log = list(record.output), list(record.log)

    def doing(self) -> str:
        """The last line of its log: what it is doing."""
        return last_line(self.log)

    def worked(self, now: float) -> float:
        """Seconds at what it does; loading and waiting for a GPU is no part of it, as far as it was looked at meanwhile."""
        doing = self.doing()
        waits = doing in ("", lock.WAITS) or doing.startswith(lock.QUEUES)
        if self._works is not None:
            self._worked += now - self._works
        self._works = None if waits and needs_gpu(self.rule) else now
        return self._worked


class Display(logging.Handler):
    """Says of a run what one wants to know. ``others`` gets what is said before it starts, and warnings.

    work: how many points a job of this rule with these wildcards works on, and its expected seconds; ahead: rule and expected
    seconds of all jobs to come, by id; together: whether jobs run beside each other.
    """

    def __init__(
        self,
        others: logging.Handler,
        work: Callable[[str, Mapping[str, str]], tuple[int, float]],
        ahead: Callable[[], Mapping[int, tuple[str, float]]],
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        gpu_use: Path | None = None,
        together: bool = False,
    ) -> None:
        super().__init__()
        self.rest = partial(rest, together=together)
        self.others, self.work, self.ahead, self.clock = others, work, ahead, clock
        self.gpu_use = gpu_use
        self.measures = 0.0  # since when, by the wall clock, nothing is compiled any more
        self.out = out or sys.stderr
        self.live = self.out.isatty()
        self.started: float | None = None  # when Snakemake began to run jobs
        self.expected: dict[int, tuple[str, float]] = {}
        self.whole = 0.0  # expected seconds of the run
        self.total = self.finished = 0
        self.running: dict[int, Job] = {}
        self.failed: dict[int, Job] = {}
        self.pages: list[str] = []
        self.stopped = self.ended = False

    # what Snakemake says

    def emit(self, record: logging.LogRecord) -> None:
        event, text = str(getattr(record, "event", "")), str(record.msg or "")
        if event == "workflow_started":
            self.started = self.clock()
            self.measures = time.time()
            if self.live:
                threading.Thread(target=self._tick, daemon=True).start()
        elif self.ended:
            return
        elif self.started is None:
            if not text.startswith(("Assuming unrestricted", "Building DAG")):
                self.others.handle(record)
        elif event in ("job_info", "job_finished", "job_error", "progress"):
            getattr(self, f"_{event}")(record)
        elif text.startswith("Trying to restart job"):
            self._restart(int(text.rstrip(".").split()[-1]))
        elif text.startswith("Terminating processes"):
            self.stopped = True
            self._say("stopped: what is finished is kept, and the same command goes on from there")
        elif text.startswith("Nothing to be done"):
            self._say(text)
        elif record.levelno >= logging.WARNING and not text.startswith(ECHOES):
            self._wipe()
            self.others.handle(record)

    def _job_info(self, record: Any) -> None:
        if not self.expected:
            self.expected = dict(self.ahead())
            jobs = self.expected.values()
            self.whole = self.rest(Ahead(rule, seconds, seconds) for rule, seconds in jobs)
        job = Job(record, *self.work(record.rule_name, dict(record.wildcards or {})), self.clock())
        self.running[record.jobid] = job
        if self.live:
            self._show()
        elif job.seconds >= LONG:
            self._say(f"{self._counter(self.finished + 1)} {job.name}{_point_count(job)} begins")

    def _job_finished(self, record: Any) -> None:
        job = self.running.pop(record.job_id, None)
        self.finished += 1
        if job is None:
            return
        if job.rule == "build":
            self.measures = time.time()
        self.expected.pop(record.job_id, None)
        took = self.clock() - job.since
        if job.known and (job.seconds >= 1 or not self.live):
            left = self.left()
            rest = f", about {duration(left)} left" if left else ""
            self._say(
                f"{self._counter(self.finished)} {job.name}{_point_count(job)}: {duration(took)}{rest}"
            )
        self.pages += [path for path in job.output if path.endswith((".md", "report.html"))]
        for line in headlines(job.rule, job.output):
            self._say(line)

    def _progress(self, record: Any) -> None:
        self.finished, self.total = record.done, record.total

    def _job_error(self, record: Any) -> None:
        job = self.running.pop(record.jobid, None) or Job(record, 0, QUICK, self.clock())
        self.failed[record.jobid] = job

    def _restart(self, number: int) -> None:
        job = self.failed.pop(number, None)
        if job is not None:
            self._say(f"once more: {job.name}: {cause(job.log)}")

    # what it says

    def left(self) -> float | None:
        """Seconds that the rest may take; None while nothing tells."""
        if self.started is None or not self.expected:
            return None
        now = self.clock()
        # What runs counts as far as it should be by now: as nearly done at most, however long it takes.
        ahead = self.rest(
            Ahead(rule, seconds, seconds - min(self._worked(number, now), NEARLY * seconds))
            for number, (rule, seconds) in self.expected.items()
        )
        # The pace of the first seconds, in which plans are made, says little of a run of minutes.
        trust = max(LONG, self.whole / 10)
        rest = progress.left(now - self.started, self.whole - ahead, ahead, trust)
        return None if rest is None else max(1.0, rest)

    def _worked(self, number: int, now: float) -> float:
        return self.running[number].worked(now) if number in self.running else 0.0

    def end(self) -> None:
        """The last words of a run that was under way."""
        self._wipe()
        if self.started is None or self.ended:
            return
        for job in {} if self.stopped else self.failed.values():
            if not job.log:  # what it says, it has said here: a gate its points, for one
                self._say(f"failed: {job.name}, as it says above")
                continue
            why = cause(job.log)
            remedy = next((text for sign, text in REMEDIES.items() if sign in why), AGAIN)
            self._say(f"failed: {job.name}: {why}")
            self._say(f"  log: {' '.join(job.log)}\n  do: {remedy}")
        if self.finished:
            shown = [path for path in self.pages if path.endswith(("INDEX.md", "report.html"))]
            what = f"{self.finished} of {self.total} steps" if self.failed else "done"
            took = duration(self.clock() - self.started)
            self._say(f"{what} in {took}: {', '.join(shown or self.pages[-1:])}".rstrip(": "))
            self._tell_use()
        self.ended = True

    def _tell_use(self) -> None:
        """How much of the time after compiling somebody had the GPU."""
        until = time.time()
        held = use.share(use.read(self.gpu_use), self.measures, until) if self.gpu_use else None
        if held is not None:
            span = duration(until - self.measures)
            self._say(
                f"  a GPU was held for {form.percent(held)} of {span} of measuring: {self.gpu_use}"
            )

    def _counter(self, number: int) -> str:
        total = self.total or len(self.expected) + self.finished
        return f"[{min(number, total):>2}/{total}]"

    def _say(self, line: str) -> None:
        self._wipe()
        self.out.write(f"{line}\n")
        self.out.flush()

    def _wipe(self) -> None:
        if self.live:
            self.out.write("\r\x1b[K")

    def _show(self) -> None:
        """The live line: what runs, what its log says last, and the time left."""
        names = [
            f"{job.name}: {doing}" if (doing := job.doing()) else job.name
            for job in self.running.values()
        ]
        left = self.left()
        line = f"{self._counter(self.finished + 1)} {'; '.join(names)}"
        rest = f" · about {duration(left)} left" if left else ""
        width = terminal_width(self.out) - len(rest) - 1
        self.out.write(f"\r\x1b[K{line[:width]}{rest}")
        self.out.flush()

    def _tick(self) -> None:
        while True:
            time.sleep(TICK_S)
            with self.lock or threading.RLock():
                if self.ended:
                    return
                if self.running:
                    self._show()


def terminal_width(out: TextIO) -> int:
    """Columns of the terminal that ``out`` is."""
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (OSError, ValueError):
        return 80


def _point_count(job: Job) -> str:
    return f", {job.points} point{'s' * (job.points != 1)}" if job.points else ""


def duration(seconds: float) -> str:
    """0.42 s, 12 s, 3 min 20 s."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    return f"{whole} s" if whole < 100 else f"{whole // 60} min {whole % 60} s"


def headlines(rule: str, output: list[str]) -> Iterator[str]:
    """What a finished target, or the look at a machine, comes to."""
    page = Path(output[0]) if output else Path()
    results = page.parent.parent / "results"
    try:
        if rule == "target_page":
            yield target_headline(page, read_json(results / f"{page.stem}_results.json"))
        elif rule == "environment_page":
            yield from machine_headlines(page, read_json(results / "environment_info.json"))
    except BadInput:  # the page stands all the same
        return


def target_headline(page: Path, results: Mapping[str, Any]) -> str:
    """`decode: 37 of 37 points, up to 4 460 GB/s (104 % of the measured …), bound by DRAM (92 % …): outputs/…/decode.md`."""
    points = results["points"]
    good = [point for point in points if point["status"] == "ok"]
    text = f"{results['target']}: {len(good)} of {len(points)} points"
    own = [p["measurement"] for p in good if not join.led_by_torch(p.get("kernels") or ())]
    rates = (("tflops", "TFLOPS"), ("gbs", "GB/s"))
    best = max(
        ((m.get(f"{rate}_fraction_measured") or 0, m[rate], unit, m) for m in own for rate, unit in rates if m.get(rate)),
        key=lambda found: found[:2],
        default=None,
    )  # fmt: skip
    if best:
        share, value, unit, m = best
        text += f", up to {form.number(value)} {unit}"
        text += f" ({form.percent(share)} of the measured ceiling)" if share else ""
        text += f", {said}" if (said := limiter.words(m)) else ""
    return f"  → {text}: {page}"


def machine_headlines(page: Path, info: Mapping[str, Any]) -> Iterator[str]:
    """What can be measured, what keeps the rest from it, and what helps."""
    measured = info["ceilings"]["measured"]
    gpu = info["provenance"]["gpu"] or "no GPU"
    rates = [(measured["dram_gbs"], "GB/s"), (measured["tensor_tflops"].get("f16"), "TFLOPS fp16")]
    found = ", ".join(f"{form.number(value)} {unit}" for value, unit in rates if value)
    yield f"  → {gpu}, tier {info['provenance']['tier']}{f': {found}' if found else ''}: {page}"
    for row in info["findings"]:
        if row["status"] != "ok" and not info["provenance"].get("recording"):
            yield f"    {row['status']}: {row['check']}: {row['found']}; {row['remedy']}"


def install(
    workflow: Any, plans: Plans, pairs: Plans, gpu_use: Path | None = None
) -> Display | None:
    """Put a display where Snakemake's own stream is; None where the user asked for that one, or for none."""
    from snakemake.logging import logger

    asked = workflow.output_settings
    plain = asked.printshellcmds or asked.verbose or asked.dryrun or asked.quiet
    own = [handler for handler in logger.handlers if handler.name == "DefaultStreamHandler"]
    if plain or not own or not workflow.is_main_process:
        return None

    work = partial(work_of, plans, pairs)

    def ahead() -> dict[int, tuple[str, float]]:
        jobs = workflow.dag.needrun_jobs(exclude_finished=True)
        return {
            workflow.dag.jobid(job): (
                job.rule.name,
                work(job.rule.name, dict(job.wildcards.items()))[1],
            )
            for job in jobs
        }

    together = (workflow.resource_settings.cores or 1) > 1
    display = Display(own[0], work, ahead, gpu_use=gpu_use, together=together)
    logger.removeHandler(own[0])
    logger.addHandler(display)
    return display
