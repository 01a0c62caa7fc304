"""The records of a view: what is shown of reports of any program, and of each of its kernels.

A value that a report does not hold is None. Percentages are per cent, shares and fractions of 1, times ns.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ncuflow.compare.records import Comparison
from ncuflow.explain.record import Explanation
from ncuflow.findings import limiter, waits
from ncuflow.findings.limiter import Limiter
from ncuflow.model import Kernel, LineRow, Row
from ncuflow.parsers.detail import Detail, SampledInstruction


class NextBlock(NamedTuple):
    """What one resource would have to be for an SM to hold a block more: at most ``most``, where it is ``now``."""

    resource: str
    now: int
    most: int


@dataclass(frozen=True)
class Occupancy:
    """Blocks of a launch that an SM holds at once, by resource, and what runs out first.

    needs: for a block more; of several resources that run out together each is needed.
    """

    blocks: int
    resources: tuple[str, ...]
    limits: dict[str, int]
    theoretical_pct: float | None
    achieved_pct: float | None
    needs: tuple[NextBlock, ...]


class Roof(NamedTuple):
    """A ceiling of a launch at its own clock: bytes/s of a memory level, FLOP/s of a kind of arithmetic."""

    name: str
    per_second: float


@dataclass(frozen=True)
class Roofline:
    """Counted work and traffic of a launch: FLOP by kind, bytes by memory level, and what bounds each."""

    flops: dict[str, float]
    bytes: dict[str, float]
    compute: tuple[Roof, ...]
    memory: tuple[Roof, ...]


@dataclass(frozen=True)
class LaunchView:
    """One profiled launch.

    kernel: its row with metrics by registry key, stalls, breakdown and rules; limiter: what limits it.
    """

    kernel: Kernel
    limiter: Limiter
    tree: waits.Tree | None
    occupancy: Occupancy | None
    roofline: Roofline | None

    @property
    def index(self) -> int:
        return self.kernel["kernel"]

    @property
    def row(self) -> Row:
        """The columns of a measurement row that say its verdict."""
        return limiter.columns(self.limiter, self.kernel["metrics"].get("waves"))

    @property
    def words(self) -> str | None:
        """The verdict as pages say it; None where nothing is known."""
        return limiter.words(self.row)


@dataclass(frozen=True)
class Distribution:
    """Values of several launches in ns: how many are known, their quartiles, and their sum."""

    n: int
    least: float
    q25: float
    median: float
    q75: float
    most: float
    total: float


@dataclass(frozen=True)
class KernelView:
    """All launches of one kernel name, in launch order; longest: the place of the one that is shown first."""

    name: str
    demangled: str | None
    launches: tuple[LaunchView, ...]
    longest: int
    duration: Distribution | None

    @property
    def longest_launch(self) -> LaunchView:
        """The launch that stands for all."""
        return self.launches[self.longest]


class Flow(NamedTuple):
    """Traffic of the memory chart from one box to another: bytes or requests, and per cent of the link's peak."""

    source: str
    target: str
    label: str
    value: float | None
    unit: str
    pct: float | None


@dataclass(frozen=True)
class MemoryChart:
    """Boxes of the memory chart with their facts (hit rates, sizes), and the flows between them."""

    boxes: dict[str, list[tuple[str, float, str]]]
    flows: list[Flow]


class MemoryRow(NamedTuple):
    """A kind of access, and its value in each column."""

    label: str
    values: tuple[float | None, ...]


class MemoryTable(NamedTuple):
    """A level of memory: its columns with their units, and a row for each kind of access."""

    name: str
    columns: list[tuple[str, str]]
    rows: list[MemoryRow]


class Spread(NamedTuple):
    """A counter over the instances of its unit: SMs, slices of L2, channels of DRAM."""

    counter: str
    unit: str
    mean: float
    least: float
    most: float


@dataclass(frozen=True)
class Code:
    """The instructions of a kernel with their samples, and the lines that they come from.

    files: as the compiler knew them; sources: lines by place in files, where the report embeds them or a folder has
    them; found: of each such file, "report" or "folder".
    """

    instructions: list[SampledInstruction]
    samples: list[LineRow]
    files: list[str]
    sources: dict[int, list[str]]
    found: dict[int, str]


@dataclass(frozen=True)
class LaunchDetail:
    """A kernel looked at closely: one launch with all that its report holds.

    detail: as it was read; lacks: what the report does not hold, and what would bring it.
    """

    kernel: int
    memory: MemoryChart | None
    tables: list[MemoryTable]
    pipes: list[tuple[str, float]]
    opcodes: list[tuple[str, float]]
    spread: list[Spread]
    code: Code | None
    detail: Detail


class MissingMetric(NamedTuple):
    """What no kernel of a report holds, and the option of ncu or of the compiler that brings it."""

    what: str
    option: str


@dataclass(frozen=True)
class NvtxNode:
    """An NVTX range with what ran within it: launches or operations, and their time in ns."""

    name: str
    count: int
    total_ns: float
    kernels: dict[str, float]
    children: list[NvtxNode] = field(default_factory=list)


@dataclass(frozen=True)
class ReportView:
    """A report of ncu. kernels: by name, the longest total first; explained: as ``ncuflow explain`` has it, and close:
    all that the report holds, of the longest launch of the first of them, by its index."""

    file: str
    tool: str
    devices: list[str]
    version: str | None
    problems: list[str]
    kernels: list[KernelView]
    explained: dict[int, Explanation]
    details: dict[int, LaunchDetail]
    nvtx: list[NvtxNode]
    missing: list[MissingMetric]


@dataclass(frozen=True)
class TraceView:
    """A trace of nsys. summary: a row per kind and name; operations and ranges: rows of its tables."""

    file: str
    devices: list[str]
    version: str | None
    problems: list[str]
    span_ns: int | None
    summary: list[Row]
    operations: list[Row]
    ranges: list[Row]
    nvtx: list[NvtxNode]


@dataclass(frozen=True)
class ComparedReports:
    """A further report beside the first; found is None where nothing can be compared, and why says so."""

    head: int
    found: Comparison | None
    why: str | None = None


@dataclass(frozen=True)
class View:
    """The files of one page; comparisons: of the first report, the baseline, with each further one."""

    reports: list[ReportView]
    traces: list[TraceView]
    comparisons: list[ComparedReports]


MOST_NODES = 500  # of a level: a program may name each of its steps anew


def tree(launches: Iterable[tuple[Sequence[str], str | None, float | None]]) -> list[NvtxNode]:
    """The ranges of (names of ranges from the outermost on, what ran, its ns) with what ran within them.

    The longest first; empty where nothing stood in a range. A time that is not known adds none.
    """
    return _level([(list(names), kernel or "–", ns) for names, kernel, ns in launches])


def _level(rows: list[tuple[list[str], str, float | None]]) -> list[NvtxNode]:
    found: dict[str, list[tuple[list[str], str, float | None]]] = {}
    for (first, *rest), kernel, ns in (row for row in rows if row[0]):
        found.setdefault(first, []).append((rest, kernel, ns))
    nodes = [_node(name, below) for name, below in found.items()]
    nodes.sort(key=lambda node: -node.total_ns)
    return nodes[:MOST_NODES]


def _node(name: str, below: list[tuple[list[str], str, float | None]]) -> NvtxNode:
    kernels: dict[str, float] = {}
    for _, kernel, ns in below:
        kernels[kernel] = kernels.get(kernel, 0.0) + (ns or 0.0)
    ordered = dict(sorted(kernels.items(), key=lambda item: -item[1]))
    node = NvtxNode(name, len(below), sum(ordered.values()), ordered)
    return replace(node, children=_level(below))
