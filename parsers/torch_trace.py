"""What torch's profiler wrote (JSON, plain or .gz) → a timeline.

An event at a time is decoded: a trace of gigabytes takes the memory of what ran on the GPU. Stacks of Python are
passed over, but for FlashInfer's plan().
"""

from __future__ import annotations

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ncuflow.io import BadInput, clean, opened, shown, sniff
from ncuflow.parsers import cute
from ncuflow.parsers.timeline import (  # fmt: skip
    KERNEL,
    MEMCPY,
    MEMSET,
    UNSAID,
    Dim3,
    Launched,
    Operator,
    Timeline,
    key,
)

BLOCK = 1 << 22  # bytes that are read at once
LONGEST = 1 << 26  # characters of one event; beyond it there is no end of it
_SPACE = re.compile(r"[\s,]*")
_PLAN = re.compile(r"flashinfer/\w+\.py\(\d+\): plan$")
_KINDS = {"kernel": KERNEL, "gpu_memcpy": MEMCPY, "gpu_memset": MEMSET}
_CALLS = {"cuda_runtime", "cuda_driver"}
_ROC = "roctracer_version"
MOST_OPERATORS = 4_000_000  # of whose shapes it is remembered which kernel they are of


def is_torch(path: str | Path) -> bool:
    """Whether a file is JSON, packed or not, as torch's profiler and others write traces."""
    kind = sniff(path)[0]
    return kind in ("json", "gzip")


def read(path: str | Path) -> Timeline:
    """Raises BadInput where the file is no trace of torch's profiler, is cut short, or holds no work of a GPU."""
    called = shown(path)
    with opened(path) as plain, _unpacked(plain) as file:
        timeline = Timeline(called, "torch profiler")
        try:
            head = _read(Events(file, called), timeline)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise BadInput(called, "a truncated or damaged gzip archive") from None
    _devices(head, timeline)
    if not len(timeline.operations):
        raise BadInput(called, "a JSON trace that holds no operation of a GPU")
    return timeline


def _unpacked(path: Path) -> IO[bytes]:
    return gzip.open(path) if sniff(path)[0] == "gzip" else path.open("rb")  # type: ignore[return-value]


class Events:
    """The JSON of a trace, an event at a time; ``head`` is what stands beside the events."""

    def __init__(self, file: IO[bytes], name: str) -> None:
        self.head: dict[str, Any] = {}
        self._file, self._name = file, name
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._raw = json.JSONDecoder().raw_decode
        self._text, self._at = "", 0

    def __iter__(self) -> Iterator[Any]:
        first = self._next_sign()
        if first == "[":
            self._at += 1
            yield from self._elements()
            return
        if first != "{":
            raise BadInput(self._name, "neither an nsys export nor the JSON of torch's profiler")
        self._at += 1
        while (sign := self._next_sign()) != "}":
            if sign != '"':
                raise BadInput(self._name, "damaged JSON, or cut short")
            name = self._value()
            if self._next_sign() != ":":
                raise BadInput(self._name, "damaged JSON, or cut short")
            self._at += 1
            if name == "traceEvents" and self._next_sign() == "[":
                self._at += 1
                yield from self._elements()
            else:
                self._next_sign()
                self.head[str(name)] = self._value()

    def _elements(self) -> Iterator[Any]:
        raw, space = self._raw, _SPACE.match
        while True:
            found = space(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._text[self._at : self._at + 1] == "]":
                self._at += 1
                return
            try:
                value, self._at = raw(self._text, self._at)
            except RecursionError:
                raise BadInput(self._name, "JSON nested too deep") from None
            except ValueError:
                self._more()
                continue
            yield value

    def _next_sign(self) -> str:
        """The next character that is no space or comma, which is not passed; empty at the end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            self._more()

    def _value(self) -> Any:
        while True:
            try:
                value, end = self._raw(self._text, self._at)
            except RecursionError:
                raise BadInput(self._name, "JSON nested too deep") from None
            except ValueError:
                self._more()
                continue
            if end < len(self._text):  # a number may go on in what was not read
                self._at = end
                return value
            self._more()

    def _more(self) -> None:
        block = self._file.read(BLOCK)
        rest = self._text[self._at :]
        if not block or len(rest) > LONGEST:
            raise BadInput(self._name, "damaged JSON, or cut short")
        self._text, self._at = rest + self._decoder.decode(block), 0


def _read(events: Events, timeline: Timeline) -> dict[str, Any]:
    """Put the events into the timeline; what stands beside them."""
    externals: dict[int, int] = {}
    pending: list[
        tuple[int, int]
    ] = []  # (place of an operation, External id) until operators are known
    operations, left_out = timeline.operations, 0
    names: dict[Any, int] = {}
    for event in events:
        if not isinstance(event, dict) or event.get("ph") not in ("X", None):
            continue
        category = event.get("cat")
        try:
            if category == "cpu_op":
                _operator(event, timeline, externals)
            elif category in _KINDS:
                left_out += not _operation(event, _KINDS[category], timeline, names, pending)
            elif category in _CALLS:
                _call(event, timeline)
            elif category == "user_annotation" or (
                category == "python_function" and _PLAN.search(event.get("name", ""))
            ):
                begin, end = _times(event)
                name = timeline.names[clean(str(event["name"]))]
                timeline.ranges.add(begin, end, _thread(event), name)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            left_out += 1
    if left_out:
        timeline.problems.append(f"{left_out} events without usable times or names were left out")
    column = operations._values["operator"]
    for place, external in pending:
        column[place] = externals.get(external, UNSAID)
    return events.head


def _times(event: dict[str, Any]) -> tuple[int, int]:
    """Begin and end in ns; raises ValueError where they make no sense."""
    begin, duration = event["ts"], event["dur"]
    start, end = round(float(begin) * 1000), round((float(begin) + float(duration)) * 1000)
    if not 0 <= start <= end < 1 << 62:
        raise ValueError(begin)
    return start, end


def _thread(event: dict[str, Any]) -> int:
    tid = event.get("tid")
    return tid if isinstance(tid, int) else hash(tid) & 0xFFFFFFFF


def _operation(
    event: dict[str, Any],
    kind: str,
    timeline: Timeline,
    names: dict[Any, int],
    pending: list[tuple[int, int]],
) -> bool:
    start, end = _times(event)
    args = event.get("args") or {}
    shared = args.get("shared memory")
    said = (args.get(one) for one in ("grid", "block", "registers per thread"))
    seen = (kind, event["name"], *map(str, said), str(shared))
    what = names.get(seen)
    if what is None:
        name = clean(str(event["name"]))
        if kind == KERNEL:
            one = Launched(
                kind, cute.called(name), _dim3(args.get("grid")), _dim3(args.get("block")),
                _whole(args.get("registers per thread")), _whole(shared),
            )  # fmt: skip
        else:
            one = Launched(kind, _copied(name) if kind == MEMCPY else "memset")
        what = names[seen] = timeline.launched[one]
    graph = args.get("graph node id") or args.get("graph id")
    correlation = _whole(args.get("correlation"))
    external = _whole(args.get("External id"))
    timeline.operations.add(
        start, end, what, _whole(args.get("device")) or 0, _number(args.get("stream")),
        UNSAID if correlation is None else key(0, correlation),
        UNSAID if not graph or correlation is None else correlation,
        _number(args.get("bytes")), UNSAID,
    )  # fmt: skip
    if external is not None:
        pending.append((len(timeline.operations) - 1, external))
    return True


def _copied(name: str) -> str:
    """Device-to-Host of "Memcpy DtoH (Device -> Pageable)"."""
    found = re.search(r"\b([DHP])to([DHP])\b", name)
    sides = {"D": "Device", "H": "Host", "P": "Peer"}
    return f"{sides[found[1]]}-to-{sides[found[2]]}" if found else name


def _call(event: dict[str, Any], timeline: Timeline) -> None:
    start, end = _times(event)
    correlation = _whole((event.get("args") or {}).get("correlation"))
    name = timeline.names[clean(str(event["name"]))]
    where = UNSAID - 1 if correlation is None else key(0, correlation)
    timeline.calls.add(start, end, _thread(event), name, where)


def _operator(event: dict[str, Any], timeline: Timeline, externals: dict[int, int]) -> None:
    args = event.get("args") or {}
    dims = args.get("Input Dims") or args.get("Input dims")
    external = _whole(args.get("External id"))
    if not dims or external is None or len(externals) >= MOST_OPERATORS:
        return
    shapes = tuple(tuple(d) if isinstance(d, list) and all(type(n) is int for n in d) else () for d in dims)  # fmt: skip
    if any(shapes):
        types = args.get("Input type") or ()
        operator = Operator(clean(str(event["name"])), shapes, tuple(map(str, types)))
        externals[external] = timeline.operators[operator]


def _dim3(value: Any) -> Dim3 | None:
    if isinstance(value, list) and len(value) == 3 and all(type(n) is int for n in value):
        return (value[0], value[1], value[2])
    return None


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 40 else None


def _number(value: Any) -> int:
    found = _whole(value)
    return UNSAID if found is None else found


def _devices(head: dict[str, Any], timeline: Timeline) -> None:
    """GPU names and their SMs, from what stands beside the events."""
    amd = _ROC in head
    timeline.tool = "torch profiler" + (" (ROCm)" if amd else "")
    for number, one in enumerate(head.get("deviceProperties") or ()):
        if isinstance(one, dict):
            place = one.get("id", number)
            index = place if isinstance(place, int) else number
            if isinstance(one.get("name"), str) and one["name"]:
                timeline.devices[index] = clean(one["name"])
            if isinstance(one.get("numSms"), int):
                timeline.sms[index] = one["numSms"]
