"""The join of events, nsys and ncu into one row."""

import pytest
from results_data import launched

from ncuflow.findings import ceilings, columns, join

GPU = "NVIDIA A100-SXM4-80GB"
PROVENANCE = {"tier": "A", "gpu": GPU, "compute_capability": "8.0", "date": None}
MEASURED = {"copy_gbs": {"value": 1700, "method": "copy"}, "matmul_tflops": {"f16": {"value": 250}}}
MACHINE = ceilings.machine(GPU, MEASURED)
PARAMS = {"dtype": "f16"}
TIMING = {
    "point": "decode/a", "target": "decode", "status": "ok",
    "cold_us": 100.0, "cold_q25_us": 99.0, "cold_q75_us": 101.0, "cold_n": 30,
    "hot_us": 80.0, "hot_q25_us": 79.0, "hot_q75_us": 81.0, "hot_n": 5, "host_us": 20.0,
    "sustained_us": 125.0, "sustained_q25_us": 124.0, "sustained_q75_us": 126.0, "sustained_sm_mhz": 1500.0,
    "sustained_throttle": "sw_power_cap", "cold_floor_us": 3.5, "cold_sm_mhz": 1980.0, "hot_sm_mhz": 1970.0,
    "cold_throttle": None, "plan_us": None,
    "flops": 2.0e9, "bytes": 1.5e8, "convention": "test",
}  # fmt: skip


def kernel(name: str = "Main", duration: float | None = 90e3, **metrics: float | None) -> dict:
    return launched(name, duration_ns=duration, metrics=metrics, grid_size=10, registers=32)


def row(kernels=(), launches=(), machine=MACHINE):
    joined = join.Joined(TIMING, PARAMS, list(kernels), list(launches), machine, PROVENANCE)
    return columns.measurement(joined)


def launch(start: int, end: int, number: int, kind: str = "kernel") -> dict:
    times = {"start_ns": start, "end_ns": end, "duration_ns": end - start}
    return {"kind": kind, "launch": number, **times}


def counted(name: str, value: float | None, key: str = "tensor_flops") -> dict:
    return {"key": key, "metric": name, "value": value}


HGMMA_FP8 = "sm__ops_path_tensor_op_hgmma_src_fp8_sparsity_off.sum"
HMMA_FP16 = "sm__ops_path_tensor_op_hmma_src_fp16_dst_fp32_sparsity_off.sum"
HMMA_BF16 = "sm__ops_path_tensor_op_hmma_src_bf16_dst_fp32_sparsity_off.sum"


@pytest.mark.parametrize(
    ("metrics", "types"),
    [
        ([counted(HGMMA_FP8, 1e9)], ["fp8"]),
        ([counted(HMMA_FP16, 1e9)], ["f16"]),
        ([counted(HMMA_FP16, 0.0)], []),
        ([counted(HMMA_FP16, None)], []),
        ([counted(f"{HGMMA_FP8} + {HMMA_BF16}", 1e9)], ["bf16", "fp8"]),
        ([counted("sm__ops_path_tensor_src_fp64.sum", 1e9)], ["fp64"]),
        ([counted("sm__ops_path_tensor_op_utcomma_src_fp4_dst_fp32_sparsity_off.sum", 1e9)], ["fp4"]),
        ([counted("sm__ops_path_tensor_op_utcqmma_src_fp4_fp6_fp8_dst_fp32_sparsity_off.sum", 1e9)], ["fp8"]),
        ([counted("sm__ops_path_tensor_src_fp4_fp6_dst_fp16_sparsity_off.sum", 1e9)], ["fp8"]),
        ([counted("sm__ops_path_tensor_src_fp16_bf16_tf32_dst_fp32.sum", 1e9)], ["f16/bf16/tf32"]),
        ([counted("sm__ops_path_tensor_op_igmma_src_int8_sparsity_off.sum", 1e9, "tensor_int_ops")], ["int8"]),
        ([counted(HMMA_FP16, 1e9, "tensor_flops_peak_per_second")], []),
    ],
)  # fmt: skip
def test_counters_name_the_types_that_tensor_cores_computed_with(metrics, types):
    assert join.tensor_types(metrics) == types


@pytest.mark.parametrize(
    ("kernels", "declared", "found"),
    [
        ([], "fp8", "fp8"),  # nothing was counted
        ([{}], "f16", "f16"),  # by a report without tensor counters
        ([{"tensor_flops": 0.0}], "f16", "fp32"),
        ([{"tensor_pipe_pct": 0.0}], "f16", "fp32"),
        ([{"tensor_flops": 0.0}, {}], "f16", "f16"),  # of one kernel it is not known
        ([{"tensor_flops": 9.0, "types": ["fp8"]}], "bf16", "fp8"),
        ([{"tensor_flops": 9.0, "types": ["bf16", "fp8"]}], "bf16", "bf16+fp8"),
        ([{"tensor_flops": 9.0, "types": ["fp8"]}, {"tensor_flops": 0.0, "us": 900}], "bf16", "fp8"),
        ([{"tensor_flops": 9.0, "types": ["fp8"]}, {"tensor_flops": 1.0, "types": ["f16"], "us": 900}], "bf16", "f16"),
        ([{"tensor_flops": 9.0, "types": ["f16/bf16/tf32"]}], "bf16", "bf16"),
        ([{"tensor_flops": 9.0, "types": ["f16/bf16/tf32"]}], "fp8", "f16/bf16/tf32"),
        ([], None, None),
    ],
)  # fmt: skip
def test_counters_decide_what_a_call_computes_with_and_else_what_was_declared(
    kernels, declared, found
):
    ran = [
        kernel("K", k.pop("us", 90) * 1e3, **{n: v for n, v in k.items() if n != "types"})
        | {"tensor_types": k.get("types", [])}
        for k in map(dict, kernels)
    ]
    assert join.flop_type(ran, declared) == found


def test_an_fp8_kernel_is_under_the_roof_of_fp8_whatever_was_declared():
    gpu = ceilings.machine("NVIDIA H200", {"matmul_tflops": {"f16": {"value": 760}}})
    measured = row([kernel(tensor_flops=1e9) | {"tensor_types": ["fp8"]}], machine=gpu)
    assert (measured["dtype"], measured["flop_type"]) == ("f16", "fp8")
    assert measured["ceiling_tensor_tflops_datasheet"] == 1979
    assert measured["ceiling_tensor_tflops_measured"] is None
    # What ran on CUDA cores could run on tensor cores: their peak bounds what a change may bring.
    measured = row([kernel(tensor_flops=0.0) | {"tensor_types": []}], machine=gpu)
    assert (measured["flop_type"], measured["ceiling_fp32_tflops_datasheet"]) == ("fp32", 66.9)
    assert measured["ceiling_tensor_tflops_datasheet"] == 989.5


def test_rates_use_cold_time_and_each_ceiling_and_sustained_ones_their_own_clock():
    assert {name: value for name, value in row().items() if name in RATES} == pytest.approx(RATES)


RATES = {
    "gbs": 1500, "gbs_fraction_datasheet": 1500 / 2039, "gbs_fraction_measured": 1500 / 1700, "tflops": 20,
    "architecture": "sm_80", "tflops_sustained": 16, "gbs_sustained": 1200, "clock_cold_mhz": 1980, "clock_hot_mhz": 1970,
    "clock_sustained_mhz": 1500, "throttle_cold": None, "throttle_sustained": "sw_power_cap", "time_floor_us": 3.5,
    "time_cold_n": 30, "time_hot_n": 5,
}  # fmt: skip


def test_nothing_profiled_is_null_not_zero():
    found = row()
    for column in ("time_ncu_us", "bytes_dram_counted", "flops_counted", "kernel_count", "sol_sm_pct",
                   "replay_distortion", "gbs_fraction_counter"):  # fmt: skip
        assert found[column] is None, column
    assert found["limiter"] == "unknown"
    failed = row([kernel() | {"problems": "profiling failed"}])
    assert failed["problems"] == "Main: profiling failed"


def test_kernels_of_a_point_are_summed_and_the_longest_stands_for_it():
    busy = {"sm_throughput_pct": 10, "memory_throughput_pct": 90}
    main = kernel(dram_bytes_read=100e6, dram_bytes_write=20e6, **busy)
    merge = kernel("Merge", 10e3, dram_bytes_read=5e6, dram_bytes_write=0, sm_throughput_pct=99)
    found = row([merge, main])
    assert found["time_ncu_us"] == pytest.approx(100)
    assert found["bytes_dram_counted"] == pytest.approx(125e6)
    assert found["bytes_ratio"] == pytest.approx(150 / 125)
    assert (found["main_kernel"], found["sol_sm_pct"], found["kernel_count"]) == ("Main", 10, 2)


def test_one_kernel_without_duration_leaves_the_sum_and_the_longest_unknown():
    found = row([kernel(sm_throughput_pct=10, memory_throughput_pct=90), kernel("Failed", None)])
    assert found["time_ncu_us"] is found["main_kernel"] is found["sol_sm_pct"] is None
    assert (found["kernel_count"], found["limiter"]) == (2, "unknown")
    assert join.main_kernel([]) is None


SUMS = {
    "bytes_dram_counted": {"dram_bytes_read": 1e6, "dram_bytes_write": 2e6},
    "flops_counted": {"tensor_flops": 8e9, "fp32_flops": 2e9, "fp16_flops": 1e9},
}


@pytest.mark.parametrize(("column", "missing"), [(of, one) for of in SUMS for one in SUMS[of]])
def test_a_sum_needs_each_of_its_counts_from_every_kernel(column, missing):
    metrics = SUMS[column]
    assert row([kernel(**metrics)])[column] == sum(metrics.values())
    without = {name: value for name, value in metrics.items() if name != missing}
    for lacking in (without, without | {missing: None}):
        assert row([kernel(**lacking)])[column] is None
    assert row([kernel(**metrics), kernel("Other", 1.0)])[column] is None


@pytest.mark.parametrize("idle", ["tensor_pipe_pct", "tensor_pipe_elapsed_pct"])
def test_an_absent_tensor_count_is_zero_only_where_the_pipe_never_ran(idle):
    cores = {"fp32_flops": 4e9, "fp16_flops": 0.0}
    found = row([kernel(**cores, **{idle: 0.0})])
    assert (found["flops_tensor_counted"], found["flops_counted"]) == (0, 4e9)
    assert found["flops_ratio"] == pytest.approx(0.5)
    for unproven in ({}, {idle: 2.1}, {idle: None}, {idle: 0.0, "tensor_flops": None}):
        found = row([kernel(**cores, **unproven)])
        assert found["flops_tensor_counted"] is found["flops_counted"] is None
        assert found["flops_ratio"] is None


def test_in_situ_time_is_the_median_over_launches_of_their_kernels():
    found = row(launches=[
        launch(0, 1000, 0), launch(1500, 2000, 0),
        launch(10000, 12000, 1), launch(12100, 13000, 1),
        launch(20000, 21000, 2), launch(21200, 21800, 2),
        launch(0, 10**9, 0, kind="memcpy"),
    ])  # fmt: skip
    assert found["insitu_n"] == 3
    assert found["time_insitu_us"] == pytest.approx(1.6)
    assert found["kernel_gap_us"] == pytest.approx(0.2)
    assert found["time_span_us"] == pytest.approx(2.0)  # of the launches: 2.0, 3.0 and 1.8


def test_a_kernel_within_another_leaves_no_gap_and_distortion_is_profiled_over_in_situ():
    found = row(launches=[launch(0, 100_000, 0), launch(10_000, 20_000, 0),
                          launch(110_000, 120_000, 0)])  # fmt: skip
    assert (found["kernel_gap_us"], found["time_span_us"]) == pytest.approx((10, 120))
    found = row([kernel(duration=3000.0)], [launch(0, 1500, 0)])
    assert found["replay_distortion"] == pytest.approx(2.0)


def test_flops_ratio_prefers_the_tensor_pipe():
    assert row([kernel(tensor_flops=1e9, fp32_flops=5e9)])["flops_ratio"] == pytest.approx(2.0)
    cores = {"tensor_flops": 0.0, "fp32_flops": 4e9, "fp16_flops": 0.0}
    assert row([kernel(**cores)])["flops_ratio"] == pytest.approx(0.5)
    assert row([kernel(fp32_flops=4e9, fp16_flops=0.0)])["flops_ratio"] is None


def test_counter_ceilings_are_of_that_launch_and_the_tensor_roof_is_that_of_the_kernel_that_runs_the_instruction():
    clocked = {"dram_bytes_peak_per_cycle": 1000, "dram_cycles_per_second": 2e9}
    found = row([kernel(dram_bytes_read=9e7, dram_bytes_write=0.0, **clocked)])
    assert found["ceiling_dram_gbs_counter"] == pytest.approx(2000)
    assert found["gbs_fraction_counter"] == pytest.approx(0.5)
    attention = kernel("Attention", 20e3, tensor_flops_peak_per_second=650e12)
    merge = kernel("PersistentVariableLengthMergeStatesKernel", 60e3)
    assert row([attention, merge])["ceiling_tensor_tflops_counter"] == pytest.approx(650)
    assert row([merge])["ceiling_tensor_tflops_counter"] is None


def test_what_is_credited_and_did_not_happen_is_said():
    found = row([kernel(dram_bytes_read=60e6, dram_bytes_write=15e6, tensor_flops=4e11)])
    assert found["bytes_analytic"] == 150e6 and found["bytes_beyond_dram_pct"] == pytest.approx(50)
    padding = 100 - 100 * found["flops_analytic"] / 4e11
    assert found["tensor_padding_pct"] == pytest.approx(padding) and padding > 0
    more = row([kernel(dram_bytes_read=600e6, dram_bytes_write=0)])
    assert (more["bytes_beyond_dram_pct"], more["tensor_padding_pct"]) == (0, None)


def test_a_split_point_is_the_kernel_that_takes_most_of_its_time_the_merge_too():
    attention = kernel("BatchPrefillWithPagedKVCacheKernel", 25e3, sm_throughput_pct=23)
    merge = kernel("PersistentVariableLengthMergeStatesKernel", 75e3, sm_throughput_pct=72)
    found = row([attention, merge])
    assert (found["main_kernel"], found["sol_sm_pct"]) == (merge["name"], 72)
    assert (found["main_pct"], found["merge_pct"]) == (75.0, 75.0)
    longer = row([attention | {"duration_ns": 225e3}, merge])
    of = [longer[name] for name in ("main_kernel", "main_pct", "merge_pct")]
    assert of == [attention["name"], 75.0, 25.0]
    alone = row([merge])
    assert (alone["main_kernel"], alone["merge_pct"]) == (merge["name"], None)
    assert (row([attention])["main_pct"], row([attention])["merge_pct"]) == (None, None)


def test_what_runs_beside_the_main_kernel_is_said_and_a_merge_is_not_among_it():
    """What limits the longer of two kernels is not said of the shorter."""
    prefill, decode = kernel("Prefill", 20e3), kernel("Decode", 60e3)
    merge = kernel("PersistentVariableLengthMergeStatesKernel", 20e3)
    found = row([prefill, decode, merge])
    assert (found["main_kernel"], found["others_pct"], found["merge_pct"]) == ("Decode", 20.0, 20.0)
    assert row([decode, merge])["others_pct"] is None
