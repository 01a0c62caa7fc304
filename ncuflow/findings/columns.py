"""The measurement: one row a point, where events, nsys and ncu meet. Names, units and formulas in one table.

Pages, claims, comparisons and the trace command all read this table; ``docs/measurements.md`` is made from it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """A column of the measurement row.

    kind: text | int | float; unit as printed; formula over registry keys and other columns;
    source: the tool whose evidence it needs (point, events, nsys, ncu, ceilings).
    """

    name: str
    kind: str
    unit: str
    formula: str
    source: str


def _rows(text: str) -> tuple[Column, ...]:
    rows = (tuple(cell.strip() for cell in line.split("|")) for line in text.strip().splitlines())
    return tuple(Column(*row) for row in rows)


COLUMNS = _rows("""
point               | text  |        | identity, also the NVTX range                                 | point
target              | text  |        | kernel target                                                  | point
tier                | text  |        | A live counters, B live without counters, C recorded elsewhere | point
gpu                 | text  |        | device name                                                    | point
architecture        | text  |        | sm_ and the compute capability                                 | point
status              | text  |        | ok, wrong, skipped, error, lost                                | point
problems            | text  |        | what is missing or failed, '; ' between                        | point
dtype               | text  |        | the point's data type                                          | point
time_cold_us        | float | µs     | median event time of a launch, L2 flushed before it            | events
time_cold_q25_us    | float | µs     | first quartile of the same                                     | events
time_cold_q75_us    | float | µs     | third quartile of the same                                     | events
time_cold_n         | int   |        | launches in that median                                        | events
time_hot_us         | float | µs     | median event time a launch, queued back to back, L2 warm       | events
time_hot_q25_us     | float | µs     | first quartile of the same                                     | events
time_hot_q75_us     | float | µs     | third quartile of the same                                     | events
time_hot_n          | int   |        | repetitions in that median                                     | events
host_launch_us      | float | µs     | median host time of the call that launches                     | events
plan_us             | float | µs     | median host time of plan()                                     | events
time_insitu_us      | float | µs     | median over launches of the sum of their kernels' time         | nsys
insitu_n            | int   |        | launches in that median                                        | nsys
kernel_gap_us       | float | µs     | median over launches of idle time between their kernels        | nsys
time_ncu_us         | float | µs     | sum of gpu__time_duration over the point's kernels             | ncu
replay_distortion   | float | ×      | time_ncu_us / time_insitu_us                                   | ncu
flops_analytic      | float | FLOP   | the target's count, convention beside it                       | point
bytes_analytic      | float | B      | the target's count, convention beside it                       | point
convention          | text  |        | how the analytic work was counted                              | point
flops_counted       | float | FLOP   | tensor_flops + fp32_flops + fp16_flops over the kernels        | ncu
flops_tensor_counted| float | FLOP   | tensor_flops over the kernels                                  | ncu
bytes_dram_counted  | float | B      | dram_bytes_read + dram_bytes_write over the kernels            | ncu
bytes_l2_counted    | float | B      | l2_bytes over the kernels                                      | ncu
bytes_l1_counted    | float | B      | l1_bytes over the kernels                                      | ncu
flops_ratio         | float | ×      | flops_analytic / (flops_tensor_counted; of 0: flops_counted)   | ncu
bytes_ratio         | float | ×      | bytes_analytic / bytes_dram_counted                            | ncu
tflops              | float | TFLOPS | flops_analytic / time_cold_us                                  | events
gbs                 | float | GB/s   | bytes_analytic / time_cold_us                                  | events
gbs_hot             | float | GB/s   | bytes_analytic / time_hot_us (L2 warm: not an HBM rate)        | events
tensor_tflops_counted | float | TFLOPS | flops_tensor_counted / time_ncu_us                           | ncu
dram_gbs_counted    | float | GB/s   | bytes_dram_counted / time_ncu_us                               | ncu
ceiling_dram_gbs_datasheet | float | GB/s | published peak of the part                                | ceilings
ceiling_dram_gbs_counter   | float | GB/s | dram_bytes_peak_per_cycle × dram_cycles_per_second of the main kernel | ncu
ceiling_dram_gbs_measured  | float | GB/s | large copy on the same machine                            | ceilings
ceiling_tensor_tflops_datasheet | float | TFLOPS | published dense peak of the part                   | ceilings
ceiling_tensor_tflops_counter   | float | TFLOPS | tensor_flops_peak_per_second (instruction that ran) of the main kernel | ncu
ceiling_tensor_tflops_measured  | float | TFLOPS | large matrix product on the same machine           | ceilings
gbs_fraction_datasheet | float | of 1 | gbs / ceiling_dram_gbs_datasheet                              | events
gbs_fraction_counter   | float | of 1 | dram_gbs_counted / ceiling_dram_gbs_counter                   | ncu
gbs_fraction_measured  | float | of 1 | gbs / ceiling_dram_gbs_measured                               | events
tflops_fraction_datasheet | float | of 1 | tflops / ceiling_tensor_tflops_datasheet                   | events
tflops_fraction_counter   | float | of 1 | tensor_tflops_counted / ceiling_tensor_tflops_counter      | ncu
tflops_fraction_measured  | float | of 1 | tflops / ceiling_tensor_tflops_measured                    | events
ai_analytic         | float | FLOP/B | flops_analytic / bytes_analytic                                | point
ai_counted          | float | FLOP/B | flops_counted / bytes_dram_counted                             | ncu
ai_l2_counted       | float | FLOP/B | flops_counted / bytes_l2_counted                               | ncu
ai_l1_counted       | float | FLOP/B | flops_counted / bytes_l1_counted                               | ncu
sol_sm_pct          | float | %      | sm_throughput_pct of the main kernel                           | ncu
sol_memory_pct      | float | %      | memory_throughput_pct of the main kernel                       | ncu
sol_dram_pct        | float | %      | dram_throughput_pct of the main kernel                         | ncu
sol_l2_pct          | float | %      | l2_throughput_pct of the main kernel                           | ncu
sol_l1_pct          | float | %      | l1_throughput_pct of the main kernel                           | ncu
tensor_pipe_pct     | float | %      | tensor_pipe_pct of the main kernel                             | ncu
issue_active        | float | /cycle | issue_active of the main kernel                                | ncu
achieved_occupancy_pct    | float | % | achieved_occupancy_pct of the main kernel                     | ncu
theoretical_occupancy_pct | float | % | theoretical_occupancy_pct of the main kernel                  | ncu
sm_clock_ghz        | float | GHz    | sm_clock_hz of the main kernel                                 | ncu
kernel_count        | int   |        | kernels that ncu profiled in the point's range                 | ncu
main_kernel         | text  |        | the longest of them                                            | ncu
grid_size           | int   | blocks | of the main kernel                                             | ncu
block_size          | int   | threads| of the main kernel                                             | ncu
registers           | int   | /thread| registers of the main kernel | ncu
smem_bytes          | int   | B/block| smem_static + smem_dynamic of the main kernel | ncu
waves               | float |        | waves of the main kernel: grid over what the GPU holds at once | ncu
top_stall           | text  |        | the largest stall of the main kernel                           | ncu
top_stall_share     | float | of 1   | its share of all stall cycles                                  | ncu
second_stall        | text  |        | the second largest                                             | ncu
second_stall_share  | float | of 1   | its share                                                      | ncu
bottleneck          | text  |        | memory, compute, balanced, latency, grid, merge: by sol_sm_pct, sol_memory_pct, waves | ncu
bottleneck_unit     | text  |        | the unit that leads, by sol_dram_pct, sol_l2_pct, sol_l1_pct, tensor_pipe_pct | ncu
bottleneck_pct      | float | %      | one of sol_sm_pct, sol_dram_pct, sol_l2_pct, sol_l1_pct, waves; of merge: of the time | ncu
""")
BY_NAME = {column.name: column for column in COLUMNS}
