"""Every column of the measurement, from inputs that are all different, against its value written out here."""

from __future__ import annotations

import re

import pytest

from ncuflow.findings import columns, noise, sanity
from ncuflow.findings.columns import BY_NAME, COLUMNS, SOURCES
from ncuflow.findings.join import Joined
from ncuflow.findings.kernelname import MERGE
from ncuflow.parsers.registry import METRICS

MAIN = {
    "sm_throughput_pct": 31.0, "memory_throughput_pct": 83.0, "dram_throughput_pct": 82.0,
    "l2_throughput_pct": 53.0, "l1_throughput_pct": 47.0, "tensor_pipe_pct": 19.0, "tensor_pipe_elapsed_pct": 18.0,
    "issue_active": 0.37, "achieved_occupancy_pct": 43.0, "theoretical_occupancy_pct": 61.0,
    "waves": 0.95, "sm_clock_hz": 1.7e9, "dram_bytes_peak_per_cycle": 3000.0,
    "dram_cycles_per_second": 1.5e9, "l2_peak_bytes_per_second": 1.02e13, "l1_peak_bytes_per_second": 3.1e13,
    "tensor_flops_peak_per_second": 9.1e14, "fp32_flops_peak_per_second": 6.1e13,
    "tensor_flops": 7e9, "fp32_flops": 5e8, "fp16_flops": 3e7,
    "dram_bytes_read": 1.1e9, "dram_bytes_write": 1.3e8, "l2_bytes_l1": 2.9e9, "l1_bytes": 4.3e9,
    "sm_cycles_active": 920.0, "cycles_elapsed": 1000.0, "sm_count": 132.0,
}  # fmt: skip
SECOND = {
    "tensor_flops": 1e6, "fp32_flops": 2e6, "fp16_flops": 4e6, "dram_bytes_read": 8e6,
    "dram_bytes_write": 16e6, "l2_bytes_l1": 32e6, "l1_bytes": 64e6, "l1_throughput_pct": 99.0,
}  # fmt: skip
SHAPE = {
    "grid_size": 264, "block_size": 128, "registers": 168, "smem_static_bytes": 1024,
    "smem_dynamic_bytes": 65536,
}  # fmt: skip
STALLS = [
    {"reason": "barrier", "kind": "stall", "share": 0.24},
    {"reason": "selected", "kind": "selected", "share": None},
    {"reason": "long_scoreboard", "kind": "stall", "share": 0.66},
    {"reason": "wait", "kind": "stall", "share": 0.1},
]
BREAKDOWN = [
    {"parent": f"{of}_throughput_pct", "counter": counter, "unit": unit, "pct": pct}
    for of, counter, unit, pct in (
        ("memory", "dram__cycles_active", "dram", 67.3),
        ("memory", "lts__t_sectors", "l2", 64.9),
        ("sm", "sm__issue_active", "issue", 31.0),
    )
]
KERNELS = [
    {"name": MERGE, "duration_ns": 2e4, "metrics": SECOND, "stalls": [], "breakdown": [], "problems": "no rules",
     **dict.fromkeys(SHAPE, 1)},
    {"name": "Main", "duration_ns": 3e5, "metrics": MAIN, "stalls": STALLS, "breakdown": BREAKDOWN, "problems": None,
     "tensor_types": ["f16"], **SHAPE},
]  # fmt: skip
TIMING = {
    "point": "decode/x", "target": "decode", "status": "ok", "convention": "as counted",
    "cold_us": 350.0, "cold_q25_us": 340.0, "cold_q75_us": 363.0, "cold_n": 31,
    "hot_us": 290.0, "hot_q25_us": 281.0, "hot_q75_us": 299.0, "hot_n": 17,
    "host_us": 23.0, "plan_us": 71.0, "flops": 6_000_000_000, "bytes": 1_200_000_000,
    "cold_floor_us": 2.9, "sustained_us": 403.0, "sustained_q25_us": 397.0, "sustained_q75_us": 411.0,
    "cold_sm_mhz": 1905.0, "hot_sm_mhz": 1890.0, "sustained_sm_mhz": 1455.0,
    "cold_throttle": "thermal", "sustained_throttle": "sw_power_cap",
}  # fmt: skip
TRACE = [
    {"kind": "kernel", "launch": launch, "start_ns": start, "end_ns": end, "duration_ns": end - start}
    for launch, start, end in (
        (0, 0, 300_000), (0, 304_000, 330_000),
        (1, 1_000_000, 1_290_000), (1, 1_296_000, 1_310_000),
        (2, 2_000_000, 2_310_000), (2, 2_319_000, 2_350_000),
    )
]  # fmt: skip
MACHINE = {
    "gpu": "NVIDIA H200",
    "datasheet": {"dram_gbs": 4800.0, "tensor_tflops": 989.5, "source": "sheet",
                  "tflops": {"f16": 989.5, "bf16": 988.5, "fp32": 66.9}},
    "measured": {"dram_gbs": 4172.0, "read_gbs": None, "series": {},
                 "tensor_tflops": {"f16": 716.0, "bf16": 733.0}, "source": "copy", "points": {}},
}  # fmt: skip
PROVENANCE = {
    "tier": "A", "gpu": "NVIDIA H200", "compute_capability": "9.0", "date": "2026-01-02", "driver": "580.1",
    "cuda": "13.0", "torch": "2.11", "flashinfer": "0.7.2", "cutlass_dsl": "4.8", "ncu": "2025.3", "nsys": "2023.4",
}  # fmt: skip

# Written out: work over time, counter over counter. Nothing here is taken from the declarations.
FLOPS, TENSOR = 7e9 + 5e8 + 3e7 + 1e6 + 2e6 + 4e6, 7e9 + 1e6
DRAM = 1.1e9 + 1.3e8 + 8e6 + 16e6
L2, L1 = 2.9e9 + 32e6, 4.3e9 + 64e6
EXPECTED = {
    "point": "decode/x", "target": "decode", "tier": "A", "gpu": "NVIDIA H200", "architecture": "sm_90",
    "driver_version": "580.1", "cuda_version": "13.0", "torch_version": "2.11", "flashinfer_version": "0.7.2",
    "cutlass_dsl_version": "4.8", "ncu_version": "2025.3", "nsys_version": "2023.4", "date": "2026-01-02",
    "status": "ok", "problems": f"trace: gone; {MERGE}: no rules", "dtype": "bf16", "flop_type": "f16",
    "time_cold_us": 350, "time_cold_q25_us": 340, "time_cold_q75_us": 363, "time_cold_n": 31,
    "time_hot_us": 290, "time_hot_q25_us": 281, "time_hot_q75_us": 299, "time_hot_n": 17,
    "host_launch_us": 23, "plan_us": 71,
    "time_floor_us": 2.9, "time_sustained_us": 403, "time_sustained_q25_us": 397, "time_sustained_q75_us": 411,
    "clock_cold_mhz": 1905, "clock_hot_mhz": 1890, "clock_sustained_mhz": 1455, "throttle_cold": "thermal",
    "throttle_sustained": "sw_power_cap", "tflops_sustained": 6e9 / 403e-6 / 1e12, "gbs_sustained": 1.2e9 / 403e-6 / 1e9,
    "time_insitu_us": 326, "time_span_us": 330, "insitu_n": 3, "kernel_gap_us": 6,
    "time_ncu_us": 320, "replay_distortion": 320 / 326,
    "flops_analytic": 6e9, "bytes_analytic": 1.2e9, "convention": "as counted",
    "flops_counted": FLOPS, "flops_tensor_counted": TENSOR,
    "bytes_dram_counted": DRAM, "bytes_l2_counted": L2, "bytes_l1_counted": L1,
    "flops_ratio": 6e9 / TENSOR, "bytes_ratio": 1.2e9 / DRAM, "moved_ratio": DRAM / 1.2e9,
    "tflops": 6e9 / 350e-6 / 1e12, "gbs": 1.2e9 / 350e-6 / 1e9, "gbs_hot": 1.2e9 / 290e-6 / 1e9,
    "tensor_tflops_counted": TENSOR / 320e-6 / 1e12, "dram_gbs_counted": DRAM / 320e-6 / 1e9,
    "ceiling_dram_gbs_datasheet": 4800, "ceiling_dram_gbs_counter": 4500, "ceiling_dram_gbs_measured": 4172,
    "ceiling_l2_gbs_counter": 10200, "ceiling_l1_gbs_counter": 31000,
    "ceiling_tensor_tflops_datasheet": 989.5, "ceiling_tensor_tflops_counter": 910,
    "ceiling_tensor_tflops_measured": 716, "ceiling_fp32_tflops_datasheet": 66.9, "ceiling_fp32_tflops_counter": 61,
    "bytes_beyond_dram_pct": 0, "tensor_padding_pct": 100 * (1 - 6e9 / TENSOR),
    "gbs_fraction_datasheet": 1.2e9 / 350e-6 / 4800e9, "gbs_fraction_counter": DRAM / 320e-6 / 4500e9,
    "gbs_fraction_measured": 1.2e9 / 350e-6 / 4172e9,
    "tflops_fraction_datasheet": 6e9 / 350e-6 / 989.5e12,
    "tflops_fraction_counter": TENSOR / 320e-6 / 910e12,
    "tflops_fraction_measured": 6e9 / 350e-6 / 716e12,
    "ai_analytic": 5, "ai_counted": FLOPS / DRAM, "ai_l2_counted": FLOPS / L2, "ai_l1_counted": FLOPS / L1,
    "sol_sm_pct": 31, "sol_memory_pct": 83, "sol_dram_pct": 82, "sol_l2_pct": 53, "sol_l1_pct": 47,
    "tensor_pipe_pct": 19, "tensor_pipe_elapsed_pct": 18, "issue_active": 0.37, "achieved_occupancy_pct": 43,
    "theoretical_occupancy_pct": 61, "sm_clock_ghz": 1.7, "kernel_count": 2, "main_kernel": "Main",
    "grid_size": 264, "block_size": 128, "registers": 168, "smem_bytes": 66560, "waves": 0.95,
    "top_stall": "long_scoreboard", "top_stall_share": 0.66, "second_stall": "barrier",
    "second_stall_share": 0.24, "busiest_unit": "dram", "busiest_pct": 67.3,
    "busiest_counter": "dram__cycles_active", "second_unit": "l2", "second_pct": 64.9, "blocks_pct": 5,
    "tail_pct": 8, "latency_pct": 19.7, "limiter": "dram", "draw": "l2", "verdict": "partly", "main_pct": 93.75,
    "merge_pct": 6.25, "others_pct": None,
}  # fmt: skip


def row():
    params = {"dtype": "bf16"}
    joined = Joined(TIMING, params, KERNELS, TRACE, MACHINE, PROVENANCE, ["trace: gone"])
    return columns.measurement(joined)


def test_no_column_is_declared_that_is_not_expected_here():
    assert list(row()) == [column.name for column in COLUMNS]
    assert set(EXPECTED) == set(BY_NAME)
    # equal inputs would hide a column read from another's source
    assert len({*EXPECTED.values()}) > 70


@pytest.mark.parametrize("name", EXPECTED)
def test_a_column_has_the_value_of_its_own_inputs(name):
    expected = EXPECTED[name]
    assert row()[name] == (expected if isinstance(expected, str) else pytest.approx(expected))


@pytest.mark.parametrize("column", COLUMNS, ids=lambda c: c.name)
def test_a_formula_names_what_is_read(column):
    """Words of the formula are the terms and keys of the declaration, so that neither can go stale alone."""
    words, declared = set(re.findall(r"\w+", column.formula)), {*column.terms, *column.keys}
    plain = {"point", "convention", "target"}
    assert declared <= words
    assert words & (set(BY_NAME) | set(METRICS)) - plain <= declared
    assert set(column.keys) <= set(METRICS) and set(column.terms) <= set(BY_NAME)
    assert column.source in SOURCES


@pytest.mark.parametrize(
    "column", [c for c in COLUMNS if {*c.keys} & {*MAIN}], ids=lambda c: c.name
)
def test_a_key_that_is_named_is_read_and_no_other(column):
    """Without a key its column is unknown, and it asks for no other."""

    def value(**changes):
        kernels = [{**k, "metrics": k["metrics"] | changes} for k in KERNELS]
        return column.compute(Joined(TIMING, {}, kernels, [], MACHINE, PROVENANCE))

    others = dict.fromkeys(set(MAIN) - set(column.keys))
    assert value(**others) == value() is not None
    for key in column.keys:
        assert value(**{key: None}) is None


def test_a_rate_is_as_uncertain_as_the_time_under_it():
    assert noise.RATES["gbs_hot"] == "time_hot_us"
    assert noise.RATES["gbs_fraction_measured"] == noise.RATES["tflops"] == "time_cold_us"
    assert noise.RATES["tflops_fraction_counter"] == "time_ncu_us"
    assert not {"replay_distortion", "ai_counted", "flops_ratio"} & set(noise.RATES)
    assert set(noise.TIMED) == {"time_cold_us", "time_hot_us", "time_sustained_us"}


def test_what_is_computed_from_a_number_falls_with_it():
    assert columns.above("gbs") == {"gbs_fraction_datasheet", "gbs_fraction_measured"}
    assert "gbs_fraction_counter" in columns.above("bytes_dram_counted")
    assert columns.above("gbs_hot") == frozenset()
    assert {column.name for column in sanity.RATES} == {
        "tflops", "gbs", "gbs_hot", "tflops_sustained", "gbs_sustained", "tensor_tflops_counted", "dram_gbs_counted",
    }  # fmt: skip
