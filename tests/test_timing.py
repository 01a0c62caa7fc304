"""Timing: how many repetitions, what a summary says, when a series is taken again."""

from __future__ import annotations

import pytest
from fake_device import Device, fake_target, ran
from hypothesis import given
from hypothesis import strategies as st

from ncuflow.record import Hot
from ncuflow.run import ceilings, timing


def test_a_summary_has_quartiles_and_says_how_many() -> None:
    found = timing.summary([4.0, 1.0, 3.0, 2.0, 5.0])
    assert (found["median"], found["q25"], found["q75"], found["n"]) == (3.0, 2.0, 4.0, 5)
    assert found["samples"] == [4.0, 1.0, 3.0, 2.0, 5.0]
    many = timing.summary([894.5123] * 60)  # kept to fifty and four digits
    assert many["samples"] == [894.5] * 50 and many["n"] == 60
    with pytest.raises(ValueError, match="no samples"):
        timing.summary([])


@given(st.integers(1, 1000), st.floats(1, 1e7), st.floats(1, 1e9))
def test_repetitions_are_never_fewer_than_five(wanted: int, budget: float, each: float) -> None:
    n = timing.repetitions(wanted, budget, each)
    assert 5 <= n <= max(5, wanted)
    assert n == 5 or n * each <= budget


def slow(each: float) -> Device:
    """A device on which a cold launch takes so long, after a run."""
    device = Device()
    device.cold = lambda run, n: (device.log.append(f"cold {n}"), timing.Burst([each] * n))[1]  # type: ignore
    ran(device)
    return device


@pytest.mark.parametrize(
    ("each", "cold", "hot"),
    [(2e2, "cold 10", "hot 10 x 8"), (2e3, "cold 10", "hot 5 x 2"), (2e4, "cold 1", "hot 1 x 1")],
)
def test_a_slow_launch_is_repeated_less_and_grouped_less(each: float, cold: str, hot: str) -> None:
    log = slow(each).log
    assert cold in log and hot in log


def test_no_burst_is_longer_than_the_power_limit_takes_to_act() -> None:
    sizes = {int(entry.split()[1]) for entry in slow(6e3).log if entry.startswith("cold")}
    assert max(sizes) * 6e3 <= timing.BURST_US


def test_every_burst_starts_from_settled_clocks_and_whether_the_host_kept_ahead_is_recorded():
    device = Device()
    _, (record,) = ran(device)
    assert record["timing"]["cold"]["queued"] is True
    assert record["timing"]["hot"]["queued"] is False
    bursts = [i for i, e in enumerate(device.log) if e.startswith(("cold 10", "hot"))]
    assert bursts and all(device.log[i - 2] == "settle" for i in bursts)


def burst(times: list[float], *throttle: str, mhz: float = 1980) -> timing.Burst:
    return timing.Burst(times, True, mhz, throttle)


def test_throttled_samples_do_not_count_where_enough_others_do() -> None:
    found = timing.of_bursts([burst([1.0] * 5), burst([9.0, 8.0], "sw_power_cap", mhz=1500)], Hot)
    assert (found.median, found.n) == (1.0, 5)
    assert found.left_out == [9.0, 8.0]
    assert (found.throttle, found.sm_mhz) == ([], 1980)


def test_a_point_that_is_always_throttled_says_so() -> None:
    found = timing.of_bursts([burst([9.0] * 6, "sw_power_cap", "gpu_idle"), burst([1.0])], Hot)
    assert (found.median, found.n, found.left_out) == (9.0, 7, [])
    assert found.throttle == ["sw_power_cap"]


HOT = ("hw_thermal_slowdown",)


@pytest.mark.parametrize(
    ("throttled", "retakes"),
    [
        ([()], 0),
        ([(), HOT], 1),
        ([(), *[HOT] * 20], 9),
        ([("gpu_idle", "applications_clocks_setting")] * 9, 0),  # a policy of clocks, and idling
    ],
)
def test_a_throttled_burst_is_taken_again_within_a_limit(throttled, retakes):
    device = Device()
    device.states = [{"sm_mhz": 1500, "mem_mhz": 2600, "throttle": []}]
    device.throttled = [*throttled]  # the first burst only sizes the others
    _, (record,) = ran(device)
    assert record["clocks"]["retakes"] == retakes
    assert throttled[0] == () or record["timing"]["cold"]["left_out"] == []


def test_the_sustained_rate_is_that_of_the_second_half(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "call_times", lambda device, run, n: [1.0] * n)
    device = Device()
    _, (record,) = ran(device)
    found = record["timing"]["sustained"]
    *_, n = (int(entry.split()[1]) for entry in device.log if entry.startswith("steady"))
    assert found["n"] == n - n // 2
    assert found["samples"][0] == timing.significant(6.0 + n // 2)
    assert (found["throttle"], found["sm_mhz"]) == (["sw_power_cap"], 1500)


@pytest.mark.parametrize(("free", "spans"), [(True, 1), (False, 2)])
def test_launches_go_on_until_the_power_limit_acts_where_the_clock_falls(free, spans, monkeypatch):
    device, each = Device(), 2.5e3
    taken = []

    def steady(run: object, n: int, group: int) -> timing.Burst:
        taken.append(n * group * each)
        return timing.Burst([each] * n, free=free)

    monkeypatch.setattr(device, "steady", steady)
    timing.sustained(device, lambda: None, each)
    assert taken == list(timing.SUSTAINED_US[:spans])


@pytest.mark.parametrize(("host", "sustained"), [(50.0, False), (7.0, False), (4.0, True)])
def test_a_launch_shorter_than_its_call_has_no_sustained_rate(host, sustained, monkeypatch):
    """Launches back to back are as fast as the hot ones (5 µs), whatever a cold one takes (10 µs)."""
    monkeypatch.setattr(timing, "call_times", lambda device, run, n: [host] * n)
    device = Device()
    _, (record,) = ran(device)
    assert (record["timing"]["sustained"] is not None) == sustained
    assert any(entry.startswith("steady") for entry in device.log) == sustained


def test_the_first_calls_after_a_burst_are_no_host_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "call_times", lambda device, run, n: [*map(float, range(n))])
    timer = timing.Timer(Device(), timing._call(lambda: None))
    timer.host(3)
    assert timer.series.host == [2.0, 3.0, 4.0]


def test_a_pair_is_timed_in_turns_and_each_goes_first_as_often() -> None:
    device = Device()
    launches = []
    for name in "ab":
        launch = fake_target(device).prepare({"n": 1})
        launch.run = lambda name=name: device.log.append(name)  # type: ignore[misc]
        launches.append(launch)
    base, other = timing.pair(device, (launches[0], launches[1]), rounds=4, each_n=2)
    cold = [device.log[i + 1] for i, e in enumerate(device.log) if e == "cold 2"]
    assert cold == list("abbaabba")
    assert sum(len(b.times) for b in base.cold) == sum(len(b.times) for b in other.cold) == 8


def _group(series: timing.PointTiming) -> int | None:
    hot = series.timing().hot
    return hot and hot.group


def test_hot_launches_of_a_pair_are_grouped_as_those_of_a_point_are() -> None:
    device = Device()
    launch = fake_target(device).prepare({"n": 1})
    series = timing.PointTiming()
    timing.visit(device, launch, series)
    of_a_point = _group(series)
    device.log.clear()
    base, other = timing.pair(device, (launch, launch), rounds=2, each_n=5)
    assert [_group(side) for side in (base, other)] == [of_a_point] * 2
    assert {e for e in device.log if e.startswith("hot")} == {f"hot 5 x {of_a_point}"}


def test_the_longer_launch_of_a_pair_sizes_the_groups_of_both(monkeypatch):
    device = Device()
    short, long = (fake_target(device).prepare({"n": 1}) for _ in "ab")
    long.run = lambda: None
    times = {short.run: 10.0, long.run: 2000.0}
    monkeypatch.setattr(device, "cold", lambda run, n: timing.Burst([times[run]] * n))
    base, other = timing.pair(device, (short, long), rounds=1, each_n=5)
    assert (base.group, other.group) == (2, 2)  # five of them in a burst


def test_a_rate_has_its_quartiles_the_right_way_round() -> None:
    times = timing.of_bursts([burst([1.0, 2.0, 4.0, 5.0, 8.0], "sw_power_cap", mhz=1400)], Hot)
    found = ceilings.rate(times, 1e-3)
    assert (found["q25"], found["value"], found["q75"], found["n"]) == (200.0, 250.0, 500.0, 5)
    assert (found["sm_mhz"], found["throttle"]) == (1400, ["sw_power_cap"])


def test_a_ceiling_has_bursts_from_settled_clocks_and_a_sustained_figure() -> None:
    device = Device()
    bursts, each = timing.bursts(device, lambda: None, 7, parts=3)
    assert (bursts.median, bursts.n, each) == (5.0, 9, 10.0)
    assert device.log == ["cold 3"] + ["settle", "hot 3 x 1"] * 3
    assert timing.sustained(device, lambda: None, each).throttle == ["sw_power_cap"]


def test_the_bursts_of_every_ceiling_come_before_anything_runs_hot(monkeypatch):
    device = Device()
    loads = {name: ceilings.Load(lambda: None, 1e-3, name) for name in ("copy", "read", "f16")}
    products = {"f16": loads.pop("f16")}
    monkeypatch.setattr(ceilings, "_transfers", lambda device: loads.items())
    monkeypatch.setattr(ceilings, "_products", lambda device: products)
    found = ceilings.measure(device)  # type: ignore[arg-type]
    kinds = [entry.split()[0] for entry in device.log if entry.startswith(("hot", "steady"))]
    assert kinds == sorted(kinds) and kinds.count("hot") == 9 and kinds.count("steady") == 3 * 2
    assert found["copy_gbs"]["value"] == found["matmul_tflops"]["f16"]["value"] == 200.0
    assert found["read_gbs"]["method"] == "read"
    assert found["read_gbs"]["sustained"]["value"] < found["read_gbs"]["value"]


def test_without_cublas_the_matrix_figures_alone_are_missing(monkeypatch):
    def no_library(device: Device) -> None:
        raise OSError("libcublas.so.13: cannot open shared object file")

    loads = [(name, ceilings.Load(lambda: None, 1e-3, name)) for name in ("copy", "read")]
    monkeypatch.setattr(ceilings, "_transfers", lambda device: loads)
    monkeypatch.setattr(ceilings, "_products", no_library)
    found = ceilings.measure(Device())  # type: ignore[arg-type]
    assert found["copy_gbs"]["value"] == found["read_gbs"]["value"] == 200.0
    assert found["matmul_tflops"] is None
    assert found["reason"].startswith("no matrix product: OSError: libcublas.so.13")
