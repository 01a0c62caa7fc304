"""The modules of a trial: those of the base, and of each change what it reaches, compiled in one graph.

Of several changes all files are compiled at once, as many as there are jobs; one that does not compile costs its change
alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ncuflow.format import with_unit
from ncuflow.gpu import nvml
from ncuflow.io import clean
from ncuflow.runner import builds
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target
from ncuflow.trial import code, course
from ncuflow.trial.overlay import Overlay
from ncuflow.trial.progress import watched
from ncuflow.trial.reach import Module, Roots, compiling, reached, reuse
from ncuflow.trial.record import CompiledFile, CompileError, ModuleTrial
from ncuflow.trial.sides import Answer, SideError, TrialSide, started

BUILD_S = 3600.0  # that all modules of a command may take
START_S = 300.0  # to load torch and FlashInfer, and to generate sources
Tell = Callable[[str], None]


@dataclass
class NotCompiledError(Exception):
    """The change does not compile, or cannot be imported."""

    reason: str
    complaint: CompileError | None = None


Failing = dict[str, NotCompiledError]  # points whose modules do not compile, by id


@dataclass
class _Change:
    """A change whose modules are made. cases: of its points; anew: the modules that it reaches, with why; failing: cases, by
    id."""

    overlay: Overlay
    side: TrialSide
    cases: list[Answer]
    modules: list[Module] = field(default_factory=list)
    anew: Mapping[str, str] = field(default_factory=dict)
    failing: Failing = field(default_factory=dict)

    def fail(self, error: SideError) -> None:
        """It cannot be imported, or is lost: no case of it compiles."""
        reason = NotCompiledError(without_folders(str(error), self.overlay))
        self.failing = {case["id"]: reason for case in self.cases}


@dataclass
class BuiltChange:
    """What became of a change's modules: their records, unless points fail."""

    modules: list[ModuleTrial]
    failing: Failing


def built(
    target: Target,
    planned: Sequence[Planned],
    installed: Path,
    overlays: Sequence[Overlay],
    jobs: int | None,
    tell: Tell,
    spare: Sequence[Planned] = (),
    each: Sequence[Sequence[Planned]] | None = None,
) -> tuple[list[BuiltChange], Failing]:
    """Compile the modules of the base and of every change; those that a change does not reach are copies of the base's.

    spare: further points, which the base need not be able to compile; each: of every change the points that need it, of
    both; all that are planned unless given. Returns what became of each change, and the spare points at which the base
    fails. Raises course.BaseError where it fails at a planned one.
    """
    jobs = jobs or len(os.sched_getaffinity(0))
    cases = _cases(target, [*planned, *spare], tell)
    needed, *of_changes = (
        [case.as_dict() for point in some for case in cases[point.id]]
        for some in [planned, *(each or [planned] * len(overlays))]
    )
    entries = [case.as_dict() for some in cases.values() for case in some]
    with ExitStack() as stack:
        base = stack.enter_context(started(target.name))
        changes = [
            _Change(o, stack.enter_context(started(target.name, o.package, own(o))), some)
            for o, some in zip(overlays, of_changes, strict=True)
        ]
        pool = stack.enter_context(ThreadPoolExecutor(max(1, min(jobs, len(changes)))))
        prepared = pool.map(_prepare, changes)
        must = {case["id"] for case in needed}
        roots, modules, lacking = _base(base, installed, entries, must, jobs, tell)
        for change, theirs in zip(changes, list(prepared), strict=True):
            if theirs is not None:
                change.anew = reached(modules, change.modules, (roots, theirs), change.overlay)
                shared = {module.name for module in change.modules}
                reuse([m for m in modules if m.name in shared], change.anew, change.overlay)
        anew = [
            module for change in changes for module in change.modules if module.name in change.anew
        ]
        whose = "the change" if len(changes) == 1 else with_unit(len(changes), "changes")
        tell(f"compiling {with_unit(len(anew), 'modules')} of {whose}")
        with watched(tell, [module.folder for module in anew]):
            if len(changes) > 1 and anew:
                _compile(base, anew, jobs)
            share = max(1, jobs // max(1, len(changes)))
            list(pool.map(lambda change: _finish(change, share), changes))
        libraries = {module.name: module.library for module in modules}
        told = list(pool.map(lambda change: _told(change, libraries), changes))
    made = [
        BuiltChange(modules, _by_point(change.failing, cases))
        for change, modules in zip(changes, told, strict=True)
    ]
    return made, _by_point(lacking, cases)


def _cases(target: Target, points: Sequence[Planned], tell: Tell) -> dict[str, list[Planned]]:
    """What is launched of each point, by its id; of one that this GPU cannot run, nothing."""
    every = {point.id: point for point in points}
    here = builds.capabilities(os.environ, nvml.capabilities)
    able = builds.buildable(target, list(every.values()), here, tell)
    return {id: course.cases(target, p) if p in able else [] for id, p in every.items()}


def _by_point(failing: Failing, cases: Mapping[str, Sequence[Planned]]) -> Failing:
    """Why points do not compile, from why cases do not."""
    found = {
        point: [failing[case.id] for case in some if case.id in failing]
        for point, some in cases.items()
    }
    return {point: errors[0] for point, errors in found.items() if errors}


def own(overlay: Overlay) -> dict[str, str]:
    """Of the change's sides: what it compiles is nobody else's."""
    workspace = overlay.workspace
    return {} if workspace is None else {"FLASHINFER_WORKSPACE_BASE": str(workspace)}


def roots_of(side: TrialSide, package: Path) -> Roots:
    """Where a side has its FlashInfer. Raises SideError where it loads another than it should."""
    found = side.ask("hello", START_S)
    if Path(found["package"]).resolve() != package.resolve():
        raise SideError(f"Python finds another FlashInfer first, in {found['package']}")
    return Roots(package, Path(found["workspace"]))


def without_folders(text: str, overlay: Overlay) -> str:
    """A text without the folders of the overlay."""
    for folder in filter(None, (overlay.package, overlay.workspace)):
        for spelled in (folder.resolve(), folder):
            text = text.replace(f"{spelled}/", "")
    return clean(text)


def _base(
    side: TrialSide,
    installed: Path,
    entries: list[Answer],
    needed: Set[str],
    jobs: int,
    tell: Tell,
) -> tuple[Roots, list[Module], Failing]:
    """The base's modules, compiled where they were not yet, and the cases that are not needed and fail, by id."""
    try:
        roots = roots_of(side, installed)
        tell("compiling what of the base is not compiled yet")
        modules = _modules(side, entries)
        with watched(tell, [module.folder for module in modules]):
            failed = side.ask("build", BUILD_S, jobs=jobs)["failed"]
    except SideError as error:
        raise course.BaseError(f"the base: {error}") from None
    for what in failed:
        if needed & set(what["points"]):
            raise course.BaseError(f"the base: {unbuilt(what)}")
    lacking = _by_case(failed, Overlay(installed, roots.workspace, frozenset()))
    without = {what["name"] for what in failed}
    return roots, [module for module in modules if module.name not in without], lacking


def unbuilt(what: Answer) -> str:
    """One of the things that a side could not build."""
    return ": ".join(filter(None, (what["name"], what["reason"])))


def _by_case(failed: Sequence[Answer], overlay: Overlay) -> Failing:
    """Why cases do not compile, by id."""
    found: Failing = {}
    for what in failed:
        error = NotCompiledError(*_complaint(what, overlay))
        found |= {case: error for case in what["points"] if case not in found}
    return found


def _prepare(change: _Change) -> Roots | None:
    """Generate the sources of a change's modules; None where it cannot be imported, or fails at that."""
    try:
        roots = roots_of(change.side, change.overlay.package)
        change.modules = _modules(change.side, change.cases)
    except SideError as error:
        change.fail(error)
        return None
    return roots


def _compile(base: TrialSide, modules: Sequence[Module], jobs: int) -> None:
    """Compile modules of changes in one graph, by the base's side: in the environment that its own were compiled in."""
    said = [module.model_dump(mode="json") for module in modules]
    try:
        base.ask("compile", BUILD_S, modules=said, jobs=jobs)
    except SideError as error:
        raise course.BaseError(f"the base: {error}") from None


def _finish(change: _Change, jobs: int) -> None:
    """Build what the graph of all did not, and note the compiler's first complaint of each module."""
    if change.failing:
        return
    try:
        failed = change.side.ask("build", BUILD_S, jobs=jobs)["failed"]
    except SideError as error:
        change.fail(error)
    else:
        change.failing = _by_case(failed, change.overlay)


def _told(change: _Change, libraries: Mapping[str, Path]) -> list[ModuleTrial]:
    """The records of a change's modules; of those that were compiled anew, their code beside the base's."""
    found: list[ModuleTrial] = []
    if change.failing:
        return found
    for module in change.modules:
        why = change.anew.get(module.name)
        trial = ModuleTrial(name=module.name, compiled=why is not None, why=why)
        found.append(trial)
        if trial.compiled:
            _timed(trial, module)
        if trial.compiled and module.name in libraries:
            code.compare(trial, libraries[module.name], module.library)
        elif trial.compiled:
            trial.not_compared = "the base has no module of this name"
    return found


def _timed(trial: ModuleTrial, module: Module) -> None:
    """Note where the time of a module's compilation went."""
    took = compiling(module)
    if took:
        trial.compile_s = round(
            max(end for _, end in took.values()) - min(b for b, _ in took.values()), 1
        )
    trial.files = sorted(
        (
            CompiledFile(name=path.name, seconds=round(end - begin, 1))
            for path, (begin, end) in took.items()
            if path != module.library
        ),
        key=lambda file: -file.seconds,
    )


def _modules(side: TrialSide, entries: list[Answer]) -> list[Module]:
    found = side.ask("modules", START_S, points=entries)["modules"]
    return [Module.model_validate(module) for module in found]


def _complaint(failed: Answer, overlay: Overlay) -> tuple[str, CompileError | None]:
    """Why a module does not compile, and what the compiler said first, its file as the change names it."""
    if failed["complaint"] is None:
        return without_folders(unbuilt(failed), overlay), None
    found = CompileError.model_validate(failed["complaint"])
    # Names of the user are masked in what a compiler says, so its folders are told by their last part.
    assert overlay.workspace is not None
    for folder in (overlay.package.relative_to(overlay.package.parents[1]), overlay.workspace.name):
        found.file = found.file.rpartition(f"/{folder}/")[2]
    found.file, found.message = clean(found.file), clean(found.message)
    return f"{found.file}:{found.line}: {found.message}", found
