"""Tables: their schemas, made of the records in ``model.py``, and their files: Parquet, and the same rows as CSV beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from ncuflow.io import replacing
from ncuflow.model import TABLES, About, Row

if TYPE_CHECKING:
    import pyarrow as pa


def row(table: str) -> str:
    """What a row of a table is, as its last record says."""
    said = (TABLES[table][-1].__doc__ or "").rstrip(".")
    return said[:1].lower() + said[1:]


@cache
def columns(table: str) -> Mapping[str, About]:
    """What each column of a table holds, in their order."""
    return {name: about for name, (_, about) in _hints(table).items()}


def _hints(table: str) -> dict[str, tuple[Any, About]]:
    hints = [get_type_hints(record, include_extras=True) for record in TABLES[table]]
    return {name: get_args(hint)[:2] for h in hints for name, hint in h.items()}


@cache
def schema(table: str) -> pa.Schema:
    """Columns of a table in their order; meaning, unit and source of each are its field's metadata."""
    import pyarrow as pa

    arrow = {
        str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_(),
        list[float]: pa.list_(pa.float64()),
    }  # fmt: skip
    fields = []
    for name, (kind, about) in _hints(table).items():
        kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
        fields.append(pa.field(name, arrow[kinds[0]], NoneType in kinds, vars(about)))
    return pa.schema(fields)


def build(table: str, rows: Sequence[Mapping[str, Any] | pa.Table]) -> pa.Table:
    """Rows (keys that are no column are dropped, absent ones are null), or tables of such, as a checked table.

    Raises ValueError where a value does not fit its column.
    """
    import pyarrow as pa

    if rows and isinstance(rows[0], pa.Table):
        return pa.concat_tables(rows)
    try:
        built = pa.Table.from_pylist(rows, schema(table))
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise ValueError(f"table {table}: {error}") from None
    check(table, built)
    return built


def check(name: str, table: pa.Table) -> None:
    """Raise ValueError where a table does not fit its schema.

    That is where its columns or their types are others, where null stands in a column that may not
    hold it, and where NaN or infinity stands anywhere.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

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


def write_table(path: str | os.PathLike[str], table: pa.Table) -> None:
    """Write `path` (.parquet) and the same rows as .csv beside it, each atomically."""
    import pyarrow.csv
    import pyarrow.parquet

    parquet, table = Path(path), table.combine_chunks()  # pages begin anew with each chunk
    with replacing(parquet) as temporary:
        pyarrow.parquet.write_table(table, temporary, compression="zstd")
    with replacing(parquet.with_suffix(".csv")) as temporary:
        pyarrow.csv.write_csv(_flat(table), str(temporary))


def read_table(path: str | os.PathLike[str]) -> list[Row]:
    """The rows of a `.parquet`."""
    import pyarrow.parquet

    # pyarrow.parquet.read_table would import pandas, which takes half a second.
    with pyarrow.parquet.ParquetFile(path) as file:
        rows: list[Row] = file.read().to_pylist()
    return rows


def read_columns(path: str | os.PathLike[str], names: Sequence[str]) -> dict[str, list[Any]]:
    """The values of some columns of a `.parquet`: of a large table a fraction of the memory of its rows."""
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        columns: dict[str, list[Any]] = file.read(columns=list(names)).to_pydict()
    return columns


def _flat(table: pa.Table) -> pa.Table:
    """The same table with list columns as JSON text, for CSV has no lists, and no cell that a spreadsheet
    would take for a formula."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for index, field in enumerate(table.schema):
        if pa.types.is_list(field.type):
            texts = [None if v is None else json.dumps(v) for v in table.column(index).to_pylist()]
            table = table.set_column(index, field.name, pa.array(texts, pa.string()))
        elif pa.types.is_string(field.type):
            inert = pc.replace_substring_regex(table.column(index), r"^([=+@\t\r-])", r"'\1")
            table = table.set_column(index, field.name, inert)
    return table
