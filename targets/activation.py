"""Gated activations of a feed-forward layer: half of a row through the activation, times the other half."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from ncuflow.target import reference
from ncuflow.target.contract import Choice, Target, Work, dependent_launch
from ncuflow.target.inputs import ITEMSIZE, TINY, TOLERANCE, tiny, torch_dtype
from ncuflow.target.launch import (
    Inputs,
    Launch,
    LaunchSignature,
    Params,
    Rules,
    Tensor,
    UnsaidError,
)
from ncuflow.target.source import Build, Constant, Jit, Source, Symbol, Tunable
from ncuflow.target.workload import Block, Definition, EngineCall, Entry, Workload, element

CHECKED_ELEMENTS = 1 << 27  # of the output, compared with the reference
VARIANTS = ("silu", "gelu", "gelu_tanh")
_GATED = {f"{variant}_and_mul": variant for variant in VARIANTS}  # by FlashInfer's function


def point_id(p: Params) -> str:
    """E.g. silu_T4096_D14336_bf16."""
    knobs = "_nopdl" if p["pdl"] == "off" else ""
    knobs += "_apart" if p["fused"] == "off" else ""
    return f"{p['variant']}_T{p['tokens']}_D{p['hidden']}_{p['dtype']}{knobs}"


def work(p: Params) -> Work:
    """FLOPs: one product per output. Bytes: two halves read, one written; apart, the activation written and read as well."""
    elements = p["tokens"] * p["hidden"]
    return Work(
        flops=elements,
        bytes=(3 if p["fused"] == "on" else 5) * elements * ITEMSIZE[p["dtype"]],
        convention="ncuflow: 2*T*D elements read, T*D written; the product counted, the activation not",
    )


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id.

    The reference covers all rows, or a random sample of them with the first and the last.
    """
    import flashinfer
    import torch

    inputs = Inputs(TARGET.point_id(p), seed)
    x = inputs.normal(p["tokens"], 2 * p["hidden"], dtype=torch_dtype(p["dtype"]))
    out = torch.empty_like(x[:, : p["hidden"]].contiguous())
    rows = inputs.rows(p["tokens"], max(2, CHECKED_ELEMENTS // p["hidden"]))
    function = getattr(flashinfer, f"{p['variant']}_and_mul")
    settings = {"enable_pdl": False} if p["pdl"] == "off" else {}

    def run() -> None:
        function(x, out=out, **settings)

    def apart() -> None:
        gate, up = x.split(p["hidden"], dim=-1)
        torch.mul(_activated(gate, p["variant"]), up, out=out)

    def expected() -> tuple[Tensor]:
        gate, up = x[rows].split(p["hidden"], dim=-1)
        return (reference.gated(gate, up, p["variant"]),)

    return Launch(
        run=run if p["fused"] == "on" else apart,
        output=lambda: (out[rows],),
        reference=expected,
        tolerance=TOLERANCE[p["dtype"]],
        buffers=lambda: (out,),
        extremes={TINY: lambda: tiny(x[0]), "infinities": lambda: _infinite(x)},
    )


def _infinite(x: Tensor) -> None:
    """Make a gate of the first token infinite, and a factor of the last."""
    x[0, 0], x[-1, -1] = math.inf, -math.inf


def _activated(gate: Tensor, variant: str) -> Tensor:
    """The activation by torch, as a kernel of its own."""
    from torch.nn import functional

    if variant == "silu":
        return functional.silu(gate)
    return functional.gelu(gate, approximate="tanh" if variant == "gelu_tanh" else "none")


def modules(p: Params) -> list[Any]:
    """JIT modules of the point; needs FlashInfer and an arch list, but no GPU."""
    from flashinfer.jit.activation import gen_act_and_mul_module

    return [gen_act_and_mul_module(p["variant"])] if p["fused"] == "on" else []


def shapes(seen: LaunchSignature) -> Iterator[Params]:
    """A block a token; its threads tell the row while that is no longer than a block's most."""
    variants = [v for v in sorted(VARIANTS, key=len, reverse=True) if v in seen.name.lower()]
    said: Params = {"tokens": seen.grid[0], **seen.dtype} | (
        {"variant": variants[0]} if variants else {}
    )
    hidden, threads, vec = seen.sure("intermediate"), seen.block[0], seen.number("vec_size")
    if threads % 32:  # no block's most
        hidden = threads * vec
    if hidden is None or min(hidden // vec, 1024) < threads:
        why = f"a block of {threads} threads has rows of any length from {threads * vec} on"
        raise UnsaidError(why, said)
    yield {**said, "hidden": hidden}


def operators(name: str, shapes: Sequence[Sequence[int]], types: Sequence[str]) -> Params | None:
    """Of vLLM's and SGLang's silu_and_mul(out, input)."""
    called = name.split("::")[-1]
    whole = sorted((tuple(shape) for shape in shapes if len(shape) == 2), key=lambda s: s[1])
    if called not in _GATED or not whole:
        return None
    tokens, both = whole[-1]
    return {"variant": _GATED[called], "tokens": tokens, "hidden": both // 2}


def takes(entry: Entry) -> Block | None:
    """A case of a workload as a block of the sweep; None for one of another kernel."""
    match entry:
        case Definition(kind, {"h": both}) if kind in _GATED:  # its input holds both halves
            block = {"variant": _GATED[kind], "hidden": both // 2, "dtype": entry.element}
            return block | entry.counted(tokens="num_tokens")
    return None


_GETTER = "flashinfer.activation:get_act_and_mul_module"
_KERNEL = Symbol("act_and_mul_kernel", "activation.cuh")


def _called(variant: str, a: Params) -> Block:
    """The point that an engine called, by its arguments."""
    both = a["input"].shape[-1]
    tokens = a["input"].numel() // both
    return {"variant": variant, "tokens": tokens, "hidden": both // 2, "dtype": element(a["input"])}


TARGET = Target(
    name="activation",
    title="Gated activations",
    heading="Activation Kernel",
    order=8,
    parameters={
        "variant": VARIANTS,
        "tokens": 4096,
        "hidden": 14336,  # elements of an output row: the intermediate size of a feed-forward layer
        "dtype": "bf16",
        "pdl": ("auto", "off"),  # programmatic dependent launch: where the GPU has it
        "fused": ("on", "off"),  # off: the activation and the product as two calls of torch
    },
    choices={"dtype": tuple(ITEMSIZE)},
    unable=lambda p, gpu: (
        "dependent launch is a setting of the fused call"
        if (p["fused"], p["pdl"]) == ("off", "off")
        else None
    ),
    small={"tokens": 16},
    edges=lambda p: [{"tokens": 1}, {"tokens": 3, "hidden": 1024 + 8}],
    id=point_id,
    work=work,
    written=lambda p: work(p).bytes - 2 * p["tokens"] * p["hidden"] * ITEMSIZE[p["dtype"]],
    prepare=prepare,
    workload=Workload(
        takes=takes,
        calls=tuple(
            EngineCall(
                "flashinfer.activation", function, partial(_called, variant), tells=("input",)
            )
            for function, variant in _GATED.items()
        ),
    ),
    rules=Rules(shapes=shapes, operators=operators),
    build=Build(
        early=True,
        generate=modules,
        jit=(Jit("activation", _GETTER, lambda p: (p["variant"],)),),
    ),
    source=Source(
        api={
            "python": "flashinfer.activation.silu_and_mul",
            "python_gelu": "flashinfer.activation.gelu_and_mul",
            "python_gelu_tanh": "flashinfer.activation.gelu_tanh_and_mul",
            "jit": "flashinfer.jit.activation.gen_act_and_mul_module",
            "binding": "include/flashinfer/activation.cuh",  # its source is generated around it
        },
        kernels=(_KERNEL,),
        tunables=(
            Tunable(
                "threads",
                (
                    Constant("jit/activation.py", "", r"std::min\(d / vec_size, (\d+)U\)"),
                    Constant(
                        "data/include/flashinfer/activation.cuh",
                        "",
                        r"__launch_bounds__\((\d+)\) void act_and_mul_kernel",
                    ),
                ),
                (128, 512, 1024),
                where="fused == 'on'",
            ),
        ),
    ),
    compared=(
        Choice("gelu_erf", "GELU by erf or by tanh", "variant", "gelu", "gelu_tanh", given="model"),
        Choice("gelu", "SiLU or GELU by erf", "variant", "silu", "gelu", given="model"),
        Choice("gelu_tanh", "SiLU or GELU by tanh", "variant", "silu", "gelu_tanh", given="model"),
        Choice(
            "activation_fused",
            "Activation and product in one kernel or in two",
            "fused",
            "on",
            "off",
            names=("one", "two"),
        ),
        dependent_launch("activation_pdl"),
    ),
)
