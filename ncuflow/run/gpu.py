"""The GPU that a run measures on, by torch: the only module beside the targets that touches it."""

import ctypes
import gc
import importlib
import math
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from ncuflow.gpu import nvml
from ncuflow.io import JsonObject
from ncuflow.run.timing import HOST_US, Event, Stopwatch
from ncuflow.target.launch import Launch, Tensor

SIDE_STREAM_CYCLES = 100_000_000  # 50 ms: longer than the host takes to enqueue a launch elsewhere

BY_NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"  # torch asks NVML, and not CUDA, whether a GPU is here


@contextmanager
def cuda_not_begun() -> Iterator[None]:
    """NVML answers what FlashInfer asks torch of the GPU when it is imported and says which modules there are.

    CUDA would begin with the answer. A program that has begun to use CUDA holds memory of the GPU while it waits for its turn,
    and the ncu that it runs under a core of the host: 8.1 s of CPU in 7.6 s were measured. Of several kinds of GPU torch
    answers itself, since NVML may have them in another order.
    """
    known = nvml.capabilities()
    try:
        import torch
    except ImportError:  # what needs it says so
        known = []
    if len(known) != 1:
        yield
        return
    major, minor = map(int, known[0].split("."))
    asked, before = torch.cuda.get_device_capability, os.environ.get(BY_NVML)
    torch.cuda.get_device_capability = lambda device=None: (major, minor)
    os.environ[BY_NVML] = "1"
    try:
        yield
    finally:
        torch.cuda.get_device_capability = asked
        del os.environ[BY_NVML]
        if before is not None:
            os.environ[BY_NVML] = before


def load_libraries() -> None:
    """Import what takes seconds and needs no GPU.

    What is loaded stays: the collector is off meanwhile, which saves a fifth of the time, and never looks through it later.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        with cuda_not_begun(), suppress(ImportError):  # what needs it says so
            importlib.import_module("flashinfer")
    finally:
        gc.freeze()
        if collects:
            gc.enable()


def begin_context() -> None:
    """Begin to make the CUDA context of this process, by the driver alone and in a thread, while its libraries load.

    That takes longer. The context is the primary one of the first visible device, which torch takes as well. Where it cannot be
    made (yet), torch tries again later and says why.
    """
    # As torch does before CUDA begins, which is now.
    os.environ.setdefault("CUDA_MODULE_LOADING", "LAZY")
    threading.Thread(target=_retain_context).start()


def _retain_context() -> None:
    device, context = ctypes.c_int(), ctypes.c_void_p()
    with suppress(OSError, AttributeError):  # no driver, or none with these functions
        driver = ctypes.CDLL("libcuda.so.1")
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def begin_cuda() -> None:
    """Make the CUDA context of this process. That takes a while, in which another program may have the GPU.

    Where it fails, as beside another program on a GPU that takes one alone, it is made when the GPU is held.
    """
    try:
        import torch
    except ImportError:  # what needs it says so
        return
    with suppress(RuntimeError):
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _poison(tensor: Tensor) -> float:
    """What no kernel writes: NaN, or -1 where a tensor holds whole numbers (255 without a sign)."""
    if tensor.dtype.is_floating_point:
        return float("nan")
    return -1 if tensor.dtype.is_signed else 255


def _readable(tensor: Tensor) -> Tensor:
    """The tensor; in float32 where its type is of 8 bits, which few operations take."""
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor


class OwnEvents:
    """Events and spins of torch.cuda, by its functions as they were when this was made: what is loaded later, a change that is
    tried above all, may put others in their place."""

    def __init__(self, cuda: Any) -> None:
        self._make, self.sleep = cuda.Event, cuda._sleep
        kind = cuda.Event
        self._functions = kind.record, kind.query, kind.elapsed_time

    def event(self) -> Event:
        return _OwnEvent(self._make(enable_timing=True), *self._functions)


class _OwnEvent:
    def __init__(self, event: Any, record: Any, query: Any, elapsed: Any) -> None:
        self._event, self._record, self._query, self._elapsed = event, record, query, elapsed

    def record(self) -> None:
        self._record(self._event)

    def query(self) -> bool:
        return bool(self._query(self._event))

    def elapsed_time(self, end: Any) -> float:
        return float(self._elapsed(self._event, end._event))


class Gpu(Stopwatch):
    """The current CUDA device, by torch. Times are microseconds."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("no CUDA device is available to torch")
        # the reference is float32: TF32 would give it 10 bits
        torch.backends.cuda.matmul.allow_tf32 = False
        self.torch = torch
        self._events = OwnEvents(torch.cuda)
        self._synchronize = torch.cuda.synchronize
        super().__init__()
        twice_l2 = 2 * self.facts()["l2_bytes"]
        self._flush = torch.zeros(twice_l2 // 4, dtype=torch.float32, device="cuda")
        self._sum = torch.empty((), dtype=torch.float32, device="cuda")

    def synchronize(self) -> None:
        self._synchronize()

    def alive(self) -> bool:
        """Whether the CUDA context still works; after a sticky error nothing does."""
        try:
            self.torch.cuda.synchronize()
            return bool(self.torch.ones(1, device="cuda").item() == 1)
        except Exception:
            return False

    def kernels(self, run: Callable[[], None]) -> list[str]:
        """Names of the kernels that a call launches, in order, by torch's profiler; none where that records nothing."""
        from torch.autograd import DeviceType
        from torch.profiler import ProfilerActivity, profile

        self.synchronize()
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            run()
            self.synchronize()
        found = [one for one in recorded.events() if one.device_type == DeviceType.CUDA]
        return [one.name for one in sorted(found, key=lambda one: one.time_range.start)]

    def release(self) -> None:
        """Give the memory of the last point back."""
        self._host_us = HOST_US
        gc.collect()
        # What is left is torch and FlashInfer: to look through it again takes 0.1 s per point.
        gc.freeze()
        self.torch.cuda.empty_cache()

    def begin(self) -> None:
        """A point begins here: what others still hold is not its memory."""
        gc.collect()  # else what is left of the one before would be freed in this one's time
        self._held: int = self.torch.cuda.memory_allocated()
        self.torch.cuda.reset_peak_memory_stats()

    def peak_memory(self) -> int:
        """Most bytes allocated since ``begin``, beyond those that were allocated then."""
        peak: int = self.torch.cuda.max_memory_allocated()
        return peak - self._held

    # correctness

    def poison(self, launch: Launch) -> None:
        """Fill with NaN, and whole numbers with -1, what the launch will write; for outputs that it
        allocates, the memory that the allocator would hand out again."""
        spare = [tensor.fill_(_poison(tensor)) for tensor in launch.buffers()]
        if launch.allocates:
            spare += [self.torch.full_like(t, _poison(t)) for t in spare for _ in range(2)]

    def written(self, launch: Launch) -> bool:
        """Whether every element of the launch's output is finite."""
        return all(bool(self.torch.isfinite(_readable(t)).all()) for t in launch.buffers())

    def differences(
        self, outputs: tuple[Tensor, ...], expected: tuple[Tensor, ...]
    ) -> list[tuple[float, float]]:
        """(relative L2 error, largest absolute error) of each output; NaN stays NaN.

        Raises ValueError if an output and its reference differ in number or shape.
        """
        found = []
        for output, reference in zip(outputs, expected, strict=True):
            if output.shape != reference.shape:
                shapes = f"{tuple(output.shape)} and {tuple(reference.shape)}"
                raise ValueError(f"output and reference have shapes {shapes}")
            error = output.float() - reference
            # Of a reference that is zero everywhere there is no relative error; of none at all it is zero.
            ratio = error.norm() / reference.norm() if bool(error.any()) else 0.0
            found.append((float(ratio), float(error.abs().max())))
        return found

    def comparable(
        self, outputs: tuple[Tensor, ...], expected: tuple[Tensor, ...]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """Both with zeros where the reference is no number, and where both are infinite to the same side."""
        found = []
        for output, reference in zip(outputs, expected, strict=True):
            got = output.float()
            alike = reference.isnan() | (reference.isinf() & (got == reference))
            found.append((got.masked_fill(alike, 0.0), reference.masked_fill(alike, 0.0)))
        return tuple(one for one, _ in found), tuple(other for _, other in found)

    def worst(self, outputs: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> JsonObject:
        """The element that is farthest from its reference, one that is not a number before all:
        {"output", "index", "got", "expected"}, the last two None where they are not finite."""
        found = []
        for number, (output, reference) in enumerate(zip(outputs, expected, strict=True)):
            error = (output.float() - reference).abs()
            place = int(error.argmax())  # of NaN, if there is one
            far, got, wanted = (float(t.flatten()[place]) for t in (error, output, reference))
            index = [
                int(i) for i in self.torch.unravel_index(self.torch.tensor(place), error.shape)
            ]
            found.append(
                (
                    math.inf if math.isnan(far) else far,
                    {
                        "output": number,
                        "index": index,
                        "got": got if math.isfinite(got) else None,
                        "expected": wanted if math.isfinite(wanted) else None,
                    },
                )
            )
        return max(found, key=lambda pair: pair[0])[1]

    def on_side_stream(self, launch: Launch) -> tuple[Tensor, ...]:
        """What a launch from a stream of its own has written when that stream is done, the default one being busy for longer."""
        self.synchronize()
        self.spin(SIDE_STREAM_CYCLES)
        with self.torch.cuda.stream(self.torch.cuda.Stream()):
            launch.run()
            found = tuple(tensor.clone() for tensor in launch.output())
        self.synchronize()
        return found

    # timing

    def event(self) -> Event:
        return self._events.event()

    def spin(self, cycles: int) -> None:
        self._events.sleep(cycles)

    def flush(self) -> None:
        self.torch.sum(self._flush, dim=0, out=self._sum)

    # profilers

    @contextmanager
    def range(self, name: str) -> Iterator[None]:
        """NVTX range ``name`` of the default domain."""
        self.torch.cuda.nvtx.range_push(name)
        try:
            yield
        finally:
            self.torch.cuda.nvtx.range_pop()

    @contextmanager
    def profiled(self) -> Iterator[None]:
        """Capture range of a profiler started with ``--profile-from-start off``."""
        self.torch.cuda.synchronize()
        self.torch.cuda.cudart().cudaProfilerStart()
        try:
            yield
        finally:
            self.torch.cuda.synchronize()
            self.torch.cuda.cudart().cudaProfilerStop()
