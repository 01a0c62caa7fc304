"""What torch's profiler wrote (JSON, plain or .gz) → a timeline.

An event at a time is decoded: a trace of gigabytes takes the memory of what ran on the GPU. Stacks of Python are
skipped, but for FlashInfer's plan().
"""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from decimal import Decimal, DecimalException
from pathlib import Path
from typing import IO, Any

import numpy as np

from ncuflow.io import MOST_UNPACKED, BadInput, JsonObject, clean, opened, printable, sniff
from ncuflow.parsers import demangled
from ncuflow.parsers.timeline import (  # fmt: skip
    KERNEL,
    MEMCPY,
    MEMSET,
    UNSAID,
    Launched,
    Operator,
    Timeline,
    block,
    grid,
    key,
    name,
)

BLOCK = 1 << 22  # bytes that are read at once
LONGEST = 1 << 24  # characters of one event
_SPACE = re.compile(r"[\s,]*")
_STRING = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_BRACKET = re.compile(rf"{_STRING.pattern}|[][{{}}]", re.DOTALL)
_PLAN = re.compile(r"flashinfer/\w+\.py\(\d+\): plan$")
# As torch writes them, and wrote them until 1.11.
_KINDS = {
    "kernel": KERNEL, "gpu_memcpy": MEMCPY, "gpu_memset": MEMSET, "Kernel": KERNEL, "Memcpy": MEMCPY, "Memset": MEMSET,
}  # fmt: skip
_CALLS = {"cuda_runtime", "cuda_driver", "Runtime"}
_OPERATORS = {"cpu_op", "Operator"}
_DEVICES, _ROC = "deviceProperties", "roctracer_version"
FURTHEST_US = 1 << 52  # of a time; beyond it ns are no longer whole numbers of 64 bits
MOST_OPERATORS = 4_000_000  # of whose shapes it is remembered which kernel they are of


def read(path: str | Path) -> Timeline:
    """Raises BadInput where the file is no trace of torch's profiler, is cut short, or holds no work of a GPU."""
    called = printable(path)
    with opened(path) as plain, _unpacked(plain) as file:
        timeline = Timeline(called, "torch profiler")
        try:
            head = _read(Events(file, called, plain.stat().st_size), timeline)
        except (EOFError, zlib.error, gzip.BadGzipFile):
            raise BadInput(called, "a truncated or damaged gzip archive") from None
    _devices(head, timeline)
    timeline.finish()
    if not len(timeline.operations):
        raise BadInput(called, "a JSON trace that holds no operation of a GPU")
    return timeline


def _unpacked(path: Path) -> IO[bytes]:
    return gzip.open(path) if sniff(path)[0] == "gzip" else path.open("rb")  # type: ignore[return-value]


class Events:
    """The JSON of a trace, an event at a time; ``head`` is what of that beside the events is looked at. A number with a point is
    the text that it is written in: as a float a time since 1970 keeps no ns."""

    def __init__(self, file: IO[bytes], name: str, size: int) -> None:
        self.head: JsonObject = {}
        self._file, self._name = file, name
        self._left = MOST_UNPACKED * size + (64 << 20)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._raw = json.JSONDecoder(parse_float=str).raw_decode
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
            elif name in (_DEVICES, _ROC):
                self._next_sign()
                self.head[str(name)] = self._value()
            else:
                self._pass()
        self._at += 1

    def followed(self) -> bool:
        """Whether anything stands behind the JSON that was read."""
        return bool(self._next_sign(ends=True))

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

    def _next_sign(self, ends: bool = False) -> str:
        """The next character that is no space or comma, which is not passed; empty at the end, where the JSON may end."""
        while True:
            found = _SPACE.match(self._text, self._at)
            self._at = found.end() if found else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more(ends):
                return ""

    def _pass(self) -> None:
        """Pass over a value without making anything of it: it may be larger than all events, and worth nothing."""
        if self._next_sign() not in "[{":
            self._value()
            return
        depth = 0
        while True:
            rest = self._text[self._at :]
            bare = _STRING.sub("", rest)
            tail = bare.find('"')  # a string that is not read to its end
            signs = np.frombuffer(
                bare[: tail if tail >= 0 else None].encode("ascii", "replace"), np.uint8
            )
            opens, closes = (np.isin(signs, [*one]) for one in (b"[{", b"]}"))
            depths = depth + np.cumsum(opens.astype(np.int32) - closes)
            if (depths == 0).any():
                break
            depth = int(depths[-1]) if len(depths) else depth
            self._at = len(self._text) - (len(bare) - tail if tail >= 0 else 0)
            self._more()
        for found in _BRACKET.finditer(self._text, self._at):
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
            if depth == 0:
                self._at = found.end()
                return

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

    def _more(self, ends: bool = False) -> bool:
        """Read on behind what is not yet passed: as much again, so that what is tried anew each time is twice its length in
        all. Whether there was more; raises BadInput where there has to be."""
        rest = self._text[self._at :]
        if len(rest) > LONGEST:
            raise BadInput(self._name, f"damaged JSON, or a value of more than {LONGEST >> 20} MB")
        read = self._file.read(max(BLOCK, len(rest)))
        self._left -= len(read)
        if self._left < 0:
            raise BadInput(
                self._name, f"a gzip archive of more than {MOST_UNPACKED} times its size"
            )
        if not read and not ends:
            raise BadInput(self._name, "damaged JSON, or cut short")
        self._text, self._at = rest + self._decoder.decode(read), 0
        return bool(read)


def _read(events: Events, timeline: Timeline) -> JsonObject:
    """Put the events into the timeline; what stands beside them."""
    externals: dict[int, int] = {}
    left_out = 0
    names: dict[Any, int] = {}
    for event in events:
        if not isinstance(event, dict) or event.get("ph") not in ("X", None):
            continue
        category = event.get("cat")
        try:
            if category in _OPERATORS:
                _operator(event, timeline, externals)
            elif category in _KINDS:
                _operation(event, _KINDS[category], timeline, names)
            elif category in _CALLS:
                _call(event, timeline)
            elif category == "user_annotation" or (
                category == "python_function" and _PLAN.search(event.get("name", ""))
            ):
                begin, end = _times(event)
                called = timeline.names[name(event["name"])]
                timeline.ranges.add(begin, end, _thread(event), called)
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError, DecimalException):
            left_out += 1
    if left_out:
        timeline.problems.append(f"{left_out} events without usable times or names were left out")
    if events.followed():
        timeline.problems.append(
            "something follows the JSON, perhaps a second trace: it was not read"
        )
    timeline.operations.number("operator", externals)
    return events.head


def _times(event: JsonObject) -> tuple[int, int]:
    """Begin and end in ns; raises ValueError where they make no sense."""
    begin, duration = _ns(event["ts"]), _ns(event["dur"])
    return begin, begin + duration


def _ns(value: Any) -> int:
    """Whole ns of us as they are written."""
    if type(value) not in (int, str):
        raise TypeError(value)
    us = Decimal(value)
    if not 0 <= us < FURTHEST_US:
        raise ValueError(value)
    return round(us * 1000)


def _thread(event: JsonObject) -> int:
    """A number of each thread: those of several processes, in traces that were merged, may have the same."""
    return zlib.crc32(repr((event.get("pid"), event.get("tid"))).encode())


def _operation(event: JsonObject, kind: str, timeline: Timeline, names: dict[Any, int]) -> None:
    start, end = _times(event)
    args = event.get("args") or {}
    shared = args.get("shared memory")
    said = (args.get(one) for one in ("grid", "block", "registers per thread"))
    seen = (kind, event["name"], *map(str, said), str(shared))
    what = names.get(seen)
    if what is None:
        called = name(event["name"])
        if kind == KERNEL:
            one = Launched(
                kind, demangled.cute_name(called), grid(args.get("grid")), block(args.get("block")),
                _whole(args.get("registers per thread")), _whole(shared),
            )  # fmt: skip
        else:
            one = Launched(kind, _copied(called) if kind == MEMCPY else "memset")
        what = names[seen] = timeline.launched[one]
    node = args.get("graph node id") or args.get("graph id")
    correlation = _whole(args.get("correlation"))
    timeline.operations.add(
        start, end, what, _number(args.get("device")), _number(args.get("stream")),
        UNSAID if correlation is None else key(0, correlation),
        UNSAID if not node or correlation is None else _node(node),
        _number(args.get("bytes")), _number(_external(args)),
    )  # fmt: skip


def _node(value: Any) -> int:
    """Of a graph, a number."""
    return value if type(value) is int and 0 < value < 1 << 62 else 0


def _external(args: JsonObject) -> Any:
    """The number that an operator and what it launched have in common."""
    return args.get("External id", args.get("external id"))


def _copied(name: str) -> str:
    """Device-to-Host of "Memcpy DtoH (Device -> Pageable)"."""
    found = re.search(r"\b([DHP])to([DHP])\b", name)
    sides = {"D": "Device", "H": "Host", "P": "Peer"}
    return f"{sides[found[1]]}-to-{sides[found[2]]}" if found else name


def _call(event: JsonObject, timeline: Timeline) -> None:
    start, end = _times(event)
    correlation = _whole((event.get("args") or {}).get("correlation"))
    called = timeline.names[name(event["name"])]
    where = UNSAID - 1 if correlation is None else key(0, correlation)
    timeline.calls.add(start, end, _thread(event), called, where)


def _operator(event: JsonObject, timeline: Timeline, externals: dict[int, int]) -> None:
    args = event.get("args") or {}
    dims = args.get("Input Dims") or args.get("Input dims")
    external = _whole(_external(args))
    if not dims or external is None or len(externals) >= MOST_OPERATORS:
        return
    shapes = tuple(tuple(d) if isinstance(d, list) and None not in map(_whole, d) else () for d in dims)  # fmt: skip
    if any(shapes):
        types = args.get("Input type") or ()
        operator = Operator(name(event["name"]), shapes, tuple(map(str, types)))
        externals[external] = timeline.operators[operator]


def _whole(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 40 else None


def _number(value: Any) -> int:
    found = _whole(value)
    return UNSAID if found is None else found


def _devices(head: JsonObject, timeline: Timeline) -> None:
    """GPU names and their SMs, from what stands beside the events."""
    amd = _ROC in head
    timeline.tool = "torch profiler" + (" (ROCm)" if amd else "")
    said = head.get(_DEVICES)
    for number, one in enumerate(said if isinstance(said, list) else ()):
        if isinstance(one, dict):
            place = _whole(one.get("id"))
            index = number if place is None else place
            if isinstance(one.get("name"), str) and one["name"]:
                timeline.devices[index] = clean(one["name"])
