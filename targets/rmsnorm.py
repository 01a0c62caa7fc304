"""RMS normalisation: alone, fused with the residual add, after a separate add, and its kin.

Kin: Gemma's, whose weight is added to one; to fp8 with a scale; and layer normalisation, in bf16 alone."""

import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import ceil, gcd, inf, prod
from typing import Any

from ncuflow.target import contract, reference
from ncuflow.target.inputs import (
    DTYPES,
    ITEMSIZE,
    TINY,
    TOLERANCE,
    TORCH_DTYPES,
    tiny,
    torch_dtype,
)
from ncuflow.target.launch import (
    TYPES,
    GpuFacts,
    Host,
    Inputs,
    Launch,
    LaunchConfig,
    LaunchSignature,
    NoRuleError,
    Params,
    Rules,
    Tensor,
    UnsaidError,
    returning,
)
from ncuflow.target.source import (
    Backend,
    Build,
    Constant,
    CuteKernel,
    Jit,
    Source,
    Symbol,
    Tunable,
    rival,
    symbols,
)
from ncuflow.target.workload import Block, Definition, EngineCall, Entry, Routine, Workload, element

EPSILON = 1e-6
CHECKED_ELEMENTS = 1 << 27  # of a tensor, compared with the reference
_DEFAULTS: dict[str, bool] = {}  # whether FlashInfer would take its CUDA norms by itself
SCALE = 0.02  # of fp8 outputs: their largest value is 448
QUANTISED = 5e-2  # relative L2 error allowed in fp8: its 3 bits of mantissa round by 2.6e-2
TORCH = "torch"  # plain torch, by torch.compile
_RIVALS = (Backend(TORCH, rival=("torch", "triton")),)
_FREE = {"norm": "auto", "pdl": "auto"}  # what a caller chooses, by FlashInfer's default
_READ = Symbol("FLASHINFER_USE_CUDA_NORM", "norm/__init__.py")
# variant -> (name in the id, tensors of rows*hidden read and written, FLOPs per element)
_VARIANTS = {
    "rmsnorm": ("rmsnorm", 2, 5),
    "fused_add_rmsnorm": ("fused_add", 4, 6),
    "add_then_rmsnorm": ("add_then_rmsnorm", 5, 6),
    "gemma_rmsnorm": ("gemma_rmsnorm", 2, 6),
    "gemma_fused_add_rmsnorm": ("gemma_fused_add", 4, 7),
    "rmsnorm_quant": ("rmsnorm_quant", 1, 6),  # and one of fp8
    "layernorm": ("layernorm", 2, 8),
}
# Variants whose name is that of FlashInfer's benchmark and definition.
_TAKEN = _VARIANTS.keys() - {"add_then_rmsnorm", "layernorm"}


def point_id(p: Params) -> str:
    """E.g. fused_add_R4096_D4096_f16."""
    label = _VARIANTS[p["variant"]][0]
    knobs = "" if p["norm"] == "auto" else f"_{p['norm']}"
    knobs += "_nopdl" if p["pdl"] == "off" else ""
    return f"{label}_R{p['rows']}_D{p['hidden']}_{p['dtype']}{knobs}"


def work(p: Params) -> contract.Work:
    """FLOPs and bytes, as FlashInfer counts them.

    rmsnorm moves 2*R*D + D elements and does 5 FLOPs per element; the fused add moves 4*R*D + D and
    does 6. The separate add moves 3*R*D more than rmsnorm: 5*R*D + D. Gemma's weight costs one
    addition more, as does a scale; fp8 is written as one byte per element; the weight and bias of the layer
    normalisation are float32, and it subtracts a mean and adds a bias.
    """
    _, tensors, flops = _VARIANTS[p["variant"]]
    elements, hidden = p["rows"] * p["hidden"], p["hidden"]
    moved = (tensors * elements + hidden) * ITEMSIZE[p["dtype"]]
    note = ""
    if p["variant"] == "rmsnorm_quant":
        moved, note = moved + elements + 4, ", R*D bytes of fp8, a float32 scale"
    elif p["variant"] == "layernorm":
        moved += 2 * hidden * 4 - hidden * ITEMSIZE[p["dtype"]]
        note = ", weight and bias in float32"
    return contract.Work(
        flops=flops * elements,
        bytes=moved,
        convention=f"FlashInfer: {tensors}*R*D + D elements{note}, {flops} FLOPs per element",
    )


def written(p: Params) -> int:
    """What the kernels write; of the separate add also what the norm reads again."""
    _, tensors, _ = _VARIANTS[p["variant"]]
    inputs = 2 if "add" in p["variant"] else 1
    quantised = 1 if p["variant"] == "rmsnorm_quant" else 0
    return int(p["rows"] * p["hidden"]) * ((tensors - inputs) * ITEMSIZE[p["dtype"]] + quantised)


def unable(p: Params, gpu: GpuFacts) -> str | None:
    """Why no GPU runs the point; None if one can."""
    if p["norm"] == TORCH and (p["pdl"] == "off" or p["variant"] not in _CUTE):
        return "torch.compile is measured of rmsnorm and fused_add_rmsnorm, which have no dependent launch there"
    if p["variant"] == "layernorm" and p["dtype"] != "bf16":
        return "FlashInfer's layernorm takes bf16 alone"
    if p["variant"] == "layernorm" and p["pdl"] == "off":
        return "FlashInfer's layernorm has no setting of dependent launch"
    return None


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id.

    The variants with an add grow the residual a little with each run, by about one standard
    deviation: fp16 stays finite for thousands of runs, and ``reset`` restores it. The reference
    covers all rows, or a random sample of CHECKED_ELEMENTS with the first and last row.
    """
    inputs = Inputs(TARGET.point_id(p), seed)
    variant, dtype = p["variant"], torch_dtype(p["dtype"])
    x, residual = (inputs.normal(p["rows"], p["hidden"], dtype=dtype) for _ in range(2))
    weight = inputs.normal(p["hidden"], dtype=dtype) * 0.05 + 1  # near 1, so that nothing runs away
    rows = inputs.rows(p["rows"], max(2, CHECKED_ELEMENTS // p["hidden"]))
    changed = (x, residual) if "fused" in variant else (residual,) if "add" in variant else ()
    kept = [tensor.clone() for tensor in changed]
    own = p["norm"] == TORCH  # which returns its outputs, and changes nothing
    if own:
        run, buffers = returning(_compiled(variant, x, residual, weight))
        implementation = "torch.compile"
    else:
        call, given = _call(p, x, residual, weight)
        run, implementation = _implemented(p, call)
        buffers = partial(tuple, given)

    def reset() -> None:
        for now, then in zip(changed, kept, strict=True):
            now.copy_(then)

    def expected() -> tuple[Tensor, ...]:
        first, *others = kept if len(kept) == 2 else [x, *kept]
        total = first[rows].float()
        for other in others:
            total = total + other[rows].float()
        if variant == "layernorm":
            return (reference.layernorm(total, weight.float(), weight.float() - 1, EPSILON),)
        gain = weight.float() + 1 if variant.startswith("gemma") else weight
        normed = reference.rmsnorm(total, gain, EPSILON)
        if variant == "rmsnorm_quant":
            return (normed / SCALE,)
        return (normed, total) if kept else (normed,)

    return Launch(
        run=run,
        output=lambda: tuple(buffer[rows] for buffer in buffers()),
        reference=expected,
        tolerance=QUANTISED if variant == "rmsnorm_quant" else TOLERANCE[p["dtype"]],
        buffers=buffers,
        allocates=own or variant == "layernorm",
        reset=reset if kept and not own else None,
        info={"implementation": implementation} | rival(_RIVALS, p),
        # what an add runs on is restored before each run; of 8 bits none is infinite; no other row is the worse for it
        extremes={}
        if kept or variant == "rmsnorm_quant"
        else {TINY: lambda: tiny(x[0]), "an infinity in a row": lambda: x[0, 0].fill_(inf)},
    )


def _implemented(p: Params, run: Callable[[], None]) -> tuple[Callable[[], None], str]:
    """(``run`` by the implementation that the point names, what that is: CuTe DSL or CUDA).

    FlashInfer reads FLASHINFER_USE_CUDA_NORM once, into a variable that its calls look at: a point
    sets it before each call, so that both implementations run in one process.
    """
    from flashinfer import norm

    if not hasattr(norm, "_USE_CUDA_NORM"):  # before 0.6 there is CUDA alone
        return run, "CUDA"
    _DEFAULTS.setdefault("cuda", norm._USE_CUDA_NORM)
    cuda = p["norm"] == "cuda" or _DEFAULTS["cuda"]

    def chosen() -> None:
        norm._USE_CUDA_NORM = cuda
        run()

    return chosen, "CUDA" if cuda else "CuTe DSL"


def _compiled(
    variant: str, x: Tensor, residual: Tensor, weight: Tensor
) -> Callable[[], tuple[Tensor, ...]]:
    """What one would write in torch, its sums in float32, compiled by torch; it returns what ``_call`` writes."""
    import torch

    def norm(x: Tensor, residual: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        total = x.float() + residual.float() if "fused" in variant else x.float()
        scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + EPSILON)
        normed = (total * scale * weight.float()).to(x.dtype)
        return (normed, total.to(x.dtype)) if "fused" in variant else (normed,)

    return partial(torch.compile(norm, dynamic=False, fullgraph=True), x, residual, weight)


def _call(
    p: Params, x: Tensor, residual: Tensor, weight: Tensor
) -> tuple[Callable[[], Any], Sequence[Tensor]]:
    """(The call of a variant, the buffers that it writes: normed, and the sum where one is added)."""
    import flashinfer
    import torch
    from flashinfer import norm

    variant, settings = p["variant"], {"enable_pdl": False} if p["pdl"] == "off" else {}
    if variant == "layernorm":
        gain, bias, last = weight.float(), weight.float() - 1, [residual]

        def layernorm() -> None:
            last[0] = norm.layernorm(x, gain, bias, EPSILON)

        return layernorm, last
    if variant == "rmsnorm_quant":
        out = torch.empty_like(x, dtype=torch.float8_e4m3fn)
        scale = torch.full((1,), SCALE, dtype=torch.float32, device=x.device)
        return lambda: norm.rmsnorm_quant(out, x, weight, scale, EPSILON, **settings), (out,)
    function = getattr(flashinfer, variant.removeprefix("add_then_"))
    if "fused" in variant:
        return lambda: function(x, residual, weight, EPSILON, **settings), (x, residual)
    out = torch.empty_like(x)
    if variant != "add_then_rmsnorm":
        return lambda: function(x, weight, EPSILON, out=out, **settings), (out,)

    def separate() -> None:
        residual.add_(x)
        function(residual, weight, EPSILON, out=out, **settings)

    return separate, (out, residual)


_SEEN = {"RMSNormKernel": "rmsnorm", "FusedAddRMSNormKernel": "fused_add_rmsnorm"}


def shapes(seen: LaunchSignature) -> Iterator[Params]:
    """Of the CUDA norms: a block a row; the fused one has the row in shared memory, of the other only its threads tell it."""
    variant = _SEEN.get(seen.kernel)
    if variant is None:
        raise UnsaidError("no rule tells the shape of this norm from its launch")
    vec, warps, rows = seen.number("VEC_SIZE"), seen.block[1], seen.grid[0]
    said = {"variant": variant, "rows": rows, **seen.dtype, "norm": "cuda"}
    known = seen.sure("hidden")
    if variant == "fused_add_rmsnorm" and seen.shared is not None:
        found = [seen.shared // 4 - 4 * ceil(warps / 4)]
    elif warps < 32:
        found = [*range(vec * (32 * (warps - 1) + 1), vec * 32 * warps + 1, vec)]
    else:
        found = [known] if known else []
    if known in found:
        found = [known]  # of what would launch so, the model's own
    if not found:
        raise UnsaidError("a block of 1024 threads has rows of any length from 7944 on", said)
    for hidden_size in found:
        yield {**said, "hidden": hidden_size}


def tells(p: Params) -> dict[str, int]:
    """A fused norm has the step's tokens, whole."""
    if p.get("variant") != "fused_add_rmsnorm":
        return {}
    return {"tokens": p["rows"]} | ({"hidden": p["hidden"]} if "hidden" in p else {})


def operators(name: str, shapes: Sequence[Sequence[int]], types: Sequence[str]) -> Params | None:
    """Of vLLM's and torch's norms: _C::rms_norm, _C::fused_add_rms_norm, aten::rms_norm."""
    called = name.split("::")[-1]
    variant = {"fused_add_rms_norm": "fused_add_rmsnorm", "rms_norm": "rmsnorm"}.get(called)
    whole = [shape for shape in shapes if len(shape) >= 2]
    if variant is None or not whole:
        return None
    *rows, hidden = whole[0]
    dtype = TORCH_DTYPES.get(types[0]) if types else None
    said = {"variant": variant, "rows": prod(rows), "hidden": hidden}
    return said | ({"dtype": dtype} if dtype in ITEMSIZE else {})


# What CuTe DSL compiles in place of the CUDA norms: variant, which is FlashInfer's module as well -> class.
_CUTE = {variant: kernel for kernel, variant in _SEEN.items()}
_CUTE_LONGEST = 187  # characters of a kernel's name before its number
_CUTE_NAME = re.compile(
    r"kernel_cutlass_kernel_flashinfernormkernels[a-z_]*?(?P<kind>[A-Z]\w*?Kernel)_object_at_"
    r"_tensorptr(?P<dtype>b?f16)gmemalign\d+oi64(?P<sizes>\d+)_"
)
# Longest row of such a norm -> threads that share a row; 256 beyond.
_ROW_THREADS = ((64, 8), (128, 16), (3072, 32), (6144, 64), (16384, 128))


def launches(p: Params, host: Host) -> Iterator[LaunchConfig | None]:
    """Of RMSNorm and FusedAddRMSNorm, and PyTorch's kernel of a separate add."""
    if p["norm"] == TORCH:
        raise NoRuleError("no rule says what torch.compile launches")
    if host.modern and p["norm"] == "auto":
        yield _launch_of_cute(p, host)
    else:
        yield _launch_of_cuda(p)
    if p["variant"] == "add_then_rmsnorm":
        yield None


def _launch_of_cuda(p: Params) -> LaunchConfig:
    item, hidden = ITEMSIZE[p["dtype"]], p["hidden"]
    vec = gcd(16 // item, hidden)
    warps = ceil(min(1024, hidden // vec) / 32)
    fused = p["variant"] == "fused_add_rmsnorm"
    shared = 4 * (4 * ceil(warps / 4) + hidden) if fused else 4 * warps
    name = f"flashinfer::norm::{'FusedAdd' * fused}RMSNormKernel<{vec}, {TYPES[p['dtype']]}>"
    return LaunchConfig(name, (p["rows"], 1, 1), (32, warps, 1), shared)


def _launch_of_cute(p: Params, host: Host) -> LaunchConfig:
    """A norm of CuTe DSL, which takes the place of the CUDA one wherever the package is installed, on sm_80 too.

    Several rows share a block; they are in shared memory, with the residual where one is added, if a block may
    have twice as much. Raises KeyError for a row so long that a cluster of blocks shares it.
    """
    kernel, item, hidden = _cute_variant(p), ITEMSIZE[p["dtype"]], p["hidden"]
    if kernel is None:
        raise KeyError(f"the CuTe DSL kernel of {p['variant']}")
    lanes = next((n for most, n in _ROW_THREADS if hidden <= most), 256)
    threads = 128 if hidden <= 16384 else 256
    rows, vec = threads // lanes, gcd(16 // item, hidden)
    fused = kernel == "fused_add_rmsnorm"
    tile = (1 + fused) * rows * vec * ceil(hidden / vec / lanes) * lanes * item
    sums = rows * max(lanes // 32, 1) * 4
    most, half = host.gpu.shared_block, host.gpu.shared_block // 2
    capability = host.gpu.compute_capability
    if float(capability) >= 9 and tile + sums > (half if fused else most):
        raise KeyError(f"the clusters of a norm of {hidden} elements")
    name = cute_name(kernel, p["dtype"], hidden, _dependent(p, capability))
    shared = sums + (tile if tile <= half else 0)
    return LaunchConfig(name, (ceil(p["rows"] / rows), 1, 1), (threads, 1, 1), shared)


def cute(p: Params, capability: str) -> CuteKernel | None:
    """The kernel of CuTe DSL that a point runs where it is installed."""
    variant, hidden = _cute_variant(p), p["hidden"]
    if variant is None:
        return None
    pdl = _dependent(p, capability)
    return CuteKernel(
        "norm_cute_dsl",
        f"{variant}_{p['dtype']}_{hidden}" + "_pdl" * pdl,
        f"flashinfer.norm.kernels.{variant}:_get_compiled_{variant}_kernel",
        (DTYPES[p["dtype"]], hidden, 0.0, pdl),
    )


def _cute_variant(p: Params) -> str | None:
    """Which of _CUTE a point runs; None where another kernel does."""
    variant = "rmsnorm" if p["variant"] == "add_then_rmsnorm" else p["variant"]
    return variant if p["norm"] == "auto" and variant in _CUTE else None


def _dependent(p: Params, capability: str) -> bool:
    """Whether it is compiled for dependent launch: where the GPU has it, from 9.0 on, and it was not turned off."""
    return p["pdl"] != "off" and float(capability) >= 9


def cute_name(variant: str, dtype: str, hidden: int, pdl: bool) -> str:
    """The kernel's name as CuTe DSL makes it of the types of its arguments, and cuts it off."""
    rows = f"tensorptr{dtype}gmemalign{gcd(128, hidden * ITEMSIZE[dtype])}oi64{hidden}{hidden}1"
    weight = f"tensorptr{dtype}gmemalign16o{hidden}1"
    tensors = (rows, weight, rows) if variant == "rmsnorm" else (rows, rows, weight)
    whole = f"kernel_cutlass_kernel_flashinfernormkernels{variant}{_CUTE[variant]}_object_at__{'_'.join(tensors)}___{pdl}"
    return f"{whole[:_CUTE_LONGEST]}_0"


def described(kernel: str) -> str | None:
    """E.g. "RMSNormKernel (CuTe DSL, f16, 4096)" for such a name; None for another."""
    found = _CUTE_NAME.match(kernel)
    if found is None:
        return None
    twice = found["sizes"][:-1]
    return f"{found['kind']} (CuTe DSL, {found['dtype']}, {twice[: len(twice) // 2]})"


def takes(entry: Entry) -> Block | None:
    """A case of a workload as a block of the sweep; None for one of another kernel."""
    match entry:
        case Routine(name) if name in _TAKEN:
            rows = entry.number("batch_size") * entry.number("num_heads", 1)
            block = {"variant": name, "rows": rows, "hidden": entry.number("hidden_size")}
            return block | {"dtype": entry.dtype("input_dtype")}
        case Definition(kind, {"h": hidden}) if kind in _TAKEN:
            block = {"variant": kind, "hidden": hidden, "dtype": entry.element}
            return block | entry.counted(rows="batch_size")
    return None


def _in_each(pattern: str) -> tuple[Constant, ...]:
    """The place of a constant in each launcher of the CUDA norms with one block a row."""
    alone, fused = (("RMSNorm", "RMSNormQuant"), ("FusedAddRMSNorm", "FusedAddRMSNormQuant"))
    launchers = (*alone, *fused, "GemmaRMSNorm", "GemmaFusedAddRMSNorm")
    return tuple(Constant("data/include/flashinfer/norm.cuh", name, pattern) for name in launchers)


def _called(variant: str, a: Params) -> Block:
    """The point that an engine called, by its arguments."""
    hidden = a["input"].shape[-1]
    rows = a["input"].numel() // hidden
    return {"variant": variant, "rows": rows, "hidden": hidden, "dtype": element(a["input"])}


TARGET = contract.Target(
    name="rmsnorm",
    title="RMSNorm and fused add RMSNorm",
    heading="RMSNorm Kernel",
    order=3,
    parameters={
        "variant": tuple(_VARIANTS),  # add_then_rmsnorm: torch add, then norm
        "rows": 4096,
        "hidden": 4096,
        "dtype": tuple(ITEMSIZE),
        "norm": ("auto", "cuda", TORCH),  # FlashInfer's choice: CuTe DSL where that is installed
        "pdl": ("auto", "off"),  # programmatic dependent launch: where the GPU has it
    },
    small={"rows": 64},
    id=point_id,
    unable=unable,
    # one row; elements that no vector divides; a row longer than a block's first vectors
    edges=lambda p: [{"rows": 1}, {"rows": 3, "hidden": 4095}, {"rows": 3, "hidden": 16384}],
    memory=lambda p: 2 * work(p).bytes,
    free=lambda p: dict(_FREE),
    backends=_RIVALS,
    asked=lambda p: (
        {"call": {"enable_pdl": False} if p["pdl"] == "off" else {}}
        | ({"environment": {_READ.name: "1"}} if p["norm"] == "cuda" else {})
    ),
    # a kernel of the CuTe DSL is one that nsys does not record
    stops_tracing=lambda p: None if p["norm"] == "auto" else False,
    work=work,
    written=written,
    prepare=prepare,
    part=lambda p: (  # before attention and before the feed-forward network
        contract.StepPart("norm", tokens=p["rows"], hidden=p["hidden"], per_layer=2)
        if p["variant"] == "fused_add_rmsnorm"
        else None
    ),
    workload=Workload(
        takes=takes,
        calls=tuple(
            EngineCall("flashinfer.norm", variant, partial(_called, variant), tells=("input",))
            for variant in sorted(_TAKEN - {"rmsnorm_quant"})
        ),
    ),
    rules=Rules(
        launches=launches, described=described, shapes=shapes, tells=tells, operators=operators
    ),
    build=Build(
        early=True,
        cute=cute,
        # the CUDA module also where the CuTe DSL is installed
        jit=(
            Jit(
                "rmsnorm",
                "flashinfer.norm:get_norm_module",
                environ={"FLASHINFER_USE_CUDA_NORM": "1"},
            ),
        ),
    ),
    source=Source(
        api={
            "python": "flashinfer.norm.rmsnorm",
            "python_fused": "flashinfer.norm.fused_add_rmsnorm",
            "python_gemma": "flashinfer.norm.gemma_rmsnorm",
            "python_quant": "flashinfer.norm.rmsnorm_quant",
            "python_layernorm": "flashinfer.norm.layernorm",
            "jit": "flashinfer.jit.norm.gen_norm_module",
            "binding": "csrc/norm.cu",
        },
        kernels=symbols("norm.cuh", *_SEEN, "RMSNormQuantKernel", "generalLayerNorm"),
        files={  # of the CuTe DSL
            "RMSNormKernel": "norm/kernels/rmsnorm.py",
            "RMSNormQuantKernel": "norm/kernels/rmsnorm.py",
            "FusedAddRMSNormKernel": "norm/kernels/fused_add_rmsnorm.py",
            "LayerNormKernel": "norm/kernels/layernorm.py",
        },
        sources=("norm.cu", "flashinfer_norm_binding.cu"),
        tunables=(
            Tunable(
                "threads",
                _in_each(r"block_size = std::min<uint32_t>\((\d+), d / vec_size\)"),
                (512, 256, 128),
                where="variant != 'layernorm'",
            ),
            # 16 is what a thread reads at once; of 32 it reads two such, one after the other
            Tunable(
                "vector_bytes",
                _in_each(r"vec_size = std::gcd\((\d+) / sizeof\(T\), d\)"),
                (32, 8),
                where="variant != 'layernorm'",
            ),
        ),
    ),
    compared=(
        contract.Choice(
            "fused",
            "Separate add and norm, or fused",
            "variant",
            "add_then_rmsnorm",
            "fused_add_rmsnorm",
            metrics=contract.CALL_TIMES,
        ),
        contract.Choice(
            "gemma",
            "Weight, or Gemma's weight added to one",
            "variant",
            "rmsnorm",
            "gemma_rmsnorm",
            given="model",
        ),
        contract.Choice(
            "norm_quant", "Output in half precision or fp8", "variant", "rmsnorm", "rmsnorm_quant"
        ),
        contract.Choice(
            "layernorm", "RMSNorm or LayerNorm", "variant", "rmsnorm", "layernorm", given="model"
        ),
        contract.Choice(
            "norm_torch",
            "FlashInfer's choice, or torch.compile",
            "norm",
            "auto",
            TORCH,
            metrics=("time_cold_us", "host_launch_us"),
        ),
        contract.Choice(
            "norm",
            "FlashInfer's choice or the CUDA kernels",
            "norm",
            "auto",
            "cuda",
            of_kernels=True,
            metrics=contract.CALL_TIMES,
        ),
        contract.Choice("norm_dtype", "fp16 or bf16", "dtype", "f16", "bf16", given="model"),
        contract.dependent_launch("norm_pdl"),
    ),
)
