"""The limiter of a launch: the unit that works for most of its time, or the wait that fills what no unit does.

The breakdown of Speed of Light says for how much of a launch each hardware unit worked at its sustained peak. What
the busiest leaves of the time are waits: SMs that hold no block, and blocks that wait for what is not there yet.
The larger of the two is the verdict, so that no threshold decides. Both are bounds: to keep a unit busy for p of
the time is p of the time however short the waits become, and no wait that ends brings more than its share.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ncuflow.model import Part
from ncuflow.parsers.breakdown import UNITS

# From here on a unit is at its ceiling, as NVIDIA's Speed-of-Light rule says: DRAM and the tensor pipe sustain
# little more.
CEILING = 80.0  # %
# Percentage points below which two shares are a draw. Captured again, the largest counter of a launch moves by
# less than this in nine of ten launches (a test holds it for the recordings).
DRAW = 3.0
WAITS = {
    "latency": "latency",
    "blocks": "too few blocks",
    "tail": "launch and tail",
    "waits": "waits",
}
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Share:
    """A unit or a wait, its share of the time in per cent, and of a unit the counter that says so."""

    name: str
    pct: float
    counter: str | None = None


@dataclass(frozen=True)
class Limiter:
    """How the time of a launch was used. Empty where its report has no breakdown.

    units: each hardware unit at its busiest counter, the busiest first; they overlap. waits: what the busiest
    of them leaves, the longest first: ``blocks`` (a slot that no block of the grid ever fills), ``tail`` (an SM has
    no block yet or no more) and ``latency`` (blocks are there and wait); ``waits`` is what cannot be told apart.
    """

    units: tuple[Share, ...] = ()
    waits: tuple[Share, ...] = ()

    @property
    def room(self) -> float | None:
        """Per cent of the time that ends with all waits, while the busiest unit does the same work."""
        return sum(wait.pct for wait in self.waits) if self.units else None

    @property
    def name(self) -> str:
        """A unit of ``UNITS``, one of ``WAITS``, or unknown."""
        return self._contest[0].name if self.units else UNKNOWN

    @property
    def draw(self) -> str | None:
        """The unit or wait that takes as much of the time as the limiter; None where none does."""
        if not self.units:
            return None
        busiest, waited = self.units[0].pct, sum(wait.pct for wait in self.waits)
        if abs(busiest - waited) < DRAW:
            other = self.waits if busiest >= waited else self.units
            return other[0].name
        first, *rest = self._contest
        return rest[0].name if rest and first.pct - rest[0].pct < DRAW else None

    @property
    def verdict(self) -> str | None:
        """Draw, ceiling (the limiter is a unit at its own) or leads; None where nothing is known."""
        if not self.units:
            return None
        if self.draw:
            return "draw"
        return "ceiling" if self.units[0].pct >= CEILING else "leads"

    @property
    def _contest(self) -> tuple[Share, ...]:
        """Units where the busiest works for at least half of the time, else waits."""
        return self.units if self.units[0].pct >= 50 else self.waits


def judge(parts: Iterable[Part], metrics: Mapping[str, float | None]) -> Limiter:
    """The limiter of one launch, from its breakdown and its metrics by registry key."""
    units: dict[str, Share] = {}
    for part in parts:
        if part["unit"] not in units or part["pct"] > units[part["unit"]].pct:
            units[part["unit"]] = Share(part["unit"], part["pct"], part["counter"])
    if not units:
        return Limiter()
    busiest_first = sorted(units.values(), key=lambda share: -share.pct)
    waits = _waits(max(0.0, 100 - busiest_first[0].pct), metrics)
    return Limiter(tuple(busiest_first), tuple(sorted(waits, key=lambda share: -share.pct)))


def _waits(left: float, metrics: Mapping[str, float | None]) -> list[Share]:
    """What the busiest unit leaves of the time, in per cent, by why as far as the counters tell."""
    waves, active = metrics.get("waves"), metrics.get("sm_cycles_active")
    elapsed = metrics.get("cycles_elapsed")
    if waves is None:
        return [Share("waits", left)]
    blocks = min(left, 100 * max(0.0, 1 - waves))
    if active is None or not elapsed:
        return [Share("blocks", blocks), Share("waits", left - blocks)]
    # Each is counted in a replay pass of its own: the quotient may be above 1 by what those differ.
    tail = min(left - blocks, 100 * max(0.0, 1 - active / elapsed))
    return [Share("latency", left - blocks - tail), Share("tail", tail), Share("blocks", blocks)]


def label(name: str) -> str:
    """The name of a limiter on pages."""
    return UNITS[name].label if name in UNITS else WAITS.get(name, "not known")


def words(name: str | None, draw: str | None) -> str | None:
    """What limits a launch, as pages name it; None where nothing is known."""
    if name is None or name == UNKNOWN:
        return None
    return f"{label(name)} and {label(draw)}, a draw" if draw else label(name)
