"""The record of an explanation: what `ncuflow explain --json` writes, and its screen and other pages are made of.

A lone number is a `Number`: its value with unit, metric, tier and the words that `ncuflow trace` takes. What is not known
is null, and `missing` says what would bring it; nothing is judged from counters that are not there.
"""

from __future__ import annotations

from typing import ClassVar, Literal

from ncuflow.answer import AnswerPart, Tier


class Number(AnswerPart):
    """One number, and where it comes from."""

    value: float
    """in ``unit``"""
    unit: str
    """as the metric registry and the columns have it: %, µs, ns"""
    metric: str
    """the counter of ncu, or the column of docs/measurements.md, that it is"""
    tier: Tier
    """A live counters, B live without counters, C recorded elsewhere (as every file is), S compiled and not run"""
    trace: str | None
    """the words, as a shell reads them, that `ncuflow trace` takes to show it in its report; null of what is in none"""


class Lineage(AnswerPart):
    """Where the numbers of an explanation come from. What nobody wrote down is null."""

    file: str
    """the report, or the folder of outputs or of the recording"""
    kind: Literal["ncu", "ncu csv", "nsys", "outputs", "recording"]
    """what that is"""
    tier: Tier
    """of all its numbers"""
    gpu: str | None
    """device name"""
    compute_capability: str | None
    """as 9.0"""
    versions: dict[str, str]
    """of what it was measured with, by name: ncu, driver, FlashInfer"""
    date: str | None
    """when; a report does not say it"""


class Subject(AnswerPart):
    """What is explained: one launch."""

    name: str | None = None
    """function name of the kernel; null of a point without counters"""
    demangled: str | None = None
    """with its template arguments"""
    index: int | None = None
    """of the launch in its report"""
    report: str | None = None
    """the report that it is in"""
    launches: int
    """how many launches of that name the report holds, or the point has; this one is the longest"""
    untimed: int
    """how many of them have no time: one of these may be longer"""
    nvtx: str | None = None
    """NVTX ranges open at the launch, outermost first"""
    point: str | None = None
    """id of the FlashInfer point that it belongs to"""
    grid: list[int] | None = None
    """blocks in x, y, z"""
    block: list[int] | None = None
    """threads in x, y, z"""
    registers: int | None = None
    """per thread"""
    smem_bytes: int | None = None
    """shared memory of a block, static and dynamic"""


class Busy(AnswerPart):
    """A hardware unit, or a kind of wait, and its share of the time."""

    name: str
    """as docs/metrics.md has it"""
    label: str
    """on pages"""
    share: Number
    """of a unit: of its sustained peak; of a wait: of the time"""


class LimitedBy(AnswerPart):
    """The judgement of `findings/limiter.py`, which every page asks."""

    words: str
    """in a sentence, with its figures"""
    kind: str
    """without figures"""
    nature: str
    """memory-bound, compute-bound, either in part, or latency-bound"""
    verdict: Literal["bound", "partly", "latency"]
    """a unit at 80 % of its peak or more; one at 60 % or more, and waits; or waits"""
    units: list[Busy]
    """the busiest unit, and the second"""
    waits: list[Busy]
    """what the busiest unit leaves of the time, by why, the longest first"""


class Stalled(AnswerPart):
    """A stall reason of the kernel's warps."""

    reason: str
    """ncu's name"""
    meaning: str | None
    """what a warp waits for, as NVIDIA says it"""
    share: Number
    """of all stalls"""
    at_mbarrier: Number | None = None
    """of long_scoreboard, the part of its samples that are waits at an mbarrier, for other warps or the copy engine; null
    where no samples by line tell them apart"""


class WaitingLine(AnswerPart):
    """A source line, or without line tables an instruction, at which warps stood when they were sampled."""

    file: str | None
    """as the compiler knew it, its last components"""
    line: int | None
    """in that file"""
    function: str | None
    """the enclosing function, where FlashInfer's sources are indexed"""
    sass: str | None
    """the instruction, where there are no line tables"""
    pc: int | None = None
    """its address from the kernel's first instruction, in bytes"""
    text: str | None
    """the line, where its source is installed"""
    reason: str | None
    """the largest stall there"""
    share: Number
    """of all samples"""
    uncertainty: float | None
    """half-width of the share, percentage points"""


class Headroom(AnswerPart):
    """What the time could be shorter by at most."""

    most: Number
    """of the time"""
    words: str
    """what the bound is, and for what it holds"""


class Suggestion(AnswerPart):
    """What the evidence suggests to try."""

    what: str
    """in words"""
    why: str | None = None
    """what the evidence shows"""
    by: str
    """whose it is: NVIDIA's rule by its name, or the target"""
    estimate: Number | None = None
    """what NVIDIA's rule expects of it, of the time of the kernel or of a part of it (``scope``)"""
    scope: Literal["kernel", "part", "point", "step", "other work"] | None
    """what the estimate and ``most`` are of: the kernel's time, a part of the kernel, the point's time, a launch among many
    with its host, or the time of a call that does other work; null where neither is known"""
    most: Number | None = None
    """what it can bring at most; of this work it is never above the headroom; null where nothing bounds it"""
    tried: str | None = None
    """how trials of it changed the time"""


class Missing(AnswerPart):
    """What the report does not hold."""

    what: str
    """in words"""
    brought_by: str
    """the section or option of the profiler that brings it"""


class Explanation(AnswerPart):
    """What limits a kernel, what its warps wait for and where, what it could gain at most, and what to try."""

    schema_version: Literal[1] = 1
    """of this record; a field that is added does not change it"""
    ROWS: ClassVar[tuple[str, ...]] = ("stalls", "lines", "suggestions")
    command: Literal["explain"] = "explain"
    """the command that answers with it"""
    subject: Subject
    """what is explained"""
    lineage: Lineage
    """where its numbers come from"""
    time: Number | None
    """of the launch; of a point, cold"""
    limit: LimitedBy | None
    """null where its breakdown was not counted"""
    stalls: list[Stalled]
    """the largest stall reasons; empty where not all reasons were counted"""
    lines: list[WaitingLine]
    """the hottest lines; empty without samples"""
    headroom: Headroom | None
    """null where no bound is known"""
    suggestions: list[Suggestion]
    """what to try, the most promising first"""
    missing: list[Missing]
    """what was not measured, and what would bring it"""
    notes: list[str]
    """what limits the worth of the above"""
    left_out: int = 0
    """how many stalls, lines and suggestions `--limit` left out"""
