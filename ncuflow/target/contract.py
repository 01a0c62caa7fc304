"""A kernel target: all that the project knows of one kernel, declared in one file.

The files lie in ``targets/`` and in the folders that the setting ``target_folders`` names; each defines
``TARGET``. Importing one needs neither torch nor FlashInfer: the functions that run import them.
"""

from __future__ import annotations

import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

from ncuflow.expression import holds, names
from ncuflow.io import conforming, read_yaml, resource
from ncuflow.target.launch import MOST, GpuFacts, Launch, Params, Rules, skip_reason
from ncuflow.target.source import Backend, Build, Jit, Source, Symbol
from ncuflow.target.workload import Workload

T = TypeVar("T")
FOLDERS = "NCUFLOW_TARGETS"  # the environment variable with further folders, separated as in PATH
_DECLARES = re.compile(r"^TARGET\s*(:.*)?=", re.MULTILINE)


class Work(NamedTuple):
    """Analytic work of one launch, and the convention by which it was counted."""

    flops: int
    bytes: int
    convention: str


CALL_TIMES = ("time_cold_us", "host_launch_us")  # of its kernels, and of the host


@dataclass(frozen=True)
class Choice:
    """A parameter, and two of its values that are compared.

    where: which points take part, an expression over their parameters; ignoring: parameters that may differ as
    well, because they mean nothing on one side; metrics: measurement columns compared; names: of
    the two values, where they do not say it themselves; after: a value whose launch the base needs before
    its own: both are its time, its own with what that one wrote in L2; given: what fixes the parameter, "model" or "traffic",
    where no caller is free to choose it; of_kernels: its values stand for kernels and for nothing else, so that two points
    which launch the same ones alike differ by noise; alone: what must hold of a base, over its parameters and columns, for the
    choice to be the pair's only cause: where it is known not to, the pair tells of another one too, and is left out.
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
    of_kernels: bool = False
    alone: str = ""

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

    def fixed(self, params: Params) -> tuple[tuple[str, Any], ...]:
        """The parameters in which both points of a pair agree."""
        varied = {self.parameter, *self.ignoring}
        return tuple((name, value) for name, value in params.items() if name not in varied)


def dependent_launch(key: str) -> Choice:
    """What programmatic dependent launch brings a target whose parameter "pdl" is ("auto", "off")."""
    title, times = "Programmatic dependent launch or not", ("time_hot_us", "time_cold_us")
    return Choice(key, title, "pdl", "auto", "off", metrics=times)


def uneven(target: str, work: str = "") -> tuple[Choice, ...]:
    """What uneven lengths cost a target whose parameter "lengths" is ``attention.LENGTHS``.

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
        for kind, name in (
            ("lognormal_narrow", "narrow log-normal"),
            ("lognormal", "log-normal"),
            ("zipf", "Zipf"),
        )
    )


class StepPart(NamedTuple):
    """What of a model's step a point is: a part belongs to the steps that are like it in all that it states.

    name: of the part, attention being that which a step is made around, and ``phase`` what that computes; per_layer: how often
    a layer runs it, 0 for once a step; rank: of several that do it, the lowest that was measured is taken, the fastest of those.
    """

    name: str
    tokens: int | None = None
    sequences: int | None = None
    qo_heads: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    hidden: int | None = None
    phase: str = ""
    per_layer: int = 1
    rank: int = 0

    def belongs(self, attention: StepPart) -> bool:
        """Whether a step around this attention has the part."""
        hidden = (attention.qo_heads or 0) * (attention.head_dim or 0)
        step = (*attention[1:6], hidden)
        return all(mine in (None, its) for mine, its in zip(self[1:7], step, strict=True))


class Option(NamedTuple):
    """A setting of the API: who acts on it when, where, and the key of the choice that compares its values.

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
    where FlashInfer's source decides it, None where its caller does; change: what to do; bound: the share of the time, of 1, that
    it can save there at most by its mechanism, "" where nothing but a roof bounds it, which is no advice; choice: the key of
    the choice that tries it, ``inverted`` where its base is what is advised; trial: the change in ``examples/changes`` that is
    one of it; relaunches: it is
    tried only where other kernels or grids ran; other_work: it does other work than the launch here, whose roofs
    bound nothing then; how: to try it where no choice does; metric: the time that it saves.
    """

    __pydantic_config__: ClassVar[dict[str, str]] = {"extra": "forbid"}
    what: str
    shown: str
    where: str
    change: str
    symbol: Symbol | None = None
    bound: str = ""
    choice: str = ""
    trial: str = ""
    inverted: bool = False
    relaunches: bool = False
    other_work: bool = False
    how: str = ""
    metric: str = "time_cold_us"


@dataclass(kw_only=True)
class Target:
    """One kernel target; ``docs/adding-a-target.md`` says what the pipeline does with each part.

    What every target has:
    parameters each with its default: a number from 1, or the values that it may have, of which the first is the default
    id         format of a point's id after "name/", or a function that makes it

    What points it has, and where:
    choices    the values of a parameter whose default is not the first of them; read, those of every parameter that has such
    small      the sizes of a launch that only has to run
    part       what of a model's step a point is, as a model runs it by default; None of any other
    unable     why a GPU cannot run a point, beyond bf16 and memory, which are always checked
    backends   who can compute it, of those that FlashInfer has not for every GPU or that want something of the machine
    ranks      GPUs of one host that a point takes: with more than one it is timed, and neither traced nor counted
    sent       bytes that each rank has to send over its links: these are the roof of its points, which no DRAM is then
    stops_tracing   whether nsys 2023.4 records nothing from the point's first launch on, so that it is traced after others;
               None where FlashInfer or the machine decides, and those are traced between
    memory     bytes that a point takes on the GPU; its work's unless given
    edges      parameters that replace those of a point, a set for each input at which kernels go wrong: checked, not timed
    free       parameters of a point that its caller chooses without another result, each with FlashInfer's default
    traits     numbers that follow from a point's parameters, by which a rule may tell points apart
    resolves   what FlashInfer makes of these defaults on a GPU of a compute capability, "9.0", where that is told by them
    tuned      what of a point's parameters a runner of an operation of FlashInfer's autotuner has at shapes of its tensors; None
               of others
    asked      how FlashInfer is asked for what a point chooses of these: arguments by call, "wrapper", "plan" or "run";
               variables by "environment"
    written    of its work's bytes, those that its kernels write, or read again after that: L2 may keep them from DRAM

    On its page:
    heading    the guide's; the title unless given
    order      where the target stands on pages; equal ones by name
    about      the text of its module; set, as ``file`` is, when the file is read
    """

    name: str
    title: str
    parameters: Params
    id: str | Callable[[Params], str]
    work: Callable[[Params], Work]
    prepare: Callable[..., Launch]

    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    small: Params = field(default_factory=dict)
    part: Callable[[Params], StepPart | None] = lambda p: None
    unable: Callable[[Params, GpuFacts], str | None] = lambda p, gpu: None
    backends: tuple[Backend, ...] = ()
    ranks: Callable[[Params], int] = lambda p: 1
    sent: Callable[[Params], int] | None = None
    stops_tracing: Callable[[Params], bool | None] = lambda p: False
    memory: Callable[[Params], int] | None = None
    edges: Callable[[Params], Sequence[Params]] = lambda p: ()
    free: Callable[[Params], Params] = lambda p: {}
    traits: Callable[[Params], Mapping[str, float]] = lambda p: {}
    resolves: Callable[[Params, str], Params] = lambda p, capability: {}
    asked: Callable[[Params], dict[str, Params]] = lambda p: {}
    tuned: Callable[[str, str, Sequence[Sequence[int]]], Params | None] = lambda op, runner, s: None
    written: Callable[[Params], int] | None = None

    build: Build = field(default_factory=Build)
    source: Source = field(default_factory=Source)
    rules: Rules = field(default_factory=Rules)
    workload: Workload = field(default_factory=Workload)

    compared: tuple[Choice, ...] = ()

    heading: str = ""
    order: int = 99
    about: str = ""
    file: Path = Path()

    def __post_init__(self) -> None:
        named = {
            name: values for name, values in self.parameters.items() if isinstance(values, tuple)
        }
        self.parameters = self.parameters | {name: values[0] for name, values in named.items()}
        self.choices = {**named, **self.choices}

    @cached_property
    def options(self) -> tuple[Option, ...]:
        """Those of ``guide/<name>/options.yaml``, where the target's prose lies. Raises BadInput."""
        return self._declared("options", tuple[Option, ...])

    @cached_property
    def opportunities(self) -> tuple[Opportunity, ...]:
        """Those of ``guide/<name>/opportunities.yaml`` and what they lack of ``guide/opportunities.yaml``. Raises BadInput."""
        kind = tuple[Opportunity, ...]
        own = self._declared("opportunities", kind)
        shared = () if self.generic else self._declared("opportunities", kind, of="")
        return own + tuple(one for one in shared if one.what not in {other.what for other in own})

    def _declared(self, what: str, kind: type[T], of: str | None = None) -> T:
        for folder in template_folders():
            path = folder / "guide" / (self.name if of is None else of) / f"{what}.yaml"
            if path.is_file():
                return conforming(path, read_yaml(path), kind, what)
        return kind()

    @cached_property
    def _kinds(self) -> dict[str, tuple[set[type], bool]]:
        """The types that a value of each parameter can have, and whether it can be any of them."""
        return {
            name: (
                {type(default), *map(type, self.choices.get(name, ()))},
                name not in self.choices,
            )
            for name, default in self.parameters.items()
        }

    def point_id(self, p: Params) -> str:
        """Id of a point: also its NVTX range, so unique and stable for good."""
        return f"{self.name}/" + (self.id.format(**p) if isinstance(self.id, str) else self.id(p))

    def completed(self, p: Params) -> Params:
        """All parameters of a point: one that an older recording lacks had its default.

        Raises ValueError for one of another kind than the target's, by which no page could compute or sort.
        """
        for name, (kinds, free) in self._kinds.items():
            if name not in p:
                continue
            value = p[name]
            if type(value) not in kinds or (free and type(value) is int and not 1 <= value <= MOST):
                raise ValueError(f"parameter {name!r} cannot be {value!r}")
        return {**self.parameters, **p}

    @property
    def generic(self) -> bool:
        """Whether it stands for many APIs, and takes those that no other target does."""
        return self.workload.listed is not None

    def skip(self, p: Params, gpu: GpuFacts) -> str | None:
        """Why this GPU cannot run the point; None if it can."""
        size = self.memory(p) if self.memory else self.work(p).bytes
        wanted, here = self.ranks(p), gpu.get("gpus")
        if here and here < wanted:
            return f"needs {wanted} GPUs of one host, here are {here}"
        return self.unable(p, gpu) or skip_reason(p, gpu, size)

    def modules(self, p: Params) -> list[Any]:
        """JIT modules of the point; needs FlashInfer and an arch list, but no GPU."""
        if self.build.generate:
            return self.build.generate(p)
        if "jit" not in self.source.api:
            return []
        module, _, name = self.source.api["jit"].rpartition(".")
        arguments = self.build.jit[0].arguments(p) if self.build.jit else ()
        return [getattr(importlib.import_module(module), name)(*arguments)]


def known() -> dict[str, Target]:
    """Every kernel target by name, in the order of pages.

    Raises ValueError for a file that cannot be imported, and for two of one name.
    """
    return _read(os.environ.get(FOLDERS, ""))


def traits(name: str, p: Params) -> dict[str, float]:
    """Those of a point (``Target.traits``); none of a target that is not known."""
    target = known().get(name)
    return dict(target.traits(target.completed(p))) if target else {}


def load(name: str) -> Target:
    """One kernel target. Raises ValueError that names the known ones if there is none of this name."""
    found = known().get(name)
    if found is None:
        raise ValueError(f"unknown kernel target {name!r}; there are: {', '.join(sorted(known()))}")
    return found


def jit_modules() -> dict[str, tuple[Target, Jit]]:
    """The JIT modules that the targets declare, by name, with their targets."""
    return {
        module.name: (target, module) for target in known().values() for module in target.build.jit
    }


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
    for choice in target.compared:
        if strange := [name for name in names(choice.where) if name not in target.parameters]:
            raise ValueError(f"{path}: choice {choice.key}: no parameter {strange[0]!r}")
    for tunable in target.source.tunables:
        strange = [name for name in names(tunable.where) if name not in target.parameters]
        if strange or tunable.name in target.parameters:
            raise ValueError(
                f"{path}: tunable {tunable.name}: its name or where is none of its own"
            )
    target.about, target.file = inspect.cleandoc(module.__doc__ or ""), path
    return target
