"""timing.jsonl, one record per point → rows of the timing table."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError, model_validator

from ncuflow import record
from ncuflow.io import BadInput, fault, opened, parsed
from ncuflow.model import Row, StoredOrigin

T = TypeVar("T")


class TimingLine(record.PointRecord):
    """One line of timing.jsonl: a point, checked and timed, and what it was timed with."""

    origin: StoredOrigin | None = None
    """None in records of an earlier format"""

    @model_validator(mode="after")
    def _borne_out(self) -> TimingLine:
        _times_where_ok(self.status, self.timing)
        if self.status == "ok" and self.check and self.check.failed:
            error, allowed = self.check.rel_l2, self.check.tolerance
            raise ValueError(f"ok, but its error {error} is above {allowed}")
        return self


def _times_where_ok(status: str, times: object) -> None:
    if (status == "ok") != (times is not None):
        raise ValueError(f"{status}, but {'without' if times is None else 'with'} times")


class PairLine(record.PairRecord):
    """One line of pairs.jsonl: two points timed in turns, and what they were timed with."""

    origin: StoredOrigin | None = None
    """None in records of an earlier format"""

    @model_validator(mode="after")
    def _borne_out(self) -> PairLine:
        _times_where_ok(self.status, self.sides)
        if self.point != f"{self.base} | {self.other}":
            raise ValueError(f"{self.point} is not of its sides {self.base} and {self.other}")
        return self


def read(path: str | Path, plan: Collection[str] | None = None) -> list[Row]:
    """Rows of a file, plain or `.xz`; a later record of a point replaces an earlier one.

    plan: the ids of the points that it must hold, and no others. Raises BadInput, with the line
    number, on a line that is no record, and where the records are not those of the plan.
    """
    rows = {row["point"]: row for row in _records(path, flatten)}
    _planned(path, rows.keys(), plan)
    return list(rows.values())


def read_pairs(path: str | Path, plan: Collection[str] | None = None) -> list[Row]:
    """Rows of a pairs.jsonl, plain or `.xz`, a row per side. Raises BadInput on a line that is none, on a pair that
    stands there twice, and where the pairs are not those of the plan."""
    seen: set[str] = set()

    def once(content: Any) -> list[Row]:
        rows = sides(content)
        if rows[0]["pair"] in seen:
            raise ValueError(f"{rows[0]['pair']} a second time")
        seen.add(rows[0]["pair"])
        return rows

    found = [row for rows in _records(path, once) for row in rows]
    _planned(path, seen, plan)
    return found


def _records(path: str | Path, read_one: Callable[[Any], T]) -> Iterator[T]:
    """What ``read_one`` makes of each line; BadInput, with the line number, where it refuses one."""
    with opened(path) as plain:
        text = plain.read_bytes().decode("utf-8", "replace")
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield read_one(parsed(line))
            except ValueError as error:
                what = f"line {number}: no timing record ({_why(error)})"
                raise BadInput(path, what) from None


def _planned(path: str | Path, points: Collection[str], plan: Collection[str] | None) -> None:
    if plan is None:
        return
    absent, strange = set(plan) - set(points), set(points) - set(plan)
    if absent:
        raise BadInput(path, f"{len(absent)} planned points have no record, {min(absent)} for one")
    if strange:
        raise BadInput(path, f"{min(strange)} is not in the plan")


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return fault(error)
    return str(error).splitlines()[0]


def flatten(content: Any) -> Row:
    """One record as a flat row. Raises ValueError where it is none."""
    line = TimingLine.model_validate(content)
    # Early records hold a sustained time also where it is the host's.
    if line.timing and line.timing.starved:
        line.timing.sustained = None
    found = record.row(line) | {"origin": line.origin}
    if line.clocks is not None:
        reasons = line.clocks.reasons
        found |= {
            "throttled": line.clocks.throttled,
            "throttle_reasons": "; ".join(dict.fromkeys(reasons)) or None,
        }
    return found


def sides(content: Any) -> list[Row]:
    """Both sides of one pair as flat rows. Raises ValueError where it is none."""
    pair = PairLine.model_validate(content)
    of_both = {"pair": pair.point, "status": pair.status, "reason": pair.reason}
    times = [record.row(side) for side in pair.sides or ()] or [{}, {}]
    named = (("base", pair.base), ("other", pair.other))
    return [
        of_both | {"side": side, "point": point, "origin": pair.origin} | found
        for (side, point), found in zip(named, times, strict=True)
    ]
