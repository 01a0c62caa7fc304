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

    # --- what is called ---------------------------------------------------------------------

    @functools.cached_property
    def run(self) -> Callable[[str, Callable[..., Any], Any, Any], Any]:
        """A call in a range of a text. Engines make hundreds in each step: what it asks torch is looked up once, below the
        functions of torch's that say it at length."""
        import torch

        native, core = getattr(torch.cuda.nvtx, "_nvtx", None), getattr(torch, "_C", None)
        push = getattr(native, "rangePushA", torch.cuda.nvtx.range_push)
        pop = getattr(native, "rangePop", torch.cuda.nvtx.range_pop)
        capturing = getattr(
            core, "_cuda_isCurrentStreamCapturing", torch.cuda.is_current_stream_capturing
        )
        compiling, profiling = torch.compiler.is_compiling, torch.autograd._profiler_enabled
        recorded, called, captured = (
            torch.autograd.profiler.record_function,
            self.called,
            self.captured,
        )

        def run(text: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
            if compiling() or (not captured and capturing()):
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

    def text(self, target: Any, call: Any, arguments: dict[str, Any]) -> str | None:
        """The range of a call with these arguments; None of what is no point of the target."""
        from ncuflow.target.workload import RefusedError

        try:
            params = call.params(arguments)
        except RefusedError as error:
            self.refused[f"{call.name}: {error}"] += 1
            return None
        except (
            Exception
        ) as error:  # an argument of another FlashInfer's; the call itself is the engine's
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
        signature = inspect.signature(own[call.plan])
        kept, in_range = f"_ncuflow_{target.name}", self.run

        @functools.wraps(own[call.plan])
        def plan(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            vars(wrapper)[kept] = None
            made = own[call.plan](wrapper, *args, **kwargs)
            told = named(signature, wrapper, args, kwargs)
            vars(wrapper)[kept] = annotations.text(target, call, told)
            return made

        @functools.wraps(own[method])
        def run(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            text = vars(wrapper).get(kept)
            if text is None or call.plan in vars(wrapper):  # an engine's plan() in place of this
                return own[method](wrapper, *args, **kwargs)
            return in_range(text, own[method], (wrapper, *args), kwargs)

        for name, was in list(vars(holder).items()):
            if was is own[call.plan] or was is own[method]:
                setattr(holder, name, plan if was is own[call.plan] else run)

    def _function(self, function: Callable[..., Any], target: Any, call: Any) -> Callable[..., Any]:
        """A function whose own arguments tell the shape; told once for arguments of the same shapes."""
        signature, texts, run = inspect.signature(function), dict[Any, str | None](), self.run
        order = [*signature.parameters]
        told = [(order.index(name), name) for name in call.tells if name in order]

        @functools.wraps(function)
        def annotated(*args: Any, **kwargs: Any) -> Any:
            n = len(args)
            key = (*[_shape(args[at] if at < n else kwargs.get(name)) for at, name in told],)
            try:
                text = texts[key]
            except KeyError:
                if len(texts) >= MOST_KEYS:
                    texts.clear()
                text = self.text(target, call, named(signature, None, args, kwargs))
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


def named(signature: inspect.Signature, owner: Any, args: Any, kwargs: Any) -> dict[str, Any]:
    """Arguments by name, with defaults, those of ``**kwargs`` among them."""
    bound = signature.bind(*(() if owner is None else (owner,)), *args, **kwargs)
    bound.apply_defaults()
    found = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            found |= found.pop(parameter.name)
    return found


def _shape(value: Any) -> Any:
    """What of an argument tells one shape from another: of a tensor its shape and type, of other things their value."""
    try:
        return value.shape, value.dtype
    except AttributeError:
        return tuple(map(_shape, value)) if isinstance(value, tuple | list) else value


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
