"""Profile the points of a batch under Nsight Compute.

    ncuflow ncu TARGET --points P.json --out DIR --name sweep --registry --sections "A,B"
    ncuflow ncu TARGET --points P.json --out DIR --name deep --deep

Writes DIR/NAME.ncu-rep and DIR/NAME.json. Exit status: 0 complete; 1 nothing usable, nothing
written; 2 bad input; 3 some points lost, the report stands; 5 the driver refuses counters.
"""

from __future__ import annotations

import argparse
import math
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ncuflow.capture.lock import Held, VisibleGpu, gpu_seat
from ncuflow.capture.machine import gpu_query, parse_gpu, tool
from ncuflow.capture.points import (
    Found,
    all_failed,
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
from ncuflow.capture.reportscrub import scrub_report
from ncuflow.capture.staging import staging
from ncuflow.io import UsageError, write_json
from ncuflow.model import Origin
from ncuflow.parsers import reader
from ncuflow.parsers.registry import architecture, counters
from ncuflow.runner.origin import origin

COMPLETE, NOTHING, LOST, REFUSED = 0, 1, 3, 5
SOME_POINTS_FAILED = 3  # of `ncuflow launch`, which the profilers pass on; its records say which
DURATION = "gpu__time_duration.sum"
REMEDY = (
    "the driver refuses performance counters (ERR_NVGPUCTRPERM): run as root, give the container "
    "--cap-add=SYS_ADMIN, or put `options nvidia NVreg_RestrictProfilingToAdminUsers=0` into "
    "/etc/modprobe.d/nvidia.conf and reload the driver"
)


def ncu_program() -> str:
    """The ncu to run: NCUFLOW_NCU, else PATH, else the CUDA toolkit's."""
    return tool("ncu") or "ncu"


def ncu_command(
    args: argparse.Namespace, gpu: VisibleGpu, points: Path, progress: Path, report: Path
) -> list[str]:
    """The command line. Paths are relative: the report stores this line as it is."""
    command = [ncu_program(), "--nvtx", "--profile-from-start", "off"]
    # `all`: a virtual environment's python may be a launcher whose child does the work.
    command += [
        "--clock-control",
        args.clock_control,
        "--target-processes",
        "all",
        "-f",
        "-o",
        str(report),
    ]
    if args.deep:
        command += ["--set", "full"]
    for section in _words(args.sections):
        command += ["--section", section]
    metrics = [*(registry_counters(gpu) if args.registry else ()), *_words(args.metrics)]
    if metrics:
        command += ["--metrics", ",".join(metrics)]
    if args.import_source:
        command += ["--import-source", "yes"]
    return command + trace_command(args, points, progress)


def origin_of(gpu: VisibleGpu, **tools: str | None) -> Origin:
    """What a capture on this GPU is made with."""
    return origin(gpu.name, (parse_gpu(gpu_query(gpu.uuid)) or {}).get("driver"), **tools)


def registry_counters(gpu: VisibleGpu) -> tuple[str, ...]:
    """The counters behind the metric registry, by the names of this GPU's architecture.

    ncu passes over a name that it does not know.
    """
    capability = (parse_gpu(gpu_query(gpu.uuid)) or {}).get("compute_capability")
    return counters(architecture(int(str(capability).split(".")[0]) if capability else None))


def trace_command(args: argparse.Namespace, points: Path, out: Path) -> list[str]:
    """The profiled program, as both profilers start it.

    With a timing only points that are ok there are left (`timed_ok`), and they were compared with
    their references in that run: once is enough. Without one, the program checks them itself.
    """
    command = [sys.executable, "-m", "ncuflow", "launch", args.target, "--mode", "trace"]
    command += ["--points", str(points), "--out", str(out), "--repeats", str(args.repeats)]
    command += [] if args.flush else ["--no-flush"]
    return [*command, "--unchecked"] if args.timing else command


def count_kernels(report: Path, points: Sequence[str]) -> Found | None:
    """Kernels of a report by NVTX range, or None if the reader (ncu-report) is not installed."""
    found, wanted = Found(), set(points)
    try:
        context = reader.load(report)
    except ImportError:
        return None
    for _, action in reader.actions(context):
        _count_action(action, wanted, found)
    return found


def run(args: argparse.Namespace) -> int:
    """Profile, check what came back, and move it into place. Returns the exit status."""
    if not (args.deep or args.registry or _words(args.sections)):
        raise UsageError("give --registry, --sections or --deep")
    planned = read_points(args.points)
    points = timed_ok(planned, args.timing)
    if not points:
        report = args.out / f"{args.name}.ncu-rep"
        keep_nothing("ncu", report, [p["id"] for p in planned], read_records(args.timing))
        return LOST
    with gpu_seat(args.lock_timeout) as held, staging(args.out, args.name) as stage:
        return _capture_in(args, points, held, stage)


def _capture_in(
    args: argparse.Namespace, points: list[dict[str, Any]], held: Held, stage: Path
) -> int:
    base = Path(os.path.relpath(stage))
    write_json(stage / "points.json", points)
    records, report = stage / "progress.jsonl", stage / f"{args.name}.ncu-rep"
    command = ncu_command(
        args, held.gpu, base / "points.json", base / records.name, base / args.name
    )
    progress = ProfilerOutput(f"{args.target} {args.name}", len(points), records)
    env = {**minimal_environment(), **held.environ}
    outcome = run_child(
        command,
        env=env,
        timeout=args.timeout,
        on_line=progress.line,
        inherited=held.locks,
        waited=progress.waited,
    )
    if progress.refused:
        raise CaptureError(REMEDY, REFUSED)
    found = count_kernels(report, [p["id"] for p in points]) if report.exists() else Found()
    if not report.exists() or (found is not None and found.total == 0):
        ids, said = [point["id"] for point in points], read_progress(records)
        if all_failed(ids, said):
            keep_nothing("ncu", args.out / report.name, ids, said)
            return LOST
        raise CaptureError(
            "\n".join([_ending(outcome) or "ncu wrote no kernel", *progress.tail]), NOTHING
        )
    return _keep(args, points, held, stage, command, progress, outcome, found)


def _keep(
    args: argparse.Namespace,
    points: list[dict[str, Any]],
    held: Held,
    stage: Path,
    command: Sequence[str],
    progress: ProfilerOutput,
    outcome: Outcome,
    found: Found | None,
) -> int:
    ids = [point["id"] for point in points]
    lost = (
        []
        if found is None
        else lost_points(ids, found, read_progress(progress.records), _ending(outcome))
    )
    notes = _notes(progress, outcome, found)
    report = stage / f"{args.name}.ncu-rep"
    if not scrub_report(report):
        notes.append(
            "the report's layout is unknown: host name and command line are as ncu stored them"
        )
    record = capture_record(
        "ncu",
        origin_of(held.gpu, ncu=ncu_version()),
        _shown(command, stage, args),
        ids,
        found,
        lost,
        outcome.wall_s,
        notes,
    )
    for entry in lost:
        print(f"lost: {entry['point']}: {entry['reason']}", file=sys.stderr)
    report.replace(args.out / report.name)
    write_json(args.out / f"{args.name}.json", record)
    truncated = found is not None and found.total < progress.kernels
    return LOST if lost or outcome.timed_out or truncated else COMPLETE


def ncu_version() -> str | None:
    """`2025.3.1.0`, as `ncu --version` says it."""
    return parse_version(output_of([ncu_program(), "--version"]) or "")


def parse_version(text: str) -> str | None:
    """The version number in a tool's --version text."""
    match = re.search(r"[Vv]ersion\s+(\d[\w.]*)", text)
    return match.group(1).rstrip(".") if match else None


def _count_action(action: Any, wanted: set[str], found: Found) -> None:
    found.total += 1
    point = next((name for name in _nvtx_names(action) if name in wanted), None)
    if point is None:
        found.unattributed += 1
        return
    found.kernels[point] = found.kernels.get(point, 0) + 1
    metric = action.metric_by_name(DURATION)
    value = metric.value() if metric is not None else None
    if metric is not None and (value is None or math.isnan(value)):
        found.failed[point] = found.failed.get(point, 0) + 1


def _nvtx_names(action: Any) -> list[str]:
    state = action.nvtx_state()
    if state is None:
        return []
    domains = [state.domain_by_id(d) for d in state.domains()]
    return [name for domain in domains for name in reversed(domain.push_pop_ranges())]


def _notes(progress: ProfilerOutput, outcome: Outcome, found: Found | None) -> list[str]:
    notes = [_ending(outcome)] if _ending(outcome) else []
    if found is None:
        return [*notes, "completeness not checked: the package ncu-report is not installed"]
    if found.total < progress.kernels:
        notes.append(
            f"the report holds {found.total} of the {progress.kernels} kernels that ncu profiled"
        )
    return notes


def _ending(outcome: Outcome) -> str:
    if outcome.timed_out:
        return f"stopped at the time limit after {outcome.wall_s:.0f} s"
    ended_well = outcome.returncode in (0, SOME_POINTS_FAILED)
    return "" if ended_well else f"ncu ended with status {outcome.returncode}"


def _shown(command: Sequence[str], stage: Path, args: argparse.Namespace) -> list[str]:
    words = [word.replace(f"{os.path.relpath(stage)}/", "") for word in command]
    return scrub_command([Path(words[0]).name, *words[1:]])


def _words(text: str | None) -> list[str]:
    return [word for word in re.split(r"[,\s]+", text or "") if word]


def add_common_arguments(parser: argparse.ArgumentParser, name: str) -> None:
    """What both profilers take."""
    parser.add_argument("target", help="kernel target, as `ncuflow launch` knows it")
    parser.add_argument("--points", type=Path, required=True, help="points.json of the batch")
    parser.add_argument(
        "--out", type=Path, required=True, help="folder for the report and its record"
    )
    parser.add_argument("--name", default=name, help=f"name of both files (default {name})")
    parser.add_argument(
        "--timing",
        type=Path,
        help="timing.jsonl: only points that are ok there, which are not checked again",
    )
    parser.add_argument("--timeout", type=float, help="seconds the profiled run may take")
    parser.add_argument("--lock-timeout", type=float, help="seconds to wait for a free GPU")


def configure(parser: argparse.ArgumentParser) -> None:
    add_common_arguments(parser, "sweep")
    parser.add_argument("--sections", help="ncu sections, separated by commas")
    parser.add_argument(
        "--registry", action="store_true", help="collect the counters of the metric registry"
    )
    parser.add_argument("--metrics", help="further metrics, as ncu's --metrics takes them")
    parser.add_argument("--deep", action="store_true", help="--set full")
    parser.add_argument(
        "--import-source", action="store_true", help="embed source files (never ship such a report)"
    )
    parser.add_argument(
        "--clock-control", default="none", choices=("none", "base"), help="default none"
    )
    parser.add_argument("--repeats", type=int, default=1, help="launches of each point (default 1)")
    parser.set_defaults(flush=False)  # ncu flushes L2 itself
