"""An explanation on one screen."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap

from ncuflow.evidence.provenance import TIERS
from ncuflow.explain.record import Explanation, Number, Stalled, Subject, Suggestion, WaitingLine
from ncuflow.format import pct, quantity, short, with_unit
from ncuflow.io import clean

WIDTH, MOST_LINES = 100, 24
LABEL = 9  # columns of the word before a part
MOST = 3  # entries of a list that are said
# Part and the lines that it may take; what the others leave of the screen is for what to try.
PARTS = {"limit": 2, "waits": 3, "at": 3, "gain": 1, "try": 6, "missing": 3, "note": 2, "from": 2}
TRY = "try"


def screen(found: Explanation) -> str:
    """The text: at most MOST_LINES lines of WIDTH columns; what is cut off ends with an ellipsis. The command that traces a
    number is the last of them, whole, for a shell to run as it is."""
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
    head, traced = _head(found.subject), _traced(found)
    parts = {name: _part(name, said[name], PARTS[name]) for name in PARTS}
    used = len(head) + len(traced) + sum(len(lines) for name, lines in parts.items() if name != TRY)
    parts[TRY] = _part(TRY, said[TRY], min(PARTS[TRY], MOST_LINES - used))
    return "\n".join([*head, *(line for name in PARTS for line in parts[name]), *traced]) + "\n"


def _part(label: str, entries: list[str], most: int) -> list[str]:
    """Entries with a label before the first: as many lines each, at most `most` in all."""
    each = max(1, most // max(1, len(entries)))
    body = [line for entry in entries[:most] for line in _wrapped(entry, WIDTH - LABEL, each)]
    return [f"{label if number == 0 else '':{LABEL}}{line}" for number, line in enumerate(body)]


def _wrapped(text: str, width: int, most: int) -> list[str]:
    return wrap(
        text, width, max_lines=most, placeholder=" …", subsequent_indent="  ", break_on_hyphens=False
    )  # fmt: skip


def _head(of: Subject) -> list[str]:
    """Which kernel, with its template arguments where it has some, and which launch of it."""
    lines = [" ".join(word for word in (of.point, of.name) if word)]
    if of.demangled and "<" in of.demangled:
        lines.append(of.demangled)
    if of.report is not None:
        lines.append(_launch(of))
    return [short(line, WIDTH) for line in lines]


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
    time = "" if found.time is None else f"; {_shown(found.time)}{_under(found)}"
    unknown = "not known" + (": see what is missing" if found.missing else "")
    return [(found.limit.words if found.limit else unknown) + time]


def _under(found: Explanation) -> str:
    return {"ncu": " under ncu", "ncu csv": " under ncu", "nsys": " in the trace"}.get(
        found.lineage.kind, " cold"
    )


def _shown(number: Number) -> str:
    return pct(number.value) if number.unit == "%" else quantity(number.value, number.unit)


def _stall(stall: Stalled) -> str:
    text = f"{stall.reason} {_shown(stall.share)} of stalls: {stall.meaning or 'not known'}"
    part = stall.at_mbarrier
    return text if not part else f"{text}; {_shown(part)} of it at an mbarrier, for other warps"


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
    return [f"at most {_shown(bound.most)}: {bound.words}"] if bound else []


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
        return f"{one.by}, at most {_shown(bound)}{of}" if bound else f"{one.by} (no estimate)"
    text = f"{one.by}, estimate {_shown(one.estimate)}{of}"
    left = "" if one.most is None else _shown(one.most)
    above = one.scope == "kernel" and one.most is not None and left != _shown(one.estimate)
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
    dated = of.date or "date not in it"
    gpu = f"{of.gpu or 'GPU not in it'}{capability}"
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
