"""The records that rooms hand to each other: rows of the tables, and what is made of them.

A table's columns are the fields of its record: type, meaning, unit and source are declared here alone.
Parquet schemas, checks and docs/tables.md are made of them (``ncuflow/parquet.py``). A field that may be
None is "not known", never 0.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired, get_args, get_type_hints

from pydantic import BeforeValidator, Field

# pydantic checks no TypedDict of Python 3.11's own typing.
from typing_extensions import TypedDict

from ncuflow import record
from ncuflow.origin import cutlass_dsl, flashinfer_version, package_version, torch_cuda

# A row of a table as a parser gives it, before ``ncuflow/parquet.py`` checks it: value by column.
Row = dict[str, Any]
# The measurement row of a point: value by column name; ``findings/columns.py`` declares the columns.
# TimeClass: the least µs of a class of durations, and the noise floor there.
# Params: a point's parameters by name.
if TYPE_CHECKING:
    Measurement = dict[str, Any]
    Params = dict[str, Any]
    TimeClass = tuple[float, float]
else:  # as JSON has them
    Measurement = dict[str, float | int | str | None]
    Params = dict[str, record.Parameter]
    TimeClass = Annotated[list[float], Field(min_length=2, max_length=2)]


@dataclass(frozen=True)
class About:
    """What a column holds: its meaning, its unit, and where its values are read."""

    meaning: str
    unit: str = ""
    source: str = ""


@dataclass(frozen=True)
class Condition:
    """What a measurement may depend on beside its kernel, and two sides of a comparison differ in.

    label: what pages call it; version: of a piece of software, which every page names; moves: it can move a kernel's
    time, and is no tool that measures; of_one_gpu: what parts of one name may differ in, a MIG slice and the whole
    say, while another GPU's is its own; absence: that it is not there changes kernels as well; read: how a process
    that measures finds it, None where it is told.
    """

    label: str
    version: bool = False
    moves: bool = True
    of_one_gpu: bool = False
    absence: bool = False
    read: Callable[[], str | None] | None = None


# fmt: off
Count = Annotated[int, Field(gt=0)]
DIMENSIONS = Field(pattern=r"^[0-9]{1,10}(,[0-9]{1,10}){2}$")
Report = Annotated[str, About("report file, relative to the evidence root, without .xz")]
Batch = Annotated[str, About("batch of points that one process ran")]
PointId = Annotated[str | None, About("point id; null where a row belongs to none of the plan")]
Index = Annotated[int, About("index of the kernel in its report")]

class KernelRow(TypedDict):
    """One profiled kernel launch."""

    report: Report
    batch: Batch
    point: PointId
    kernel: Index
    name: Annotated[str, About("function name without template arguments; of the CuTe DSL the class", "", "IAction.name")]
    demangled: Annotated[str | None, About("full name with template arguments", "", "IAction.name(DEMANGLED)")]
    nvtx: Annotated[str | None, About("open NVTX ranges, outermost first, joined by /", "", "IAction.nvtx_state")]
    grid: Annotated[str | None, About("grid as x,y,z", "", "launch__grid_dim_*"), DIMENSIONS]
    block: Annotated[str | None, About("block as x,y,z", "", "launch__block_dim_*"), DIMENSIONS]
    grid_size: Annotated[int | None, About("blocks in the grid", "block", "launch__grid_size")]
    block_size: Annotated[int | None, About("threads per block", "thread", "launch__block_size")]
    registers: Annotated[int | None, About("registers per thread", "register", "launch__registers_per_thread")]
    smem_static_bytes: Annotated[int | None,
        About("static shared memory per block", "byte", "launch__shared_mem_per_block_static")
    ]
    smem_dynamic_bytes: Annotated[int | None,
        About("dynamic shared memory per block", "byte", "launch__shared_mem_per_block_dynamic")
    ]
    duration_ns: Annotated[float | None, About("GPU time under ncu", "ns", "gpu__time_duration.sum")]
    passes: Annotated[int | None, About("replay passes", "", "profiler__replayer_passes")]
    device: Annotated[str | None, About("GPU name", "", "device__attribute_display_name")]
    compute_capability: Annotated[str | None, About("compute capability, as 9.0", "", "device__attribute_compute_capability_*")]
    stream: Annotated[int | None, About("CUDA stream", "", "launch__stream_id")]
    problems: Annotated[str | None, About("what is wrong with this kernel's data, joined by ; ")]


class OfKernel(TypedDict):
    """Which kernel a row is about."""

    report: Report
    point: PointId
    kernel: Index


class MetricRow(TypedDict):
    """One registry metric of one kernel (docs/metrics.md lists the keys)."""

    key: Annotated[str, About("registry key")]
    metric: Annotated[str, About("the ncu counters that were read; of a sum, those that are not 0")]
    value: Annotated[float | None, About("value in `unit`; null where the report holds no number")]
    unit: Annotated[str, About("base unit of the registry")]


class Stall(TypedDict):
    """One warp state of one kernel."""

    reason: Annotated[str, About("stall reason (docs/metrics.md gives NVIDIA's meaning)")]
    kind: Annotated[str, About("stall, selected or not_selected; only stall is a stall")]
    ratio: Annotated[float | None,
        About("warps in this state per issued instruction", "cycle", "smsp__average_warps_issue_stalled_*")
    ]
    share: Annotated[float | None,
        About("of the sum over kind stall, by ratio, or by samples where there are no ratios", "fraction")
    ]
    samples: Annotated[int | None, About("per-PC samples in this state", "", "smsp__pcsamp_warps_issue_stalled_*")]
    samples_not_issued: Annotated[int | None,
        About("those of them in cycles without an issue", "", "smsp__pcsamp_warps_issue_stalled_*_not_issued")
    ]


class BreakdownRow(TypedDict):
    """One counter of the breakdown of one kernel's SM or memory throughput, which is the largest of its counters."""

    parent: Annotated[str, About("registry key of the throughput: sm_throughput_pct or memory_throughput_pct")]
    counter: Annotated[str, About("the ncu counter")]
    unit: Annotated[str, About("the hardware unit that it is of (docs/metrics.md lists them)")]
    pct: Annotated[float, About("utilisation of its sustained peak over elapsed cycles", "%")]


class Rule(TypedDict):
    """One message of one of ncu's own rules."""

    rule: Annotated[str, About("identifier of the rule")]
    section: Annotated[str | None, About("section it belongs to")]
    message: Annotated[str, About("its text, without ncu's markup")]
    type: Annotated[str, About("ok, optimization, warning or error (the rule failed)")]
    speedup_pct: Annotated[float | None, About("ncu's estimate of the possible speed-up", "%")]
    speedup_type: Annotated[str | None, About("local (of the part) or global (of the kernel)")]


class LineRow(TypedDict):
    """One warp state at one instruction of one kernel, where it was sampled at all (deep reports)."""

    pc: Annotated[int, About("instruction address, from the kernel's first instruction", "byte")]
    sass: Annotated[str | None,
        About("the instruction, for PCs with at least 0.1 % of the kernel's samples", "", "IAction.sass_by_pc")
    ]
    opcode: Annotated[str | None, About("its opcode with modifiers")]
    file: Annotated[str | None,
        About("source file, from include/flashinfer/ on or its last two components", "", "IAction.source_info")
    ]
    line: Annotated[int | None, About("source line", "", "IAction.source_info")]
    function: Annotated[str | None, About("function name of the kernel")]
    samples: Annotated[int, About("samples in this state at this instruction")]
    samples_not_issued: Annotated[int | None, About("those of them in cycles without an issue")]
    reason: Annotated[str, About("warp state, as in `stalls`")]


class Operation(TypedDict):
    """One operation on the GPU, by start time."""

    report: Report
    point: PointId
    index: Annotated[int, About("order by start time in its report")]
    kind: Annotated[str, About("kernel, memcpy, memset or graph (a graph traced as a whole)")]
    name: Annotated[str | None, About("kernel function name, or the kind of copy")]
    demangled: Annotated[str | None, About("full kernel name")]
    start_ns: Annotated[int, About("start, on the trace's clock", "ns")]
    end_ns: Annotated[int, About("end", "ns")]
    duration_ns: Annotated[int, About("end − start", "ns")]
    gap_before_ns: Annotated[int | None,
        About("time that the device stood idle since all earlier operations ended; 0 where they overlap, "
              "null for a device's first", "ns")
    ]
    stream_gap_before_ns: Annotated[int | None, About("the same within its stream", "ns")]
    api_name: Annotated[str | None, About("CUDA call that launched it", "", "CUPTI_ACTIVITY_KIND_RUNTIME")]
    api_start_ns: Annotated[int | None, About("start of that call", "ns")]
    api_duration_ns: Annotated[int | None, About("duration of that call on the host", "ns")]
    stream: Annotated[int | None, About("CUDA stream")]
    device: Annotated[int | None, About("CUDA device index", "", "deviceId")]
    grid: Annotated[str | None, About("grid as x,y,z")]
    block: Annotated[str | None, About("block as x,y,z")]
    graph: Annotated[bool, About("launched as a node of a CUDA graph, or a whole graph")]
    launch: Annotated[int | None, About("which repeat of the point's NVTX range, from 0")]
    nvtx: Annotated[str | None, About("open NVTX ranges, outermost first, joined by /")]
    bytes: Annotated[int | None, About("bytes copied or set", "byte")]


class RangeRow(TypedDict):
    """One NVTX range of the host."""

    report: Report
    name: Annotated[str, About("its text")]
    point: Annotated[str | None, About("the point range it is, or lies in")]
    start_ns: Annotated[int, About("start", "ns")]
    end_ns: Annotated[int | None, About("end; null where the range was never closed", "ns")]
    launch: Annotated[int | None, About("which repeat of the point's range, from 0")]


class Captured(TypedDict):
    """Which process timed a point."""

    report: Report
    batch: Batch
    run: Annotated[int, About("process that timed the batch, counted from 0; measurements are of run 0")]


class Throttled(TypedDict):
    """What both looks at the clocks come to."""

    throttled: Annotated[bool | None, About("the driver named a reason to lower the clocks, before or after")]
    throttle_reasons: Annotated[str | None, About("those reasons, joined by ; ")]


class Pair(TypedDict):
    """Which pair, and which side of it."""

    report: Report
    batch: Batch
    pair: Annotated[str, About("name of the pair: its base and its other point")]
    side: Annotated[str, About("base or other")]
    point: Annotated[str, About("point id of this side")]
    status: Annotated[str, About("of the pair: ok, wrong, skipped, error or lost")]
    reason: Annotated[str | None, About("why it is not ok")]


class Capture(TypedDict):
    """Which file of evidence, and which tool made it."""

    report: Report
    batch: Batch
    tool: Annotated[str, About("timing, pairs, trace, sweep or deep")]


class Origin(TypedDict):
    """What a capture was made with, as it wrote down itself; all null where its format did not say so yet."""

    gpu: Annotated[str | None, About("GPU"), Condition("GPU")]
    driver: Annotated[str | None, About("version of the driver"), Condition("driver", version=True)]
    cuda: Annotated[str | None, About("CUDA version of torch"), Condition("CUDA", version=True, read=torch_cuda)]
    torch: Annotated[str | None,
        About("version of torch"), Condition("torch", version=True, read=partial(package_version, "torch"))
    ]
    flashinfer: Annotated[str | None,
        About("version of FlashInfer"), Condition("FlashInfer", version=True, read=flashinfer_version)
    ]
    # With it FlashInfer takes other kernels.
    cutlass_dsl: Annotated[str | None,
        About("version of the CuTe DSL; null where FlashInfer does not find it"),
        Condition("CuTe DSL", version=True, absence=True, read=cutlass_dsl)
    ]
    ncu: Annotated[str | None,
        About("version of ncu, where it made the capture"), Condition("ncu", version=True, moves=False)
    ]
    nsys: Annotated[str | None,
        About("version of nsys, where it made the capture"), Condition("nsys", version=True, moves=False)
    ]
    # Part of the host times.
    python: Annotated[str | None,
        About("version of Python"), Condition("Python", moves=False, read=platform.python_version)
    ]
    date: Annotated[str | None, About("when it began, or for a profiler ended, UTC")]


class Provenance(Origin):
    """On which GPU, with which versions, when, and how directly a number was measured; None where nobody could say.

    tier: `TIERS` of ``evidence/provenance.py`` says what each is. recording: of recorded evidence, its name.
    mixed: the keys of which captures differ; their values then stand side by side, "0.6.18 and 0.7.2".
    note: what else whoever recorded it says of how it was measured; most say nothing.
    """

    tier: Literal["A", "B", "C", "S"]
    compute_capability: Annotated[str | None, Condition("compute capability", of_one_gpu=True)]
    sm_count: Annotated[Count | None, Condition("multiprocessors", of_one_gpu=True)]
    l2_bytes: Annotated[Count | None, Condition("L2 cache, bytes", of_one_gpu=True)]
    memory_bytes: Annotated[Count | None, Condition("memory, bytes", of_one_gpu=True)]
    clock_policy: Annotated[str | None, Condition("clock policy")]
    recording: str | None
    mixed: list[str]
    note: NotRequired[str]


class CaptureRow(Capture, Origin):
    """One capture: with what it was made, and what its tool warned of."""

    warnings: Annotated[str | None, About("what the tool warned of, joined by ; ")]


class LossRow(TypedDict):
    """One point that a capture did not get."""

    report: Report
    batch: Batch
    point: PointId
    tool: Annotated[str, About("trace, sweep or deep")]
    reason: Annotated[str | None, About("why")]


# fmt: on
def _columns(name: str, about: str, of: type[record.Strict]) -> Any:
    """A record of the columns that the fields of what a run wrote become."""
    hints = {
        p.column: Annotated[p.kind if p.known else p.kind | None, About(p.meaning, p.unit)]
        for p in record.places(of)
    }
    made: Any = TypedDict(name, hints)  # type: ignore[misc]
    made.__doc__ = about
    return made


if TYPE_CHECKING:
    SideTimes = dict[str, Any]
    TimingRow = dict[str, Any]
else:
    SideTimes = _columns(
        "SideTimes", "One side of a pair of points that were timed in turns.", record.Series
    )
    TimingRow = _columns("TimingRow", "One point: checked and timed.", record.PointRecord)
# Batches of points that other batches have: some profiled with their source lines, and some timed in turns. The name
# of any other is made of its points.
DEEP, PAIRS = "deep", "pairs"
SHARED = frozenset({DEEP, PAIRS})
BATCH = rf"b[0-9a-f]{{8}}|{DEEP}|{PAIRS}"
# Tool: its report in a batch folder, beside <tool>.json.
REPORTS = {"trace": "trace.sqlite", "sweep": "sweep.ncu-rep", DEEP: "deep.ncu-rep"}
# The records whose fields, one after the other, are the columns of each table.
TABLES: dict[str, tuple[type, ...]] = {
    "kernels": (KernelRow,),
    "metrics": (OfKernel, MetricRow),
    "stalls": (OfKernel, Stall),
    "breakdown": (OfKernel, BreakdownRow),
    "rules": (OfKernel, Rule),
    "lines": (OfKernel, LineRow),
    "timeline": (Operation,),
    "ranges": (RangeRow,),
    "timing": (Captured, Throttled, TimingRow),
    "pairs": (Pair, SideTimes),
    "lost": (LossRow,),
    "captures": (CaptureRow,),
}
# What numbers depend on, by its key in Origin and Provenance, and of these the versions as pages call them.
CONDITIONS: dict[str, Condition] = {
    key: about
    for key, hint in get_type_hints(Provenance, include_extras=True).items()
    for about in get_args(hint)
    if isinstance(about, Condition)
}
# The software that a capture was made with: what an origin says beside the GPU and the date.
SOFTWARE = {
    key: CONDITIONS[key].label
    for key in Origin.__annotations__
    if key in CONDITIONS and key != "gpu"
}
VERSIONS = {key: condition.label for key, condition in CONDITIONS.items() if condition.version}


def _whole(stored: Any) -> Any:
    """An origin that was written down, with null for what its format did not say yet."""
    return (
        {**dict.fromkeys(Origin.__annotations__), **stored} if isinstance(stored, dict) else stored
    )


StoredOrigin = Annotated[Origin, BeforeValidator(_whole)]  # as a model of a file reads it


class Kernel(KernelRow):
    """A profiled launch with all that was measured of it.

    metrics: value by registry key, in the registry's unit; tensor_types: the types that counters saw the tensor cores
    compute with, one of them alone as a rule; lines: of deep profiles alone.
    """

    metrics: dict[str, float | None]
    tensor_types: NotRequired[list[str]]
    stalls: list[Stall]
    breakdown: list[BreakdownRow]
    rules: list[Rule]
    lines: NotRequired[list[LineRow]]


class ReferenceCheck(TypedDict):
    """A point's output against its float32 reference, and what was allowed."""

    rel_l2: float | None
    max_abs: float | None
    tolerance: float | None


class Point(TypedDict):
    """One configuration of a target with what every tool found of it.

    samples, runs: times in µs by series (cold_us, hot_us, …), the latter a list for each run.
    """

    point: str
    params: Params
    tier: Literal["A", "B", "C", "S"]
    status: record.Status
    reason: str | None
    problems: list[str]
    check: ReferenceCheck
    info: dict[str, Any]
    measurement: Measurement
    samples: dict[str, list[float] | None]
    kernels: list[Kernel]
    runs: dict[str, list[list[float] | None]]


class DatasheetPeaks(TypedDict):
    """Published peaks of a part; None where it is unknown. tensor_tflops: of fp16; tflops: of each type that is known."""

    dram_gbs: float | None
    tensor_tflops: float | None
    tflops: dict[str, float]
    source: str | None


class MeasuredPeaks(TypedDict):
    """The highest rates that were reached on the same machine: of DRAM, and of tensor cores by data type.

    source: what reached ``dram_gbs``; read_gbs: of the large read; series: the measurements as ``ceilings.json`` has
    them, by what was run; points: the point that reached more than those, by ``dram_gbs`` or data type.
    """

    dram_gbs: float | None
    read_gbs: float | None
    series: dict[str, Any]
    tensor_tflops: dict[str, float | None]
    source: str | None
    points: dict[str, str]


class Ceilings(TypedDict):
    """What a machine could do at most, by source."""

    gpu: str | None
    datasheet: DatasheetPeaks
    measured: MeasuredPeaks


class NoiseFloor(TypedDict):
    """How far two measurements of a column lie apart, as a fraction of the value, and on what that rests.

    n: captures or launches; points: how many it was taken over; how: the same in words; by_time: of a time, and of a
    rate by its time, the least µs of each class of durations and the floor there; none of what has no duration.
    """

    floor: Annotated[float, Field(ge=0)]
    n: int
    points: int
    how: str
    by_time: NotRequired[list[TimeClass]]


class Turns(TypedDict):
    """Two points timed in turns. sides: of the base and of the other; none where the pair was not timed."""

    base: str
    other: str
    status: str
    reason: str | None
    sides: list[SideTimes]


class Warned(TypedDict):
    """What a tool warned of in one report."""

    report: str
    text: str


class Results(TypedDict):
    """``results/<target>_results.json``: all that is known of one target. noise: by column.

    warnings: what tools said of their own reports.
    """

    schema: NotRequired[int]
    target: str
    provenance: Provenance
    warnings: list[Warned]
    ceilings: Ceilings
    points: list[Point]
    deep: list[Kernel]
    pairs: list[Turns]
    noise: dict[str, NoiseFloor]


class MachineInfo(TypedDict):
    """``results/environment_info.json``: the machine that made the evidence.

    findings: what the preflight found, each with its status, text and remedy.
    """

    schema: int
    provenance: Provenance
    findings: list[dict[str, Any]]
    ceilings: Ceilings
