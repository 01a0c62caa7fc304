"""Decode of linear attention and of state space models: a step reads and writes a state, whatever came before.

A head keeps a matrix. A gated delta net (``gdn``) lets it decay, replaces what it holds for the token's key by the token's
value, and reads it with the query; Kimi Delta Attention (``kda``) lets each element of a key decay by itself; Mamba 2 (``ssm``)
adds without replacing. ``gdn_kv`` is a gated delta net whose state lies keys first. States of ``gdn`` lie in a pool, by slots;
several tokens of a state of 32 bits are a call of their own, `gated_delta_rule_mtp`.
"""

from collections.abc import Callable
from importlib.util import find_spec
from inspect import signature
from typing import Any, NamedTuple

from ncuflow.target import reference
from ncuflow.target.contract import Choice, Target, Work
from ncuflow.target.inputs import TOLERANCE
from ncuflow.target.launch import GpuFacts, Inputs, Launch, NotHereError, Params, Tensor, capability
from ncuflow.target.source import Build, Source

DIM = 128  # of keys, and of values but of ``ssm``, whose heads are narrower
SSM_DIM = 64
STATES = {"bf16": "bfloat16", "f32": "float32"}
ONE_TOKEN = ("gdn_kv", "kda")  # whose call here takes one token a sequence


def values(p: Params) -> int:
    """Elements of a value."""
    return SSM_DIM if p["variant"] == "ssm" else DIM


def unable(p: Params, gpu: GpuFacts) -> str | None:
    """Why the point cannot be run; None if it can."""
    variant, needs = p["variant"], {"kda": "bf16", "gdn_kv": "f32"}
    if capability(gpu) < (9, 0):
        return f"FlashInfer has it from compute capability 9.0 on, this GPU has {gpu['compute_capability']}"
    if p["v_heads"] % p["q_heads"]:
        return f"{p['v_heads']} value heads are not a multiple of {p['q_heads']}"
    if p["steps"] > 1 and variant in ONE_TOKEN:
        return f"{variant} is measured with one token a sequence"
    if p["state"] != needs.get(variant, p["state"]):
        return f"FlashInfer's {variant} takes a state of {needs[variant]}"
    return None


def work(p: Params) -> Work:
    """FLOPs: three products of a vector and the state a token and head, two without a key to replace. Bytes: the state read
    and written, and what a token brings."""
    tokens, heads = p["batch"] * p["steps"], p["v_heads"]
    products = 2 if p["variant"] == "ssm" else 3
    size = heads * DIM * values(p)
    brought = 2 * p["q_heads"] * DIM + 2 * heads * values(p)
    gates = heads * (DIM if p["variant"] == "kda" else 2)
    return Work(
        flops=2 * products * tokens * size,
        bytes=2 * p["batch"] * size * _item(p) + 2 * tokens * (brought + gates),
        convention="ncuflow: 2 FLOPs of each element of the state a product; the state in and out, and each token's tensors",
    )


def _item(p: Params) -> int:
    return 2 if p["state"] == "bf16" else 4


class Step(NamedTuple):
    """run: the call; out, state: what it writes; expected: both in float32, from the state before."""

    run: Callable[[], Any]
    out: Tensor
    state: Tensor
    expected: Callable[[], tuple[Tensor, Tensor]]


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id. The reference covers the whole output and the state."""
    inputs = Inputs(TARGET.point_id(p), seed)
    made = _ssm(p, inputs) if p["variant"] == "ssm" else _delta(p, inputs)
    before = made.state.clone()

    return Launch(
        run=made.run,
        output=lambda: (made.out, made.state),
        reference=made.expected,
        tolerance=TOLERANCE["bf16"],
        buffers=lambda: (made.out,),
        reset=lambda: made.state.copy_(before),
    )


def _state(p: Params, inputs: Inputs, *shape: int) -> Tensor:
    import torch

    return inputs.normal(*shape, dtype=torch.float32).to(getattr(torch, STATES[p["state"]]))


def _delta(p: Params, inputs: Inputs) -> Step:
    """q, k of length one; the gates are given as a layer has them, before they are made decays."""
    import torch
    from torch.nn.functional import normalize, softplus

    batch, steps, heads, dtype = p["batch"], p["steps"], p["v_heads"], torch.bfloat16
    kda, keys_first = p["variant"] == "kda", p["variant"] == "gdn_kv"
    q, k = (inputs.normal(batch, steps, p["q_heads"], DIM, dtype=dtype) for _ in range(2))
    v = inputs.normal(batch, steps, heads, DIM, dtype=dtype)
    state = _state(p, inputs, batch, heads, DIM, DIM)
    before, out = state.clone(), torch.empty_like(v)
    gate = inputs.normal(batch, steps, heads, *([DIM] if kda else []), dtype=dtype)
    beta = inputs.normal(batch, steps, heads, dtype=dtype)
    log, bias = (inputs.normal(heads, dtype=torch.float32) * 0.1 for _ in range(2))
    if kda:  # the logarithm of the decay, and a rate
        gate, beta = (-0.1 * gate.abs()).to(dtype), torch.sigmoid(beta)
        decay, update = gate.float().exp(), beta.float()
    else:
        decay = torch.exp(-log.exp() * softplus(gate.float() + bias))
        update = torch.sigmoid(beta.float())

    def expected() -> tuple[Tensor, Tensor]:
        def rows(
            x: Tensor,
        ) -> Tensor:  # [steps, batch * heads, …]: the heads of all sequences beside each other
            return x.transpose(0, 1).flatten(1, 2)

        unit = [normalize(x.float(), dim=-1, eps=1e-6) for x in (q, k)]
        first = before.float() if keys_first else before.float().transpose(-1, -2)
        unrolled = [rows(x) for x in (*unit, v, decay, update)]
        found, after = reference.gated_delta_rule(
            unrolled[0],
            unrolled[1],
            unrolled[2],
            unrolled[3],
            unrolled[4],
            DIM**-0.5,
            first.flatten(0, 1),
        )
        after = after.reshape(first.shape)
        whole = found.reshape(steps, batch, heads, DIM).transpose(0, 1)
        return whole, after if keys_first else after.transpose(-1, -2)

    given = (q, k, v, state, log, gate, bias, beta)
    return Step(_delta_call(p, given, out), out, state, expected)


def _delta_call(p: Params, given: tuple[Tensor, ...], out: Tensor) -> Callable[[], Any]:
    if find_spec("cutlass") is None:
        raise NotHereError(
            "its kernels are the CuTe DSL's: the package nvidia-cutlass-dsl is not installed"
        )
    import flashinfer
    import torch
    from flashinfer import gdn_decode

    q, k, v, state, log, gate, bias, beta = given
    if p["variant"] == "kda":
        if not hasattr(flashinfer, "recurrent_kda"):
            raise NotHereError("this FlashInfer has no recurrent_kda")
        return lambda: flashinfer.recurrent_kda(
            q, k, v, gate, beta, initial_state=state, output_final_state=True, output=out
        )
    gates = (log, gate, bias, beta)
    if p["variant"] == "gdn_kv":
        return lambda: gdn_decode.gated_delta_rule_decode(q, k, v, state, *gates, output=out)
    slots = torch.arange(p["batch"], dtype=torch.int32, device=q.device)
    if p["steps"] > 1 and p["state"] == "f32":
        return lambda: gdn_decode.gated_delta_rule_mtp(
            q, k, v, state, slots, *gates, output=out, disable_state_update=False
        )
    call = gdn_decode.gated_delta_rule_decode_pretranspose
    pool = {"initial_state": state, "initial_state_indices": slots}  # as engines keep states
    try:
        signature(call).bind_partial(**pool)
    except TypeError:  # before 0.6.6
        raise NotHereError("this FlashInfer's gated delta nets take no pool of states") from None
    return lambda: call(q, k, v, None, *gates, output=out, **pool)


def _ssm(p: Params, inputs: Inputs) -> Step:
    """q_heads are the groups that share B and C; a head has one step, decay, bias and skip, given for each of its elements."""
    import torch
    from flashinfer.mamba import selective_state_update
    from torch.nn.functional import softplus

    batch, steps, heads = p["batch"], p["steps"], p["v_heads"]
    x = inputs.normal(batch, steps, heads, SSM_DIM, dtype=torch.bfloat16)
    b, c = (inputs.normal(batch, steps, p["q_heads"], DIM, dtype=torch.bfloat16) for _ in range(2))
    step = inputs.normal(batch, steps, heads, dtype=torch.float32)
    a, skip, bias = (inputs.normal(heads, dtype=torch.float32) for _ in range(3))
    a = -torch.exp(0.5 * a)
    state = _state(p, inputs, batch, heads, SSM_DIM, DIM)
    before, out = state.clone(), torch.empty_like(x)
    if steps == 1:
        x, b, c, out = (one.squeeze(1) for one in (x, b, c, out))
    wide = [one[:, None].expand(heads, SSM_DIM) for one in (skip, bias)]
    each = step[..., None].expand(batch, steps, heads, SSM_DIM)
    each = each.squeeze(1) if steps == 1 else each
    decays = a[:, None, None].expand(heads, SSM_DIM, DIM)
    more = {"cache_steps": steps} if steps > 1 else {}

    def run() -> None:
        selective_state_update(
            state,
            x,
            each,
            decays,
            b,
            c,
            wide[0],
            dt_bias=wide[1],
            dt_softplus=True,
            out=out,
            **more,
        )

    def expected() -> tuple[Tensor, Tensor]:
        steps_of, keys, reads = (one.reshape(batch, steps, *one.shape[-2:]) for one in (x, b, c))
        found, after = reference.selective_scan(
            steps_of, softplus(step + bias), a, keys, reads, skip, before
        )
        return found.reshape(out.shape), after

    return Step(run, out, state, expected)


def modules(p: Params) -> list[Any]:
    """JIT modules of the point; the delta rules are the CuTe DSL's, which compiles at the first call."""
    if p["variant"] != "ssm":
        return []
    import torch
    from flashinfer.jit.mamba import gen_selective_state_update_sm90_module

    kinds = (getattr(torch, STATES[p["state"]]), torch.bfloat16, torch.float32, torch.float32)
    sizes = (SSM_DIM, DIM, p["steps"], torch.int32, torch.int64)
    return [gen_selective_state_update_sm90_module(*kinds, torch.int32, None, *sizes)]


TARGET = Target(
    name="recurrent",
    title="Recurrent decode",
    heading="Linear Attention and State Space Decode Kernels",
    order=11,
    parameters={
        "variant": ("gdn", "gdn_kv", "kda", "ssm"),
        "batch": 64,
        "steps": 1,  # tokens of each sequence: more than one verifies what a draft proposed
        "q_heads": 16,  # query and key heads; with 32 value heads those of Qwen3-Next 80B and Qwen3.5
        "v_heads": 32,
        "state": tuple(STATES),
    },
    small={"batch": 2},
    id="{variant}_B{batch}_S{steps}_Q{q_heads}_V{v_heads}_{state}",
    unable=unable,
    edges=lambda p: [{"batch": 1}, {"batch": 3}],
    stops_tracing=lambda p: False if p["variant"] == "ssm" else None,  # as the CuTe DSL does
    memory=lambda p: 4 * work(p).bytes,  # the state before, and float32 copies of the reference
    work=work,
    written=lambda p: p["batch"] * p["v_heads"] * values(p) * (DIM * _item(p) + 2 * p["steps"]),
    prepare=prepare,
    build=Build(generate=modules),
    source=Source(
        api={
            "python": "flashinfer.gdn_decode.gated_delta_rule_decode_pretranspose",
            "python_kv": "flashinfer.gdn_decode.gated_delta_rule_decode",
            "python_mtp": "flashinfer.gdn_decode.gated_delta_rule_mtp",
            "python_kda": "flashinfer.kda.recurrent_kda",
            "python_ssm": "flashinfer.mamba.selective_state_update.selective_state_update",
        },
    ),
    compared=(
        Choice("recurrent_state", "A state of 16 bits or of 32", "state", "bf16", "f32"),
        Choice(
            "recurrent_layout",
            "States in a pool, values first, or in none, keys first, by another kernel",
            "variant",
            "gdn",
            "gdn_kv",
        ),
        Choice("recurrent_steps", "One token a sequence, or four", "steps", 1, 4, given="traffic"),
    ),
)
