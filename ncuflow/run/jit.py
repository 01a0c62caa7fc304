"""Measure FlashInfer's JIT: cold build, disk hit, memory hit, first launch.

    ncuflow jit --out jit_analysis.json [--modules decode,rope]
                          [--disk-repeats 3] [--memory-repeats 20] [--workdir DIR] [--ignore-aot]

Each measurement is a fresh process on a private FLASHINFER_WORKSPACE_BASE, removed afterwards
unless --workdir names one. A prebuilt (AOT) module is loaded before any JIT: then `aot` is true and
nothing is said about compiling, unless --ignore-aot hides them. Exit status: 0; 3 if some modules
failed; 1 if all did.

    ncuflow jit-probe cold|disk|first MODULE [--repeats N] [--ignore-aot]

is one measurement in a process of its own. Import of torch and FlashInfer and the start of CUDA lie before every timer. The
result is one line of JSON after the marker, because compilers and loggers write to the same stream.
"""

import contextlib
import importlib
import json
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ncuflow.gpu.lock import gpu_lock
from ncuflow.gpu.nvml import names
from ncuflow.io import JsonObject, UsageError, scratch, write_json
from ncuflow.origin import flashinfer_version, now, package_version
from ncuflow.process import CaptureError, python_environment, run_child
from ncuflow.target.contract import Target, jit_modules
from ncuflow.target.launch import Params
from ncuflow.target.source import Jit

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


MARKER = "JIT-PROBE "
CALLS = 100  # requests between two readings of the clock, because a single request takes less time than a reading


def start(ignore_aot: bool) -> JsonObject:
    """Import, start CUDA if there is a GPU, and say how long that took (s)."""
    started = time.perf_counter()
    import torch

    torch_s = time.perf_counter() - started
    flashinfer = importlib.import_module("flashinfer")
    import_s = time.perf_counter() - started - torch_s
    if torch.cuda.is_available():
        torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
    if ignore_aot:
        environment = importlib.import_module("flashinfer.jit.env")
        environment.FLASHINFER_AOT_DIR = Path(tempfile.gettempdir()) / "ncuflow-no-aot"  # type: ignore[attr-defined]
    total = time.perf_counter() - started
    return {
        "flashinfer": getattr(flashinfer, "__version__", None),
        "import_torch_s": torch_s,
        "import_flashinfer_s": import_s,
        "cuda_start_s": total - torch_s - import_s,
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def probe_cold(target: Target, module: Jit, repeats: int) -> JsonObject:
    """Generation, build and load of a module that is not in the cache, each by itself (s)."""
    (spec, *_), generation_s = timed(lambda: target.modules(params(target, module)))
    result = {"uri": spec.name, "aot": is_aot(spec), "generation_s": generation_s}
    if result["aot"]:
        _, load_s = timed(spec.build_and_load)
        return {
            **result,
            "load_s": load_s,
            "note": "a prebuilt module was loaded: no JIT was measured",
        }
    write = getattr(spec, "write_ninja", None)
    _, ninja_s = timed(write) if write else (None, None)
    _, build_s = timed(lambda: spec.build(verbose=False))
    library = Path(spec.jit_library_path)
    _, load_s = timed(lambda: spec.load(library))
    return {
        **result,
        "write_ninja_s": ninja_s,
        "build_s": build_s,
        "load_s": load_s,
        "library_bytes": library.stat().st_size,
        "sources": [Path(source).name for source in getattr(spec, "sources", ())],
        "ninja": read_ninja(Path(spec.ninja_path).read_text("utf-8")),
    }


def probe_disk(target: Target, module: Jit, repeats: int) -> JsonObject:
    """First request with the library on disk, then further requests in the same process."""
    (spec, *_), generation_s = timed(lambda: target.modules(params(target, module)))
    aot = is_aot(spec)
    _, load_s = timed(spec.build_and_load)
    result = {"aot": aot, "generation_s": generation_s, "build_and_load_s": load_s}
    if not aot:
        _, result["up_to_date_check_s"] = timed(lambda: spec.build(verbose=False))
    with refused() as reason:
        result["memory_hit_s"] = memory_hits(target, module, repeats)
    return {**result, "memory_hit_refused": reason[0] if reason else None}


def probe_first(target: Target, module: Jit, repeats: int) -> JsonObject:
    """First launch after preparation (which loads the module), and the launches that follow (s)."""
    import torch

    if not torch.cuda.is_available():
        return {"skipped": "no GPU"}
    launch, prepare_s = timed(lambda: target.prepare(params(target, module)))

    def once() -> None:
        launch.run()
        torch.cuda.synchronize()

    torch.cuda.synchronize()
    _, first_s = timed(once)
    later = [timed(once)[1] for _ in range(repeats)]
    return {
        "prepare_s": prepare_s,
        "first_launch_s": first_s,
        "later_launch_s": statistics.median(later),
    }


def memory_hits(target: Target, module: Jit, repeats: int) -> float:
    """Median time of asking again for a module that this process has loaded (s)."""
    path, name = module.getter.split(":")
    getter: Callable[..., Any] = getattr(importlib.import_module(path), name)
    arguments = module.arguments(params(target, module))
    getter(*arguments)

    def many() -> None:
        for _ in range(CALLS):
            getter(*arguments)

    return statistics.median(timed(many)[1] / CALLS for _ in range(repeats))


def params(target: Target, module: Jit) -> Params:
    """The target's defaults with small sizes: the first launch is about loading, not about work."""
    return {**target.parameters, **target.small, **module.params}


def is_aot(spec: Any) -> bool:
    """Whether FlashInfer would load a prebuilt library instead of compiling."""
    path = getattr(spec, "aot_path", None)
    return bool(path and Path(path).exists())


def read_ninja(text: str) -> JsonObject:
    """Commands and flags of a build.ninja, without the machine's paths."""
    joined = text.replace("$\n", " ")
    flags = {}
    for name in ("common_cflags", "cflags", "cuda_cflags", "ldflags"):
        match = re.search(rf"^{name} = (.*)$", joined, re.MULTILINE)
        flags[name] = [plain_path(word) for word in match.group(1).split()] if match else []
    steps = re.findall(r"^build [^:]*: (\w+)", joined, re.MULTILINE)
    return {
        "commands": len(steps),
        "steps": {step: steps.count(step) for step in dict.fromkeys(steps)},
        "flags": flags,
    }


def plain_path(word: str) -> str:
    """`-I/opt/x/flashinfer/data/include` → `-I<flashinfer>/data/include`; else the last part."""
    word = re.sub(r"/\S*?/flashinfer/data\b", "<flashinfer>/data", word)
    return re.sub(r"(^|-[ILB]|[=:\s'\"(])(?:/[\w.+-]+)+/([\w.+-]+)", r"\1<…>/\2", word)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """(result, seconds) of one call."""
    started = time.perf_counter()
    result = work()
    return result, time.perf_counter() - started


@contextlib.contextmanager
def refused() -> Iterator[list[str]]:
    """Collects what a call that this FlashInfer version lacks or spells otherwise says."""
    reasons: list[str] = []
    try:
        yield reasons
    except (AttributeError, ImportError, TypeError) as error:
        reasons.append(f"{type(error).__name__}: {error}")


def jit_probe(
    step: Literal["cold", "disk", "first"],
    module: str,
    /,
    *,
    repeats: int = 20,
    ignore_aot: bool = False,
) -> None:
    """Run one step and print its JSON."""
    target, found = jit_modules()[module]
    for name, value in found.environ.items():
        os.environ.setdefault(name, value)
    started = start(ignore_aot)
    probe = {"cold": probe_cold, "disk": probe_disk, "first": probe_first}[step]
    result = probe(target, found, repeats)
    print(MARKER + json.dumps({"start": started, **result}), flush=True)
