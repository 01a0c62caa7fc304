"""Rows of a step: a kernel's launches that are alike, why they have no roof, and the parts of a step that they are.

Beside them what a launch moves and computes that no target counts: a copy by its bytes, a framework's kernel by the tensors
of its operator, a product of experts by its grid. Two works are the least and the most that it may have been.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ncuflow.findings import kernelname
from ncuflow.findings.kernelname import COPY, built
from ncuflow.format import si
from ncuflow.parsers.timeline import KERNEL, MEMSET, Ints, Launched, Operator, Timeline
from ncuflow.step.detection import WORDS
from ncuflow.step.record import (
    FamilyOfStep,
    GainOfStep,
    KernelOfStep,
    ReasonOfLaunch,
    ShapeOfLaunch,
)
from ncuflow.step.shapes import FINISHES, Shape
from ncuflow.target.contract import Work
from ncuflow.target.inputs import TORCH_DTYPES

MOST_CANDIDATES = 12
_REASONS = [(re.compile(pattern), why, would) for pattern, why, would in WORDS["reasons"]]
NO_CEILING = "no ceiling of this GPU is known"
NO_SHAPES = "the trace has no shapes of its operator"


def row(
    one: Launched,
    shape: Shape | None,
    graph: bool,
    lengths: np.ndarray,
    own: float,
    each: float,
    span: float,
) -> KernelOfStep:
    """The launches of a kernel that are alike. lengths: of each, in us; own: of all, where nothing else ran; each: of one."""
    is_kernel = one.kind == KERNEL
    return KernelOfStep(
        name=kernelname.bare(one.name) if is_kernel else one.name,
        demangled=one.name,
        family=kernelname.family(one.name) if is_kernel else COPY,
        owner=kernelname.owner(one.name) if is_kernel else None,
        launches=len(lengths),
        time_us=round(own, 3),
        each_us=round(each, 3),
        longest_us=round(float(lengths.max()), 3),
        share=round(100 * own / span, 2) if span else 0.0,
        grid=one.grid,
        block=one.block,
        graph=graph,
        shape=_recorded(shape) if shape else None,
        built=kernelname.built(one.name) if is_kernel else {},
    )


def _recorded(shape: Shape) -> ShapeOfLaunch:
    kept = shape.candidates[:MOST_CANDIDATES]
    return ShapeOfLaunch(
        target=shape.target.name if shape.target else None,
        candidates=[dict(one) for one in kept],
        candidates_left_out=len(shape.candidates) - len(kept),
        source=shape.source,
        refusal=shape.refusal,
        certain=dict(shape.certain),
    )


def is_told(shape: ShapeOfLaunch | None) -> bool:
    """Whether it has a shape, or says why not."""
    return shape is not None and bool(shape.candidates or shape.refusal or shape.operands)


def reason(one: KernelOfStep, ceiling: bool, operator: str | None) -> ReasonOfLaunch | None:
    """Why a row has no roof; None where it has one, or is the rest of another's call. ceiling: whether the GPU has one;
    operator: that the profiler wrote down with its shapes."""
    shape = one.shape
    if one.roof is not None or (shape is not None and shape.refusal == FINISHES):
        return None
    if not ceiling:
        return ReasonOfLaunch(why=NO_CEILING, would="nothing")
    if shape is not None and shape.target is not None and shape.refusal:
        alone = shape.refusal.startswith(WORDS["only_annotated"])
        return ReasonOfLaunch(why=shape.refusal, would="annotation" if alone else "lengths")
    said = f"{one.family} {one.demangled}"
    for pattern, why, would in _REASONS:
        if pattern.search(said):
            return ReasonOfLaunch(why=why, would=would)
    if operator is None:
        return ReasonOfLaunch(why=NO_SHAPES, would="shapes")
    return ReasonOfLaunch(why=f"nothing counts what {operator} moves", would="rule")


def families(
    kernels: Sequence[KernelOfStep], gains: Sequence[GainOfStep], span: float
) -> list[FamilyOfStep]:
    """The parts of a step, the most time first. gains: those that are shown."""
    parts: dict[str, list[KernelOfStep]] = defaultdict(list)
    for one in kernels:
        parts[one.family].append(one)
    best: dict[str, float] = defaultdict(float)
    for gain in gains:
        best[gain.kernel] = max(best[gain.kernel], gain.high_pct)
    made = [_part(name, of, best, span) for name, of in parts.items()]
    return sorted(made, key=lambda one: -one.time_us)


def _part(
    name: str, of: Sequence[KernelOfStep], best: Mapping[str, float], span: float
) -> FamilyOfStep:
    whole = sum(one.time_us for one in of)
    roofed = [one for one in of if one.roof]
    time = sum(one.time_us for one in roofed)
    reached = [
        sum(one.time_us * min(100.0, one.roof.percent[side]) for one in roofed if one.roof) / time
        for side in (0, 1)
        if time
    ]
    gained = {one.name for one in of if one.name in best}
    return FamilyOfStep(
        family=name,
        time_us=round(whole, 3),
        share=round(100 * whole / span, 2) if span else 0.0,
        launches=sum(one.launches for one in of),
        roofed_pct=share_pct(of, [has_roof(one) for one in of]) or 0.0,
        roof_pct=(round(reached[0], 1), round(reached[1], 1)) if reached else None,
        gain_pct=round(sum(best[name] for name in gained), 2) if gained else None,
    )


def unmendable(one: KernelOfStep) -> bool:
    """Whether a row has no roof for a reason that no trace could mend."""
    return one.reason is not None and one.reason.would == "nothing"


def has_roof(one: KernelOfStep) -> bool:
    """Whether a row, or the call that it finishes, is held against a ceiling."""
    return one.roof is not None or one.reason is None


def share_pct(kernels: Sequence[KernelOfStep], which: Sequence[bool]) -> float | None:
    """The share of kernels' time, in %, that is of such ones; None of no time."""
    whole = sum(one.time_us for one in kernels)
    part = sum(one.time_us for one, such in zip(kernels, which, strict=True) if such)
    return round(100 * part / whole, 2) if whole else None


# --- what no target counts --------------------------------------------------------------------

DEVICE = "Device-to-Device"
_MOVES: dict[str, list[int | str]] = WORDS["moves"]
_BYTES: dict[str, int] = WORDS["types"]
_HEADS: dict[str, tuple[int, int]] = WORDS["heads"]
_EXPERTS: dict[str, tuple[int, int]] = WORDS["experts"]
_FUSED: dict[str, tuple[int, ...]] = WORDS["fused"]
_PARTS = [(re.compile(pattern), by) for pattern, by in WORDS["parts"].items()]
# Bytes of an element with its share of a block's scale; and the type at whose rate tensor cores multiply it.
_ELEMENTS = {"mxfp4": 17 / 32, "nvfp4": 9 / 16, "mxfp8": 33 / 32, "fp8": 1.0, "bf16": 2.0, "f16": 2.0}  # fmt: skip
_GATED = re.compile("swiGlu|geGlu", re.IGNORECASE)
MOST_CHOSEN = 64  # experts of a token


class Counted(NamedTuple):
    """works: the least and the most; dtype: of products; words: the tensors as a reader writes them; source: what told them."""

    works: tuple[Work, ...]
    dtype: str
    words: str
    source: str


@dataclass(frozen=True)
class Routed:
    """A mixture of experts: its tokens, how long they are, and how many experts there are, of which each token takes some;
    rows: of the product whose activation is gated, the least and the most."""

    tokens: int
    hidden: int
    experts: int
    chosen: int
    rows: tuple[int, int]

    @property
    def pairs(self) -> int:
        """Of a token and an expert."""
        return self.tokens * self.chosen


def _moved(size: float, words: str, source: str) -> Counted:
    return Counted((Work(0, round(size), words),), "f16", words, source)


def sizes(timeline: Timeline, rows: Ints) -> list[int]:
    """For each row the bytes of what is copied or filled on the GPU; 0 of others."""
    whole = [one.kind == MEMSET or one.name == DEVICE for one in timeline.kinds]
    mine = np.array(whole, dtype=bool)[timeline.rows["what"][rows]]
    found: list[int] = np.where(mine, timeline.rows["bytes"][rows], 0).tolist()
    return found


def of_copy(one: Launched, size: int) -> Counted | None:
    """Of what stays on the GPU: each byte is read and written, or written alone; None of another copy."""
    if size <= 0 or (one.kind != MEMSET and one.name != DEVICE):
        return None
    return _moved(size * (1 if one.kind == MEMSET else 2), si(size, "B"), "the trace")


def of_operator(operator: Operator) -> Counted | None:
    """Of an operator whose tensors are read and written whole; None of another."""
    try:
        places = _MOVES[operator.name]
        size = sum(_size(operator, place) for place in places)
        shown = dict.fromkeys(p for p in places if isinstance(p, int))
        words = ", ".join(_tensor(operator, place) for place in shown)
    except (LookupError, TypeError):
        return None
    return _moved(size, words, f"the shapes of {operator.name}") if size else None


def _size(operator: Operator, place: int | str) -> int:
    """Bytes of a tensor: of one by its place; of "0:2", one of the first's elements and the third's type; of "+", what the first
    two make together. Raises LookupError where its shape or type is not said."""
    if place == "+":
        both = [d[::-1] for d in operator.dims[:2]]
        sides = [max(d[n] if n < len(d) else 1 for d in both) for n in range(max(map(len, both)))]
        return prod(sides) * _BYTES[operator.types[0]]
    of, _, like = str(place).partition(":")
    dims = operator.dims[int(of)]
    return prod(dims) * _BYTES[operator.types[int(like or of)]] if dims else 0


def _tensor(operator: Operator, place: int) -> str:
    dims, kind = operator.dims[place], operator.types[place]
    return f"{'×'.join(map(str, dims)) or 1} {TORCH_DTYPES.get(kind, kind.removeprefix('c10::'))}"


def heads(operator: Operator) -> dict[str, int]:
    """What an operator of attention says of its heads: of queries and keys as [tokens, heads, dimension]."""
    places = _HEADS.get(operator.name)
    if places is None or max(places) >= len(operator.dims):
        return {}
    q, k = (operator.dims[place] for place in places)
    if len(q) != 3 or len(k) != 3 or not min(*q, *k):
        return {}
    return {"qo_heads": q[1], "kv_heads": k[1], "head_dim": q[2]}


# --- a mixture of experts: trtllm-gen's --------------------------------------------------------------


def routed(operator: Operator, launched: Iterable[Launched]) -> Routed | None:
    """By the shapes of its operator, and the grids of the products that it launched: of rows of the weights, and of tiles of
    tokens, as many as there may be at most (getMaxNumCtasInBatchDim of trtllm/fused_moe/runner.h). None where these do not say
    it of one number of experts for each token alone."""
    places = _EXPERTS.get(operator.name)
    products = [one for one in launched if one.grid and built(one.name).get("kind") == "bmm"]
    gated = {one for one in products if _GATED.search(one.name)}
    if places is None or max(places) >= len(operator.dims) or len(gated) != 1:
        return None
    states, logits = (operator.dims[place] for place in places)
    if len(states) != 2 or len(logits) != 2 or not min(*states, *logits):
        return None
    tokens, experts = states[0], logits[1]
    chosen = [
        n for n in range(1, min(experts, MOST_CHOSEN) + 1)
        if all(_tiles(tokens * n, experts, _tile(one)[1]) == (one.grid or (0, 0))[1] for one in products)
    ]  # fmt: skip
    if len(chosen) != 1:
        return None
    return Routed(tokens, states[1], experts, chosen[0], _rows(*gated))


def _tile(one: Launched) -> list[int]:
    return [int(side) for side in built(one.name)["tile"].split("x")]


def _tiles(pairs: int, experts: int, tile: int) -> int:
    filled = min(experts, pairs)
    return filled + (pairs - filled) // tile


def _rows(one: Launched) -> tuple[int, int]:
    """The least and the most rows of the weights that blocks of a tile cover."""
    blocks, tile = (one.grid or (0, 0, 0))[0], _tile(one)[0]
    together = int(built(one.name)["cluster"].partition("x")[0])
    return max(1, (blocks - together) * tile + 1), blocks * tile


def of_fused(one: Launched, operator: Operator) -> Counted | None:
    """Of Triton's products of experts, whose names say nothing: one of the two of their operator, from a single token and expert
    on, as on a GPU that has few of them, to all."""
    places = _FUSED.get(operator.name)
    if places is None or one.name != WORDS["fused_kernel"] or max(places) >= len(operator.dims):
        return None
    states, first, second, chosen = (operator.dims[place] for place in places)
    kind = TORCH_DTYPES.get(operator.types[places[1]], "")
    if [*map(len, (states, first, second, chosen))] != [2, 3, 3, 2] or kind not in _ELEMENTS:
        return None  # others are packed
    pairs, of = prod(chosen), _ELEMENTS[kind]
    least = min((Work(2 * n * k, round(n * k * of), "") for _, n, k in (first, second)), key=_bytes)
    most = max(
        (
            Work(
                2 * pairs * n * k, round(min(e, pairs) * n * k * of + pairs * (k * of + 2 * n)), ""
            )
            for e, n, k in (first, second)
        ),
        key=_bytes,
    )
    words = f"{states[0]} tokens × {chosen[1]} of {first[0]} experts, {first[1]}×{first[2]} and {second[1]}×{second[2]}"
    return Counted((least, most), kind, words, f"the shapes of {operator.name}")


def _bytes(work: Work) -> int:
    return work.bytes


def of_experts(one: Launched, operator: Operator, found: Routed | None) -> Counted | None:
    """Of a kernel of a mixture of experts. The experts that are read are those of one token at least, all at most: what each
    got is not in a trace. All of them are taken to be on this GPU."""
    if found is None:
        return None
    source = f"the shapes of {operator.name}, the grid"
    for pattern, (of_hidden, of_logits, of_pairs) in _PARTS:
        if pattern.search(one.name):
            size = found.tokens * (of_hidden * found.hidden + of_logits * found.experts)
            words = f"{found.tokens}×{found.hidden}, {found.chosen} of {found.experts} experts"
            return _moved(size + of_pairs * found.pairs * found.hidden, words, source)
    said = built(one.name)
    if said.get("kind") != "bmm" or one.grid is None:
        return None
    gated = bool(_GATED.search(one.name))
    inner = (max(1, found.rows[0] // 2), found.rows[1] // 2)
    sides: Sequence[tuple[int, int]]
    if gated:
        sides = [(n, found.hidden) for n in found.rows]
    else:
        least, most = _rows(one)
        if not least <= found.hidden <= most:
            return None
        sides = [(found.hidden, k) for k in inner]
    weights, tokens = (said["a"], said.get("b", said["a"]))[:: 1 if "transOut" in one.name else -1]
    every = (found.chosen, min(found.experts, found.pairs))
    works = tuple(
        _product(found, n, k, e, gated, (weights, tokens, said["output"]))
        for (n, k), e in zip(sides, every, strict=True)
    )
    n, k = sides[-1]
    words = f"{found.tokens} tokens × {found.chosen} of {found.experts} experts, {n}×{k} each"
    dtype = max((weights, tokens), key=lambda of: _ELEMENTS.get(of, 0.0))
    return Counted(works, dtype, words, f"{source}, every expert on this GPU")


def _product(
    found: Routed, n: int, k: int, experts: int, gated: bool, types: tuple[Any, ...]
) -> Work:
    """types: of weights, tokens and output. A token is read once where the first product takes it for several experts."""
    weights, tokens, output = (_ELEMENTS.get(one, 2.0) for one in types)
    rows, made = (found.tokens, n // 2) if gated else (found.pairs, n)
    size = experts * n * k * weights + rows * k * tokens + found.pairs * made * output
    return Work(2 * found.pairs * n * k, round(size), "weights of experts, tokens and output once")
