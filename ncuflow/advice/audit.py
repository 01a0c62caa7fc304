"""An audit of what a tuner chose: each stored tactic raced against all others that its runner has for the same call."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import median
from time import monotonic
from typing import Any, Literal

from pydantic import Field

from ncuflow.advice.course import GaveUpError, Track, relative
from ncuflow.advice.racing import AGAIN, Race
from ncuflow.advice.screen import between
from ncuflow.advice.stores import StoredTactic, said
from ncuflow.answer import Answer
from ncuflow.format import aligned, micro
from ncuflow.record import Chance, Count, Effect, Microseconds, Strict
from ncuflow.sweep.points import Planned, expand
from ncuflow.target.contract import Target
from ncuflow.trial.record import Relative
from ncuflow.trial.sequential import LOOKS
from ncuflow.trial.sides import LostError, SideError

Verdict = Literal["right", "within noise", "wrong", "undecided", "not timed"]
Tell = Callable[[str], None]


class AuditedTactic(Strict):
    """One choice of the tuner's."""

    key: str
    """that it is kept under"""
    runner: str
    """the tuner's name of who computes the call"""
    tactic: str
    """what is stored"""
    verdict: Verdict
    """right: surely faster than all others; within noise: no other is surely faster; wrong: another is; undecided: the noise
    is too large; not timed: its call cannot be made here"""
    reason: str | None = None
    """why it was not timed"""
    point: str | None = None
    """of the call that was timed"""
    tactics: Count | None = None
    """that were raced"""
    failed: Count | None = None
    """tactics of the runner that gave a wrong result, or failed"""
    time_us: Microseconds | None = None
    """median of the stored one"""
    best: list[str] = Field(default_factory=list)
    """tactics that no other is surely faster than, the fastest first"""
    cost: Relative | None = None
    """what the stored one takes longer than the fastest"""


class Audit(Answer):
    """What a tuner's choices cost."""

    command: Literal["advise"] = "advise"
    """the command that answers"""
    gpu: str | None
    """name of the GPU that they were timed on"""
    versions: dict[str, str | None]
    """of what they were timed with"""
    date: str
    """when, UTC"""
    effect: Effect
    """the relative difference that matters, of 1"""
    alpha: Chance
    """the chance that any word here is wrong by noise"""
    entries: list[AuditedTactic]
    """each stored choice"""


def point_of(entry: StoredTactic, targets: Sequence[Target]) -> tuple[Target, Planned] | None:
    """The target and the point whose call a choice is kept for; None where no target knows it."""
    parts = entry.parts
    for target in targets if parts else ():
        assert parts is not None
        params = target.tuned(parts[0], entry.runner, parts[1])
        if params is not None:
            with suppress(ValueError):
                (whole,) = expand([params], target.parameters, target.choices)
                return target, Planned(target.point_id(whole), target.name, whole)
    return None


def audited(
    track: Track,
    entry: StoredTactic,
    targets: Sequence[Target],
    entries: int,
    effect: float,
    tell: Tell,
) -> AuditedTactic:
    """Race the tactics of one entry. entries: of the whole run."""
    found = AuditedTactic(
        key=entry.key, runner=entry.runner, tactic=str(entry.tactic), verdict="not timed"
    )
    if (place := point_of(entry, targets)) is None:
        found.reason = "no target makes this call"
        return found
    target, point = place
    found.point = point.id
    found.reason = target.skip(point.params, track.facts)
    if found.reason is not None:
        return found
    try:
        _race(track, entry, point, found, entries, effect)
    except LostError as error:
        if track.restarts > MOST_LOST:
            raise GaveUpError(str(error)) from None
        found.reason = str(error)
    except SideError as error:
        found.reason = str(error)
    with suppress(SideError):
        track.ask("close")
    tell(f"{point.id}: {said(entry)}: {found.verdict}")
    return found


MOST_LOST = 20  # entries of a store that break their process, one after the other


def _race(
    track: Track,
    entry: StoredTactic,
    point: Planned,
    found: AuditedTactic,
    entries: int,
    effect: float,
) -> None:
    assert entry.parts is not None
    operation, runner = entry.parts[0], entry.runner
    call = track.ask(
        "tactics", point=point.as_dict(), operation=operation, runner=runner, key=entry.key
    )
    if not call["reached"]:
        found.reason = "the call of this shape is kept under another key here"
        return
    own = _name(entry.tactic)
    tactics = {_name(tactic): tactic for tactic in [entry.tactic, *call["tactics"]]}
    ready = [n for n, t in tactics.items() if _ready(track, n, t, checked=True)]
    found.failed = len(tactics) - len(ready)
    if own not in ready:
        found.reason = "the stored tactic gives a wrong result here, or fails"
        return
    found.tactics = len(ready)
    race = Race(ready, own, entries, effect)
    if not _ready(track, own + AGAIN, entry.tactic, checked=False):
        race.fail(own + AGAIN)
    until = monotonic() + track.budget_s
    while True:
        race.add({n: median(track.ask("burst", name=n)["times"]) for n in race.order()})
        if race.look(last=race.rounds >= LOOKS[0] and monotonic() > until):
            break
    _conclude(race, own, found)


def _name(tactic: Any) -> str:
    return json.dumps(tactic)


def _ready(track: Track, name: str, tactic: Any, checked: bool) -> bool:
    """Whether a tactic can be timed. One that fails costs itself alone, unless it breaks the process."""
    try:
        answer = track.ask("tactic", name=name, tactic=tactic, checked=checked)
    except LostError:
        raise
    except SideError:
        return False
    return bool(answer["status"] == "ok")


def _conclude(race: Race, own: str, found: AuditedTactic) -> None:
    found.time_us = race.time_us(own)
    found.best = sorted(race.contenders, key=lambda name: race.time_us(name) or 0)
    found.cost = relative(race.against(own, race.leader))
    if own not in race.contenders:
        found.verdict = "wrong"
    elif race.decision() == "winner":
        found.verdict = "right"
    else:
        found.verdict = "within noise" if race.decision() == "tie" else "undecided"


def audit_screen(audit: Audit) -> str:
    """What an audit says, on one screen."""
    head = ("call", "stored", "time", "verdict", "costs", "fastest", "of")
    rows = [
        (
            one.point or one.key,
            f"{one.runner} {one.tactic}",
            micro(one.time_us),
            one.verdict,
            between(one.cost) if one.cost and one.verdict == "wrong" else "–",
            ", ".join(one.best[:3]) or "–",
            str(one.tactics or "–"),
        )
        for one in audit.entries
    ]
    counts = {v: sum(one.verdict == v for one in audit.entries) for v in Verdict.__args__}  # type: ignore[attr-defined]
    lines = [aligned(head, rows, left=2).rstrip(), ""]
    lines.append(", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count))
    reasons = {one.reason: one for one in audit.entries if one.reason}
    lines += [f"not timed: {reason} ({one.point or one.key})" for reason, one in reasons.items()]
    return "\n".join(lines) + "\n"
