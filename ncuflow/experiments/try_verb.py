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
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from ncuflow import answer
from ncuflow.experiments import variant
from ncuflow.experiments.build import (
    START_S,
    BuiltChange,
    bench,
    built,
    own,
    roots_of,
    without_folders,
)
from ncuflow.experiments.record import EXIT, ChangeRecord, PointTrial, Trial, Trials
from ncuflow.experiments.text import ranked, ranking, trial_text
from ncuflow.experiments.variant import PACKAGE, Overlay, Patch, difference, lay, read
from ncuflow.experiments.why import CountedSide, explain, lacking
from ncuflow.gpu import nvml, turns
from ncuflow.io import CommandError, UsageError, clean, emit, scratch, write_json
from ncuflow.origin import flashinfer_version, now, package_folder
from ncuflow.race import measure
from ncuflow.race.eta import Meter, MeteredSide
from ncuflow.race.record import WORST
from ncuflow.race.sequential import ALPHA
from ncuflow.race.sides import LostError, SideError, program
from ncuflow.run import FATAL, builds
from ncuflow.sweep.plan import objects
from ncuflow.sweep.points import Planned, points, read_points
from ncuflow.target.contract import Target, known, load

ANSWER = Trial | Trials
SCREEN = Path("-")  # for --json: standard output
LIMIT_S = 300.0  # of a point's check, or of one burst
PATIENCE_S = 120.0  # of the same, where what hangs costs itself alone


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
    builds.options(parser)


def patience(parser: argparse.ArgumentParser, what: str) -> None:
    """The arguments of a command that compiles what it times side by side. what: that may hang, such as "a choice"."""
    parser.add_argument(
        "--patience",
        type=float,
        default=PATIENCE_S,
        help=f"seconds of a check or a burst, after which {what} hangs",
    )
    builds.options(parser)


def effect(text: str) -> float:
    """A relative change of 1 from "2%" or "0.02". Raises ArgumentTypeError unless it lies between 0.1 and 50 %."""
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0.001 <= value <= 0.5:
        raise argparse.ArgumentTypeError(f"{text!r} is no change between 0.1% and 50%")
    return value


def run(
    args: argparse.Namespace, written: Callable[[Trial | Trials], None] = lambda record: None
) -> int:
    """The exit status. written: is given what is known after each change."""
    target, planned = _points(args)
    if not args.limit > 0 or (args.jobs is not None and args.jobs < 1):
        raise UsageError("--limit and --jobs are above 0")
    installed = package_folder(PACKAGE)
    if installed is None:
        raise CommandError("flashinfer is not installed", FATAL)
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
    _tell(f"{name} is code, and runs as the user {getpass.getuser()}")
    elsewhere = change.elsewhere if isinstance(change, Patch) else ()
    for other in elsewhere:
        _tell(f"left out, for it is no file of the installed package: {other}")
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
            built(target, planned, installed, patched, args.jobs, _tell)[0] if patched else ()
        )
        runs = []
        for trial, overlay in zip(trials, laid, strict=True):
            found = BuiltChange([], {}) if overlay.function else next(made)
            trial.modules = found.modules
            if found.failing:
                error = next(iter(found.failing.values()))
                trial.outcome, trial.reason = "not compiled", error.reason
                trial.compile_error = error.complaint
                yield trial
            else:
                runs.append((trial, overlay))
        if runs:
            with bench(target.name, [overlay for _, overlay in runs], args.limit, _tell) as sides:
                meter = _meter(target, planned, len(runs), args)
                for trial, overlay in runs:
                    with sides.of(overlay) as three:
                        _measured(trial, target, planned, overlay, three, meter)
                    # While ncu launches, the sides that are there wait.
                    _counted(trial, target, planned, overlay, sides.held, args, meter)
                    meter.ended()
                    yield trial
    except measure.BaseError as error:
        raise CommandError(clean(str(error)), FATAL) from None


def _points(args: argparse.Namespace) -> tuple[Target, list[Planned]]:
    try:
        target = load(args.target)
        if args.points is not None:
            return target, read_points(args.points, target)
        return target, points(target, args.blocks or [{}])
    except ValueError as error:
        raise UsageError(str(error)) from None


def _measured(
    trial: Trial,
    target: Target,
    planned: Sequence[Planned],
    overlay: Overlay,
    sides: measure.Sides,
    meter: Meter,
) -> None:
    """Check and time every point, and conclude."""
    try:
        found = sides.base.ask("gpu", START_S)
    except SideError as error:  # at an earlier change
        raise measure.BaseError(f"the base: {error}") from None
    trial.gpu, trial.driver = found["facts"]["name"], found["driver"]
    try:
        roots_of(sides.change, overlay.package)
        sides.change.ask("gpu", START_S)
    except SideError as error:
        trial.outcome = "lost" if isinstance(error, LostError) else "error"
        trial.reason = without_folders(str(error), overlay)
        return
    base, change, again = (
        MeteredSide(side, meter) for side in (sides.base, sides.change, sides.again)
    )
    metered = measure.Sides(base, change, again, sides.limit_s)
    points = measure.checked(metered, target, planned, meter)
    measure.timed(metered, planned, points, trial.effect, meter)
    trial.points = [PointTrial(**dict(point)) for point in points]
    found_here = {point.outcome for point in trial.points}
    trial.outcome = next(outcome for outcome in WORST if outcome in found_here)


def _counted(
    trial: Trial,
    target: Target,
    planned: Sequence[Planned],
    overlay: Overlay,
    held: turns.Held,
    args: argparse.Namespace,
    meter: Meter,
) -> None:
    """Note what ncu counts of both sides at the points that were timed."""
    if args.no_counters:
        trial.no_counters = "not asked for (--no-counters)"
    elif overlay.function:
        trial.no_counters = "not counted beside a function in place of an API"
    elif trial.points:
        counted = _counted_sides(target, overlay)
        explain(trial, planned, counted, held, START_S + args.limit, meter.profiling)


def _meter(
    target: Target, planned: Sequence[Planned], changes: int, args: argparse.Namespace
) -> Meter:
    """What says how far so many changes are."""
    inputs = {case.id for point in planned for case in measure.cases(target, point)}
    profilers = 0 if args.no_counters or lacking() else 2
    return Meter(_tell, changes, len(planned), len(inputs), profilers)


def _counted_sides(target: Target, overlay: Overlay) -> dict[str, CountedSide]:
    """Base and change for ncu."""
    installed = package_folder(PACKAGE)
    assert installed is not None
    base = program(target.name)
    change = program(target.name, overlay.package, own(overlay))
    return {
        "base": CountedSide(*base, installed),
        "change": CountedSide(*change, overlay.package),
    }


def _tell(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)
