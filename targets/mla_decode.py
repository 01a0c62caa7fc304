"""Decode attention over the compressed KV cache of multi-head latent attention (MLA).

A token's cache is one latent vector of 512 elements and 64 that carry its position, shared by all
heads. The latent is both key and value, so it is read once.
"""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from ncuflow.target import attention, reference, workload
from ncuflow.target.contract import Choice, Target, Work, uneven
from ncuflow.target.inputs import ITEMSIZE, TOLERANCE, PageTable, page_table, torch_dtype
from ncuflow.target.launch import GpuFacts, Inputs, Launch, Params, Tensor
from ncuflow.target.source import Backend, Build, Jit, Source, Symbol, no_backend

LATENT, POSITION = 512, 64  # elements per token: DeepSeek's, the ones that FlashInfer is built for
SCALE = 1 / math.sqrt(128 + POSITION)  # of a head of 128 elements before its projection is absorbed
HEADS = 128  # of DeepSeek V3
# The wrapper takes each of them alike; FlashInfer declares by no function for which GPUs they are, but refuses in planning.
_BLACKWELL = ("10.0", "10.3", "10.7")
BACKENDS = (
    attention.FA3,
    Backend("trtllm-gen", _BLACKWELL, downloaded=True),
    Backend("cutlass", ("10.x",)),
    Backend("cute-dsl", ("10.x",)),
)
_PLAN = Symbol("MLAPlan", "attention/scheduler.cuh")
_HOPPER = Symbol("BatchMLAPageAttentionHopperKernel", "attention/mla_hopper.cuh")


def point_id(p: Params) -> str:
    """E.g. B32_L2048_H128_P64_bf16_fa3, and _Q4 of four tokens a sequence."""
    several = f"_Q{p['q_len']}" if p["q_len"] > 1 else ""
    shape = f"B{p['batch']}_L{attention.length_label(p, 'kv_len')}_H{p['heads']}_P{p['page_size']}"
    return f"{shape}_{p['dtype']}_{p['backend'].replace('-', '_')}{several}"


def unable(p: Params, gpu: GpuFacts) -> str | None:
    """Why this GPU cannot run the point; None if it can."""
    refused = no_backend(BACKENDS, p["backend"], gpu) or attention.length_refusal(p)
    if refused is None and p["q_len"] > 1 and min(attention.lengths(p, "kv_len")) < p["q_len"]:
        return f"a sequence has fewer tokens than the {p['q_len']} of its query"
    return refused


def work(p: Params) -> Work:
    """FLOPs: 2*T*H*(512 + 64 + 512), T the KV tokens that all queries see. Bytes: cache, q and o once."""
    tokens, queries = sum(attention.lengths(p, "kv_len")), p["q_len"]
    rows = p["batch"] * queries * p["heads"]
    key = LATENT + POSITION
    # a query sees its own token and those before it
    seen = queries * tokens - p["batch"] * queries * (queries - 1) // 2
    return Work(
        flops=2 * seen * p["heads"] * (key + LATENT),
        bytes=(tokens * key + rows * (key + LATENT)) * ITEMSIZE[p["dtype"]],
        convention="ncuflow: latent and position part of each token read once, q and o once",
    )


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id, planned. The reference covers the whole output."""
    import torch
    from flashinfer.mla import BatchMLAPagedAttentionWrapper

    inputs = Inputs(TARGET.point_id(p), seed)
    dtype, batch, heads = torch_dtype(p["dtype"]), p["batch"], p["heads"]
    found = attention.lengths(p, "kv_len")
    queries = batch * p["q_len"]
    q, q_pe = (inputs.normal(queries, heads, dim, dtype=dtype) for dim in (LATENT, POSITION))
    table = page_table(inputs, batch, found, p["page_size"])
    shape = (len(table.indices), p["page_size"])
    cache, cache_pe = (inputs.normal(*shape, dim, dtype=dtype) for dim in (LATENT, POSITION))
    out = torch.empty_like(q)
    wrapper = BatchMLAPagedAttentionWrapper(attention.workspace(q), **asked(p)["wrapper"])
    rows = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * p["q_len"]
    tokens = torch.tensor(found, dtype=torch.int32, device=q.device)

    def plan() -> None:
        pages = (table.indptr, table.indices, tokens)
        sizes = (heads, LATENT, POSITION, p["page_size"])
        wrapper.plan(rows, *pages, *sizes, p["q_len"] > 1, SCALE, dtype, dtype)

    asked_too: dict[str, bool] = {}
    sums: list[Tensor] = []

    def run() -> None:
        found = wrapper.run(q, q_pe, cache, cache_pe, out=out, **asked_too)
        if asked_too:
            sums[:] = found[1:]

    def expected() -> tuple[Tensor, ...]:
        given = (q, q_pe, cache, cache_pe, table, p["q_len"])
        kinds = (reference.mla_decode, reference.mla_sums)[: 1 + len(asked_too)]
        return tuple(_reference(kind, *given) for kind in kinds)

    plan()
    put = attention.far_logits([q, q_pe], [cache, cache_pe], round(1 / SCALE**2))
    put |= attention.far_pages([cache, cache_pe], table, plan)
    return Launch(
        run=run,
        output=lambda: (out, *sums) if asked_too else (out,),
        reference=expected,
        tolerance=TOLERANCE[p["dtype"]],
        buffers=lambda: (out,),
        plan=plan,
        info=attention.plan_info(wrapper),
        extremes=attention.with_sums(asked_too, put),
    )


def asked(p: Params) -> dict[str, Params]:
    """Arguments of the wrapper: what a point chooses beside its shape."""
    return {"wrapper": {"backend": p["backend"]}}


def module_arguments(p: Params) -> tuple[Any, ...]:
    """What FlashInfer's generator and cached getter of the module take."""
    import torch

    dtypes = (torch_dtype(p["dtype"]),) * 3
    return (attention.resolved(p["backend"]), *dtypes, torch.int32, LATENT, POSITION, False)


def _reference(
    kind: Callable[..., Tensor],
    q: Tensor,
    q_pe: Tensor,
    cache: Tensor,
    cache_pe: Tensor,
    table: PageTable,
    queries: int,
) -> Tensor:
    """By the reference of this kind of one query a sequence."""
    import torch

    q, q_pe = (t.unflatten(0, (-1, queries)) for t in (q, q_pe))
    parts = []
    for part, length in table.steps(LATENT + POSITION):
        keys, positions = (table.gather(of, part.start, part.stop) for of in (cache, cache_pe))
        each = []
        for i in range(queries):
            seen = slice(max(0, length - queries + i + 1))
            given = (q[part, i], q_pe[part, i], keys[:, seen], positions[:, seen])
            each.append(kind(*given, SCALE))
        parts.append(torch.stack(each, dim=1))
    return torch.cat(parts).flatten(0, 1)


def takes(entry: workload.Entry) -> workload.Block | None:
    """A case of a workload as a block of the sweep; None for one of another kernel."""
    match entry:
        case workload.Routine("BatchMLAPagedAttentionWrapper"):
            entry.only(head_dim_ckv=LATENT, head_dim_kpe=POSITION)
            block = entry.numbers(heads="num_qo_heads") | entry.sequences("kv_len")
            block |= {"q_len": entry.number("s_qo", 1)}
            return block | {"backend": entry.backend()}
        case workload.Definition("mla_paged_decode", sizes):
            if (sizes.get("ckv", LATENT), sizes.get("kpe", POSITION)) != (LATENT, POSITION):
                raise workload.RefusedError(f"only heads of {LATENT} and {POSITION} are measured")
            return entry.sized(heads="h") | {"dtype": entry.element} | entry.pages("kv_len")
    return None


def called(a: Params) -> workload.Block:
    """The point that an engine planned, by the arguments of plan(), or what it has of them as its metadata."""
    said = {**a, **vars(a["metadata"])} if a.get("metadata") is not None else a
    dense = said.get("qo_indptr") is None
    begins = said["cum_seq_lens_q" if dense else "qo_indptr"]
    tokens = said["seq_lens" if dense else "kv_len_arr"]
    queries = {b - a for a, b in pairwise(begins.tolist())}
    if len(queries) != 1:
        raise workload.RefusedError("its sequences have unlike numbers of queries")
    if (a.get("head_dim_ckv") or LATENT, a.get("head_dim_kpe") or POSITION) != (LATENT, POSITION):
        raise workload.RefusedError(f"only heads of {LATENT} and {POSITION} are measured")
    return workload.of_lengths(tokens.tolist(), "kv_len") | {
        "heads": a["num_heads"],
        "q_len": queries.pop(),
        "page_size": a["page_size"],
        "dtype": workload.element(a["q_data_type"]),
        "backend": backend if (backend := a["self"]._backend) in ("fa2", "fa3") else "auto",
    }


_GETTER = "flashinfer.mla._core:get_batch_mla_module"
_WRAPPER = "BatchMLAPagedAttentionWrapper.run"

TARGET = Target(
    name="mla_decode",
    title="MLA decode attention",
    heading="MLA Decode Kernel",
    order=6,
    parameters={
        "batch": 32,
        "kv_len": 2048,  # KV tokens of each sequence
        "lengths": attention.LENGTHS,  # even; lognormal, lognormal_narrow, zipf: as many tokens, unevenly; 1x32768_31x512: a list
        "heads": HEADS,  # query heads: all, 16 of one of its eight tensor-parallel ranks
        "page_size": 64,
        "dtype": "bf16",
        # FlashInfer's choice first
        "backend": ("auto", "fa2", *(one.name for one in BACKENDS)),
        "q_len": 1,  # tokens of each sequence in the step: more than one where drafted tokens are verified
    },
    choices={"dtype": tuple(ITEMSIZE)},
    small={"batch": 1, "kv_len": 128},
    id=point_id,
    unable=unable,
    free=lambda p: {"backend": "auto"},
    resolves=lambda p, capability: {"backend": "fa3" if capability == "9.0" else "fa2"},
    asked=asked,
    backends=BACKENDS,
    # and all heads at a page that is begun, where the point has a rank's
    edges=lambda p: [
        *attention.length_edges(p, "kv_len"),
        {"batch": 1, "heads": HEADS, "kv_len": p["page_size"] + 1, "lengths": "even", "q_len": 1},
    ],
    memory=lambda p: work(p).bytes + attention.WORKSPACE_BYTES,
    work=work,
    written=lambda p: p["batch"] * p["q_len"] * p["heads"] * LATENT * ITEMSIZE[p["dtype"]],
    prepare=prepare,
    workload=workload.Workload(
        takes=takes,
        calls=(
            workload.EngineCall(
                "flashinfer.mla._batch_mla._wrapper", _WRAPPER, called, plan="plan"
            ),
        ),
    ),
    build=Build(jit=(Jit("mla", _GETTER, module_arguments, {"backend": "fa2"}),)),
    source=Source(
        api={
            "python": "flashinfer.mla.BatchMLAPagedAttentionWrapper",
            "jit": "flashinfer.jit.attention.gen_batch_mla_module",
            "binding": "csrc/batch_mla_run.cu",
            "scheduler": "include/flashinfer/attention/scheduler.cuh",
        },
        kernels=(Symbol("BatchMLAPagedAttentionKernel", "attention/mla.cuh"), _HOPPER),
        functions=(_PLAN,),
        sources=("batch_mla_plan.cu", "batch_mla_run.cu", "batch_mla_binding.cu"),
    ),
    compared=(
        Choice("mla_backend", "fa2 or fa3", "backend", "fa2", "fa3"),
        Choice("mla_auto", "fa2 or FlashInfer's choice", "backend", "fa2", "auto"),
        *(
            Choice(
                f"mla_queries_{n}",
                f"A step of one token a sequence, or of {n}",
                "q_len",
                1,
                n,
                given="traffic",
            )
            for n in (2, 4, 8)
        ),
        Choice("mla_page", "Page size 64 or 1", "page_size", 64, 1),
        *uneven("mla_decode"),
    ),
)
