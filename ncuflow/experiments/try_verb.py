"""A change of FlashInfer: is it still right? Is it faster, where, by how much, and why?

    ncuflow try CHANGE… --target TARGET [--points points.json | --blocks JSON] [--effect 2%] [--json out.json]

CHANGE is a unified patch against FlashInfer, a folder that is laid over it, a function that takes the place of the API that
the target calls (module:function), or another FlashInfer (flashinfer==0.7.1, flashinfer@WHEEL, flashinfer@FOLDER). A patch is
made in a copy: the installed package stays as it is. Modules that it reaches are compiled anew, by the flags of the base.
Each point is held against its float32 reference, also at inputs where kernels go wrong; then base and change are timed in
turns, until it is known whether the change matters. Where ncu is there, it counts both sides. A change is code, and runs as
the user who tries it.
Several changes are compiled at once, tried one after the other, and ranked; the exit status is that of the first in rank.

exit  0 faster or the same    1 it does not compile, or nothing could be run    2 bad input    3 slower somewhere
      4 wrong somewhere, in error, or it did not end    5 nothing is slower, and some are not decided
"""

from __future__ import annotations

import argparse
import getpass
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from ncuflow import answer
from ncuflow.experiments import arguments, variant
from ncuflow.experiments.arguments import tell
from ncuflow.experiments.build import (
    START_S,
    bench,
    built,
    own,
    roots_of,
    without_folders,
)
from ncuflow.experiments.record import EXIT, ChangeRecord, PointTrial, Trial, Trials
from ncuflow.experiments.text import ranked, ranking, trial_text
from ncuflow.experiments.variant import Overlay, Patch, difference, lay, read
from ncuflow.experiments.why import CountedSide, explain, lacking
from ncuflow.gpu import nvml, turns
from ncuflow.io import CommandError, clean, emit, scratch, write_json
from ncuflow.origin import flashinfer_version, now
from ncuflow.race import measure
from ncuflow.race.eta import MeteredSide, TrialEta
from ncuflow.race.measure import failure
from ncuflow.race.record import WORST
from ncuflow.race.sequential import ALPHA
from ncuflow.race.sides import BaseError, SideError, of_base, program
from ncuflow.run import FATAL
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target, known

ANSWER = Trial | Trials
SCREEN = Path("-")  # for --json: standard output


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "change",
        type=Path,
        nargs="+",
        metavar="CHANGE",
        help="unified patch, folder of changed files, module:function in place of an API, or flashinfer==VERSION",
    )
    add("--target", required=True, help=f"kernel target: {', '.join(known())}")
    arguments.which(parser)
    add(
        "--json",
        type=Path,
        metavar="OUT",
        nargs="?",
        const=SCREEN,
        help="write the record of the trial, or trials, as well; without OUT, print it in place of the screen",
    )
    add("--no-counters", action="store_true", help="do not run ncu, which says why times differ")
    arguments.measuring(parser, "--limit", arguments.LIMIT_S)


def run(
    args: argparse.Namespace, written: Callable[[Trial | Trials], None] = lambda record: None
) -> int:
    """The exit status. written: is given what is known after each change."""
    target, planned = arguments.of_target(args.target, args.points, args.blocks)
    arguments.above_0(args, "limit")
    installed = arguments.installed()
    changes = [_read(path, installed) for path in args.change]
    nvml.visible()  # who has no GPU need not wait for a compiler to hear of it
    trials: list[Trial] = []
    with ExitStack() as stack:
        # All are laid first: one that does not apply is told before another is compiled.
        laid = [_laid(change, installed, stack.enter_context(scratch())) for change in changes]
        begun = [
            _begun(clean(path.name), change, overlay, installed, target.name, args.effect)
            for path, change, overlay in zip(args.change, changes, laid, strict=True)
        ]
        for trial in _tried(begun, target, planned, installed, laid, args):
            trials.append(trial)
            found = _record(trials, len(changes))
            if args.json not in (None, SCREEN):
                write_json(args.json, found.model_dump())
            written(found)
            if args.json != SCREEN:
                emit(trial_text(trial), None)
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


def _read(path: Path, installed: Path) -> Patch | str:
    """A change: what is laid over the package, or the name of a version or a function."""
    if name := variant.named_version(path):
        return name
    if name := variant.named_function(path):
        variant.check_function(name, installed)
        return name
    return read(path, installed)


def _laid(change: Patch | str, installed: Path, folder: Path) -> Overlay:
    if isinstance(change, Patch):
        return lay(change, installed, folder)
    if variant.named_version(Path(change)):
        return variant.lay_version(change, installed, folder)
    return Overlay(installed, None, frozenset(), change)


def _begun(
    name: str, change: Patch | str, overlay: Overlay, installed: Path, target: str, effect: float
) -> Trial:
    """The record of a trial before it, after a word of warning."""
    tell(f"{name} is code, and runs as the user {getpass.getuser()}")
    elsewhere = change.elsewhere if isinstance(change, Patch) else ()
    for other in elsewhere:
        tell(f"left out, for it is no file of the installed package: {other}")
    return Trial(
        change=ChangeRecord(
            name=name,
            files=sorted(clean(str(file)) for file in overlay.files),
            elsewhere=list(elsewhere),
            diff=difference(overlay, installed),
        ),
        target=target,
        effect=effect,
        alpha=ALPHA,
        date=now(),
        flashinfer=flashinfer_version(),
        outcome="unchecked",
    )


def _tried(
    trials: Sequence[Trial],
    target: Target,
    planned: Sequence[Planned],
    installed: Path,
    laid: Sequence[Overlay],
    args: argparse.Namespace,
) -> Iterator[Trial]:
    """Compile all changes, then check and time one after the other. Raises CommandError where the base fails."""
    try:
        patched = [overlay for overlay in laid if not overlay.function]
        made = iter(
            built(target, planned, installed, patched, args.jobs, tell)[0] if patched else ()
        )
        runs = []
        for trial, overlay in zip(trials, laid, strict=True):
            if not overlay.function:
                found = next(made)
                trial.modules = found.records
                for error in found.failing.values():
                    trial.outcome, trial.reason = "not compiled", error.reason
                    trial.compile_error = error.complaint
                    break
            if trial.outcome == "not compiled":
                yield trial
            else:
                runs.append((trial, overlay))
        if runs:
            with bench(target.name, [overlay for _, overlay in runs], args.limit, tell) as sides:
                eta = _eta(target, planned, len(runs), args)
                for place, (trial, overlay) in enumerate(runs):
                    with sides.of(place) as three:
                        _measured(trial, target, planned, overlay, three, eta)
                    # While ncu launches, the sides that are there wait.
                    _counted(trial, target, planned, overlay, sides.held, args, eta)
                    eta.ended()
                    yield trial
    except BaseError as error:
        raise CommandError(clean(str(error)), FATAL) from None


def _measured(
    trial: Trial,
    target: Target,
    planned: Sequence[Planned],
    overlay: Overlay,
    sides: measure.Sides,
    eta: TrialEta,
) -> None:
    """Check and time every point, and conclude."""
    with of_base():
        found = sides.base.ask("gpu", START_S)
    trial.gpu, trial.driver = found["facts"]["name"], found["driver"]
    try:
        roots_of(sides.change, overlay.package)
        sides.change.ask("gpu", START_S)
    except SideError as error:
        trial.outcome, trial.reason = failure(error), without_folders(str(error), overlay)
        return
    base, change, again = (
        MeteredSide(side, eta) for side in (sides.base, sides.change, sides.again)
    )
    three = measure.Sides(base, change, again, sides.limit_s)
    points = measure.checked(three, target, planned, eta)
    measure.timed(three, planned, points, trial.effect, eta)
    trial.points = [PointTrial(**dict(point)) for point in points]
    outcomes = {point.outcome for point in points}
    trial.outcome = next(outcome for outcome in WORST if outcome in outcomes)


def _counted(
    trial: Trial,
    target: Target,
    planned: Sequence[Planned],
    overlay: Overlay,
    held: turns.Held,
    args: argparse.Namespace,
    eta: TrialEta,
) -> None:
    """Note what ncu counts of both sides at the points that were timed."""
    if args.no_counters:
        trial.no_counters = "not asked for (--no-counters)"
    elif overlay.function:
        trial.no_counters = "not counted beside a function in place of an API"
    elif trial.points:
        sides = {
            "base": CountedSide(*program(target.name), arguments.installed()),
            "change": CountedSide(
                *program(target.name, overlay.package, own(overlay)), overlay.package
            ),
        }
        explain(trial, planned, sides, held, START_S + args.limit, eta.profiling)


def _eta(
    target: Target, planned: Sequence[Planned], trials: int, args: argparse.Namespace
) -> TrialEta:
    """What says how far so many trials are."""
    inputs = {case.id for point in planned for case in measure.cases(target, point)}
    profilers = 0 if args.no_counters or lacking() else 2
    return TrialEta(tell, trials, len(planned), len(inputs), profilers)
