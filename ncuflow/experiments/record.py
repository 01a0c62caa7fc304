"""The records of experiments: what `ncuflow try` and `ncuflow advise` write, and a program reads back."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from ncuflow.answer import Answer, Tier
from ncuflow.evidence.provenance import origin
from ncuflow.io import BadInput, conforming, read_json
from ncuflow.model import SOFTWARE
from ncuflow.race.record import CompileError, MeasuredPoint, Outcome, Relative, TrialTiming
from ncuflow.record import (
    Chance,
    Check,
    Count,
    Date,
    Effect,
    Line,
    Measure,
    Microseconds,
    Parameter,
    Seconds,
    Strict,
)

# What the command ends with. 1: it does not compile, or nothing could be run; 2: bad input.
EXIT: dict[str, int] = {
    "faster": 0, "same": 0, "not compiled": 1, "skipped": 1, "unchecked": 1, "slower": 3, "wrong": 4, "error": 4,
    "lost": 4, "undecided": 5,
}  # fmt: skip


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


class PointTrial(MeasuredPoint):
    """What the change does at one point."""

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


ShapeOutcome = Literal["winner", "tie", "undecided", "none"]
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
    outcome: ShapeOutcome
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

    ROWS: ClassVar[tuple[str, ...]] = ("shapes",)
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


Found = Literal["winner", "default", "undecided", "none"]
VariantOutcome = Literal["kept", "left", "skipped", "wrong", "error", "lost", "not compiled"]


class SearchedKnob(Strict):
    """A knob of the target: a constant of FlashInfer's source, or a parameter that its caller may set."""

    name: str
    """by which candidates are called"""
    kind: Literal["constant", "setting"]
    """constant: compiled anew with another value; setting: an argument or an environment variable"""
    default: bool | int | float | str | None
    """FlashInfer's; null where this version does not have the constant"""
    values: list[bool | int | float | str]
    """that were to be tried"""
    places: list[str]
    """of a constant: file below the package, and line"""
    missing: str | None = None
    """of a constant that this version of FlashInfer does not have: what was looked for"""


class SearchedCandidate(Strict):
    """A combination of values that departs from the defaults."""

    name: str
    """the knobs that depart, with their values"""
    edits: dict[str, int]
    """constants of the source, by knob"""
    settings: dict[str, bool | int | float | str]
    """parameters of the target"""
    diff: str | None
    """what it changes in FlashInfer's files, a patch that `ncuflow try` takes; null where it changes none"""
    reason: str | None = None
    """why it was timed nowhere"""
    compile_error: CompileError | None = None
    """of one that does not compile"""


class CandidateStanding(Strict):
    """How a candidate fared at a shape."""

    name: str
    """of the candidate"""
    point: str
    """id of its point there"""
    fate: VariantOutcome
    """kept: to the end of the halving; left: it was surely slower than another; the others were not timed, or not to the end"""
    reason: str | None = None
    """why it was not timed, or not to the end"""
    time_us: Microseconds | None = None
    """median over its rounds, µs; null where it was not timed"""
    against: Relative | None = None
    """its time against the default's, in the rounds that it was in: of the search, so the best of them flatters itself"""
    rounds: Count | None = None
    """that it was in"""


class SearchedShape(Strict):
    """A shape, and what was found there."""

    shape: str
    """id of the point with FlashInfer's defaults"""
    params: dict[str, Any]
    """parameters of that point"""
    found: Found
    """winner: a candidate is faster, confirmed on inputs that the search did not see; default: none is by what matters;
    undecided: the noise was too large; none: nothing could be timed"""
    reason: str | None = None
    """why nothing was found"""
    default_us: Microseconds | None = None
    """the default's time, µs: of the confirmation, else of the search"""
    candidate: str | None = None
    """that was confirmed, the winner where it is one; null where none was left"""
    confirmed: TrialTiming | None = None
    """default and candidate in turns, on fresh inputs: base is the default"""
    price: Relative | None = None
    """of the default: what it takes longer than the winner, of 1; null where there is none"""
    rounds: Count | None = None
    """of the halving"""
    candidates: list[CandidateStanding]
    """those that mean something here, the fastest first"""


class Search(Answer):
    """Which values of a target's knobs are fastest."""

    ROWS: ClassVar[tuple[str, ...]] = ("shapes",)
    command: Literal["search"] = "search"
    """the command that answers"""
    tier: Literal["B"] = "B"
    """B: measured here, without counters"""
    target: str
    """the kernel target"""
    gpu: str | None
    """name of the GPU"""
    versions: dict[str, str | None]
    """of the driver, CUDA, torch, FlashInfer"""
    date: str
    """when it was measured, UTC"""
    effect: Effect
    """the relative difference that matters, of 1"""
    alpha: Chance
    """the chance that the run calls any candidate a winner that is not faster"""
    knobs: list[SearchedKnob] = Field(default_factory=list)
    """all that were asked for"""
    beyond_budget: Count = 0
    """candidates that were left out, by --budget or for the memory of the GPU: those that depart in the most knobs first"""
    candidates: list[SearchedCandidate] = Field(default_factory=list)
    """all that were tried"""
    shapes: list[SearchedShape]
    """each shape"""


def head(gpu: str, driver: str | None) -> dict[str, Any]:
    """What a record says of where and when it was measured."""
    made: dict[str, Any] = dict(origin(gpu, driver))
    versions = {label: made.get(key) for key, label in SOFTWARE.items()}
    return {"gpu": gpu, "versions": versions, "date": str(made["date"])}
