"""A prepared launch of a kernel target, and what its inputs are made of."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

DTYPES = {"f16": "float16", "bf16": "bfloat16", "fp8": "float8_e4m3fn"}
ITEMSIZE = {"f16": 2, "bf16": 2}  # of the types that every target takes
FP8 = "fp8"  # a byte: e4m3, a sign, 4 bits of exponent and 3 of mantissa
NVFP4 = "nvfp4"  # half a byte, e2m1, and a scale in e4m3 for each 16 (`inputs.py`)
KV = ("same", FP8, NVFP4)  # what a KV cache holds: elements of the queries' type, of 8 or of 4 bits

# Relative L2 error allowed against the float32 reference. Rounding an output to fp16 (11 bits)
# costs 3e-4 and to bf16 (8 bits) 2e-3; attention rounds its probabilities once more. A dropped KV
# token, a wrong mask or a wrong page costs percents, so these limits sit well between the two.
TOLERANCE = {"f16": 5e-3, "bf16": 2e-2}


def torch_dtype(name: str) -> Any:
    """torch.float16 for "f16", torch.bfloat16 for "bf16", torch.float8_e4m3fn for "fp8"."""
    import torch

    return getattr(torch, DTYPES[name])


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
    work: dict[str, Any] | None = None


class Written(tuple[str, ...]):
    """Choices of a parameter that has named values, and others that are written in a form of their own."""

    form: str
    example: str

    def __new__(cls, values: Sequence[str], form: str, example: str) -> Written:
        """``form``: the regular expression of the other values; ``example``: one of them, for an error."""
        self = super().__new__(cls, values)
        self.form, self.example = form, example
        return self

    def __contains__(self, value: object) -> bool:
        return super().__contains__(value) or (
            isinstance(value, str) and re.fullmatch(self.form, value) is not None
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


# A wrapper's plan() keeps its choice as a list of integers in ``wrapper._plan_info``, in the order of ToVector() in
# FlashInfer's include/flashinfer/attention/scheduler.cuh, the same in 0.5.3, 0.6.18 and 0.7.2; the length tells which plan
# it is: length of the list -> {name: (position, kind)}
_LAYOUTS: dict[int, dict[str, tuple[int, type]]] = {
    10: {"padded_batch_size": (0, int), "split_kv": (9, bool)},  # DecodePlanInfo
    15: {  # PrefillPlanInfo: fa2, and decode on tensor cores
        "padded_batch_size": (0, int),
        "cta_tile_q": (3, int),
        "split_kv": (14, bool),
    },
    9: {"same_schedule_for_all_heads": (8, bool)},  # PrefillPlanSM90Info: fa3
}


def plan_info(wrapper: Any) -> dict[str, Any]:
    """The choices of the last plan(), e.g. {"backend": "fa2", "split_kv": False, ...}.

    Reads private attributes, so whatever cannot be read is left out: this never raises.
    """
    found: dict[str, Any] = {}
    try:
        backend = getattr(wrapper, "resolved_backend", None) or getattr(wrapper, "_backend", None)
        if isinstance(backend, str):
            found["backend"] = backend
        values = [int(value) for value in wrapper._plan_info]
        for name, (position, kind) in _LAYOUTS.get(len(values), {}).items():
            found[name] = kind(values[position])
    except Exception:  # another FlashInfer may keep its plan elsewhere
        pass
    return found
