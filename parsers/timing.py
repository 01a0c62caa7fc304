"""timing.jsonl, one record per point → rows of the timing table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ncuflow.io import BadInput, fault, opened
from ncuflow.model import Row, StoredOrigin

T = TypeVar("T")
KINDS = ("cold", "hot", "sustained", "host", "plan")
CLOCKED = ("cold", "hot", "sustained")  # kinds that say at what clock they ran
Microseconds = Annotated[float, Field(ge=0, le=3.6e9)]  # an hour: no launch takes longer
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Measure = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]
# Samples are written with four significant digits, and their quartiles once more.
ROUNDED = 1.1e-3
KEPT = 50  # samples in a record, of a longer series


class _Strict(BaseModel):
    # What a later version adds is passed over; what is here must be what it says.
    model_config = ConfigDict(strict=True, allow_inf_nan=False, frozen=True)


class Times(_Strict):
    """Quartiles of `n` repetitions and the first of their samples, in µs."""

    unit: Literal["us"]
    median: Microseconds
    q25: Microseconds
    q75: Microseconds
    n: Annotated[Count, Field(ge=1)]
    samples: list[Microseconds] | None = None
    # Under which clocks they ran; records of an earlier format do not say.
    sm_mhz: Measure | None = None
    throttle: list[str] = []
    left_out: list[Microseconds] | None = None
    floor_us: Microseconds | None = None
    group: Annotated[Count, Field(ge=1)] | None = None

    @model_validator(mode="after")
    def _agree(self) -> Times:
        said = [self.q25, self.median, self.q75]
        if said != sorted(said):
            raise ValueError("q25, median and q75 are not in order")
        if self.samples is None:
            return self
        if self.n != len(self.samples) and not self.n > len(self.samples) == KEPT:
            raise ValueError(f"n is {self.n}, but there are {len(self.samples)} samples")
        if self.n == len(self.samples):
            twice = self.samples * 2 if self.n == 1 else self.samples
            found = statistics.quantiles(twice, n=4, method="inclusive")
            if any(abs(a - b) > ROUNDED * b for a, b in zip(said, found, strict=True)):
                raise ValueError("q25, median and q75 are not those of the samples")
        return self


class Check(_Strict):
    """The comparison with the float32 reference."""

    rel_l2: Measure | None = None
    max_abs: Measure | None = None
    tolerance: float | None = None

    @property
    def failed(self) -> bool:
        known = self.rel_l2 is not None and self.tolerance is not None
        return known and self.rel_l2 > self.tolerance  # type: ignore[operator]


class Work(_Strict):
    """Analytic FLOPs and bytes, and how they are counted."""

    flops: Count | None = None
    bytes: Count | None = None
    convention: str | None = None


class State(_Strict):
    """Clocks in MHz and what holds them back."""

    sm_mhz: Measure | None = None
    mem_mhz: Measure | None = None
    throttle: list[str] = []


class Clocks(_Strict):
    """The GPU's state before and after a point's series."""

    before: State | None = None
    after: State | None = None
    retakes: Count | None = None


class TimingLine(_Strict):
    """One line of timing.jsonl: a point, checked and timed."""

    point: Name
    target: Name
    status: Literal["ok", "wrong", "skipped", "error", "lost"]
    reason: str | None = None
    params: dict[str, Any] | None = None
    info: dict[str, Any] | None = None
    check: Check | None = None
    work: Work | None = None
    timing: dict[str, Times | None] | None = None
    clocks: Clocks | None = None
    peak_memory_bytes: Count | None = None
    order: dict[str, Any] | None = None
    origin: StoredOrigin | None = None

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


class TimedSide(_Strict):
    """The series of one side of a pair."""

    cold: Times
    hot: Times
    host: Times
    plan: Times | None = None


class Pair(_Strict):
    """One line of pairs.jsonl: two points timed in turns."""

    point: Name
    base: Name
    other: Name
    status: Literal["ok", "wrong", "skipped", "error", "lost"]
    reason: str | None = None
    sides: Annotated[list[TimedSide], Field(min_length=2, max_length=2)] | None = None
    origin: StoredOrigin | None = None

    @model_validator(mode="after")
    def _borne_out(self) -> Pair:
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
                yield read_one(json.loads(line, parse_constant=_no_constant))
            except (ValueError, RecursionError) as error:
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


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return fault(error)
    return str(error).splitlines()[0]


def flatten(content: Any) -> Row:
    """One record as a flat row. Raises ValueError where it is none."""
    record = TimingLine.model_validate(content)
    row: Row = {
        "point": record.point,
        "target": record.target,
        "params": json.dumps(record.params or {}, allow_nan=False),
        "status": record.status,
        "reason": record.reason,
        "info": json.dumps(record.info or {}, allow_nan=False),
        "order": json.dumps(record.order, allow_nan=False) if record.order else None,
        "peak_memory_bytes": record.peak_memory_bytes,
        "origin": record.origin,
    }
    series = record.timing or {}
    for kind in KINDS:
        if kind != "sustained" or not _starved(series):
            row |= _times(kind, series.get(kind))
    row |= {f"check_{name}": value for name, value in (record.check or Check())}
    return row | dict(record.work or Work()) | _clocks(record.clocks)


def sides(content: Any) -> list[Row]:
    """Both sides of one pair as flat rows. Raises ValueError where it is none."""
    pair = Pair.model_validate(content)
    rows: list[Row] = []
    for place, (side, point) in enumerate((("base", pair.base), ("other", pair.other))):
        row: Row = {"pair": pair.point, "side": side, "point": point}
        row |= {"status": pair.status, "reason": pair.reason, "origin": pair.origin}
        for kind, times in pair.sides[place] if pair.sides else ():
            row |= _times(kind, times)
        rows.append(row)
    return rows


def _starved(series: Mapping[str, Times | None]) -> bool:
    """Whether the GPU waits for the host between launches back to back. Their time is the host's then, which
    early records hold as the sustained one."""
    hot, host = series.get("hot"), series.get("host")
    return hot is not None and host is not None and host.median >= hot.median


def _times(kind: str, times: Times | None) -> Row:
    if times is None:
        return {}
    row: Row = {
        f"{kind}_us": times.median,
        f"{kind}_q25_us": times.q25,
        f"{kind}_q75_us": times.q75,
        f"{kind}_n": times.n,
        f"{kind}_samples_us": times.samples,
    }
    if kind in CLOCKED:
        row[f"{kind}_sm_mhz"] = times.sm_mhz
        row[f"{kind}_throttle"] = "; ".join(times.throttle) or None
        row[f"{kind}_left_out_us"] = times.left_out
    own: dict[str, Row] = {
        "cold": {"cold_floor_us": times.floor_us},
        "hot": {"hot_group": times.group},
    }
    return row | own.get(kind, {})


def _clocks(clocks: Clocks | None) -> Row:
    if clocks is None:
        return {}
    row: Row = {"retakes": clocks.retakes}
    reasons: list[str] = []
    for when, state in (("before", clocks.before), ("after", clocks.after)):
        row[f"sm_mhz_{when}"] = state.sm_mhz if state else None
        row[f"mem_mhz_{when}"] = state.mem_mhz if state else None
        reasons += state.throttle if state else []
    return row | {
        "throttled": bool(reasons),
        "throttle_reasons": "; ".join(dict.fromkeys(reasons)) or None,
    }
