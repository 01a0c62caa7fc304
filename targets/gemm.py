"""Matrix products of a layer's weights: of 16 bits, 8 and 4, in segments that have weights of their own, and scaled by blocks.

Beside its other kernels FlashInfer calls a library for these or brings a kernel of its own; ``variant`` says which call it
is, ``backend`` who computes it.
"""

from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple

from ncuflow.target import reference, source, workload
from ncuflow.target.contract import Choice, Target, Work
from ncuflow.target.inputs import (
    BITS,
    BLOCK_ELEMENTS,
    FP8,
    MXFP8,
    NVFP4,
    SCALE_TILE,
    TOLERANCE,
    gathered,
    quantised,
    scaled,
    torch_dtype,
)
from ncuflow.target.launch import (
    GpuFacts,
    Inputs,
    Launch,
    NotHereError,
    Params,
    Rules,
    Tensor,
    returning,
)
from ncuflow.target.workload import Block, EngineCall, RefusedError, Workload, element

BLOCK = 128  # elements of K, and of N for a weight, that share a scale
CHECKED_ROWS = 1024  # of the output, compared with the reference
WORKSPACE_BYTES = 128 << 20
LARGEST = 448  # of fp8 (e4m3)
# The call rounds the activations to fp8 itself, whose 3 bits of mantissa are off by up to 6 %, 3 % in the mean square.
ROUNDED_INSIDE = 6e-2


class GemmApi(NamedTuple):
    """A call of FlashInfer's: the types that it multiplies, who can compute it, whether it has a batch; whom it takes by
    default, "" where no setting says it."""

    dtypes: tuple[str, ...]
    backends: tuple[source.Backend, ...]
    batched: bool = False
    default: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.name for one in self.backends)


def _of_base(call: str, **backends: tuple[str, ...]) -> tuple[source.Backend, ...]:
    """Backends with their compute capabilities, which FlashInfer declares by functions that are called after both."""
    where = "gemm/gemm_base.py"
    return tuple(
        source.Backend(name, capabilities, source.Declaration(f"_{name}_{call}_requirement", where))
        for name, capabilities in backends.items()
    )


_BLACKWELL = ("10.0", "10.3", "10.7")
_NEWER = (*_BLACKWELL, "11.0", "12.0", "12.1")
_ADA = ("8.9", "9.0", *_NEWER)
_AMPERE = ("8.0", "8.6", "8.7", *_ADA)
_TINY = ("9.0", "10.0", "10.3", *_NEWER[3:])
_DEEPGEMM = source.Backend(
    "deepgemm",
    ("9.0",),
    source.Declaration("gen_fp8_blockscale_gemm_sm90_module", "jit/gemm/fp8_blockscale.py"),
)
# Beside FlashInfer's what a user would call instead: torch, whose products are cuBLASLt's and, of segments, CUTLASS's.
TORCH = "torch"


def _torch(*capabilities: str) -> source.Backend:
    return source.Backend(TORCH, capabilities, rival=("torch", "nvidia-cublas"))


# FlashInfer's kernels for the products of a router, of at most 16 rows, by (k, n): the call, whether its product is float32
ROUTERS = {
    (7168, 128): ("mm_M1_16_K7168_N128", False),
    (7168, 256): ("mm_M1_16_K7168_N256", True),
    (6144, 256): ("mm_M1_16_K6144_N256", True),
}
ROUTED_ROWS = 16
CALLS = {
    "mm": GemmApi(  # mm_bf16
        ("bf16",),
        (
            *_of_base(
                "mm_bf16", cublaslt=_AMPERE, cudnn=_AMPERE, tinygemm=_TINY, cutlass=_BLACKWELL
            ),
            *_of_base("gemm", tgv=_BLACKWELL),
            source.Backend(
                "router",
                ("9.0", *_BLACKWELL),
                source.Declaration("_mm_M1_16_K7168_N256_shape_checks", "gemm/routergemm.py"),
            ),
            _torch(),
        ),
        default="cudnn",
    ),
    "mm_fp8": GemmApi(
        (FP8,),
        (*_of_base("mm_fp8", cublas=_ADA, cudnn=_ADA, cutlass=_NEWER), _torch(*_ADA)),
        default="trtllm_low_latency",  # for Blackwell, of a weight that is shuffled before
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
            source.Backend(
                "sm90", ("9.0",), source.Declaration("gen_gemm_sm90_module", "jit/gemm/core.py")
            ),
            source.Backend("sm80"),
            _torch("9.0", "10.x"),
        ),
        batched=True,
    ),
    "blockscale": GemmApi((FP8,), (_DEEPGEMM,)),  # fp8_blockscale_gemm_sm90
    "groupwise": GemmApi(  # the same of activations in fp8; elsewhere gemm_fp8_nt_groupwise
        (FP8,),
        (
            _DEEPGEMM,
            *_of_base(
                "gemm_fp8_nt_groupwise", cutlass=(*_BLACKWELL, "12.0", "12.1"), trtllm=_BLACKWELL
            ),
            _torch("9.0"),
        ),
    ),
    "grouped": GemmApi(  # group_gemm_fp8_nt_groupwise
        (FP8,),
        (
            source.Backend(
                "cutlass",
                (*_BLACKWELL, "12.0", "12.1"),
                source.Declaration(
                    "_check_group_gemm_fp8_nt_groupwise_problem_size", "gemm/gemm_base.py"
                ),
            ),
        ),
        batched=True,
    ),
}
# Whose matrices are in fp8 with a scale for each 128 elements of a row, and for each 128 x 128 of a weight.
_SCALED = ("blockscale", "groupwise", "grouped")
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
    if p["backend"] == "router" and (p["k"], p["n"]) not in ROUTERS:
        weights = ", ".join(f"{k} by {n}" for k, n in ROUTERS)
        return f"the router's kernels are for weights of {weights}"
    if p["backend"] == "router" and p["m"] > ROUTED_ROWS:
        return f"the router's kernels take at most {ROUTED_ROWS} rows"
    if variant == "groupwise" and p["backend"] == TORCH and p["m"] == 1:
        return "cuBLAS has no product of one row whose scales are of blocks"
    if variant in _SCALED and (p["k"] % BLOCK or p["n"] % BLOCK):
        return f"blocks are of {BLOCK} elements: neither {p['n']} nor {p['k']} may have a rest"
    tile = BLOCK_ELEMENTS.get(p["dtype"], 0) * SCALE_TILE[1]
    if tile and (p["k"] % tile or p["n"] % SCALE_TILE[0]):
        return f"{variant} takes rows of whole tiles: k a multiple of {tile}, n of {SCALE_TILE[0]}"
    return source.no_backend(call.backends, p["backend"], gpu)


TUNED = {"bf16_gemm": "mm", "fp8_gemm": "bmm"}


def tuned(operation: str, runner: str, shapes: Sequence[Sequence[int]]) -> Params | None:
    """The product that FlashInfer's autotuner keeps under an operation, a runner and the shapes of its tensors."""
    variant = TUNED.get(operation)
    if variant is None or len(shapes) < 2:
        return None
    backend = next((n for n in CALLS[variant].names if runner.lower().startswith(n)), None)
    *batch, m, k = shapes[0]
    if backend is None or len(batch) > CALLS[variant].batched:
        return None
    sizes = {"m": m, "n": shapes[1][-1], "k": k, "batch": batch[0] if batch else 1}
    return {"variant": variant, "backend": backend, "dtype": CALLS[variant].dtypes[0], **sizes}


def work(p: Params) -> Work:
    """FLOPs: 2*M*N*K of each product. Bytes: both matrices and the product once, and the scales of blocks."""
    rows, n, k, kind = p["batch"] * p["m"], p["n"], p["k"], p["dtype"]
    if kind in BLOCK_ELEMENTS:
        elements, how = (rows + n) * k, "with their scales"
        moved = elements * BITS[kind] // 8 + elements // BLOCK_ELEMENTS[kind] + written(p)
    else:
        item, how = 1 if kind == FP8 else 2, "as they are given"
        wide = 2 if p["variant"] == "blockscale" else item  # activations, which it rounds itself
        scales = 4 * p["batch"] * (n // BLOCK) * (k // BLOCK) if p["variant"] in _SCALED else 0
        scales += 4 * rows * (k // BLOCK) if p["variant"] in _SCALED[1:] else 0
        moved = rows * k * wide + p["batch"] * n * k * item + written(p) + scales
    return Work(
        2 * rows * n * k, moved, f"ncuflow: 2*M*N*K; both matrices {how} and the product once"
    )


def written(p: Params) -> int:
    """Bytes of the product."""
    wide = p["backend"] == "router" and ROUTERS.get((p["k"], p["n"]), ("", False))[1]
    size: int = p["batch"] * p["m"] * p["n"] * (4 if wide else 2)
    return size


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id. The reference covers all rows, or a sample with the first and the last."""
    import torch

    inputs = Inputs(TARGET.point_id(p), seed)
    blocks = p["dtype"] in BLOCK_ELEMENTS or p["variant"] in _SCALED[1:]
    given = torch.bfloat16 if blocks else torch_dtype(p["dtype"])
    activations = torch.bfloat16 if p["variant"] == "blockscale" else given
    x = inputs.normal(p["batch"], p["m"], p["k"], dtype=activations)
    weight = inputs.normal(p["batch"], p["n"], p["k"], dtype=given)
    kind = torch.float32 if written(p) > 2 * p["batch"] * p["m"] * p["n"] else torch.bfloat16
    out = torch.empty(p["batch"], p["m"], p["n"], dtype=kind, device=x.device)
    rows = inputs.rows(p["m"], max(2, CHECKED_ROWS // p["batch"]))
    made = _CALLS[p["variant"]](p, inputs, x, weight, out)
    left, right = made.values or (x, weight)

    def expected() -> tuple[Tensor]:
        return (reference.product(gathered(left, (slice(None), rows)), right, made.scale, BLOCK),)

    def product() -> Tensor:
        return made.product()[0].view_as(out) if made.product else out

    return Launch(
        run=made.run,
        output=lambda: (product()[:, rows],),
        reference=expected,
        tolerance=ROUNDED_INSIDE if p["variant"] == "blockscale" else TOLERANCE["bf16"],
        buffers=lambda: (product(),),
        allocates=made.product is not None,
        info=source.rival(TARGET.backends, p),
    )


class Made(NamedTuple):
    """A call; the scales of the weight's blocks, or the values of both matrices where they are no tensors of their own; the
    product of the last run, where the call allocates it."""

    run: Callable[[], None]
    scale: Tensor | None = None
    values: tuple[Tensor, Tensor] | None = None
    product: Callable[[], tuple[Tensor, ...]] | None = None


def _mm(p: Params, inputs: Inputs, x: Tensor, weight: Tensor, out: Tensor) -> Made:
    import flashinfer
    import torch

    # the weight is [n, k] and passed as [k, n], which FlashInfer calls column major
    a, b, c = x[0], weight[0].T, out[0]
    if p["backend"] == TORCH:
        return Made(lambda: torch.mm(a, b, out=c))
    if p["backend"] == "router":
        routed = _of(flashinfer.gemm, ROUTERS[p["k"], p["n"]][0])
        return Made(lambda: routed(a, b, c))
    function = _of(flashinfer, "mm_bf16")
    return Made(lambda: function(a, b, out=c, backend=p["backend"]))


def _scaled(p: Params, inputs: Inputs, x: Tensor, weight: Tensor, out: Tensor) -> Made:
    """mm_fp8 and bmm_fp8, with one scale for each matrix."""
    import flashinfer
    import torch

    a, w, c = x[0], weight[0], out[0]
    one = torch.ones((), dtype=torch.float32, device=x.device)
    if p["backend"] == TORCH:
        # by fast accumulation, as FlashInfer asks
        call = partial(torch._scaled_mm, a, w.T, one, one, use_fast_accum=True)
        return Made(partial(call, out_dtype=c.dtype, out=c))
    if p["variant"] == "bmm":
        function, b = _of(flashinfer, "bmm_fp8"), weight.transpose(-2, -1)
        return Made(lambda: function(x, b, one, one, out.dtype, out=out, backend=p["backend"]))
    function = _of(flashinfer, "mm_fp8")
    return Made(lambda: function(a, w, one, c.dtype, c, backend=p["backend"]))


def _groupwise(p: Params, inputs: Inputs, x: Tensor, weight: Tensor, out: Tensor) -> Made:
    """Of matrices that were quantised before: activations by rows of 128, the weight by 128 x 128, as engines keep them."""
    import torch
    from flashinfer import gemm

    left, right = scaled(x[0], (1, BLOCK)), scaled(weight[0], (BLOCK, BLOCK))
    a, w, c = left.elements, right.elements, out[0]
    values = (left.values[None], right.values[None])
    if p["backend"] == "deepgemm":
        # its kernels read them by columns of whole fours, whatever the shape that the call's description gives
        padded = torch.zeros(p["k"] // BLOCK, -(-p["m"] // 4) * 4, device=x.device)
        padded[:, : p["m"]] = left.scales.T
        hopper = _of(gemm, "fp8_blockscale_gemm_sm90")
        return Made(lambda: hopper(a, w, padded, right.scales, out=c), values=values)
    columns = left.scales.T.contiguous()  # [k / 128, m]
    if p["backend"] == TORCH:
        call = partial(torch._scaled_mm, a, w.T, columns.T, right.scales.T)
        return Made(partial(call, out_dtype=c.dtype, out=c), values=values)
    function, settings = _of(gemm, "gemm_fp8_nt_groupwise"), {"out": c, "backend": p["backend"]}
    if p["backend"] == "cutlass":
        settings["scale_major_mode"] = "K"
        return Made(lambda: function(a, w, left.scales, right.scales, **settings), values=values)
    turned = right.scales.T.contiguous()
    return Made(lambda: function(a, w, columns, turned, **settings), values=values)


def _grouped(p: Params, inputs: Inputs, x: Tensor, weight: Tensor, out: Tensor) -> Made:
    import torch
    from flashinfer import gemm

    function = _of(gemm, "group_gemm_fp8_nt_groupwise")
    left, right = scaled(x, (1, BLOCK)), scaled(weight, (BLOCK, BLOCK))
    first = torch.arange(p["batch"] + 1, dtype=torch.int32, device=x.device) * p["m"]
    rows, scales, result = (t.flatten(0, 1) for t in (left.elements, left.scales, out))
    call = partial(function, rows, right.elements, scales, right.scales, first)
    values = (left.values, right.values)
    return Made(partial(call, scale_major_mode="K", out=result), values=values)


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
    return Made(partial(function, a.elements, w.elements.T, *scales, **settings), values=values)


def _segment(p: Params, inputs: Inputs, x: Tensor, weight: Tensor, out: Tensor) -> Made:
    import torch
    from flashinfer import SegmentGEMMWrapper

    if p["backend"] == TORCH:
        ends = torch.arange(1, p["batch"] + 1, dtype=torch.int32, device=x.device) * p["m"]
        given = (x.flatten(0, 1), weight.transpose(-2, -1))
        run, product = returning(partial(torch._grouped_mm, *given, offs=ends))
        return Made(run, product=product)
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.int8, device=x.device)
    wrapper = SegmentGEMMWrapper(workspace, backend=p["backend"])
    whole: dict[str, Any] = {"dtype": torch.int64, "device": x.device}
    first = torch.arange(p["batch"] + 1, **whole) * p["m"]
    chosen = torch.arange(p["batch"], **whole)
    settings = {"out": out.flatten(0, 1), "seg_indptr": first, "weight_indices": chosen}
    return Made(partial(wrapper.run, x.flatten(0, 1), weight, p["batch"], True, **settings))


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
    "mm_fp8": _scaled,
    "groupwise": _groupwise,
    "grouped": _grouped,
    "mm_mxfp8": _blocks,
    "mm_fp4": _blocks,
    "bmm": _scaled,
    "segment": _segment,
    "blockscale": _blockscale,
}


def _of(module: Any, name: str) -> Callable[..., Any]:
    """A function of FlashInfer's, which not every version has."""
    found: Callable[..., Any] | None = getattr(module, name, None)
    if found is None:
        raise NotHereError(f"this FlashInfer has no {name}")
    return found


GENERATORS = {
    "router": "dsv3_optimizations.gen_dsv3_router_gemm_module",
    "tinygemm": "tinygemm2.gen_tinygemm2_module",
    "cublaslt": "gemm.gen_mm_bf16_cublaslt_module",
    "cutlass": "gemm.gen_gemm_sm100_module_cutlass_bf16",
    "cublas": "gemm.gen_gemm_module",
    "sm80": "gemm.gen_gemm_module",
    "sm90": "gemm.gen_gemm_sm90_module",
    "deepgemm": "gemm.gen_fp8_blockscale_gemm_sm90_module",
}


def modules(p: Params) -> list[Any]:
    """JIT modules of the point; needs FlashInfer and an arch list, but no GPU. cuDNN builds its own at the first call,
    and of products in blocks each GPU has another."""
    module, _, name = GENERATORS.get(p["backend"], "").rpartition(".")
    if p["dtype"] in BLOCK_ELEMENTS or not name:
        return []
    found = import_module(f"flashinfer.jit.{module}")
    generate = getattr(found, name, None) or getattr(getattr(found, "core", None), name, None)
    return [generate()] if generate else []


def _called(variant: str, a: Params) -> Block:
    """The point that an engine called of FlashInfer's, by its arguments; two elements of 4 bits are a byte."""
    left, right = (a[name] if name in a else a[name.upper()] for name in ("a", "b"))
    (dtype,) = CALLS[variant].dtypes
    if dtype == NVFP4 and a.get("block_size", BLOCK_ELEMENTS[NVFP4]) != BLOCK_ELEMENTS[NVFP4]:
        raise RefusedError("blocks of another size than NVFP4's are measured by no target")
    if dtype in ("bf16", FP8) and element(left) != dtype:
        raise RefusedError(f"{variant} of {element(left)} is measured by no target")
    batch, (m, k) = left.shape[:-2], left.shape[-2:]
    found = {
        "variant": variant,
        "m": m,
        "n": right.shape[-1],
        "k": k * (1 + (dtype == NVFP4)),
        "dtype": dtype,
    }
    if batch and batch[0] > 1:
        found["batch"] = batch[0]
    return found | ({"backend": a["backend"]} if a.get("backend") in CALLS[variant].names else {})


_ENGINE_CALLS = (
    *workload.PRODUCT_CALLS,
    EngineCall("flashinfer.gemm.gemm_base", "bmm_fp8", partial(_called, "bmm"), tells=("A", "B", "backend")),
    *(
        EngineCall(
            "flashinfer.gemm.gemm_base", name, partial(_called, variant), tells=("a", "b", "block_size", "backend")
        )
        for name, variant in (("mm_bf16", "mm"), ("mm_mxfp8", "mm_mxfp8"), ("mm_fp4", "mm_fp4"))
    ),
)  # fmt: skip

# A library's call may take the host much longer for the same kernels.
_CALLED = ("time_cold_us", "host_launch_us")

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
    # where FlashInfer's default is among those that are measured; a router's kernels are calls of their own
    free=lambda p: (
        {"backend": one.default}
        if (one := CALLS[p["variant"]]).default in one.names and p["backend"] != "router"
        else {}
    ),
    resolves=lambda p, _: (
        {"backend": default}
        if (default := CALLS[p["variant"]].default) and p["backend"] != "router"
        else {}
    ),
    asked=lambda p: {"run": {"backend": p["backend"]}},
    tuned=tuned,
    backends=tuple(dict.fromkeys(one for call in CALLS.values() for one in call.backends)),
    # cuBLAS does; of the others no trace tells
    stops_tracing=lambda p: True if p["backend"].startswith(("cublas", TORCH)) else None,
    memory=lambda p: 4 * work(p).bytes + WORKSPACE_BYTES,  # float32 copies of the reference
    work=work,
    written=written,
    prepare=prepare,
    workload=Workload(calls=_ENGINE_CALLS),
    rules=Rules(operators=workload.products),
    build=source.Build(
        generate=modules, jit=(source.Jit("gemm", "flashinfer.gemm.gemm_base:get_gemm_module"),)
    ),
    source=source.Source(
        api={
            "python": "flashinfer.gemm.mm_bf16",
            "python_bmm": "flashinfer.gemm.bmm_fp8",
            "python_mxfp8": "flashinfer.gemm.mm_mxfp8",
            "python_fp4": "flashinfer.gemm.mm_fp4",
            "python_segment": "flashinfer.gemm.SegmentGEMMWrapper",
            "python_blockscale": "flashinfer.gemm.fp8_blockscale_gemm_sm90",
            "python_groupwise": "flashinfer.gemm.gemm_fp8_nt_groupwise",
            "python_grouped": "flashinfer.gemm.group_gemm_fp8_nt_groupwise",
            "python_fp8": "flashinfer.gemm.mm_fp8",
            "python_router": "flashinfer.gemm.mm_M1_16_K7168_N256",
            "jit": "flashinfer.jit.gemm.core.gen_gemm_module",
            "binding": "csrc/flashinfer_gemm_binding.cu",
        },
        kernels=(  # the libraries' kernels have names of their own
            source.Symbol("tinygemm_kernel", ""),
            source.Symbol("device_kernel", ""),
            source.Symbol("fp8_gemm_kernel", ""),
            source.Symbol("router_gemm_kernel", "gemm/dsv3_router_gemm.cuh"),
        ),
        sources=("bmm_fp8.cu", "group_gemm.cu", "flashinfer_gemm_binding.cu"),
    ),
    compared=(
        Choice("gemm_cudnn", "cuBLASLt or cuDNN", "backend", "cublaslt", "cudnn"),
        Choice(
            "gemm_tiny", "cuBLASLt or tinygemm", "backend", "cublaslt", "tinygemm", metrics=_CALLED
        ),
        Choice("gemm_fp8_cudnn", "cuBLAS or cuDNN, fp8", "backend", "cublas", "cudnn"),
        Choice(
            "gemm_segment", "Segments by Hopper's or Ampere's kernel", "backend", "sm90", "sm80"
        ),
        Choice(
            "gemm_router",
            "tinygemm, or the router's own with PDL and in float32",
            "backend",
            "tinygemm",
            "router",
            metrics=_CALLED,
        ),
        Choice(
            "gemm_torch", "cuBLASLt, or torch.mm", "backend", "cublaslt", TORCH, metrics=_CALLED
        ),
        Choice(
            "gemm_fp8_torch",
            "FlashInfer's cuBLAS, or torch._scaled_mm",
            "backend",
            "cublas",
            TORCH,
            metrics=_CALLED,
        ),
        Choice(
            "gemm_groupwise_torch",
            "DeepGEMM, or torch._scaled_mm",
            "backend",
            "deepgemm",
            TORCH,
            metrics=_CALLED,
        ),
        Choice("gemm_segment_torch", "Segments, or torch._grouped_mm", "backend", "sm90", TORCH),
        Choice(
            "gemm_quantised",
            "Activations rounded by the call, or before it, untimed",
            "variant",
            "blockscale",
            "groupwise",
        ),
        Choice(
            "gemm_fp8",
            "16 bits or 8, by cuBLAS",
            "dtype",
            "bf16",
            FP8,
            where="variant in ('mm', 'mm_fp8', 'bmm') and backend in ('cublaslt', 'cublas')",
            ignoring=("variant", "backend"),
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
)
