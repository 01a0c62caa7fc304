"""Ranges around FlashInfer's calls that state their shapes, in an engine whose code stays as it is, and how often each ran.

``ncuflow annotate -- COMMAND`` starts the command with a folder on PYTHONPATH whose ``sitecustomize`` calls ``install`` in each
of its processes. From the import of FlashInfer on, the calls that targets declare (``Workload.calls``) are wrapped: each runs
in a range ``TARGET(parameter=value, …)``, of NVTX, or of torch's profiler while that records. What a planned call computes,
its plan() says: that is read once a plan. What no point of a target is has no range, and the reason is told at the end.

Launches that are captured into a CUDA graph are left as they are, unless asked for: a replay launches without these calls.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

ENGINE, VARIABLE = "flashinfer", "NCUFLOW_ANNOTATE"
PLAIN, SEVERAL = (int, float, str), (tuple, list)  # bool is an int
PLANNED, NOTHING = "_plan_info", (None, None)  # where FlashInfer's wrappers keep what plan() made
MOST_KEYS = 4096  # shapes of a call that are remembered
SITE = """import importlib, importlib.machinery, importlib.util, os, sys
here = os.path.dirname(os.path.abspath(__file__))
others = [path for path in sys.path if os.path.abspath(path or ".") != here]
found = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
if found and found.loader:  # the environment's own
    found.loader.exec_module(importlib.util.module_from_spec(found))
try:
    sys.path.append({root!r})  # behind what the engine has
    importlib.import_module("ncuflow.step.annotate").install()
except Exception as error:  # the engine runs without ranges
    print(f"ncuflow annotate: {{type(error).__name__}}: {{error}}; nothing is wrapped", file=sys.stderr)
"""


class Annotations:
    """What one process wrapped and called. folder: where its workload goes, None for none; captured: whether launches that are
    captured get ranges."""

    def __init__(self, folder: str | None, captured: bool) -> None:
        self.folder, self.captured = folder, captured
        self.called: Counter[str] = Counter()
        self.shapes: dict[str, tuple[str, Mapping[str, Any]]] = {}  # by range: target, parameters
        self.wrapped: dict[str, int] = {}  # calls of each target that are wrapped
        self.refused: Counter[str] = Counter()
        self.capturing = 0  # graphs whose launches are captured now

    # --- what is called ---------------------------------------------------------------------

    @functools.cached_property
    def run(self) -> Callable[[str, Callable[..., Any], Any, Any], Any]:
        """A call in a range of a text. Engines make hundreds in each step: what it asks torch is looked up once, below the
        functions of torch's that say it at length."""
        import torch

        native = getattr(torch.cuda.nvtx, "_nvtx", None)
        push = getattr(native, "rangePushA", torch.cuda.nvtx.range_push)
        pop = getattr(native, "rangePop", torch.cuda.nvtx.range_pop)
        compiling, profiling = torch.compiler.is_compiling, torch.autograd._profiler_enabled
        recorded, called = torch.autograd.profiler.record_function, self.called
        if not self.captured:
            self._follow(torch.cuda.CUDAGraph)

        def run(text: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if self.capturing or compiling():
                return function(*args, **kwargs)
            called[text] += 1
            if profiling():
                with recorded(text):
                    return function(*args, **kwargs)
            push(text)
            try:
                return function(*args, **kwargs)
            finally:
                pop()

        return run

    def _follow(self, graph: Any) -> None:
        """Know when a CUDA graph is captured, without asking for it at each call. graph: torch's class."""
        for method, change in (("capture_begin", 1), ("capture_end", -1)):
            own = getattr(graph, method)

            @functools.wraps(own)
            def followed(*args: Any, own: Any = own, change: int = change, **kwargs: Any) -> Any:
                self.capturing += change
                return own(*args, **kwargs)

            setattr(graph, method, followed)

    def text(self, target: Any, call: Any, arguments: dict[str, Any]) -> str | None:
        """The range of a call with these arguments; None of what is no point of the target."""
        from ncuflow.target.workload import RefusedError

        try:
            params = call.params(arguments)
        except RefusedError as error:
            self.refused[f"{call.name}: {error}"] += 1
            return None
        # An argument of another FlashInfer's, for one: the call itself is the engine's.
        except Exception as error:
            self.refused[f"{call.name}: {type(error).__name__}: {error}"[:200]] += 1
            return None
        text = f"{target.name}({', '.join(f'{name}={value}' for name, value in params.items())})"
        self.shapes[text] = target.name, params
        return text

    # --- wrapping ---------------------------------------------------------------------------

    def wrap(self, module: ModuleType) -> None:
        """The declared calls of a module of FlashInfer's that has just been imported."""
        from ncuflow.target.contract import known

        for target in known().values():
            for call in target.workload.calls:
                if call.module != module.__name__:
                    continue
                owner, _, method = call.name.rpartition(".")
                holder = getattr(module, owner, None) if owner else module
                function = getattr(holder, method, None)
                if holder is None or function is None:
                    continue
                if call.plan:
                    self._planned(holder, method, target, call)
                else:
                    setattr(holder, method, self._function(function, target, call))
                self.wrapped[target.name] = self.wrapped.get(target.name, 0) + 1

    def _planned(self, holder: Any, method: str, target: Any, call: Any) -> None:
        """A method that computes what another planned, and that one; both by all names that their class has for them."""
        annotations, own = self, {name: vars(holder)[name] for name in (method, call.plan)}
        names = Names(own[call.plan])
        kept, in_range = f"_ncuflow_{target.name}", self.run

        @functools.wraps(own[call.plan])
        def plan(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            made = own[call.plan](wrapper, *args, **kwargs)
            text = annotations.text(target, call, names.of((wrapper, *args), kwargs))
            vars(wrapper)[kept] = text, vars(wrapper).get(PLANNED)
            return made

        @functools.wraps(own[method])
        def run(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            own_state = vars(wrapper)
            text, planned = own_state.get(kept, NOTHING)
            # Engines plan by functions of their own as well: what such a plan computes is not told.
            if text is None or planned is not own_state.get(PLANNED):
                return own[method](wrapper, *args, **kwargs)
            return in_range(text, own[method], (wrapper, *args), kwargs)

        for name, was in list(vars(holder).items()):
            if was is own[call.plan] or was is own[method]:
                setattr(holder, name, plan if was is own[call.plan] else run)

    def _function(self, function: Callable[..., Any], target: Any, call: Any) -> Callable[..., Any]:
        """A function whose own arguments tell the shape; told once for arguments of the same shapes."""
        names, texts, run = Names(function), dict[Any, str | None](), self.run
        order = names.order
        told = [(order.index(name), name) for name in call.tells if name in order]
        only, (at, name) = len(told) == 1, told[0] if told else (0, "")

        @functools.wraps(function)
        def annotated(*args: Any, **kwargs: Any) -> Any:
            n = len(args)
            if only:  # most calls: without a loop
                value = args[at] if n > at else kwargs.get(name)
                key = _shape(value)
            else:
                key = tuple([_shape(args[at] if at < n else kwargs.get(name)) for at, name in told])
            try:
                text = texts[key]
            except KeyError:
                if len(texts) >= MOST_KEYS:
                    texts.clear()
                text = self.text(target, call, names.of(args, kwargs))
                texts[key] = text
            return function(*args, **kwargs) if text is None else run(text, function, args, kwargs)

        return annotated

    # --- at the end -------------------------------------------------------------------------

    def report(self) -> None:
        """A line of what was wrapped and called, and the workload, where this process called anything."""
        shapes = Counter(self.shapes[text][0] for text in self.called)
        told = ", ".join(f"{name} {n} shapes" for name, n in sorted(shapes.items()))
        wrapped = ", ".join(sorted(self.wrapped))
        print(
            f"ncuflow annotate: process {os.getpid()}: {sum(self.called.values())} calls in ranges ({told or 'none'}); "
            f"wrapped: {wrapped or 'nothing'}",
            file=sys.stderr,
        )
        for reason, n in self.refused.most_common(5):
            print(f"ncuflow annotate: without a range, {n} times: {reason}", file=sys.stderr)
        if self.folder and self.called:
            rows = [[*self.shapes[text], n] for text, n in self.called.items()]
            Path(self.folder, f"{os.getpid()}.json").write_text(json.dumps(rows), encoding="utf-8")


class Names:
    """The names of a function's parameters, and their defaults: what binds hundreds of calls a step has to be quick."""

    def __init__(self, function: Callable[..., Any]) -> None:
        every = inspect.signature(function).parameters.values()
        placed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.order = [one.name for one in every if one.kind in placed]
        self.defaults = {one.name: one.default for one in every if one.default is not one.empty}

    def of(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """Arguments by name, those of ``**kwargs`` among them."""
        return {**self.defaults, **dict(zip(self.order, args, strict=False)), **kwargs}


def _shape(value: Any) -> Any:
    """What of an argument tells one shape from another: of a tensor its shape and type, of other things their value."""
    shape = getattr(value, "shape", None)
    if shape is not None:
        return shape, value.dtype
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
            self.annotations.wrap(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> Annotations | None:
    """Wrap FlashInfer in this process, when it is imported; None where the environment does not ask for it."""
    asked = os.environ.get(VARIABLE)
    if not asked:
        return None
    settings = json.loads(asked)
    found = Annotations(settings.get("folder"), bool(settings.get("captured")))
    sys.meta_path.insert(0, Finder(found))  # type: ignore[arg-type]
    atexit.register(lambda: found.report() if found.wrapped else None)
    return found


def environment(site: Path, folder: Path | None, captured: bool) -> dict[str, str]:
    """What a command is started with. site: an empty folder; folder: where its processes leave what they called."""
    root = Path(__file__).resolve().parents[2]
    (site / "sitecustomize.py").write_text(SITE.format(root=str(root)), encoding="utf-8")
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    settings = {"folder": str(folder) if folder else None, "captured": captured}
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths), VARIABLE: json.dumps(settings)}


def workload(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """By target, the points that the processes of a command called, as points.json has them, and how often: most called first."""
    from ncuflow.sweep.points import expand
    from ncuflow.target.contract import known

    counts: Counter[tuple[str, str]] = Counter()
    params: dict[tuple[str, str], Any] = {}
    for path in sorted(folder.glob("*.json")):
        for name, own, n in json.loads(path.read_text(encoding="utf-8")):
            try:
                (whole,) = expand([own], known()[name].parameters, known()[name].choices)
            except ValueError:  # a head dimension, for one, that the target does not measure
                continue
            key = name, known()[name].point_id(whole)
            counts[key] += n
            params[key] = whole
    found: dict[str, list[dict[str, Any]]] = {}
    for (name, point), n in counts.most_common():
        row = {"id": point, "target": name, "params": params[name, point], "count": n}
        found.setdefault(name, []).append(row)
    return found
