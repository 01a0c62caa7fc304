"""Ranges around FlashInfer's calls that state their shapes, in an engine whose code stays as it is, and how often each ran.

``ncuflow annotate -- COMMAND`` starts the command with a folder on PYTHONPATH whose ``sitecustomize`` calls ``install`` in each
of its processes. From the import of FlashInfer on, the calls that targets declare (``Workload.calls``) are wrapped: each runs
in a range ``TARGET(parameter=value, …)``, of NVTX, or of torch's profiler while that records. What a planned call computes,
its plan() says: that is read once a plan. What no point of a target is has no range, and the reason is told at the end.

While nothing records and no workload is asked for, FlashInfer's functions are as they were, but for plan(), which keeps what
tells its shape: of short tensors on the CPU a copy, of others nothing, and of a plan that needs those nothing is told. Their
code is another only from where torch's profiler begins until it ends, while a graph is captured, or for good under nsys or
ncu. What torch has compiled of their callers it may compile again then. What has no code of Python's is held by another.

Launches that are captured into a CUDA graph are left as they are, unless asked for: a replay launches without these calls.
Nothing is read from the GPU in a capture. What was called in it is remembered, torch's products among it, and each replay runs
in one range that lists it, of planned calls by their latest plan(). What a call that states its shape calls itself is part of it.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import string
import sys
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from threading import Thread, get_ident
from types import FunctionType, ModuleType
from typing import Any

from ncuflow.step.detour import PLAIN, Detour, Handler, Names, Tool, holder_of, keepable

ENGINE, VARIABLE = "flashinfer", "NCUFLOW_ANNOTATE"
SEVERAL = tuple, list
PLANNED = "_plan_info"  # where FlashInfer's wrappers keep what plan() made
CAPTURED = "_ncuflow_captured"  # where a graph keeps what was called in its capture
REPLAY = "replay of "  # how the range of a replay begins
LETTERS = string.ascii_letters + string.digits  # of the calls of a replay that are alike
MOST_KEYS = 4096  # arguments of a call that are remembered
MOST_SHAPES = 1 << 15  # of a process: a server's lengths are others in each step
LEAST_S, SHARE = 1.0, 50  # the workload is written each second, and for a 50th of the time at most
SITE = """import importlib, importlib.machinery, importlib.util, os, sys
here = os.path.dirname(os.path.abspath(__file__))
others = [path for path in sys.path if os.path.abspath(path or ".") != here]
found = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
if found and found.loader:  # the environment's own
    found.loader.exec_module(importlib.util.module_from_spec(found))
try:
    if importlib.util.find_spec("ncuflow") is None:  # nothing else of its folder is the engine's
        spec = importlib.util.spec_from_file_location("ncuflow", os.path.join({home!r}, "__init__.py"))
        sys.modules["ncuflow"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["ncuflow"])
    importlib.import_module("ncuflow.step.annotate").install()
except Exception as error:  # the engine runs without ranges
    print(f"ncuflow annotate: {{type(error).__name__}}: {{error}}; nothing is wrapped", file=sys.stderr)
"""


Planned = Callable[[Any], "Shape | None"]  # what a wrapper planned last
# Of a call its shape, and what is captured of it: that shape, or a wrapper and what tells its.
Call = tuple["Shape | None", Any, Planned | None]


@dataclass(eq=False, slots=True)
class Shape:
    """A shape that was called, and how often: its range, a target and parameters of it."""

    text: str
    target: str
    params: Mapping[str, Any]
    count: int = 0


@dataclass(eq=False, slots=True)
class Plan:
    """What plan() made of a wrapper, what was kept of its arguments until it is looked at, and the shape that they tell."""

    made: Any
    arguments: Any
    shape: Shape | None = None


class Captured:
    """What was called in the capture of a graph, in order: each call a shape, or a wrapper whose plan() says it when the graph is
    replayed and where that keeps it. thread: the one that captures."""

    def __init__(self) -> None:
        self.thread = get_ident()
        self.order = ""  # a letter for each call, and each kind of call with its letter
        self.calls: dict[Any, tuple[str, Any, Planned | None]] = {}

    def add(self, call: Any, planned: Planned | None = None) -> None:
        """Another call. planned: tells the shape of a wrapper's; None where the call is a shape."""
        # A wrapper has one reference, which is held here: its identity stays when the wrapper is gone.
        held = weakref.ref(call) if planned else call
        key = id(held) if planned else call.text, planned
        if key not in self.calls and len(self.calls) < len(LETTERS):
            self.calls[key] = LETTERS[len(self.calls)], held, planned
        self.order += self.calls[key][0] if key in self.calls else ""

    def text(self, count: Callable[[Shape, int], None]) -> str:
        """The range of a replay, whose calls are counted."""
        parts = [f"{REPLAY}{self.order}"]
        for letter, call, planned in self.calls.values():
            shape = planned(call()) if planned else call
            if shape is not None:
                count(shape, self.order.count(letter))
                parts.append(f"{letter} {shape.text}")
        return "; ".join(parts)


class Annotations:
    """What one process wrapped and called. folder: where its workload goes, None for none; captured: whether launches that are
    captured get ranges of their own."""

    def __init__(self, folder: str | None, captured: bool) -> None:
        self.folder, self.captured = folder, captured
        self.shapes: dict[str, Shape] = {}  # that were called, by range
        self.left_out = 0  # calls of shapes that were forgotten
        self.wrapped: dict[str, int] = {}  # calls of each target that are wrapped
        self.refused: Counter[str] = Counter()
        self.graphs: list[Captured] = []  # that are captured now
        self.inside = set[int]()  # threads in a call that states a shape
        self.products: list[tuple[Any, str, Any]] = []  # of torch's, and what takes their place
        self.detours: list[Detour] = []
        self.profilers = 0  # of torch's that record now
        self.began = self.active = self.swapped = False
        self.written = 0  # calls in the workload

    # --- what is called ---------------------------------------------------------------------

    @functools.cached_property
    def tool(self) -> Tool:
        """Of torch, which is imported; graphs and profilers are followed from here on."""
        import torch

        tool = Tool.of(torch)
        self.profilers = int(tool.profiling())
        # One that records all threads is told by none of them.
        tool = tool._replace(profiling=lambda: self.profilers > 0)
        self._follow(torch.cuda.CUDAGraph, tool)
        self._watch(torch.autograd.profiler)
        return tool

    @contextlib.contextmanager
    def _ours(self, where: str) -> Iterator[None]:
        """In it the engine goes on whatever fails, which is told at the end."""
        try:
            yield
        except Exception as error:
            from ncuflow.target.workload import RefusedError  # here already: it declared the call

            kind = "" if isinstance(error, RefusedError) else f"{type(error).__name__}: "
            self.refused[f"{where}: {kind}{error}"[:200]] += 1

    def turn(self, wrapped: bool = True) -> None:
        """Take FlashInfer's calls elsewhere where that serves anything. wrapped: False leaves all as FlashInfer has it, until
        this is asked again."""
        useful = self.folder or self.tool.attached or self.profilers or self.graphs
        self.active = wrapped and bool(useful)
        for detour in self.detours:
            detour.take(wrapped if detour.always else self.active)

    def _detour(self, holder: Any, name: str, handler: Any, always: bool = False) -> None:
        """Take a function of a module or class to what a handler makes of it; always: while nothing records as well."""
        function = getattr(holder, name)
        if isinstance(function, FunctionType):
            self.detours.append(Detour(function, handler, always))
            self.detours[-1].take(always or self.active)
        else:
            taken = handler(function)

            @functools.wraps(function)
            def other(*args: Any, **kwargs: Any) -> Any:
                if always or self.active:
                    return taken(args, kwargs)
                return function(*args, **kwargs)

            setattr(holder, name, other)

    def _watch(self, profiler: Any) -> None:
        """Know when torch's profiler records. profiler: torch's module."""
        for name, more in (("_run_on_profiler_start", 1), ("_run_on_profiler_stop", -1)):
            own = getattr(profiler, name)

            def told(own: Callable[[], Any] = own, more: int = more) -> Any:
                with self._ours("profiler"):
                    self.profilers = max(0, self.profilers + more)
                    self.turn()
                return own()

            setattr(profiler, name, told)

    def _follow(self, graph: Any, tool: Tool) -> None:
        """Know what a CUDA graph captures, without asking at each call whether one does, and say it when it is replayed. graph:
        torch's class."""
        begin, end = graph.capture_begin, graph.capture_end

        @functools.wraps(begin)
        def capture_begin(mine: Any, *args: Any, **kwargs: Any) -> Any:
            made = begin(mine, *args, **kwargs)
            with self._ours("capture"):
                vars(mine)[CAPTURED] = Captured()
                self.graphs.append(vars(mine)[CAPTURED])
                self.turn()
                self._swap_products()
            return made

        @functools.wraps(end)
        def capture_end(mine: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                with self._ours("capture"):
                    if captured := vars(mine).get(CAPTURED):
                        self.graphs.remove(captured)
                        self._swap_products()
                        self.turn()
            finally:
                made = end(mine, *args, **kwargs)
            return made

        def replay(own: FunctionType) -> Handler:
            def in_range(args: Any, kwargs: Any) -> Any:
                text = ""
                with self._ours("replay"):
                    captured = vars(holder_of(args, kwargs)).get(CAPTURED)
                    text = captured.text(self.count) if captured and captured.order else ""
                return tool.run(text, own, args, kwargs) if text else own(*args, **kwargs)

            return in_range

        graph.capture_begin, graph.capture_end = capture_begin, capture_end
        self._detour(graph, "replay", replay)

    def capture(self) -> Captured | None:
        """What this thread captures by the stream that it launches to."""
        with self._ours("capture"):
            if self.graphs and self.tool.capturing():
                mine = [one for one in self.graphs if one.thread == get_ident()]
                return (mine or self.graphs)[-1]
        return None

    def _swap_products(self) -> None:
        """Put torch's products that are wrapped in place of its own while anything is captured, then back. They stay as they are
        where torch has compiled anything: it looks at what it calls."""
        compiler, wrapped = sys.modules.get("torch._dynamo.utils"), bool(self.graphs)
        if wrapped == self.swapped or (wrapped and compiler and compiler.counters["frames"]):
            return
        self.swapped = wrapped
        for place, (holder, name, other) in enumerate(self.products):
            self.products[place] = holder, name, getattr(holder, name)
            setattr(holder, name, other)

    def shape(self, target: Any, call: Any, arguments: dict[str, Any]) -> Shape | None:
        """That of a call with these arguments; None of what is no point of the target."""
        params = None
        # An argument of another FlashInfer's, for one: the call itself is the engine's.
        with self._ours(call.name):
            params = call.params(arguments)
        if params is None:
            return None
        text = f"{target.name}({', '.join(f'{name}={value}' for name, value in params.items())})"
        return self.shapes.get(text) or Shape(text, target.name, params)

    def count(self, shape: Shape, n: int = 1) -> None:
        """So many calls of a shape, which may be new here, or forgotten while its caller kept it."""
        if not shape.count:
            if len(self.shapes) >= MOST_SHAPES:
                self._forget()
            shape = self.shapes.setdefault(shape.text, shape)
        shape.count += n

    def _forget(self) -> None:
        """Keep the half of the shapes that were called most."""
        ordered = sorted(self.shapes.values(), key=lambda one: -one.count)
        kept, rest = ordered[: MOST_SHAPES // 2], ordered[MOST_SHAPES // 2 :]
        self.shapes = {one.text: one for one in kept}
        for one in rest:
            self.left_out, one.count = self.left_out + one.count, 0

    # --- wrapping ---------------------------------------------------------------------------

    def wrap(self, module: ModuleType) -> None:
        """The declared calls of a module that has just been imported."""
        from ncuflow.target.contract import known

        targets = known().values()
        declared = [
            (t, c) for t in targets for c in t.workload.calls if c.module == module.__name__
        ]
        if declared and not self.began:
            self._begin()
        for target, call in declared:
            self._wrap(module, target, call)

    def _wrap(self, module: ModuleType, target: Any, call: Any) -> None:
        owner, _, method = call.name.rpartition(".")
        holder = getattr(module, owner, None) if owner else module
        function = getattr(holder, method, None)
        if holder is None or function is None:
            return
        if call.plan:
            self._planned(holder, method, target, call)
        elif call.module.startswith("torch"):
            taken = self._function(target, call, function)
            other = functools.wraps(function)(
                lambda *a, **k: taken(a, k) if self.capture() else function(*a, **k)
            )
            self.products.append((holder, method, other))
        else:
            self._detour(holder, method, functools.partial(self._function, target, call))
        self.wrapped[target.name] = self.wrapped.get(target.name, 0) + 1

    def _begin(self) -> None:
        """Before the first call is wrapped: products of torch's, and what keeps the workload of a process that is ended."""
        self.began, own = True, os._exit
        self.turn()
        for name in ("torch", "torch.nn.functional"):
            if name in sys.modules:
                self.wrap(sys.modules[name])

        def leave(status: int) -> None:
            try:
                if self.shapes:
                    self.report()
            finally:
                own(status)

        os._exit = leave  # type: ignore[assignment]  # so children of multiprocessing end
        os.register_at_fork(after_in_child=self._forked)
        self._forked()

    def _forked(self) -> None:
        """This process is another than the one whose calls were counted, and has none of its threads."""
        for one in self.shapes.values():
            one.count = 0
        self.shapes.clear()
        self.inside.clear()
        self.left_out = self.written = 0
        if self.folder:
            Thread(target=self._keep, name="ncuflow annotate", daemon=True).start()

    def _planned(self, holder: Any, method: str, target: Any, call: Any) -> None:
        """A method that computes what another planned, and that one."""
        annotations, names = self, Names(vars(holder)[call.plan])
        kept = f"_ncuflow_{target.name}"

        def planned(wrapper: Any) -> Shape | None:
            own = vars(wrapper) if wrapper is not None else {}
            plan: Plan | None = own.get(kept)
            # An engine may have planned since by a function of its own: what such a plan computes is not told.
            if plan is None or plan.made is not own.get(PLANNED):
                return None
            if plan.arguments is not None:
                args, kwargs = plan.arguments
                plan.arguments = None
                plan.shape = annotations.shape(target, call, names.of((wrapper, *args), kwargs))
            return plan.shape

        def planner(function: FunctionType) -> Handler:
            def plan(args: Any, kwargs: Any) -> Any:
                made = function(*args, **kwargs)
                with annotations._ours(call.name):
                    wrapper = holder_of(args, kwargs)
                    own = vars(wrapper)
                    own.pop(kept, None)
                    rest = args[1:], {name: kwargs[name] for name in kwargs if name != "self"}
                    # Before the engine writes into its tensors again.
                    now = annotations.active and not annotations.graphs
                    own[kept] = Plan(own.get(PLANNED), rest if now else keepable(*rest))
                    if now:
                        planned(wrapper)
                return made

            return plan

        def of(args: Any, kwargs: Any) -> Call:
            wrapper = holder_of(args, kwargs)
            return planned(wrapper), wrapper, planned

        self._detour(holder, call.plan, planner, always=True)
        self._detour(holder, method, functools.partial(self._taken, of))

    def _function(self, target: Any, call: Any, function: Any) -> Handler:
        """A function whose own arguments tell the shape; told once for arguments of the same shapes."""
        annotations, names, shapes = self, Names(function, call.tells), dict[Any, Shape | None]()
        told = [(names.order.index(name), name) for name in call.tells if name in names.order]
        only, (at, name) = len(told) == 1, told[0] if told else (0, "")

        def of(args: Any, kwargs: Any) -> Call:
            n = len(args)
            if only:  # most calls: without a loop
                key = _shape(args[at] if n > at else kwargs.get(name))
            else:
                key = tuple([_shape(args[at] if at < n else kwargs.get(name)) for at, name in told])
            try:
                shape = shapes[key]
            except KeyError:
                if len(shapes) >= MOST_KEYS:
                    shapes.clear()
                shape = shapes[key] = annotations.shape(target, call, names.of(args, kwargs))
            except TypeError:  # a shape that cannot be remembered: a list
                shape = annotations.shape(target, call, names.of(args, kwargs))
            return shape, shape, None

        return self._taken(of, function)

    def _taken(self, of: Callable[[Any, Any], Call], function: Callable[..., Any]) -> Handler:
        """Calls of a function in their ranges, and counted; in a capture, put to what its graph repeats."""
        compiling, inside, run = self.tool.compiling, self.inside, self.tool.run

        def taken(args: Any, kwargs: Any) -> Any:
            thread = get_ident()
            if compiling() or thread in inside:
                return function(*args, **kwargs)
            shape, call, planned = of(args, kwargs)
            graph = self.capture() if self.graphs and call is not None else None
            if graph is not None:
                with self._ours("capture"):
                    graph.add(call, planned)
            elif shape is not None:
                self.count(shape)
            else:
                return function(*args, **kwargs)
            inside.add(thread)
            try:
                if shape is None or (graph is not None and not self.captured):
                    return function(*args, **kwargs)
                return run(shape.text, function, args, kwargs)
            finally:
                inside.discard(thread)

        return taken

    # --- at the end -------------------------------------------------------------------------

    def _keep(self) -> None:
        """Write the workload again and again: a process that is killed says nothing more."""
        wait = LEAST_S
        while True:
            time.sleep(wait)
            began = time.monotonic()
            self.write()
            wait = max(LEAST_S, SHARE * (time.monotonic() - began))

    def write(self) -> None:
        """The workload as it is by now, whole or not at all."""
        called = [*self.shapes.values()]
        calls = sum(one.count for one in called)
        if not self.folder or calls == self.written:
            return
        rows = [[one.target, one.params, one.count] for one in called]
        path = Path(self.folder, f"{os.getpid()}.json")
        new = path.with_suffix(f".{get_ident()}")
        with contextlib.suppress(OSError):  # the command that asked for it is gone, with its folder
            new.write_text(json.dumps(rows), encoding="utf-8")
            new.replace(path)
            self.written = calls

    def report(self) -> None:
        """A line of what was wrapped and called, and the workload, where this process called anything."""
        called = [*self.shapes.values()]
        kinds = sorted(Counter(one.target for one in called).items())
        told = ", ".join(f"{name} {n} shapes" for name, n in kinds)
        wrapped = ", ".join(sorted(self.wrapped))
        calls = f"{sum(one.count for one in called)} calls in ranges ({told or 'nothing recorded'})"
        _say(f"process {os.getpid()}: {calls}; wrapped: {wrapped or 'nothing'}")
        for reason, n in self.refused.most_common(5):
            # What was refused of a shape once is refused of all its calls, which nobody counted.
            _say(f"without a range, calls of {n} shape{'s' * (n > 1)}: {reason}")
        if self.left_out:
            _say(f"{self.left_out} calls of rare shapes are not in the workload")
        self.write()


def _say(line: str) -> None:
    """On stderr, where the engine has left any."""
    with contextlib.suppress(OSError, ValueError):
        if sys.stderr is not None:
            print(f"ncuflow annotate: {line}", file=sys.stderr)


def _shape(value: Any) -> Any:
    """What of an argument tells one shape from another: of a tensor its shape and type, of other things their value."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return shape, getattr(value, "dtype", None)
    if isinstance(value, SEVERAL):
        return tuple(map(_shape, value))
    return value if isinstance(value, PLAIN) else None


class Finder:
    """Finds modules of FlashInfer as others do, and wraps them when they were imported."""

    def __init__(self, annotations: Annotations) -> None:
        self.annotations = annotations

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """As of a finder on ``sys.meta_path``."""
        if not name.startswith(f"{ENGINE}."):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        imported = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            imported(module)
            try:
                self.annotations.wrap(module)
            except Exception as error:  # another torch's: the engine runs without these ranges
                _say(f"{name}: {type(error).__name__}: {error}")

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


installed: Annotations | None = None  # of this process


def install() -> Annotations | None:
    """Wrap FlashInfer in this process, when it is imported; None where the environment does not ask for it."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return None
    global installed
    settings = json.loads(asked)
    found = installed = Annotations(settings.get("folder"), bool(settings.get("captured")))
    sys.meta_path.insert(0, Finder(found))  # type: ignore[arg-type]
    atexit.register(lambda: found.report() if found.wrapped else None)
    return found


def environment(site: Path, folder: Path | None, captured: bool) -> dict[str, str]:
    """What a command is started with. site: an empty folder; folder: where its processes leave what they called."""
    home = Path(__file__).resolve().parents[1]
    (site / "sitecustomize.py").write_text(SITE.format(home=str(home)), encoding="utf-8")
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"folder": str(folder) if folder else None, "captured": captured}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: json.dumps(settings)}


def workload(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """By target, the points that the processes of a command called, as points.json has them, and how often: most called first.
    What is no point is told, and how often that was called."""
    from ncuflow.sweep.points import expand
    from ncuflow.target.contract import known
    from ncuflow.target.workload import OPEN

    counts: Counter[tuple[str, str]] = Counter()
    dropped: Counter[str] = Counter()
    params: dict[tuple[str, str], Any] = {}
    for path in sorted(folder.glob("*.json")):
        for name, own, n in json.loads(path.read_text(encoding="utf-8")):
            own = {key: value for key, value in own.items() if value != OPEN}
            try:
                (whole,) = expand([own], known()[name].parameters, known()[name].choices)
            except (
                ValueError
            ) as error:  # a head dimension, for one, that the target does not measure
                dropped[f"{name}: {error}"] += n
                continue
            key = name, known()[name].point_id(whole)
            counts[key] += n
            params[key] = whole
    if dropped:
        told = "; ".join(f"{why} ({n})" for why, n in dropped.most_common(5))
        _say(f"{dropped.total()} calls are not in the workload: {told}")
    found: dict[str, list[dict[str, Any]]] = {}
    for (name, point), n in counts.most_common():
        row = {"id": point, "target": name, "params": params[name, point], "count": n}
        found.setdefault(name, []).append(row)
    return found
