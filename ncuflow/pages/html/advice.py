"""The page of an advice: a map of the shapes, and every choice of each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ncuflow.evidence.provenance import TIERS
from ncuflow.experiments.record import Advice, AdvisedChoice, AdvisedShape
from ncuflow.experiments.text import between, departing, longer, ruled, spelled, sure, taken
from ncuflow.format import MISSING, in_one_unit
from ncuflow.pages.html import static

COLOURS = 8  # of choices, the most frequent first; what comes after them shares the last


class MapCell(NamedTuple):
    """A shape on a map. kind: its class of the style sheet."""

    id: str
    kind: str
    take: str
    gain: str


class MapLine(NamedTuple):
    """A row of a map."""

    value: Any
    cells: list[MapCell | None]


@dataclass(frozen=True)
class ShapeMap:
    """Shapes that differ in two parameters alone."""

    title: str
    row: str
    column: str
    columns: list[Any]
    lines: list[MapLine]


class ShapeRows(NamedTuple):
    """A shape with a row for each choice."""

    id: str
    shape: AdvisedShape
    take: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]


def rendered(advice: Advice) -> str:
    """The page's text."""
    versions = ", ".join(f"{name} {value}" for name, value in advice.versions.items() if value)
    gpu = advice.gpu or "unknown GPU"
    return static.rendered(
        "advice.html.j2",
        f"Advice, {gpu}",
        "which choice for which shape",
        [("rules", "Rules"), ("maps", "Maps"), ("shapes", "Shapes")],
        advice=advice,
        versions=versions,
        source=TIERS[advice.tier],
        sure=sure(advice),
        rules=[ruled(rule) for rule in advice.rules],
        maps=_maps(advice.shapes),
        shapes=[_rows(shape) for shape in advice.shapes],
    )


def _maps(shapes: Sequence[AdvisedShape]) -> list[ShapeMap]:
    colours = _colours(shapes)
    found = []
    for target in dict.fromkeys(shape.target for shape in shapes):
        own = [shape for shape in shapes if shape.target == target]
        row, column = _axes(own)
        rest: dict[str, list[AdvisedShape]] = {}
        for shape in own:
            rest.setdefault(_title(shape, own, (row, column)), []).append(shape)
        found += [_map(title, row, column, some, colours) for title, some in rest.items()]
    return found


def _axes(shapes: Sequence[AdvisedShape]) -> tuple[str, str]:
    """The two parameters in which the shapes differ most: the rows', the columns'."""
    names = list(shapes[0].params)
    counts = {name: len({str(shape.params[name]) for shape in shapes}) for name in names}
    first, second, *_ = sorted(names, key=lambda name: -counts[name])
    return second, first


def _title(shape: AdvisedShape, shapes: Iterable[AdvisedShape], axes: tuple[str, str]) -> str:
    """The target, and where a shape is one of several kinds."""
    varied = [
        name
        for name in shape.params
        if name not in axes and len({str(s.params[name]) for s in shapes}) > 1
    ]
    return ", ".join([shape.target, *(f"{name} {shape.params[name]}" for name in varied)])


def _map(
    title: str, row: str, column: str, shapes: Sequence[AdvisedShape], colours: dict[str, str]
) -> ShapeMap:
    columns = _values(shape.params[column] for shape in shapes)
    by_place = {(s.params[row], s.params[column]): _cell(s, colours) for s in shapes}
    lines = [
        MapLine(value, [by_place.get((value, other)) for other in columns])
        for value in _values(shape.params[row] for shape in shapes)
    ]
    return ShapeMap(title, row, column, columns, lines)


def _values(found: Iterable[Any]) -> list[Any]:
    """Each value once, numbers by size."""
    return sorted(set(found), key=lambda value: (isinstance(value, str), value))


def _colours(shapes: Sequence[AdvisedShape]) -> dict[str, str]:
    """The class of each choice that is advised somewhere in place of the default."""
    names = [_settings(shape) for shape in shapes if not _grey(shape)]
    often = sorted(set(names), key=lambda name: (-names.count(name), name))
    return {name: f"c{min(at, COLOURS - 1)}" for at, name in enumerate(often)}


def _grey(shape: AdvisedShape) -> bool:
    return shape.advised in (None, shape.shape)


def _settings(shape: AdvisedShape) -> str:
    chosen = shape.choice(shape.advised)
    return departing(chosen, shape) if chosen else MISSING


def _cell(shape: AdvisedShape, colours: dict[str, str]) -> MapCell:
    take = _settings(shape)
    kind = "tie" if _grey(shape) else colours[take]
    return MapCell(_id(shape), kind, take, longer(shape))


def _id(shape: AdvisedShape) -> str:
    return re.sub(r"\W", "_", shape.shape)


def _rows(shape: AdvisedShape) -> ShapeRows:
    timed = sorted(shape.choices, key=lambda one: (one.time_us is None, one.time_us or 0))
    unit, took = in_one_unit([one.time_us for one in timed])
    plan_unit, plans = in_one_unit([one.plan_us for one in timed])
    head = ("choice", f"time, {unit}", "compared with the leader", "outcome", "rounds", f"plan(), {plan_unit}")  # fmt: skip
    rows = [_row(*one, shape) for one in zip(timed, took, plans, strict=True)]
    return ShapeRows(_id(shape), shape, taken(shape), head, rows)


def _row(one: AdvisedChoice, time: str, plan: str, shape: AdvisedShape) -> tuple[str, ...]:
    outcome = f"{one.fate}: {one.reason}" if one.reason else one.fate
    behind = between(one.behind) if one.behind else MISSING
    rounds = MISSING if one.rounds is None else str(one.rounds)
    return spelled(one, shape), time, behind, outcome, rounds, plan
