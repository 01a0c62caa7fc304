"""Protobuf's wire format and length-prefixed messages: what `.ncu-rep` files are written in."""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from typing import NamedTuple

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
