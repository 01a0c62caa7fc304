"""Rotary position embedding of queries and keys."""

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from math import ceil
from typing import Any

from ncuflow.target import reference, workload
from ncuflow.target.contract import CALL_TIMES, Choice, StepPart, Target, Work
from ncuflow.target.inputs import ITEMSIZE, TOLERANCE, torch_dtype
from ncuflow.target.launch import (
    TYPES,
    GpuFacts,
    Host,
    Inputs,
    Launch,
    LaunchConfig,
    LaunchSignature,
    Params,
    Rules,
    Tensor,
    UnsaidError,
)
from ncuflow.target.source import Build, Constant, Jit, Source, Symbol, Tunable

_FUNCTIONS = {
    "rope": "apply_rope",
    "rope_pos_ids": "apply_rope_pos_ids",
    "llama31": "apply_llama31_rope",
    "llama31_pos_ids": "apply_llama31_rope_pos_ids",
    "cos_sin_cache": "apply_rope_with_cos_sin_cache",
}
_BY_FUNCTION = {function: variant for variant, function in _FUNCTIONS.items()}
_BY_DEFINITION = {  # such as rope_cos_sin_cache
    function.removeprefix("apply_").replace("with_", ""): variant
    for function, variant in _BY_FUNCTION.items()
}
CHECKED_TOKENS = 8192
MOST_SPLITS = 128
# The kernels take the angle in float32 and its sine by __sincosf: the angle, which grows with the
# position, is off by about 2^-23 of itself. The float64 reference has no such error.
ANGLE_ERROR = 2.0**-23


def point_id(p: Params) -> str:
    """E.g. cos_sin_cache_inplace_T4096_H32_K8_D128_f16_neox; a batch other than 1 is shown."""
    inplace = "_inplace" if p["inplace"] else ""
    batch = f"_B{p['batch']}" if p["batch"] != 1 else ""
    return (
        f"{p['variant']}{inplace}_T{p['tokens']}{batch}_H{p['qo_heads']}_K{p['kv_heads']}"
        f"_D{p['head_dim']}_{p['dtype']}_{p['style']}"
    )


def unable(p: Params, gpu: GpuFacts) -> str | None:
    """Why this GPU cannot run the point; None if it can."""
    if p["tokens"] % p["batch"]:
        return f"{p['tokens']} tokens do not split into {p['batch']} equal sequences"
    return None


def work(p: Params) -> Work:
    """FLOPs and bytes, as FlashInfer counts them.

    Bytes: q and k read and written, the float32 cache rows (if any), the positions. FLOPs: 3 an
    element (a rotated pair takes 4 multiplications and 2 additions); sines are not counted.
    """
    n, dim = p["tokens"], p["head_dim"]
    elements = _elements(p)
    cache = 4 * dim * n if p["variant"] == "cos_sin_cache" else 0
    return Work(
        flops=3 * elements,
        bytes=2 * elements * ITEMSIZE[p["dtype"]] + cache + _position_bytes(p),
        convention="FlashInfer: q, k read and written, fp32 cache and positions read; "
        "3 FLOPs per element",
    )


def _elements(p: Params) -> int:
    """Of q and k."""
    return int((p["qo_heads"] + p["kv_heads"]) * p["head_dim"] * p["tokens"])


def _position_bytes(p: Params) -> int:
    if p["variant"] == "cos_sin_cache":
        return 8 * int(p["tokens"])
    if p["variant"].endswith("pos_ids"):
        return 4 * int(p["tokens"])
    return 4 * (2 * int(p["batch"]) + 1)


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id.

    Running in place again and again only keeps rotating: a rotation leaves the norm unchanged.
    The reference covers CHECKED_TOKENS random tokens, with the first and the last.
    """
    inputs = Inputs(TARGET.point_id(p), seed)
    dtype = torch_dtype(p["dtype"])
    q = inputs.normal(p["tokens"], p["qo_heads"], p["head_dim"], dtype=dtype)
    k = inputs.normal(p["tokens"], p["kv_heads"], p["head_dim"], dtype=dtype)
    first_q, first_k = (q.clone(), k.clone()) if p["inplace"] else (q, k)
    tokens = inputs.rows(p["tokens"], CHECKED_TOKENS)
    rotate = _call(p, q, k)
    last: dict[str, tuple[Tensor, ...]] = {"rotated": (q, k) if p["inplace"] else ()}

    def run() -> None:
        result = rotate()
        if not p["inplace"]:
            last["rotated"] = tuple(t.view(p["tokens"], -1, p["head_dim"]) for t in result)

    def reset() -> None:
        q.copy_(first_q)
        k.copy_(first_k)

    length = p["tokens"] // p["batch"]
    return Launch(
        run=run,
        output=lambda: tuple(t[tokens] for t in last["rotated"]),
        reference=lambda: _reference(p, first_q[tokens], first_k[tokens], tokens % length),
        tolerance=TOLERANCE[p["dtype"]] + ANGLE_ERROR * length,
        buffers=lambda: last["rotated"],
        allocates=not p["inplace"],
        reset=reset if p["inplace"] else None,
    )


def _call(p: Params, q: Tensor, k: Tensor) -> Callable[[], Any]:
    """The FlashInfer call of the point on q, k [tokens, heads, dim]."""
    import flashinfer
    import torch

    function = getattr(flashinfer, _FUNCTIONS[p["variant"]] + "_inplace" * p["inplace"])
    length, interleaved = p["tokens"] // p["batch"], p["style"] == "interleaved"
    position = torch.arange(p["tokens"], device=q.device) % length  # int64
    if p["variant"] == "cos_sin_cache":
        cos, sin = _angles(p, torch.arange(length, device=q.device))
        cache = torch.cat([cos, sin], -1).float()
        flat_q, flat_k = q.view(p["tokens"], -1), k.view(p["tokens"], -1)
        return lambda: function(
            position, flat_q, flat_k, p["head_dim"], cache, is_neox=not interleaved
        )
    if p["variant"].endswith("pos_ids"):
        position = position.int()
        return lambda: function(q, k, position, interleave=interleaved)
    indptr = torch.arange(p["batch"] + 1, dtype=torch.int32, device=q.device) * length
    offsets = torch.zeros(p["batch"], dtype=torch.int32, device=q.device)
    return lambda: function(q, k, indptr, offsets, interleave=interleaved)


def _angles(p: Params, position: Tensor) -> tuple[Tensor, Tensor]:
    """cos and sin [positions, dim/2] in float64, by FlashInfer's default theta."""
    import torch

    llama31 = p["variant"].startswith("llama31")
    pair = torch.arange(p["head_dim"] // 2, dtype=torch.float64, device=position.device)
    theta = 5e5 if llama31 else 1e4
    frequency = reference.rope_frequencies(pair, p["head_dim"], theta, llama31)
    angle = position.double()[:, None] * frequency
    return angle.cos(), angle.sin()


def _reference(p: Params, q: Tensor, k: Tensor, position: Tensor) -> tuple[Tensor, ...]:
    cos, sin = _angles(p, position)
    return tuple(reference.rope(x, cos, sin, p["style"] == "interleaved") for x in (q, k))


def launches(p: Params, host: Host) -> Iterator[LaunchConfig]:
    """Of BatchQKApplyRotary and its kin: parallel over heads where tokens alone leave the GPU room."""
    item, dim, heads = ITEMSIZE[p["dtype"]], p["head_dim"], p["qo_heads"] + p["kv_heads"]
    vec = max(16 // item, dim // 32)
    bdx = dim // vec
    bdy = max(128, bdx) // bdx
    block, threads = (bdx, bdy, 1), bdx * bdy
    interleaved = str(p["style"] == "interleaved").lower()
    index = "long" if p["variant"] == "cos_sin_cache" else "int"
    arguments = f"{interleaved}, {dim}, {vec}, {bdx}, {TYPES[p['dtype']]}, {index}"

    def called(what: str, more: str = "") -> str:
        return f"flashinfer::BatchQKApplyRotary{what}Kernel<{arguments}{more}>"

    if p["variant"] in ("rope", "llama31"):
        name, blocks = called(""), p["batch"] * heads
        steps = ceil(ceil(p["tokens"] / p["batch"]) / bdy)
        splits = steps if host.modern else 1
        split, _ = _split(blocks, host, name, threads, splits, lambda g: ceil(steps / g))
        yield LaunchConfig(name, (blocks, split, 1), block, 0)
        return
    blocks = ceil(p["tokens"] / bdy)
    what = "PosIdsCosSinCache" if p["variant"] == "cos_sin_cache" else "PosIds"
    whole = called(what, ", 1, false" * host.modern)
    # Llama 3.1's launcher has no kernel that is parallel over heads
    if not p["variant"].startswith("llama31") and blocks < host.slots(whole, threads, 0):
        yield LaunchConfig(called(f"{what}HeadParallelism"), (blocks, heads, 1), block, 0)
        return
    if not host.modern:
        yield LaunchConfig(whole, (blocks, 1, 1), block, 0)
        return
    parts = called(what, ", 1, true")
    split, cost = _split(blocks, host, parts, threads, heads, lambda g: ceil(heads / g))
    kept = ceil(blocks / host.slots(whole, threads, 0)) * (heads + 1) <= cost
    yield LaunchConfig(whole if kept else parts, (blocks, 1 if kept else split, 1), block, 0)


_SEEN = {
    "BatchQKApplyRotaryPosIdsCosSinCache": ("cos_sin_cache",),
    "BatchQKApplyRotaryPosIds": ("rope_pos_ids", "llama31_pos_ids"),
}


def shapes(seen: LaunchSignature) -> Iterator[Params]:
    """Of the kernels that take positions: a block rotates bdy tokens, of all heads, of a part of them, or of one."""
    what = seen.kernel.removesuffix("Kernel").removesuffix("HeadParallelism")
    if what not in _SEEN:
        raise UnsaidError("no rule tells its tokens and heads from its launch")
    bdy, blocks, dim = seen.block[1], seen.grid[0], seen.number("head_dim")
    interleaved = seen.argument("interleave") in ("true", "1")
    variants = _SEEN[what]
    if seen.kernel.endswith("HeadParallelismKernel"):
        variants = variants[:1]  # Llama 3.1's launcher has none
    said: Params = {"head_dim": dim, **seen.dtype}
    said["style"] = "interleaved" if interleaved else "neox"
    tokens = seen.sure("tokens")
    if tokens is None or ceil(tokens / bdy) != blocks:
        tokens = None
    both = (seen.sure("qo_heads"), seen.sure("kv_heads"))
    parallel = len(variants) == 1 and seen.kernel.endswith("HeadParallelismKernel")
    pairs = [both] if None not in both else []
    if parallel and (not pairs or sum(n or 0 for n in both) != seen.grid[1]):
        # as many bytes whichever of them are queries', of which attention may say one
        of: list[tuple[int | None, int | None]] = [
            (seen.grid[1] - n, n) for n in _shares(seen.grid[1])
        ]
        pairs = [one for one in of if both[0] in (None, one[0]) and both[1] in (None, one[1])] or of
    if not pairs:
        raise UnsaidError(
            "its blocks rotate all heads, and nothing else tells how many there are", said
        )
    ends = [tokens] if tokens else sorted({(blocks - 1) * bdy + 1, blocks * bdy})
    for variant, (qo_heads, kv_heads), count in product(variants, pairs, ends):
        heads = {"qo_heads": qo_heads, "kv_heads": kv_heads}
        yield {"variant": variant, **said, "tokens": count, **heads}


def _shares(heads: int) -> Iterator[int]:
    """Of so many heads, those that may be keys': queries have a multiple of them."""
    return (n for n in range(1, heads // 2 + 1) if (heads - n) % n == 0)


def _split(
    blocks: int, host: Host, kernel: str, threads: int, most: int, steps: Callable[[int], int]
) -> tuple[int, int]:
    """(Parts into which a block's loop is cut, cost): the first with the fewest waves times steps and one."""
    if most <= 1:
        return 1, 2**63
    slots = host.slots(kernel, threads, 0)
    costs = {
        g: ceil(blocks * g / slots) * (steps(g) + 1) for g in range(1, min(most, MOST_SPLITS) + 1)
    }
    best = min(costs, key=costs.__getitem__)
    return best, costs[best]


def takes(entry: workload.Entry) -> workload.Block | None:
    """A case of a workload as a block of the sweep; None for one of another kernel."""
    match entry:
        case workload.Routine(name) if variant := _BY_FUNCTION.get(name.removesuffix("_inplace")):
            batch = entry.number("batch_size")
            return {
                "variant": variant,
                "inplace": name.endswith("_inplace"),
                "tokens": batch * entry.number("seq_len"),
                "batch": batch,
                **entry.heads(),
                "head_dim": entry.number("head_dim"),
                "dtype": entry.dtype("input_dtype"),
                "style": "interleaved" if "interleave" in entry.options else "neox",
            }
        case workload.Definition(kind, {"q": qo_heads, "k": kv_heads, "d": head_dim}) if (
            variant := _BY_DEFINITION.get(kind.removesuffix("_inplace"))
        ):
            return {
                "variant": variant,
                "inplace": kind.endswith("_inplace"),
                "dtype": entry.element,
                "qo_heads": qo_heads,
                "kv_heads": kv_heads,
                "head_dim": head_dim,
                **entry.counted(tokens="nnz"),
            }
    return None


_TELLS = ("q", "k", "query", "key", "head_size", "rotary_dim", "is_neox", "interleave", "indptr")


def _called(variant: str, inplace: bool, a: Params) -> workload.Block:
    """The point that an engine called, by its arguments."""
    cached = variant == "cos_sin_cache"
    q, k = (a[name] for name in (("query", "key") if cached else ("q", "k")))
    size = a["head_size"] if cached else q.shape[-1]
    if a.get("rotary_dim") not in (None, size):
        raise workload.RefusedError("a part of each head is rotated")
    interleaved = not a.get("is_neox", True) if cached else a.get("interleave", False)
    batch = {} if "indptr" not in a else {"batch": a["indptr"].shape[0] - 1}
    return {
        "variant": variant,
        "inplace": inplace,
        "tokens": q.shape[0],
        "qo_heads": q[0].numel() // size,
        "kv_heads": k[0].numel() // size,
        "head_dim": size,
        "dtype": workload.element(q),
        "style": "interleaved" if interleaved else "neox",
        **batch,
    }


TARGET = Target(
    name="rope",
    title="Rotary position embedding",
    heading="RoPE Kernel",
    order=4,
    parameters={
        "variant": "cos_sin_cache",
        "inplace": (True, False),
        "tokens": 4096,  # of all sequences together
        "batch": 1,  # sequences that the tokens are split into; positions start at 0 in each
        "qo_heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "dtype": tuple(ITEMSIZE),
        "style": ("neox", "interleaved"),  # neox rotates halves, interleaved pairs
    },
    choices={"variant": tuple(_FUNCTIONS), "head_dim": (64, 128, 256)},
    small={"batch": 1, "tokens": 64},
    id=point_id,
    unable=unable,
    # position 0 alone; sequences that fill no block; the positions of a long one
    edges=lambda p: [
        {"tokens": 1, "batch": 1},
        {"tokens": 21, "batch": 3},
        {"tokens": 3, "batch": 1, "qo_heads": 128, "kv_heads": 16},
        {"tokens": 131072, "batch": 1, "qo_heads": 1, "kv_heads": 1},
    ],
    memory=lambda p: 2 * work(p).bytes,
    work=work,
    written=lambda p: _elements(p) * ITEMSIZE[p["dtype"]],
    prepare=prepare,
    part=lambda p: StepPart("rope", p["tokens"], None, p["qo_heads"], p["kv_heads"], p["head_dim"]),
    workload=workload.Workload(
        takes=takes,
        calls=tuple(
            workload.EngineCall(
                "flashinfer.rope",
                f"{function}{suffix}",
                partial(_called, variant, bool(suffix)),
                tells=_TELLS,
            )
            for variant, function in _FUNCTIONS.items()
            for suffix in ("", "_inplace")
        ),
    ),
    rules=Rules(launches=launches, shapes=shapes),
    source=Source(
        api={
            "python": "flashinfer.rope.apply_rope_with_cos_sin_cache_inplace",
            "python_on_the_fly": "flashinfer.rope.apply_rope_pos_ids_inplace",
            "jit": "flashinfer.jit.rope.gen_rope_module",
            "binding": "csrc/rope.cu",
        },
        kernels=tuple(
            Symbol(f"BatchQKApplyRotary{kind}Kernel", "pos_enc.cuh")
            for kind in (
                "",
                "PosIds",
                "PosIdsHeadParallelism",
                "PosIdsCosSinCache",
                "PosIdsCosSinCacheHeadParallelism",
            )
        ),
        sources=("rope.cu", "flashinfer_rope_binding.cu"),
        tunables=(
            Tunable(
                "threads",
                tuple(
                    Constant(
                        "data/include/flashinfer/pos_enc.cuh",
                        f"BatchQKApply{launcher}",
                        r"num_threads = std::max\((\d+)U, bdx\)",
                    )
                    for launcher in (
                        "RotaryPosIdsCosSinCache",
                        "RotaryPosIds",
                        "Rotary",
                        "Llama31Rotary",
                        "Llama31RotaryPosIds",
                    )
                ),
                (256, 64, 512),
            ),
        ),
        meanings={
            "interleave": "pairs (0, 1), (2, 3)…; false: NeoX halves",
            "head_dim": "head dimension",
            "heads_per_step": "heads whose loads are issued before the first of them is stored",
            "split_heads": "blocks share the heads of a token; false: one block goes through all of them",
        },
    ),
    build=Build(early=True, jit=(Jit("rope", "flashinfer.rope:get_rope_module"),)),
    compared=(
        Choice(
            "rope_cache",
            "On the fly or cos/sin cache",
            "variant",
            "rope_pos_ids",
            "cos_sin_cache",
            metrics=CALL_TIMES,
        ),
        Choice(
            "rope_llama31",
            "Plain or Llama 3.1 scaling",
            "variant",
            "rope_pos_ids",
            "llama31_pos_ids",
            given="model",
        ),
        Choice(
            "rope_llama31_offsets",
            "Plain or Llama 3.1 scaling, positions from offsets",
            "variant",
            "rope",
            "llama31",
            given="model",
        ),
        Choice(  # offsets are given by sequence, so that this call needs more than one
            "rope_positions",
            "Position ids or offsets",
            "variant",
            "rope_pos_ids",
            "rope",
            ignoring=("batch",),
        ),
        Choice(
            "rope_inplace",
            "In place or into new tensors",
            "inplace",
            True,
            False,
            names=("in place", "new tensors"),
            metrics=CALL_TIMES,
        ),
        Choice("rope_style", "NeoX halves or pairs", "style", "neox", "interleaved", given="model"),
    ),
)
