"""A check for CI: whether a comparison has slow-downs, or whether points hold what a file asks of them."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from ncuflow import answer, expression
from ncuflow.claims import files
from ncuflow.compare import records
from ncuflow.findings import columns, stored
from ncuflow.findings.statistics import SLOWER
from ncuflow.format import with_unit
from ncuflow.io import CommandError, UsageError, conforming
from ncuflow.model import Measurement, Point, Results

THRESHOLD = 0.05
NOTHING_TESTED = 3
OF_ROOF = "of_roof"
# Shares of what the datasheet allows: one above 1 is an error of the measurement.
SHARES = ("tflops_fraction_datasheet", "gbs_fraction_datasheet")
NAMES = {column.name for column in columns.COLUMNS} | {OF_ROOF}
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


class SlowDown(answer.AnswerPart):
    """A significant slow-down beyond the threshold."""

    trace: str
    """The words before a column that `ncuflow trace` takes; the time is that of time_cold_us."""
    base: float
    """The time on the first side, µs."""
    head: float
    """The time on the second side, µs."""
    relative: float
    """The second time over the first, less 1."""
    low: float | None
    """The lower bound of the change; null where a side has one value."""
    high: float | None
    """The upper bound of the change."""
    cause: str | None
    """The first cause that explains it."""


class CheckedPoint(answer.AnswerPart):
    """One point, and what is asked of it."""

    point: str
    """The id of the point, or the patterns that match no point."""
    hold: str
    """The requirement, over the columns of docs/measurements.md and of_roof, or no slow-down."""
    shown: str
    """The values of the names in it, each in the unit of its column; `ncuflow trace POINT COLUMN` shows where one comes
    from."""
    why: str | None
    """The reason why it does not pass; null where it passes."""
    slow_down: SlowDown | None = None
    """The slow-down at this point, for a comparison that has one."""


TIME = answer.AnswerColumn(unit="µs", metric="time_cold_us", tier=None)
SHARE = answer.AnswerColumn(unit="of 1", metric="", tier=None)
COMPARED = {
    **{f"slow_down.{name}": TIME for name in ("base", "head")},
    **{f"slow_down.{name}": SHARE for name in ("relative", "low", "high")},
}


class CheckAnswer(answer.Answer):
    """Points and what is asked of them, those that fail first."""

    ROWS: ClassVar[tuple[str, ...]] = ("cases",)
    command: Literal["check"] = "check"
    """The command that wrote this JSON."""
    threshold: float | None = None
    """For a comparison: the slow-down beyond which it fails, of 1."""
    passed: bool | None
    """Whether everything passed; null where nothing was tested, which is no pass."""
    failed: int
    """How many cases do not hold."""
    held: int
    """How many cases hold."""
    cases: list[CheckedPoint]
    """A row for each point and requirement."""
    notes: list[str] = Field(default_factory=list)
    """What a pass does not cover."""


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
        yield CheckedPoint(
            point=", ".join(one.points), hold=one.hold, shown="", why="no point of these results"
        )
    for point in named:
        if point["status"] != "ok":
            why = f"{point['status']}: {point['reason']}"
            yield CheckedPoint(point=point["point"], hold=one.hold, shown="", why=why)
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
    return CheckedPoint(point=point["point"], hold=one.hold, shown=shown, why=why)


def share(row: Measurement) -> float | None:
    """The least time of the work at the datasheet's rates over the cold time; None where neither roof is known."""
    return max((row[name] for name in SHARES if row.get(name) is not None), default=None)


def of_roof(point: Point) -> float | None:
    """The share of a point. Raises CommandError where it is above 1."""
    found = share(point["measurement"])
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


def finite(_: Any, value: float | None) -> None:
    """A threshold of the command line; beyond an infinite one nothing would be slower."""
    if value is not None and not 0 <= value < math.inf:
        raise ValueError(f"{value} is not finite, or negative")


def compared(found: records.Comparison, threshold: float) -> Iterator[CheckedPoint]:
    """The points of a comparison, the largest significant slow-down beyond the threshold first."""
    hold = f"no slow-down beyond {100 * threshold:g} %"
    slow = [
        (point.id, row)
        for point in found.points
        for row in point.metrics.values()
        if row.verdict == SLOWER and row.relative > threshold
    ]
    for point, row in sorted(slow, key=lambda item: -item[1].relative):
        slower = SlowDown(
            trace=shlex.quote(point), base=row.base, head=row.head, relative=row.relative,
            low=row.low, high=row.high, cause=row.causes[0].what if row.causes else None,
        )  # fmt: skip
        yield CheckedPoint(
            point=point, hold=hold, shown=_slower(row), why="slower", slow_down=slower
        )
    for name in (point.id for point in found.points):
        if name not in dict(slow):
            yield CheckedPoint(point=name, hold=hold, shown="", why=None)


def _slower(row: records.MetricChange) -> str:
    """One slow-down in words, with its first cause."""
    low, high = (100 * bound for bound in row.interval or (row.relative, row.relative))
    cause = f"; {row.causes[0].what}" if row.causes else ""
    return (
        f"time {row.base:.4g} → {row.head:.4g} µs "
        f"({100 * row.relative:+.1f} %, {low:+.1f} to {high:+.1f} %){cause}"
    )


def _weaknesses(found: records.Comparison) -> Iterator[str]:
    """What a pass does not cover."""
    yield from found.statistics.notes
    if found.mixed_causes:
        yield f"several things differ at once: {', '.join(found.causes)}."
    if found.only_base:
        yield f"{with_unit(len(found.only_base), 'points')} in the base only."
    if found.not_compared:
        yield f"{with_unit(len(found.not_compared), 'points')} not right or not timed on a side."


def _answer(cases: Sequence[CheckedPoint], tested: bool = True, **more: Any) -> CheckAnswer:
    failed = [case for case in cases if case.why]
    held = [case for case in cases if not case.why]
    passed = not failed if tested else None
    return CheckAnswer(
        passed=passed, failed=len(failed), held=len(held), cases=[*failed, *held], **more
    )


def failures(found: CheckAnswer) -> Iterator[str]:
    """What does not hold, a line each, and the sum."""
    for case in found.cases[: found.failed]:
        if case.slow_down:
            yield f"{case.point}: {case.shown}"
        else:
            shown = f" ({case.shown})" if case.shown else ""
            yield f"{case.point}: {case.hold}: {case.why}{shown}"
    total = found.failed + found.held
    if found.passed is None:
        yield "check: nothing was tested, so nothing passes"
    elif found.threshold is not None:
        slow = with_unit(found.failed, "slow-downs") if found.failed else "no slow-down"
        points = with_unit(len({case.point for case in found.cases}), "points")
        yield f"check: {slow} beyond {100 * found.threshold:g} % on {points}"
    else:
        yield (
            f"check: {found.failed} of {total} do not hold"
            if found.failed
            else f"check: {total} hold"
        )


def found(file: Path, results: Path | None, threshold: float | None) -> CheckAnswer:
    """A comparison, or results judged by a file of requirements."""
    if results is not None:
        if threshold is not None:
            raise UsageError("--threshold is of a comparison, --results of a file of requirements")
        return _answer(judge(load(file), stored.folder(results)))
    if file.suffix in (".yaml", ".yml"):
        raise UsageError(f"{file}: requirements need --results")
    threshold = THRESHOLD if threshold is None else threshold
    comparison = records.read(file)
    return _answer(
        [*compared(comparison, threshold)],
        tested=bool(comparison.statistics.tests),
        threshold=threshold,
        notes=[*_weaknesses(comparison)],
        columns=COMPARED,
    )
