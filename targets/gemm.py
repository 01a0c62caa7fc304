"""Matrix products of a layer's weights: of 16 bits, 8 and 4, in segments that have weights of their own, and scaled by blocks.

Beside its other kernels FlashInfer calls a library for these or brings a kernel of its own; ``variant`` says which call it
is, ``backend`` who computes it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ncuflow.target import reference
from ncuflow.target.contract import Choice, Opportunity, Target, Work
from ncuflow.target.inputs import (
    BITS,
    BLOCK_ELEMENTS,
    FP8,
    MXFP8,
    NVFP4,
    SCALE_TILE,
    TOLERANCE,
    TORCH_DTYPES,
    gathered,
    quantised,
    torch_dtype,
)
from ncuflow.target.launch import GpuFacts, Inputs, Launch, NotHereError, Params, Tensor
from ncuflow.target.rules import Rules
from ncuflow.target.source import Backend, Build, Declaration, Jit, Source, Symbol, no_backend

BLOCK = 128  # elements of K, and of N for a weight, that share a scale
CHECKED_ROWS = 1024  # of the output, compared with the reference
WORKSPACE_BYTES = 128 << 20
LARGEST = 448  # of fp8 (e4m3)
# The call rounds the activations to fp8 itself, whose 3 bits of mantissa are off by up to 6 %, 3 % in the mean square.
ROUNDED_INSIDE = 6e-2


class GemmApi(NamedTuple):
    """A call of FlashInfer's: the types that it multiplies, who can compute it, whether it has a batch; whom it takes by
    default, "" where that is none of these."""

    dtypes: tuple[str, ...]
    backends: tuple[Backend, ...]
    batched: bool = False
    default: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.backends)


def _of_base(call: str, **backends: tuple[str, ...]) -> tuple[Backend, ...]:
    """Backends with their compute capabilities, which FlashInfer declares by functions that are called after both."""
    where = "gemm/gemm_base.py"
    return tuple(
        Backend(name, capabilities, Declaration(f"_{name}_{call}_requirement", where))
        for name, capabilities in backends.items()
    )


_BLACKWELL = ("10.0", "10.3", "10.7")
_NEWER = (*_BLACKWELL, "11.0", "12.0", "12.1")
_ADA = ("8.9", "9.0", *_NEWER)
_AMPERE = ("8.0", "8.6", "8.7", *_ADA)
_TINY = ("9.0", "10.0", "10.3", *_NEWER[3:])
CALLS = {
    "mm": GemmApi(  # mm_bf16
        ("bf16",),
        (
            *_of_base(
                "mm_bf16", cublaslt=_AMPERE, cudnn=_AMPERE, tinygemm=_TINY, cutlass=_BLACKWELL
            ),
            *_of_base("gemm", tgv=_BLACKWELL),
        ),
        default="cudnn",
    ),
    "bmm": GemmApi(  # bmm_fp8
        (FP8,), _of_base("bmm_fp8", cublas=_ADA, cudnn=_ADA), batched=True, default="cublas"
    ),
    "mm_mxfp8": GemmApi(
        (MXFP8,), _of_base("gemm_mxfp8", cutlass=_NEWER) + _of_base("mm_mxfp8", cudnn=_NEWER)
    ),
    "mm_fp4": GemmApi((NVFP4,), _of_base("gemm_fp4", cutlass=_NEWER, cudnn=_NEWER)),
    "segment": GemmApi(  # SegmentGEMMWrapper
        ("bf16",),
        (
            Backend("sm90", ("9.0",), Declaration("gen_gemm_sm90_module", "jit/gemm/core.py")),
            Backend("sm80"),
        ),
        batched=True,
    ),
    "blockscale": GemmApi(  # fp8_blockscale_gemm_sm90
        (FP8,),
        (
            Backend(
                "deepgemm",
                ("9.0",),
                Declaration("gen_fp8_blockscale_gemm_sm90_module", "jit/gemm/fp8_blockscale.py"),
            ),
        ),
    ),
}
BACKENDS = tuple(dict.fromkeys(name for call in CALLS.values() for name in call.names))


def point_id(p: Params) -> str:
    """E.g. mm_cublaslt_M4096_N4096_K4096_bf16; a batch of more than one is shown."""
    batch = f"_B{p['batch']}" if p["batch"] > 1 else ""
    return f"{p['variant']}_{p['backend']}{batch}_M{p['m']}_N{p['n']}_K{p['k']}_{p['dtype']}"


def unable(p: Params, gpu: GpuFacts) -> str | None:
    """Why this GPU cannot run the point; None if it can."""
    call, variant = CALLS[p["variant"]], p["variant"]
    if p["dtype"] not in call.dtypes:
        return f"{variant} multiplies {' or '.join(call.dtypes)}, not {p['dtype']}"
    if p["backend"] not in call.names:
        return f"{variant} is computed by {', '.join(call.names)}, not by {p['backend']}"
    if p["batch"] > 1 and not call.batched:
        return f"{variant} is one product, not a batch of {p['batch']}"
    if variant == "blockscale" and (p["k"] % BLOCK or p["n"] % BLOCK):
        return f"blocks are of {BLOCK} elements: neither {p['n']} nor {p['k']} may have a rest"
    if p["dtype"] in BLOCK_ELEMENTS:
        tile = BLOCK_ELEMENTS[p["dtype"]] * SCALE_TILE[1]
        if p["k"] % tile or p["n"] % SCALE_TILE[0]:
            return (
                f"{variant} takes rows of whole tiles: k a multiple of {tile}, n of {SCALE_TILE[0]}"
            )
    return no_backend(call.backends, p["backend"], gpu)


def free(p: Params) -> Params:
    """Who computes the call, where FlashInfer's default is among those that are measured."""
    default = CALLS[p["variant"]].default
    return {"backend": default} if default else {}


TUNED = {"bf16_gemm": "mm", "fp8_gemm": "bmm"}


def tuned(operation: str, runner: str, shapes: Sequence[Sequence[int]]) -> Params | None:
    """The product that FlashInfer's autotuner keeps under an operation, a runner and the shapes of its tensors."""
    variant = TUNED.get(operation)
    if variant is None or len(shapes) < 2:
        return None
    names = (name for name in CALLS[variant].names if runner.lower().startswith(name))
    backend = next(names, None)
    *batch, m, k = shapes[0]
    if backend is None or len(batch) > CALLS[variant].batched:
        return None
    sizes = {"m": m, "n": shapes[1][-1], "k": k, "batch": batch[0] if batch else 1}
    return {"variant": variant, "backend": backend, "dtype": CALLS[variant].dtypes[0], **sizes}


def work(p: Params) -> Work:
    """FLOPs: 2*M*N*K of each product. Bytes: both matrices and the product once, and the scales of blocks."""
    rows, n, k = p["batch"] * p["m"], p["n"], p["k"]
    if (kind := p["dtype"]) in BLOCK_ELEMENTS:
        elements = (rows + n) * k
        return Work(
            flops=2 * rows * n * k,
            bytes=elements * BITS[kind] // 8 + elements // BLOCK_ELEMENTS[kind] + rows * n * 2,
            convention="ncuflow: 2*M*N*K; both matrices with their scales and the product once",
        )
    item = 1 if p["dtype"] == FP8 else 2
    wide = 2 if p["variant"] == "blockscale" else item  # of its activations, which it rounds itself
    scales = 4 * (n // BLOCK) * (k // BLOCK) if p["variant"] == "blockscale" else 0
    return Work(
        flops=2 * rows * n * k,
        bytes=rows * k * wide + p["batch"] * n * k * item + rows * n * 2 + scales,
        convention="ncuflow: 2*M*N*K; both matrices as they are given and the product once",
    )


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id. The reference covers all rows, or a sample with the first and the last."""
    import torch

    inputs = Inputs(TARGET.point_id(p), seed)
    blocks = p["dtype"] in BLOCK_ELEMENTS
    given = torch.bfloat16 if blocks else torch_dtype(p["dtype"])
    activations = torch.bfloat16 if p["variant"] == "blockscale" else given
    x = inputs.normal(p["batch"], p["m"], p["k"], dtype=activations)
    weight = inputs.normal(p["batch"], p["n"], p["k"], dtype=given)
    out = torch.empty(p["batch"], p["m"], p["n"], dtype=torch.bfloat16, device=x.device)
    rows = inputs.rows(p["m"], max(2, CHECKED_ROWS // p["batch"]))
    made = _CALLS[p["variant"]](p, inputs, x, weight, out)
    left, right = made.values or (x, weight)

    def expected() -> tuple[Tensor]:
        return (reference.product(gathered(left, (slice(None), rows)), right, made.scale, BLOCK),)

    return Launch(
        run=made.run,
        output=lambda: (out[:, rows],),
        reference=expected,
        tolerance=ROUNDED_INSIDE if p["variant"] == "blockscale" else TOLERANCE["bf16"],
        buffers=lambda: (out,),
    )


class Made(NamedTuple):
    """A call; the scales of the weight's blocks, or the values of both matrices where they are no tensors of their own."""

    run: Callable[[], None]
    scale: Tensor | None = None
    values: tuple[Tensor, Tensor] | None = None


def _mm(p: Params, inputs: Inputs, x: Tensor, weight: Tensor, out: Tensor) -> Made:
    import flashinfer

    function = _of(flashinfer, "mm_bf16")
    # the weight is [n, k] and passed as [k, n], which FlashInfer calls column major
    a, b, c = x[0], weight[0].T, out[0]
    return Made(lambda: function(a, b, out=c, backend=p["backend"]))


def _blocks(p: Params, inputs: Inputs, x: Tensor, weight: Tensor, out: Tensor) -> Made:
    """mm_mxfp8 and mm_fp4, of matrices that were quantised before."""
    import flashinfer

    function, kind, c = _of(flashinfer, p["variant"]), p["dtype"], out[0]
    a, w = (quantised(matrix[0], kind) for matrix in (x, weight))
    settings: dict[str, Any] = {"out": c, "out_dtype": c.dtype, "backend": p["backend"]}
    scales = [a.scales, w.scales]
    if kind == NVFP4:  # the same memory, as matrices
        scales = [one.view(-1, p["k"] // BLOCK_ELEMENTS[kind]) for one in scales]
        scales[1] = scales[1].T
        settings["alpha"] = 1 / (a.whole * w.whole)
    values = (a.values[None] / a.whole, w.values[None] / w.whole)
    return Made(
        lambda: function(a.elements, w.elements.T, *scales, **settings),
        values=values,
    )


def _bmm(p: Params, inputs: Inputs, x: Tensor, weight: Tensor, out: Tensor) -> Made:
    import flashinfer
    import torch

    function = _of(flashinfer, "bmm_fp8")
    one = torch.ones((), dtype=torch.float32, device=x.device)
    b = weight.transpose(-2, -1)
    return Made(lambda: function(x, b, one, one, out.dtype, out=out, backend=p["backend"]))


def _segment(p: Params, inputs: Inputs, x: Tensor, weight: Tensor, out: Tensor) -> Made:
    import torch
    from flashinfer import SegmentGEMMWrapper

    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.int8, device=x.device)
    wrapper = SegmentGEMMWrapper(workspace, backend=p["backend"])
    whole: dict[str, Any] = {"dtype": torch.int64, "device": x.device}
    first = torch.arange(p["batch"] + 1, **whole) * p["m"]
    chosen = torch.arange(p["batch"], **whole)
    rows, result = x.flatten(0, 1), out.flatten(0, 1)

    def run() -> None:
        wrapper.run(
            rows, weight, p["batch"], True, out=result, seg_indptr=first, weight_indices=chosen
        )

    return Made(run)


def _blockscale(p: Params, inputs: Inputs, x: Tensor, weight: Tensor, out: Tensor) -> Made:
    import torch
    from flashinfer import gemm

    function = _of(gemm, "fp8_blockscale_gemm_sm90")
    shape = (p["n"] // BLOCK, p["k"] // BLOCK)
    # of the size that a quantised weight has: its largest element over the largest of fp8
    scale = (inputs.normal(*shape, dtype=torch.float32).abs() + 1) / LARGEST
    a, w, c = x[0], weight[0], out[0]
    return Made(lambda: function(a, w, None, scale, out=c), scale)


_CALLS: dict[str, Callable[..., Made]] = {
    "mm": _mm,
    "mm_mxfp8": _blocks,
    "mm_fp4": _blocks,
    "bmm": _bmm,
    "segment": _segment,
    "blockscale": _blockscale,
}


def _of(module: Any, name: str) -> Callable[..., Any]:
    """A function of FlashInfer's, which not every version has."""
    found: Callable[..., Any] | None = getattr(module, name, None)
    if found is None:
        raise NotHereError(f"this FlashInfer has no {name}")
    return found


def modules(p: Params) -> list[Any]:
    """JIT modules of the point; needs FlashInfer and an arch list, but no GPU. cuDNN builds its own at the first call,
    and of products in blocks each GPU has another."""
    from flashinfer.jit import gemm

    if p["dtype"] in BLOCK_ELEMENTS:
        return []

    if p["backend"] == "tinygemm":
        from flashinfer.jit.tinygemm2 import gen_tinygemm2_module

        return [gen_tinygemm2_module()]
    name = {
        "cublaslt": "gen_mm_bf16_cublaslt_module",
        "cutlass": "gen_gemm_sm100_module_cutlass_bf16",
        "cublas": "gen_gemm_module",
        "sm80": "gen_gemm_module",
        "sm90": "gen_gemm_sm90_module",
        "deepgemm": "gen_fp8_blockscale_gemm_sm90_module",
    }.get(p["backend"])
    generate = getattr(gemm, name, None) or getattr(gemm.core, name, None) if name else None
    return [generate()] if generate else []


_PRODUCTS = {"mm": 0, "addmm": 1, "_scaled_mm": 0, "linear": 0, "bmm": 0, "matmul": 0}


def operators(name: str, shapes: Sequence[Sequence[int]], types: Sequence[str]) -> Params | None:
    """Of torch's products, whose left matrix is the input of this place; linear has its weight as [n, k]."""
    called = name.split("::")[-1]
    if not name.startswith("aten::") or called not in _PRODUCTS:
        return None
    first = _PRODUCTS[called]
    if len(shapes) < first + 2:
        return None
    left, right = tuple(shapes[first]), tuple(shapes[first + 1])
    batch = left[0] if called == "bmm" else 1
    if called == "bmm":
        left, right = left[1:], right[1:]
    if len(left) < 2 or len(right) != 2:
        return None
    *rows, k = left
    m = math.prod(rows)
    n = right[0] if called == "linear" else right[1]
    if k not in right:
        return None
    dtype = TORCH_DTYPES.get(types[first]) if len(types) > first else None
    said: Params = {"variant": "bmm" if called == "bmm" else "mm", "m": m, "n": n, "k": k}
    return said | ({"batch": batch} if batch > 1 else {}) | ({"dtype": dtype} if dtype else {})


TARGET = Target(
    name="gemm",
    title="Matrix products",
    heading="GEMM Kernels",
    order=11,
    parameters={
        "variant": tuple(CALLS),
        "batch": 1,  # products of bmm, segments of segment
        "m": 4096,  # rows (tokens) of each
        "n": 4096,
        "k": 4096,
        "dtype": ("bf16", FP8, MXFP8, NVFP4),  # that is multiplied; the product is bf16
        "backend": BACKENDS,
    },
    small={"batch": 1, "m": 64},
    id=point_id,
    unable=unable,
    free=free,
    asked=lambda p: {"run": {"backend": p["backend"]}},
    tuned=tuned,
    backends=tuple(dict.fromkeys(one for call in CALLS.values() for one in call.backends)),
    # cuBLAS does; of the others no trace tells
    stops_tracing=lambda p: True if p["backend"].startswith("cublas") else None,
    memory=lambda p: 4 * work(p).bytes + WORKSPACE_BYTES,  # float32 copies of the reference
    work=work,
    written=lambda p: 2 * p["batch"] * p["m"] * p["n"],
    prepare=prepare,
    rules=Rules(operators=operators),
    build=Build(generate=modules, jit=(Jit("gemm", "flashinfer.gemm.gemm_base:get_gemm_module"),)),
    source=Source(
        api={
            "python": "flashinfer.gemm.mm_bf16",
            "python_bmm": "flashinfer.gemm.bmm_fp8",
            "python_mxfp8": "flashinfer.gemm.mm_mxfp8",
            "python_fp4": "flashinfer.gemm.mm_fp4",
            "python_segment": "flashinfer.gemm.SegmentGEMMWrapper",
            "python_blockscale": "flashinfer.gemm.fp8_blockscale_gemm_sm90",
            "jit": "flashinfer.jit.gemm.core.gen_gemm_module",
            "binding": "csrc/flashinfer_gemm_binding.cu",
        },
        kernels=(  # the libraries' kernels have names of their own
            Symbol("tinygemm_kernel", ""),
            Symbol("device_kernel", ""),
            Symbol("fp8_gemm_kernel", ""),
        ),
        sources=("bmm_fp8.cu", "group_gemm.cu", "flashinfer_gemm_binding.cu"),
    ),
    compared=(
        Choice("gemm_cudnn", "cuBLASLt or cuDNN", "backend", "cublaslt", "cudnn"),
        Choice("gemm_tiny", "cuBLASLt or tinygemm", "backend", "cublaslt", "tinygemm"),
        Choice("gemm_fp8_cudnn", "cuBLAS or cuDNN, fp8", "backend", "cublas", "cudnn"),
        Choice(
            "gemm_segment", "Segments by Hopper's or Ampere's kernel", "backend", "sm90", "sm80"
        ),
        Choice(
            "gemm_fp8",
            "16 bits or 8, by cuBLAS",
            "variant",
            "mm",
            "bmm",
            where="backend in ('cublaslt', 'cublas')",
            ignoring=("dtype", "backend"),
        ),
        Choice(
            "gemm_blockscale",
            "16 bits by cuBLASLt, or 8 scaled by blocks",
            "variant",
            "mm",
            "blockscale",
            where="backend in ('cublaslt', 'deepgemm')",
            ignoring=("dtype", "backend"),
        ),
    ),
    opportunities=(
        Opportunity(
            what="a kernel for few rows",
            shown="{m} rows: the weight is read for little work, DRAM is busy {sol_dram_pct} of the time; the grid is "
            "{waves} waves",
            where="backend == 'cublaslt' and m <= 16",
            symbol=Symbol("mm_bf16", "gemm/gemm_base.py"),
            change='`mm_bf16(backend="tinygemm")`',
            choice="gemm_tiny",
        ),
        Opportunity(
            what="a CUDA graph",
            shown="the call takes the host {host_launch_us}, its kernels {time_hot_us}: one after another, the GPU waits",
            where="host_launch_us > time_hot_us",
            bound="1 - time_hot_us / step_us",
            symbol=Symbol("mm_bf16", "gemm/gemm_base.py"),
            change="capture the step, or call with `skip_check=True`",
            how="`torch.cuda.graph` around the calls of a step, and its replay against them",
            metric="step_us",
        ),
        Opportunity(
            what="the weight once for all rows",
            shown="DRAM moves {bytes_dram_counted} where {bytes_analytic} are needed: each tile of rows reads the weight again",
            where="main_kernel == 'tinygemm_kernel' and bytes_dram_counted > 2 * bytes_analytic",
            bound="1 - bytes_analytic / bytes_dram_counted",
            symbol=Symbol("mm_bf16", "gemm/gemm_base.py"),
            change='`mm_bf16(backend="cublaslt")` from so many rows on',
            choice="gemm_tiny",
            inverted=True,
        ),
        Opportunity(
            what="a weight of 8 bits",
            shown="DRAM is busy {sol_dram_pct} of the time, the tensor pipe {tensor_pipe_elapsed_pct}; of "
            "{bytes_analytic} the weight is most",
            where="backend == 'cublaslt' and sol_dram_pct > 50",
            symbol=Symbol("bmm_fp8", "gemm/gemm_base.py"),
            change="`bmm_fp8` with a scale per tensor, at the price of precision",
            choice="gemm_fp8",
        ),
    ),
)
