"""Two GPUs beside each other: what the second changes, and which points follow it."""

from __future__ import annotations

import pytest

from ncuflow.compare import records

H100 = {"gpu": "NVIDIA H100 80GB HBM3", "sm_count": 132, "l2_bytes": 52_428_800}
H200 = {"gpu": "NVIDIA H200", "sm_count": 132, "l2_bytes": 62_914_560}


def row(limiter, us, dram, ghz, verdict="bound"):
    found = {"limiter": limiter, "draw": None, "verdict": verdict, "time_cold_us": us}
    clocks = {"clock_cold_mhz": 1e3 * ghz, "sm_clock_ghz": 1.4}
    return found | clocks | {"ceiling_dram_gbs_datasheet": dram}


def pairs():
    """Points at the roof of DRAM get faster by the bandwidth, those of the tensor pipe by the clock."""
    for us in (10.0, 100.0, 1000.0):
        yield row("dram", us, 3350, 1.5), row("dram", us * 3350 / 4800, 4800, 1.8)
        yield row("tensor", us, 3350, 1.5), row("tensor", us * 1.5 / 1.8, 4800, 1.8)
        yield row("latency", us, 3350, 1.5, "latency"), row("latency", us, 4800, 1.8, "latency")
        yield row("dram", us, 3350, 1.5, "partly"), row("dram", us, 4800, 1.8, "partly")
    yield row("l2", 5.0, 3350, 1.5), row("l2", 4.0, 4800, 1.8)


def test_points_follow_what_limits_them():
    found = records.two_gpus(H100, H200, list(pairs()))
    rates = {rate.what: rate.ratio for rate in found.rates}
    assert rates[records.BANDWIDTH] == pytest.approx(4800 / 3350)
    assert (rates["SMs"], rates[records.CLOCK]) == (1, pytest.approx(1.2))
    groups = {group.limiter: group for group in found.groups}
    assert all(group.then == group.limiter for group in found.groups)
    bound = {"bound by DRAM", "bound by tensor pipe"}
    assert set(groups) == bound | {
        "latency-bound",
        "DRAM, otherwise latency-bound",
    }  # one point of L2 is no group
    for verdict in bound:
        assert groups[verdict].expected == pytest.approx(groups[verdict].median)
    for verdict in set(groups) - bound:
        assert (groups[verdict].follows, groups[verdict].expected) == (None, None)


def test_a_point_that_another_unit_limits_on_the_second_gpu_follows_no_rate() -> None:
    held = [
        (row("dram", us, 3350, 1.5), row("issue", 0.92 * us, 4800, 1.5)) for us in (1.0, 9.0, 99.0)
    ]
    groups = {g.then: g for g in records.two_gpus(H100, H200, [*pairs(), *held]).groups}
    assert groups["bound by instruction issue"].limiter == "bound by DRAM"
    assert groups["bound by instruction issue"].expected is None
    assert groups["bound by DRAM"].expected == pytest.approx(3350 / 4800)


def test_the_highest_measured_bandwidth_is_that_of_the_target_that_reached_most() -> None:
    """Each target's ceiling counts its own points: a median over targets is less than what one of them reached."""
    ceilings = [(3106.0, 4467.0), (3106.0, 4584.0), (3061.0, 4467.0), (None, None)]
    rows = [
        tuple(row("dram", 1.0, 1.0, 1.0) | {"ceiling_dram_gbs_measured": gbs} for gbs in both)
        for both in ceilings
    ]
    rates = {rate.what: rate for rate in records.two_gpus(H100, H200, rows).rates}
    found = rates["DRAM bandwidth, highest measured"]
    assert (found.base, found.head) == (3106.0, 4584.0)


def test_one_gpu_has_no_second():
    assert records.two_gpus(H200, H200, list(pairs())) is None
    assert records.two_gpus({"gpu": None}, H200, list(pairs())) is None


def test_what_is_not_known_of_a_gpu_is_left_out():
    unknown = [({"limiter": "dram", "time_cold_us": 1.0}, {"time_cold_us": None})] * 3
    found = records.two_gpus({"gpu": "A"}, H200, unknown)
    assert (found.rates, found.groups) == ([], [])


@pytest.mark.parametrize(("head", "cause"), [(H100, True), (H200, False)])
def test_the_clock_of_another_gpu_is_not_a_second_cause(head, cause):
    of_clock = [d for d in records.of_sides(H100, head, pairs()) if d.axis.startswith("SM")]
    assert [d.cause for d in of_clock] == [cause]
