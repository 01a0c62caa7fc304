"""From a trace, and what is known besides, to the answer about its steps, and its text report, on one screen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from textwrap import wrap

from ncuflow import answer
from ncuflow.format import aligned, columns, in_one_unit, micro, pct, short, with_unit
from ncuflow.io import BadInput, UsageError
from ncuflow.parsers.show import read_trace
from ncuflow.step import reference, shapes, summary
from ncuflow.step.detection import WHOLE, WORDS
from ncuflow.step.record import FamilyOfStep, GainOfStep, KernelOfStep, StepAnswer, StepGroup
from ncuflow.step.shapes import NOTHING, KnownFacts

SAID = "said by the caller"
GRAPH = "graph"  # of steps that replay one
ENOUGH = 0.9  # of the time in which the GPU was busy: a step that took less is another
_TIME = re.compile(r"(?:([a-z]+)=)?(\d{1,9}(?:\.\d{1,6})?) ?(s|ms|us|µs)")
_UNITS = {"s": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0}
# What --known takes: names of ncuflow/target/rules.py.
KNOWN = (
    "tokens", "decodes", "decodes_kv_tokens", "prompts", "prompt_tokens", "prompt_kv_tokens", "hidden", "intermediate",
    "vocab", "qo_heads", "kv_heads", "head_dim", "page_size",
)  # fmt: skip


def step(
    trace: Path,
    folder: Path | None = None,
    recording: Path | None = None,
    advice: Path | None = None,
    known: list[str] | None = None,
    device: int | None = None,
    walls: Sequence[str] = (),
) -> StepAnswer:
    """The steps of a trace. Raises BadInput where one of the files is not what it should be."""
    given = parse_known(known or [])
    if folder is not None:
        facts = shapes.of_dump(folder)
        given = given.joined(facts.values, shapes.DUMP)
    advised = reference.read_advice(advice) if advice else None
    timeline = read_trace(trace)
    found = summary.Summary(timeline, given, reference.Reference(), advised, device)
    with ExitStack() as stack:
        found.held = reference.evidence(found.gpu, recording, stack)
        return corrected(found.answer(), walls)


def parse_known(words: list[str]) -> KnownFacts:
    """What --known states. Raises UsageError for what is no name with a number."""
    values: dict[str, int] = {}
    for word in words:
        name, _, number = word.partition("=")
        usable = number.isdecimal() and len(number) <= 10 and 0 < int(number) < 1 << 31
        if name not in KNOWN or not usable:
            raise UsageError(f"--known {word!r}: NAME=NUMBER, of {', '.join(KNOWN)}")
        values[name] = int(number)
    return NOTHING.joined(values, SAID)


def limited(found: StepAnswer, limit: int | None) -> StepAnswer:
    """With so many groups, kernels, families and gains of each at most, and the count of what that leaves out."""
    if limit is None:
        return found
    groups, left_out = answer.cut(found.groups, limit)
    kept = []
    for group in groups:
        cut = {
            name: answer.cut(getattr(group, name), limit)
            for name in ("kernels", "families", "gains")
        }
        left_out += sum(left for _, left in cut.values())
        kept.append(group.model_copy(update={name: rows for name, (rows, _) in cut.items()}))
    problems, more = answer.cut(found.problems, limit)
    update = {"groups": kept, "problems": problems, "left_out": left_out + more}
    return found.model_copy(update=update)


def corrected(found: StepAnswer, words: Sequence[str]) -> StepAnswer:
    """The answer with the times that steps take unprofiled. words: TIME, KIND=TIME, or a trace without shapes. Raises UsageError
    where a time is no step's."""
    walls: dict[int, tuple[float, str]] = {}
    for word in words:
        if match := _TIME.fullmatch(word):
            kind, number, unit = match.groups()
            walls[_of(found, kind, word)] = (float(number) * _UNITS[unit], "said by the caller")
        else:
            walls |= _of_trace(found, Path(word))
    groups = [
        _with(group, *walls[at]) if at in walls else group for at, group in enumerate(found.groups)
    ]
    slowed = found.host_slowed and len(walls) < len(groups)
    problems = [one for one in found.problems if one != summary.SLOWED or slowed]
    return found.model_copy(update={"groups": groups, "problems": problems})


def _of(found: StepAnswer, kind: str | None, word: str) -> int:
    """The place of the one group that is meant."""
    said = [(group.kind, group.replayed) for group in found.groups]
    mine = [at for at, (of, replayed) in enumerate(said) if kind in (None, of) or (kind == GRAPH and replayed)]  # fmt: skip
    if kind is not None and len(mine) > 1:
        mine = [at for at in mine if said[at][1] is (kind == GRAPH)]
    if len(mine) != 1:
        names = ", ".join(dict.fromkeys(GRAPH if replayed else of for of, replayed in said))
        raise UsageError(f"--wall {word}: of one kind of step, as KIND=TIME; there are: {names}")
    return mine[0]


def _of_trace(found: StepAnswer, path: Path) -> dict[int, tuple[float, str]]:
    """What steps of the same kinds take in another trace."""
    if not path.is_file():
        raise UsageError(f"--wall {str(path)!r}: TIME as 240ms, KIND=TIME, or a trace")
    other = summary.Summary(read_trace(path), NOTHING, reference.Reference()).answer()
    if other.host_slowed:
        raise BadInput(path, "its profiler wrote down shapes as well")
    times = {
        (group.kind, group.replayed): group.period_us or group.step_us.median
        for group in other.groups
    }
    source = f"the steps of {path.name}"
    return {
        at: (times[group.kind, group.replayed], source)
        for at, group in enumerate(found.groups)
        if (group.kind, group.replayed) in times
    }


def _with(group: StepGroup, wall: float, source: str) -> StepGroup:
    """A group whose step takes so many us; what its choices bring is of that step."""
    if wall < ENOUGH * group.busy_us:
        raise UsageError(f"--wall: {wall:g} µs is no {group.kind} step, whose kernels took {group.busy_us:g}")  # fmt: skip
    share, busy = group.shown_us / wall, group.busy_us / wall
    gains = [
        one.model_copy(
            update={
                "high_pct": round(one.high_pct * busy, 2),
                "low_pct": round(min(one.low_pct * share, one.high_pct * busy), 2),
                "share_pct": round(one.share_pct * share, 2),
            }
        )
        for one in group.gains
    ]
    families = [
        one.model_copy(update={"gain_pct": one.gain_pct and round(one.gain_pct * busy, 2)})
        for one in group.families
    ]
    within = group.gaps.graph_us if group.gaps else 0.0
    idle = round(max(0.0, wall - group.busy_us - within), 3)
    update = {"wall_us": wall, "wall_source": source, "idle_us": idle, "gains": gains}
    return group.model_copy(update={**update, "families": families})


WIDTH, LONGEST = (
    132,
    1 << 12,
)  # of text that is wrapped, and of a line of a table, without a terminal
LEAST_SHARE = 0.05  # %: of the step, what is no longer listed
FAR = 2  # times the median: a launch so long was held up by something else
SHEET = " (datasheet)"
LITTLE = 10  # %: as the least of two, as good as nothing
MOST_LINES = 48
MOST_GROUPS, MOST_KERNELS, MOST_GAINS, MOST_PROBLEMS = 4, 12, 3, 4


def report(found: StepAnswer) -> str:
    """At most MOST_LINES lines or so: of many kinds of steps, fewer kernels of each."""
    groups = found.groups[:MOST_GROUPS]
    each = max(3, MOST_KERNELS // max(1, len(groups)))
    lines = [part for line in _head(found) for part in wrap(line, columns(WIDTH))]
    for group in groups:
        lines += ["", *_group(group, each, found)]
    if len(found.groups) > len(groups):
        lines.append(
            f"… and {len(found.groups) - len(groups)} other kinds of steps (--json has all)"
        )
    lines += [
        "",
        *(
            line
            for one in found.problems[:MOST_PROBLEMS]
            for line in wrap(f"! {one}", columns(WIDTH), subsequent_indent="  ")
        ),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _head(found: StepAnswer) -> Iterator[str]:
    gpu = found.gpu or "unknown GPU"
    yield f"{found.file}: {found.tool}, {gpu}, {told_by(found)}"
    told = f"{pct(found.family_pct, 1)} of their GPU time has a category, {roofs(found)}"
    if found.shape_pct is not None:
        told += f", {pct(found.shape_pct, 1)} of FlashInfer's a shape or a reason why not"
    yield told + f"; compared with {found.recording or 'no recording'}"


def roofs(found: StepAnswer) -> str:
    """How much of the time has a roof, and how much has none that a trace could give it."""
    none = f", {pct(found.unmendable_pct, 1)} none that any trace has" if found.unmendable_pct >= LEAST_SHARE else ""  # fmt: skip
    return f"{pct(found.roof_pct, 1)} a roof{none}"


def told_by(found: StepAnswer) -> str:
    """How many steps there are and what told them; or that nothing did."""
    steps = sum(group.steps for group in found.groups)
    return WHOLE if found.found_by == WHOLE else f"{with_unit(steps, 'steps')} by {found.found_by}"


def _group(group: StepGroup, most: int, found: StepAnswer) -> Iterator[str]:
    times = group.step_us
    title = f"{group.kind}{' (CUDA graph)' if group.replayed else ''}"
    tokens = ""
    if group.tokens:
        low, high = group.tokens
        tokens = f", {low} tokens" if low == high else f", {low} to {high} tokens"
    count = f"{group.steps} step{'s' * (group.steps != 1)}"
    middle = f"(IQR {micro(times.q25)} to {micro(times.q75)})"
    took = f"median {micro(times.median)} {middle}, max {micro(times.most)} (step {group.worst})"
    said = f"{title}: {count}{tokens}, {took if group.steps > 1 else micro(times.median)}"
    yield short(f"all: {micro(times.median)}" if found.found_by == WHOLE else said, columns(WIDTH))
    idle = wrap(_idle(group, found.host_slowed), columns(WIDTH) - 2)
    yield from (f"  {line}" for line in idle)
    yield ""
    head, rows = parts([one for one in group.families if one.share >= LEAST_SHARE][: most - 2])
    yield from (f"  {line}" for line in aligned(head, rows, left=1).splitlines())
    yield ""
    yield from _kernels(group.kernels[:most])
    if len(group.kernels) > most:
        rest = sum(one.time_us for one in group.kernels[most:])
        yield f"  and {len(group.kernels) - most} more, {micro(rest)}"
    yield from (_gain(one) for one in group.gains[:MOST_GAINS])
    for one in reasons(group)[: max(1, most // 3)]:
        yield from (f"  {line}" for line in wrap(f"no roof: {one}", columns(WIDTH) - 2))


def _width() -> int:
    """Of a terminal; without one nothing is cut."""
    return columns(LONGEST)


def parts(families: Sequence[FamilyOfStep]) -> tuple[list[str], list[list[str]]]:
    """(heads, rows) of a step's parts: what each takes, how near it is to the roof, what other choices would bring; of the
    columns those in which a part has something."""
    unit, took = in_one_unit([one.time_us for one in families])
    head = ("part", f"time, {unit}", "share", "launches", "has a roof", "% of roofline", "gain, % of step")  # fmt: skip
    rows = [
        (one.family, time, pct(one.share, 1), f"{one.launches:g}", pct(one.roofed_pct),
         "" if one.roof_pct is None else _between(*one.roof_pct),
         "" if one.gain_pct is None else f"{one.gain_pct:.1f}")
        for one, time in zip(families, took, strict=True)
    ]  # fmt: skip
    return filled(head, rows)


def filled(head: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """The columns of a table in which a row has something."""
    kept = [at for at in range(len(head)) if not rows or any(row[at] for row in rows)]
    (first, *rest) = ([row[at] for at in kept] for row in (head, *rows))
    return first, rest


def reasons(group: StepGroup) -> list[str]:
    """Why kernels have no roof, a line for each reason, the most time first, with what would give one."""
    found: dict[tuple[str, str], list[KernelOfStep]] = {}
    for one in group.kernels:
        if one.reason and one.share >= LEAST_SHARE:
            found.setdefault((one.reason.why, one.reason.would), []).append(one)
    times = {key: sum(one.time_us for one in of) for key, of in found.items()}
    lines = []
    for why, would in sorted(found, key=lambda key: -times[key]):
        names = ", ".join(dict.fromkeys(short(one.name, 40) for one in found[why, would]))
        took = micro(times[why, would])
        lines.append(f"{took}: {why}; {WORDS['would'][would]} ({short(names, 90)})")
    return lines


def times(
    shown: Sequence[KernelOfStep],
) -> tuple[tuple[str, list[str]], tuple[str, list[str]]]:
    """(unit, text) of the time of each kernel, and of its median launch; where one took far longer, which the sum of all has
    in it, that as well."""
    by, each = in_one_unit([time for one in shown for time in (one.each_us, one.longest_us)])
    pairs = zip(shown, each[::2], each[1::2], strict=True)
    said = [
        f"{own} to {most}" if one.longest_us > FAR * one.each_us else own
        for one, own, most in pairs
    ]
    return in_one_unit([one.time_us for one in shown]), (by, said)


def _kernels(shown: Sequence[KernelOfStep]) -> Iterator[str]:
    """A table of kernels, whose shapes stand below them where a line has no room for them."""
    (unit, took), (by, each) = times(shown)
    header = ("#", "share", unit, "n", f"each, {by}", "kernel", "part", "% of roofline", "alone", "shape")  # fmt: skip
    rows = [_row(*one) for one in zip(shown, took, each, strict=True)]
    shapes_of = [header[-1], *(row[-1] for row in rows)]
    head, body = filled(header[:-1], [row[:-1] for row in rows])
    lines = aligned(head, body, left=len(head)).splitlines()
    longest = max(map(len, lines))
    for line, shape in zip(lines, shapes_of, strict=True):
        whole = f"  {line:{longest}}  {shape}".rstrip()
        if len(whole) <= _width():
            yield whole
        else:
            yield f"  {line}"[: _width()].rstrip()
            if shape != header[-1]:
                yield from (f"      {part}" for part in wrap(shape, max(20, _width() - 6)))


def _idle(group: StepGroup, slowed: bool) -> str:
    gaps, parts = group.gaps, []
    idle = group.shown_us - group.busy_us
    other = group.shown_us != group.step_us.median
    of = f"step {group.median_step}, {micro(group.shown_us)}: " if other else ""
    parts.append(f"{of}GPU busy {micro(group.busy_us)}")
    if group.wall_us is not None:
        took = f"of {micro(group.wall_us)} without the profiler ({group.wall_source})"
        parts.append(f"{took} idle {micro(group.idle_us)}")
    for name, why in (
        ("host_us", "waits for the host"),
        ("sync_us", "after a synchronisation"),
        ("launch_us", "under launch"),
        ("graph_us", "inside graphs"),
    ):
        us = getattr(gaps, name) if gaps else 0
        if us >= 0.005 * max(idle, 1):
            held = slowed and name != "graph_us"
            us = min(us, group.idle_us) if held and group.idle_us is not None else us
            parts.append(f"{'at most ' * held}{micro(us)} {why}")
    if group.overlapped_us:
        parts.append(f"{micro(group.overlapped_us)} on several streams at once")
    if group.exposed_communication_us:
        parts.append(f"{micro(group.exposed_communication_us)} communication that nothing hides")
    parts.append(
        f"plan() {micro(group.plan_us)}" if group.plan_us is not None else "plan() unknown"
    )
    return ", ".join(parts)


def _row(one: KernelOfStep, time: str, each: str) -> list[str]:
    return [
        str(one.number),
        f"{one.share:.1f} %",
        time,
        f"{one.launches:g}",
        each,
        short(one.name, 24),
        one.family,
        roof_text(one).removesuffix(SHEET),  # that none was measured stands among the problems
        alone_text(one),
        shape_text(one),
    ]


def shape_text(one: KernelOfStep) -> str:
    """The shape in a few words, or of a kernel that no target counts its tensors; how many shapes it may be."""
    if one.shape is None:
        return ""
    known = one.shape.candidates
    if not known:
        return one.shape.operands or ""
    first = sorted(
        known[0].items(), key=lambda one: isinstance(one[1], str)
    )  # sizes: the rest may be cut
    words = " ".join(f"{name}={value}" for name, value in first)
    count = len(known) + one.shape.candidates_left_out
    return f"{count} candidates: {words}, …" if count > 1 else words


def reason_text(one: KernelOfStep) -> str:
    """Why it has no roof, and what would give it one."""
    return f"{one.reason.why}; {WORDS['would'][one.reason.would]}" if one.reason else ""


def built_text(one: KernelOfStep) -> str:
    """What its name says of how it was built."""
    return ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in one.built.items())


def roof_text(one: KernelOfStep) -> str:
    """How near a launch came to the ceiling, and whose that is. Above it the ceiling is none of this launch: another product
    reaches more, or operands come out of L2."""
    if one.roof is None:
        return ""
    low, high = one.roof.percent
    if high > 100 and low < LITTLE:
        return "from L2"
    value = "> 100 %" if low > 100 else _between(low, high)
    return f"{value} {one.roof.bound}" + ("" if one.roof.ceiling_source == "measured" else SHEET)


def _between(low: float, high: float) -> str:
    if round(low) == round(high):
        return pct(low)
    return f"≤ {high:.0f} %" if low < LITTLE else f"{low:.0f}–{min(high, 100):.0f} %"


def alone_text(one: KernelOfStep) -> str:
    """What the nearest recorded point reached alone."""
    if one.nearest is None or one.nearest.percent is None:
        return ""
    if one.nearest.slower is not None:
        return f"{one.nearest.slower:.2f}× its time"
    return f"{pct(one.nearest.percent)} nearby"


def _gain(one: GainOfStep) -> str:
    return short("  try " + gain_text(one), columns(WIDTH))


def gain_text(one: GainOfStep) -> str:
    """What may be gained, by what."""
    return (
        f"{one.change} ({one.title}): {one.low_pct:+z.1f} to {one.high_pct:+z.1f} % of the step, of the {one.share_pct:.1f} % "
        f"that {one.kernel} takes"
    )
