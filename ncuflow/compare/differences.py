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
    ("CuTe DSL", "cutlass_dsl", True),  # with it FlashInfer takes other kernels
    ("clock policy", "clock_policy", True),
    ("ncu", "ncu", False),
    ("nsys", "nsys", False),
    ("Python", "python", False),
)
# What two parts of one name may differ in, a MIG slice and the whole say; another GPU's are its own.
OF_ONE_GPU = (
    ("compute capability", "compute_capability", True),
    ("multiprocessors", "sm_count", True),
    ("L2 cache, bytes", "l2_bytes", True),
    ("memory, bytes", "memory_bytes", True),
)
# Which evidence it is: no condition that it was measured under.
NO_AXES = frozenset(["tier", "date", "recording", "mixed"])
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
        Difference(axis, base.get(key), head.get(key), cause)
        for axis, key, cause in AXES
        if base.get(key) != head.get(key)
    ]
    axes += [
        Difference(axis, str(base[key]), str(head[key]), cause)
        for axis, key, cause in OF_ONE_GPU
        if own and base.get(key) and head.get(key) and base[key] != head[key]
    ]
    axes.sort(key=lambda difference: not difference.cause)
    causes = sum(difference.cause for difference in axes)
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
