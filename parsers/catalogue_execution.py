"""Registry entries: time, speed of light, scheduler, occupancy and launch."""

from __future__ import annotations

from ncuflow.parsers.metric import Metric, pct, read


def _limit(resource: str, words: str) -> Metric:
    return Metric(
        f"occupancy_limit_{resource}",
        f"Block limit, {words}",
        "block",
        f"blocks that fit on one SM as far as {words} go",
        read(f"launch__occupancy_limit_{resource}"),
    )


TIME = (
    Metric(
        "duration_ns",
        "Duration",
        "ns",
        "GPU time of the kernel under ncu (caches and clocks as the capture set them)",
        read("gpu__time_duration.sum"),
    ),
    Metric(
        "passes",
        "Replay passes",
        "count",
        "times that the kernel was replayed to collect its counters",
        read("profiler__replayer_passes"),
    ),
    Metric(
        "sm_clock_hz",
        "SM clock",
        "hz",
        "SM cycles a second during this launch",
        read(
            "sm__cycles_elapsed.avg.per_second",
            "smsp__cycles_elapsed.avg.per_second",
            "gpc__cycles_elapsed.avg.per_second",
        ),
    ),
    Metric(
        "dram_clock_hz",
        "DRAM clock",
        "hz",
        "DRAM cycles a second during this launch",
        read("dram__cycles_elapsed.avg.per_second"),
    ),
    Metric(
        "cycles_elapsed",
        "Elapsed cycles",
        "cycle",
        "SM clock cycles from the launch's first to its last",
        read("gpc__cycles_elapsed.max"),
    ),
    Metric(
        "sm_cycles_active",
        "SM active cycles",
        "cycle",
        "those in which an SM held at least one warp, mean over the SMs",
        read("sm__cycles_active.avg"),
    ),
)

SPEED_OF_LIGHT = (
    Metric(
        "sm_throughput_pct",
        "SM throughput",
        "%",
        "highest utilisation among the SM's pipelines and issue, of its peak",
        pct("sm__throughput"),
    ),
    Metric(
        "memory_throughput_pct",
        "Memory throughput",
        "%",
        (
            "highest utilisation among the units of the compute memory pipeline (L1TEX, L2, "
            "DRAM), of its peak"
        ),
        pct("gpu__compute_memory_throughput"),
    ),
    Metric(
        "dram_throughput_pct",
        "DRAM throughput",
        "%",
        "DRAM utilisation, of its peak at the clock of this launch",
        read(
            "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
            "dram__throughput.avg.pct_of_peak_sustained_elapsed",
        ),
    ),
    Metric(
        "l2_throughput_pct",
        "L2 throughput",
        "%",
        "L2 slice (LTS) utilisation, of its peak",
        pct("lts__throughput"),
    ),
    Metric(
        "l1_throughput_pct",
        "L1TEX throughput",
        "%",
        "L1TEX utilisation in its active cycles, of its peak",
        pct("l1tex__throughput", "active"),
    ),
    Metric(
        "tensor_pipe_pct",
        "Tensor pipe busy",
        "%",
        "active SM cycles in which the tensor pipe was active",
        read("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"),
    ),
    Metric(
        "tensor_pipe_elapsed_pct",
        "Tensor pipe busy, elapsed",
        "%",
        "elapsed SM cycles in which the tensor pipe was active",
        pct("sm__pipe_tensor_cycles_active"),
    ),
    Metric(
        "fma_pipe_pct",
        "FMA pipe busy",
        "%",
        "active SM cycles in which the FP32 FMA pipe was active",
        pct("sm__pipe_fma_cycles_active", "active"),
    ),
    Metric(
        "xu_pipe_pct",
        "XU pipe issue",
        "%",
        "instructions of the special-function pipe (exp, rsqrt, conversions), of its peak",
        pct("sm__inst_executed_pipe_xu", "active"),
    ),
)

SCHEDULER = (
    Metric(
        "issue_active",
        "Issue active",
        "inst/cycle",
        "share of active cycles in which a scheduler issued an instruction",
        read("smsp__issue_active.avg.per_cycle_active"),
    ),
    Metric(
        "warps_active_per_scheduler",
        "Active warps a scheduler",
        "warp",
        "warps resident on a scheduler, mean over active cycles",
        read("smsp__warps_active.avg.per_cycle_active"),
    ),
    Metric(
        "warps_eligible",
        "Eligible warps a scheduler",
        "warp",
        "warps ready to issue, mean over active cycles",
        read("smsp__warps_eligible.avg.per_cycle_active"),
    ),
    Metric(
        "warp_latency_per_issue",
        "Warp latency per issue",
        "cycle",
        "cycles that a warp was resident per instruction issued",
        read("smsp__average_warp_latency_per_inst_issued.ratio"),
    ),
    Metric(
        "inst_executed",
        "Instructions executed",
        "count",
        "warp instructions executed",
        read("smsp__inst_executed.sum", "sm__inst_executed.sum"),
    ),
    Metric(
        "threads_per_inst",
        "Active threads per instruction",
        "thread",
        "threads active per warp instruction executed (32 without divergence)",
        read("smsp__thread_inst_executed_per_inst_executed.ratio"),
    ),
)

OCCUPANCY = (
    Metric(
        "achieved_occupancy_pct",
        "Achieved occupancy",
        "%",
        "resident warps in active cycles, of the SM's maximum",
        pct("sm__warps_active", "active"),
    ),
    Metric(
        "theoretical_occupancy_pct",
        "Theoretical occupancy",
        "%",
        "resident warps that the launch allows, of the SM's maximum",
        read("sm__maximum_warps_per_active_cycle_pct"),
    ),
    _limit("registers", "registers"),
    _limit("shared_mem", "shared memory"),
    _limit("warps", "warps"),
    _limit("blocks", "block slots"),
    _limit("barriers", "barriers"),
    Metric(
        "waves",
        "Waves per SM",
        "",
        "blocks of the grid over the blocks that the GPU holds at once",
        read("launch__waves_per_multiprocessor"),
    ),
    Metric(
        "registers",
        "Registers",
        "register",
        "registers a thread",
        read("launch__registers_per_thread"),
    ),
    Metric(
        "smem_static",
        "Static shared memory",
        "byte",
        "static shared memory a block",
        read("launch__shared_mem_per_block_static"),
    ),
    Metric(
        "smem_dynamic",
        "Dynamic shared memory",
        "byte",
        "dynamic shared memory a block",
        read("launch__shared_mem_per_block_dynamic"),
    ),
    Metric(
        "sm_count",
        "SMs",
        "count",
        "SMs that the launch could use",
        read("launch__sm_count", "device__attribute_multiprocessor_count"),
    ),
)
