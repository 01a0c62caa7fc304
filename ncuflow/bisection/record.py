"""The record of a bisection: what `ncuflow bisect --json` prints, a line of its journal, and the text report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from ncuflow.answer import Answer
from ncuflow.format import MISSING, aligned, micro
from ncuflow.race.measure import spelled
from ncuflow.race.record import Relative
from ncuflow.record import Microseconds, Strict

Over = Literal["recordings", "wheels", "releases", "environment"]
Belongs = Literal["before", "after", "untold", "passed over"]
FILES = 12  # that the text report has


class BisectStep(Strict):
    """One version held against another."""

    base: str
    """the version that it was held against"""
    head: str
    """the version"""
    belongs: Belongs
    """before or after the change; untold: the noise leaves it open; passed over: it cannot run the point"""
    reason: str | None = None
    """why it was passed over, or could not be told"""
    base_us: Microseconds | None = None
    """time of the base, µs; null where it was not timed"""
    head_us: Microseconds | None = None
    """of the version"""
    change: Relative | None = None
    """the version's time against the base's, with its interval"""

    @property
    def said(self) -> str:
        """What a version is beside the one that it was held against: other versions may have changed back."""
        return {"before": "not changed", "after": "changed"}.get(self.belongs, self.belongs)


class Neighbours(Strict):
    """Two versions that follow each other, between which the time of the point changed."""

    before: str
    """the last version of before"""
    after: str
    """the first version of after"""
    change: Relative | None
    """what it takes longer after, of 1: against the good version, or the one before where each was held against that"""
    between: list[str] = Field(default_factory=list)
    """versions between the two that could not be told: the change may be in one of these"""
    causes: list[str] = Field(default_factory=list)
    """what counters say, the largest part first; none where no counters of both were recorded"""
    files: list[str] = Field(default_factory=list)
    """files that differ, of the target's own first; of recordings those of which that is known"""


class Bisection(Answer):
    """Between which two versions a point became slower or faster."""

    command: Literal["bisect"] = "bisect"
    """the command that answers"""
    point: str
    """its id"""
    metric: str
    """the column of docs/tables.md that decides"""
    gpu: str | None = None
    """that it was timed on, or that the recordings are of"""
    date: str | None = None
    """when it was timed here; null of recordings, which have their own"""
    over: Over
    """what the versions are"""
    versions: list[str]
    """all of them, in their order"""
    good: str | None
    """the version that others were held against; null where each was held against the one before it"""
    bad: str | None
    """the version at the other end"""
    outcome: Literal["found", "no change", "untold"]
    """untold: the noise, or what could not run, left it open"""
    found: list[Neighbours]
    """where it changed"""
    steps: list[BisectStep]
    """what was measured, in its order"""


def report(found: Bisection) -> str:
    """The text report: the steps, and where it changed."""
    heads = ("version", "held against", "time", "change", "so it is")
    rows = [
        (s.head, s.base, micro(s.head_us), spelled(s.change) if s.change else MISSING, s.said)
        for s in found.steps
    ]
    where = "; ".join(filter(None, (found.gpu, found.date)))
    table = aligned(heads, rows, left=2).rstrip()
    lines = [f"{found.point}, {found.metric}; {where}", "", table, ""]
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
