"""Keep of an nsys SQLite export only what the timeline needs.

An export holds the environment block, the command line, the working folder and the host of the
profiled process. Tables are allow-listed, not deny-listed: a newer nsys may add places for them.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Mapping
from pathlib import Path

from ncuflow.private import find_secret, patterns
from ncuflow.process import CaptureError

KEPT_TABLES = re.compile(
    r"^(CUPTI_ACTIVITY_KIND_\w+|NVTX_EVENTS|StringIds|TARGET_INFO_GPU|ENUM_\w+"
    r"|META_DATA_EXPORT|EXPORT_META_DATA|DIAGNOSTIC_EVENT)$"
)
KEPT_META = re.compile(r"^EXPORT_(PRODUCT|SCHEMA|ARCH|PLATFORM)")
BLANKED = {"TARGET_INFO_GPU": ("uuid", "busLocation", "luid", "ctxswDevPath")}
STRING_REFERENCE = re.compile(r"(\w+)\s+(?:INTEGER|INT)\b[^\n]*REFERENCES StringIds\(id\)")
STRING_COLUMNS = {"nameId", "demangledName", "shortName", "mangledName", "textId"}
PATH_LIKE = re.compile(r"""(^|[\s=:"'])/[\w.+-]+/""")
ASSIGNMENT = re.compile(r"^[A-Z_][A-Z0-9_]*=")
REMOVED = "[removed]"


Known = Mapping[str, re.Pattern[bytes]]


def scrub_trace(path: Path, private: Known | None = None) -> None:
    """Scrub an export in place. Raises CaptureError if its bytes still hold a private value.

    `private` is what may not be stored (default: private.patterns() of this machine).
    """
    private = patterns() if private is None else private
    database = sqlite3.connect(path)
    try:
        database.execute("PRAGMA journal_mode=DELETE")
        database.execute("PRAGMA secure_delete=ON")
        _drop_tables(database)
        _blank_columns(database)
        _scrub_strings(database, private)
        database.commit()
        database.execute("VACUUM")  # deleted rows stay in free pages until then
    except sqlite3.DatabaseError as error:
        raise CaptureError(f"{path.name}: not an nsys SQLite export ({error})") from error
    finally:
        database.close()
    secret = find_secret(path.read_bytes(), private)
    if secret:
        raise CaptureError(f"{path.name}: still holds {secret} after scrubbing; it is not kept")


def tables(database: sqlite3.Connection) -> list[str]:
    """Names of the tables of a database."""
    rows = database.execute("SELECT name FROM sqlite_master WHERE type='table'")
    return [row[0] for row in rows if not row[0].startswith("sqlite_")]


def _drop_tables(database: sqlite3.Connection) -> None:
    for kind in ("view", "trigger", "index"):
        rows = database.execute(
            "SELECT name FROM sqlite_master WHERE type=? AND sql IS NOT NULL", (kind,)
        )
        for (name,) in rows.fetchall():
            database.execute(f'DROP {kind} "{name}"')
    for name in tables(database):
        if not KEPT_TABLES.match(name):
            database.execute(f'DROP TABLE "{name}"')
    for name in ("META_DATA_EXPORT", "EXPORT_META_DATA"):
        if name in tables(database):
            keys = [row[0] for row in database.execute(f'SELECT name FROM "{name}"')]
            unwanted = [(key,) for key in keys if not KEPT_META.match(key)]
            database.executemany(f'DELETE FROM "{name}" WHERE name=?', unwanted)


def _blank_columns(database: sqlite3.Connection) -> None:
    for table, columns in BLANKED.items():
        for column in set(columns) & set(_columns(database, table)):
            database.execute(f'UPDATE "{table}" SET "{column}"=NULL')


def _scrub_strings(database: sqlite3.Connection, private: Known) -> None:
    names = tables(database)
    if "StringIds" in names:
        used = _used_strings(database, [name for name in names if name != "StringIds"])
        rows = database.execute("SELECT id, value FROM StringIds").fetchall()
        database.executemany(
            "DELETE FROM StringIds WHERE id=?", [(i,) for i, _ in rows if i not in used]
        )
        bad = [(REMOVED, i) for i, value in rows if i in used and is_private(value, private)]
        database.executemany("UPDATE StringIds SET value=? WHERE id=?", bad)
    for name in {"NVTX_EVENTS", "DIAGNOSTIC_EVENT"} & set(names):
        if "text" in _columns(database, name):
            rows = database.execute(
                f"SELECT rowid, text FROM {name} WHERE text IS NOT NULL"
            ).fetchall()
            bad = [(REMOVED, i) for i, value in rows if is_private(value, private)]
            database.executemany(f"UPDATE {name} SET text=? WHERE rowid=?", bad)


def is_private(value: str | None, private: Known) -> bool:
    """Whether a string is a path, an environment assignment, or holds a private value."""
    if not value:
        return False
    return (
        bool(PATH_LIKE.search(value) or ASSIGNMENT.match(value))
        or find_secret(value.encode(), private) is not None
    )


def _used_strings(database: sqlite3.Connection, names: Iterable[str]) -> set[int]:
    used: set[int] = set()
    for name in names:
        for column in _string_columns(database, name):
            rows = database.execute(
                f'SELECT DISTINCT "{column}" FROM "{name}" WHERE "{column}" IS NOT NULL'
            )
            used.update(row[0] for row in rows)
    return used


def _string_columns(database: sqlite3.Connection, table: str) -> set[str]:
    (sql,) = database.execute("SELECT sql FROM sqlite_master WHERE name=?", (table,)).fetchone()
    return (set(STRING_REFERENCE.findall(sql)) | STRING_COLUMNS) & set(_columns(database, table))


def _columns(database: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
