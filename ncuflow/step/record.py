"""What is said of a step: the records of `ncuflow step --json`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from ncuflow.answer import Answer, AnswerPart

StepKind = Literal["prefill", "decode", "mixed", "unknown"]
CeilingSource = Literal["measured", "datasheet"]


class StepTimes(AnswerPart):
    """Times of several steps, in us."""

    median: float
    """the middle one's"""
    q25: float
    """a quarter is below it"""
    q75: float
    """a quarter is above it"""
    least: float
    """the fastest"""
    most: float
    """the slowest"""


class ShapeOfLaunch(AnswerPart):
    """Which shape a launch had."""

    target: str | None
    """kernel target, as `ncuflow targets` lists them; null where none knows the kernel"""
    candidates: list[dict[str, Any]]
    """parameters that it may have had, by the target's names; one is certain, several launch alike, none is refused"""
    candidates_left_out: int = 0
    """of many, how many are not listed"""
    source: str
    """what told it: a range, the profiler's shapes, or the launch and what else was known"""
    refusal: str | None = None
    """why there is none"""
    certain: dict[str, Any] = Field(default_factory=dict)
    """of a refused shape, the parameters that are known"""


class RoofOfLaunch(AnswerPart):
    """How far a launch was from what the GPU reaches. Two numbers are the least and the most, over the candidates."""

    bytes: tuple[int, int]
    """moved at least, by the target's count"""
    flops: tuple[int, int]
    """computed, by the target's count"""
    bound: Literal["DRAM", "tensor cores", "CUDA cores"]
    """the ceiling that is nearer"""
    ceiling: str
    """its rate"""
    ceiling_source: CeilingSource
    """measured on that GPU, or its datasheet's"""
    percent: tuple[float, float]
    """of the ceiling, that the launch reached, at least and at most: of operands that the kernels before wrote, as much as L2
    holds may never have come from DRAM; above 100 it is none of this launch: they did not, or the product that the ceiling
    was measured with reaches less"""


class NearestPoint(AnswerPart):
    """The recorded point that is most like a launch."""

    point: str
    """its id"""
    differs: dict[str, Any]
    """its parameters that are others than the launch's; empty of the same shape"""
    time_us: float | None
    """alone, from a cold L2"""
    percent: float | None
    """of the ceiling, that it reached alone"""
    slower: float | None
    """time of the launch over the point's, of the same shape; null of another"""


class KernelOfStep(AnswerPart):
    """All launches of a step that are alike: kernel, grid and shape."""

    name: str
    """without namespaces and template arguments"""
    demangled: str
    """with them"""
    family: str
    """what it does"""
    owner: str | None
    """whose it is; null where its name does not say it"""
    launches: float
    """in the median step; of several steps their median"""
    time_us: float
    """of all of them in a step, where nothing that began before them ran: median over the steps"""
    each_us: float
    """of one, from its start to its end: median over the steps of this kind; the roof is held against it"""
    longest_us: float
    """of the longest: far above the median, what a row's time is made of"""
    share: float
    """of the step's time on the GPU, in %"""
    grid: tuple[int, int, int] | None
    """blocks"""
    block: tuple[int, int, int] | None
    """threads"""
    graph: bool
    """replayed of a CUDA graph"""
    shape: ShapeOfLaunch | None
    """null of what is no kernel"""
    roof: RoofOfLaunch | None = None
    """null without a shape or a ceiling"""
    nearest: NearestPoint | None = None
    """null where no point of its target is recorded"""


class FamilyOfStep(AnswerPart):
    """A part of a step."""

    family: str
    """its name"""
    time_us: float
    """of its kernels"""
    share: float
    """of the step's time on the GPU, in %"""


class GapsOfStep(AnswerPart):
    """Time of the median step in which the GPU stood idle, by why, in us."""

    host_us: float
    """the host had not yet asked for what came next"""
    sync_us: float
    """it waited for the GPU before it asked"""
    launch_us: float
    """it had asked, and the launch was under way or waited for another stream"""
    graph_us: float
    """between the kernels of one graph"""
    count: int
    """of gaps"""
    longest_us: float
    """the longest of them"""
    longest_between: str
    """what ran before and after it"""


class GainOfStep(AnswerPart):
    """What another choice of FlashInfer's would bring to a step, from what was measured of it for like shapes."""

    choice: str
    """key of the choice, as docs/tables.md and `ncuflow targets` have them; of an advice "advice" """
    title: str
    """what is chosen between"""
    change: str
    """from what to what"""
    kernel: str
    """of which kernel"""
    target: str
    """its kernel target"""
    low_pct: float
    """of the step's time on the GPU, that is saved at least, with the host's calls as late as they were; negative is lost"""
    high_pct: float
    """that is saved at most, of a GPU that is never idle: never more than the kernel's share"""
    share_pct: float
    """of the kernel, in the step"""
    pairs: list[str]
    """points that were measured with it"""
    differs: dict[str, list[Any]]
    """parameters in which these are others than the launch"""
    in_turns: bool
    """whether all of them were timed in turns"""


class StepGroup(AnswerPart):
    """The steps of one kind. Times are on the GPU, from the first operation's start to the last one's end."""

    kind: StepKind
    """prefill, decode, mixed, or unknown"""
    replayed: bool
    """whether it replays a CUDA graph"""
    steps: int
    """how many there are"""
    step_us: StepTimes
    """how long they took"""
    period_us: float | None
    """from the start of a step to the next one's, where it is of the same kind: median"""
    worst: int
    """the slowest one's number among all steps, from 1"""
    median_step: int
    """the number of the step that is shown: of the median, or of an even number the one below it"""
    shown_us: float
    """how long that one took"""
    tokens: tuple[int, int] | None
    """of a step: the least and the most; null where nothing says it"""
    busy_us: float
    """of the median step, in which the GPU ran anything"""
    gaps: GapsOfStep | None
    """the rest; null where operations do not say their GPU, so that it may have been busy"""
    overlapped_us: float | None
    """in which several streams ran something; null where operations do not say their stream"""
    dependent_us: float | None
    """in which kernels of one stream overlapped, as dependent launches do; null likewise"""
    exposed_communication_us: float
    """in which nothing ran but communication"""
    plan_us: float | None
    """of the host in FlashInfer's plan(), where ranges show it"""
    families: list[FamilyOfStep]
    """the most time first"""
    kernels: list[KernelOfStep]
    """the most time first"""
    gains: list[GainOfStep]
    """the most that may be gained first"""


class StepAnswer(Answer):
    """The steps of a trace."""

    command: Literal["step"] = "step"
    """the command that answers"""
    file: str
    """the trace"""
    tool: str
    """what wrote it"""
    gpu: str | None
    """name of the GPU; null where the trace does not say it"""
    device: int | None = None
    """its number, by default that of the one that ran most; null where operations do not say it"""
    devices: int
    """on how many GPUs anything ran; one is shown"""
    found_by: str
    """how steps were told apart"""
    groups: list[StepGroup]
    """by kind, the most time first"""
    known: dict[str, str]
    """what was known of the model besides the launches, and from where"""
    recording: str | None
    """whose points and ceilings launches are held against; null of none"""
    problems: list[str]
    """what is missing or was left out, and how to record it"""
    family_pct: float
    """of the GPU's time in steps, that has a family"""
    shape_pct: float | None
    """of the time of FlashInfer's kernels in steps, that has a shape or a reason why not; null without any"""
