"""The record of a trial: what `ncuflow try --json` writes, and a program reads back with the same models."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from ncuflow.io import BadInput, conforming, read_json
from ncuflow.record import (
    Chance,
    Change,
    Check,
    Count,
    Effect,
    Measure,
    Microseconds,
    Seconds,
    Strict,
)

Outcome = Literal[
    "faster", "same", "slower", "undecided", "wrong", "error", "lost", "skipped", "unchecked"
]
# The first of these that a point has is that of the trial.
WORST: tuple[Outcome, ...] = (
    "lost", "wrong", "error", "slower", "undecided", "faster", "same", "skipped", "unchecked"
)  # fmt: skip
# What the command ends with. 1: it does not compile, or nothing could be run; 2: bad input.
EXIT: dict[str, int] = {
    "faster": 0, "same": 0, "not compiled": 1, "skipped": 1, "unchecked": 1, "slower": 3, "wrong": 4, "error": 4,
    "lost": 4, "undecided": 5,
}  # fmt: skip


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


class HotPlace(Strict):
    """A source line, or without line tables an instruction, at which warps of a kernel were sampled."""

    file: str | None
    """below the package's data; null without line tables (FLASHINFER_JIT_LINEINFO=1 when it is compiled)"""
    line: Count | None
    """in that file"""
    text: str | None
    """the line, as this side has it; null where the file is not FlashInfer's"""
    sass: str | None
    """the instruction, where no line is known"""
    share: Measure
    """of the kernel's samples, of 1"""
    reason: str | None
    """what most of the warps there waited for"""


class KernelCounters(Strict):
    """A launch of a kernel under ncu, on one side."""

    name: str
    """without template arguments"""
    grid: str | None
    """blocks, as x,y,z"""
    block: str | None
    """threads of a block"""
    registers: Count | None
    """of a thread"""
    shared_bytes: Count | None
    """of a block, static and dynamic"""
    duration_us: Microseconds | None
    """µs under ncu: at the clocks and caches of a profiled launch, so not that of the timing"""
    metrics: dict[str, Measure]
    """counters by key of the metric registry, in its units; what is not here was not counted"""
    stalls: dict[str, Measure]
    """cycles that a warp waits per issued instruction, by reason; empty of the few counters"""
    hot: list[HotPlace]
    """where its warps were, the most samples first; empty of the few counters"""


class PointCounters(Strict):
    """What ncu counted at a point on both sides: one launch each."""

    tier: Literal["few", "all"]
    """few: what a verdict needs first, in two passes; all: of a point whose times differ, with stall reasons and samples"""
    base: list[KernelCounters]
    """kernels in launch order"""
    change: list[KernelCounters]
    """the same of the change"""


class TrialTerm(Strict):
    """A part of what a cause adds: the parts of a cause add up to it."""

    what: str
    """instructions, a reason to wait, active warps, SM clock, or what lies outside of active cycles"""
    base: float | None
    """its value"""
    change: float | None
    """the change's"""
    unit: str
    """of both"""
    delta_us: float
    """what it adds to the time, µs"""


class TrialFact(Strict):
    """Something that differs, without a share of the time: why parts moved."""

    what: str
    """registers, a counter, a template argument, a source line and its time"""
    base: bool | int | float | str | None
    """its value"""
    change: bool | int | float | str | None
    """the change's"""
    unit: str
    """of both"""


class TrialCause(Strict):
    """What explains a part of a difference of times: a kernel, or kernels that came or went."""

    kind: str
    """as of `ncuflow compare`: code, launch_shape, execution, template, kernel_added, other_work, …"""
    what: str
    """the kernel, and what of it differs"""
    base: str | None
    """that, or the time in µs where nothing of the kernel is another"""
    change: str | None
    """the same of the change"""
    delta_us: float | None
    """what it adds to the time, µs, as the launches under ncu have it"""
    share: float | None
    """of the timed difference, of 1; null where those launches differ by more than the timed ones"""
    parts: list[TrialTerm]
    """what adds up to it; empty where a counter for that is missing"""
    facts: list[TrialFact]
    """what else differs"""


class PointTrial(Strict):
    """What the change does at one point."""

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
    counters: PointCounters | None = None
    """null where it was not profiled"""
    no_counters: str | None = None
    """why that failed at this point"""
    causes: list[TrialCause] = Field(default_factory=list)
    """of a difference of times, the largest first"""
    unexplained_us: float | None = None
    """µs of the timed difference that the causes leave; null where none were looked for"""
    remainder: str | None = None
    """why they leave them"""


class KernelCode(Strict):
    """What a compiled kernel takes, as the disassembler has it."""

    registers: Count
    """of a thread"""
    shared_bytes: Count
    """static shared memory of a block, with what CUDA reserves of it"""
    stack_bytes: Count
    """of a thread: for what spills, and for arrays that are indexed"""
    local_instructions: Count
    """that load or store local memory, where spilled registers lie"""
    instructions: Count
    """in the code, not how many run"""


class KernelTrial(Strict):
    """A kernel whose compiled code differs between the sides."""

    name: str
    """demangled, without its parameters"""
    base: KernelCode | None
    """null where the base has no such kernel"""
    change: KernelCode | None
    """null where the change has none"""
    opcodes: dict[str, int]
    """instructions of which the change has another number: how many more, or fewer below zero"""


class CompiledFile(Strict):
    """An object file of a module that was compiled anew."""

    name: str
    """of the object file"""
    seconds: Seconds
    """that its compiler took, others beside it"""


class ModuleTrial(Strict):
    """A JIT module of the points."""

    name: str
    """FlashInfer's name of it"""
    compiled: bool
    """whether the change reaches it; else it is a copy of the base's"""
    why: str | None = None
    """what of the change reaches it"""
    compile_s: Seconds | None = None
    """from its first compiler's begin to its library, seconds; null where it was not compiled, or ninja noted nothing"""
    files: list[CompiledFile] = Field(default_factory=list)
    """that were compiled, the longest first"""
    same_kernels: Count | None = None
    """kernels whose compiled code is the same on both sides; null where it was not compared"""
    kernels: list[KernelTrial] = Field(default_factory=list)
    """kernels whose compiled code differs"""
    not_compared: str | None = None
    """of a module that was compiled anew: why its code was not compared with the base's"""


class CompileError(Strict):
    """The first thing that a compiler complained of."""

    file: str
    """below the package, or of the generated sources"""
    line: Count
    """in that file"""
    message: str
    """the compiler's"""


class ChangeRecord(Strict):
    """The change that was tried."""

    name: str
    """of its file or folder"""
    files: list[str]
    """of the FlashInfer package that it adds, changes or removes"""
    elsewhere: list[str]
    """what it has that is no file of the package, and was left out"""
    diff: str | None = None
    """what it changes in those files, unified; what is longer than 40 kB is cut, and says so"""


class Trial(Strict):
    """A change of FlashInfer beside what is installed."""

    schema_version: Literal[1] = 1
    """of this record"""
    change: ChangeRecord
    """what was tried"""
    target: str
    """the kernel target that it was tried at"""
    effect: Effect
    """the relative difference of times that matters, of 1"""
    alpha: Chance
    """the chance that the trial calls any point slower or faster that is neither"""
    date: str
    """when it began, UTC"""
    flashinfer: str | None
    """version of the installed FlashInfer"""
    gpu: str | None = None
    """name of the GPU; null where the trial ended before it was asked for"""
    driver: str | None = None
    """version of its driver"""
    outcome: Outcome | Literal["not compiled"]
    """the worst of the points, or that it does not compile"""
    reason: str | None = None
    """why, where no point says it"""
    compile_error: CompileError | None = None
    """of a change that does not compile"""
    modules: list[ModuleTrial] = Field(default_factory=list)
    """JIT modules of the points"""
    points: list[PointTrial] = Field(default_factory=list)
    """each point of the trial"""
    ncu: str | None = None
    """version of the profiler; null where nothing was counted"""
    no_counters: str | None = None
    """why no point has counters"""


class Trials(Strict):
    """Several changes, tried one after the other."""

    schema_version: Literal[1] = 1
    """of this record"""
    trials: list[Trial]
    """the first in rank first; a change that is not there ended the command"""


def read(path: Path) -> list[Trial]:
    """The trials of a record, plain or `.xz`, the first in rank first. Raises BadInput where it is none, or has none."""
    kind: Any = Trials | Trial
    found: Trial | Trials = conforming(path, read_json(path), kind, "the record of a trial")
    trials = found.trials if isinstance(found, Trials) else [found]
    if not trials:
        raise BadInput(path, "the record of no trial")
    return trials
