"""The SQLite export of nsys, with the differences between its versions smoothed out.

Tables and columns come and go between nsys 2021 and 2026: an absent table has no rows, an absent
column is None in each of them. A value of another type than it should be is None as well.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ncuflow.io import BadInput, clean, sniff

VERSION_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
BATCH = 1 << 17  # rows that are in memory at once
LIMIT = 1 << 62  # beyond it a time stamp is damage, and differences would overflow
_HINTS = {
    "ncu-rep": " (`ncuflow show` reads it)",
    "lfs": " (fetch it with `git lfs pull`)",
}


class Database:
    """An export opened read-only. Raises BadInput where the file is none, truncated or damaged."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        kind, words = sniff(path)
        if kind != "sqlite":
            raise BadInput(name, f"not an nsys SQLite export but {words}{_HINTS.get(kind, '')}")
        _check_size(path, name)
        _check_settled(path, name)
        uri = f"{path.resolve().as_uri()}?mode=ro&immutable=1"
        self._connection = sqlite3.connect(uri, uri=True)
        self._connection.text_factory = lambda raw: clean(raw.decode("utf-8", "replace"))
        # A view could ask for anything, without end; nsys writes tables.
        found = self._query("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {str(row[0]) for row in found}
        if not self.tables & {"StringIds", *VERSION_TABLES}:
            self.close()
            raise BadInput(name, "an SQLite database, but not an nsys export")
        texts = self.rows("StringIds", "id", "value")
        self.strings = {number: text for number, text in texts if isinstance(text, str)}

    def close(self) -> None:
        self._connection.close()

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        try:
            return self._connection.execute(sql).fetchall()
        except sqlite3.Error as error:
            raise BadInput(self.name, f"a damaged SQLite database ({error})") from None
        except UnicodeDecodeError:  # SQLite's own message quotes the damaged bytes
            raise BadInput(self.name, "a damaged SQLite database") from None

    def columns(self, table: str) -> set[str]:
        """Column names of a table; none where it is absent."""
        return {str(row[1]) for row in self._query(f'PRAGMA table_info("{table}")')}

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """The columns of a table's rows, in rowid order."""
        if table not in self.tables:
            return iter(())
        known = self.columns(table)
        picked = ", ".join(f'"{c}"' if c in known else "NULL" for c in columns)
        return iter(self._query(f'SELECT {picked} FROM "{table}"'))

    def stream(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """As ``rows``, of which not all are in memory at once."""
        if table not in self.tables:
            return
        known = self.columns(table)
        picked = ", ".join(f'"{c}"' if c in known else "NULL" for c in columns)
        try:
            yield from self._connection.execute(f'SELECT {picked} FROM "{table}"')
        except (sqlite3.Error, UnicodeDecodeError):
            raise BadInput(self.name, "a damaged SQLite database") from None

    def integers(self, table: str, *columns: str) -> Iterator[NDArray[np.int64]]:
        """The columns as arrays of [rows, columns], of not all rows at once; -1 is what is absent or no whole number."""
        if table not in self.tables:
            return
        known = self.columns(table)
        whole = (f'CASE typeof("{c}") WHEN \'integer\' THEN "{c}" ELSE -1 END' for c in columns)
        picked = [one if c in known else "-1" for c, one in zip(columns, whole, strict=True)]
        try:
            cursor = self._connection.execute(f'SELECT {", ".join(picked)} FROM "{table}"')
            while rows := cursor.fetchmany(BATCH):
                yield np.array(rows, np.int64)
        except (sqlite3.Error, UnicodeDecodeError):
            raise BadInput(self.name, "a damaged SQLite database") from None

    def string(self, identifier: Any) -> str | None:
        """The text of a StringIds reference."""
        return self.strings.get(identifier)

    def version(self) -> str | None:
        """Version of nsys that exported, where the export says so."""
        for table in VERSION_TABLES:
            for name, value in self.rows(table, "name", "value"):
                if name == "EXPORT_PRODUCT_VERSION" and isinstance(value, str):
                    return value
        return None

    def devices(self) -> dict[int, str]:
        """GPU names by the number that kernels carry: cuDevice, or id in exports without it."""
        names = {}
        for identifier, device, name in self.rows("TARGET_INFO_GPU", "id", "cuDevice", "name"):
            number = integer(device)
            names[integer(identifier) if number is None else number] = name
        return {n: t for n, t in names.items() if n is not None and isinstance(t, str)}

    def length_ns(self) -> int | None:
        """The time from the start of the trace to its end, where the export says it."""
        found = [integer(value) for (value,) in self.rows("ANALYSIS_DETAILS", "duration")]
        return max((value for value in found if value), default=None)

    def warnings(self) -> Iterator[str]:
        """What nsys itself warns of (severity above information), each text once."""
        texts = [
            text.strip()
            for severity, text in self.rows("DIAGNOSTIC_EVENT", "severity", "text")
            if (integer(severity) or 0) > 1 and isinstance(text, str)
        ]
        return iter(dict.fromkeys(texts))


def integer(value: Any) -> int | None:
    """A whole number that is one and that differences of cannot overflow, else None."""
    return value if isinstance(value, int) and abs(value) < LIMIT else None


def _check_settled(path: Path, name: str) -> None:
    """What a writer that was killed had not yet moved into the database is read by nobody here."""
    for suffix in ("-wal", "-journal"):
        beside = path.with_name(path.name + suffix)
        if beside.is_file() and beside.stat().st_size:
            what = f"not written to its end: {beside.name} lies beside it (sqlite3 takes it in)"
            raise BadInput(name, what)


def _check_size(path: Path, name: str) -> None:
    """SQLite opens a file cut short without a word; its header tells the pages it should have."""
    with path.open("rb") as file:
        header = file.read(100)
    if len(header) < 100:
        raise BadInput(name, "a truncated SQLite database (no whole header)")
    page = int.from_bytes(header[16:18], "big")
    pages = int.from_bytes(header[28:32], "big")
    size, want = path.stat().st_size, pages * (65536 if page == 1 else page)
    if header[24:28] == header[92:96] and size < want:
        raise BadInput(name, f"a truncated SQLite database ({size} of {want} bytes)")
