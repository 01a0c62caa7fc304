"""The GPU that a run measures on: the only module beside the targets that touches torch."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from targets.launch import Launch, Tensor

Run = Callable[[], None]
SPINS = 4  # series that may be taken again because the host fell behind the GPU


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
        self._flush = torch.empty(2 * self.properties.L2_cache_size, dtype=torch.int8, device="cuda")
        self._handle = _nvml_handle(self.properties)
        self._host_us = 200.0  # of one repetition; learnt as we go

    def facts(self) -> dict[str, Any]:
        """{"name", "compute_capability", "memory_bytes"}, what a target's skip() is given."""
        facts = self.properties
        return {
            "name": facts.name,
            "compute_capability": f"{facts.major}.{facts.minor}",
            "memory_bytes": facts.total_memory,
        }

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
        gc.collect()
        self.torch.cuda.empty_cache()
        self.torch.cuda.reset_peak_memory_stats()

    def peak_memory(self) -> int:
        """Most bytes allocated since ``release``, the flush buffer included."""
        return int(self.torch.cuda.max_memory_allocated())

    # correctness

    def poison(self, launch: Launch) -> None:
        """Fill with NaN what the launch will write; for outputs that it allocates, the memory that
        the allocator would hand out again."""
        spare = [tensor.fill_(float("nan")) for tensor in launch.buffers()]
        if launch.allocates:
            spare += [self.torch.full_like(t, float("nan")) for t in spare for _ in range(2)]

    def written(self, launch: Launch) -> bool:
        """Whether every element of the launch's output is finite."""
        return all(bool(self.torch.isfinite(tensor).all()) for tensor in launch.buffers())

    def compare(self, outputs: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> dict[str, float]:
        """{"rel_l2", "max_abs"}, the worst over the tensors. Raises ValueError on other shapes."""
        worst = {"rel_l2": 0.0, "max_abs": 0.0}
        for output, reference in zip(outputs, expected, strict=True):
            if output.shape != reference.shape:
                raise ValueError(f"output {tuple(output.shape)}, reference {tuple(reference.shape)}")
            error = output.float() - reference
            ratio = (error.norm() / reference.norm()).item()
            for key, value in (("rel_l2", ratio), ("max_abs", error.abs().max().item())):
                # NaN is kept: it must fail the check
                worst[key] = value if value != value else max(worst[key], value)
        return worst

    # timing

    def flush(self) -> None:
        """Evict the L2 cache: write twice its size."""
        self._flush.zero_()

    def estimate(self, run: Run) -> float:
        """Rough time of a run with a cold cache."""
        return min(self.cold(run, 3))

    def cold(self, run: Run, n: int) -> list[float]:
        """Time of each of ``n`` launches, each after an L2 flush."""
        return self._queued(lambda: run(), n, group=1, before=self.flush)

    def hot(self, run: Run, n: int, group: int) -> list[float]:
        """Time a launch of each of ``n`` groups of ``group`` launches back to back."""
        return self._queued(run, n, group, before=lambda: None)

    def _queued(self, run: Run, n: int, group: int, before: Run) -> list[float]:
        """Queue the series behind a spin kernel; again, behind a longer one, if the host was late."""
        for _ in range(SPINS):
            events, late = self._enqueue(run, n, group, before)
            self.torch.cuda.synchronize()
            if not late:
                break
            self._host_us *= 2
        return [start.elapsed_time(end) * 1e3 / group for start, end in events]

    def _enqueue(self, run: Run, n: int, group: int, before: Run) -> tuple[list[Any], bool]:
        """(events of each group, whether the GPU was ready before the host had queued it all)."""
        torch = self.torch
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(n)]
        spun = torch.cuda.Event()
        # clock cycles at 2 GHz; no longer than 0.2 s
        torch.cuda._sleep(int(2_000 * min(self._host_us * n * group, 200_000)))
        spun.record()
        for start, end in events:
            before()
            start.record()
            for _ in range(group):
                run()
            end.record()
        return events, bool(spun.query())

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


_REASONS = {
    0x1: "gpu_idle",
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
        mask = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
        return {
            "sm_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
            "mem_mhz": pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_MEM),
            "throttle": throttle_reasons(mask),
        }
    except pynvml.NVMLError:
        return None
