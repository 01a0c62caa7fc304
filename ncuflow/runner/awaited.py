"""Modules that a build compiles while programs wait for them, with their libraries loaded and no GPU held."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from ncuflow.gpu import nvml
from ncuflow.runner import builds
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target


def build_begun() -> None:
    """Wait until a build that is about to begin compiles: it loads the same libraries, and all others wait for it."""
    with ExitStack() as held:
        builds.locked(builds.begins(), held, wait=True)


class Awaited:
    """The modules of a target's points that another process compiles, or is about to.

    A program that is profiled meanwhile takes the points in the order in which their modules stand, and holds no GPU while
    none does.
    """

    def __init__(self, target: Target, points: Sequence[Planned]) -> None:
        self._target, self._points = target, points
        self._of: dict[str, list[Any]] = {}

    def begin(self) -> None:
        """Wait until those of one point stand."""
        known = builds.capabilities(os.environ, nvml.capabilities)
        able = builds.buildable(self._target, self._points, known, lambda line: None)
        self._of = {point.id: builds.modules(self._target, [point]) for point in able}
        build_begun()
        self.first(self._points, lambda until: until())

    def stand(self, point: Planned) -> bool:
        """Whether nobody compiles a module of the point. One that nobody compiles may be cold."""
        return not any(
            builds.is_cold(spec) and _is_compiled(spec) for spec in self._of.get(point.id, ())
        )

    def wait(self, point: Planned) -> None:
        """Wait until they stand."""
        for spec in filter(builds.is_cold, self._of.get(point.id, ())):
            with ExitStack() as held:
                builds.locked(Path(spec.lock_path), held, wait=True)

    def first(
        self, points: Sequence[Planned], pause: Callable[[Callable[[], None]], None]
    ) -> Planned:
        """The first of these points whose modules stand; where there is none, the first when its own do."""
        for point in points:
            if self.stand(point):
                return point
        pause(lambda: self.wait(points[0]))
        return points[0]


def _is_compiled(spec: Any) -> bool:
    """Whether a process is compiling a module now."""
    with ExitStack() as held:
        return not builds.locked(Path(spec.lock_path), held)
