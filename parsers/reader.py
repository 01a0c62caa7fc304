"""NVIDIA's own report reader, the package ncu-report; in child processes, as it never frees what it read and uses one core;
and the framing of an `.ncu-rep`, by which a truncated or damaged one is told from a whole one.

Magic "NVR\\0", then length-prefixed protobuf messages: one FileHeader, and blocks of a BlockHeader and a payload. The blocks
must end exactly where the file ends: the reader package loads what it can of a file cut short, without a word.
"""

import contextlib
import ctypes
import gc
import mmap
import multiprocessing
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from ncuflow.io import NCU_MAGIC, BadInput, sniff


def load(report: Path) -> Any:
    """The IContext of a report. Raises ImportError without the package.

    The reader finds the units of counters in a library beside it, but not below a folder whose name
    is not ASCII: there it loads in silence and every unit is empty. It is therefore shown its own
    folder under another name.
    """
    import ncu_report

    folder = Path(ncu_report.__file__).parent
    if not str(folder).isascii():
        # Open for as long as the process: the library is loaded anew for each report.
        ncu_report.__file__ = f"/proc/self/fd/{os.open(folder, os.O_RDONLY)}/__init__.py"
    try:
        str(report).encode()
    except UnicodeEncodeError:  # a name that is no UTF-8 would not reach the reader
        return ncu_report.load_report(f"/proc/self/fd/{os.open(report, os.O_RDONLY)}")
    return ncu_report.load_report(str(report))


def actions(context: Any, first: int = 0, last: int | None = None) -> Iterator[tuple[int, Any]]:
    """(index, action) of kernels first ≤ index < last; the others are not even parsed."""
    before = 0
    for number in range(context.num_ranges()):
        found = context.range_by_idx(number)
        count = found.num_actions()
        until = before + count if last is None else min(before + count, last)
        for index in range(max(first, before), until):
            yield index, found.action_by_idx(index - before)
        before += count


def counters_library() -> Path:
    """Where NVIDIA's library of counters lies. Raises ImportError without the package."""
    import ncu_report

    return Path(ncu_report.__file__).with_name("libnvperf_host.so")


def preload() -> None:
    """Load that library, which the reader does for the first kernel that it reads: 0.06 s and 110 MB, as much as the kernels of
    a small report. A process that will read reports in children does it once, and they inherit it."""
    # where it has another name, the reader looks for it as before
    with contextlib.suppress(OSError):
        ctypes.CDLL(str(counters_library()))


Task = TypeVar("Task")
Result = TypeVar("Result")
# more would help one job on a large machine, and hurt many jobs on it
AT_ONCE = min(4, os.cpu_count() or 1)


class ChildDied(Exception):  # noqa: N818
    """A child ended without a result: killed, or a crash below Python. `task`: what it was at."""

    def __init__(self, task: Any) -> None:
        super().__init__("a child process died")
        self.task = task


def in_children(
    work: Callable[[Task], Result], tasks: Iterable[Task], at_once: int = AT_ONCE
) -> Iterator[tuple[Task, Result]]:
    """(task, work(task)) in the order of the tasks, each done in a forked child of its own.

    The next task is taken from `tasks` while the children work. What `work` raises is raised here;
    ChildDied where a child ended without a word. Where processes do not fork (Windows), this one does all.
    """
    if "fork" not in multiprocessing.get_all_start_methods():
        yield from ((task, work(task)) for task in tasks)
        return
    running: deque[tuple[Task, Any, Connection]] = deque()
    try:
        for task in tasks:
            if len(running) >= at_once:
                yield _next(running)
            running.append((task, *_start(work, task)))
        while running:
            yield _next(running)
    finally:
        for _, child, connection in running:
            connection.close()
            child.kill()
            child.join()


def _start(work: Callable[[Task], Result], task: Task) -> tuple[Any, Connection]:
    context = multiprocessing.get_context("fork")  # the task need not be pickled, nor modules read
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(theirs, work, task), daemon=True)
    child.start()
    theirs.close()
    return child, ours


def _child(connection: Connection, work: Callable[[Task], Result], task: Task) -> None:
    outcome: Any
    gc.disable()  # a child lives for one task; a collection would copy the pages that it shares
    try:
        outcome = (work(task), None)
    except Exception as error:  # the parent raises it
        outcome = (None, error)
    connection.send(outcome)
    connection.close()


def _next(running: deque[tuple[Task, Any, Connection]]) -> tuple[Task, Any]:
    task, child, connection = running[0]
    try:
        result, error = connection.recv()
    except EOFError:
        raise ChildDied(task) from None
    running.popleft()
    connection.close()
    child.join()
    if error is not None:
        raise error
    return task, result


# --- protobuf's wire format, and length-prefixed messages ------------------------------------

Bytes = bytes | bytearray | mmap.mmap
VARINT, TEXT = 0, 2  # wire types: an integer; a text or a message
_FIXED = {1: 8, 5: 4}  # bytes by wire type


class Field(NamedTuple):
    """A field: its number and wire type, where it starts, where its value does, where both end."""

    number: int
    kind: int
    start: int
    value: int
    end: int


def fields(data: Bytes, start: int = 0, end: int | None = None) -> Iterator[Field]:
    """The fields of the message in data[start:end]; ValueError where these bytes are none."""
    position, end = start, len(data) if end is None else end
    while position < end:
        begin = position
        tag, value = varint(data, position, end)
        kind = tag & 7
        if kind == VARINT:
            _, position = varint(data, value, end)
        elif kind == TEXT:
            size, value = varint(data, value, end)
            position = value + size
        elif kind in _FIXED:
            position = value + _FIXED[kind]
        else:
            raise ValueError(f"no protobuf message (wire type {kind})")
        if position > end:
            raise ValueError("no protobuf message (a field is cut off)")
        yield Field(tag >> 3, kind, begin, value, position)


def integers(data: Bytes, start: int = 0, end: int | None = None) -> dict[int, int]:
    """Field number -> value of the integers of a message; ValueError where it is none."""
    return {
        field.number: varint(data, field.value, field.end)[0]
        for field in fields(data, start, end)
        if field.kind == VARINT
    }


def descend(data: Bytes, start: int, end: int, path: tuple[int, ...]) -> Iterator[Field]:
    """The texts and messages at a path of field numbers; none where the bytes are no message."""
    try:
        found = list(fields(data, start, end))
    except ValueError:
        return
    for field in found:
        if field.number == path[0] and field.kind == TEXT:
            if len(path) == 1:
                yield field
            else:
                yield from descend(data, field.value, field.end, path[1:])


def messages(data: Bytes, start: int = 0, end: int | None = None) -> Iterator[tuple[int, int]]:
    """(start, end) of each length-prefixed message; ValueError where they do not fill the bytes."""
    position, end = start, len(data) if end is None else end
    while position < end:
        begin = position + 4
        position = begin + int.from_bytes(data[position:begin], "little")
        if begin > end or position > end:
            raise ValueError("its messages do not fill it")
        yield begin, position


def varint(data: Bytes, position: int, end: int) -> tuple[int, int]:
    """(the integer that starts at a position, where it ends); ValueError where there is none."""
    value = shift = 0
    while position < end and shift < 64:
        byte = data[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise ValueError("no protobuf message (an integer is cut off)")


def integer(number: int, value: int) -> bytes:
    """An integer as a field of a message."""
    written = bytearray()
    for rest in (number << 3 | VARINT, value):
        while rest > 127:
            written.append(rest & 127 | 128)
            rest >>= 7
        written.append(rest)
    return bytes(written)


# --- the framing -----------------------------------------------------------------------------

# fields of BlockHeader
SOURCES, RESULTS, PAYLOAD_SIZE, RANGE_RESULTS = 1, 2, 5, 7
STRING_TABLE = (4,)
_VERSION = re.compile(rb"(\d{4}\.\d+\.\d+)(?:\.\d+)?$")
_SOLUTIONS = {
    "nsys-rep": "read it with `ncuflow show` after `nsys export --type sqlite`",
    "sqlite": "an nsys export; `ncuflow show` reads it",
    "lfs": "fetch it with `git lfs pull`",
}


@dataclass(frozen=True)
class Container:
    """What the framing tells: how many kernel results, and the version of ncu, if it is there."""

    results: int
    ncu_version: str | None


def check(path: Path, name: str | None = None) -> Container:
    """Walk the whole framing of a report; `name` is what to call it in errors.

    Raises BadInput where the file is no report, is truncated or is damaged.
    """
    called = name or str(path)
    kind, words = sniff(path)
    if kind != "ncu-rep":
        hint = f" ({_SOLUTIONS[kind]})" if kind in _SOLUTIONS else ""
        raise BadInput(called, f"not an Nsight Compute report but {words}{hint}")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return Container(_walk(data), _version(data))
    except _Truncated as error:
        raise BadInput(called, f"a truncated Nsight Compute report ({error})") from None
    except ValueError as error:
        raise BadInput(called, f"a damaged Nsight Compute report ({error})") from None


class _Truncated(ValueError):  # noqa: N818
    pass


def _walk(data: mmap.mmap) -> int:
    """The number of kernel results: what the block headers announce, which must be what they hold."""
    _, position = message(data, len(NCU_MAGIC), "file header")
    blocks = results = 0
    while position < len(data):
        start, end = message(data, position, f"header of block {blocks}")
        header = integers(data, start, end)
        position = end + header.get(PAYLOAD_SIZE, 0)
        if position > len(data):
            missing = position - len(data)
            raise _Truncated(f"block {blocks} lacks {missing} of {position - end} bytes")
        _names(data, start, end)
        announced = sum(header.get(number, 0) for number in (SOURCES, RESULTS, RANGE_RESULTS))
        held = sum(1 for _ in messages(data, end, position))
        if held != announced:
            raise ValueError(f"block {blocks} announces {announced} entries and holds {held}")
        blocks += 1
        results += header.get(RESULTS, 0)
    if blocks == 0:
        raise _Truncated("it ends after the file header")
    return results


def message(data: Bytes, position: int, what: str) -> tuple[int, int]:
    """Where a length-prefixed message starts and ends."""
    start = position + 4
    end = start + int.from_bytes(data[position:start], "little")
    if start > len(data) or end > len(data):
        raise _Truncated(f"the {what} is cut off")
    return start, end


def _names(data: mmap.mmap, start: int, end: int) -> None:
    """The string table of a block holds distinct printable names and nothing else.

    Results refer to counters by place in it: a name that is lost or merged with its neighbour gives
    every later counter the name of another.
    """
    seen: set[bytes] = set()
    for table in descend(data, start, end, STRING_TABLE):
        for name in fields(data, table.value, table.end):
            text = data[name.value : name.end]
            if name.number != 1 or text in seen or not text.decode().isprintable() or not text:
                raise ValueError(f"damaged names of counters at byte {name.start}")
            seen.add(text)


def _version(data: mmap.mmap) -> str | None:
    """The version that ncu writes as "2025.3.1.0 (build 36398880)", if it does."""
    at = data.find(b" (build ")
    found = _VERSION.search(data[max(0, at - 24) : at]) if at >= 0 else None
    return found[1].decode() if found else None
