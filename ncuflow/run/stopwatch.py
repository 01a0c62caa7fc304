"""Bursts of launches on a GPU, timed by its events.

What makes events, spins and waits is the subclass: torch (``gpu.py``) or the CUDA driver (``driver.py``).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from statistics import median
from time import monotonic, sleep
from typing import Any, Protocol

from ncuflow.gpu import nvml
from ncuflow.io import JsonObject
from ncuflow.run.timing import THROTTLES, Burst

Run = Callable[[], None]
SPINS = 4  # times that a series is taken if the host falls behind the GPU
HOST_US = 50.0  # to enqueue one launch; learnt anew for each point
LONGEST_SPIN_US = 200_000.0
PROBE_CYCLES = 400_000  # of the spin kernel that reads the SM clock: 0.2 ms at 2 GHz
NEAR_FREE = 0.97  # of the SM clock of the idle GPU at the start: the clocks are back
LONGEST_WAIT_S = 1.0  # for the clocks to come back; half as long after each time that they did not
LEAST_WAIT_S = 0.05
WAIT_S = 0.005  # between two looks at them
PROBES = 5  # at the start
FLOOR_LAUNCHES = 30


class Event(Protocol):
    """A point of the GPU's work, as torch.cuda.Event has it."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end: Any) -> float: ...  # ms


class Stopwatch(ABC):
    """A GPU that times what is enqueued on it. Times are microseconds."""

    def __init__(self) -> None:
        self._facts = nvml.cuda()
        self.nvml = nvml.DriverQuery(self._facts["uuid"] or "")
        self._host_us = HOST_US
        self._free_mhz = 0.0
        self._patience_s = LONGEST_WAIT_S
        self._floor_us: float | None = None

    @abstractmethod
    def event(self) -> Event:
        """A timing event."""

    @abstractmethod
    def spin(self, cycles: int) -> None:
        """Enqueue a kernel that lasts so many cycles of the SM clock; an empty one for 0."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait for the GPU; raises what the kernels raised."""

    @abstractmethod
    def flush(self) -> None:
        """Evict the L2 cache: read twice its size. Reading leaves no line that must be written back
        while the next kernel runs."""

    def facts(self) -> JsonObject:
        """{"name", "compute_capability", "memory_bytes", …}, what a target's skip() is given."""
        return self._facts

    def driver(self) -> str | None:
        """Version of the driver; None if NVML cannot tell."""
        return nvml.driver()

    def clocks(self) -> JsonObject | None:
        """{"sm_mhz", "mem_mhz", "throttle": [reasons]}; None if NVML cannot tell."""
        return self.nvml.clocks()

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
            empty = self.cold(lambda: self.spin(0), FLOOR_LAUNCHES)
            self._floor_us = median(empty.times)
        return self._floor_us

    def settle(self) -> None:
        """Wait until the SM clock is what it was before anything ran, for LONGEST_WAIT_S at most: a GPU that is held down
        for minutes by what else its host does is not waited for at each burst.

        The clock is measured. What the driver names is old: a reason shows when the burst it is of has ended, and for 0.4 s
        after the clock is back. So a wait that ends in vain while the driver names none is of a clock that nothing holds down,
        and a GPU that begins to work was read too high (by 4 % seen on an H100): that clock is the free one from then on.
        """
        if not self._free_mhz:
            self._free_mhz = median(self._sm_mhz() for _ in range(PROBES))
        until = monotonic() + self._patience_s
        while not self._is_free(sm_mhz := self._sm_mhz()):
            if monotonic() >= until:
                self._waited_in_vain(sm_mhz)
                return
            sleep(WAIT_S)
        self._patience_s = LONGEST_WAIT_S

    def _waited_in_vain(self, sm_mhz: float) -> None:
        reasons = self.nvml.throttle()
        if reasons is None or THROTTLES & set(reasons):
            self._patience_s = max(LEAST_WAIT_S, self._patience_s / 2)
        else:
            self._free_mhz = sm_mhz

    def _is_free(self, sm_mhz: float) -> bool:
        """Whether nothing holds this clock down; unknown before `settle` is False."""
        return bool(self._free_mhz) and sm_mhz >= NEAR_FREE * self._free_mhz

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
        SM clock right after it. A kernel that only spins reads it, for which the clock rises at once where
        the power of what ran had lowered it."""
        events = [(self.event(), self.event()) for _ in range(n)]
        spun, done = self.event(), self.event()
        if spin_us:
            self.spin(int(spin_us * 2_000))  # clock cycles; at 2 GHz, so rather longer
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
        seen = set(self.nvml.throttle() or ())
        while not done.query():
            seen |= set(self.nvml.throttle() or ())
        self.synchronize()
        times = [start.elapsed_time(end) * 1e3 / group for start, end in events]
        sm_mhz = _mhz(*probe)
        if free := self._is_free(sm_mhz):
            seen -= THROTTLES
        return Burst(times, queued, sm_mhz, tuple(sorted(seen)), free)

    def _probe(self) -> tuple[Event, Event]:
        """Events around a kernel that spins for PROBE_CYCLES of the SM clock. Another spins before
        them, so that the first event does not wait for what was measured to drain."""
        start, end = self.event(), self.event()
        self.spin(PROBE_CYCLES // 10)
        start.record()
        self.spin(PROBE_CYCLES)
        end.record()
        return start, end

    def _sm_mhz(self) -> float:
        probe = self._probe()
        self.synchronize()
        return _mhz(*probe)


def _mhz(start: Event, end: Event) -> float:
    """SM clock from the time of a kernel of PROBE_CYCLES, in MHz."""
    return PROBE_CYCLES / (start.elapsed_time(end) * 1e3)
