"""Batch prefill attention over a paged or ragged KV cache."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

from ncuflow.target import attention, attention_launches, inputs, reference, workload
from ncuflow.target.attention import FA3, LENGTHS, lengths, plan_info
from ncuflow.target.contract import Choice, Target, Work, uneven
from ncuflow.target.launch import (
    GpuFacts,
    Host,
    Inputs,
    Launch,
    LaunchConfig,
    Params,
    Rules,
    Tensor,
    Written,
    capability,
    returning,
)
from ncuflow.target.source import Backend, Build, Jit, Source, Symbol, rival, symbols

MASK = "a mask that leaves rows one key or none"
MOST_MASKED = 1 << 24  # its queries times keys
CHECKED_ROWS = 256  # query rows compared with the reference, over the whole batch
TORCH = "torch"  # its scaled_dot_product_attention, over tensors of one length a sequence
_BACKENDS = (FA3, *attention.OTHERS, Backend(TORCH, rival=("torch",)))
_WRAPPER = Symbol("BatchPrefillWithPagedKVCacheWrapper", "prefill.py")
_FP8_KERNEL = Symbol(
    "FP8PrefillWithKVCacheKernel", "attention/hopper/quantization/prefill_sm90.cuh"
)
_CHUNKS = "PrefillBinarySearchKVChunkSize"
# Of one alone.
LAYOUTS = {"cutlass": "ragged", TORCH: "ragged", "trtllm-gen": "paged", "cute-dsl": "paged"}
BARRIERS = 80  # bytes behind fa3's tiles in shared memory
# fa3 rounds the probabilities to fp8 as well, whose 3 bits of mantissa are off by up to 6 %, 3 % in the mean square.
FP8_TOLERANCE = 6e-2


def point_id(p: Params) -> str:
    """E.g. paged_S4096_B1_H32_K32_D128_f16_fa2_c; a page size other than 16 and cached tokens are shown."""
    page = f"_P{p['page_size']}" if p["layout"] == "paged" and p["page_size"] != 16 else ""
    mask = "c" if p["causal"] else "f"
    knobs = {"auto": "", "off": "_nosplit"}.get(p["split"], f"_split{p['split']}")
    knobs += "_qk16" if p["qk"] == "f16" else ""
    kv, cap, window = attention.marks(p)
    knobs += f"{cap}{kv}{window}"
    backend = p["backend"].replace("-", "_")
    cached = f"_C{p['cached']}" if p["cached"] else ""
    return (
        f"{p['layout']}_S{attention.length_label(p, 'seq_len')}{cached}_B{p['batch']}_H{p['qo_heads']}_K{p['kv_heads']}"
        f"_D{p['head_dim']}{page}_{p['dtype']}_{backend}_{mask}{knobs}"
    )


def unable(p: Params, gpu: GpuFacts) -> str | None:
    """Why this GPU cannot run the point; None if it can."""
    if why := attention.refusal(p, gpu, _BACKENDS):
        return why
    plain = {"lengths": "even", "cached": 0, "window": 0, "soft_cap": 0}
    if p["backend"] == TORCH and not plain.items() <= p.items():
        return "torch's attention is measured of even lengths, without cached tokens, a window or a soft cap"
    if p["layout"] != LAYOUTS.get(p["backend"], p["layout"]):
        return f"{p['backend']} is measured over a {LAYOUTS[p['backend']]} KV cache"
    if why := attention.ungrouped(p):
        return why
    if p["backend"] != "fa2" and (p["split"], p["qk"]) != ("auto", "f32"):
        return "split and qk are settings of fa2"
    if p["qk"] == "f16" and p["dtype"] != "f16":
        return "the fp16 reduction of q·k needs fp16 inputs"
    if p["window"] and (p["cached"] or not p["causal"]):
        return "a window is measured under a causal mask, without cached tokens"
    if p["kv"] == inputs.NVFP4 and p["layout"] == "ragged":
        return "a KV cache of NVFP4 is measured in pages"
    return _no_fp8(p, gpu) or attention.no_nvfp4(p) or attention.length_refusal(p)


def _no_fp8(p: Params, gpu: GpuFacts) -> str | None:
    """Why 8 bits cannot be had in these places; None if they can, or are not asked for."""
    if p["dtype"] != inputs.FP8:
        if p["backend"] == TORCH and p["kv"] != "same":
            return "torch takes keys and values of the queries' type"
        return attention.FA3_FP8 if p["kv"] == inputs.FP8 and p["backend"] == "fa3" else None
    if p["backend"] in ("fa2", TORCH) or capability(gpu) != (9, 0):
        return "queries of fp8 need fa3, and that compute capability 9.0"
    return "fa3 has no soft cap on the logits of fp8" if p["soft_cap"] else None


def work(p: Params) -> Work:
    """FLOPs and bytes, as FlashInfer's testing/utils.py counts them.

    FLOPs: of each sequence of S queries and T keys 2*S*T*H*(D+D), or S*(2*T-S)*H*(D+D) if causal; of a window, the pairs
    in it. Bytes: q, k, v and o once.
    """
    found, h, d = lengths(p, "seq_len"), p["qo_heads"], p["head_dim"]
    keys = kv_lengths(p)
    scores = sum(s * (2 * t - (s if p["causal"] else 0)) for s, t in zip(found, keys, strict=True))
    if p["window"]:
        scores = sum(2 * _pairs(s, p["window"] + 1) for s in found)
    query, out = _itemsizes(p)
    return Work(
        flops=scores * h * 2 * d,
        bytes=round(
            sum(found) * d * h * (query + out)
            + sum(keys) * d * 2 * p["kv_heads"] * attention.kv_bytes(p)
        ),
        convention="FlashInfer attention_flops: causal counts half; q, k, v, o once"
        + attention.counted(p, "pairs"),
    )


def kv_lengths(p: Params) -> list[int]:
    """Tokens that each sequence has keys and values of: its own, behind those that are cached."""
    return [length + p["cached"] if length else 0 for length in lengths(p, "seq_len")]


def _itemsizes(p: Params) -> tuple[int, int]:
    """Bytes of an element of the query and of the output."""
    return (1, 2) if p["dtype"] == inputs.FP8 else (inputs.ITEMSIZE[p["dtype"]],) * 2


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
    import flashinfer
    import torch

    draws = Inputs(TARGET.point_id(p), seed)
    dtype = inputs.torch_dtype(p["dtype"])
    rows = sum(lengths(p, "seq_len"))
    q = draws.normal(rows, p["qo_heads"], p["head_dim"], dtype=dtype)
    out = torch.empty(q.shape, dtype=attention.out_dtype(p), device=q.device)
    paged, found = p["layout"] == "paged", kv_lengths(p)
    table = inputs.page_table(draws, p["batch"], found, p["page_size"]) if paged else None
    pages = (len(table.indices), p["page_size"]) if table else (sum(found),)
    k, v = (attention.cache(p, draws, *pages, p["kv_heads"], p["head_dim"]) for _ in range(2))
    indptr, kv_indptr = (_indptr(each, q.device) for each in (lengths(p, "seq_len"), found))
    if p["backend"] == TORCH:
        return _torch(p, q, k.held, v.held)
    kind = f"BatchPrefillWith{'Paged' if paged else 'Ragged'}KVCacheWrapper"
    wrapper = getattr(flashinfer, kind)(attention.workspace(q), "NHD", **asked(p)["wrapper"])
    heads, settings = attention.sizes(p)[: 4 if paged else 3], _settings(p, q)
    caches = ((k.held, v.held),) if paged else (k.held, v.held)
    given = (q, *caches, *_scales(p, q))
    factors = attention.scale_factors(k, v)
    seen = _Seen(table, kv_indptr)
    lse: dict[str, bool] = {}
    sums: list[Tensor] = []

    def plan() -> None:
        where = seen.table.planned if seen.table else (seen.indptr,)
        wrapper.plan(indptr, *where, *heads, **settings, **seen.masking())

    def run() -> None:
        found = wrapper.run(*given, out=out, **factors, **lse)
        if lse:
            sums[:] = found[1:]

    def expected() -> tuple[Tensor, ...]:
        shown = partial(_reference, p, q, chosen, partial(seen.of, (k.values, v.values)), seen.mask)
        return (shown(), shown(sums=True)) if lse else (shown(),)

    plan()
    chosen = _checked(p, q.device)
    info, put = plan_info(wrapper), attention.extremes(p, q, k, v, table)
    if p["backend"] in ("fa2", "fa3", "auto"):
        far, put = put.get(attention.BELOW), attention.with_sums(lse, put)
        for what, change in _emptied(p, draws, info, seen, chosen).items():
            put[what] = partial(_put, change, far, (k.held, v.held), lse, plan)
    return Launch(
        run=run,
        output=lambda: tuple(each[torch.cat(chosen)] for each in (out, *(sums if lse else ()))),
        reference=expected,
        tolerance=FP8_TOLERANCE if p["dtype"] == inputs.FP8 else inputs.TOLERANCE[p["dtype"]],
        buffers=lambda: (out,),
        plan=plan,
        info=info,
        extremes=put,
        untold=(MASK,),
    )


@dataclass
class _Seen:
    """What queries see: keys in pages or one after the other, of which a mask [rows, keys] of a single sequence leaves some."""

    table: inputs.PageTable | None
    indptr: Tensor
    mask: Tensor | None = None

    def masking(self) -> dict[str, Tensor]:
        """Keyword arguments of plan(): the mask by its bits, as it would compile a module to make them."""
        if self.mask is None:
            return {}
        import torch

        flat = self.mask.flatten().to(torch.uint8)
        bits = torch.nn.functional.pad(flat, (0, -len(flat) % 8)).view(-1, 8)
        place = torch.arange(8, dtype=torch.uint8, device=bits.device)
        return {"packed_custom_mask": (bits << place).sum(-1, dtype=torch.uint8)}

    def of(self, caches: tuple[Tensor, ...], sequence: int) -> tuple[Tensor, ...]:
        """The keys and values of a sequence."""
        if self.table:
            return tuple(self.table.gather(of, sequence, sequence + 1)[0] for of in caches)
        tokens = slice(*self.indptr[sequence : sequence + 2].tolist())
        return tuple(of[tokens] for of in caches)


def _emptied(
    p: Params, draws: Inputs, info: Params, seen: _Seen, chosen: list[Tensor]
) -> dict[str, Callable[[], None]]:
    """What leaves rows without a key, of which the output is zeros and the LSE minus infinity: a mask of its own, where fa2 takes
    one, and a causal one over fewer keys than queries."""
    import torch

    if p["window"] or inputs.FP8 in (p["dtype"], p["kv"]) or p["kv"] == inputs.NVFP4:
        return {}
    queries, found = lengths(p, "seq_len"), kv_lengths(p)
    pairs = queries[0] * found[0]

    def masked() -> None:
        row = torch.arange(queries[0], device=chosen[0].device)
        seen.mask = torch.zeros(queries[0], found[0], dtype=torch.bool, device=row.device)
        seen.mask[row, row * 31 % found[0]] = True
        seen.mask[chosen[0][1::2]] = False

    def short() -> None:
        half = [-(-length // 2) for length in queries]
        seen.mask, seen.indptr = None, _indptr(half, seen.indptr.device)
        if seen.table:
            seen.table = inputs.page_table(draws, p["batch"], half, p["page_size"])

    puts: dict[str, Callable[[], None]] = {}
    if p["batch"] == 1 and info.get("backend") == "fa2" and pairs <= MOST_MASKED:
        puts[MASK] = masked
    return puts | ({"fewer keys than queries": short} if p["causal"] else {})


def _put(
    change: Callable[[], None],
    far: Callable[[], None] | None,
    caches: tuple[Tensor, ...],
    lse: dict[str, bool],
    plan: Callable[[], None],
) -> None:
    """An extreme input of other keys than the point's, with logits far below 0; what others left in the caches is gone."""
    for cache in caches:
        cache.nan_to_num_(0.0, 0.0, 0.0)
    if far:
        far()
    lse.update(return_lse=True)
    change()
    plan()


def _torch(p: Params, q: Tensor, k: Tensor, v: Tensor) -> Launch:
    """What torch takes for attention, of [batch, heads, tokens, head_dim] by strides; it allocates the output."""
    import torch

    attend = torch.nn.functional.scaled_dot_product_attention
    given = [x.unflatten(0, (p["batch"], -1)).transpose(1, 2) for x in (q, k, v)]
    grouped = p["qo_heads"] != p["kv_heads"]
    run, product = returning(partial(attend, *given, is_causal=p["causal"], enable_gqa=grouped))
    chosen = _checked(p, q.device)

    def keys_values(sequence: int) -> tuple[Tensor, ...]:
        return given[1][sequence].transpose(0, 1), given[2][sequence].transpose(0, 1)

    return Launch(
        run=run,
        output=lambda: (product()[0].transpose(1, 2).flatten(0, 1)[torch.cat(chosen)],),
        reference=lambda: (_reference(p, q, chosen, keys_values),),
        tolerance=inputs.TOLERANCE[p["dtype"]],
        buffers=product,
        allocates=True,
        info={"backend": TORCH} | rival(_BACKENDS, p),
    )


def _settings(p: Params, q: Tensor) -> dict[str, Any]:
    """Keyword arguments of plan(): dtypes, and what differs from its defaults."""
    found = {"causal": p["causal"], "q_data_type": q.dtype, "kv_data_type": attention.kv_dtype(p)}
    if p["dtype"] == inputs.FP8:
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

    if p["dtype"] != inputs.FP8:
        return ()
    heads = (p["qo_heads"], p["kv_heads"], p["kv_heads"])
    return tuple(torch.ones(n, dtype=torch.float32, device=q.device) for n in heads)


def _indptr(found: list[int], device: Any) -> Tensor:
    import torch

    return torch.tensor([0, *accumulate(found)], dtype=torch.int32, device=device)


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


def _reference(
    p: Params,
    q: Tensor,
    chosen: list[Tensor],
    keys_values: Any,
    mask: Tensor | None = None,
    sums: bool = False,
) -> Tensor:
    """Of the rows that are checked; mask: of its own; sums: that of the LSE."""
    import torch

    parts = []
    for sequence, rows in enumerate(chosen):
        if not len(rows):  # a sequence of no tokens
            continue
        k, v = keys_values(sequence)
        position = rows - rows[0] + len(k) - lengths(p, "seq_len")[sequence]
        visible = position + 1 if p["causal"] else torch.full_like(position, len(k))
        visible = visible if mask is None else mask[rows]
        queries, how = inputs.gathered(q, rows), (visible, p["soft_cap"], p["window"])
        parts.append(
            reference.attention_sums(queries, k, *how)
            if sums
            else reference.attention(queries, k, v, *how)
        )
    return torch.cat(parts)


def launches(p: Params, host: Host) -> Iterator[LaunchConfig]:
    """Of PrefillPlan, or of PrefillSM90Plan: then a persistent block per SM, whose name is left without
    arguments, which say no more than these tiles."""
    attention_launches.refuse_unknown(p)
    hopper = p["backend"] == "auto" and host.gpu.compute_capability == "9.0"
    if p["backend"] != "fa3" and not hopper:
        yield from attention_launches.prefill_launches(
            p, host, lengths(p, "seq_len"), kv_lengths(p)
        )
        return
    dim, item = p["head_dim"], inputs.ITEMSIZE[p["dtype"]]
    keys = 96 if p["layout"] == "paged" else 128 if p["causal"] else 192
    shared = (128 + 2 * 2 * keys) * dim * item + BARRIERS
    note = f"query tile 128, KV tile {keys}"
    yield LaunchConfig(
        "flashinfer::PrefillWithKVCacheKernel", (host.gpu.sm_count, 1, 1), (384, 1, 1), shared, note
    )


def takes(entry: workload.Entry) -> workload.Block | None:
    """A case of a workload as a block of the sweep; None for one of another kernel."""
    match entry:
        case workload.Routine(name) if name.startswith("BatchPrefillWith"):
            block = entry.attention("seq_len") | {"causal": "causal" in entry.options}
            block["seq_len"], cached = entry.number("s_qo"), block["seq_len"] - entry.number("s_qo")
            if cached < 0 or (cached and "lengths" in block):
                raise workload.RefusedError(
                    "queries without keys of their own, and uneven lengths, are measured by no target"
                )
            block |= {"cached": cached} if cached else {}
            layout = "paged" if "Paged" in name else "ragged"
            return block | {"layout": layout, "backend": entry.backend()}
        case workload.Definition(kind) if kind.startswith(("gqa_paged_prefill", "gqa_ragged")):
            causal = "prefill" not in kind or "causal" in kind or kind == "gqa_paged_prefill"
            block = {"layout": kind.split("_")[1], "backend": "auto", "causal": causal}
            return entry.heads() | block | {"dtype": entry.element} | entry.prompts("seq_len")
    return None


def _called(layout: str, a: Params) -> workload.Block:
    """The point that an engine planned, by the arguments of plan()."""
    queries = [end - begin for begin, end in pairwise(a["qo_indptr"].tolist())]
    if layout == "paged":
        table = (a["paged_kv_indptr"], a["paged_kv_last_page_len"], a["page_size"])
        keys = workload.cached_tokens(*table)
    else:
        keys = [end - begin for begin, end in pairwise(a["kv_indptr"].tolist())]
    cached = {key - query for key, query in zip(keys, queries, strict=True)}
    if len(cached) > 1:
        raise workload.RefusedError("what is cached of its sequences is of several lengths")
    if a.get("custom_mask") is not None or a.get("packed_custom_mask") is not None:
        raise workload.RefusedError("it has a mask of its own")
    if a.get("head_dim_vo") not in (None, a["head_dim_qk"]):
        raise workload.RefusedError("heads of keys and values of different sizes")
    return (
        workload.of_lengths(queries, "seq_len")
        | {
            **attention.called(a, "head_dim_qk"),
            "cached": cached.pop(),
            "causal": a.get("causal", False),
            "backend": a["self"]._backend,
            "layout": layout,
        }
        | ({"page_size": a["page_size"]} if layout == "paged" else {})
    )


TARGET = Target(
    name="prefill",
    title="Prefill attention",
    heading="Prefill Attention Kernel",
    order=1,
    parameters={
        "layout": ("paged", "ragged"),
        "seq_len": 4096,  # query tokens of each sequence, and KV tokens beside those that are cached
        "lengths": LENGTHS,  # even; lognormal, lognormal_narrow, zipf: as many tokens, unevenly; 1x32768_31x512: a list
        # KV tokens of each sequence before its own: those of a chunked prompt, or of a prefix that is in the cache
        "cached": Written((0, 8192), r"[1-9]\d{0,8}", "2048"),
        "batch": 1,
        "qo_heads": 32,
        "kv_heads": 32,
        "head_dim": 128,
        "page_size": 16,  # paged only
        # fp8: queries, keys and values of 8 bits, the output of 16
        "dtype": (*inputs.ITEMSIZE, inputs.FP8),
        "backend": ("fa2", "fa3", "auto", *attention.APART, TORCH),  # auto: FlashInfer's choice
        "causal": (True, False),
        "split": ("auto", "off", 8, 16, 32),  # of the KV: as plan() chooses, or chunks of pages
        "qk": ("f32", "f16"),  # f16: use_fp16_qk_reduction
        "soft_cap": attention.SOFT_CAPS,  # logits_soft_cap; 0: none
        "kv": attention.KV,  # fp8, nvfp4: keys and values of 8 bits (e4m3), or in pages of 4 with scales, under queries of dtype
        "window": attention.WINDOWS,  # window_left: tokens before its own that a row sees; 0: all
    },
    choices={"head_dim": (64, 128, 256)},
    small={"batch": 1, "seq_len": 128},
    id=point_id,
    unable=unable,
    edges=lambda p: attention.edges(p, "seq_len", kv_heads=8),
    free=lambda p: {"backend": "auto", "split": "auto"},
    resolves=attention.resolves,
    asked=asked,
    backends=_BACKENDS,
    stops_tracing=lambda p: attention.STOPS_TRACING.get(p["backend"]),
    memory=lambda p: work(p).bytes + attention.values_bytes(p, work) + attention.WORKSPACE_BYTES,
    work=work,
    written=lambda p: sum(lengths(p, "seq_len")) * p["qo_heads"] * p["head_dim"] * _itemsizes(p)[1],
    prepare=prepare,
    part=lambda p: attention.part(p, "prefill", p["batch"] * p["seq_len"]) if p["causal"] else None,
    workload=workload.Workload(
        takes=takes,
        calls=tuple(
            workload.EngineCall(
                "flashinfer.prefill",
                f"BatchPrefillWith{layout.capitalize()}KVCacheWrapper.run",
                partial(_called, layout),
                "plan",
            )
            for layout in ("paged", "ragged")
        ),
    ),
    rules=Rules(
        launches=launches,
        splits=lambda p, kernel, argument: attention_launches.split(
            p, kernel, argument, p["seq_len"] + p["cached"], p["seq_len"]
        ),
        shapes=attention_launches.prefill_shapes,
        named=attention_launches.CONTEXT,
        finishers=(attention.MERGE.name,),
        tells=attention.tells,
    ),
    build=Build(
        early=True,
        generate=lambda p: [] if p["backend"] == TORCH else attention.modules(p),
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
        kernels=(attention.PAGED, attention.RAGGED, attention.HOPPER, _FP8_KERNEL, attention.MERGE),
        functions=symbols("attention/scheduler.cuh", _CHUNKS, "PrefillPlan", "PrefillSM90Plan"),
        sources=(
            "batch_prefill.cu",
            "batch_prefill_jit_binding.cu",
            "batch_prefill_customize_config.jinja",
            "batch_prefill_paged_kernel_inst.jinja",
            "batch_prefill_ragged_kernel_inst.jinja",
            "batch_prefill_sm90.cu",
            "batch_prefill_sm90_jit_binding.cu",
            "batch_prefill_sm90_customize_config.jinja",
            "batch_prefill_paged_sm90_kernel_inst.jinja",
            "batch_prefill_ragged_sm90_kernel_inst.jinja",
            "batch_prefill_fp8_sm90.cu",
            "batch_prefill_fp8_paged_sm90_kernel_inst.jinja",
            "batch_prefill_fp8_ragged_sm90_kernel_inst.jinja",
        ),
        meanings=attention_launches.MEANINGS,
        computed=attention_launches.COMPUTED,
    ),
    compared=(
        Choice("backend", "fa2 or fa3", "backend", "fa2", "fa3", alone="merge_pct == 0"),
        Choice(
            "backend_whole",
            "fa2 without its split, or FlashInfer's choice",
            "backend",
            "fa2",
            "auto",
            where="split == 'off' or backend == 'auto'",
            ignoring=("split",),
        ),
        Choice(
            "prefill_torch", "FlashInfer's choice, or torch's attention", "backend", "auto", TORCH
        ),
        Choice("prefill_trtllm", "fa2 or trtllm-gen", "backend", "fa2", "trtllm-gen"),
        Choice("prefill_cutlass", "fa2 or CUTLASS", "backend", "fa2", "cutlass"),
        Choice(
            "prefill_auto",
            "fa2 or FlashInfer's choice",
            "backend",
            "fa2",
            "auto",
            of_kernels=True,
            alone="merge_pct == 0",
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
        Choice(
            "prefill_split", "KV cache split over blocks or not, of fa2", "split", "auto", "off"
        ),
        Choice(
            "prefill_chunk",
            "Split of fa2 chosen by plan(), or chunks of 16 pages",
            "split",
            "auto",
            16,
        ),
        Choice("qk", "q·k summed in float32 or float16", "qk", "f32", "f16"),
        attention.soft_cap("soft_cap"),
        Choice(
            "prefill_fp8", "Queries, keys and values of 16 bits or of 8", "dtype", "f16", inputs.FP8
        ),
        Choice("prefill_kv", "KV of 16 bits or of 8 under queries of 16", "kv", "same", inputs.FP8),
        attention.window("prefill_window"),
    ),
)
