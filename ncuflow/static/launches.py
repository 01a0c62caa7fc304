"""Launches of a point on a GPU that need not be there: FlashInfer's host code, written out again.

Which instantiation of which kernel, its grid, block and dynamic shared memory: what plan() and the
launchers compute from the parameters, the SM count, the shared memory and the occupancy of the compiled
kernel. The rules are those of include/flashinfer in 0.6.18 and 0.7.2; a test holds them against every
launch that was recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import ceil, gcd

from ncuflow.format import with_unit
from ncuflow.model import Params
from ncuflow.static import dsl
from ncuflow.static.device import Device
from ncuflow.target.launch import ITEMSIZE

TYPES = {"f16": "__half", "bf16": "__nv_bfloat16"}
NONE = "(flashinfer::PosEncodingMode)0"
MIN_CHUNK = (
    128  # KV tokens of a chunk, at least: min_num_pages_per_batch is max(128 / page_size, 1)
)
FA2_BLOCKS = 2  # of an SM: what the prefill scheduler takes for its occupancy
FA3_BARRIERS = 80  # bytes behind the tiles in shared memory
MOST_SPLITS = 128
# Longest row of a CuTe DSL norm -> threads that share a row; 256 beyond.
ROW_THREADS = ((64, 8), (128, 16), (3072, 32), (6144, 64), (16384, 128))


@dataclass(frozen=True)
class Launch:
    """kernel: its name with template arguments as `kernelname.canonical` writes it; shared: dynamic, bytes."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    note: str = ""

    @property
    def threads(self) -> int:
        return self.block[0] * self.block[1] * self.block[2]

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True)
class Host:
    """A GPU, FlashInfer's version (major, minor) and registers by kernel, which its code asks for.

    registers: of a thread, by canonical name; raises KeyError for a kernel that was not compiled.
    """

    device: Device
    version: tuple[int, int]
    registers: Callable[[str], int]

    @property
    def modern(self) -> bool:
        """0.7 and newer."""
        return self.version >= (0, 7)

    def slots(self, kernel: str, threads: int, shared: int) -> int:
        """Blocks of a kernel that the GPU holds at once."""
        fits = self.device.resident(threads, self.registers(kernel), shared)
        return fits * self.device.sm_count


def launches(target: str, p: Params, host: Host) -> list[Launch]:
    """Launches of FlashInfer's kernels in a point, in order.

    Raises KeyError where a kernel that the rule asks for was not compiled, and for a target without rules.
    """
    if p.get("kv", "same") != "same" or p.get("window"):
        raise KeyError("no rule for a KV cache of 8 bits, or for a window")
    return list(RULES[target](p, host))


def attention_variant(p: Params) -> str:
    """DefaultAttention with its four flags: custom mask, window, soft cap, ALiBi."""
    cap = "true" if p.get("soft_cap") else "false"
    return f"flashinfer::DefaultAttention<false, false, {cap}, false>"


def _decode(p: Params, host: Host) -> Iterator[Launch]:
    if p["cores"] == "tensor":
        yield from _fa2({**p, "seq_len": 1, "layout": "paged", "causal": False}, host, p["kv_len"])
        return
    item, dim, group = ITEMSIZE[p["dtype"]], p["head_dim"], p["qo_heads"] // p["kv_heads"]
    vec = max(16 // item, dim // 32)
    bdx, tile = dim // vec, 4 if group == 1 else 1
    bdz = max(128, bdx * group) // (bdx * group)
    threads = bdx * group * bdz
    shared = 2 * 2 * tile * group * bdz * dim * item + max(tile * threads * 8, 2 * group * bdz * 4)
    name = (
        f"flashinfer::BatchDecodeWithPagedKVCacheKernel<{NONE}, 2, {tile}, {vec}, {bdx}, {group}, {bdz},"
        f" {attention_variant(p)}, Params>"
    )
    slots, pages = host.slots(name, threads, shared), ceil(p["kv_len"] / p["page_size"])
    blocks, graph = p["batch"], p["launch"] == "graph"
    split, note = False, ""
    if p["batch"] * p["kv_heads"] < slots:
        low = shortest_chunk(slots // p["kv_heads"], p["batch"], pages, p["page_size"])
        chunks = ceil(pages / low)
        blocks = p["batch"] * chunks
        split = graph or blocks != p["batch"]
        blocks = slots // p["kv_heads"] if graph else blocks
        if split:
            note = f"KV cache in {with_unit(chunks, 'chunks')} of {low * p['page_size']} tokens"
    yield Launch(name, (blocks, p["kv_heads"], 1), (bdx, group, bdz), shared, note)
    if split:
        yield _merge(p, p["batch"], host)


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


def _merge(p: Params, rows: int, host: Host) -> Launch:
    """The kernel that merges the chunks of `rows` query rows."""
    item, dim, kind = ITEMSIZE[p["dtype"]], p["head_dim"], TYPES[p["dtype"]]
    vec = max(16 // item, dim // 32)
    bdx = dim // vec
    bdy = 128 // bdx
    shared = 4 * bdy * dim * item + 128 * 4
    name = f"flashinfer::PersistentVariableLengthMergeStatesKernel<{vec}, {bdx}, {bdy}, 4, {kind}, {kind}, int>"
    fits = host.slots(name, 128, shared) // host.device.sm_count
    blocks = min(fits, ceil(rows * p["qo_heads"] / host.device.sm_count))
    return Launch(name, (blocks * host.device.sm_count, 1, 1), (bdx, bdy, 1), shared)


def _prefill(p: Params, host: Host) -> Iterator[Launch]:
    return _fa3(p, host) if p["backend"] == "fa3" else _fa2(p, host, p["seq_len"])


def _fa2(p: Params, host: Host, kv_len: int) -> Iterator[Launch]:
    dim, group = p["head_dim"], p["qo_heads"] // p["kv_heads"]
    rows = p["seq_len"] * group
    tile = 128 if rows > 64 and dim < 256 else 64 if rows > 16 else 16
    page = p["page_size"] if p["layout"] == "paged" else 1
    length, tiles = ceil(kv_len / page), p["batch"] * ceil(rows / tile)
    most = FA2_BLOCKS * host.device.sm_count // p["kv_heads"]
    asked = p.get("split", "auto")
    if asked == "off":
        chunk = max(length, 1)
    elif asked == "auto":
        chunk = shortest_chunk(most, tiles, length, page)
    else:
        chunk = int(asked)
    chunks = ceil(length / chunk)
    shape, shared, warps = _fa2_tile(p, tile, host)
    note = f"query tile {tile}" + (
        f", {chunks} chunks of {chunk * page} KV tokens" if chunks > 1 else ""
    )
    block = (32, *warps)
    yield Launch(_fa2_name(p, shape, host), (tiles * chunks, 1, p["kv_heads"]), block, shared, note)
    if chunks > 1:
        yield _merge(p, p["batch"] * p["seq_len"], host)


def _fa2_tile(p: Params, tile: int, host: Host) -> tuple[str, int, tuple[int, int]]:
    """(tile arguments of KernelTraits, shared memory, warps along queries and along keys).

    Two blocks are to fit onto an SM: the KV tile (NUM_MMA_KV times 16 times the warps) takes what
    shared memory that leaves, up to what the registers hold.
    """
    item, dim = ITEMSIZE[p["dtype"]], p["head_dim"]
    mma_q = 2 if tile > 64 else 1
    warps = (4, 1) if tile > 16 else (1, 4)
    fixed, step = tile * dim * item, 2 * dim * 16 * warps[1] * item
    blocks = 2 if host.device.shared_sm >= 2 * (fixed + step) else 1
    room = min(host.device.shared_sm // blocks, host.device.shared_block)
    most = min((room - fixed) // step, 8 // mma_q)
    mma_kv = next(n for n in (8, 4, 2, 1) if n <= most)
    synced = warps[1] * tile * (dim * 4 + 8) if warps[1] > 1 else 0
    shared = max(fixed + mma_kv * step, synced)
    shape = f"{tile}, {mma_q}, {mma_kv}, {dim // 16}, {dim // 16}, {warps[0]}, {warps[1]}"
    return shape, shared, warps


def _fa2_name(p: Params, shape: str, host: Host) -> str:
    kind, mask = TYPES[p["dtype"]], int(bool(p["causal"]))
    accumulated = "__half" if p.get("qk") == "f16" else "float"
    repack = ", true" if host.modern else ""
    traits = (
        f"flashinfer::KernelTraits<(flashinfer::MaskMode){mask}, {shape}, {NONE}, {kind}, {kind}, {kind},"
        f" {accumulated}, int, {attention_variant(p)}{repack}>"
    )
    paged = p["layout"] == "paged"
    strides = "true, " if paged and host.modern else ""
    layout = "Paged" if paged else "Ragged"
    return f"flashinfer::BatchPrefillWith{layout}KVCacheKernel<{strides}{traits}, {layout}Params>"


def _fa3(p: Params, host: Host) -> Iterator[Launch]:
    """A persistent block per SM; its name is left without arguments, which say no more than these tiles."""
    dim, item = p["head_dim"], ITEMSIZE[p["dtype"]]
    keys = 96 if p["layout"] == "paged" else 128 if p["causal"] else 192
    shared = (128 + 2 * 2 * keys) * dim * item + FA3_BARRIERS
    note = f"query tile 128, KV tile {keys}"
    yield Launch(
        "flashinfer::PrefillWithKVCacheKernel",
        (host.device.sm_count, 1, 1),
        (384, 1, 1),
        shared,
        note,
    )


def _rmsnorm(p: Params, host: Host) -> Iterator[Launch]:
    if host.modern and p["norm"] == "auto":
        yield _norm_of_dsl(p, host)
        return
    item, hidden = ITEMSIZE[p["dtype"]], p["hidden"]
    vec = gcd(16 // item, hidden)
    warps = ceil(min(1024, hidden // vec) / 32)
    fused = p["variant"] == "fused_add_rmsnorm"
    shared = 4 * (4 * ceil(warps / 4) + hidden) if fused else 4 * warps
    name = f"flashinfer::norm::{'FusedAdd' * fused}RMSNormKernel<{vec}, {TYPES[p['dtype']]}>"
    yield Launch(name, (p["rows"], 1, 1), (32, warps, 1), shared)


def _norm_of_dsl(p: Params, host: Host) -> Launch:
    """A norm of CuTe DSL, which takes the place of the CUDA one wherever the package is installed, on sm_80 too.

    Several rows share a block; they are in shared memory, with the residual where one is added, if a block may
    have twice as much. Raises KeyError for a row so long that a cluster of blocks shares it.
    """
    kernel, item, hidden = dsl.kernel_of(p), ITEMSIZE[p["dtype"]], p["hidden"]
    if kernel is None:
        raise KeyError(f"the CuTe DSL kernel of {p['variant']}")
    lanes = next((n for most, n in ROW_THREADS if hidden <= most), 256)
    threads = 128 if hidden <= 16384 else 256
    rows, vec = threads // lanes, gcd(16 // item, hidden)
    fused = kernel == "fused_add_rmsnorm"
    tile = (1 + fused) * rows * vec * ceil(hidden / vec / lanes) * lanes * item
    sums = rows * max(lanes // 32, 1) * 4
    most, half = host.device.shared_block, host.device.shared_block // 2
    capability = host.device.compute_capability
    if float(capability) >= 9 and tile + sums > (half if fused else most):
        raise KeyError(f"the clusters of a norm of {hidden} elements")
    name = dsl.name(kernel, p["dtype"], hidden, dsl.dependent(p, capability))
    shared = sums + (tile if tile <= half else 0)
    return Launch(name, (ceil(p["rows"] / rows), 1, 1), (threads, 1, 1), shared)


def _rope(p: Params, host: Host) -> Iterator[Launch]:
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
        split, _ = _rope_split(blocks, host, name, threads, splits, lambda g: ceil(steps / g))
        yield Launch(name, (blocks, split, 1), block, 0)
        return
    blocks = ceil(p["tokens"] / bdy)
    what = "PosIdsCosSinCache" if p["variant"] == "cos_sin_cache" else "PosIds"
    whole = called(what, ", 1, false" * host.modern)
    # Llama 3.1's launcher has no kernel that is parallel over heads
    if not p["variant"].startswith("llama31") and blocks < host.slots(whole, threads, 0):
        yield Launch(called(f"{what}HeadParallelism"), (blocks, heads, 1), block, 0)
        return
    if not host.modern:
        yield Launch(whole, (blocks, 1, 1), block, 0)
        return
    parts = called(what, ", 1, true")
    split, cost = _rope_split(blocks, host, parts, threads, heads, lambda g: ceil(heads / g))
    kept = ceil(blocks / host.slots(whole, threads, 0)) * (heads + 1) <= cost
    yield Launch(whole if kept else parts, (blocks, 1 if kept else split, 1), block, 0)


def _rope_split(
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


def _merge_state(p: Params, host: Host) -> Iterator[Launch]:
    item, dim, kind = ITEMSIZE[p["dtype"]], p["head_dim"], TYPES[p["dtype"]]
    vec = max(16 // item, dim // 32)
    bdx = dim // vec
    if p["variant"] == "merge_states" and p["states"] >= p["seq_len"]:
        bdy = 128 // bdx
        name = f"flashinfer::MergeStatesLargeNumIndexSetsKernel<{vec}, {bdx}, {bdy}, 4, {kind}, {kind}>"
        shared = 4 * bdy * dim * item + 128 * 4
        yield Launch(name, (p["seq_len"], p["heads"], 1), (bdx, bdy, 1), shared)
        return
    what = "MergeStateKernel" if p["variant"] == "merge_state" else "MergeStatesKernel"
    name = f"flashinfer::{what}<{vec}, {kind}, {kind}>"
    yield Launch(name, (p["seq_len"], 1, 1), (bdx, p["heads"], 1), 0)


RULES: dict[str, Callable[[Params, Host], Iterator[Launch]]] = {
    "decode": _decode,
    "prefill": _prefill,
    "rmsnorm": _rmsnorm,
    "rope": _rope,
    "merge_state": _merge_state,
}
