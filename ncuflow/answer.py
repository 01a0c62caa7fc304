"""What a command prints with ``--json``: one versioned record, whose schema ships as ``ncuflow/schemas/<command>.json``.

`scripts/docs.py` has the record of each. A number stands with its unit, its tier and the words that
`ncuflow trace` takes: alone as a record of these, or in the rows of a table, whose ``columns`` say unit, tier and metric
once, each row having in ``trace`` the words before the column's. Null is what is not known, never zero.
"""

import html
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ncuflow.format import si
from ncuflow.io import clean, dump_json, emit
from ncuflow.record import Strict

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
Tier = Literal["A", "B", "C", "S"]


class Displayed:
    """What a notebook shows as the text that its command prints: `ncuflow/api.py` says which that is."""

    TEXTS: ClassVar[dict[type, Callable[[Any], str]]] = {}

    def _text(self) -> str:
        return self.TEXTS.get(type(self), repr)(self)

    def __str__(self) -> str:
        return self._text()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self._text())

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self._text())}</pre>"


class AnswerPart(Strict):
    """A record of an answer."""

    model_config = ConfigDict(populate_by_name=True)


class AnswerColumn(AnswerPart):
    """What all values of a column of an answer's rows are."""

    unit: str
    """The unit of the values; empty for text and for a plain count."""
    metric: str
    """The word that `ncuflow trace` takes after a row's ``trace``, or what the value is computed from; empty where there is
    neither."""
    tier: Tier | None
    """A: live counters. B: live without counters. C: recorded elsewhere. S: compiled and not run. Null where each row says
    it."""


class Answer(AnswerPart):
    """What every answer has."""

    schema_version: Literal[1] = 1
    """The version of this schema; an added field does not change it."""
    command: str
    """The command that wrote this JSON."""
    columns: dict[str, AnswerColumn] = Field(default_factory=dict)
    """What each column is, by the name of a field of the rows; a nested field has a dot before its name."""
    left_out: int = 0
    """How many rows `--limit` left out, over all tables."""

    ROWS: ClassVar[tuple[str, ...]] = ()
    """The fields whose rows `--limit` counts."""


def cut(rows: Sequence[T], limit: int | None) -> tuple[list[T], int]:
    """(the first rows, how many are left out)."""
    kept = list(rows if limit is None else rows[:limit])
    return kept, len(rows) - len(kept)


def limited(answer: M, limit: int | None) -> M:
    """An answer with so many rows of each table at most, and the count of what that leaves out."""
    kept = {name: cut(getattr(answer, name), limit) for name in getattr(answer, "ROWS", ())}
    if not kept:
        return answer
    left_out = getattr(answer, "left_out", 0) + sum(left for _, left in kept.values())
    rows = {name: rows for name, (rows, _) in kept.items()}
    return answer.model_copy(update=rows | {"left_out": left_out})


def tell(answer: BaseModel, out: str | os.PathLike[str] | None = None) -> None:
    """Print an answer, or write it."""
    emit(dump_json(answer.model_dump(mode="json", by_alias=True)), out)


def wrote(path: Path) -> None:
    """Say on stderr what was written, and how large it is."""
    print(f"wrote {clean(str(path))}, {si(path.stat().st_size, 'B')}", file=sys.stderr)


def schema(answer: Any) -> str:
    """The JSON Schema of an answer, as it ships."""
    made = TypeAdapter(answer).json_schema(mode="serialization")
    return (
        json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema"} | made, indent=1)
        + "\n"
    )
