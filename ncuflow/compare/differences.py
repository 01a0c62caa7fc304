"""What differs between two sides besides their kernels: GPU, driver, versions, clocks, flags."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median
from typing import Any

Row = dict[str, Any]
# What can move a kernel's time; two of them at once cannot be told apart.
AXES = (
    ("GPU", "gpu"),
    ("driver", "driver"),
    ("FlashInfer", "flashinfer"),
    ("CUDA", "cuda"),
    ("torch", "torch"),
    ("clock policy", "clock_policy"),
)
# Listed, not counted: they measure, they do not make the kernel. Python is part of the host times.
TOOLS = (("ncu", "ncu"), ("nsys", "nsys"), ("Python", "python"))
CLOCK_DIFFERS = 0.02


@dataclass(frozen=True)
class Difference:
    """One axis with both values; ``cause`` says that it can move a kernel's time."""

    axis: str
    base: Any
    head: Any
    cause: bool


def of_sides(base: Row, head: Row, pairs: Iterable[tuple[Row, Row]]) -> list[Difference]:
    """Differences of two provenances, then the SM clock that the points of both ran at.

    pairs: measurement rows of the same point. An axis that one side does not know is a difference
    only where the other side knows it.
    """
    found = [_axis(axis, base.get(key), head.get(key), cause=True) for axis, key in AXES]
    found += _flags(base.get("flags") or {}, head.get("flags") or {})
    found.append(_clock(pairs))
    found += [_axis(axis, base.get(key), head.get(key), cause=False) for axis, key in TOOLS]
    return [difference for difference in found if difference is not None]


def mixed(found: Iterable[Difference]) -> bool:
    """More than one axis that can move a kernel's time."""
    return sum(difference.cause for difference in found) > 1


def _axis(axis: str, base: Any, head: Any, cause: bool) -> Difference | None:
    return None if base == head else Difference(axis, base, head, cause)


def _flags(base: Row, head: Row) -> list[Difference | None]:
    return [_axis(name, base.get(name), head.get(name), cause=True) for name in base | head]


def _clock(pairs: Iterable[tuple[Row, Row]]) -> Difference | None:
    """The observed SM clock, if its median over the points moved by more than 2 %."""
    clocks = [
        (a["sm_clock_ghz"], b["sm_clock_ghz"])
        for a, b in pairs
        if a.get("sm_clock_ghz") and b.get("sm_clock_ghz")
    ]
    if not clocks or abs(median(b / a for a, b in clocks) - 1) <= CLOCK_DIFFERS:
        return None
    before, after = (f"{median(side):.3f} GHz" for side in zip(*clocks, strict=True))
    return Difference("SM clock under ncu (median)", before, after, cause=True)
