"""The course of a search on a GPU: candidates are checked once, halved shape by shape, and the best of each is confirmed.

Every candidate has a process of its own, as the change of a trial has; the base has two. A candidate that is wrong at any
input is timed nowhere. One that hangs or breaks its process costs itself alone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from ncuflow.advice.course import relative
from ncuflow.advice.racing import AGAIN
from ncuflow.search.candidates import Candidate
from ncuflow.search.halving import RUNGS, Halving
from ncuflow.search.pace import Pace
from ncuflow.search.record import CandidateStanding, SearchedShape, Standing
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target
from ncuflow.trial import course
from ncuflow.trial.record import CheckedCase, PointTrial, Relative, TrialTiming
from ncuflow.trial.sides import Answer, LostError, SideError, TrialSide

DEFAULT = "default"
FRESH = 2  # the seed of the confirmation's inputs; checks and halving take those before it
TOGETHER = 4  # candidates that are checked at once: each has the inputs, and their reference


@dataclass
class Contender:
    """A candidate on its way. points: its own, by the id of the shape; fate: what it has done wrong; skipped: why it cannot run,
    by shape."""

    candidate: Candidate
    side: TrialSide
    points: dict[str, Planned]
    fate: Standing | None = None
    reason: str | None = None
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.candidate.name

    def fail(self, error: SideError) -> None:
        self.fate = "lost" if isinstance(error, LostError) else "error"
        self.reason = str(error)


@dataclass
class SearchField:
    """What a search runs on. limit_s: of one request."""

    target: Target
    base: TrialSide
    again: TrialSide
    contenders: Sequence[Contender]
    effect: float
    limit_s: float
    clock: Callable[[], float] = time.monotonic


class Shared:
    """The base of several candidates: asked by one thread at a time, and about each point once."""

    def __init__(self, side: TrialSide) -> None:
        self._side, self._lock = side, threading.Lock()
        self._known: dict[tuple[str, str], Answer] = {}

    def ask(self, do: str, limit_s: float, **words: Any) -> Answer:
        asked = do, str(words)
        with self._lock:
            if asked not in self._known:
                self._known[asked] = self._side.ask(do, limit_s, **words)
            return self._known[asked]


class Pinned:
    """A side that is asked at one point, with inputs of a seed, whatever point the question names."""

    def __init__(self, side: TrialSide, point: Planned, seed: int) -> None:
        self._side, self._point = side, point
        self._seeds: dict[str, Any] = {"open": {"seed": seed}, "check": {"seeds": [seed]}}

    def ask(self, do: str, limit_s: float, **words: Any) -> Answer:
        if "point" in words:
            words |= {"point": self._point.as_dict()} | self._seeds.get(do, {})
        return self._side.ask(do, limit_s, **words)


def checked(on: SearchField, pace: Pace) -> None:
    """Hold every candidate against the reference at all its points and their edges, some at a time.

    Raises BaseError where the base is lost.
    """
    base, done = Shared(on.base), 0
    ready = [one for one in on.contenders if one.fate is None]

    def check(one: Contender) -> Contender:
        sides = course.Sides(base, one.side, on.again, on.limit_s)
        points = list(one.points.values())
        for shape, trial in zip(
            one.points, course.checked(sides, on.target, points, lambda line: None), strict=True
        ):
            if trial.outcome in ("wrong", "error", "lost") and one.fate is None:
                one.fate, one.reason = trial.outcome, trial.reason  # type: ignore[assignment]
            elif trial.outcome == "skipped":
                one.skipped[shape] = str(trial.reason)
        return one

    with ThreadPoolExecutor(TOGETHER) as pool:
        for one in pool.map(check, ready):
            done += 1
            pace.checked(done / len(ready))
            pace(f"{one.name}: {one.fate}: {one.reason}" if one.fate else f"{one.name}: right")


def searched(
    on: SearchField,
    shape: Planned,
    shapes: int,
    budget_s: float | None,
    tell: Callable[[str], None],
) -> SearchedShape:
    """The candidates of a shape halved, and the best that is left confirmed.

    shapes: of the whole run; budget_s: of the halving's rounds, None without such a limit.

    Raises BaseError where the default, which ran before, no longer does.
    """
    here = {one.name: one for one in on.contenders if shape.id in one.points}
    found = SearchedShape(shape=shape.id, params=dict(shape.params), found="none", candidates=[])
    default = CheckedCase.model_validate(_of_base(on, on.base, "check", point=shape.as_dict()))
    race = None
    if default.status != "ok":
        found.reason = f"the default: {default.reason}"
    else:
        ready = [n for n, one in here.items() if one.fate is None and shape.id not in one.skipped]
        if ready:
            race = _halved(on, shape, {name: here[name] for name in ready}, shapes, budget_s, tell)
            found.rounds = race.rounds
            found.default_us = race.time_us(DEFAULT)
            _confirm(on, shape, race, here, found, shapes, tell)
        if found.candidate is None:
            found.reason = "no candidate could be timed"
    found.candidates = _standings(shape, here, race)
    return found


# --- halving ----------------------------------------------------------------------------------


def _halved(
    on: SearchField,
    shape: Planned,
    contenders: dict[str, Contender],
    shapes: int,
    budget_s: float | None,
    tell: Callable[[str], None],
) -> Halving:
    """Rounds in turns until the halving is over, or its time is up."""
    race = Halving([DEFAULT, *contenders], DEFAULT, shapes, on.effect)
    sides = {DEFAULT: on.base, DEFAULT + AGAIN: on.again}
    for side in sides.values():
        _of_base(on, side, "open", point=shape.as_dict())
    for name, one in contenders.items():
        sides[name] = one.side
        try:
            one.side.ask("open", on.limit_s, point=one.points[shape.id].as_dict())
        except SideError as error:
            one.fail(error)
            race.fail(name)
    until = None if budget_s is None else on.clock() + budget_s
    while race.candidates:
        running = set(race.running)
        _round(on, race, sides, contenders)
        late = until is not None and race.rounds >= RUNGS[0] and on.clock() > until
        over = race.look(last=late)
        if race.rounds in RUNGS or over:
            tell(f"{shape.id}: {race.rounds} rounds, {len(race.candidates)} candidates are left")
        for name in running - set(race.running):
            with suppress(SideError):
                sides[name].ask("close", on.limit_s)
        if over:
            break
    for name in race.running:
        with suppress(SideError):
            sides[name].ask("close", on.limit_s)
    return race


def _round(
    on: SearchField, race: Halving, sides: dict[str, TrialSide], contenders: dict[str, Contender]
) -> None:
    """A round of all that are left; one in which a candidate fails does not count."""
    found: dict[str, float] = {}
    for name in race.order():
        if name not in contenders:
            found[name] = _time(_of_base(on, sides[name], "burst"), course.BaseError)
            continue
        try:
            found[name] = _time(sides[name].ask("burst", on.limit_s), SideError)
        except SideError as error:
            contenders[name].fail(error)
            race.fail(name)
            return
    race.add(found)


def _time(answer: Answer, error: type[Exception]) -> float:
    found = float(median(answer["times"]))
    if found <= 0:
        raise error(f"a launch took {found:g} µs: it cannot have run")
    return found


def _of_base(on: SearchField, side: TrialSide, do: str, **words: Any) -> Answer:
    try:
        return side.ask(do, on.limit_s, **words)
    except SideError as error:
        raise course.BaseError(f"the base: {error}") from None


# --- confirmation -----------------------------------------------------------------------------


def _confirm(
    on: SearchField,
    shape: Planned,
    race: Halving,
    here: dict[str, Contender],
    found: SearchedShape,
    shapes: int,
    tell: Callable[[str], None],
) -> None:
    """Hold the best candidate against the default in turns, on inputs that neither the checks nor the halving had; the next
    best where it fails there."""
    if not race.candidates or race.rounds < 2:
        return
    for name in race.best({name: one.candidate.departs for name, one in here.items()}):
        one = here[name]
        trial = _confirmed(on, shape, one, shapes, tell)
        if trial.timing is None:
            one.fate, one.reason = trial.outcome, trial.reason  # type: ignore[assignment]
            continue
        found.candidate, found.confirmed = name, trial.timing
        found.default_us = trial.timing.base_us
        verdicts = {"faster": "winner", "undecided": "undecided"}
        found.found = verdicts.get(trial.outcome, "default")  # type: ignore[assignment]
        found.price = price(trial.timing) if found.found == "winner" else None
        return


def _confirmed(
    on: SearchField, shape: Planned, one: Contender, shapes: int, tell: Callable[[str], None]
) -> PointTrial:
    """A candidate at a shape, on fresh inputs: checked, and timed in turns where it is right."""
    trial = PointTrial(point=shape.id, outcome="unchecked")
    change = Pinned(one.side, one.points[shape.id], FRESH)
    tell(f"{shape.id}: {one.name} on fresh inputs")
    try:
        asked = change.ask("check", on.limit_s, point=shape.as_dict())
    except SideError as error:
        trial.outcome = "lost" if isinstance(error, LostError) else "error"
        trial.reason = str(error)
        return trial
    case = CheckedCase.model_validate(asked)
    trial.cases.append(case)
    if case.status != "ok":
        trial.outcome, trial.reason = case.status, f"on fresh inputs: {case.reason}"
        return trial
    base, again = (Pinned(side, shape, FRESH) for side in (on.base, on.again))
    sides = course.Sides(base, change, again, on.limit_s)
    course.timed(sides, [shape], [trial], on.effect, tell, shapes)
    return trial


def price(timing: TrialTiming) -> Relative:
    """What the default takes longer than the winner, from the winner's time against the default's."""
    change = timing.change
    return Relative(
        estimate=1 / (1 + change.estimate) - 1,
        low=1 / (1 + change.high) - 1,
        high=1 / (1 + change.low) - 1,
    )


# --- the record -------------------------------------------------------------------------------


def _standings(
    shape: Planned, here: dict[str, Contender], race: Halving | None
) -> list[CandidateStanding]:
    """How each candidate fared, the fastest first, those that were not timed last."""
    found = [_standing(shape, one, race) for one in here.values()]
    return sorted(
        found, key=lambda one: (one.against is None, one.against and one.against.estimate)
    )


def _standing(shape: Planned, one: Contender, race: Halving | None) -> CandidateStanding:
    found = CandidateStanding(
        name=one.name, point=one.points[shape.id].id, fate=one.fate or "kept", reason=one.reason
    )
    if shape.id in one.skipped and one.fate is None:
        found.fate, found.reason = "skipped", one.skipped[shape.id]
    if race is None or one.name not in race.times or len(race.times[one.name]) < 2:
        return found
    found.rounds, found.time_us = len(race.times[one.name]), race.time_us(one.name)
    found.against = relative(race.against(one.name, DEFAULT))
    if one.name in race.left:
        found.fate = "left"
    return found
