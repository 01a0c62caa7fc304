"""Requirements: what single points must reach, as a file; a gate where no baseline is at hand.

    ncuflow require gate.yaml --results outputs/MACHINE/results

    - points: ["decode/B128_*", "rmsnorm/*_R16384_*"]   # patterns on the point's id
      hold: of_roof >= 0.8                               # over the columns of docs/measurements.md and of_roof

of_roof is the least time that the datasheet leaves for the point's work, over its cold time. What cannot be computed
fails, and so does a requirement that no point answers to. A figure above 1 of what the datasheet allows cannot be
true: nothing is judged then.

exit  0 all hold    1 some do not    2 no such file, or a figure that cannot be true
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ncuflow import answer, expression
from ncuflow.claims import files
from ncuflow.findings import stored
from ncuflow.findings.columns import COLUMNS
from ncuflow.io import CommandError, conforming
from ncuflow.model import Point, Results

OF_ROOF = "of_roof"
# Shares of what the datasheet allows: one above 1 is an error of the measurement.
SHARES = ("tflops_fraction_datasheet", "gbs_fraction_datasheet")
NAMES = {column.name for column in COLUMNS} | {OF_ROOF}
Pattern = Annotated[str, Field(min_length=1)]


class Requirement(BaseModel):
    """What all points of some patterns must hold."""

    model_config = ConfigDict(extra="forbid", strict=True)
    points: Annotated[list[Pattern], Field(min_length=1)]
    hold: str

    @field_validator("points", mode="before")
    @classmethod
    def _one_or_more(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @field_validator("hold")
    @classmethod
    def _known(cls, value: str) -> str:
        strange = [name for name in expression.names(value) if name not in NAMES]
        if strange:
            raise ValueError(f"no column {strange[0]}")
        if not expression.names(value):
            raise ValueError(f"{value!r} asks for nothing of a point")
        return value


@dataclass(frozen=True)
class CheckedPoint:
    """One point held against one requirement. why: of one that does not pass; None for one that does."""

    point: str
    hold: str
    shown: str
    why: str | None


class RequiredCase(answer.AnswerPart):
    """One point held against one requirement."""

    point: str
    """its id, or the patterns that no point answers to"""
    hold: str
    """what was asked of it, over the columns of docs/measurements.md and of_roof"""
    shown: str
    """the values of the names in it, each in the unit of its column, which `ncuflow trace POINT COLUMN` shows"""
    why: str | None
    """why it does not pass; null where it holds"""


class RequireAnswer(answer.Answer):
    """Points held against what a file asks of them, those that fail first."""

    command: Literal["require"] = "require"
    """the command that answers"""
    failed: int
    """how many do not hold"""
    held: int
    """how many hold"""
    cases: list[RequiredCase]
    """a row per point and requirement"""


ANSWER = RequireAnswer


def _answer(
    cases: Sequence[CheckedPoint], failed: Sequence[CheckedPoint], limit: int | None
) -> None:
    kept, left_out = answer.cut([*failed, *(case for case in cases if not case.why)], limit)
    rows = [RequiredCase(**vars(case)) for case in kept]
    held = len(cases) - len(failed)
    answer.tell(RequireAnswer(cases=rows, held=held, failed=len(failed), left_out=left_out))


def load(path: Path) -> list[Requirement]:
    """The requirements of a file. Raises BadInput with one line where it is none."""
    kind = Annotated[list[Requirement], Field(min_length=1)]
    found: list[Requirement] = conforming(path, files.content(path), kind, "requirements")
    return found


def judge(
    requirements: Sequence[Requirement], results: Mapping[str, Results]
) -> list[CheckedPoint]:
    """Every point that a requirement names, held against it.

    Raises CommandError for a share above 1, ExpressionError's text with it where values are of the wrong kind.
    """
    points = [point for found in results.values() for point in found["points"]]
    return [case for one in requirements for case in _cases(one, points)]


def _cases(one: Requirement, points: Sequence[Point]) -> Iterator[CheckedPoint]:
    named = [p for p in points if any(fnmatchcase(p["point"], pattern) for pattern in one.points)]
    if not named:
        yield CheckedPoint(", ".join(one.points), one.hold, "", "no point of these results")
    for point in named:
        if point["status"] != "ok":
            yield CheckedPoint(
                point["point"], one.hold, "", f"{point['status']}: {point['reason']}"
            )
        else:
            yield _case(one, point)


def _case(one: Requirement, point: Point) -> CheckedPoint:
    values = dict(point["measurement"]) | {OF_ROOF: of_roof(point)}
    shown = ", ".join(f"{name} {_number(values[name])}" for name in expression.names(one.hold))
    try:
        held = expression.evaluate(one.hold, values)
    except expression.ExpressionError as error:
        raise CommandError(f"{point['point']}: {one.hold}: {error}") from None
    why = None if held else "cannot be computed" if held is None else "does not hold"
    return CheckedPoint(point["point"], one.hold, shown, why)


def of_roof(point: Point) -> float | None:
    """The least time of the work at the datasheet's rates over the cold time; None where neither roof is known.

    Raises CommandError where it is above 1.
    """
    shares = [share for name in SHARES if (share := point["measurement"].get(name)) is not None]
    found = max(shares, default=None)
    if found is not None and found > 1:
        what = (
            f"{point['point']}: of_roof {found:.3f} is above 1, which cannot be: nothing is judged"
        )
        raise CommandError(what)
    return found


def _number(value: Any) -> str:
    return (
        f"{value:.4g}" if isinstance(value, float) else "unknown" if value is None else str(value)
    )


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("requirements", type=Path, help="YAML: a list of points and what they hold")
    parser.add_argument("--results", type=Path, required=True, help="outputs/MACHINE/results")
    answer.options(parser)


def run(args: argparse.Namespace) -> int:
    cases = judge(load(args.requirements), stored.folder(args.results))
    failed = [case for case in cases if case.why]
    if args.json:
        _answer(cases, failed, args.limit)
        return 1 if failed else 0
    for case in failed:
        shown = f" ({case.shown})" if case.shown else ""
        print(f"{case.point}: {case.hold}: {case.why}{shown}")
    print(
        f"require: {len(failed)} of {len(cases)} do not hold"
        if failed
        else f"require: {len(cases)} hold"
    )
    return 1 if failed else 0
