"""What a comparison says, as records: ``compare.json`` is written of these and read back into them; its JSON output; what
differs between the sides besides their kernels, and what a second GPU changes: the rates of both, and whether the points of each
limiter follow the one they should; and what became of a change over comparisons in a row.
"""

import shlex
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import copysign, log, log1p
from pathlib import Path
from statistics import median, quantiles
from typing import Any, Literal

from pydantic import ConfigDict, Field

from ncuflow.answer import Answer, AnswerColumn, AnswerPart, Displayed, cut
from ncuflow.findings.limiter import BOUND, kind
from ncuflow.findings.statistics import FASTER, SLOWER, Estimate, Floor, beyond
from ncuflow.io import read_as
from ncuflow.model import CONDITIONS, Measurement

CLOCK_DIFFERS = 0.02


@dataclass(frozen=True)
class Difference:
    """One axis with both values; ``cause`` says that it can move a kernel's time."""

    axis: str
    base: str | None
    head: str | None
    cause: bool


def of_sides(
    base: Mapping[str, Any],
    head: Mapping[str, Any],
    pairs: Iterable[tuple[Measurement, Measurement]],
) -> list[Difference]:
    """Differences of two provenances, then of the SM clock that the points of both ran at.

    pairs: measurement rows of points that ran the same kernels on both. An axis that one side does not know is a difference
    only where the other side knows it; what parts of one name have, only where both know it.
    """
    own = base.get("gpu") == head.get("gpu")  # another GPU's clock is its own
    axes = [
        Difference(condition.label, _text(before), _text(after), condition.moves)
        for key, condition in CONDITIONS.items()
        if (before := base.get(key)) != (after := head.get(key))
        and (not condition.of_one_gpu or (own and before and after))
    ]
    axes.sort(key=lambda difference: not difference.cause)
    causes = sum(difference.cause for difference in axes)
    both = list(pairs)
    timed = _clock(both, "clock_cold_mhz", 1e3, "SM clock of the timing run (median)", own)
    counted = _clock(both, "sm_clock_ghz", 1.0, "SM clock under ncu (median)", cause=False)
    return [*axes[:causes], *timed, *counted, *axes[causes:]]


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _clock(
    pairs: Iterable[tuple[Measurement, Measurement]],
    key: str,
    per_ghz: float,
    axis: str,
    cause: bool,
) -> list[Difference]:
    """An observed SM clock, if its median over the points moved by more than 2 %."""
    known = [(a.get(key), b.get(key)) for a, b in pairs]
    clocks = [(a / per_ghz, b / per_ghz) for a, b in known if a and b]
    if not clocks or abs(median(b / a for a, b in clocks) - 1) <= CLOCK_DIFFERS:
        return []
    before, after = (f"{median(side):.3f} GHz" for side in zip(*clocks, strict=True))
    return [Difference(axis, before, after, cause)]


# --- two GPUs --------------------------------------------------------------------------------

Pairs = Sequence[tuple[Measurement, Measurement]]
FEWEST = 2  # points of a group, below which it is not summed up
BANDWIDTH, CLOCK = "DRAM bandwidth, published", "SMs and the clock of their timing run"


@dataclass(frozen=True)
class GpuRate:
    """Something that each GPU has so much of."""

    what: str
    unit: str
    base: float
    head: float

    @property
    def ratio(self) -> float:
        """The second by the first."""
        return self.head / self.base


@dataclass(frozen=True)
class VerdictGroup:
    """Points of one verdict on the first GPU and one on the second: limiter and then, without their figures.

    follows: the rate whose ratio their times should have, inverted, None where no one unit bounds them.

    low, high: quartiles of the ratio of their times, the second's by the first's.
    """

    limiter: str
    then: str
    points: int
    median: float
    low: float
    high: float
    follows: str | None
    expected: float | None


@dataclass(frozen=True)
class TwoGpus:
    """The rates of two GPUs, and the ratio of times by what limits the first."""

    rates: list[GpuRate] = field(default_factory=list)
    groups: list[VerdictGroup] = field(default_factory=list)


def two_gpus(base: Mapping[str, Any], head: Mapping[str, Any], pairs: Pairs) -> TwoGpus | None:
    """What is known of two GPUs by their provenances and the rows of the same points; None for one GPU."""
    if base.get("gpu") == head.get("gpu") or None in (base.get("gpu"), head.get("gpu")):
        return None
    rates = [rate for rate in _rates(base, head, pairs) if rate is not None]
    return TwoGpus(rates, list(_groups(pairs, {rate.what: rate.ratio for rate in rates})))


def _rates(
    base: Mapping[str, Any], head: Mapping[str, Any], pairs: Pairs
) -> Iterable[GpuRate | None]:
    def of_rows(name: str) -> list[float | None]:
        return [_median(row.get(name) for row in side) for side in zip(*pairs, strict=True)]

    clocks = [mhz and mhz / 1e3 for mhz in of_rows("clock_cold_mhz") or (None, None)]
    sms = [base.get("sm_count"), head.get("sm_count")]
    l2 = [side["l2_bytes"] / 1e6 if side.get("l2_bytes") else None for side in (base, head)]
    per_second = [n * ghz if n and ghz else None for n, ghz in zip(sms, clocks, strict=True)]
    reached, tensor = "ceiling_dram_gbs_measured", "ceiling_tensor_tflops_datasheet"
    # Each target's ceiling is the highest that its own points reached, too.
    highest = [
        max(filter(None, (row.get(reached) for row in side)), default=None)
        for side in zip(*pairs, strict=True)
    ]
    for what, unit, values in (
        (BANDWIDTH, "GB/s", of_rows("ceiling_dram_gbs_datasheet")),
        ("DRAM bandwidth, highest measured", "GB/s", highest),
        ("tensor peak, published", "TFLOPS", of_rows(tensor)),
        ("L2 cache", "MB", l2),
        ("SMs", "", sms),
        ("SM clock of the timing run", "GHz", clocks),
        (CLOCK, "SM·GHz", per_second),
    ):
        known = [float(value) for value in values if value]
        yield GpuRate(what, unit, *known) if len(known) == 2 else None


def _groups(pairs: Pairs, ratios: Mapping[str, float]) -> Iterable[VerdictGroup]:
    of: dict[tuple[str, str], list[float]] = {}
    follow: dict[tuple[str, str], str | None] = {}
    for a, b in pairs:
        said, before, after = (kind(a), kind(b)), a.get("time_cold_us"), b.get("time_cold_us")
        if before and after and said[0] and said[1]:
            both = said[0], said[1]
            of.setdefault(both, []).append(after / before)
            # What another unit holds up on the second GPU follows no rate of the first's limiter.
            follow[both] = _rate_of(a) if _rate_of(a) == _rate_of(b) else None
    for said, found in sorted(of.items(), key=lambda item: -len(item[1])):
        if len(found) >= FEWEST:
            follows = follow[said]
            ratio = ratios.get(follows) if follows else None
            low, _, high = quantiles(found, n=4, method="inclusive")
            expected = 1 / ratio if ratio else None
            yield VerdictGroup(*said, len(found), median(found), low, high, follows, expected)


def _rate_of(row: Measurement) -> str | None:
    """The rate that a point's time follows; L2 has none of its own here."""
    if row["verdict"] != BOUND or row["limiter"] == "l2" or row["draw"]:
        return None
    return BANDWIDTH if row["limiter"] == "dram" else CLOCK


def _median(values: Iterable[Any]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None


EACH, TOTAL = "each_us", "total_us"  # of two traces, what is compared of a kernel's name
Value = bool | int | float | str | list[Any] | None


@dataclass(frozen=True)
class Thresholds:
    """alpha: significance after the correction; threshold: changes below it do not matter (of 1);
    floor: noise floor known from elsewhere, used where the evidence has no repeats."""

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
    execution, gpu, other_work, copy_added, copy_removed, copy_changed, gap, setting.
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

    @property
    def line(self) -> str:
        """What differs, its share of the change, both sides, and the evidence."""
        share = f" ({100 * self.share_of_delta:.0f} % of it)" if self.share_of_delta else ""
        sides = " → ".join(_spelled(side) for side in (self.base, self.head) if side is not None)
        return ", ".join(filter(None, [f"{self.what}{share}", sides, self.evidence]))


def _spelled(side: Value) -> str:
    """A side of a cause: a number, a text, or names of kernels."""
    return ", ".join(side) if isinstance(side, list) else str(side)


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
    """tests: how many were corrected for; floors: noise floors by metric; notes: what cannot be known."""

    tests: int
    floors: dict[str, Floor]
    notes: list[str]
    correction: str = "Benjamini-Hochberg over all points and metrics"


@dataclass(frozen=True)
class Comparison(Displayed):
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


# --- the answer with --json ------------------------------------------------------------------


class ComparedPoint(AnswerPart):
    """One point, or one matched kernel, of the baseline and the candidate; with what else compare.json has of it."""

    model_config = ConfigDict(extra="allow")

    id: str
    """The id of the point; for reports the NVTX range, name and index."""
    trace: str | None
    """The words before a column that `ncuflow trace` takes; null for a kernel of a report."""
    metric: str
    """The metric that leads this row."""
    base: float
    """The time of the baseline, µs."""
    head: float
    """The time of the candidate, µs."""
    relative: float
    """The candidate's time over the baseline's, less 1."""
    low: float | None
    """The lower bound of the change; null where either has one value."""
    high: float | None
    """The upper bound of the change."""
    p: float | None
    """The corrected p-value of the test; null where no test was made."""
    verdict: str
    """One of: slower, faster, same, inconclusive, not tested (too few samples), not judged."""
    metrics: dict[str, MetricChange]
    """Each metric of the point, with the same fields."""
    causes: list[Cause]
    """What explains the change, the largest part first."""


class CompareAnswer(Answer):
    """What got slower from the baseline to the candidate, and why: what compare.json has; with a limit what changed first."""

    command: Literal["compare"] = "compare"
    """The command that wrote this JSON."""
    base: Named
    """The baseline: its name and where it was measured."""
    head: Named
    """The candidate."""
    differences: list[Difference]
    """What differs between the two besides the kernels."""
    settings: Thresholds
    """The settings alpha, threshold and floor, as fractions of 1."""
    statistics: Statistics
    """How many tests were made, the noise floor of each metric, and what cannot be known."""
    points: list[ComparedPoint]
    """The points that both have."""
    only_base: list[str]
    """The points that only the baseline has."""
    only_head: list[str]
    """The points that only the candidate has."""
    not_compared: list[NotCompared]
    """The points that were not right, or not timed, in either."""
    gpus: TwoGpus | None
    """What the second GPU changes; null where both are of one GPU."""
    comparison: int = Field(alias="schema")
    """The version of compare.json, whose fields these are."""


def answered(found: Comparison, columns: Mapping[str, str], limit: int | None) -> CompareAnswer:
    """The answer of a comparison; with a limit so many points, the changed first. columns: of the measurement, by metric."""
    changed = {point.id for point in found.changed}
    others = [point for point in found.points if point.id not in changed]
    ordered = found.points if limit is None else [*found.changed, *others]
    points, left_out = cut(ordered, limit)
    tiers = {side.provenance.get("tier") for side in (found.base, found.head)}
    about = {
        f"metrics.{name}": AnswerColumn(
            unit="µs",
            metric=columns.get(name, ""),
            tier=tiers.copy().pop() if len(tiers) == 1 else None,
        )
        for name in sorted({metric for point in points for metric in point.metrics})
    }
    rows = [
        ComparedPoint(**vars(one), trace=shlex.quote(one.id) if one.metric in columns else None)
        for one in points
    ]
    content = vars(found) | {"points": rows, "columns": about, "left_out": left_out}
    return CompareAnswer.model_validate(content)


# --- comparisons in a row --------------------------------------------------------------------

COLD, HOST = "cold_us", "host_us"
StepChange = tuple[int, MetricChange]


@dataclass(frozen=True)
class Shift:
    """Points of a target that changed in one step for one cause; steps count from 0.

    host: of the launching call of the point whose call moved the most, where that is more than its time did; None elsewhere.
    changes: of each point; back: the step that brought their times back to what they were, with its changes, None where none did.
    """

    target: str
    step: int
    points: list[str]
    changes: list[MetricChange]
    back: int | None
    returned: list[MetricChange]
    host: MetricChange | None = None

    @property
    def cause(self) -> Cause | None:
        """What took most of the change of the first point."""
        return _first(self.changes[0])

    @property
    def undone(self) -> Cause | None:
        """What took most of its way back."""
        return _first(self.returned[0]) if self.returned else None


def shifts(found: Sequence[Comparison]) -> list[Shift]:
    """Changes of the time of a launch by target, step and cause, in this order."""
    steps: dict[tuple[str, str], list[StepChange]] = defaultdict(list)
    for index, comparison in enumerate(found):
        for point in comparison.points:
            row = point.metrics.get(COLD)
            if row is not None and row.changed:
                steps[point.target, point.id].append((index, row))
    groups: dict[
        tuple[str, int, int, str], list[tuple[str, MetricChange, MetricChange | None]]
    ] = {}
    for (target, name), changed in steps.items():
        for (step, row), back in _paired(changed, found[0].settings.threshold):
            kind = " ".join(cause.kind + cause.what for cause in (_first(row),) if cause)
            key = (target, step, back[0] if back else len(found), kind)
            groups.setdefault(key, []).append((name, row, back[1] if back else None))
    return [
        Shift(
            target,
            step,
            [name for name, _, _ in members],
            [row for _, row, _ in members],
            back if back < len(found) else None,
            [row for _, _, row in members if row],
            _host(found[step], {name: row for name, row, _ in members}),
        )
        for (target, step, back, _), members in sorted(groups.items(), key=lambda item: item[0])
    ]


def _host(found: Comparison, changed: Mapping[str, MetricChange]) -> MetricChange | None:
    """The launching call that moved the most, further than runs of one side do and than its point's time."""
    floor = found.statistics.floors.get(HOST)
    calls = [
        (abs(call.head - call.base), call)
        for point in found.points
        if floor and point.id in changed and (call := point.metrics.get(HOST))
        if beyond(call.relative, floor.value)
        if abs(call.head - call.base) > abs(changed[point.id].head - changed[point.id].base)
    ]
    return max(calls, key=lambda one: one[0])[1] if calls else None


def _paired(
    changed: Sequence[StepChange], threshold: float
) -> Iterator[tuple[StepChange, StepChange | None]]:
    """Each change of a point, with the later one after which its time is again what it was before."""
    taken: set[int] = set()
    for place, (step, row) in enumerate(changed):
        if step in taken:
            continue
        near = log1p(max(threshold, row.floor or 0.0))
        later = (one for one in changed[place + 1 :] if abs(log(one[1].head / row.base)) <= near)
        back = next(later, None)
        if back:
            taken.add(back[0])
        yield (step, row), back


def _first(row: MetricChange) -> Cause | None:
    """The cause of the largest share; where ncu's runs differ by more than the timed ones, that which moved the most, if what
    moved goes the way of the change."""
    known = [cause for cause in row.causes if cause.share_of_delta is not None]
    if known:
        return max(known, key=lambda cause: cause.share_of_delta or 0.0)
    way = copysign(1.0, row.head - row.base)
    moved = {place: way * (cause.delta_us or 0.0) for place, cause in enumerate(row.causes)}
    if sum(moved.values()) <= 0:
        return None
    return row.causes[max(moved, key=lambda place: moved[place])]
