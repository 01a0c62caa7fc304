"""What a bisection says, on one screen."""

from __future__ import annotations

from collections.abc import Iterator

from ncuflow.bisection.record import Bisection, BisectStep, Neighbours
from ncuflow.format import MISSING, aligned, micro
from ncuflow.race.measure import spelled

FILES = 12  # that a screen has


def screen(found: Bisection) -> str:
    """The steps, and where it changed."""
    rows = [_row(step) for step in found.steps]
    head = ("version", "held against", "time", "change", "so it is")
    where = "; ".join(filter(None, (found.gpu, found.date)))
    lines = [
        f"{found.point}, {found.metric}; {where}",
        "",
        aligned(head, rows, left=2).rstrip(),
        "",
    ]
    if found.outcome != "found":
        ends = f"{found.good} and {found.bad}" if found.good else "any two versions"
        told = {"no change": "it did not change", "untold": "it cannot be told whether it changed"}
        lines.append(f"between {ends} {told[found.outcome]}")
    for one in found.found:
        lines += _neighbours(one)
    lines += [
        f"passed over: {step.head}: {step.reason}"
        for step in found.steps
        if step.belongs in ("passed over", "untold")
    ]
    return "\n".join(lines) + "\n"


def _row(step: BisectStep) -> tuple[str, ...]:
    change = spelled(step.change) if step.change else MISSING
    return step.head, step.base, micro(step.head_us), change, told(step)


def told(step: BisectStep) -> str:
    """What a version is beside the one that it was held against: other versions may have changed back."""
    return {"before": "not changed", "after": "changed"}.get(step.belongs, step.belongs)


def _neighbours(found: Neighbours) -> Iterator[str]:
    change = f": {spelled(found.change)}" if found.change else ""
    yield f"it changed between {found.before} and {found.after}{change}"
    if found.between:
        yield f"  or in {', '.join(found.between)}, which could not be told"
    yield from (f"  {cause}" for cause in found.causes)
    if not found.causes:
        yield "  no counters of both were recorded: `ncuflow compare` of two recordings has causes"
    if found.files:
        more = f", and {len(found.files) - FILES} more" if len(found.files) > FILES else ""
        yield f"  files that differ: {', '.join(found.files[:FILES])}{more}"
