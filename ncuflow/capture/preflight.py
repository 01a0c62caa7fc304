"""Preflight: what is here, what is missing, and what to do about it.

    ncuflow preflight --out environment.json [--ceilings ceilings.json] [--recorded]

Works on any machine, exit status 0. A finding that is not "ok" carries a remedy. With --ceilings it measures, too, what
the GPU reaches, holds its lock meanwhile, and asks whether torch sees the GPU; where that cannot be measured every figure
is null, with the reason.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Thread
from typing import Any, Literal

from ncuflow import answer
from ncuflow.capture import machine, probe
from ncuflow.capture.ncu import REMEDY, parse_version
from ncuflow.capture.torch_check import LIMIT_S, TorchCheck
from ncuflow.evidence import provenance as provenance_of
from ncuflow.evidence.provenance import origin, whole
from ncuflow.gpu import nvml
from ncuflow.gpu.nvml import NoGpuError
from ncuflow.gpu.turns import gpu_lock
from ncuflow.io import UsageError, write_json
from ncuflow.model import Provenance
from ncuflow.origin import package_version
from ncuflow.process import output_of
from ncuflow.runner import ceilings
from ncuflow.runner.builds import one_line
from ncuflow.runner.driver import Driver

Finding = dict[str, Any]
DISK_NEEDED_GB = 5.0
TOOLS = ("ncu", "nsys", "nvcc")


def finding(check: str, status: str, found: str, remedy: str | None = None) -> Finding:
    """One line of the preflight; a finding that is not ok must say what helps."""
    if status != "ok" and not remedy:
        raise ValueError(f"finding {check!r} is {status} and has no remedy")
    return {
        "check": check,
        "status": status,
        "found": found,
        "remedy": remedy if status != "ok" else None,
    }


def gpu_findings(gpu: dict[str, Any] | None) -> list[Finding]:
    """GPU, driver and clocks, from nvml.DriverQuery.facts."""
    if gpu is None:
        remedy = "recorded evidence needs none; to measure, use a machine with an NVIDIA GPU"
        return [finding("gpu", "missing", "no NVIDIA GPU visible", remedy)]
    memory = f", {gpu['memory_mib'] / 1024:.0f} GiB" if gpu["memory_mib"] else ""
    rows = [
        finding(
            "gpu", "ok", f"{gpu['gpu']}, compute capability {gpu['compute_capability']}{memory}"
        )
    ]
    rows.append(finding("driver", "ok", str(gpu["driver"])))
    return [*rows, clock_finding(gpu)]


def clock_finding(gpu: dict[str, Any]) -> Finding:
    """Clocks now and why they are held back. An idle GPU's low clock is no fault."""
    found = "SM {sm_mhz} of {sm_max_mhz} MHz, memory {memory_mhz} MHz".format(**_whole(gpu))
    if gpu["sm_mhz"] is None:
        return finding(
            "clocks", "warn", "the driver does not tell", "timings are kept with the clocks unknown"
        )
    if gpu["throttle"]:
        reasons = ", ".join(gpu["throttle"])
        return finding(
            "clocks",
            "warn",
            f"{found}; held back: {reasons}",
            "free the GPU or wait until it has cooled down",
        )
    return finding("clocks", "ok", found)


def _whole(gpu: dict[str, Any]) -> dict[str, str]:
    return {k: "?" if v is None else str(v) for k, v in gpu.items()}


def package_finding(check: str, version: str | None, remedy: str) -> Finding:
    """An installed package or tool, or how to get it."""
    return (
        finding(check, "ok", version) if version else finding(check, "missing", "not found", remedy)
    )


def torch_finding(version: str, found: dict[str, Any]) -> Finding:
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


def counter_finding(refused: bool | None) -> Finding:
    """Permission to read performance counters."""
    if refused is None:
        return finding("counters", "warn", "the driver does not tell", f"if ncu fails: {REMEDY}")
    if refused:
        return finding("counters", "fail", "refused to this user (RmProfilingAdminOnly: 1)", REMEDY)
    return finding("counters", "ok", "allowed")


def lock_finding(lock: Path, uid: int) -> Finding:
    """ncu's own lock file, which outlives a killed ncu and shuts out other users."""
    try:
        owner = lock.stat().st_uid
    except OSError:
        return finding("ncu lock", "ok", "none")
    if owner == uid:
        return finding("ncu lock", "ok", "there, and ours")
    remedy = "ask its owner to remove nsight-compute-lock from the temporary folder, or set TMPDIR"
    return finding(
        "ncu lock", "warn", "nsight-compute-lock of another user in the temporary folder", remedy
    )


def process_finding(count: int | None) -> Finding:
    """Other programs on the GPU."""
    if count == 0:
        return finding("gpu processes", "ok", "none")
    found = "the driver does not tell" if count is None else f"{count} compute processes"
    return finding(
        "gpu processes", "warn", found, "timings share the GPU with them: stop them or wait"
    )


def dcgm_finding(processes: str | None) -> Finding:
    """DCGM holds the counters while it runs: `ps -eo comm`."""
    names = {line.strip() for line in (processes or "").splitlines()}
    if not names & {"nv-hostengine", "dcgm-exporter", "dcgmi"}:
        return finding("dcgm", "ok", "not running")
    return finding(
        "dcgm",
        "warn",
        "running",
        "it holds the counters: `dcgmi profile --pause`, afterwards `--resume`",
    )


def cache_finding(cache: Path, shown: str) -> Finding:
    """Place, modules and size of FlashInfer's JIT cache."""
    modules = list(cache.glob("*/*/cached_ops/*/*.so"))
    if not modules:
        return finding("jit cache", "ok", f"{shown}: empty, the first run compiles")
    size = sum(path.stat().st_size for path in modules) / 2**20
    return finding("jit cache", "ok", f"{shown}: {len(modules)} modules, {size:.0f} MiB")


def ceiling_findings(found: dict[str, Any]) -> list[Finding]:
    """Why a GPU that is here has no measured ceilings."""
    if not found.get("reason"):
        return []
    remedy = "install what is missing, free the GPU; until then rates are held against the datasheet alone"
    return [finding("ceilings", "warn", found["reason"], remedy)]


def toolchain_findings(which: Callable[[str], str | None] = shutil.which) -> list[Finding]:
    """What FlashInfer's JIT needs beside nvcc."""
    remedies = {
        "ninja": "pip install ninja",
        "g++": "install the system's C++ compiler (Debian: apt install g++)",
    }
    return [
        finding(name, "ok", "found")
        if which(name)
        else finding(name, "missing", "not found", remedy)
        for name, remedy in remedies.items()
    ]


def disk_finding(free_bytes: int) -> Finding:
    """Room for reports and the JIT cache."""
    free = free_bytes / 1e9
    if free >= DISK_NEEDED_GB:
        return finding("disk", "ok", f"{free:.0f} GB free")
    return finding(
        "disk",
        "warn",
        f"{free:.1f} GB free",
        f"reports and the JIT cache want {DISK_NEEDED_GB:.0f} GB",
    )


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
    program = machine.tool(name)
    if program is None:
        return None
    text = output_of([program, "--version"]) or ""
    release = re.search(r"release [\d.]+, V([\d.]+)", text)
    return release.group(1) if release else parse_version(text)


def provenance(
    gpu: dict[str, Any] | None,
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
    gpu: dict[str, Any] | None, tools: dict[str, str | None], origin: Provenance
) -> list[Finding]:
    """All checks, in the order of a reader's questions."""
    cache, shown = cache_place()
    rows = gpu_findings(gpu)
    rows.append(
        package_finding("cuda toolkit", tools["nvcc"], "install the CUDA toolkit and set CUDA_HOME")
    )
    rows.append(package_finding("torch", origin["torch"], "pip install torch"))
    rows.append(
        package_finding("flashinfer", origin["flashinfer"], "pip install flashinfer-python")
    )
    rows.append(
        package_finding("ncu-report", package_version("ncu-report"), "pip install ncu-report")
    )
    ncu_remedy = (
        "install Nsight Compute, or set NCUFLOW_NCU; without it the evidence has no counters"
    )
    rows.append(package_finding("ncu", origin["ncu"], ncu_remedy))
    nsys_remedy = "install Nsight Systems, or set NCUFLOW_NSYS; without it there are no timelines"
    rows.append(package_finding("nsys", origin["nsys"], nsys_remedy))
    if gpu is not None:
        rows.append(counter_finding(machine.counters_refused_here()))
        rows.append(process_finding(nvml.first().processes()))
        rows.append(dcgm_finding(output_of(["ps", "-eo", "comm"])))
    rows.append(lock_finding(Path(tempfile.gettempdir()) / "nsight-compute-lock", os.getuid()))
    rows.append(cache_finding(cache, shown))
    rows += toolchain_findings()
    return [*rows, disk_finding(shutil.disk_usage(Path.cwd()).free)]


def preflight(recorded: bool, clock_policy: str, counters: bool = True) -> dict[str, Any]:
    """The whole of environment.json."""
    gpu = nvml.first().facts()
    evidence_tier, why = (
        ("C", "recorded evidence was asked for") if recorded else machine.tier_reason(gpu, counters)
    )
    tools = tool_versions()
    origin = provenance(gpu, tools, evidence_tier, clock_policy)
    return {
        "schema": 1,
        "tier": evidence_tier,
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
    except NoGpuError:
        yield False


def reached() -> dict[str, Any]:
    """ceilings.json of the GPU that is held. What is broken fails with whatever it likes, a missing library for one."""
    try:
        with Driver() as device:
            return ceilings.measure(device)
    except Exception as error:
        return ceilings.unmeasured(one_line(error))


def _probe(result: dict[str, Any], tools: Sequence[str]) -> None:
    """What a tiny profile by each of these tools that are here found out, in its row; without ncu there are no counters."""
    rows = {row["check"]: row for row in result["findings"]}
    here = [tool for tool in tools if rows[tool]["status"] == "ok"]
    if "counters" in rows and rows["counters"]["status"] == "fail":
        here = [tool for tool in here if tool != "ncu"]
    for tool, why in probe.unfit(here).items():
        words = f"{tool} {rows[tool]['found']}: {why}"
        rows[tool] |= finding(tool, "fail", words, probe.REMEDY[tool])
        if tool == "ncu" and result["tier"] == "A":
            result |= {"tier": "B", "tier_reason": words}
            result["provenance"]["tier"] = "B"


class PreflightAnswer(answer.Answer):
    """What can be measured on this machine, what is missing, and what helps: what environment.json has."""

    command: Literal["preflight"] = "preflight"
    """the command that answers"""
    tier: answer.Tier
    """of what would be measured here"""
    tier_reason: str
    """why it is that"""
    provenance: dict[str, Any]
    """GPU, versions and date, null where nobody can say"""
    gpu: dict[str, Any] | None
    """what the driver says of the GPU: clocks in MHz, memory in MiB; null without one"""
    jit_cache: str
    """where FlashInfer's compiled modules are"""
    findings: list[provenance_of.Finding]
    """each thing that was looked at: ok, warn, missing or fail, and the remedy of what is not ok"""


ANSWER = PreflightAnswer


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, help="environment.json; needed without --json")
    answer.options(parser)
    parser.add_argument("--ceilings", type=Path, help="ceilings.json: what the GPU reaches")
    parser.add_argument(
        "--recorded", action="store_true", help="recorded evidence is used, whatever is here"
    )
    parser.add_argument("--no-counters", action="store_true", help="ncu is not run: tier B at best")
    parser.add_argument(
        "--probe",
        action="append",
        choices=("ncu", "nsys"),
        default=[],
        help="with --ceilings: make a tiny profile by ncu, by nsys; may be repeated",
    )
    parser.add_argument(
        "--clock-policy", default="boost", help="what to record about clocks (default boost)"
    )


def run(args: argparse.Namespace) -> int:
    if args.out is None and not args.json:
        raise UsageError("give --out, or --json")
    if args.ceilings and nvml.names():
        Thread(target=ceilings.load).start()  # while the tools are asked
    with gpu_held() if args.ceilings else nullcontext(False) as held:
        version = package_version("torch") if held else None
        check = TorchCheck() if version else None  # lasts as long as all that follows
        result = preflight(args.recorded, args.clock_policy, not args.no_counters)
        if args.ceilings:  # after it: the measurement is a program at the GPU
            found = reached() if held else ceilings.unmeasured("no GPU is visible")
            result["findings"] += ceiling_findings(found) if held else []
            write_json(args.ceilings, found)
            if held and not found.get("reason"):
                _probe(result, args.probe)
        if check and version:
            rows, row = result["findings"], torch_finding(version, check.answer())
            result["findings"] = [row if r["check"] == "torch" else r for r in rows]
    if args.out is not None:
        write_json(args.out, result)
    if args.json:
        rows, left_out = answer.cut(result["findings"], args.limit)
        content = {
            name: result[name] for name in ("tier", "tier_reason", "provenance", "gpu", "jit_cache")
        }
        answer.tell(
            PreflightAnswer.model_validate(content | {"findings": rows, "left_out": left_out})
        )
        return 0
    print(f"tier {result['tier']}: {result['tier_reason']}")
    for row in result["findings"]:
        if row["status"] != "ok":
            print(f"{row['status']:8}{row['check']}: {row['found']}; {row['remedy']}")
    return 0
