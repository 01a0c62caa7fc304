"""The one metric registry: key → ncu names per chip, label, unit, meaning; and how a value is read off a kernel's counters.

Parsers, analysis, templates and docs/metrics.md all read it. The names of each chip are those that NVIDIA's library of
counters has for it, which answers without a GPU (`scripts/nvperf.py`; a test asks it for every name). `launch__`,
`profiler__`, `device__` and `derived__` names come from sections and are not in it.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from ncuflow.io import read_yaml
from ncuflow.parsers.chips import ANY

# --- units of the profilers, brought to one base ---------------------------------------------

# Scaling is by whole powers of ten, so a value that is in its base unit already is left untouched.

PREFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
BASES = {
    "second": "s", "seconds": "s", "s": "s", "sec": "s",
    "byte": "byte", "bytes": "byte", "B": "byte",
    "hz": "hz", "Hz": "hz", "cycle": "cycle", "cycles": "cycle", "inst": "inst", "%": "%",
    "sector": "sector", "sectors": "sector", "warp": "warp", "thread": "thread", "block": "block",
    "request": "request", "register": "register", "pass": "pass", "FLOP": "FLOP",
}  # fmt: skip

# What a counter's name says of its unit, for those that are scaled by it, bounded, or counted in something.
_EXPECTED = (
    (re.compile(r"\.pct|_pct$"), "%"),
    (re.compile(r"\.ratio$|^derived__|^memory_"), ""),
    (re.compile(r"__time_duration"), "s"),
    (re.compile(r"__cycles_elapsed\.\w+\.per_second$"), "hz"),
    (re.compile(r"__(t_)?bytes|launch__shared_mem_per_block"), "byte"),
    (re.compile(r"__(t_)?sectors"), "sector"),
    (re.compile(r"inst_executed"), "inst"),
    (re.compile(r"launch__occupancy_limit"), "block"),
)


@cache  # of a few hundred names, asked for in every kernel
def expected_unit(name: str) -> str:
    """The base unit (of a rate: its numerator) that a counter of ncu has by its name; "" if any."""
    return next((unit for pattern, unit in _EXPECTED if pattern.search(name)), "")


@cache
def base_unit(unit: str) -> tuple[int, str]:
    """(power of ten, base unit) of a unit: ("us") is (-6, "s"), ("Gbyte/second") is (9, "byte/s").

    A unit that is not known is its own base.
    """
    top, _, bottom = unit.strip().partition("/")
    exponent, name = _single(top)
    if not bottom:
        return exponent, name
    low, per = _single(bottom)
    if (name, per) == ("cycle", "s"):
        return exponent - low, "hz"
    return exponent - low, f"{name}/{per}"


def _single(unit: str) -> tuple[int, str]:
    if unit in BASES:
        return 0, BASES[unit]
    prefix, rest = unit[:1], unit[1:]
    if prefix in PREFIXES and rest in BASES:
        return PREFIXES[prefix], BASES[rest]
    return 0, unit


def scale(value: float, exponent: int) -> float:
    """value × 10^exponent, dividing where the exponent is negative: 1e-9 is not exact, 1e9 is."""
    if exponent == 0:
        return value
    return value * 10.0**exponent if exponent > 0 else value / 10.0**-exponent


# --- chips as ncu names them -----------------------------------------------------------------


# --- how one value is read -------------------------------------------------------------------

# How one value is read off a kernel's counters: a name, a sum, a product, a work-weighted mean.
#
# A counter that the report does not hold makes the value None. A counter that is there without being
# a number (NaN, infinity, a negative count) raises NotANumber: the reader makes it a named problem.

# (value, power of ten of its unit) of a counter, or None where the report lacks it.
Counter = tuple[float, int]
Lookup = Callable[[str], Counter | None]

PEAK = ".peak_sustained_elapsed.per_second"  # behind the name of a counter of work


class NotANumber(Exception):  # noqa: N818
    """A counter is in the report but holds no usable number; the argument is its name."""


@dataclass(frozen=True)
class Term:
    """factor × the product of the named counters."""

    names: tuple[str, ...]
    factor: float = 1.0

    @cached_property
    def formula(self) -> str:
        product = " × ".join(self.names)
        return product if self.factor == 1 else f"{self.factor:g} × {product}"

    def value(self, get: Lookup, exponent: int) -> float | None:
        """The term in units of 10^exponent of its base; None where a counter is absent."""
        product, power = self.factor, 0
        for name in self.names:
            counter = get(name)
            if counter is None:
                return None
            product, power = product * counter[0], power + counter[1]
        return scale(product, power - exponent)


@dataclass(frozen=True)
class MetricSource:
    """The sum of terms. With `partial`, absent terms are left out as long as one is there: ncu
    omits the counters of instructions that a section does not ask for.

    kind: of a partial sum, a pattern of all counters of the work that it sums, on whatever chip.
    """

    terms: tuple[Term, ...]
    partial: bool = False
    kind: str = ""

    @cached_property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(t.names for t in self.terms)))

    @property
    def work(self) -> tuple[str, ...]:
        """The counters that count it."""
        return self.names

    def read(self, get: Lookup, exponent: int = 0) -> tuple[float, str] | None:
        """(value, names that contributed), or None."""
        values = [term.value(get, exponent) for term in self.terms]
        known = [value for value in values if value is not None]
        if not known or (len(known) < len(values) and not self.partial):
            return None
        active = [t.formula for t, value in zip(self.terms, values, strict=True) if value]
        there = (t.formula for t, value in zip(self.terms, values, strict=True) if value == 0)
        return sum(known), " + ".join(dict.fromkeys(active or [next(there)]))

    def __str__(self) -> str:
        return " + ".join(term.formula for term in self.terms)


@dataclass(frozen=True)
class Ceiling:
    """The ceiling of the work that ran: Σ work ÷ Σ (work ÷ peak), over pairs of work and peak.

    With one kind of instruction it is that instruction's peak; a kernel without has no ceiling. kind: as of a MetricSource.
    """

    pairs: tuple[tuple[str, str], ...] = field(default=())
    kind: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(chain.from_iterable(self.pairs))

    @property
    def work(self) -> tuple[str, ...]:
        """The counters that count it, without their peaks."""
        return tuple(done for done, _ in self.pairs)

    def read(self, get: Lookup, exponent: int = 0) -> tuple[float, str] | None:
        """(ceiling, names of the peaks that count), or None."""
        work, seconds, peaks = 0.0, 0.0, []
        for done_name, peak_name in self.pairs:
            done = get(done_name)
            if not done or not done[0]:
                continue
            peak = get(peak_name)
            if not peak or not peak[0]:
                return None
            work += scale(*done)
            seconds += scale(*done) / scale(*peak)
            peaks.append(peak_name)
        return (scale(work / seconds, -exponent), " + ".join(peaks)) if peaks else None

    def __str__(self) -> str:
        return "work-weighted " + ", ".join(peak for _, peak in self.pairs)


def source(said: Any) -> MetricSource | Ceiling:
    """A source as the catalogue writes it; `catalogue.yaml` says how."""
    match said:
        case str():
            return MetricSource((Term((said,)),))
        case {"product": names}:
            return MetricSource((Term(tuple(names), said.get("factor", 1)),))
        case {"sum": dict(weights)}:
            common = said.get("times", ())
            return MetricSource(tuple(Term((name, *common), weights[name]) for name in weights))
        case {"sum": names}:
            return MetricSource(tuple(Term((name,), said.get("factor", 1)) for name in names))
        case {"any_of": names}:
            kind = said.get("kind", "")
            return MetricSource(
                tuple(Term((name,)) for name in _flat(names)), partial=True, kind=kind
            )
        case {"peak_of": names}:
            pairs = tuple((name, f"{name}{PEAK}") for name in _flat(names))
            return Ceiling(pairs, kind=said.get("kind", ""))
    raise ValueError(f"no source: {said}")


def _flat(names: list[Any]) -> Iterator[str]:
    """The names of a list; a list in it stands for its own."""
    for name in names:
        yield from _flat(name) if isinstance(name, list) else (name,)


# --- the registry ----------------------------------------------------------------------------

Sources = tuple[MetricSource | Ceiling, ...]


@dataclass(frozen=True)
class Metric:
    """One measured quantity. `sources`: chip, or * of all → sources, best first; `most`: what no GPU exceeds, in
    `unit`; `alone`: chips on which what others read counts something else."""

    key: str
    label: str
    unit: str
    meaning: str
    sources: Mapping[str, Sources]
    most: float = inf
    alone: Sequence[str] = ()

    def candidates(self, chip: str) -> Sources:
        """Sources to try on a chip: its own, then those of all."""
        return (*self.sources.get(chip, ()), *self.sources.get(ANY, ()))

    def readable(self, chip: str) -> Sources:
        """Sources to read a report of a chip by: its own, then those of other chips, as a name says what it counts
        wherever it is in a report; but not a sum of those that one chip has."""
        own = () if chip == ANY else self.candidates(chip)
        every = chain(*self.sources.values()) if chip not in self.alone else ()
        return tuple(dict.fromkeys([*own, *(source for source in every if not source.kind)]))


def _metric(names: Any, **about: Any) -> Metric:
    by_chips = names if isinstance(names, dict) else {ANY: names}
    sources = {
        chip: tuple(map(source, by_chips[chips]))
        for chips in by_chips
        for chip in chips.split(", ")
    }
    return Metric(**about, sources=sources)


GROUPS: dict[str, tuple[Metric, ...]] = {
    group: tuple(_metric(**entry) for entry in entries)
    for group, entries in read_yaml(Path(__file__).with_name("catalogue.yaml")).items()
}
# Not in ncu's lists of counters: sections make them. The last is one of the Occupancy section.
NOT_COUNTED = (
    "launch__",
    "profiler__",
    "device__",
    "derived__",
    "sm__maximum_warps_per_active_cycle_pct",
)
METRICS: dict[str, Metric] = {m.key: m for group in GROUPS.values() for m in group}


@cache
def counters(chip: str, keys: tuple[str, ...] = tuple(METRICS)) -> tuple[str, ...]:
    """Every ncu name that a chip's values of these keys are read from and `ncu --metrics` can collect.

    Names that sections derive, and properties of the launch, come with the sections.
    """
    sources = (source for key in keys for source in METRICS[key].candidates(chip))
    names = dict.fromkeys(name for source in sources for name in source.names)
    return tuple(name for name in names if not name.startswith(NOT_COUNTED))
