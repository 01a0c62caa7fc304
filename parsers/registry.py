"""The one metric registry: key → ncu names per chip, label, unit, meaning.

Parsers, analysis, templates and docs/metrics.md all read it. The names of each chip are those that NVIDIA's library of
counters has for it, which answers without a GPU (`scripts/nvperf.py`; a test asks it for every name). `launch__`,
`profiler__`, `device__` and `derived__` names come from sections and are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from math import inf
from pathlib import Path
from typing import Any

from ncuflow.io import read_yaml
from ncuflow.parsers.chips import ANY
from ncuflow.parsers.sources import Ceiling, MetricSource, source

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
