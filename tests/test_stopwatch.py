"""Bursts of a GPU whose clock falls under load, and whose driver says so late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ncuflow.run import timing

FREE, LOADED = 1980.0, 1500.0
CAP = "sw_power_cap"


class SlowGpu(timing.Stopwatch):
    """A GPU of one clock, in MHz, that is `back` when it was asked for so often; `says`: the driver's reasons."""

    def __init__(self) -> None:
        super().__init__()
        self.now_us, self.mhz, self.back, self.says = 0.0, FREE, 0, (CAP,)
        self.nvml = SimpleNamespace(throttle=lambda: self.says)
        self.slept_s = 0.0

    def sleep(self, seconds: float) -> None:
        self.slept_s += seconds

    def event(self) -> Any:
        mark = SimpleNamespace(at=0.0, query=lambda: True)
        mark.record = lambda: setattr(mark, "at", self.now_us)
        mark.elapsed_time = lambda end: (end.at - mark.at) / 1e3
        return mark

    def spin(self, cycles: int) -> None:
        self.now_us += cycles / self.mhz
        if self.back and cycles == timing.PROBE_CYCLES:
            self.back -= 1
            self.mhz = LOADED if self.back else FREE

    def synchronize(self) -> None: ...

    def flush(self) -> None: ...


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> SlowGpu:
    monkeypatch.setattr(timing.nvml, "cuda", lambda: {"uuid": None})
    found = SlowGpu()
    monkeypatch.setattr(timing, "sleep", found.sleep)
    monkeypatch.setattr(timing, "monotonic", lambda: found.slept_s)
    found.settle()
    return found


def test_settled_is_a_clock_that_is_back_whatever_the_driver_still_says(gpu: SlowGpu) -> None:
    gpu.mhz, gpu.back = LOADED, 3
    begun = gpu.now_us
    gpu.settle()
    assert (gpu.mhz, gpu.back) == (FREE, 0)
    probes = (gpu.now_us - begun) / (timing.PROBE_CYCLES / LOADED)
    assert 3 < probes < 5  # three at the low clock, with what is before each, and the free one


def test_a_clock_that_stays_low_is_waited_for_ever_less_until_it_is_back(gpu: SlowGpu) -> None:
    gpu.mhz = LOADED
    waits = []
    for _ in range(7):
        begun = gpu.slept_s
        gpu.settle()
        waits.append(gpu.slept_s - begun)
    assert waits == pytest.approx([1.0, 0.5, 0.25, 0.125, 0.0625, 0.05, 0.05], abs=0.006)
    gpu.mhz = FREE
    gpu.settle()
    gpu.mhz, begun = LOADED, gpu.slept_s
    gpu.settle()
    assert gpu.slept_s - begun == pytest.approx(1.0, abs=0.006)


def test_a_clock_that_nothing_holds_down_is_the_free_one(gpu: SlowGpu) -> None:
    gpu.mhz, gpu.says = LOADED, ("gpu_idle",)
    gpu.settle()
    assert gpu.slept_s == pytest.approx(1.0, abs=0.006)
    gpu.settle()
    assert gpu.slept_s == pytest.approx(1.0, abs=0.006)
    assert gpu.cold(lambda: None, 2).free


def test_a_clock_of_which_the_driver_tells_nothing_is_not_taken_for_free(gpu: SlowGpu) -> None:
    gpu.mhz = LOADED
    gpu.nvml = SimpleNamespace(throttle=lambda: None)
    gpu.settle()
    assert not gpu.cold(lambda: None, 2).free


@pytest.mark.parametrize(
    ("mhz", "said"), [(FREE, (CAP,)), (LOADED, (CAP,)), (LOADED, ()), (FREE, ("gpu_idle",))]
)
def test_a_reason_is_of_a_burst_whose_clock_was_low(gpu, mhz, said):
    gpu.mhz, gpu.says = mhz, said
    found = gpu.cold(lambda: None, 2)
    assert found.throttled == (mhz == LOADED and CAP in said)
    assert found.free == (mhz == FREE)
    assert found.sm_mhz == pytest.approx(mhz)
