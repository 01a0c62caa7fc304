"""Counters of CUPTI beside ncu's: what the experiment in benchmarks/cupti calls the same."""

from __future__ import annotations

import math
from typing import Any

import pytest

from benchmarks.cupti import compare, counting, outcome
from ncuflow.experiments.why import FIRST
from tests.conftest import some

POINT = "rmsnorm/a"


def values(**others: float | None) -> dict[str, float | None]:
    return {**dict.fromkeys(FIRST, 100.0), **others}


def record(
    ncu: list[dict[str, float | None]], **modes: list[list[dict[str, float | None]]]
) -> dict[str, Any]:
    """Two launches of a point: ncu's kernels one after the other, and each mode's ranges of each launch."""
    counted = {
        mode: {"points": {POINT: launches}, "seconds": {"open": 1.0, POINT: 2.0}, "error": None}
        for mode, launches in modes.items()
    }
    kernels = [{"name": f"k{n}", "passes": 2, "values": kernel} for n, kernel in enumerate(ncu)]
    times = {POINT: {"before_us": 10.0, "after_us": 11.0}}
    cupti = {"modes": counted, "points": times, "left_out": {}, "seconds": {}, "origin": {}}
    ncu_said = {"ncu": {POINT: kernels}, "ncu_wall_s": 9.0, "ncu_version": "1", "ncu_error": None}
    return {"repeats": 2, "cupti": cupti, "wall_s": 8.0, **ncu_said}


def differences(found: dict[str, Any], key: str) -> list[float]:
    return [pair.difference for pair in outcome.pairs(found) if pair.key == key]


@pytest.mark.parametrize(
    ("ncu", "cupti", "difference"),
    [
        (100.0, 103.0, 0.03),
        (0.0, 0.0, 0.0),
        (0.0, 32.0, math.inf),
        (100.0, None, math.inf),
        (None, None, 0.0),
    ],
)
def test_a_difference_is_a_share_of_what_ncu_counted(
    ncu: float | None, cupti: float | None, difference: float
) -> None:
    found = record([values(spill_bytes=ncu)] * 2, auto=[[values(spill_bytes=cupti)]] * 2)
    assert differences(found, "spill_bytes") == [pytest.approx(difference)]


def test_kernels_of_a_call_are_held_against_their_own() -> None:
    first, second = values(inst_executed=10.0), values(inst_executed=1000.0)
    found = record([first, second] * 2, auto=[[first, second]] * 2)
    assert [pair.kernel for pair in outcome.pairs(found) if pair.key == "inst_executed"] == ["k0", "k1"]  # fmt: skip
    assert differences(found, "inst_executed") == [0.0, 0.0]


def test_one_range_of_two_kernels_is_not_compared_and_no_pass() -> None:
    found = record([values()] * 4, auto=[[values(), values()]] * 2, user=[[values()]] * 2)
    found["ncu"]["other"] = found["ncu"][POINT][:2]
    found["cupti"]["points"]["other"] = found["cupti"]["points"][POINT]
    for counted in found["cupti"]["modes"].values():
        counted["points"]["other"] = [[values()]] * 2
    good, lines = outcome.judged(found)
    assert good
    assert [line.split()[:2] for line in lines[:2]] == [["PASS", "auto:"], ["FAIL", "user:"]]
    assert "counts 5 of 5 " in lines[1]
    assert f"  not compared: {POINT}: 2 ranges of CUPTI, 4 kernels of ncu" in lines


@pytest.mark.parametrize(("key", "good"), [("dram_bytes_read", False), ("duration_ns", True)])
def test_counts_decide_and_times_do_not(key: str, good: bool) -> None:
    found = record([values()] * 2, auto=[[values(**{key: 103.0})]] * 2)
    passed, lines = outcome.judged(found)
    assert passed is good
    assert any("103" in line for line in lines)
    assert ("**They do.**" in outcome.page(found)) is good


def test_a_way_to_count_that_failed_is_named_and_no_pass() -> None:
    found = record([values()] * 2, auto=[[values()]] * 2)
    found["cupti"]["modes"]["auto"]["error"] = "cuptiRangeProfilerEnable: busy"
    good, lines = outcome.judged(found)
    assert not good
    assert "cuptiRangeProfilerEnable: busy" in lines[0]
    assert "| auto failed | cuptiRangeProfilerEnable: busy |" in outcome.page(found)


def test_a_difference_that_ncus_own_launches_have_is_told_apart() -> None:
    noisy = [values(dram_bytes_write=90.0), values(dram_bytes_write=110.0)]
    ours = values(dram_bytes_write=105.0, dram_bytes_read=105.0)
    good, lines = outcome.judged(record(noisy, auto=[[ours]] * 2))
    assert not good
    assert (
        "counts 3 of 5 within 2 % of ncu's, 1 more within the spread of its own launches"
        in lines[0]
    )


def test_what_ncu_failed_with_is_said_where_cupti_counted() -> None:
    found = record([], auto=[[values()]] * 2) | {"ncu_error": "stopped at the time limit"}
    good, lines = outcome.judged(found)
    assert not good
    assert lines[-1] == "FAIL ncu: stopped at the time limit"
    assert "| ncu | stopped at the time limit |" in outcome.page(found)


def test_counters_are_read_by_the_registry_as_of_a_report() -> None:
    local = "l1tex__t_sectors_pipe_lsu_mem_local_op_"
    found = counting.keyed("gh100", {f"{local}ld.sum": 2.0, f"{local}st.sum": 1.0, "dram__bytes_read.sum": None})  # fmt: skip
    assert found["spill_bytes"] == 96
    assert found["dram_bytes_read"] is None
    assert set(found) == set(FIRST)


def test_the_points_are_of_the_targets_and_few() -> None:
    found = [point.target for point in some(compare.planned())]
    assert set(found) == set(compare.POINTS)
    assert len(found) == 6
