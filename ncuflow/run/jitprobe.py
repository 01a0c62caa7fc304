"""One JIT measurement in a process of its own.

    ncuflow jit-probe cold|disk|first MODULE [--repeats N] [--ignore-aot]

Import of torch and FlashInfer and the start of CUDA lie before every timer. The result is one line
of JSON after the marker, because compilers and loggers write to the same stream.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

from ncuflow.io import JsonObject
from ncuflow.target.contract import Target, jit_modules
from ncuflow.target.launch import Params
from ncuflow.target.source import Jit

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


def command(
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
