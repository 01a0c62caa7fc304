"""What differs between two sides besides their kernels: GPU, driver, versions, clocks; and what the second GPU changes: the rates
of both, and whether the points of each limiter follow the one they should.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median, quantiles
from typing import Any

from ncuflow.findings.limiter import BOUND, kind
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
