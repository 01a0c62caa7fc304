"""An nsys SQLite export → what ran on the GPU, in which NVTX range, after how long a gap.

A .nsys-rep or .qdrep is exported first, where nsys is installed.

An operation belongs to the NVTX range that was open on the calling thread when the CUDA call that
launched it began (correlation id → call → thread and time), not to the range open while it ran.
"""

import contextlib
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ncuflow.io import BadInput, opened, printable
from ncuflow.model import Row
from ncuflow.parsers import nsys_sql
from ncuflow.parsers.demangled import cute_name
from ncuflow.parsers.timeline import (
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    UNSAID,
    Ints,
    Launched,
    Numbered,
    Timeline,
    alike,
    block,
    grid,
    key,
    name,
)

_OF_KERNEL = (
    "demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
    "registersPerThread", "staticSharedMemory", "dynamicSharedMemory",
)  # fmt: skip
CUPTI = "CUPTI_ACTIVITY_KIND_"
TABLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (KERNEL, f"{CUPTI}KERNEL", _OF_KERNEL),
    (MEMCPY, f"{CUPTI}MEMCPY", ("copyKind", "bytes")),
    (MEMSET, f"{CUPTI}MEMSET", ("bytes",)),
    (GRAPH, f"{CUPTI}GRAPH_TRACE", ("graphId",)),
)
RUNTIME = f"{CUPTI}RUNTIME"
COPY_KINDS = {
    1: "Host-to-Device", 2: "Device-to-Host", 3: "Host-to-Array", 4: "Array-to-Host",
    5: "Array-to-Array", 6: "Array-to-Device", 7: "Device-to-Array", 8: "Device-to-Device",
    9: "Host-to-Host", 10: "Peer-to-Peer",
}  # fmt: skip
GAPS = {"gap_before_ns": ("device",), "stream_gap_before_ns": ("device", "stream")}
COMMON = ("start", "end", "deviceId", "streamId", "correlationId", "globalPid", "graphNodeId")
UNSEEN_NS = 1_000_000_000  # an operation may still run when the last call is recorded
_VERSION_SUFFIX = re.compile(r"(_ptsz|_ptds)?(_v\d+)?$")
_LAUNCH = re.compile(r"cu(da)?Launch(Cooperative)?Kernel")


@dataclass
class Trace:
    """One trace, as rows of the timeline and ranges tables (without `report`).

    devices: GPU names by device index; problems: what is missing or was left out.
    """

    file: str
    nsys_version: str | None = None
    devices: dict[int, str] = field(default_factory=dict)
    timeline: list[Row] = field(default_factory=list)
    ranges: list[Row] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def read(path: str | Path, points: Collection[str] | None = None) -> Trace:
    """The rows of an export, plain or `.xz`.

    points: the ids that NVTX ranges may name; without them a row's point is its outermost range.
    Raises BadInput where the file is no complete export or holds neither GPU work nor ranges.
    """
    called = printable(path)
    with _database(path, called) as db:
        return _trace(db, called, points)


def read_timeline(path: str | Path) -> Timeline:
    """An export as columns: of one of gigabytes only these are kept. Raises BadInput where the file is no complete export, or
    holds no work of a GPU."""
    called = printable(path)
    with _database(path, called) as db:
        timeline = _columns(db, called)
        timeline.problems = [*(f"nsys: {text}" for text in db.warnings()), *timeline.problems]
        for start, end, scope, called_range in filter(None, nsys_sql.ranges(db)):
            if end is not None:
                timeline.ranges.add(start, end, scope, timeline.names[name(called_range)])
        timeline.finish()
        _fit(timeline, db.length_ns(), timeline.ranges.arrays()["start"])
    if not len(timeline.operations):
        raise BadInput(called, "an nsys export that holds no operation of a GPU")
    return timeline


@contextlib.contextmanager
def _database(path: str | Path, called: str) -> Iterator[nsys_sql.Database]:
    with opened(path) as unpacked, nsys_sql.exported(unpacked, called) as plain:
        db = nsys_sql.Database(plain, called)
        try:
            yield db
        finally:
            db.close()


def _trace(db: nsys_sql.Database, called: str, points: Collection[str] | None) -> Trace:
    timeline = _columns(db, called)
    timeline.once()
    trace = Trace(called, db.version(), timeline.devices, problems=timeline.problems)
    ranges = nsys_sql.read_ranges(db, trace.problems)
    _fit(timeline, db.length_ns(), np.array([one.start for one in ranges], np.int64))
    if not (len(timeline.operations) or len(timeline.calls) or ranges):
        raise BadInput(called, "an nsys export that holds no CUDA or NVTX event")
    trace.timeline = [*_rows(timeline, ranges, points)]
    for column, keys in GAPS.items():
        _gaps(trace.timeline, column, keys)
    for index, row in enumerate(trace.timeline):
        row["index"] = index
    trace.ranges = list(_range_rows(ranges, points))
    trace.problems += _missing(db, timeline, trace.timeline, ranges)
    return trace


# --- reading the tables -----------------------------------------------------------------------


def _columns(db: nsys_sql.Database, called: str) -> Timeline:
    """What ran on the GPUs, and the host's calls. Operations that make no sense are counted in its problems."""
    version = db.version()
    timeline = Timeline(called, f"nsys {version}" if version else "nsys", db.devices())
    processes = Numbered()
    left_out, one_process = 0, True
    for kind, table, columns in TABLES:
        for rows in db.integers(table, *COMMON, *columns):
            start, end = rows[:, 0], rows[:, 1]
            usable = (start >= 0) & (end >= start) & (end < nsys_sql.LIMIT)
            left_out += int((~usable).sum())
            start, end, device, stream, correlation, process, node, *_ = rows[usable].T
            more = rows[usable][:, len(COMMON) :]
            one_process = one_process and bool((process < 0).all())
            where = key(_numbered(process & ~nsys_sql.THREAD, processes), correlation)
            sized = kind in (MEMCPY, MEMSET)
            what = _what(db, timeline, kind, more[:, :1] if sized else more)
            graph = correlation if kind == GRAPH else np.where(node > 0, node, UNSAID)
            nothing = np.full(len(start), UNSAID)
            timeline.operations.extend(
                start, end, what, device, stream, np.where(correlation < 0, UNSAID, where), graph,
                more[:, -1] if sized else nothing, nothing,
            )  # fmt: skip
    for rows in db.integers(RUNTIME, "start", "end", "globalTid", "correlationId", "nameId"):
        start, end, _, correlation, _ = rows.T
        rows = rows[(start >= 0) & (end >= start) & (end < nsys_sql.LIMIT) & (correlation >= 0)]
        start, end, thread, correlation, api = rows.T
        # exports whose operations do not name their process hold one
        process = np.full(len(start), UNSAID) if one_process else thread
        where = key(_numbered(process & ~nsys_sql.THREAD, processes), correlation)
        names, inverse = np.unique(api, return_inverse=True)
        numbers = [timeline.names[without_version(db.string(int(one))) or ""] for one in names]
        thread = np.maximum(thread, 0)
        timeline.calls.extend(start, end, thread, np.array(numbers, np.int64)[inverse], where)
    if left_out:
        timeline.problems.append(f"{left_out} operations without usable times were left out")
    return timeline


def _numbered(values: Ints, numbers: Numbered) -> Ints:
    """The number of each value."""
    found, inverse = np.unique(values, return_inverse=True)
    return np.array([numbers[int(one)] for one in found], np.int64)[inverse]


def _what(db: nsys_sql.Database, timeline: Timeline, kind: str, values: Ints) -> Ints:
    """What the rows have in common, as the timeline numbers it."""
    first, inverse = alike(values)
    numbers = [timeline.launched[_launched(db, kind, values[place].tolist())] for place in first]
    return np.array(numbers, np.int64)[inverse]


def _launched(db: nsys_sql.Database, kind: str, values: Sequence[int]) -> Launched:
    if kind != KERNEL:
        copied = COPY_KINDS.get(values[0], "memcpy") if kind == MEMCPY else kind
        return Launched(kind, f"CUDA graph {values[0]}" if kind == GRAPH else copied)
    full, short = db.string(values[0]), db.string(values[1])
    registers, static, dynamic = (None if one < 0 else one for one in values[8:11])
    shared = None if static is None or dynamic is None else static + dynamic
    return Launched(
        kind, cute_name(name(full or short or "")), grid(values[2:5]), block(values[5:8]), registers,
        shared, dynamic, cute_name(short or full or "") or None, full,
    )  # fmt: skip


def _fit(timeline: Timeline, length_ns: int | None, range_starts: Ints) -> None:
    """Leave out the operations that are longer than the trace.

    Where an export does not say its length, it is the time from the first to the last of the calls, the ranges'
    starts and the shorter operations; what host and GPU did in it cannot tell below UNSEEN_NS.
    """
    found, calls = timeline.operations.arrays(), timeline.calls.arrays()
    lengths = found["end"] - found["start"]
    most = length_ns
    if most is None:
        times = np.concatenate([calls["start"], calls["end"], range_starts])
        first, last = (int(times.min()), int(times.max())) if len(times) else (0, nsys_sql.LIMIT)
        most = max(last - first, UNSEEN_NS)
        short = lengths <= most
        first = int(found["start"][short].min(initial=first))
        last = int(found["end"][short].max(initial=last))
        longer = np.flatnonzero(~short)
        for place in longer[np.argsort(lengths[longer], kind="stable")].tolist():
            most = max(last - first, UNSEEN_NS)
            if lengths[place] > most:
                break
            first = min(first, int(found["start"][place]))
            last = max(last, int(found["end"][place]))
    fits = lengths <= most
    timeline.operations.keep(fits)
    if left_out := int((~fits).sum()):
        timeline.problems.append(f"{left_out} operations longer than the trace were left out")


@cache  # of a few dozen names, each called thousands of times
def without_version(called: str | None) -> str | None:
    return _VERSION_SUFFIX.sub("", called) if called else None


# --- rows -------------------------------------------------------------------------------------


def _rows(
    timeline: Timeline, ranges: list[nsys_sql.NvtxRange], points: Collection[str] | None
) -> Iterator[Row]:
    """Every operation by its start, with its call, the ranges open there, the point and its repeat."""
    columns = timeline.rows
    of = [_of_launched(one) for one in timeline.kinds]
    moments = zip(columns["thread"].tolist(), columns["call"].tolist(), strict=True)
    open_ranges = nsys_sql.open_at(ranges, moments)
    for values, around in zip(_by_row(columns), open_ranges, strict=True):
        start, end, what, device, stream, graph, size, call, called, api = values
        kind, own = of[what]
        point = nsys_sql.point_range(around, points)
        known = call != UNSAID
        yield {
            "kind": kind, "start_ns": start, "end_ns": end, "duration_ns": end - start,
            "device": _known(device), "stream": _known(stream), "graph": graph != UNSAID, **own,
            **({"bytes": _known(size)} if kind in (MEMCPY, MEMSET) else {}),
            "api_name": (timeline.texts[api] or None) if known else None,
            "api_start_ns": call if known else None,
            "api_duration_ns": called - call if known else None,
            "nvtx": "/".join(item.name for item in around) or None,
            "point": point.name if point else None,
            "launch": point.number if point else None,
        }  # fmt: skip


def _by_row(columns: dict[str, Ints]) -> Iterator[tuple[int, ...]]:
    names = ("start", "end", "what", "device", "stream", "graph", "bytes", "call", "called", "api")
    return zip(*(columns[one].tolist() for one in names), strict=True)


def _of_launched(one: Launched) -> tuple[str, Row]:
    if one.kind != KERNEL:
        return one.kind, {"name": one.name}
    sizes = ((one.grid and ",".join(map(str, one.grid))), (one.block and ",".join(map(str, one.block))))  # fmt: skip
    return one.kind, {
        "name": one.function, "demangled": one.demangled, "grid": sizes[0], "block": sizes[1],
    }  # fmt: skip


def _known(value: int) -> int | None:
    return None if value < 0 else value


def _gaps(rows: list[Row], column: str, keys: tuple[str, ...]) -> None:
    """Idle time before each row since everything earlier of the same keys ended. Where a row lacks one nobody knows it: that
    row may have run in any of them."""
    places = list(zip(*([row[name] for row in rows] for name in keys), strict=True))
    if any(None in place for place in places):
        for row in rows:
            row[column] = None
        return
    ends: dict[tuple[Any, ...], int] = {}
    for row, place in zip(rows, places, strict=True):
        before = ends.get(place)
        row[column] = None if before is None else max(0, row["start_ns"] - before)
        ends[place] = row["end_ns"] if before is None else max(before, row["end_ns"])


def _range_rows(ranges: list[nsys_sql.NvtxRange], points: Collection[str] | None) -> Iterator[Row]:
    moments = [(item.scope, item.start) for item in ranges]
    for item, around in zip(ranges, nsys_sql.open_at(ranges, moments), strict=True):
        own = [other for other in around if other is item or nsys_sql.encloses(other, item)]
        point = nsys_sql.point_range(own, points)
        yield {
            "name": item.name,
            "point": point.name if point else None,
            "start_ns": item.start,
            "end_ns": item.end,
            "launch": point.number if point else None,
        }


def _missing(
    db: nsys_sql.Database, timeline: Timeline, rows: list[Row], ranges: list[nsys_sql.NvtxRange]
) -> Iterator[str]:
    """What a reader of the rows should know is not in them."""
    yield from (f"nsys: {text}" for text in db.warnings())
    kinds = [row["kind"] for row in rows]
    if "kernel" not in kinds:
        yield "the trace holds no kernels"
    if "graph" in kinds:
        yield f"{kinds.count('graph')} CUDA graphs traced as a whole: their kernels are not listed"
    for column, what in (
        ("device", "GPU: no gap is known"),
        ("stream", "stream: no gap within one is known"),
    ):
        if unsaid := sum(1 for row in rows if row[column] is None):
            yield f"{unsaid} operations without a {what}"
    if not ranges:
        yield "the trace holds no NVTX ranges"
    lost = sum(1 for row in rows if row["api_start_ns"] is None)
    if lost:
        yield f"{lost} operations without the CUDA call that launched them: in no range"
    calls = timeline.calls.arrays()
    launches = [n for n, text in enumerate(timeline.texts) if _LAUNCH.match(text)]
    launching = np.unique(calls["key"][np.isin(calls["name"], launches)])
    silent = int((~np.isin(launching, timeline.operations.arrays()["key"])).sum())
    if silent:
        yield f"{silent} kernel launches without a kernel: captured into a graph, or not recorded"
