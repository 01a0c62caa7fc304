"""What an advice says, on one screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from ncuflow.advice.record import Advice, AdvisedChoice, AdvisedShape, RuleOfThumb
from ncuflow.format import MISSING, aligned, micro, with_unit
from ncuflow.trial.course import spelled
from ncuflow.trial.record import Relative

REASONS = 4  # that a screen has of why choices were not timed


def screen(advice: Advice) -> str:
    """The table of shapes, what it rests on, and what could not be timed."""
    where = ", ".join(f"{name} {value}" for name, value in advice.versions.items() if value)
    lines = [f"{advice.gpu or 'unknown GPU'}; {where}; {advice.date or 'undated'}"]
    rows = [_row(shape) for shape in advice.shapes]
    head = (
        "shape",
        "take",
        "the default takes",
        "outcome",
        "choices",
        "plan() paid after",
        "slowest",
    )
    lines += ["", aligned(head, rows, left=2).rstrip(), "", sure(advice)]
    for shape in advice.shapes:
        lines += shape.cause
    lines += [ruled(rule) for rule in advice.rules]
    lines += _failed(advice.shapes)
    lines += [f"refused: {text}" for text in advice.refused]
    lines += [f"does not compile: {name}: {why}" for name, why in advice.failed_modules.items()]
    return "\n".join(lines) + "\n"


def _row(shape: AdvisedShape) -> tuple[str, ...]:
    timed = [one for one in shape.choices if one.time_us is not None]
    return (
        shape.shape,
        taken(shape),
        longer(shape),
        shape.outcome if len(shape.best) < 2 else f"{shape.outcome} of {len(shape.best)}",
        f"{len(timed)} of {len(shape.choices)}",
        "–" if shape.layers is None else with_unit(shape.layers, "layers"),
        slowest(shape),
    )


def taken(shape: AdvisedShape) -> str:
    """What to take: "default", or what is set and to what, with its time."""
    chosen = shape.choice(shape.advised)
    if chosen is None:
        return "nothing could be timed"
    return f"{said(chosen, shape)}, {micro(chosen.time_us)}"


def slowest(shape: AdvisedShape) -> str:
    """The slowest choice, and how much longer it takes than the leader."""
    timed = [one for one in shape.choices if one.fate == "slower" and one.behind]
    if not timed:
        return MISSING
    last = max(timed, key=lambda one: one.behind.estimate if one.behind else 0.0)
    assert last.behind is not None
    return f"{said(last, shape)}: {between(last.behind)}"


def departing(choice: AdvisedChoice, shape: AdvisedShape) -> str:
    """A choice by where it departs from the default: "cores=tensor backend=fa2"; "default"."""
    words = [f"{n}={v}" for n, v in choice.settings.items() if shape.params.get(n) != v]
    return " ".join(words) or "default"


def said(choice: AdvisedChoice, shape: AdvisedShape) -> str:
    """The same with what FlashInfer makes of it, where that could be asked for as well: "default (backend auto = fa3)"."""
    made = [f"{name} {choice.settings[name]} = {v}" for name, v in choice.resolved.items()]
    return departing(choice, shape) + (f" ({', '.join(made)})" if made else "")


def longer(shape: AdvisedShape) -> str:
    """How much longer the default takes; of what was recorded apart from each other without an interval."""
    if shape.advised == shape.shape:
        return MISSING
    if shape.regret is not None:
        return between(shape.regret)
    chosen, default = shape.choice(shape.advised), shape.choice(shape.shape)
    if not (chosen and default and chosen.time_us and default.time_us):
        return "not timed"
    return f"{100 * (default.time_us / chosen.time_us - 1):+.1f} %, no interval"


def between(found: Relative) -> str:
    """+1.2 % (+0.8 to +1.6); from twice the time on 3.9 times (3.8 to 4.0)."""
    if found.estimate >= 1:
        return f"{1 + found.estimate:.2f} times ({1 + found.low:.2f} to {1 + found.high:.2f})"
    return spelled(found)


def sure(advice: Advice) -> str:
    """How sure the words of an advice are, and what matters."""
    of = "of all shapes together" if advice.recording is None else "of each comparison"
    sure_of = f"{100 * (1 - advice.alpha):g} % sure {of}"
    return f"{sure_of}, by {advice.metric}; what matters is {100 * advice.effect:g} %"


def ruled(rule: RuleOfThumb) -> str:
    """A rule of thumb with where it holds, or where it does not."""
    if not rule.fails:
        return f"at all {with_unit(len(rule.holds), 'shapes')} that tell: {rule.rule}"
    held = f"{len(rule.holds)} of {with_unit(len(rule.holds) + len(rule.fails), 'shapes')}"
    return f"at {held} that tell: {rule.rule}; not at {', '.join(rule.fails)}"


def _failed(shapes: Sequence[AdvisedShape]) -> Iterator[str]:
    """Why choices were not timed: what went wrong with its first place, then what cannot be, the most frequent first."""
    choices = [one for shape in shapes for one in shape.choices]
    for fate in ("wrong", "error", "lost"):
        places: dict[str, list[str]] = {}
        for one in choices:
            if one.fate == fate:
                places.setdefault(str(one.reason), []).append(one.point)
        for reason, points in places.items():
            more = f" and {with_unit(len(points) - 1, 'more choices')}" if points[1:] else ""
            yield f"{points[0]}{more}: {fate}: {reason}"
    skipped = Counter(str(one.reason) for one in choices if one.fate == "skipped")
    for reason, count in skipped.most_common(REASONS):
        yield f"not here, {with_unit(count, 'choices')}: {reason}"
    if (rest := sum(skipped.values()) - sum(n for _, n in skipped.most_common(REASONS))) > 0:
        yield f"not here, for other reasons: {with_unit(rest, 'choices')} (--out has them)"
