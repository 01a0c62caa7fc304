"""Measure FlashInfer's JIT: cold build, disk hit, memory hit, first launch.

    ncuflow jit --out jit_analysis.json [--modules decode,rope]
                          [--disk-repeats 3] [--memory-repeats 20] [--workdir DIR] [--ignore-aot]

Each measurement is a fresh process on a private FLASHINFER_WORKSPACE_BASE, removed afterwards
unless --workdir names one. A prebuilt (AOT) module is loaded before any JIT: then `aot` is true and
nothing is said about compiling, unless --ignore-aot hides them. Exit status: 0; 3 if some modules
failed; 1 if all did.
"""

from __future__ import annotations

import json
import os
import re
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from ncuflow.gpu.lock import gpu_lock
from ncuflow.gpu.nvml import names
from ncuflow.io import JsonObject, UsageError, scratch, write_json
from ncuflow.origin import flashinfer_version, now, package_version
from ncuflow.process import CaptureError, python_environment, run_child
from ncuflow.run.jitprobe import MARKER, plain_path
from ncuflow.target.contract import jit_modules

SHOWN_ENVIRONMENT = re.compile(r"^(FLASHINFER_\w+|MAX_JOBS|CUDA_HOME|CC|CXX)$")
METHOD = (
    "each step in a fresh process; imports and the start of CUDA before the timer; private "
    "workspace; disk hit: build_and_load with the library on disk; memory hit: FlashInfer's cached "
    "getter, asked again; "
    "first launch: run and synchronise after preparation, against the median of later launches"
)


@dataclass(frozen=True, kw_only=True)
class JitAsked:
    """What a measurement of the JIT is given."""

    out: Path
    """jit_analysis.json"""
    modules: str | None = None
    """separated by commas; default: all that targets declare"""
    disk_repeats: int = 3
    """fresh processes with the library on disk"""
    memory_repeats: int = 20
    """batches of 100 requests to a loaded module"""
    workdir: Path | None = None
    """keep the workspaces here (default: temporary)"""
    ignore_aot: bool = False
    """compile although prebuilt modules are installed"""
    timeout: float = 1800.0
    """seconds for one process (default: 1800)"""
    lock_timeout: float | None = None
    """seconds to wait for a free GPU"""


def analyse(name: str, workspace: Path, env: Mapping[str, str], asked: JitAsked) -> JsonObject:
    """All measurements of one module. An error of a step is kept with the steps before it."""
    env = {**env, "FLASHINFER_WORKSPACE_BASE": str(workspace)}
    result: JsonObject = {"target": jit_modules()[name][0].name}
    result["cold"] = probe("cold", name, env, asked)
    if "error" not in result["cold"]:
        result["cache"] = cache_tree(workspace)
        disks = [probe("disk", name, env, asked) for _ in range(asked.disk_repeats)]
        result["disk"] = summarise(disks)
        result["first_launch"] = _first_launch(name, env, asked)
    result["aot"] = bool(result["cold"].get("aot"))
    return result


def _first_launch(name: str, env: Mapping[str, str], asked: JitAsked) -> JsonObject:
    """The one step that measures a GPU, and so holds one; elsewhere its process says that there is none."""
    try:
        with gpu_lock(asked.lock_timeout) as held:
            return probe("first", name, {**env, **held.environ}, asked)
    except CaptureError as error:
        print(f"jit: without a GPU ({error})", file=sys.stderr)
        return probe("first", name, env, asked)


def probe(step: str, name: str, env: Mapping[str, str], asked: JitAsked) -> JsonObject:
    """Result of one `ncuflow jit-probe` process, or {"error": its last lines}."""
    lines: list[str] = []
    command = [sys.executable, "-m", "ncuflow", "jit-probe", step, name]
    command += ["--repeats", str(asked.memory_repeats)]
    command += ["--ignore-aot"] if asked.ignore_aot else []
    print(f"jit: {name}: {step}", file=sys.stderr, flush=True)
    outcome = run_child(command, env=env, timeout=asked.timeout, on_line=lines.append)
    found = [line[len(MARKER) :] for line in lines if line.startswith(MARKER)]
    if found:
        parsed: JsonObject = json.loads(found[-1])
        return parsed
    ended = "time limit" if outcome.timed_out else f"status {outcome.returncode}"
    return {"error": f"{ended}: " + " | ".join(plain_path(line.strip()) for line in lines[-3:])}


def summarise(disks: Sequence[Mapping[str, Any]]) -> JsonObject:
    """Medians over processes; the samples stay beside them (s)."""
    good = [disk for disk in disks if "error" not in disk]
    summary: JsonObject = {
        "n": len(good),
        "errors": [disk["error"] for disk in disks if "error" in disk],
    }
    for key in ("generation_s", "build_and_load_s", "up_to_date_check_s", "memory_hit_s"):
        samples = [disk[key] for disk in good if disk.get(key) is not None]
        summary[key] = statistics.median(samples) if samples else None
        summary[f"{key}_samples"] = samples
    refused = [disk["memory_hit_refused"] for disk in good if disk.get("memory_hit_refused")]
    return {
        **summary,
        "aot": any(disk.get("aot") for disk in good),
        "memory_hit_refused": refused[0] if refused else None,
    }


def cache_tree(workspace: Path) -> dict[str, int]:
    """{path below the workspace: bytes} of what the cold build left."""
    paths = sorted(path for path in workspace.rglob("*") if path.is_file())
    return {str(path.relative_to(workspace)): path.stat().st_size for path in paths}


def shown_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The variables that change a build, without the machine's paths."""
    return {name: plain_path(value) for name, value in env.items() if SHOWN_ENVIRONMENT.match(name)}


def measure(asked: JitAsked) -> JsonObject:
    """jit_analysis.json: every module in turn. Builds hold no GPU; a first launch does."""
    env = python_environment()
    with ExitStack() as stack:
        base = asked.workdir or stack.enter_context(scratch())
        modules = {
            name: analyse(name, fresh(base / name), env, asked)
            for name in module_names(asked.modules)
        }
    return {
        "schema": 1,
        "date": now(),
        "gpu": next(iter(names()), None),
        "cpu_count": os.cpu_count(),
        "flashinfer": flashinfer_version(),
        "torch": package_version("torch"),
        "aot_ignored": asked.ignore_aot,
        "method": METHOD,
        "environment": shown_environment(env),
        "modules": modules,
    }


def fresh(folder: Path) -> Path:
    """An empty workspace. Raises CaptureError if something is in it: no build there is cold."""
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise CaptureError(f"{folder}: not empty, so a build in it is not cold")
    return folder


def module_names(text: str | None) -> list[str]:
    """Names of --modules, checked; all where none are named."""
    if text is None:
        return [*jit_modules()]
    names = [name for name in re.split(r"[,\s]+", text) if name]
    unknown = [name for name in names if name not in jit_modules()]
    if unknown or not names:
        raise UsageError(
            f"--modules: unknown module {unknown}; there are {', '.join(jit_modules())}"
        )
    return names


def command(*, asked: Annotated[JitAsked, Parameter(name="*")]) -> int:
    """0 where all modules were measured, 3 where some were, 1 where none was."""
    result = measure(asked)
    failed = [name for name, module in result["modules"].items() if "error" in module["cold"]]
    for name in failed:
        print(f"jit: {name} failed: {result['modules'][name]['cold']['error']}", file=sys.stderr)
    if len(failed) == len(result["modules"]):
        return 1
    write_json(asked.out, result)
    return 3 if failed else 0
