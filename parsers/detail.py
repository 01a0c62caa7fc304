"""All that a report holds of single kernels beyond the registry: every counter, curves, opcodes, instructions, sources.

It is read of the few kernels that are looked at closely: a kernel has up to two thousand counters, and the
disassembler takes a third of a millisecond for each instruction.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, cast

from ncuflow.io import clean, opened, printable
from ncuflow.model import LineRow
from ncuflow.parsers import lines, ncu, reader
from ncuflow.parsers.registry import base_unit, scale

# Curve of the occupancy calculator -> what it is over; its values are warps of an SM.
CURVES = {
    "registers": "launch__occupancy_per_register_count",
    "shared memory": "launch__occupancy_per_shared_mem_size",
    "block size": "launch__occupancy_per_block_size",
}
RESERVED = "launch__shared_mem_per_block_driver"  # bytes of each block
OPCODES = "sass__inst_executed_per_opcode"
EXECUTED, THREADS = "inst_executed", "thread_inst_executed"
# What each instruction asks of memory, and what the same bytes would at least take; as versions of ncu call the two.
SECTORS = (
    ("memory_l2_theoretical_sectors_global", "memory_l2_theoretical_sectors_global_ideal"),
    ("memory_l2_sectors_global", "memory_l2_sectors_global_ideal"),
    ("memory_l2_transactions_global", "memory_ideal_l2_transactions_global"),
)
WAVEFRONTS = (
    ("memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal"),
    ("memory_l1_sectors_shared", "memory_l1_sectors_shared_ideal"),
    ("memory_shared_transactions", "memory_ideal_shared_transactions"),
)
SAMPLED = "pmsampling:"
# What the report keeps beside the counters: lists of names, and facts of the machine that no kernel changes.
NOT_COUNTERS = ("group:", "breakdown:", "device__attribute", "numa__", "nvlink__", SAMPLED)


class Counter(NamedTuple):
    """A counter in the base of its unit."""

    value: float
    unit: str


class Access(NamedTuple):
    """What an instruction asked of a memory in all, and the least that the same bytes take."""

    asked: int
    ideal: int


class SampledInstruction(NamedTuple):
    """One instruction. pc: bytes from the kernel's first; file: place in ``Detail.files``; executed: by warps, and
    by threads; sectors: of 32 bytes of global memory, at L2; wavefronts: of shared memory. None where the report does
    not count it, or the instruction has none."""

    pc: int
    sass: str | None
    ptx: str | None
    file: int | None
    line: int | None
    executed: int | None
    threads: int | None
    sectors: Access | None = None
    wavefronts: Access | None = None


@dataclass
class Detail:
    """What a report holds of one kernel.

    sections: NVIDIA's names of those that were collected; opcodes: instructions that warps executed, by opcode;
    curves: (x, warps of an SM) by what the occupancy depends on; series: counters sampled over the run, as
    (ns from the first sample, value) in a unit; files: as the compiler knew them; sources: of those the text, where
    the report embeds it; samples: as the table ``lines``.
    """

    sections: list[str] = field(default_factory=list)
    counters: dict[str, Counter] = field(default_factory=dict)
    opcodes: dict[str, float] = field(default_factory=dict)
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    series: dict[str, tuple[str, list[tuple[int, float]]]] = field(default_factory=dict)
    instructions: list[SampledInstruction] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    sources: dict[int, str] = field(default_factory=dict)
    samples: list[LineRow] = field(default_factory=list)


def read(path: str | Path, kernels: Collection[int]) -> dict[int, Detail]:
    """Kernel index -> what the report, plain or ``.xz``, holds of it. Raises BadInput where it cannot be read."""
    with opened(path) as plain:
        listed = lines.stored_listing(Path(path), plain)
        work = _Work(plain, printable(path), tuple(sorted(kernels)), listed)
        ((_, found),) = reader.in_children(_read, [work])
    return found


class _Work(NamedTuple):
    plain: Path
    called: str
    kernels: tuple[int, ...]
    listed: lines.Listings


def _read(work: _Work) -> dict[int, Detail]:
    with ncu.reading(work.called):
        context = reader.load(work.plain)
        return {
            index: read_detail(ncu.Profiled(action, index), work.listed.get(index, {}))
            for wanted in work.kernels
            for index, action in reader.actions(context, wanted, wanted + 1)
        }


def read_detail(kernel: ncu.Profiled, listed: Mapping[int, lines.Instruction]) -> Detail:
    """What a report holds of a kernel; listed: its instructions as a listing has them."""
    action = kernel.action
    found = Detail(
        sections=[clean(section.name()) for section in action.sections()],
        counters=dict(_counters(kernel)),
        opcodes={str(clean(name)): value for name, value in _instances(action, OPCODES)},
        curves=dict(_curves(kernel)),
        series=dict(_series(kernel)),
        samples=cast(list[LineRow], list(lines.rows_of(action, listed))),
    )
    _add_instructions(found, action, listed)
    return found


def _counters(kernel: ncu.Profiled) -> Iterator[tuple[str, Counter]]:
    for name in kernel.names:
        if name.startswith(NOT_COUNTERS):
            continue
        value = kernel.number(name)
        if value is not None:
            exponent, unit = base_unit(kernel.action.metric_by_name(name).unit())
            yield clean(name), Counter(scale(value, exponent), clean(unit))


def _curves(kernel: ncu.Profiled) -> Iterator[tuple[str, list[tuple[int, float]]]]:
    for of, name in CURVES.items():
        if curve := _instances(kernel.action, name):
            reserved = kernel.integer(RESERVED) if of == "shared memory" else None
            yield of, _own(curve, reserved) if reserved else curve


def _own(curve: list[tuple[int, float]], reserved: int) -> list[tuple[int, float]]:
    """The curve over the shared memory that a program asks for.

    NVIDIA's divides an SM's memory by x as if the driver's part of a block were within it; only its end, the largest
    block, is without that part.
    """
    fits = dict(curve)
    return [(x, fits.get(x + reserved) or warps) for x, warps in curve]


def _instances(action: Any, name: str) -> list[tuple[Any, float]]:
    """(what it is of, value) of each instance of a metric; none where the report has no instances of it."""
    metric = action.metric_by_name(name)
    if metric is None or not metric.has_correlation_ids():
        return []
    ids = metric.correlation_ids()
    found = [(ids.value(at), ncu.finite(metric.value(at))) for at in range(metric.num_instances())]
    return [(of, value) for of, value in found if value is not None]


def _series(kernel: ncu.Profiled) -> Iterator[tuple[str, tuple[str, list[tuple[int, float]]]]]:
    for name in kernel.names:
        if name.startswith(SAMPLED) and (found := _instances(kernel.action, name)):
            exponent, unit = base_unit(kernel.action.metric_by_name(name).unit())
            start = min(at for at, _ in found)
            values = [(int(at - start), scale(value, exponent)) for at, value in found]
            yield clean(name.removeprefix(SAMPLED)), (clean(unit), values)


def _accesses(action: Any, names: Sequence[tuple[str, str]]) -> dict[int, Access]:
    """What instructions asked of a memory by address, under the first names that the report has."""
    for asked, ideal in names:
        least = dict(_instances(action, ideal))
        if found := {
            int(pc): Access(int(n), int(least[pc]))
            for pc, n in _instances(action, asked)
            if pc in least
        }:
            return found
    return {}


def _add_instructions(found: Detail, action: Any, listed: Mapping[int, lines.Instruction]) -> None:
    """Every instruction that the report counts or sampled, by address."""
    executed, threads = (
        {int(pc): int(n) for pc, n in _instances(action, name)} for name in (EXECUTED, THREADS)
    )
    sectors, wavefronts = (_accesses(action, names) for names in (SECTORS, WAVEFRONTS))
    start = lines.start(action)
    sampled = {row["pc"] + start for row in found.samples}
    places: dict[str, int] = defaultdict(lambda: len(places))
    embedded = dict(action.source_files() or {})
    for pc in sorted(executed.keys() | sampled):
        sass, file, line = listed.get(pc - start) or (None, None, None)
        info = action.source_info(pc)
        if info is not None and info.file_name():
            file, line = info.file_name(), info.line()
        text = sass or lines.disassembled(action, pc)
        ptx = (action.ptx_by_pc(pc) or "").strip()
        at = places[file] if file else None
        found.instructions.append(
            SampledInstruction(
                pc - start,
                clean(text) or None,
                clean(ptx) or None,
                at,
                line,
                executed.get(pc),
                threads.get(pc),
                sectors.get(pc),
                wavefronts.get(pc),
            )
        )
    found.files = [clean(name) for name in places]
    found.sources = {at: clean(embedded[name]) for name, at in places.items() if embedded.get(name)}
