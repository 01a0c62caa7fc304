"""What this GPU reaches: copy and read bandwidth and matrix rate, to hold kernels against.

Each has two figures: in bursts from settled clocks, and sustained, back to back until clocks and power
have settled. The bursts of all come first, so that none waits until a GPU has cooled down.

The GPU is asked by its CUDA driver alone: to import torch takes longer than all that is measured here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from ctypes import CDLL, byref, c_char_p, c_float, c_int, c_longlong, c_size_t, c_void_p
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from struct import pack
from typing import Any

from ncuflow.io import JsonObject
from ncuflow.record import Launches
from ncuflow.run import builds, timing

THREADS = 512  # of a block of the read kernel
KERNELS = Path(__file__).with_name("ceilings.cu")


class Driver(timing.Stopwatch):
    """The first visible CUDA device, in its primary context. Times are microseconds, buffers are addresses.

    Raises RuntimeError where a call fails, ImportError without cuda-bindings. To be closed, or used in a `with`, which
    gives back what was allocated.
    """

    def __init__(self) -> None:
        from cuda.bindings import driver as cuda

        self.cuda = cuda
        called(cuda.cuInit, 0)
        self.device = called(cuda.cuDeviceGet, 0)
        super().__init__()
        with ExitStack() as stack:
            self.stack = stack
            self._prepare()
            self.stack = stack.pop_all()

    def _prepare(self) -> None:
        """Context, kernels, and the buffer that evicts the L2 cache."""
        cuda = self.cuda
        context = called(cuda.cuDevicePrimaryCtxRetain, self.device)
        self.stack.callback(cuda.cuDevicePrimaryCtxRelease, self.device)
        called(cuda.cuCtxPushCurrent, context)
        self.stack.callback(cuda.cuCtxPopCurrent)
        code = compiled(
            KERNELS.read_text("utf-8"), int(self.facts()["compute_capability"].replace(".", ""))
        )
        module = called(cuda.cuModuleLoadData, code)
        self.stack.callback(cuda.cuModuleUnload, module)
        self._spin = called(cuda.cuModuleGetFunction, module, b"spin")
        self._read = called(cuda.cuModuleGetFunction, module, b"read")
        resident = self._attribute("MAX_THREADS_PER_MULTIPROCESSOR") // THREADS
        self._blocks = resident * self._facts["sm_count"]
        self._flush_bytes = 2 * self._facts["l2_bytes"]
        self._flush = self.filled(0.0, self._flush_bytes)
        self._out = self.allocate(4)

    def close(self) -> None:
        """Give back what was allocated, and the context."""
        self.stack.close()

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _attribute(self, name: str) -> int:
        attribute = getattr(self.cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(called(self.cuda.cuDeviceGetAttribute, attribute, self.device))

    # memory

    def allocate(self, size: int) -> int:
        """Address of a buffer of so many bytes."""
        address = int(called(self.cuda.cuMemAlloc, size))
        self.stack.callback(self.cuda.cuMemFree, address)
        return address

    def filled(self, value: float, size: int) -> int:
        """A buffer of so many bytes that holds one float32."""
        buffer = self.allocate(size)
        bits = int.from_bytes(pack("<f", value), "little")
        called(self.cuda.cuMemsetD32, buffer, bits, size // 4)
        return buffer

    def tiled(self, values: Any, size: int) -> int:
        """A buffer of so many bytes that repeats a numpy array, which is no longer."""
        buffer = self.allocate(size)
        called(self.cuda.cuMemcpyHtoD, buffer, values.ctypes.data, values.nbytes)
        for at in range(values.nbytes, size, values.nbytes):
            part = min(values.nbytes, size - at)
            called(self.cuda.cuMemcpyDtoD, buffer + at, buffer, part)
        return buffer

    # what is enqueued

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy so many bytes from a buffer to another."""
        called(self.cuda.cuMemcpyDtoDAsync, target, source, size, 0)

    def read(self, source: int, size: int) -> None:
        """Read so many bytes of a buffer of float32, a multiple of 16."""
        words = (c_void_p(source), c_size_t(size // 16), c_void_p(self._out))
        self._launch(self._read, self._blocks, THREADS, *words)

    def spin(self, cycles: int) -> None:
        self._launch(self._spin, 1, 1, c_longlong(cycles))

    def flush(self) -> None:
        self.read(self._flush, self._flush_bytes)

    def _launch(self, kernel: Any, blocks: int, threads: int, *words: Any) -> None:
        arguments = (words, tuple(type(word) for word in words))
        called(self.cuda.cuLaunchKernel, kernel, blocks, 1, 1, threads, 1, 1, 0, 0, arguments, 0)

    # timing

    def event(self) -> timing.Event:
        event = called(self.cuda.cuEventCreate, 0)
        self.stack.callback(self.cuda.cuEventDestroy, event)
        return _Event(self.cuda, event)

    def synchronize(self) -> None:
        called(self.cuda.cuCtxSynchronize)


class _Event:
    """An event of the driver, with torch's interface."""

    def __init__(self, cuda: Any, event: Any) -> None:
        self.cuda, self.event = cuda, event

    def record(self) -> None:
        called(self.cuda.cuEventRecord, self.event, 0)

    def query(self) -> bool:
        (status,) = self.cuda.cuEventQuery(self.event)
        if status == self.cuda.CUresult.CUDA_ERROR_NOT_READY:
            return False
        _checked(self.cuda.cuEventQuery, status)
        return True

    def elapsed_time(self, end: _Event) -> float:
        return float(called(self.cuda.cuEventElapsedTime, self.event, end.event))


def compiled(source: str, capability: int) -> bytes:
    """CUDA C by NVRTC as machine code for a compute capability, 90 for 9.0.

    For a GPU that is newer than NVRTC it is PTX, which the GPU's driver compiles. Raises RuntimeError with what the
    compiler complains of.
    """
    from cuda.bindings import nvrtc

    known = [one for one in called(nvrtc.nvrtcGetSupportedArchs) if one <= capability]
    newest, kind = max(known, default=capability), "CUBIN" if capability in known else "PTX"
    architecture = f"{'sm' if kind == 'CUBIN' else 'compute'}_{newest}"
    program = called(nvrtc.nvrtcCreateProgram, source.encode(), b"kernels.cu", 0, [], [])
    options = [
        f"--gpu-architecture={architecture}".encode(),
        f"--define-macro=THREADS={THREADS}".encode(),
    ]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(options), options)
    if status != 0:
        log = bytes(called(nvrtc.nvrtcGetProgramLogSize, program))
        called(nvrtc.nvrtcGetProgramLog, program, log)
        raise RuntimeError(f"{status.name}: {log.decode().strip(chr(0))}")
    code = bytes(called(getattr(nvrtc, f"nvrtcGet{kind}Size"), program))
    called(getattr(nvrtc, f"nvrtcGet{kind}"), program, code)
    called(nvrtc.nvrtcDestroyProgram, program)
    return code


def called(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function of cuda.bindings returns beside its status. Raises RuntimeError with the error's name."""
    status, *found = function(*arguments)
    _checked(function, status)
    return found[0] if found else None


def _checked(function: Callable[..., Any], status: Any) -> None:
    if status != 0:
        raise RuntimeError(f"{function.__name__}: {status.name}")


# cublas_api.h and library_types.h
TYPES = {"f16": 2, "bf16": 14}  # CUDA_R_16F, CUDA_R_16BF
OP_N, COMPUTE_32F, GEMM_DEFAULT = 0, 68, -1
GEMM: list[Any] = [
    c_void_p, c_int, c_int, c_int, c_int, c_int,  # handle, both operations, m, n, k
    c_void_p, c_void_p, c_int, c_int, c_void_p, c_int, c_int,  # alpha; A and B with type and leading dimension
    c_void_p, c_void_p, c_int, c_int, c_int, c_int,  # beta; C likewise; compute type, algorithm
]  # fmt: skip


class Cublas:
    """A handle in the current CUDA context, on its default stream.

    Raises ImportError or RuntimeError where there is no cuBLAS, OSError where it cannot be loaded.
    """

    def __init__(self) -> None:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        self._library = CDLL(load_nvidia_dynamic_lib("cublas").abs_path)
        self._library.cublasGetStatusName.argtypes = [c_int]
        self._library.cublasGetStatusName.restype = c_char_p
        self._library.cublasDestroy_v2.argtypes = [c_void_p]
        self._library.cublasGemmEx.argtypes = GEMM
        self._handle = c_void_p()
        self._call("cublasCreate_v2", byref(self._handle))

    def __enter__(self) -> Cublas:
        return self

    def __exit__(self, *error: object) -> None:
        self._library.cublasDestroy_v2(self._handle)

    def product(self, a: int, b: int, out: int, size: int, dtype: str) -> Callable[[], None]:
        """A call that multiplies square matrices of this size, which lie at these addresses, in float32."""
        one, zero, kind = c_float(1.0), c_float(0.0), TYPES[dtype]

        def run() -> None:
            self._call(
                "cublasGemmEx", self._handle, OP_N, OP_N, size, size, size,
                byref(one), a, kind, size, b, kind, size, byref(zero), out, kind, size,
                COMPUTE_32F, GEMM_DEFAULT,
            )  # fmt: skip

        return run

    def _call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            raise RuntimeError(f"{name}: {self._library.cublasGetStatusName(status).decode()}")


BYTES = 4 << 30  # of one buffer: many times any L2 cache
SIZE = 8192  # of the square matrices
# Drawn for a matrix, which repeats them: odd, so that no two of its rows are alike.
VALUES = 2_000_003
# Samples and bursts of a figure. With 30 samples the quartiles lay within 0.4 % of the median (H100, H200), so half as
# many tell it as well; in one burst alone the first launches would be a third of them.
REPEATS, BURSTS = 15, 3
RATES = ("copy_gbs", "read_gbs", "matmul_tflops")


@dataclass(frozen=True)
class Load:
    """A call that moves or computes ``amount`` (GB or TFLOP)."""

    run: Callable[[], Any]
    amount: float
    method: str


def load() -> None:
    """Load the libraries that `measure` calls, which takes seconds from a disk. What is missing is left for it to say."""
    with suppress(Exception):
        import numpy as np
        from cuda.bindings import driver, nvrtc
        from cuda.pathfinder import load_nvidia_dynamic_lib

        driver.cuDriverGetVersion()
        nvrtc.nvrtcVersion()
        load_nvidia_dynamic_lib("cublas")
        np.random.default_rng()


def measure(device: Driver, repeats: int = REPEATS) -> JsonObject:
    """ceilings.json: medians with quartiles of a large copy and read (GB/s) and matmuls (TFLOPS).

    Without cuBLAS the matmuls are null, with the reason.
    """
    loads, reason = dict(_transfers(device)), {}
    try:
        loads |= _products(device)
    # The first is that of a cuBLAS without one of these functions.
    except (AttributeError, ImportError, OSError, RuntimeError) as error:
        reason = {"reason": f"no matrix product: {builds.one_line(error)}"}
    bursts = {
        name: timing.bursts(device, load.run, repeats, BURSTS) for name, load in loads.items()
    }
    found = {}
    for name, load in loads.items():
        times, each = bursts[name]
        settled = timing.sustained(device, load.run, each)
        found[name] = rate(times, load.amount) | {
            "method": load.method,
            "sustained": rate(settled, load.amount),
        }
    return {
        "copy_gbs": found.pop("copy"),
        "read_gbs": found.pop("read"),
        "matmul_tflops": found or None,
        "gpu": device.facts()["name"],
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "clocks": device.clocks(),
    } | reason


def unmeasured(reason: str) -> JsonObject:
    """ceilings.json where there is nothing to measure with."""
    return dict.fromkeys(RATES, None) | {"reason": reason}


def _transfers(device: Driver) -> Iterator[tuple[str, Load]]:
    size = min(BYTES, device.facts()["memory_bytes"] // 8) // 16 * 16
    source, target = device.filled(1.0, size), device.allocate(size)
    gib = f"{size / 2**30:.3g} GiB"
    method = f"device-to-device copy of {gib} by the driver, bytes read and written"
    yield "copy", Load(lambda: device.copy(target, source, size), 2 * size / 1e9, method)
    method = f"read of {gib} of float32 by a kernel of its own, bytes read"
    yield "read", Load(lambda: device.read(source, size), size / 1e9, method)


def _products(device: Driver) -> dict[str, Load]:
    blas = device.stack.enter_context(Cublas())
    method = f"cuBLAS of {SIZE}^3, normal random values"
    found = {}
    for dtype in TYPES:
        a, b = (device.tiled(_normal(dtype, seed), 2 * SIZE**2) for seed in range(2))
        run = blas.product(a, b, device.allocate(2 * SIZE**2), SIZE, dtype)
        run()  # what cuBLAS cannot do it refuses here
        found[dtype] = Load(run, 2 * SIZE**3 / 1e12, method)
    return found


def _normal(dtype: str, seed: int) -> Any:
    """VALUES normal random numbers; bf16, which numpy has not, as its 16 bits."""
    import numpy as np

    values = np.random.default_rng(seed).standard_normal(VALUES, dtype=np.float32)
    if dtype == "f16":
        return values.astype(np.float16)
    return ((values.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def rate(times: Launches, amount: float) -> JsonObject:
    """The rates of a summary of times in µs; the slow quartile of times is the low one of rates."""
    slow, median, fast = (
        timing.significant(amount / (time * 1e-6)) for time in (times.q75, times.median, times.q25)
    )
    found = {"value": median, "n": times.n, "q25": slow, "q75": fast}
    return found | times.model_dump(include={"sm_mhz", "throttle"})
