"""An nsys SQLite export → a timeline, row by row: of an export of gigabytes only columns of numbers are kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ncuflow.io import BadInput, opened, shown
from ncuflow.parsers import cute, nsys, nvtx
from ncuflow.parsers.nsys_sql import LIMIT, Database, integer
from ncuflow.parsers.timeline import (  # fmt: skip
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    UNSAID,
    Ints,
    Launched,
    Numbered,
    Timeline,
    block,
    grid,
    key,
    name,
)

_OF_KERNEL = (
    "demangledName", "shortName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
    "registersPerThread", "staticSharedMemory", "dynamicSharedMemory",
)  # fmt: skip
_TABLES: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    (KERNEL, nsys.KERNEL, _OF_KERNEL),
    (MEMCPY, nsys.MEMCPY, ("copyKind", "bytes")),
    (MEMSET, nsys.MEMSET, ("bytes",)),
    (GRAPH, nsys.GRAPH, ("graphId",)),
)


def read(path: str | Path) -> Timeline:
    """Raises BadInput where the file is no complete export, or holds no work of a GPU."""
    called = shown(path)
    with opened(path) as unpacked, nsys.exported(unpacked, called) as plain:
        db = Database(plain, called)
        try:
            version = db.version()
            timeline = Timeline(called, f"nsys {version}" if version else "nsys", db.devices())
            _fill(db, timeline)
            timeline.finish()
        finally:
            db.close()
    if not len(timeline.operations):
        raise BadInput(called, "an nsys export that holds no operation of a GPU")
    return timeline


def _fill(db: Database, timeline: Timeline) -> None:
    processes = Numbered()
    timeline.problems += [f"nsys: {text}" for text in db.warnings()]
    length = db.length_ns() or LIMIT
    left_out, one_process = 0, True
    for kind, table, columns in _TABLES:
        for rows in db.integers(table, *nsys.COMMON, *columns):
            start, end = rows[:, 0], rows[:, 1]
            usable = (start >= 0) & (end >= start) & (end < LIMIT) & (end - start <= length)
            left_out += int((~usable).sum())
            start, end, device, stream, correlation, process, node, *_ = rows[usable].T
            more = rows[usable][:, len(nsys.COMMON) :]
            one_process = one_process and bool((process < 0).all())
            where = key(_numbered(process & ~nvtx.THREAD, processes), correlation)
            sized = kind in (MEMCPY, MEMSET)
            what = _what(db, timeline, kind, more[:, :1] if sized else more)
            graph = correlation if kind == GRAPH else np.where(node > 0, node, UNSAID)
            nothing = np.full(len(start), UNSAID)
            timeline.operations.extend(
                start, end, what, device, stream, np.where(correlation < 0, UNSAID, where), graph,
                more[:, -1] if sized else nothing, nothing,
            )  # fmt: skip
    for rows in db.integers(nsys.RUNTIME, "start", "end", "globalTid", "correlationId", "nameId"):
        rows = rows[(rows[:, 0] >= 0) & (rows[:, 1] >= rows[:, 0]) & (rows[:, 3] >= 0)]
        start, end, thread, correlation, api = rows.T
        # exports whose operations do not name their process hold one
        process = np.full(len(start), UNSAID) if one_process else thread
        where = key(_numbered(process & ~nvtx.THREAD, processes), correlation)
        called, inverse = np.unique(api, return_inverse=True)
        numbers = [
            timeline.names[nsys.without_version(db.string(int(one))) or ""] for one in called
        ]
        timeline.calls.extend(start, end, thread, np.array(numbers, np.int64)[inverse], where)
    for one in _ranges(db):
        timeline.ranges.add(one[0], one[1], one[2], timeline.names[one[3]])
    if left_out:
        timeline.problems.append(f"{left_out} operations without usable times were left out")


def _numbered(values: Ints, numbers: Numbered) -> Ints:
    """The number of each value."""
    found, inverse = np.unique(values, return_inverse=True)
    return np.array([numbers[int(one)] for one in found], np.int64)[inverse]


def _what(db: Database, timeline: Timeline, kind: str, values: Ints) -> Ints:
    """What the rows have in common, as the timeline numbers it. Rows are told apart by a sum of their columns, each times a
    number of 62 bits of its own: two that differ have the same one once in 2^62."""
    factors = np.random.default_rng(0).integers(1, LIMIT, values.shape[1], np.int64)
    _, first, inverse = np.unique(
        (values * factors).sum(axis=1), return_index=True, return_inverse=True
    )
    numbers = [timeline.launched[_launched(db, kind, values[place].tolist())] for place in first]
    return np.array(numbers, np.int64)[inverse]


def _launched(db: Database, kind: str, values: Sequence[int]) -> Launched:
    if kind != KERNEL:
        copied = nsys.COPY_KINDS.get(values[0], "memcpy") if kind == MEMCPY else kind
        return Launched(kind, f"CUDA graph {values[0]}" if kind == GRAPH else copied)
    called = name(db.string(values[0]) or db.string(values[1]) or "")
    registers, static, dynamic = (None if one < 0 else one for one in values[8:11])
    shared = None if static is None or dynamic is None else static + dynamic
    return Launched(
        kind, cute.called(called), grid(values[2:5]), block(values[5:8]), registers, shared, dynamic
    )


def _ranges(db: Database) -> Iterator[tuple[int, int, int, str]]:
    """(begin, end, thread or process, name) of NVTX ranges that were closed."""
    columns = ("start", "end", "eventType", "text", "textId", "globalTid")
    for start, end, kind, text, identifier, thread in db.stream("NVTX_EVENTS", *columns):
        called = text if isinstance(text, str) and text else db.string(identifier)
        begins, ends, tid = integer(start), integer(end), integer(thread) or 0
        if called is None or kind not in nvtx.PUSH_POP + nvtx.START_END:
            continue
        if begins is not None and ends is not None and 0 <= begins <= ends:
            yield begins, ends, tid if kind in nvtx.PUSH_POP else tid & ~nvtx.THREAD, name(called)
