"""A bisection over versions held against each other: recordings, wheels of a folder, releases of pip's index, or values of a
variable.

Recordings are compared as `ncuflow compare` does, with the causes that counters give. All others are timed here: each is laid
into a folder of its own, which goes with the search or is kept for the next one, and never into the environment that this
runs in. Two of them take turns on the GPU, each in a process of its own, as the sides of a trial do.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ncuflow.compare import records, verdict
from ncuflow.evidence import location, manifest
from ncuflow.experiments import bisection, variant
from ncuflow.experiments.bisection import Bisection, BisectStep, Neighbours, Over
from ncuflow.experiments.build import BUILD_S, START_S, own, roots_of, unbuilt
from ncuflow.findings import stored
from ncuflow.gpu import lock, nvml
from ncuflow.io import BadInput, CommandError, JsonObject, UsageError, clean, present, scratch
from ncuflow.origin import now
from ncuflow.race import measure, record
from ncuflow.race.eta import tell
from ncuflow.race.sides import BaseError, Process, SideError, started
from ncuflow.run import FATAL
from ncuflow.sweep.points import Planned, of_target
from ncuflow.target.contract import Target

WHEEL = re.compile(r"flashinfer(?:_python)?-(?P<version>[^-]+)-.*\.whl")
CODE = frozenset({".py", ".cu", ".cuh", ".h", ".hpp", ".cc", ".cpp", ".jinja", ".inc"})
CAUSES = 4
JUDGED = {column: name for name, column in verdict.METRICS.items() if name not in verdict.HOST}


class CannotError(RuntimeError):
    """A version that cannot be had, or cannot run the point: it is skipped."""


@dataclass(frozen=True)
class Source:
    """Versions in their order. changes: each as `ncuflow try` takes it, None for what is installed; variable: the environment
    variable whose values the versions are."""

    over: Over
    changes: Mapping[str, str | None]
    variable: str = ""


def wheels(folder: Path) -> Source:
    """Those of a folder."""
    found = {m["version"]: p for p in folder.glob("*.whl") if (m := WHEEL.fullmatch(p.name))}
    if len(found) < 2:
        raise BadInput(folder, f"{len(found)} wheels of {variant.DISTRIBUTION}, of two at least")
    return Source("wheels", {v: f"flashinfer@{found[v]}" for v in sorted(found, key=_order)})


def releases() -> Source:
    """What pip's index has. Raises CommandError where pip names none."""
    found = sorted(variant.versions(), key=_order)
    return Source("releases", {v: f"flashinfer=={v}" for v in found})


def values(text: str) -> Source:
    """Values of a variable, of NAME=A,B."""
    name, _, listed = text.partition("=")
    found: dict[str, str | None] = dict.fromkeys(listed.split(","))
    if not re.fullmatch(r"[A-Z_][A-Z0-9_]*", name) or len(found) < 2:
        raise UsageError(f"--env {text!r} is not NAME=A,B with two values or more")
    return Source("environment", found, name)


def _order(name: str) -> tuple[list[int], str]:
    return location.numbers(name), name


def laid(change: str, folder: Path) -> variant.Overlay:
    """The FlashInfer of a version below a folder, made there unless it is there already; what it depends on the environment has.

    Raises CannotError where it cannot be had.
    """
    whole, partial = folder / "whole", folder / "partial"
    if not whole.is_dir():
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            variant.lay_version(change, partial / "none", partial)
        except CommandError as error:
            raise CannotError(str(error)) from None
        for wheel in partial.glob("*.whl"):
            wheel.unlink()
        partial.rename(whole)
    return variant.Overlay(whole / "lib" / variant.PACKAGE, whole / "jit", frozenset())


@dataclass(frozen=True)
class Versions:
    """The versions of a source, timed at one point on a GPU that is held.

    folder: where versions and what they compile lie, a folder for each; begin: starts a side, as a trial does unless a test
    has its own.
    """

    source: Source
    target: Target
    point: Planned
    effect: float
    limit_s: float
    tell: Callable[[str], None]
    held: lock.Held
    folder: Path
    begin: Callable[..., Any] = started

    @property
    def gpu(self) -> str:
        return self.held.gpu.name

    @property
    def versions(self) -> list[str]:
        return list(self.source.changes)

    def hold(self, base: str, head: str) -> BisectStep:
        """A version against another. Raises CommandError where the base cannot run the point: nothing can be said then."""
        self.tell(f"{head}: compared with {base}")
        step = BisectStep(base=base, head=head, belongs="passed over")
        trial = record.MeasuredPoint(point=self.point.id, outcome="unchecked")
        try:
            with self._sides(base, head) as sides:
                measure.timed(sides, [self.point], [trial], self.effect, self.tell)
        except CannotError as error:
            trial.reason = clean(str(error))
        except BaseError as error:
            raise CommandError(clean(f"{base}: {error}"), FATAL) from None
        step.reason = trial.reason
        if trial.timing is not None:
            step.belongs = "after" if trial.outcome in ("slower", "faster") else "before"
            step.change = trial.timing.change
            step.base_us, step.head_us = trial.timing.base_us, trial.timing.change_us
        return step

    @contextmanager
    def _sides(self, base: str, head: str) -> Iterator[measure.Sides]:
        """The base, the version, and the base again, each compiled and right at the point."""
        with ExitStack() as stack:
            sides = list[Process]()
            for name, failed in ((base, BaseError), (head, CannotError), (base, BaseError)):  # fmt: skip
                try:
                    sides.append(self._ready(name, stack))
                except (SideError, CannotError) as error:
                    raise failed(str(error)) from None
            yield measure.Sides(sides[0], sides[1], sides[2], self.limit_s)

    def _ready(self, name: str, stack: ExitStack) -> Process:
        """A side with a version, its modules compiled and the point held against its reference."""
        overlay = self._laid(name)
        package = overlay.package if overlay else None
        variables = own(overlay) if overlay else {self.source.variable: name}
        environ = {**self.held.environ, **variables}
        begun = self.begin(self.target.name, package, environ, self.held.locks)
        side: Process = stack.enter_context(begun)
        if package is not None:
            roots_of(side, package)
        side.ask("modules", START_S, points=[self.point.as_dict()])
        built = side.ask("build", BUILD_S, jobs=len(os.sched_getaffinity(0)))
        if built["failed"]:
            raise CannotError(unbuilt(built["failed"][0]))
        side.ask("gpu", START_S)
        found = side.ask("check", self.limit_s, point=self.point.as_dict())
        if found["status"] != "ok":
            raise CannotError(f"{found['status']}: {found['reason']}")
        return side

    def _laid(self, name: str) -> variant.Overlay | None:
        change = self.source.changes[name]
        return laid(change, self.folder.absolute() / quote(name, safe="")) if change else None

    def explain(self, found: Neighbours) -> None:
        """Add the files that differ."""
        sides = [self._laid(name) for name in (found.before, found.after)]
        if sides[0] and sides[1]:
            found.files = differing(sides[0].package, sides[1].package)


def differing(before: Path, after: Path) -> list[str]:
    """Files of code that two packages do not have alike, by their place in the package."""
    names = {
        path.relative_to(package).as_posix()
        for package in (before, after)
        for path in package.rglob("*")
        if path.suffix in CODE and path.is_file()
    }
    return sorted(name for name in names if not variant.same(before / name, after / name))


class Recordings:
    """Recordings of one GPU that have a point, by their FlashInfer, the oldest first. scratch: a folder for what is made of
    them."""

    def __init__(
        self, patterns: Sequence[str], point: str, metric: str, effect: float, scratch: Path
    ) -> None:
        if metric not in JUDGED:
            raise UsageError(
                f"--metric {metric!r}: of recordings it is one of {', '.join(JUDGED)}; host times of two processes are not judged"
            )
        self._point, self._metric = point, JUDGED[metric]
        self._target = point.partition("/")[0]
        self._settings = records.Thresholds(threshold=effect)
        self._scratch = scratch
        self._folders = _by_version(patterns, point)
        self._sides: dict[str, verdict.Side] = {}
        self._changes: dict[tuple[str, str], records.MetricChange] = {}
        self.versions = list(self._folders)
        self.gpu = manifest.provenance(self._folders[self.versions[0]]).get("gpu")

    def hold(self, base: str, head: str) -> BisectStep:
        """A version against another."""
        step = BisectStep(base=base, head=head, belongs="passed over")
        found = verdict.compare(self._side(base), self._side(head), self._settings)
        row = next((p.metrics.get(self._metric) for p in found.points if p.id == self._point), None)
        if row is None or row.interval is None:
            apart = (f"{p.base}; {p.head}" for p in found.not_compared if p.id == self._point)
            step.reason = next(apart, "it was not timed")
            return step
        self._changes[base, head] = row
        low, high = row.interval
        step.change = record.Relative(estimate=row.relative, low=low, high=high)
        step.belongs = "after" if row.changed else "before"
        step.base_us, step.head_us = row.base, row.head
        return step

    def _side(self, version: str) -> verdict.Side:
        if version not in self._sides:
            place = self._scratch / str(len(self._sides))
            stored.make_results(self._folders[version], [self._target], place)
            self._sides[version] = verdict.load(place / "results", [self._target])
        return self._sides[version]

    def explain(self, found: Neighbours) -> None:
        """Add the change, its causes, and the files that differ for sure."""
        found.change = self.hold(found.before, found.after).change
        row = self._changes[found.before, found.after]
        found.causes = [cause.line for cause in row.causes[:CAUSES]]
        sides = [_places(self._folders[name], self._target) for name in (found.before, found.after)]
        # Files in which what a source index knows lies elsewhere differ, whatever others do.
        names = dict.fromkeys([*sides[0], *sides[1]])
        found.files = [name for name in names if sides[0].get(name) != sides[1].get(name)]


def _by_version(patterns: Sequence[str], point: str) -> dict[str, Path]:
    """Of each version the recording with the most points of those that have the point, the oldest version first.

    Raises CommandError where fewer than two versions have it, or where they are of several GPUs.
    """
    target = point.partition("/")[0]
    found: dict[str, tuple[int, Path]] = {}
    gpus = set()
    try:
        folders = [folder for pattern in patterns for folder in location.matching(pattern)]
        for folder in dict.fromkeys(folders):
            about = manifest.read(folder)
            points = {name for some in about.targets.get(target, {}).values() for name in some}
            version = about.provenance.get("flashinfer")
            if point not in points or not version:
                continue
            gpus.add(about.provenance.get("gpu"))
            if len(points) > found.get(version, (0, folder))[0]:
                found[version] = (len(points), folder)
    except BadInput:
        raise
    except ValueError as error:
        raise CommandError(clean(str(error))) from None
    if len(gpus) > 1:
        raise CommandError(
            f"recordings of {' and '.join(sorted(map(str, gpus)))}: of one GPU alone"
        )
    if len(found) < 2:
        raise CommandError(
            f"{point}: {len(found)} of these recordings' versions have it, of two at least"
        )
    return {version: found[version][1] for version in sorted(found, key=_order)}


def _places(folder: Path, target: str) -> dict[str, set[tuple[str, int]]]:
    """Lines of the symbols that a recording's index of FlashInfer's source has of a target, by file."""
    path = present(folder / "source_index.json")
    index = stored.written(path) if path else {"targets": {}}
    own = index["targets"].get(target, {"api": {}, "kernels": []})
    found: dict[str, set[tuple[str, int]]] = {}
    for place in (*own["api"].values(), *own["kernels"]):
        found.setdefault(place["file"], set()).add((place["symbol"], place["line"]))
    files = {*found, *own.get("files", {}).values()}
    for name, place in (index.get("scheduler") or {}).items():
        if place["file"] in files:
            found.setdefault(place["file"], set()).add((name, place["line"]))
    for file, symbols in index.get("functions", {}).items():
        if file in files:
            found.setdefault(file, set()).update((symbol, line) for line, _, symbol in symbols)
    return found


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
    nvml.needed("`ncuflow upgrade bisect --recorded`")
    return timed_at(source, target, point, asked, patience_s, cache)


def timed_at(
    source: Source,
    target: Target,
    point: Planned,
    asked: BisectedPoint,
    patience_s: float,
    cache: Path | None,
) -> Bisection:
    """The same at a point that is at hand."""
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
