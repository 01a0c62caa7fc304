"""The variants of a shape: what its caller may set without another result, and constants of the source that may be others.

A shape is a point with FlashInfer's defaults for all that is free; its choices are the points that differ from it in that
alone. A value takes part where a price of the target says that the parameter means something there. A constant is a named edit
of the source, in the function that the source index finds. Where a version has it nowhere, or more than once, it is named as
not there.

A rule is written of a setting that was timed with another one in its place, all else being equal, at FEWEST shapes that tell:
one of the choices with it is among the fastest, or one with another in its place is and none with it, or is surely faster.
It holds at every one of them, or under a condition that findings would tell its pairs apart by (``choices.separating``), or it
is shown with those at which it does not; that a default is among the fastest is no rule, for nobody has to follow it. No rule is
written of a setting that its target prices by the host's time as well, such as a CUDA graph, where a time of the GPU decides:
what it saves is not in there.
"""

import itertools
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncuflow.experiments.record import AdvisedChoice, AdvisedShape, Heuristic, SearchedTunable
from ncuflow.expression import holds, terms
from ncuflow.findings.choices import separating
from ncuflow.io import JsonObject, write_text
from ncuflow.record import GPU, each
from ncuflow.source import functions
from ncuflow.sweep.points import Planned, expand
from ncuflow.target.contract import Target, known, traits
from ncuflow.target.launch import Params
from ncuflow.target.source import Constant, Tunable

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
    # what a user would call instead of FlashInfer is no choice of its caller's
    rivals = {one.name for one in target.backends if one.rival}
    values = [
        [shape.params[n], *(value for value in target.choices.get(n, ()) if value not in rivals)]
        for n in free
    ]
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


def described(target: Target, shape: Planned, choice: Planned, also: Also) -> JsonObject:
    """What the record of an advice says of any choice of a shape."""
    return {
        "point": choice.id,
        "settings": settings(target, choice.params, also),
        "asked": target.asked(choice.params),
        "departs": departures(target, shape, choice),
    }


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
    return (price.where for price in target.compared if price.parameter == name and not price.given)


@dataclass(frozen=True)
class FoundTunable:
    """A tunable in a FlashInfer. default: the value that its source has; places: file and line of each."""

    tunable: Tunable
    default: int
    places: tuple[str, ...]

    @property
    def values(self) -> tuple[int, ...]:
        """The values to try: all but the source's own."""
        return tuple(value for value in self.tunable.values if value != self.default)


class NotThereError(ValueError):
    """This version of FlashInfer has no such constant."""


def find(tunable: Tunable, package: Path) -> FoundTunable:
    """A tunable in the package of a FlashInfer. Raises NotThereError where it has not all of it, or in two ways."""
    found = [
        (place, text, _value(place, text))
        for place in tunable.places
        for text in [_read(package, place)]
    ]
    values = {int(match[1]) for _, _, match in found}
    if len(values) > 1:
        said = ", ".join(map(str, sorted(values)))
        raise NotThereError(f"its places have different values: {said}")
    places = (f"{p.file}:{text.count(chr(10), 0, match.start(1)) + 1}" for p, text, match in found)
    return FoundTunable(tunable, values.pop(), tuple(places))


def write(
    edits: Mapping[str, int], there: Sequence[FoundTunable], package: Path, folder: Path
) -> None:
    """Write the files of the package that hold these tunables, with their new values, below a folder."""
    texts: dict[str, str] = {}
    for one in there:
        for place in one.tunable.places if one.tunable.name in edits else ():
            text = texts.get(place.file) or _read(package, place)
            match = _value(place, text)
            new = str(edits[one.tunable.name])
            texts[place.file] = text[: match.start(1)] + new + text[match.end(1) :]
    for file, text in texts.items():
        write_text(folder / file, text)


def declared(
    target: Target, shapes: Sequence[Planned], package: Path, only: Collection[str] | None
) -> tuple[list[FoundTunable], list[SearchedTunable]]:
    """(the constants that this FlashInfer has, what a record says of all tunables). only: their names; None of all."""
    there, said = [], []
    for tunable in target.source.tunables:
        if not _wanted(tunable.name, only):
            continue
        told = SearchedTunable(
            name=tunable.name, kind="constant", default=None, values=list(tunable.values), places=[]
        )
        said.append(told)
        try:
            one = find(tunable, package)
        except NotThereError as error:
            told.missing = str(error)
            continue
        there.append(one)
        told.default, told.values, told.places = one.default, list(one.values), list(one.places)
    return there, said + list(_searched_settings(target, shapes, only))


def _searched_settings(
    target: Target, shapes: Sequence[Planned], only: Collection[str] | None
) -> Iterator[SearchedTunable]:
    """The parameters that a caller may set, with the values that mean something at a shape or more."""
    values: dict[str, dict[Any, None]] = {}
    for shape in shapes:
        for choice in choices(target, shape):
            for name in target.free(shape.params):
                values.setdefault(name, {})[choice.params[name]] = None
    for name, found in values.items():
        default, *others = found
        if others and _wanted(name, only):
            yield SearchedTunable(
                name=name, kind="setting", default=default, values=others, places=[]
            )


def _read(package: Path, place: Constant) -> str:
    try:
        return (package / place.file).read_text("utf-8")
    except (OSError, UnicodeDecodeError):
        raise NotThereError(f"{place.file}: no such file") from None


def _value(place: Constant, text: str) -> re.Match[str]:
    """The one match of a place in the text of its file."""
    matches = [
        match
        for start, end in _spans(place, text)
        for match in re.compile(place.pattern).finditer(text, start, end)
    ]
    if len(matches) != 1:
        where = f"{place.function} of {place.file}" if place.function else place.file
        found = f"{len(matches)} times" if matches else "not"
        raise NotThereError(f"{where}: {place.pattern} matches {found}")
    return matches[0]


def _spans(place: Constant, text: str) -> list[tuple[int, int]]:
    """From where to where the text may hold the value: the whole, or each function of that name."""
    if not place.function:
        return [(0, len(text))]
    starts = [0, *(match.end() for match in re.finditer("\n", text)), len(text)]
    return [
        (starts[f.line_start - 1], starts[f.line_end])
        for f in functions(text)
        if f.name == place.function
    ]


@dataclass(frozen=True)
class Variant:
    """Values of tunables that are not the default: edits, of constants of the source; settings, of what a caller may choose."""

    edits: tuple[tuple[str, int], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """E.g. "threads=256 split=off"."""
        return " ".join(f"{name}={value}" for name, value in (*self.edits, *self.settings))

    @property
    def departs(self) -> int:
        """In how many tunables."""
        return len(self.edits) + len(self.settings)

    def points(
        self, target: Target, shapes: Sequence[Planned], there: Sequence[FoundTunable]
    ) -> dict[str, Planned]:
        """Its points, by the ids of the shapes at which all that it sets means something."""
        found = {}
        for shape in shapes:
            params = {**shape.params, **dict(self.settings)}
            allowed = {settings for settings, _ in _settings(target, shape, None)}
            meant = {one.tunable.name for one in there if holds(one.tunable.where, params)}
            if self.settings in allowed and dict(self.edits).keys() <= meant:
                found[shape.id] = _planned(target, params)
        return found


def listed(
    target: Target,
    shapes: Sequence[Planned],
    there: Sequence[FoundTunable],
    only: Collection[str] | None,
) -> list[Variant]:
    """Every variant that means something at a shape or more. only: the tunables that may depart; None of all.

    Those that depart from the defaults in fewer tunables come first, and of these those with the values that are declared first.
    """
    wanted = [one for one in there if _wanted(one.tunable.name, only)]
    found: dict[Variant, tuple[int, int]] = {}
    for shape in shapes:
        for settings, params in _settings(target, shape, only):
            meant = [one for one in wanted if holds(one.tunable.where, params)]
            for places in itertools.product(*(range(len(one.values) + 1) for one in meant)):
                edits = tuple(
                    (one.tunable.name, one.values[place - 1])
                    for one, place in zip(meant, places, strict=True)
                    if place
                )
                variant = Variant(edits, settings)
                if variant.departs:
                    found.setdefault(variant, (variant.departs, sum(places)))
    return sorted(found, key=lambda variant: found[variant])


def _settings(
    target: Target, shape: Planned, only: Collection[str] | None
) -> Iterator[tuple[tuple[tuple[str, Any], ...], Params]]:
    """What a caller may choose at a shape: (what of it departs from the defaults, all parameters)."""
    for choice in choices(target, shape):
        departing = tuple(
            (name, value) for name, value in choice.params.items() if value != shape.params[name]
        )
        if all(_wanted(name, only) for name, _ in departing):
            yield departing, choice.params


def _wanted(name: str, only: Collection[str] | None) -> bool:
    return only is None or name in only


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
