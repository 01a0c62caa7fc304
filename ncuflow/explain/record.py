"""The record of an explanation: what `ncuflow explain --json` writes, and other pages are made of; and its text report.

A lone number is a `Number`: its value with unit, metric, tier and the words that `ncuflow trace` takes. What is not known
is null, and `missing` says what would bring it; nothing is judged from counters that are not there.
"""

from collections.abc import Iterator, Sequence
from textwrap import wrap
from typing import ClassVar, Literal

from ncuflow.answer import AnswerPart, Displayed, Tier
from ncuflow.evidence.provenance import TIERS
from ncuflow.format import Sheet, columns, in_one_unit, pct, percent, quantity, short, with_unit
from ncuflow.io import clean


class Number(AnswerPart):
    """One number, and where it comes from."""

    value: float
    """The value in ``unit``."""
    unit: str
    """The unit as the metric registry and the columns have it: %, µs, ns."""
    metric: str
    """The ncu counter, or the column of docs/measurements.md, that was read."""
    tier: Tier
    """A: live counters. B: live without counters. C: recorded elsewhere, as every file is. S: compiled and not run."""
    trace: str | None
    """The words, quoted for a shell, that `ncuflow trace` takes to show the number in its report; null for what is in no
    report."""


class Lineage(AnswerPart):
    """Where the numbers of an explanation come from. What nobody wrote down is null."""

    file: str
    """The report, or the folder of outputs or of the recording."""
    kind: Literal["ncu", "ncu csv", "nsys", "outputs", "recording"]
    """The kind of that file or folder."""
    tier: Tier
    """The tier of all its numbers."""
    gpu: str | None
    """The device name."""
    compute_capability: str | None
    """The compute capability, such as 9.0."""
    versions: dict[str, str]
    """The versions that it was measured with, by name: ncu, driver, FlashInfer."""
    date: str | None
    """The date of the measurement; a report does not state it."""


class Subject(AnswerPart):
    """What is explained: one launch."""

    name: str | None = None
    """The function name of the kernel; null for a point without counters."""
    demangled: str | None = None
    """The name with template arguments."""
    index: int | None = None
    """The index of the launch in its report."""
    report: str | None = None
    """The report that the launch is in."""
    launches: int
    """How many launches of that name the report, or the point, has; this is the longest."""
    untimed: int
    """How many of these launches have no time; one of them may be longer."""
    nvtx: str | None = None
    """The NVTX ranges open at the launch, outermost first."""
    point: str | None = None
    """The id of the FlashInfer point that the launch is of."""
    grid: list[int] | None = None
    """The blocks in x, y, z."""
    block: list[int] | None = None
    """The threads in x, y, z."""
    registers: int | None = None
    """The registers per thread."""
    smem_bytes: int | None = None
    """The shared memory of a block in bytes, static and dynamic."""


class Busy(AnswerPart):
    """A hardware unit, or a kind of wait, and its share of the time."""

    name: str
    """The name in docs/metrics.md."""
    label: str
    """The name on pages."""
    share: Number
    """For a unit the share of its sustained peak; for a wait the share of the time."""


class LimitedBy(AnswerPart):
    """The judgement of `findings/limiter.py`, which every page asks."""

    words: str
    """The verdict as a sentence, with its figures."""
    kind: str
    """The verdict without figures."""
    nature: str
    """One of: memory-bound, compute-bound, either in part, latency-bound."""
    verdict: Literal["bound", "partly", "latency"]
    """The class of the verdict: a unit at 80 % of its peak or more, a unit at 60 % or more and otherwise latency, or latency."""
    units: list[Busy]
    """The busiest unit, and the second."""
    waits: list[Busy]
    """What the busiest unit leaves of the time, by reason, the longest first."""


class Stalled(AnswerPart):
    """A stall reason of the kernel's warps."""

    reason: str
    """The name that ncu gives the reason."""
    meaning: str | None
    """What a warp waits for, in NVIDIA's words."""
    share: Number
    """The share of all stalls."""
    at_mbarrier: Number | None = None
    """For long_scoreboard, the part of its samples that wait at an mbarrier, for other warps or the copy engine; null where no
    samples by line tell them apart."""


class WaitingLine(AnswerPart):
    """A source line, or without line tables an instruction, at which warps stood when they were sampled."""

    file: str | None
    """The last components of the file's path as the compiler knew it."""
    line: int | None
    """The line in that file."""
    function: str | None
    """The enclosing function, where FlashInfer's sources are indexed."""
    sass: str | None
    """The instruction, where there are no line tables."""
    pc: int | None = None
    """The address from the kernel's first instruction, in bytes."""
    text: str | None
    """The text of the line, where its source is installed."""
    reason: str | None
    """The largest stall reason at this line."""
    share: Number
    """The share of all samples."""
    uncertainty: float | None
    """The half-width of the share's interval, in percentage points."""


class Headroom(AnswerPart):
    """What the time could be shorter by at most."""

    most: Number
    """The most of the time that can be gained."""
    words: str
    """What the bound is, and what it holds for."""


class Suggestion(AnswerPart):
    """What the evidence suggests to try."""

    what: str
    """What to do, in words."""
    why: str | None = None
    """What the evidence shows."""
    by: str
    """Who suggests it: NVIDIA's rule by its name, or the target."""
    estimate: Number | None = None
    """What NVIDIA's rule expects of it: a share of the time of the kernel or of a part of it (``scope``)."""
    scope: Literal["kernel", "part", "point", "step", "other work"] | None
    """What the estimate and ``most`` are a share of: the kernel's time, a part of the kernel, the point's time, a launch among
    many with its host, or the time of a call that does other work; null where neither is known."""
    most: Number | None = None
    """The most that it can bring; for the same work it is never above the headroom; null where nothing bounds it."""
    tried: str | None = None
    """How trials of it changed the time."""


class Missing(AnswerPart):
    """What the report does not hold."""

    what: str
    """What was not measured, in words."""
    brought_by: str
    """The section or option of the profiler that measures it."""


class Explanation(Displayed, AnswerPart):
    """What limits a kernel, what its warps wait for and where, what it could gain at most, and what to try."""

    schema_version: Literal[1] = 1
    """The version of this schema; an added field does not change it."""
    ROWS: ClassVar[tuple[str, ...]] = ("stalls", "lines", "suggestions")
    command: Literal["explain"] = "explain"
    """The command that wrote this JSON."""
    subject: Subject
    """The launch or point that is explained."""
    lineage: Lineage
    """Where the numbers come from."""
    time: Number | None
    """The time of the launch; for a point the cold time."""
    limit: LimitedBy | None
    """What limits it; null where its breakdown was not counted."""
    stalls: list[Stalled]
    """The largest stall reasons; empty where not all reasons were counted."""
    lines: list[WaitingLine]
    """The hottest lines; empty without samples."""
    headroom: Headroom | None
    """The most that can be gained; null where no bound is known."""
    suggestions: list[Suggestion]
    """What to try, the most promising first."""
    missing: list[Missing]
    """What was not measured, and which option measures it."""
    notes: list[str]
    """What limits the worth of the explanation."""
    left_out: int = 0
    """How many stalls, lines and suggestions `--limit` left out."""


# --- the text report -------------------------------------------------------------------------

MOST_LINES = 24
LABEL = 9  # columns of the word before a part
MOST = 3  # entries of a list that are said
# Part and the lines that it may take; what the others leave of the screen is for what to try.
PARTS = {"limit": 2, "waits": 3, "at": 3, "gain": 1, "try": 6, "missing": 3, "note": 2, "from": 2}
TRY = "try"


def as_text(found: Explanation, width: int | None = None) -> str:
    """The text: at most MOST_LINES lines of so many characters, as wide as the terminal unless given; what is cut off ends with
    an ellipsis. The command that traces a number is the last of them, whole, for a shell to run as it is."""
    wide = width or columns()
    said = {
        "limit": _limit(found),
        "waits": [_stall(stall) for stall in found.stalls[:MOST]],
        "at": [_line(line) for line in found.lines[:MOST]],
        "gain": _gain(found),
        TRY: [_suggestion(one) for one in found.suggestions[:MOST]],
        "missing": _missing(found),
        "note": found.notes[:1],
        "from": [*_origin(found)],
    }
    head, traced = _head(found.subject, wide), _traced(found)
    parts = {name: _part(name, said[name], PARTS[name], wide) for name in PARTS}
    used = len(head) + len(traced) + sum(len(lines) for name, lines in parts.items() if name != TRY)
    parts[TRY] = _part(TRY, said[TRY], min(PARTS[TRY], MOST_LINES - used), wide)
    return "\n".join([*head, *(line for name in PARTS for line in parts[name]), *traced]) + "\n"


def overview(every: Sequence[tuple[Explanation, float | None]], more: bool = False) -> Sheet:
    """A line per kernel: its share of the time (of 1; None: not asked for), its longest launch, what limits it, and where its
    warps wait. more: also what it could gain, and the first that is suggested."""
    unit, took = in_one_unit([_us(found.time) for found, _ in every])
    rows, asked = [], any(share is not None for _, share in every)
    for (found, share), time in zip(every, took, strict=True):
        stall, bound, tried = found.stalls[:1], found.headroom, found.suggestions[:1]
        rows.append(
            [
                found.subject.name or found.subject.point or "",
                percent(share, 1) if asked else "",
                str(found.subject.launches),
                time,
                "".join(f"{one.reason} {_formatted(one.share)}" for one in stall),
                found.limit.words if found.limit else "not known",
                *(
                    [
                        _formatted(bound.most) if bound else "",
                        "".join(_suggestion(one).partition(". ")[0] for one in tried),
                    ]
                    * more
                ),
            ]
        )
    head = ["kernel", "of time", "n", f"longest, {unit}", "waits most for", "limit"]
    return Sheet(head + ["at most", "to try"] * more, rows, left=1, long=(0, 5))


def _us(time: Number | None) -> float | None:
    return None if time is None else time.value / (1e3 if time.unit == "ns" else 1)


def _part(label: str, entries: list[str], most: int, wide: int) -> list[str]:
    """Entries with a label before the first: as many lines each, at most `most` in all."""
    each = max(1, most // max(1, len(entries)))
    body = [line for entry in entries[:most] for line in _wrapped(entry, wide - LABEL, each)]
    return [f"{label if number == 0 else '':{LABEL}}{line}" for number, line in enumerate(body)]


def _wrapped(text: str, width: int, most: int) -> list[str]:
    return wrap(
        text, width, max_lines=most, placeholder=" …", subsequent_indent="  ", break_on_hyphens=False
    )  # fmt: skip


def _head(of: Subject, wide: int) -> list[str]:
    """Which kernel, with its template arguments where it has some, and which launch of it."""
    lines = [" ".join(word for word in (of.point, of.name) if word)]
    if of.demangled and "<" in of.demangled:
        lines.append(of.demangled)
    if of.report is not None:
        lines.append(_launch(of))
    return [short(line, wide) for line in lines]


def _launch(of: Subject) -> str:
    text = f"launch {of.index} of {of.report}"
    if of.launches > 1:
        text += f", the longest of {of.launches} of that name"
        text += f" ({of.untimed} without a time)" if of.untimed else ""
    shape = [
        f"{word} {'×'.join(map(str, dims))}"
        for word, dims in (("grid", of.grid), ("block", of.block))
        if dims
    ]
    return ", ".join([text, *shape])


def _limit(found: Explanation) -> list[str]:
    time = "" if found.time is None else f"; {_formatted(found.time)}{_under(found)}"
    unknown = "not known" + (": see what is missing" if found.missing else "")
    return [(found.limit.words if found.limit else unknown) + time]


def _under(found: Explanation) -> str:
    return {"ncu": " under ncu", "ncu csv": " under ncu", "nsys": " in the trace"}.get(
        found.lineage.kind, " cold"
    )


def _formatted(number: Number) -> str:
    return pct(number.value) if number.unit == "%" else quantity(number.value, number.unit)


def _stall(stall: Stalled) -> str:
    text = f"{stall.reason} {_formatted(stall.share)} of stalls: {stall.meaning or 'not known'}"
    part = stall.at_mbarrier
    return text if not part else f"{text}; {_formatted(part)} of it at an mbarrier, for other warps"


def _line(line: WaitingLine) -> str:
    place = f"{line.file}:{line.line}" if line.file else _instruction(line)
    spread = "" if line.uncertainty is None else f" ± {line.uncertainty:.1f}"
    text = f"{place} {line.share.value:.0f}{spread} % of samples"
    text += f", {line.reason}" if line.reason else ""
    text += f" in {line.function}" if line.function else ""
    return f"{text}: {line.text}" if line.text else text


def _instruction(line: WaitingLine) -> str:
    """With its address: an unrolled loop has the same instruction at several."""
    at = "" if line.pc is None else f"{line.pc:#x} "
    return f"{at}{line.sass or 'an instruction'}"


def _gain(found: Explanation) -> list[str]:
    bound = found.headroom
    return [f"at most {_formatted(bound.most)}: {bound.words}"] if bound else []


def _suggestion(one: Suggestion) -> str:
    said = one.what if one.why is None else f"{one.what}; {one.why}"
    return f"{_promise(one)}: {' '.join(said.split())}"


def _promise(one: Suggestion) -> str:
    """Whose it is, and what it brought, or what is expected of it."""
    if one.tried:
        return f"{one.by}, tried: {one.tried}"
    of = {"part": " of a part", "step": " of a step", "other work": " by other work"}.get(
        one.scope or "", ""
    )
    if one.estimate is None:
        bound = one.why is not None and one.most
        return f"{one.by}, at most {_formatted(bound)}{of}" if bound else f"{one.by} (no estimate)"
    text = f"{one.by}, estimate {_formatted(one.estimate)}{of}"
    left = "" if one.most is None else _formatted(one.most)
    above = one.scope == "kernel" and one.most is not None and left != _formatted(one.estimate)
    return f"{text} (more than the {left} left)" if above else text


def _missing(found: Explanation) -> list[str]:
    return ["; ".join(f"{one.what}: {one.brought_by}" for one in found.missing)] * bool(
        found.missing
    )


def _origin(found: Explanation) -> Iterator[str]:
    """GPU, versions, date and tier; then its leading number, whose trace is how all are traced."""
    of = found.lineage
    capability = f" ({of.compute_capability})" if of.compute_capability else ""
    versions = ", ".join(f"{name} {version}" for name, version in of.versions.items())
    dated = of.date or "unknown date"
    gpu = f"{of.gpu or 'unknown GPU'}{capability}"
    yield "; ".join(
        part for part in (gpu, versions, dated, f"tier {of.tier}: {TIERS[of.tier]}") if part
    )
    if (leading := _leading(found)) is not None:
        yield f"{leading.metric} = {with_unit(leading.value, leading.unit)}"


def _leading(found: Explanation) -> Number | None:
    return found.limit.units[0].share if found.limit and found.limit.units else found.time


def _traced(found: Explanation) -> list[str]:
    """The command that shows where the leading number comes from."""
    leading = _leading(found)
    return (
        [clean(f"{'':{LABEL}}ncuflow trace {leading.trace}")] if leading and leading.trace else []
    )
