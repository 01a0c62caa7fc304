"""A search of tunables on a GPU: variants are checked once, halved shape by shape, and the best of each is confirmed.

Every variant has a process of its own, as that of a trial has; the base has two. A variant that is wrong at any input is timed
nowhere. One that hangs or breaks its process costs itself alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from ncuflow.evidence.provenance import origin
from ncuflow.experiments.advise import relative
from ncuflow.experiments.build import (
    START_S,
    NotCompiledError,
    TrialBench,
    bench,
    built,
    roots_of,
    without_folders,
)
from ncuflow.experiments.choices import Candidate, FoundTunable, declared, listed, write
from ncuflow.experiments.record import (
    CandidateStanding,
    Search,
    SearchedCandidate,
    SearchedShape,
    Standing,
)
from ncuflow.experiments.variant import Overlay, difference, lay, read
from ncuflow.format import with_unit
from ncuflow.gpu import nvml
from ncuflow.io import CommandError, clean, scratch
from ncuflow.model import SOFTWARE
from ncuflow.race import measure
from ncuflow.race.eta import Pace, Tell
from ncuflow.race.record import CheckedCase, MeasuredPoint, Relative, TrialTiming
from ncuflow.race.rounds import AA, RUNGS, Halving
from ncuflow.race.sequential import ALPHA
from ncuflow.race.sides import Answer, LostError, PinnedSide, SharedSide, Side, SideError
from ncuflow.run import FATAL
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target
from ncuflow.target.launch import MEMORY_SHARE

DEFAULT = "default"
FRESH = 2  # the seed of the confirmation's inputs; checks and halving take those before it
TOGETHER = 4  # candidates that are checked at once: each has the inputs, and their reference


@dataclass
class Contender:
    """A candidate on its way. points: its own, by the id of the shape; fate: what it has done wrong; skipped: why it cannot run,
    by shape."""

    candidate: Candidate
    side: Side
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
    base: Side
    again: Side
    contenders: Sequence[Contender]
    effect: float
    limit_s: float
    clock: Callable[[], float] = time.monotonic


def check_variants(on: SearchField, pace: Pace) -> None:
    """Hold every candidate against the reference at all its points and their edges, some at a time.

    Raises BaseError where the base is lost.
    """
    base, done = SharedSide(on.base), 0
    ready = [one for one in on.contenders if one.fate is None]

    def check(one: Contender) -> Contender:
        sides = measure.Sides(base, one.side, on.again, on.limit_s)
        points = list(one.points.values())
        for shape, trial in zip(
            one.points, measure.checked(sides, on.target, points, lambda line: None), strict=True
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
    sides = {DEFAULT: on.base, DEFAULT + AA: on.again}
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
    on: SearchField, race: Halving, sides: dict[str, Side], contenders: dict[str, Contender]
) -> None:
    """A round of all that are left; one in which a candidate fails does not count."""
    found: dict[str, float] = {}
    for name in race.order():
        if name not in contenders:
            found[name] = _time(_of_base(on, sides[name], "burst"), measure.BaseError)
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


def _of_base(on: SearchField, side: Side, do: str, **words: Any) -> Answer:
    try:
        return side.ask(do, on.limit_s, **words)
    except SideError as error:
        raise measure.BaseError(f"the base: {error}") from None


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
) -> MeasuredPoint:
    """A candidate at a shape, on fresh inputs: checked, and timed in turns where it is right."""
    trial = MeasuredPoint(point=shape.id, outcome="unchecked")
    change = PinnedSide(one.side, one.points[shape.id], FRESH)
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
    base, again = (PinnedSide(side, shape, FRESH) for side in (on.base, on.again))
    sides = measure.Sides(base, change, again, on.limit_s)
    measure.timed(sides, [shape], [trial], on.effect, tell, shapes)
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


CONTEXT_BYTES = (
    3 << 30
)  # of the GPU beside a process's inputs: its context, the flushed buffer, a reference
Edits = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class SearchPlan:
    """What is searched. only: knobs; None of all; candidates: at most; seconds: of the rounds of all shapes together."""

    target: Target
    shapes: Sequence[Planned]
    only: Collection[str] | None
    candidates: int
    seconds: float | None
    effect: float
    patience_s: float
    jobs: int | None


@dataclass
class MadeCandidates:
    """The candidates of a search. at: their points, by the id of the shape; overlays: by edits; broken: those that do
    not compile, with why."""

    tried: Sequence[Candidate]
    at: Mapping[Candidate, Mapping[str, Planned]]
    overlays: Mapping[Edits, Overlay]
    installed: Path
    broken: dict[Candidate, NotCompiledError] = field(default_factory=dict)

    @property
    def ready(self) -> list[Candidate]:
        return [one for one in self.tried if one not in self.broken]

    def laid(self, one: Candidate) -> Overlay:
        """What its process loads: one of its own, also where two candidates have the same edits."""
        return replace(self.overlays.get(one.edits) or Overlay(self.installed, None, frozenset()))

    def record(self, one: Candidate) -> SearchedCandidate:
        """What is known of a candidate before it ran."""
        found = SearchedCandidate(
            name=one.name,
            edits=dict(one.edits),
            settings=dict(one.settings),
            diff=difference(self.overlays[one.edits], self.installed) if one.edits else None,
        )
        if error := self.broken.get(one):
            found.reason, found.compile_error = f"does not compile: {error.reason}", error.complaint
        return found


def measured(plan: SearchPlan, installed: Path, tell: Tell) -> Search:
    """The record of a search. Raises CommandError where nothing can be compiled or timed."""
    target, shapes = plan.target, plan.shapes
    there, knobs = declared(target, shapes, installed, plan.only)
    for knob in knobs:
        if knob.missing:
            tell(f"{knob.name}: not there in this FlashInfer: {knob.missing}")
    everything = listed(target, shapes, there, plan.only)
    tried = everything[: plan.candidates][: _that_fit(target, shapes)]
    if not tried:
        raise CommandError(f"{target.name}: no knob means anything at these shapes", FATAL)
    tell(f"{with_unit(len(tried), 'candidates')} at {with_unit(len(shapes), 'shapes')}")
    with ExitStack() as stack:
        made = _made(tried, there, plan, installed, stack)
        try:
            made.broken = _broken(made, plan, tell)
            if not made.ready:
                first = next(iter(made.broken.values()))
                raise CommandError(f"no candidate compiles: {first.reason}", FATAL)
            found = _run(made, plan, tell)
        except (measure.BaseError, SideError) as error:
            raise CommandError(clean(str(error)), FATAL) from None
    found.knobs, found.beyond_budget = knobs, len(everything) - len(tried)
    return found


def _that_fit(target: Target, shapes: Sequence[Planned]) -> int | None:
    """How many candidates the GPU's memory holds beside the default, which is there twice, at the largest shape; None where it
    does not say."""
    mebibytes = (nvml.first().facts() or {}).get("memory_mib")
    if mebibytes is None:
        return None
    needed = target.memory or (lambda params: target.work(params).bytes)
    each = CONTEXT_BYTES + max(needed(shape.params) for shape in shapes)
    return max(1, int(MEMORY_SHARE * mebibytes * 2**20 / each) - 2)


def _made(
    tried: Sequence[Candidate],
    there: Sequence[FoundTunable],
    plan: SearchPlan,
    installed: Path,
    stack: ExitStack,
) -> MadeCandidates:
    """The candidates with their points, and the overlays of what they edit, which go with the stack."""
    at = {one: one.points(plan.target, plan.shapes, there) for one in tried}
    overlays = {}
    for edits in dict.fromkeys(one.edits for one in tried if one.edits):
        folder = stack.enter_context(scratch())
        write(dict(edits), there, installed, folder / "edits")
        overlays[edits] = lay(read(folder / "edits", installed), installed, folder / "overlay")
    return MadeCandidates(tried, at, overlays, installed)


def _broken(
    made: MadeCandidates, plan: SearchPlan, tell: Tell
) -> dict[Candidate, NotCompiledError]:
    """Compile the modules of the default and of all candidates in one graph; the candidates that do not compile."""
    spare: dict[str, Planned] = {}
    of_edits: dict[Edits, dict[str, Planned]] = {edits: {} for edits in made.overlays}
    for one, points in made.at.items():
        own = {point.id: point for point in points.values()}
        spare |= own
        if one.edits:
            of_edits[one.edits] |= own
    changes, base = built(
        plan.target,
        plan.shapes,
        made.installed,
        list(made.overlays.values()),
        plan.jobs,
        tell,
        spare=list(spare.values()),
        each=[list(points.values()) for points in of_edits.values()],
    )
    failing = dict(zip(made.overlays, (change.failing for change in changes), strict=True))
    broken = {}
    for one, points in made.at.items():
        why = failing.get(one.edits, base)
        errors = [why[point.id] for point in points.values() if point.id in why]
        if errors:
            broken[one] = errors[0]
    return broken


def _run(made: MadeCandidates, plan: SearchPlan, tell: Tell) -> Search:
    """Check, halve and confirm, on a GPU that nobody else uses meanwhile."""
    records = {one.name: made.record(one) for one in made.tried}
    laid = {one: made.laid(one) for one in made.ready}
    shapes: list[SearchedShape] = []
    overlays = list(laid.values())
    with (
        bench(plan.target.name, overlays, plan.patience_s, tell) as sides,
        ExitStack() as stack,
    ):
        gpu = sides.base.ask("gpu", START_S)
        on = SearchField(
            plan.target,
            sides.base,
            sides.again,
            [_contender(one, made, sides, laid[one], stack) for one in laid],
            plan.effect,
            plan.patience_s,
        )
        pace = _pace(on, plan, tell)
        check_variants(on, pace)
        for shape in plan.shapes:
            seconds = None if plan.seconds is None else plan.seconds / len(plan.shapes)
            shapes.append(searched(on, shape, len(plan.shapes), seconds, pace))
            pace.ended(len(shapes))
            pace(f"{shape.id}: {shapes[-1].found}")
        for one in on.contenders:
            if one.fate is not None:
                records[one.name].reason = f"{one.fate}: {one.reason}"
    made_by: dict[str, Any] = dict(origin(gpu["facts"]["name"], gpu["driver"]))
    return Search(
        target=plan.target.name,
        gpu=gpu["facts"]["name"],
        versions={label: made_by.get(key) for key, label in SOFTWARE.items()},
        date=str(made_by["date"]),
        effect=plan.effect,
        alpha=ALPHA,
        candidates=list(records.values()),
        shapes=shapes,
    )


def _contender(
    one: Candidate, made: MadeCandidates, sides: TrialBench, overlay: Overlay, stack: ExitStack
) -> Contender:
    """A candidate with its process, which lives as long as the stack."""
    contender = Contender(one, stack.enter_context(sides.of(overlay)).change, dict(made.at[one]))
    try:
        roots_of(contender.side, overlay.package)
        contender.side.ask("gpu", START_S)
    except SideError as error:
        contender.fail(error)
        contender.reason = without_folders(str(error), overlay)
    return contender


def _pace(on: SearchField, plan: SearchPlan, tell: Tell) -> Pace:
    points: list[Any] = [p for one in on.contenders for p in one.points.values()]
    cases = sum(len(measure.cases(plan.target, point)) for point in points)
    here = [sum(shape.id in one.points for one in on.contenders) for shape in plan.shapes]
    return Pace(tell, cases / TOGETHER, here)
