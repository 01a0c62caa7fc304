"""The SQLite export of nsys, with the differences between its versions smoothed out, and its NVTX ranges.

Tables and columns come and go between nsys 2021 and 2026: an absent table has no rows, an absent
column is None in each of them. A value of another type than it should be is None as well.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncuflow.io import BadInput, clean, scratch, sniff

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

VERSION_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
BATCH = 1 << 17  # rows that are in memory at once
LIMIT = 1 << 62  # beyond it a time stamp is damage, and differences would overflow
_HINTS = {
    "ncu-rep": " (`ncuflow show` reads it)",
    "lfs": " (fetch it with `git lfs pull`)",
}

# How nsys begins what it says of a process without events of a kind.
NOTHING_OF_A_PROCESS = {
    "NVTX": ("No NVTX events collected",),
    "CUDA": ("No CUDA events collected", "CUDA profiling might have not been started"),
}


@contextmanager
def exported(path: Path, called: str) -> Iterator[Path]:
    """The SQLite export of a trace: of a report, one that nsys makes here, gone on exit."""
    if sniff(path)[0] != "nsys-rep":
        yield path
        return
    program = shutil.which(os.environ.get("NCUFLOW_NSYS") or "nsys")
    if program is None:
        what = "an Nsight Systems report: `nsys export --type sqlite` makes what is read here"
        raise BadInput(called, f"{what}, and no nsys is on PATH")
    with scratch() as folder:
        target = folder / "trace.sqlite"
        command = export_command(program, path.absolute(), target)  # its name may begin with a dash
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode or not target.exists():
            said = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise BadInput(called, " ".join(["nsys cannot export it:", *said]))
        yield target


def export_command(program: str, report: Path, sqlite: Path) -> list[str]:
    """nsys report → SQLite, spelled so that 2023.4 and later take it."""
    options = ["--type=sqlite", "--force-overwrite=true", f"--output={sqlite}"]
    return [program, "export", *options, str(report)]


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

    @contextmanager
    def _damage(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise BadInput(self.name, f"a damaged SQLite database ({error})") from None
        except UnicodeDecodeError:  # SQLite's own message quotes the damaged bytes
            raise BadInput(self.name, "a damaged SQLite database") from None

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        with self._damage():
            return self._connection.execute(sql).fetchall()

    def columns(self, table: str) -> set[str]:
        """Column names of a table; none where it is absent."""
        return {str(row[1]) for row in self._query(f'PRAGMA table_info("{table}")')}

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """The columns of a table's rows, in rowid order; not all are in memory at once."""
        if table in self.tables:
            known = self.columns(table)
            picked = ", ".join(f'"{c}"' if c in known else "NULL" for c in columns)
            with self._damage():
                yield from self._connection.execute(f'SELECT {picked} FROM "{table}"')

    def integers(self, table: str, *columns: str) -> Iterator[NDArray[np.int64]]:
        """The columns as arrays of [rows, columns], of not all rows at once; -1 is what is absent or no whole number."""
        import numpy as np  # which is an extra, and preflight goes without

        if table not in self.tables:
            return
        known = self.columns(table)
        whole = (f'CASE typeof("{c}") WHEN \'integer\' THEN "{c}" ELSE -1 END' for c in columns)
        picked = [one if c in known else "-1" for c, one in zip(columns, whole, strict=True)]
        with self._damage():
            cursor = self._connection.execute(f'SELECT {", ".join(picked)} FROM "{table}"')
            while rows := cursor.fetchmany(BATCH):
                yield np.array(rows, np.int64)

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
        """What nsys itself warns of (severity above information), each text once.

        It says of each process that nothing was collected from it: that is a warning only where nothing was from any.
        """
        said = [
            (integer(severity) or 0, text.strip())
            for severity, text in self.rows("DIAGNOSTIC_EVENT", "severity", "text")
            if isinstance(text, str)
        ]
        of_others = tuple(
            start
            for kind, starts in NOTHING_OF_A_PROCESS.items()
            if any(text.startswith(f"Number of {kind} events collected:") for _, text in said)
            for start in starts
        )
        warned = (
            text for severity, text in said if severity > 1 and not text.startswith(of_others)
        )
        return iter(dict.fromkeys(warned))


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


# --- NVTX ranges, and which of them were open when something happened ------------------------

PUSH_POP, START_END = (59, 70), (60, 71)
THREAD = 0xFFFFFF  # the thread's part of a globalTid; the rest is the process


@dataclass(frozen=True)
class NvtxRange:
    """One range. `start`, `end` in ns (end None: never closed); `scope` is what it holds for: a
    thread for push/pop, a process for start/end; `number` counts the ranges of its name."""

    name: str
    start: int
    end: int | None
    scope: int
    number: int


def ranges(db: Database) -> Iterator[tuple[int, int | None, int, str] | None]:
    """(start, end, scope, name) of each named range, its end None where it was never closed; None for one with impossible
    times."""
    columns = ("start", "end", "eventType", "text", "textId", "globalTid")
    for start, end, kind, text, identifier, thread in db.rows("NVTX_EVENTS", *columns):
        name = text if isinstance(text, str) and text else db.string(identifier)
        begins, ends, tid = integer(start), integer(end), integer(thread) or 0
        if name is None or kind not in PUSH_POP + START_END:
            continue
        usable = begins is not None and begins >= 0 and (ends is None or ends >= begins)
        yield (begins, ends, tid if kind in PUSH_POP else tid & ~THREAD, name) if usable else None  # type: ignore[misc]


def read_ranges(db: Database, problems: list[str]) -> list[NvtxRange]:
    """All named ranges, by start; of those that start together, the longer first.

    Ranges with impossible times are counted in `problems`.
    """
    every = list(ranges(db))
    found = [one for one in every if one]
    if left_out := len(every) - len(found):
        problems.append(f"{left_out} NVTX ranges without usable times were left out")
    found.sort(key=lambda r: (r[0], -_end(r[1])))
    counts = Counter[str]()
    out = []
    for start, end, scope, name in found:
        out.append(NvtxRange(name, start, end, scope, counts[name]))
        counts[name] += 1
    return out


def _end(end: int | None) -> int:
    return 1 << 62 if end is None else end


def open_at(
    ranges: Iterable[NvtxRange], moments: Iterable[tuple[int, int]]
) -> list[list[NvtxRange]]:
    """For each (thread, time) the ranges open then, outermost first (process, then thread)."""
    listed = list(moments)
    by_scope: dict[int, list[NvtxRange]] = defaultdict(list)
    for item in ranges:
        by_scope[item.scope].append(item)
    found: list[list[NvtxRange]] = [[] for _ in listed]
    wanted: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for index, (thread, time) in enumerate(listed):
        for scope in dict.fromkeys((thread & ~THREAD, thread)):
            wanted[scope].append((time, index))
    for scope in sorted(wanted):  # a process's number is below those of its threads
        _sweep(by_scope.get(scope, []), sorted(wanted[scope]), found)
    return found


def _sweep(
    ranges: list[NvtxRange], moments: list[tuple[int, int]], found: list[list[NvtxRange]]
) -> None:
    """One pass over time: ranges open as their start is reached, drop behind their end."""
    position = 0
    active: list[NvtxRange] = []
    for time, index in moments:
        while position < len(ranges) and ranges[position].start <= time:
            active.append(ranges[position])
            position += 1
        active = [item for item in active if item.end is None or item.end >= time]
        found[index] += active


def encloses(outer: NvtxRange, inner: NvtxRange) -> bool:
    """`outer` began before `inner` and was still open at its end."""
    return outer.start <= inner.start and _end(outer.end) >= _end(inner.end)


def point_range(open_ranges: list[NvtxRange], points: Collection[str] | None) -> NvtxRange | None:
    """The range that names the point: innermost of the plan, or without a plan the outermost."""
    if points is None:
        return open_ranges[0] if open_ranges else None
    return next((item for item in reversed(open_ranges) if item.name in points), None)
