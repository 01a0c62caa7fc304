"""Speed of Light taken apart: the counters whose largest is a kernel's SM or memory throughput, each with its unit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ncuflow.io import read_yaml
from ncuflow.model import Row
from ncuflow.parsers.registry import METRICS

PARENTS = ("sm_throughput_pct", "memory_throughput_pct")


class Unit(NamedTuple):
    """A hardware unit: its name on pages, what its counters count, and what they begin with."""

    label: str
    meaning: str
    prefixes: tuple[str, ...]


UNITS: dict[str, Unit] = {
    name: Unit(unit["label"], unit["meaning"], tuple(unit["prefixes"]))
    for name, unit in read_yaml(Path(__file__).with_name("breakdown.yaml")).items()
}
# On some chips the tensor and FP64 pipes stand behind one that the quarters of an SM share.
SHARED, BEHIND = "sm__pipe_shared", ("tensor", "fp64")


@cache
def unit_of(counter: str) -> str:
    """The unit that a counter of a breakdown is of."""
    return next(name for name, unit in UNITS.items() if counter.startswith(unit.prefixes))


def rows(kernel: Any) -> Iterator[Row]:
    """Each counter of a kernel's two breakdowns that holds a number; none where its report has no breakdown.

    kernel: a `Profiled` of the reader.
    """
    for parent in PARENTS:
        source = METRICS[parent].candidates(kernel.chip)[0]
        named = kernel.text(f"breakdown:{source}")
        found = {name: kernel.number(name) for name in (named or "").split(",") if name}
        known = {name: pct for name, pct in found.items() if pct is not None}
        for name, pct in known.items():
            unit = _behind(known) if name.startswith(SHARED) else unit_of(name)
            yield {"parent": parent, "counter": name, "unit": unit, "pct": pct}


def _behind(known: dict[str, float]) -> str:
    """The pipe that keeps the shared one busy: the busier of those behind it."""
    busiest = {
        unit: max((pct for name, pct in known.items() if unit_of(name) == unit), default=0.0)
        for unit in BEHIND
    }
    return max(BEHIND, key=lambda unit: busiest[unit])
