"""The search: a version belongs before or after a change by which side of half of the change its interval lies on.

Of the change between both ends half is taken as the border, on a logarithmic scale: a version whose interval holds the border
is told from neither, and passed over, as one is that cannot run the point. So noise decides nothing; it can only leave
versions between the two that are found. A journal keeps what was measured, so that a search goes on where it was interrupted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from math import expm1, log1p
from pathlib import Path
from typing import Any

from ncuflow.bisection.record import Belongs, BisectStep, Neighbours
from ncuflow.io import BadInput, conforming, parsed, sniff

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
    found: dict[str, Belongs] = {first: "before", last: "after"}
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
        step = _placed(hold(first, name), border)
        found[name] = step.belongs
        if step.change is not None:
            changes[name] = step.change
        note(step)


def _placed(step: BisectStep, border: float) -> BisectStep:
    """The step with its version on the side of the border on which its whole interval lies."""
    if step.change is None:
        return step
    sides: tuple[Belongs, Belongs] = ("before", "after") if border > 0 else ("after", "before")
    if step.change.low <= border <= step.change.high:
        why = "its interval holds the half of the change"
        return step.model_copy(update={"belongs": "untold", "reason": why})
    return step.model_copy(update={"belongs": sides[step.change.low > border]})


def walk(versions: Sequence[str], hold: Hold, note: Note) -> list[Neighbours]:
    """Every change between versions that follow each other; one that cannot run the point is passed over."""
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


def journaled(hold: Hold, path: Path | None, question: dict[str, Any]) -> Hold:
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


def _read(path: Path, question: dict[str, Any]) -> dict[tuple[str, str], BisectStep]:
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
