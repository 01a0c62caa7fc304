"""Options that several verbs take, and how an answer is printed."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ncuflow.io import BadInput, JsonObject, UsageError, dump_json, emit, scratch

if TYPE_CHECKING:
    from pydantic import BaseModel

STDIN = "/dev/stdin"  # what "-" stands for


def _count(_: Any, value: int | None) -> None:
    if value is not None and value < 0:
        raise ValueError(f"'{value}' is no count.")


def _file(_: Any, value: Path | str | None) -> None:
    if value is not None and str(value).endswith(os.sep):
        raise ValueError(f"{str(value)!r} is a folder's name; name a file in it")


def _as_written(_: Any, tokens: Any) -> Any:
    """A path as it was given: of `Path` a slash at its end would be lost."""
    _file(None, tokens[0].value)
    return Path(tokens[0].value)


def one_of(*names: str) -> Callable[[Any, Any], None]:
    """A validator of names that are known when the program runs; where they are few and fixed, a Literal says it."""

    def check(_: Any, value: Any) -> None:
        for one in value if isinstance(value, list | tuple) else (value,):
            if one is not None and one not in names:
                raise ValueError(f"Choose from: {', '.join(names)}.")

    return check


OutFile = Annotated[Path | None, Parameter(converter=_as_written)]
"""A file to write; a folder's name is refused."""

Each = Parameter(consume_multiple=False)
"""Of a list: an element each time that the option is given. Other lists take all words up to the next option."""


def _relative(_: Any, tokens: Any) -> float:
    """A change of 1 from "2%" or "0.02"."""
    text = tokens[0].value
    try:
        value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        value = 0.0
    if not 0.001 <= value <= 0.5:
        raise ValueError(f"{text!r} is no change between 0.1% and 50%")
    return value


def _above_0(_: Any, value: float | None) -> None:
    if value is not None and not value > 0:
        raise ValueError("It has to be above 0.")


Effect = Annotated[float, Parameter(converter=_relative)]
"""A minimum effect."""

Seconds = Annotated[float, Parameter(validator=_above_0)]

Jobs = Annotated[int | None, Parameter(validator=_above_0)]
"""Files that are compiled at once."""


@contextmanager
def given(*words: str) -> Iterator[list[tuple[str, str]]]:
    """(its name, the file to read) of each: of standard input, which is called "-", a private copy. A complaint has the name."""
    if STDIN not in words:
        yield [(word, word) for word in words]
        return
    with scratch() as folder:
        copy = folder / "-"
        with copy.open("wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out)
        try:
            yield [("-", str(copy)) if word == STDIN else (word, word) for word in words]
        except BadInput as error:
            raise BadInput("-", error.what) if error.path == str(copy) else error from None


def exclusive(**given: Any) -> None:
    """Raises UsageError where two options are given of which one is enough."""
    names = [f"--{name}" for name, value in given.items() if value]
    if len(names) > 1:
        raise UsageError(f"{names[0]} and {names[1]} do not go together")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Printed:
    """How an answer is printed."""

    json: bool = False
    """the answer as JSON, on standard output"""
    limit: Annotated[int | None, Parameter(validator=_count)] = None
    """with --json: N rows of a table at most"""

    def as_asked(self, format: str) -> Printed:
        """With `--format json` as with `--json`."""
        return replace(self, json=True) if format == "json" else self

    def tell_all(self, found: Sequence[BaseModel], text: str, out: Path | None = None) -> None:
        """The answers to several files: the JSON of one, or a list of all."""
        from ncuflow import answer  # with pydantic, which no help needs

        if not self.json or len(found) == 1:
            self.tell(found[0], text, out)
        else:
            cut = [answer.limited(one, self.limit) for one in found]
            emit(dump_json([one.model_dump(mode="json", by_alias=True) for one in cut]), out)

    def tell(
        self,
        found: BaseModel,
        text: str | Callable[[], str],
        out: str | Path | None = None,
    ) -> None:
        """Print the answer's JSON or its text, or write it to a file."""
        from ncuflow import answer

        if self.json:
            answer.tell(answer.limited(found, self.limit), out)
        else:
            emit(text if isinstance(text, str) else text(), out)


def blocks_of(text: str | None) -> list[JsonObject] | None:
    """Blocks of parameters, as JSON; None where there are none. Raises UsageError for what is no list of objects."""
    if text is None:
        return None
    from ncuflow.sweep.points import objects  # with the contract of targets, which few verbs need

    try:
        return objects(text)
    except ValueError as error:
        raise UsageError(f"--blocks: {error}") from None


AS_TEXT = Printed()
"""What a verb prints unless it is asked for JSON."""
