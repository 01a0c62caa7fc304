"""A prepared launch of a kernel target, and what its inputs are made of.

And a launch rule: FlashInfer's host code of a kernel, written out again for a GPU that need not be there.

Which instantiation of which kernel, its grid, block and dynamic shared memory: what plan() and the
launchers compute from the parameters, the SM count, the shared memory and the occupancy of the compiled
kernel. A target has the rules of its own kernels, those of include/flashinfer in 0.6.18 and 0.7.2; a test
holds them against every launch that was recorded.

``Rules.shapes`` reads them backwards: it yields every set of parameters that a launch of a trace may have had, of those
parameters that count; what the launch does not say it may know from elsewhere (``LaunchSignature.told``), and raises UnsaidError
where nothing does. Nothing is guessed.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Protocol

Tensor = Any  # torch.Tensor; torch is not imported here
Params = dict[str, Any]
GpuFacts = dict[str, Any]

MOST = 2**31 - 1  # of a parameter that is a number: FlashInfer's indices have 32 bits
MEMORY_SHARE = 0.85  # of the GPU's memory that a point may ask for
REFERENCE_BYTES = 2 << 30  # room for the float32 reference and the L2 flush buffer


class NotHereError(RuntimeError):
    """Raised in preparing or checking a launch: why its point cannot be measured here. It is skipped."""


@dataclass
class Launch:
    """One point, ready to run on the current CUDA stream.

    run        enqueue the kernels; no host synchronisation
    output     tensors that the last run wrote (or a fixed sample of their rows)
    reference  the same tensors in float32 or wider, computed by the runner's references
    tolerance  relative L2 error allowed between the two
    buffers    whole tensors that the last run wrote
    allocates  run() allocates its outputs (the FlashInfer function takes no ``out=``)
    plan       host-side planning that precedes a run, callable again; None if there is none
    reset      restore inputs that ``run`` overwrites; None if it overwrites none
    info       what plan() chose, JSON-able
    extremes   what inputs may hold at which kernels go wrong, by what it is (infinities, what lies behind the last token): each
               writes it into the inputs, in place, and the reference follows; not undone
    untold     those of them that a function in the API's place (trace_apply) is not told of
    work       {"flops", "bytes", "convention"} where it shows only in the inputs; else the target's
    """

    run: Callable[[], None]
    output: Callable[[], tuple[Tensor, ...]]
    reference: Callable[[], tuple[Tensor, ...]]
    tolerance: float
    buffers: Callable[[], tuple[Tensor, ...]]
    allocates: bool = False
    plan: Callable[[], None] | None = None
    reset: Callable[[], None] | None = None
    info: dict[str, Any] = field(default_factory=dict)
    extremes: dict[str, Callable[[], None]] = field(default_factory=dict)
    untold: tuple[str, ...] = ()
    work: dict[str, Any] | None = None


class Written(tuple[Any, ...]):
    """Choices of a parameter that has named values, and others of their type that are written in a form of their own."""

    form: str
    example: str
    every: Callable[[], Sequence[Any]] | None

    def __new__(
        cls,
        values: Sequence[Any],
        form: str,
        example: str,
        every: Callable[[], Sequence[Any]] | None = None,
    ) -> Written:
        """``form``: the regular expression of the other values; ``example``: one of them, for an error; ``every``: all that there
        are on this machine, for which a sweep may say "every"."""
        self = super().__new__(cls, values)
        self.form, self.example, self.every = form, example, every
        return self

    def __contains__(self, value: object) -> bool:
        return super().__contains__(value) or (
            type(value) is type(self[0]) and re.fullmatch(self.form, str(value)) is not None
        )


class Inputs:
    """Random inputs of one point: the same for the same point id and seed."""

    def __init__(self, point: str, seed: int = 0, device: str = "cuda") -> None:
        import torch

        self.device = device
        self.generator = torch.Generator(device=device)
        self.generator.manual_seed(zlib.crc32(f"{point}#{seed}".encode()))

    def normal(self, *shape: int, dtype: Any) -> Tensor:
        """Standard normal tensor; of 8 bits, rounded from float16, whose range holds them all."""
        import torch

        drawn = torch.float16 if dtype.itemsize == 1 else dtype
        values = torch.randn(shape, dtype=drawn, device=self.device, generator=self.generator)
        return values.to(dtype)

    def permutation(self, n: int) -> Tensor:
        """0..n-1 in random order, int64."""
        import torch

        return torch.randperm(n, device=self.device, generator=self.generator)

    def rows(self, total: int, limit: int) -> Tensor:
        """Sorted row numbers to check, int64: all, or ``limit`` random ones with first and last."""
        import torch

        if total <= limit:
            return torch.arange(total, device=self.device)
        chosen = self.permutation(total)[:limit]
        chosen[:2] = torch.tensor([0, total - 1], device=self.device)
        return chosen.unique()


def returning(
    call: Callable[[], Any],
) -> tuple[Callable[[], None], Callable[[], tuple[Tensor, ...]]]:
    """(run, what its last call returned) of a call that allocates its outputs."""
    last: list[Any] = [()]

    def run() -> None:
        last[0] = call()

    return run, lambda: tuple(last[0]) if isinstance(last[0], tuple | list) else (last[0],)


def captured(run: Callable[[], None]) -> Callable[[], None]:
    """Replay of ``run`` captured in a CUDA graph, after a warm-up on a side stream."""
    import torch

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            run()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    replay: Callable[[], None] = graph.replay
    return replay


def skip_reason(p: Params, gpu: GpuFacts, input_bytes: int) -> str | None:
    """Why no GPU of this kind can run the point, whatever the target; None if it can."""
    if capability(gpu) < (8, 0) and p.get("dtype") == "bf16":
        return f"bf16 needs compute capability 8.0, this GPU has {gpu['compute_capability']}"
    memory = gpu.get("memory_bytes")
    needed = input_bytes + REFERENCE_BYTES
    if memory and needed > MEMORY_SHARE * memory:
        return f"needs {needed / 2**30:.1f} GiB of the GPU's {memory / 2**30:.1f} GiB"
    return None


def capability(gpu: GpuFacts) -> tuple[int, int]:
    """(9, 0) for compute capability "9.0"."""
    major, minor = str(gpu["compute_capability"]).split(".")
    return int(major), int(minor)


# --- launch rules -----------------------------------------------------------------------------

Between = tuple[int, int]  # the least and the most that it may be
ENDLESS = re.compile(r"\d{13}")  # no size of anything
ITEMS = {"__half": "f16", "half_t": "f16", "__nv_bfloat16": "bf16", "nv_bfloat16": "bf16", "bfloat16_t": "bf16"}  # fmt: skip


class UnsaidError(ValueError):
    """Raised where neither the launch nor what is known besides says a shape: why. params: what it does say."""

    def __init__(self, why: str, params: Params | None = None) -> None:
        super().__init__(why)
        self.params = params or {}


class PartError(UnsaidError):
    """Raised of a kernel that finishes the call of the kernel before it: its time is part of that one's."""


@dataclass(frozen=True)
class LaunchSignature:
    """A kernel's launch. kernel: its name without namespaces and arguments; argument: its template arguments by parameter;
    shared: bytes of dynamic shared memory, None where the trace does not say it; graph: whether a graph replayed it.

    known: by name, what is known of the step and the model from elsewhere: tokens (of the step), decodes (sequences that get a
    token), decodes_kv_tokens (of their caches, all together), prompts, prompt_tokens, prompt_kv_tokens, prompt_squares (of
    their lengths, summed), hidden, intermediate,
    vocab, qo_heads, kv_heads, head_dim, page_size. ``used``: the names that were asked for and known.
    """

    kernel: str
    argument: Callable[[str], str | None]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int | None = None
    name: str = ""
    graph: bool = False
    known: Mapping[str, Between] = field(default_factory=dict)
    used: set[str] = field(default_factory=set, compare=False)

    def number(self, parameter: str) -> int:
        """A template argument that is a number. Raises UnsaidError where there is none."""
        text = self.argument(parameter) or ""
        if not text.isdecimal() or ENDLESS.search(text):
            raise UnsaidError(f"its name has no template argument {parameter}")
        return int(text)

    def known_value(self, name: str) -> Between | None:
        """What is known besides the launch."""
        found = self.known.get(name)
        if found is not None:
            self.used.add(name)
        return found

    def sure(self, name: str) -> int | None:
        """The same where it is one number."""
        found = self.known_value(name)
        return found[0] if found and found[0] == found[1] else None

    def needed(self, name: str, why: str, params: Params) -> int:
        """The same; raises UnsaidError with what the launch says where it is none."""
        found = self.sure(name)
        if found is None:
            raise UnsaidError(why, params)
        return found

    def attention(self) -> dict[str, str]:
        """{"kv": "fp8"} where the kernel's name says that its cache has 8 bits. Raises UnsaidError where it has a window,
        whose length it does not say."""
        if "sliding_window" in (self.argument("AttentionVariant") or ""):
            raise UnsaidError("its window is not in the launch")
        return {"kv": "fp8"} if "fp8" in (self.argument("DTypeKV") or "") else {}

    @property
    def dtype(self) -> dict[str, str]:
        """{"dtype": …} where the kernel's name says it."""
        found = {ours for theirs, ours in ITEMS.items() if theirs in self.name}
        return {"dtype": found.pop()} if len(found) == 1 else {}


TYPES = {"f16": "__half", "bf16": "__nv_bfloat16"}


class GpuLimits(Protocol):
    """What the rules ask of a GPU; sizes in bytes."""

    @property
    def compute_capability(self) -> str:
        """E.g. "9.0"."""

    @property
    def sm_count(self) -> int:
        """Streaming multiprocessors."""

    @property
    def shared_sm(self) -> int:
        """Shared memory of an SM."""

    @property
    def shared_block(self) -> int:
        """Shared memory that a block may have at most."""

    def resident(self, threads: int, registers: int, shared: int) -> int:
        """Blocks that an SM holds at once: of so many threads, registers a thread, and bytes a block."""


class NoRuleError(KeyError):
    """Raised by a rule for a point that it does not know: why."""


@dataclass(frozen=True)
class LaunchConfig:
    """kernel: its name with template arguments as `kernelname.canonical` writes it; shared: dynamic, bytes."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    note: str = ""

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class Host:
    """A GPU, FlashInfer's version (major, minor) and registers by kernel, which its code asks for.

    registers: of a thread, by canonical name; raises KeyError for a kernel that was not compiled.
    """

    gpu: GpuLimits
    version: tuple[int, int]
    registers: Callable[[str], int]

    @property
    def modern(self) -> bool:
        """0.7 and newer."""
        return self.version >= (0, 7)

    def slots(self, kernel: str, threads: int, shared: int) -> int:
        """Blocks of a kernel that the GPU holds at once."""
        fits = self.gpu.resident(threads, self.registers(kernel), shared)
        return fits * self.gpu.sm_count


# The launches of a point, in order; None for one of which nothing is known, such as a kernel of PyTorch.
# Raises KeyError where a kernel that it asks for was not compiled, NoRuleError where it does not know the point.
LaunchRule = Callable[[Params, Host], Iterator[LaunchConfig | None]]


@dataclass(frozen=True)
class SplitKv:
    """What a scheduler that splits the KV cache over blocks looks at.

    pages: of the KV cache of each sequence; tiles: of queries, of each sequence; sm_blocks: what it
    takes an SM to hold, None for as many as fit; shortest: pages of a chunk, by the blocks that there may
    be of each KV head; padded: whether a grid that is split has blocks without work, in a CUDA graph.
    """

    batch: int
    pages: int
    kv_heads: int
    tiles: int
    sm_blocks: int | None
    shortest: Callable[[int], int]
    padded: bool = False

    @property
    def blocks(self) -> int:
        """Of the grid that is not split."""
        return self.batch * self.tiles * self.kv_heads

    def chunks(self, slots: int) -> int:
        """KV chunks of a sequence for a GPU that holds ``slots`` blocks at once.

        One if the unsplit grid fills the GPU; else by the smallest chunk whose grid still fits.
        """
        if self.blocks >= slots:
            return 1
        return ceil(self.pages / self.shortest(slots // self.kv_heads))


# From a point, a kernel's name, and its template arguments by parameter; None for a kernel that does not split.
SplitRule = Callable[[Params, str, Callable[[str], str | None]], SplitKv | None]


@dataclass(frozen=True, kw_only=True)
class Rules:
    """FlashInfer's host code, written out again.

    launches   the launches of a point on a GPU that need not be there
    splits     what the scheduler of a kernel that splits the KV cache looks at
    described  a kernel's name for people, where its template arguments do not tell it
    shapes     the parameters that a launch of its kernels may have had, each of several; raises UnsaidError where none tells
    kernels    that its calls launch beside those of its source
    named      a pattern of the names of kernels of its that say by themselves what they were built for
    finishers  kernels that are no call's first: they finish what the kernel before them began
    whole      a call launches several kernels that only a range around it holds together: the first has the call's roof
    tells      what parameters say of the other launches of a step, by the names of ``LaunchSignature.known``
    operators  the parameters of a framework's operator: its name, and the shapes and types of its inputs; None of another's
    """

    launches: LaunchRule | None = None
    splits: SplitRule = lambda p, kernel, argument: None
    described: Callable[[str], str | None] = lambda kernel: None
    shapes: Callable[[LaunchSignature], Iterator[Params]] | None = None
    kernels: tuple[str, ...] = ()
    named: str = ""
    finishers: tuple[str, ...] = ()
    whole: bool = False
    tells: Callable[[Params], Mapping[str, int]] = lambda p: {}
    operators: Callable[[str, Sequence[Sequence[int]], Sequence[str]], Params | None] = (
        lambda name, shapes, types: None
    )
