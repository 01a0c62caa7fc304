"""Noise floors: from the launches of a run, and from captures repeated."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import pytest
from results_data import entry

from ncuflow.findings import noise
from ncuflow.parsers import tables

RECORDED = Path(__file__).parents[1] / "recordings/h200/0.7.2/default"


def rows(**times: float) -> list[dict]:
    return [
        entry(f"decode/{name}", {}, time_cold_us=time, gbs=1e3 / time)["measurement"]
        for name, time in times.items()
    ]


def spread_by(us: float) -> dict:
    """A point of 100 µs whose quartiles lie so far from the median."""
    times = {"time_cold_us": 100.0, "time_cold_q25_us": 100 - us, "time_cold_q75_us": 100 + us}
    return entry("decode/a", {}, **times, time_cold_n=25)


def test_floor_between_captures_is_their_relative_difference():
    found = noise.repeat_floors([rows(a=100.0, b=50.0), rows(a=102.0, b=50.0)])
    assert found["time_cold_us"]["floor"] == pytest.approx(2 / 101)
    assert found["time_cold_us"]["n"] == 2 and found["time_cold_us"]["points"] == 2
    assert "sol_memory_pct" not in found


def test_a_point_captured_once_has_no_floor():
    assert noise.repeat_floors([rows(a=100.0), rows(b=90.0)]) == {}
    assert noise.repeat_floors([rows(a=100.0)]) == {}


def test_one_outlier_among_many_points_is_not_the_floor():
    first = rows(**{f"p{i}": 100.0 for i in range(40)})
    second = rows(**{f"p{i}": 101.0 for i in range(39)}, p39=200.0)
    assert noise.repeat_floors([first, second])["time_cold_us"]["floor"] == pytest.approx(1 / 100.5)


def test_floor_of_a_run_narrows_with_the_number_of_launches():
    def width(n: int) -> float:
        return noise.half_width(95.0, 105.0, n, 100.0)

    assert width(25) == pytest.approx(1.57 * 10 / 5 / 100)
    assert width(100) == width(25) / 2
    assert noise.half_width(None, 105.0, 9, 100.0) is None
    assert noise.half_width(95.0, 105.0, 0, 100.0) is None


def test_a_rate_is_as_uncertain_as_its_time_and_a_counter_has_no_floor():
    row = spread_by(5.0)["measurement"]
    assert noise.floor_at("gbs", row, {}) == noise.floor_at("time_cold_us", row, {}) > 0
    assert noise.floor_at("sol_memory_pct", row, {}) is None
    counted = {"bytes_dram_counted": {"floor": 0.01}}
    assert noise.floor_at("bytes_dram_counted", row, counted) == 0.01


def test_the_floor_of_a_warm_time_is_of_its_own_launches():
    warm = {"time_hot_us": 100.0, "time_hot_q25_us": 95.0, "time_hot_q75_us": 105.0}
    point = entry("decode/a", {}, **warm, time_hot_n=4, time_cold_n=25)
    expected = noise.half_width(95.0, 105.0, 4, 100.0)
    for name in ("time_hot_us", "gbs_hot"):
        assert noise.launch_floor(point["measurement"], name) == expected
        assert noise.launch_floors([point["measurement"]])[name]["n"] == 4
    point["measurement"]["time_hot_n"] = None
    assert noise.launch_floor(point["measurement"], "time_hot_us") is None


def test_the_larger_of_both_floors_counts():
    point = spread_by(0.1)
    alone = noise.floors([point])
    repeated = noise.floors([point], [rows(a=110.0)])
    assert repeated["time_cold_us"]["floor"] > 0.09 > alone["time_cold_us"]["floor"]
    assert "captures" in repeated["time_cold_us"]["how"] and "IQR" in alone["time_cold_us"]["how"]


def test_at_a_point_the_larger_of_its_own_floor_and_the_stated_one_counts():
    row = spread_by(5.0)["measurement"]
    own = noise.launch_floor(row, "time_cold_us")
    for stated in (own / 2, own * 2):
        found = noise.floor_at("time_cold_us", row, {"time_cold_us": {"floor": stated}})
        assert found == max(own, stated)


def test_a_long_point_is_not_held_against_what_short_ones_show():
    short = {f"s{i}": 5.0 for i in range(4)} | {f"m{i}": 50.0 for i in range(4)}
    long = {f"l{i}": 500.0 for i in range(4)}
    first = rows(**short, **long)
    again = rows(**{name: 1.1 * us for name, us in short.items()}, **dict.fromkeys(long, 501.0))
    found = noise.repeat_floors([first, again])
    assert found["time_cold_us"]["floor"] > 0.09

    def at(name: str, us: float) -> float:
        point = entry("decode/x", {}, time_cold_us=us, gbs=1e3 / us)["measurement"]
        return noise.floor_at(name, point, found)

    for name in ("time_cold_us", "gbs"):
        assert at(name, 400.0) == pytest.approx(0.002, rel=0.01)
        assert min(at(name, 60.0), at(name, 7.0)) > 0.09


def test_too_few_points_of_a_duration_are_judged_with_the_shorter_ones():
    first, again = rows(s=50.0, t=50.0, u=50.0, l=500.0), rows(s=55.0, t=50.0, u=50.0, l=500.0)
    found = noise.repeat_floors([first, again])["time_cold_us"]
    assert [least for least, _ in found["by_time"]] == list(noise.CLASSES)
    assert {floor for _, floor in found["by_time"]} == {found["floor"]}
    assert found["floor"] == pytest.approx(5 / 52.5)


def timed(target: str) -> list[list[dict]]:
    """The cold times of each run of a recorded target, as measurement rows, with the SM's clock in `sm_mhz`."""
    found = sorted(RECORDED.glob(f"{target}/*/timing*.jsonl.xz"), key=lambda p: (len(p.name), p))
    columns = {"point": "point", "time_cold_us": "cold_us", "sm_mhz": "cold_sm_mhz"}
    runs = [[row for row in tables.read(path) if row["cold_us"]] for path in found]
    return [[{name: row[of] for name, of in columns.items()} for row in run] for run in runs]


def test_a_third_run_of_recorded_points_lies_within_the_floor_of_two():
    """The floor of two of three runs tells the third from neither, but for one difference in twenty."""
    beyond = total = 0
    for target in ("decode", "merge_state", "prefill", "rmsnorm", "rope"):
        for one, other, third in permutations(timed(target)):
            known = noise.repeat_floors([one, other])
            for a, b in zip(one, third, strict=True):
                floor = noise.floor_at("time_cold_us", b, known)
                total += 1
                beyond += abs(b["time_cold_us"] / a["time_cold_us"] - 1) > 2**0.5 * floor
    assert total > 700 and beyond < 0.05 * total
