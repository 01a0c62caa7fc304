"""Builds of JIT modules: ahead of a run, and the watch that none happens during one."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import PurePath
from typing import Any

from ncuflow.private import masked
from ncuflow.runner.sweep import Point
from ncuflow.target import Target

COMPILERS = frozenset({"ninja", "nvcc"})
ARCH_LIST = "FLASHINFER_CUDA_ARCH_LIST"
_COMPLAINT = re.compile(r"\b(error|fatal)\b.*:|: (error|fatal)|not found", re.IGNORECASE)
_FOLDERS = re.compile(r"(?<!\S)(/[^\s/:]+)*/(?=[^\s/])")


class CompilerWatch:
    """Counts the compilers that this process starts, whichever library starts them.

    FlashInfer calls ninja whenever it loads a module that it built, even one that is up to date:
    the first run of a module counts, the runs after it do not.
    """

    def __init__(self) -> None:
        self.started = 0
        sys.addaudithook(self._hook)  # an audit hook cannot be removed: one watch a process

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if event == "subprocess.Popen" and _program(args) in COMPILERS:
            self.started += 1


def one_line(error: Exception) -> str:
    """Type and first line of an error, and what a compiler complained of; no folders, no secrets.

    The rest is advice on debugging, or the command line of a compiler.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    complaint = next((line for line in lines[1:] if _COMPLAINT.search(line)), None)
    text = f"{type(error).__name__}: {lines[0]}" + (f" {complaint}" if complaint else "")
    return _FOLDERS.sub("", masked(text))


def _program(args: tuple[Any, ...]) -> str:
    """Name of the program that a subprocess.Popen audit event starts."""
    executable, command = args[:2]
    first = executable or (command if isinstance(command, (str, bytes)) else [*command, ""][0])
    text = first.decode(errors="replace") if isinstance(first, bytes) else str(first)
    return PurePath(text.split(" ")[0]).name


def capabilities(
    environment: Mapping[str, str], devices: Callable[[], Sequence[str]]
) -> Sequence[str]:
    """Compute capabilities that FlashInfer compiles for: those it is told ("9.0a" is 9.0), else the GPUs'."""
    told = environment.get(ARCH_LIST)
    return [word.rstrip("af") for word in told.split()] if told else devices()


def buildable(
    target: Target,
    points: Sequence[Point],
    capabilities: Sequence[str],
    log: Callable[[str], None],
) -> list[Point]:
    """The points that one of these GPUs can run; all if none is known.

    A kernel of another architecture (fa3) would not compile, and its point is skipped anyway.
    """
    gpus = [{"compute_capability": capability} for capability in capabilities]
    kept = []
    for point in points:
        reasons = [target.skip(point.params, gpu) for gpu in gpus]
        if reasons and all(reasons):
            log(f"{point.id}: not built: {reasons[0]}")
        else:
            kept.append(point)
    return kept


def modules(target: Target, points: Sequence[Point]) -> list[Any]:
    """JIT modules (JitSpec) of the points, one a name."""
    found = {spec.name: spec for point in points for spec in target.modules(point.params)}
    return list(found.values())


def build(specs: Sequence[Any], log: Callable[[str], None]) -> list[dict[str, Any]]:
    """Build the modules side by side; one that is up to date takes milliseconds.

    Returns [{"name", "status", "reason", "seconds"}], status "built", "prebuilt" or "error".
    """
    with ThreadPoolExecutor(max(1, len(specs))) as pool:
        return list(pool.map(lambda spec: _build_one(spec, log), specs))


def _build_one(spec: Any, log: Callable[[str], None]) -> dict[str, Any]:
    start, status, reason = time.perf_counter(), "built", None
    try:
        if getattr(spec, "is_aot", False):
            status = "prebuilt"
        else:
            spec.build(verbose=False, need_lock=True)
    except Exception as error:
        status, reason = "error", one_line(error)
        log(str(error))
    seconds = round(time.perf_counter() - start, 3)
    log(f"{spec.name}: {status} in {seconds:.1f} s")
    return {"name": spec.name, "status": status, "reason": reason, "seconds": seconds}
