"""Rules of thumb: a sentence about a choice, with the shapes at which it holds, and its counterexamples.

A rule is written of a setting that at some shape is advised in place of the default. It holds at every shape measured, or it
is shown with those at which it does not.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ncuflow.advice.record import AdvisedChoice, AdvisedShape, RuleOfThumb

FEWEST = 3  # shapes that a rule is about


def rules(shapes: Sequence[AdvisedShape]) -> list[RuleOfThumb]:
    """Of each target what is never slower, and what never wins; of what fails somewhere that which holds at most shapes."""
    found = []
    for target in dict.fromkeys(shape.target for shape in shapes):
        own = [shape for shape in shapes if shape.target == target and shape.outcome != "none"]
        found += list(_of_target(target, own))
    return found


def _of_target(target: str, shapes: Sequence[AdvisedShape]) -> Iterator[RuleOfThumb]:
    values = {
        (name, value): None
        for shape in shapes
        for choice in shape.choices
        for name, value in choice.settings.items()
    }
    for name, value in values:
        tried = [shape for shape in shapes if _alternatives(shape, name, value)]
        if len(tried) < FEWEST:
            continue
        loses = [shape for shape in tried if not _among_best(shape, name, value)]
        wins = [shape for shape in tried if shape not in loses]
        ids = [shape.shape for shape in wins], [shape.shape for shape in loses]
        if not loses or (len(loses) < len(wins) and _advised(wins, name, value)):
            rule = f"{target}: {name}={value} is among the fastest"
            yield RuleOfThumb(target=target, rule=rule, holds=ids[0], fails=ids[1])
        elif not wins:
            rule = f"{target}: {name}={value} is slower than another choice"
            yield RuleOfThumb(target=target, rule=rule, holds=ids[1], fails=ids[0])


def _alternatives(shape: AdvisedShape, name: str, value: Any) -> bool:
    """Whether a shape was timed both with a setting and with another in its place."""
    timed = {one.settings.get(name) == value for one in shape.choices if one.time_us is not None}
    return timed == {True, False}


def _among_best(shape: AdvisedShape, name: str, value: Any) -> bool:
    best = (shape.choice(point) for point in shape.best)
    return any(one is not None and one.settings.get(name) == value for one in best)


def _advised(shapes: Sequence[AdvisedShape], name: str, value: Any) -> bool:
    """Whether a setting is somewhere advised in place of the default's."""
    return any(
        _set(shape.choice(shape.advised), name) == value != _set(shape.choice(shape.shape), name)
        for shape in shapes
    )


def _set(choice: AdvisedChoice | None, name: str) -> Any:
    return choice.settings.get(name) if choice else None
