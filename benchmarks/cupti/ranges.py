"""CUPTI's range profiler in this process: built from `ranges.cpp` with the headers beside the libcupti that torch loaded.

The library must be torch's own, as one process has one CUPTI; its wheel has headers and all libraries. A profiler cannot
be enabled while ncu profiles the process, nor a second one on the context (torch.profiler takes CUPTI's other interfaces).
"""

from __future__ import annotations

import ctypes
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
MOST = 64  # ranges of a collection
MOST_PASSES = 100  # a collection that takes more has gone wrong
# libcupti opens them by their bare names, which finds nothing in a wheel.
BESIDE = ("libnvperf_host.so", "libnvperf_target.so")


class RangesError(RuntimeError):
    """A call of CUPTI failed; its name and what CUPTI says of it."""


def loaded() -> Path:
    """The libcupti of this process, which torch brings, else one of a wheel. Raises RangesError where there is none with
    the libraries that it opens."""
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        found = {Path(line.split()[-1]) for line in maps if "/libcupti.so" in line}
    wheels = [path for root in _wheels() for path in root.glob("lib/libcupti.so.*")]
    for library in [*sorted(found), *wheels]:
        if all(library.with_name(name).exists() for name in BESIDE):
            return library
    raise RangesError(f"no libcupti with {' and '.join(BESIDE)} beside it")


def compile_command(library: Path, out: Path) -> list[str]:
    """The headers are those beside the library where it has some; cuda.h is of a toolkit, or of another wheel."""
    own, toolkits = library.parent.parent, [Path("/usr/local/cuda"), *Path("/usr/local").glob("cuda-*")]  # fmt: skip
    roots = [own, *_wheels(), *toolkits, *(root / "extras/CUPTI" for root in toolkits)]
    folders = dict.fromkeys(root / "include" for root in roots if (root / "include").exists())
    command = ["g++", "-O2", "-std=c++17", "-shared", "-fPIC", *(f"-I{folder}" for folder in folders)]  # fmt: skip
    return [*command, str(HERE / "ranges.cpp"), "-o", str(out), str(library)]


def _wheels() -> list[Path]:
    return [root for folder in sys.path for root in Path(folder).glob("nvidia/*")]


class Library:
    """The functions of `ranges.cpp`, built into a folder, which takes seconds."""

    def __init__(self, folder: Path) -> None:
        self.cupti = loaded()
        out = folder / "libranges.so"
        command = compile_command(self.cupti, out)
        made = subprocess.run(command, capture_output=True, text=True)
        if made.returncode:
            raise RangesError(f"g++: {made.stderr.strip().splitlines()[:3]}")
        for name in (*BESIDE, self.cupti.name):
            ctypes.CDLL(str(self.cupti.with_name(name)), mode=ctypes.RTLD_GLOBAL)
        self.calls = ctypes.CDLL(str(out))
        self.calls.ranges_error.restype = ctypes.c_char_p
        self.calls.ranges_open.restype = ctypes.c_void_p

    def call(self, name: str, *arguments: Any) -> None:
        if getattr(self.calls, name)(*arguments):
            raise RangesError(self.error())

    def error(self) -> str:
        return str(self.calls.ranges_error().decode())

    def versions(self) -> tuple[int, int]:
        """CUPTI's numbers of the headers' version and of the library's."""
        compiled, library = ctypes.c_uint32(), ctypes.c_uint32()
        self.call("ranges_versions", ctypes.byref(compiled), ctypes.byref(library))
        return compiled.value, library.value

    @contextmanager
    def session(
        self, context: int, metrics: Sequence[str], automatic: bool, kernels: bool
    ) -> Iterator[Session]:
        """A profiler of a context (CUcontext) of the first device, for the length of the block.

        automatic: a range around each kernel, else around what `Session.range` holds; kernels: CUPTI replays each kernel.
        """
        words = (_names(metrics), len(metrics), int(automatic), int(kernels))
        handle = self.calls.ranges_open(
            ctypes.c_void_p(context), ctypes.c_size_t(0), *words, ctypes.c_size_t(MOST)
        )
        if not handle:
            raise RangesError(self.error())
        try:
            yield Session(
                self, ctypes.c_void_p(handle), tuple(metrics), MOST_PASSES if not kernels else 1
            )
        finally:
            self.call("ranges_close", ctypes.c_void_p(handle))


class Session:
    """An enabled profiler."""

    def __init__(
        self, library: Library, handle: ctypes.c_void_p, metrics: tuple[str, ...], most: int
    ) -> None:
        self._library, self._handle, self._metrics = library, handle, metrics
        self._most = most  # times that a collection is launched
        self.anew = 0  # collections that needed a profiler made anew

    def _call(self, name: str, *arguments: Any) -> None:
        self._library.call(name, self._handle, *arguments)

    @property
    def passes(self) -> int:
        found = ctypes.c_size_t()
        self._call("ranges_passes", ctypes.byref(found))
        return found.value

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        self._call("ranges_push", name.encode())
        yield
        self._call("ranges_pop")

    def collect(
        self, before: Callable[[], None], run: Callable[[], None]
    ) -> list[dict[str, float | None]]:
        """Values of each range, in order, by metric; None of one that is no number.

        before: called ahead of each pass, what it launches is not counted; run: launches what is, and waits for it.
        """
        try:
            self._call("ranges_begin", 0)
        except RangesError:
            self.anew += 1
            self._call("ranges_begin", 1)
        done = ctypes.c_int()
        for _ in range(self._most):
            before()
            self._call("ranges_start")
            run()
            self._call("ranges_stop", ctypes.byref(done))
            if done.value:
                break
        if not done.value and self._most > 1:
            raise RangesError(f"not all passes submitted after {self._most}")
        return self._read()

    def _read(self) -> list[dict[str, float | None]]:
        width, found = len(self._metrics), ctypes.c_size_t()
        values = (ctypes.c_double * (MOST * width))()
        self._call("ranges_read", values, ctypes.byref(found))
        rows = [values[n * width : (n + 1) * width] for n in range(found.value)]
        return [dict(zip(self._metrics, map(_number, row), strict=True)) for row in rows]


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _names(metrics: Sequence[str]) -> Any:
    return (ctypes.c_char_p * len(metrics))(*[name.encode() for name in metrics])
