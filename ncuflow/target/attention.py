"""What the attention targets share: FlashInfer's prefill modules, caches of keys and values, and fa2's launches.

How fa2's scheduler splits the KV cache, and what it launches, is written out again from include/flashinfer/attention:
scheduler.cuh, prefill.cuh and cascade.cuh.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from math import ceil
from typing import Any, NamedTuple

from ncuflow.target.contract import StepPart, Work
from ncuflow.target.inputs import BLOCK_ELEMENTS, PageTable, fours
from ncuflow.target.launch import (
    FP8,
    ITEMSIZE,
    NVFP4,
    GpuFacts,
    Inputs,
    Params,
    Tensor,
    torch_dtype,
)
from ncuflow.target.rules import TYPES, Host, LaunchConfig, NoRuleError, SplitKv
from ncuflow.target.source import Backend, Declaration, no_backend

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
APART, PAGES = ("cutlass", "trtllm-gen", "cute-dsl", "cudnn"), (8, 16, 32, 64)
FA3_FP8 = "fa3 takes keys and values of fp8 with queries of fp8 alone"
# The parameters of a prefill module, beside backend, dtype and head_dim, as they are where a target has none of them.
PLAIN: Params = {"kv": "same", "qk": "f32", "soft_cap": 0, "window": 0}


def refusal(p: Params, gpu: GpuFacts, backends: tuple[Backend, ...]) -> str | None:
    """Why a GPU has not the backend of a point, or that not the point; None if they do."""
    name = p["backend"]
    if why := no_backend(backends, name, gpu):
        return why
    if name not in APART:
        return None
    if p["kv"] != "same" or p["dtype"] == FP8 or p["soft_cap"] or p["window"]:
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
    mixed = p["kv"] != "same" and p["dtype"] != FP8  # which "auto" leaves to fa2
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


def arguments(p: Params) -> tuple[Any, ...]:
    """dtypes of q, kv, o and indices, head dims, position encoding, window, soft cap."""
    import torch

    dtypes = (torch_dtype(p["dtype"]), kv_dtype(p), out_dtype(p))
    dims = (p["head_dim"], p["head_dim"])
    return (*dtypes, torch.int32, *dims, 0, bool(p["window"]), bool(p["soft_cap"]))


def kv_dtype(p: Params) -> Any:
    """torch's type of the cache, which "same" has of the queries; of NVFP4 that of its bytes."""
    import torch

    if p["kv"] == NVFP4:
        return torch.uint8
    return torch_dtype(p["dtype"] if p["kv"] == "same" else p["kv"])


def kv_bytes(p: Params) -> float:
    """Bytes of an element of the cache, with its part of a scale."""
    if p["kv"] == NVFP4:
        return 0.5 + 1 / BLOCK_ELEMENTS[NVFP4]
    return 1 if FP8 in (p["kv"], p["dtype"]) else ITEMSIZE[p["dtype"]]


class Cache(NamedTuple):
    """Keys or values: as the kernel reads them, what that stands for, and the scales of NVFP4."""

    held: Tensor
    values: Tensor
    scales: Tensor | None = None


def cache(p: Params, inputs: Inputs, *shape: int) -> Cache:
    """Normal keys or values of a shape that ends with the head dimension.

    Those of NVFP4 are quantised here, with no scale but that of each block: 16 bits hold what they stand for exactly.
    """
    import torch

    if p["kv"] != NVFP4:
        held = inputs.normal(*shape, dtype=kv_dtype(p))
        return Cache(held, held)
    found = fours(inputs.normal(*shape, dtype=torch.float32))
    return Cache(found.elements, found.values.to(torch_dtype(p["dtype"])), found.scales)


def extremes(
    p: Params, q: Tensor, k: Cache, v: Cache, table: PageTable
) -> dict[str, Callable[[], None]]:
    """Inputs of attention over pages at which kernels go wrong (``Launch.extremes``); none of a cache whose elements hold no
    infinity. Of the two tokens that are changed every query sees the one of the value."""
    if k.held.dtype.itemsize < 2:
        return {}
    causal = p.get("causal", False)
    seen, other = (table.first, table.last) if causal else (table.last, table.first)

    def behind() -> None:
        for cache in (k.held, v.held):
            cache[table.behind()] = math.nan

    def unseen() -> None:
        q[..., 0] = 1
        pages, places = other()
        k.held[pages, places, :, 0] = -math.inf

    def infinite() -> None:
        pages, places = seen()
        v.held[pages, places, :, 0] = math.inf

    found = {"NaN behind the last token": behind, "a key of minus infinity": unseen}
    return found if causal and p["window"] else found | {"an infinite value": infinite}


def values_bytes(p: Params, work: Callable[[Params], Work]) -> int:
    """Bytes that what a cache stands for takes beside it, for the reference."""
    return work({**p, "kv": "same"}).bytes if p["kv"] == NVFP4 else 0


def scale_factors(k: Cache, v: Cache) -> dict[str, Any]:
    """Keyword arguments of run() for a cache with scales."""
    return {} if k.scales is None else {"kv_cache_sf": (k.scales, v.scales)}


def no_nvfp4(p: Params) -> str | None:
    """Why a KV cache of NVFP4 cannot be had in this place; None if it can, or is not asked for."""
    if p["kv"] != NVFP4:
        return None
    if p["dtype"] == FP8:
        return "a KV cache of NVFP4 is measured under queries of 16 bits"
    if p["backend"] == "fa3":
        return "fa3 takes no KV cache of NVFP4"
    return None


def out_dtype(p: Params) -> Any:
    """fp8 queries have an output of 16 bits."""
    return torch_dtype("f16" if p["dtype"] == FP8 else p["dtype"])


def masking(p: Params) -> dict[str, Any]:
    """Keyword arguments of plan() for a soft cap and a window, where there are any."""
    found: dict[str, Any] = {"logits_soft_cap": float(p["soft_cap"])} if p["soft_cap"] else {}
    return found | ({"window_left": p["window"]} if p["window"] else {})


def part(p: Params, phase: str, tokens: int) -> StepPart | None:
    """Attention of a step; None under a window, a soft cap, uneven lengths or values of 8 bits, which steps do not mix."""
    plain = p["lengths"] == "even" and p["kv"] == "same" and p["dtype"] != FP8
    if not plain or p["window"] or p["soft_cap"]:
        return None
    heads = (p["qo_heads"], p["kv_heads"], p["head_dim"])
    return StepPart("attention", tokens, p["batch"], *heads, phase=phase)


NO_POSITIONS = "(flashinfer::PosEncodingMode)0"
# KV tokens of a chunk, at least: min_num_pages_per_batch is max(128 / page_size, 1)
MIN_CHUNK = 128
BLOCKS = 2  # of an SM: what the prefill scheduler takes for its occupancy


def refuse_unknown(p: Params) -> None:
    """Raises NoRuleError for a point that the rules do not know."""
    if p["backend"] not in ("fa2", "fa3", "auto"):
        raise NoRuleError(f"no rule says what {p['backend']} launches")
    if p["kv"] != "same" or p["window"]:
        raise NoRuleError("no rule for a KV cache of 8 or 4 bits, or for a window")


def launches(p: Params, host: Host, kv_len: int) -> Iterator[LaunchConfig]:
    """The attention, and the merge where the KV cache is split; kv_len: tokens of each sequence."""
    dim, group = p["head_dim"], p["qo_heads"] // p["kv_heads"]
    rows = p["seq_len"] * group
    tile = 128 if rows > 64 and dim < 256 else 64 if rows > 16 else 16
    page = p["page_size"] if p["layout"] == "paged" else 1
    length, tiles = ceil(kv_len / page), p["batch"] * ceil(rows / tile)
    most = BLOCKS * host.gpu.sm_count // p["kv_heads"]
    asked = p.get("split", "auto")
    if asked == "off":
        chunk = max(length, 1)
    elif asked == "auto":
        chunk = shortest_chunk(most, tiles, length, page)
    else:
        chunk = int(asked)
    chunks = ceil(length / chunk)
    shape, shared, warps = _tile(p, tile, host)
    note = f"query tile {tile}" + (
        f", {chunks} chunks of {chunk * page} KV tokens" if chunks > 1 else ""
    )
    block = (32, *warps)
    yield LaunchConfig(
        _name(p, shape, host), (tiles * chunks, 1, p["kv_heads"]), block, shared, note
    )
    if chunks > 1:
        yield merge(p, p["batch"] * p["seq_len"], host)


def split(
    p: Params,
    kernel: str,
    argument: Callable[[str], str | None],
    kv_len: int,
    queries: int = 1,
) -> SplitKv | None:
    """How the scheduler splits a point (``rules.SplitRule``); kv_len, queries: tokens of each sequence.

    None for what is not fa2: fa3 does not split, and of others no rule is known.
    """
    if p["backend"] not in ("fa2", "auto"):
        return None
    page = p["page_size"] if p.get("layout", "paged") == "paged" else 1
    rows, tile = queries * p["qo_heads"] // p["kv_heads"], argument("CTA_TILE_Q")
    tiles = ceil(rows / int(tile)) if tile and tile.isdigit() else 1
    pages = ceil(kv_len / page)
    return SplitKv(
        batch=p["batch"],
        pages=pages,
        kv_heads=p["kv_heads"],
        tiles=tiles,
        sm_blocks=BLOCKS if kernel.startswith("BatchPrefill") else None,
        shortest=lambda most: shortest_chunk(most, p["batch"] * tiles, pages, page),
        padded=p.get("launch") == "graph",
    )


def merge(p: Params, rows: int, host: Host) -> LaunchConfig:
    """The kernel that merges the chunks of `rows` query rows."""
    item, dim, kind = ITEMSIZE[p["dtype"]], p["head_dim"], TYPES[p["dtype"]]
    vec = max(16 // item, dim // 32)
    bdx = dim // vec
    bdy = 128 // bdx
    shared = 4 * bdy * dim * item + 128 * 4
    name = f"flashinfer::PersistentVariableLengthMergeStatesKernel<{vec}, {bdx}, {bdy}, 4, {kind}, {kind}, int>"
    fits = host.slots(name, 128, shared) // host.gpu.sm_count
    blocks = min(fits, ceil(rows * p["qo_heads"] / host.gpu.sm_count))
    return LaunchConfig(name, (blocks * host.gpu.sm_count, 1, 1), (bdx, bdy, 1), shared)


def shortest_chunk(most: int, tiles: int, length: int, page_size: int) -> int:
    """The shortest chunk, in pages, with which the blocks of `tiles` sequences or query tiles are at most `most`."""
    low, high = max(MIN_CHUNK // page_size, 1), max(length, 1)
    while low < high:
        middle = (low + high) // 2
        if tiles * ceil(length / middle) > most:
            low = middle + 1
        else:
            high = middle
    return low


def variant(p: Params) -> str:
    """DefaultAttention with its four flags: custom mask, window, soft cap, ALiBi."""
    cap = "true" if p.get("soft_cap") else "false"
    return f"flashinfer::DefaultAttention<false, false, {cap}, false>"


def _tile(p: Params, tile: int, host: Host) -> tuple[str, int, tuple[int, int]]:
    """(tile arguments of KernelTraits, shared memory, warps along queries and along keys).

    Two blocks are to fit onto an SM: the KV tile (NUM_MMA_KV times 16 times the warps) takes what
    shared memory that leaves, up to what the registers hold.
    """
    item, dim = ITEMSIZE[p["dtype"]], p["head_dim"]
    mma_q = 2 if tile > 64 else 1
    warps = (4, 1) if tile > 16 else (1, 4)
    fixed, step = tile * dim * item, 2 * dim * 16 * warps[1] * item
    blocks = 2 if host.gpu.shared_sm >= 2 * (fixed + step) else 1
    room = min(host.gpu.shared_sm // blocks, host.gpu.shared_block)
    most = min((room - fixed) // step, 8 // mma_q)
    mma_kv = next(n for n in (8, 4, 2, 1) if n <= most)
    synced = warps[1] * tile * (dim * 4 + 8) if warps[1] > 1 else 0
    shared = max(fixed + mma_kv * step, synced)
    shape = f"{tile}, {mma_q}, {mma_kv}, {dim // 16}, {dim // 16}, {warps[0]}, {warps[1]}"
    return shape, shared, warps


def _name(p: Params, shape: str, host: Host) -> str:
    kind, mask = TYPES[p["dtype"]], int(bool(p["causal"]))
    accumulated = "__half" if p.get("qk") == "f16" else "float"
    repack = ", true" if host.modern else ""
    traits = (
        f"flashinfer::KernelTraits<(flashinfer::MaskMode){mask}, {shape}, {NO_POSITIONS}, {kind}, {kind}, {kind},"
        f" {accumulated}, int, {variant(p)}{repack}>"
    )
    paged = p["layout"] == "paged"
    strides = "true, " if paged and host.modern else ""
    layout = "Paged" if paged else "Ragged"
    return f"flashinfer::BatchPrefillWith{layout}KVCacheKernel<{strides}{traits}, {layout}Params>"
