"""Trace the points of a batch under Nsight Systems.

    ncuflow nsys TARGET --points P.json --out DIR [--name trace] [--repeats 5] [--flush]

Writes DIR/NAME.sqlite (scrubbed) and DIR/NAME.json. Exit status: 0 complete; 1 nothing usable,
nothing written; 2 bad input; 3 some points lost, the trace stands.

The program gets a minimal environment and a private HOME, since nsys stores both. A relocated nsys
that needs libraries of its own takes them from NCUFLOW_NSYS_LD_LIBRARY_PATH; the profiled program
does not see that.
"""

from __future__ import annotations

import argparse
import os
import site
import sqlite3
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ncuflow.capture.lock import Held, gpu_seat
from ncuflow.capture.machine import tool
from ncuflow.capture.ncu import (
    COMPLETE,
    LOST,
    NOTHING,
    SOME_POINTS_FAILED,
    add_common_arguments,
    origin_of,
    parse_version,
    trace_command,
)
from ncuflow.capture.points import (
    NO_KERNEL,
    Found,
    capture_record,
    keep_nothing,
    lost_points,
    read_points,
    read_progress,
    read_records,
    timed_ok,
)
from ncuflow.capture.process import (
    CaptureError,
    Outcome,
    minimal_environment,
    output_of,
    run_child,
    scrub_command,
)
from ncuflow.capture.progress import ProfilerOutput
from ncuflow.capture.staging import staging
from ncuflow.capture.tracescrub import scrub_trace, tables
from ncuflow.io import write_json
from ncuflow.parsers.nsys import export_command
from ncuflow.target import known

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
    env = {**minimal_environment(), **held}
    env.setdefault(
        "FLASHINFER_WORKSPACE_BASE", str(Path.home())
    )  # else the JIT cache moves with HOME
    env.setdefault("PYTHONUSERBASE", site.getuserbase())
    env["HOME"] = str(home)
    own = os.environ.get("NCUFLOW_NSYS_LD_LIBRARY_PATH")
    if own:
        env["LD_LIBRARY_PATH"] = own
    return {name: value for name, value in env.items() if not name.startswith("NCUFLOW_NSYS")}


def nsys_command(args: argparse.Namespace, points: Path, progress: Path, report: Path) -> list[str]:
    """The command line. The program gets back the library path that nsys's own replaced."""
    libraries = os.environ.get("LD_LIBRARY_PATH")
    restore = (
        ["env", f"LD_LIBRARY_PATH={libraries}"] if libraries else ["env", "-u", "LD_LIBRARY_PATH"]
    )
    program = trace_command(args, points, progress)
    return [nsys_program(), "profile", *OPTIONS, "-o", str(report), *restore, *program]


def count_kernels(path: Path, points: Sequence[str]) -> Found:
    """Kernels of an export by the NVTX range that was open when they were launched."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        names = set(tables(database))
        if "CUPTI_ACTIVITY_KIND_KERNEL" not in names:
            return Found()
        (total,) = database.execute("SELECT COUNT(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone()
        if not {"NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME"} <= names:
            return Found(total=total, unattributed=total)
        database.executescript(LAUNCHES)
        rows = dict(database.execute(KERNELS_OF_RANGES).fetchall())
    finally:
        database.close()
    kernels = {point: rows[point] for point in points if point in rows}
    return Found(kernels=kernels, total=total, unattributed=total - sum(kernels.values()))


def run(args: argparse.Namespace) -> int:
    """Trace, export, scrub, check, and move into place. Returns the exit status."""
    planned = read_points(args.points)
    points = sorted(timed_ok(planned, args.timing), key=_silences)
    if not points:
        report = args.out / f"{args.name}.sqlite"
        keep_nothing("nsys", report, [p["id"] for p in planned], read_records(args.timing))
        return LOST
    with gpu_seat(args.lock_timeout) as held, staging(args.out, args.name) as stage:
        return _capture_in(args, points, held, stage)


def _silences(point: Mapping[str, Any]) -> bool:
    """Whether nsys may record nothing from the point's launch on: what comes before it is not lost with it."""
    target = known().get(str(point.get("target")))
    return target is not None and target.silences({**target.parameters, **point.get("params", {})})


def _capture_in(
    args: argparse.Namespace, points: list[dict[str, Any]], held: Held, stage: Path
) -> int:
    base = Path(os.path.relpath(stage))
    write_json(stage / "points.json", points)
    records, report = stage / "progress.jsonl", stage / f"{args.name}.nsys-rep"
    command = nsys_command(args, base / "points.json", base / records.name, base / args.name)
    progress = ProfilerOutput(f"{args.target} {args.name}", len(points), records)
    (stage / "home").mkdir()
    env = program_environment(held.environ, (stage / "home").resolve())
    outcome = run_child(
        command,
        env=env,
        timeout=args.timeout,
        on_line=progress.line,
        inherited=held.locks,
        waited=progress.waited,
    )
    if not report.exists():
        raise CaptureError(
            "\n".join([ending(outcome) or "nsys wrote no report", *progress.tail]), NOTHING
        )
    sqlite = stage / f"{args.name}.sqlite"
    exported = run_child(
        export_command(nsys_program(), report, sqlite),
        env=env,
        timeout=args.timeout,
        on_line=progress.line,
    )
    if exported.returncode or not sqlite.exists():
        raise CaptureError("\n".join(["nsys could not export its report", *progress.tail]), NOTHING)
    return _keep(args, points, held, sqlite, command, outcome, records)


def _keep(
    args: argparse.Namespace,
    points: list[dict[str, Any]],
    held: Held,
    sqlite: Path,
    command: Sequence[str],
    outcome: Outcome,
    records: Path,
) -> int:
    scrub_trace(sqlite)
    ids = [point["id"] for point in points]
    found = count_kernels(sqlite, ids)
    if found.total == 0:
        raise CaptureError("the trace holds no kernel", NOTHING)
    lost = lost_points(ids, found, read_progress(records), ending(outcome))
    version = parse_version(output_of([nsys_program(), "--version"]) or "")
    silent = {point["id"] for point in points if _silences(point)}
    for entry in lost:
        if entry["point"] in silent and entry["reason"] == NO_KERNEL:
            entry["reason"] += f"; nsys {version} records none from the first launch of its kind on"
        print(f"lost: {entry['point']}: {entry['reason']}", file=sys.stderr)
    shown = shown_command(command, sqlite.parent)
    notes = [ending(outcome)] if ending(outcome) else []
    record = capture_record(
        "nsys", origin_of(held.gpu, nsys=version), shown, ids, found, lost, outcome.wall_s, notes
    )
    sqlite.replace(args.out / sqlite.name)
    write_json(args.out / f"{args.name}.json", record)
    return LOST if lost or outcome.timed_out else COMPLETE


def ending(outcome: Outcome) -> str:
    """How a traced run ended, if not well."""
    if outcome.timed_out:
        return f"stopped at the time limit after {outcome.wall_s:.0f} s"
    ended_well = outcome.returncode in (0, SOME_POINTS_FAILED)
    return "" if ended_well else f"nsys ended with status {outcome.returncode}"


def shown_command(command: Sequence[str], stage: Path) -> list[str]:
    """The command for the record: without the staging folder and the library paths."""
    words = [word.replace(f"{os.path.relpath(stage)}/", "") for word in command]
    at = words.index("env")
    return scrub_command(
        [Path(words[0]).name, *words[1:at], *words[at + 1 + (2 if words[at + 1] == "-u" else 1) :]]
    )


def configure(parser: argparse.ArgumentParser) -> None:
    add_common_arguments(parser, "trace")
    parser.add_argument("--repeats", type=int, default=5, help="launches of each point (default 5)")
    parser.add_argument(
        "--flush", action="store_true", help="flush L2 before each launch, as ncu does"
    )
