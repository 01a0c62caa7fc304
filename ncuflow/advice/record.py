"""The record of an advice: what `ncuflow advise --out` writes, and a program reads back with the same models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ncuflow.answer import Answer, Tier
from ncuflow.record import (
    Chance,
    Check,
    Count,
    Date,
    Effect,
    Line,
    Microseconds,
    Parameter,
    Seconds,
    Strict,
)
from ncuflow.trial.record import Relative

Outcome = Literal["winner", "tie", "undecided", "none"]
Fate = Literal["best", "slower", "undecided", "same", "skipped", "wrong", "error", "lost"]


class AdvisedChoice(Strict):
    """One choice of a shape."""

    point: str
    """its id"""
    settings: dict[str, Parameter]
    """what it chooses of what is free, by the target's parameters"""
    asked: dict[str, dict[str, Parameter]]
    """FlashInfer's arguments for it, by call: wrapper, plan, run"""
    resolved: dict[str, Parameter] = Field(default_factory=dict)
    """what FlashInfer made of what is left to it, by parameter, where a choice that names this makes the same call"""
    departs: Count
    """in how many settings it is not FlashInfer's default"""
    fate: Fate
    """best: no other is surely faster; slower: it left; undecided: the noise is too large; same: it makes the call of another
    choice, which stands for both; the others were not timed"""
    reason: str | None = None
    """why it was not timed, or not to the end"""
    check: Check | None = None
    """against the float32 reference; null where it was not compared"""
    time_us: Microseconds | None = None
    """median over the rounds that it was in; null where it was not timed"""
    behind: Relative | None = None
    """its time against the leader's; of one that left, against that of then"""
    rounds: Count | None = None
    """that it was in; null where it was not timed in rounds"""
    plan_us: Microseconds | None = None
    """median host time of plan(), in turns with the default's; null where there is none, or it left"""


class AdvisedShape(Strict):
    """A shape with all its choices."""

    target: str
    """its kernel target"""
    shape: str
    """id of the point with FlashInfer's defaults"""
    params: dict[str, Parameter]
    """parameters of that point"""
    outcome: Outcome
    """winner: one choice is surely faster than all others; tie: several are the same to within the effect; undecided: some
    could not be told apart; none: none could be timed"""
    best: list[str]
    """points that no other is surely faster than, the fastest first"""
    advised: str | None
    """the one of them to take: the default where it is among them, else the one that departs from it least; null of none"""
    regret: Relative | None
    """what the default takes longer than the advised choice; null where the default could not be timed"""
    in_turns: bool
    """whether all that was compared was timed in turns"""
    layers: Count | None = None
    """after how many layers of a step the advised choice has paid for its plan(); null where it never does, or none is known"""
    cause: list[str] = Field(default_factory=list)
    """what counters say of the difference between the default and the advised choice, the largest part first"""
    seconds: Seconds | None = None
    """that the shape took; null of what was recorded"""
    choices: list[AdvisedChoice]
    """all, the default first"""

    def choice(self, point: str | None) -> AdvisedChoice | None:
        """The choice of this id."""
        return next((one for one in self.choices if one.point == point), None)


class RuleOfThumb(Strict):
    """A sentence that holds at every shape that tells, or one with the shapes at which it does not."""

    target: str
    """its kernel target"""
    rule: str
    """the sentence"""
    holds: list[str]
    """shapes at which it holds"""
    fails: list[str]
    """its counterexamples"""


class Advice(Answer):
    """Which choice for which shape."""

    command: Literal["advise"] = "advise"
    """the command that answers"""
    tier: Tier
    """A live counters, B live without counters, C recorded elsewhere"""
    recording: Line | None
    """of which recording; null of what was measured here"""
    gpu: Line | None
    """name of the GPU"""
    versions: dict[str, Line | None]
    """of the driver, CUDA, torch, FlashInfer"""
    date: Date | None
    """when it was measured, UTC"""
    metric: str
    """the column of docs/tables.md that decides"""
    effect: Effect
    """the relative difference that matters, of 1"""
    alpha: Chance
    """the chance that a run calls any choice slower than another that is not; of a recording that of one comparison"""
    shapes: list[AdvisedShape]
    """each shape"""
    rules: list[RuleOfThumb] = Field(default_factory=list)
    """rules of thumb"""
    refused: list[str] = Field(default_factory=list)
    """cases of the workload that no target measures"""
    failed_modules: dict[str, str] = Field(default_factory=dict)
    """JIT modules that do not compile, and why: what needs them is in error"""
