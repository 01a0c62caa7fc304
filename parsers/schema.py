"""Schemas of the tables, made of the records in ``model.py``: `build` makes a table of rows and refuses what does not fit."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from types import NoneType, UnionType
from typing import Any, get_args, get_type_hints

import pyarrow as pa
import pyarrow.compute as pc

from ncuflow.model import TABLES

ARROW: dict[Any, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    list[float]: pa.list_(pa.float64()),
}


def row(table: str) -> str:
    """What a row of a table is, as its last record says."""
    said = (TABLES[table][-1].__doc__ or "").rstrip(".")
    return said[:1].lower() + said[1:]


@cache
def schema(table: str) -> pa.Schema:
    """Columns of a table in their order; meaning, unit and source of each are its field's metadata."""
    hints = [get_type_hints(record, include_extras=True) for record in TABLES[table]]
    return pa.schema([_field(name, hint) for h in hints for name, hint in h.items()])


def _field(name: str, hint: Any) -> pa.Field:
    kind, about, *_ = get_args(hint)
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    return pa.field(name, ARROW[kinds[0]], NoneType in kinds, vars(about))


def build(table: str, rows: Iterable[Mapping[str, Any]]) -> pa.Table:
    """Rows (keys that are no column are dropped, absent ones are null) as a checked table.

    Raises ValueError where a value does not fit its column.
    """
    try:
        built = pa.Table.from_pylist(list(rows), schema(table))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ValueError(f"table {table}: {error}") from None
    check(table, built)
    return built


def check(name: str, table: pa.Table) -> None:
    """Raise ValueError where a table does not fit its schema.

    That is where its columns or their types are others, where null stands in a column that may not
    hold it, and where NaN or infinity stands anywhere.
    """
    if not table.schema.equals(schema(name)):
        raise ValueError(f"table {name}: its columns are not those of the schema")
    for column, field in zip(table.columns, schema(name), strict=True):
        if not field.nullable and column.null_count:
            raise ValueError(f"table {name}: null in column {field.name}")
        if (
            pa.types.is_floating(field.type)
            and not pc.all(pc.is_finite(column), min_count=0).as_py()
        ):
            raise ValueError(f"table {name}: not a number in column {field.name}")
