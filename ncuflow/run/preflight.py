"""Preflight: what is here, what is missing, and what to do about it."""

import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, Literal

from ncuflow import answer, process
from ncuflow.evidence import provenance as provenance_of
from ncuflow.evidence.points import Contents
from ncuflow.evidence.provenance import origin, whole
from ncuflow.gpu import nvml
from ncuflow.gpu.lock import gpu_lock
from ncuflow.io import JsonObject, scratch, write_json
from ncuflow.model import Provenance
from ncuflow.origin import package_version
from ncuflow.run import builds, ceilings, ncu, nsys, profiler
from ncuflow.run.ceilings import Driver

DISK_NEEDED_GB = 5.0
TOOLS = ("ncu", "nsys", "nvcc")
DCGM = frozenset({"nv-hostengine", "dcgm-exporter", "dcgmi"})  # programs that hold the counters
UNTOLD = "the driver does not tell"
# What helps where a check finds less than it looks for.
REMEDIES = {
    "gpu": "recorded evidence needs none; to measure, use a machine with an NVIDIA GPU",
    "clocks": "free the GPU or wait until it has cooled down",
    "cuda toolkit": "install the CUDA toolkit and set CUDA_HOME",
    "torch": "pip install torch",
    "flashinfer": "pip install flashinfer-python",
    "ncu-report": "pip install ncu-report",
    "ncu": "install Nsight Compute, or set NCUFLOW_NCU; without it the evidence has no counters",
    "nsys": "install Nsight Systems, or set NCUFLOW_NSYS; without it there are no timelines",
    "counters": ncu.REMEDY,
    "gpu processes": "timings share the GPU with them: stop them or wait",
    "dcgm": "it holds the counters: `dcgmi profile --pause`, afterwards `--resume`",
    "ncu lock": "ask its owner to remove nsight-compute-lock from the temporary folder, or set TMPDIR",
    "ninja": "pip install ninja",
    "g++": "install the system's C++ compiler (Debian: apt install g++)",
    "disk": f"reports and the JIT cache want {DISK_NEEDED_GB:.0f} GB",
    "ceilings": "install what is missing, free the GPU; until then rates are compared with the datasheet alone",
}


def finding(check: str, status: str, found: str, remedy: str | None = None) -> JsonObject:
    """One line of the preflight; one that is not ok says what helps."""
    helps = None if status == "ok" else remedy or REMEDIES[check]
    return {"check": check, "status": status, "found": found, "remedy": helps}


def installed(check: str, version: str | None) -> JsonObject:
    """A package or a tool, or how to get it."""
    return finding(check, "ok" if version else "missing", version or "not found")


def gpu_findings(gpu: JsonObject | None) -> list[JsonObject]:
    """GPU, driver and clocks, from nvml.DriverQuery.facts."""
    if gpu is None:
        return [finding("gpu", "missing", "no NVIDIA GPU visible")]
    memory = f", {gpu['memory_mib'] / 1024:.0f} GiB" if gpu["memory_mib"] else ""
    found = f"{gpu['gpu']}, compute capability {gpu['compute_capability']}{memory}"
    return [
        finding("gpu", "ok", found),
        finding("driver", "ok", str(gpu["driver"])),
        clock_finding(gpu),
    ]


def clock_finding(gpu: JsonObject) -> JsonObject:
    """Clocks now and why they are held back. An idle GPU's low clock is no fault."""
    if gpu["sm_mhz"] is None:
        return finding("clocks", "warn", UNTOLD, "timings are kept with the clocks unknown")
    told = {name: "?" if value is None else value for name, value in gpu.items()}
    found = "SM {sm_mhz} of {sm_max_mhz} MHz, memory {memory_mhz} MHz".format(**told)
    if gpu["throttle"]:
        return finding("clocks", "warn", f"{found}; held back: {', '.join(gpu['throttle'])}")
    return finding("clocks", "ok", found)


def torch_finding(version: str, found: JsonObject) -> JsonObject:
    """An installed torch, and what `TorchCheck.answer` says of it."""
    if found.get("timed_out"):
        words = f"{version}, not loaded within {LIMIT_S:.0f} s"
        remedy = "from a slow disk it takes long once: load it by hand, python -c 'import torch'"
        return finding("torch", "warn", words, remedy)
    if found.get("error"):
        words = f"{version}, cannot be loaded: {found['error']}"
        return finding("torch", "fail", words, "install what is missing, or torch anew")
    if found["gpu"]:
        return finding("torch", "ok", version)
    built = f"for CUDA {found['cuda']}, driver too old?" if found["cuda"] else "without CUDA"
    remedy = "install a torch that is built for the driver's CUDA, which nvidia-smi shows"
    return finding("torch", "fail", f"{version}, sees no GPU: built {built}", remedy)


def counter_finding(refused: bool | None) -> JsonObject:
    """Permission to read performance counters."""
    if refused is None:
        return finding("counters", "warn", UNTOLD, f"if ncu fails: {ncu.REMEDY}")
    if refused:
        return finding("counters", "fail", "refused to this user (RmProfilingAdminOnly: 1)")
    return finding("counters", "ok", "allowed")


def lock_finding(lock: Path, uid: int) -> JsonObject:
    """ncu's own lock file, which outlives a killed ncu and shuts out other users."""
    try:
        ours = lock.stat().st_uid == uid
    except OSError:
        return finding("ncu lock", "ok", "none")
    if ours:
        return finding("ncu lock", "ok", "there, and ours")
    return finding("ncu lock", "warn", f"{lock.name} of another user in the temporary folder")


def process_finding(count: int | None) -> JsonObject:
    """Other programs on the GPU."""
    if count == 0:
        return finding("gpu processes", "ok", "none")
    return finding(
        "gpu processes", "warn", UNTOLD if count is None else f"{count} compute processes"
    )


def dcgm_finding(processes: str | None) -> JsonObject:
    """DCGM holds the counters while it runs: `ps -eo comm`."""
    running = DCGM & {line.strip() for line in (processes or "").splitlines()}
    return finding("dcgm", *(("warn", "running") if running else ("ok", "not running")))


def cache_finding(cache: Path, shown: str) -> JsonObject:
    """Place, modules and size of FlashInfer's JIT cache."""
    modules = list(cache.glob("*/*/cached_ops/*/*.so"))
    if not modules:
        return finding("jit cache", "ok", f"{shown}: empty, the first run compiles")
    size = sum(path.stat().st_size for path in modules) / 2**20
    return finding("jit cache", "ok", f"{shown}: {len(modules)} modules, {size:.0f} MiB")


def disk_finding(free_bytes: int) -> JsonObject:
    """Room for reports and the JIT cache."""
    free = free_bytes / 1e9
    if free < DISK_NEEDED_GB:
        return finding("disk", "warn", f"{free:.1f} GB free")
    return finding("disk", "ok", f"{free:.0f} GB free")


def cache_place() -> tuple[Path, str]:
    """FlashInfer's cache folder, and how to write it without a machine's paths."""
    base = Path(os.environ.get("FLASHINFER_WORKSPACE_BASE") or Path.home())
    tail = Path(".cache") / "flashinfer"
    if base.is_relative_to(Path.home()):
        return base / tail, f"~/{(base / tail).relative_to(Path.home())}"
    return base / tail, f"$FLASHINFER_WORKSPACE_BASE/{tail}"


def tool_versions() -> dict[str, str | None]:
    """Versions of ncu, nsys and nvcc, None where one is not here. Each may take a second to answer: all are asked at once."""
    with ThreadPoolExecutor() as pool:
        return dict(zip(TOOLS, pool.map(_tool_version, TOOLS), strict=True))


def _tool_version(name: str) -> str | None:
    program = profiler.tool(name)
    if program is None:
        return None
    text = process.output_of([program, "--version"]) or ""
    release = re.search(r"release [\d.]+, V([\d.]+)", text)
    return release.group(1) if release else profiler.parse_version(text)


def provenance(
    gpu: JsonObject | None,
    tools: dict[str, str | None],
    evidence_tier: str,
    clock_policy: str,
) -> Provenance:
    """Where numbers come from: hardware, versions, date. No host, no path."""
    device = nvml.cuda() | gpu if gpu else {}
    made = origin(device.get("gpu"), device.get("driver"), **tools)
    policy = None if evidence_tier == "C" else clock_policy
    known = {**device, **made, "tier": evidence_tier, "clock_policy": policy}
    return whole(known | {"cuda": made["cuda"] or tools["nvcc"]})


def findings(
    gpu: JsonObject | None, tools: dict[str, str | None], origin: Provenance
) -> list[JsonObject]:
    """All checks, in the order of a reader's questions."""
    versions = {
        "cuda toolkit": tools["nvcc"],
        "torch": origin["torch"],
        "flashinfer": origin["flashinfer"],
        "ncu-report": package_version("ncu-report"),
        "ncu": origin["ncu"],
        "nsys": origin["nsys"],
    }
    rows = gpu_findings(gpu) + [installed(check, version) for check, version in versions.items()]
    if gpu is not None:
        rows.append(counter_finding(profiler.counters_refused_here()))
        rows.append(process_finding(nvml.first().processes()))
        rows.append(dcgm_finding(process.output_of(["ps", "-eo", "comm"])))
    rows.append(lock_finding(Path(tempfile.gettempdir()) / "nsight-compute-lock", os.getuid()))
    rows.append(cache_finding(*cache_place()))
    rows += [installed(name, shutil.which(name) and "found") for name in ("ninja", "g++")]
    return [*rows, disk_finding(shutil.disk_usage(Path.cwd()).free)]


def preflight(recorded: bool, clock_policy: str, counters: bool = True) -> JsonObject:
    """The whole of environment.json."""
    gpu = nvml.first().facts()
    tier, why = "C", "recorded evidence was asked for"
    if not recorded:
        tier, why = profiler.tier_reason(gpu, counters)
    tools = tool_versions()
    origin = provenance(gpu, tools, tier, clock_policy)
    return {
        "schema": 1,
        "tier": tier,
        "tier_reason": why,
        "provenance": origin,
        "gpu": gpu,
        "jit_cache": cache_place()[1],
        "findings": findings(gpu, tools, origin),
    }


@contextmanager
def gpu_held() -> Iterator[bool]:
    """Hold a visible GPU; False where there is none."""
    try:
        with gpu_lock() as held:
            os.environ["CUDA_VISIBLE_DEVICES"] = held.gpu.uuid
            yield True
    except nvml.NoGpuError:
        yield False


def reached() -> JsonObject:
    """ceilings.json of the GPU that is held. What is broken fails with whatever it likes, a missing library for one."""
    try:
        with Driver() as device:
            return ceilings.measure(device)
    except Exception as error:
        return ceilings.unmeasured(builds.one_line(error))


def _probe(result: JsonObject, tools: Sequence[str]) -> None:
    """What a tiny profile by each of these tools that are here found out, in its row; without ncu there are no counters."""
    rows = {row["check"]: row for row in result["findings"]}
    here = [tool for tool in tools if rows[tool]["status"] == "ok"]
    if "counters" in rows and rows["counters"]["status"] == "fail":
        here = [tool for tool in here if tool != "ncu"]
    for tool, why in unfit(here).items():
        words = f"{tool} {rows[tool]['found']}: {why}"
        rows[tool] |= finding(tool, "fail", words, OF_PROFILER[tool])
        if tool == "ncu" and result["tier"] == "A":
            result |= {"tier": "B", "tier_reason": words}
            result["provenance"]["tier"] = "B"


class PreflightAnswer(answer.Answer):
    """What can be measured on this machine, what is missing, and what helps: what environment.json has."""

    ROWS: ClassVar[tuple[str, ...]] = ("findings",)
    command: Literal["preflight"] = "preflight"
    """The command that wrote this JSON."""
    tier: answer.Tier
    """The tier of what would be measured here."""
    tier_reason: str
    """The reason for that tier."""
    provenance: JsonObject
    """The GPU, versions and date; null where they are not known."""
    gpu: JsonObject | None
    """What the driver says of the GPU: clocks in MHz, memory in MiB; null without a GPU."""
    jit_cache: str
    """The folder of FlashInfer's compiled modules."""
    findings: list[provenance_of.Finding]
    """Each check: ok, warn, missing or fail, and the remedy of what is not ok."""


def measured(
    recorded: bool,
    clock_policy: str,
    counters: bool = True,
    reaches: Path | None = None,
    probe: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole of environment.json. reaches: a file for what the GPU reaches, which is measured then, and each tool of `probe`
    tried by a tiny profile."""
    if reaches and nvml.names():
        Thread(target=ceilings.load).start()  # while the tools are asked
    with gpu_held() if reaches else nullcontext(False) as held:
        version = package_version("torch") if held else None
        check = TorchCheck() if version else None  # lasts as long as all that follows
        result = preflight(recorded, clock_policy, counters)
        if reaches:  # after it: the measurement is a program at the GPU
            found = reached() if held else ceilings.unmeasured("no GPU is visible")
            if held and found.get("reason"):
                result["findings"].append(finding("ceilings", "warn", found["reason"]))
            write_json(reaches, found)
            if held and not found.get("reason"):
                _probe(result, probe)
        if check and version:
            rows, row = result["findings"], torch_finding(version, check.answer())
            result["findings"] = [row if r["check"] == "torch" else r for r in rows]
    return result


LIMIT_S = 120.0  # for torch to load, and for a report of a tiny kernel
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
    """Whether torch sees the GPU: the question, on its way since this was made."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._outcome: process.ProcessExit | None = None
        self._thread = Thread(target=self._ask, daemon=True)
        self._thread.start()

    def _ask(self) -> None:
        command, environment = [sys.executable, "-c", ASK], process.python_environment()
        with suppress(process.CaptureError):
            self._outcome = process.run_child(
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
            return {"error": builds.as_line(**found)} if "kind" in found else found
        status = self._outcome.returncode if self._outcome else None
        return {"error": f"its process ended with status {status}"}


PROGRAM = (
    f"from {ceilings.__name__} import Driver\n"
    "with Driver() as device:\n"
    "    device.spin(1000)\n"
    "    device.synchronize()\n"
)
OF_PROFILER = {
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
        said = profiler.ProfilerOutput(f"preflight {tool}", 1, stage / "records")
        try:
            outcome, found = (_ncu if tool == "ncu" else _nsys)(stage, said)
        except process.CaptureError as error:
            return str(error)
    if said.refused:
        return "the driver refuses performance counters (ERR_NVGPUCTRPERM)"
    if found is None or found.total:
        return None
    ended = f" within {LIMIT_S:.0f} s" if outcome.timed_out else ""
    ended += f" (status {outcome.returncode})" * bool(outcome.returncode)
    return f"made no report of a tiny kernel{ended}{said.last and ': '}{said.last}"


def _ncu(stage: Path, said: profiler.ProfilerOutput) -> tuple[process.ProcessExit, Contents | None]:
    command = [ncu.ncu_program(), "--clock-control", "none", "--metrics", ncu.DURATION]
    command += ["-f", "-o", str(stage / "probe"), sys.executable, "-c", PROGRAM]
    outcome = process.run_child(
        command, env=process.minimal_environment(), timeout=LIMIT_S, on_line=said.line
    )
    report = stage / "probe.ncu-rep"
    return outcome, ncu.count_kernels(report, []) if report.exists() else Contents()


def _nsys(stage: Path, said: profiler.ProfilerOutput) -> tuple[process.ProcessExit, Contents]:
    (stage / "home").mkdir()
    env = nsys.program_environment({}, stage / "home")
    profiled, restore = nsys.profile_command(str(stage / "probe"))
    command = [*profiled, *restore, sys.executable, "-c", PROGRAM]
    outcome = process.run_child(command, env=env, timeout=LIMIT_S, on_line=said.line)
    sqlite = nsys.export(stage / "probe.nsys-rep", env, LIMIT_S, said.line)
    return outcome, nsys.count_kernels(sqlite, []) if sqlite else Contents()
