"""What a race says of a variant: of its inputs, its times, and how it comes out; the parts of records that it fills."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, model_validator

from ncuflow.record import (
    Change,
    Check,
    Count,
    Microseconds,
    Strict,
)

Outcome = Literal[
    "faster", "same", "slower", "undecided", "wrong", "error", "lost", "skipped", "unchecked"
]
# The first of these that a point has is that of the trial.
WORST: tuple[Outcome, ...] = (
    "lost", "wrong", "error", "slower", "undecided", "faster", "same", "skipped", "unchecked"
)  # fmt: skip


class Relative(Strict):
    """A relative difference of times, of 1: 0.02 is 2 % longer than the base."""

    estimate: Change
    """the geometric mean over rounds"""
    low: Change
    """lower bound of the interval"""
    high: Change
    """upper bound of the interval"""

    @model_validator(mode="after")
    def _ordered(self) -> Relative:
        if self.low > self.high:
            raise ValueError("the bounds of the interval are not in order")
        return self


class Worst(Strict):
    """The element of a result that is farthest from the reference."""

    output: int
    """which of the launch's outputs, from 0"""
    index: list[int]
    """its place in that output"""
    got: float | None
    """its value; null where it is not finite or was not written"""
    expected: float | None
    """that of the float32 reference; null where it is infinite, as of inputs that hold infinities"""


class CheckedCase(Strict):
    """Inputs that one point of the change was held against the reference with."""

    id: str
    """the point of these inputs: the trial's own, or one at the edge of what the kernel takes"""
    status: Literal["ok", "wrong", "error", "lost", "skipped"]
    """skipped: the GPU cannot run it, or the base is no better there"""
    reason: str | None = None
    """why it is not ok"""
    seed: int | None = None
    """of the random inputs that gave the wrong result"""
    check: Check | None = None
    """the differences, and what is allowed"""
    worst: Worst | None = None
    """of a wrong result"""


class TrialTiming(Strict):
    """The times of one point, base and change in turns, each launch after a flush of the L2 cache."""

    base_us: Microseconds
    """median over rounds of the base's launches, µs"""
    change_us: Microseconds
    """the same of the change"""
    change: Relative
    """the change's time against the base's"""
    noise: Relative
    """the base's time against its own, in another process: what the same code differs by here"""
    rounds: Count
    """turns that were taken"""
    throttled: Count
    """bursts of launches, of all sides, in which power or heat held the clocks down to the end"""


class MeasuredPoint(Strict):
    """What a variant does at one point."""

    point: str
    """its id"""
    outcome: Outcome
    """faster, same, slower: of what was timed; undecided: the noise is too large; wrong, error, lost, skipped: of its
    cases; unchecked: an earlier one ended the trial"""
    reason: str | None = None
    """why it is none of the first three"""
    cases: list[CheckedCase] = Field(default_factory=list)
    """inputs that were checked"""
    timing: TrialTiming | None = None
    """null where it was not timed"""


class CompileError(Strict):
    """The first thing that a compiler complained of."""

    file: str
    """below the package, or of the generated sources"""
    line: Count
    """in that file"""
    message: str
    """the compiler's"""


class Module(BaseModel):
    """A JIT module of one side, after its sources and its build file were generated."""

    name: str
    folder: Path
    """with build.ninja and, once it is built, what ninja noted"""
    library: Path
    """its .so; it may not be there"""
    files: int = 1
    """that are compiled for it"""
