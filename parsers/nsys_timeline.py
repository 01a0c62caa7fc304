"""An nsys SQLite export → a timeline, row by row: of an export of gigabytes only columns of numbers are kept."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ncuflow.io import BadInput, opened, shown
from ncuflow.parsers import cute, nsys, nvtx
from ncuflow.parsers.nsys_sql import Database, integer
from ncuflow.parsers.timeline import (  # fmt: skip
    GRAPH,
    KERNEL,
    MEMCPY,
    MEMSET,
    UNSAID,
    Dim3,
    Launched,
    Numbered,
    Timeline,
    key,
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
        finally:
            db.close()
    if not len(timeline.operations):
        raise BadInput(called, "an nsys export that holds no operation of a GPU")
    return timeline


def _fill(db: Database, timeline: Timeline) -> None:
    processes = Numbered()
    timeline.problems += [f"nsys: {text}" for text in db.warnings()]
    length, left_out = db.length_ns(), 0
    one_process = True
    for kind, table, columns in _TABLES:
        cache: dict[tuple[Any, ...], int] = {}
        for values in db.stream(table, *nsys.COMMON, *columns):
            start, end, device, stream, correlation, process, node = values[:7]
            begins, ends, number = integer(start), integer(end), integer(correlation)
            if begins is None or ends is None or not 0 <= begins <= ends:
                left_out += 1
                continue
            if length is not None and ends - begins > length:
                left_out += 1
                continue
            more = values[7:]
            size = integer(more[-1]) if kind in (MEMCPY, MEMSET) else None
            seen = more[:1] if kind in (MEMCPY, MEMSET) else more
            what = cache.get(seen)
            if what is None:
                what = cache[seen] = timeline.launched[_launched(db, kind, more)]
            one_process = one_process and process is None
            where = UNSAID if number is None else key(_process(process, processes), number)
            timeline.operations.add(
                begins, ends, what, integer(device) or 0, _said(stream), where,
                _said(number) if integer(node) or kind == GRAPH else UNSAID, _said(size), UNSAID,
            )  # fmt: skip
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    for start, end, thread, correlation, name in db.stream(nsys.RUNTIME, *columns):
        begins, ends, tid, number = map(integer, (start, end, thread, correlation))
        if begins is None or ends is None or ends < begins or number is None:
            continue
        process = None if one_process else (tid or 0) & ~nvtx.THREAD
        called = timeline.names[nsys.without_version(db.string(name)) or ""]
        timeline.calls.add(
            begins, ends, tid or 0, called, key(_process(process, processes), number)
        )
    for one in _ranges(db):
        timeline.ranges.add(one[0], one[1], one[2], timeline.names[one[3]])
    if left_out:
        timeline.problems.append(f"{left_out} operations without usable times were left out")


def _process(value: Any, processes: Numbered) -> int:
    return processes[(integer(value) or 0) & ~nvtx.THREAD]


def _launched(db: Database, kind: str, values: tuple[Any, ...]) -> Launched:
    if kind != KERNEL:
        copied = nsys.COPY_KINDS.get(values[0], "memcpy") if kind == MEMCPY else kind
        return Launched(kind, f"CUDA graph {values[0]}" if kind == GRAPH else copied)
    name = db.string(values[0]) or db.string(values[1]) or ""
    static, dynamic = integer(values[9]), integer(values[10])
    shared = None if static is None or dynamic is None else static + dynamic
    return Launched(
        kind, cute.called(name), _dim3(values[2:5]), _dim3(values[5:8]), integer(values[8]), shared, dynamic,
    )  # fmt: skip


def _dim3(values: tuple[Any, ...]) -> Dim3 | None:
    x, y, z = map(integer, values)
    return None if x is None or y is None or z is None else (x, y, z)


def _ranges(db: Database) -> Iterator[tuple[int, int, int, str]]:
    """(begin, end, thread or process, name) of NVTX ranges that were closed."""
    columns = ("start", "end", "eventType", "text", "textId", "globalTid")
    for start, end, kind, text, identifier, thread in db.stream("NVTX_EVENTS", *columns):
        name = text if isinstance(text, str) and text else db.string(identifier)
        begins, ends, tid = integer(start), integer(end), integer(thread) or 0
        if name is None or kind not in nvtx.PUSH_POP + nvtx.START_END:
            continue
        if begins is not None and ends is not None and 0 <= begins <= ends:
            yield begins, ends, tid if kind in nvtx.PUSH_POP else tid & ~nvtx.THREAD, name


def _said(value: Any) -> int:
    found = integer(value)
    return UNSAID if found is None else found
