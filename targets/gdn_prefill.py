"""Prefill of a gated delta net (GDN): linear attention whose state forgets, and corrects what it holds.

Each head keeps a matrix from keys to values. A token decays it by its gate, replaces what the matrix
holds for the token's key by its value, as far as its update gate says, and reads it with its query.
"""

import inspect
import math
from typing import Any

from ncuflow.target import reference
from ncuflow.target.contract import Choice, Target, Work
from ncuflow.target.inputs import ITEMSIZE, TOLERANCE, torch_dtype
from ncuflow.target.launch import GpuFacts, Inputs, Launch, Params, Tensor, capability
from ncuflow.target.source import Build, Source, Symbol
from ncuflow.target.workload import Block, Entry, Routine, Workload

HEAD_DIM = 128  # the one that FlashInfer is built for
# Kernels of a prefill with context parallelism.
_PARTS = [f"CPDeltaRule{n}Sm90" for n in ("TPrecompute", "MNPrecompute", "FixupHmma", "FixupSimt", "Prefill")]  # fmt: skip
_CP = {"auto": {}, "on": {"use_cp": True}, "off": {"use_cp": False}}  # arguments of the call


def point_id(p: Params) -> str:
    """E.g. B1_S8192_Q16_V32_bf16; _cp_on where context parallelism is forced."""
    knobs = "" if p["cp"] == "auto" else f"_cp_{p['cp']}"
    return f"B{p['batch']}_S{p['seq_len']}_Q{p['q_heads']}_V{p['v_heads']}_{p['dtype']}{knobs}"


def unable(p: Params, gpu: GpuFacts) -> str | None:
    """Why this GPU cannot run the point; None if it can."""
    if capability(gpu) != (9, 0):
        return f"measured on compute capability 9.0, this GPU has {gpu['compute_capability']}"
    if p["v_heads"] % p["q_heads"]:
        return f"{p['v_heads']} value heads are not a multiple of {p['q_heads']} query heads"
    return None


def work(p: Params) -> Work:
    """FLOPs of the recurrence, 6*D*D per token and value head: the key read and written back, the
    query read. Bytes: q, k, v, o and both gates once, the final state written."""
    tokens, heads = p["batch"] * p["seq_len"], p["v_heads"]
    elements = 2 * tokens * (p["q_heads"] + heads) * HEAD_DIM
    state = _state(p)
    return Work(
        flops=6 * tokens * heads * HEAD_DIM * HEAD_DIM,
        bytes=elements * ITEMSIZE[p["dtype"]] + 2 * tokens * heads * 4 + state,
        convention="ncuflow: 6*D*D per token and value head; q, k, v, o, gates once, final state written",
    )


def _state(p: Params) -> int:
    """Bytes of the final states."""
    return int(p["batch"] * p["v_heads"] * HEAD_DIM * HEAD_DIM * 4)


def written(p: Params) -> int:
    """The output and the final states."""
    out = p["batch"] * p["seq_len"] * p["v_heads"] * HEAD_DIM
    return int(out) * ITEMSIZE[p["dtype"]] + _state(p)


def asked(p: Params) -> dict[str, Params]:
    """Arguments of the call: what a point chooses beside its shape."""
    return {"run": dict(_CP[p["cp"]])}


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id: keys of length one, gates near one. The reference covers every token."""
    import torch
    from flashinfer.gdn_prefill import chunk_gated_delta_rule

    inputs = Inputs(TARGET.point_id(p), seed)
    dtype, tokens = torch_dtype(p["dtype"]), p["batch"] * p["seq_len"]
    q, k = (inputs.normal(tokens, p["q_heads"], HEAD_DIM, dtype=torch.float32) for _ in range(2))
    q, k = ((t / t.norm(dim=-1, keepdim=True)).to(dtype) for t in (q, k))
    v = inputs.normal(tokens, p["v_heads"], HEAD_DIM, dtype=dtype)
    shape = (tokens, p["v_heads"])
    decay, update = (inputs.normal(*shape, dtype=torch.float32) for _ in range(2))
    decay, update = torch.exp(-0.05 * decay.abs()), torch.sigmoid(update)
    starts = torch.arange(p["batch"] + 1, dtype=torch.int64, device=q.device) * p["seq_len"]
    out = torch.empty_like(v)
    square = (p["batch"], p["v_heads"], HEAD_DIM, HEAD_DIM)
    state = torch.empty(square, dtype=torch.float32, device=q.device)
    settings = asked(p)["run"]
    if settings and "use_cp" not in inspect.signature(chunk_gated_delta_rule).parameters:
        raise ValueError("this FlashInfer's GDN prefill knows no context parallelism")
    scale = 1 / math.sqrt(HEAD_DIM)

    inputs_of_call = (q, k, v, decay, update, scale, None, True, starts)

    def run() -> None:
        chunk_gated_delta_rule(*inputs_of_call, output=out, output_state=state, **settings)

    def expected() -> tuple[Tensor]:
        size = p["seq_len"]
        parts = [slice(i * size, (i + 1) * size) for i in range(p["batch"])]
        found = [
            reference.gated_delta_rule(q[one], k[one], v[one], decay[one], update[one], scale)[0]
            for one in parts
        ]
        return (torch.cat(found),)

    return Launch(
        run=run,
        output=lambda: (out,),
        reference=expected,
        tolerance=TOLERANCE[p["dtype"]],
        buffers=lambda: (out, state),
    )


def modules(p: Params) -> list[Any]:
    """JIT modules of the point: CUDA until 0.6.12; the CuTe DSL, which compiles at the first call, since."""
    try:
        from flashinfer.jit.gdn import gen_gdn_prefill_sm90_module
    except ImportError:
        return []
    return [gen_gdn_prefill_sm90_module()]


def takes(entry: Entry) -> Block | None:
    """A case of a workload as a block of the sweep; None for one of another kernel."""
    match entry:
        case Routine("chunk_gated_delta_rule"):
            entry.only(head_size=HEAD_DIM, num_k_heads=entry.number("num_q_heads"))
            sizes = {"q_heads": "num_q_heads", "v_heads": "num_v_heads"}
            return entry.numbers(**sizes, batch="batch_size", seq_len="s_qo")
    return None


TARGET = Target(
    name="gdn_prefill",
    title="Gated delta net prefill",
    heading="GDN Prefill Kernel",
    order=10,
    parameters={
        "batch": 1,
        "seq_len": 8192,  # tokens of each sequence
        "q_heads": 16,  # query and key heads; with 32 value heads those of Qwen3.5 4B, 9B and 35B
        "v_heads": 32,
        "dtype": "bf16",
        # context parallelism: one sequence's chunks side by side; FlashInfer's choice
        "cp": tuple(_CP),
    },
    choices={"dtype": tuple(ITEMSIZE)},
    small={"seq_len": 64},
    id=point_id,
    unable=unable,
    free=lambda p: {"cp": "auto"},
    asked=asked,
    stops_tracing=lambda p: None,  # the CuTe DSL does, which FlashInfer takes after 0.6.12
    memory=lambda p: 8 * work(p).bytes,  # float32 copies of the reference
    work=work,
    written=written,
    prepare=prepare,
    workload=Workload(takes=takes),
    build=Build(generate=modules),
    source=Source(
        api={"python": "flashinfer.gdn_prefill.chunk_gated_delta_rule"},
        kernels=(Symbol("delta_rule", ""),),  # of the CuTe DSL: no header declares it
        files={
            "FullyFusedDeltaRuleSm90": "gdn_kernels/delta_rule_dsl/delta_rule_sm90.py",
            **dict.fromkeys(_PARTS, "gdn_kernels/delta_rule_dsl/delta_rule_cp_sm90.py"),
        },
    ),
    compared=(
        Choice(
            "gdn_cp", "FlashInfer's choice, or without context parallelism", "cp", "auto", "off"
        ),
    ),
)
