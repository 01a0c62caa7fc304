"""Prefill and decode of one step in one launch: blocks of both run on each SM at once (POD attention).

``variant`` fa2 and fa3 are what a server does without: a kernel for the prefill, and after it one for the decodes.
"""

from collections.abc import Callable
from typing import Any

from ncuflow.target import attention, reference
from ncuflow.target.contract import Choice, Target, Work
from ncuflow.target.inputs import ITEMSIZE, TOLERANCE, PageTable, page_table, torch_dtype
from ncuflow.target.launch import GpuFacts, Inputs, Launch, Params, Tensor, returning
from ncuflow.target.source import Build, Jit, Source, Symbol, no_backend, symbols

_KERNEL = Symbol("PODWithKVCacheTensorKernel", "attention/pod.cuh")
DECODE_ROWS = 16  # of the one tile that the kernel has for a decode, whatever plan() chooses


def point_id(p: Params) -> str:
    """E.g. pod_S1024_C1024_B32_L4096_H32_K8_D128_P16_f16."""
    heads = f"H{p['qo_heads']}_K{p['kv_heads']}_D{p['head_dim']}"
    step = f"S{p['chunk']}_C{p['context']}_B{p['batch']}_L{p['kv_len']}"
    return f"{p['variant']}_{step}_{heads}_P{p['page_size']}_{p['dtype']}"


def unable(p: Params, gpu: GpuFacts) -> str | None:
    """Why this GPU cannot run the point; None if it can."""
    group = p["qo_heads"] // p["kv_heads"]
    if why := attention.ungrouped(p):
        return why
    if p["context"] < p["chunk"]:
        return f"a context of {p['context']} tokens does not hold a chunk of {p['chunk']}"
    if p["variant"] == "pod" and group > DECODE_ROWS:
        return f"a decode's tile has {DECODE_ROWS} rows, not the {group} query heads of a KV head"
    return no_backend((attention.FA3,), p["variant"], gpu)


def halves(p: Params) -> tuple[tuple[int, int], tuple[int, int]]:
    """(FLOPs, bytes) of the chunk and of the decodes.

    FLOPs: 2*S*(2*C-S)*H*D of the chunk and 4*T*H*D of T decoded tokens. Bytes: all q, o, k and v once.
    """
    chunk, context, batch, h, d = p["chunk"], p["context"], p["batch"], p["qo_heads"], p["head_dim"]
    decoded, element = batch * p["kv_len"], 2 * d * ITEMSIZE[p["dtype"]]
    return (
        (
            2 * chunk * (2 * context - chunk) * h * d,
            (chunk * h + context * p["kv_heads"]) * element,
        ),
        (4 * decoded * h * d, (batch * h + decoded * p["kv_heads"]) * element),
    )


def work(p: Params) -> Work:
    """Of chunk and decodes together."""
    flops, moved = (sum(both) for both in zip(*halves(p), strict=True))
    return Work(
        flops=flops,
        bytes=moved,
        convention="FlashInfer attention_flops: causal counts half, one query row per decode; q, k, v, o once",
    )


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id, planned. The reference covers both outputs whole."""

    inputs = Inputs(TARGET.point_id(p), seed)
    dtype = torch_dtype(p["dtype"])
    heads, kv_heads = (p["qo_heads"], p["head_dim"]), (p["kv_heads"], p["head_dim"])
    queries = tuple(inputs.normal(rows, *heads, dtype=dtype) for rows in (p["chunk"], p["batch"]))
    chunk = tuple(inputs.normal(p["context"], *kv_heads, dtype=dtype) for _ in range(2))
    table = page_table(inputs, p["batch"], p["kv_len"], p["page_size"])
    shape = (len(table.indices), p["page_size"], *kv_heads)
    k, v = (inputs.normal(*shape, dtype=dtype) for _ in range(2))
    make = _together if p["variant"] == "pod" else _apart
    decode, plan, attend = make(p, queries, chunk, (k, v), table)
    far = attention.far_logits([queries[0]], [chunk[0]], p["head_dim"])
    run, outputs = returning(attend)
    plan()
    return Launch(
        run=run,
        output=outputs,
        reference=lambda: (
            expected_chunk(queries[0], *chunk),
            attention.decoded(queries[1], k, v, table),
        ),
        tolerance=TOLERANCE[p["dtype"]],
        buffers=outputs,
        allocates=True,
        plan=plan,
        info=attention.plan_info(decode),
        extremes={f"{what}, in the prefill": put for what, put in far.items()}
        | attention.far_logits([queries[1]], [k], p["head_dim"]),
    )


def expected_chunk(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of a sequence's last tokens: each sees those before it, of the chunk and of the context."""
    import torch

    before = len(k) - len(q)
    visible = torch.arange(before + 1, len(k) + 1, device=q.device)
    return reference.attention(q, k, v, visible)


Tensors = tuple[Tensor, ...]
# (the wrapper of the decodes, plan(), and what returns the outputs of prefill and decodes)
Planned = tuple[Any, Callable[[], None], Callable[[], Tensors]]


def _together(
    p: Params, queries: Tensors, chunk: Tensors, cache: Tensors, table: PageTable
) -> Planned:
    import flashinfer

    q, decodes = queries
    wrapper = flashinfer.PODWithPagedKVCacheWrapper(attention.workspace(q), "NHD")

    def attend() -> Tensors:
        return tuple(wrapper.run(q, *chunk, decodes, cache, causal_p=True))

    return wrapper, attention.decode_plan(p, wrapper, table), attend


def _apart(
    p: Params, queries: Tensors, chunk: Tensors, cache: Tensors, table: PageTable
) -> Planned:
    import flashinfer
    import torch

    q, decodes = queries
    first = flashinfer.BatchPrefillWithRaggedKVCacheWrapper(
        attention.workspace(q), "NHD", backend=p["variant"]
    )
    decode = attention.decode_wrapper(q)
    ends = (torch.tensor([0, n], dtype=torch.int32) for n in (p["chunk"], p["context"]))
    rows, tokens = (end.to(q.device) for end in ends)
    plan_decode = attention.decode_plan(p, decode, table)

    def plan() -> None:
        types = {"q_data_type": q.dtype, "kv_data_type": q.dtype}
        first.plan(rows, tokens, *attention.sizes(p)[:3], causal=True, **types)
        plan_decode()

    def attend() -> Tensors:
        return first.run(q, *chunk), decode.run(decodes, cache)

    return decode, plan, attend


def modules(p: Params) -> list[Any]:
    """JIT modules of the point; needs FlashInfer and an arch list, but no GPU.

    The decodes are planned by fa2's prefill module, and apart from the prefill they run it.
    """
    from flashinfer.jit import gen_pod_module

    settings = {"dtype": p["dtype"], "head_dim": p["head_dim"]}
    backends = ("fa2", "fa3") if p["variant"] == "fa3" else ("fa2",)
    found = [
        module
        for backend in backends
        for module in attention.modules(attention.PLAIN | settings | {"backend": backend})
    ]
    return [*found, gen_pod_module(*module_arguments(p))] if p["variant"] == "pod" else found


def module_arguments(p: Params) -> tuple[Any, ...]:
    """What FlashInfer's generator and cached getter of POD's module take.

    Types of q, k and o and the dim; of prefill and decode: position encoding, window, soft cap.
    """
    import torch

    dtype = torch_dtype(p["dtype"])
    plain = (0, False, False)
    return (dtype, dtype, dtype, p["head_dim"], *plain, False, torch.int32, *plain)


TARGET = Target(
    name="pod",
    title="POD attention",
    heading="Prefill and Decode in One Kernel",
    order=13,
    parameters={
        # fa2, fa3: a prefill by it, and then decodes on tensor cores
        "variant": ("pod", "fa2", "fa3"),
        "chunk": 1024,  # query tokens of the one sequence that is in its prefill
        "context": 1024,  # KV tokens of that sequence, the chunk's own among them
        "batch": 32,  # sequences that are decoded
        "kv_len": 4096,  # KV tokens of each of them
        "qo_heads": 32,
        "kv_heads": 8,
        "head_dim": 128,
        "page_size": 16,  # of the decodes; the prefill's keys and values are contiguous
        "dtype": tuple(ITEMSIZE),
    },
    choices={"head_dim": (64, 128)},
    small={"chunk": 128, "context": 128, "batch": 2, "kv_len": 128},
    id=point_id,
    unable=unable,
    backends=(attention.FA3,),
    stops_tracing=lambda p: attention.STOPS_TRACING.get(p["variant"], False),
    memory=lambda p: work(p).bytes + 2 * attention.WORKSPACE_BYTES,
    work=work,
    written=lambda p: (
        (p["chunk"] + p["batch"]) * p["qo_heads"] * p["head_dim"] * ITEMSIZE[p["dtype"]]
    ),
    prepare=prepare,
    build=Build(
        generate=modules, jit=(Jit("pod", "flashinfer.pod:get_pod_module", module_arguments),)
    ),
    source=Source(
        api={
            "python": "flashinfer.pod.PODWithPagedKVCacheWrapper",
            "jit": "flashinfer.jit.attention.modules.gen_pod_module",
            "binding": "csrc/pod.cu",
        },
        kernels=(_KERNEL, attention.RAGGED, attention.PAGED, attention.HOPPER, attention.MERGE),
        functions=symbols("attention/pod.cuh", "PODWithKVCacheTensorDispatched"),
        sources=(
            "pod.cu",
            "pod_jit_binding.cu",
            "pod_kernel_inst.jinja",
            "pod_customize_config.jinja",
        ),
        meanings={
            "PartitionKV_P": "KV of the prefill split over blocks (…_P: of the prefill, …_D: of the decodes)",
        },
    ),
    compared=(
        Choice("pod", "fa2's two kernels, or one for both", "variant", "fa2", "pod"),
        Choice("pod_fa3", "fa3's prefill and a decode, or one kernel", "variant", "fa3", "pod"),
    ),
)
