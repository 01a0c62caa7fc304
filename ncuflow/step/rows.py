"""Rows of a step: a kernel's launches that are alike, why they have no roof, and the parts of a step that they are."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np

from ncuflow.findings import kernelname
from ncuflow.findings.kernelname import COPY
from ncuflow.parsers.timeline import KERNEL, Launched
from ncuflow.step.detection import WORDS
from ncuflow.step.record import (
    FamilyOfStep,
    GainOfStep,
    KernelOfStep,
    ReasonOfLaunch,
    ShapeOfLaunch,
)
from ncuflow.step.shapes import FINISHES, Shape

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
