"""Mask what an .ncu-rep says about the machine: host, addresses, command line, folders.

A report is `NVR\0`, a length-prefixed header, and length-prefixed protobuf messages. Masking keeps
every length, so the report stays readable. The layout is not documented by NVIDIA; it is as found
in reports of ncu 2025.3.1 (docs/capture.md), and a file laid out otherwise is left alone.

The compiled modules that a report holds can be left out of it: megabytes that compress badly, and of which the tables take
the SASS and the source line of sampled instructions alone, which a `listing` keeps. All else stays byte for byte.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from ncuflow.io import NCU_MAGIC, replacing
from ncuflow.parsers import container
from ncuflow.private import masked_path, paths

SMALL = 64 << 10  # session messages are a few hundred bytes; kernels and modules are far larger
MASK = ord("x")
# field numbers, outermost first
START, SYSTEM, COMMAND = (
    (3, 3),
    (3, 4),
    (3, 11),
)  # messages that hold the system (start, session), the ncu command
HOST, ADDRESS = (5,), (7, 1)
PROGRAM = (6, 3)  # of the process that every message names
HOME = re.compile(rb"/home/[\w.-]+")


def scrub_report(path: Path) -> bool:
    """Mask the private strings of a report in place. False (no change) for another layout."""
    masked = masked_report(path.read_bytes())
    if masked is None:
        return False
    with replacing(path) as temporary:
        temporary.write_bytes(masked)
    return True


def masked_report(report: bytes) -> bytes | None:
    """The report with its private strings masked, each byte where it was; None for another layout."""
    data = bytearray(report)
    spans = list(private_spans(data))
    if not spans:
        return None
    values = {bytes(data[start:end]) for start, end in spans}
    for start, end in spans:
        data[start:end] = bytes([MASK]) * (end - start)
    for value in sorted(values, key=len, reverse=True):
        if b"/" in value:
            _mask_everywhere(data, value)
    mask_paths(data)
    return bytes(data)


def mask_paths(data: bytearray) -> None:
    """Mask the folders of this machine in a file, in place."""
    for start, found in list(paths(data)):
        data[start : start + len(found)] = masked_path(found)
    for match in list(HOME.finditer(data)):
        data[match.start() + len(b"/home/") : match.end()] = bytes([MASK]) * (
            match.end() - match.start() - 6
        )


def scrubbed(data: bytes) -> bool | None:
    """Whether a report's private spans are masked; None if its layout is unknown."""
    spans = list(private_spans(data))
    return all(set(data[start:end]) <= {MASK} for start, end in spans) if spans else None


def private_spans(data: bytes | bytearray) -> Iterator[tuple[int, int]]:
    """Where a report names its host, addresses, command line and program folder."""
    for start, end in messages(data):
        if end - start > SMALL:
            continue
        for path in (START, SYSTEM):
            for system in container.descend(data, start, end, path):
                yield from _system_spans(data, system)
        yield from ((f.value, f.end) for f in container.descend(data, start, end, COMMAND))
        for program in container.descend(data, start, end, PROGRAM):
            folder = bytes(data[program.value : program.end]).rfind(b"/")
            if folder > 0 and data[program.value] == ord("/"):
                yield program.value, program.value + folder


def messages(data: bytes | bytearray) -> list[tuple[int, int]]:
    """(start, end) of each message of a report; none if it is not laid out as expected."""
    try:
        return list(container.messages(data, len(NCU_MAGIC))) if data.startswith(NCU_MAGIC) else []
    except ValueError:
        return []


def _system_spans(data: bytes | bytearray, system: container.Field) -> Iterator[tuple[int, int]]:
    for path in (HOST, ADDRESS):
        for field in container.descend(data, system.value, system.end, path):
            yield field.value, field.end


def _mask_everywhere(data: bytearray, value: bytes) -> None:
    position = data.find(value)
    while position >= 0:
        data[position : position + len(value)] = bytes([MASK]) * len(value)
        position = data.find(value, position + len(value))


IMAGE = 4  # of a source entry: the ELF image of a module
ELF = b"\x7fELF"


def without_modules(data: bytes) -> bytes:
    """The report without its modules' images. Raises ValueError where its framing is not as expected."""
    found = bytearray(NCU_MAGIC)
    head, position = container.message(data, len(NCU_MAGIC), "file header")
    found += data[head - 4 : position]
    while position < len(data):
        start, end = container.message(data, position, "block header")
        header = container.integers(data, start, end)
        position = end + header.get(container.PAYLOAD_SIZE, 0)
        payload = b"".join(_entries(data, end, position, header.get(container.SOURCES, 0)))
        found += _framed(_with_size(data, start, end, len(payload))) + payload
    if position > len(data):
        raise ValueError("its last block is cut off")
    return bytes(found)


def _entries(data: bytes, start: int, end: int, sources: int) -> Iterator[bytes]:
    """The entries of a block, framed: its sources, which come first, without images, the others as they are."""
    for number, (first, last) in enumerate(container.messages(data, start, end)):
        if number >= sources:
            yield data[first - 4 : last]
            continue
        kept = (f for f in container.fields(data, first, last) if not _is_image(data, f))
        yield _framed(b"".join(data[f.start : f.end] for f in kept))


def _is_image(data: bytes, field: container.Field) -> bool:
    return field.number == IMAGE and data.startswith(ELF, field.value)


def _with_size(data: bytes, start: int, end: int, size: int) -> bytes:
    """A block header that announces a payload of this size."""
    return b"".join(
        container.integer(f.number, size)
        if f.number == container.PAYLOAD_SIZE
        else data[f.start : f.end]
        for f in container.fields(data, start, end)
    )


def _framed(message: bytes) -> bytes:
    return len(message).to_bytes(4, "little") + message
