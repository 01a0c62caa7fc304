"""The one metric registry: key → ncu names per chip, label, unit, meaning.

Parsers, analysis, templates and docs/metrics.md all read it. The names of each chip are those that NVIDIA's library of
counters has for it, which answers without a GPU (`nvperf.ChipCounters`; a test asks it for every name). `launch__`,
`profiler__`, `device__` and `derived__` names come from sections and are not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any, NamedTuple

from ncuflow.io import read_yaml
from ncuflow.parsers.sources import Ceiling, MetricSource, source

ANY = "*"
Sources = tuple[MetricSource | Ceiling, ...]


@dataclass(frozen=True)
class Metric:
    """One measured quantity. `sources`: chip, or * of all → sources, best first; `most`: what no GPU exceeds, in
    `unit`."""

    key: str
    label: str
    unit: str
    meaning: str
    sources: Mapping[str, Sources]
    most: float = inf

    def candidates(self, chip: str) -> Sources:
        """Sources to try on a chip: its own, then those of all."""
        return (*self.sources.get(chip, ()), *self.sources.get(ANY, ()))

    def readable(self, chip: str) -> Sources:
        """Sources to read a report of a chip by. On one that is not known (ANY) the names of any chip are read where
        they are in its report, as they say what they count; but not a sum of those that one chip has."""
        if chip != ANY:
            return self.candidates(chip)
        every = dict.fromkeys(source for sources in self.sources.values() for source in sources)
        return tuple(source for source in every if not source.kind)


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


class ChipGpus(NamedTuple):
    """A chip as ncu's --chips names it: GPUs that have it, and their compute capability."""

    gpus: str
    capabilities: tuple[str, ...]


# As NVIDIA's list of GPUs has them, in the order of time. Where several chips are of one capability, the library has the
# same names for all, but that of those of 7.5 two have no tensor cores. No target runs on TU102: it is read only.
CHIPS = {
    "tu102": ChipGpus("T4, RTX 20", ("7.5",)),
    "ga100": ChipGpus("A100, A30", ("8.0",)),
    "ga102": ChipGpus("A10, A40, RTX 30", ("8.6",)),
    "ga10b": ChipGpus("Jetson Orin", ("8.7",)),
    "ad102": ChipGpus("L4, L40S, RTX 40", ("8.9",)),
    "gh100": ChipGpus("H100, H200, GH200", ("9.0",)),
    "gb100": ChipGpus("B200, GB200", ("10.0",)),
    "gb110": ChipGpus("B300, GB300", ("10.3",)),
    "gb10b": ChipGpus("Jetson Thor", ("11.0", "10.1")),  # the first since CUDA 13
    "gb202": ChipGpus("RTX PRO Blackwell, RTX 50", ("12.0",)),
    "gb20b": ChipGpus("GB10 (DGX Spark)", ("12.1",)),
}
_OF = {capability: name for name, chip in CHIPS.items() for capability in chip.capabilities}


def chip_of(capability: str | None) -> str:
    """The chip whose names the GPUs of a compute capability ("9.0") have; ANY, the names that all chips have, where
    none is known."""
    return _OF.get(capability or "", ANY)


def unknown(capability: str | None) -> str | None:
    """What to know of the numbers of a GPU whose chip is not in the registry; None where it is."""
    if chip_of(capability) != ANY:
        return None
    which = (
        f"a chip of compute capability {capability}" if capability else "a chip that is not named"
    )
    return (
        f"ncuflow's registry lacks the counters of {which}: read are those that other chips have too, tensor work is"
        " not (`ncu --query-metrics --chips CHIP` lists a chip's own)"
    )


@cache
def counters(chip: str) -> tuple[str, ...]:
    """Every ncu name that a chip's values are read from and `ncu --metrics` can collect.

    Names that sections derive, and properties of the launch, come with the sections.
    """
    sources = (source for metric in METRICS.values() for source in metric.candidates(chip))
    names = dict.fromkeys(name for source in sources for name in source.names)
    return tuple(name for name in names if not name.startswith(NOT_COUNTED))
