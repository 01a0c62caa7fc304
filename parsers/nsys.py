"""An nsys SQLite export → what ran on the GPU, in which NVTX range, after how long a gap.

A .nsys-rep or .qdrep is exported first, where nsys is installed.

An operation belongs to the NVTX range that was open on the calling thread when the CUDA call that
launched it began (correlation id → call → thread and time), not to the range open while it ran.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ncuflow.io import BadInput, opened, scratch, shown, sniff
from ncuflow.model import Row
from ncuflow.parsers import cute, nvtx
from ncuflow.parsers.nsys_sql import LIMIT, Database, integer
from ncuflow.parsers.timeline import Dim3, block, grid

KERNEL, MEMCPY, MEMSET, GRAPH, RUNTIME = (
    f"CUPTI_ACTIVITY_KIND_{name}"
    for name in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE", "RUNTIME")
)
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


class RuntimeCall(NamedTuple):
    """A CUDA call on the host; times in ns."""

    name: str | None
    start: int
    end: int
    thread: int


def read(path: str | Path, points: Collection[str] | None = None) -> Trace:
    """Read an export, plain or `.xz`.

    points: the ids that NVTX ranges may name; without them a row's point is its outermost range.
    Raises BadInput where the file is no complete export or holds neither GPU work nor ranges.
    """
    called = shown(path)
    with opened(path) as unpacked, exported(unpacked, called) as plain:
        db = Database(plain, called)
        try:
            return _trace(db, called, points)
        finally:
            db.close()


@contextlib.contextmanager
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


def _trace(db: Database, called: str, points: Collection[str] | None) -> Trace:
    trace = Trace(called, db.version(), db.devices())
    calls = _calls(db)
    operations = list(_operations(db, trace.problems))
    ranges = nvtx.read(db, trace.problems)
    found = list(_fitting(operations, calls, ranges, db.length_ns()))
    if len(found) < len(operations):
        longer = len(operations) - len(found)
        trace.problems.append(f"{longer} operations longer than the trace were left out")
    if not found and not ranges and not calls:
        raise BadInput(called, "an nsys export that holds no CUDA or NVTX event")
    rows = sorted((row for row, _ in found), key=lambda r: (r["start_ns"], r["end_ns"]))
    launched = {id(row): calls.get(key) for row, key in found}
    _attribute(rows, [launched[id(row)] for row in rows], ranges, points)
    for column, keys in GAPS.items():
        _gaps(rows, column, keys)
    for index, row in enumerate(rows):
        row["index"] = index
    trace.timeline = rows
    trace.ranges = list(_range_rows(ranges, points))
    trace.problems += _missing(db, calls, {key for _, key in found}, rows, ranges)
    return trace


# --- reading the tables -----------------------------------------------------------------------

Key = tuple[int, int | None]


def _key(process: Any, correlation: Any) -> Key:
    """(process, correlation id); exports without globalPid hold one process."""
    return (integer(process) or 0) & ~nvtx.THREAD, integer(correlation)


def _calls(db: Database) -> dict[Key, RuntimeCall]:
    """CUDA calls by process and correlation id, and by the id alone (process 0) for exports whose
    operations do not name their process; the first where ids repeat."""
    calls: dict[Key, RuntimeCall] = {}
    columns = ("start", "end", "globalTid", "correlationId", "nameId")
    for start, end, thread, correlation, name in db.rows(RUNTIME, *columns):
        begins, ends, tid, number = map(integer, (start, end, thread, correlation))
        if begins is None or ends is None or ends < begins or number is None:
            continue
        call = RuntimeCall(without_version(db.string(name)), begins, ends, tid or 0)
        for process in (call.thread & ~nvtx.THREAD, 0):
            calls.setdefault((process, number), call)
    return calls


@cache  # of a few dozen names, each called thousands of times
def without_version(name: str | None) -> str | None:
    return _VERSION_SUFFIX.sub("", name) if name else None


def _operations(db: Database, problems: list[str]) -> Iterator[tuple[Row, Key]]:
    """Every operation of the GPU with the key of its call. Rows that make no sense, or stand there a
    second time, are counted in `problems`."""
    left_out = repeated = 0
    for kind, table, more in (
        ("kernel", KERNEL, _KERNEL_COLUMNS),
        ("memcpy", MEMCPY, ("copyKind", "bytes")),
        ("memset", MEMSET, ("bytes",)),
        ("graph", GRAPH, ("graphId",)),
    ):
        seen: set[tuple[Any, ...]] = set()
        for values in db.rows(table, *COMMON, *more):
            if values in seen:
                repeated += 1
                continue
            seen.add(values)
            row = _operation(kind, values)
            if row is None:
                left_out += 1
                continue
            row |= _details(db, kind, values[len(COMMON) :])
            yield row, _key(values[5], values[4])
    if left_out:
        problems.append(f"{left_out} operations without usable times were left out")
    if repeated:
        problems.append(f"{repeated} operations stand there twice, and were counted once")


def _fitting(
    operations: list[tuple[Row, Key]],
    calls: dict[Key, RuntimeCall],
    ranges: list[nvtx.NvtxRange],
    length_ns: int | None,
) -> Iterator[tuple[Row, Key]]:
    """The operations that are not longer than the trace, shortest first.

    Where an export does not say its length, it is the time from the first to the last of the calls, the ranges'
    starts and the shorter operations; what host and GPU did in it cannot tell below UNSEEN_NS.
    """
    times = [moment for call in calls.values() for moment in (call.start, call.end)]
    times += [item.start for item in ranges]
    first, last = min(times, default=0), max(times, default=LIMIT)
    for row, key in sorted(operations, key=lambda found: found[0]["duration_ns"]):
        most = max(last - first, UNSEEN_NS) if length_ns is None else length_ns
        if row["duration_ns"] <= most:
            first, last = min(first, row["start_ns"]), max(last, row["end_ns"])
            yield row, key


_KERNEL_COLUMNS = (
    "shortName", "demangledName", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
)  # fmt: skip


def _operation(kind: str, values: tuple[Any, ...]) -> Row | None:
    """The columns that all kinds share, from the values of COMMON; None without usable times."""
    start, end, device, stream, _, _, node = values[: len(COMMON)]
    begins, ends = integer(start), integer(end)
    if begins is None or ends is None or not 0 <= begins <= ends:
        return None
    return {
        "kind": kind,
        "start_ns": begins,
        "end_ns": ends,
        "duration_ns": ends - begins,
        "device": integer(device),
        "stream": integer(stream),
        "graph": kind == "graph" or bool(integer(node)),
    }


def _details(db: Database, kind: str, values: tuple[Any, ...]) -> Row:
    if kind == "kernel":
        short, demangled = db.string(values[0]), db.string(values[1])
        sizes = {"grid": _dim3(grid, *values[2:5]), "block": _dim3(block, *values[5:8])}
        name = cute.called(short or demangled or "") or None
        return {"name": name, "demangled": demangled, **sizes}
    if kind == "memcpy":
        return {"name": COPY_KINDS.get(values[0], "memcpy"), "bytes": integer(values[1])}
    if kind == "memset":
        return {"name": "memset", "bytes": integer(values[0])}
    return {"name": f"CUDA graph {integer(values[0])}"}


@lru_cache(maxsize=4096, typed=True)  # a sweep launches a few shapes, thousands of times
def _dim3(of: Callable[[Any], Dim3 | None], *values: Any) -> str | None:
    found = of(values)
    return ",".join(map(str, found)) if found else None


# --- attribution and gaps ---------------------------------------------------------------------


def _attribute(
    rows: list[Row],
    calls: list[RuntimeCall | None],
    ranges: list[nvtx.NvtxRange],
    points: Collection[str] | None,
) -> None:
    """Put the call, the open ranges, the point and its repeat into each row."""
    moments = [(call.thread, call.start) if call else (-1, -1) for call in calls]
    for row, call, open_ranges in zip(rows, calls, nvtx.open_at(ranges, moments), strict=True):
        row["api_name"] = call.name if call else None
        row["api_start_ns"] = call.start if call else None
        row["api_duration_ns"] = call.end - call.start if call else None
        point = nvtx.point_range(open_ranges, points)
        row["nvtx"] = "/".join(item.name for item in open_ranges) or None
        row["point"] = point.name if point else None
        row["launch"] = point.number if point else None


def _gaps(rows: list[Row], column: str, keys: tuple[str, ...]) -> None:
    """Idle time before each row since everything earlier of the same keys ended. Where a row lacks one nobody knows it: that
    row may have run in any of them."""
    if any(row[name] is None for row in rows for name in keys):
        for row in rows:
            row[column] = None
        return
    ends: dict[tuple[Any, ...], int] = {}
    for row in rows:
        key = tuple(row[name] for name in keys)
        before = ends.get(key)
        row[column] = None if before is None else max(0, row["start_ns"] - before)
        ends[key] = row["end_ns"] if before is None else max(before, row["end_ns"])


def _range_rows(ranges: list[nvtx.NvtxRange], points: Collection[str] | None) -> Iterator[Row]:
    moments = [(item.scope, item.start) for item in ranges]
    for item, around in zip(ranges, nvtx.open_at(ranges, moments), strict=True):
        own = [other for other in around if other is item or nvtx.encloses(other, item)]
        point = nvtx.point_range(own, points)
        yield {
            "name": item.name,
            "point": point.name if point else None,
            "start_ns": item.start,
            "end_ns": item.end,
            "launch": point.number if point else None,
        }


def _missing(
    db: Database,
    calls: dict[Key, RuntimeCall],
    seen: set[Key],
    rows: list[Row],
    ranges: list[nvtx.NvtxRange],
) -> Iterator[str]:
    """What a reader of the rows should know is not in them."""
    yield from (f"nsys: {text}" for text in db.warnings())
    kinds = [row["kind"] for row in rows]
    if "kernel" not in kinds:
        yield "the trace holds no kernels"
    if "graph" in kinds:
        yield f"{kinds.count('graph')} CUDA graphs traced as a whole: their kernels are not listed"
    for name, what in (
        ("device", "GPU: no gap is known"),
        ("stream", "stream: no gap within one is known"),
    ):
        if unsaid := sum(1 for row in rows if row[name] is None):
            yield f"{unsaid} operations without a {what}"
    if not ranges:
        yield "the trace holds no NVTX ranges"
    lost = sum(1 for row in rows if row["api_start_ns"] is None)
    if lost:
        yield f"{lost} operations without the CUDA call that launched them: in no range"
    heard = {id(calls[key]) for key in seen if key in calls}
    every = {id(call): call for call in calls.values() if _LAUNCH.match(call.name or "")}
    silent = len(every.keys() - heard)
    if silent:
        yield f"{silent} kernel launches without a kernel: captured into a graph, or not recorded"
