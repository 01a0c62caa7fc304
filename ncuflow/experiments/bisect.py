"""A bisection: versions are held against each other until it is known between which two a point changed."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ncuflow.experiments import bisection
from ncuflow.experiments.bisection import Bisection, BisectStep, Over
from ncuflow.experiments.versions import Recordings, Source, Versions
from ncuflow.gpu import lock, nvml
from ncuflow.io import JsonObject, UsageError, scratch
from ncuflow.origin import now
from ncuflow.race.eta import tell
from ncuflow.sweep.points import Planned, of_target
from ncuflow.target.contract import Target

COLD = "time_cold_us"


@dataclass(frozen=True)
class BisectedPoint:
    """What is looked for. good, bad: the ends, None for every change; effect: that matters, of 1; journal: a file that keeps
    each step."""

    point: str
    metric: str
    effect: float
    good: str | None
    bad: str | None
    journal: Path | None


def recorded(patterns: Sequence[str], asked: BisectedPoint) -> Bisection:
    """Over recordings of versions, without a GPU."""
    with scratch() as place:
        sides = Recordings(patterns, asked.point, asked.metric, asked.effect, place)
        return _searched(asked, "recordings", sides)


def timed(
    source: Source, asked: BisectedPoint, points: Path | None, patience_s: float, cache: Path | None
) -> Bisection:
    """Over versions that are timed here, each in a process and a folder of its own. points: a points.json with the point."""
    target, point = _point(asked.point, points)
    nvml.needed("`ncuflow bisect --recorded`")
    with ExitStack() as stack:
        held = stack.enter_context(lock.gpu_lock())
        folder = cache or stack.enter_context(scratch())
        sides = Versions(source, target, point, asked.effect, patience_s, tell, held, folder)
        return _searched(asked, source.over, sides)


def _point(name: str, file: Path | None) -> tuple[Target, Planned]:
    """The point of a points.json, or the target's own where that has this id."""
    target, planned = of_target(name.partition("/")[0], file)
    for point in planned:
        if point.id == name:
            return target, point
    raise UsageError(f"no point {name}: --points names a points.json that `ncuflow plan` wrote")


def _searched(asked: BisectedPoint, over: Over, sides: Recordings | Versions) -> Bisection:
    """Halve from the good one to the bad one, or walk through all."""
    try:
        chosen = bisection.between(sides.versions, asked.good, asked.bad)
    except ValueError as error:
        raise UsageError(str(error)) from None
    about: JsonObject = {
        "point": asked.point,
        "metric": asked.metric,
        "gpu": sides.gpu,
        "over": over,
        "versions": chosen,
    }
    hold = bisection.journaled(sides.hold, asked.journal, about)
    date = None if over == "recordings" else now()
    found = Bisection(
        **about, date=date, good=asked.good, bad=asked.bad, outcome="no change", found=[], steps=[]
    )

    def note(step: BisectStep) -> None:
        found.steps.append(step)
        tell(f"{step.head}: {step.in_words}")

    changes = (bisection.bisect if asked.good else bisection.walk)(chosen, hold, note)
    if changes is None:
        found.outcome = "untold"
    for one in changes or ():
        sides.explain(one)
        found.found.append(one)
        found.outcome = "found"
    return found
