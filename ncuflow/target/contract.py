"""A kernel target: all that the project knows of one kernel, declared in one file.

The files lie in ``targets/`` and in the folders that the setting ``target_folders`` names; each defines
``TARGET``. Importing one needs neither torch nor FlashInfer: the functions that run import them.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ncuflow.expression import holds, names
from ncuflow.io import resource
from ncuflow.target.launch import GpuFacts, Launch, Params, skip_reason
from ncuflow.target.rules import CuteKernel, LaunchRule, SplitRule
from ncuflow.target.workload import Block, Entry

FOLDERS = "NCUFLOW_TARGETS"  # the environment variable with further folders, separated as in PATH
_DECLARES = re.compile(r"^TARGET\s*(:.*)?=", re.MULTILINE)


class Work(NamedTuple):
    """Analytic work of one launch, and the convention by which it was counted."""

    flops: int
    bytes: int
    convention: str


class Symbol(NamedTuple):
    """A kernel or function, and its header below ``include/flashinfer``; "" where FlashInfer has none."""

    name: str
    header: str


@dataclass(frozen=True)
class Jit:
    """A JIT module whose compilation is measured.

    getter: FlashInfer's cached function that returns it, "module:function"; arguments: those of the
    getter, from the parameters; params: where the module needs others than the target's defaults;
    environ: variables without which FlashInfer would take another way.
    """

    name: str
    getter: str
    arguments: Callable[[Params], Sequence[Any]] = lambda p: ()
    params: Mapping[str, Any] = field(default_factory=dict)
    environ: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Choice:
    """A parameter, and two of its values whose price is measured.

    where: which points take part, an expression over their parameters; ignoring: parameters that may differ as
    well, because they mean nothing on one side; metrics: measurement columns compared; names: of
    the two values, where they do not say it themselves; after: a value whose launch the base needs before
    its own: both are its time; given: what fixes the parameter, "model" or "traffic",
    where no caller is free to choose it.
    """

    key: str
    title: str
    parameter: str
    base: Any
    other: Any
    where: str = "True"
    ignoring: tuple[str, ...] = ()
    metrics: tuple[str, ...] = ("time_cold_us",)
    names: tuple[str, str] | None = None
    after: Any = None
    given: Literal["", "model", "traffic"] = ""

    @property
    def called(self) -> tuple[str, str]:
        """What the two values are called on a page."""
        return self.names or (str(self.base), str(self.other))

    def pairs(self, points: Sequence[Params]) -> list[tuple[int, int]]:
        """Places, in ``points``, of the pairs that differ in this choice alone, in the order of their bases."""
        sides: dict[Any, dict[tuple[tuple[str, Any], ...], int]] = {self.base: {}, self.other: {}}
        unknown = dict.fromkeys(names(self.where))  # to points of before a parameter
        for place, params in enumerate(points):
            value = params.get(self.parameter)
            if value in sides and holds(self.where, {**unknown, **params}):
                sides[value].setdefault(self.fixed(params), place)
        bases, others = sides[self.base], sides[self.other]
        return [(place, others[rest]) for rest, place in bases.items() if rest in others]

    def precedes(self, params: Params, base: Params) -> bool:
        """Whether these parameters are those of the launch that a base needs before its own."""
        return params.get(self.parameter) == self.after and self.fixed(params) == self.fixed(base)

    def fixed(self, params: Params) -> tuple[tuple[str, Any], ...]:
        """The parameters in which both points of a pair agree."""
        varied = {self.parameter, *self.ignoring}
        return tuple((name, value) for name, value in params.items() if name not in varied)


def uneven(target: str, work: str = "") -> tuple[Choice, ...]:
    """What uneven lengths cost a target whose parameter "lengths" is ``runner.lengths.LENGTHS``.

    work: what they change of its work, where that is not the number of tokens alone.
    """
    title = "As many tokens in sequences of one length, or "
    return tuple(
        Choice(
            f"{target}_{kind}",
            f"{title}{name} lengths{work}",
            "lengths",
            "even",
            kind,
            given="traffic",
        )
        for kind, name in (("lognormal", "log-normal"), ("zipf", "Zipf"))
    )


class Knob(NamedTuple):
    """A setting of the API: who acts on it when, where, and the key of its price.

    signature: of the call that takes it, as the source index has it; "" where that states no default.
    """

    name: str
    chosen: str
    symbol: Symbol
    choice: str
    signature: str = ""


@dataclass(frozen=True, kw_only=True)
class Opportunity:
    """A change that counters suggest, and the most that it can bring.

    where, bound and the placeholders of shown are expressions over what is known of a point (docs/claims.md has the
    names): a condition over what is not known does not show.

    shown: what the evidence shows; where: the points at which it shows; symbol:
    where FlashInfer's source decides it; change: what to do; bound: the share of the time, of 1, that
    it can save there at most, where that is less than the room under the roofs; choice: the key of
    the price that tries it, ``turned`` where its base is what is advised; relaunches: it is
    tried only where other kernels or grids ran; other_work: it does other work than the launch here, whose roofs
    bound nothing then; how: to try it where no price does; metric: the time that it saves.
    """

    what: str
    shown: str
    where: str
    symbol: Symbol
    change: str
    bound: str = "1"
    choice: str = ""
    turned: bool = False
    relaunches: bool = False
    other_work: bool = False
    how: str = ""
    metric: str = "time_cold_us"


@dataclass(kw_only=True)
class Target:
    """One kernel target; ``docs/adding-a-target.md`` says what the pipeline does with each part.

    id         format of a point's id after "name/", or a function that makes it
    generate   JIT modules (JitSpec) of a point; the JIT generator of ``api``, called alone, unless given
    cute       the kernel that FlashInfer has CuTe DSL compile for a point on a compute capability
    described  a kernel's name for people, where its template arguments do not tell it
    launches   the launches of a point on a GPU that need not be there
    splits     what the scheduler of a kernel that splits the KV cache looks at
    takes      a block of one point, of a case of a workload that it measures; None of any other
    listed     of a target that stands for many APIs: (name, function, why it cannot be tried) of each, where this is
               the GPU; takes what no other target does
    unable     why a GPU cannot run a point, beyond bf16 and memory, which are always checked
    silences   whether nsys 2023.4 records nothing from the point's first launch on, so that it is traced after others;
               None where FlashInfer or the machine decides, and those are traced between
    memory     bytes that a point takes on the GPU; its work's unless given
    written    of its work's bytes, those that its kernels write, or read again after that: L2 may keep them from DRAM
    small      the sizes of a launch that only has to run
    order      where the target stands on pages; equal ones by name
    templates  parameter names, by kernel, that FlashInfer's headers do not tell
    meanings   of its kernels' template parameters; "kernel.parameter" where two kernels disagree
    computed   what headers compute of template arguments: name -> its meaning, and the value from the whole
               numbers among the arguments, by parameter; a KeyError is another kernel
    apart      by kernel, the template parameter by which its instances wait for different things
    about      the text of its module; set, as ``file`` is, when the file is read
    """

    name: str
    title: str
    heading: str = ""
    parameters: Params
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    id: str | Callable[[Params], str]
    work: Callable[[Params], Work]
    prepare: Callable[..., Launch]
    generate: Callable[[Params], list[Any]] | None = None
    cute: Callable[[Params, str], CuteKernel | None] | None = None
    described: Callable[[str], str | None] = lambda kernel: None
    launches: LaunchRule | None = None
    splits: SplitRule = lambda p, kernel, argument: None
    takes: Callable[[Entry], Block | None] = lambda entry: None
    listed: Callable[[GpuFacts | None], Iterator[tuple[str, str, str | None]]] | None = None
    unable: Callable[[Params, GpuFacts], str | None] = lambda p, gpu: None
    silences: Callable[[Params], bool | None] = lambda p: False
    memory: Callable[[Params], int] | None = None
    written: Callable[[Params], int] | None = None
    small: Params = field(default_factory=dict)
    kernels: tuple[Symbol, ...] = ()
    functions: tuple[Symbol, ...] = ()
    api: Mapping[str, str] = field(default_factory=dict)
    sources: tuple[str, ...] = ()
    jit: tuple[Jit, ...] = ()
    prices: tuple[Choice, ...] = ()
    opportunities: tuple[Opportunity, ...] = ()
    knobs: tuple[Knob, ...] = ()
    templates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)
    computed: Mapping[str, tuple[str, Callable[[Mapping[str, int]], int]]] = field(
        default_factory=dict
    )
    apart: Mapping[str, str] = field(default_factory=dict)
    order: int = 99
    about: str = ""
    file: Path = Path()

    def point_id(self, p: Params) -> str:
        """Id of a point: also its NVTX range, so unique and stable for good."""
        return f"{self.name}/" + (self.id.format(**p) if isinstance(self.id, str) else self.id(p))

    def completed(self, p: Params) -> dict[str, Any]:
        """All parameters of a point: one that an older recording lacks had its default."""
        return {**self.parameters, **p}

    @property
    def generic(self) -> bool:
        """Whether it stands for many APIs, and takes those that no other target does."""
        return self.listed is not None

    def skip(self, p: Params, gpu: GpuFacts) -> str | None:
        """Why this GPU cannot run the point; None if it can."""
        size = self.memory(p) if self.memory else self.work(p).bytes
        return self.unable(p, gpu) or skip_reason(p, gpu, size)

    def modules(self, p: Params) -> list[Any]:
        """JIT modules of the point; needs FlashInfer and an arch list, but no GPU."""
        if self.generate:
            return self.generate(p)
        if "jit" not in self.api:
            return []
        module, _, name = self.api["jit"].rpartition(".")
        return [getattr(importlib.import_module(module), name)()]


def known() -> dict[str, Target]:
    """Every kernel target by name, in the order of pages.

    Raises ValueError for a file that cannot be imported, and for two of one name.
    """
    return _read(os.environ.get(FOLDERS, ""))


def load(name: str) -> Target:
    """One kernel target. Raises ValueError that names the known ones if there is none of this name."""
    found = known().get(name)
    if found is None:
        raise ValueError(f"unknown kernel target {name!r}; there are: {', '.join(sorted(known()))}")
    return found


def jit_modules() -> dict[str, tuple[Target, Jit]]:
    """The JIT modules that the targets declare, by name, with their targets."""
    return {module.name: (target, module) for target in known().values() for module in target.jit}


def folders() -> list[Path]:
    """Where target files lie: the project's folder, then the user's. Raises ValueError where one is missing."""
    further = [Path(f) for f in os.environ.get(FOLDERS, "").split(os.pathsep) if f]
    missing = [str(folder) for folder in further if not folder.is_dir()]
    if missing:
        raise ValueError(f"target_folders: no folder {missing[0]}")
    return [Path(__file__).parents[1] / "targets", *further]


def template_folders() -> list[Path]:
    """Where the prose of targets lies: with the project's templates, and beside the user's targets."""
    return [resource("templates"), *(folder / "templates" for folder in folders()[1:])]


def ordered(names: Iterable[str]) -> list[str]:
    """Names in the order of pages; those of no known target last."""
    order = list(known())
    return sorted(names, key=lambda n: (order.index(n) if n in order else len(order), n))


@cache
def _read(further: str) -> dict[str, Target]:
    package = importlib.import_module("ncuflow.targets")
    package.__path__ = [str(folder) for folder in folders()]
    found: dict[str, Target] = {}
    for folder in folders():
        for path in sorted(folder.glob("*.py")):
            if _DECLARES.search(path.read_text(encoding="utf-8")):
                target = _imported(path)
                if target.name in found:
                    raise ValueError(f"{path}: there is a kernel target {target.name} already")
                found[target.name] = target
    return {t.name: t for t in sorted(found.values(), key=lambda t: (t.order, t.name))}


def _imported(path: Path) -> Target:
    try:
        module = importlib.import_module(f"ncuflow.targets.{path.stem}")
    except Exception as error:
        raise ValueError(f"{path}: {type(error).__name__}: {error}") from None
    target = module.TARGET
    if not isinstance(target, Target) or target.name != path.stem:
        raise ValueError(f"{path}: TARGET is not a Target named {path.stem}")
    for choice in target.prices:
        if strange := [name for name in names(choice.where) if name not in target.parameters]:
            raise ValueError(f"{path}: choice {choice.key}: no parameter {strange[0]!r}")
    target.about, target.file = inspect.cleandoc(module.__doc__ or ""), path
    return target
