"""Sanity: genuine numbers pass, and each planted impossible number is caught as what it is."""

from __future__ import annotations

import json

import pytest
from command import ncuflow
from results_data import entry, kernel, results

from ncuflow.findings import sanity

# One decode point as an H200 gave it; bytes and FLOPs are the analytic and the counted ones.
GENUINE = {
    "time_cold_us": 1015.6, "time_hot_us": 1047.5, "time_insitu_us": 950.0, "time_ncu_us": 941.6,
    "flops_analytic": 4.295e9, "bytes_analytic": 4.2971e9,
    "bytes_dram_counted": 4.3010e9, "flops_counted": 6.0e9, "flops_ratio": 0.72,
    "bytes_ratio": 0.999,
    "gbs": 4.2971e6 / 1015.6, "tflops": 4.295e3 / 1015.6, "gbs_hot": 4.2971e6 / 1047.5,
    "dram_gbs_counted": 4.3010e6 / 941.6,
    "ceiling_dram_gbs_datasheet": 4800.0, "ceiling_dram_gbs_measured": 4172.0,
    "ceiling_dram_gbs_counter": 4810.0,
    "ceiling_tensor_tflops_datasheet": 989.5, "ceiling_tensor_tflops_measured": 716.0,
    "sol_memory_pct": 94.9, "achieved_occupancy_pct": 30.0, "theoretical_occupancy_pct": 31.25,
}  # fmt: skip
STALLS = {"long_scoreboard": 6.0, "barrier": 4.0}


def check(kernels=None, causal=False, **changes):
    params = {"batch": 128, "causal": causal}
    main = kernel("Main", {"warp_latency_per_issue": 10.2}, **STALLS)
    made = entry("decode/B128", params, [main] if kernels is None else kernels, **GENUINE | changes)
    return sanity.check(results(made))


def test_genuine_numbers_pass():
    assert list(check()) == []


def bent_kernel(**changes):
    made = kernel("Main", {"warp_latency_per_issue": 10.0}, **STALLS)
    made["metrics"] |= changes.pop("metrics", {})
    for stall in made["stalls"]:
        stall["share"] *= changes.get("share", 1)
        stall["ratio"] *= changes.get("ratio", 1)
    return [made]


PLANTED = [
    ("rate above the DRAM ceiling", "dram_gbs_counted",
     {"dram_gbs_counted": 8602.0, "time_ncu_us": 500.0}),
    ("rate above the tensor ceiling", "tensor_tflops_counted",
     {"flops_tensor_counted": 9e11, "tensor_tflops_counted": 9e5 / 941.6,
      "ceiling_tensor_tflops_counter": 640.0}),
    ("warm bandwidth", "gbs",
     {"time_cold_us": 856.0, "gbs": 4.2971e6 / 856, "time_insitu_us": None}),
    ("analytic rate", "tflops",
     {"flops_analytic": 2e12, "tflops": 2e6 / 1015.6, "flops_ratio": None}),
    ("FLOPs ratio", "flops_analytic", {"flops_ratio": 1.88, "flops_tensor_counted": 2.3e9}),
    ("FLOPs ratio", "flops_analytic", {"flops_ratio": 3.0}),
    ("bytes ratio", "bytes_analytic",
     {"bytes_dram_counted": 2.1e9, "dram_gbs_counted": 2.1e6 / 941.6}),
    ("shorter than its kernels", "time_cold_us", {"time_insitu_us": 1500.0}),
    ("replay distortion", "time_ncu_us", {"replay_distortion": 1e9}),
    ("replay distortion", "time_ncu_us", {"replay_distortion": 0.01}),
    ("percentage", "sol_memory_pct", {"sol_memory_pct": 117.0}),
    ("percentage", "sol_memory_pct", {"sol_memory_pct": -4.0}),
    ("occupancy", "achieved_occupancy_pct", {"achieved_occupancy_pct": 60.0}),
    ("duration", "plan_us", {"plan_us": -3.0}),
    ("duration", "time_ncu_us", {"time_ncu_us": 0.0}),
    ("not a number", "sm_clock_ghz", {"sm_clock_ghz": "NaN"}),
    ("not a number", "waves", {"waves": float("inf")}),
    ("arithmetic", "gbs", {"gbs": 3000.0}),
    ("stall shares", "stalls of Main", {"kernels": bent_kernel(share=1.2)}),
    ("warp latency", "warp_latency_per_issue of Main", {"kernels": bent_kernel(ratio=1.3)}),
    ("percentage", "l2_hit_pct of Main", {"kernels": bent_kernel(metrics={"l2_hit_pct": 140.0})}),
    ("duration", "duration_ns of Main", {"kernels": bent_kernel(metrics={"duration_ns": 0.0})}),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "cell", "planted"), PLANTED)
def test_planted_number_is_caught_with_its_kind_cell_and_limit(kind, cell, planted):
    found = [v for v in check(**planted) if v.kind == kind]
    assert [v.cell for v in found] == [cell]
    message = str(found[0])
    assert message.startswith(f"decode/B128: {cell} = ") and found[0].cause in message


@pytest.mark.parametrize(("ns", "found"), [(1_900.0, 0), (3_000.0, 1), (None, 1)])
def test_stall_reasons_of_a_launch_below_two_microseconds_are_not_held_against_another_pass(
    ns, found
):
    planted = bent_kernel(ratio=2.3, metrics={"duration_ns": ns} if ns else {})
    assert len([v for v in check(kernels=planted) if v.kind == "warp latency"]) == found


def test_l2_holds_back_at_most_its_size():
    def bytes_ratio(held: float) -> list:
        counted = 4.2971e9 - held * (60 << 20)  # of 60 MiB L2
        found = check(bytes_dram_counted=counted, dram_gbs_counted=counted / 941.6e3)
        return [v for v in found if v.kind == "bytes ratio"]

    assert bytes_ratio(1.0) == [] and len(bytes_ratio(3.5)) == 1


def test_a_causal_kernel_credited_in_full_is_named_as_such():
    (found,) = check(causal=True, flops_ratio=1.88, flops_tensor_counted=2.3e9)
    assert "causal mask" in found.cause
    (found,) = check(causal=False, flops_ratio=1.88, flops_tensor_counted=2.3e9)
    assert "causal" not in found.cause


def test_a_warm_cache_is_named_where_the_time_is_that_of_warm_launches():
    warm = {"time_cold_us": 800.0, "time_hot_us": 790.0, "time_insitu_us": None}
    warm |= {"gbs": 4.2971e6 / 800, "gbs_hot": 4.2971e6 / 790, "tflops": 4.295e3 / 800}
    (found,) = check(**warm)
    assert "warm L2" in found.cause


@pytest.mark.parametrize(
    "fine",
    [
        # fits in L2: DRAM saw less than the kernel read and wrote
        {"bytes_analytic": 6.7e7, "gbs": 6.7e4 / 1015.6, "gbs_hot": None,
         "bytes_dram_counted": 4.7e7, "dram_gbs_counted": 4.7e4 / 941.6},
        # over-fetch: DRAM saw more than was needed
        {"bytes_dram_counted": 3e10, "time_ncu_us": 9000.0, "dram_gbs_counted": 3e7 / 9000},
        # decode on tensor cores pads one query row to a tile of 16
        {"flops_ratio": 1 / 16, "flops_tensor_counted": 6.9e10},
        # a kernel that only reads beats the copy
        {"ceiling_dram_gbs_measured": 4000.0},
        {"time_insitu_us": None, "time_hot_us": None, "gbs_hot": None},
        {"kernels": []},
    ],
)  # fmt: skip
def test_what_is_unusual_but_possible_passes(fine):
    assert list(check(**fine)) == []


def test_short_kernels_may_disagree_more_between_passes():
    bent = bent_kernel(ratio=1.2)
    assert len(check(kernels=bent)) == 1
    bent[0]["duration_ns"] = 4000.0
    assert len(check(kernels=bent)) == 0


def test_a_struck_number_strikes_what_is_computed_from_it():
    found = check(gbs=8000.0, time_cold_us=4.2971e6 / 8000, tflops=8.0, time_insitu_us=None)
    (warm,) = (one for one in found if one.cell == "gbs")
    assert "warm bandwidth" in str(warm) and warm.point == "decode/B128"
    assert {"gbs", "gbs_fraction_datasheet"} <= warm.struck
    assert not [one for one in found if "sol_memory_pct" in one.struck]


def test_infinity_which_json_has_no_number_for_is_text():
    point = entry("decode/B1", {}) | {"samples": {"cold_us": [5.0, float("inf")]}}
    (found,) = sanity.check(results(point))
    where = ("time_cold_us", "inf", "decode/B1 time_cold_us")
    assert (found.cell, found.value, found.trace) == where
    assert "time_cold_us = inf µs is beyond 3.6e+09 µs [sample]" in str(found)


def test_command_prints_a_line_each_and_exits_with_3(tmp_path):
    bad = results(entry("decode/B1", {}, sol_memory_pct=117.0, plan_us=-1.0))
    (tmp_path / "decode_results.json").write_text(json.dumps(bad))
    done = ncuflow("check", "sanity", tmp_path)
    assert done.returncode == 3 and len(done.stdout.splitlines()) == 2
    assert ncuflow("check", "sanity", tmp_path, "--no-strict").returncode == 0


def test_recorded_evidence_is_possible(finished):
    done = ncuflow("check", "sanity", finished.outputs / "results")
    assert (done.returncode, done.stdout) == (0, "")
