"""The records that a program gets, beside those that the other rooms have. What is not known is null, never zero."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from ncuflow.explain.record import Lineage, Number, Subject, Suggestion, WaitingLine
from ncuflow.findings.lineage import TraceStep


class ServedPart(BaseModel):
    model_config = ConfigDict(use_attribute_docstrings=True, extra="forbid", allow_inf_nan=False)


class Served(ServedPart):
    left_out: int = 0
    """how many entries the limit left out"""


class ServedTarget(ServedPart):
    """A kernel target."""

    name: str
    """as a point's id begins"""
    status: str
    """ready: its default point can be measured here; not here: why it cannot, in `what`"""
    what: str
    """its title, or why it cannot be measured here"""
    points: int | None
    """how many points of it the asked outputs or recording have; null where they have none of it"""


class Targets(Served):
    """The kernel targets."""

    targets: list[ServedTarget]
    """in the order of pages"""


class Points(Served):
    """The points of a target in outputs or in a recording."""

    lineage: str
    """the folder that has them"""
    points: list[str]
    """ids, as explain and trace take them"""


class ServedLaunch(ServedPart):
    """A launch of a report."""

    index: int
    """in the report: `kernel` of explain, and behind # for trace"""
    name: str
    """function name of the kernel"""
    nvtx: str | None
    """NVTX ranges open at the launch, outermost first"""
    grid: str | None
    """blocks in x,y,z"""
    block: str | None
    """threads in x,y,z"""
    duration: Number | None
    """its time under the profiler, whose clocks may differ from production's"""
    metrics: list[Number]
    """the counters that were asked for"""
    unknown: list[str]
    """those that were asked for, and that nobody counted at this launch"""


class ServedReport(Served):
    """The launches of a report of ncu or nsys."""

    report: str
    """its path"""
    gpus: list[str]
    """device names; empty of a trace that does not say them"""
    launches: list[ServedLaunch]
    """in the order of the report, or of time"""


class HotLines(Served):
    """Where warps of a kernel stood when they were sampled: the lines that wait, seldom those that cause the wait."""

    subject: Subject
    """the launch"""
    lineage: Lineage
    """where the samples come from"""
    lines: list[WaitingLine]
    """the hottest first; empty without samples"""
    missing: list[str]
    """what was not measured, and what would bring it"""


class Suggestions(Served):
    """What the evidence suggests to try at a kernel or a point."""

    subject: Subject
    """the launch"""
    lineage: Lineage
    """where the evidence comes from"""
    suggestions: list[Suggestion]
    """the most promising first"""


class ServedPoint(ServedPart):
    """A metric of one point, or of one kernel of two reports, on both sides."""

    id: str
    """of the point, or the kernel with its range"""
    metric: str
    """cold_us, plan_us and others of a point; ncu_us or nsys_us of a report's kernel"""
    verdict: str
    """slower, faster, same, too noisy to tell, not tested (too few samples), or not judged (a host time of two recordings)"""
    base: Number | None
    """of the first side"""
    head: Number | None
    """of the second side"""
    change: float
    """head over base, minus 1"""
    low: float | None
    """the interval of the change, of 1; null where a side has one value"""
    high: float | None
    """its upper end"""
    q: float | None
    """p after the correction for all points; null where nothing was tested"""
    basis: str
    """runs, samples, or none: one value on a side, which proves nothing"""
    causes: list[str]
    """what explains the change, the largest first"""


class ServedComparison(Served):
    """Two sides, what differs between them, and what changed: slow-downs first."""

    base: str
    """the first side"""
    head: str
    """the second side"""
    differences: list[str]
    """what differs besides the kernels, from GPU to versions: several can each be the cause"""
    tests: int
    """how many were corrected for; 0: nothing was tested, so that nothing can be concluded"""
    notes: list[str]
    """what cannot be known"""
    points: list[ServedPoint]
    """those that changed, then the others"""
    only_base: int
    """how many points the first side alone has"""
    only_head: int
    """how many points the second side alone has"""
    not_compared: int
    """how many points were not right, or not timed, on a side"""


class Lineages(Served):
    """From a number back to the report, kernel and counter that it comes from."""

    steps: list[TraceStep]
    """a column with its formula, then what it is computed from, a step further in each"""
