"""A trial: base and change compiled, held against the float32 reference, timed in turns and counted.

Of several changes all are compiled at once, and then tried one after the other.
"""

import getpass
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ncuflow.experiments import build, variant, why
from ncuflow.experiments.record import ChangeRecord, PointTrial, Trial
from ncuflow.gpu import lock
from ncuflow.io import CommandError, clean, scratch
from ncuflow.origin import flashinfer_version, now
from ncuflow.race import measure, record
from ncuflow.race.eta import MeteredSide, TrialEta, tell
from ncuflow.race.measure import failure
from ncuflow.race.rounds import ALPHA
from ncuflow.race.sides import BaseError, SideError, host_state, of_base, program
from ncuflow.run import FATAL
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target

RECORDED = "`ncuflow try --from RECORD`"


@dataclass(frozen=True)
class TrialPlan:
    """What is tried, where and how. effect: the minimum, of 1; limit_s: of a check or a burst, after which a
    change hangs; jobs: files compiled at once; counters: ncu is run as well."""

    target: Target
    points: Sequence[Planned]
    effect: float
    limit_s: float
    jobs: int | None = None
    counters: bool = True


def tried(changes: Sequence[Path], plan: TrialPlan) -> Iterator[Trial]:
    """The trial of each change, as it ends. Raises CommandError where nothing can be tried."""
    for path in changes:
        variant.check(path)
    installed = variant.installed_package(RECORDED)
    found = [_read(path, installed) for path in changes]
    with ExitStack() as stack:
        # All are laid first: one that does not apply is told before another is compiled.
        laid = [_laid(change, installed, stack.enter_context(scratch())) for change in found]
        begun = [
            _begun(clean(path.name), change, overlay, installed, plan)
            for path, change, overlay in zip(changes, found, laid, strict=True)
        ]
        yield from _tried(begun, plan, installed, laid)


def _read(path: Path, installed: Path) -> variant.Patch | str:
    """A change: what is laid over the package, or the name of a version or a function."""
    if name := variant.named_version(path):
        return name
    if name := variant.named_function(path):
        variant.check_function(name, installed)
        return name
    return variant.read(path, installed)


def _laid(change: variant.Patch | str, installed: Path, folder: Path) -> variant.Overlay:
    if isinstance(change, variant.Patch):
        return variant.lay(change, installed, folder)
    if variant.named_version(Path(change)):
        return variant.lay_version(change, installed, folder)
    return variant.Overlay(installed, None, frozenset(), change)


def _begun(
    name: str,
    change: variant.Patch | str,
    overlay: variant.Overlay,
    installed: Path,
    plan: TrialPlan,
) -> Trial:
    """The record of a trial before it, after a word of warning."""
    tell(f"{name} is code, and runs as the user {getpass.getuser()}")
    elsewhere = change.elsewhere if isinstance(change, variant.Patch) else ()
    for other in elsewhere:
        tell(f"left out, for it is no file of the installed package: {other}")
    return Trial(
        change=ChangeRecord(
            name=name,
            files=sorted(clean(str(file)) for file in overlay.files),
            elsewhere=list(elsewhere),
            diff=variant.difference(overlay, installed),
        ),
        target=plan.target.name,
        effect=plan.effect,
        alpha=ALPHA,
        date=now(),
        flashinfer=flashinfer_version(),
        outcome="unchecked",
    )


def _tried(
    trials: Sequence[Trial], plan: TrialPlan, installed: Path, laid: Sequence[variant.Overlay]
) -> Iterator[Trial]:
    """Compile all changes, then check and time one after the other. Raises CommandError where the base fails."""
    try:
        patched = [overlay for overlay in laid if not overlay.function]
        compiled = (plan.target, plan.points, installed, patched, plan.jobs, tell)
        made = iter(build.built(*compiled)[0] if patched else ())
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
            overlays = [overlay for _, overlay in runs]
            with build.bench(plan.target.name, overlays, plan.limit_s, tell) as sides:
                eta = _eta(plan, len(runs))
                for place, (trial, overlay) in enumerate(runs):
                    with sides.of(place) as three, ExitStack() as stack:
                        what = (overlay, overlay.files, sides.held, stack)
                        both = build.together(plan.target.name, None, *what)
                        three = replace(three, together=both)
                        _measured(trial, plan, overlay, three, eta)
                    # While ncu launches, the sides that are there wait.
                    _counted(trial, plan, overlay, sides.held, eta)
                    eta.ended()
                    yield trial
    except BaseError as error:
        raise CommandError(clean(str(error)), FATAL) from None


def _measured(
    trial: Trial, plan: TrialPlan, overlay: variant.Overlay, sides: measure.Sides, eta: TrialEta
) -> None:
    """Check and time every point, and conclude."""
    with of_base():
        found = sides.base.ask("gpu", build.START_S)
    trial.gpu, trial.driver = found["facts"]["name"], found["driver"]
    try:
        build.roots_of(sides.change, overlay.package)
        sides.change.ask("gpu", build.START_S)
    except SideError as error:
        trial.outcome, trial.reason = failure(error), build.without_folders(str(error), overlay)
        return
    base, change, control = (
        MeteredSide(side, eta) for side in (sides.base, sides.change, sides.control)
    )
    three = replace(sides, base=base, change=change, control=control)
    trial.host = host_state(sides.core) if sides.core is not None else None
    points = measure.checked(three, plan.target, plan.points, eta)
    measure.timed(three, plan.points, points, trial.effect, eta)
    trial.points = [PointTrial(**dict(point)) for point in points]
    outcomes = {point.outcome for point in points}
    trial.outcome = next(outcome for outcome in record.WORST if outcome in outcomes)


def _counted(
    trial: Trial, plan: TrialPlan, overlay: variant.Overlay, held: lock.Held, eta: TrialEta
) -> None:
    """Note what ncu counts of both sides at the points that were timed."""
    if not plan.counters:
        trial.no_counters = "not asked for (--no-counters)"
    elif overlay.function:
        trial.no_counters = "not counted beside a function in place of an API"
    elif trial.points:
        name, package = plan.target.name, overlay.package
        sides = {
            "base": why.CountedSide(*program(name), variant.installed_package(RECORDED)),
            "change": why.CountedSide(*program(name, package, build.own(overlay)), package),
        }
        why.explain(trial, plan.points, sides, held, build.START_S + plan.limit_s, eta.profiling)


def _eta(plan: TrialPlan, trials: int) -> TrialEta:
    """What says how far so many trials are."""
    inputs = {case.id for point in plan.points for case in measure.cases(plan.target, point)}
    profilers = 2 if plan.counters and not why.lacking() else 0
    return TrialEta(tell, trials, len(plan.points), len(inputs), profilers)
