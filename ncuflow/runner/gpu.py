"""The GPU that a run measures on: the only module beside the targets that touches torch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median
from time import monotonic, sleep
from typing import Any

from ncuflow.runner.launch import Launch, Tensor
from ncuflow.runner.timing import THROTTLES, Burst

Run = Callable[[], None]
SPINS = 4  # times that a series is taken if the host falls behind the GPU
HOST_US = 50.0  # to enqueue one launch; learnt anew for each point
LONGEST_SPIN_US = 200_000.0
PROBE_CYCLES = 400_000  # of the spin kernel that reads the SM clock: 0.2 ms at 2 GHz
NEAR_FREE = 0.97  # of the SM clock of the idle GPU at the start: the clocks are back
LONGEST_WAIT_S = 1.0  # for the clocks to come back
WAIT_S = 0.005  # between two looks at them
PROBES = 5  # at the start
FLOOR_LAUNCHES = 30


def capabilities() -> list[str]:
    """Compute capabilities of the visible GPUs, e.g. ["9.0"]; empty without one."""
    import torch

    found = {torch.cuda.get_device_capability(i) for i in range(torch.cuda.device_count())}
    return [f"{major}.{minor}" for major, minor in sorted(found)]


def _poison(tensor: Tensor) -> float:
    """What no kernel writes: NaN, or -1 where a tensor holds whole numbers (255 without a sign)."""
    if tensor.dtype.is_floating_point:
        return float("nan")
    return -1 if tensor.dtype.is_signed else 255


def _readable(tensor: Tensor) -> Tensor:
    """The tensor; in float32 where its type is of 8 bits, which few operations take."""
    return tensor.float() if tensor.dtype.itemsize == 1 else tensor


class Gpu:
    """The current CUDA device. Times are microseconds."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("no CUDA device is available to torch")
        # the reference is float32: TF32 would give it 10 bits
        torch.backends.cuda.matmul.allow_tf32 = False
        self.torch = torch
        self.properties = torch.cuda.get_device_properties(0)
        twice_l2 = 2 * self.properties.L2_cache_size
        self._flush = torch.zeros(twice_l2 // 4, dtype=torch.float32, device="cuda")
        self._sum = torch.empty((), dtype=torch.float32, device="cuda")
        self._handle = _nvml_handle(self.properties)
        self._host_us = HOST_US
        self._free_mhz = 0.0
        self._floor_us: float | None = None

    def facts(self) -> dict[str, Any]:
        """{"name", "compute_capability", "memory_bytes"}, what a target's skip() is given."""
        facts = self.properties
        return {
            "name": facts.name,
            "compute_capability": f"{facts.major}.{facts.minor}",
            "memory_bytes": facts.total_memory,
        }

    def driver(self) -> str | None:
        """Version of the driver; None if NVML cannot tell."""
        if self._handle is None:
            return None
        import pynvml

        return str(pynvml.nvmlSystemGetDriverVersion())

    def synchronize(self) -> None:
        """Wait for the GPU; raises what the kernels raised."""
        self.torch.cuda.synchronize()

    def alive(self) -> bool:
        """Whether the CUDA context still works; after a sticky error nothing does."""
        try:
            self.torch.cuda.synchronize()
            return bool(self.torch.ones(1, device="cuda").item() == 1)
        except Exception:
            return False

    def release(self) -> None:
        """Give the memory of the last point back."""
        self._host_us = HOST_US
        gc.collect()
        # What is left is torch and FlashInfer: to look through it again takes 0.1 s per point.
        gc.freeze()
        self.torch.cuda.empty_cache()
        self.torch.cuda.reset_peak_memory_stats()

    def peak_memory(self) -> int:
        """Most bytes allocated since ``release``, the flush buffer aside."""
        peak: int = self.torch.cuda.max_memory_allocated() - self._flush.nbytes
        return peak

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
            ratio = error.norm() / reference.norm()
            found.append((float(ratio), float(error.abs().max())))
        return found

    # timing

    def flush(self) -> None:
        """Evict the L2 cache: read twice its size. Reading leaves no line that must be written back
        while the next kernel runs."""
        self.torch.sum(self._flush, dim=0, out=self._sum)

    def cold(self, run: Run, n: int) -> Burst:
        """Time of each of ``n`` launches, each after an L2 flush."""
        return self._queued(run, n, 1, self.flush)

    def hot(self, run: Run, n: int, group: int) -> Burst:
        """Time per launch of each of ``n`` groups of ``group`` launches back to back."""
        return self._queued(run, n, group, None)

    def steady(self, run: Run, n: int, group: int) -> Burst:
        """As ``hot``, not behind a spin kernel: for series longer than any that is queued first."""
        return self._burst(run, n, group, None, spin_us=0.0)

    def floor_us(self) -> float:
        """Median cold time of an empty kernel: what the events themselves cost. Measured once."""
        if self._floor_us is None:
            empty = self.cold(lambda: self.torch.cuda._sleep(0), FLOOR_LAUNCHES)
            self._floor_us = median(empty.times)
        return self._floor_us

    def settle(self) -> None:
        """Wait until no throttle reason shows and the SM clock is what it was before anything ran, for
        LONGEST_WAIT_S at most."""
        if not self._free_mhz:
            self._free_mhz = median(self._sm_mhz() for _ in range(PROBES))
        until = monotonic() + LONGEST_WAIT_S
        while monotonic() < until:
            near = self._sm_mhz() >= NEAR_FREE * self._free_mhz
            if near and not THROTTLES & set(self._throttle()):
                return
            sleep(WAIT_S)

    def _queued(self, run: Run, n: int, group: int, before: Run | None) -> Burst:
        """Queue the burst behind a spin kernel, a longer one each time the host fell behind."""
        for _ in range(SPINS):
            spin_us = min(self._host_us * n * (group + 1), LONGEST_SPIN_US)
            burst = self._burst(run, n, group, before, spin_us)
            if burst.queued:
                break
            self._host_us *= 2
        return burst

    def _burst(self, run: Run, n: int, group: int, before: Run | None, spin_us: float) -> Burst:
        """Enqueue behind a spin of ``spin_us``, watch the throttle reasons while it runs, and read the
        SM clock at its end."""
        torch = self.torch
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(n)]
        spun, done = torch.cuda.Event(), torch.cuda.Event()
        if spin_us:
            torch.cuda._sleep(int(spin_us * 2_000))  # clock cycles; at 2 GHz, so rather longer
        spun.record()
        for start, end in events:
            if before is not None:
                before()
            start.record()
            for _ in range(group):
                run()
            end.record()
        queued = not spin_us or not spun.query()
        probe = self._probe()
        done.record()
        seen = set(self._throttle())
        while not done.query():
            seen |= set(self._throttle())
        torch.cuda.synchronize()
        times = [start.elapsed_time(end) * 1e3 / group for start, end in events]
        return Burst(times, queued, _mhz(*probe), tuple(sorted(seen)))

    def _probe(self) -> tuple[Any, Any]:
        """Events around a kernel that spins for PROBE_CYCLES of the SM clock. Another spins before
        them, so that the first event does not wait for what was measured to drain."""
        start, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.torch.cuda._sleep(PROBE_CYCLES // 10)
        start.record()
        self.torch.cuda._sleep(PROBE_CYCLES)
        end.record()
        return start, end

    def _sm_mhz(self) -> float:
        probe = self._probe()
        self.torch.cuda.synchronize()
        return _mhz(*probe)

    def _throttle(self) -> list[str]:
        return [] if self._handle is None else _nvml_throttle(self._handle)

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

    def clocks(self) -> dict[str, Any] | None:
        """{"sm_mhz", "mem_mhz", "throttle": [reasons]}; None if NVML cannot tell."""
        return None if self._handle is None else _nvml_clocks(self._handle)


def _mhz(start: Any, end: Any) -> float:
    """SM clock from the time of a kernel of PROBE_CYCLES, in MHz."""
    return PROBE_CYCLES / (float(start.elapsed_time(end)) * 1e3)


IDLE = "gpu_idle"  # the one reason that holds nothing back
# Bits of nvmlClocksEventReason* (nvml.h), which nvidia-smi shows as clocks_throttle_reasons.active.
_REASONS = {
    0x1: IDLE,
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


def throttle_reasons(mask: int) -> list[str]:
    """Names of NVML's clock throttle reasons; an unknown bit is kept as a number."""
    return [
        _REASONS.get(1 << bit, f"reason_{1 << bit:#x}")
        for bit in range(mask.bit_length())
        if mask >> bit & 1
    ]


def _nvml_handle(properties: Any) -> Any:
    """NVML's handle of the device with torch's UUID; None without NVML."""
    try:
        import pynvml

        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{properties.uuid}")
    except Exception:  # not installed, no library, a MIG slice: clocks are then unknown
        return None


def _nvml_clocks(handle: Any) -> dict[str, Any] | None:
    import pynvml

    try:
        return {
            "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "mem_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "throttle": _nvml_throttle(handle),
        }
    except pynvml.NVMLError:
        return None


def _nvml_throttle(handle: Any) -> list[str]:
    import pynvml

    try:
        return throttle_reasons(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
    except pynvml.NVMLError:
        return []
