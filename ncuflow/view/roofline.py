"""The roofline of a launch: its counted work over its counted traffic, under its own ceilings."""

from __future__ import annotations

from collections.abc import Mapping

from ncuflow.model import Kernel
from ncuflow.parsers.detail import Counter, Detail
from ncuflow.view.model import Roof, Roofline

# Kinds of arithmetic and levels of memory: label -> registry keys of the count and of its ceiling.
COMPUTE = {
    "tensor": ("tensor_flops", "tensor_flops_peak_per_second"),
    "tensor, integer": ("tensor_int_ops", "tensor_int_ops_peak_per_second"),
    "FP32": ("fp32_flops", "fp32_flops_peak_per_second"),
    "FP16": ("fp16_flops", "fp16_flops_peak_per_second"),
}
MEMORY = {
    "DRAM": (("dram_bytes_read", "dram_bytes_write"), "dram_peak_bytes_per_second"),
    "L2": (("l2_bytes",), "l2_peak_bytes_per_second"),
    "L1": (("l1_bytes",), "l1_peak_bytes_per_second"),
}
# FP64 outside of the tensor cores is of no target, and no metric of the registry: instruction -> FLOP of a thread.
FP64 = "FP64"
FP64_FLOP = {"dadd": 1, "dmul": 1, "dfma": 2}
EXECUTED = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
FP64_PEAK = "sm__sass_thread_inst_executed_op_dfma_pred_on.sum.peak_sustained"
NS = 1e-9


def roofline(kernel: Kernel, detail: Detail | None = None) -> Roofline | None:
    """Of one launch; detail: of one that is looked at closely. None without work, traffic or a time."""
    of, ns = kernel["metrics"].get, kernel["duration_ns"]
    if not ns:
        return None
    flops = {name: of(key) for name, (key, _) in COMPUTE.items()}
    peaks = {name: of(key) for name, (_, key) in COMPUTE.items()}
    if detail is not None:
        flops[FP64] = fp64_flops(detail.counters, ns)
        peaks[FP64] = _product(detail.counters, FP64_PEAK, "sm__cycles_elapsed.avg.per_second", 2)
    worked = {name: value for name, value in flops.items() if value}
    moved = {name: [of(key) for key in keys] for name, (keys, _) in MEMORY.items()}
    known = {
        name: sum(value or 0 for value in values)
        for name, values in moved.items()
        if None not in values
    }
    if not worked or not any(known.values()):
        return None
    compute = [Roof(name, peak) for name in worked if (peak := peaks[name])]
    memory = [Roof(name, peak) for name in known if (peak := of(MEMORY[name][1]))]
    return Roofline(worked, {k: v for k, v in known.items() if v}, tuple(compute), tuple(memory))


def fp64_flops(counters: Mapping[str, Counter], ns: float) -> float | None:
    """FLOP in FP64 from counts, else from rates over the time of the launch; None where an instruction is not counted."""
    counts = [_product(counters, EXECUTED.format(op), None, n) for op, n in FP64_FLOP.items()]
    if None in counts:
        rate = ".per_cycle_elapsed"
        clock = "smsp__cycles_elapsed.avg.per_second"
        counts = [
            _product(counters, EXECUTED.format(op) + rate, clock, n * ns * NS)
            for op, n in FP64_FLOP.items()
        ]
    return None if None in counts else sum(one for one in counts if one is not None)


def _product(
    counters: Mapping[str, Counter], name: str, other: str | None, factor: float
) -> float | None:
    if name not in counters or (other and other not in counters):
        return None
    return counters[name].value * (counters[other].value if other else 1) * factor
