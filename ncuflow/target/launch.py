"""A prepared launch of a kernel target, and what its inputs are made of."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

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
