"""What differs between two sides besides their kernels: GPU, driver, versions, clocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

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
