"""The choices of each shape on a GPU: prepared and checked, raced, and the best ones' plan() timed.

One process does it, and a choice that hangs or breaks it costs itself alone: a fresh process goes on with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from time import monotonic
from typing import Any

from ncuflow.experiments import choices
from ncuflow.experiments.record import AdvisedChoice, AdvisedShape
from ncuflow.race.record import Relative
from ncuflow.race.rounds import AA, Race, Standing, advised
from ncuflow.race.sequential import LOOKS, Interval
from ncuflow.race.sides import GaveUpError, LostError, Session, SideError
from ncuflow.record import Check
from ncuflow.sweep.points import Planned, unable
from ncuflow.target.contract import Target

Tell = Callable[[str], None]
MOST_RESTARTS = 5  # of a shape: more choices than this do not break the GPU one after the other


@dataclass
class Entrant:
    """A choice on its way through the race."""

    point: Planned
    fate: str = "ok"
    reason: str | None = None
    check: Check | None = None
    info: dict[str, Any] = field(default_factory=dict)
    resolved: dict[str, Any] = field(default_factory=dict)


def advise(
    track: Session,
    target: Target,
    shape: Planned,
    also: choices.Also | None,
    shapes: int,
    effect: float,
    tell: Tell,
) -> AdvisedShape:
    """Race the choices of a shape. shapes: of the whole run. Raises GaveUpError where no process can be started any more."""
    begun, track.restarts = monotonic(), 0
    entrants = {p.id: Entrant(p) for p in choices.choices(target, shape, also)}
    for one in entrants.values():
        one.reason = unable(target, one.point, track.facts)
        if one.reason is None and (place := track.lost.get(_settings(target, one, also))):
            one.reason = f"not tried: it was lost at {place}"
        one.fate = "skipped" if one.reason else "ok"
    _prepare(track, entrants, tell)
    _fold(track, target, entrants, also)
    ready = [name for name, one in entrants.items() if one.fate == "ok"]
    race = Race(ready, shape.id if shape.id in ready else None, shapes, effect)
    if race.default is not None:
        _twin(track, entrants, race)
    _run(track, entrants, race, monotonic() + track.budget_s)
    plans = _plans(track, race, shape.id)
    with suppress(SideError):
        track.ask("close")
    lost = [one for one in entrants.values() if one.fate == "lost"]
    track.lost.update({_settings(target, one, also): one.point.id for one in lost})
    found = _record(target, shape, also, entrants, race, plans)
    found.seconds = round(monotonic() - begun, 2)
    tell(f"{shape.id}: {found.outcome}, {race.rounds} rounds, {found.seconds:.1f} s")
    return found


def _settings(target: Target, one: Entrant, also: choices.Also | None) -> tuple[str, str]:
    """What of its settings a choice has at every shape."""
    return target.name, str(choices.settings(target, one.point.params, also))


def _prepare(track: Session, entrants: dict[str, Entrant], tell: Tell) -> None:
    """Make every choice ready that can be, checked once."""
    for name, one in entrants.items():
        if one.fate != "ok":
            continue
        try:
            answer = track.ask("prepare", name=name, point=one.point.as_dict(), checked=True)
            one.fate, one.reason = answer["status"], answer["reason"]
            one.info = answer.get("info") or {}
            if answer.get("check"):
                one.check = Check.model_validate(answer["check"])
        except LostError as error:
            _lost(track, one, error)
            done = list(entrants).index(name)
            _reopen(track, [n for n in list(entrants)[:done] if entrants[n].fate == "ok"], entrants)
        except SideError as error:
            one.fate, one.reason = "error", str(error)
        if one.fate not in ("ok", "skipped"):
            tell(f"{name}: {one.fate}: {one.reason}")


def _fold(
    track: Session, target: Target, entrants: dict[str, Entrant], also: choices.Also | None
) -> None:
    """Of choices that make the same call the first stands for all."""
    ready = {name: one for name, one in entrants.items() if one.fate == "ok"}
    chosen = {n: choices.settings(target, one.point.params, also) for n, one in ready.items()}
    same = choices.same_calls(chosen, {name: one.info for name, one in ready.items()})
    for name, (first, made) in same.items():
        ready[name].fate = "same"
        ready[name].reason = choices.folded(first, chosen[first], made)
        ready[first].resolved = made
        with suppress(SideError):
            track.ask("forget", name=name)


def _lost(track: Session, one: Entrant, error: LostError) -> None:
    one.fate, one.reason = "lost", str(error)
    if track.restarts > MOST_RESTARTS:
        raise GaveUpError(f"{one.point.id}: {error}")


def _reopen(track: Session, names: Sequence[str], entrants: dict[str, Entrant]) -> None:
    """In a fresh process: make choices ready that were right before. Who breaks it now is lost as well."""
    for name in names:
        one = entrants[name.removesuffix(AA)]
        try:
            answer = track.ask("prepare", name=name, point=one.point.as_dict(), checked=False)
            if answer["status"] != "ok":
                one.fate, one.reason = answer["status"], answer["reason"]
        except LostError as error:
            _lost(track, one, error)
            rest = [n for n in names if entrants[n.removesuffix(AA)].fate == "ok"]
            _reopen(track, rest, entrants)
            return
        except SideError as error:
            one.fate, one.reason = "error", str(error)


def _twin(track: Session, entrants: dict[str, Entrant], race: Race) -> None:
    """The default once more, with buffers of its own."""
    name = str(race.default)
    try:
        point = entrants[name].point.as_dict()
        if track.ask("prepare", name=name + AA, point=point, checked=False)["status"] != "ok":
            race.fail(name + AA)
    except LostError:
        race.fail(name + AA)
        _reopen(track, race.running, entrants)
    except SideError:
        race.fail(name + AA)


def _run(track: Session, entrants: dict[str, Entrant], race: Race, until: float) -> None:
    """Rounds until the race is over, or its time is up. A round in which a choice fails does not count."""
    while race.contenders:
        known, found = set(race.running), {}
        for name in race.order():
            try:
                found[name] = _burst(track, name)
            except SideError as error:
                one = entrants[name.removesuffix(AA)]
                race.fail(name)
                if not name.endswith(AA):
                    one.fate, one.reason = "error", str(error)
                if isinstance(error, LostError):
                    _lost(track, one, error)
                    _reopen(track, race.running, entrants)
                    for other in race.running:
                        if entrants[other.removesuffix(AA)].fate != "ok":
                            race.fail(other)
                break
        if len(found) < len(known):
            continue
        race.add(found)
        if race.look(last=race.rounds >= LOOKS[0] and monotonic() > until):
            return
        for name in known - set(race.running):
            track.ask("forget", name=name)


def _burst(track: Session, name: str) -> float:
    time = float(median(track.ask("burst", name=name)["times"]))
    if time <= 0:
        raise SideError(f"a launch took {time:g} µs: it cannot have run")
    return time


def _plans(track: Session, race: Race, default: str) -> dict[str, float]:
    """Median µs of plan() of the best choices and of the default, in turns."""
    names = [n for n in dict.fromkeys([*race.contenders, default]) if n in race.running]
    times: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(2):
        for name in names if turn == 0 else names[::-1]:
            with suppress(SideError):
                times[name] += track.ask("plan", name=name)["times"]
    return {name: median(found) for name, found in times.items() if found}


def _record(
    target: Target,
    shape: Planned,
    also: choices.Also | None,
    entrants: dict[str, Entrant],
    race: Race,
    plans: dict[str, float],
) -> AdvisedShape:
    departs = {n: choices.departures(target, shape, one.point) for n, one in entrants.items()}
    best = sorted(race.contenders, key=lambda n: race.time_us(n) or 0) if race.rounds > 1 else []
    chosen = advised(race, departs) if best else None
    default = shape.id if race.default and shape.id not in race.failed else None
    found = AdvisedShape(
        target=target.name,
        shape=shape.id,
        params=dict(shape.params),
        outcome=race.decision() if best else "none",
        best=best,
        advised=chosen,
        regret=relative(race.against(default, chosen)) if default and chosen else None,
        in_turns=True,
        choices=[
            AdvisedChoice(
                point=name,
                settings=choices.settings(target, one.point.params, also),
                asked=target.asked(one.point.params),
                resolved=one.resolved,
                departs=departs[name],
                plan_us=plans.get(name),
                **_fared(race, name, one),
            )
            for name, one in entrants.items()
        ],
    )
    found.layers = layers(found)
    return found


def _fared(race: Race, name: str, one: Entrant) -> dict[str, Any]:
    """What of its record a choice's race decides."""
    common = {"reason": one.reason, "check": one.check}
    standing = race.standing(name) if one.fate == "ok" else None
    if standing is None:
        return common | {"fate": one.fate if one.fate != "ok" else "error"}
    return common | {
        "fate": _fate(standing),
        "time_us": race.time_us(name),
        "behind": relative(standing.behind),
        "rounds": standing.rounds,
    }


def _fate(standing: Standing) -> str:
    fates = {"slower": "slower", "undecided": "undecided"}
    return fates.get(standing.verdict, "best")


def relative(found: Interval) -> Relative:
    return Relative(estimate=found.estimate, low=found.low, high=found.high)


def layers(shape: AdvisedShape) -> int | None:
    """After how many layers the advised choice has paid what its plan() takes longer than the default's: 0 where that takes
    no longer. None where it gains nothing for sure, or a time is not known."""
    chosen, default = shape.choice(shape.advised), shape.choice(shape.shape)
    if chosen is None or default is None or chosen is default or shape.regret is None:
        return None
    if None in (chosen.plan_us, default.plan_us) or shape.regret.low <= 0:
        return None
    more = chosen.plan_us - default.plan_us  # type: ignore[operator]
    gain = default.time_us - chosen.time_us  # type: ignore[operator]
    return None if gain <= 0 else max(0, ceil(more / gain))
