"""The bench of a trial: one GPU, the base in two processes, and each change in one of its own.

The base's processes serve all changes of a command. Those of changes are started some at a time, all at once, before
any of them is timed: loading torch and FlashInfer takes longer than many a trial.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from ncuflow.format import with_unit
from ncuflow.gpu import turns
from ncuflow.gpu.turns import Held
from ncuflow.trial import course
from ncuflow.trial.building import START_S, Tell, own
from ncuflow.trial.overlay import Overlay
from ncuflow.trial.sides import Process, SideError, started

TOGETHER = (
    8  # changes whose processes are there at once: each has a CUDA context, and the memory of torch
)


@dataclass
class TrialBench:
    """held: the GPU; overlays: of the changes, in the order in which they are asked for."""

    target: str
    held: Held
    overlays: Sequence[Overlay]
    limit_s: float
    tell: Tell
    base: Process
    again: Process
    _started: dict[int, tuple[Process, ExitStack]] = field(default_factory=dict, init=False)

    @contextmanager
    def of(self, overlay: Overlay) -> Iterator[course.Sides]:
        """The sides of a change, whose own process ends with the block."""
        place = next(n for n, other in enumerate(self.overlays) if other is overlay)
        if place not in self._started:
            self._start(range(place, min(place + TOGETHER, len(self.overlays))))
        change, stack = self._started.pop(place)
        with stack:
            yield course.Sides(self.base, change, self.again, self.limit_s)

    def _start(self, places: range) -> None:
        """Start the processes of some changes. One that fails at that says so again when it is asked."""
        self.tell(f"starting {with_unit(len(places), 'changes')}")
        for place in places:
            stack = ExitStack()
            overlay = self.overlays[place]
            environ = {**self.held.environ, **own(overlay)}
            side = stack.enter_context(
                started(self.target, overlay.loaded, environ, self.held.locks, *overlay.words)
            )
            self._started[place] = side, stack
        _awake([self._started[place][0] for place in places])

    def close(self) -> None:
        """End the processes of changes that were not asked for."""
        with ExitStack() as stack:
            for _, other in self._started.values():
                stack.push(other)


@contextmanager
def bench(
    target: str, overlays: Sequence[Overlay], limit_s: float, tell: Tell
) -> Iterator[TrialBench]:
    """A GPU that nobody else uses meanwhile, and the base on it. Raises course.BaseError where that cannot be started."""
    with turns.gpu_lock() as held, ExitStack() as stack:
        both = [
            stack.enter_context(started(target, None, held.environ, held.locks)) for _ in range(2)
        ]
        found = TrialBench(target, held, overlays, limit_s, tell, *both)
        stack.callback(found.close)
        waking = stack.enter_context(ThreadPoolExecutor(1)).submit(_awake, both)
        found._start(range(min(TOGETHER, len(overlays))))
        for error in waking.result():
            if error is not None:
                raise course.BaseError(f"the base: {error}") from None
        yield found


def _awake(sides: Sequence[Process]) -> list[SideError | None]:
    """Let sides load torch and FlashInfer, and find the GPU, all at once; why one could not."""

    def ask(side: Process) -> SideError | None:
        try:
            side.ask("gpu", START_S)
        except SideError as error:
            return error
        return None

    with ThreadPoolExecutor(max(1, len(sides))) as pool:
        return list(pool.map(ask, sides))
