"""What a comparison says, as records: ``compare.json`` is written of these and read back into them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ncuflow.compare.differences import Difference
from ncuflow.findings.statistics import FASTER, SLOWER, Estimate, Floor
from ncuflow.io import BadInput, read_json

Value = bool | int | float | str | list[Any] | None
Interval = tuple[float, float]
CHANGED = (SLOWER, FASTER)


@dataclass(frozen=True)
class Settings:
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
class Part:
    """One term of a kernel's change: both values in ``unit``, and what it did to the duration.

    kind: instructions | stall | scheduler | active warps | SM clock | SMs | idle SMs
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
    execution, copy_added, copy_removed, copy_changed, gap, host_launch, plan.
    """

    kind: str
    what: str
    base: Value
    head: Value
    delta_us: float | None
    evidence: str
    share_of_delta: float | None = None
    parts: list[Part] = field(default_factory=list)
    facts: list[Fact] = field(default_factory=list)


@dataclass(frozen=True)
class Change:
    """One metric of one point on both sides: times in µs, fractions of 1.

    interval: of the change, None where a side has one value; p, q: None where nothing was tested;
    floor: the A/A floor that the change was held against; basis: runs | samples | none; runs,
    samples: how many, of base and head; unexplained: µs that the causes leave, None where none
    were looked for.
    """

    base: float
    head: float
    delta: float
    relative: float
    interval: Interval | None
    interval_relative: Interval | None
    verdict: str
    p: float | None
    q: float | None
    floor: float | None
    basis: str
    runs: tuple[int, int]
    samples: tuple[int, int]
    causes: list[Cause]
    unexplained: float | None

    @classmethod
    def of(cls, e: Estimate) -> Change:
        """An estimate as a change without causes."""
        relative = None if e.low is None or e.high is None else (e.low, e.high)
        return cls(
            base=e.base,
            head=e.head,
            delta=e.head - e.base,
            relative=e.relative,
            interval=relative and (e.base * relative[0], e.base * relative[1]),
            interval_relative=relative,
            verdict=e.verdict,
            p=e.p,
            q=e.q,
            floor=e.floor,
            basis=e.basis,
            runs=e.runs,
            samples=e.samples,
            causes=[],
            unexplained=None,
        )

    @property
    def changed(self) -> bool:
        """Slower or faster."""
        return self.verdict in CHANGED


@dataclass(frozen=True, kw_only=True)
class Point(Change):
    """A point: the metric that leads it spelled out, and all its metrics."""

    id: str
    target: str
    metric: str
    metrics: dict[str, Change]


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
    """Two sides, what differs between them, and the change of every point that both have."""

    schema: int
    base: Named
    head: Named
    differences: list[Difference]
    mixed_causes: bool
    settings: Settings
    statistics: Statistics
    summary: dict[str, int]
    points: list[Point]
    only_base: list[str]
    only_head: list[str]
    not_compared: list[NotCompared]

    @classmethod
    def of(
        cls,
        sides: tuple[Named, Named],
        differences: list[Difference],
        settings: Settings,
        points: list[Point],
        statistics: Statistics,
        only: tuple[list[str], list[str]],
        not_compared: Iterable[NotCompared] = (),
    ) -> Comparison:
        """A comparison with what follows from its parts. only: ids in the base, in the head alone."""
        return cls(
            schema=1,
            base=sides[0],
            head=sides[1],
            differences=differences,
            mixed_causes=sum(difference.cause for difference in differences) > 1,
            settings=settings,
            statistics=statistics,
            summary={"points": len(points)} | Counter(point.verdict for point in points),
            points=points,
            only_base=only[0],
            only_head=only[1],
            not_compared=list(not_compared),
        )

    @property
    def changed(self) -> list[Point]:
        """Points that changed: slow-downs first, the largest relative change first."""
        found = [point for point in self.points if point.changed]
        return sorted(found, key=lambda p: (p.verdict != SLOWER, -abs(p.relative)))

    @property
    def causes(self) -> list[str]:
        """What differs besides the kernels and can move a kernel's time."""
        return [difference.axis for difference in self.differences if difference.cause]


def read(path: Path) -> Comparison:
    """The comparison of a ``compare.json``. Raises BadInput where the file is none."""
    try:
        return TypeAdapter(Comparison).validate_python(read_json(path))
    except ValidationError:
        raise BadInput(path, "not the JSON of a comparison") from None
