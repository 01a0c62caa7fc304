"""Mask what reports say about the machine: host, addresses, command line, folders; of nsys keep only what the timeline needs.

A report of ncu is `NVR\0`, a length-prefixed header, and length-prefixed protobuf messages. Masking keeps
every length, so the report stays readable. The layout is not documented by NVIDIA; it is as found
in reports of ncu 2025.3.1 (docs/capture.md), and a file laid out otherwise is left alone.

The compiled modules that a report holds can be left out of it: megabytes that compress badly, and of which the tables take
the SASS and the source line of sampled instructions alone, which a `listing` keeps. All else stays byte for byte.

An SQLite export of nsys holds the environment block, the command line, the working folder and the host of the profiled process.
Tables are allow-listed, not deny-listed: a newer nsys may add places for them.
"""

import re
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from ncuflow.io import NCU_MAGIC, replacing
from ncuflow.parsers import reader
from ncuflow.private import find_secret, masked_path, paths, patterns
from ncuflow.process import CaptureError

SMALL = 64 << 10  # session messages are a few hundred bytes; kernels and modules are far larger
MASK = ord("x")
# field numbers, outermost first
# messages that hold the system (start, session), the ncu command
START, SYSTEM, COMMAND = ((3, 3), (3, 4), (3, 11))
HOST, ADDRESS = (5,), (7, 1)
PROGRAM = (6, 3)  # of the process that every message names
HOME = re.compile(rb"/home/[\w.-]+")


def scrub_report(path: Path) -> bool:
    """Mask the private strings of a report in place. False (no change) for another layout."""
    masked = masked_report(path.read_bytes())
    if masked is None:
        return False
    with replacing(path) as temporary:
        temporary.write_bytes(masked)
    return True


def masked_report(report: bytes) -> bytes | None:
    """The report with its private strings masked, each byte where it was; None for another layout."""
    data = bytearray(report)
    spans = list(private_spans(data))
    if not spans:
        return None
    values = {bytes(data[start:end]) for start, end in spans}
    for start, end in spans:
        data[start:end] = bytes([MASK]) * (end - start)
    for value in sorted(values, key=len, reverse=True):
        if b"/" in value:
            _mask_everywhere(data, value)
    mask_paths(data)
    return bytes(data)


def mask_paths(data: bytearray) -> None:
    """Mask the folders of this machine in a file, in place."""
    for start, found in list(paths(data)):
        data[start : start + len(found)] = masked_path(found)
    for match in list(HOME.finditer(data)):
        data[match.start() + len(b"/home/") : match.end()] = bytes([MASK]) * (
            match.end() - match.start() - 6
        )


def scrubbed(data: bytes) -> bool | None:
    """Whether a report's private spans are masked; None if its layout is unknown."""
    spans = list(private_spans(data))
    return all(set(data[start:end]) <= {MASK} for start, end in spans) if spans else None


def private_spans(data: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Where a report names its host, addresses, command line and program folder."""
    for start, end in messages(data):
        if end - start > SMALL:
            continue
        for path in (START, SYSTEM):
            for system in reader.descend(data, start, end, path):
                yield from _system_spans(data, system)
        yield from ((f.value, f.end) for f in reader.descend(data, start, end, COMMAND))
        for program in reader.descend(data, start, end, PROGRAM):
            folder = bytes(data[program.value : program.end]).rfind(b"/")
            if folder > 0 and data[program.value] == ord("/"):
                yield program.value, program.value + folder


def messages(data: bytes | bytearray) -> list[tuple[int, int]]:
    """(start, end) of each message of a report; none if it is not laid out as expected."""
    try:
        return list(reader.messages(data, len(NCU_MAGIC))) if data.startswith(NCU_MAGIC) else []
    except ValueError:
        return []


def _system_spans(data: bytes | bytearray, system: reader.Field) -> Iterator[tuple[int, int]]:
    for path in (HOST, ADDRESS):
        for field in reader.descend(data, system.value, system.end, path):
            yield field.value, field.end


def _mask_everywhere(data: bytearray, value: bytes) -> None:
    position = data.find(value)
    while position >= 0:
        data[position : position + len(value)] = bytes([MASK]) * len(value)
        position = data.find(value, position + len(value))


IMAGE = 4  # of a source entry: the ELF image of a module
ELF = b"\x7fELF"


def without_modules(data: bytes) -> bytes:
    """The report without its modules' images. Raises ValueError where its framing is not as expected."""
    found = bytearray(NCU_MAGIC)
    head, position = reader.message(data, len(NCU_MAGIC), "file header")
    found += data[head - 4 : position]
    while position < len(data):
        start, end = reader.message(data, position, "block header")
        header = reader.integers(data, start, end)
        position = end + header.get(reader.PAYLOAD_SIZE, 0)
        payload = b"".join(_entries(data, end, position, header.get(reader.SOURCES, 0)))
        found += _framed(_with_size(data, start, end, len(payload))) + payload
    if position > len(data):
        raise ValueError("its last block is cut off")
    return bytes(found)


def _entries(data: bytes, start: int, end: int, sources: int) -> Iterator[bytes]:
    """The entries of a block, framed: its sources, which come first, without images, the others as they are."""
    for number, (first, last) in enumerate(reader.messages(data, start, end)):
        if number >= sources:
            yield data[first - 4 : last]
            continue
        kept = (f for f in reader.fields(data, first, last) if not _is_image(data, f))
        yield _framed(b"".join(data[f.start : f.end] for f in kept))


def _is_image(data: bytes, field: reader.Field) -> bool:
    return field.number == IMAGE and data.startswith(ELF, field.value)


def _with_size(data: bytes, start: int, end: int, size: int) -> bytes:
    """A block header that announces a payload of this size."""
    return b"".join(
        reader.integer(f.number, size) if f.number == reader.PAYLOAD_SIZE else data[f.start : f.end]
        for f in reader.fields(data, start, end)
    )


def _framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "little") + message


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
