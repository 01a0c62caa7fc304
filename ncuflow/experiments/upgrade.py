"""The record of an upgrade: what another FlashInfer does to a workload, on the GPU and on the host; and its text."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field

from ncuflow.answer import Answer, Displayed
from ncuflow.experiments.bisection import Bisection
from ncuflow.experiments.record import PointTrial, Trial
from ncuflow.experiments.text import case_lines, host_lines, reasons
from ncuflow.format import MISSING, aligned, in_one_unit, micro, with_unit
from ncuflow.io import conforming, read_json
from ncuflow.race.measure import HOST_APART, with_interval
from ncuflow.race.record import HostState, Outcome, PlanCurve, Relative, TurnsTiming
from ncuflow.race.rounds import Interval, judge
from ncuflow.record import Chance, Count, Effect, Microseconds, Seconds, Strict

# What the command ends with.
EXIT: dict[str, int] = {
    "faster": 0,
    "same": 0,
    "undecided": 0,
    "slower": 3,
    "wrong": 4,
    "nothing": 1,
}
WRONG = ("wrong", "error", "lost")
Verdict = Literal["faster", "same", "slower", "undecided", "wrong", "nothing"]


class Resolved(Strict):
    """What FlashInfer made of a call on one side."""

    backend: str | None
    """The backend that plan() chose; null where it says none."""
    kernels: list[str]
    """The kernels of the call as they were launched; empty where none was seen."""


class UpgradedShape(Strict):
    """A shape of the workload."""

    point: str
    """The id of the point, whose times are in the trial of its target."""
    count: Count
    """How often the workload calls it."""
    plans: Count | None
    """How often the workload calls its plan(); null where that is not known."""
    base: Resolved | None = None
    """What the base makes of it; null where that was not looked at."""
    change: Resolved | None = None
    """What the other version makes of it."""
    plan_curve: PlanCurve | None = None
    """plan() over the number of sequences; null where that was not asked for."""


class WorkloadSum(Strict):
    """A kind of time over the workload, each shape as often as it is called."""

    shapes: Count
    """How many shapes it is over: those that were timed."""
    base_us: Microseconds
    """The base's, µs."""
    change_us: Microseconds
    """The other version's, µs."""
    change: Relative
    """The other version's against the base's; the bounds are those of all shapes at once."""
    outcome: Literal["faster", "same", "slower", "undecided"]
    """The verdict, as of one shape: same within the minimum effect, undecided where the bounds allow both."""


class Upgrade(Displayed, Answer):
    """Another FlashInfer compared with one over a workload."""

    ROWS: ClassVar[tuple[str, ...]] = ("shapes",)
    command: Literal["upgrade"] = "upgrade"
    """The command that wrote this JSON."""
    base: str
    """The version that is upgraded from."""
    change: str
    """The version that is upgraded to."""
    gpu: str | None
    """The name of the GPU."""
    driver: str | None
    """The version of its driver."""
    date: str
    """The date on which it began, UTC."""
    effect: Effect
    """The relative difference of times of the GPU that matters, as a fraction of 1."""
    alpha: Chance
    """The chance that any time of a kind is called slower or faster that is neither."""
    host: HostState | None = None
    """The core that host times were taken on."""
    outcome: Verdict
    """wrong: a shape is wrong, in error or lost; slower: on the GPU or on the host, at some shape; else faster, undecided or
    same; nothing: no shape could be timed."""
    gpu_time: WorkloadSum | None = None
    """The times of the GPU over the workload; null where nothing was timed."""
    call_time: WorkloadSum | None = None
    """The host times of the calls."""
    plan_time: WorkloadSum | None = None
    """The host times of plan(), of the shapes of which it is known how often it is called."""
    modules: list[str] = Field(default_factory=list)
    """The JIT modules of the shapes, as the other version calls them."""
    jit_base_s: Seconds | None = None
    """The seconds of compilers that the base's modules took, one after another; null where ninja noted none."""
    jit_change_s: Seconds | None = None
    """The same of the other version."""
    seconds: Seconds | None = None
    """The seconds that all of it took, compiling included."""
    compile_seconds: Seconds | None = None
    """Of these, until both versions were compiled."""
    shapes: list[UpgradedShape] = Field(default_factory=list)
    """Each shape of the workload."""
    trials: list[Trial] = Field(default_factory=list)
    """What was measured, a trial for each target."""
    bisections: list[Bisection] = Field(default_factory=list)
    """Between which releases shapes became slower, where that was asked for."""
    refused: list[str] = Field(default_factory=list)
    """The cases of the workload that no target measures."""

    @property
    def points(self) -> dict[str, PointTrial]:
        """What was measured, by the id of its point."""
        return {point.point: point for trial in self.trials for point in trial.points}


Kind = Callable[[PointTrial], TurnsTiming | None]
# What is timed of a shape: what it is called, and where it stands.
KINDS: dict[str, Kind] = {
    "GPU time": lambda point: point.timing,
    "host time of the calls": lambda point: point.call,
    "host time of plan()": lambda point: point.plan,
}


def outcomes(point: PointTrial) -> dict[str, Outcome]:
    """The verdicts of a point by what is timed; of one that was not, why not."""
    gpu, call, plan = KINDS
    hosts = {call: point.call, plan: point.plan}
    return {gpu: point.outcome} | {name: one.outcome for name, one in hosts.items() if one}


def curved(curve: PlanCurve) -> dict[int, Outcome]:
    """The verdicts of plan() by the number of sequences, as of host times in processes of their own."""
    found: dict[int, Outcome] = {}
    for one in curve.points:
        change, noise = (
            Interval(of.estimate, of.low, of.high) for of in (one.timing.change, one.timing.noise)
        )
        found[one.batch] = judge(change, HOST_APART, max(HOST_APART, noise.farthest))
    return found


def verdict(points: Sequence[PointTrial], shapes: Sequence[UpgradedShape] = ()) -> Verdict:
    """Of an upgrade, from all that was measured; of a curve that plan() is slower somewhere."""
    found = {one for point in points for one in outcomes(point).values()}
    curves = [curved(shape.plan_curve) for shape in shapes if shape.plan_curve]
    found |= {one for curve in curves for one in curve.values() if one == "slower"}
    if found & {*WRONG}:
        return "wrong"
    order: tuple[Verdict, ...] = ("slower", "undecided", "faster", "same")
    return next((one for one in order if one in found), "nothing")


def summed(
    shapes: Sequence[UpgradedShape],
    points: dict[str, PointTrial],
    of: Kind,
    effect: float,
    plans: bool = False,
) -> WorkloadSum | None:
    """A kind of time over a workload. effect: the minimum effect, of 1; plans: each as often as plan() is called, and those
    alone of which that is known."""
    found = [
        (shape.plans if plans else shape.count, timing)
        for shape in shapes
        if (point := points.get(shape.point)) and (timing := of(point))
    ]
    rows = [(count, timing) for count, timing in found if count]
    base = sum(count * timing.base_us for count, timing in rows)
    if not base:
        return None
    estimate, low, high = (
        sum(n * t.base_us * getattr(t.change, bound) for n, t in rows) / base
        for bound in ("estimate", "low", "high")
    )
    return WorkloadSum(
        shapes=len(rows),
        base_us=base,
        change_us=base * (1 + estimate),
        change=Relative(estimate=estimate, low=low, high=high),
        outcome=judge(Interval(estimate, low, high), effect),
    )


def upgrade_text(found: Upgrade) -> str:
    """What an upgrade says: the engine's sums, then each shape, and why what is slower is."""
    points = found.points
    lines = [
        f"{found.base} → {found.change} on {found.gpu or 'an unknown GPU'}: {found.outcome}",
        *(f"  {told}" for told in _sums(found)),
    ]
    if found.jit_base_s is not None and found.jit_change_s is not None:
        modules = with_unit(len(found.modules), "modules")
        lines.append(
            f"  JIT of {modules}: {found.jit_base_s:.0f} → {found.jit_change_s:.0f} s of compilers"
        )
    lines += [*_wrong(found), *_table(found)]
    timed = [point for point in points.values() if point.timing]
    lines += host_lines(timed, found.host)
    lines += [told for point in timed for told in reasons(point)]
    lines += [_curve(shape.point, shape.plan_curve) for shape in found.shapes if shape.plan_curve]
    lines += [told for trial in found.trials for told in _uncounted(trial)]
    for one in found.bisections:
        lines += [f"{one.point}: between {pair.before} and {pair.after}" for pair in one.found]
    apart = [p for p in points.values() if p.timing is None and p.outcome not in WRONG]
    lines += [f"{point.point}: {point.outcome}: {point.reason}" for point in apart]
    lines += [f"refused: {text}" for text in found.refused]
    return "\n".join(lines) + "\n"


def _sums(found: Upgrade) -> Iterator[str]:
    for name, one in zip(KINDS, (found.gpu_time, found.call_time, found.plan_time), strict=True):
        if one is not None:
            yield (
                f"{name}, {with_unit(one.shapes, 'shapes')} as often as they run: {micro(one.base_us)} → "
                f"{micro(one.change_us)}, {with_interval(one.change)}: {one.outcome}"
            )


def _wrong(found: Upgrade) -> Iterator[str]:
    """What is wrong, or does not run."""
    for point in found.points.values():
        if point.outcome in WRONG:
            yield f"{point.point}: {point.outcome}: {point.reason}"
            yield from (f"  {told}" for case in point.cases for told in case_lines(case)[1:])


def _ordered(found: Upgrade) -> list[UpgradedShape]:
    """The shapes, by how much the workload loses at them."""
    points = found.points

    def loss(shape: UpgradedShape) -> float:
        timing = points[shape.point].timing
        return shape.count * (timing.base_us - timing.change_us) if timing else 0.0

    return sorted(found.shapes, key=loss)


def _table(found: Upgrade) -> list[str]:
    """The shapes that were timed, each column of times in one unit."""
    points = found.points
    rows = [(shape, points[shape.point]) for shape in _ordered(found)]
    rows = [(shape, point) for shape, point in rows if point.timing]
    if not rows:
        return []
    columns = [[shape.point for shape, _ in rows], [str(shape.count) for shape, _ in rows]]
    heads = ["shape", "×"]
    for (kind, of), short in zip(KINDS.items(), ("GPU", "call", "plan()"), strict=True):
        timings = [of(point) for _, point in rows]
        unit, took = in_one_unit([one.base_us for one in timings if one])
        cells = iter(took)
        heads += [f"{short}, {unit}", "difference", "verdict"]
        columns += [
            [next(cells) if one else MISSING for one in timings],
            [f"{100 * one.change.estimate:+.1f} %" if one else "" for one in timings],
            [outcomes(point).get(kind, "") for _, point in rows],
        ]
    heads.append("takes otherwise")
    columns.append([resolved(shape) for shape, _ in rows])
    return ["", aligned(heads, [*zip(*columns, strict=True)]).rstrip()]


def resolved(shape: UpgradedShape) -> str:
    """What differs of the backend, and of the kernels, between the sides: "auto → fa2"; empty where nothing does."""
    if shape.base is None or shape.change is None:
        return ""
    backends = (shape.base.backend, shape.change.backend)
    kernels = tuple("+".join(dict.fromkeys(one.kernels)) for one in (shape.base, shape.change))
    return ", ".join(
        f"{was or MISSING} → {is_now or MISSING}"
        for was, is_now in (backends, kernels)
        if was != is_now
    )


def _curve(point: str, curve: PlanCurve) -> str:
    ends = [curve.points[0], curve.points[-1]]
    times = ", ".join(
        f"{micro(one.timing.base_us)} → {micro(one.timing.change_us)} at {one.batch}"
        for one in ends
    )
    spelled = [
        f"{one.slope:.2f} ({one.low:.2f} to {one.high:.2f})" for one in (curve.base, curve.change)
    ]
    slower = [f"{batch:,}" for batch, outcome in curved(curve).items() if outcome == "slower"]
    told = f"; slower at {', '.join(slower)} sequences" if slower else ""
    return f"{point}: plan() grows as batch to the power of {' → '.join(spelled)}: {times}{told}"


def _uncounted(trial: Trial) -> Iterator[str]:
    if trial.no_counters:
        yield f"{trial.target}: no counters: {trial.no_counters}"


def read(path: Path) -> Upgrade:
    """A record of an upgrade, plain or `.xz`. Raises BadInput where it is none."""
    found: Upgrade = conforming(path, read_json(path), Upgrade, "the record of an upgrade")
    return found
