"""What FlashInfer's attention launches, and the shape that a launch had: fa2's, whose schedulers split the KV cache, and
trtllm-gen's.

fa2 is written out again from include/flashinfer/attention: scheduler.cuh, decode.cuh, prefill.cuh and cascade.cuh.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil

from ncuflow.format import with_unit
from ncuflow.target import launch as rules
from ncuflow.target.attention import HOPPER, PAGED, RAGGED, lengths
from ncuflow.target.inputs import FP8, ITEMSIZE
from ncuflow.target.launch import Params

NO_POSITIONS = "(flashinfer::PosEncodingMode)0"
# KV tokens of a chunk, at least: min_num_pages_per_batch is max(128 / page_size, 1)
MIN_CHUNK = 128
# Names of trtllm-gen's kernels, by phase.
PREFIX = "fmhaSm"
CONTEXT, GENERATION = rf"{PREFIX}\d+\w*Context", rf"{PREFIX}\d+\w*ForGen"
BACKEND = "trtllm-gen"
BLOCKS = 2  # of an SM: what the prefill scheduler takes for its occupancy

# What the template parameters of prefill kernels mean, fa3's too, and what headers compute of their arguments.
MEANINGS = {
    "MASK_MODE": "mask compiled in",
    "CTA_TILE_Q": "query rows per block (heads of a GQA group are packed into rows)",
    "SAME_KV_STRIDES": "K and V have the same strides: one set of offsets serves both",
    "ENABLE_FP4_REPACK": "the launcher can repack 4-bit K and V; at 16 bits it has no buffer for that",
    "NUM_MMA_Q": "16-row tensor-core tiles of Q per warp",
    "NUM_MMA_KV": "16-token tensor-core tiles of KV per warp and step",
    "NUM_MMA_D_QK": "16-element tiles of the head dimension of Q and K",
    "NUM_MMA_D_VO": "16-element tiles of the head dimension of V and O",
    "NUM_WARPS_Q": "warps that split the query rows",
    "NUM_WARPS_KV": "warps that split the KV tokens",
    "DTypeQKAccum": "type in which QKᵀ is accumulated",
    "CollectiveMainloop": "main loop: Sparse… reads pages, the plain one a contiguous KV",
    "USE_TMA_LOAD_KV": "K and V by TMA; false: a producer warpgroup gathers them with cp.async",
    "CTA_Q": "query rows per block",
    "CTA_KV": "KV tokens per step",
    "NUM_STAGES": "K/V tiles in flight in shared memory",
    "LEFT_SLIDING_WINDOW": "sliding window",
    "CAUSAL": "causal mask",
    "TileScheduler": "how blocks get their tiles",
    "MULTIITEMSCORING": "multi-item scoring mask",
}
COMPUTED: dict[str, tuple[str, Callable[[Mapping[str, int]], int]]] = {
    "CTA_TILE_KV": (
        "KV tokens per step: NUM_MMA_KV × NUM_WARPS_KV × 16",
        lambda n: n["NUM_MMA_KV"] * n["NUM_WARPS_KV"] * 16,
    ),
    "HEAD_DIM_QK": ("NUM_MMA_D_QK × 16", lambda n: n["NUM_MMA_D_QK"] * 16),
    "NUM_THREADS": (
        "threads per block: NUM_WARPS_Q × NUM_WARPS_KV × 32",
        lambda n: n["NUM_WARPS_Q"] * n["NUM_WARPS_KV"] * 32,
    ),
    "NUM_WARPS": (
        "a producer warpgroup, and a consumer warpgroup for each 64 query rows",
        lambda n: (n["CTA_Q"] // 64 + 1) * 4,
    ),
}


def refuse_unknown(p: Params) -> None:
    """Raises NoRuleError for a point that the rules do not know."""
    if p["backend"] not in ("fa2", "fa3", "auto"):
        raise rules.NoRuleError(f"no rule says what {p['backend']} launches")
    if p["kv"] != "same" or p["window"]:
        raise rules.NoRuleError("no rule for a KV cache of 8 or 4 bits, or for a window")


def prefill_launches(
    p: Params, host: rules.Host, queries: Sequence[int], keys: Sequence[int]
) -> Iterator[rules.LaunchConfig]:
    """The attention, and the merge where the KV cache is split; queries, keys: tokens of each sequence."""
    dim, group = p["head_dim"], p["qo_heads"] // p["kv_heads"]
    rows = sum(queries) * group // len(queries)
    tile = 128 if rows > 64 and dim < 256 else 64 if rows > 16 else 16
    page = p["page_size"] if p["layout"] == "paged" else 1
    sequences = [
        (ceil(q * group / tile), max(ceil(k / page), 1)) for q, k in zip(queries, keys, strict=True)
    ]
    longest = max(pages for _, pages in sequences)
    asked = p.get("split", "auto")
    if asked == "off":
        chunk = longest
    elif asked == "auto":
        chunk = shortest_chunk(BLOCKS * host.gpu.sm_count // p["kv_heads"], sequences, page)
    else:
        chunk = int(asked)
    chunks = ceil(longest / chunk)
    blocks = sum(tiles * ceil(pages / chunk) for tiles, pages in sequences)
    shape, shared, warps = _tile(p, tile, host)
    note = f"query tile {tile}" + (
        f", {chunks} chunks of {chunk * page} KV tokens" if chunks > 1 else ""
    )
    block = (32, *warps)
    yield rules.LaunchConfig(_name(p, shape, host), (blocks, 1, p["kv_heads"]), block, shared, note)
    if chunks > 1:
        yield merge(p, sum(queries), host)


def split(
    p: Params,
    kernel: str,
    argument: Callable[[str], str | None],
    kv_len: int,
    queries: int = 1,
) -> rules.SplitKv | None:
    """How the scheduler splits a point (``rules.SplitRule``); kv_len, queries: tokens of each sequence.

    None for what is not fa2, as fa3 does not split and of others no rule is known, and for uneven lengths, of which each
    has chunks of its own number.
    """
    if p["backend"] not in ("fa2", "auto") or kernel == HOPPER.name or p["lengths"] != "even":
        return None
    page = p["page_size"] if p.get("layout", "paged") == "paged" else 1
    rows, tile = queries * p["qo_heads"] // p["kv_heads"], argument("CTA_TILE_Q")
    tiles = ceil(rows / int(tile)) if tile and tile.isdigit() else 1
    pages = ceil(kv_len / page)
    return rules.SplitKv(
        batch=p["batch"],
        pages=pages,
        kv_heads=p["kv_heads"],
        tiles=tiles,
        sm_blocks=BLOCKS if kernel.startswith("BatchPrefill") else None,
        shortest=lambda most: shortest_chunk(most, [(tiles, pages)] * p["batch"], page),
        padded=p.get("launch") == "graph",
    )


def merge(p: Params, rows: int, host: rules.Host) -> rules.LaunchConfig:
    """The kernel that merges the chunks of `rows` query rows."""
    item, dim, kind = ITEMSIZE[p["dtype"]], p["head_dim"], rules.TYPES[p["dtype"]]
    vec = max(16 // item, dim // 32)
    bdx = dim // vec
    bdy = 128 // bdx
    shared = 4 * bdy * dim * item + 128 * 4
    name = f"flashinfer::PersistentVariableLengthMergeStatesKernel<{vec}, {bdx}, {bdy}, 4, {kind}, {kind}, int>"
    fits = host.slots(name, 128, shared) // host.gpu.sm_count
    blocks = min(fits, ceil(rows * p["qo_heads"] / host.gpu.sm_count))
    return rules.LaunchConfig(name, (blocks * host.gpu.sm_count, 1, 1), (bdx, bdy, 1), shared)


def shortest_chunk(most: int, sequences: Sequence[tuple[int, int]], page_size: int) -> int:
    """The shortest chunk, in pages, with which blocks are at most `most`; sequences: query tiles and pages of each."""
    low, high = max(MIN_CHUNK // page_size, 1), max(pages for _, pages in sequences)
    while low < high:
        middle = (low + high) // 2
        if sum(tiles * ceil(pages / middle) for tiles, pages in sequences) > most:
            low = middle + 1
        else:
            high = middle
    return low


def variant(p: Params) -> str:
    """DefaultAttention with its four flags: custom mask, window, soft cap, ALiBi."""
    cap = "true" if p.get("soft_cap") else "false"
    return f"flashinfer::DefaultAttention<false, false, {cap}, false>"


def _tile(p: Params, tile: int, host: rules.Host) -> tuple[str, int, tuple[int, int]]:
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


def _name(p: Params, shape: str, host: rules.Host) -> str:
    kind, mask = rules.TYPES[p["dtype"]], int(bool(p["causal"]))
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


def decode_launches(p: Params, host: rules.Host) -> Iterator[rules.LaunchConfig]:
    """Of DecodePlan: the KV cache is split where whole sequences leave the GPU room."""
    refuse_unknown(p)
    keys = lengths(p, "kv_len")
    if p["cores"] == "tensor":
        plain = {**p, "layout": "paged", "causal": False}
        yield from prefill_launches(plain, host, [1] * p["batch"], keys)
        return
    item, dim, group = ITEMSIZE[p["dtype"]], p["head_dim"], p["qo_heads"] // p["kv_heads"]
    vec = max(16 // item, dim // 32)
    bdx, tile = dim // vec, 4 if group == 1 else 1
    bdz = max(128, bdx * group) // (bdx * group)
    threads = bdx * group * bdz
    shared = 2 * 2 * tile * group * bdz * dim * item + max(tile * threads * 8, 2 * group * bdz * 4)
    name = (
        f"flashinfer::BatchDecodeWithPagedKVCacheKernel<{NO_POSITIONS}, 2, {tile}, {vec}, {bdx}, {group}, {bdz},"
        f" {variant(p)}, Params>"
    )
    slots, pages = (
        host.slots(name, threads, shared),
        [max(ceil(k / p["page_size"]), 1) for k in keys],
    )
    blocks, graph = p["batch"], p["launch"] == "graph"
    split, note = False, ""
    if p["batch"] * p["kv_heads"] < slots:
        low = shortest_chunk(slots // p["kv_heads"], [(1, n) for n in pages], p["page_size"])
        chunks = ceil(max(pages) / low)
        blocks = sum(ceil(n / low) for n in pages)
        split = graph or blocks != p["batch"]
        blocks = slots // p["kv_heads"] if graph else blocks
        if split:
            note = f"KV cache in {with_unit(chunks, 'chunks')} of {low * p['page_size']} tokens"
    yield rules.LaunchConfig(name, (blocks, p["kv_heads"], 1), (bdx, group, bdz), shared, note)
    if split:
        yield merge(p, p["batch"], host)


def decode_shapes(seen: rules.LaunchSignature) -> Iterator[Params]:
    """Heads and their dimension are in the launch, the sequences in the step; the caches' lengths only in what is said of them.

    A launch says how many chunks there are, and that is alike for all long caches.
    """
    said: Params
    if seen.kernel.startswith(PREFIX):
        yield from trtllm_decode_shapes(seen)
        return
    if seen.kernel == "BatchDecodeWithPagedKVCacheKernel":
        group, dim = seen.number("bdy"), seen.number("bdx") * seen.number("vec_size")
        kv_heads = seen.grid[1]
        said = {"kv_heads": kv_heads, "qo_heads": kv_heads * group, "head_dim": dim}
        said["cores"] = "cuda"
        if seen.number("vec_size") > max(8, dim // 32):  # it loads 16 bytes of the cache
            said["kv"] = FP8
    elif seen.kernel == PAGED.name and seen.number("CTA_TILE_Q") == 16:
        dim = 16 * seen.number("NUM_MMA_D_QK")
        said = {"kv_heads": seen.grid[2], "cores": "tensor", "head_dim": dim}
        if heads := seen.sure("qo_heads"):
            said["qo_heads"] = heads
    else:
        raise rules.UnsaidError("no rule tells the shape of this decode from its launch")
    said |= seen.attention() | seen.dtype | ({"launch": "graph"} if seen.graph else {})
    why = "its sequences are not in the launch, whose grid has chunks of them"
    said["batch"] = batch = seen.needed("decodes", why, said)
    if page := seen.sure("page_size"):
        said["page_size"] = page
    if (tokens := seen.known_value("decodes_kv_tokens")) is None:
        why = "the launch is alike for every length of the cache, and nothing else tells it"
        raise rules.UnsaidError(why, said)
    if "qo_heads" not in said:
        raise rules.UnsaidError("query heads are not in the launch of a tensor-core decode", said)
    for kv_len in sorted({max(1, round(count / batch)) for count in tokens}):
        yield {**said, "kv_len": kv_len}


_LAYOUTS = {PAGED.name: "paged", RAGGED.name: "ragged"}


def prefill_shapes(seen: rules.LaunchSignature) -> Iterator[Params]:
    """Of fa2: KV heads and the dimension are in the launch, prompts and their tokens in the step.

    Of several prompts that read more of the cache than their own tokens, how much each does is not said.
    """
    if seen.kernel.startswith(PREFIX):
        yield from trtllm_prefill_shapes(seen)
        return
    layout = _LAYOUTS.get(seen.kernel)
    if layout is None:
        raise rules.UnsaidError("no rule tells the shape of this prefill from its launch")
    if seen.number("CTA_TILE_Q") == 16 and not seen.sure("prompts"):
        raise rules.UnsaidError("its smallest query tile is one of decodes")
    said: Params = {"layout": layout, "kv_heads": seen.grid[2], "backend": "fa2"}
    said |= {"head_dim": 16 * seen.number("NUM_MMA_D_QK"), **seen.attention(), **seen.dtype}
    mask = seen.argument("MASK_MODE")
    if mask in ("causal", "none"):
        said["causal"] = mask == "causal"
    if heads := seen.sure("qo_heads"):
        said["qo_heads"] = heads
    prompts, tokens = seen.sure("prompts"), seen.sure("prompt_tokens")
    cached = seen.sure("prompt_kv_tokens")
    if not prompts or tokens is None or cached is None:
        raise rules.UnsaidError("queries and cache of each prompt are not in the launch", said)
    squares = seen.sure("prompt_squares") or (tokens**2 if prompts == 1 else None)
    if cached < tokens or tokens % prompts or (cached > tokens and prompts > 1):
        said["batch"] = prompts
        raise rules.UnsaidError("what each of several prompts reads of the cache is not said", said)
    if squares is None or squares * prompts != tokens**2:
        raise rules.UnsaidError("the lengths of several prompts are not in the launch", said)
    if "qo_heads" not in said:
        raise rules.UnsaidError("query heads are not in the launch", said)
    before = {"cached": cached - tokens} if cached > tokens else {}
    yield {**said, "batch": prompts, "seq_len": tokens // prompts, **before}


# --- trtllm-gen's, of which names say type, head dimension, page and mask, and the grid the heads ----


def _trtllm_said(seen: rules.LaunchSignature) -> Params:
    """What the name says. Raises UnsaidError of another attention, of another layout and of a window."""
    if seen.argument("value_dim") or seen.argument("sparse") or seen.argument("head_dim") is None:
        raise rules.UnsaidError("no rule tells the shape of this attention from its launch")
    said: Params = {"head_dim": seen.number("head_dim"), "backend": BACKEND}
    if page := seen.argument("page_size"):
        said["page_size"] = int(page)
    queries = seen.argument("type") or seen.argument("queries")
    cache = seen.argument("type") or seen.argument("cache")
    if queries in ("f16", "bf16"):
        said |= {"dtype": queries} | ({} if cache == queries else {"kv": cache})
    for name in ("qo_heads", "kv_heads"):
        if heads := seen.sure(name):
            said[name] = heads
    if seen.argument("mask") == "SlidingOrChunkedCausal":
        raise rules.UnsaidError("its window is not in the launch", said)
    if len({"qo_heads", "kv_heads"} & {*said}) < 2:
        raise rules.UnsaidError("its heads are not in the launch", said)
    return said


def trtllm_prefill_shapes(seen: rules.LaunchSignature) -> Iterator[Params]:
    """Of prompts of one length: their tokens are in the step."""
    said = _trtllm_said(seen) | {
        "layout": "paged" if seen.argument("layout") == "PagedKv" else "ragged"
    }
    said |= {"causal": seen.argument("mask") == "Causal"}
    if seen.argument("type") == FP8:
        said["dtype"] = FP8
    prompts, tokens, read = (
        seen.sure(name) for name in ("prompts", "prompt_tokens", "prompt_kv_tokens")
    )
    if not prompts or tokens is None:
        raise rules.UnsaidError("its prompts and their tokens are not in the launch", said)
    said["batch"] = prompts
    if read is None:
        raise rules.UnsaidError("what of the cache its prompts read is not in the launch", said)
    if prompts > 1 or read < tokens:
        raise rules.UnsaidError("the lengths of several prompts are not in the launch", said)
    yield {**said, "seq_len": tokens} | ({"cached": read - tokens} if read > tokens else {})


def trtllm_decode_shapes(seen: rules.LaunchSignature) -> Iterator[Params]:
    """Of sequences whose caches' lengths are known; their mean stands for each."""
    said = _trtllm_said(seen) | {"cores": "tensor"} | ({"launch": "graph"} if seen.graph else {})
    if seen.argument("type") == FP8:
        raise rules.UnsaidError("no point of decode has queries of 8 bits", said)
    said["batch"] = batch = seen.needed("decodes", "its sequences are not in the launch", said)
    if (tokens := seen.known_value("decodes_kv_tokens")) is None:
        raise rules.UnsaidError("the lengths of its caches are not in the launch", said)
    for kv_len in sorted({max(1, round(count / batch)) for count in tokens}):
        yield {**said, "kv_len": kv_len}
