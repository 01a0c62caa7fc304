"""Modules that a build compiles while programs wait for them, with their libraries loaded and no GPU held."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ncuflow.gpu import nvml
from ncuflow.runner import builds
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target

POLL_S = 0.1


def build_begun() -> None:
    """Wait until a build that is about to begin compiles: it loads the same libraries, and all others wait for it."""
    with ExitStack() as held:
        builds.locked(builds.begins(), held, wait=True)


def nobody_compiles(wait: bool = False) -> bool:
    """Whether no build of this user compiles anything; with ``wait``, when that is so."""
    with ExitStack() as held:
        return builds.locked(builds.compiles(), held, wait=wait)


class Awaited:
    """The modules of a target's points that another process compiles, or is about to.

    A program that is profiled meanwhile takes the points in the order in which their modules stand, and holds no GPU while
    none does. together: it begins when those of all points stand.
    """

    def __init__(
        self,
        target: Target,
        points: Sequence[Planned],
        together: bool = False,
        after_builds: bool = False,
    ) -> None:
        self._target, self._points = target, points
        self._together, self._after_builds = together or after_builds, after_builds
        self._of: dict[str, list[Any]] = {}

    def begin(self) -> None:
        """Wait until those of one point stand, or of all."""
        known = builds.capabilities(os.environ, nvml.capabilities)
        able = builds.buildable(self._target, self._points, known, lambda line: None)
        self._of = {point.id: builds.modules(self._target, [point], {}) for point in able}
        build_begun()
        self._wait(all if self._together else any, self._points)
        if self._after_builds:
            nobody_compiles(wait=True)

    def stand(self, point: Planned) -> bool:
        """Whether nobody compiles a module of the point. One that nobody compiles may be cold."""
        return not any(
            builds.is_cold(spec) and _is_compiled(spec) for spec in self._of.get(point.id, ())
        )

    def first(
        self, points: Sequence[Planned], pause: Callable[[Callable[[], None]], None]
    ) -> Planned:
        """The first of these points whose modules stand, when those of one do."""
        while not (standing := [point for point in points if self.stand(point)]):
            pause(lambda: self._wait(any, points))
        return standing[0]

    def _wait(self, which: Callable[[Iterable[bool]], bool], points: Sequence[Planned]) -> None:
        while not which(map(self.stand, points)):
            time.sleep(POLL_S)


def _is_compiled(spec: Any) -> bool:
    """Whether a process is compiling a module now."""
    with ExitStack() as held:
        return not builds.locked(Path(spec.lock_path), held)
