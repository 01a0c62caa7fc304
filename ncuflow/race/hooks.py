"""What a worker takes hold of in FlashInfer and in a target: an API that a function stands in for, the autotuner, inputs."""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ncuflow.io import scratch
from ncuflow.run import timing
from ncuflow.target.contract import Target
from ncuflow.target.launch import Inputs, Launch, Params, Tensor

_DUMP, _FOLDER = "FLASHINFER_TRACE_DUMP", "FLASHINFER_TRACE_DUMP_DIR"


class Substitute:
    """Prepares launches of a target whose API is replaced. Raises ImportError or AttributeError where there is no such
    function."""

    def __init__(self, name: str) -> None:
        module, _, function = name.partition(":")
        sys.path.append(
            str(Path.cwd())
        )  # behind all else: what is named is the user's, its neighbours need not be
        self.function: Callable[..., Any] = getattr(importlib.import_module(module), function)
        self._names: set[str] = set()

    def prepare(self, target: Target, params: Params, seed: int) -> Launch:
        """A launch that calls the function. Raises RuntimeError where it was not called."""
        from flashinfer import trace_apply

        trace_apply.disable_apply()
        # What the definitions of this launch are called, FlashInfer says where it writes them down.
        with _dumped() as folder:
            target.prepare(params, seed).run()
            self._names |= {path.stem for path in folder.rglob("*.json")}
        if not self._names:
            raise RuntimeError("the target calls no API that trace_apply knows")
        trace_apply.enable_apply(dict.fromkeys(sorted(self._names), self.function))
        launch = target.prepare(params, seed)
        timing.reset(launch)
        launch.run()
        if not any(counts.get("hit") for counts in trace_apply.stats().values()):
            names = ", ".join(sorted(self._names))
            raise RuntimeError(
                f"FlashInfer called its own kernel, and not the function, for {names}"
            )
        return launch


@contextmanager
def _dumped() -> Iterator[Path]:
    """A folder in which FlashInfer writes down each definition that is called for the first time."""
    with scratch() as folder:
        os.environ[_DUMP], os.environ[_FOLDER] = "1", str(folder)
        try:
            yield folder
        finally:
            del os.environ[_DUMP], os.environ[_FOLDER]


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


DRAWS = ("normal", "permutation")  # what `Inputs` draws by


@dataclass
class Drawn:
    """Inputs that launches of one shape share. latest: what the one prepared last has of them."""

    tensors: dict[Any, Tensor] = field(default_factory=dict)
    latest: list[Any] = field(default_factory=list)


@contextmanager
def sharing(drawn: Drawn) -> Iterator[None]:
    """Launches that are prepared in the block take, in the place of what is drawn alike, what an earlier one drew."""
    drawn.latest = []
    draws: WeakKeyDictionary[Inputs, int] = WeakKeyDictionary()
    alone = {name: getattr(Inputs, name) for name in DRAWS}
    for name, draw in alone.items():
        setattr(Inputs, name, _once(drawn, draws, draw))
    try:
        yield
    finally:
        for name, draw in alone.items():
            setattr(Inputs, name, draw)


def _once(
    drawn: Drawn, draws: WeakKeyDictionary[Inputs, int], draw: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """A draw that is made by the first launch that draws the same in this place."""

    def shared(inputs: Inputs, *what: Any, **how: Any) -> Tensor:
        draws[inputs] = draws.get(inputs, 0) + 1
        key = (draws[inputs], draw.__name__, what, *how.items())
        drawn.latest.append(key)
        if key not in drawn.tensors:
            drawn.tensors[key] = draw(inputs, *what, **how)
        return drawn.tensors[key]

    return shared
