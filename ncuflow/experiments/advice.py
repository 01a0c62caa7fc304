"""Advice: what is asked for, and which choice of each shape is fastest on this machine's GPU, or in a recording.

On a GPU choices are prepared and checked, raced, and the best ones' plan() timed. One process does it, and a choice that hangs
or breaks it costs itself alone: a fresh process goes on with the others.
"""

import os
import pprint
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import monotonic
from typing import Any

from ncuflow.experiments import audit, choices, recorded
from ncuflow.experiments.record import Advice, AdvisedChoice, AdvisedShape, head
from ncuflow.gpu import lock, nvml
from ncuflow.io import CommandError, JsonObject, UsageError, clean, resource
from ncuflow.race import measure, rounds
from ncuflow.race.eta import tell
from ncuflow.race.rounds import AA, ALPHA, Race
from ncuflow.race.sides import (
    GaveUpError,
    LostError,
    Session,
    SideError,
    burst,
    started,
    timing_core,
)
from ncuflow.record import Check
from ncuflow.run import FATAL
from ncuflow.sweep import workloads
from ncuflow.sweep.points import Planned, of_target, unable
from ncuflow.target.contract import Target, known, load

BUILD_S = 3600.0
RECORDED = "`ncuflow advise --recorded`"
BUDGET_S = 5.0
COLD = "time_cold_us"
Cases = list[tuple[Target, list[Planned]]]  # targets with their shapes


@dataclass(frozen=True)
class ShapesAsked:
    """What is advised on. targets: those to take, of several; also: what is free beside what targets declare."""

    targets: Sequence[str]
    also: Mapping[str, Sequence[Any]]
    workload: Sequence[Path] | None = None
    points: Sequence[Path] | None = None
    blocks: Sequence[Mapping[str, Any]] | None = None

    def cases(self) -> tuple[Cases, list[str]]:
        """(targets with their shapes, a line for each case that no target measures)."""
        refused: list[str] = []
        try:
            wanted = [load(name).name for name in self.targets]
        except ValueError as error:
            raise UsageError(str(error)) from None
        if self.points is not None:
            found = workloads.of_points(self.points)
        elif self.workload is not None:
            found, refused = workloads.of_files(self.workload)
        elif len(wanted) == 1:
            found = {wanted[0]: of_target(wanted[0], None, self.blocks)[1]}
        else:
            raise UsageError(
                "one TARGET, or --workload, --points, --recorded or --audit, says what is advised"
            )
        targets = [load(name) for name in found if name in (wanted or found)]
        if not targets:
            raise UsageError("none of the targets that were asked for is among the shapes")
        self.check_free(targets)
        return [(t, choices.shapes(t, found[t.name], self.also)) for t in targets], refused

    def check_free(self, targets: Sequence[Target]) -> None:
        """Raises UsageError where something is to be free that none of the targets has."""
        try:
            choices.known_to(targets, self.also)
        except ValueError as error:
            raise UsageError(f"--also: {error}") from None


@dataclass(frozen=True)
class RaceLimits:
    """How choices are timed. effect: the minimum, of 1; patience_s: of a check or a burst, after which a choice
    hangs; budget_s: of a shape's rounds; jobs: files compiled at once."""

    effect: float
    patience_s: float
    budget_s: float = BUDGET_S
    jobs: int | None = None


def of_recording(path: Path, asked: ShapesAsked, effect: float) -> Advice:
    """The advice of a recording, or one that was written before."""
    if path.is_dir():
        named = [known()[name] for name in asked.targets or known() if name in known()]
        asked.check_free(named)
        return recorded.advise(path, asked.targets or None, asked.also, COLD, effect)
    found = recorded.read(path)
    found.shapes = [s for s in found.shapes if s.target in (asked.targets or (s.target,))]
    found.rules = choices.rules(found.shapes, found.metric)
    return found


def audited(store: Path, names: Sequence[str], limits: RaceLimits) -> audit.Audit:
    """What FlashInfer's autotuner stored, held against the runners-up on this GPU."""
    stored = audit.read_store(store)
    targets = [load(name) for name in names or known()]
    with racing(limits) as session:
        each = audit.StoreAudit(session, targets, len(stored), limits.effect, tell)
        entries = [each.audited(entry) for entry in stored]
        about = head(session.facts["name"], session.driver)
    return audit.Audit(**about, effect=limits.effect, alpha=ALPHA, entries=entries)


# --- on a GPU ---------------------------------------------------------------------------------


@contextmanager
def racing(limits: RaceLimits) -> Iterator[Session]:
    """A GPU that nobody else uses, and a process on it. Raises CommandError where there is none, or it is lost for good."""
    nvml.needed(RECORDED)  # who has no GPU need not wait for a compiler to hear of it
    with lock.gpu_lock() as held, ExitStack() as stack:
        session = Session(
            lambda: stack.enter_context(started(None, None, held.environ, held.locks)),
            limits.patience_s,
            limits.budget_s,
        )
        try:
            found = session.ask("gpu")
            session.facts, session.driver = found["facts"], found["driver"]
            yield session
        except (SideError, GaveUpError) as error:
            raise CommandError(clean(str(error)), FATAL) from None


def measured(asked: ShapesAsked, limits: RaceLimits, store: Path | None = None) -> Advice:
    """The advice of a race on this machine's GPU; published through FlashInfer's autotuner into ``store``."""
    cases, refused = asked.cases()
    with racing(limits) as session:
        failed = _built(session, cases, asked.also, limits.jobs)
        number = sum(len(shapes) for _, shapes in cases)
        advised = [
            ShapeRace(session, target, shape, asked.also, number, limits.effect, tell).advised()
            for target, shapes in cases
            for shape in shapes
        ]
        if store is not None:
            _published(session, advised, store)
        about = head(session.facts["name"], session.driver)
    return Advice(
        **about,
        tier="B",
        recording=None,
        metric=COLD,
        effect=limits.effect,
        alpha=ALPHA,
        shapes=advised,
        rules=choices.rules(advised, COLD),
        refused=refused,
        failed_modules=failed,
    )


def _published(session: Session, shapes: Sequence[AdvisedShape], store: Path) -> None:
    """Let FlashInfer's autotuner store what it tunes of the advised calls, and say how many that were."""
    entries, kept, reason = 0, 0, None
    for shape in shapes:
        chosen = shape.choice(shape.advised)
        if chosen is None:
            continue
        params = {**shape.params, **chosen.settings}
        point = {"id": chosen.point, "target": shape.target, "params": params}
        found = session.ask("publish", point=point, root=str(store.absolute()))
        entries, kept = entries + found["entries"], kept + bool(found["entries"])
        reason = found["reason"] or reason
    tell(
        reason
        or f"{store}: FlashInfer's autotuner keeps {entries} choices of {kept} of {len(shapes)} shapes"
    )


def _built(session: Session, cases: Cases, also: choices.Also, jobs: int | None) -> dict[str, str]:
    """Compile what all choices need, in one graph; the modules that do not compile, with why."""
    wanted = [
        choice.as_dict()
        for target, shapes in cases
        for shape in shapes
        for choice in choices.choices(target, shape, also)
        if unable(target, choice, session.facts) is None
    ]
    tell(f"{len(wanted)} choices; compiling what of them is not compiled yet")
    jobs = jobs or len(os.sched_getaffinity(0))
    session.ask("modules", BUILD_S, points=wanted)
    failed = session.ask("build", BUILD_S, jobs=jobs)["failed"]
    return {one["name"] or ", ".join(one["points"]): one["reason"] for one in failed}


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
    core: int = field(default_factory=timing_core)

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
        one.end(measure.failure(error), str(error))
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
                times[name] += self.session.ask("host", name=name, core=self.core)["plan"]
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
        found.layers = recorded.layers(found)
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


def python_module(advice: Advice, targets: dict[str, Target]) -> str:
    """The module's text. targets: by name, those of the advice. Raises CommandError where a shape lacks what it is called by."""
    # What the record says stands in it as literals alone: whoever wrote the record writes no code.
    template = resource("templates/advised.py.txt").read_text(encoding="utf-8")
    return template.format(
        gpu=advice.gpu,
        versions=pprint.pformat(advice.versions, width=100),
        measured=advice.date,
        recording=advice.recording,
        targets=pprint.pformat(_targets(advice, targets), width=110, sort_dicts=False),
    )


def _targets(advice: Advice, targets: dict[str, Target]) -> JsonObject:
    found = {}
    for name, target in targets.items():
        shapes = [s for s in advice.shapes if s.target == name and s.advised is not None]
        if shapes:
            found[name] = _entries(target, shapes)
    return found


def _entries(target: Target, shapes: Sequence[AdvisedShape]) -> JsonObject:
    """The parameters that make a shape, and the advice of each. What a step varies is a size; heads and dimensions are a model's,
    and choose the kernel."""
    free = {name for shape in shapes for one in shape.choices for name in one.settings}
    names = [name for name in target.parameters if name not in free]
    return {
        "kinds": [name for name in names if name not in target.small],
        "sizes": [name for name in names if name in target.small],
        "shapes": [_entry(shape, names) for shape in shapes],
    }


def _entry(shape: AdvisedShape, names: Sequence[str]) -> JsonObject:
    chosen = shape.choice(shape.advised)
    if chosen is None or not shape.params.keys() >= set(names):
        raise CommandError(f"{shape.shape}: the advice lacks its choice, or a parameter of it")
    return {
        "shape": {name: shape.params[name] for name in names},
        "settings": chosen.settings,
        "asked": chosen.asked,
        "why": _why(shape),
    }


def _why(shape: AdvisedShape) -> str:
    if shape.advised == shape.shape:
        return f"{shape.outcome}: no other choice is significantly faster than the default at {shape.shape}"
    if shape.regret is None:
        return f"{shape.outcome} at {shape.shape}, where the default could not be timed"
    low, high = (100 * bound for bound in (shape.regret.low, shape.regret.high))
    return f"{shape.outcome} at {shape.shape}, where the default takes {low:.1f} to {high:.1f} % longer"
