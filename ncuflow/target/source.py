"""What FlashInfer has of a kernel: its source, and how that is compiled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ncuflow.target.launch import Params


class Symbol(NamedTuple):
    """A kernel or function, and its header below ``include/flashinfer``; "" where FlashInfer has none."""

    name: str
    header: str


class Constant(NamedTuple):
    """Where FlashInfer's source has the value of a tunable.

    file: below the package; function: in which it stands, "" where the file has it outside of one; pattern: a regular
    expression that matches there exactly once, the value being its one group.
    """

    file: str
    function: str
    pattern: str


class Tunable(NamedTuple):
    """A constant that FlashInfer's source fixes and that may be another one, with the same result: tile, stages, threads.

    name: as no parameter of the target is called; places: all that hold its value, which change together; values: to try,
    the likeliest first, those that are the source's own being none; where: the points at which it means something, an
    expression over their parameters.
    """

    name: str
    places: tuple[Constant, ...]
    values: tuple[int, ...]
    where: str = "True"


@dataclass(frozen=True, kw_only=True)
class Source:
    """What FlashInfer's source has of a target, and what its headers do not tell of the kernels.

    api        where the code path starts: "python", "jit", "binding" and more of them
    kernels    that the call may launch
    functions  host functions that its prose cites
    sources    files of csrc/ that the module is made from
    templates  parameter names, by kernel, that FlashInfer's headers do not tell
    meanings   of its kernels' template parameters; "kernel.parameter" where two kernels disagree
    computed   what headers compute of template arguments: name -> its meaning, and the value from the whole
               numbers among the arguments, by parameter; a KeyError is another kernel
    apart      by kernel, the template parameter by which its instances wait for different things
    tunables   constants of it that may have other values
    """

    api: Mapping[str, str] = field(default_factory=dict)
    kernels: tuple[Symbol, ...] = ()
    functions: tuple[Symbol, ...] = ()
    sources: tuple[str, ...] = ()
    templates: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    meanings: Mapping[str, str] = field(default_factory=dict)
    computed: Mapping[str, tuple[str, Callable[[Mapping[str, int]], int]]] = field(
        default_factory=dict
    )
    apart: Mapping[str, str] = field(default_factory=dict)
    tunables: tuple[Tunable, ...] = ()


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


class CuteKernel(NamedTuple):
    """A kernel that FlashInfer writes in CuTe DSL, which no nvcc compiles.

    module: what its facts are filed under; source: what tells it from others there; function:
    FlashInfer's, which compiles it, "module:function"; arguments: its arguments before the SM version.
    """

    module: str
    source: str
    function: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True)
class Build:
    """How a target is compiled.

    generate  JIT modules (JitSpec) of a point; the JIT generator of ``Source.api``, called alone, unless given
    cute      the kernel that FlashInfer has CuTe DSL compile for a point on a compute capability
    jit       modules whose compilation is measured
    early     its points are profiled as their modules stand, while others are compiled, and compared with their references
              then, as nothing is timed beside compilers; they are traced, unchecked, when nobody compiles
    """

    generate: Callable[[Params], list[Any]] | None = None
    cute: Callable[[Params, str], CuteKernel | None] = lambda p, capability: None
    jit: tuple[Jit, ...] = ()
    early: bool = False
