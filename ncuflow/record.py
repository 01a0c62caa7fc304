"""The record of a run: what it writes down of a point or of a pair, and where each field stands in the tables.

A run writes with these models, a parser reads and validates with them, and the columns of the timing and pairs tables
and of the measurement are made of them: a field is declared here alone.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, model_validator

Microseconds = Annotated[float, Field(ge=0, le=3.6e9)]  # an hour: no launch takes longer
Count = Annotated[int, Field(ge=0, lt=1 << 63)]
Some = Annotated[int, Field(ge=1, lt=1 << 63)]
Measure = Annotated[float, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0, le=1e8)]  # three years
Change = Annotated[float, Field(gt=-1, le=1e6)]  # relative, of 1: no time is negative
Effect = Annotated[float, Field(gt=0, le=1)]  # the relative change that matters
Chance = Annotated[float, Field(gt=0, lt=1)]
# MHz that no GPU has: an SM boosts to 3.4 GHz at most, GDDR7 is told as 17.5 GHz.
SmClock = Annotated[float, Field(ge=0, le=10_000)]
MemoryClock = Annotated[float, Field(ge=0, le=50_000)]
Name = Annotated[str, Field(min_length=1)]
# A name or a version that a record tells of a machine, and a date as `origin.now` writes it or as days side by side.
Line = Annotated[str, Field(max_length=500, pattern=r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]*$")]
Date = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\d(T\d\d:\d\d:\d\dZ| to \d{4}-\d\d-\d\d)?$")]
Parameter = bool | int | float | str | None  # pages sort and group points by them
Status = Literal["ok", "wrong", "skipped", "error", "lost"]
# Samples are written with four significant digits, and their quartiles once more.
ROUNDED = 1.1e-3
KEPT = 50  # samples in a record, of a longer series
GPU = ("cold", "hot", "sustained")


@dataclass(frozen=True)
class ColumnSpec:
    """Where a field stands in the tables.

    column: of the timing or pairs table, {} for the field that holds its record (cold, before), as
    in what the docstring says {} is for what that field's says; unit: as printed;
    measured: its column in the measurement, by that holder.
    """

    column: str
    unit: str = ""
    measured: Mapping[str, str] = field(default_factory=dict)


def each(column: str, *holders: str) -> dict[str, str]:
    """A column of the measurement for each of the holders."""
    return {holder: column.format(holder) for holder in holders}


class Strict(BaseModel):
    """What is here must be what it says, and of its type; what a later version adds is skipped."""

    model_config = ConfigDict(
        strict=True,
        allow_inf_nan=False,
        validate_assignment=True,
        use_attribute_docstrings=True,
        defer_build=True,  # most commands use few of the records that they import
    )


class Times(Strict):
    """Quartiles of a series and the first of its samples; of launches in a group, the time of one."""

    unit: Literal["us"] = "us"
    """of all times here"""
    median: Annotated[
        Microseconds,
        ColumnSpec("{}_us", "µs", each("time_{}_us", *GPU) | {"host": "host_launch_us", "plan": "plan_us"}),
    ]  # fmt: skip
    """median {}"""
    q25: Annotated[Microseconds, ColumnSpec("{}_q25_us", "µs", each("time_{}_q25_us", *GPU))]
    """lower quartile of the same"""
    q75: Annotated[Microseconds, ColumnSpec("{}_q75_us", "µs", each("time_{}_q75_us", *GPU))]
    """upper quartile of the same"""
    n: Annotated[Some, ColumnSpec("{}_n", "", each("time_{}_n", "cold", "hot"))]
    """repetitions in that median"""
    samples: Annotated[list[Microseconds] | None, ColumnSpec("{}_samples_us", "µs")] = None
    """each repetition, of a long series the first ones"""

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
            found = quartiles(self.samples)
            if any(abs(a - b) > ROUNDED * b for a, b in zip(said, found, strict=True)):
                raise ValueError("q25, median and q75 are not those of the samples")
        return self


class Launches(Times):
    """Times of launches on the GPU, and under which clocks they ran; records of an earlier format do not say."""

    queued: bool | None = None
    """the host stayed ahead of the GPU"""
    sm_mhz: Annotated[
        SmClock | None, ColumnSpec("{}_sm_mhz", "MHz", each("clock_{}_mhz", *GPU))
    ] = None
    """SM clock right after the launches, read by a kernel that spins, median; lower while they ran where power held it
    down"""
    throttle: Annotated[
        list[str], ColumnSpec("{}_throttle", "", each("throttle_{}", "cold", "sustained"))
    ] = []
    """throttle reasons among the samples that count, joined by ; """
    left_out: Annotated[list[Microseconds] | None, ColumnSpec("{}_left_out_us", "µs")] = None
    """samples under a throttle reason that do not count"""


class Cold(Launches):
    """Launches after a flush of the L2 cache."""

    queued: Annotated[bool | None, ColumnSpec("{}_queued")] = None
    """whether the host stayed ahead of the GPU: else the times have gaps of the host in them"""
    floor_us: Annotated[
        Microseconds | None, ColumnSpec("{}_floor_us", "µs", {"cold": "time_floor_us"})
    ] = None
    """cold time of an empty kernel: what the events themselves cost"""


class Hot(Launches):
    """Launches queued back to back."""

    group: Annotated[Some | None, ColumnSpec("{}_group")] = None
    """launches of a repetition, between two events; null: not recorded"""


class Sustained(Launches):
    """Launches back to back in one burst, of which all counts."""

    left_out: list[Microseconds] | None = None
    """empty"""


class Series(Strict):
    """The series of a point by kind, None for a kind that does not exist here."""

    cold: Cold | None = None
    """event time of a launch, the L2 cache flushed before it"""
    hot: Hot | None = None
    """event time of a launch, queued back to back, L2 warm"""
    sustained: Sustained | None = None
    """event time of a launch back to back, clocks and power settled; null where the host sets the pace"""
    host: Times | None = None
    """host time of the call that launches, without waiting for the GPU"""
    plan: Times | None = None
    """host time of plan()"""

    @property
    def starved(self) -> bool:
        """Whether the GPU waits for the host between launches back to back: their time is the host's then."""
        known = self.hot is not None and self.host is not None
        return known and self.host.median >= self.hot.median  # type: ignore[union-attr]


class Check(Strict):
    """The comparison with the float32 reference, the worst over the outputs; None where it is not finite."""

    rel_l2: Annotated[Measure | None, ColumnSpec("check_rel_l2")] = None
    """relative L2 error against the float32 reference"""
    max_abs: Annotated[Measure | None, ColumnSpec("check_max_abs")] = None
    """largest absolute error"""
    tolerance: Annotated[Measure | None, ColumnSpec("check_tolerance")] = None
    """tolerance on check_rel_l2"""

    @property
    def failed(self) -> bool:
        known = self.rel_l2 is not None and self.tolerance is not None
        return known and self.rel_l2 > self.tolerance  # type: ignore[operator]


class WorkRecord(Strict):
    """Analytic FLOPs and bytes, and how they are counted."""

    flops: Annotated[Count | None, ColumnSpec("flops", "FLOP")] = None
    """analytic work"""
    bytes: Annotated[Count | None, ColumnSpec("bytes", "byte")] = None
    """analytic traffic"""
    convention: Annotated[str | None, ColumnSpec("convention")] = None
    """how work and traffic are counted"""


class State(Strict):
    """Clocks of the GPU and what holds them back."""

    sm_mhz: Annotated[SmClock | None, ColumnSpec("sm_mhz_{}", "MHz")] = None
    """SM clock {}"""
    mem_mhz: Annotated[MemoryClock | None, ColumnSpec("mem_mhz_{}", "MHz")] = None
    """memory clock {}"""
    throttle: list[str] | None = []
    """reasons that the driver names; None where it does not tell"""


class Clocks(Strict):
    """The GPU's state around a point's series."""

    before: State | None = None
    """before the series"""
    after: State | None = None
    """after the series"""
    retakes: Annotated[Count | None, ColumnSpec("retakes")] = None
    """times the timing was taken again"""

    @property
    def reasons(self) -> list[str]:
        """Why the clocks were held down, before or after."""
        return [r for state in (self.before, self.after) if state for r in state.throttle or ()]

    @property
    def throttled(self) -> bool | None:
        """Whether they were held down; None where the driver does not tell and named nothing."""
        known = all(s is None or s.throttle is not None for s in (self.before, self.after))
        return True if self.reasons else False if known else None


class Order(Strict):
    """In which order the points were visited, or the pairs that timed them."""

    run: int
    """number of the random order"""
    positions: list[int]
    """the point's place in each round"""


class PointRecord(Strict):
    """What a run writes down of one point: checked, and timed where that was asked for."""

    point: Annotated[Name, ColumnSpec("point")]
    """point id"""
    target: Annotated[Name, ColumnSpec("target")]
    """kernel target"""
    params: Annotated[dict[str, Parameter], ColumnSpec("params")] = {}
    """parameters as JSON"""
    status: Annotated[Status, ColumnSpec("status")]
    """ok, wrong, skipped, error or lost"""
    reason: Annotated[str | None, ColumnSpec("reason")] = None
    """why it is not ok"""
    check: Check | None = None
    """None where it was not compared"""
    work: WorkRecord | None = None
    """None where it is not known"""
    timing: Series | None = None
    """None where it was not timed"""
    clocks: Clocks | None = None
    """None where the device cannot tell them"""
    info: Annotated[dict[str, Any], ColumnSpec("info")] = {}
    """what plan() chose, as JSON"""
    peak_memory_bytes: Annotated[Count | None, ColumnSpec("peak_memory_bytes", "byte")] = None
    """most GPU memory that the point allocated, beyond what lay there before it; a library's buffer is its first user's"""
    order: Annotated[Order | None, ColumnSpec("order")] = None
    """number of the random order, and the point's place in each round, as JSON"""


class TimedSide(Series):
    """The series of one side of a pair."""

    clocks: Clocks | None = None
    """None where the device cannot tell them"""

    @model_validator(mode="after")
    def _whole(self) -> TimedSide:
        if None in (self.cold, self.hot, self.host):
            raise ValueError("a side without cold, hot or host times")
        return self


class PairRecord(Strict):
    """What a run writes down of two points, timed in turns."""

    point: Name
    """name of the pair: its base and its other point"""
    target: str | None = None
    """kernel target"""
    base: Name
    """point id of the base"""
    other: Name
    """point id of the other"""
    status: Status
    """ok, wrong, skipped, error or lost"""
    reason: str | None = None
    """why it is not ok"""
    sides: Annotated[list[TimedSide], Field(min_length=2, max_length=2)] | None = None
    """of the base and of the other; None where the pair was not timed"""


def quartiles(samples: Sequence[float]) -> list[float]:
    """[lower quartile, median, upper quartile], interpolated between samples. Raises ValueError if there are none."""
    if not samples:
        raise ValueError("no samples to summarise")
    twice = [*samples] * 2 if len(samples) == 1 else samples
    return statistics.quantiles(twice, n=4, method="inclusive")


@dataclass(frozen=True)
class FieldColumn:
    """A column that a field becomes. path: the fields that lead to it; kind: str, int, float or list[float];
    known: it is never null; measured: its column in the measurement, "" for none."""

    path: tuple[str, ...]
    column: str
    kind: Any
    known: bool
    meaning: str
    unit: str
    measured: str


@cache
def places(record: type[BaseModel]) -> tuple[FieldColumn, ...]:
    """The columns of a record and of those that it holds."""
    return tuple(_places(record, (), ""))


def _places(record: type[BaseModel], path: tuple[str, ...], held: str) -> Iterator[FieldColumn]:
    """held: what the field that holds the record says of itself."""
    holder = path[-1] if path else ""
    for name, info in record.model_fields.items():
        stands = next((one for one in info.metadata if isinstance(one, ColumnSpec)), None)
        kind, said = _plain(info.annotation), " ".join((info.description or "").split())
        if stands is not None:
            column = stands.column.format(holder)
            yield FieldColumn(
                (*path, name),
                column,
                _stored(kind),
                not path and info.default is not None,
                said.format(held),
                stands.unit,
                stands.measured.get(holder, ""),
            )
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            yield from _places(kind, (*path, name), said)


def _plain(annotation: Any) -> Any:
    """A type without None and without what it is annotated with."""
    if get_origin(annotation) is Annotated:
        return _plain(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return _plain(next(kind for kind in get_args(annotation) if kind is not type(None)))
    return annotation


def _stored(kind: Any) -> Any:
    """The type of a column for a field of this type: what no column holds stands there as text."""
    if get_origin(kind) is list and _plain(get_args(kind)[0]) is float:
        return list[float]
    return kind if kind in (bool, int, float) else str


def row(record: BaseModel) -> dict[str, Any]:
    """A record by the columns of its fields; of a record in it that is not there, no columns."""
    found = {}
    for place in places(type(record)):
        holder: Any = record
        for name in place.path[:-1]:
            holder = getattr(holder, name, None)
        if holder is not None:
            found[place.column] = _value(getattr(holder, place.path[-1]), place.kind)
    return found


def _value(value: Any, kind: Any) -> Any:
    """As a column of this type holds it: reasons joined, an object as JSON."""
    if kind is not str or isinstance(value, str | None):
        return value
    if isinstance(value, list):
        return "; ".join(value) or None
    content = value.model_dump() if isinstance(value, BaseModel) else value
    return json.dumps(content, allow_nan=False)
