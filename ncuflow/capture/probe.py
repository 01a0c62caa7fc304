"""A tiny profile by a tool: whether it makes a report on this machine, which its version does not tell."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ncuflow.capture import ncu, nsys
from ncuflow.capture.progress import ProfilerOutput
from ncuflow.evidence.points import Contents
from ncuflow.io import scratch
from ncuflow.process import CaptureError, ProcessExit, minimal_environment, run_child
from ncuflow.runner import driver

LIMIT_S = 120.0
PROGRAM = (
    f"from {driver.__name__} import Driver\n"
    "with Driver() as device:\n"
    "    device.spin(1000)\n"
    "    device.synchronize()\n"
)
REMEDY = {
    "ncu": "install another Nsight Compute, or set NCUFLOW_NCU; without it the evidence has no counters",
    "nsys": "install another Nsight Systems, or set NCUFLOW_NSYS; without it there are no timelines",
}


def unfit(tools: Sequence[str]) -> dict[str, str]:
    """Why tools make no report of a kernel on the GPU that is held, by tool; of one that does, nothing.

    All are asked at once, and one that fails beside another again by itself.
    """
    with ThreadPoolExecutor() as pool:
        first = dict(zip(tools, pool.map(why_unfit, tools), strict=True))
    again = {tool: why_unfit(tool) for tool, why in first.items() if why is not None}
    return {tool: why for tool, why in again.items() if why is not None}


def why_unfit(tool: str) -> str | None:
    """Why a tool makes no report of a kernel here; None where it does."""
    with scratch() as stage:
        said = ProfilerOutput(f"preflight {tool}", 1, stage / "records")
        try:
            outcome, found = (_ncu if tool == "ncu" else _nsys)(stage, said)
        except CaptureError as error:
            return str(error)
    if said.refused:
        return "the driver refuses performance counters (ERR_NVGPUCTRPERM)"
    if found is None or found.total:
        return None
    ended = f" within {LIMIT_S:.0f} s" if outcome.timed_out else ""
    ended += f" (status {outcome.returncode})" * bool(outcome.returncode)
    return f"made no report of a tiny kernel{ended}{said.last and ': '}{said.last}"


def _ncu(stage: Path, said: ProfilerOutput) -> tuple[ProcessExit, Contents | None]:
    command = [ncu.ncu_program(), "--clock-control", "none", "--metrics", ncu.DURATION]
    command += ["-f", "-o", str(stage / "probe"), sys.executable, "-c", PROGRAM]
    outcome = run_child(command, env=minimal_environment(), timeout=LIMIT_S, on_line=said.line)
    report = stage / "probe.ncu-rep"
    return outcome, ncu.count_kernels(report, []) if report.exists() else Contents()


def _nsys(stage: Path, said: ProfilerOutput) -> tuple[ProcessExit, Contents]:
    (stage / "home").mkdir()
    env = nsys.program_environment({}, stage / "home")
    profiled, restore = nsys.profile_command(str(stage / "probe"))
    command = [*profiled, *restore, sys.executable, "-c", PROGRAM]
    outcome = run_child(command, env=env, timeout=LIMIT_S, on_line=said.line)
    sqlite = nsys.export(stage / "probe.nsys-rep", env, LIMIT_S, said.line)
    return outcome, nsys.count_kernels(sqlite, []) if sqlite else Contents()
