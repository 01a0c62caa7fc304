"""Schemas of the tables: columns, types, units, meanings and sources, in one place.

`build` makes a table of rows and refuses what does not fit; docs/tables.md is generated from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

Row = dict[str, Any]
TEXT, INT, FLOAT, BOOL = pa.string(), pa.int64(), pa.float64(), pa.bool_()
SAMPLES = pa.list_(pa.float64())


@dataclass(frozen=True)
class Column:
    """One column; a column that is not `required` may be null, and null is "not known", never 0."""

    name: str
    type: pa.DataType
    meaning: str
    unit: str = ""
    source: str = ""
    required: bool = False

    def field(self) -> pa.Field:
        metadata = {"meaning": self.meaning, "unit": self.unit, "source": self.source}
        return pa.field(self.name, self.type, not self.required, metadata)


@dataclass(frozen=True)
class Table:
    """One table: what a row is, its columns and their order."""

    name: str
    row: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([column.field() for column in self.columns])


def _text(name: str, meaning: str, source: str = "", required: bool = False) -> Column:
    return Column(name, TEXT, meaning, "", source, required)


def _int(
    name: str, meaning: str, unit: str = "", source: str = "", required: bool = False
) -> Column:
    return Column(name, INT, meaning, unit, source, required)


def _float(name: str, meaning: str, unit: str = "", source: str = "") -> Column:
    return Column(name, FLOAT, meaning, unit, source)


REPORT = _text("report", "report file, relative to the evidence root, without .xz", required=True)
BATCH = _text("batch", "batch of points that one process ran", required=True)
POINT = _text("point", "point id; null where a row belongs to none of the plan")
KERNEL = _int("kernel", "index of the kernel in its report", required=True)

KERNELS = Table(
    "kernels",
    "one profiled kernel launch",
    (
        REPORT,
        BATCH,
        POINT,
        KERNEL,
        _text("name", "function name without template arguments", "IAction.name", True),
        _text("demangled", "full name with template arguments", "IAction.name(DEMANGLED)"),
        _text("nvtx", "open NVTX ranges, outermost first, joined by /", "IAction.nvtx_state"),
        _text("grid", "grid as x,y,z", "launch__grid_dim_*"),
        _text("block", "block as x,y,z", "launch__block_dim_*"),
        _int("grid_size", "blocks in the grid", "block", "launch__grid_size"),
        _int("block_size", "threads in a block", "thread", "launch__block_size"),
        _int("registers", "registers a thread", "register", "launch__registers_per_thread"),
        _int(
            "smem_static_bytes",
            "static shared memory a block",
            "byte",
            "launch__shared_mem_per_block_static",
        ),
        _int(
            "smem_dynamic_bytes",
            "dynamic shared memory a block",
            "byte",
            "launch__shared_mem_per_block_dynamic",
        ),
        _float("duration_ns", "GPU time under ncu", "ns", "gpu__time_duration.sum"),
        _int("passes", "replay passes", "", "profiler__replayer_passes"),
        _text("device", "GPU name", "device__attribute_display_name"),
        _text(
            "compute_capability",
            "compute capability, as 9.0",
            "device__attribute_compute_capability_*",
        ),
        _int("stream", "CUDA stream", "", "launch__stream_id"),
        _text("problems", "what is wrong with this kernel's data, joined by ; "),
    ),
)

METRICS = Table(
    "metrics",
    "one registry metric of one kernel (docs/metrics.md lists the keys)",
    (
        REPORT,
        POINT,
        KERNEL,
        _text("key", "registry key", required=True),
        _text(
            "metric",
            "the ncu counters that were read; of a sum, those that are not 0",
            required=True,
        ),
        _float("value", "value in `unit`; null where the report holds no number"),
        Column("unit", TEXT, "base unit of the registry", required=True),
    ),
)

STALLS = Table(
    "stalls",
    "one warp state of one kernel",
    (
        REPORT,
        POINT,
        KERNEL,
        _text("reason", "stall reason (docs/metrics.md gives NVIDIA's meaning)", required=True),
        _text("kind", "stall, selected or not_selected; only stall is a stall", required=True),
        _float(
            "ratio",
            "warps in this state per issued instruction",
            "cycle",
            "smsp__average_warps_issue_stalled_*",
        ),
        _float(
            "share",
            "of the sum over kind stall, by ratio, or by samples where there are no ratios",
            "fraction",
        ),
        _int("samples", "per-PC samples in this state", "", "smsp__pcsamp_warps_issue_stalled_*"),
        _int(
            "samples_not_issued",
            "those of them in cycles without an issue",
            "",
            "smsp__pcsamp_warps_issue_stalled_*_not_issued",
        ),
    ),
)

RULES = Table(
    "rules",
    "one message of one of ncu's own rules",
    (
        REPORT,
        POINT,
        KERNEL,
        _text("rule", "identifier of the rule", required=True),
        _text("section", "section it belongs to"),
        _text("message", "its text, without ncu's markup", required=True),
        _text("type", "ok, optimization, warning or error (the rule failed)", required=True),
        _float("speedup_pct", "ncu's estimate of the possible speed-up", "%"),
        _text("speedup_type", "local (of the part) or global (of the kernel)"),
    ),
)

LINES = Table(
    "lines",
    "one warp state at one instruction of one kernel, where it was sampled at all (deep reports)",
    (
        REPORT,
        POINT,
        KERNEL,
        _int(
            "pc", "instruction address, from the kernel's first instruction", "byte", required=True
        ),
        _text(
            "sass",
            "the instruction, for PCs with at least 0.1 % of the kernel's samples",
            "IAction.sass_by_pc",
        ),
        _text("opcode", "its opcode with modifiers"),
        _text(
            "file",
            "source file, from include/flashinfer/ on or its last two components",
            "IAction.source_info",
        ),
        _int("line", "source line", "", "IAction.source_info"),
        _text("function", "function name of the kernel"),
        _int("samples", "samples in this state at this instruction", required=True),
        _int("samples_not_issued", "those of them in cycles without an issue"),
        _text("reason", "warp state, as in `stalls`", required=True),
    ),
)

TIMELINE = Table(
    "timeline",
    "one operation on the GPU, by start time",
    (
        REPORT,
        POINT,
        _int("index", "order by start time in its report", required=True),
        _text("kind", "kernel, memcpy, memset or graph (a graph traced as a whole)", required=True),
        _text("name", "kernel function name, or the kind of copy"),
        _text("demangled", "full kernel name"),
        _int("start_ns", "start, on the trace's clock", "ns", required=True),
        _int("end_ns", "end", "ns", required=True),
        _int("duration_ns", "end − start", "ns", required=True),
        _int(
            "gap_before_ns",
            "time that the device stood idle since all earlier operations ended; 0 where "
            "they overlap, null for a device's first",
            "ns",
        ),
        _int("stream_gap_before_ns", "the same within its stream", "ns"),
        _text("api_name", "CUDA call that launched it", "CUPTI_ACTIVITY_KIND_RUNTIME"),
        _int("api_start_ns", "start of that call", "ns"),
        _int("api_duration_ns", "duration of that call on the host", "ns"),
        _int("stream", "CUDA stream"),
        _int("device", "CUDA device index", "", "deviceId"),
        _text("grid", "grid as x,y,z"),
        _text("block", "block as x,y,z"),
        Column(
            "graph", BOOL, "launched as a node of a CUDA graph, or a whole graph", required=True
        ),
        _int("launch", "which repeat of the point's NVTX range, from 0"),
        _text("nvtx", "open NVTX ranges, outermost first, joined by /"),
        _int("bytes", "bytes copied or set", "byte"),
    ),
)

RANGES = Table(
    "ranges",
    "one NVTX range of the host",
    (
        REPORT,
        _text("name", "its text", required=True),
        _text("point", "the point range it is, or lies in"),
        _int("start_ns", "start", "ns", required=True),
        _int("end_ns", "end; null where the range was never closed", "ns"),
        _int("launch", "which repeat of the point's range, from 0"),
    ),
)


def _times(kind: str, meaning: str) -> tuple[Column, ...]:
    return (
        _float(f"{kind}_us", f"{meaning}, median", "µs"),
        _float(f"{kind}_q25_us", "lower quartile", "µs"),
        _float(f"{kind}_q75_us", "upper quartile", "µs"),
        _int(f"{kind}_n", "repetitions"),
    )


TIMING = Table(
    "timing",
    "one point: checked and timed",
    (
        REPORT,
        BATCH,
        _int("run", "process that timed the batch, counted from 0; measurements are of run 0"),
        Column("point", TEXT, "point id", required=True),
        _text("target", "kernel target", required=True),
        _text("params", "parameters as JSON", required=True),
        _text("status", "ok, wrong, skipped, error or lost", required=True),
        _text("reason", "why it is not ok"),
        _float("check_rel_l2", "relative L2 error against the float32 reference"),
        _float("check_max_abs", "largest absolute error"),
        _float("check_tolerance", "tolerance on check_rel_l2"),
        _int("flops", "analytic work", "FLOP"),
        _int("bytes", "analytic traffic", "byte"),
        _text("convention", "how work and traffic are counted"),
        *_times("cold", "event time with the L2 cache flushed before each launch"),
        *_times("hot", "event time a launch, launches queued back to back"),
        *_times("host", "host time of the call, without waiting for the GPU"),
        *_times("plan", "host time of plan()"),
        Column("cold_samples_us", SAMPLES, "every repetition", "µs"),
        Column("hot_samples_us", SAMPLES, "every repetition", "µs"),
        Column("host_samples_us", SAMPLES, "every repetition", "µs"),
        Column("plan_samples_us", SAMPLES, "every repetition", "µs"),
        _float("sm_mhz_before", "SM clock before", "MHz"),
        _float("sm_mhz_after", "SM clock after", "MHz"),
        _float("mem_mhz_before", "memory clock before", "MHz"),
        _float("mem_mhz_after", "memory clock after", "MHz"),
        Column("throttled", BOOL, "the driver named a reason to lower the clocks, before or after"),
        _text("throttle_reasons", "those reasons, joined by ; "),
        _int("retakes", "times the timing was taken again"),
        _text("info", "what plan() chose, as JSON"),
        _int("peak_memory_bytes", "peak of allocated GPU memory", "byte"),
    ),
)

LOST = Table(
    "lost",
    "one point that a capture did not get",
    (
        REPORT,
        BATCH,
        POINT,
        _text("tool", "trace, sweep or deep", required=True),
        _text("reason", "why"),
    ),
)

TABLES: dict[str, Table] = {
    t.name: t for t in (KERNELS, METRICS, STALLS, RULES, LINES, TIMELINE, RANGES, TIMING, LOST)
}


def build(name: str, rows: Iterable[Row]) -> pa.Table:
    """Rows (dicts; keys that are no column are dropped, absent ones are null) as a checked table.

    Raises ValueError where a value does not fit its column.
    """
    schema = TABLES[name].schema
    listed = list(rows)
    try:
        arrays = [pa.array([r.get(f.name) for r in listed], f.type) for f in schema]
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ValueError(f"table {name}: {error}") from None
    table = pa.Table.from_arrays(arrays, schema=schema)
    check(name, table)
    return table


def check(name: str, table: pa.Table) -> None:
    """ValueError where a table has other columns or types than its schema, a null where none may
    be, or NaN or infinity anywhere."""
    schema = TABLES[name].schema
    if not table.schema.equals(schema):
        raise ValueError(f"table {name}: its columns are not those of the schema")
    for column, field in zip(table.columns, schema, strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"table {name}: null in column {field.name}")
        if pa.types.is_floating(field.type) and not _finite(column):
            raise ValueError(f"table {name}: not a number in column {field.name}")


def _finite(column: pa.ChunkedArray) -> bool:
    # Plain Python: importing pyarrow.compute costs more than all the columns of a sweep.
    return all(value is None or math.isfinite(value) for value in column.to_pylist())
