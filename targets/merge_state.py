"""Merging of attention states: the outputs of KV segments become that of the whole."""

import math
from collections.abc import Iterator
from functools import partial

from ncuflow.target import reference
from ncuflow.target.contract import Choice, Target, Work
from ncuflow.target.inputs import ITEMSIZE, TOLERANCE, torch_dtype
from ncuflow.target.launch import (
    TYPES,
    Host,
    Inputs,
    Launch,
    LaunchConfig,
    Params,
    Rules,
    Tensor,
    returning,
)
from ncuflow.target.source import Build, Constant, Jit, Source, Symbol, Tunable
from ncuflow.target.workload import Block, EngineCall, Workload, element

_HEADER = "data/include/flashinfer/attention/cascade.cuh"
CHECKED_ELEMENTS = 1 << 27  # of the input, compared with the reference


def point_id(p: Params) -> str:
    """E.g. merge_states_n4_S4096_H32_D128_f16; merge_state has no n."""
    states = f"_n{p['states']}" if p["variant"] == "merge_states" else ""
    return f"{p['variant']}{states}_S{p['seq_len']}_H{p['heads']}_D{p['head_dim']}_{p['dtype']}"


def work(p: Params) -> Work:
    """FLOPs and bytes; FlashInfer has no convention for it.

    Bytes: n states (values and float32 log-sums) read, one written. FLOPs: a multiplication and an
    addition for each value read; exponentials are not counted.
    """
    n, rows = _states(p), p["seq_len"] * p["heads"]
    value = p["head_dim"] * ITEMSIZE[p["dtype"]]
    return Work(
        flops=2 * n * rows * p["head_dim"],
        bytes=(n + 1) * rows * (value + 4),
        convention="ncuflow: n states read, one written; 2 FLOPs per value read",
    )


def prepare(p: Params, seed: int = 0) -> Launch:
    """Inputs of seed and point id.

    The reference covers all rows, or a random sample of them with the first and the last.
    """
    import flashinfer
    import torch

    inputs = Inputs(TARGET.point_id(p), seed)
    n, size = _states(p), (p["heads"], p["head_dim"])
    shape = (p["seq_len"], n, *size)
    rows = inputs.rows(p["seq_len"], max(2, CHECKED_ELEMENTS // (n * size[0] * size[1])))
    v = inputs.normal(*shape, dtype=torch_dtype(p["dtype"]))
    s = inputs.normal(*shape[:-1], dtype=torch.float32) * 2
    two: list[Tensor] = []
    call = partial(flashinfer.merge_states, v, s)
    if p["variant"] == "merge_state":
        two = [t for i in range(2) for t in (v[:, i].contiguous(), s[:, i].contiguous())]
        call = partial(flashinfer.merge_state, *two)
    run, merged = returning(call)
    return Launch(
        run=run,
        output=lambda: tuple(t[rows] for t in merged()),
        reference=lambda: reference.merge_states(v[rows], s[rows]),
        tolerance=TOLERANCE[p["dtype"]],
        buffers=merged,
        allocates=True,
        extremes={
            "finite sums far below 0": lambda: _shift(s, two),
            **({"states of no tokens": lambda: _empty(s, two)} if n > 1 else {}),
        },
    )


FAR = 2.0**17  # beyond what a kernel may take for infinite


def _shift(s: Tensor, two: list[Tensor]) -> None:
    """Take all sums far below 0, as far apart as they were."""
    s.sub_(FAR)
    _copied(s, two)


def _empty(s: Tensor, two: list[Tensor]) -> None:
    """Make all states of the first row such of no tokens, and one of each other row; two: what merge_state takes of them."""
    s[0] = s[1:, 0] = -math.inf
    _copied(s, two)


def _copied(s: Tensor, two: list[Tensor]) -> None:
    """What merge_state takes of the sums."""
    for place in range(len(two) // 2):
        two[2 * place + 1].copy_(s[:, place])


def _states(p: Params) -> int:
    return 2 if p["variant"] == "merge_state" else int(p["states"])


def launches(p: Params, host: Host) -> Iterator[LaunchConfig]:
    """Of MergeState, or MergeStates: many states take a kernel with a block for each row and head."""
    item, dim, kind = ITEMSIZE[p["dtype"]], p["head_dim"], TYPES[p["dtype"]]
    vec = max(16 // item, dim // 32)
    bdx = dim // vec
    if p["variant"] == "merge_states" and p["states"] >= p["seq_len"]:
        bdy = 128 // bdx
        name = f"flashinfer::MergeStatesLargeNumIndexSetsKernel<{vec}, {bdx}, {bdy}, 4, {kind}, {kind}>"
        shared = 4 * bdy * dim * item + 128 * 4
        yield LaunchConfig(name, (p["seq_len"], p["heads"], 1), (bdx, bdy, 1), shared)
        return
    what = "MergeStateKernel" if p["variant"] == "merge_state" else "MergeStatesKernel"
    name = f"flashinfer::{what}<{vec}, {kind}, {kind}>"
    yield LaunchConfig(name, (p["seq_len"], 1, 1), (bdx, p["heads"], 1), 0)


def _called(variant: str, values: str, a: Params) -> Block:
    """The point that an engine called, by its values."""
    rows, *states, heads, size = a[values].shape
    block = {"variant": variant, "seq_len": rows, "heads": heads, "head_dim": size}
    return block | ({"states": states[0]} if states else {}) | {"dtype": element(a[values])}


TARGET = Target(
    name="merge_state",
    title="Merging attention states",
    heading="Merge State Kernel",
    order=5,
    parameters={
        "variant": "merge_states",  # merge_state merges two
        "states": 4,  # merge_states only
        "seq_len": 4096,
        "heads": 32,
        "head_dim": 128,
        "dtype": tuple(ITEMSIZE),
    },
    choices={"variant": ("merge_state", "merge_states"), "head_dim": (64, 128, 256)},
    small={"seq_len": 128},
    id=point_id,
    # one row; one state; more states than a block has rows of threads; a block of 1024 threads
    edges=lambda p: [
        {"seq_len": 1},
        {"states": 1},
        {"seq_len": 3, "states": 33},
        {"seq_len": 3, "heads": 64},
    ],
    work=work,
    written=lambda p: work(p).bytes // (_states(p) + 1),
    workload=Workload(
        calls=tuple(
            EngineCall("flashinfer.cascade", name, partial(_called, name, values), tells=(values,))
            for name, values in (("merge_state", "v_a"), ("merge_states", "v"))
        )
    ),
    prepare=prepare,
    rules=Rules(launches=launches),
    source=Source(
        api={
            "python": "flashinfer.cascade.merge_states",
            "python_two": "flashinfer.cascade.merge_state",
            "jit": "flashinfer.jit.cascade.gen_cascade_module",
            "binding": "csrc/cascade.cu",
        },
        kernels=tuple(
            Symbol(f"Merge{kind}Kernel", "attention/cascade.cuh")
            for kind in ("State", "StateInPlace", "States", "StatesLargeNumIndexSets")
        ),
        sources=("cascade.cu", "flashinfer_cascade_binding.cu"),
        meanings={
            "DTypeIn": "type of the partial outputs",
            "num_smem_stages": "partial outputs in flight in shared memory",
        },
        # of the kernel with a block for each row and head
        tunables=(
            Tunable(
                "threads",
                (Constant(_HEADER, "MergeStates", r"num_threads = (\d+);"),),
                (256, 64, 512),
                where="variant == 'merge_states' and states >= seq_len",
            ),
            Tunable(
                "stages",
                (Constant(_HEADER, "MergeStates", r"num_smem_stages = (\d+);"),),
                (2, 8, 3),
                where="variant == 'merge_states' and states >= seq_len",
            ),
        ),
    ),
    build=Build(early=True, jit=(Jit("merge", "flashinfer.cascade:get_cascade_module"),)),
    compared=(
        Choice(
            "merge_two",
            "merge_states or merge_state for two states",
            "variant",
            "merge_states",
            "merge_state",
            where="variant == 'merge_state' or states == 2",
            ignoring=("states",),
        ),
    ),
)
