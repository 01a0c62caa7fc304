"""Timing of one launch under equal conditions: cold, hot, sustained, host and plan, with their spread.

cold       the L2 cache is flushed before each launch; events around each launch
hot        launches back to back, L2 warm; events around groups of them
sustained  launches back to back until clocks and power have settled: what a long run reaches; not of
           a launch so short that the host sets the pace
host       perf_counter around run(), which only enqueues, after the calls that find nothing in the host's caches
plan       perf_counter around plan() on an idle GPU; plan() copies the index arrays to the host, so
           this is what a serving loop pays before each step

A point is visited in several rounds, and between two visits the other points run (``visits.py``), so
that what ran before falls on all points alike. Cold and hot launches are queued in bursts behind a
spin kernel, so that the host is never what is measured, and short enough that the power limit does
not set in; before each burst the GPU waits until its clocks are back. A burst under a throttle reason
is taken again while the time limit lasts, and does not enter the median where enough others do.

A stopwatch times bursts by the GPU's events. What makes events, spins and waits is the subclass: torch (``gpu.py``) or the
CUDA driver (``ceilings.py``).
"""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median
from time import monotonic, perf_counter, sleep
from typing import Any, Protocol, TypeVar

from ncuflow import record
from ncuflow.gpu import nvml
from ncuflow.io import JsonObject
from ncuflow.record import Series as Timed
from ncuflow.target.launch import Launch

REPEATS = 30  # cold, hot and host repetitions over all rounds, if the budget allows
ROUNDS = 3
FIRST_CALLS = 2  # after a burst they take up to twice as long as the others
PLANS = 15  # repetitions of plan() over all rounds
LEAST = 5  # repetitions, whatever the budget
GROUP = 8  # launches of one hot sample
BUDGET_US = 500_000.0  # of a point's cold, hot and host series together
BURST_US = 20_000.0  # of one burst: the power limit acts on averages over tens of milliseconds
# The second half is what counts: of the first where the clock was free after it, which then nothing lowers.
SUSTAINED_US = (100_000.0, 300_000.0)
L = TypeVar("L", bound=record.Launches)

# What holds the clocks below what the policy asks for. Idle, application clocks, sync boost and display
# clocks are the policy itself.
THROTTLES = frozenset(
    {"sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"}
)  # fmt: skip
RETAKES, MOST_RETAKES = 3, 9  # of a throttled burst, and of a point


@dataclass(frozen=True)
class Burst:
    """Launches queued behind each other. times: µs each; queued: the host stayed ahead of the GPU;
    sm_mhz: SM clock right after them, lower while they ran if power held it down, None if unknown;
    throttle: reasons seen while they ran, of a clock that was lower than the idle GPU's; free: it was not."""

    times: list[float]
    queued: bool = True
    sm_mhz: float | None = None
    throttle: tuple[str, ...] = ()
    free: bool = False

    @property
    def throttled(self) -> bool:
        return bool(THROTTLES & set(self.throttle))


@dataclass
class PointTiming:
    """All that was measured of one point, filled by a visit per round."""

    cold: list[Burst] = field(default_factory=list)
    hot: list[Burst] = field(default_factory=list)
    group: int | None = None  # launches of a hot sample
    sustained: Burst | None = None
    host: list[float] = field(default_factory=list)
    plan: list[float] = field(default_factory=list)
    floor_us: float | None = None
    clocks: list[record.State] = field(default_factory=list)
    retakes: int = 0
    positions: list[int] = field(default_factory=list)  # place in the order of each round
    check: record.Check | None = None  # of the first round

    def timing(self) -> Timed:
        """``timing`` of the record."""
        return Timed(
            cold=of_bursts(self.cold, record.Cold, floor_us=self.floor_us),
            hot=of_bursts(self.hot, record.Hot, group=self.group),
            sustained=of_bursts([self.sustained], record.Sustained) if self.sustained else None,
            host=record.Times(**summary(self.host)),
            plan=record.Times(**summary(self.plan)) if self.plan else None,
        )

    def conditions(self) -> record.Clocks | None:
        """``clocks`` of the record; None if the device cannot tell them."""
        if not self.clocks:
            return None
        return record.Clocks(before=self.clocks[0], after=self.clocks[-1], retakes=self.retakes)


@dataclass(frozen=True)
class Timer:
    """Times a launch by a stopwatch, and adds what it finds to a series."""

    device: Stopwatch
    launch: Launch
    series: PointTiming = field(default_factory=PointTiming)

    def begin(self) -> None:
        """Note what holds before all else: the clocks, and what events tell of no work."""
        self.note_clocks()
        self.series.floor_us = significant(self.device.floor_us())

    def note_clocks(self) -> None:
        """Add the clocks as they are, where the device can tell them."""
        state = self.device.clocks()
        if state is not None:
            self.series.clocks.append(record.State(**state))

    def each(self) -> float:
        """The µs of one launch, of which numbers of repetitions are reckoned."""
        return max(min(self.device.cold(self.launch.run, 3).times), 1.0)

    def cold(self, n: int, each: float) -> None:
        """Add ``n`` cold samples of launches that take ``each`` µs."""
        self._bursts(self.series.cold, n, each, self.device.cold)

    def hot(self, group: int, n: int, each: float) -> None:
        """Add ``n`` hot samples, each of ``group`` launches that take ``each`` µs."""
        self.series.group = group
        self._bursts(self.series.hot, n, each * group, partial(self.device.hot, group=group))

    def _bursts(
        self, found: list[Burst], n: int, each: float, take: Callable[[Run, int], Burst]
    ) -> None:
        """Add ``n`` samples to ``found``, in bursts of at most BURST_US; a throttled burst is taken again."""
        size = max(1, min(n, int(BURST_US / each)))
        for first in range(0, n, size):
            for _ in range(1 + RETAKES):
                self.device.settle()
                reset(self.launch)
                found.append(take(self.launch.run, min(size, n - first)))
                if not found[-1].throttled or self.series.retakes >= MOST_RETAKES:
                    break
                self.series.retakes += 1

    def host(self, n: int) -> None:
        """Add ``n`` times of the call on the host."""
        reset(self.launch)
        self.series.host += call_times(self.device, self.launch.run, FIRST_CALLS + n)[FIRST_CALLS:]

    def plan(self, n: int) -> None:
        """Add ``n`` times of plan(), where the launch has one."""
        if self.launch.plan is not None:
            self.series.plan += plan_times(self.device, self.launch.plan, n)

    def sustained(self, each: float) -> None:
        """Add what a long run reaches, where the host enqueues faster than the GPU runs launches that follow each other. Else it
        is the host that sets their pace, and nothing of the GPU is sustained."""
        if statistics.median(self.series.host) < of_bursts(self.series.hot, record.Hot).median:
            self.series.sustained = self.steady(each)
            reset(self.launch)

    def steady(self, each: float) -> Burst:
        """The second half of SUSTAINED_US of launches, in about 20 groups."""
        for span_us in SUSTAINED_US:
            group = max(1, int(span_us / each / 40))
            n = max(2, int(span_us / each / group))
            burst = self.device.steady(self.launch.run, n, group)
            if burst.free:
                break
        return replace(burst, times=burst.times[n // 2 :])


def visit(
    device: Stopwatch,
    launch: Launch,
    series: PointTiming,
    repeats: int = REPEATS,
    rounds: int = ROUNDS,
    last: bool = True,
) -> None:
    """Measure one of ``rounds`` rounds of a point and add it to ``series``; ``repeats`` are those of all
    rounds together. The last visit adds the sustained rate."""
    timer, share = Timer(device, launch, series), BUDGET_US / 3 / rounds
    least, wanted = -(-LEAST // rounds), -(-repeats // rounds)
    timer.begin()
    reset(launch)
    each = timer.each()
    group = repetitions(GROUP, BURST_US / LEAST, each, least=1)
    n = repetitions(wanted, share, each, least)
    timer.cold(n, each)
    timer.hot(group, repetitions(wanted, share, each * group, least), each)
    timer.host(n)
    reset(launch)
    if last:
        timer.sustained(each)
    timer.plan(-(-PLANS // rounds))
    timer.note_clocks()


def complete(device: Stopwatch, launch: Launch, series: PointTiming) -> None:
    """Add to one side of a `pair` the sustained rate, which a visit has beside: then it is all that is measured of a point."""
    timer = Timer(device, launch, series)
    device.settle()  # the other side's may have run just before
    reset(launch)
    timer.sustained(max(min(_joined(series.cold)), 1.0))
    timer.note_clocks()


def bursts(
    device: Stopwatch, run: Callable[[], Any], repeats: int, parts: int = 1
) -> tuple[record.Launches, float]:
    """Summary of a call that is no kernel target, in ``parts`` bursts or more from settled clocks; and its µs alone."""
    timer = Timer(device, _call(run))
    each = timer.each()
    for _ in range(parts):
        timer.hot(1, -(-repeats // parts), each)
    return of_bursts(timer.series.hot, record.Hot), each


def sustained(device: Stopwatch, run: Callable[[], Any], each: float) -> record.Launches:
    """Summary of such a call, which takes ``each`` µs alone, back to back until clocks and power have settled."""
    return of_bursts([Timer(device, _call(run)).steady(each)], record.Sustained)


def _call(run: Callable[[], Any]) -> Launch:
    return Launch(run=run, output=tuple, reference=tuple, tolerance=0.0, buffers=tuple)


def pair(
    device: Stopwatch, launches: tuple[Launch, Launch], rounds: int, each_n: int
) -> tuple[PointTiming, PointTiming]:
    """Two launches timed as a pair: A, B, then B, A, and so on, each burst from settled clocks.

    Hot launches are timed in groups, as those of a point are, and in the same ones on both sides: an event between
    two launches keeps the second from beginning beside the first, which programmatic dependent launch is for.
    """
    timers = [Timer(device, launch) for launch in launches]
    for timer in timers:
        timer.begin()
    sides = [(timer, timer.each()) for timer in timers]
    group = repetitions(GROUP, BURST_US / each_n, max(each for _, each in sides), least=1)
    for number in range(rounds):
        for timer, each in sides if number % 2 == 0 else sides[::-1]:
            timer.cold(repetitions(each_n, BURST_US, each, least=1), each)
            timer.hot(group, repetitions(each_n, BURST_US, each * group, least=1), each)
            timer.host(each_n)
            timer.plan(each_n)
    for timer in timers:
        timer.note_clocks()
    return timers[0].series, timers[1].series


def reset(launch: Launch) -> None:
    """Put back what a run overwrites."""
    if launch.reset is not None:
        launch.reset()


def repetitions(wanted: int, budget: float, each: float, least: int = LEAST) -> int:
    """Repetitions of ``each`` µs in ``budget`` µs: ``wanted`` at most, ``least`` at least."""
    return max(least, min(wanted, int(budget / each)))


def call_times(device: Stopwatch, run: Callable[[], None], n: int) -> list[float]:
    """µs of the host in each of so many calls, which only enqueue."""
    device.synchronize()
    times = []
    for _ in range(n):
        start = perf_counter()
        run()
        times.append((perf_counter() - start) * 1e6)
    device.synchronize()
    return times


def plan_times(device: Stopwatch, plan: Callable[[], None], n: int) -> list[float]:
    """µs of the host in each of so many plan(), on an idle GPU; fewer where they take long."""
    times: list[float] = []
    while len(times) < n and (not times or sum(times) < BUDGET_US / 3):
        device.synchronize()
        start = perf_counter()
        plan()
        times.append((perf_counter() - start) * 1e6)
    return times


def of_bursts(bursts: Sequence[Burst], kind: type[L], **own: Any) -> L:
    """Summary of bursts: over those without a throttle reason where they hold LEAST samples, else over all.

    own: what this kind of series says beside what all do.
    """
    unthrottled = [burst for burst in bursts if not burst.throttled]
    enough = len(_joined(unthrottled)) >= LEAST
    counted, others = (
        (unthrottled, [b for b in bursts if b.throttled]) if enough else (list(bursts), [])
    )
    clocks = [burst.sm_mhz for burst in counted if burst.sm_mhz is not None]
    return kind(
        **summary(_joined(counted)),
        queued=all(burst.queued for burst in counted),
        sm_mhz=round(statistics.median(clocks)) if clocks else None,
        throttle=sorted({reason for burst in counted for reason in burst.throttle} & THROTTLES),
        left_out=[significant(time) for time in _joined(others)][: record.KEPT],
        **own,
    )


def _joined(bursts: Iterable[Burst]) -> list[float]:
    return [time for burst in bursts for time in burst.times]


def summary(samples: Sequence[float]) -> JsonObject:
    """What every series says (``record.Times``) of times in µs, four significant digits.

    Raises ValueError if there are no samples.
    """
    low, median, high = (significant(value) for value in record.quartiles(samples))
    kept = [significant(value) for value in samples[: record.KEPT]]
    return {"median": median, "q25": low, "q75": high, "n": len(samples), "samples": kept}


def significant(value: float, digits: int = 4) -> float:
    """``value`` rounded to ``digits`` significant digits."""
    return float(f"{value:.{digits}g}")


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
