"""What differs between two sides besides their kernels: GPU, driver, versions, clocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

from ncuflow.model import Measurement

# axis, key of the provenance, and whether it can move a kernel's time; two at once that can cannot be
# told apart. The tools measure, they do not make the kernel; Python is part of the host times.
AXES = (
    ("GPU", "gpu", True),
    ("driver", "driver", True),
    ("FlashInfer", "flashinfer", True),
    ("CUDA", "cuda", True),
    ("torch", "torch", True),
    ("clock policy", "clock_policy", True),
    ("ncu", "ncu", False),
    ("nsys", "nsys", False),
    ("Python", "python", False),
)
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
    only where the other side knows it.
    """
    axes = [
        Difference(axis, base.get(key), head.get(key), cause)
        for axis, key, cause in AXES
        if base.get(key) != head.get(key)
    ]
    causes = sum(difference.cause for difference in axes)
    own = base.get("gpu") == head.get("gpu")  # another GPU's clock is its own
    return [*axes[:causes], *_clock(pairs, own), *axes[causes:]]


def _clock(
    pairs: Iterable[tuple[Measurement, Measurement]], cause: bool = True
) -> list[Difference]:
    """The observed SM clock, if its median over the points moved by more than 2 %."""
    known = [(a.get("sm_clock_ghz"), b.get("sm_clock_ghz")) for a, b in pairs]
    clocks = [(a, b) for a, b in known if a and b]
    if not clocks or abs(median(b / a for a, b in clocks) - 1) <= CLOCK_DIFFERS:
        return []
    before, after = (f"{median(side):.3f} GHz" for side in zip(*clocks, strict=True))
    return [Difference("SM clock under ncu (median)", before, after, cause)]
