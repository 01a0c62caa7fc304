"""The record of a trial: what `ncuflow try --json` writes, and a program reads back with the same models."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from ncuflow.record import Check, Strict

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

    estimate: float
    """the geometric mean over rounds"""
    low: float
    """lower bound of the interval"""
    high: float
    """upper bound of the interval"""


class Worst(Strict):
    """The element of a result that is farthest from the reference."""

    output: int
    """which of the launch's outputs, from 0"""
    index: list[int]
    """its place in that output"""
    got: float | None
    """its value; null where it is not finite or was not written"""
    expected: float
    """that of the float32 reference"""


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

    base_us: float
    """median over rounds of the base's launches, µs"""
    change_us: float
    """the same of the change"""
    change: Relative
    """the change's time against the base's"""
    noise: Relative
    """the base's time against its own, in another process: what the same code differs by here"""
    rounds: int
    """turns that were taken"""
    throttled: int
    """bursts of launches, of all sides, in which power or heat held the clocks down to the end"""


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


class KernelCode(Strict):
    """What a compiled kernel takes, as the disassembler has it."""

    registers: int
    """of a thread"""
    shared_bytes: int
    """static shared memory of a block, with what CUDA reserves of it"""
    stack_bytes: int
    """of a thread: for what spills, and for arrays that are indexed"""
    local_instructions: int
    """that load or store local memory, where spilled registers lie"""
    instructions: int
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


class ModuleTrial(Strict):
    """A JIT module of the points."""

    name: str
    """FlashInfer's name of it"""
    compiled: bool
    """whether the change reaches it; else it is a copy of the base's"""
    why: str | None = None
    """what of the change reaches it"""
    same_kernels: int | None = None
    """kernels whose compiled code is the same on both sides; null where it was not compared"""
    kernels: list[KernelTrial] = Field(default_factory=list)
    """kernels whose compiled code differs"""
    not_compared: str | None = None
    """of a module that was compiled anew: why its code was not compared with the base's"""


class CompileError(Strict):
    """The first thing that a compiler complained of."""

    file: str
    """below the package, or of the generated sources"""
    line: int
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


class Trial(Strict):
    """A change of FlashInfer beside what is installed."""

    schema_version: Literal[1] = 1
    """of this record"""
    change: ChangeRecord
    """what was tried"""
    target: str
    """the kernel target that it was tried at"""
    effect: float
    """the relative difference of times that matters, of 1"""
    alpha: float
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


class Trials(Strict):
    """Several changes, tried one after the other."""

    schema_version: Literal[1] = 1
    """of this record"""
    trials: list[Trial]
    """the first in rank first; a change that is not there ended the command"""
