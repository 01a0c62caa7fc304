"""What is said of a step: the records of `ncuflow step --json`."""

from typing import Any, Literal

from pydantic import Field

from ncuflow.answer import Answer, AnswerPart, Displayed
from ncuflow.model import Params

StepKind = Literal["prefill", "decode", "mixed", "unknown"]
CeilingSource = Literal["measured", "datasheet"]


class StepTimes(AnswerPart):
    """Times of several steps, in us."""

    median: float
    """The median, µs."""
    q25: float
    """The lower quartile, µs."""
    q75: float
    """The upper quartile, µs."""
    least: float
    """The fastest, µs."""
    most: float
    """The slowest, µs."""


class ShapeOfLaunch(AnswerPart):
    """Which shape a launch had."""

    target: str | None
    """The kernel target as `ncuflow targets` lists it; null where no target knows the kernel."""
    candidates: list[Params]
    """The parameters that the launch may have had, by the target's names: one is certain, several launch alike, none was
    refused."""
    candidates_left_out: int = 0
    """How many candidates are not listed."""
    source: str
    """What told the shape: a range, the profiler's shapes, or the launch and what else was known."""
    refusal: str | None = None
    """The reason why there is no shape."""
    certain: Params = Field(default_factory=dict)
    """For a refused shape, the parameters that are known."""
    operands: str | None = None
    """What is known of the sizes where no target counts the kernel: the tensors of its operator, or the bytes of a copy."""


class RoofOfLaunch(AnswerPart):
    """How far a launch was from what the GPU reaches. Two numbers are the least and the most, over the candidates."""

    bytes: tuple[int, int]
    """The least bytes that are moved, by the target's count."""
    flops: tuple[int, int]
    """The operations that are computed, by the target's count."""
    bound: Literal["DRAM", "tensor cores", "CUDA cores"]
    """The ceiling that is nearer."""
    ceiling: str
    """The rate of that ceiling."""
    ceiling_source: CeilingSource
    """Where the ceiling comes from: measured on that GPU, or its datasheet."""
    percent: tuple[float, float]
    """The least and the most of the ceiling that the launch reached, %. Of operands that the kernels before wrote, as much as
    L2 holds may never have come from DRAM; above 100 either they did not, or the product that the ceiling was measured with
    reaches less."""


class ReasonOfLaunch(AnswerPart):
    """Why a launch has no roof."""

    why: str
    """What is not known of it."""
    would: Literal["nothing", "shapes", "lengths", "annotation", "rule"]
    """What would give it one: nothing (no trace has it), the profiler's shapes, what --known or an annotation says of lengths
    and heads, an annotation alone, or a rule that ncuflow does not have."""


class NearestPoint(AnswerPart):
    """The recorded point that is most like a launch."""

    point: str
    """The id of the point."""
    differs: Params
    """The parameters that differ from the launch's; empty for the same shape."""
    time_us: float | None
    """The time of the point alone, from a cold L2, µs."""
    percent: float | None
    """How much of the ceiling the point reached alone, %."""
    slower: float | None
    """The time of the launch over that of the point of the same shape; null for another shape."""


class KernelOfStep(AnswerPart):
    """All launches of a step that are alike: kernel, grid and shape."""

    number: int = 0
    """Its number among all kernels of the trace's groups, from 1, by which `ncuflow export script` takes it."""

    name: str
    """The name without namespaces and template arguments."""
    demangled: str
    """The name with namespaces and template arguments."""
    family: str
    """What the kernel does."""
    owner: str | None
    """Whose kernel it is; null where its name does not say it."""
    launches: float
    """How many launches the shown step has, which is the median one."""
    time_us: float
    """The time of all launches in the shown step where nothing that began before them ran, µs."""
    each_us: float
    """The time of one launch from start to end, µs, which is compared with the roof: the median of all launches in the steps of
    this kind, or of the shown step's where the same kernel has several shapes."""
    longest_us: float
    """The time of the longest launch, µs; where it is far above the median it makes up the row's time."""
    share: float
    """The share of the step's time on the GPU, %."""
    grid: tuple[int, int, int] | None
    """The grid in blocks."""
    block: tuple[int, int, int] | None
    """The block in threads."""
    graph: bool
    """Whether it was replayed from a CUDA graph."""
    shape: ShapeOfLaunch | None
    """The shape of the launch; null for what is no kernel."""
    roof: RoofOfLaunch | None = None
    """How far it was from the roof; null without a shape or a ceiling."""
    reason: ReasonOfLaunch | None = None
    """Why it has no roof; null where it has one, or finishes the call of a kernel that has."""
    built: dict[str, str] = Field(default_factory=dict)
    """What the name says of how it was built, by its public naming scheme: types, tile, stages and more."""
    nearest: NearestPoint | None = None
    """The nearest recorded point; null where no point of its target is recorded."""


class FamilyOfStep(AnswerPart):
    """A part of a step."""

    family: str
    """The name of the family."""
    time_us: float
    """The time of its kernels, µs."""
    share: float
    """The share of the step's time on the GPU, %."""
    launches: float = 0
    """How many launches it has."""
    roofed_pct: float = 0.0
    """The share of its time that has a roof, %."""
    roof_pct: tuple[float, float] | None = None
    """The least and the most of the ceiling that this part reached, weighted by time, %; at most 100."""
    gain_pct: float | None = None
    """The most that other choices for its kernels would bring, % of the step; null where none was measured."""


class GapsOfStep(AnswerPart):
    """Time of the median step in which the GPU stood idle, by why, in us."""

    host_us: float
    """The µs in which the host had not yet asked for the next operation."""
    sync_us: float
    """The µs in which the host waited for the GPU before it asked."""
    launch_us: float
    """The µs in which the host had asked, and the launch was under way or waited for another stream."""
    graph_us: float
    """The µs between the kernels of one graph."""
    count: int
    """How many gaps there are."""
    longest_us: float
    """The longest gap, µs."""
    longest_between: str
    """What ran before and after the longest gap."""


class GainOfStep(AnswerPart):
    """What another choice of FlashInfer's would bring to a step, from what was measured of it for like shapes."""

    choice: str
    """The key of the choice, as in docs/tables.md and `ncuflow targets`; "advice" for an advice."""
    title: str
    """What the choice is between."""
    change: str
    """The change from one value to the other."""
    kernel: str
    """The kernel that it applies to."""
    target: str
    """The kernel target."""
    low_pct: float
    """The least share of the step's GPU time that it saves, %, with the host's calls as late as they were; negative is a
    loss."""
    high_pct: float
    """The most that it saves on a GPU that is never idle, %; never more than the kernel's share."""
    share_pct: float
    """The share of the kernel in the step, %."""
    pairs: list[str]
    """The points that it was measured with."""
    differs: dict[str, list[Any]]
    """The parameters in which these points differ from the launch."""
    in_turns: bool
    """Whether all of them were timed in turns."""


class StepGroup(AnswerPart):
    """The steps of one kind. Times are on the GPU, from the first operation's start to the last one's end."""

    kind: StepKind
    """One of: prefill, decode, mixed, unknown."""
    replayed: bool
    """Whether the step replays a CUDA graph."""
    steps: int
    """How many steps there are."""
    step_us: StepTimes
    """How long the steps took, µs."""
    period_us: float | None
    """The median time from the start of a step to the start of the next one of the same kind, µs."""
    worst: int
    """The number of the slowest step among all steps, from 1."""
    median_step: int
    """The number of the step that is shown: the median one, or the one below it for an even number."""
    shown_us: float
    """How long the shown step took, µs."""
    tokens: tuple[int, int] | None
    """The least and the most tokens of a step; null where nothing states them."""
    busy_us: float
    """The µs of the median step in which the GPU ran anything."""
    wall_us: float | None = None
    """The µs that a step takes without the profiler; null where nothing says it."""
    wall_source: str | None = None
    """What says so: the caller, or another trace."""
    idle_us: float | None = None
    """The µs of that time in which the GPU ran nothing and no graph; its waits are at most that."""
    gaps: GapsOfStep | None
    """The idle time of the step; null where operations do not state their GPU, so that it may have been busy."""
    overlapped_us: float | None
    """The µs in which several streams ran something; null where operations do not state their stream."""
    dependent_us: float | None
    """The µs in which kernels of one stream overlapped, as dependent launches do; null where operations do not state their
    stream."""
    exposed_communication_us: float
    """The µs in which nothing but communication ran."""
    plan_us: float | None
    """The µs that the host spent in FlashInfer's plan(), where ranges show it."""
    families: list[FamilyOfStep]
    """The families, the most time first."""
    kernels: list[KernelOfStep]
    """The kernels, the most time first."""
    gains: list[GainOfStep]
    """The possible gains, the largest first."""


class StepAnswer(Displayed, Answer):
    """The steps of a trace."""

    command: Literal["step"] = "step"
    """The command that wrote this JSON."""
    file: str
    """The trace."""
    tool: str
    """The tool that wrote the trace."""
    gpu: str | None
    """The name of the GPU; null where the trace does not state it."""
    device: int | None = None
    """The number of the GPU, by default of the one that ran most; null where operations do not state it."""
    devices: int
    """How many GPUs ran anything; one of them is shown."""
    found_by: str
    """How the steps were told apart."""
    groups: list[StepGroup]
    """The steps by kind, the most time first."""
    known: dict[str, str]
    """What was known of the model besides the launches, and from where."""
    recording: str | None
    """The recording whose points and ceilings the launches are compared with; null without one."""
    host_slowed: bool = False
    """Whether the profiler wrote down shapes, which slows the host: its waits, and the steps, are at most as long."""
    problems: list[str]
    """What is missing or was left out, and how to record it."""
    family_pct: float
    """The share of the GPU's time in steps whose family is known, %."""
    roof_pct: float = 0.0
    """The share of the kernels' time that has a roof, %."""
    unmendable_pct: float = 0.0
    """The share that has none for a reason that no trace could mend, %."""
    shape_pct: float | None
    """The share of the time of FlashInfer's kernels in steps that has a shape or a reason why not, %; null without any."""
