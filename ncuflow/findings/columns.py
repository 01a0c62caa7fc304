"""The measurement: one row per point, where events, nsys and ncu meet. A column is declared where it is computed.

The tables, ``docs/measurements.md``, the trace of a number, the noise floors and the sanity checks all read
these declarations; the formula in words stands beside the code that it describes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from statistics import median
from typing import Any

from ncuflow.findings import join, limiter
from ncuflow.gpu.table import TABLE
from ncuflow.model import VERSIONS, Kernel, Measurement
from ncuflow.record import FieldColumn, Series, places

# Where a value comes from, the rarest last: every point has its own, few machines give counters.
SOURCES = ("point", "ceilings", "events", "nsys", "ncu")


@dataclass(frozen=True)
class Column:
    """One column of the measurement row.

    kind: text, int or float; unit: as printed; formula: in words, over columns and registry keys;
    compute: the value from what is known of the point, None where a term is unknown; given: the source
    of what is not computed from other columns; terms: those columns where it is; keys: registry keys
    that it reads, of the ``main`` kernel alone or of all; evidence: where a value without either was
    found; scale: what the quotient of a rate's terms is multiplied by.
    """

    name: str
    kind: str
    unit: str
    formula: str
    compute: Callable[[join.Joined], Any]
    given: str = ""
    terms: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    main: bool = False
    evidence: str = ""
    scale: float = 1.0

    @property
    def source(self) -> str:
        """The tool whose evidence this column needs: the rarest that its terms need."""
        return self.given or max((BY_NAME[t].source for t in self.terms), key=SOURCES.index)


def measurement(joined: join.Joined) -> Measurement:
    """The measurement row of one point: every column's value, None where it is unknown."""
    for column in COLUMNS:
        joined.row[column.name] = column.compute(joined)
    return joined.row


@cache
def below(name: str) -> frozenset[str]:
    """The columns that a column is computed from, and those under them."""
    return frozenset(BY_NAME[name].terms).union(*map(below, BY_NAME[name].terms))


@cache
def above(name: str) -> frozenset[str]:
    """The columns that are computed from a column: where it is wrong, they are."""
    return frozenset(column.name for column in COLUMNS if name in below(column.name))


@cache
def clock(name: str) -> str | None:
    """Of a count over a time, that time; None of a column with no time under it, or with several."""
    times = [term for term in below(name) if BY_NAME[term].unit == "µs"]
    return times[0] if len(times) == 1 else None


def _timed(place: FieldColumn) -> Column:
    """A field of the timing record."""
    kind = {float: "float", int: "int"}.get(place.kind, "text")
    evidence = f"timing.jsonl of the point's batch, series {place.path[-2]!r}"
    return Column(
        place.measured, kind, place.unit, place.meaning, lambda j: j.timing[place.column], "events", evidence=evidence
    )  # fmt: skip


def _traced(
    name: str, kind: str, unit: str, formula: str, compute: Callable[[join.Joined], Any]
) -> Column:
    """A statistic over the launches that nsys saw; None where it saw none."""
    evidence = "trace.sqlite of the point's batch: the kernels in its NVTX range (tables/<target>/timeline)"
    return Column(
        name, kind, unit, formula, lambda j: compute(j) if j.launches else None, "nsys", evidence=evidence
    )  # fmt: skip


def _summed(name: str, unit: str, *keys: str) -> Column:
    """Counters added up over the kernels of the point."""

    def compute(joined: join.Joined) -> float | None:
        counted = [join.with_idle_tensor_pipe(kernel["metrics"]) for kernel in joined.kernels]
        return join.total(metrics.get(key) for metrics in counted for key in keys)

    formula = f"{' + '.join(keys)} over the kernels"
    return Column(name, "float", unit, formula, compute, "ncu", keys=keys)


def _counter(
    name: str, unit: str, *keys: str, note: str = "", under: float = 1.0, peak: bool = False
) -> Column:
    """A counter of the main kernel, or the product of several; a peak of 0 is none."""

    def compute(joined: join.Joined) -> float | None:
        values = [joined.metrics.get(key) for key in keys]
        known = [value for value in values if value is not None and not (peak and value == 0)]
        return prod(known) / under if len(known) == len(values) else None

    formula = f"{' × '.join(keys)} of the main kernel{note}"
    return Column(name, "float", unit, formula, compute, "ncu", keys=keys, main=True)


def _launch(
    name: str, unit: str, compute: Callable[[Kernel], Any], *keys: str, formula: str = ""
) -> Column:
    """How the main kernel was launched."""
    said = formula or f"{' + '.join(keys)} of the main kernel"
    return Column(
        name, "int" if unit else "text", unit, said, lambda j: compute(j.main) if j.main else None,
        "ncu", keys=keys, main=True,
    )  # fmt: skip


def _stall(name: str, kind: str, unit: str, formula: str, rank: int, field: str) -> Column:
    def compute(joined: join.Joined) -> Any:
        stalls: Sequence[Any] = joined.stalls
        return stalls[rank][field] if rank < len(stalls) else None

    return Column(name, kind, unit, formula, compute, "ncu", main=True, evidence="stalls")


def _unit(place: int, name: str, rank: str, field: str = "name") -> Column:
    """A field of the busiest (0) or second busiest (1) unit of the main kernel."""
    formula, kind, unit = {
        "name": (f"the {rank} unit of the main kernel, by the largest counter of its breakdown", "text", ""),
        "pct": (f"the largest counter of the {rank} unit", "float", "%"),
        "counter": (f"the name of the largest counter of the {rank} unit", "text", ""),
    }[field]  # fmt: skip

    def compute(joined: join.Joined) -> Any:
        units = joined.limiter.units
        return getattr(units[place], field) if place < len(units) else None

    called = f"{name}_{'unit' if field == 'name' else field}"
    return Column(called, kind, unit, formula, compute, "ncu", main=True, evidence="breakdown")


def _wait(name: str, formula: str, terms: tuple[str, ...], *keys: str) -> Column:
    """What a kind of wait takes of the main kernel's time."""

    def compute(joined: join.Joined) -> float | None:
        return next((wait.pct for wait in joined.limiter.waits if wait.name == name), None)

    return Column(
        f"{name}_pct", "float", "%", formula, compute, "ncu", terms=terms, keys=keys, main=True
    )


def _verdict(
    name: str, formula: str, terms: tuple[str, ...], of: Callable[[limiter.Limiter], str | None]
) -> Column:
    """A part of the verdict on the main kernel."""
    return Column(name, "text", "", formula, lambda j: of(j.limiter), "ncu", terms=terms)


def _quotient(
    name: str, unit: str, over: str, under: str, scale: float = 1.0, note: str = ""
) -> Column:
    """One column over another."""

    def compute(joined: join.Joined) -> float | None:
        return join.ratio(joined.row[over], joined.row[under], scale)

    formula = f"{over} / {under}{note}"
    return Column(name, "float", unit, formula, compute, terms=(over, under), scale=scale)


def _excess(name: str, part: str, whole: str, what: str) -> Column:
    """By how much a count is above one that should be as large, in per cent of it; 0 where it is not."""

    def compute(joined: join.Joined) -> float | None:
        share = join.ratio(joined.row[part], joined.row[whole], 100)
        return None if share is None else max(0.0, 100 - share)

    formula = f"100 - 100 × {part} / {whole}, at least 0: {what}"
    return Column(name, "float", "%", formula, compute, terms=(part, whole))


def below_one(share: float | None) -> float | None:
    """A share of a ceiling; what is above it has another."""
    return share if share is not None and share <= 1 else None


def _peak(name: str, unit: str, formula: str, compute: Callable[[join.Joined], Any]) -> Column:
    """A ceiling of the machine."""
    evidence = TABLE.name if name.endswith("datasheet") else "ceilings.json of the evidence"
    return Column(name, "float", unit, formula, compute, "ceilings", evidence=evidence)


def _tensor_peak(
    source: str, formula: str, peaks: Callable[[join.Joined], Mapping[str, float | None]]
) -> Column:
    """A ceiling of the machine for the type that a point computes with, or would on tensor cores."""

    def compute(joined: join.Joined) -> float | None:
        row = joined.row
        return peaks(joined).get(str(row["dtype" if row["flop_type"] == "fp32" else "flop_type"]))

    said = f"{formula}, for flop_type, of fp32 for dtype"
    peak = _peak(f"ceiling_tensor_tflops_{source}", "TFLOPS", said, compute)
    return replace(peak, terms=("flop_type", "dtype"))


def _version(key: str) -> Column:
    """A version that the captures of a point wrote down."""
    formula = f"what the point was measured with: {VERSIONS[key]}"
    return Column(
        f"{key}_version", "text", "", formula, lambda j: dict(j.provenance).get(key), "point"
    )


WORK = "the target's count, convention beside it"
# fmt: off
COLUMNS = (
    Column("point", "text", "", "identity, also the NVTX range", lambda j: j.timing["point"], "point"),
    Column("target", "text", "", "kernel target", lambda j: j.timing["target"], "point"),
    Column("tier", "text", "", "A live counters, B live without counters, C recorded elsewhere, S compiled and not run",
           lambda j: j.provenance["tier"], "point"),
    Column("gpu", "text", "", "device name", lambda j: j.provenance["gpu"], "point"),
    Column("architecture", "text", "", "sm_ and the compute capability",
           lambda j: join.architecture(j.provenance), "point"),
    *map(_version, VERSIONS),
    Column("date", "text", "", "when, or the first and the last day", lambda j: j.provenance["date"], "point"),
    Column("status", "text", "", "ok, wrong, skipped, error, lost", lambda j: j.timing["status"], "point"),
    Column("problems", "text", "", "what is missing or failed, '; ' between", lambda j: j.problems, "point"),
    Column("dtype", "text", "", "the point's data type", lambda j: j.params.get("dtype"), "point"),
    Column("flop_type", "text", "", "the type that it computes with: of the operands of the tensor operations that were "
           "counted, fp32 where there were none, dtype where nothing was counted",
           lambda j: join.flop_type(j.kernels, j.row["dtype"]), "point", terms=("dtype",)),
    *(_timed(place) for place in places(Series) if place.measured),
    _traced("time_insitu_us", "float", "µs", "median over launches of the sum of their kernels' time",
            lambda j: median(sum(o["duration_ns"] for o in launch) for launch in j.launches) / 1e3),
    _traced("time_span_us", "float", "µs",
            "median over launches from the start of their first kernel to the end of their last one, gaps included",
            lambda j: median(max(o["end_ns"] for o in launch) - min(o["start_ns"] for o in launch)
                             for launch in j.launches) / 1e3),
    _traced("insitu_n", "int", "", "launches in that median", lambda j: len(j.launches)),
    _traced("kernel_gap_us", "float", "µs", "median over launches of idle time between their kernels",
            lambda j: median(join.idle_us((o["start_ns"], o["end_ns"]) for o in launch) for launch in j.launches)),
    Column("time_ncu_us", "float", "µs", "sum of duration_ns over the point's kernels",
           lambda j: join.ratio(join.total(kernel["duration_ns"] for kernel in j.kernels), 1e3), "ncu", keys=("duration_ns",)),
    _quotient("replay_distortion", "×", "time_ncu_us", "time_insitu_us"),
    Column("flops_analytic", "float", "FLOP", WORK, lambda j: j.timing["flops"], "point"),
    Column("bytes_analytic", "float", "B", WORK, lambda j: j.timing["bytes"], "point"),
    Column("convention", "text", "", "how the analytic work was counted", lambda j: j.timing["convention"], "point"),
    _summed("flops_counted", "FLOP", "tensor_flops", "fp32_flops", "fp16_flops"),
    _summed("flops_tensor_counted", "FLOP", "tensor_flops"),
    _summed("bytes_dram_counted", "B", "dram_bytes_read", "dram_bytes_write"),
    _summed("bytes_l2_counted", "B", "l2_bytes_l1"),
    _summed("bytes_l1_counted", "B", "l1_bytes"),
    Column("flops_ratio", "float", "×", "flops_analytic / (flops_tensor_counted; of 0: flops_counted)",
           lambda j: join.ratio(j.row["flops_analytic"], j.row["flops_tensor_counted"] or j.row["flops_counted"]),
           terms=("flops_analytic", "flops_tensor_counted", "flops_counted")),
    _quotient("bytes_ratio", "×", "bytes_analytic", "bytes_dram_counted"),
    _quotient("moved_ratio", "×", "bytes_dram_counted", "bytes_analytic", note=": moved over needed"),
    _excess("bytes_beyond_dram_pct", "bytes_dram_counted", "bytes_analytic",
            "bytes that a rate is credited with and that did not pass DRAM, kept in L2 or not moved"),
    _excess("tensor_padding_pct", "flops_analytic", "flops_tensor_counted",
            "FLOP of the tensor pipe that no convention counts, such as the empty rows of its tiles"),
    _quotient("tflops", "TFLOPS", "flops_analytic", "time_cold_us", 1e-6),
    _quotient("gbs", "GB/s", "bytes_analytic", "time_cold_us", 1e-3),
    _quotient("gbs_hot", "GB/s", "bytes_analytic", "time_hot_us", 1e-3, " (L2 warm: not an HBM rate)"),
    _quotient("tflops_sustained", "TFLOPS", "flops_analytic", "time_sustained_us", 1e-6),
    _quotient("gbs_sustained", "GB/s", "bytes_analytic", "time_sustained_us", 1e-3, " (L2 warm: not an HBM rate)"),
    _quotient("tensor_tflops_counted", "TFLOPS", "flops_tensor_counted", "time_ncu_us", 1e-6),
    _quotient("dram_gbs_counted", "GB/s", "bytes_dram_counted", "time_ncu_us", 1e-3),
    _peak("ceiling_dram_gbs_datasheet", "GB/s", "published peak of the part",
          lambda j: j.ceilings["datasheet"]["dram_gbs"] if join.of_dram(j) else None),
    _counter("ceiling_dram_gbs_counter", "GB/s", "dram_bytes_peak_per_cycle", "dram_cycles_per_second", under=1e9,
             peak=True),
    _peak("ceiling_dram_gbs_measured", "GB/s", "the highest of a large copy or read and of the points on this machine",
          lambda j: j.ceilings["measured"]["dram_gbs"] if join.of_dram(j) else None),
    _counter("ceiling_l2_gbs_counter", "GB/s", "l2_peak_bytes_per_second", under=1e9, peak=True),
    _counter("ceiling_l1_gbs_counter", "GB/s", "l1_peak_bytes_per_second", under=1e9, peak=True),
    _peak("ceiling_fp32_tflops_datasheet", "TFLOPS", "published peak of the CUDA cores of the part",
          lambda j: j.ceilings["datasheet"]["tflops"].get("fp32")),
    _counter("ceiling_fp32_tflops_counter", "TFLOPS", "fp32_flops_peak_per_second", under=1e12, peak=True),
    _tensor_peak("datasheet", "published dense peak of the part", lambda j: j.ceilings["datasheet"]["tflops"]),
    Column("ceiling_tensor_tflops_counter", "float", "TFLOPS",
           "tensor_flops_peak_per_second of the longest kernel that has one: the peak of the instruction that ran",
           lambda j: join.ratio(join.tensor_peak(j.kernels), 1e12), "ncu", keys=("tensor_flops_peak_per_second",)),
    _tensor_peak("measured", "the highest of a large matrix product and of the points on this machine",
                 lambda j: j.ceilings["measured"]["tensor_tflops"]),
    _quotient("gbs_fraction_datasheet", "of 1", "gbs", "ceiling_dram_gbs_datasheet"),
    _quotient("gbs_fraction_counter", "of 1", "dram_gbs_counted", "ceiling_dram_gbs_counter"),
    Column("gbs_fraction_measured", "float", "of 1",
           "gbs / ceiling_dram_gbs_measured; null above 1: not all of those bytes passed DRAM",
           lambda j: below_one(join.ratio(j.row["gbs"], j.row["ceiling_dram_gbs_measured"])),
           terms=("gbs", "ceiling_dram_gbs_measured")),
    _quotient("tflops_fraction_datasheet", "of 1", "tflops", "ceiling_tensor_tflops_datasheet"),
    _quotient("tflops_fraction_counter", "of 1", "tensor_tflops_counted", "ceiling_tensor_tflops_counter"),
    _quotient("tflops_fraction_measured", "of 1", "tflops", "ceiling_tensor_tflops_measured"),
    _quotient("ai_analytic", "FLOP/B", "flops_analytic", "bytes_analytic"),
    _quotient("ai_counted", "FLOP/B", "flops_counted", "bytes_dram_counted"),
    _quotient("ai_l2_counted", "FLOP/B", "flops_counted", "bytes_l2_counted"),
    _quotient("ai_l1_counted", "FLOP/B", "flops_counted", "bytes_l1_counted"),
    _counter("sol_sm_pct", "%", "sm_throughput_pct"),
    _counter("sol_memory_pct", "%", "memory_throughput_pct"),
    _counter("sol_dram_pct", "%", "dram_throughput_pct"),
    _counter("sol_l2_pct", "%", "l2_throughput_pct"),
    _counter("sol_l1_pct", "%", "l1_throughput_pct"),
    _counter("tensor_pipe_pct", "%", "tensor_pipe_pct", note=": of the cycles in which an SM worked"),
    _counter("tensor_pipe_elapsed_pct", "%", "tensor_pipe_elapsed_pct", note=": of all cycles"),
    _counter("issue_active", "/cycle", "issue_active"),
    _counter("achieved_occupancy_pct", "%", "achieved_occupancy_pct"),
    _counter("theoretical_occupancy_pct", "%", "theoretical_occupancy_pct"),
    _counter("sm_clock_ghz", "GHz", "sm_clock_hz", under=1e9),
    Column("kernel_count", "int", "", "kernels that ncu profiled in the point's range",
           lambda j: len(j.kernels) or None, "ncu"),
    _launch("main_kernel", "", lambda main: main["name"], formula="the longest of the point"),
    _launch("grid_size", "blocks", lambda main: main["grid_size"], formula="of the main kernel"),
    _launch("block_size", "threads", lambda main: main["block_size"], formula="of the main kernel"),
    _launch("registers", "/thread", lambda main: main["registers"], "registers"),
    _launch("smem_bytes", "B/block", lambda main: join.total((main["smem_static_bytes"], main["smem_dynamic_bytes"])),
            "smem_static", "smem_dynamic"),
    _counter("waves", "", "waves", note=": grid over what the GPU holds at once"),
    _stall("top_stall", "text", "", "the largest stall of the main kernel", 0, "reason"),
    _stall("top_stall_share", "float", "of 1", "its share of all stall cycles", 0, "share"),
    _stall("second_stall", "text", "", "the second largest", 1, "reason"),
    _stall("second_stall_share", "float", "of 1", "its share", 1, "share"),
    _unit(0, "busiest", "busiest"),
    _unit(0, "busiest", "busiest", "pct"),
    _unit(0, "busiest", "busiest", "counter"),
    _unit(1, "second", "second busiest"),
    _unit(1, "second", "second busiest", "pct"),
    _wait("blocks", "100 × (1 - waves), at most 100 - busiest_pct: slots that no block fills", ("busiest_pct",), "waves"),
    _wait("tail", "100 × (1 - sm_cycles_active / cycles_elapsed), less 100 × (1 - grid_size / sm_count) where waves is below 1, "
          "at most 100 - busiest_pct - blocks_pct",
          ("busiest_pct", "blocks_pct", "grid_size"), "sm_cycles_active", "cycles_elapsed", "waves", "sm_count"),
    _wait("latency", "100 - busiest_pct - blocks_pct - tail_pct: blocks are there and wait",
          ("busiest_pct", "blocks_pct", "tail_pct")),
    _verdict("limiter", "busiest_unit where busiest_pct is 60 or more, else the largest of blocks_pct, tail_pct, latency_pct",
             ("busiest_unit", "busiest_pct", "blocks_pct", "tail_pct", "latency_pct"), lambda found: found.name),
    _verdict("draw", "beside limiter: second_unit where second_pct is at least 60, within 3 of a busiest_pct over 80; or a wait",
             ("limiter", "second_unit", "busiest_pct", "second_pct"), lambda found: found.draw),
    _verdict("verdict", "bound (busiest_pct is at least 80), partly (at least 60: that unit, otherwise latency) or latency",
             ("busiest_pct",), lambda found: found.verdict),
    Column("main_pct", "float", "%", "of the sum of duration_ns, what the main kernel takes; null where it is the only one",
           lambda j: j.main_pct, "ncu", keys=("duration_ns",)),
    Column("merge_pct", "float", "%", "of the sum of duration_ns, what kernels take that merge what another one split",
           lambda j: j.merge_pct, "ncu", keys=("duration_ns",)),
    Column("others_pct", "float", "%", "of the sum of duration_ns, what kernels take beside the main one that are no merge",
           lambda j: j.others_pct, "ncu", keys=("duration_ns",)),
)
# fmt: on
BY_NAME = {column.name: column for column in COLUMNS}
