"""Speed of Light taken apart: the counters whose largest is a kernel's SM or memory throughput, each with its unit."""

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ncuflow.io import read_yaml
from ncuflow.model import Row
from ncuflow.parsers.registry import METRICS

SM = "sm"
AS_HIGH = 0.5  # percentage points between a throughput and that of the memory it is part of
LEVELS = {"dram": "dram_throughput_pct", "l2": "l2_throughput_pct"}
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
    """Each counter of a kernel's two breakdowns that holds a number, or as much as its report tells of them.

    kernel: a `Profiled` of the reader.
    """
    parted = False
    for parent in PARENTS:
        source = METRICS[parent].candidates(kernel.chip)[0]
        named = kernel.text(f"breakdown:{source}")
        found = {name: kernel.number(name) for name in (named or "").split(",") if name}
        known = {name: pct for name, pct in found.items() if pct is not None}
        for name, pct in known.items():
            unit = _behind(known) if name.startswith(SHARED) else unit_of(name)
            yield {"parent": parent, "counter": name, "unit": unit, "pct": pct}
        parted = parted or bool(known)
    if not parted:
        yield from _wholes(kernel)


def _wholes(kernel: Any) -> Iterator[Row]:
    """What ncu prints of Speed of Light, in place of what it is made of: both throughputs, that of memory as one of DRAM or
    L2 where theirs is as high. None where one of the two is missing, since it may be the higher."""
    sm, memory = (_first(kernel, parent) for parent in PARENTS)
    if not sm or not memory:
        return
    yield {"parent": PARENTS[0], "counter": sm[0], "unit": SM, "pct": sm[1]}
    levels = {unit: found for unit, key in LEVELS.items() if (found := _first(kernel, key))}
    # What NVIDIA rolls up for L2 may be above the throughput of memory: that goes by other counters.
    levels = {unit: found for unit, found in levels.items() if found[1] <= memory[1] + AS_HIGH}
    if all(pct < memory[1] - AS_HIGH for _, pct in levels.values()):
        levels["memory"] = memory
    for unit, (name, pct) in levels.items():
        yield {"parent": PARENTS[1], "counter": name, "unit": unit, "pct": pct}


def are_wholes(parts: Iterable[Any]) -> bool:
    """Whether a breakdown is of the two throughputs, and not of what they are made of."""
    return any(part["unit"] == SM for part in parts)


def _first(kernel: Any, key: str) -> tuple[str, float] | None:
    """(counter, value) of the first source of a metric that holds a number."""
    names = (str(source) for source in METRICS[key].readable(kernel.chip))
    found = ((name, kernel.number(name)) for name in names)
    return next(((name, pct) for name, pct in found if pct is not None), None)


def _behind(known: dict[str, float]) -> str:
    """The pipe that keeps the shared one busy: the busier of those behind it."""
    busiest = {
        unit: max((pct for name, pct in known.items() if unit_of(name) == unit), default=0.0)
        for unit in BEHIND
    }
    return max(BEHIND, key=lambda unit: busiest[unit])
