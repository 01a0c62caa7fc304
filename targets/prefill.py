"""Batch prefill attention over a paged or ragged KV cache."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from ncuflow.target import attention, reference
from ncuflow.target.contract import Choice, Knob, Opportunity, Target, Work, uneven
from ncuflow.target.inputs import (
    LENGTHS,
    length_edges,
    length_label,
    length_refusal,
    lengths,
    page_table,
)
from ncuflow.target.launch import (
    FP8,
    ITEMSIZE,
    KV,
    NVFP4,
    TOLERANCE,
    GpuFacts,
    Inputs,
    Launch,
    Params,
    Tensor,
    capability,
    plan_info,
    torch_dtype,
)
from ncuflow.target.rules import Host, LaunchConfig, Rules, Seen, UnsaidError
from ncuflow.target.source import Build, Jit, Source, Symbol
from ncuflow.target.workload import Block, Definition, Entry, RefusedError, Routine, Workload

CHECKED_ROWS = 256  # query rows compared with the reference, over the whole batch
WORKSPACE_BYTES = 128 << 20
_BACKENDS = (
    attention.FA3,
    attention.CUTLASS,
    attention.TRTLLM_GEN,
    attention.CUTE_DSL,
    attention.CUDNN,
)
LAYOUTS = {"cutlass": "ragged", "trtllm-gen": "paged", "cute-dsl": "paged"}  # of one alone
BARRIERS = 80  # bytes behind fa3's tiles in shared memory
# fa3 rounds the probabilities to fp8 as well, whose 3 bits of mantissa are off by up to 6 %, 3 % in the mean square.
FP8_TOLERANCE = 6e-2


def point_id(p: Params) -> str:
    """E.g. paged_S4096_B1_H32_K32_D128_f16_fa2_c; a page size other than 16 is shown."""
    page = f"_P{p['page_size']}" if p["layout"] == "paged" and p["page_size"] != 16 else ""
    mask = "c" if p["causal"] else "f"
    knobs = {"auto": "", "off": "_nosplit"}.get(p["split"], f"_split{p['split']}")
    knobs += "_qk16" if p["qk"] == "f16" else ""
    knobs += f"_cap{p['soft_cap']}" if p["soft_cap"] else ""
    knobs += {FP8: "_kv8", NVFP4: "_kv4"}.get(p["kv"], "")
    knobs += f"_win{p['window']}" if p["window"] else ""
    backend = p["backend"].replace("-", "_")
    return (
        f"{p['layout']}_S{length_label(p, 'seq_len')}_B{p['batch']}_H{p['qo_heads']}_K{p['kv_heads']}"
        f"_D{p['head_dim']}{page}_{p['dtype']}_{backend}_{mask}{knobs}"
    )


def unable(p: Params, gpu: GpuFacts) -> str | None:
    """Why this GPU cannot run the point; None if it can."""
    if why := attention.refusal(p, gpu, _BACKENDS):
        return why
    if p["layout"] != LAYOUTS.get(p["backend"], p["layout"]):
        return f"{p['backend']} is measured over a {LAYOUTS[p['backend']]} KV cache"
    if p["qo_heads"] % p["kv_heads"]:
        return f"{p['qo_heads']} query heads are not a multiple of {p['kv_heads']} KV heads"
    if p["backend"] != "fa2" and (p["split"], p["qk"]) != ("auto", "f32"):
        return "split and qk are settings of fa2"
    if p["qk"] == "f16" and p["dtype"] != "f16":
        return "the fp16 reduction of q·k needs fp16 inputs"
    if p["window"] and not p["causal"]:
        return "a window is measured under a causal mask"
    if p["kv"] == NVFP4 and p["layout"] == "ragged":
        return "a KV cache of NVFP4 is measured in pages"
    return _no_fp8(p, gpu) or attention.no_nvfp4(p) or length_refusal(p)


def _no_fp8(p: Params, gpu: GpuFacts) -> str | None:
    """Why 8 bits cannot be had in these places; None if they can, or are not asked for."""
    if p["dtype"] != FP8:
        return attention.FA3_FP8 if p["kv"] == FP8 and p["backend"] == "fa3" else None
    if p["backend"] == "fa2" or capability(gpu) != (9, 0):
        return "queries of fp8 need fa3, and that compute capability 9.0"
    return "fa3 has no soft cap on the logits of fp8" if p["soft_cap"] else None


def work(p: Params) -> Work:
    """FLOPs and bytes, as FlashInfer's testing/utils.py counts them.

    FLOPs: 2*S*S*H*(D+D) of each sequence, or S*(2*S-S)*H*(D+D) if causal; of a window, the pairs in it.
    Bytes: q, k, v and o once.
    """
    found, h, d = lengths(p, "seq_len"), p["qo_heads"], p["head_dim"]
    scores = sum(s * s for s in found) * (1 if p["causal"] else 2)
    if p["window"]:
        scores = sum(2 * _pairs(s, p["window"] + 1) for s in found)
    query, out = _itemsizes(p)
    return Work(
        flops=scores * h * 2 * d,
        bytes=round(
            sum(found) * d * (h * (query + out) + 2 * p["kv_heads"] * attention.kv_bytes(p))
        ),
        convention="FlashInfer attention_flops: causal counts half; q, k, v, o once"
        + ", with the scales of NVFP4" * (p["kv"] == NVFP4)
        + ", pairs within the window alone" * bool(p["window"]),
    )


def _itemsizes(p: Params) -> tuple[int, int]:
    """Bytes of an element of the query and of the output."""
    return (1, 2) if p["dtype"] == FP8 else (ITEMSIZE[p["dtype"]],) * 2


def _pairs(rows: int, window: int) -> int:
    """Pairs of a row and a token that it sees: of the tokens up to its own, the last ``window``."""
    grows = min(rows, window)
    return grows * (grows + 1) // 2 + (rows - grows) * window


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id, planned.

    The reference covers CHECKED_ROWS query rows of all heads, spread evenly over each sequence
    with its first and last row: a full float32 reference of 16k tokens would take longer than the
    measurements. Every other row must be finite (the output is poisoned with NaN first).
    """
    import torch

    inputs = Inputs(TARGET.point_id(p), seed)
    dtype = torch_dtype(p["dtype"])
    rows = sum(lengths(p, "seq_len"))
    q = inputs.normal(rows, p["qo_heads"], p["head_dim"], dtype=dtype)
    out = torch.empty(q.shape, dtype=attention.out_dtype(p), device=q.device)
    attend = _paged if p["layout"] == "paged" else _ragged
    wrapper, plan, run, keys_values, extremes = attend(p, inputs, q, out)
    plan()
    chosen = _checked(p, q.device)
    return Launch(
        run=run,
        output=lambda: (out[torch.cat(chosen)],),
        reference=lambda: (_reference(p, q, chosen, keys_values),),
        tolerance=FP8_TOLERANCE if p["dtype"] == FP8 else TOLERANCE[p["dtype"]],
        buffers=lambda: (out,),
        plan=plan,
        info=plan_info(wrapper),
        extremes=extremes,
    )


def _settings(p: Params, q: Tensor) -> dict[str, Any]:
    """Keyword arguments of plan(): dtypes, and what differs from its defaults."""
    found = {"causal": p["causal"], "q_data_type": q.dtype, "kv_data_type": attention.kv_dtype(p)}
    if p["dtype"] == FP8:
        found["o_data_type"] = attention.out_dtype(p)
    if p["qk"] == "f16":
        found["use_fp16_qk_reduction"] = True
    return found | asked(p)["plan"] | attention.masking(p)


def asked(p: Params) -> dict[str, Params]:
    """Arguments of the wrapper and of plan(): what a point chooses beside its shape."""
    plan = {"auto": {}, "off": {"disable_split_kv": True}}
    return {
        "wrapper": {"backend": p["backend"]},
        "plan": plan.get(p["split"], {"fixed_split_size": p["split"]}),
    }


def _scales(p: Params, q: Tensor) -> tuple[Tensor, ...]:
    """What run() takes for fp8 queries: the scale of each head of q, k and v."""
    import torch

    if p["dtype"] != FP8:
        return ()
    heads = (p["qo_heads"], p["kv_heads"], p["kv_heads"])
    return tuple(torch.ones(n, dtype=torch.float32, device=q.device) for n in heads)


def _indptr(p: Params, device: Any) -> Tensor:
    import torch

    starts = [0, *accumulate(lengths(p, "seq_len"))]
    return torch.tensor(starts, dtype=torch.int32, device=device)


def _paged(p: Params, inputs: Inputs, q: Tensor, out: Tensor) -> tuple[Any, ...]:
    """(wrapper, plan, run, keys and values of a sequence, extreme inputs) over a shuffled page table."""
    import torch
    from flashinfer import BatchPrefillWithPagedKVCacheWrapper

    table = page_table(inputs, p["batch"], lengths(p, "seq_len"), p["page_size"])
    shape = (len(table.indices), p["page_size"], p["kv_heads"], p["head_dim"])
    k, v = (attention.cache(p, inputs, *shape) for _ in range(2))
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    wrapper = BatchPrefillWithPagedKVCacheWrapper(workspace, "NHD", **asked(p)["wrapper"])
    indptr = _indptr(p, q.device)

    def plan() -> None:
        wrapper.plan(
            indptr,
            table.indptr,
            table.indices,
            table.last_page_len,
            p["qo_heads"],
            p["kv_heads"],
            p["head_dim"],
            p["page_size"],
            **_settings(p, q),
        )

    def keys_values(sequence: int) -> tuple[Tensor, ...]:
        return tuple(table.gather(of.values, sequence, sequence + 1)[0] for of in (k, v))

    def run() -> None:
        wrapper.run(q, (k.held, v.held), *scales, out=out, **attention.scale_factors(k, v))

    scales = _scales(p, q)
    return wrapper, plan, run, keys_values, attention.extremes(p, q, k, v, table)


def _ragged(p: Params, inputs: Inputs, q: Tensor, out: Tensor) -> tuple[Any, ...]:
    """(wrapper, plan, run, keys and values of a sequence, no extreme inputs) over contiguous keys and values."""
    import torch
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    shape = (q.shape[0], p["kv_heads"], p["head_dim"])
    k, v = (inputs.normal(*shape, dtype=attention.kv_dtype(p)) for _ in range(2))
    workspace = torch.zeros(WORKSPACE_BYTES, dtype=torch.uint8, device=q.device)
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(workspace, "NHD", **asked(p)["wrapper"])
    indptr = _indptr(p, q.device)

    def plan() -> None:
        wrapper.plan(
            indptr,
            indptr,
            p["qo_heads"],
            p["kv_heads"],
            p["head_dim"],
            **_settings(p, q),
        )

    def keys_values(sequence: int) -> tuple[Tensor, Tensor]:
        tokens = slice(*indptr[sequence : sequence + 2].tolist())
        return k[tokens], v[tokens]

    scales = _scales(p, q)
    return wrapper, plan, lambda: wrapper.run(q, k, v, *scales, out=out), keys_values, {}


def _checked(p: Params, device: Any) -> list[Tensor]:
    """Row numbers to check of each sequence, int64."""
    import torch

    found, start = [], 0
    for length in lengths(p, "seq_len"):
        wanted = min(length, max(2, CHECKED_ROWS // p["batch"]))
        steps = torch.linspace(0, length - 1, wanted, dtype=torch.float64, device=device)
        found.append(start + steps.round().long())
        start += length
    return found


def _reference(p: Params, q: Tensor, chosen: list[Tensor], keys_values: Any) -> Tensor:
    import torch

    parts = []
    for sequence, rows in enumerate(chosen):
        if not len(rows):  # a sequence of no tokens
            continue
        k, v = keys_values(sequence)
        position = rows - rows[0]
        visible = position + 1 if p["causal"] else torch.full_like(position, len(k))
        parts.append(reference.attention(_rows(q, rows), k, v, visible, p["soft_cap"], p["window"]))
    return torch.cat(parts)


def _rows(x: Tensor, rows: Tensor) -> Tensor:
    """Rows of a tensor, which is gathered as bytes where it is of 8 bits, as few operations take them."""
    import torch

    return x.view(torch.uint8)[rows].view(x.dtype) if x.dtype.itemsize == 1 else x[rows]


def launches(p: Params, host: Host) -> Iterator[LaunchConfig]:
    """Of PrefillPlan, or of PrefillSM90Plan: then a persistent block per SM, whose name is left without
    arguments, which say no more than these tiles."""
    attention.refuse_unknown(p)
    if p["backend"] != "fa3":
        yield from attention.launches(p, host, p["seq_len"])
        return
    dim, item = p["head_dim"], ITEMSIZE[p["dtype"]]
    keys = 96 if p["layout"] == "paged" else 128 if p["causal"] else 192
    shared = (128 + 2 * 2 * keys) * dim * item + BARRIERS
    note = f"query tile 128, KV tile {keys}"
    yield LaunchConfig(
        "flashinfer::PrefillWithKVCacheKernel", (host.gpu.sm_count, 1, 1), (384, 1, 1), shared, note
    )


_LAYOUTS = {
    "BatchPrefillWithPagedKVCacheKernel": "paged",
    "BatchPrefillWithRaggedKVCacheKernel": "ragged",
}


def shapes(seen: Seen) -> Iterator[Params]:
    """Of fa2: KV heads and the dimension are in the launch, prompts and their tokens in the step.

    Tokens of the cache beside the prompts' own are measured by no point: what is not said to be without is not told.
    """
    layout = _LAYOUTS.get(seen.kernel)
    if layout is None:
        raise UnsaidError("no rule tells the shape of this prefill from its launch")
    if seen.number("CTA_TILE_Q") == 16 and not seen.sure("prompts"):
        raise UnsaidError("its smallest query tile is one of decodes")
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
        raise UnsaidError("queries and cache of each prompt are not in the launch", said)
    squares = seen.sure("prompt_squares") or (tokens**2 if prompts == 1 else None)
    if cached != tokens or tokens % prompts:
        said["batch"] = prompts
        raise UnsaidError(
            "prompts that read more of the cache than their own are measured by no point", said
        )
    if squares is None or squares * prompts != tokens**2:
        raise UnsaidError("the lengths of several prompts are not in the launch", said)
    if "qo_heads" not in said:
        raise UnsaidError("query heads are not in the launch", said)
    yield {**said, "batch": prompts, "seq_len": tokens // prompts}


def takes(entry: Entry) -> Block | None:
    """A case of a workload as a block of the sweep; None for one of another kernel."""
    match entry:
        case Routine(name) if name.startswith("BatchPrefillWith"):
            if entry.number("s_qo") != entry.number("s_kv"):
                raise RefusedError(
                    "queries and keys of different lengths are measured by no target"
                )
            block = entry.attention("seq_len") | {"causal": "causal" in entry.options}
            layout = "paged" if "Paged" in name else "ragged"
            return block | {"layout": layout, "backend": entry.backend()}
        case Definition(kind) if kind.startswith(("gqa_paged_prefill", "gqa_ragged")):
            causal = "prefill" not in kind or "causal" in kind or kind == "gqa_paged_prefill"
            block = {"layout": kind.split("_")[1], "backend": "auto", "causal": causal}
            return entry.heads() | block | {"dtype": entry.element} | _lengths_of(entry)
    return None


def _lengths_of(entry: Definition) -> Block:
    page, axes = entry.sizes.get("ps", 1), entry.axes
    found: Block = {"page_size": page} if "ps" in entry.sizes else {}
    if "total_q" not in axes or "len_indptr" not in axes:
        return found
    batch = max(axes["len_indptr"] - 1, 1)
    keys = axes.get("total_kv") or axes.get("num_kv_indices", 0) * page
    if abs(keys - axes["total_q"]) > page * batch:
        raise RefusedError("its keys are more than its queries, which no target measures")
    if entry.indptr is not None:
        return found | entry.pages("seq_len")
    return found | {"batch": batch, "seq_len": max(1, round(axes["total_q"] / batch))}


TARGET = Target(
    name="prefill",
    title="Prefill attention",
    heading="Prefill Attention Kernel",
    order=1,
    parameters={
        "layout": "paged",
        "seq_len": 4096,  # query and KV tokens of each sequence
        "lengths": "even",  # lognormal, zipf: as many tokens, unevenly; 1x32768_31x512: a list
        "batch": 1,
        "qo_heads": 32,
        "kv_heads": 32,
        "head_dim": 128,
        "page_size": 16,  # paged only
        "dtype": "f16",
        "backend": "fa2",  # auto: FlashInfer's choice; the others where FlashInfer has them
        "causal": True,
        "split": "auto",  # of the KV cache over blocks: plan() chooses; a number of pages fixes it
        "qk": "f32",  # f16: use_fp16_qk_reduction
        "soft_cap": 0,  # logits_soft_cap; 0: none
        "kv": "same",  # fp8, nvfp4: keys and values of 8 bits (e4m3), or in pages of 4 with scales, under queries of dtype
        "window": 0,  # window_left: tokens before its own that a row sees; 0: all
    },
    choices={
        "layout": ("paged", "ragged"),
        "lengths": LENGTHS,
        "dtype": (*ITEMSIZE, FP8),  # fp8: queries, keys and values of 8 bits, the output of 16
        "backend": ("fa2", "fa3", "auto", *attention.APART),
        "head_dim": (64, 128, 256),
        "causal": (True, False),
        "split": ("auto", "off", 8, 16, 32),
        "qk": ("f32", "f16"),
        "soft_cap": attention.SOFT_CAPS,
        "kv": KV,
        "window": attention.WINDOWS,
    },
    small={"batch": 1, "seq_len": 128},
    id=point_id,
    unable=unable,
    # and many query heads at a page that is begun
    edges=lambda p: [
        *length_edges(p, "seq_len"),
        {
            "batch": 1,
            "qo_heads": 128,
            "kv_heads": 8,
            "seq_len": p["page_size"] + 1,
            "lengths": "even",
        },
    ],
    free=lambda p: {"backend": "auto", "split": "auto"},
    asked=asked,
    backends=_BACKENDS,
    stops_tracing=lambda p: attention.STOPS_TRACING.get(p["backend"]),
    memory=lambda p: work(p).bytes + attention.values_bytes(p, work) + WORKSPACE_BYTES,
    work=work,
    written=lambda p: sum(lengths(p, "seq_len")) * p["qo_heads"] * p["head_dim"] * _itemsizes(p)[1],
    prepare=prepare,
    part=lambda p: attention.part(p, "prefill", p["batch"] * p["seq_len"]) if p["causal"] else None,
    workload=Workload(takes=takes),
    rules=Rules(
        launches=launches,
        splits=lambda p, kernel, argument: attention.split(
            p, kernel, argument, *(p["seq_len"],) * 2
        ),
        shapes=shapes,
        finishers=("PersistentVariableLengthMergeStatesKernel",),
    ),
    build=Build(
        early=True,
        generate=attention.modules,
        jit=tuple(
            Jit(
                f"prefill_{backend}",
                "flashinfer.prefill:get_batch_prefill_module",
                attention.module_arguments,
                {"backend": backend},
            )
            for backend in ("fa2", "fa3")
        ),
    ),
    source=Source(
        api={
            "python": "flashinfer.prefill.BatchPrefillWithPagedKVCacheWrapper",
            "python_ragged": "flashinfer.prefill.BatchPrefillWithRaggedKVCacheWrapper",
            "jit": "flashinfer.jit.attention.gen_batch_prefill_module",
            "binding": "csrc/batch_prefill.cu",
            "binding_fa3": "csrc/batch_prefill_sm90.cu",
            "scheduler": "include/flashinfer/attention/scheduler.cuh",
        },
        kernels=(
            Symbol("BatchPrefillWithPagedKVCacheKernel", "attention/prefill.cuh"),
            Symbol("BatchPrefillWithRaggedKVCacheKernel", "attention/prefill.cuh"),
            Symbol("PrefillWithKVCacheKernel", "attention/hopper/prefill_sm90.cuh"),
            Symbol("FP8PrefillWithKVCacheKernel", "attention/hopper/quantization/prefill_sm90.cuh"),
            Symbol("PersistentVariableLengthMergeStatesKernel", "attention/cascade.cuh"),
        ),
        functions=tuple(
            Symbol(name, "attention/scheduler.cuh")
            for name in ("PrefillBinarySearchKVChunkSize", "PrefillPlan", "PrefillSM90Plan")
        ),
        sources=(
            "batch_prefill.cu",
            "batch_prefill_jit_binding.cu",
            "batch_prefill_customize_config.jinja",
            "batch_prefill_paged_kernel_inst.jinja",
            "batch_prefill_ragged_kernel_inst.jinja",
            "batch_prefill_sm90.cu",
            "batch_prefill_paged_sm90_kernel_inst.jinja",
        ),
        meanings={
            "MASK_MODE": "mask compiled in",
            "CTA_TILE_Q": "query rows per block (heads of a GQA group are packed into rows)",
            "SAME_KV_STRIDES": "K and V have the same strides: one set of offsets serves both",
            "ENABLE_FP4_REPACK": "staging buffer for 4-bit K and V",
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
        },
        computed={
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
        },
    ),
    prices=(
        Choice("backend", "fa2 or fa3", "backend", "fa2", "fa3"),
        Choice("prefill_trtllm", "fa2 or trtllm-gen", "backend", "fa2", "trtllm-gen"),
        Choice("prefill_cutlass", "fa2 or CUTLASS", "backend", "fa2", "cutlass"),
        Choice(
            "prefill_auto",
            "fa2 or FlashInfer's choice",
            "backend",
            "fa2",
            "auto",
            of_kernels=True,
        ),
        *uneven("prefill", ", whose squares add up to more work"),
        Choice(  # a ragged KV has no pages
            "layout", "Paged or ragged KV", "layout", "paged", "ragged", ignoring=("page_size",)
        ),
        Choice(
            "prefill_page",
            "Page size 16 or 1",
            "page_size",
            16,
            1,
            where="layout == 'paged'",
        ),
        Choice("prefill_split", "KV cache split over blocks or not", "split", "auto", "off"),
        Choice(
            "prefill_chunk", "Split chosen by plan(), or chunks of 16 pages", "split", "auto", 16
        ),
        Choice("qk", "q·k summed in float32 or float16", "qk", "f32", "f16"),
        Choice(
            "soft_cap", "Without or with a soft cap on logits", "soft_cap", 0, 30, given="model"
        ),
        Choice("prefill_fp8", "Queries, keys and values of 16 bits or of 8", "dtype", "f16", FP8),
        Choice("prefill_kv", "KV of 16 bits or of 8 under queries of 16", "kv", "same", FP8),
        Choice(
            "prefill_window", "All tokens or a window of 1024", "window", 0, 1024, given="model"
        ),
    ),
    knobs=(
        Knob(
            "backend",
            "the wrapper; auto by GPU and dtype in plan()",
            Symbol("BatchPrefillWithPagedKVCacheWrapper", "prefill.py"),
            "backend",
            "BatchPrefillWithPagedKVCacheWrapper",
        ),
        Knob(
            "disable_split_kv",
            "plan()",
            Symbol("PrefillSplitQOKVIndptr", "attention/scheduler.cuh"),
            "prefill_split",
            "BatchPrefillWithPagedKVCacheWrapper.plan",
        ),
        Knob(
            "fixed_split_size",
            "plan()",
            Symbol("PrefillSplitQOKVIndptr", "attention/scheduler.cuh"),
            "prefill_chunk",
            "BatchPrefillWithPagedKVCacheWrapper.plan",
        ),
        Knob(
            "use_fp16_qk_reduction",
            "compile time, a module of its own",
            Symbol("compute_qk", "attention/prefill.cuh"),
            "qk",
            "BatchPrefillWithPagedKVCacheWrapper.plan",
        ),
        Knob(
            "logits_soft_cap",
            "compile time, a module of its own; its value at launch",
            Symbol("logits_transform", "attention/prefill.cuh"),
            "soft_cap",
            "BatchPrefillWithPagedKVCacheWrapper.plan",
        ),
    ),
    opportunities=(
        Opportunity(
            what="fa3 instead of fa2",
            shown="fa2 runs {tensor_tflops_counted} on the tensor cores, {tflops_fraction_counter} of what its instruction "
            "(HMMA) can, and that is not a warpgroup's; schedulers of the attention kernel issue in {split_issue_active} of "
            "its cycles",
            where="backend == 'fa2' and split == 'auto' and kv == 'same'",
            symbol=Symbol("PrefillWithKVCacheKernel", "attention/hopper/prefill_sm90.cuh"),
            change='`backend="fa3"`; the default `"auto"` takes it on compute capability 9.0',
            choice="backend",
        ),
        Opportunity(
            what="queries, keys and values of 8 bits",
            shown="the tensor pipe is busy {tensor_pipe_elapsed_pct} of the time, at half the rate that it has for 8 bits",
            where="backend == 'fa3' and dtype == 'f16' and kv == 'same' and soft_cap == 0 and busiest_unit == 'tensor'",
            bound="0.5",
            other_work=True,
            symbol=Symbol(
                "FP8PrefillWithKVCacheKernel", "attention/hopper/quantization/prefill_sm90.cuh"
            ),
            change="`plan(q_data_type=torch.float8_e4m3fn, o_data_type=torch.float16)`, at the price of precision",
            choice="prefill_fp8",
        ),
        Opportunity(
            what="no split of a short KV",
            shown="the merge of the split takes {merge_pct} of the kernels' time ({merge_us}); "
            "the blocks of the attention kernel fill {split_waves} of a wave",
            where="merge_pct > 0 and split == 'auto'",
            bound="merge_pct / 100",
            symbol=Symbol("PrefillSplitQOKVIndptr", "attention/scheduler.cuh"),
            change="`plan(disable_split_kv=True)` where the merge takes longer than the attention",
            choice="prefill_split",
            relaunches=True,
        ),
        Opportunity(
            what="a merge kernel for few chunks",
            shown="merging takes {merge_us}, in which DRAM is busy {merge_dram_pct} of the time and instruction issue "
            "{merge_issue_pct}: a block merges one row of one head at a time, with a "
            "thread row for each chunk, most of which hold none",
            where="merge_pct > 0 and split == 'auto'",  # chunks that somebody asked for are not plan()'s
            bound="merge_pct / 100 * (1 - merge_dram_pct / 100)",
            symbol=Symbol("PersistentVariableLengthMergeStatesKernel", "attention/cascade.cuh"),
            change="give idle thread rows other rows and heads, as `MergeStatesKernel` does",
            how="instantiate `VariableLengthMergeStates` with a smaller `bdy` for few chunks, and `ncuflow try` the patch",
        ),
        Opportunity(
            what="chunks of 16 pages",
            shown="launch and tail take {tail_pct} of the time, missing blocks {blocks_pct}",
            where="backend == 'fa2' and split == 'auto' and tail_pct + blocks_pct > 20",
            bound="(tail_pct + blocks_pct) / 100",
            symbol=Symbol("PrefillBinarySearchKVChunkSize", "attention/scheduler.cuh"),
            change="`plan(fixed_split_size=16)`",
            choice="prefill_chunk",
            relaunches=True,
        ),
        Opportunity(
            what="the longest query tiles first",
            shown="launch and tail take {tail_pct} of the time: plan() numbers the query tiles of a causal mask from the "
            "lightest to the heaviest, so that a heavy one starts last",
            where="backend == 'fa2' and causal and tail_pct >= 10 and waves > 1 and merge_pct == 0 and split == 'auto'",
            bound="tail_pct / 100",
            symbol=Symbol("PrefillSplitQOKVIndptr", "attention/scheduler.cuh"),
            change="number the query tiles of each request from the last to the first",
            how="turn the loop over `q_tile_idx` in `PrefillSplitQOKVIndptr` around, and `ncuflow try` the patch",
        ),
        Opportunity(
            what="contiguous K and V instead of pages",
            shown="pages are gathered by a producer warpgroup with cp.async, with no TMA, and CTA_KV is smaller: "
            "schedulers issue in {issue_active} of their active cycles, "
            "the tensor pipe is busy {tensor_pipe_elapsed_pct} of the time",
            where="backend == 'fa3' and layout == 'paged'",
            bound="latency_pct / 100",
            symbol=Symbol("load", "attention/hopper/sparse_mainloop.cuh"),
            change="prefill new tokens through `BatchPrefillWithRaggedKVCacheWrapper` before they are appended to the cache",
            choice="layout",
        ),
        Opportunity(
            what="TMA for pages",
            shown="the tensor pipe is busy {tensor_pipe_elapsed_pct} of the time, warps only wait {latency_pct} of it; "
            "schedulers issue in {issue_active} of their active cycles",
            where="backend == 'fa3' and layout == 'paged' and page_size >= 16",
            bound="latency_pct / 100",
            symbol=Symbol("load", "attention/hopper/sparse_mainloop.cuh"),
            change="load whole pages by TMA, which frees registers of the producer",
            how="a collective main loop with a TMA descriptor over pages; what contiguous K and V bring is what to "
            "expect of it",
        ),
        Opportunity(
            what="more requests in one plan()",
            shown="the grid is {waves} waves: missing blocks take {blocks_pct} of the time",
            where="blocks_pct >= 20 and batch == 1 and split == 'auto'",
            bound="blocks_pct / 100",
            other_work=True,
            symbol=Symbol("PrefillPlan", "attention/scheduler.cuh"),
            change="batch the prefills of several requests (`qo_indptr`)",
            how="points with a larger `batch` in the sweep, time per sequence",
        ),
    ),
)
