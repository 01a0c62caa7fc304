"""A bisection: between which two versions a point changed, its record, a line of its journal, and the text report.

A version belongs before or after a change by which side of half of the change its interval lies on.

Of the change between both ends half is taken as the border, on a logarithmic scale: a version whose interval holds the border
is inconclusive, and skipped, as one is that cannot run the point. So noise decides nothing; it can only leave
versions between the two that are found. A journal keeps what was measured, so that a search goes on where it was interrupted.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from math import expm1, log1p
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from ncuflow.answer import Answer
from ncuflow.format import MISSING, aligned, in_one_unit
from ncuflow.io import BadInput, JsonObject, conforming, parsed, sniff
from ncuflow.race import measure, record
from ncuflow.record import Microseconds, Strict

Over = Literal["recordings", "wheels", "releases", "environment"]
StepOutcome = Literal["before", "after", "untold", "passed over"]
IN_WORDS: dict[StepOutcome, str] = {
    "before": "not changed", "after": "changed", "untold": "inconclusive", "passed over": "skipped"
}  # fmt: skip
FILES = 12  # that the text report has


class BisectStep(Strict):
    """One version compared with another."""

    base: str
    """The version that the other one was compared with."""
    head: str
    """The version that was measured."""
    belongs: StepOutcome
    """before or after: on which side of the change the version is; untold: inconclusive, because of noise; passed over:
    skipped, because it cannot run the point."""
    reason: str | None = None
    """The reason why it was skipped, or is inconclusive."""
    base_us: Microseconds | None = None
    """The time of the base, µs; null where it was not timed."""
    head_us: Microseconds | None = None
    """The time of the version, µs; null where it was not timed."""
    change: record.Relative | None = None
    """The version's time against the base's, with its interval."""

    @property
    def in_words(self) -> str:
        """What a version is beside the one that it was held against: other versions may have changed back."""
        return IN_WORDS[self.belongs]


class Neighbours(Strict):
    """Two versions that follow each other, between which the time of the point changed."""

    before: str
    """The last version before the change."""
    after: str
    """The first version after the change."""
    change: record.Relative | None
    """What the version after takes longer, of 1: compared with the good version, or with its predecessor where each was
    compared with that."""
    between: list[str] = Field(default_factory=list)
    """The inconclusive versions between the two; the change may be in one of these."""
    causes: list[str] = Field(default_factory=list)
    """The causes by counters, the largest part first; empty where no counters of both were recorded."""
    files: list[str] = Field(default_factory=list)
    """The files that differ, the target's own first; for recordings only the files of which that is known."""


class Bisection(Answer):
    """Between which two versions a point became slower or faster."""

    ROWS: ClassVar[tuple[str, ...]] = ("steps",)
    command: Literal["bisect"] = "bisect"
    """The command that wrote this JSON."""
    point: str
    """The id of the point."""
    metric: str
    """The column of docs/tables.md that decides."""
    gpu: str | None = None
    """The GPU that it was timed on, or that the recordings are of."""
    date: str | None = None
    """The date of the timing; null for recordings, which have their own."""
    over: Over
    """What the versions are."""
    versions: list[str]
    """All versions, from the first to the last."""
    good: str | None
    """The version that others were compared with; null where each was compared with the one before it."""
    bad: str | None
    """The version at the other end."""
    outcome: Literal["found", "no change", "untold"]
    """found: a change was located; no change: there is none; untold: noise, or versions that could not run, left it
    inconclusive."""
    found: list[Neighbours]
    """Where the time changed."""
    steps: list[BisectStep]
    """What was measured, in its order."""


# (base, version) -> the step, in which the version belongs before unless it changed beyond noise and by what matters.
Hold = Callable[[str, str], BisectStep]
Note = Callable[[BisectStep], object]


def between(versions: Sequence[str], good: str | None, bad: str | None) -> list[str]:
    """The versions from the good one to the bad one, in that direction. Raises ValueError where one is not there."""
    for name in filter(None, (good, bad)):
        if name not in versions:
            raise ValueError(f"no version {name!r}; there are: {', '.join(versions[:30])}")
    first = versions.index(good) if good else 0
    last = versions.index(bad) if bad else len(versions) - 1
    chosen = list(versions[min(first, last) : max(first, last) + 1])
    return chosen if first <= last else chosen[::-1]


def bisect(versions: Sequence[str], hold: Hold, note: Note) -> list[Neighbours] | None:
    """A change between the first and the last of the versions, which are held against the first; None where the last cannot
    run the point."""
    first, last = versions[0], versions[-1]
    end = hold(first, last)
    note(end)
    if end.change is None or end.belongs == "before":
        return None if end.change is None else []
    border = expm1(log1p(end.change.estimate) / 2)
    found: dict[str, StepOutcome] = {first: "before", last: "after"}
    changes = {last: end.change}
    while True:
        before = max(at for at, name in enumerate(versions) if found.get(name) == "before")
        after = min(at for at, name in enumerate(versions) if found.get(name) == "after")
        left = [at for at in range(before + 1, after) if versions[at] not in found]
        if not left:
            low, high = versions[before], versions[after]
            passed = list(versions[before + 1 : after])
            return [Neighbours(before=low, after=high, change=changes[high], between=passed)]
        name = versions[min(left, key=lambda at: abs(2 * at - before - after))]
        step = _on_its_side(hold(first, name), border)
        found[name] = step.belongs
        if step.change is not None:
            changes[name] = step.change
        note(step)


def _on_its_side(step: BisectStep, border: float) -> BisectStep:
    """The step with its version on the side of the border on which its whole interval lies."""
    if step.change is None:
        return step
    sides: tuple[StepOutcome, StepOutcome] = (
        ("before", "after") if border > 0 else ("after", "before")
    )
    if step.change.low <= border <= step.change.high:
        why = "its interval holds the half of the change"
        return step.model_copy(update={"belongs": "untold", "reason": why})
    return step.model_copy(update={"belongs": sides[step.change.low > border]})


def walk(versions: Sequence[str], hold: Hold, note: Note) -> list[Neighbours]:
    """Every change between versions that follow each other; one that cannot run the point is skipped."""
    found, before, between = [], versions[0], list[str]()
    for name in versions[1:]:
        step = hold(before, name)
        note(step)
        if step.change is None:
            between.append(name)
            continue
        if step.belongs == "after":
            found.append(Neighbours(before=before, after=name, change=step.change, between=between))
        before, between = name, []
    return found


def journaled(hold: Hold, path: Path | None, question: JsonObject) -> Hold:
    """The same, measuring only what the journal at the path does not have, and adding that to it, a line a step.

    Raises BadInput where the file is about another question.
    """
    if path is None:
        return hold
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(question) + "\n", encoding="utf-8")
    known = _read(path, question)

    def held(base: str, head: str) -> BisectStep:
        if (base, head) not in known:
            known[base, head] = hold(base, head)
            with path.open("a", encoding="utf-8") as file:
                file.write(known[base, head].model_dump_json() + "\n")
        return known[base, head]

    return held


def _read(path: Path, question: JsonObject) -> dict[tuple[str, str], BisectStep]:
    """The steps of a journal; what was being written when it was interrupted is cut off."""
    sniff(path)
    try:
        *lines, unended = path.read_text(encoding="utf-8").split("\n")
        asked, *steps = [parsed(line) for line in lines or [""]]
    except ValueError as error:
        raise BadInput(path, f"not a journal of a bisection ({error})") from None
    if asked != question:
        raise BadInput(path, "the journal of another bisection: name another file, or remove it")
    found = [conforming(path, step, BisectStep, "a step of a bisection") for step in steps]
    if unended:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return {(step.base, step.head): step for step in found}


def report(found: Bisection) -> str:
    """The text report: the steps, and where it changed."""
    unit, took = in_one_unit([step.head_us for step in found.steps])
    heads = ("version", "compared with", f"time, {unit}", "change", "so it is")
    rows = [
        (
            s.head,
            s.base,
            time,
            measure.with_interval(s.change) if s.change else MISSING,
            s.in_words,
        )
        for s, time in zip(found.steps, took, strict=True)
    ]
    where = "; ".join(filter(None, (found.gpu, found.date)))
    table = aligned(heads, rows, left=2).rstrip()
    lines = [f"{found.point}, {found.metric}; {where}", "", table, ""]
    if found.outcome != "found":
        ends = f"{found.good} and {found.bad}" if found.good else "any two versions"
        told = {"no change": "it did not change", "untold": "it is inconclusive whether it changed"}
        lines.append(f"between {ends} {told[found.outcome]}")
    for one in found.found:
        lines += _neighbours(one)
    lines += [
        f"{step.in_words}: {step.head}: {step.reason}"
        for step in found.steps
        if step.belongs in ("passed over", "untold")
    ]
    return "\n".join(lines) + "\n"


def _neighbours(found: Neighbours) -> Iterator[str]:
    change = f": {measure.with_interval(found.change)}" if found.change else ""
    yield f"it changed from {found.before} to {found.after}{change}"
    if found.between:
        yield f"  or in {', '.join(found.between)}, which are inconclusive"
    yield from (f"  {cause}" for cause in found.causes)
    if not found.causes:
        yield "  no counters of both were recorded: `ncuflow compare` of two recordings has causes"
    if found.files:
        more = f", and {len(found.files) - FILES} more" if len(found.files) > FILES else ""
        yield f"  files that differ: {', '.join(found.files[:FILES])}{more}"
