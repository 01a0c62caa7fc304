"""Nsight Compute reports made of the kernels of a real one: under other names, or many more.

A report is a header and blocks; a block with a result holds one profiled kernel, whose message
names the NVTX ranges it ran in (the layout is as found in reports of ncu 2025.3.1). Counters are
copied as they are.
"""

from __future__ import annotations

import lzma
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncuflow.io import NCU_MAGIC as MAGIC
from ncuflow.parsers import reader
from ncuflow.parsers.reader import PAYLOAD_SIZE, RESULTS, integers

NVTX_NAME = (21, 2, 2, 3, 1)  # of a result: state, domain, thread's ranges, range, name
STRING_TABLE = 4096  # bytes: a longer header carries the texts that later blocks refer to


def prefixed(message: bytes) -> bytes:
    """A message behind its length."""
    return len(message).to_bytes(4, "little") + message


def encoded(value: int) -> bytes:
    """An integer as `wire.varint` reads it."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes((*out, value))


@dataclass(frozen=True)
class Block:
    """One block: its header (a message) and its payload (messages, each behind its length)."""

    header: bytes
    payload: bytes

    @property
    def is_kernel(self) -> bool:
        """Holds a kernel and nothing that other blocks need."""
        return bool(integers(self.header).get(RESULTS)) and len(self.header) < STRING_TABLE

    def bytes(self) -> bytes:
        header = with_integer(self.header, PAYLOAD_SIZE, len(self.payload))
        return prefixed(header) + self.payload

    def renamed(self, name: Callable[[str], str]) -> Block:
        """The same block with its NVTX ranges renamed."""

        def change(value: bytes) -> bytes:
            return name(value.decode()).encode()

        parts = (
            edit(self.payload[start:end], NVTX_NAME, change)
            for start, end in reader.messages(self.payload)
        )
        return Block(self.header, b"".join(prefixed(part) for part in parts))


def read(path: Path) -> tuple[bytes, list[Block]]:
    """(what comes before the blocks, the blocks) of a report, plain or ``.xz``."""
    data = path.read_bytes()
    if path.suffix == ".xz":
        data = lzma.decompress(data)
    if not data.startswith(MAGIC):
        raise ValueError(f"{path}: not an Nsight Compute report")
    start = len(MAGIC) + 4 + int.from_bytes(data[len(MAGIC) : len(MAGIC) + 4], "little")
    blocks, at = [], start
    while at < len(data):
        begin, end = next(reader.messages(data, at))
        size = integers(data, begin, end).get(PAYLOAD_SIZE, 0)
        blocks.append(Block(data[begin:end], data[end : end + size]))
        at = end + size
    return data[:start], blocks


def rename(report: Path, names: Mapping[str, str]) -> bytes:
    """The report with its NVTX ranges renamed by `names`; others keep theirs."""
    head, blocks = read(report)
    return head + b"".join(block.renamed(lambda n: names.get(n, n)).bytes() for block in blocks)


def repeat(report: Path, kernels: int) -> bytes:
    """A report of `kernels` kernels: those of `report` over and over, its modules once."""
    head, blocks = read(report)
    plain = [block for block in blocks if block.is_kernel]
    missing = kernels - sum(bool(integers(b.header).get(RESULTS)) for b in blocks)
    more = (plain[index % len(plain)] for index in range(max(0, missing)))
    return head + b"".join(block.bytes() for block in (*blocks, *more))


def of_points(report: Path, points: Sequence[str]) -> bytes:
    """A report with one kernel a point, under its name; the counters are those of `report`."""
    head, blocks = read(report)
    plain = [block for block in blocks if block.is_kernel]
    rest = [block for block in blocks if not integers(block.header).get(RESULTS)]
    texts = next(b for b in blocks if integers(b.header).get(RESULTS) and not b.is_kernel)
    chosen = [texts, *(plain[index % len(plain)] for index in range(len(points) - 1))]
    named = [_under(name, block) for block, name in zip(chosen, points, strict=False)]
    return head + b"".join(block.bytes() for block in (*rest, *named))


def _under(name: str, block: Block) -> Block:
    return block.renamed(lambda _: name)


# --- protobuf ---------------------------------------------------------------------------------


def edit(message: bytes, path: tuple[int, ...], change: Callable[[bytes], bytes]) -> bytes:
    """The message with the values at a path of field numbers changed, and the lengths above."""
    out = []
    for number, kind, start, value, end in reader.fields(message):
        if number == path[0] and kind == reader.TEXT:
            inner = message[value:end]
            inner = change(inner) if len(path) == 1 else edit(inner, path[1:], change)
            out.append(encoded(number << 3 | reader.TEXT) + encoded(len(inner)) + inner)
        else:
            out.append(message[start:end])
    return b"".join(out)


def with_integer(message: bytes, field: int, number: int) -> bytes:
    """The message with one of its integers replaced."""
    return b"".join(
        encoded(field << 3) + encoded(number) if at == field and kind == 0 else message[start:end]
        for at, kind, start, _, end in reader.fields(message)
    )
