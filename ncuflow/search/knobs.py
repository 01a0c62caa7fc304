"""The knobs of a target: constants of the installed FlashInfer's source that may be others, and what a caller may set.

A constant is a named edit of the source, in the function that the source index finds. Where a version has it nowhere, or
more than once, the knob is named as not there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ncuflow.advice import options
from ncuflow.io import write_text
from ncuflow.search.record import SearchedKnob
from ncuflow.source.cuda import functions
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target
from ncuflow.target.source import Constant, Tunable


@dataclass(frozen=True)
class FoundKnob:
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


def find(tunable: Tunable, package: Path) -> FoundKnob:
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
    return FoundKnob(tunable, values.pop(), tuple(places))


def write(
    edits: Mapping[str, int], knobs: Sequence[FoundKnob], package: Path, folder: Path
) -> None:
    """Write the files of the package that hold these knobs, with their new values, below a folder."""
    texts: dict[str, str] = {}
    for knob in knobs:
        if knob.tunable.name not in edits:
            continue
        for place in knob.tunable.places:
            text = texts.get(place.file) or _read(package, place)
            match = _value(place, text)
            new = str(edits[knob.tunable.name])
            texts[place.file] = text[: match.start(1)] + new + text[match.end(1) :]
    for file, text in texts.items():
        write_text(folder / file, text)


def declared(
    target: Target, shapes: Sequence[Planned], package: Path, only: Collection[str] | None
) -> tuple[list[FoundKnob], list[SearchedKnob]]:
    """(the constants that this FlashInfer has, what a record says of all knobs). only: their names; None of all."""
    there, said = [], []
    for tunable in target.source.tunables:
        if only is not None and tunable.name not in only:
            continue
        told = SearchedKnob(
            name=tunable.name, kind="constant", default=None, values=list(tunable.values), places=[]
        )
        said.append(told)
        try:
            knob = find(tunable, package)
        except NotThereError as error:
            told.missing = str(error)
            continue
        there.append(knob)
        told.default, told.values, told.places = knob.default, list(knob.values), list(knob.places)
    return there, said + list(_settings(target, shapes, only))


def _settings(
    target: Target, shapes: Sequence[Planned], only: Collection[str] | None
) -> Iterator[SearchedKnob]:
    """The parameters that a caller may set, with the values that mean something at a shape or more."""
    values: dict[str, dict[Any, None]] = {}
    for shape in shapes:
        for choice in options.choices(target, shape):
            for name in target.free(shape.params):
                values.setdefault(name, {})[choice.params[name]] = None
    for name, found in values.items():
        default, *others = found
        if others and (only is None or name in only):
            yield SearchedKnob(name=name, kind="setting", default=default, values=others, places=[])


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
