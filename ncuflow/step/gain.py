"""What other choices of FlashInfer's would bring to a step, from what was measured of them for the shapes most like its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from ncuflow.findings import choices
from ncuflow.findings.choices import Effect
from ncuflow.io import read_as
from ncuflow.model import Results
from ncuflow.step.record import GainOfStep
from ncuflow.step.reference import differing, distance
from ncuflow.target.contract import Choice, Target
from ncuflow.target.launch import Params

METRIC, SUSTAINED = "time_cold_us", "time_sustained_us"
MOST_PAIRS = 6
NEAR = 1.0  # pairs whose sizes differ by as much as this factor more than the nearest one's, in powers of two
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
    kept = [one for found, one in far if found[0] == 0 and found[1] <= far[0][0][1] + NEAR]
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
    low, high = calls.saves(between, {choice.parameter: choice.other if base else choice.base})
    return GainOfStep(
        choice=choice.key,
        title=choice.title,
        change=f"{names[0]} → {names[1]}",
        kernel=calls.kernel,
        target=target.name,
        low_pct=low,
        high_pct=high,
        share_pct=round(calls.share_pct, 2),
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
    if base:
        return -high, -low
    return low / (1 + low), high / (1 + high)


class RegretBounds(BaseModel):
    """By how much longer the default takes, of 1."""

    low: float
    high: float


class RacedShape(BaseModel):
    """A shape of an advice: its default, and the choice that was advised."""

    target: str
    shape: str
    params: Params
    advised: str | None
    regret: RegretBounds | None = None
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
        regret = shape.regret
        between = (regret.low / (1 + regret.low), regret.high / (1 + regret.high))
        low, high = calls.saves(between, {})
        yield GainOfStep(
            choice="advice",
            title=f"what {advice.gpu or 'a GPU'} ran fastest",
            change=f"{shape.shape} → {shape.advised}",
            kernel=calls.kernel,
            target=target.name,
            low_pct=low,
            high_pct=high,
            share_pct=round(calls.share_pct, 2),
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
