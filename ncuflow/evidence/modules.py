"""An Nsight Compute report without the compiled modules that it holds.

A report holds each module that ran whole: megabytes that compress badly, and of which the tables take the SASS and the
source line of sampled instructions alone, which a `listing` keeps. All else, launches, counters, samples, rules and the
list of functions, stays byte for byte.
"""

from __future__ import annotations

from collections.abc import Iterator

from ncuflow.io import NCU_MAGIC
from ncuflow.parsers import container

IMAGE = 4  # of a source entry: the ELF image of a module
ELF = b"\x7fELF"


def without(data: bytes) -> bytes:
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
