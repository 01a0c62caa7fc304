"""An Nsight Compute report → rows of kernels, metrics, stalls, rules and source lines.

The reader package raises next to nothing: an empty, foreign or truncated file, a failed kernel and
an absent counter all load quietly. What it hides is found here and named: in BadInput where the
file cannot be used, in a kernel's `problems` where the rest of the report can.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import prod
from pathlib import Path
from typing import Any

from ncuflow.io import BadInput, clean, opened, printable
from ncuflow.model import Row
from ncuflow.parsers import breakdown, demangled, lines, reader, registry
from ncuflow.parsers.chips import ANY, chip_of, unknown
from ncuflow.parsers.stalls import Unnamed, stalls_of, unnamed

# Kernels that one child reads at most: the reader takes one to two MB for each of a sweep, keeps them, and goes through the
# whole report once more for each further part.
PART = 96
# Short launches read a few tenths above 100 % where the counters of a ratio come from different replay passes.
MOST_PERCENT = 110.0
# What CUDA takes of a launch, by axis: blocks of a grid, threads of a block.
MOST_BLOCKS, MOST_THREADS = (2**31 - 1, 65535, 65535), (1024, 1024, 64)
MOST_STREAMS = 2**32
LONGEST_S = 3600.0  # a kernel that runs longer is a unit misread: ncu replays it some thirty times
DOUBLE = 4  # of IMetric.kind(), which most counters are
NO_NUMBER = "no usable number"
NO_UNIT = "no unit (NVIDIA's reader does not know this GPU: a newer ncu-report may)"
RULE_TYPES = {0: "none", 1: "ok", 2: "optimization", 3: "warning", 4: "error"}
SPEEDUP_TYPES = {1: "local", 2: "global"}
_NUMBER = re.compile(r"[\s\d.,+-]*")
_MARKUP = re.compile(r"@(?:url|section|metric):([^:@]*)(?::[^@]*)?@")
_MARKUP_PLACE = re.compile(r"@(?:sass|source):([^:@]*):([^@]*)@")
_MARKUP_SECTION = re.compile(r"@section:[^:@]*:([^@]*)@")


@dataclass
class Report:
    """One report, as rows of the tables of `ncuflow/parquet.py` (without `report` and `batch`).

    `problems` are the report's own; a kernel's are in its row.
    """

    file: str
    ncu_version: str | None = None
    ranges: int = 0
    kernels: list[Row] = field(default_factory=list)
    metrics: list[Row] = field(default_factory=list)
    stalls: list[Row] = field(default_factory=list)
    breakdown: list[Row] = field(default_factory=list)
    rules: list[Row] = field(default_factory=list)
    lines: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def devices(self) -> list[str]:
        """Distinct names of GPUs."""
        return list(dict.fromkeys(kernel["device"] for kernel in self.kernels if kernel["device"]))

    def add(self, part: Report) -> None:
        """Take over what a part of the same report holds."""
        self.ranges = part.ranges
        for name in ("kernels", "metrics", "stalls", "breakdown", "rules", "lines", "problems"):
            getattr(self, name).extend(getattr(part, name))


@dataclass(frozen=True)
class Request:
    """A report to read, plain or `.xz`.

    points: the ids that NVTX ranges may name; without them a kernel's point is its outermost range.
    with_lines: also the per-PC samples.
    """

    path: str | Path
    points: Collection[str] | None = None
    with_lines: bool = True

    @property
    def called(self) -> str:
        return printable(self.path)


def read(
    path: str | Path, points: Collection[str] | None = None, with_lines: bool = True
) -> Report:
    """Read one report; the arguments are those of `Request`.

    Raises BadInput where the file is not a complete report with at least one kernel.
    """
    return next(read_all([Request(path, points, with_lines)]))


def read_all(requests: Iterable[Request]) -> Iterator[Report]:
    """Reports in the order asked for. Children read parts of them, several at once.

    Raises BadInput at the first that cannot be used.
    """
    reader.preload()
    with contextlib.ExitStack() as unfinished:
        try:
            for part, found in reader.in_children(_read_part, _parts(requests, unfinished)):
                part.report.add(found)
                if part.last is None:
                    part.file.close()
                    _complete(part.report, part.results)
                    yield part.report
        except reader.ChildDied as death:
            what = "an Nsight Compute report that NVIDIA's reader crashes on"
            raise BadInput(death.task.request.called, what) from None


@dataclass(frozen=True)
class ReportPart:
    """Kernels `first` up to `last` (None: to the end) of a report; the `file` is open until then.

    `report` is where its rows belong, `results` the number of kernels that the framing announces,
    `context` the loaded report, where its parts share one.
    """

    request: Request
    plain: Path
    file: contextlib.ExitStack
    report: Report
    results: int
    first: int = 0
    last: int | None = None
    context: Any = None


def _parts(requests: Iterable[Request], unfinished: contextlib.ExitStack) -> Iterator[ReportPart]:
    for request in requests:
        file = unfinished.enter_context(contextlib.ExitStack())
        plain = file.enter_context(opened(request.path))
        framing = reader.check(plain, request.called)
        report = Report(request.called, framing.ncu_version)
        starts = list(range(0, framing.results, PART)) or [0]
        whole = ReportPart(request, plain, file, report, framing.results)
        context = _shared(whole) if len(starts) > 1 else None
        for first, last in zip(starts, [*starts[1:], None], strict=True):
            yield replace(whole, first=first, last=last, context=context)


def _shared(whole: ReportPart) -> Any:
    """The loaded report, for children to inherit: the reader goes through all of the file for its first kernel.

    A child tries that first, since some damage crashes the reader.
    """
    list(reader.in_children(_read_part, [replace(whole, last=1)]))
    with silenced():
        context = reader.load(whole.plain)
        next(reader.actions(context), None)
    return context


def _read_part(part: ReportPart) -> Report:
    called = part.request.called
    report = Report(called)
    listed = (
        lines.stored_listing(Path(part.request.path), part.plain) if part.request.with_lines else {}
    )
    with reading(called, lambda: part.first + len(report.kernels)):
        context = part.context or reader.load(part.plain)
        report.ranges = context.num_ranges()
        for index, action in reader.actions(context, part.first, part.last):
            add_kernel(report, Profiled(action, index), part.request, listed.get(index))
    return report


def raw_metrics(path: str | Path, index: int) -> dict[str, float | str | None]:
    """All that the report has of one launch, by NVIDIA's names; None where it names a metric and has no value of it.

    Raises BadInput where it cannot be read, or has no such launch.
    """
    called = printable(path)
    with opened(path) as plain:
        results = reader.check(plain, called).results
        if not 0 <= index < results:
            raise BadInput(called, f"no launch {index}; it has {results}")
        part = ReportPart(
            Request(path), plain, contextlib.ExitStack(), Report(called), results, index
        )
        try:
            ((_, found),) = reader.in_children(_raw_part, [part])
        except reader.ChildDied:
            what = "an Nsight Compute report that NVIDIA's reader crashes on"
            raise BadInput(called, what) from None
    return found


def _raw_part(part: ReportPart) -> dict[str, float | str | None]:
    with reading(part.report.file, lambda: part.first):
        _, action = next(reader.actions(reader.load(part.plain), part.first, None))
        kernel = Profiled(action, part.first)
        return {clean(name): _plain(kernel.raw(name)) for name in sorted(kernel.names)}


def _plain(value: Any) -> float | str | None:
    if isinstance(value, str):
        return clean(value)
    return value if finite(value) is not None else None


def _complete(report: Report, results: int) -> None:
    found = len(report.kernels)
    if found < results:
        what = f"{found} of {results} kernels can be read"
        raise BadInput(report.file, f"a damaged Nsight Compute report ({what})")
    if not found:
        raise BadInput(report.file, "an Nsight Compute report with no kernels")
    report.problems += unknown_chips(report)


def unknown_chips(report: Report) -> list[str]:
    """What to know of a report whose GPUs are of chips that the registry does not have; a kernel of no known GPU ran
    on that of the others."""
    found = dict.fromkeys(kernel["compute_capability"] for kernel in report.kernels)
    named = [capability for capability in found if capability] or list(found)
    return [said for capability in named if (said := unknown(capability))]


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """The reader's C++ side writes parse errors of its own to file descriptor 2; ours will do."""
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def reading(called: str, kernel: Callable[[], int] | None = None) -> Iterator[None]:
    """NVIDIA's reader at work, silenced: whatever its SWIG layer raises on damaged bytes is BadInput. kernel: which it is at."""
    try:
        with silenced():
            yield
    except MemoryError:
        raise
    except Exception:
        at = f" (kernel {kernel()})" if kernel else ""
        raise BadInput(called, f"a damaged Nsight Compute report{at}") from None


class Profiled:
    """One profiled kernel: counters by name with their silences resolved.

    `invalid` collects the counters that are there and hold no usable number: name -> why.
    """

    def __init__(self, action: Any, index: int) -> None:
        self.action = action
        self.index = index
        self.invalid: dict[str, str] = {}
        self._counters: dict[str, registry.Counter | None] = {}

    @cached_property
    def chip(self) -> str:
        """The registry's chip whose names this kernel's counters have; ANY where it has none such."""
        return chip_of(self.capability)

    @cached_property
    def capability(self) -> str | None:
        """The GPU's compute capability, "9.0"."""
        parts = (
            self.integer(f"device__attribute_compute_capability_{part}")
            for part in ("major", "minor")
        )
        found = [str(part) for part in parts if part is not None]
        return ".".join(found) if len(found) == 2 else None

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All names of metrics that the report has for this kernel."""
        return tuple(self.action.metric_names())

    @cached_property
    def unnamed(self) -> Unnamed:
        """Its counters of reasons without a name."""
        return unnamed(self.names)

    def counts_all(self, source: registry.MetricSource | registry.Ceiling, value: float) -> bool:
        """Whether what was read off the counters that are there is all work of the source's kind.

        ncu omits the counters that no section asks for. Zero is then not zero, and nothing is the whole where a counter
        beside those of the source, of another chip or of one newer than the registry, is above zero.
        """
        if all(self.number(name) is not None for name in source.work):
            return True
        kind = re.compile(source.kind)
        others = {name for name in self.names if kind.fullmatch(name)} - set(source.work)
        return value > 0 and not any(map(self.number, others))

    def metric(self, name: str) -> Any | None:
        """The IMetric of a name if the report holds a value for it."""
        found = self.action.metric_by_name(name)
        return found if found is not None and found.has_value() else None

    def raw(self, name: str) -> Any | None:
        """A value as it is (text stays text), or None."""
        found = self.metric(name)
        return None if found is None else found.value()

    def text(self, name: str) -> str | None:
        value = self.raw(name)
        return clean(value) if isinstance(value, str) and value else None

    def integer(self, name: str) -> int | None:
        """A whole number; launch metrics are floats in reports before 2024.3."""
        value = finite(self.raw(name))
        return int(value) if value is not None and value.is_integer() else None

    def bounded(self, name: str, most: float) -> int | None:
        """A whole number of a launch; one above what any GPU takes is none."""
        value = self.integer(name)
        if value is None or 0 <= value <= most:
            return value
        self.invalid[name] = f"more than {most:.12g}" if value > 0 else NO_NUMBER
        return None

    def counter(self, name: str) -> registry.Counter | None:
        """(value, power of ten of its unit), None if absent; NotANumber on a false number."""
        if name in self.invalid:
            raise registry.NotANumber(name)
        if name not in self._counters:
            self._counters[name] = self._counter(name)
        return self._counters[name]

    def number(self, name: str) -> float | None:
        """A counter's value as it is written; None if absent or a false number."""
        try:
            found = self.counter(name)
        except registry.NotANumber:
            return None
        return None if found is None else float(found[0])

    def _counter(self, name: str) -> registry.Counter | None:
        found = self.metric(name)
        if found is None:
            return None
        # value() makes a table of functions at each call.
        value = found.as_double() if found.kind() == DOUBLE else found.value()
        if value is None or isinstance(value, str):
            return None
        exponent, unit = registry.base_unit(found.unit())
        why = _unusable(name, value, exponent, unit)
        if why:
            self.invalid[name] = why
            raise registry.NotANumber(name)
        return value, exponent


def _unusable(name: str, value: float, exponent: int, unit: str) -> str | None:
    """Why a counter's value must not be used; None where it may be."""
    expected = registry.expected_unit(name)
    if not math.isfinite(value) or value < 0:
        return NO_NUMBER
    if expected and not unit:
        return NO_UNIT
    if expected and unit.partition("/")[0] != expected:
        return f"a unit other than {expected}"
    if expected == "%" and value > MOST_PERCENT:
        return f"more than {MOST_PERCENT:.0f} %"
    if name == DURATION and not 0 < value * 10.0**exponent <= LONGEST_S:
        return f"no time of 0 to {LONGEST_S:.0f} s"
    return None


# --- one kernel -------------------------------------------------------------------------------


def add_kernel(
    report: Report,
    kernel: Profiled,
    request: Request,
    listed: Mapping[int, lines.Instruction] | None,
) -> None:
    """Add the rows of one kernel; listed: its instructions as a listing has them."""
    nvtx = nvtx_ranges(kernel.action)
    point = _point(nvtx, request.points)
    key = {"point": point, "kernel": kernel.index}
    metrics = _metrics(kernel)
    stalls, parts = stalls_of(kernel), list(breakdown.rows(kernel))
    row = key | _identity(kernel, nvtx) | _launch(kernel)
    row["duration_ns"] = next((m["value"] for m in metrics if m["key"] == "duration_ns"), None)
    row["problems"] = "; ".join(problems_of(kernel, row, metrics, request.points)) or None
    report.kernels.append(row)
    report.metrics += [key | metric for metric in metrics]
    report.stalls += [key | stall for stall in stalls]
    report.breakdown += [key | part for part in parts]
    report.rules += [key | rule for rule in _rules(kernel.action)]
    if request.with_lines:
        report.lines += [
            key | line for line in lines.rows_of(kernel.action, listed, kernel.unnamed)
        ]


def nvtx_ranges(action: Any) -> list[str]:
    """NVTX ranges open at the launch, outermost first: push/pop, then start/end ranges."""
    state = action.nvtx_state()
    if state is None:
        return []
    domains = [state.domain_by_id(identifier) for identifier in state.domains()]
    names: list[str] = []
    for ranges in ("push_pop_ranges", "start_end_ranges"):
        for domain in domains:
            names += [clean(name) for name in getattr(domain, ranges)()]
    return names


def _point(nvtx: list[str], points: Collection[str] | None) -> str | None:
    if points is None:
        return nvtx[0] if nvtx else None
    return next((name for name in reversed(nvtx) if name in points), None)


def _identity(kernel: Profiled, nvtx: list[str]) -> Row:
    action, device = kernel.action, kernel.text("device__attribute_display_name")
    return {
        "name": demangled.cute_name(clean(action.name())),
        "demangled": clean(action.name(action.NameBase_DEMANGLED)) or None,
        "nvtx": "/".join(nvtx) or None,
        "nvtx_ranges": nvtx,
        "device": device if device and not _NUMBER.fullmatch(device) else None,
        "compute_capability": kernel.capability,
        "stream": kernel.bounded("launch__stream_id", MOST_STREAMS),
    }


def _launch(kernel: Profiled) -> Row:
    grid = _dim3(kernel, "launch__grid_dim_", MOST_BLOCKS)
    block = _dim3(kernel, "launch__block_dim_", MOST_THREADS)
    return {
        "grid": grid and ",".join(map(str, grid)),
        "block": block and ",".join(map(str, block)),
        "grid_size": kernel.bounded("launch__grid_size", prod(MOST_BLOCKS)) or (grid and prod(grid)),
        "block_size": kernel.bounded("launch__block_size", max(MOST_THREADS)) or (block and prod(block)),
        "registers": kernel.bounded("launch__registers_per_thread", registry.METRICS["registers"].most),
        "smem_static_bytes": kernel.bounded("launch__shared_mem_per_block_static", registry.METRICS["smem_static"].most),
        "smem_dynamic_bytes": kernel.bounded("launch__shared_mem_per_block_dynamic", registry.METRICS["smem_dynamic"].most),
        "passes": kernel.bounded("profiler__replayer_passes", registry.METRICS["passes"].most),
    }  # fmt: skip


def _dim3(kernel: Profiled, prefix: str, most: Sequence[int]) -> list[int] | None:
    parts = [kernel.bounded(prefix + axis, m) for axis, m in zip("xyz", most, strict=True)]
    known = [part for part in parts if part is not None]
    return known if len(known) == len(parts) else None


@cache
def _sources(chip: str) -> list[tuple[registry.Metric, int, registry.Sources]]:
    """Each metric with the power of ten of its unit, and what it may be read from on a chip."""
    return [(m, registry.base_unit(m.unit)[0], m.readable(chip)) for m in registry.METRICS.values()]


def _metrics(kernel: Profiled) -> list[Row]:
    """A row for each registry metric that the report holds; a value that is no number is null."""
    rows = []
    for metric, exponent, sources in _sources(kernel.chip):
        found = _first(sources, kernel, exponent)
        if found is not None:
            value, name = found
            if value is not None and 100 * value > metric.most * MOST_PERCENT:
                kernel.invalid[name] = f"more than {metric.most:g} {metric.unit}".rstrip()
                value = None
            if value is None:
                kernel.invalid.setdefault(name, NO_NUMBER)
            rows.append({"key": metric.key, "metric": name, "value": value, "unit": metric.unit})
    return rows


def _first(
    candidates: registry.Sources, kernel: Profiled, exponent: int
) -> tuple[float | None, str] | None:
    """The first source with a value; where none has and one was no number, (None, its name)."""
    invalid = None
    for source in candidates:
        try:
            found = source.read(kernel.counter, exponent)
        except registry.NotANumber as error:
            invalid = invalid or (None, str(error))
            continue
        if found is not None and source.kind and not kernel.counts_all(source, found[0]):
            continue
        if found is not None and math.isfinite(found[0]):
            return float(found[0]), found[1]
        if found is not None:
            invalid = invalid or (None, found[1])
    return invalid


# --- rules ------------------------------------------------------------------------------------


def _rules(action: Any) -> Iterator[Row]:
    """What ncu's own rules say; an empty message is left out."""
    for result in action.rule_results_as_dicts():
        message = result.get("rule_message") or {}
        parts = (message.get("title"), message.get("message"))
        text = ": ".join(plain_text(part) for part in parts if part)
        if not text:
            continue
        estimate = result.get("speedup_estimation") or {}
        kind = int(message.get("type", 0))
        yield {
            "rule": clean(result.get("rule_identifier") or result.get("name") or ""),
            "section": clean(result.get("section_identifier") or "") or None,
            "message": text if kind != 4 else text.splitlines()[0],
            "type": RULE_TYPES.get(kind, "none"),
            "speedup_pct": finite(estimate.get("speedup")),
            "speedup_type": SPEEDUP_TYPES.get(int(estimate.get("type", 0))),
        }


def plain_text(text: str) -> str:
    """Rule text without ncu's markup: "@section:LaunchStats:Launch Statistics@" is its title, and
    "@sass:Line 12:0x1454@" is "Line 12 (0x1454)"."""
    text = _MARKUP_PLACE.sub(r"\1 (\2)", _MARKUP_SECTION.sub(r"\1", text))
    return clean(_MARKUP.sub(r"\1", text)).strip()


def finite(value: Any) -> float | None:
    """A number that is one."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


# --- what is wrong with the data of one kernel -----------------------------------------------

DURATION = "gpu__time_duration.sum"
FAILED = "profiling of this kernel failed"
TENSOR_PIPE = ("tensor_pipe_pct", "tensor_pipe_elapsed_pct")
TENSOR_WORK = 1.0  # per cent: the pipe takes some FP16 instructions of other kernels too
TENSOR_BUSY = 10.0  # per cent: it takes no more of those
# The passes of a launch differ by a fifth at most (recorded reports, from 1.8 µs on); what is misread does by 1000.
MOST_APART = 10.0


def problems_of(
    kernel: Any, row: Row, metrics: Sequence[Row], points: Collection[str] | None
) -> Iterator[str]:
    """Of a `Profiled` of the reader with its row and its metrics; points: the ids that it may be of."""
    if row["duration_ns"] is None:
        # Of a kernel that failed the time is there, and no number; an export may just not have it.
        failed = row["grid_size"] is None and DURATION in kernel.invalid
        yield f"{FAILED}: no duration and no launch metrics" if failed else "no duration"
    if row["device"] is None:
        yield "no device name"
    for why in dict.fromkeys(kernel.invalid.values()):
        named = sorted(name for name, reason in kernel.invalid.items() if reason == why)
        more = f" and {len(named) - 3} more" if len(named) > 3 else ""
        yield f"{why} in {', '.join(named[:3])}{more}"
    if points is not None and row["point"] is None:
        yield "in no NVTX range of the plan"
    found = {metric["key"]: metric["value"] for metric in metrics}
    yield from _uncounted(kernel, found)
    yield from _apart(found)


def _uncounted(kernel: Any, found: Row) -> Iterator[str]:
    """That the tensor pipe worked, and the report does not hold what counts its operations."""
    busy = max(filter(None, (found.get(key) for key in TENSOR_PIPE)), default=0.0)
    counted = found.keys() & {"tensor_flops", "tensor_int_ops"}
    # Zero FLOPs of a busy pipe leave integer operations, which a sweep does not always count.
    if busy >= TENSOR_BUSY and counted == {"tensor_flops"} and not found["tensor_flops"]:
        counted = set()
    if busy >= TENSOR_WORK and not counted:
        hint = (
            f': ncu --metrics "$(ncuflow static counters {kernel.chip})"'
            if kernel.chip != ANY
            else ""
        )
        yield f"tensor operations are not counted, or not all{hint}"


def _apart(found: Row) -> Iterator[str]:
    """That time, clock and cycles cannot all be right."""
    ns, clock, cycles = (found.get(key) for key in ("duration_ns", "sm_clock_hz", "cycles_elapsed"))
    if (
        ns
        and clock
        and cycles
        and not 1 / MOST_APART < (times := ns * 1e-9 * clock / cycles) < MOST_APART
    ):
        yield f"duration × SM clock is {times:.3g} times the elapsed cycles: one of the three is wrong"
