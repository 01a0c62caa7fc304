"""The framing of an `.ncu-rep` file, as NVIDIA's customization guide documents it.

Magic "NVR\\0", then length-prefixed protobuf messages: one FileHeader, and blocks of a BlockHeader
and a payload. The blocks must end exactly where the file ends: the reader package loads what it
can of a file cut short, without a word.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ncuflow.io import NCU_MAGIC, BadInput, sniff

RESULTS, PAYLOAD_SIZE = 2, 5  # fields of BlockHeader
_VERSION = re.compile(rb"(\d{4}\.\d+\.\d+)(?:\.\d+)?$")
_SOLUTIONS = {
    "nsys-rep": "read it with ncuflow.parsers.nsys after `nsys export --type sqlite`",
    "sqlite": "an nsys export is read by ncuflow.parsers.nsys",
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


class _Truncated(Exception):  # noqa: N818
    pass


def _walk(data: mmap.mmap) -> int:
    """The number of results that the block headers announce."""
    _, position = _message(data, len(NCU_MAGIC), "file header")
    blocks = results = 0
    while position < len(data):
        header, position = _message(data, position, f"header of block {blocks}")
        fields = dict(_varints(header))
        size = fields.get(PAYLOAD_SIZE, 0)
        if position + size > len(data):
            missing = position + size - len(data)
            raise _Truncated(f"block {blocks} lacks {missing} of {size} bytes")
        _entries(data, position, position + size)
        position += size
        blocks += 1
        results += fields.get(RESULTS, 0)
    if blocks == 0:
        raise _Truncated("it ends after the file header")
    return results


def _message(data: mmap.mmap, position: int, what: str) -> tuple[bytes, int]:
    """A length-prefixed message: its bytes and where it ends."""
    start = position + 4
    end = start + int.from_bytes(data[position:start], "little")
    if start > len(data) or end > len(data):
        raise _Truncated(f"the {what} is cut off")
    return data[start:end], end


def _entries(data: mmap.mmap, position: int, end: int) -> None:
    """The entries of a payload must fill it exactly."""
    while position < end:
        position += 4 + int.from_bytes(data[position : position + 4], "little")
    if position != end:
        raise ValueError("the entries of a block do not fill it")


def _varints(message: bytes) -> Iterator[tuple[int, int]]:
    """(field, value) of the integers of a protobuf message; other fields are stepped over."""
    position = 0
    while position < len(message):
        tag, position = _varint(message, position)
        kind = tag & 7
        if kind == 0:
            value, position = _varint(message, position)
            yield tag >> 3, value
        elif kind == 2:
            length, position = _varint(message, position)
            position += length
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            raise ValueError("a block header is no protobuf message")
    if position != len(message):
        raise ValueError("a block header is no protobuf message")


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while position < len(message) and shift < 64:
        byte = message[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7
    raise ValueError("a block header is no protobuf message")


def _version(data: mmap.mmap) -> str | None:
    """The version that ncu writes as "2025.3.1.0 (build 36398880)", if it does."""
    at = data.find(b" (build ")
    found = _VERSION.search(data[max(0, at - 24) : at]) if at >= 0 else None
    return found[1].decode() if found else None
