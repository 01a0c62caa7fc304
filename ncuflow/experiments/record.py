"""The records of experiments: what `ncuflow try` and `ncuflow advise` write, and a program reads back."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from ncuflow import record
from ncuflow.answer import Answer, Displayed, Tier
from ncuflow.evidence.provenance import origin
from ncuflow.io import BadInput, JsonObject, conforming, read_json
from ncuflow.model import SOFTWARE
from ncuflow.race import record as race

# What the command ends with. 1: it does not compile, or nothing could be run; 2: bad input.
EXIT: dict[str, int] = {
    "faster": 0, "same": 0, "not compiled": 1, "skipped": 1, "unchecked": 1, "slower": 3, "wrong": 4, "error": 4,
    "lost": 4, "undecided": 5,
}  # fmt: skip


class HotPlace(record.Strict):
    """A source line, or without line tables an instruction, at which warps of a kernel were sampled."""

    file: str | None
    """The file below the package's data; null without line tables (compile with FLASHINFER_JIT_LINEINFO=1)."""
    line: record.Count | None
    """The line in that file."""
    text: str | None
    """The text of the line on this side; null where the file is not FlashInfer's."""
    sass: str | None
    """The instruction, where no line is known."""
    share: record.Measure
    """Its share of the kernel's samples, of 1."""
    reason: str | None
    """What most of the warps waited for there."""


class KernelCounters(record.Strict):
    """A launch of a kernel under ncu, on one side."""

    name: str
    """The name without template arguments."""
    grid: str | None
    """The grid in blocks, as x,y,z."""
    block: str | None
    """The threads of a block, as x,y,z."""
    registers: record.Count | None
    """The registers of a thread."""
    shared_bytes: record.Count | None
    """The shared memory of a block, static and dynamic, in bytes."""
    duration_us: record.Microseconds | None
    """The time under ncu, µs: at the clocks and caches of a profiled launch, so it differs from the timing."""
    metrics: dict[str, record.Measure]
    """The counters by key of the metric registry, in its units; a key that is absent was not counted."""
    stalls: dict[str, record.Measure]
    """The cycles that a warp waits per issued instruction, by reason; empty where few counters were taken."""
    hot: list[HotPlace]
    """Where its warps were, the most samples first; empty where few counters were taken."""


class PointCounters(record.Strict):
    """What ncu counted at a point on both sides: one launch each."""

    tier: Literal["few", "all"]
    """few: what a verdict needs first, in two passes; all: every counter, for a point whose times differ, with stall reasons
    and samples."""
    base: list[KernelCounters]
    """The kernels of the base in launch order."""
    change: list[KernelCounters]
    """The kernels of the change in launch order."""


class TrialTerm(record.Strict):
    """A part of what a cause adds: the parts of a cause add up to it."""

    what: str
    """The part: instructions, a stall reason, active warps, the SM clock, or what lies outside of active cycles."""
    base: float | None
    """The value of the base."""
    change: float | None
    """The value of the change."""
    unit: str
    """The unit of both values."""
    delta_us: float
    """What this part adds to the time, µs."""


class TrialFact(record.Strict):
    """Something that differs, without a share of the time: why parts moved."""

    what: str
    """What differs: registers, a counter, a template argument, or a source line and its time."""
    base: bool | int | float | str | None
    """The value of the base."""
    change: bool | int | float | str | None
    """The value of the change."""
    unit: str
    """The unit of both values."""


class TrialCause(record.Strict):
    """What explains a part of a difference of times: a kernel, or kernels that came or went."""

    kind: str
    """The kind as in `ncuflow compare`: code, launch_shape, execution, template, kernel_added, other_work, …"""
    what: str
    """The kernel, and what of it differs."""
    base: str | None
    """The base's value of that, or its time in µs where nothing of the kernel differs."""
    change: str | None
    """The change's value of that, or its time."""
    delta_us: float | None
    """What the cause adds to the time, µs, by the launches under ncu."""
    share: float | None
    """Its share of the timed difference, of 1; null where the launches under ncu differ by more than the timed ones."""
    parts: list[TrialTerm]
    """The parts that add up to the cause; empty where a counter for them is missing."""
    facts: list[TrialFact]
    """What else differs."""


class PointTrial(race.MeasuredPoint):
    """What the change does at one point."""

    counters: PointCounters | None = None
    """The counters of both sides; null where the point was not profiled."""
    no_counters: str | None = None
    """The reason why counting failed at this point."""
    causes: list[TrialCause] = Field(default_factory=list)
    """The causes of a difference of times, the largest first."""
    unexplained_us: float | None = None
    """The µs of the timed difference that the causes leave unexplained; null where none were looked for."""
    remainder: str | None = None
    """The reason why the causes leave them."""


class KernelCode(record.Strict):
    """What a compiled kernel takes, as the disassembler has it."""

    registers: record.Count
    """The registers of a thread."""
    shared_bytes: record.Count
    """The static shared memory of a block, in bytes, including what CUDA reserves."""
    stack_bytes: record.Count
    """The stack of a thread in bytes: for spills, and for arrays that are indexed."""
    local_instructions: record.Count
    """How many instructions load or store local memory, where spilled registers lie."""
    instructions: record.Count
    """How many instructions the code has, not how many run."""


class KernelTrial(record.Strict):
    """A kernel whose compiled code differs between the sides."""

    name: str
    """The demangled name without parameters."""
    base: KernelCode | None
    """The code of the base; null where the base has no such kernel."""
    change: KernelCode | None
    """The code of the change; null where the change has no such kernel."""
    opcodes: dict[str, int]
    """The opcodes whose number differs: how many more the change has, or fewer where it is below zero."""


class CompiledFile(record.Strict):
    """An object file of a module that was compiled anew."""

    name: str
    """The name of the object file."""
    seconds: record.Seconds
    """The seconds that its compiler took, beside others."""


class ModuleTrial(record.Strict):
    """A JIT module of the points."""

    name: str
    """FlashInfer's name of the module."""
    compiled: bool
    """Whether the change reaches the module; otherwise it is a copy of the base's."""
    why: str | None = None
    """What of the change reaches the module."""
    compile_s: record.Seconds | None = None
    """The seconds from the start of its first compiler to its library; null where it was not compiled, or ninja noted
    nothing."""
    files: list[CompiledFile] = Field(default_factory=list)
    """The files that were compiled, the longest first."""
    same_kernels: record.Count | None = None
    """How many kernels have the same compiled code on both sides; null where that was not compared."""
    kernels: list[KernelTrial] = Field(default_factory=list)
    """The kernels whose compiled code differs."""
    not_compared: str | None = None
    """The reason why the code of a recompiled module was not compared with the base's."""


class ChangeRecord(record.Strict):
    """The change that was tried."""

    name: str
    """The name of the file or folder of the change."""
    files: list[str]
    """The files of the FlashInfer package that the change adds, changes or removes."""
    elsewhere: list[str]
    """The files of the change that are not in the package; they were left out."""
    diff: str | None = None
    """The unified diff of those files; cut beyond 40 kB, with a line that says so."""


class Trial(record.Strict):
    """A change of FlashInfer beside what is installed."""

    schema_version: Literal[1] = 1
    """The version of this schema."""
    change: ChangeRecord
    """The change that was tried."""
    target: str
    """The kernel target that it was tried at."""
    effect: record.Effect
    """The minimum effect: the relative difference of times below which two are the same, as a fraction of 1."""
    alpha: record.Chance
    """The chance that the trial calls any point slower or faster that is neither."""
    date: str
    """The date on which the trial began, UTC."""
    flashinfer: str | None
    """The version of the installed FlashInfer."""
    gpu: str | None = None
    """The name of the GPU; null where the trial ended before the GPU was known."""
    driver: str | None = None
    """The version of its driver."""
    outcome: race.Outcome | Literal["not compiled"]
    """The worst outcome of the points, or that the change does not compile."""
    reason: str | None = None
    """The reason, where no point states it."""
    compile_error: race.CompileError | None = None
    """The error of a change that does not compile."""
    modules: list[ModuleTrial] = Field(default_factory=list)
    """The JIT modules of the points."""
    points: list[PointTrial] = Field(default_factory=list)
    """Each point of the trial."""
    host: race.HostState | None = None
    """The core that host times were taken on; null where they were not."""
    ncu: str | None = None
    """The version of the profiler; null where nothing was counted."""
    no_counters: str | None = None
    """The reason why no point has counters."""


class Trials(record.Strict):
    """Several changes, tried one after the other."""

    schema_version: Literal[1] = 1
    """The version of this schema."""
    trials: list[Trial]
    """The trials, the best first; a change that is absent ended the command."""


def read(path: Path) -> list[Trial]:
    """The trials of a record, plain or `.xz`, the first in rank first. Raises BadInput where it is none, or has none."""
    kind: Any = Trials | Trial
    found: Trial | Trials = conforming(path, read_json(path), kind, "the record of a trial")
    trials = found.trials if isinstance(found, Trials) else [found]
    if not trials:
        raise BadInput(path, "the record of no trial")
    return trials


class AdvisedChoice(record.Strict):
    """One choice of a shape."""

    point: str
    """The id of the point."""
    settings: dict[str, record.Parameter]
    """The free settings that it chooses, by the target's parameters."""
    asked: dict[str, dict[str, record.Parameter]]
    """The arguments for FlashInfer, by call: wrapper, plan, run."""
    resolved: dict[str, record.Parameter] = Field(default_factory=dict)
    """What FlashInfer made of the settings that are left to it, by parameter, where a choice that names this makes the same
    call."""
    departs: record.Count
    """In how many settings it departs from FlashInfer's default."""
    fate: race.ChoiceOutcome
    """best: no other is significantly faster; slower: it left the race; undecided: the noise is too large; same: it makes the
    call of another choice, which stands for both. With every other value it was not timed."""
    reason: str | None = None
    """The reason why it was not timed, or not to the end."""
    check: record.Check | None = None
    """The comparison with the float32 reference; null where it was not made."""
    time_us: record.Microseconds | None = None
    """The median time over its rounds, µs; null where it was not timed."""
    behind: race.Relative | None = None
    """Its time against the leader's; for one that left, against the leader's of then."""
    rounds: record.Count | None = None
    """How many rounds it took part in; null where it was not timed in rounds."""
    plan_us: record.Microseconds | None = None
    """The median host time of plan(), timed in turns with the default's; null where there is none, or it left."""


class AdvisedShape(record.Strict):
    """A shape with all its choices."""

    target: str
    """The kernel target."""
    shape: str
    """The id of the point with FlashInfer's defaults."""
    params: dict[str, record.Parameter]
    """The parameters of that point."""
    outcome: race.ShapeOutcome
    """winner: one choice is significantly faster than all others; tie: several are the same to within the effect; undecided: some
    could not be told apart; none: none could be timed."""
    best: list[str]
    """The points that no other is significantly faster than, the fastest first."""
    advised: str | None
    """The point to take: the default where it is among the best, else the one that departs from it least; null where there is
    none."""
    regret: race.Relative | None
    """What the default takes longer than the advised choice; null where the default could not be timed."""
    in_turns: bool
    """Whether everything that was compared was timed in turns."""
    layers: record.Count | None = None
    """After how many layers of a step the advised choice has paid for its plan(); null where it never does, or that is not
    known."""
    cause: list[str] = Field(default_factory=list)
    """What counters say of the difference between the default and the advised choice, the largest part first."""
    seconds: record.Seconds | None = None
    """The seconds that the shape took; null for recordings."""
    choices: list[AdvisedChoice]
    """All choices, the default first."""

    def choice(self, point: str | None) -> AdvisedChoice | None:
        """The choice of this id."""
        return next((one for one in self.choices if one.point == point), None)


class Heuristic(record.Strict):
    """A sentence that holds at every shape that tells, or one with the shapes at which it does not."""

    target: str
    """The kernel target."""
    rule: str
    """The rule as a sentence."""
    where: str = ""
    """The condition under which it holds at every shape, over parameters and what follows from them; empty for all shapes."""
    holds: list[str]
    """The shapes at which it holds."""
    fails: list[str]
    """The counterexamples."""


class Advice(Displayed, Answer):
    """Which choice for which shape."""

    ROWS: ClassVar[tuple[str, ...]] = ("shapes",)
    command: Literal["advise"] = "advise"
    """The command that wrote this JSON."""
    tier: Tier
    """A: live counters. B: live without counters. C: recorded elsewhere."""
    recording: record.Line | None
    """The recording that it is made from; null for what was measured here."""
    gpu: record.Line | None
    """The name of the GPU."""
    versions: dict[str, record.Line | None]
    """The versions of the driver, CUDA, torch and FlashInfer."""
    date: record.Date | None
    """The date of the measurement, UTC."""
    metric: str
    """The column of docs/tables.md that decides."""
    effect: record.Effect
    """The minimum effect: the relative difference of times below which two are the same, as a fraction of 1."""
    alpha: record.Chance
    """The chance that a run calls any choice slower than another that is not; for a recording, the chance for one
    comparison."""
    shapes: list[AdvisedShape]
    """Each shape."""
    rules: list[Heuristic] = Field(default_factory=list)
    """The heuristics that hold over these shapes."""
    refused: list[str] = Field(default_factory=list)
    """The cases of the workload that no target measures."""
    failed_modules: dict[str, str] = Field(default_factory=dict)
    """The JIT modules that do not compile, and why; every point that needs one is in error."""


class SearchedTunable(record.Strict):
    """A tunable of the target: a constant of FlashInfer's source, or a parameter that its caller may set."""

    name: str
    """The name, by which variants are called."""
    kind: Literal["constant", "setting"]
    """constant: compiled again with another value; setting: an argument or an environment variable."""
    default: bool | int | float | str | None
    """FlashInfer's value; null where this version does not have the constant."""
    values: list[bool | int | float | str]
    """The values to try."""
    places: list[str]
    """The places of a constant: the file below the package, and the line."""
    missing: str | None = None
    """What was looked for, where this version of FlashInfer does not have the constant."""


class SearchedCombination(record.Strict):
    """A combination of values that departs from the defaults."""

    name: str
    """The tunables that depart from their defaults, with their values."""
    edits: dict[str, int]
    """Constants of the source that are edited, by the name of the tunable."""
    settings: dict[str, bool | int | float | str]
    """The parameters of the target."""
    diff: str | None
    """The change to FlashInfer's files, as a patch that `ncuflow try` takes; null where it changes none."""
    reason: str | None = None
    """The reason why it was timed nowhere."""
    compile_error: race.CompileError | None = None
    """The error of a variant that does not compile."""


class VariantAtShape(record.Strict):
    """How a variant came out at a shape."""

    name: str
    """The name of the variant."""
    point: str
    """The id of its point at this shape."""
    fate: race.VariantOutcome
    """kept: it stayed to the end of the halving; left: it was significantly slower than another. With every other value it was
    not timed, or not to the end."""
    reason: str | None = None
    """The reason why it was not timed, or not to the end."""
    time_us: record.Microseconds | None = None
    """The median time over its rounds, µs; null where it was not timed."""
    against: race.Relative | None = None
    """Its time against the default's in its rounds of the search; the best variant looks better there than it is."""
    rounds: record.Count | None = None
    """How many rounds it took part in."""


class SearchedShape(record.Strict):
    """A shape, and what was found there."""

    shape: str
    """The id of the point with FlashInfer's defaults."""
    params: JsonObject
    """The parameters of that point."""
    found: race.Found
    """winner: a variant is faster, confirmed on inputs that the search did not see; default: no variant is faster by what
    matters; undecided: the noise was too large; none: nothing could be timed."""
    reason: str | None = None
    """The reason why nothing was found."""
    default_us: record.Microseconds | None = None
    """The default's time, µs: of the confirmation, else of the search."""
    candidate: str | None = None
    """The variant that was confirmed, the winner where there is one; null where none was left."""
    confirmed: race.TrialTiming | None = None
    """The default and the variant timed in turns on fresh inputs; the base is the default."""
    price: race.Relative | None = None
    """What the default takes longer than the winner, of 1; null where there is no winner."""
    rounds: record.Count | None = None
    """How many rounds the halving had."""
    candidates: list[VariantAtShape]
    """The variants that mean something at this shape, the fastest first."""


class Search(Answer):
    """Which values of a target's tunables are fastest."""

    ROWS: ClassVar[tuple[str, ...]] = ("shapes",)
    command: Literal["search"] = "search"
    """The command that wrote this JSON."""
    tier: Literal["B"] = "B"
    """B: measured here, without counters."""
    target: str
    """The kernel target."""
    gpu: str | None
    """The name of the GPU."""
    versions: dict[str, str | None]
    """The versions of the driver, CUDA, torch and FlashInfer."""
    date: str
    """The date of the measurement, UTC."""
    effect: record.Effect
    """The minimum effect: the relative difference of times below which two are the same, as a fraction of 1."""
    alpha: record.Chance
    """The chance that the run calls any variant a winner that is not faster."""
    knobs: list[SearchedTunable] = Field(default_factory=list)
    """All tunables that were asked for."""
    beyond_budget: record.Count = 0
    """How many variants were left out, by --budget or for the memory of the GPU: those that depart in the most tunables first."""
    candidates: list[SearchedCombination] = Field(default_factory=list)
    """All variants that were tried."""
    shapes: list[SearchedShape]
    """Each shape."""


def head(gpu: str, driver: str | None) -> JsonObject:
    """What a record says of where and when it was measured."""
    made: JsonObject = dict(origin(gpu, driver))
    versions = {label: made.get(key) for key, label in SOFTWARE.items()}
    return {"gpu": gpu, "versions": versions, "date": str(made["date"])}
