"""The GPU by its CUDA driver alone: to import torch takes longer than all that is measured here."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from ctypes import c_longlong, c_size_t, c_void_p
from struct import pack
from typing import Any

from ncuflow.runner.stopwatch import Event, Stopwatch

THREADS = 512  # of a block of the read kernel
KERNELS = """
extern "C" __global__ void spin(long long cycles)
{
    const long long start = clock64();
    while (clock64() - start < cycles) {
    }
}

__device__ float total(float4 part)
{
    return (part.x + part.y) + (part.z + part.w);
}

// Whole waves of blocks that all go through the buffer together, LOADS independent loads of a thread in flight. The sum
// is written where it is negative, which no sum of what the buffers hold is: or the compiler would leave the loads out.
extern "C" __global__ void __launch_bounds__(THREADS)
read(const float4* __restrict__ source, size_t count, float* out)
{
    constexpr int LOADS = 4;
    const size_t step = size_t(gridDim.x) * THREADS;
    size_t i = size_t(blockIdx.x) * THREADS + threadIdx.x;
    float sum = 0;
    for (; i + (LOADS - 1) * step < count; i += LOADS * step) {
        float4 part[LOADS];
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            part[k] = source[i + k * step];
#pragma unroll
        for (int k = 0; k < LOADS; k++)
            sum += total(part[k]);
    }
    for (; i < count; i += step)
        sum += total(source[i]);
    if (sum < 0)
        *out = sum;
}
"""


class Driver(Stopwatch):
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
        code = compiled(KERNELS, int(self.facts()["compute_capability"].replace(".", "")))
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

    def event(self) -> Event:
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
