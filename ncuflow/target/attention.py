"""What the attention targets share: backends, FlashInfer's prefill modules, caches of keys and values, uneven lengths."""

import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import NormalDist
from typing import Any, NamedTuple

from ncuflow.target import inputs, reference
from ncuflow.target.contract import Choice, StepPart, Work
from ncuflow.target.launch import GpuFacts, Inputs, Params, Tensor, Written
from ncuflow.target.source import Backend, Declaration, Symbol, no_backend
from ncuflow.target.workload import RefusedError, element

KV = (
    "same",
    inputs.FP8,
    inputs.NVFP4,
)  # what a KV cache holds: elements of the queries' type, of 8 or of 4 bits
WORKSPACE_BYTES = 128 << 20  # of a wrapper
SOFT_CAPS, WINDOWS = (0, 30), (0, 1024, 4096)
# By the backend (``Target.stops_tracing``): of fa3's prefill kernels nsys 2023.4 records none, and none of what follows them.
STOPS_TRACING = {"fa2": False, "auto": None, "fa3": True}
FA3 = Backend("fa3", ("9.0",), Declaration("is_sm90a_supported", "utils.py"))
CUTLASS = Backend(
    "cutlass",
    ("10.x", "11.x"),
    Declaration("gen_fmha_cutlass_sm100a_module", "jit/attention/modules.py"),
)
TRTLLM_GEN = Backend(
    "trtllm-gen",
    ("10.x",),
    Declaration("trtllm_batch_decode_with_kv_cache", "decode.py"),
    downloaded=True,
)
CUTE_DSL = Backend("cute-dsl", ("10.x",))  # the wrappers' docstrings: Blackwell; tcgen05 is 10's
CUDNN = Backend("cudnn", downloaded=True, instead="cudnn")
# What is no fa2 or fa3 is measured with none of their settings, and on pages that all of it take.
OTHERS = (CUTLASS, TRTLLM_GEN, CUTE_DSL, CUDNN)
APART, PAGES = tuple(backend.name for backend in OTHERS), (8, 16, 32, 64)
FA3_FP8 = "fa3 takes keys and values of fp8 with queries of fp8 alone"
# The parameters of a prefill module, beside backend, dtype and head_dim, as they are where a target has none of them.
PLAIN: Params = {"kv": "same", "qk": "f32", "soft_cap": 0, "window": 0}
# Kernels of fa2's prefill over pages and without, of fa3's, and the one that merges chunks of a split KV cache.
PAGED = Symbol("BatchPrefillWithPagedKVCacheKernel", "attention/prefill.cuh")
RAGGED = Symbol("BatchPrefillWithRaggedKVCacheKernel", "attention/prefill.cuh")
HOPPER = Symbol("PrefillWithKVCacheKernel", "attention/hopper/prefill_sm90.cuh")
MERGE = Symbol("PersistentVariableLengthMergeStatesKernel", "attention/cascade.cuh")
# Takes a backend for "auto".
CHOSEN = Symbol("determine_attention_backend", "utils.py")
SPLIT = Symbol("PrefillSplitQOKVIndptr", "attention/scheduler.cuh")


def sizes(p: Params) -> tuple[int, int, int, int]:
    """Heads, their dimension and the page size, as plan() takes them."""
    return p["qo_heads"], p["kv_heads"], p["head_dim"], p["page_size"]


def tells(p: Params) -> dict[str, int]:
    """What an attention says of the other launches of its step: its heads, and how long they are."""
    return {name: p[name] for name in ("qo_heads", "kv_heads", "head_dim") if name in p}


def workspace(q: Tensor) -> Tensor:
    """The memory of a wrapper, where its queries are."""
    import torch

    return torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)


def decode_wrapper(q: Tensor) -> Any:
    """The wrapper of decode on tensor cores."""
    import flashinfer

    return flashinfer.BatchDecodeWithPagedKVCacheWrapper(workspace(q), "NHD", use_tensor_cores=True)


def decode_plan(p: Params, wrapper: Any, table: inputs.PageTable) -> Callable[[], None]:
    """plan() of decodes, which POD's wrapper and that of decode take alike."""
    dtype = inputs.torch_dtype(p["dtype"])

    def plan() -> None:
        wrapper.plan(*table.planned, *sizes(p), q_data_type=dtype, kv_data_type=dtype)

    return plan


def soft_cap(key: str) -> Choice:
    """What a soft cap costs."""
    return Choice(
        key, "Without or with a soft cap on logits", "soft_cap", *SOFT_CAPS, given="model"
    )


def window(key: str) -> Choice:
    """What a window brings."""
    return Choice(key, "All tokens or a window of 1024", "window", *WINDOWS[:2], given="model")


def counted(p: Params, what: str) -> str:
    """How the work of a point is counted beside the usual; what: is counted of a window."""
    scales = ", with the scales of NVFP4" if p["kv"] == inputs.NVFP4 else ""
    return scales + (f", {what} within the window alone" if p["window"] else "")


def ungrouped(p: Params) -> str | None:
    """Why query heads cannot share KV heads; None if they can."""
    if p["qo_heads"] % p["kv_heads"]:
        return f"{p['qo_heads']} query heads are not a multiple of {p['kv_heads']} KV heads"
    return None


def marks(p: Params) -> tuple[str, str, str]:
    """What an id says of the cache, the soft cap and the window of a point, nothing of the usual ones."""
    kv = {inputs.FP8: "_kv8", inputs.NVFP4: "_kv4"}.get(p["kv"], "")
    cap, window = p["soft_cap"], p["window"]
    return kv, f"_cap{cap}" if cap else "", f"_win{window}" if window else ""


def refusal(p: Params, gpu: GpuFacts, backends: tuple[Backend, ...]) -> str | None:
    """Why a GPU has not the backend of a point, or that not the point; None if they do."""
    name = p["backend"]
    if why := no_backend(backends, name, gpu):
        return why
    if name not in APART:
        return None
    if p["kv"] != "same" or p["dtype"] == inputs.FP8 or p["soft_cap"] or p["window"]:
        return f"{name} is measured without a soft cap, a window and values of 8 or 4 bits"
    paged = p.get("layout", "paged") == "paged"
    if paged and p["page_size"] not in PAGES:
        return f"{name} is measured on pages of {', '.join(map(str, PAGES))} tokens"
    return None


def modules(p: Params) -> list[Any]:
    """The prefill module of a point; needs FlashInfer and an arch list, but no GPU. None for a backend that compiles
    none, or what it compiles when it first runs."""
    from flashinfer.jit.attention import modules as generators

    if p["backend"] == "cutlass":
        return [generators.gen_fmha_cutlass_sm100a_module(*arguments(p))]
    if p["backend"] in APART:
        return []
    generate = generators.gen_batch_prefill_module
    if module_arguments(p)[0] == "fa2":  # since 0.7 the fa2 wrappers build a module of their own
        generate = getattr(generators, "_gen_batch_prefill_primary_module", generate)
    return [generate(*module_arguments(p))]


def module_arguments(p: Params) -> tuple[Any, ...]:
    """What FlashInfer's generator and cached getter of a prefill module take."""
    mixed = p["kv"] != "same" and p["dtype"] != inputs.FP8  # which "auto" leaves to fa2
    backend = "fa2" if mixed and p["backend"] == "auto" else resolved(p["backend"])
    return (backend, *arguments(p), p["qk"] == "f16")


def resolved(backend: str) -> str:
    """What FlashInfer takes for "auto": fa3 on compute capability 9.0, else fa2."""
    if backend != "auto":
        return backend
    import torch

    arch_list = os.environ.get("FLASHINFER_CUDA_ARCH_LIST")
    hopper = "9.0" in arch_list if arch_list else torch.cuda.get_device_capability() == (9, 0)
    return "fa3" if hopper else "fa2"


def resolves(p: Params, capability: str) -> Params:
    """What FlashInfer makes of the backend "auto" of a prefill: fa3 on compute capability 9.0, but for keys and values of 8 bits
    under other queries and for sums in float16."""
    mixed = p.get("kv", "same") != "same" and p["dtype"] != inputs.FP8
    plain = not mixed and p.get("qk", "f32") == "f32"
    return {"backend": "fa3" if capability == "9.0" and plain else "fa2"}


def arguments(p: Params) -> tuple[Any, ...]:
    """dtypes of q, kv, o and indices, head dims, position encoding, window, soft cap."""
    import torch

    dtypes = (inputs.torch_dtype(p["dtype"]), kv_dtype(p), out_dtype(p))
    dims = (p["head_dim"], p["head_dim"])
    return (*dtypes, torch.int32, *dims, 0, bool(p["window"]), bool(p["soft_cap"]))


def kv_dtype(p: Params) -> Any:
    """torch's type of the cache, which "same" has of the queries; of NVFP4 that of its bytes."""
    import torch

    if p["kv"] == inputs.NVFP4:
        return torch.uint8
    return inputs.torch_dtype(p["dtype"] if p["kv"] == "same" else p["kv"])


def kv_bytes(p: Params) -> float:
    """Bytes of an element of the cache, with its part of a scale."""
    if p["kv"] == inputs.NVFP4:
        return 0.5 + 1 / inputs.BLOCK_ELEMENTS[inputs.NVFP4]
    return 1 if inputs.FP8 in (p["kv"], p["dtype"]) else inputs.ITEMSIZE[p["dtype"]]


class Cache(NamedTuple):
    """Keys or values: as the kernel reads them, what that stands for, and the scales of NVFP4."""

    held: Tensor
    values: Tensor
    scales: Tensor | None = None


def cache(p: Params, draws: Inputs, *shape: int) -> Cache:
    """Normal keys or values of a shape that ends with the head dimension.

    Those of NVFP4 are quantised here, with no scale but that of each block: 16 bits hold what they stand for exactly.
    """
    import torch

    if p["kv"] != inputs.NVFP4:
        held = draws.normal(*shape, dtype=kv_dtype(p))
        return Cache(held, held)
    found = inputs.fours(draws.normal(*shape, dtype=torch.float32))
    return Cache(found.elements, found.values.to(inputs.torch_dtype(p["dtype"])), found.scales)


FAR = 1024.0  # of a query; a product with `far` is beyond 50 000, scaled and of base 2: what kernels took for infinite


def far(dim: int) -> float:
    """The element of a key that, with one of FAR in the query, brings its logit beyond what a kernel may take for infinite. 16
    bits hold it. dim: of the scale, 1/sqrt(dim)."""
    return 4.0 * math.ceil(8.5 * math.sqrt(dim))


BELOW, ABOVE = "finite logits far below 0", "finite logits far above 0"


def far_logits(
    queries: Sequence[Tensor], keys: Sequence[Tensor], dim: int
) -> dict[str, Callable[[], None]]:
    """All logits far below 0, then far above, and as far apart as they were: elements become whole numbers, whose products
    float32 adds exactly. The first element of the last query and key tells the side."""

    def put(side: float) -> None:
        for tensor in (*queries, *keys):
            tensor.copy_(tensor.float().round())
        queries[-1][..., 0], keys[-1][..., 0] = FAR, side * far(dim)

    return {
        BELOW: partial(put, -1.0),
        ABOVE: partial(put, 1.0),
    }


LARGE = 2**32  # elements of a cache: strides have 32 bits without a sign


def far_pages(
    caches: Sequence[Tensor], table: inputs.PageTable, plan: Callable[[], None]
) -> dict[str, Callable[[], None]]:
    """The pages in use behind element 2^32 of a cache, as in a server's large one: an offset of 32 bits is too small. Nothing
    where this GPU has no room for it, or is none."""
    import torch

    before = 1 + LARGE // max(cache[0].numel() for cache in caches)
    taken = sum(before * cache[0].nbytes for cache in caches)
    if taken > 1 << 30 and not (caches[0].is_cuda and torch.cuda.mem_get_info()[0] > 2 * taken):
        return {}

    def put() -> None:
        for cache in caches:
            moved = cache.new_empty(before + len(cache), *cache.shape[1:])
            moved[before:] = cache
            cache.set_(moved)
        table.indices.add_(before)
        plan()

    return {"pages behind element 2^32 of the cache": put}


def extremes(
    p: Params, q: Tensor, k: Cache, v: Cache, table: inputs.PageTable | None
) -> dict[str, Callable[[], None]]:
    """Inputs of attention at which kernels go wrong (``Launch.extremes``), over pages more than of contiguous keys; none of a
    cache whose elements hold no infinity. Of the two tokens that are changed every query sees the one of the value."""
    if k.held.dtype.itemsize < 2:
        return {}
    # Products of 16 bits end at 65 504.
    found = far_logits([q], [k.held], p["head_dim"]) if p.get("qk") != "f16" else {}
    if table is None:
        return found
    causal = p.get("causal", False)
    seen, other = (table.first, table.last) if causal else (table.last, table.first)

    def behind() -> None:
        for cache in (k.held, v.held):
            cache[table.behind()] = math.nan

    def unseen() -> None:
        q[..., 0], k.held[..., 0] = 1, 0  # what made logits far is gone
        pages, places = other()
        k.held[pages, places, :, 0] = -math.inf

    def infinite() -> None:
        pages, places = seen()
        v.held[pages, places, :, 0] = math.inf

    def alone() -> None:
        pages, places = seen()
        k.held[..., 0] = -math.inf
        k.held[pages, places, :, 0] = 1

    found |= {"NaN behind the last token": behind, "a key of minus infinity": unseen}
    if causal and p["window"]:
        return found
    return found | {"an infinite value": infinite, "one key that is not minus infinity": alone}


def values_bytes(p: Params, work: Callable[[Params], Work]) -> int:
    """Bytes that what a cache stands for takes beside it, for the reference."""
    return work({**p, "kv": "same"}).bytes if p["kv"] == inputs.NVFP4 else 0


def scale_factors(k: Cache, v: Cache) -> dict[str, Any]:
    """Keyword arguments of run() for a cache with scales."""
    return {} if k.scales is None else {"kv_cache_sf": (k.scales, v.scales)}


def no_nvfp4(p: Params) -> str | None:
    """Why a KV cache of NVFP4 cannot be had in this place; None if it can, or is not asked for."""
    if p["kv"] != inputs.NVFP4:
        return None
    if p.get("cores") == "cuda":
        return "a KV cache of NVFP4 is read on tensor cores alone"
    if p["dtype"] == inputs.FP8:
        return "a KV cache of NVFP4 is measured under queries of 16 bits"
    if p["backend"] == "fa3":
        return "fa3 takes no KV cache of NVFP4"
    return None


def with_sums(
    asked: dict[str, bool], puts: Mapping[str, Callable[[], None]]
) -> dict[str, Callable[[], None]]:
    """Extreme inputs, before which the LSE is compared too: of the point's own, and of logits far from 0. asked: the further
    arguments of run()."""

    def with_or_without(lse: bool, put: Callable[[], None] | None = None) -> Callable[[], None]:
        def then() -> None:
            asked.update(return_lse=True) if lse else asked.clear()
            if put is not None:
                put()

        return then

    first = {"its LSE": with_or_without(True)}
    first |= {
        f"the LSE of {one}": with_or_without(True, puts[one])
        for one in (BELOW, ABOVE)
        if one in puts
    }
    return first | {what: with_or_without(False, put) for what, put in puts.items()}


def decoded(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    table: inputs.PageTable,
    soft_cap: float = 0.0,
    window: int = 0,
    sums: bool = False,
) -> Tensor:
    """The reference of decode over pages, in steps that fit into memory; of a window, the tokens in it alone. sums: that of its
    LSE."""
    import torch

    parts = []
    for part, length in table.steps(k.shape[2] * k.shape[3]):
        first = max(0, length - window - 1) if window else 0
        keys, values = (table.gather(cache, part.start, part.stop)[:, first:] for cache in (k, v))
        parts.append(
            reference.decode_sums(q[part], keys, soft_cap)
            if sums
            else reference.decode_attention(q[part], keys, values, soft_cap)
        )
    return torch.cat(parts)


def out_dtype(p: Params) -> Any:
    """fp8 queries have an output of 16 bits."""
    return inputs.torch_dtype("f16" if p["dtype"] == inputs.FP8 else p["dtype"])


def masking(p: Params) -> dict[str, Any]:
    """Keyword arguments of plan() for a soft cap and a window, where there are any."""
    found: dict[str, Any] = {"logits_soft_cap": float(p["soft_cap"])} if p["soft_cap"] else {}
    return found | ({"window_left": p["window"]} if p["window"] else {})


def part(p: Params, phase: str, tokens: int) -> StepPart | None:
    """Attention of a step; None under a window, a soft cap, cached tokens, uneven lengths or values of 8 bits, which steps
    do not mix."""
    plain = p["lengths"] == "even" and p["kv"] == "same" and p["dtype"] != inputs.FP8
    if not plain or p["window"] or p["soft_cap"] or p.get("cached"):
        return None
    heads = (p["qo_heads"], p["kv_heads"], p["head_dim"])
    return StepPart("attention", tokens, p["batch"], *heads, phase=phase)


# Of the logarithm of log-normal lengths. 1: one sequence in six has more than 1.6 times the mean, the longest of 32 nearly
# six times; 0.5: more than 1.45 times, and 2.6.
SIGMAS = {"lognormal_narrow": 0.5, "lognormal": 1.0}
LENGTHS = Written(
    ("even", *SIGMAS, "zipf"),
    r"[1-9]\d*x(0|[1-9]\d*)(_[1-9]\d*x(0|[1-9]\d*))*",
    "1x32768_31x512",
)


def called(a: Params, head_dim: str) -> Params:
    """What plan() is told of heads, types, window and cap, by its arguments; head_dim: what it calls the head dimension. Raises
    RefusedError for what no target measures."""
    both = a.get("data_type")  # of decode: what is not said of the queries or the cache alone
    dtype = element(a.get("q_data_type") or both or "float16")
    kv = a.get("kv_data_type") or both
    window, cap = a.get("window_left", -1), a.get("logits_soft_cap") or 0
    if a.get("pos_encoding_mode", "NONE") != "NONE":
        raise RefusedError("positions are encoded in the kernel")
    if kv is not None and (found := element(kv)) != dtype:
        raise RefusedError(f"a cache of {found} under queries of {dtype}")
    if window == 0:  # a point's 0 is none
        raise RefusedError("a window of the query's own token alone")
    if cap != int(cap):
        raise RefusedError(f"a soft cap of {cap}, which is no whole number")
    return {
        "qo_heads": a["num_qo_heads"],
        "kv_heads": a["num_kv_heads"],
        "head_dim": a[head_dim],
        "dtype": dtype,
        "window": max(0, window),
        "soft_cap": int(cap),
    }


def lengths(p: Params, mean: str) -> list[int]:
    """Tokens of each sequence, at least one; of a list as it says, none as well.

    ``p["lengths"]``: "even", all of the parameter that ``mean`` names; "lognormal", "lognormal_narrow" and
    "zipf", the quantiles of that distribution, longest first, with the same sum; or a list such as
    1x32768_31x512, one sequence of 32768 tokens and 31 of 512.
    """
    kind, batch = p["lengths"], p["batch"]
    if kind == "even":
        return [p[mean]] * batch
    if kind == "zipf":
        return _scaled([1 / rank for rank in range(1, batch + 1)], p[mean])
    if kind in SIGMAS:
        normal = NormalDist(sigma=SIGMAS[kind])
        shares = [(batch - i - 0.5) / batch for i in range(batch)]
        return _scaled([math.exp(normal.inv_cdf(share)) for share in shares], p[mean])
    parts = [tuple(map(int, part.split("x"))) for part in kind.split("_")]
    return [length for count, length in parts for _ in range(count)]


def traits(mean: str) -> Callable[[Params], dict[str, float]]:
    """What tells uneven batches apart: of all tokens, the share that the longest sequence has."""

    def of(p: Params) -> dict[str, float]:
        found = lengths(p, mean)
        return {"longest_share": round(max(found) / max(sum(found), 1), 3)}

    return of


def length_label(p: Params, mean: str) -> str:
    """The lengths in a point's id: "2048" where all are alike, "2048_zipf", or the list."""
    if p["lengths"] == "even":
        return str(p[mean])
    return p["lengths"] if listed(p) else f"{p[mean]}_{p['lengths']}"


def listed(p: Params) -> bool:
    """Whether the lengths are a list, and the mean has no meaning."""
    return re.match(r"\d", p["lengths"]) is not None


def length_refusal(p: Params) -> str | None:
    """Why the lengths cannot be those of the batch; None if they can."""
    found = lengths(p, "batch")  # of a list alone is the number known
    if listed(p) and len(found) != p["batch"]:
        return f"lengths {p['lengths']} are those of {len(found)} sequences, not of {p['batch']}"
    if listed(p) and not any(found):
        return f"lengths {p['lengths']} leave no sequence a token"
    return None


def edges(p: Params, mean: str, kv_heads: int) -> list[Params]:
    """Those of the lengths, and many query heads that share so many KV heads, at a page that is begun."""
    heads = {"batch": 1, "qo_heads": 128, "kv_heads": kv_heads}
    return [*length_edges(p, mean), {**heads, mean: p["page_size"] + 1, "lengths": "even"}]


def length_edges(p: Params, mean: str) -> list[Params]:
    """Lengths at which a kernel goes wrong, in place of a point's: one token, just below, at and above a page, all of
    these in one batch, sequences without a token between and behind others, and an uneven one."""
    page, found = p["page_size"], inputs.around(p["page_size"])
    each = [{mean: length, "lengths": "even"} for length in found]
    mixed = "_".join(f"1x{length}" for length in found)
    return [
        *each,
        {"batch": len(found), "lengths": mixed},
        {"batch": 5, "lengths": f"1x0_1x{page + 1}_2x0_1x1"},
        {"batch": 2, "lengths": f"1x{page}_1x0"},
        {"lengths": "zipf"},
    ]


def _scaled(weights: Sequence[float], mean: int) -> list[int]:
    """Whole numbers from 1 in proportion to the weights, whose sum is exactly that of the mean."""
    total = mean * len(weights)
    spare = total - len(weights)
    exact = [1 + spare * weight / sum(weights) for weight in weights]
    found = [int(value) for value in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: found[i] - exact[i])
    for i in by_rest[: total - sum(found)]:
        found[i] += 1
    return found


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
