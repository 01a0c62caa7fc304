"""Tables in files: Parquet, and the same rows as CSV beside it."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncuflow.io import replacing
from ncuflow.model import Row

if TYPE_CHECKING:  # what reads a report does without it
    import pyarrow as pa


def write_table(path: str | os.PathLike[str], table: pa.Table) -> None:
    """Write `path` (.parquet) and the same rows as .csv beside it, each atomically."""
    import pyarrow.csv
    import pyarrow.parquet

    parquet = Path(path)
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
