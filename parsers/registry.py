"""The one metric registry: key → ncu names per architecture, label, unit, meaning.

Parsers, analysis, templates and docs/metrics.md all read it. Names were checked against
`ncu --query-metrics --chips ga100,gh100` of ncu 2025.3.1; `launch__`, `profiler__`, `device__` and
`derived__` names come from sections and are not in those lists.

    ncuflow counters gh100    # what `ncu --metrics` has to be given to collect them
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import inf
from pathlib import Path
from typing import Any

from ncuflow.io import read_yaml
from ncuflow.parsers.sources import Ceiling, MetricSource, source

ANY = "*"
Sources = tuple[MetricSource | Ceiling, ...]


@dataclass(frozen=True)
class Metric:
    """One measured quantity. `sources`: architecture (ga100, gh100 or *) → sources, best first; `most`: what no GPU
    exceeds, in `unit`."""

    key: str
    label: str
    unit: str
    meaning: str
    sources: Mapping[str, Sources]
    most: float = inf

    def candidates(self, arch: str) -> Sources:
        """Sources to try on an architecture: its own, then those of any."""
        return (*self.sources.get(arch, ()), *self.sources.get(ANY, ()))


def _metric(names: Any, **about: Any) -> Metric:
    by_arch = names if isinstance(names, dict) else {ANY: names}
    return Metric(**about, sources={arch: tuple(map(source, by_arch[arch])) for arch in by_arch})


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


ARCHITECTURES = ("ga100", "gh100")
# Compute capabilities whose tensor instructions and stall reasons the names of their architecture are all of. Others are
# read by the names of an older chip, beside which they have their own: 8.9 FP8, 10.0 and later nearly all.
LISTED = ("8.0", "8.6", "8.7", "9.0")


def architecture(major: int | None) -> str:
    """The names to read for a compute capability: gh100 from 9 on, ga100 before (and unknown)."""
    return "gh100" if major is not None and major >= 9 else "ga100"


@cache
def counters(arch: str) -> tuple[str, ...]:
    """Every ncu name that an architecture's values are read from and `ncu --metrics` can collect.

    Names that sections derive, and properties of the launch, come with the sections.
    """
    sources = (source for metric in METRICS.values() for source in metric.candidates(arch))
    names = dict.fromkeys(name for source in sources for name in source.names)
    return tuple(name for name in names if not name.startswith(NOT_COUNTED))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("architecture", choices=ARCHITECTURES)


def run(args: argparse.Namespace) -> None:
    print(",".join(counters(args.architecture)))
