"""Registry entries: memory traffic and floating-point work, with the ceilings ncu gives them."""

from __future__ import annotations

from collections.abc import Mapping

from ncuflow.parsers.metric import ANY, Metric, Sources, read
from ncuflow.parsers.sources import Ceiling, one, scaled, total, weighted

SECTOR = 32  # bytes
WAVEFRONT = 128  # bytes that pass the data pipe of an L1TEX in one cycle
_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts"
_L1_CYCLES = ("l1tex__cycles_elapsed.avg.per_second", "device__attribute_multiprocessor_count")
_LOCAL = [f"l1tex__t_sectors_pipe_lsu_mem_local_op_{op}.sum" for op in ("ld", "st")]
_CONFLICTS = "l1tex__data_bank_conflicts_pipe_lsu_mem_shared"

MEMORY = (
    Metric(
        "dram_bytes_read",
        "DRAM bytes read",
        "byte",
        "bytes read from DRAM",
        {ANY: (*one("dram__bytes_read.sum"), scaled(SECTOR, "dram__sectors_read.sum"))},
    ),
    Metric(
        "dram_bytes_write",
        "DRAM bytes written",
        "byte",
        "bytes written to DRAM",
        {ANY: (*one("dram__bytes_write.sum"), scaled(SECTOR, "dram__sectors_write.sum"))},
    ),
    Metric(
        "dram_bytes_peak_per_cycle",
        "DRAM peak per cycle",
        "byte/cycle",
        "bytes that DRAM can move in one of its cycles",
        read("dram__bytes.sum.peak_sustained", "dram__bytes_read.sum.peak_sustained"),
    ),
    Metric(
        "dram_cycles_per_second",
        "DRAM cycles per second",
        "hz",
        "the DRAM clock of this launch; times the peak per cycle it is the ceiling",
        read("dram__cycles_elapsed.avg.per_second"),
    ),
    Metric(
        "dram_peak_bytes_per_second",
        "DRAM ceiling",
        "byte/s",
        "peak bytes per cycle × cycles per second of this launch",
        {
            ANY: (
                scaled(1, "dram__bytes.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second"),
                scaled(
                    1, "dram__bytes_read.sum.peak_sustained", "dram__cycles_elapsed.avg.per_second"
                ),
            )
        },
    ),
    Metric(
        "l2_bytes",
        "L2 bytes",
        "byte",
        (
            "bytes of all L2 sectors accessed, by any unit (on GH100 with the traffic between "
            "its two halves)"
        ),
        {ANY: (*one("lts__t_bytes.sum"), scaled(SECTOR, "lts__t_sectors.sum"))},
    ),
    Metric(
        "l2_bytes_l1",
        "L2 bytes for L1TEX",
        "byte",
        "bytes of the L2 sectors that L1TEX asked for",
        {ANY: (scaled(SECTOR, "lts__t_sectors_srcunit_tex.sum"),)},
    ),
    Metric(
        "l2_peak_bytes_per_second",
        "L2 ceiling",
        "byte/s",
        "bytes that L2 can return to the SMs, at the L2 clock of this launch",
        {
            ANY: (
                scaled(
                    1,
                    "derived__lts__lts2xbar_bytes.sum.peak_sustained",
                    "lts__cycles_elapsed.avg.per_second",
                ),
            )
        },
    ),
    Metric(
        "l1_bytes",
        "L1 bytes",
        "byte",
        (
            "128 for each wavefront of L1TEX's data pipe: loads, stores, shared memory, what cp.async "
            "writes there and what warpgroup MMA reads there; a bank conflict is a further wavefront"
        ),
        {
            ANY: (
                scaled(WAVEFRONT, f"{_WAVEFRONTS}.sum"),
                scaled(
                    WAVEFRONT / 100,
                    f"{_WAVEFRONTS}.avg.pct_of_peak_sustained_elapsed",
                    *_L1_CYCLES,
                    "gpu__time_duration.sum",
                ),
            )
        },
    ),
    Metric(
        "l1_peak_bytes_per_second",
        "L1 ceiling",
        "byte/s",
        "one wavefront per cycle in each L1TEX, at the clock of this launch",
        {ANY: (scaled(WAVEFRONT, *_L1_CYCLES),)},
    ),
    Metric(
        "l2_hit_pct",
        "L2 hit rate",
        "%",
        "L2 sector lookups that hit",
        read("lts__t_sector_hit_rate.pct"),
    ),
    Metric(
        "l1_hit_pct",
        "L1 hit rate",
        "%",
        "L1TEX sectors that hit",
        read("l1tex__t_sector_hit_rate.pct"),
    ),
    Metric(
        "spill_bytes",
        "Local memory bytes",
        "byte",
        "bytes of local-memory sectors loaded and stored: spills and local arrays",
        {ANY: (total(*_LOCAL, factor=SECTOR),)},
    ),
    Metric(
        "smem_bank_conflicts",
        "Shared-memory bank conflicts",
        "count",
        "data bank conflicts of shared-memory instructions",
        read(f"{_CONFLICTS}.sum"),
    ),
    Metric(
        "smem_bank_conflicts_load",
        "Bank conflicts, loads",
        "count",
        "data bank conflicts of shared-memory loads",
        read(f"{_CONFLICTS}_op_ld.sum"),
    ),
    Metric(
        "smem_bank_conflicts_store",
        "Bank conflicts, stores",
        "count",
        "data bank conflicts of shared-memory stores",
        read(f"{_CONFLICTS}_op_st.sum"),
    ),
    Metric(
        "smem_wavefronts",
        "Shared-memory wavefronts",
        "count",
        "passes of shared-memory instructions through the data stage",
        read("l1tex__data_pipe_lsu_wavefronts_mem_shared.sum"),
    ),
)

# --- tensor operations ------------------------------------------------------------------------

_SPARSITY = ("_sparsity_off", "_sparsity_on")
_OPS = "sm__ops_path_tensor_"
_FLOP_PATHS = {
    "gh100": (
        *(
            f"op_hmma_src_{t}{s}"
            for t in ("fp16_dst_fp16", "fp16_dst_fp32", "bf16_dst_fp32", "tf32_dst_fp32")
            for s in _SPARSITY
        ),
        *(
            f"op_hgmma_src_{t}{s}"
            for t in ("fp16", "bf16_dst_fp32", "tf32_dst_fp32")
            for s in _SPARSITY
        ),
        *(f"src_fp8{s}" for s in _SPARSITY),
        "src_fp64",
    ),
    "ga100": (
        *(
            f"src_{t}{s}"
            for t in ("fp16_dst_fp16", "fp16_dst_fp32", "bf16_dst_fp32", "tf32_dst_fp32")
            for s in _SPARSITY
        ),
        "src_fp64",
    ),
}
_INT_PATHS = {
    "gh100": tuple(f"op_{op}_src_int8{s}" for op in ("imma", "igmma") for s in _SPARSITY),
    "ga100": tuple(f"src_{t}{s}" for t in ("int8", "int4") for s in _SPARSITY),
}


def _ops(paths: Mapping[str, tuple[str, ...]]) -> dict[str, Sources]:
    return {
        arch: (total(*(f"{_OPS}{p}.sum" for p in names), partial=True),)
        for arch, names in paths.items()
    }


def _ops_peak(paths: Mapping[str, tuple[str, ...]]) -> dict[str, Sources]:
    peak = ".sum.peak_sustained_elapsed.per_second"
    return {
        arch: (Ceiling(tuple((f"{_OPS}{p}.sum", f"{_OPS}{p}{peak}") for p in names)),)
        for arch, names in paths.items()
    }


# --- floating-point instructions --------------------------------------------------------------

_INST = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
_CYCLES = ("smsp__cycles_elapsed.avg.per_second", "gpu__time_duration.sum")


def _flops(weights: dict[str, float]) -> dict[str, Sources]:
    """Thread instructions × FLOPs each: by count, else by rate × cycles × time (rooflines)."""
    names = {_INST.format(op): weight for op, weight in weights.items()}
    rates = {f"{name}.per_cycle_elapsed": weight for name, weight in names.items()}
    return {ANY: (weighted(names), weighted(rates, *_CYCLES))}


def _flops_peak(op: str, weight: float) -> dict[str, Sources]:
    peak = f"sm__sass_thread_inst_executed_op_{op}_pred_on.sum.peak_sustained"
    return {ANY: (scaled(weight, peak, "sm__cycles_elapsed.avg.per_second"),)}


WORK = (
    Metric(
        "tensor_flops",
        "Tensor FLOPs",
        "FLOP",
        (
            "floating-point operations that the tensor cores did, counted by the hardware, all "
            "types; operations of sparse instructions count as dense"
        ),
        _ops(_FLOP_PATHS),
    ),
    Metric(
        "tensor_flops_peak_per_second",
        "Tensor ceiling",
        "FLOP/s",
        (
            "peak of the tensor instruction that ran, dense unless it was sparse, at the clock "
            "of this launch; none where no tensor instruction ran"
        ),
        _ops_peak(_FLOP_PATHS),
    ),
    Metric(
        "tensor_int_ops",
        "Tensor integer operations",
        "op",
        "integer operations that the tensor cores did",
        _ops(_INT_PATHS),
    ),
    Metric(
        "tensor_int_ops_peak_per_second",
        "Tensor integer ceiling",
        "op/s",
        "peak of the integer tensor instruction that ran",
        _ops_peak(_INT_PATHS),
    ),
    Metric(
        "fp32_flops",
        "FP32 FLOPs",
        "FLOP",
        (
            "FADD + FMUL + 2 × FFMA thread instructions; rate × cycles × time where counts are "
            "absent"
        ),
        _flops({"fadd": 1, "fmul": 1, "ffma": 2}),
    ),
    Metric(
        "fp16_flops",
        "FP16 FLOPs",
        "FLOP",
        (
            "2 × HMUL2 + 4 × HFMA2 thread instructions (packed pairs), outside the tensor "
            "cores; without HADD2, which is how half is converted to float (HADD2.F32)"
        ),
        _flops({"hmul": 2, "hfma": 4}),
    ),
    Metric(
        "fp16_adds",
        "FP16 adds and conversions",
        "count",
        (
            "2 × HADD2 thread instructions: half additions, and conversions of half to float "
            "(HADD2.F32), which are no FLOPs"
        ),
        _flops({"hadd": 2}),
    ),
    Metric(
        "fp32_flops_peak_per_second",
        "FP32 ceiling",
        "FLOP/s",
        "2 × FFMA peak × SM clock of this launch",
        _flops_peak("ffma", 2),
    ),
    Metric(
        "fp16_flops_peak_per_second",
        "FP16 ceiling",
        "FLOP/s",
        "4 × HFMA2 peak × SM clock of this launch",
        _flops_peak("hfma", 4),
    ),
)
