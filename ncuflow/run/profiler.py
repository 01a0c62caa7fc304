"""A profiler: where the tools are, whether the driver lets them count, and the points of a batch under one of them."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncuflow.evidence import points as captured
from ncuflow.gpu import nvml, use
from ncuflow.gpu.lock import BEGINS, STARTS, WAITS, Held, gpu_slot
from ncuflow.io import JsonObject, read_json, write_json
from ncuflow.origin import package_version
from ncuflow.private import masked_line
from ncuflow.process import CaptureError, ProcessExit, run_child, scrub_command
from ncuflow.run.progress import left

PROFILING = re.compile(r'==PROF==\s+Profiling\s+"(?P<name>.*?)"\s+-\s+(?P<number>\d+)')
REFUSED = re.compile(r"ERR_NVGPUCTRPERM")
NOISE = re.compile(r"==PROF==")
COMPLAINT = re.compile(r"\b(error|fail\w*|could not|cannot|unable|not found|missing)\b", re.I)
BAR = re.compile(r"\d+ ?%")  # of what a tool draws while it works
TAIL_LINES = 20


class ProfilerOutput:
    """Collects a profiler's output lines and reports how far the batch is.

    `records` is the JSONL file to which the profiled program appends one record per finished point.
    """

    def __init__(
        self, label: str, points: int, records: Path, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.label, self.points, self.records, self.clock = label, points, records, clock
        self.started = clock()
        self.kernels = 0
        self.refused = False
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._waits: float | None = None  # since when the program waits for its GPU
        self._waited = 0.0
        self._last = ""

    def line(self, text: str) -> None:
        """One line of output."""
        self.refused = self.refused or bool(REFUSED.search(text))
        if text in (WAITS, STARTS, BEGINS):
            self._waited = self.waited()
            self._waits = self.clock() if text == WAITS else None
            print(text, file=sys.stderr, flush=True)
        elif PROFILING.search(text):
            self.kernels += 1
            self._report()
        elif text.strip() and not NOISE.search(text):
            self.tail.append(text)

    @property
    def last(self) -> str:
        """The last line that complains, else that says something, without folders of the machine; "" where none does."""
        said = [line.strip() for line in reversed(self.tail) if not BAR.search(line)]
        complaints = [line for line in said if COMPLAINT.search(line)]
        return masked_line(next(iter(complaints + said), ""))

    def waited(self) -> float:
        """Seconds that the program has waited for its GPU."""
        return self._waited + (0.0 if self._waits is None else self.clock() - self._waits)

    def describe(self) -> str:
        """`decode sweep: point 3 of 12, 7 kernels, 14 s elapsed, about 40 s left`."""
        done = min(len(captured.read_progress(self.records)), self.points)
        elapsed = self.clock() - self.started - self.waited()
        seconds = left(elapsed, done, self.points - done)
        rest = "" if seconds is None else f", about {seconds:.0f} s left"
        current = min(done + 1, self.points)
        point = f"{self.label}: point {current} of {self.points}, {self.kernels} kernels"
        return f"{point}, {elapsed:.0f} s elapsed{rest}"

    def _report(self) -> None:
        text = self.describe()
        if text != self._last:
            print(text, file=sys.stderr, flush=True)
            self._last = text


if TYPE_CHECKING:
    from ncuflow.model import Origin

COMPLETE, NOTHING, LOST = 0, 1, 3
UNFIT = 5  # the tool cannot do it on this machine: no use in a second try
# To load it takes longer than all else before a tool begins, so that is done while the tool runs.
DESCRIBES = "ncuflow.evidence.provenance"
SOME_POINTS_FAILED = 3  # of `ncuflow launch`, which the profilers pass on; its records say which


@dataclass(frozen=True, kw_only=True)
class CaptureAsked:
    """What both profilers are given."""

    points: Path
    """points.json of the batch"""
    out: Path
    """folder for the report and its record"""
    name: str
    """name of both files"""
    repeats: int
    """launches of each point"""
    timing: Path | None = None
    """timing.jsonl: only points that are ok there, which are not checked again"""
    preflight: Path | None = None
    """environment.json, where there is one: status 5 if the tool is unfit"""
    timeout: float | None = None
    """seconds the profiled run may take"""
    lock_timeout: float | None = None
    """seconds to wait for a free GPU"""


@dataclass
class Batch:
    """Points of a kernel target that one process launches under a tool, ncu or nsys, and the folder that this is done in.

    Paths of command lines are relative: a report stores them as they are. unfit: records of points that an earlier
    run found to fail, which are not launched again.
    """

    tool: str
    target: str
    asked: CaptureAsked
    points: list[JsonObject]
    held: Held
    stage: Path
    unfit: list[JsonObject] = field(default_factory=list)
    progress: ProfilerOutput = field(init=False)  # what the tool prints

    @property
    def ids(self) -> list[str]:
        return [point["id"] for point in self.points]

    def path(self, name: str) -> str:
        """A file of the folder, for a command line."""
        return os.path.relpath(self.stage / name)

    def program(self, *words: str) -> list[str]:
        """The profiled program; words: further ones of its command.

        With a timing only points that are ok there are left (`timed_ok`), and they were compared with
        their references in that run: once is enough. Without one, the program checks them itself.
        """
        command = [sys.executable, "-m", "ncuflow", "launch", self.target, "--mode", "trace"]
        command += ["--points", self.path("points.json"), "--out", self.path("progress.jsonl")]
        command += ["--repeats", str(self.asked.repeats), *words]
        return command + ["--unchecked"] * (self.asked.timing is not None)

    def run(self, command: Sequence[str], env: Mapping[str, str]) -> ProcessExit:
        """Run the tool on the program; where a point broke the CUDA context and others were lost with it, again without
        the points that fail."""
        while True:
            outcome = self._run(command, env)
            said = self.point_records()
            unfit = [record for record in said if record.get("status") in ("error", "wrong")]
            lost = any(record.get("status") == "lost" for record in said)
            if not lost or len(unfit) == len(self.unfit):
                return outcome
            self.unfit = unfit

    def _run(self, command: Sequence[str], env: Mapping[str, str]) -> ProcessExit:
        unfit = {record["point"] for record in self.unfit}
        launched = [point for point in self.points if point["id"] not in unfit]
        for old in self.stage.glob(f"{self.asked.name}.*"):  # of the run before
            old.unlink()
        write_json(self.stage / "points.json", launched)
        records, label = self.stage / "progress.jsonl", f"{self.target} {self.asked.name}"
        records.unlink(missing_ok=True)
        self.progress = progress = ProfilerOutput(label, len(self.points), records)
        return run_child(
            command,
            env={**env, use.JOB: f"{self.tool} {label}"},
            timeout=self.asked.timeout,
            on_line=progress.line,
            inherited=self.held.locks,
            waited=progress.waited,
            meanwhile=lambda: import_module(DESCRIBES),
        )

    def point_records(self) -> list[JsonObject]:
        """The record of each point that the program came to."""
        return [*self.unfit, *captured.read_progress(self.progress.records)]

    def ending(self, outcome: ProcessExit) -> str:
        """How a run ended, if not well."""
        if outcome.timed_out:
            return f"stopped at the time limit after {outcome.wall_s:.0f} s"
        ended_well = outcome.returncode in (0, SOME_POINTS_FAILED)
        return "" if ended_well else f"{self.tool} ended with status {outcome.returncode}"

    def failed(self, what: str) -> CaptureError:
        """What leaves nothing to keep, with what the tool said last; the log has more of it."""
        for line in self.progress.tail:
            print(line, file=sys.stderr)
        said = self.progress.last
        return CaptureError(f"{what}: {said}" if said else what, NOTHING)

    def nothing(self, report: Path, why: str) -> int:
        """Keep that no point was ok, where it was so; returns the exit status. Raises CaptureError where the report lacks
        kernels for another reason."""
        said = self.point_records()
        if not captured.all_failed(self.ids, said):
            raise self.failed(why)
        captured.keep_nothing(self.tool, self.asked.out / report.name, self.ids, said)
        return LOST

    def lost(self, found: captured.Contents | None, outcome: ProcessExit) -> list[dict[str, str]]:
        """The points that the report lacks; none where nobody could count."""
        said = self.point_records()
        return (
            []
            if found is None
            else captured.lost_points(self.ids, found, said, self.ending(outcome))
        )

    def keep(
        self,
        report: Path,
        command: Sequence[str],
        version: str | None,
        found: captured.Contents | None,
        lost: Sequence[Mapping[str, str]],
        outcome: ProcessExit,
        notes: Sequence[str],
    ) -> int:
        """Move the report into place, with its record beside it. Returns the exit status."""
        folder = f"{os.path.relpath(self.stage)}/"
        words = [word.replace(folder, "") for word in command]
        record = captured.capture_record(
            self.tool,
            self._origin(version),
            scrub_command([Path(words[0]).name, *words[1:]]),
            self.ids,
            found,
            lost,
            outcome.wall_s,
            [note for note in (self.ending(outcome), *notes) if note],
        )
        for entry in lost:
            print(f"lost: {entry['point']}: {entry['reason']}", file=sys.stderr)
        report.replace(self.asked.out / report.name)
        write_json(self.asked.out / f"{self.asked.name}.json", record)
        return LOST if lost or outcome.timed_out else COMPLETE

    def _origin(self, version: str | None) -> Origin:
        from ncuflow.evidence.provenance import origin

        return origin(self.held.gpu.name, nvml.driver(), **{self.tool: version})


def parse_version(text: str) -> str | None:
    """The version number in a tool's --version text."""
    match = re.search(r"[Vv]ersion\s+(\d[\w.]*)", text)
    return match.group(1).rstrip(".") if match else None


def capture(
    tool: str,
    suffix: str,
    target: str,
    asked: CaptureAsked,
    work: Callable[[Batch], int],
    turn: Callable[[Mapping[str, Any]], int] = lambda point: 0,
) -> int:
    """Do the work on those points of a batch that are ok, in the order of their turns.

    suffix: of the report, which is an empty file where no point is ok. Returns the exit status.
    """
    if asked.preflight and asked.preflight.exists():
        _fit(tool, asked.preflight)
    planned = captured.read_points(asked.points)
    points = sorted(captured.timed_ok(planned, asked.timing), key=turn)
    if asked.timing and not points:
        report = asked.out / f"{asked.name}{suffix}"
        captured.keep_nothing(
            tool, report, [p["id"] for p in planned], captured.read_records(asked.timing)
        )
        return LOST
    with gpu_slot(asked.lock_timeout) as held, captured.staging(asked.out, asked.name) as stage:
        return work(Batch(tool, target, asked, points, held, stage))


def _fit(tool: str, preflight: Path) -> None:
    """Raises CaptureError where the preflight's tiny profile by the tool failed."""
    for row in read_json(preflight)["findings"]:
        if row["check"] == tool and row["status"] == "fail":
            raise CaptureError(row["found"], UNFIT)


CAP_SYS_ADMIN = 21
PACKAGES = ("torch", "flashinfer-python", "flashinfer", "nvidia-cutlass-dsl", "ncu-report")
PARAMS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")


def counters_refused(params: str | None, status: str | None, uid: int) -> bool | None:
    """Whether the driver refuses performance counters to this process; None if it does not tell.

    `params` is /proc/driver/nvidia/params, `status` /proc/self/status. Root without CAP_SYS_ADMIN
    (a container) is refused as well.
    """
    match = re.search(r"RmProfilingAdminOnly:\s*(\d)", params or "")
    if match is None:
        return None
    if match.group(1) == "0":
        return False
    capabilities = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status or "", re.MULTILINE)
    if capabilities is None:
        return uid != 0
    return not int(capabilities.group(1), 16) >> CAP_SYS_ADMIN & 1


def counters_refused_here() -> bool | None:
    """`counters_refused` of this process."""
    return counters_refused(read_text(PARAMS), read_text(STATUS), os.getuid())


def read_text(path: Path) -> str | None:
    """A small file's text, or None."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return None


def tool(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Path of ncu, nsys or nvcc: NCUFLOW_NCU, NCUFLOW_NSYS; else PATH; else the CUDA toolkit."""
    environ = os.environ if environ is None else environ
    toolkit = Path(environ.get("CUDA_HOME") or "/usr/local/cuda") / "bin" / name
    return shutil.which(environ.get(f"NCUFLOW_{name.upper()}") or name) or shutil.which(toolkit)


def installed() -> str:
    """What the preflight would look at, in one line: where that is another one, it has to look again."""
    tools = [tool(name) or name for name in ("ncu", "nsys", "nvcc", "ninja", "g++")]
    found = [(path, Path(path).stat().st_mtime_ns if Path(path).is_file() else 0) for path in tools]
    packages = [package_version(name) for name in PACKAGES]
    return f"{found} {packages} {nvml.names()} {nvml.driver()} {counters_refused_here()}"


def tier_reason(gpu: Mapping[str, Any] | None, counters: bool = True) -> tuple[str, str]:
    """("A" | "B" | "C", why): live counters, live without counters, or recorded evidence.

    gpu: what `nvml.DriverQuery` knows of it; counters: whether the run collects any. Starts no process and imports nothing.
    """
    if gpu is None:
        return "C", "no NVIDIA GPU is visible"
    missing = [name for name in ("torch", "flashinfer") if importlib.util.find_spec(name) is None]
    if missing:
        return "C", f"not installed: {', '.join(missing)}"
    if not counters:
        return "B", "counters were not asked for (ncu: enabled)"
    if tool("ncu") is None:
        return "B", "ncu is not on PATH"
    if counters_refused_here():
        return "B", "the driver refuses performance counters"
    return "A", "GPU, ncu and counters are available"
