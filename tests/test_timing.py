"""Timing: how many repetitions, what a summary says, when a series is taken again."""

from __future__ import annotations

from typing import Any

import pytest
from fake_device import Device, ran
from hypothesis import given
from hypothesis import strategies as st

from ncuflow.runner import ceilings, gpu, timing


def test_a_summary_has_quartiles_and_says_how_many() -> None:
    found = timing.summary([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found["median"], found["q25"], found["q75"], found["n"]) == (3.0, 2.0, 4.0, 5)
    assert found["unit"] == "us" and found["samples"] == [4.0, 1.0, 3.0, 2.0, 5.0]


def test_samples_are_kept_to_fifty_and_four_digits() -> None:
    found = timing.summary([894.5123] * 60)
    assert found["samples"] == [894.5] * 50 and found["n"] == 60


def test_no_samples_are_an_error_not_a_zero() -> None:
    with pytest.raises(ValueError, match="no samples"):
        timing.summary([])


@given(st.integers(1, 1000), st.floats(1, 1e7), st.floats(1, 1e9))
def test_repetitions_are_never_fewer_than_five(wanted: int, budget: float, each: float) -> None:
    n = timing.repetitions(wanted, budget, each)
    assert 5 <= n <= max(5, wanted)
    assert n == 5 or n * each <= budget


@pytest.mark.parametrize(
    ("each", "cold", "hot"),
    [(2e3, "cold 30", "hot 10 x 8"), (2e4, "cold 8", "hot 8 x 1"), (9e5, "cold 5", "hot 5 x 1")],
)
def test_a_slow_launch_is_repeated_less_and_grouped_less(each: float, cold: str, hot: str) -> None:
    device = Device()
    device.cold = lambda run, n: (device.log.append(f"cold {n}"), ([each] * n, True))[1]  # type: ignore
    ran(device)
    assert cold in device.log and hot in device.log


def test_whether_the_host_kept_ahead_is_recorded() -> None:
    _, (record,) = ran(Device())
    assert record["timing"]["cold"]["queued"] is True
    assert record["timing"]["hot"]["queued"] is False


def state(*throttle: str) -> dict[str, Any]:
    return {"sm_mhz": 1500, "mem_mhz": 2600, "throttle": list(throttle)}


@pytest.mark.parametrize(
    ("after", "retakes"),
    [
        ([state()], 0),
        ([state("sw_power_cap", "gpu_idle", "applications_clocks_setting")], 0),
        ([state("hw_thermal_slowdown")] * 9, 2),
        ([state("sw_thermal_slowdown"), state(), state()], 1),
    ],
)
def test_a_throttled_series_is_retaken_twice_at_most(after: list[Any], retakes: int) -> None:
    device = Device()
    device.states = [state(), *after]
    _, (record,) = ran(device)
    assert record["clocks"]["retakes"] == retakes
    assert sum(entry == "cold 30" for entry in device.log) == retakes + 1


def test_throttle_reasons_are_named_and_unknown_bits_kept() -> None:
    assert gpu.throttle_reasons(0) == []
    assert gpu.throttle_reasons(0x24) == ["sw_power_cap", "sw_thermal_slowdown"]
    assert gpu.throttle_reasons(0x400) == ["reason_0x400"]


def test_a_rate_has_its_quartiles_the_right_way_round() -> None:
    found = ceilings._rate([1.0, 2.0, 4.0, 5.0, 8.0], 1e-3, "m")
    assert found == {"value": 250.0, "n": 5, "q25": 200.0, "q75": 500.0, "method": "m"}
