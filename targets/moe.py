"""Mixture of experts: each token's rows through the gate, up and down projections of the experts that it was given.

A step reads the weights of every expert that has a token, so that a few tokens cost as many bytes as a thousand. ``spread`` says
how tokens fall on experts.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from ncuflow.target import reference, source
from ncuflow.target.contract import Choice, Target, Work
from ncuflow.target.inputs import FP8, TOLERANCE, scaled
from ncuflow.target.launch import GpuFacts, Inputs, Launch, NotHereError, Params, Rules, Tensor
from ncuflow.target.workload import OPEN, Block, EngineCall, RefusedError, Workload, element

BLOCK = 128  # elements of a row, and rows of a weight, that share a scale in fp8
# Activations are rounded to fp8 before each product, by up to 6 %, 3 % in the mean square: once more than of a single product.
ROUNDED_INSIDE = 6e-2
MONO = {"experts": 256, "hidden": 2048, "intermediate": 512}  # the one shape of mono_moe
MONO_TOKENS = 8
TORCH = "torch"
ITEMS = {"bf16": 2, FP8: 1}  # bytes of an element of the weights
_BF16, _BOTH = ("bf16",), tuple(ITEMS)
_TUNED = ("cutlass", "cute-dsl")  # of which FlashInfer's tuner chooses tactics


class Engine(NamedTuple):
    """Who computes the layer, and the types of weights that it takes."""

    backend: source.Backend
    dtypes: tuple[str, ...]


ENGINES = {
    one.backend.name: one
    for one in (
        Engine(source.Backend("cutlass", ("8.9", "9.0", "10.0", "10.3", "12.0", "12.1")), _BOTH),
        Engine(
            source.Backend(
                "mono",
                ("9.0",),
                source.Declaration("_check_mono_moe_supported", "fused_moe/monomoe.py"),
            ),
            (FP8,),
        ),
        Engine(
            source.Backend(
                "cute-dsl",
                ("9.0",),
                source.Declaration(
                    "cute_dsl_fused_moe_bf16", "fused_moe/cute_dsl/sm90_fused_moe.py"
                ),
                downloaded=True,  # headers of its sort
            ),
            _BF16,
        ),
        Engine(source.Backend("trtllm-gen", ("10.0", "10.3"), downloaded=True), (FP8,)),
        Engine(source.Backend(TORCH, ("9.0", "10.x"), rival=("torch", "nvidia-cublas")), _BF16),
    )
}


def point_id(p: Params) -> str:
    """E.g. cutlass_T16_E8k2_H4096_I14336_bf16_zipf."""
    shape = f"E{p['experts']}k{p['top_k']}_H{p['hidden']}_I{p['intermediate']}_{p['dtype']}"
    tuned = "_tuned" if p["tactics"] == "tuned" else ""
    return f"{p['backend'].replace('-', '_')}_T{p['tokens']}_{shape}_{p['spread']}{tuned}"


def unable(p: Params, gpu: GpuFacts) -> str | None:
    """Why this GPU cannot run the point; None if it can."""
    name, engine = p["backend"], ENGINES[p["backend"]]
    if p["top_k"] > p["experts"]:
        return f"{p['experts']} experts are fewer than the {p['top_k']} of a token"
    if p["dtype"] not in engine.dtypes:
        return f"{name} is measured with weights of {' or '.join(engine.dtypes)}, not {p['dtype']}"
    if p["dtype"] == FP8 and (p["hidden"] % BLOCK or p["intermediate"] % BLOCK):
        return f"blocks are of {BLOCK} elements: no size may have a rest"
    if name == "mono" and any(p[key] != value for key, value in MONO.items()):
        return "mono_moe has one shape: " + ", ".join(f"{key} {n}" for key, n in MONO.items())
    if name == "mono" and p["tokens"] > MONO_TOKENS:
        return f"mono_moe takes at most {MONO_TOKENS} tokens"
    if p["tactics"] == "tuned" and name not in _TUNED:
        return f"of {name} the tuner chooses nothing here"
    refused = source.no_backend([engine.backend], name, gpu)
    if refused is None and name == "cutlass" and p["dtype"] == FP8:
        its = str(gpu["compute_capability"])
        return (
            None if its == "9.0" else f"fp8 by blocks is CUTLASS's on 9.0 alone, this GPU has {its}"
        )
    return refused


def counts(p: Params) -> list[int]:
    """Tokens of each expert: as even as it goes, by Zipf's law (the n-th expert has 1/n as many as the first), or all on the
    same few; none has a token twice."""
    tokens, experts, wanted = p["tokens"], p["experts"], p["tokens"] * p["top_k"]
    if p["spread"] == "one":
        return [tokens if e < p["top_k"] else 0 for e in range(experts)]
    weights = [1.0] * experts if p["spread"] == "even" else [1 / (e + 1) for e in range(experts)]
    scale = wanted / math.fsum(weights)
    found = [min(tokens, int(weight * scale)) for weight in weights]
    left = wanted - sum(found)  # of rounding, and of what is more than an expert can have
    while left > 0:
        for e in range(experts):
            if left > 0 and found[e] < tokens:
                found[e], left = found[e] + 1, left - 1
    return found


def work(p: Params) -> Work:
    """FLOPs: 6*H*I a token and expert. Bytes: three matrices of each expert that has a token, tokens read and written."""
    rows, size = p["tokens"] * p["top_k"], p["hidden"] * p["intermediate"]
    used = sum(1 for n in counts(p) if n)
    scales = 4 * 3 * used * size // BLOCK**2 if p["dtype"] == FP8 else 0
    return Work(
        flops=6 * rows * size,
        bytes=3 * used * size * ITEMS[p["dtype"]]
        + scales
        + rows * 8
        + p["tokens"] * p["hidden"] * 4,
        convention="ncuflow: 6*H*I a token and expert; the weights of experts that have a token once, tokens in and out",
    )


def routed(p: Params, inputs: Inputs) -> Tensor:
    """The experts of each token, int32 [tokens, top_k], as ``counts`` has them, tokens and experts in random order."""
    import torch

    each = torch.tensor(counts(p), device=inputs.device)
    order = inputs.permutation(p["experts"])
    slots = torch.repeat_interleave(order, each[: p["experts"]])
    # an expert's slots follow each other, and are at most one a token: slot i is of token i modulo tokens
    chosen = slots.view(p["top_k"], p["tokens"]).T
    return chosen[inputs.permutation(p["tokens"])].to(torch.int32).contiguous()


class Weights(NamedTuple):
    """gate, up [experts, intermediate, hidden], down [experts, hidden, intermediate]; of fp8 with the scales of their blocks."""

    gate: Tensor
    up: Tensor
    down: Tensor
    scales: list[Tensor] | None

    def expert(self, e: int) -> tuple[Tensor, ...]:
        """The three matrices of an expert, in float32."""
        values = [matrix[e].float() for matrix in self[:3]]
        if self.scales is None:
            return tuple(values)
        each = zip(values, self.scales, strict=True)
        return tuple(reference.scaled(one, scales[e], BLOCK) for one, scales in each)


def weights(p: Params, inputs: Inputs) -> Weights:
    """Normal, such that a projection keeps the size of what it is given."""
    import torch

    experts, hidden, inner = p["experts"], p["hidden"], p["intermediate"]
    made: list[Tensor] = []
    scales: list[Tensor] = []
    for rows, columns in ((inner, hidden), (inner, hidden), (hidden, inner)):
        if p["dtype"] != FP8:
            one = inputs.normal(experts, rows, columns, dtype=torch.bfloat16)
            made.append(one.mul_(columns**-0.5))
            continue
        each = (inputs.normal(rows, columns, dtype=torch.bfloat16) for _ in range(experts))
        found = [scaled(one * columns**-0.5, (BLOCK, BLOCK)) for one in each]
        elements = torch.stack([_bits(one.elements) for one in found])
        made.append(elements.view(torch.float8_e4m3fn))
        scales.append(torch.stack([one.scales for one in found]))
    return Weights(made[0], made[1], made[2], scales or None)


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id. The reference covers all tokens."""
    import torch

    inputs = Inputs(TARGET.point_id(p), seed)
    x = inputs.normal(p["tokens"], p["hidden"], dtype=torch.bfloat16)
    chosen, held = routed(p, inputs), weights(p, inputs)
    share = torch.softmax(inputs.normal(*chosen.shape, dtype=torch.float32), dim=-1)
    out = torch.empty_like(x)
    layer = Layer(p, x, chosen, share, held, out)
    run, info = _CALLS[p["backend"]](layer)
    last = [out]

    def enqueue() -> None:
        last[0] = run()

    return Launch(
        run=enqueue,
        output=lambda: (last[0],),
        reference=lambda: (reference.experts(x, chosen, layer.share, held.expert),),
        tolerance=ROUNDED_INSIDE if p["dtype"] == FP8 else TOLERANCE["bf16"],
        buffers=lambda: (last[0],),
        allocates=p["backend"] == TORCH,
        info=info | source.rival(TARGET.backends, p),
    )


@dataclass
class Layer:
    """What a call is given. share: float32 [tokens, top_k], which a call that routes itself replaces by its own."""

    p: Params
    x: Tensor
    chosen: Tensor
    share: Tensor
    held: Weights
    out: Tensor


Call = tuple[Callable[[], Tensor], dict[str, Any]]


def _fused(first: str, layer: Layer) -> tuple[Tensor, list[Tensor] | None]:
    """Gate and up as one matrix [experts, 2 * intermediate, hidden], the named one first, and the scales of both products."""
    import torch

    held, at = layer.held, (0, 1) if first == "gate" else (1, 0)
    pair = torch.cat([_bits(held[at[0]]), _bits(held[at[1]])], dim=1).view(held.gate.dtype)
    if held.scales is None:
        return pair, None
    return pair, [torch.cat([held.scales[i] for i in at], dim=1), held.scales[2]]


def _bits(matrix: Tensor) -> Tensor:
    import torch

    return matrix.view(torch.uint8) if matrix.dtype.itemsize == 1 else matrix


def _cutlass(layer: Layer) -> Call:
    from flashinfer.fused_moe import cutlass_fused_moe

    p, (first, scales) = layer.p, _fused("up", layer)
    settings: dict[str, Any] = {"quant_scales": scales or [], "output": layer.out}
    if scales:
        settings["use_deepseek_fp8_block_scale"] = True
    given = (layer.x, layer.chosen, layer.share, first, layer.held.down, layer.x.dtype)
    return _tuned(p, partial(cutlass_fused_moe, *given, **settings), {}, layer)


def _tuned(p: Params, call: Callable[..., Any], default: dict[str, Any], layer: Layer) -> Call:
    """A call with FlashInfer's default tactics, or with those that its tuner finds the fastest for it: then what that took, where
    no point before has tuned a part of it. Raises NotHereError where the tuner fails."""
    if p["tactics"] == "default":
        return partial(_returning, _untuned(partial(call, **default)), layer.out), {}
    import flashinfer

    before, begun = _tuned_sizes()[0], perf_counter()
    # Of all sizes, once: a most of tokens that one call names stays for later ones.
    with flashinfer.autotune(True):
        call()
    took, (after, sizes) = perf_counter() - begun, _tuned_sizes()
    # as under FLASHINFER_DISABLE_JIT: then it quietly leaves the default
    if p["backend"] == "cutlass" and sizes and not after:
        raise NotHereError("FlashInfer's tuner could time no tactic")
    whole = sizes and after - before == sizes
    price = {"tuning_s": round(took, 1), "tuned_sizes": sizes} if whole else {}
    return partial(_returning, call, layer.out), {"tactics": "tuned"} | price


def _untuned(call: Callable[[], Any]) -> Callable[[], Any]:
    """The call as a process makes it that has tuned nothing: it asks FlashInfer's tuner, which knows no tactic for it."""
    from flashinfer.autotuner import AutoTuner

    empty = AutoTuner()

    def asked() -> None:
        kept, AutoTuner._instance = AutoTuner._instance, empty
        try:
            call()
        finally:
            AutoTuner._instance = kept

    return asked


def _tuned_sizes() -> tuple[int, int]:
    """(sizes that the tuner has tuned in this process, those of the last call), of CUTLASS's first product."""
    from flashinfer.autotuner import AutoTuner

    told = AutoTuner.get().stats
    counts = (told.tuned_op_successful_configs, told.tuned_op_total_configs)
    tuned, wanted = (int(each.get("trtllm::fused_moe::gemm1", 0)) for each in counts)
    return tuned, wanted


def _returning(call: Callable[[], Any], out: Tensor) -> Tensor:
    call()
    return out


def _cute(layer: Layer) -> Call:
    from flashinfer.fused_moe.cute_dsl import sm90_contiguous_gather_grouped_gemm_act_fusion as act
    from flashinfer.fused_moe.cute_dsl import sm90_fused_moe, sm90_tuner

    p, (first, _) = layer.p, _fused("gate", layer)
    given = (
        layer.x,
        layer.chosen,
        layer.share,
        act.interleave_up_gate_sm90(first),
        layer.held.down,
    )
    call = partial(sm90_fused_moe.cute_dsl_fused_moe_bf16, *given, p["experts"], p["top_k"], moe_output=layer.out)  # fmt: skip
    return _tuned(p, call, {"tactic": sm90_tuner.DEFAULT_SM90_MOE_TACTIC}, layer)


def _mono(layer: Layer) -> Call:
    """The one kernel routes as well: the logits are such that it takes the experts and shares that every call is given."""
    import flashinfer.fused_moe as moe
    import torch

    p, (first, scales) = layer.p, _fused("gate", layer)
    assert scales is not None
    logits = torch.full((p["tokens"], p["experts"]), -30.0, device=layer.x.device)
    logits = logits.scatter(1, layer.chosen.long(), layer.share.log() + 10).to(torch.bfloat16)
    layer.share = torch.softmax(logits.float().gather(1, layer.chosen.long()), dim=-1)
    if not hasattr(moe, "mono_moe"):
        raise NotHereError("this FlashInfer has no mono_moe")
    packed, scratch = moe.interleave_for_tma_wgmma_up(first), moe.alloc_scratchpad(layer.x.device)
    given = (layer.x, logits, packed, scales[0], layer.held.down, scales[1], p["top_k"])
    call = partial(moe.mono_moe, *given, out=layer.out, scratchpad=scratch, interleave_up=False)
    return partial(_returning, call, layer.out), {}


def _trtllm(layer: Layer) -> Call:
    from flashinfer.fused_moe import trtllm_fp8_block_scale_routed_moe

    p, (first, scales) = layer.p, _fused("up", layer)
    assert scales is not None
    rows = scaled(layer.x, (1, BLOCK))
    given = (
        (layer.chosen, layer.share),
        None,
        rows.elements,
        rows.scales.T.contiguous(),
        first,
        scales[0],
        layer.held.down,
        scales[1],
    )
    sizes = (p["experts"], p["top_k"], None, None, p["intermediate"], 0, p["experts"], None)
    call = partial(trtllm_fp8_block_scale_routed_moe, *given, *sizes, output=layer.out)
    return partial(_returning, call, layer.out), {}


def _torch(layer: Layer) -> Call:
    """Tokens in the order of their experts, two grouped products, and a sum of each token's rows: six calls of torch."""
    import torch
    from torch.nn.functional import silu

    p, (first, _) = layer.p, _fused("gate", layer)
    w1, w2 = first.transpose(1, 2), layer.held.down.transpose(1, 2)
    experts, inner = p["experts"], p["intermediate"]

    def run() -> Tensor:
        flat = layer.chosen.flatten()
        order = flat.argsort(stable=True)
        # bincount waits for the GPU: how long its result is, the data say
        each = torch.zeros(experts, dtype=torch.int32, device=flat.device)
        ends = each.scatter_add_(0, flat.long(), torch.ones_like(flat)).cumsum(0, dtype=torch.int32)
        tokens = order // p["top_k"]
        both = torch._grouped_mm(layer.x[tokens], w1, offs=ends)
        rows = torch._grouped_mm(silu(both[:, :inner]) * both[:, inner:], w2, offs=ends)
        rows = rows * layer.share.flatten()[order, None].to(rows.dtype)
        return torch.zeros_like(layer.x).index_add_(0, tokens, rows)

    return run, {}


_CALLS: dict[str, Callable[[Layer], Call]] = {
    "cutlass": _cutlass,
    "mono": _mono,
    "cute-dsl": _cute,
    "trtllm-gen": _trtllm,
    TORCH: _torch,
}


def modules(p: Params) -> list[Any]:
    """JIT modules of the point; needs FlashInfer and an arch list, but no GPU."""
    if p["backend"] == "mono":
        from flashinfer.jit.monomoe import gen_monomoe_module

        return [gen_monomoe_module()]
    if p["backend"] == "cutlass":
        from flashinfer.jit import fused_moe

        return [fused_moe.gen_cutlass_fused_moe_sm90_module()]
    return []


_TENSORS = {  # of each function: tokens, the experts of each, gate and up
    "cutlass_fused_moe": ("input", "token_selected_experts", "fc1_expert_weights"),
    "cute_dsl_fused_moe_bf16": ("x", "token_selected_experts", "w1_weight"),
    "mono_moe": ("activations_in", "router_logits", "expert_weights_up"),
    "trtllm_fp8_block_scale_routed_moe": ("hidden_states", "topk_ids", "gemm1_weights"),
}
_PLACES = {
    "cutlass_fused_moe": ("core", "cutlass"),
    "cute_dsl_fused_moe_bf16": ("cute_dsl.sm90_fused_moe", "cute-dsl"),
    "mono_moe": ("monomoe", "mono"),
    "trtllm_fp8_block_scale_routed_moe": ("core", "trtllm-gen"),
}
_SAYS = (
    "top_k",
    "ep_size",
    "num_experts",
    "local_num_experts",
    "activation_type",
    "use_deepseek_fp8_block_scale",
)
_SWIGLU = 3  # FlashInfer's ActivationType


def _called(name: str, a: Params) -> Block:
    """The point that an engine called, but for how tokens fall on experts, which its tensors on the GPU have."""
    tokens, routed, weights = (a[one] for one in _TENSORS[name])
    first = routed[0] if isinstance(routed, (tuple, list)) else routed
    experts, inner, hidden = weights.shape
    dtype = FP8 if "float8_e4m3" in str(weights.dtype) else element(weights)
    if dtype not in ITEMS or (dtype == FP8 and not a.get("use_deepseek_fp8_block_scale", True)):
        raise RefusedError(f"weights of {weights.dtype} are measured by no target")
    if a.get("ep_size", 1) != 1 or a.get("local_num_experts") not in (None, experts):
        raise RefusedError("its experts are on several GPUs")
    if a.get("activation_type", _SWIGLU) != _SWIGLU:
        raise RefusedError("its activation is no SwiGLU")
    return {
        "tokens": tokens.shape[0],
        "experts": experts,
        "top_k": a.get("top_k") or first.shape[1],
        "hidden": hidden,
        "intermediate": inner // 2,
        "dtype": dtype,
        "spread": OPEN,
        "backend": _PLACES[name][1],
    }


# What the default tactic wastes is no price of the traffic.
_BEST = f"tactics == 'tuned' or dtype == 'fp8' or backend not in {_TUNED}"

TARGET = Target(
    name="moe",
    title="Mixture of experts",
    heading="MoE Kernels",
    order=12,
    parameters={
        "tokens": 128,
        "experts": 8,  # Mixtral's; Qwen3 30B's 128, of 768 elements; DeepSeek V3's 256
        "top_k": 2,  # experts of a token
        "hidden": 4096,
        "intermediate": 14336,  # of an expert
        "dtype": _BOTH,  # of the weights; fp8: a scale for 128 x 128, activations rounded by the call
        "spread": ("even", "zipf", "one"),  # how tokens fall on experts; one: all on the same
        "backend": tuple(ENGINES),
        "tactics": ("default", "tuned"),  # of its products
    },
    small={"tokens": 8},
    id=point_id,
    unable=unable,
    free=lambda p: {"tactics": "default"} if p["backend"] in _TUNED else {},
    asked=lambda p: {"autotune": {"tune_mode": True}} if p["tactics"] == "tuned" else {},
    # no token of most experts; one token; a rest of a tile
    edges=lambda p: [
        {"tokens": 1},
        {"tokens": 3, "spread": "one"},
        {"tokens": 129, "spread": "zipf"},
    ],
    backends=tuple(one.backend for one in ENGINES.values()),
    stops_tracing=lambda p: None,
    memory=lambda p: (
        3 * p["experts"] * p["hidden"] * p["intermediate"] * (ITEMS[p["dtype"]] * 2 + 1)
        + 40 * p["tokens"] * p["top_k"] * p["hidden"]
    ),
    work=work,
    written=lambda p: 2 * p["tokens"] * p["hidden"],
    workload=Workload(
        calls=tuple(
            EngineCall(
                f"flashinfer.fused_moe.{module}",
                name,
                partial(_called, name),
                tells=(*_TENSORS[name], *_SAYS),
            )
            for name, (module, _) in _PLACES.items()
        )
    ),
    rules=Rules(whole=True),
    prepare=prepare,
    build=source.Build(
        generate=modules,
        jit=(
            source.Jit(
                "mono_moe",
                "flashinfer.fused_moe.monomoe:_get_monomoe_module",
                params={**MONO, "backend": "mono", "dtype": FP8, "tokens": MONO_TOKENS, "top_k": 8},
            ),
        ),
    ),
    source=source.Source(
        api={
            "python": "flashinfer.fused_moe.core.cutlass_fused_moe",
            "python_mono": "flashinfer.fused_moe.monomoe.mono_moe",
            "python_cute": "flashinfer.fused_moe.cute_dsl.sm90_fused_moe.cute_dsl_fused_moe_bf16",
            "python_trtllm": "flashinfer.fused_moe.core.trtllm_fp8_block_scale_routed_moe",
            "jit": "flashinfer.jit.fused_moe.gen_cutlass_fused_moe_sm90_module",
            "binding": "csrc/fused_moe/cutlass_backend/flashinfer_cutlass_fused_moe_binding.cu",
        },
        kernels=(  # CUTLASS's products are device_kernel
            source.Symbol("expandInputRowsKernel", ""),
            source.Symbol("doGatedActivationKernel", ""),
            source.Symbol("finalizeMoeRoutingKernel", ""),
            source.Symbol("moe_kernel_topk", ""),
        ),
        files={
            "expandInputRowsKernel": "data/csrc/fused_moe/cutlass_backend/cutlass_fused_moe_kernels.cuh",
            "moe_kernel_topk": "data/csrc/fused_moe/monomoe/src/moe.cuh",
        },
        sources=("fused_moe/cutlass_backend/cutlass_fused_moe_instantiation.cu",),
    ),
    compared=(
        Choice(  # by each side's best: torch has no tactics to choose
            "moe_torch",
            "CUTLASS, tuned, or grouped products of torch",
            "backend",
            "cutlass",
            TORCH,
            where="tactics == 'tuned' or backend == 'torch'",
            ignoring=("tactics",),
        ),
        Choice(
            "moe_mono",
            f"CUTLASS, or one kernel that routes as well, of its one shape and {MONO_TOKENS} tokens at most",
            "backend",
            "cutlass",
            "mono",
        ),
        Choice("moe_cute", "CUTLASS, or the CuTe DSL's", "backend", "cutlass", "cute-dsl"),
        Choice("moe_tactics", "Default tactics, or tuned", "tactics", "default", "tuned"),
        Choice(  # a default tactic of 16 bits may be far from its best: against that, 8 would save more than bytes
            "moe_fp8",
            "Weights of 16 bits, tuned, or of 8",
            "dtype",
            "bf16",
            FP8,
            where="tactics == 'tuned' or dtype == 'fp8'",
            ignoring=("tactics",),
        ),
        Choice(
            "moe_zipf", "Even, or by Zipf's law", "spread", "even", "zipf", _BEST, given="traffic"
        ),
        Choice(
            "moe_one",
            "Even, or all on the same experts",
            "spread",
            "even",
            "one",
            _BEST,
            given="traffic",
        ),
    ),
)
