"""Occupancy: how many blocks of a kernel an SM holds at once, and what lets no more onto it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

RESOURCES = {
    "occupancy_limit_registers": "registers",
    "occupancy_limit_shared_mem": "shared memory",
    "occupancy_limit_warps": "warps",
    "occupancy_limit_blocks": "block slots",
    "occupancy_limit_barriers": "barriers",
}


@dataclass(frozen=True)
class Limit:
    """blocks: that an SM holds at once; resources: those that run out first."""

    blocks: int
    resources: tuple[str, ...]


def occupancy_limit(metrics: Mapping[str, float | None]) -> Limit | None:
    """The limit of a launch by its metrics; None where the report has none."""
    limits = {name: metrics.get(key) for key, name in RESOURCES.items()}
    known = {name: limit for name, limit in limits.items() if limit is not None}
    if not known:
        return None
    least = min(known.values())
    return Limit(int(least), tuple(name for name, limit in known.items() if limit == least))
