"""What launches are held against: the points and ceilings of a recording; how far from these a launch was, which point
is most like it, and what other choices of FlashInfer's brought there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from ncuflow.evidence import location, manifest
from ncuflow.findings import ceilings, choices, stored
from ncuflow.findings.choices import Effect
from ncuflow.gpu.table import product, table
from ncuflow.io import BadInput, read_as, scratch
from ncuflow.model import Ceilings, Results
from ncuflow.origin import remedy
from ncuflow.race.record import Relative
from ncuflow.step.record import GainOfStep, NearestPoint, RoofOfLaunch
from ncuflow.target.contract import Choice, Target, Work
from ncuflow.target.inputs import ITEMSIZE
from ncuflow.target.launch import Params

# Types with scales by blocks, and the one at whose rate tensor cores multiply them.
SCALED = {"nvfp4": "fp4", "mxfp4": "fp4", "mxfp8": "fp8"}
TENSOR = {"attention", "GEMM", "MoE"}  # families whose FLOPs are those of tensor cores
# What these read besides are weights and caches, between whose uses a step reads more than L2 holds; operands of all others the
# kernels before have just written.
COLD = TENSOR


@dataclass
class Reference:
    """What a trace's launches are held against: a recording's points and ceilings. folder: None of none; made: where results
    of a recording are made when they are asked for, a target's at a time."""

    folder: Path | None = None
    made: Path | None = None
    measured: Mapping[str, Any] | None = None
    read: dict[str, Results | None] = field(default_factory=dict)

    def results(self, target: str) -> Results | None:
        """Of a target; None where there are none."""
        if target not in self.read:
            self.read[target] = self._results(target) if self.folder and self.made else None
        return self.read[target]

    @cached_property
    def missing(self) -> str | None:
        """How to install what makes results of a recording; None where it is here."""
        if self.folder is None or not stored.is_recording(self.folder):
            return None
        try:
            import_module("pyarrow")
        except ModuleNotFoundError:
            return remedy("pyarrow")
        return None

    def _results(self, target: str) -> Results | None:
        assert self.folder and self.made
        if stored.is_recording(self.folder):
            if self.missing or target not in manifest.read(self.folder).targets:
                return None
            stored.make_results(self.folder, [target], self.made)
        path = self.made / "results" / f"{target}{stored.SUFFIX}"
        return stored.results(path) if path.is_file() else None

    @property
    def name(self) -> str | None:
        return location.name(self.folder) if self.folder else None


def evidence(gpu: str | None, recording: Path | None, stack: ExitStack) -> Reference:
    """Of the recording that is named, or of the default one of this GPU; nothing without. Raises BadInput where it is none."""
    folder = location.here(recording) if recording else _default(gpu)
    if folder is None:
        return Reference()
    if not stored.is_recording(folder) and not (folder / "results").is_dir():
        raise BadInput(folder, "neither a recording nor a folder of outputs")
    made = stack.enter_context(scratch()) if stored.is_recording(folder) else folder
    measured = ceilings.load(folder, None)
    of = _gpu_of(folder)
    # what another GPU reached is no ceiling of this one
    return Reference(folder, made, measured if of == gpu else None)


def _gpu_of(folder: Path) -> str | None:
    """The GPU that a recording, or outputs, are of."""
    if stored.is_recording(folder):
        return manifest.provenance(folder).get("gpu")
    path = folder / "results" / "environment_info.json"
    found = stored.written(path) if path.is_file() else {}
    return found.get("provenance", {}).get("gpu") if found else None


def _default(gpu: str | None) -> Path | None:
    try:
        found = location.matching(
            f"{location.FOLDER}/{location.gpu(gpu or '')}/*/{location.DEFAULT}"
        )
    except ValueError:
        return None
    return found[-1] if gpu else None


@dataclass(frozen=True)
class CeilingRate:
    """A rate in bytes or FLOP a second, whose it is, and in words."""

    rate: float
    source: str
    words: str


@dataclass(frozen=True)
class Machine:
    """The GPU of a trace, and what is known of it. l2_bytes: 0 of an unknown GPU."""

    found: Ceilings
    l2_bytes: int = 0

    @classmethod
    def of(cls, gpu: str | None, measured: Mapping[str, Any] | None) -> Machine:
        """measured: the content of ``ceilings.json`` of a recording of this GPU."""
        sold = product(gpu)
        chip = table().gpus[sold].chip if sold else None
        l2_bytes = (chip and chip.l2_bytes) or 0
        return cls(ceilings.machine(gpu, dict(measured) if measured else None), l2_bytes)

    @property
    def dram(self) -> CeilingRate | None:
        """Of DRAM: measured, or else published."""
        measured, sheet = self.found["measured"]["dram_gbs"], self.found["datasheet"]["dram_gbs"]
        return _ceiling(measured, sheet, 1e9, "GB/s")

    def flops(self, tensor: bool, dtype: str) -> CeilingRate | None:
        """Of tensor cores for a type, or of CUDA cores in fp32."""
        kind = dtype if tensor else "fp32"
        measured = self.found["measured"]["tensor_tflops"].get(kind) if tensor else None
        sheet = self.found["datasheet"]["tflops"].get(SCALED.get(kind, kind))
        return _ceiling(measured, sheet, 1e12, "TFLOPS")


def _ceiling(
    measured: float | None, sheet: float | None, unit: float, word: str
) -> CeilingRate | None:
    value = measured or sheet
    if not value:
        return None
    return CeilingRate(
        value * unit, "measured" if measured else "datasheet", f"{round(value, 1):.10g} {word}"
    )


def roof(
    target: Target,
    candidates: Sequence[Params],
    us: float,
    family: str,
    machine: Machine,
    alone: bool = False,
) -> RoofOfLaunch | None:
    """Of a call that took so long; None without a ceiling, or where the target cannot count its work. alone: from a cold L2."""
    works = []
    for params in candidates:
        try:
            whole = target.completed(params)
            works.append((target.work(whole), str(whole.get("dtype", "f16"))))
        except (ValueError, KeyError, TypeError, ZeroDivisionError):
            return None
    cuda = any(p.get("cores") == "cuda" for p in candidates)
    return roof_of(works, us, family, machine, alone, tensor=family in TENSOR and not cuda)


def roof_of(
    works: Sequence[tuple[Work, str]],
    us: float,
    family: str,
    machine: Machine,
    alone: bool = False,
    tensor: bool = False,
) -> RoofOfLaunch | None:
    """Of works, each with its type. In a step as much as L2 holds of the operands that other kernels wrote may never come from
    DRAM; alone they do."""
    dram = machine.dram
    if not works or dram is None or us <= 0:
        return None
    percents, ceiling, bound, top = [], dram, "DRAM", 0.0
    for work, dtype in works:
        peak = machine.flops(tensor, dtype)
        least = work.bytes / dram.rate
        computing = work.flops / peak.rate if peak else 0.0
        if max(least, computing) >= top:  # that of the most work is told
            top, computes = max(least, computing), peak and computing > least
            ceiling = peak if peak and computes else dram
            bound = ("tensor cores" if tensor else "CUDA cores") if computes else "DRAM"
        warm = 0 if alone or family in COLD else machine.l2_bytes
        percents += [
            max(moved / dram.rate, computing) / (us * 1e-6) * 100
            for moved in (max(0, work.bytes - warm), work.bytes)
        ]
    counted, flops = [w.bytes for w, _ in works], [w.flops for w, _ in works]
    return RoofOfLaunch.model_validate(
        {
            "bytes": (min(counted), max(counted)),
            "flops": (min(flops), max(flops)),
            "bound": bound,
            "ceiling": ceiling.words,
            "ceiling_source": ceiling.source,
            "percent": (round(min(percents), 1), round(max(percents), 1)),
        }
    )


def nearest(
    target: Target,
    params: Params,
    us: float,
    family: str,
    machine: Machine,
    results: Results | None,
    whole: bool,
) -> NearestPoint | None:
    """The measured point that differs least: in as few parameters, and these by as small a factor.

    whole: whether the parameters are all that the shape has; a point is of the same shape only then.
    """
    points = [p for p in results["points"] if p["status"] == "ok"] if results else []
    if not points:
        return None
    best = min(points, key=lambda point: distance(params, point["params"]))
    other = differing(params, best["params"])
    time = best["measurement"]["time_cold_us"]
    alone = roof(target, [best["params"]], time, family, machine, alone=True) if time else None
    same = whole and not other
    return NearestPoint(
        point=best["point"],
        differs=other,
        time_us=time,
        percent=alone.percent[0] if alone else None,
        slower=round(us / time, 3) if same and time else None,
    )


# Parameters that change what is computed less than how: of two points they are compared last.
_HOW = {"launch", "pdl", "page_size", "norm", "inplace", "logit_std", "percent", "top_k", "lengths"}


def distance(params: Params, other: Mapping[str, Any]) -> tuple[int, float, int]:
    """(parameters of what that differ, the factors between its numbers, parameters of how that differ)."""
    what = factors = how = 0.0
    for name, value in params.items():
        theirs = other.get(name)
        if theirs == value:
            continue
        if name in _HOW or {value, theirs} <= ITEMSIZE.keys():  # types of as many bits
            how += 1
        elif _number(value) and _number(theirs) and value and theirs:
            factors += abs(math.log2(value / theirs))
        else:
            what += 1
    return int(what), factors, int(how)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def differing(params: Params, other: Mapping[str, Any]) -> Params:
    """The other's parameters where they are not these."""
    return {name: other.get(name) for name, value in params.items() if other.get(name) != value}


METRIC, SUSTAINED = "time_cold_us", "time_sustained_us"
MOST_PAIRS = 6
# Pairs whose sizes differ by so much more than the nearest one's, and from the launch's at most, in powers of two.
NEAR, FARTHEST = 1.0, 3.0
LEAST_PCT = 0.1  # of a step, below which a gain is not told
Interval = tuple[float, float]


@dataclass(frozen=True)
class CallsOfStep:
    """The calls of one kernel in a step: its name, and the us that they take of those between the step's first start and its
    last end (span), in some of which the GPU was busy (busy). gained: us by which the step ends sooner where they take a
    share less; roofed: the share of their time below which no call gets, with some of its parameters changed."""

    kernel: str
    us: float
    span: float
    busy: float
    gained: Callable[[float], float]
    roofed: Callable[[Params], float] = lambda changed: 0.0

    @property
    def share_pct(self) -> float:
        """Of the step."""
        return 100 * self.us / self.span

    def saves(self, saved: Interval, changed: Params) -> Interval:
        """% of the step, where its calls take a share less between these: at least with a host that stays as slow as in the
        trace, in which the GPU waits for it all the same; at most where the GPU is never idle, for much of that is the
        profiler's own cost. Never more than what its calls take above the roof of those that take their place."""
        low, high = saved
        least = 100 * self.gained(low) / self.span if low > 0 else self.share_pct * low
        most = 100 * self.us / self.busy * high if high > 0 else self.share_pct * high
        above = self.share_pct * (1 - self.roofed(changed))
        return round(min(above, least), 2), round(min(above, most), 2)

    def gain(self, saved: Interval, changed: Params, **said: Any) -> GainOfStep:
        """What another choice would bring; said: which that is, and what it was measured of."""
        low, high = self.saves(saved, changed)
        share = round(self.share_pct, 2)
        return GainOfStep(kernel=self.kernel, low_pct=low, high_pct=high, share_pct=share, **said)


def of_recording(
    target: Target, params: Params, calls: CallsOfStep, results: Results | None
) -> Iterator[GainOfStep]:
    """A gain for each choice of the target that the launch stands on one side of, and that pairs were measured of.

    params: those of the launch that are known.
    """
    for choice in target.compared if results else ():
        if choice.given or METRIC not in choice.metrics or choice.after is not None:
            continue
        mine = params.get(choice.parameter, target.parameters.get(choice.parameter))
        if mine not in (choice.base, choice.other) or results is None:
            continue
        every = [one for one in choices.effects(choice, results) if one.metric == METRIC]
        pairs = _near(params, choice, every)
        if pairs:
            saved = [_bounds(one, mine == choice.base, results) for one in pairs]
            yield _gain(choice, target, params, calls, mine == choice.base, pairs, saved)


def _near(params: Params, choice: Choice, every: Sequence[Effect]) -> list[Effect]:
    """The pairs most like a launch: of the same kind in what is known, and not much farther in size than the nearest."""
    known = {n: v for n, v in params.items() if n not in (choice.parameter, *choice.ignoring)}
    far = sorted(((distance(known, dict(one.fixed)), one) for one in every), key=lambda f: f[0])
    most = min(far[0][0][1] + NEAR, FARTHEST) if far else 0.0
    kept = [one for found, one in far if found[0] == 0 and found[1] <= most]
    return kept[:MOST_PAIRS]


def _gain(
    choice: Choice,
    target: Target,
    params: Params,
    calls: CallsOfStep,
    base: bool,
    pairs: Sequence[Effect],
    saved: Sequence[Interval],
) -> GainOfStep:
    known = {n: v for n, v in params.items() if n != choice.parameter}
    others: dict[str, list[Any]] = {}
    for one in pairs:
        for name, value in differing(known, dict(one.fixed)).items():
            if name not in choice.ignoring and value not in others.setdefault(name, []):
                others[name].append(value)
    names = choice.called if base else choice.called[::-1]
    between = (min(low for low, _ in saved), max(high for _, high in saved))
    return calls.gain(
        between,
        {choice.parameter: choice.other if base else choice.base},
        choice=choice.key,
        title=choice.title,
        change=f"{names[0]} → {names[1]}",
        target=target.name,
        pairs=[point for one in pairs for point in (one.base_point, one.other_point)],
        differs=others,
        in_turns=all(one.in_turns for one in pairs),
    )


def _bounds(effect: Effect, base: bool, results: Results) -> Interval:
    """What a pair saves: between its bounds alone on a GPU that has rested, and back to back until clocks and power have
    settled, where that was measured. A launch in a step is between both: the power limit may slow one side down more."""
    low, high = saving(effect, base)
    points = {point["point"]: point["measurement"] for point in results["points"]}
    sides = [points[name][SUSTAINED] for name in (effect.base_point, effect.other_point)]
    if None in sides:
        return low, high
    mine, other = sides if base else sides[::-1]
    settled = 1 - other / mine
    return min(low, settled), max(high, settled)


def saving(effect: Effect, base: bool) -> Interval:
    """The share of a call's time that the other side saves, between bounds: of the one that it is on, base or other."""
    low = effect.change if effect.low is None else effect.low
    high = effect.change if effect.high is None else effect.high
    return (-high, -low) if base else _of_longer(low, high)


def _of_longer(low: float, high: float) -> Interval:
    """The share that a call saves which takes as much longer than another, of that one's time."""
    return low / (1 + low), high / (1 + high)


class RacedShape(BaseModel):
    """A shape of an advice: its default, and the choice that was advised."""

    target: str
    shape: str
    params: Params
    advised: str | None
    regret: Relative | None = None
    in_turns: bool = False


class RacedShapes(BaseModel):
    """What an advice says of the choices that were raced."""

    command: Literal["advise"]
    gpu: str | None = None
    shapes: list[RacedShape]


def of_advice(
    advice: RacedShapes, target: Target, params: Params, calls: CallsOfStep
) -> Iterator[GainOfStep]:
    """What `ncuflow advise` found for a shape like the launch's, where the launch is the default that was raced."""
    like = [one for one in advice.shapes if one.target == target.name and one.regret]
    far = sorted(((distance(params, one.params), one) for one in like), key=lambda f: f[0])
    for found, shape in far[:1]:
        if found[0] or found[1] > NEAR or shape.advised in (None, shape.shape) or not shape.regret:
            continue
        yield calls.gain(
            _of_longer(shape.regret.low, shape.regret.high),
            {},
            choice="advice",
            title=f"what {advice.gpu or 'a GPU'} ran fastest",
            change=f"{shape.shape} → {shape.advised}",
            target=target.name,
            pairs=[shape.shape, shape.advised],
            differs={name: [value] for name, value in differing(params, shape.params).items()},
            in_turns=shape.in_turns,
        )


def read_advice(path: Path) -> RacedShapes:
    """What `ncuflow advise --json` wrote. Raises BadInput where the file is none."""
    return read_as(path, RacedShapes, "what `ncuflow advise` writes")


def ranked(gains: Sequence[GainOfStep]) -> list[GainOfStep]:
    """Those by which no launch loses, the most first: of some a slow host leaves nothing."""
    worth = [one for one in gains if one.low_pct >= 0 and one.high_pct >= LEAST_PCT]
    return sorted(worth, key=lambda one: (-one.high_pct, -one.low_pct, one.choice))
