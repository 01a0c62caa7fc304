"""What a comparison says, as records: ``compare.json`` is written of these and read back into them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncuflow.compare.differences import Difference
from ncuflow.compare.gpus import TwoGpus
from ncuflow.findings.statistics import FASTER, SLOWER, Estimate, Floor
from ncuflow.io import read_as

Value = bool | int | float | str | list[Any] | None


@dataclass(frozen=True)
class Thresholds:
    """alpha: significance after the correction; threshold: changes below it do not matter (of 1);
    floor: A/A floor known from elsewhere, used where the evidence has no repeats."""

    alpha: float = 0.05
    threshold: float = 0.03
    floor: float | None = None


@dataclass(frozen=True)
class Fact:
    """Something that differs, with both values in ``unit``."""

    kind: str
    what: str
    base: Value
    head: Value
    unit: str = ""


@dataclass(frozen=True)
class ChangeTerm:
    """One term of a kernel's change: both values in ``unit``, and what it did to the duration.

    kind: instructions | stall | scheduler | active warps | SM clock (of the timing run) | SMs | idle SMs | DRAM bandwidth |
    DRAM bytes | DRAM share | passes (the counters of different replay passes disagree by this: a term of the sum, no cause)
    """

    kind: str
    what: str
    base: float | None
    head: float | None
    unit: str
    delta_us: float
    share_of_cause: float | None = None


@dataclass(frozen=True)
class Cause:
    """One explanation. ``delta_us`` is what it adds to the time, ``share_of_delta`` that over Δ.

    kind: kernel_added, kernel_removed, kernel_replaced, template, code, launch_shape, clock,
    execution, gpu, other_work, copy_added, copy_removed, copy_changed, gap.
    share_of_delta: None where the causes together are more than the timed change: no share of it is theirs.
    """

    kind: str
    what: str
    base: Value
    head: Value
    delta_us: float | None
    evidence: str
    share_of_delta: float | None = None
    parts: list[ChangeTerm] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)


@dataclass(frozen=True)
class MetricChange(Estimate):
    """One metric of one point on both sides, with what explains it.

    unexplained: µs that the causes leave, None where none were looked for; remainder: why they leave them.
    """

    causes: list[Cause] = field(default_factory=list)
    unexplained: float | None = None
    remainder: str = ""

    @property
    def changed(self) -> bool:
        """Slower or faster."""
        return self.verdict in (SLOWER, FASTER)

    @property
    def delta(self) -> float:
        """Head minus base, µs."""
        return self.head - self.base

    @property
    def interval(self) -> tuple[float, float] | None:
        """Of the change, as fractions of the base; None where a side has one value."""
        return None if self.low is None or self.high is None else (self.low, self.high)


@dataclass(frozen=True, kw_only=True)
class PointChange(MetricChange):
    """A point: the metric that leads it spelled out, and all its metrics."""

    id: str
    target: str
    metric: str
    metrics: dict[str, MetricChange]


@dataclass(frozen=True)
class Named:
    """A side: its name and where it was measured."""

    name: str
    provenance: Mapping[str, Any]


@dataclass(frozen=True)
class NotCompared:
    """A point of both sides that was not right, or not timed, on one of them."""

    id: str
    base: str
    head: str


@dataclass(frozen=True)
class Statistics:
    """tests: how many were corrected for; floors: A/A floors by metric; notes: what cannot be known."""

    tests: int
    floors: dict[str, Floor]
    notes: list[str]
    correction: str = "Benjamini-Hochberg over all points and metrics"


@dataclass(frozen=True)
class Comparison:
    """Two sides, what differs between them, and the change of every point that both have.

    gpus: what the second GPU changes, None where both are of one.
    """

    base: Named
    head: Named
    differences: list[Difference]
    settings: Thresholds
    statistics: Statistics
    points: list[PointChange]
    only_base: list[str]
    only_head: list[str]
    not_compared: list[NotCompared] = field(default_factory=list)
    gpus: TwoGpus | None = None
    schema: int = 2

    @property
    def mixed_causes(self) -> bool:
        """Several things differ that can move a kernel's time: they cannot be told apart."""
        return len(self.causes) > 1

    @property
    def changed(self) -> list[PointChange]:
        """Points that changed: slow-downs first, the largest relative change first."""
        found = [point for point in self.points if point.changed]
        return sorted(found, key=lambda p: (p.verdict != SLOWER, -abs(p.relative)))

    @property
    def causes(self) -> list[str]:
        """What differs besides the kernels and can move a kernel's time."""
        return [difference.axis for difference in self.differences if difference.cause]


def read(path: Path) -> Comparison:
    """The comparison of a ``compare.json``. Raises BadInput where the file is none."""
    return read_as(path, Comparison, "the JSON of a comparison")
