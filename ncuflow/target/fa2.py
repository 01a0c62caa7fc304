"""FlashInfer's fa2 attention: how its scheduler splits the KV cache, and what it launches.

Written out again from include/flashinfer/attention: scheduler.cuh, prefill.cuh and cascade.cuh.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import ceil

from ncuflow.target.dtypes import ITEMSIZE
from ncuflow.target.launch import Params
from ncuflow.target.rules import TYPES, Host, LaunchConfig, NoRuleError, SplitKv

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
