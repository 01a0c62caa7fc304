"""The search: a version belongs before or after a change by which side of half of the change its interval lies on.

Of the change between both ends half is taken as the border, on a logarithmic scale: a version whose interval holds the border
is told from neither, and passed over, as one is that cannot run the point. So noise decides nothing; it can only leave
versions between the two that are found.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import expm1, log1p

from ncuflow.bisection.record import Belongs, BisectStep, Neighbours
from ncuflow.race.record import Relative


@dataclass(frozen=True)
class HeldAgainst:
    """A version held against another. changed: beyond noise, and by what matters; reason: why it was not timed."""

    change: Relative | None = None
    changed: bool = False
    base_us: float | None = None
    head_us: float | None = None
    reason: str | None = None


Hold = Callable[[str, str], HeldAgainst]  # (base, version)
Note = Callable[[BisectStep], object]


@dataclass(frozen=True)
class Ends:
    """What a search ended with. neighbours: None where nothing changed between the ends; untold: why that is not known."""

    neighbours: Neighbours | None = None
    untold: str | None = None


def bisect(versions: Sequence[str], hold: Hold, note: Note) -> Ends:
    """Search a change between the first and the last of the versions, which are held against the first."""
    first, last = versions[0], versions[-1]
    end = hold(first, last)
    note(_step(first, last, end, "after" if end.changed else "before"))
    if end.change is None:
        return Ends(untold=f"{last}: {end.reason}")
    if not end.changed:
        return Ends()
    border = expm1(log1p(end.change.estimate) / 2)
    found: dict[str, Belongs] = {first: "before", last: "after"}
    changes = {last: end.change}
    while True:
        before = max(at for at, name in enumerate(versions) if found.get(name) == "before")
        after = min(at for at, name in enumerate(versions) if found.get(name) == "after")
        left = [at for at in range(before + 1, after) if versions[at] not in found]
        if not left:
            return Ends(
                Neighbours(
                    before=versions[before],
                    after=versions[after],
                    change=changes[versions[after]],
                    between=list(versions[before + 1 : after]),
                )
            )
        name = versions[min(left, key=lambda at: abs(2 * at - before - after))]
        held = hold(first, name)
        found[name] = side(held, border)
        if held.change is not None:
            changes[name] = held.change
        note(_step(first, name, held, found[name]))


def side(held: HeldAgainst, border: float) -> Belongs:
    """Where a version belongs: the side of the border on which its whole interval lies."""
    if held.change is None:
        return "passed over"
    if held.change.high < border:
        return "before" if border > 0 else "after"
    if held.change.low > border:
        return "after" if border > 0 else "before"
    return "untold"


def walk(versions: Sequence[str], hold: Hold, note: Note) -> list[Neighbours]:
    """Every change between versions that follow each other; one that cannot run the point is passed over."""
    found, before, between = [], versions[0], list[str]()
    for name in versions[1:]:
        held = hold(before, name)
        if held.change is None:
            note(_step(before, name, held, "passed over"))
            between.append(name)
            continue
        note(_step(before, name, held, "after" if held.changed else "before"))
        if held.changed:
            found.append(Neighbours(before=before, after=name, change=held.change, between=between))
        before, between = name, []
    return found


def _step(base: str, head: str, held: HeldAgainst, belongs: Belongs) -> BisectStep:
    told = "passed over" if held.change is None else belongs
    reason = held.reason
    if told == "untold":
        reason = "its interval holds the half of the change"
    return BisectStep(
        base=base,
        head=head,
        belongs=told,
        reason=reason,
        base_us=held.base_us,
        head_us=held.head_us,
        change=held.change,
    )
