"""A metric of the registry, and the short forms that the catalogues are written in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ncuflow.parsers.sources import Ceiling, Source, one

ANY = "*"
Sources = tuple[Source | Ceiling, ...]


@dataclass(frozen=True)
class Metric:
    """One measured quantity. `sources`: architecture (ga100, gh100 or *) → sources, best first."""

    key: str
    label: str
    unit: str
    meaning: str
    sources: Mapping[str, Sources]

    def candidates(self, arch: str) -> Sources:
        """Sources to try on an architecture: its own, then those of any."""
        return (*self.sources.get(arch, ()), *self.sources.get(ANY, ()))


def read(*names: str) -> dict[str, Sources]:
    """The same names on every architecture, in order of preference."""
    return {ANY: one(*names)}
