"""The process of a race: it prepares all choices of a shape, and does with them what a line tells it.

    ncuflow advise-worker --answers FD

As `ncuflow trial-worker` it answers a line of its standard input by one of a file descriptor. Choices of a shape share the
inputs that they draw alike, and then the reference as well, which is computed once.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from ncuflow.advice.inputs import Drawn, sharing
from ncuflow.runner import builds, faults
from ncuflow.runner.check import check, warm_up
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import load
from ncuflow.target.launch import Launch, NotHereError, Tensor
from ncuflow.trial.told import Answer, ToldProcess, gpu, planned, reset

LAUNCHES, BURST_US = 5, 8_000.0  # of a burst: so many, or as many as this takes, but two
PLANS = 5
RETAKES = 1  # of a burst under a throttle reason


@dataclass
class Prepared:
    """A choice that is ready: its launch, and the µs of one."""

    launch: Launch
    each: float


class RaceWorker(ToldProcess):
    """What the process of a race can do."""

    def __init__(self, device: Callable[[], Any]) -> None:
        super().__init__(device)
        self._faults = faults.parse(os.environ)
        self._ready: dict[str, Prepared] = {}
        self._drawn = Drawn()
        self._expected: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}

    def do_build(self, points: list[Answer], jobs: int) -> Answer:
        """Compile the modules of points in one graph: {"failed": {module: why}}."""
        specs = {}
        for point in points:
            for spec in load(point["target"]).modules(point["params"]):
                specs[spec.name] = spec
        built = builds.build(list(specs.values()), jobs, lambda text: print(text, flush=True))
        return {"failed": {m["name"]: m["reason"] for m in built if m["status"] == "error"}}

    def do_prepare(self, name: str, point: Answer, checked: bool) -> Answer:
        """Make a choice ready, and hold it against its reference where that is asked for:
        {"status": ok, wrong, skipped or error, "reason", "check", "each_us", "info"}; info: what plan() chose."""
        try:
            return self._prepared(name, planned(point), checked)
        except NotHereError as error:
            return {"status": "skipped", "reason": str(error)}
        except Exception as error:
            if not self.alive:
                raise
            self.device.synchronize()
            return {"status": "error", "reason": builds.one_line(error)}

    def _prepared(self, name: str, point: Planned, checked: bool) -> Answer:
        target = load(point.target)
        with sharing(self._drawn):
            launch = target.prepare(point.params)
        launch = faults.apply(launch, point.id, self._faults)
        if launch.reset is not None:  # what a run overwrites is nobody else's
            self._drawn, self._expected = Drawn(), {}
        return self._entered(name, launch, checked)

    def _entered(self, name: str, launch: Launch, checked: bool) -> Answer:
        """A launch, warm, checked where that is asked for, and ready if it is right."""
        warm_up(self.device, launch)
        found: Answer = {"status": "ok", "reason": None, "check": None}
        if checked:
            result, wrong, _ = check(self.device, self._with_reference(launch))
            found["check"] = result.model_dump()
            if wrong is not None:
                return found | {"status": "wrong", "reason": wrong}
        reset(launch)
        each = max(min(self.device.cold(launch.run, 2).times), 1.0)
        self._ready[name] = Prepared(launch, each)
        return found | {"each_us": each, "info": launch.info}

    def _with_reference(self, launch: Launch) -> Launch:
        """The launch with the reference of an earlier one, where all its inputs are that one's."""
        inputs = tuple(self._drawn.latest)
        if not inputs:
            return launch
        if inputs not in self._expected:
            self._expected[inputs] = tuple(launch.reference())
        return replace(launch, reference=lambda: self._expected[inputs])

    def do_tactics(self, point: Answer, operation: str, runner: str, key: str) -> Answer:
        """Prepare the call of a tuner's entry, and list what the tuner could choose there: {"tactics", "reached"}.

        reached: the call is the one that the entry is kept under.
        """
        target = load(point["target"])
        self._call = target.prepare(point["params"])
        self._tuner = Forced(operation, runner)
        with self._tuner.forcing(None):
            self._call.run()
        return {"tactics": self._tuner.tactics, "reached": self._tuner.key == key}

    def do_tactic(self, name: str, tactic: Any, checked: bool) -> Answer:
        """Make one tactic of that call ready, as `prepare` does a choice."""
        call = self._call
        run = self._tuner.forcing(tactic)(call.run)
        if not self._expected:
            self._expected[()] = tuple(call.reference())
        launch = replace(call, run=run, reference=lambda: self._expected[()])
        try:
            return self._entered(name, launch, checked)
        except Exception as error:
            if not self.alive:
                raise
            return {"status": "error", "reason": builds.one_line(error)}

    def do_publish(self, point: Answer, root: str) -> Answer:
        """Let FlashInfer's autotuner keep, in its own store, what it tunes of a point's call: {"entries", "reason"}."""
        import flashinfer

        tune = getattr(flashinfer, "autotune_v2", None)
        if tune is None:
            return {"entries": 0, "reason": "this FlashInfer has no autotune_v2"}
        launch = load(point["target"]).prepare(point["params"])
        before = _entries(root)
        with tune(cache_root=root):
            launch.run()
        self.device.synchronize()
        return {"entries": len(_entries(root) - before), "reason": None}

    def do_burst(self, name: str) -> Answer:
        """Time launches of a choice, from settled clocks: {"times", "throttled"}."""
        ready = self._ready[name]
        return self.burst(ready.launch, ready.each, LAUNCHES, BURST_US, least=2, retakes=RETAKES)

    def do_plan(self, name: str) -> Answer:
        """µs of plan() on an idle GPU; none where there is no plan()."""
        plan, times = self._ready[name].launch.plan, []
        for _ in range(PLANS if plan else 0):
            self.device.synchronize()
            start = perf_counter()
            plan()  # type: ignore[misc]
            times.append((perf_counter() - start) * 1e6)
        return {"times": times}

    def do_forget(self, name: str) -> Answer:
        """Give back what a choice that left has of its own."""
        self._ready.pop(name, None)
        return {}

    def do_close(self) -> Answer:
        """Give the memory of a shape back."""
        self._ready.clear()
        self._drawn, self._expected = Drawn(), {}
        gc.collect()
        self.device.release()
        return {}


class Forced:
    """FlashInfer's autotuner, told what to choose for one operation of one runner.

    tactics: what that runner can be told, as JSON has it; key: that the tuner keeps the choice under.
    """

    def __init__(self, operation: str, runner: str) -> None:
        self._operation, self._runner = operation, runner
        self.tactics: list[Any] = []
        self.key: str | None = None

    @contextmanager
    def forcing(self, tactic: Any) -> Iterator[None]:
        """Calls in the block take this tactic; with None the runner's own default, and what there is is noted."""
        from flashinfer.autotuner import AutoTuner, _json_to_tactic

        tuner = AutoTuner.get()
        chosen = -1 if tactic is None else _json_to_tactic(tactic)

        def choose(
            operation: str, runners: Any, config: Any, inputs: Any, **more: Any
        ) -> tuple[Any, Any]:
            of_name = [one for one in runners if type(one).__name__ == self._runner]
            if operation != self._operation or not of_name:
                return runners[0], -1
            if tactic is None:
                self._note(tuner, of_name[0], config, inputs)
            return of_name[0], chosen

        tuner.choose_one = choose
        try:
            yield
        finally:
            del tuner.choose_one

    def _note(self, tuner: Any, runner: Any, config: Any, inputs: Any) -> None:
        from flashinfer.autotuner import _tactic_to_json

        profiles = tuner._generate_optimization_profiles(config, inputs)
        shapes = tuple(tuner._get_input_sizes(inputs))
        extras = runner.get_cache_key_extras(inputs)
        key = tuner._get_cache_key(self._operation, runner, shapes, config, extras)
        self.key = key.file_key
        self.tactics = [_tactic_to_json(t) for t in runner.get_valid_tactics(inputs, profiles[-1])]


def _entries(root: str) -> set[Path]:
    """What a store of FlashInfer's holds."""
    return set(Path(root).rglob("entries/*.json"))


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--answers", type=int, required=True, help="file descriptor of the answers")


def run(args: argparse.Namespace) -> None:
    RaceWorker(gpu).serve(args.answers)
