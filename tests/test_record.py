"""The record of a run: what a field declares is what is written, read, and stands in the tables."""

from __future__ import annotations

from typing import Annotated

from conftest import some
from fake_device import Device, ran

from ncuflow import record
from ncuflow.findings.columns import BY_NAME
from ncuflow.parquet import schema
from ncuflow.parsers import tables
from ncuflow.run import timing as stopwatch


class More(record.Cold):
    """Cold launches, with a column of tomorrow."""

    least: Annotated[
        record.Microseconds | None,
        record.ColumnSpec("{}_least_us", "µs", {"cold": "time_least_us"}),
    ] = None
    """least {}"""


class Series(record.Series):
    """The series of a point, of which one says more."""

    cold: More | None = None
    """event time"""


def test_a_field_is_a_column_with_its_meaning_unit_and_place_in_the_measurement() -> None:
    place = next(one for one in record.places(Series) if one.column == "cold_least_us")
    assert (place.kind, place.unit, place.meaning) == (float, "µs", "least event time")
    assert (place.measured, place.known) == ("time_least_us", False)
    found = Series(cold=More(median=2.0, q25=1.0, q75=3.0, n=9, least=0.5))
    assert record.row(found)["cold_least_us"] == 0.5
    assert not any(column.startswith("hot") for column in record.row(found))


def test_what_a_run_writes_fills_every_column_and_is_read_again(monkeypatch):
    monkeypatch.setattr(stopwatch, "call_times", lambda device, run, n: [1.0] * n)
    device = Device()
    device.states = [{"sm_mhz": 1500, "mem_mhz": 2600, "throttle": []}]
    _, (written,) = ran(device)
    row = tables.flatten(written)
    assert written["timing"].keys() == record.Series.model_fields.keys()
    assert row["cold_samples_us"] == written["timing"]["cold"]["samples"]
    declared = {place.column for place in record.places(record.PointRecord)}
    assert row.keys() == declared | {"origin", "throttled", "throttle_reasons"}


def test_tables_and_measurement_have_the_columns_that_the_record_declares() -> None:
    places = record.places(record.Series)
    for table in ("timing", "pairs"):
        assert {place.column for place in places} <= set(schema(table).names)
    for place in some(place for place in places if place.measured):
        column = BY_NAME[place.measured]
        assert (column.unit, column.source) == (place.unit, "events")
