"""Append of new keys and values to a paged KV cache: each token's go to the slot of its page.

Nothing is computed: a token's page is looked up in the table, and its bytes are copied there.
"""

import math
from collections.abc import Iterator

from ncuflow.target import inputs
from ncuflow.target.contract import Choice, StepPart, Target, Work
from ncuflow.target.launch import (
    Inputs,
    Launch,
    LaunchSignature,
    Params,
    Rules,
    Tensor,
    UnsaidError,
)
from ncuflow.target.source import Build, Jit, Source, symbols
from ncuflow.target.workload import Block, EngineCall, RefusedError, Workload, element

MLA = ((512,), (64,))  # latent vector and position part of a token, without heads


def point_id(p: Params) -> str:
    """E.g. kv_B32_L512_K8_D128_P16_f16; mla has no heads."""
    heads = "" if p["variant"] == "mla" else f"_K{p['kv_heads']}_D{p['head_dim']}"
    sizes = f"B{p['batch']}_L{p['append_len']}{heads}_P{p['page_size']}"
    return f"{p['variant']}_{sizes}_{p['dtype']}"


def work(p: Params) -> Work:
    """Bytes: both halves of each token read and written, two int32 indices per token. No arithmetic."""
    tokens = p["batch"] * p["append_len"]
    elements = tokens * sum(math.prod(shape) for shape in _shapes(p))
    return Work(
        flops=0,
        bytes=2 * elements * inputs.ITEMSIZE[p["dtype"]] + _looked_up(p),
        convention="ncuflow: what is appended read and written, batch index and position read",
    )


def shapes(seen: LaunchSignature) -> Iterator[Params]:
    """A thread row for each KV head; the grid is of the GPU, and the tokens are the step's.

    Which sequences they are of changes no byte: a step's tokens are a batch of one each, unless it says that they are prompts.
    """
    if seen.kernel != "AppendPagedKVCacheKernel":
        raise UnsaidError("no rule tells its tokens from its launch")
    said: Params = {"variant": "kv", "kv_heads": seen.block[1], "head_dim": seen.number("head_dim")}
    said |= seen.dtype
    tokens = seen.needed("tokens", "its grid is as large as the GPU, whatever it appends", said)
    prompts = seen.sure("prompts")
    if prompts and not seen.sure("decodes") and tokens % prompts == 0:
        yield {**said, "batch": prompts, "append_len": tokens // prompts}
        return
    yield {**said, "batch": tokens, "append_len": 1}


def _looked_up(p: Params) -> int:
    """Bytes of each token's batch index and position."""
    return 8 * int(p["batch"]) * int(p["append_len"])


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id; the reference covers the whole cache."""
    import flashinfer
    import torch
    from flashinfer.page import append_paged_mla_kv_cache

    draws = Inputs(TARGET.point_id(p), seed)
    dtype, tokens = inputs.torch_dtype(p["dtype"]), p["batch"] * p["append_len"]
    new = tuple(draws.normal(tokens, *shape, dtype=dtype) for shape in _shapes(p))
    table = inputs.page_table(draws, p["batch"], p["append_len"], p["page_size"])
    pages = (len(table.indices), p["page_size"])
    cache = tuple(torch.zeros(*pages, *t.shape[1:], dtype=dtype, device=t.device) for t in new)
    token = torch.arange(tokens, dtype=torch.int32, device=new[0].device)
    where = (token // p["append_len"], token % p["append_len"])
    indices = (table.indices, table.indptr, table.last_page_len)

    def run() -> None:
        if p["variant"] == "mla":
            append_paged_mla_kv_cache(*new, *where, *cache, *indices)
        else:
            flashinfer.append_paged_kv_cache(*new, *where, cache, *indices)

    def reset() -> None:
        for half in cache:
            half.zero_()

    return Launch(
        run=run,
        output=lambda: tuple(table.gather(half, 0, p["batch"]).flatten(0, 1) for half in cache),
        reference=lambda: tuple(half.float() for half in new),
        tolerance=inputs.TOLERANCE[p["dtype"]],
        buffers=lambda: cache,
        reset=reset,
        extremes={
            inputs.TINY: lambda: _tiny(new),
            "infinities": lambda: _infinite(new),
        },
    )


def _tiny(new: tuple[Tensor, ...]) -> None:
    for half in new:
        inputs.tiny(half[0])


def _infinite(new: tuple[Tensor, ...]) -> None:
    """Make the first and the last element of each half infinite."""
    for half in new:
        half.view(-1)[0], half.view(-1)[-1] = math.inf, -math.inf


def _shapes(p: Params) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shapes of a token's two halves."""
    return MLA if p["variant"] == "mla" else ((p["kv_heads"], p["head_dim"]),) * 2


_TELLS = ("append_key", "kv_indptr", "paged_kv_cache", "kv_layout")


def _called(a: Params) -> Block:
    """The point that an engine called, by its arguments."""
    keys, batch = a["append_key"], a["kv_indptr"].shape[0] - 1
    if batch < 1 or keys.shape[0] % batch:
        raise RefusedError("its sequences get unlike numbers of tokens")
    cache = a["paged_kv_cache"]
    pages, row = (cache[0], 1) if isinstance(cache, tuple) else (cache, 2)
    return {
        "variant": "kv",
        "batch": batch,
        "append_len": keys.shape[0] // batch,
        "kv_heads": keys.shape[1],
        "head_dim": keys.shape[2],
        "page_size": pages.shape[row if a.get("kv_layout", "NHD") == "NHD" else row + 1],
        "dtype": element(keys),
    }


TARGET = Target(
    name="kv_append",
    title="Append to a paged KV cache",
    heading="KV Append Kernel",
    order=7,
    parameters={
        "variant": ("kv", "mla"),  # mla: append_paged_mla_kv_cache, of 512 + 64 elements per token
        "batch": 32,
        "append_len": 512,  # tokens appended to each sequence; 1: a decode step
        "kv_heads": 8,  # kv only, as head_dim
        "head_dim": 128,
        "page_size": 16,
        "dtype": "bf16",
    },
    choices={"dtype": tuple(inputs.ITEMSIZE), "head_dim": (64, 128, 256)},
    small={"batch": 1, "append_len": 16},
    id=point_id,
    # one token, around a page, and a block of 1024 threads
    edges=lambda p: [
        *({"append_len": n} for n in inputs.around(p["page_size"])),
        {"append_len": 1, "kv_heads": 64},
    ],
    work=work,
    written=lambda p: (work(p).bytes - _looked_up(p)) // 2,
    prepare=prepare,
    part=lambda p: (
        StepPart("append", p["batch"] * p["append_len"], None, None, p["kv_heads"], p["head_dim"])
        if p["variant"] == "kv"
        else None
    ),
    workload=Workload(
        calls=(EngineCall("flashinfer.page", "append_paged_kv_cache", _called, tells=_TELLS),)
    ),
    rules=Rules(
        shapes=shapes,
        tells=lambda p: {name: p[name] for name in ("kv_heads", "head_dim") if name in p},
    ),
    source=Source(
        api={
            "python": "flashinfer.page.append_paged_kv_cache",
            "python_mla": "flashinfer.page.append_paged_mla_kv_cache",
            "jit": "flashinfer.jit.page.gen_page_module",
            "binding": "csrc/page.cu",
        },
        kernels=symbols("page.cuh", "AppendPagedKVCacheKernel", "AppendPagedKVMlaCacheKernel"),
        sources=("page.cu", "flashinfer_page_binding.cu"),
    ),
    build=Build(early=True, jit=(Jit("kv_append", "flashinfer.page:get_page_module"),)),
    compared=(Choice("append_page", "Page size 16 or 1", "page_size", 16, 1),),
)
