"""Sampling of the next token: from logits or probabilities, of all tokens or of the likely ones.

Top-k, top-p and min-p sample by rejection: a round draws a token and raises the threshold if it is not
among the likely ones, so the work depends on the data. ``logit_std`` says how peaked they are.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from ncuflow.target import reference, workload
from ncuflow.target.contract import Choice, StepPart, Target, Work
from ncuflow.target.launch import (
    Inputs,
    Launch,
    LaunchSignature,
    Params,
    Rules,
    Tensor,
    UnsaidError,
    returning,
)
from ncuflow.target.source import Build, Jit, Source, symbols
from ncuflow.target.workload import Block, Definition, EngineCall, Entry, Routine, Workload

# variant -> (FlashInfer's function, parameters in percent or whole numbers that limit the tokens,
#             whether it writes as much as it reads)
_VARIANTS: dict[str, tuple[str, tuple[str, ...], bool]] = {
    "from_logits": ("sampling_from_logits", (), False),
    "from_probs": ("sampling_from_probs", (), False),
    "top_k": ("top_k_sampling_from_probs", ("top_k",), False),
    "top_p": ("top_p_sampling_from_probs", ("percent",), False),
    "min_p": ("min_p_sampling_from_probs", ("percent",), False),
    "top_k_top_p": ("top_k_top_p_sampling_from_probs", ("top_k", "percent"), False),
    "top_k_renorm": ("top_k_renorm_probs", ("top_k",), True),
    "top_p_renorm": ("top_p_renorm_probs", ("percent",), True),
    "softmax": ("softmax", (), True),
    "select": ("top_k", ("top_k",), False),
}
_BY_FUNCTION = {function: variant for variant, (function, _, _) in _VARIANTS.items()}
# What a sampler runs of these, the most first.
_SAMPLED = ("top_k_top_p", "top_p", "from_logits", "from_probs")
TOLERANCE = 1e-3  # of float32 sums over a vocabulary; a sample that may not be drawn costs far more
# A token of so small a share is drawn once in more runs of a check than anybody makes of it.
NEVER = 1e-13


def point_id(p: Params) -> str:
    """E.g. top_p_B128_V128256_t90_s3; of the limits those that the variant has."""
    limits = "".join(f"_{name[-1]}{p[name]}" for name in _VARIANTS[p["variant"]][1])
    return f"{p['variant']}_B{p['batch']}_V{p['vocab']}{limits}_s{p['logit_std']}"


def work(p: Params) -> Work:
    """Bytes: every probability read once, as float32; written too where the variant does. No FLOPs."""
    elements = p["batch"] * p["vocab"]
    _, _, written = _VARIANTS[p["variant"]]
    result = elements * 4 if written else p["batch"] * 4
    if p["variant"] == "select":
        result = p["batch"] * p["top_k"] * 8
    return Work(
        flops=0,
        bytes=elements * 4 + result,
        convention="ncuflow: float32 read once, whatever the rounds; the result written",
    )


def prepare(p: Params, seed: int = 0) -> Launch:
    """Logits of seed and point id, normal with ``logit_std``.

    A sample is right if its token is one that may be drawn: its reference is 1 for each row. The
    variants that return probabilities or values are compared with theirs, whole.
    """
    import flashinfer
    import torch

    inputs = Inputs(TARGET.point_id(p), seed)
    logits = inputs.normal(p["batch"], p["vocab"], dtype=torch.float32) * p["logit_std"]
    source = logits
    if p["variant"] not in ("from_logits", "softmax", "select"):
        source = torch.softmax(logits, dim=-1)
    name, limits, _ = _VARIANTS[p["variant"]]
    function = getattr(flashinfer, name, None) or getattr(flashinfer.sampling, name)
    arguments = [p[limit] if limit == "top_k" else p[limit] / 100 for limit in limits]
    settings = {"filter_apply_order": "joint"} if p["variant"] == "top_k_top_p" else {}
    run, returned = returning(partial(function, source, *arguments, **settings))
    output, expected = _compared(p, source, returned)
    return Launch(
        run=run,
        output=output,
        reference=expected,
        tolerance=TOLERANCE,
        buffers=returned,
        allocates=True,
        extremes={
            **(
                {"one token all but certain": lambda: _certain(source)}
                if p["variant"] == "from_logits"
                else {}
            ),
            **(
                {"large logits of both signs": lambda: source.mul_(FAR)} if source is logits else {}
            ),
            "tokens that are ruled out": lambda: _rule_out(source, source is logits),
        },
    )


def _certain(logits: Tensor) -> None:
    """Raise the likeliest token until each other one has a share below NEVER, and above 0."""
    most = logits.max(dim=-1, keepdim=True)
    logits.scatter_(-1, most.indices, most.values - math.log(NEVER / 10))


FAR = 2.0**16  # times a logit: beyond what a kernel may take for infinite


def _rule_out(source: Tensor, logits: bool) -> None:
    """Leave every second token no probability, unless it is the likeliest, and in the first row all but the last token."""
    none, certain = (-math.inf, 0.0) if logits else (0.0, 1.0)
    out = source < source.max(dim=-1, keepdim=True).values
    out[:, ::2] = False
    source.masked_fill_(out, none)
    source[0], source[0, -1] = none, certain
    if not logits:
        source.div_(source.sum(dim=-1, keepdim=True))


def modules(p: Params) -> list[Any]:
    """JIT modules of the point; needs FlashInfer and an arch list, but no GPU."""
    from flashinfer.jit import sampling, topk

    return [topk.gen_topk_module() if p["variant"] == "select" else sampling.gen_sampling_module()]


Compared = Callable[[], tuple[Tensor, ...]]


def _compared(p: Params, source: Tensor, returned: Compared) -> tuple[Compared, Compared]:
    """(what of the output is compared, with what)."""
    import torch

    if p["variant"] == "select":

        def first(values: Tensor) -> Tensor:
            return values.sort(dim=-1, descending=True).values[:, : p["top_k"]]

        def selected() -> tuple[Tensor, ...]:
            values, places = returned()
            return first(values), first(source.gather(1, places.long()))

        return selected, lambda: (first(source), first(source))
    if p["variant"] == "softmax":
        return returned, lambda: (reference.softmax(source),)
    limited = p["variant"].removesuffix("_renorm")
    # A renormalised row is one exact set of tokens: one too many among 4 096 is 0.2 % off.
    slack = 0.0 if limited != p["variant"] else 1e-4

    def kept() -> Tensor:
        """Probabilities; 0 of tokens that may not be drawn."""
        probs = reference.softmax(source) if p["variant"] == "from_logits" else source
        return probs * reference.likely(
            probs,
            top_k=p["top_k"] if limited.startswith("top_k") else p["vocab"],
            top_p=p["percent"] / 100 if limited.endswith("top_p") else 1.0,
            min_p=p["percent"] / 100 if limited == "min_p" else 0.0,
            slack=slack,
        )

    if p["variant"].endswith("renorm"):

        def renormed() -> tuple[Tensor, ...]:
            found = kept()
            return (found / found.sum(dim=-1, keepdim=True),)

        return returned, renormed

    def drawn() -> tuple[Tensor, ...]:
        token = returned()[0].long()[:, None]
        inside = (token >= 0) & (token < p["vocab"])
        share = kept().gather(1, token.clamp(0, p["vocab"] - 1))
        return (((share > NEVER) & inside).float(),)

    return drawn, lambda: (torch.ones(p["batch"], 1, device=source.device),)


_MAP = "OnlineSoftmaxMapKernel"  # of a softmax in two kernels
_SEEN = {
    "SamplingFromLogitsKernel": "from_logits",
    "SamplingFromProbKernel": "from_probs",
    "TopKSamplingFromProbKernel": "top_k",
    "TopPSamplingFromProbKernel": "top_p",
    "MinPSamplingFromProbKernel": "min_p",
    "TopKTopPSamplingFromProbKernel": "top_k_top_p",
    "TopPRenormProbKernel": "top_p_renorm",
    "OnlineSoftmaxFusedKernel": "softmax",
    _MAP: "softmax",
}
_TOPK = symbols(
    "topk.cuh",
    "RadixTopKRenormProbKernel_MultiCTA",
    "FilteredTopKUnifiedKernel",
    "RadixTopKKernel_Unified",
)


def shapes(seen: LaunchSignature) -> Iterator[Params]:
    """A block, or a cluster of them, a row; how long rows are is an argument of the call."""
    variant = _SEEN.get(seen.kernel)
    if variant is None:
        raise UnsaidError("no rule tells its rows from its launch")
    said = {"variant": variant, "batch": seen.grid[0]}
    yield {**said, "vocab": seen.needed("vocab", "the launch is alike for every vocabulary", said)}


def takes(entry: Entry) -> Block | None:
    """A case of a workload as a block of the sweep; None for one of another kernel."""
    match entry:
        case Routine(name) if name in _BY_FUNCTION:
            block = entry.numbers(batch="batch_size", vocab="vocab_size")
            percent = entry.options.get("top_p") or entry.options.get("min_p")
            if percent:
                block["percent"] = round(float(percent[0]) * 100)
            if "top_k" in entry.options:
                block["top_k"] = entry.number("top_k")
            return block | {"variant": _BY_FUNCTION[name]}
        case Definition(kind, sizes):
            variant = _BY_FUNCTION.get(kind) or _BY_FUNCTION.get(f"{kind}_from_probs")
            block = entry.counted(batch="batch_size")
            block |= {"vocab": sizes["v"]} if "v" in sizes else {}
            return {"variant": variant, **block} if variant and block else None
    return None


_TELLS = ("logits", "probs", "indices", "top_k", "top_p", "min_p", "filter_apply_order")


def _called(variant: str, a: Params) -> Block:
    """The point that an engine called, by its arguments; of a tensor of thresholds none is known."""
    if variant == "top_k_top_p" and a.get("filter_apply_order") != "joint":
        raise workload.RefusedError("top-k first is two calls, each of which has a range")
    rows = a["logits"] if "logits" in a else a["probs"]
    found = {"variant": variant, "batch": rows.shape[0], "vocab": rows.shape[-1]}
    if a.get("indices") is not None:
        found["batch"] = a["indices"].shape[0]
    if isinstance(a.get("top_k"), int):
        found["top_k"] = a["top_k"]
    share = a.get("top_p", a.get("min_p"))
    return found | ({"percent": round(100 * share)} if isinstance(share, float) else {})


TARGET = Target(
    name="sampling",
    title="Sampling and top-k",
    heading="Sampling Kernels",
    order=9,
    parameters={
        "variant": "top_k_top_p",
        "batch": 128,
        "vocab": 128256,  # Llama 3's
        "top_k": 40,  # top_k, top_k_top_p, top_k_renorm and select only
        "percent": 90,  # that the likely tokens sum to; of min_p: of the likeliest one
        "logit_std": 3,  # how peaked the distribution is: 1 is nearly flat, 6 all but certain
    },
    choices={"variant": tuple(_VARIANTS)},
    small={"batch": 1, "vocab": 4096},
    id=point_id,
    # one row; rows that no vector divides; the likeliest token alone, all of them, and one that is certain; draws enough that
    # the rarest number of the generator is among them
    edges=lambda p: [
        {"batch": 1},
        {"batch": 3, "vocab": 1001},
        {"batch": 3, "vocab": 1001, "top_k": 1, "percent": 1},
        {"batch": 3, "vocab": 1001, "top_k": 1001, "percent": 100},
        {"batch": 3, "vocab": 1001, "logit_std": 1000},
        *([{"batch": 2048, "vocab": 128256}] if p["variant"] == "from_logits" else []),
    ],
    memory=lambda p: 6 * p["batch"] * p["vocab"] * 4,  # logits, probabilities, reference
    work=work,
    prepare=prepare,
    part=lambda p: (
        StepPart("sampling", sequences=p["batch"], per_layer=0, rank=_SAMPLED.index(p["variant"]))
        if p["variant"] in _SAMPLED
        else None
    ),
    workload=Workload(
        takes=takes,
        calls=tuple(
            EngineCall("flashinfer.sampling", function, partial(_called, variant), tells=_TELLS)
            for function, variant in _BY_FUNCTION.items()
            if function != "top_k"
        ),
    ),
    rules=Rules(shapes=shapes, kernels=(_MAP,), finishers=("OnlineSoftmaxReduceKernel",)),
    build=Build(
        generate=modules, jit=(Jit("sampling", "flashinfer.sampling:get_sampling_module"),)
    ),
    source=Source(
        api={
            "python": "flashinfer.sampling.top_k_top_p_sampling_from_probs",
            "python_logits": "flashinfer.sampling.sampling_from_logits",
            "python_select": "flashinfer.topk.top_k",
            "jit": "flashinfer.jit.sampling.gen_sampling_module",
            "binding": "csrc/sampling.cu",
        },
        kernels=(*symbols("sampling.cuh", *(name for name in _SEEN if name != _MAP)), *_TOPK),
        sources=("sampling.cu", "renorm.cu", "flashinfer_sampling_binding.cu"),
    ),
    compared=(
        Choice(
            "sampling_top_p",
            "All tokens or top-p",
            "variant",
            "from_probs",
            "top_p",
            ignoring=("top_k", "percent"),
            given="traffic",
        ),
        Choice(
            "sampling_joint",
            'Top-p, or top-k and top-p by `filter_apply_order="joint"`',
            "variant",
            "top_p",
            "top_k_top_p",
            ignoring=("top_k",),
            given="traffic",
        ),
        Choice(
            "sampling_logits",
            "Probabilities that are there, or logits",
            "variant",
            "from_probs",
            "from_logits",
        ),
        Choice(
            "sampling_softmax",
            "Softmax and a draw from its probabilities, or a draw from logits",
            "variant",
            "from_probs",
            "from_logits",
            after="softmax",
            names=("softmax, from_probs", "from_logits"),
        ),
        Choice("sampling_peaked", "Peaked or flat logits", "logit_std", 3, 1, given="traffic"),
    ),
)
