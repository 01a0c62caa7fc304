"""Whether torch sees the GPU, and ncu and nsys make a report here, which their versions do not tell."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Thread

from ncuflow.evidence.points import Contents
from ncuflow.io import JsonObject, scratch
from ncuflow.process import (
    CaptureError,
    ProcessExit,
    minimal_environment,
    python_environment,
    run_child,
)
from ncuflow.run import ceilings, ncu, nsys
from ncuflow.run.builds import as_line
from ncuflow.run.profiler import ProfilerOutput

LIMIT_S = 60.0
MARK = "torch is "
# Its libraries load in a third of the time of its import, and what keeps torch from a GPU shows there: a library that is
# not found, a CUDA newer than the driver's, a driver that does not start. Where they do not load, the import has the last
# word, which may know other places.
ASK = f"""
import json

def by_its_libraries():
    import ctypes, importlib.util, runpy
    folder = importlib.util.find_spec("torch").submodule_search_locations[0]
    cuda = runpy.run_path(folder + "/version.py")["cuda"]
    driver, version = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
    driver.cuDriverGetVersion(ctypes.byref(version))
    if int(cuda.split(".")[0]) > version.value // 1000 or driver.cuInit(0):
        raise RuntimeError("the driver is older, or does not work")
    ctypes.CDLL(folder + "/lib/libtorch_python.so")
    return {{"gpu": True, "cuda": cuda}}

def by_itself():
    import torch
    return {{"gpu": torch.cuda.is_available(), "cuda": torch.version.cuda}}

try:
    found = by_its_libraries()
except Exception:
    try:
        found = by_itself()
    except Exception as error:
        found = {{"kind": type(error).__name__, "message": str(error)}}
print("\\n" + {MARK!r} + json.dumps(found), flush=True)
"""


class TorchCheck:
    """The question, on its way since this was made."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._outcome: ProcessExit | None = None
        self._thread = Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        command, environment = [sys.executable, "-c", ASK], python_environment()
        with suppress(CaptureError):
            self._outcome = run_child(
                command, env=environment, timeout=LIMIT_S, on_line=self._lines.append
            )

    def answer(self) -> JsonObject:
        """{"gpu": whether it sees one, "cuda": what it is built for, None without}, {"error": line}, or {"timed_out": True}."""
        self._thread.join()
        if self._outcome and self._outcome.timed_out:
            return {"timed_out": True}
        answers = [line.removeprefix(MARK) for line in self._lines if line.startswith(MARK)]
        if answers:
            found: JsonObject = json.loads(answers[-1])
            return {"error": as_line(**found)} if "kind" in found else found
        status = self._outcome.returncode if self._outcome else None
        return {"error": f"its process ended with status {status}"}


LIMIT_S = 120.0
PROGRAM = (
    f"from {ceilings.__name__} import Driver\n"
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
