"""The candidates of a search: combinations of knobs' values that mean something at one of its shapes.

Those that depart from the defaults in fewer knobs come first, and of these those with the values that are declared first;
a budget cuts the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ncuflow.advice import options
from ncuflow.expression import holds
from ncuflow.search.knobs import FoundKnob
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target
from ncuflow.target.launch import Params


@dataclass(frozen=True)
class Candidate:
    """Values of knobs that are not the default: edits, of constants of the source; settings, of what a caller may choose."""

    edits: tuple[tuple[str, int], ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def name(self) -> str:
        """E.g. "threads=256 split=off"."""
        return " ".join(f"{name}={value}" for name, value in (*self.edits, *self.settings))

    @property
    def departs(self) -> int:
        """In how many knobs."""
        return len(self.edits) + len(self.settings)

    def points(
        self, target: Target, shapes: Sequence[Planned], knobs: Sequence[FoundKnob]
    ) -> dict[str, Planned]:
        """Its points, by the ids of the shapes at which it means something."""
        found = {shape.id: self._at(target, shape, knobs) for shape in shapes}
        return {shape: point for shape, point in found.items() if point is not None}

    def _at(self, target: Target, shape: Planned, knobs: Sequence[FoundKnob]) -> Planned | None:
        """Its point at a shape; None where a knob of it means nothing there."""
        params = {**shape.params, **dict(self.settings)}
        allowed = {tuple(settings) for settings, _ in _settings(target, shape, None)}
        if self.settings not in allowed:
            return None
        meant = {knob.tunable.name for knob in knobs if holds(knob.tunable.where, params)}
        if not {name for name, _ in self.edits} <= meant:
            return None
        return Planned(target.point_id(params), target.name, params)


def listed(
    target: Target,
    shapes: Sequence[Planned],
    knobs: Sequence[FoundKnob],
    only: Collection[str] | None,
) -> list[Candidate]:
    """Every candidate that means something at a shape or more. only: the knobs that may depart; None of all."""
    found: dict[Candidate, tuple[int, int]] = {}
    for shape in shapes:
        for settings, params in _settings(target, shape, only):
            meant = [
                knob
                for knob in knobs
                if holds(knob.tunable.where, params) and _wanted(knob.tunable.name, only)
            ]
            for places in itertools.product(*(range(len(k.values) + 1) for k in meant)):
                edits = tuple(
                    (knob.tunable.name, knob.values[place - 1])
                    for knob, place in zip(meant, places, strict=True)
                    if place
                )
                candidate = Candidate(edits, settings)
                if candidate.departs:
                    found.setdefault(candidate, (candidate.departs, sum(places)))
    return sorted(found, key=lambda candidate: found[candidate])


def _settings(
    target: Target, shape: Planned, only: Collection[str] | None
) -> Iterator[tuple[tuple[tuple[str, Any], ...], Params]]:
    """What a caller may choose at a shape: (what of it departs from the defaults, all parameters)."""
    for choice in options.choices(target, shape):
        departing = tuple(
            (name, value) for name, value in choice.params.items() if value != shape.params[name]
        )
        if all(_wanted(name, only) for name, _ in departing):
            yield departing, choice.params


def _wanted(name: str, only: Collection[str] | None) -> bool:
    return only is None or name in only
