"""Versions held against each other on a GPU, in turns, each in a process of its own, as the sides of a trial are."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ncuflow.bisection.record import Neighbours
from ncuflow.bisection.search import HeldAgainst
from ncuflow.bisection.sources import CannotError, Commits, Placed, VersionSource, differing
from ncuflow.experiments.build import unbuilt
from ncuflow.gpu import turns
from ncuflow.io import CommandError, clean, scratch
from ncuflow.race import measure
from ncuflow.race.record import MeasuredPoint
from ncuflow.race.sides import Process, SideError, started
from ncuflow.runner.job import FATAL
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target

BUILD_S, START_S = 3600.0, 300.0
Tell = Callable[[str], None]
Begin = Callable[..., Any]  # (target, package, environ, locks) -> context of a side


class Versions:
    """The versions of a source, timed at one point. Use it as a context: the GPU is held, and what is installed goes on exit
    unless a cache keeps it.

    begin: starts a side; that of a trial unless a test has its own. cache: a folder that keeps the versions and what they
    compiled, a folder for each.
    """

    def __init__(
        self,
        source: VersionSource,
        target: Target,
        point: Planned,
        effect: float,
        limit_s: float,
        tell: Tell,
        begin: Begin = started,
        cache: Path | None = None,
    ) -> None:
        self._source, self._target, self._point = source, target, point
        self._effect, self._limit_s, self._tell = effect, limit_s, tell
        self._begin, self._cache = begin, cache
        self._stack = ExitStack()
        self._placed: dict[str, Placed | CannotError] = {}

    def __enter__(self) -> Versions:
        held = self._stack.enter_context(turns.gpu_lock())
        self._environ: Mapping[str, str] = held.environ
        self._locks = held.locks
        self.gpu = held.gpu.name
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.close()

    def hold(self, base: str, head: str) -> HeldAgainst:
        """A version against another. Raises CommandError where the base cannot run the point: nothing can be said then."""
        self._tell(f"{head}: held against {base}")
        try:
            place = self._place(base)
        except CannotError as error:
            raise CommandError(f"{base}: {error}", FATAL) from None
        try:
            other = self._place(head)
            with self._sides(place, other) as sides:
                return self._held(sides)
        except CannotError as error:
            return HeldAgainst(reason=clean(str(error)))
        except measure.BaseError as error:
            raise CommandError(clean(f"{base}: {error}"), FATAL) from None

    def _place(self, version: str) -> Placed:
        """A version, made once; one that cannot be had is not tried again."""
        if version not in self._placed:
            folder = self._folder(version)
            try:
                self._placed[version] = self._source.place(version, folder)
            except CannotError as error:
                self._placed[version] = error
        found = self._placed[version]
        if isinstance(found, CannotError):
            raise found
        return found

    def _folder(self, version: str) -> Path:
        if self._cache is None:
            return self._stack.enter_context(scratch())
        folder = self._cache.absolute() / quote(version, safe="")
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @contextmanager
    def _sides(self, base: Placed, head: Placed) -> Iterator[measure.Sides]:
        """The base, the version, and the base again, each compiled and right at the point."""
        with ExitStack() as stack:

            def begun(placed: Placed) -> Process:
                environ = {**self._environ, **placed.environ}
                side = self._begin(self._target.name, placed.package, environ, self._locks)
                found: Process = stack.enter_context(side)
                return found

            sides = measure.Sides(begun(base), begun(head), begun(base), self._limit_s)
            for side in (sides.base, sides.again):
                try:
                    self._ready(side, base)
                except (SideError, CannotError) as error:
                    raise measure.BaseError(str(error)) from None
            try:
                self._ready(sides.change, head)
            except SideError as error:
                raise CannotError(str(error)) from None
            yield sides

    def _ready(self, side: Any, placed: Placed) -> None:
        """Compile a side's modules and hold the point against its reference. Raises CannotError where it is not right."""
        loaded = Path(side.ask("hello", START_S)["package"]).resolve()
        if placed.package is not None and loaded != placed.package.resolve():
            raise CannotError(f"Python finds another FlashInfer first, in {loaded}")
        side.ask("modules", START_S, points=[self._point.as_dict()])
        built = side.ask("build", BUILD_S, jobs=len(os.sched_getaffinity(0)))
        if built["failed"]:
            raise CannotError(unbuilt(built["failed"][0]))
        side.ask("gpu", START_S)
        found = side.ask("check", self._limit_s, point=self._point.as_dict())
        if found["status"] != "ok":
            raise CannotError(f"{found['status']}: {found['reason']}")

    def _held(self, sides: measure.Sides) -> HeldAgainst:
        trial = MeasuredPoint(point=self._point.id, outcome="unchecked")
        measure.timed(sides, [self._point], [trial], self._effect, self._tell)
        if trial.timing is None:
            return HeldAgainst(reason=trial.reason)
        timing = trial.timing
        changed = trial.outcome in ("slower", "faster")
        return HeldAgainst(timing.change, changed, timing.base_us, timing.change_us)

    def explain(self, found: Neighbours) -> None:
        """Add the files that differ."""
        if isinstance(self._source, Commits):
            found.files = self._source.files(found.before, found.after)
            return
        packages = [self._package(version) for version in (found.before, found.after)]
        if None not in packages:
            found.files = differing(*packages)  # type: ignore[arg-type]

    def _package(self, version: str) -> Path | None:
        try:
            return self._place(version).package
        except CannotError:
            return None


def between(versions: Sequence[str], good: str | None, bad: str | None) -> list[str]:
    """The versions from the good one to the bad one, in that direction. Raises ValueError where one is not there."""
    for name in filter(None, (good, bad)):
        if name not in versions:
            listed = ", ".join(versions[:30])
            raise ValueError(f"no version {name!r}; there are: {listed}")
    first = versions.index(good) if good else 0
    last = versions.index(bad) if bad else len(versions) - 1
    return list(versions[first : last + 1]) if first <= last else list(versions[last : first + 1][::-1])  # fmt: skip
