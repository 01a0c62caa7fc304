"""A process that does what lines tell it: requests on its standard input, answers on a file descriptor.

A request is {"do": …} with the words that it takes; ``do_<that>`` of a subclass answers it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

from ncuflow.runner import builds, timing
from ncuflow.sweep.points import Planned
from ncuflow.target.launch import Launch

Answer = dict[str, Any]


class ToldProcess:
    """What all such processes can do. ``device``: makes a ncuflow.runner.gpu.Gpu, or a test's, when it is first needed."""

    def __init__(self, device: Callable[[], Any]) -> None:
        self._make = device
        self._device: Any = None

    @property
    def device(self) -> Any:
        if self._device is None:
            self._device = self._make()
        return self._device

    @property
    def alive(self) -> bool:
        """Whether the GPU can still be used here; also where none was needed yet."""
        return self._device is None or bool(self._device.alive())

    def answer(self, request: Answer) -> Answer:
        """The answer to a request; {"error": …, "alive": …} where it failed."""
        words = dict(request)
        try:
            found: Answer = getattr(self, f"do_{words.pop('do')}")(**words)
            return found
        except Exception as error:
            return {"error": builds.one_line(error), "alive": self.alive}

    def do_gpu(self) -> Answer:
        """The GPU, as a target's skip() is given it, and its driver."""
        return {"facts": self.device.facts(), "driver": self.device.driver()}

    def burst(
        self,
        launch: Launch,
        each_us: float,
        launches: int,
        span_us: float,
        least: int,
        retakes: int,
    ) -> Answer:
        """Time launches from settled clocks: {"times", "throttled"}. each_us: of one; so many, or as many as take span_us, but
        ``least``; retakes: of a burst under a throttle reason."""
        n = timing.repetitions(launches, span_us, each_us, least=least)
        for _ in range(1 + retakes):
            self.device.settle()
            reset(launch)
            burst = self.device.cold(launch.run, n)
            if not burst.throttled:
                break
        return {"times": burst.times, "throttled": burst.throttled}

    def serve(self, answers: int) -> None:
        """Answer each line of standard input by one of this file descriptor, to the end of the first."""
        with os.fdopen(answers, "w", encoding="utf-8") as stream:
            for line in sys.stdin:
                stream.write(json.dumps(self.answer(json.loads(line))) + "\n")
                stream.flush()


def reset(launch: Launch) -> None:
    """Restore what a launch's run overwrites."""
    if launch.reset is not None:
        launch.reset()


def planned(point: Answer) -> Planned:
    return Planned(point["id"], point["target"], point["params"])


def gpu() -> Any:
    """The GPU of this process."""
    from ncuflow.runner.gpu import Gpu

    return Gpu()
