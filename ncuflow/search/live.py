"""A search on this machine's GPU: candidates laid over the installed FlashInfer, compiled, and run through the course."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ncuflow.evidence.provenance import origin
from ncuflow.format import with_unit
from ncuflow.gpu import nvml
from ncuflow.io import CommandError, clean, scratch
from ncuflow.model import SOFTWARE
from ncuflow.runner.job import FATAL
from ncuflow.search.candidates import Candidate, listed
from ncuflow.search.course import TOGETHER, Contender, SearchField, checked, searched
from ncuflow.search.knobs import FoundKnob, declared, write
from ncuflow.search.pace import Pace, Tell
from ncuflow.search.record import Search, SearchedCandidate, SearchedShape
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target
from ncuflow.target.launch import MEMORY_SHARE
from ncuflow.trial import course
from ncuflow.trial.bench import TrialBench, bench
from ncuflow.trial.building import START_S, NotCompiledError, built, roots_of, without_folders
from ncuflow.trial.change import read
from ncuflow.trial.overlay import Overlay, difference, lay
from ncuflow.trial.sequential import ALPHA
from ncuflow.trial.sides import SideError

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
        except (course.BaseError, SideError) as error:
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
    there: Sequence[FoundKnob],
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
        checked(on, pace)
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
    cases = sum(len(course.cases(plan.target, point)) for point in points)
    here = [sum(shape.id in one.points for one in on.contenders) for shape in plan.shapes]
    return Pace(tell, cases / TOGETHER, here)
