"""An upgrade: two FlashInfers over a workload, each shape held against its reference and timed in turns, as a trial's.

Both are compiled at the same time. Where a shape is slower on the GPU, counters say why.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import groupby
from pathlib import Path, PurePath
from time import monotonic
from typing import Any
from urllib.parse import quote

from ncuflow.experiments import variant, versions
from ncuflow.experiments.bisection import Bisection
from ncuflow.experiments.build import (
    BUILD_S,
    START_S,
    compiling,
    load_all,
    own,
    roots_of,
    together,
    unbuilt,
)
from ncuflow.experiments.record import ChangeRecord, PointTrial, Trial
from ncuflow.experiments.upgrade import (
    KINDS,
    Resolved,
    Upgrade,
    UpgradedShape,
    summed,
    verdict,
)
from ncuflow.experiments.variant import Overlay
from ncuflow.experiments.why import DIFFERS, CountedSide, explain
from ncuflow.findings import kernelname
from ncuflow.gpu import lock
from ncuflow.gpu.lock import Held
from ncuflow.io import CommandError, clean, scratch
from ncuflow.origin import built_version, flashinfer_version, now
from ncuflow.race import measure
from ncuflow.race.eta import tell
from ncuflow.race.measure import HOST_EFFECT
from ncuflow.race.record import WORST, Module
from ncuflow.race.rounds import ALPHA
from ncuflow.race.sides import (
    BaseError,
    LostError,
    Process,
    SideError,
    host_state,
    of_base,
    program,
    started,
    timing_core,
)
from ncuflow.run import FATAL
from ncuflow.sweep.points import Planned, unable
from ncuflow.sweep.workloads import ServedPoint
from ncuflow.target.contract import Target, load

RECORDED = "`ncuflow upgrade --again RECORD`"
NAMES = ("base", "change", "control")


@dataclass(frozen=True)
class UpgradePlan:
    """What is held against what.

    base: as `ncuflow try` takes a version, None for what is installed; effect: the difference that matters, of 1; limit_s: of a
    check or a burst; jobs: files compiled at once; explained: how many slower or faster shapes counters explain, those first
    that cost most; cache: a folder that keeps what is laid and compiled; slopes: plan() over the number of sequences is timed
    as well; keep: is given the record after each target, and at the end.
    """

    shapes: Sequence[ServedPoint]
    base: str | None
    change: str
    effect: float
    limit_s: float
    jobs: int | None = None
    explained: int = 8
    cache: Path | None = None
    refused: Sequence[str] = ()
    slopes: bool = False
    keep: Callable[[Upgrade], None] = lambda found: None


@dataclass
class Sides:
    """The processes of both versions, started anew where one was lost. packages: by side, None for what is installed."""

    overlays: Mapping[str, Overlay | None]
    held: Held
    limit_s: float
    stack: ExitStack
    found: dict[str, Process] = field(default_factory=dict)
    both: Process | None = None  # has both versions, where only Python differs

    def begin(self, name: str) -> None:
        """The process of a side, anew, which then loads FlashInfer beside the others."""
        overlay = self.overlays[name]
        package = overlay.package if overlay else None
        environ = {**self.held.environ, **(own(overlay) if overlay else {})}
        self.found[name] = self.stack.enter_context(
            started(None, package, environ, self.held.locks)
        )

    def loaded(self, name: str) -> None:
        """Wait for it. Raises SideError where it loads another FlashInfer than it should."""
        if overlay := self.overlays[name]:
            roots_of(self.found[name], overlay.package)

    def ready(self) -> measure.Sides:
        """All of them, each alive. Raises CommandError where one cannot be started."""
        try:
            # A process ends with the thread that started it, so that is none of a pool's.
            for name in NAMES:
                if not self._answers(name):
                    self.begin(name)
                    self.loaded(name)
        except SideError as error:
            raise CommandError(clean(str(error)), FATAL) from None
        failed = [*filter(None, load_all([self.found[name] for name in NAMES]))]
        if failed:
            raise CommandError(clean(str(failed[0])), FATAL)
        return self.three()

    def three(self) -> measure.Sides:
        """As a race has them."""
        base, change, control = (self.found[name] for name in NAMES)
        return measure.Sides(base, change, control, self.limit_s, timing_core(), self.both)

    def _answers(self, name: str) -> bool:
        try:
            self.found[name].ask("gpu", START_S)
        except LostError:
            return False
        return True


@dataclass
class Compiled:
    """What a side compiled. failing: why cases cannot run, by id."""

    modules: list[Module]
    failing: dict[str, str]

    def seconds(self) -> float | None:
        """The seconds of its modules' compilers, one module after another; None where ninja noted none."""
        spans = [compiling(module).values() for module in self.modules]
        took = [max(e for _, e in one) - min(b for b, _ in one) for one in spans if one]
        return round(sum(took), 1) if took else None


def upgraded(plan: UpgradePlan) -> Upgrade:
    """The upgrade of a workload. Raises CommandError where nothing can be measured."""
    begun = monotonic()
    installed = variant.installed_package(RECORDED)
    with ExitStack() as stack:
        held = stack.enter_context(lock.gpu_lock())
        folder = (plan.cache or stack.enter_context(scratch())).absolute()
        overlays = {"base": _laid(plan.base, folder), "change": _laid(plan.change, folder)}
        overlays["control"] = overlays["base"]
        sides = Sides(overlays, held, plan.limit_s, stack)
        for name in NAMES:
            sides.begin(name)
        with of_base():
            sides.loaded("base")
        try:
            sides.loaded("change")
        except SideError as error:
            raise CommandError(clean(f"{plan.change}: {error}"), FATAL) from None
        edged = _edged(plan.shapes)
        compiled = _built(sides, plan, edged)
        sides.both = _together(sides, installed)
        found = Upgrade(
            base=_version(plan.base, overlays["base"]),
            change=_version(plan.change, overlays["change"]),
            gpu=None,
            driver=None,
            date=now(),
            effect=plan.effect,
            alpha=ALPHA,
            outcome="nothing",
            jit_base_s=compiled["base"].seconds(),
            jit_change_s=compiled["change"].seconds(),
            compile_seconds=round(monotonic() - begun, 1),
            modules=sorted(module.name for module in compiled["change"].modules),
            shapes=[
                UpgradedShape(point=s.point.id, count=s.count, plans=s.plans) for s in plan.shapes
            ],
            refused=list(plan.refused),
        )
        _measured(found, plan, sides, compiled, edged)
        _concluded(found, plan, begun)
        if plan.slopes:
            _slopes(found, plan, sides)
        _resolved(found, plan, sides)
        _explained(found, plan, overlays, installed, held)
    _concluded(found, plan, begun)
    return found


def _together(sides: Sides, installed: Path) -> Process | None:
    base, change = (sides.overlays[name] for name in NAMES[:2])
    if change is None:
        return None
    files = map(PurePath, versions.differing(base.package if base else installed, change.package))
    return together(None, base, change, files, sides.held, sides.stack)


def _concluded(found: Upgrade, plan: UpgradePlan, begun: float) -> None:
    """The sums of the workload, and the verdict."""
    kinds = list(KINDS.values())
    found.gpu_time = summed(found.shapes, found.points, kinds[0], found.effect)
    of_host = [one.effect for p in found.points.values() for one in (p.call, p.plan) if one]
    effect = max(of_host, default=HOST_EFFECT)
    found.call_time = summed(found.shapes, found.points, kinds[1], effect)
    found.plan_time = summed(found.shapes, found.points, kinds[2], effect, plans=True)
    found.outcome = verdict([*found.points.values()], found.shapes)
    found.seconds = round(monotonic() - begun, 1)
    plan.keep(found)


def _laid(change: str | None, folder: Path) -> Overlay | None:
    if change is None:
        return None
    tell(f"{change} is code, and runs as you")
    try:
        return versions.laid(change, folder / quote(change, safe=""))
    except versions.CannotError as error:
        raise CommandError(clean(str(error)), FATAL) from None


def _version(change: str | None, overlay: Overlay | None) -> str:
    """The version of a side, as its own package says."""
    if change is None or overlay is None:
        return f"FlashInfer {flashinfer_version() or 'of unknown version'}"
    named = built_version(overlay.package)
    return clean(f"FlashInfer {named}" if named else change)


def _edged(shapes: Sequence[ServedPoint]) -> set[str]:
    """Points that are checked at the edges of what their kernels take too: of those that differ in sizes alone, the first."""
    first: dict[Any, str] = {}
    for one in shapes:
        target = load(one.point.target)
        named = tuple((name, one.point.params[name]) for name in target.choices)
        first.setdefault((target.name, named), one.point.id)
    return {*first.values()}


def _cases(point: Planned, edged: set[str]) -> list[Planned]:
    return measure.cases(load(point.target), point) if point.id in edged else [point]


def _built(sides: Sides, plan: UpgradePlan, edged: set[str]) -> dict[str, Compiled]:
    """Compile the modules of both sides at the same time."""
    facts = sides.found["base"].ask("gpu", START_S)["facts"]
    able = [s.point for s in plan.shapes if unable(load(s.point.target), s.point, facts) is None]
    cases = {case.id: case for point in able for case in _cases(point, edged)}
    wanted = [c.as_dict() for c in cases.values() if unable(load(c.target), c, facts) is None]
    jobs = plan.jobs or len(os.sched_getaffinity(0))
    tell(f"{len(plan.shapes)} shapes; compiling what of both versions is not compiled yet")

    def build(name: str) -> Compiled:
        side = sides.found[name]
        modules = side.ask("modules", START_S, points=wanted)["modules"]
        failed = side.ask("build", BUILD_S, jobs=max(1, jobs // 2))["failed"]
        failing = {id: clean(unbuilt(one)) for one in failed for id in one["points"]}
        without = {one["name"] for one in failed}
        return Compiled(
            [Module.model_validate(m) for m in modules if m["name"] not in without], failing
        )

    try:
        with ThreadPoolExecutor(2) as pool:
            return dict(zip(NAMES[:2], pool.map(build, NAMES[:2]), strict=True))
    except SideError as error:
        raise CommandError(clean(str(error)), FATAL) from None


def _measured(
    found: Upgrade,
    plan: UpgradePlan,
    sides: Sides,
    compiled: Mapping[str, Compiled],
    edged: set[str],
) -> None:
    """Check and time each shape, a trial for each target."""
    ready = sides.ready()
    about = ready.base.ask("gpu", START_S)
    found.gpu, found.driver = about["facts"]["name"], about["driver"]
    found.host = host_state(timing_core())
    shapes = sorted(plan.shapes, key=lambda shape: shape.point.target)
    seen: dict[str, Any] = {}
    done = 0
    for name, some in groupby(shapes, key=lambda shape: shape.point.target):
        target, trial = load(name), _trial(found, name)
        found.trials.append(trial)
        for shape in some:
            done += 1
            point = shape.point
            failing = {side: _failing(one, point, edged) for side, one in compiled.items()}
            if why := unable(target, point, about["facts"]) or failing["base"]:
                trial.points.append(PointTrial(point=point.id, outcome="skipped", reason=why))
            elif why := failing["change"]:
                trial.points.append(
                    PointTrial(point=point.id, outcome="error", reason=f"does not compile: {why}")
                )
            else:
                tell(f"{done} of {len(shapes)}: {point.id}")
                trial.points.append(_point(target, point, sides, plan, edged, seen, len(shapes)))
        said = {point.outcome for point in trial.points}
        trial.outcome = next(outcome for outcome in WORST if outcome in said)
        plan.keep(found)


def _failing(one: Compiled, point: Planned, edged: set[str]) -> str | None:
    """Why a side cannot run a point, or an input at its edges."""
    return next((one.failing[c.id] for c in _cases(point, edged) if c.id in one.failing), None)


def _trial(found: Upgrade, target: str) -> Trial:
    return Trial(
        change=ChangeRecord(name=found.change, files=[], elsewhere=[]),
        target=target,
        effect=found.effect,
        alpha=ALPHA,
        date=found.date,
        flashinfer=found.base.removeprefix("FlashInfer "),
        gpu=found.gpu,
        driver=found.driver,
        host=found.host,
        outcome="unchecked",
    )


def _quiet(line: str) -> None:
    """A shape has a line of its own."""


def _point(
    target: Target,
    point: Planned,
    sides: Sides,
    plan: UpgradePlan,
    edged: set[str],
    seen: dict[str, Any],
    points: int,
) -> PointTrial:
    """One shape: right, then timed. What the base cannot run is skipped, with why."""
    ready = sides.three()
    only = target if point.id in edged else replace(target, edges=lambda p: ())
    try:
        (trial,) = measure.checked(ready, only, [point], _quiet, seen)
        measure.timed(ready, [point], [trial], plan.effect, _quiet, points, brief=True)
    except BaseError as error:
        sides.ready()
        return PointTrial(point=point.id, outcome="skipped", reason=clean(str(error)))
    if trial.outcome == "lost":
        sides.ready()
    return PointTrial(**dict(trial))


LONGEST = 1024  # tokens of a sequence of a curve, which has many


def _slopes(found: Upgrade, plan: UpgradePlan, sides: Sides) -> None:
    """plan() over the number of sequences, for the first shape of each target and kernel that has one."""
    facts = sides.found["base"].ask("gpu", START_S)["facts"]
    shapes = {shape.point: shape for shape in found.shapes}
    for point in (s.point for s in plan.shapes if s.point.id in _edged(plan.shapes)):
        own = found.points[point.id]
        if own.plan is None or "batch" not in point.params:
            continue
        target, points = load(point.target), {}
        for batch in measure.BATCHES:
            params = {**point.params, "batch": batch}
            if "kv_len" in params:
                params["kv_len"] = min(params["kv_len"], LONGEST)
            one = Planned(target.point_id(params), target.name, params)
            if unable(target, one, facts) is None:
                points[batch] = one
        tell(f"{point.id}: plan() of {', '.join(map(str, points))} sequences")
        try:
            shapes[point.id].plan_curve = measure.plan_curve(sides.ready(), points)
        except (SideError, BaseError) as error:
            tell(f"{point.id}: no curve of plan(): {error}")


def _resolved(found: Upgrade, plan: UpgradePlan, sides: Sides) -> None:
    """Note what each side makes of the calls that were timed: seen last, for a profiler slows what comes after it."""
    points = {shape.point.id: shape.point for shape in plan.shapes}
    timed = [points[id] for id, one in found.points.items() if one.timing is not None]
    tell("which kernels run")
    with ThreadPoolExecutor(2) as pool:
        for name, of in zip(
            NAMES[:2],
            pool.map(lambda name: _kernels(sides.found[name], timed, sides.limit_s), NAMES[:2]),
            strict=True,
        ):
            for shape in found.shapes:
                setattr(shape, name, of.get(shape.point))


def _kernels(side: Process, points: Sequence[Planned], limit_s: float) -> dict[str, Resolved]:
    found = {}
    for point in points:
        try:
            said = side.ask("kernels", limit_s, point=point.as_dict())
        except LostError:
            break
        except SideError:
            continue
        names = [clean(kernelname.decode(name).name) for name in said["kernels"]]
        found[point.id] = Resolved(backend=said["backend"], kernels=names)
    return found


def _gain(found: Upgrade, point: PointTrial) -> float:
    """µs of the GPU that the workload gains at a point; below zero where it loses."""
    count = next(shape.count for shape in found.shapes if shape.point == point.point)
    return count * (point.timing.base_us - point.timing.change_us) if point.timing else 0.0


def _explained(
    found: Upgrade,
    plan: UpgradePlan,
    overlays: Mapping[str, Overlay | None],
    installed: Path,
    held: Held,
) -> None:
    """Count both sides at the shapes that differ, those first that cost the workload most."""
    planned = {shape.point.id: shape.point for shape in plan.shapes}
    differ = [p for p in found.points.values() if p.outcome in DIFFERS and p.timing]
    differ.sort(key=lambda point: _gain(found, point))
    chosen = {point.point for point in differ[: plan.explained]}
    for trial in found.trials:
        here = [planned[p.point] for p in trial.points if p.point in chosen]
        if here:
            packages = {
                name: one.package if (one := overlays[name]) else None for name in NAMES[:2]
            }
            both = {
                name: CountedSide(
                    *program(trial.target, package, own(one) if (one := overlays[name]) else {}),
                    package or installed,
                )
                for name, package in packages.items()
            }
            explain(trial, here, both, held, START_S + plan.limit_s, tell)


def bisected(found: Upgrade, plan: UpgradePlan) -> Iterator[Bisection]:
    """The version that made a shape slower on the GPU, of the wheels beside both sides' or of pip's releases: at the shape at
    which the workload loses most. Raises UsageError where a side is none of these."""
    files = [Path((end or "").partition("@")[2]) for end in (plan.base, plan.change)]
    beside = [versions.WHEEL.fullmatch(file.name) for file in files]
    if all(beside) and files[0].parent == files[1].parent:
        source = versions.wheels(files[0].parent)
        good, bad = (match["version"] for match in beside if match)
    else:
        source = versions.releases()
        good, bad = (end.removeprefix("FlashInfer ") for end in (found.base, found.change))
    points = {shape.point.id: shape.point for shape in plan.shapes}
    slower = [p for p in found.points.values() if p.outcome == "slower"]
    if not slower:
        return
    worst = min(slower, key=lambda point: _gain(found, point))
    asked = versions.BisectedPoint(worst.point, versions.COLD, plan.effect, good, bad, None)
    point = points[worst.point]
    yield versions.timed_at(source, load(point.target), point, asked, plan.limit_s, plan.cache)
