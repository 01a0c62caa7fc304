"""The choices of each shape on a GPU: prepared and checked, raced, and the best ones' plan() timed.

One process does it, and a choice that hangs or breaks it costs itself alone: a fresh process goes on with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from math import ceil
from statistics import median
from time import monotonic

from ncuflow.experiments import choices
from ncuflow.experiments.record import AdvisedChoice, AdvisedShape
from ncuflow.io import JsonObject
from ncuflow.race import rounds
from ncuflow.race.measure import failure
from ncuflow.race.rounds import AA, Race
from ncuflow.race.sides import GaveUpError, LostError, Session, SideError, burst
from ncuflow.record import Check
from ncuflow.sweep.points import Planned, unable
from ncuflow.target.contract import Target

MOST_RESTARTS = 5  # of a shape: more choices than this do not break the GPU one after the other


@dataclass
class RacingChoice:
    """A choice on its way through the race."""

    point: Planned
    outcome: str = "ok"
    reason: str | None = None
    check: Check | None = None
    info: JsonObject = field(default_factory=dict)
    resolved: JsonObject = field(default_factory=dict)

    def end(self, outcome: str, reason: str | None) -> None:
        self.outcome, self.reason = outcome, reason


@dataclass
class ShapeRace:
    """The race of a shape's choices in a session. shapes: of the whole run. Raises GaveUpError where no process can be started
    any more."""

    session: Session
    target: Target
    shape: Planned
    also: choices.Also
    shapes: int
    effect: float
    tell: Callable[[str], None]

    def advised(self) -> AdvisedShape:
        """Race the choices."""
        begun, self.session.restarts = monotonic(), 0
        points = choices.choices(self.target, self.shape, self.also)
        self.choices = {point.id: RacingChoice(point) for point in points}
        for one in self.choices.values():
            reason = unable(self.target, one.point, self.session.facts)
            if reason is None and (place := self.session.lost.get(self._everywhere(one))):
                reason = f"not tried: it was lost at {place}"
            if reason is not None:
                one.end("skipped", reason)
        self._prepare()
        self._fold()
        ready = list(self._ready())
        default = self.shape.id if self.shape.id in ready else None
        self.race = Race(ready, default, self.shapes, self.effect)
        if default is not None:
            self._control(default)
        until = monotonic() + self.session.budget_s
        rounds.run(
            self.race,
            lambda name: burst(self.session, self.session.limit_s, name=name)[0],
            lambda: monotonic() > until,
            self._failed,
            lambda left, over: self._forget(left),
        )
        plans = self._plans()
        with suppress(SideError):
            self.session.ask("close")
        for one in self.choices.values():
            if one.outcome == "lost":
                self.session.lost[self._everywhere(one)] = one.point.id
        found = self._record(plans)
        found.seconds = round(monotonic() - begun, 2)
        self.tell(
            f"{self.shape.id}: {found.outcome}, {self.race.rounds} rounds, {found.seconds:.1f} s"
        )
        return found

    def _settings(self, one: RacingChoice) -> JsonObject:
        return choices.settings(self.target, one.point.params, self.also)

    def _everywhere(self, one: RacingChoice) -> tuple[str, str]:
        """What of its settings a choice has at every shape."""
        return self.target.name, str(self._settings(one))

    def _ready(self) -> dict[str, RacingChoice]:
        return {name: one for name, one in self.choices.items() if one.outcome == "ok"}

    def _ask_prepare(self, name: str, checked: bool) -> JsonObject:
        point = self.choices[name.removesuffix(AA)].point.as_dict()
        return self.session.ask("prepare", name=name, point=point, checked=checked)

    def _prepare(self) -> None:
        """Make every choice ready that can be, checked once."""
        for name, one in self._ready().items():
            try:
                answer = self._ask_prepare(name, checked=True)
                one.end(answer["status"], answer["reason"])
                one.info = answer.get("info") or {}
                if answer.get("check"):
                    one.check = Check.model_validate(answer["check"])
            except SideError as error:
                self._lose(one, error)
                before = list(self.choices)[: list(self.choices).index(name)]
                if isinstance(error, LostError):
                    self._reopen(n for n in before if self.choices[n].outcome == "ok")
            if one.outcome not in ("ok", "skipped"):
                self.tell(f"{name}: {one.outcome}: {one.reason}")

    def _fold(self) -> None:
        """Of choices that make the same call the first stands for all."""
        ready = self._ready()
        chosen = {name: self._settings(one) for name, one in ready.items()}
        same = choices.same_calls(chosen, {name: one.info for name, one in ready.items()})
        for name, (first, made) in same.items():
            ready[name].end("same", choices.folded(first, chosen[first], made))
            ready[first].resolved = made
        self._forget(same)

    def _forget(self, names: Iterable[str]) -> None:
        for name in names:
            with suppress(SideError):
                self.session.ask("forget", name=name)

    def _lose(self, one: RacingChoice, error: SideError) -> None:
        one.end(failure(error), str(error))
        if isinstance(error, LostError) and self.session.restarts > MOST_RESTARTS:
            raise GaveUpError(f"{one.point.id}: {error}")

    def _reopen(self, names: Iterable[str]) -> None:
        """In a fresh process: make choices ready that were right before. Who breaks it now is lost as well."""
        names = list(names)
        for name in names:
            one = self.choices[name.removesuffix(AA)]
            try:
                answer = self._ask_prepare(name, checked=False)
                if answer["status"] != "ok":
                    one.end(answer["status"], answer["reason"])
            except SideError as error:
                self._lose(one, error)
                if isinstance(error, LostError):
                    self._reopen(
                        n for n in names if self.choices[n.removesuffix(AA)].outcome == "ok"
                    )
                    return

    def _control(self, default: str) -> None:
        """The default once more, with buffers of its own: the A/A control."""
        try:
            if self._ask_prepare(default + AA, checked=False)["status"] != "ok":
                self.race.fail(default + AA)
        except SideError as error:
            self.race.fail(default + AA)
            if isinstance(error, LostError):
                self._reopen(self.race.running)

    def _failed(self, name: str, error: SideError) -> None:
        one = self.choices[name.removesuffix(AA)]
        if not name.endswith(AA) or isinstance(error, LostError):
            self._lose(one, error)
        if isinstance(error, LostError):
            self._reopen(self.race.running)
            for other in self.race.running:
                if self.choices[other.removesuffix(AA)].outcome != "ok":
                    self.race.fail(other)

    def _plans(self) -> dict[str, float]:
        """Median µs of plan() of the best choices and of the default, in turns."""
        best = dict.fromkeys([*self.race.remaining, self.shape.id])
        names = [name for name in best if name in self.race.running]
        times: dict[str, list[float]] = {name: [] for name in names}
        for name in [*names, *names[::-1]]:
            with suppress(SideError):
                times[name] += self.session.ask("plan", name=name)["times"]
        return {name: median(found) for name, found in times.items() if found}

    def _record(self, plans: dict[str, float]) -> AdvisedShape:
        race, default = self.race, self.race.default
        told = {
            name: AdvisedChoice(
                **choices.described(self.target, self.shape, one.point, self.also),
                resolved=one.resolved,
                plan_us=plans.get(name),
                reason=one.reason,
                check=one.check,
                **_fared(race, name, one.outcome),
            )
            for name, one in self.choices.items()
        }
        best = sorted(race.remaining, key=lambda n: race.time_us(n) or 0) if race.rounds > 1 else []
        departs = {name: one.departs for name, one in told.items()}
        chosen = rounds.advised(race, departs) if best else None
        timed = default is not None and default not in race.failed and chosen is not None
        found = AdvisedShape(
            target=self.target.name,
            shape=self.shape.id,
            params=dict(self.shape.params),
            outcome=race.decision() if best else "none",
            best=best,
            advised=chosen,
            regret=race.against(str(default), str(chosen)).relative if timed else None,
            in_turns=True,
            choices=list(told.values()),
        )
        found.layers = layers(found)
        return found


def _fared(race: Race, name: str, outcome: str) -> JsonObject:
    """What of its record a choice's race decides."""
    found = race.outcome(name) if outcome == "ok" else None
    if found is None:
        return {"fate": "error" if outcome == "ok" else outcome}
    slow = found.verdict in ("slower", "undecided")
    return {
        "fate": found.verdict if slow else "best",
        "time_us": race.time_us(name),
        "behind": found.behind.relative,
        "rounds": found.rounds,
    }


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
