"""A search of tunables on a GPU: variants are checked once, halved shape by shape, and the best of each is confirmed.

Every variant has a process of its own, as that of a trial has; the base has two. A variant that is wrong at any input is timed
nowhere. One that hangs or breaks its process costs itself alone.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncuflow.experiments import build, record
from ncuflow.experiments.choices import Variant, declared, listed, write
from ncuflow.experiments.variant import Overlay, difference, lay, read
from ncuflow.format import with_unit
from ncuflow.gpu import nvml
from ncuflow.io import CommandError, JsonObject, clean, scratch
from ncuflow.race import measure, rounds
from ncuflow.race.eta import SECONDS, Eta, Tell, halving_s
from ncuflow.race.record import CheckedCase, Relative, TrialTiming, VariantOutcome
from ncuflow.race.rounds import AA, ALPHA, RUNGS, Halving
from ncuflow.race.sides import BaseError, SharedSide, Side, SideError, burst, of_base
from ncuflow.run import FATAL
from ncuflow.sweep.points import Planned
from ncuflow.target import contract, launch

DEFAULT = "default"
FRESH = 2  # the seed of the confirmation's inputs; checks and halving take those before it
TOGETHER = 4  # variants that are checked at once: each has the inputs, and their reference
# Of the GPU beside a process's inputs: its context, the flushed buffer, a reference.
CONTEXT_BYTES = 3 << 30
Points = Mapping[Variant, Mapping[str, Planned]]  # of variants, by the id of the shape
Edits = tuple[tuple[str, int], ...]


@dataclass
class SearchedVariant:
    """A variant on its way. points: its own, by the id of the shape; outcome: what it has done wrong; skipped: why it cannot run,
    by shape."""

    variant: Variant
    side: Side
    points: Mapping[str, Planned]
    outcome: VariantOutcome | None = None
    reason: str | None = None
    skipped: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.variant.name

    def fail(self, error: SideError) -> None:
        self.outcome, self.reason = measure.failure(error), str(error)


@dataclass
class SearchRun:
    """A search on its sides. limit_s: of one request; tell: how far it is."""

    target: contract.Target
    base: Side
    control: Side
    variants: Sequence[SearchedVariant]
    effect: float
    limit_s: float
    tell: Eta
    clock: Callable[[], float] = time.monotonic
    shapes: int = 1  # of the run: the chance of a false winner is divided among them

    def check(self) -> None:
        """Hold every variant against the reference at all its points and their edges, some at a time.

        Raises BaseError where the base is lost.
        """
        base = SharedSide(self.base)
        ready = [one for one in self.variants if one.outcome is None]

        def checked(one: SearchedVariant) -> SearchedVariant:
            sides = measure.Sides(base, one.side, self.control, self.limit_s)
            points = list(one.points.values())
            trials = measure.checked(sides, self.target, points, lambda line: None)
            for shape, trial in zip(one.points, trials, strict=True):
                if trial.outcome in ("wrong", "error", "lost") and one.outcome is None:
                    one.outcome, one.reason = trial.outcome, trial.reason  # type: ignore[assignment]
                elif trial.outcome == "skipped":
                    one.skipped[shape] = str(trial.reason)
            return one

        with ThreadPoolExecutor(TOGETHER) as pool:
            for done, one in enumerate(pool.map(checked, ready), 1):
                self.tell.advance(done / len(ready))
                said = f"{one.outcome}: {one.reason}" if one.outcome else "right"
                self.tell(f"{one.name}: {said}")
        self.tell.ended()

    def search(self, shape: Planned, budget_s: float | None) -> record.SearchedShape:
        """The variants of a shape halved, and the best that is left confirmed. budget_s: of the
        halving's rounds, None without such a limit. Raises BaseError where the default, which ran before, no longer does."""
        here = {one.name: one for one in self.variants if shape.id in one.points}
        found = record.SearchedShape(
            shape=shape.id, params=dict(shape.params), found="none", candidates=[]
        )
        with of_base():
            asked = self.base.ask("check", self.limit_s, point=shape.as_dict())
        default = CheckedCase.model_validate(asked)
        ready = {
            name: one
            for name, one in here.items()
            if one.outcome is None and shape.id not in one.skipped
        }
        race = None
        if default.status != "ok":
            found.reason = f"the default: {default.reason}"
        elif ready:
            race = self._halved(shape, ready, budget_s)
            found.rounds, found.default_us = race.rounds, race.time_us(DEFAULT)
            self._confirm(shape, race, here, found)
        if found.candidate is None:
            found.reason = found.reason or "no variant could be timed"
        fared = [_fared(shape, one, race) for one in here.values()]
        found.candidates = sorted(
            fared, key=lambda one: (one.against is None, one.against and one.against.estimate)
        )
        self.tell.ended()
        return found

    def _halved(
        self, shape: Planned, ready: Mapping[str, SearchedVariant], budget_s: float | None
    ) -> Halving:
        """Rounds in turns until the halving is over, or its time is up."""
        race = Halving([DEFAULT, *ready], DEFAULT, self.shapes, self.effect)
        sides = {DEFAULT: self.base, DEFAULT + AA: self.control}
        for side in sides.values():
            with of_base():
                side.ask("open", self.limit_s, point=shape.as_dict())
        for name, one in ready.items():
            sides[name] = one.side
            try:
                one.side.ask("open", self.limit_s, point=one.points[shape.id].as_dict())
            except SideError as error:
                one.fail(error)
                race.fail(name)
        until = None if budget_s is None else self.clock() + budget_s

        def timed(name: str) -> float:
            if name in ready:
                return burst(sides[name], self.limit_s)[0]
            with of_base():
                return burst(sides[name], self.limit_s)[0]

        def after(left: set[str], over: bool) -> None:
            if race.rounds in RUNGS or over:
                self.tell(
                    f"{shape.id}: {race.rounds} rounds, {len(race.ranking)} variants are left"
                )
            for name in [*left, *(race.running if over else ())]:
                with suppress(SideError):
                    sides[name].ask("close", self.limit_s)

        rounds.run(
            race,
            timed,
            lambda: until is not None and self.clock() > until,
            lambda name, error: ready[name].fail(error),
            after,
        )
        return race

    def _confirm(
        self,
        shape: Planned,
        race: Halving,
        here: Mapping[str, SearchedVariant],
        found: record.SearchedShape,
    ) -> None:
        """Hold the best variant against the default in turns, on inputs that neither the checks nor the halving had; the next
        best where it fails there."""
        if not race.ranking or race.rounds < 2:
            return
        for name in race.best({name: one.variant.departs for name, one in here.items()}):
            one = here[name]
            self.tell(f"{shape.id}: {name} on fresh inputs")
            try:
                outcome, timing = self._confirmed(shape, one)
            except SideError as error:
                one.fail(error)
                continue
            if timing is not None:
                found.candidate, found.confirmed, found.default_us = name, timing, timing.base_us
                found.found = outcome
                found.price = regret(timing) if found.found == "winner" else None
                return

    def _confirmed(self, shape: Planned, one: SearchedVariant) -> tuple[Any, TrialTiming | None]:
        """What a variant is at a shape, on fresh inputs, and its times; without, where it is not right there, which is noted."""
        own = one.points[shape.id]
        asked = one.side.ask("check", self.limit_s, point=own.as_dict(), seeds=[FRESH])
        case = CheckedCase.model_validate(asked)
        if case.status != "ok":
            one.outcome, one.reason = case.status, f"on fresh inputs: {case.reason}"
            return None, None
        sides = measure.Sides(self.base, one.side, self.control, self.limit_s)
        found = measure.in_turns(sides, shape, own, self.effect, self.shapes, self.tell, seed=FRESH)
        verdicts = {"faster": "winner", "undecided": "undecided"}
        return verdicts.get(found.outcome, "default"), found.timing


def regret(timing: TrialTiming) -> Relative:
    """What the default takes longer than the winner, from the winner's time against the default's."""
    change = timing.change
    return Relative(
        estimate=1 / (1 + change.estimate) - 1,
        low=1 / (1 + change.high) - 1,
        high=1 / (1 + change.low) - 1,
    )


def _fared(shape: Planned, one: SearchedVariant, race: Halving | None) -> record.VariantAtShape:
    """How a variant fared at a shape."""
    found = record.VariantAtShape(
        name=one.name, point=one.points[shape.id].id, fate=one.outcome or "kept", reason=one.reason
    )
    if shape.id in one.skipped and one.outcome is None:
        found.fate, found.reason = "skipped", one.skipped[shape.id]
    if race is None or len(race.times.get(one.name, ())) < 2:
        return found
    found.rounds, found.time_us = len(race.times[one.name]), race.time_us(one.name)
    found.against = race.against(one.name, DEFAULT).relative
    if one.name in race.left:
        found.fate = "left"
    return found


# --- on this machine --------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchPlan:
    """What is searched. only: tunables; None of all; variants: at most; seconds: of the rounds of all shapes together."""

    target: contract.Target
    shapes: Sequence[Planned]
    only: Collection[str] | None
    variants: int
    seconds: float | None
    effect: float
    patience_s: float
    jobs: int | None


def measured(plan: SearchPlan, installed: Path, tell: Tell) -> record.Search:
    """The record of a search. Raises CommandError where nothing can be compiled or timed."""
    target, shapes = plan.target, plan.shapes
    there, tunables = declared(target, shapes, installed, plan.only)
    for one in tunables:
        if one.missing:
            tell(f"{one.name}: not there in this FlashInfer: {one.missing}")
    everything = listed(target, shapes, there, plan.only)
    tried = everything[: plan.variants][: _that_fit(target, shapes)]
    if not tried:
        raise CommandError(f"{target.name}: no tunable means anything at these shapes", FATAL)
    tell(f"{with_unit(len(tried), 'variants')} at {with_unit(len(shapes), 'shapes')}")
    at = {variant: variant.points(target, shapes, there) for variant in tried}
    with ExitStack() as stack:
        overlays = {}
        for edits in dict.fromkeys(variant.edits for variant in tried if variant.edits):
            folder = stack.enter_context(scratch())
            write(dict(edits), there, installed, folder / "edits")
            overlays[edits] = lay(read(folder / "edits", installed), installed, folder / "overlay")
        records = {variant: _record(variant, overlays, installed) for variant in tried}
        try:
            for variant, error in _broken(plan, installed, at, overlays, tell).items():
                records[variant].reason = f"does not compile: {error.reason}"
                records[variant].compile_error = error.complaint
            ready = [variant for variant in tried if records[variant].reason is None]
            if not ready:
                first = str(next(iter(records.values())).reason)
                reason = first.removeprefix("does not compile: ")
                raise CommandError(f"no variant compiles: {reason}", FATAL)
            laid = [overlays.get(v.edits) or Overlay(installed, None, frozenset()) for v in ready]
            about, found, ran = _run(plan, at, ready, laid, tell)
        except (BaseError, SideError) as error:
            raise CommandError(clean(str(error)), FATAL) from None
    for variant_run in ran:
        if variant_run.outcome is not None:
            records[variant_run.variant].reason = f"{variant_run.outcome}: {variant_run.reason}"
    return record.Search(
        **about,
        target=target.name,
        effect=plan.effect,
        alpha=ALPHA,
        knobs=tunables,
        beyond_budget=len(everything) - len(tried),
        candidates=list(records.values()),
        shapes=found,
    )


def _that_fit(target: contract.Target, shapes: Sequence[Planned]) -> int | None:
    """How many variants the GPU's memory holds beside the default, which is there twice, at the largest shape; None where it
    does not say."""
    mebibytes = (nvml.first().facts() or {}).get("memory_mib")
    if mebibytes is None:
        return None
    needed = target.memory or (lambda params: target.work(params).bytes)
    each = CONTEXT_BYTES + max(needed(shape.params) for shape in shapes)
    return max(1, int(launch.MEMORY_SHARE * mebibytes * 2**20 / each) - 2)


def _record(
    one: Variant, overlays: Mapping[Edits, Overlay], installed: Path
) -> record.SearchedCombination:
    """What is known of a variant before it ran."""
    return record.SearchedCombination(
        name=one.name,
        edits=dict(one.edits),
        settings=dict(one.settings),
        diff=difference(overlays[one.edits], installed) if one.edits else None,
    )


def _broken(
    plan: SearchPlan, installed: Path, at: Points, overlays: Mapping[Edits, Overlay], tell: Tell
) -> dict[Variant, build.NotCompiledError]:
    """Compile the modules of the default and of all variants in one graph; the variants that do not compile."""
    spare = {point.id: point for points in at.values() for point in points.values()}
    of_edits = [
        {p.id: p for one, points in at.items() if one.edits == edits for p in points.values()}
        for edits in overlays
    ]
    changes, base = build.built(
        plan.target,
        plan.shapes,
        installed,
        list(overlays.values()),
        plan.jobs,
        tell,
        spare=list(spare.values()),
        each=[list(points.values()) for points in of_edits],
    )
    failing = dict(zip(overlays, (change.failing for change in changes), strict=True))
    broken = {}
    for one, points in at.items():
        why = failing.get(one.edits, base)
        errors = [why[point.id] for point in points.values() if point.id in why]
        if errors:
            broken[one] = errors[0]
    return broken


def _run(
    plan: SearchPlan, at: Points, ready: Sequence[Variant], laid: Sequence[Overlay], tell: Tell
) -> tuple[JsonObject, list[record.SearchedShape], Sequence[SearchedVariant]]:
    """Check, halve and confirm, on a GPU that nobody else uses meanwhile: (where, the shapes, how the variants fared)."""
    target, shapes = plan.target, plan.shapes
    with build.bench(target.name, laid, plan.patience_s, tell) as sides, ExitStack() as stack:
        gpu = sides.base.ask("gpu", build.START_S)
        ran = [
            _started(one, at[one], sides, place, overlay, stack)
            for place, (one, overlay) in enumerate(zip(ready, laid, strict=True))
        ]
        inputs = [measure.cases(target, p) for one in ran for p in one.points.values()]
        halvings = [halving_s(sum(shape.id in one.points for one in ran)) for shape in shapes]
        checks = sum(map(len, inputs)) / TOGETHER * SECONDS["check"]
        eta = Eta(tell, [checks, *halvings])
        run = SearchRun(target, sides.base, sides.control, ran, plan.effect, plan.patience_s, eta)
        run.shapes = len(shapes)
        run.check()
        seconds = None if plan.seconds is None else plan.seconds / len(shapes)
        found = []
        for shape in shapes:
            found.append(run.search(shape, seconds))
            eta(f"{shape.id}: {found[-1].found}")
    return record.head(gpu["facts"]["name"], gpu["driver"]), found, ran


def _started(
    one: Variant,
    points: Mapping[str, Planned],
    sides: build.VariantBench,
    place: int,
    overlay: Overlay,
    stack: ExitStack,
) -> SearchedVariant:
    """A variant with its process, which lives as long as the stack."""
    found = SearchedVariant(one, stack.enter_context(sides.of(place)).change, points)
    try:
        build.roots_of(found.side, overlay.package)
        found.side.ask("gpu", build.START_S)
    except SideError as error:
        found.fail(error)
        found.reason = build.without_folders(str(error), overlay)
    return found
