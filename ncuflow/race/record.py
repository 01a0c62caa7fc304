"""What a race says of a variant: of its inputs, its times, and how it comes out; the parts of records that it fills."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, Field, model_validator

from ncuflow.record import (
    Change,
    Check,
    Count,
    Effect,
    Microseconds,
    Strict,
)

# How a variant comes out: of a trial, of a shape's advice, of a search. Those that are not timed are so for the same reasons.
NotTimed = Literal["skipped", "wrong", "error", "lost"]
Outcome = Literal["faster", "same", "slower", "undecided", NotTimed, "unchecked"]
ChoiceOutcome = Literal["best", "slower", "undecided", "same", NotTimed]
VariantOutcome = Literal["kept", "left", NotTimed, "not compiled"]
ShapeOutcome = Literal["winner", "tie", "undecided", "none"]
Found = Literal["winner", "default", "undecided", "none"]
# The first of these that a point has is that of the trial.
WORST: tuple[Outcome, ...] = (
    "lost", "wrong", "error", "slower", "undecided", "faster", "same", "skipped", "unchecked"
)  # fmt: skip


class Relative(Strict):
    """A relative difference of times, of 1: 0.02 is 2 % longer than the base."""

    estimate: Change
    """The geometric mean over rounds."""
    low: Change
    """The lower bound of the interval."""
    high: Change
    """The upper bound of the interval."""

    @model_validator(mode="after")
    def _ordered(self) -> Relative:
        if self.low > self.high:
            raise ValueError("the bounds of the interval are not in order")
        return self


class Worst(Strict):
    """The element of a result that is farthest from the reference."""

    output: int
    """The number of the launch's output, from 0."""
    index: list[int]
    """The index in that output."""
    got: float | None
    """The value that the kernel wrote; null where it is not finite or was not written."""
    expected: float | None
    """The value of the float32 reference; null where it is infinite, as for inputs that hold infinities."""


class CheckedCase(Strict):
    """Inputs on which one point of the change was compared with the reference."""

    id: str
    """The point of these inputs: the trial's own, or one at the edge of what the kernel takes."""
    status: Literal["ok", "wrong", "error", "lost", "skipped"]
    """One of: ok, wrong, error, lost, skipped; skipped: the GPU cannot run it, or the base fails there as well."""
    reason: str | None = None
    """The reason why it is not ok."""
    seed: int | None = None
    """The seed of the random inputs that gave the wrong result."""
    check: Check | None = None
    """The differences, and the tolerance."""
    worst: Worst | None = None
    """The worst element of a wrong result."""


class TurnsTiming(Strict):
    """Times of one point, base and change in turns."""

    base_us: Microseconds
    """The median over rounds of the base's, µs."""
    change_us: Microseconds
    """The median over rounds of the change's, µs."""
    change: Relative
    """The change's time against the base's."""
    noise: Relative
    """The baseline against itself in another process: how far two timings of the same code lie apart here."""
    rounds: Count
    """How many rounds were timed."""


class TrialTiming(TurnsTiming):
    """The times of one point, base and change in turns, each launch after a flush of the L2 cache."""

    throttled: Count
    """How many bursts of launches, over all sides, ended with clocks held down by power or heat."""


class HostTiming(TurnsTiming):
    """Host times of one point, base and change in turns on one core, of medians of a few calls each."""

    effect: Effect = 0.03
    """The minimum effect: larger where base and change ran in processes of their own."""
    outcome: Literal["faster", "same", "slower", "undecided"]
    """The verdict, as for times of the GPU, but with a minimum effect of its own."""


class PlanAt(Strict):
    """plan() of one number of sequences."""

    batch: Count
    """The number of sequences."""
    timing: TurnsTiming
    """The host times of plan()."""


class Exponent(Strict):
    """The slope of the logarithms of time and size: a time grows as the size to this power."""

    slope: float
    """The mean over rounds of the slope by least squares."""
    low: float
    """The lower bound of its interval over rounds."""
    high: float
    """The upper bound of its interval over rounds."""


class PlanCurve(Strict):
    """plan() over the number of sequences, base and change in turns."""

    points: list[PlanAt]
    """Each number of sequences."""
    base: Exponent
    """The base's exponent."""
    change: Exponent
    """The change's exponent."""


class HostState(Strict):
    """The core that host times were taken on, as the system tells it."""

    core: Count
    """The number of the core, which all sides took turns on."""
    cpu: str | None
    """The name of the CPU."""
    governor: str | None
    """The governor of its clock; null where the system does not tell."""
    mhz: Count | None
    """Its clock before the timing, MHz; null where the system does not tell."""


class MeasuredPoint(Strict):
    """What a variant does at one point."""

    point: str
    """The id of the point."""
    outcome: Outcome
    """faster, same, slower: it was timed; undecided: the noise is too large; wrong, error, lost, skipped: the result of its
    checks; unchecked: an earlier point ended the trial."""
    reason: str | None = None
    """The reason why it is neither faster, same nor slower."""
    cases: list[CheckedCase] = Field(default_factory=list)
    """The inputs that were checked."""
    timing: TrialTiming | None = None
    """The times; null where it was not timed."""
    call: HostTiming | None = None
    """The host times of the call, which enqueues; null where they were not taken."""
    plan: HostTiming | None = None
    """The host times of plan(); null where there is none, or they were not taken."""


class CompileError(Strict):
    """The first thing that a compiler complained of."""

    file: str
    """The file below the package, or the generated source."""
    line: Count
    """The line in that file."""
    message: str
    """The compiler's message."""


class Module(BaseModel):
    """A JIT module of one side, after its sources and its build file were generated."""

    name: str
    folder: Path
    """The folder with build.ninja and, once it is built, what ninja noted."""
    library: Path
    """The path of its .so, which may not be there."""
    files: int = 1
    """How many files are compiled for it."""
