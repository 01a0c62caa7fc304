"""Trace the points of a batch under Nsight Systems.

    ncuflow nsys TARGET --points P.json --out DIR [--name trace] [--repeats 5] [--flush]

Writes DIR/NAME.sqlite (scrubbed) and DIR/NAME.json. Exit status: 0 complete; 1 nothing usable,
nothing written; 2 bad input; 3 some points lost, the trace stands.

The program gets a minimal environment and a private HOME, since nsys stores both. A relocated nsys
that needs libraries of its own takes them from NCUFLOW_NSYS_LD_LIBRARY_PATH; the profiled program
does not see that.
"""

import os
import site
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ncuflow.evidence.points import NO_KERNEL, Contents
from ncuflow.evidence.scrub import scrub_trace, tables
from ncuflow.parsers.nsys_sql import export_command
from ncuflow.process import ProcessExit, output_of, python_environment, run_child
from ncuflow.run.profiler import Batch, CaptureAsked, capture, parse_version, tool
from ncuflow.target.contract import known

OPTIONS = (
    "--trace=cuda,nvtx",
    "--cuda-graph-trace=node",  # at graph level the kernels of a replayed graph are one opaque row
    "--sample=none",
    "--cpuctxsw=none",
    "--force-overwrite=true",
)
# The launches in an index, since ranges x calls takes seconds under the GPU lock; CROSS keeps the order of the join.
LAUNCHES = """
    CREATE TEMP TABLE launches AS
      SELECT r.globalTid, r.start FROM CUPTI_ACTIVITY_KIND_KERNEL k
      JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId;
    CREATE INDEX launches_in_order ON launches(globalTid, start);
"""
KERNELS_OF_RANGES = """
    SELECT COALESCE(n.text, s.value) AS name, COUNT(*)
    FROM NVTX_EVENTS n
    LEFT JOIN StringIds s ON s.id = n.textId
    CROSS JOIN launches l
      ON l.globalTid = n.globalTid AND l.start >= n.start AND l.start < n."end"
    GROUP BY name
"""


def nsys_program() -> str:
    """The nsys to run: NCUFLOW_NSYS, else PATH, else the CUDA toolkit's."""
    return tool("nsys") or "nsys"


def program_environment(held: Mapping[str, str], home: Path) -> dict[str, str]:
    """The environment that nsys sees and stores: allow-listed names, a HOME that names nobody."""
    env = {**python_environment(), **held}
    env.setdefault(
        "FLASHINFER_WORKSPACE_BASE", str(Path.home())
    )  # else the JIT cache moves with HOME
    env.setdefault("PYTHONUSERBASE", site.getuserbase())
    env["HOME"] = str(home)
    own = os.environ.get("NCUFLOW_NSYS_LD_LIBRARY_PATH")
    if own:
        env["LD_LIBRARY_PATH"] = own
    return {name: value for name, value in env.items() if not name.startswith("NCUFLOW_NSYS")}


def profile_command(out: str) -> tuple[list[str], list[str]]:
    """The command line before the program in two parts; the second gives the program back the library path that nsys's
    own replaced, and stands in no record."""
    libraries = os.environ.get("LD_LIBRARY_PATH")
    restore = [f"LD_LIBRARY_PATH={libraries}"] if libraries else ["-u", "LD_LIBRARY_PATH"]
    return [nsys_program(), "profile", *OPTIONS, "-o", out], ["env", *restore]


def export(
    report: Path, env: Mapping[str, str], timeout: float | None, on_line: Callable[[str], None]
) -> Path | None:
    """The SQLite export of a report, beside it; None where nsys wrote no report, or cannot export it."""
    sqlite = report.with_suffix(".sqlite")
    if not report.exists():
        return None
    command = export_command(nsys_program(), report, sqlite)
    exported = run_child(command, env=env, timeout=timeout, on_line=on_line)
    return sqlite if exported.returncode == 0 and sqlite.exists() else None


def count_kernels(path: Path, points: Sequence[str]) -> Contents:
    """Kernels of an export by the NVTX range that was open when they were launched."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        names = set(tables(database))
        if "CUPTI_ACTIVITY_KIND_KERNEL" not in names:
            return Contents()
        (total,) = database.execute("SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
        if not {"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"} <= names:
            return Contents(total=total, unattributed=total)
        database.executescript(LAUNCHES)
        rows = dict(database.execute(KERNELS_OF_RANGES).fetchall())
    finally:
        database.close()
    kernels = {point: rows[point] for point in points if point in rows}
    return Contents(kernels=kernels, total=total, unattributed=total - sum(kernels.values()))


@dataclass(frozen=True, kw_only=True)
class NsysAsked(CaptureAsked):
    """What a trace is given."""

    name: str = "trace"
    """name of both files (default: trace)"""
    repeats: int = 5
    """launches of each point (default: 5)"""
    flush: bool = False
    """flush L2 before each launch, as ncu does"""
    unchecked: bool = False
    """without --timing: a timing compares them later"""


def command(target: str, /, *, asked: Annotated[NsysAsked, Parameter(name="*")]) -> int:
    """Trace, export, scrub, check, and move into place. Returns the exit status.

    Args:
        target: kernel target, as `ncuflow launch` knows it
    """
    # A trace shows what the host does between launches, too.
    words = ["--after-builds", *([] if asked.flush else ["--no-flush"])]
    words += ["--unchecked"] * (asked.unchecked and asked.timing is None)
    return capture("nsys", ".sqlite", target, asked, lambda batch: _trace(batch, words), turn=_turn)


def _turn(point: Mapping[str, Any]) -> int:
    """The later, the likelier nsys records nothing from the point's launch on: what comes before it is not lost with it."""
    target = known().get(str(point.get("target")))
    if target is None:
        return 0
    stops = target.stops_tracing(target.completed(point.get("params", {})))
    return {False: 0, None: 1, True: 2}[stops]


def _trace(batch: Batch, words: Sequence[str]) -> int:
    report = batch.stage / f"{batch.asked.name}.nsys-rep"
    profiled, restore = profile_command(batch.path(batch.asked.name))
    program = batch.program(*words)
    (batch.stage / "home").mkdir()
    env = program_environment(batch.held.environ, (batch.stage / "home").resolve())
    outcome = batch.run([*profiled, *restore, *program], env)
    sqlite = export(report, env, batch.asked.timeout, batch.progress.line)
    if sqlite is None:
        if report.exists():
            raise batch.failed("nsys could not export its report")
        missing = report.with_suffix(".sqlite")
        return batch.nothing(missing, batch.ending(outcome) or "nsys wrote no report")
    return _keep(batch, sqlite, [*profiled, *program], outcome)


def _keep(batch: Batch, sqlite: Path, command: Sequence[str], outcome: ProcessExit) -> int:
    scrub_trace(sqlite)
    found = count_kernels(sqlite, batch.ids)
    if found.total == 0:
        return batch.nothing(sqlite, batch.ending(outcome) or "the trace holds no kernel")
    lost = batch.lost(found, outcome)
    version = parse_version(output_of([nsys_program(), "--version"]) or "")
    untraced = _untraced(batch.ids, lost)
    for entry in lost:
        if entry["point"] in untraced:
            entry["reason"] += f"; nsys {version} recorded none from {untraced[0]} on"
    return batch.keep(sqlite, command, version, found, lost, outcome, ())


def _untraced(ids: Sequence[str], lost: Sequence[Mapping[str, str]]) -> list[str]:
    """The points, in the order of their launches, up to the last from the one on after which nsys recorded no kernel."""
    reasons = {entry["point"]: entry["reason"] for entry in lost}
    backwards = takewhile(lambda point: reasons.get(point) == NO_KERNEL, reversed(ids))
    return list(backwards)[::-1]
