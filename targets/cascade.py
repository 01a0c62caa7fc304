"""Decode of sequences that share a prefix: its keys and values are read once for all of them, and the states merged.

``variant`` flat is what a server does without: decode over page tables in each of which the prefix's pages stand.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from ncuflow.target import attention
from ncuflow.target.contract import Choice, Target, Work
from ncuflow.target.inputs import ITEMSIZE, TOLERANCE, PageTable, pages_for, torch_dtype
from ncuflow.target.launch import GpuFacts, Inputs, Launch, Params, Tensor, returning
from ncuflow.target.source import Build, Jit, Source, Symbol


def point_id(p: Params) -> str:
    """E.g. cascade_B64_S8192_L512_H32_K8_D128_P16_f16."""
    heads = f"H{p['qo_heads']}_K{p['kv_heads']}_D{p['head_dim']}"
    return f"{p['variant']}_B{p['batch']}_S{p['prefix']}_L{p['kv_len']}_{heads}_P{p['page_size']}_{p['dtype']}"


def unable(p: Params, gpu: GpuFacts) -> str | None:
    """Why the point cannot be run; None if it can."""
    if p["qo_heads"] % p["kv_heads"] == 0 and p["prefix"] % p["page_size"]:
        return f"a prefix of {p['prefix']} tokens does not fill its pages of {p['page_size']}"
    threads = p["qo_heads"] * p["head_dim"] // max(8, p["head_dim"] // 32)
    if p["variant"] == "cascade" and threads > 1024:
        return f"its merge takes a block of {threads} threads, of at most 1 024"
    return attention.ungrouped(p)


def work(p: Params) -> Work:
    """FLOPs: 2*T*H*(D+D), T the tokens that all sequences see. Bytes: q and o, and of each token k and v, once."""
    h, d, batch = p["qo_heads"], p["head_dim"], p["batch"]
    seen = batch * (p["prefix"] + p["kv_len"])
    kept = p["prefix"] + batch * p["kv_len"]
    return Work(
        flops=4 * seen * h * d,
        bytes=2 * d * (batch * h + kept * p["kv_heads"]) * ITEMSIZE[p["dtype"]],
        convention="ncuflow: one query row per sequence; q, o, and k and v of the prefix and the rest, once",
    )


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id, planned. The reference covers the whole output."""

    inputs = Inputs(TARGET.point_id(p), seed)
    dtype = torch_dtype(p["dtype"])
    q = inputs.normal(p["batch"], p["qo_heads"], p["head_dim"], dtype=dtype)
    shared, own = _tables(p, inputs)
    pages = p["prefix"] // p["page_size"] + len(own.indices)
    shape = (pages, p["page_size"], p["kv_heads"], p["head_dim"])
    k, v = (inputs.normal(*shape, dtype=dtype) for _ in range(2))
    whole = _joined(p, shared, own)
    make = _cascade if p["variant"] == "cascade" else _flat
    wrapper, plan = make(p, q, (shared, own), whole)
    run, outputs = returning(lambda: wrapper.run(q, (k, v)))
    plan()

    def shared_alone() -> None:
        half = _every_other(own)
        vars(own).update(vars(half))
        vars(whole).update(vars(_joined(p, shared, half)))
        plan()

    return Launch(
        run=run,
        output=outputs,
        reference=lambda: (attention.decoded(q, k, v, whole),),
        tolerance=TOLERANCE[p["dtype"]],
        buffers=outputs,
        allocates=True,
        plan=plan,
        info=attention.plan_info(getattr(wrapper, "_batch_prefill_wrappers", [wrapper])[0]),
        extremes=attention.far_logits([q], [k], p["head_dim"])
        | {"sequences without a token of their own": shared_alone},
    )


def _every_other(own: PageTable) -> PageTable:
    """The tokens of every other sequence alone."""
    ends = own.indptr.tolist()
    kept = [
        own.indices[a:b] if i % 2 else own.indices[:0] for i, (a, b) in enumerate(pairwise(ends))
    ]
    last, found = own.last_page_len.clone(), [n * (i % 2) for i, n in enumerate(own.lengths)]
    last[::2] = 0
    return PageTable(*_laid(kept, own.indptr), last, found, own.page_size)


def _laid(parts: Sequence[Tensor], like: Tensor) -> tuple[Tensor, Tensor]:
    """(where each sequence's pages begin, all of them)."""
    import torch

    return like.new_tensor([0, *accumulate(map(len, parts))]), torch.cat([*parts])


def _tables(p: Params, inputs: Inputs) -> tuple[PageTable, PageTable]:
    """The pages of the prefix, and those of each sequence's own tokens: of one cache, shuffled."""
    import torch

    size, batch, rest = p["page_size"], p["batch"], pages_for(p["kv_len"], p["page_size"])
    first = p["prefix"] // size
    kind: dict[str, Any] = {"dtype": torch.int32, "device": inputs.device}
    places = inputs.permutation(first + batch * rest).to(torch.int32)
    end = torch.tensor([size], **kind)
    shared = PageTable(torch.tensor([0, first], **kind), places[:first], end, [p["prefix"]], size)
    last = torch.full((batch,), (p["kv_len"] - 1) % size + 1, **kind)
    starts = torch.arange(batch + 1, **kind) * rest
    return shared, PageTable(starts, places[first:], last, [p["kv_len"]] * batch, size)


def _joined(p: Params, shared: PageTable, own: PageTable) -> PageTable:
    """The page table in which each sequence has the prefix's pages before its own."""
    import torch

    both = [torch.cat((shared.indices, own.indices[a:b])) for a, b in pairwise(own.indptr.tolist())]
    last = own.last_page_len.where(own.last_page_len > 0, shared.last_page_len)
    lengths = [p["prefix"] + length for length in own.lengths]
    return PageTable(*_laid(both, own.indptr), last, lengths, p["page_size"])


Planned = tuple[Any, Callable[[], None]]  # (wrapper, its plan())


def _cascade(p: Params, q: Tensor, levels: tuple[PageTable, ...], whole: PageTable) -> Planned:
    import flashinfer
    import torch

    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(2, attention.workspace(q), "NHD")
    rows = torch.arange(p["batch"] + 1, dtype=torch.int32, device=q.device)

    def plan() -> None:
        tables = map(list, zip(*(table.planned for table in levels), strict=True))
        wrapper.plan([rows[[0, -1]], rows], *tables, *attention.sizes(p), q_data_type=q.dtype)

    return wrapper, plan


def _flat(p: Params, q: Tensor, levels: tuple[PageTable, ...], whole: PageTable) -> Planned:
    wrapper = attention.decode_wrapper(q)
    return wrapper, attention.decode_plan(p, wrapper, whole)


def modules(p: Params) -> list[Any]:
    """JIT modules of the point; needs FlashInfer and an arch list, but no GPU.

    The cascade's levels are prefills of FlashInfer's choice, with a merge; flat decode on tensor cores is fa2's.
    """
    from flashinfer.jit import cascade

    backend = "auto" if p["variant"] == "cascade" else "fa2"
    settings = {"backend": backend, "dtype": p["dtype"], "head_dim": p["head_dim"]}
    found = attention.modules(attention.PLAIN | settings)
    return [*found, cascade.gen_cascade_module()] if p["variant"] == "cascade" else found


TARGET = Target(
    name="cascade",
    title="Cascade attention",
    heading="Cascade Attention Kernels",
    order=12,
    parameters={
        "variant": ("cascade", "flat"),  # flat: decode, the prefix in every page table
        "batch": 64,
        "prefix": 8192,  # tokens that all sequences share, a multiple of the page size
        "kv_len": 512,  # tokens of each sequence's own
        "qo_heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "page_size": 16,
        "dtype": tuple(ITEMSIZE),
    },
    choices={"head_dim": (64, 128, 256)},
    small={"batch": 2, "prefix": 64, "kv_len": 32},
    id=point_id,
    unable=unable,
    # of each sequence's own: one token, and a page that is begun; of the prefix: a page; many query heads
    edges=lambda p: [
        {"kv_len": 1},
        {"kv_len": p["page_size"] + 1},
        {"prefix": p["page_size"]},
        {"batch": 3, "qo_heads": 64, "kv_heads": 8, "kv_len": p["page_size"] + 1},
    ],
    stops_tracing=lambda p: attention.STOPS_TRACING["auto"] if p["variant"] == "cascade" else False,
    memory=lambda p: work(p).bytes + attention.WORKSPACE_BYTES,
    work=work,
    written=lambda p: p["batch"] * p["qo_heads"] * p["head_dim"] * ITEMSIZE[p["dtype"]],
    prepare=prepare,
    build=Build(generate=modules, jit=(Jit("cascade", "flashinfer.cascade:get_cascade_module"),)),
    source=Source(
        api={
            "python": "flashinfer.cascade.MultiLevelCascadeAttentionWrapper",
            "jit": "flashinfer.jit.cascade.gen_cascade_module",
            "binding": "csrc/cascade.cu",
        },
        kernels=(
            attention.HOPPER,
            attention.PAGED,
            attention.MERGE,
            Symbol("MergeStateInPlaceKernel", "attention/cascade.cuh"),
        ),
        sources=("cascade.cu", "flashinfer_cascade_binding.cu"),
    ),
    compared=(
        Choice(
            "cascade",
            "A shared prefix with each sequence, or once for all",
            "variant",
            "flat",
            "cascade",
        ),
    ),
)
