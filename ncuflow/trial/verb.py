"""A change of FlashInfer: is it still right? Is it faster, where, by how much, and why?

    ncuflow try CHANGE… --target TARGET [--points points.json | --blocks JSON] [--effect 2%] [--json out.json]

CHANGE is a unified patch against FlashInfer, or a folder that is laid over it. It is made in a copy: the installed
package stays as it is. Modules that it reaches are compiled anew, by the flags of the base. Each point is held against
its float32 reference, also at inputs where kernels go wrong; then base and change are timed in turns, until it is
known whether the change matters. Where ncu is there, it counts both sides. A change is code, and runs as the user who tries it.
Several changes are tried one after the other, and ranked; the exit status is that of the first in rank.

exit  0 faster or the same    1 it does not compile, or nothing could be run    2 bad input    3 slower somewhere
      4 wrong somewhere, in error, or it did not end    5 nothing is slower, and some are not decided
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncuflow import answer
from ncuflow.format import with_unit
from ncuflow.gpu import nvml, turns
from ncuflow.io import CommandError, UsageError, clean, emit, scratch, write_json
from ncuflow.origin import flashinfer_version, now, package_folder
from ncuflow.runner import builds
from ncuflow.runner.job import FATAL
from ncuflow.sweep.plan import objects
from ncuflow.sweep.points import Planned, points, read_points
from ncuflow.target.contract import Target, known, load
from ncuflow.trial import code, course
from ncuflow.trial.change import PACKAGE, Patch, read
from ncuflow.trial.overlay import Overlay, lay
from ncuflow.trial.reach import Module, Roots, reached, reuse
from ncuflow.trial.record import (
    EXIT,
    WORST,
    ChangeRecord,
    CompileError,
    ModuleTrial,
    Trial,
    Trials,
)
from ncuflow.trial.screen import ranked, ranking, screen
from ncuflow.trial.sequential import ALPHA
from ncuflow.trial.sides import LostError, Process, SideError, TrialSide, program, started
from ncuflow.trial.why import CountedSide, explain

ANSWER = Trial | Trials
SCREEN = Path("-")  # for --json: standard output
BUILD_S = 3600.0  # that all modules of a side may take
START_S = 300.0  # to load torch and FlashInfer, and to generate sources
LIMIT_S = 300.0  # of a point's check, or of one burst


@dataclass
class NotCompiledError(Exception):
    """The change does not compile, or cannot be imported."""

    reason: str
    complaint: CompileError | None = None


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "change",
        type=Path,
        nargs="+",
        metavar="CHANGE",
        help="unified patch, or folder of changed files",
    )
    add("--target", required=True, help=f"kernel target: {', '.join(known())}")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--points", type=Path, help="points.json (default: the target's own point)")
    which.add_argument("--blocks", type=objects, help="blocks of a sweep, as JSON")
    add(
        "--effect", type=effect, default=0.02, help="change of the time that matters (default: 2%%)"
    )
    add(
        "--json",
        type=Path,
        metavar="OUT",
        nargs="?",
        const=SCREEN,
        help="write the record of the trial, or trials, as well; without OUT, print it in place of the screen",
    )
    add(
        "--limit",
        type=float,
        default=LIMIT_S,
        help="seconds of one check, or of one burst of launches",
    )
    add("--no-counters", action="store_true", help="do not run ncu, which says why times differ")
    add("--jobs", type=int, help="files compiled at once (default: one per core)")


def effect(text: str) -> float:
    """A relative change of 1 from "2%" or "0.02". Raises ArgumentTypeError unless it lies between 0.1 and 50 %."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0.001 <= value <= 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is no change between 0.1% and 50%")
    return value


def run(args: argparse.Namespace) -> int:
    target, planned = _points(args)
    if not args.limit > 0 or (args.jobs is not None and args.jobs < 1):
        raise UsageError("--limit and --jobs are above 0")
    installed = package_folder(PACKAGE)
    if installed is None:
        raise CommandError("flashinfer is not installed", FATAL)
    changes = [read(path, installed) for path in args.change]
    nvml.visible()  # who has no GPU need not wait for a compiler to hear of it
    trials: list[Trial] = []
    with ExitStack() as stack:
        # All are laid first: one that does not apply is told before another is compiled.
        laid = [lay(change, installed, stack.enter_context(scratch())) for change in changes]
        for path, change, overlay in zip(args.change, changes, laid, strict=True):
            trial = _begun(clean(path.name), change, overlay, target.name, args.effect)
            _tried(trial, target, planned, installed, overlay, args)
            trials.append(trial)
            if args.json not in (None, SCREEN):
                write_json(args.json, _record(trials, len(changes)).model_dump())
            if args.json != SCREEN:
                emit(screen(trial), None)
    if args.json == SCREEN:
        answer.tell(_record(trials, len(changes)))
    elif len(trials) > 1:
        emit(ranking(trials), None)
    return EXIT[ranked(trials)[0][1].outcome]


def _record(trials: list[Trial], changes: int) -> Trial | Trials:
    """Of one change its trial, of several all that have ended, the first in rank first."""
    if changes == 1:
        return trials[0]
    return Trials(trials=[trial for _, trial in ranked(trials)])


def _begun(name: str, change: Patch, overlay: Overlay, target: str, effect: float) -> Trial:
    """The record of a trial before it, after a word of warning."""
    _tell(f"{name} is code, and runs as the user {getpass.getuser()}")
    for other in change.elsewhere:
        _tell(f"left out, for it is no file of the installed package: {other}")
    return Trial(
        change=ChangeRecord(
            name=name,
            files=sorted(clean(str(file)) for file in overlay.files),
            elsewhere=list(change.elsewhere),
        ),
        target=target,
        effect=effect,
        alpha=ALPHA,
        date=now(),
        flashinfer=flashinfer_version(),
        outcome="unchecked",
    )


def _tried(
    trial: Trial,
    target: Target,
    planned: Sequence[Planned],
    installed: Path,
    overlay: Overlay,
    args: argparse.Namespace,
) -> None:
    """Compile, check and time a change. Raises CommandError where the base fails."""
    try:
        trial.modules = _built(target, planned, installed, overlay, args.jobs)
        _measured(trial, target, planned, overlay, args)
    except NotCompiledError as error:
        trial.outcome, trial.reason = "not compiled", error.reason
        trial.compile_error = error.complaint
    except course.BaseError as error:
        raise CommandError(clean(str(error)), FATAL) from None


def _points(args: argparse.Namespace) -> tuple[Target, list[Planned]]:
    try:
        target = load(args.target)
        if args.points is not None:
            return target, read_points(args.points, target)
        return target, points(target, args.blocks or [{}])
    except ValueError as error:
        raise UsageError(str(error)) from None


def _built(
    target: Target, planned: Sequence[Planned], installed: Path, overlay: Overlay, jobs: int | None
) -> list[ModuleTrial]:
    """Compile the modules of both sides; those that the change does not reach are copies of the base's."""
    jobs = jobs or len(os.sched_getaffinity(0))
    here = builds.capabilities(os.environ, nvml.capabilities)
    able = builds.buildable(target, planned, here, _tell)
    entries = [case.as_dict() for point in able for case in course.cases(target, point)]
    with (
        started(target.name) as base,
        started(target.name, overlay.package, _own(overlay)) as other,
    ):
        try:
            roots = _roots(base, installed)
            _tell("compiling what of the base is not compiled yet")
            modules = _modules(base, entries)
            failed = base.ask("build", BUILD_S, jobs=jobs)
        except SideError as error:
            raise course.BaseError(f"the base: {error}") from None
        if failed["failed"]:
            raise course.BaseError(f"the base: {failed['failed']}: {failed['reason']}")
        try:
            sides = (roots, _roots(other, overlay.package))
            theirs = _modules(other, entries)
            why = reached(modules, theirs, sides, overlay)
            kept = reuse([m for m in modules if m.name in {t.name for t in theirs}], why, overlay)
            _tell(f"compiling {with_unit(len(why), 'modules')} of the change, {len(kept)} reused")
            failed = other.ask("build", BUILD_S, jobs=jobs)
        except SideError as error:
            raise NotCompiledError(_relative(str(error), overlay)) from None
    if failed["failed"]:
        raise NotCompiledError(*_complaint(failed, overlay))
    return [_module(m, modules, why) for m in theirs]


def _module(module: Module, base: Sequence[Module], anew: Mapping[str, str]) -> ModuleTrial:
    """The record of a module of the change; of one that was compiled anew, its code beside the base's."""
    trial = ModuleTrial(name=module.name, compiled=module.name in anew, why=anew.get(module.name))
    theirs = next((m.library for m in base if m.name == module.name), None)
    if trial.compiled and theirs is not None:
        code.compare(trial, theirs, module.library)
    elif trial.compiled:
        trial.not_compared = "the base has no module of this name"
    return trial


def _own(overlay: Overlay) -> dict[str, str]:
    """Of the change's sides: what it compiles is nobody else's."""
    return {"FLASHINFER_WORKSPACE_BASE": str(overlay.workspace)}


def _roots(side: TrialSide, package: Path) -> Roots:
    """Where a side has its FlashInfer. Raises SideError where it loads another than it should."""
    found = side.ask("hello", START_S)
    if Path(found["package"]).resolve() != package.resolve():
        raise SideError(f"Python finds another FlashInfer first, in {found['package']}")
    return Roots(package, Path(found["workspace"]))


def _modules(side: TrialSide, entries: list[dict[str, Any]]) -> list[Module]:
    found = side.ask("modules", START_S, points=entries)["modules"]
    return [Module.model_validate(module) for module in found]


def _complaint(failed: dict[str, Any], overlay: Overlay) -> tuple[str, CompileError | None]:
    """Why a module does not compile, and what the compiler said first, its file as the change names it."""
    if failed["complaint"] is None:
        return f"{failed['failed']}: {_relative(failed['reason'], overlay)}", None
    found = CompileError.model_validate(failed["complaint"])
    # Names of the user are masked in what a compiler says, so its folders are told by their last part.
    for folder in (overlay.package.relative_to(overlay.package.parents[1]), overlay.workspace.name):
        found.file = found.file.rpartition(f"/{folder}/")[2]
    found.file, found.message = clean(found.file), clean(found.message)
    return f"{found.file}:{found.line}: {found.message}", found


def _relative(text: str, overlay: Overlay) -> str:
    """A text without the folders of the overlay."""
    for folder in (overlay.package, overlay.workspace):
        for spelled in (folder.resolve(), folder):
            text = text.replace(f"{spelled}/", "")
    return clean(text)


def _measured(
    trial: Trial,
    target: Target,
    planned: Sequence[Planned],
    overlay: Overlay,
    args: argparse.Namespace,
) -> None:
    """Check and time every point on one GPU, which nobody else uses meanwhile, and conclude."""
    limit_s = args.limit
    with turns.gpu_lock() as held, ExitStack() as stack:

        def begun(package: Path | None = None) -> Process:
            own = {} if package is None else _own(overlay)
            environ = {**held.environ, **own}
            return stack.enter_context(started(target.name, package, environ, held.locks))

        # All three load their libraries at once.
        sides = course.Sides(begun(), begun(overlay.package), begun(), limit_s)
        try:
            for side in (sides.base, sides.again):
                found = side.ask("gpu", START_S)
        except SideError as error:
            raise course.BaseError(f"the base: {error}") from None
        trial.gpu, trial.driver = found["name"], found["driver"]
        try:
            _roots(sides.change, overlay.package)
            sides.change.ask("gpu", START_S)
        except SideError as error:
            trial.outcome = "lost" if isinstance(error, LostError) else "error"
            trial.reason = _relative(str(error), overlay)
            return
        trial.points = course.checked(sides, target, planned, _tell)
        course.timed(sides, planned, trial.points, trial.effect, _tell)
        stack.close()  # while ncu launches, no side is at the GPU
        if args.no_counters:
            trial.no_counters = "not asked for (--no-counters)"
        else:
            counted = _counted_sides(target, overlay)
            explain(trial, planned, counted, held, START_S + limit_s, _tell)
    found_here = {point.outcome for point in trial.points}
    trial.outcome = next(outcome for outcome in WORST if outcome in found_here)


def _counted_sides(target: Target, overlay: Overlay) -> dict[str, CountedSide]:
    """Base and change for ncu."""
    installed = package_folder(PACKAGE)
    assert installed is not None
    base = program(target.name)
    change = program(target.name, overlay.package, _own(overlay))
    return {
        "base": CountedSide(*base, installed),
        "change": CountedSide(*change, overlay.package),
    }


def _tell(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)
