"""A kernel looked at closely: its memory chart, roofline, pipes, instruction mix, spread, and its code with samples."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ncuflow.io import below, clean
from ncuflow.model import Kernel
from ncuflow.parsers.detail import Counter, Detail
from ncuflow.view.model import (
    Code,
    Flow,
    LaunchDetail,
    LaunchView,
    MemoryChart,
    MemoryRow,
    MemoryTable,
    Roof,
    Roofline,
    Spread,
)

SECTOR, WAVEFRONT = 32, 128  # bytes
KERNEL, L1, SHARED, L2, DRAM, SYSTEM, PEER = (
    "kernel",
    "l1",
    "shared",
    "l2",
    "dram",
    "system",
    "peer",
)
PERCENT = ".pct_of_peak_sustained_elapsed"


class _Flow(NamedTuple):
    """counters: summed; times: bytes of each; other: registry keys to sum where the report lacks the counters."""

    source: str
    target: str
    label: str
    counters: tuple[str, ...]
    unit: str = "byte"
    times: float = 1
    other: tuple[str, ...] = ()


def _lsu(space: str, *ops: str) -> tuple[str, ...]:
    return tuple(f"l1tex__t_requests_pipe_lsu_mem_{space}_op_{op}.sum" for op in ops)


def _aperture(of: str, *ops: str) -> tuple[str, ...]:
    return tuple(f"lts__t_sectors_srcunit_tex_aperture_{of}_op_{op}.sum" for op in ops)


FLOWS = (
    _Flow(L1, KERNEL, "global loads", _lsu("global", "ld"), "request"),
    _Flow(KERNEL, L1, "global stores", _lsu("global", "st"), "request"),
    _Flow(KERNEL, L1, "global atomics", _lsu("global", "atom", "red"), "request"),
    _Flow(L1, KERNEL, "local loads", _lsu("local", "ld"), "request"),
    _Flow(KERNEL, L1, "local stores", _lsu("local", "st"), "request"),
    _Flow(L1, KERNEL, "texture", ("l1tex__t_requests_pipe_tex_mem_texture.sum",), "request"),
    _Flow(SHARED, KERNEL, "shared loads", ("smsp__sass_inst_executed_op_shared_ld.sum",), "inst"),
    _Flow(KERNEL, SHARED, "shared stores", ("smsp__sass_inst_executed_op_shared_st.sum",), "inst"),
    _Flow(SHARED, KERNEL, "ldmatrix", ("smsp__inst_executed_op_ldsm.sum",), "inst"),
    _Flow(L2, L1, "read", ("l1tex__m_xbar2l1tex_read_bytes.sum",)),
    _Flow(L1, L2, "written", ("l1tex__m_l1tex2xbar_write_bytes.sum",)),
    _Flow(L2, SHARED, "of it past L1",
          ("sm__sass_l1tex_m_xbar2l1tex_read_bytes_mem_global_op_ldgsts_cache_bypass.sum",)),
    _Flow(DRAM, L2, "read", ("dram__bytes_read.sum",), other=("dram_bytes_read",)),
    _Flow(L2, DRAM, "written", ("dram__bytes_write.sum",), other=("dram_bytes_write",)),
    _Flow(SYSTEM, L2, "read",
          ("lts__t_sectors_srcunit_tex_aperture_sysmem_op_read_lookup_miss.sum",), times=SECTOR),
    _Flow(L2, SYSTEM, "written", _aperture("sysmem", "write", "atom", "red"), times=SECTOR),
    _Flow(PEER, L2, "read",
          ("lts__t_sectors_srcunit_tex_aperture_peer_op_read_lookup_miss.sum",), times=SECTOR),
    _Flow(L2, PEER, "written", _aperture("peer", "write", "atom", "red"), times=SECTOR),
)  # fmt: skip
# (box, fact, counter, registry key to take where the report lacks it, its unit).
FACTS = (
    (L1, "hit rate", "l1tex__t_sector_hit_rate.pct", "l1_hit_pct", "%"),
    (L2, "hit rate", "lts__t_sector_hit_rate.pct", "l2_hit_pct", "%"),
    (SHARED, "wavefronts", "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum", "smem_wavefronts", ""),
    (SHARED, "bank conflicts", "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum", "smem_bank_conflicts", ""),
    (L2, "busy", "", "l2_throughput_pct", "%"),
    (L1, "busy", "", "l1_throughput_pct", "%"),
    (DRAM, "busy", "", "dram_throughput_pct", "%"),
    (L2, "across halves", "lts__t_sectors_srcunit_ltcfabric.sum", "", "sector"),
)  # fmt: skip
# Without traffic of one of these there is no chart to draw.
NEEDED = ((L2, L1), (DRAM, L2))


def chart(
    counters: Mapping[str, Counter], metrics: Mapping[str, float | None]
) -> MemoryChart | None:
    """The chart of one launch; None where nothing between DRAM, L2 and L1 is known."""
    flows = [found for flow in FLOWS if (found := _flow(flow, counters, metrics))]
    if not any((flow.source, flow.target) in NEEDED for flow in flows):
        return None
    boxes: dict[str, list[tuple[str, float, str]]] = {}
    for box, fact, name, key, unit in FACTS:
        counter = counters.get(name)
        value = counter.value if counter else metrics.get(key)
        if value is not None:
            shown = value * SECTOR if unit == "sector" else value
            boxes.setdefault(box, []).append((fact, shown, "byte" if unit == "sector" else unit))
    return MemoryChart(boxes, flows)


def _flow(
    flow: _Flow, counters: Mapping[str, Counter], metrics: Mapping[str, float | None]
) -> Flow | None:
    known = [counters[name].value for name in flow.counters if name in counters]
    if len(known) < len(flow.counters):
        known = [value for key in flow.other if (value := metrics.get(key)) is not None]
        if not known:
            return None
    pct = [counters[n + PERCENT].value for n in flow.counters if n + PERCENT in counters]
    return Flow(
        flow.source, flow.target, flow.label, sum(known) * flow.times, flow.unit,
        max(pct) if pct else None,
    )  # fmt: skip


Counters = Mapping[str, Counter]
Own = tuple[str, ...]  # what of the counters' names is a row's own, in the order of their braces
Value = Callable[[Counters, Own], float | None]


def first(*names: str) -> Value:
    """The first of some counters that the report holds."""
    return lambda counters, own: next(
        (counters[name].value for name in (n.format(*own) for n in names) if name in counters), None
    )


def ratio(above: Value, below: Value, times: float = 1) -> Value:
    """A quotient; None where a part is not known, or nothing is below."""

    def value(counters: Counters, own: Own) -> float | None:
        over, under = above(counters, own), below(counters, own)
        return None if over is None or not under else times * over / under

    return value


def total(*parts: Value) -> Value:
    """A sum; None where a part is not known."""

    def value(counters: Counters, own: Own) -> float | None:
        known = [part(counters, own) for part in parts]
        return sum(one for one in known if one is not None) if None not in known else None

    return value


def times(part: Value, factor: float) -> Value:
    return ratio(part, lambda _, __: 1.0, factor)


class _Column(NamedTuple):
    """always: also where it is zero in all rows."""

    label: str
    unit: str
    value: Value
    always: bool = True


class _Table(NamedTuple):
    level: str
    columns: tuple[_Column, ...]
    rows: tuple[tuple[str, Own], ...]


def _l1(space: str, pipe: str, *ops: tuple[str, str]) -> tuple[tuple[str, Own], ...]:
    return tuple((f"{space} {label}", (f"{pipe}_mem_{space}_op_{op}",)) for label, op in ops)


def _l2_misses(aperture: str) -> Value:
    return first(f"lts__t_sectors{{}}_aperture_{aperture}{{}}_lookup_miss.sum")


L1_REQUESTS, L1_SECTORS = first("l1tex__t_requests_{}.sum"), first("l1tex__t_sectors_{}.sum")
L1_HITS, L1_MISSES = (first(f"l1tex__t_sectors_{{}}_lookup_{of}.sum") for of in ("hit", "miss"))
L2_REQUESTS, L2_SECTORS = first("lts__t_requests{}{}.sum"), first("lts__t_sectors{}{}.sum")
L2_HITS, L2_MISSES = (first(f"lts__t_sectors{{}}{{}}_lookup_{of}.sum") for of in ("hit", "miss"))
# Those of LDGSTS ncu counts by instructions alone, which is more than the pipe's: they are no part of its sum.
WAVEFRONTS = first("l1tex__data_pipe_lsu_wavefronts_mem_shared{1}.sum")
CONFLICTS = first("l1tex__data_bank_conflicts_pipe_lsu_mem_shared{1}.sum")
LOADS, STORES, ATOMICS = ("loads", "ld"), ("stores", "st"), ("atomics", "atom")
REDUCTIONS = ("reductions", "red")
TEX, FROM = "_srcunit_tex", {"DRAM": "device", "system memory": "sysmem", "a peer": "peer"}
TABLES = (
    _Table("L1TEX", (
        _Column("requests", "", L1_REQUESTS),
        _Column("wavefronts", "", first("l1tex__t_output_wavefronts_{}.sum")),
        _Column("sectors", "", L1_SECTORS),
        _Column("sectors per request", "", ratio(L1_SECTORS, L1_REQUESTS)),
        _Column("hit rate", "%", ratio(L1_HITS, total(L1_HITS, L1_MISSES), 100)),
        _Column("bytes", "byte", times(L1_SECTORS, SECTOR)),
        _Column("missed", "byte", times(L1_MISSES, SECTOR)),
    ), (
        *_l1("global", "pipe_lsu", LOADS, STORES, ATOMICS, REDUCTIONS),
        *_l1("local", "pipe_lsu", LOADS, STORES),
        *_l1("dshared", "pipe_lsu", LOADS, STORES, ATOMICS),
        ("texture", ("pipe_tex_mem_texture",)),
        *_l1("surface", "pipe_tex", LOADS, STORES, ATOMICS, REDUCTIONS),
    )),
    _Table("Shared memory", (
        _Column("instructions", "", first("smsp__sass_inst_executed_op_{0}.sum", "smsp__inst_executed_op_{0}.sum")),
        _Column("wavefronts", "", WAVEFRONTS),
        _Column("bank conflicts", "", CONFLICTS),
        _Column("of wavefronts", "%", ratio(CONFLICTS, WAVEFRONTS, 100)),
    ), (
        ("loads", ("shared_ld", "_op_ld")), ("stores", ("shared_st", "_op_st")),
        ("atomics", ("shared_atom", "_op_atom")), ("copies from global (LDGSTS)", ("ldgsts", "_op_ldgsts")),
        ("all", ("shared", "")),
    )),
    _Table("L2", (
        _Column("requests", "", L2_REQUESTS),
        _Column("sectors", "", L2_SECTORS),
        _Column("sectors per request", "", ratio(L2_SECTORS, L2_REQUESTS)),
        _Column("hit rate", "%", ratio(L2_HITS, total(L2_HITS, L2_MISSES), 100)),
        _Column("bytes", "byte", times(L2_SECTORS, SECTOR)),
        *(_Column(f"missed, {label}", "byte", times(_l2_misses(of), SECTOR), False)
          for label, of in FROM.items()),
    ), (
        ("L1TEX reads", (TEX, "_op_read")), ("L1TEX writes", (TEX, "_op_write")), ("L1TEX reductions", (TEX, "_op_red")),
        ("L1TEX atomics", (TEX, "_op_atom_dot_alu")), ("L1TEX compare and swap", (TEX, "_op_atom_dot_cas")),
        ("L1TEX, all", (TEX, "")), ("constants and instructions", ("_srcunit_gcc", "")),
        ("between halves of L2", ("_srcunit_ltcfabric", "")), ("all", ("", "")),
    )),
    _Table("DRAM", (
        _Column("sectors", "", first("dram__sectors_{}.sum")),
        _Column("bytes", "byte", first("dram__bytes_{}.sum")),
        _Column("bytes per second", "byte/s", first("dram__bytes_{}.sum.per_second")),
        _Column("of peak", "%", first("dram__bytes_{}.sum.pct_of_peak_sustained_elapsed",
                                      "dram__{}_throughput.avg.pct_of_peak_sustained_elapsed")),
    ), (("reads", ("read",)), ("writes", ("write",)))),
)  # fmt: skip


def tables(counters: Counters) -> list[MemoryTable]:
    """The tables of one launch: rows without traffic and columns that the report does not hold are left out."""
    return [found for table in TABLES if (found := _table(table, counters))]


def _table(table: _Table, counters: Counters) -> MemoryTable | None:
    rows = [
        MemoryRow(label, tuple(column.value(counters, own) for column in table.columns))
        for label, own in table.rows
    ]
    rows = [row for row in rows if any(row.values)]
    kept = list(_kept(rows, table.columns))
    if not kept:
        return None
    return MemoryTable(
        table.level,
        [(table.columns[at].label, table.columns[at].unit) for at in kept],
        [MemoryRow(row.label, tuple(row.values[at] for at in kept)) for row in rows],
    )


def _kept(rows: Sequence[MemoryRow], columns: Sequence[_Column]) -> Iterator[int]:
    for at, column in enumerate(columns):
        values = [row.values[at] for row in rows]
        if any(value is not None if column.always else value for value in values):
            yield at


# Use of a pipe in per cent of its peak while the SM was active: by cycles where the report has them, else by instructions.
PIPE = re.compile(
    r"sm__(?:inst_executed_)?pipe_(\w+?)(?:_cycles_active)?\.avg\.pct_of_peak_sustained_active"
)
UNITS = {
    "sm": "SMs", "smsp": "schedulers", "l1tex": "L1TEX caches", "lts": "slices of L2", "dram": "DRAM channels",
    "fbpa": "DRAM partitions", "gpc": "GPCs", "ltc": "slices of L2",
}  # fmt: skip
ROLLED = re.compile(r"(([a-z0-9]+)__[a-z0-9_]+)\.avg")
# Of what an instance counts in a launch, below which its distance from the mean is chance and keeps nobody waiting.
FEW = 100
# bytes of a source file: a larger one is generated, and no page shows it
LARGEST_SOURCE = 2_000_000


def of_launch(launch: LaunchView, detail: Detail, source: Path | None) -> LaunchDetail:
    """What a report holds of a launch. source: a folder below which its source files are looked for."""
    return LaunchDetail(
        kernel=launch.index,
        memory=chart(detail.counters, launch.kernel["metrics"]),
        tables=tables(detail.counters),
        pipes=pipes(detail),
        opcodes=sorted(
            ((name, count) for name, count in detail.opcodes.items() if count),
            key=lambda item: -item[1],
        ),
        spread=list(spread(detail)),
        code=code(detail, source),
        detail=detail,
    )


def pipes(detail: Detail) -> list[tuple[str, float]]:
    """(pipe, per cent of its peak), the busiest first; those that did nothing are left out."""
    found: dict[str, float] = {}
    for name, counter in detail.counters.items():
        if (match := PIPE.fullmatch(name)) and counter.value:
            found[match[1]] = max(counter.value, found.get(match[1], 0.0))
    return sorted(found.items(), key=lambda item: -item[1])


def spread(detail: Detail) -> Iterator[Spread]:
    """Counters whose smallest and largest instance differ, by unit; the widest first."""
    found = []
    for name, counter in detail.counters.items():
        match = ROLLED.fullmatch(name)
        if not match or match[2] not in UNITS or not counter.value:
            continue
        least, most = (detail.counters.get(f"{match[1]}.{end}") for end in ("min", "max"))
        if least and most and least.value < most.value >= FEW:
            unit = UNITS[match[2]]
            found.append(Spread(match[1], unit, counter.value, least.value, most.value))
    yield from sorted(found, key=lambda one: -(one.most - one.least) / one.mean)


def code(detail: Detail, source: Path | None) -> Code | None:
    """The instructions of a kernel with their samples and source lines; None where the report has none."""
    if not detail.instructions:
        return None
    sources = {at: text.splitlines() for at, text in detail.sources.items()}
    found = dict.fromkeys(sources, "report")
    for at, name in enumerate(detail.files) if source else ():
        if at not in sources and (text := _below(source, name)) is not None:
            sources[at], found[at] = text.splitlines(), "folder"
    return Code(detail.instructions, detail.samples, detail.files, sources, found)


def _below(folder: Path | None, name: str) -> str | None:
    """The text of a source file by the longest end of its name that is a file below a folder; None without one.

    A name in a report is anybody's: what a link or ".." leads out of the folder to is not read.
    """
    if folder is None:
        return None
    parts = [part for part in re.split(r"[/\\]", name) if part not in ("", "..", ".")]
    for start in range(len(parts)):
        path = below(folder, "/".join(parts[start:]))
        with suppress(OSError):  # one that may not be read
            if path is not None and path.stat().st_size <= LARGEST_SOURCE:
                return clean(path.read_text("utf-8", "replace"))
    return None


# Kinds of arithmetic and levels of memory: label -> registry keys of the count and of its ceiling.
COMPUTE = {
    "tensor": ("tensor_flops", "tensor_flops_peak_per_second"),
    "tensor, integer": ("tensor_int_ops", "tensor_int_ops_peak_per_second"),
    "FP32": ("fp32_flops", "fp32_flops_peak_per_second"),
    "FP16": ("fp16_flops", "fp16_flops_peak_per_second"),
}
LEVELS = {
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
    moved = {name: [of(key) for key in keys] for name, (keys, _) in LEVELS.items()}
    known = {
        name: sum(value or 0 for value in values)
        for name, values in moved.items()
        if None not in values
    }
    if not worked or not any(known.values()):
        return None
    compute = [Roof(name, peak) for name in worked if (peak := peaks[name])]
    memory = [Roof(name, peak) for name in known if (peak := of(LEVELS[name][1]))]
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
