"""The choices of a shape: what its caller may set without another result, every combination of it that means something.

A shape is a point with FlashInfer's defaults for all that is free; its choices are the points that differ from it in that
alone. A value takes part where a price of the target says that the parameter means something there.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ncuflow.expression import holds
from ncuflow.sweep.points import Planned, expand
from ncuflow.target.contract import Target
from ncuflow.target.launch import Params

Also = Mapping[str, Sequence[Any]]  # further parameters that are free here, with their values


def shapes(target: Target, points: Sequence[Planned], also: Also | None = None) -> list[Planned]:
    """The shapes of points, each once, in their order. Of what is free in ``also`` a shape has the first value of its points."""
    found: dict[tuple[tuple[str, Any], ...], Planned] = {}
    for point in points:
        params = {**point.params, **target.free(point.params)}
        found.setdefault(fixed(target, params, also), _planned(target, params))
    return list(found.values())


def fixed(target: Target, params: Params, also: Also | None = None) -> tuple[tuple[str, Any], ...]:
    """What makes a shape: all parameters that are not free."""
    free = {**target.free(params), **(also or {})}
    return tuple((name, value) for name, value in params.items() if name not in free)


def settings(target: Target, params: Params, also: Also | None = None) -> Params:
    """What a point chooses of what is free."""
    return {name: params[name] for name in (*target.free(params), *(also or {})) if name in params}


def choices(target: Target, shape: Planned, also: Also | None = None) -> list[Planned]:
    """Every choice of a shape, one an id, that shape first. also: as ``known_to`` allows."""
    free = target.free(shape.params)
    given = {name: values for name, values in (also or {}).items() if name in target.parameters}
    values = [[shape.params[n], *target.choices.get(n, ())] for n in free]
    values += [[shape.params[n], *more] for n, more in given.items()]
    found = {shape.id: shape}
    for combination in itertools.product(*values):
        params = {**shape.params, **dict(zip([*free, *given], combination, strict=True))}
        if all(_means(target, params, name, free) for name in free):
            point = _planned(target, params)
            found.setdefault(point.id, point)
    return list(found.values())


def known_to(targets: Sequence[Target], also: Also) -> None:
    """Raises ValueError for a further parameter that none of the targets has, or a value that it cannot have."""
    for name, values in also.items():
        having = [target for target in targets if name in target.parameters]
        if not having:
            raise ValueError(f"{name!r} is a parameter of none of the targets that are asked for")
        for target in having:
            expand([{name: values}], target.parameters, target.choices)


def departures(target: Target, shape: Planned, choice: Planned) -> int:
    """In how many settings a choice departs from its shape's defaults."""
    return sum(choice.params[name] != value for name, value in shape.params.items())


def spelled(target: Target, shape: Planned, choice: Planned) -> str:
    """A choice by where it departs from the defaults: "cores=tensor backend=fa2"; "default"."""
    words = [
        f"{name}={choice.params[name]}"
        for name, value in shape.params.items()
        if choice.params[name] != value
    ]
    return " ".join(words) or "default"


def same_calls(
    chosen: Mapping[str, Params], info: Mapping[str, Params]
) -> dict[str, tuple[str, Params]]:
    """Of choices that make one call all but the first: (the first, what was made of that one's settings).

    chosen: settings by choice; info: what plan() says that it chose, by choice. Two are one call where they are set alike once
    what was left to FlashInfer has its value, and plan() says the same of both. What leaves nothing to it stands for itself.
    """
    calls: dict[str, str] = {}
    found = {}
    for name, own in chosen.items():
        said = info.get(name) or {}
        made = {key: said.get(key, value) for key, value in own.items()}
        first = calls.setdefault(repr(sorted({**said, **made}.items())), name)
        left = {key: value for key, value in made.items() if chosen[first][key] != value}
        if first != name and left:
            found[name] = (first, left)
    return found


def folded(first: str, own: Params, made: Params) -> str:
    """Why a choice is not raced beside the first of its call, which has ``own`` settings."""
    words = [f"{name}={own[name]} is {value} here" for name, value in made.items()]
    return ": ".join([f"the call of {first}", *filter(None, [", ".join(words)])])


def _planned(target: Target, params: Params) -> Planned:
    return Planned(target.point_id(params), target.name, params)


def _means(target: Target, params: Params, name: str, free: Params) -> bool:
    """Whether a parameter's value is the default, or means something at a point: as it is, or but for what else is free.

    A price is of few values of the others: that it does not hold for one of them says nothing of this parameter.
    """
    if params[name] == free[name]:
        return True
    conditions = list(_conditions(target, name))
    alone = {**params, **free, name: params[name]}
    return not conditions or any(holds(where, p) for where in conditions for p in (params, alone))


def _conditions(target: Target, name: str) -> Iterator[str]:
    """Where a price of a target says that one of its parameters means something."""
    return (price.where for price in target.prices if price.parameter == name and not price.given)
