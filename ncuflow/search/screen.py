"""What a search says, on one screen."""

from __future__ import annotations

from collections.abc import Iterator

from ncuflow.advice.screen import between
from ncuflow.format import MISSING, aligned, micro, with_unit
from ncuflow.search.record import CandidateStanding, Search, SearchedKnob, SearchedShape

HEAD = ("shape", "default", "best", "best against it, fresh inputs", "found", "the default costs")
MOST = 8  # candidates of a shape that the screen has
WORDS = {"winner": "winner", "default": "default stands", "undecided": "undecided", "none": "none"}


def screen(search: Search) -> str:
    """The knobs, a row of each shape, how its candidates fared, and what could not be timed."""
    where = ", ".join(f"{name} {value}" for name, value in search.versions.items() if value)
    lines = [f"{search.target}: {search.gpu or 'unknown GPU'}; {where}; {search.date}"]
    lines += [_knob(knob) for knob in search.knobs]
    lines += [f"{with_unit(len(search.candidates), 'candidates')} tried{_beyond(search)}", ""]
    rows = [_row(shape) for shape in search.shapes]
    lines += [aligned(HEAD, rows, left=1).rstrip(), "", _sure(search)]
    lines += [f"{shape.shape}: {shape.reason}" for shape in search.shapes if shape.reason]
    lines += [f"{one.name}: {one.reason}" for one in search.candidates if one.reason]
    for shape in search.shapes:
        lines += _candidates(shape)
    return "\n".join(lines) + "\n"


def _knob(knob: SearchedKnob) -> str:
    if knob.missing:
        return f"  {knob.name}: not there in this FlashInfer: {knob.missing}"
    values = ", ".join(map(str, knob.values))
    where = f" ({', '.join(knob.places)})" if knob.places else ""
    return f"  {knob.name}: {knob.default}, tried {values}{where}"


def _beyond(search: Search) -> str:
    left = search.beyond_budget
    return f", {with_unit(left, 'more')} beyond the budget" if left else ""


def _row(shape: SearchedShape) -> tuple[str, ...]:
    confirmed = shape.confirmed
    return (
        shape.shape,
        micro(shape.default_us),
        shape.candidate or MISSING,
        between(confirmed.change) if confirmed else MISSING,
        WORDS[shape.found],
        between(shape.price) if shape.price else MISSING,
    )


def _sure(search: Search) -> str:
    return f"{100 * (1 - search.alpha):g} % sure of all winners together; what matters is {100 * search.effect:g} %"


def _candidates(shape: SearchedShape) -> Iterator[str]:
    """How the candidates of a shape fared, the fastest first."""
    timed = [one for one in shape.candidates if one.against is not None]
    rest = [one for one in shape.candidates if one.against is None]
    if timed:
        rows = [_standing(one) for one in timed[:MOST]]
        head = (shape.shape, "time", "against the default", "rounds", "")
        yield from ["", aligned(head, rows).rstrip()]
    if more := len(timed) - MOST:
        yield from [f"and {with_unit(more, 'more candidates')} (--out has them)"] * (more > 0)
    for one in rest:
        if one.reason:
            yield f"{one.name}: {one.fate}: {one.reason}"


def _standing(one: CandidateStanding) -> tuple[str, ...]:
    assert one.against is not None
    return (one.name, micro(one.time_us), between(one.against), str(one.rounds), one.fate)
