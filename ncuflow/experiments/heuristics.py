"""Heuristics: a sentence about a setting, with the shapes at which it holds, and its counterexamples.

A rule is written of a setting that was timed with another one in its place, all else being equal, at FEWEST shapes that tell:
one of the choices with it is among the fastest, or one with another in its place is and none with it, or is surely faster.
It holds at every one of them, or under a condition that findings would tell its pairs apart by (``choices.separating``), or it
is shown with those at which it does not; that a default is among the fastest is no rule,
for nobody has to follow it. No rule is written of a setting that its target
prices by the host's time as well, such as a CUDA graph, where a time of the GPU decides: what it saves is not in there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ncuflow.experiments.record import AdvisedChoice, AdvisedShape, Heuristic
from ncuflow.expression import holds, terms
from ncuflow.findings.choices import separating
from ncuflow.record import GPU, each
from ncuflow.target.contract import known, traits

FEWEST = 3  # shapes that a rule is about
GPU_TIMES = frozenset(each("time_{}_us", *GPU).values())


def rules(shapes: Sequence[AdvisedShape], metric: str) -> list[Heuristic]:
    """Of each target what is never slower, and what never wins; of what fails somewhere that which holds at most shapes.

    metric: the column that decided.
    """
    found = []
    for target in dict.fromkeys(shape.target for shape in shapes):
        own = [shape for shape in shapes if shape.target == target and shape.outcome != "none"]
        found += list(_of_target(target, own, _inconclusive(target, metric)))
    return found


def _inconclusive(target: str, metric: str) -> set[str]:
    """Settings of which a metric does not tell: of a time of the GPU, those that the target prices by the host's as well."""
    if metric not in GPU_TIMES or target not in known():
        return set()
    prices = known()[target].compared
    return {price.parameter for price in prices if not GPU_TIMES.issuperset(price.metrics)}


def _of_target(
    target: str, shapes: Sequence[AdvisedShape], inconclusive: Collection[str]
) -> Iterator[Heuristic]:
    values = {
        (name, value): None
        for shape in shapes
        for choice in _timed(shape)
        for name in choice.settings
        if name not in inconclusive
        for value in _values(choice, name)
    }
    for name, value in values:
        wins, loses, taking = _wins_and_losses(shapes, name, value)
        if len(wins) + len(loses) < FEWEST:
            continue
        what = f"{target}: {_condition(taking, name)}{name}={value}"
        if len(loses) < len(wins) and _advised(wins, name, value):
            where, kept = _condition_of(target, name, wins, loses)
            rule, of = f"{what} is among the fastest", (kept, loses)
        elif not wins:
            where, rule, of = "", f"{what} is slower than another choice", (loses, wins)
        else:
            continue
        held, failed = ([shape.shape for shape in shapes] for shapes in of)
        yield Heuristic(target=target, rule=rule, where=where, holds=held, fails=failed)


def _condition_of(
    target: str, name: str, wins: Sequence[AdvisedShape], loses: Sequence[AdvisedShape]
) -> tuple[str, Sequence[AdvisedShape]]:
    """(what tells shapes at which a setting wins from those at which it loses, the shapes that it is true of): the condition of
    the pairs that the target prices, as far as not every shape meets it, and what tells those apart; ("", all that win) where
    nothing does."""
    every = [*wins, *loses]
    prices = known()[target].compared if target in known() and loses else ()
    for where in (price.where for price in prices if price.parameter == name):
        kept, lost = ([s for s in side if holds(where, s.params)] for side in (wins, loses))
        apart = separating(_facts(kept), _facts(lost)) if len(kept) >= FEWEST and lost else []
        own = [term for term in terms(where) if not all(holds(term, s.params) for s in every)]
        if len(kept) >= FEWEST and (apart or (own and not lost)):
            return " and ".join([*own, *(first for first, _ in apart)]), kept
    return "", wins


def _facts(shapes: Sequence[AdvisedShape]) -> list[dict[str, Any]]:
    return [{**shape.params, **traits(shape.target, shape.params)} for shape in shapes]


def _wins_and_losses(
    shapes: Sequence[AdvisedShape], name: str, value: Any
) -> tuple[list[AdvisedShape], list[AdvisedShape], list[tuple[AdvisedShape, AdvisedChoice]]]:
    """(shapes at which a setting is among the fastest, those at which another in its place is faster, choices with it)."""
    wins, loses, taking = [], [], []
    for shape in shapes:
        own, others = _sides(shape, name, value)
        taking += [(shape, one) for one in own]
        if any(one.point in shape.best for one in own):
            wins.append(shape)
        elif own and _faster(shape, others, own):
            loses.append(shape)
    return wins, loses, taking


def _sides(
    shape: AdvisedShape, name: str, value: Any
) -> tuple[list[AdvisedChoice], list[AdvisedChoice]]:
    """Timed choices with a setting that have one with another in its place, all else being equal, and those."""
    places: dict[str, tuple[list[AdvisedChoice], list[AdvisedChoice]]] = {}
    for one in _timed(shape):
        if name in one.settings:
            rest = repr({n: v for n, v in one.settings.items() if n != name})
            places.setdefault(rest, ([], []))[value not in _values(one, name)].append(one)
    both = [sides for sides in places.values() if all(sides)]
    return [one for own, _ in both for one in own], [one for _, rest in both for one in rest]


def _faster(
    shape: AdvisedShape, some: Sequence[AdvisedChoice], others: Sequence[AdvisedChoice]
) -> bool:
    """Whether one of some choices is among the fastest, or takes surely less time than all the others."""
    if any(one.point in shape.best for one in some):
        return True
    high = [one.behind.high for one in some if one.behind]
    low = [one.behind.low for one in others if one.behind]
    return bool(high) and len(low) == len(others) and min(high) < min(low)


def _timed(shape: AdvisedShape) -> list[AdvisedChoice]:
    """Each call once."""
    return [one for one in shape.choices if one.time_us is not None and one.fate != "same"]


def _values(choice: AdvisedChoice, name: str) -> tuple[Any, Any]:
    """What a choice sets a parameter to, and what FlashInfer makes of that."""
    return choice.settings[name], choice.resolved.get(name, choice.settings[name])


def _condition(taking: Sequence[tuple[AdvisedShape, AdvisedChoice]], name: str) -> str:
    """Which other settings, none of them a default, all choices with a setting have: "with cores=tensor, "."""
    common = None
    for shape, one in taking:
        own = {(n, v) for n, v in one.settings.items() if n != name and shape.params.get(n) != v}
        common = own if common is None else common & own
    words = [f"{n}={v}" for n, v in sorted(common or ())]
    return f"with {' '.join(words)}, " if words else ""


def _advised(shapes: Sequence[AdvisedShape], name: str, value: Any) -> bool:
    """Whether a setting is somewhere advised in place of the default's."""
    return any(
        _set(shape.choice(shape.advised), name) == value != _set(shape.choice(shape.shape), name)
        for shape in shapes
    )


def _set(choice: AdvisedChoice | None, name: str) -> Any:
    return choice.settings.get(name) if choice else None
