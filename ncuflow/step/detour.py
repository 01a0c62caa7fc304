"""How calls of a running engine are taken elsewhere, and put into a range of whatever records."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import is_dataclass
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

Handler = Callable[[Any, Any], Any]  # a call, by its arguments and its keywords
PLAIN = (int, float, str)  # bool is an int
MOST_COPIED = 4096  # elements of a tensor of plan(): lengths have one for each sequence
NO_TOOL = -2  # what NVTX answers a range that nothing records
# As many free variables as the function has whose code this becomes; they are not looked at.
DETOUR = """def outer({cells}):
    def taken(*args, **kwargs):
        return {handler}(args, kwargs)
        {cells}
    return taken.__code__
"""


class Tool(NamedTuple):
    """What of torch each call asks, looked up once, below the functions of torch's that say it at length: engines make hundreds
    of calls in each step. attached: whether a tool takes NVTX's ranges."""

    push: Callable[[str], Any]
    pop: Callable[[], Any]
    compiling: Callable[[], bool]
    capturing: Callable[[], bool]
    profiling: Callable[[], bool]
    begin: Callable[[str], Any]
    end: Callable[[Any], Any]
    attached: bool

    @classmethod
    def of(cls, torch: Any) -> Tool:
        """That of torch's module."""
        native = getattr(torch.cuda.nvtx, "_nvtx", None)
        push = getattr(native, "rangePushA", torch.cuda.nvtx.range_push)
        pop = getattr(native, "rangePop", torch.cuda.nvtx.range_pop)
        attached = push("ncuflow annotate") != NO_TOOL
        pop()
        return cls(
            push,
            pop,
            torch.compiler.is_compiling,
            torch.cuda.is_current_stream_capturing,
            torch.autograd._profiler_enabled,
            torch.autograd._record_function_with_args_enter,
            torch.autograd._record_function_with_args_exit,
            attached,
        )

    def run(self, text: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """A call in a range, where anything records it."""
        if self.profiling():
            record = self.begin(text)
            try:
                return function(*args, **kwargs)
            finally:
                self.end(record)
        if not self.attached:
            return function(*args, **kwargs)
        self.push(text)
        try:
            return function(*args, **kwargs)
        finally:
            self.pop()


class Detour:
    """A function of Python's whose calls can be taken elsewhere, whoever holds it: engines keep it under names of their own.

    handler: what calls are taken to, with their arguments and keywords, made of the function as it was; always: whether also
    while nothing records.
    """

    def __init__(
        self,
        function: FunctionType,
        handler: Callable[[FunctionType], Handler],
        always: bool = False,
    ) -> None:
        self.function, self.always, self.own = function, always, function.__code__
        own = self.own
        original = FunctionType(
            own, function.__globals__, own.co_name, function.__defaults__, function.__closure__
        )
        original.__kwdefaults__ = function.__kwdefaults__
        vars(original).update(vars(function))
        self.handler = handler(original)
        self.original = original
        name = f"_ncuflow_{id(self)}"
        cells = ", ".join(f"v{i}" for i, _ in enumerate(own.co_freevars))
        made: dict[str, Any] = {}
        exec(DETOUR.format(cells=cells, handler=name), made)
        self.other = made["outer"](*own.co_freevars)
        function.__globals__[name] = self.handler

    def take(self, elsewhere: bool) -> None:
        """Take calls elsewhere, or leave them."""
        wanted = self.other if elsewhere else self.own
        if self.function.__code__ is wanted:
            return
        attributes = vars(self.function)
        if elsewhere:
            attributes["__wrapped__"] = self.original  # its signature stays what it was
        elif (inner := vars(self.original).get("__wrapped__")) is not None:
            attributes["__wrapped__"] = inner
        else:
            attributes.pop("__wrapped__", None)
        self.function.__code__ = wanted


class Names:
    """The names of a function's parameters, and their defaults: what binds hundreds of calls a step has to be quick."""

    def __init__(self, function: Callable[..., Any], otherwise: tuple[str, ...] = ()) -> None:
        self.order, self.defaults = [*otherwise], dict[str, Any]()
        if inspect.isbuiltin(function):  # has no signature
            return
        every = inspect.signature(function).parameters.values()
        placed = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self.order = [one.name for one in every if one.kind in placed]
        self.defaults = {one.name: one.default for one in every if one.default is not one.empty}

    def of(self, args: Any, kwargs: Any) -> dict[str, Any]:
        """Arguments by name, those of ``**kwargs`` among them."""
        return {**self.defaults, **dict(zip(self.order, args, strict=False)), **kwargs}


def holder_of(args: Any, kwargs: Any) -> Any:
    """What a method was called of."""
    return args[0] if args else kwargs.get("self")


class Elsewhere:
    """Stands for an argument that was not kept."""

    def tolist(self) -> list[int]:
        """Raises RefusedError: its values are not known."""
        from ncuflow.target.workload import RefusedError

        raise RefusedError(
            "its lengths were on the GPU, and nothing recorded or a graph was captured"
        )


ELSEWHERE = Elsewhere()


def keepable(args: Any, kwargs: Any) -> tuple[list[Any], dict[str, Any]]:
    """What of arguments and keywords tells a shape later, when the engine has written into its tensors again: nothing is read
    from the GPU, and nothing large is held."""
    return [_kept(one) for one in args], {name: _kept(one) for name, one in kwargs.items()}


def _kept(value: Any) -> Any:
    if value is None or isinstance(value, PLAIN):
        return value
    if hasattr(value, "tolist"):
        copied = getattr(value, "is_cpu", False) and value.numel() <= MOST_COPIED
        return value.clone() if copied else ELSEWHERE
    if is_dataclass(value):  # what a plan of MLA's has as its metadata
        return SimpleNamespace(**{name: _kept(one) for name, one in vars(value).items()})
    return value if type(value).__module__ == "torch" else ELSEWHERE  # a type
