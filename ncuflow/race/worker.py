"""The worker of a race: a process that has one FlashInfer loaded, and does what lines on its standard input ask for.

    ncuflow worker [TARGET] --answers FD [--package FOLDER] [--function MODULE:FUNCTION]
    ncuflow worker TARGET --trace POINTS OUT [--package FOLDER]

A request is {"do": …} with the words that it takes; ``do_<that>`` of a worker answers it, by a line of the file descriptor.
What FlashInfer and torch print goes to standard output, which is no part of that. With --trace it launches points for a
profiler, as `ncuflow launch --mode trace` does, and ends.
"""

import gc
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from ncuflow.io import JsonObject, UsageError, scratch
from ncuflow.race.record import CheckedCase, CompileError, Module, Worst
from ncuflow.race.sides import Packages, pinned
from ncuflow.run import builds, prepare, timing
from ncuflow.run import launch as launch
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target, load
from ncuflow.target.launch import Inputs, Launch, NotHereError, Params, Tensor

SEEDS = (0, 1)  # a result that was kept from the first call is wrong in the second
LAUNCHES = 10  # of a burst of a point
TURNS = 20  # of a round of calls in one process, each after one that counts not
CALLS, PLANS = 30, 10  # of the host, of which the last two thirds count: the first find cold caches
# nvcc: file(line): error: …; the host's compiler: file:line:column: error: …
_ERROR = re.compile(
    r"(?P<file>[^\s:(][^:(]*)(?:\((?P<nvcc>\d+)\)|:(?P<host>\d+)(?::\d+)?):\s*"
    r"(?:catastrophic |fatal )?error\b[^:]*:\s*(?P<what>.+)"
)


# --- what it takes hold of in FlashInfer and in a target --------------------------------------

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
        for what in launch.untold:
            launch.extremes.pop(what, None)
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


# --- the worker ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class BurstPlan:
    """How launches are timed: so many, or as many as take ``span_us``, but ``least``; retakes: of a burst under a throttle
    reason; trials: launches that say how long one takes."""

    launches: int
    span_us: float
    least: int
    retakes: int
    trials: int


OF_POINT = BurstPlan(LAUNCHES, timing.BURST_US, least=3, retakes=timing.RETAKES, trials=3)
OF_MANY = BurstPlan(5, 8_000.0, least=2, retakes=1, trials=2)


@dataclass
class Prepared:
    """A launch that is ready, and the µs of one."""

    launch: Launch
    plan: BurstPlan
    each_us: float


class Worker:
    """What a worker can do, and the loop in which it is asked to. target: of all points, None where each names its own.
    device: makes a ncuflow.run.gpu.Gpu, or a test's, when it is first needed; function: that stands in for the API."""

    def __init__(
        self, target: Target | None, device: Callable[[], Any], function: str = ""
    ) -> None:
        self.target, self._make, self._function = target, device, function
        self._substitute: Substitute | None = None
        self._ready: dict[str, Prepared] = {}
        self._specs: JsonObject = {}
        self._needed: dict[str, list[str]] = {}  # by the name of a module, ids of points
        self._failed: list[JsonObject] = []
        self._faults = prepare.planted_faults(os.environ)
        self._drawn = Drawn()
        self._packages = Packages()
        self._expected: dict[tuple[Any, ...], tuple[Tensor, ...]] = {}

    @cached_property
    def device(self) -> Any:
        return self._make()

    @property
    def alive(self) -> bool:
        """Whether the GPU can still be used here; also where none was needed yet."""
        return "device" not in vars(self) or bool(self.device.alive())

    def answer(self, request: JsonObject) -> JsonObject:
        """The answer to a request; {"error": …, "alive": …} where it failed."""
        words = dict(request)
        try:
            found: JsonObject = getattr(self, f"do_{words.pop('do')}")(**words)
            return found
        except Exception as error:
            return {"error": builds.one_line(error), "alive": self.alive}

    def do_gpu(self) -> JsonObject:
        """The GPU, as a target's skip() is given it, and its driver."""
        return {"facts": self.device.facts(), "driver": self.device.driver()}

    def serve(self, answers: int) -> None:
        """Answer each line of standard input by one of this file descriptor, to the end of the first."""
        with os.fdopen(answers, "w", encoding="utf-8") as stream:
            for line in sys.stdin:
                stream.write(json.dumps(self.answer(json.loads(line))) + "\n")
                stream.flush()

    def _target(self, point: Planned) -> Target:
        return self.target or load(point.target)

    # --- modules ------------------------------------------------------------------------------

    def do_hello(self) -> JsonObject:
        """Which FlashInfer this is, and where what it generates lies."""
        import flashinfer
        from flashinfer.jit import env

        package = str(Path(str(flashinfer.__file__)).parent)
        return {"package": package, "workspace": str(env.FLASHINFER_WORKSPACE_DIR)}

    def do_modules(self, points: list[JsonObject]) -> JsonObject:
        """Generate sources and build files of the points' modules. CuTe DSL compiles at the first launch, and has none.

        A point of which that fails is among those that `build` names.
        """
        self._specs, self._needed, self._failed = {}, {}, []
        for point in points:
            try:
                specs = builds.modules(self._target(planned(point)), [planned(point)])
                for spec in specs:
                    if spec.name not in self._specs and hasattr(spec, "write_ninja"):
                        spec.write_ninja()
            except Exception as error:
                failed = {"name": None, "reason": builds.one_line(error), "complaint": None}
                self._failed.append(failed | {"points": [point["id"]]})
                continue
            for spec in specs:
                self._specs.setdefault(spec.name, spec)
                self._needed.setdefault(spec.name, []).append(point["id"])
        return {
            "modules": [_module_facts(s) for s in self._specs.values() if hasattr(s, "write_ninja")]
        }

    def do_build(self, jobs: int) -> JsonObject:
        """Compile the modules of the last request, and what failed: {"failed": [{"name": of a module, null where there is none
        yet, "points": ids of those that need it, "reason", "complaint"}]}."""
        told: list[str] = []
        built = builds.build(list(self._specs.values()), jobs, told.append)
        failed = list(self._failed)
        for module in built:
            if module["status"] == "error":
                name = module["name"]
                own = [
                    t for text in told if text.startswith(f"{name}: ") for t in text.splitlines()
                ]
                complaint = first_error(own)
                said = complaint.model_dump() if complaint else None
                what = {"name": name, "reason": module["reason"], "complaint": said}
                failed.append(what | {"points": self._needed[name]})
        return {"failed": failed}

    def do_compile(self, modules: list[JsonObject], jobs: int) -> JsonObject:
        """Compile modules of other sides in one graph, whose sources and build files they generated. What fails there, its
        own side builds again, and has the compiler's complaint."""
        specs = [Generated(Module.model_validate(module)) for module in modules]
        builds.together(specs, jobs, lambda line: None)
        return {}

    # --- results ------------------------------------------------------------------------------

    def do_check(self, point: JsonObject, seeds: Sequence[int] = SEEDS) -> JsonObject:
        """Hold a point against its reference, with the inputs of each seed: a CheckedCase."""
        case = planned(point)
        reason = self._target(case).skip(case.params, self.device.facts())
        if reason is not None:
            return CheckedCase(id=case.id, status="skipped", reason=reason).model_dump()
        try:
            found = self._checked(case, seeds)
        except NotHereError as error:
            found = CheckedCase(id=case.id, status="skipped", reason=str(error))
        except Exception as error:
            found = CheckedCase(id=case.id, status="error", reason=builds.one_line(error))
            if not self.device.alive():
                found.status = "lost"
        if found.status != "lost":
            self.device.release()
        return found.model_dump()

    def _checked(self, point: Planned, seeds: Sequence[int]) -> CheckedCase:
        """The first wrong result of the seeds, or the last right one. Memory stays allocated between the calls: the second
        one's inputs lie where the first one's lay, and tell a result that is kept by address."""
        found = None
        for seed in seeds:
            launch = self._prepare(point, seed)
            prepare.warm_up(self.device, launch)
            checked = prepare.check(self.device, launch)
            if checked.wrong is not None:
                return _wrong(point, checked, checked.wrong, seed)
            found = CheckedCase(id=point.id, status="ok", check=checked.check)
            del launch
            gc.collect()
        assert found is not None
        return found

    def do_side_stream(self, point: JsonObject) -> JsonObject:
        """Hold a point against its reference from a stream of its own, and with extreme inputs: {"wrong": {how it was
        launched: CheckedCase}}."""
        case = planned(point)
        launch = self._prepare(case, SEEDS[0])
        prepare.warm_up(self.device, launch)
        found = {
            "launched from a stream of its own": prepare.check_on_side_stream(self.device, launch)
        }
        for what, put in launch.extremes.items():
            put()
            found[f"with {what}"] = prepare.check_extreme(self.device, launch)
        del launch
        self.device.release()
        return {
            "wrong": {
                how: _wrong(case, checked, f"{how}: {checked.wrong}", SEEDS[0]).model_dump()
                for how, checked in found.items()
                if checked.wrong is not None
            }
        }

    def _prepare(self, point: Planned, seed: int) -> Launch:
        if not self._function:
            return self._target(point).prepare(point.params, seed)
        if self._substitute is None:
            self._substitute = Substitute(self._function)
        return self._substitute.prepare(self._target(point), point.params, seed)

    # --- launches that are ready --------------------------------------------------------------

    def do_open(self, point: JsonObject, seed: int = SEEDS[0], brief: bool = False) -> JsonObject:
        """Make a point ready to be timed, by shorter bursts where it is one of many: {"each_us"}. One that a failure left open
        goes first."""
        self._ready.clear()
        launch = self._prepare(planned(point), seed)
        prepare.warm_up(self.device, launch)
        return {"each_us": self._enter("", launch, OF_MANY if brief else OF_POINT)}

    def _enter(self, name: str, launch: Launch, plan: BurstPlan) -> float:
        """A warm launch is ready; µs of one."""
        timing.reset(launch)
        each = float(max(min(self.device.cold(launch.run, plan.trials).times), 1.0))
        self._ready[name] = Prepared(launch, plan, each)
        return each

    def do_prepare(self, name: str, point: JsonObject, checked: bool) -> JsonObject:
        """Make a choice ready, and hold it against its reference where that is asked for:
        {"status": ok, wrong, skipped or error, "reason", "check", "each_us", "info"}; info: what plan() chose."""
        try:
            with self._packages.of(name):
                return self._prepared(name, planned(point), checked)
        except NotHereError as error:
            return {"status": "skipped", "reason": str(error)}
        except Exception as error:
            if not self.alive:
                raise
            self.device.synchronize()
            return {"status": "error", "reason": builds.one_line(error)}

    def _prepared(self, name: str, point: Planned, checked: bool) -> JsonObject:
        with sharing(self._drawn):
            launch = self._target(point).prepare(point.params)
        launch = prepare.plant(launch, point.id, self._faults)
        if launch.reset is not None:  # what a run overwrites is nobody else's
            self._drawn, self._expected = Drawn(), {}
        return self._entered(name, launch, checked)

    def _entered(self, name: str, launch: Launch, checked: bool) -> JsonObject:
        """A launch, warm, checked where that is asked for, and ready if it is right."""
        prepare.warm_up(self.device, launch)
        found: JsonObject = {"status": "ok", "reason": None, "check": None}
        if checked:
            result, wrong, _ = prepare.check(self.device, self._with_reference(launch))
            found["check"] = result.model_dump()
            if wrong is not None:
                return found | {"status": "wrong", "reason": wrong}
        return found | {"each_us": self._enter(name, launch, OF_MANY), "info": launch.info}

    def _with_reference(self, launch: Launch) -> Launch:
        """The launch with the reference of an earlier one, where all its inputs are that one's."""
        inputs = tuple(self._drawn.latest)
        if not inputs:
            return launch
        if inputs not in self._expected:
            self._expected[inputs] = tuple(launch.reference())
        return replace(launch, reference=lambda: self._expected[inputs])

    def do_tactics(self, point: JsonObject, operation: str, runner: str, key: str) -> JsonObject:
        """Prepare the call of a tuner's entry, and list what the tuner could choose there: {"tactics", "reached"}.

        reached: the call is the one that the entry is kept under.
        """
        self._call = self._target(planned(point)).prepare(point["params"])
        self._tuner = Forced(operation, runner)
        with self._tuner.forcing(None):
            self._call.run()
        return {"tactics": self._tuner.tactics, "reached": self._tuner.key == key}

    def do_tactic(self, name: str, tactic: Any, checked: bool) -> JsonObject:
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

    def do_publish(self, point: JsonObject, root: str) -> JsonObject:
        """Let FlashInfer's autotuner keep, in its own store, what it tunes of a point's call: {"entries", "reason"}."""
        import flashinfer

        tune = getattr(flashinfer, "autotune_v2", None)
        if tune is None:
            return {"entries": 0, "reason": "this FlashInfer has no autotune_v2"}
        launch = self._target(planned(point)).prepare(point["params"])
        before = _entries(root)
        with tune(cache_root=root):
            launch.run()
        self.device.synchronize()
        return {"entries": len(_entries(root) - before), "reason": None}

    def do_burst(self, name: str = "") -> JsonObject:
        """Time launches of what is ready, from settled clocks: {"times", "throttled"}."""
        ready = self._ready[name]
        plan = ready.plan
        n = timing.repetitions(plan.launches, plan.span_us, ready.each_us, least=plan.least)
        for _ in range(1 + plan.retakes):
            self.device.settle()
            timing.reset(ready.launch)
            burst = self.device.cold(ready.launch.run, n)
            if not burst.throttled:
                break
        return {"times": burst.times, "throttled": burst.throttled}

    def do_host(self, name: str = "", core: int | None = None) -> JsonObject:
        """µs of the host in calls of what is ready, on this core, and in plan() on an idle GPU; none where there is no plan()."""
        launch = self._ready[name].launch
        with nullcontext() if core is None else pinned(core):
            timing.reset(launch)
            calls = timing.call_times(self.device, launch.run, CALLS)
            plans = timing.plan_times(self.device, launch.plan, PLANS) if launch.plan else []
        return {"call": calls[len(calls) // 3 :], "plan": plans[len(plans) // 3 :]}

    def do_beside(self, name: str, package: str, environ: dict[str, str]) -> JsonObject:
        """Load another FlashInfer into this process, which what is prepared by this name is of: {"package"}."""
        return {"package": str(Path(self._packages.add(name, Path(package), environ)).parent)}

    def do_turns(self, names: Sequence[str], core: int | None = None) -> JsonObject:
        """µs of the host in calls of what is ready by these names (base, change, control), in turns on this core, and in
        plan(): {"call": {name: […]}, "plan": the same, of those that have one}.

        A call after one of another FlashInfer takes up to a tenth longer than after one of its own: so each that counts is.
        """
        base, change, control = names
        calls: dict[str, list[float]] = {name: [] for name in names}
        plans: dict[str, list[float]] = {name: [] for name in names}
        with nullcontext() if core is None else pinned(core):
            for turn in range(TURNS + 1):
                ends = (base, control) if turn % 2 else (control, base)
                for place, name in enumerate((ends[0], change, ends[1], change)):
                    launch = self._ready[name].launch
                    with self._packages.of(name):
                        timing.reset(launch)
                        call = timing.call_times(self.device, launch.run, 2)
                        plan = launch.plan and timing.plan_times(self.device, launch.plan, 2)
                    # The first turn finds cold caches, and the last call stands between two of the base.
                    if turn and place < 3:
                        calls[name] += call[1:]
                        plans[name] += (plan or [])[1:]
        return {"call": calls, "plan": plans}

    def do_kernels(self, point: JsonObject) -> JsonObject:
        """What a point's call resolves to: {"kernels": their names, "backend": that plan() chose, None where it says none}."""
        launch = self._prepare(planned(point), SEEDS[0])
        prepare.warm_up(self.device, launch)
        timing.reset(launch)
        found = self.device.kernels(launch.run)
        backend = launch.info.get("backend")
        del launch
        self.device.release()
        return {"kernels": found, "backend": backend}

    def do_forget(self, name: str) -> JsonObject:
        """Give back what a choice that left has of its own."""
        self._ready.pop(name, None)
        return {}

    def do_close(self) -> JsonObject:
        """Give the memory of all that is ready back."""
        self._ready.clear()
        self._drawn, self._expected = Drawn(), {}
        gc.collect()
        self.device.release()
        return {}


class Generated:
    """A module of another side, for the builder: FlashInfer generated what it takes there."""

    def __init__(self, module: Module) -> None:
        self.name, self.sources = module.name, range(module.files)
        self.ninja_path = module.folder / "build.ninja"
        self.jit_library_path = module.library
        # Nobody else compiles what a change generated: its folder goes with the trial.
        self.lock_path = module.folder / "lock"

    def write_ninja(self) -> None:
        """It is written."""


def planned(point: JsonObject) -> Planned:
    return Planned(point["id"], point["target"], point["params"])


def gpu() -> Any:
    """The GPU of this process."""
    from ncuflow.run.gpu import Gpu

    return Gpu()


def _wrong(point: Planned, checked: prepare.CheckedLaunch, reason: str, seed: int) -> CheckedCase:
    """What is said of a wrong result."""
    worst = None if checked.worst is None else Worst(**checked.worst)
    return CheckedCase(
        id=point.id, status="wrong", reason=reason, seed=seed, check=checked.check, worst=worst
    )


def _module_facts(spec: Any) -> JsonObject:
    """A module that ninja builds, as a Module is told."""
    folder, library = str(Path(spec.ninja_path).parent), str(spec.jit_library_path)
    return {"name": spec.name, "folder": folder, "files": len(spec.sources), "library": library}


def first_error(lines: Sequence[str]) -> CompileError | None:
    """The first thing that a compiler complained of, with file and line; None where it named none."""
    found = next((match for line in lines if (match := _ERROR.match(line.strip()))), None)
    if found is None:
        return None
    return CompileError(
        file=found["file"], line=int(found["nvcc"] or found["host"]), message=found["what"].strip()
    )


def _entries(root: str) -> set[Path]:
    """What a store of FlashInfer's holds."""
    return set(Path(root).rglob("entries/*.json"))


def command(
    target: str | None = None,
    /,
    *,
    answers: int | None = None,
    trace: tuple[Path, Path] | None = None,
    package: Path | None = None,
    function: str = "",
) -> int:
    """Answer lines, or launch points for a profiler.

    Args:
        target: of all points; else each names its own
        answers: file descriptor of the answers
        trace: POINTS OUT: launch these points, records to OUT
        package: folder of the FlashInfer to load
        function: module:function in place of the API
    """
    if package is not None:
        sys.path.insert(0, str(package.parent))
    # Modules that were compiled elsewhere, of other sources and by other flags, are those of neither side.
    if target and importlib.util.find_spec("flashinfer_jit_cache") is not None:
        sys.modules["flashinfer_jit_cache"] = None  # type: ignore[assignment]
    if trace and target:
        # They were found right before, and the profiler flushes itself.
        points, out = trace
        asked = launch.LaunchAsked(
            points=points, out=out, mode="trace", repeats=1, seed=SEEDS[0], no_flush=True, unchecked=True
        )  # fmt: skip
        return launch.launched(load(target), asked)
    if answers is None:
        raise UsageError("--answers, or --trace with a target, says what is done")
    Worker(load(target) if target else None, gpu, function).serve(answers)
    return 0
