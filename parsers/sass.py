"""SASS of compiled kernels, as NVIDIA's tools list it: instruction mix and hot loop, resources, spills.

Everything here reads text: of `cuobjdump -sass`, `cuobjdump -res-usage` and `ptxas -v`.
"""

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

from ncuflow.io import JsonObject

_FUNCTION = re.compile(r"^\s*Function\s*:?\s+([^\s:]+)\s*:?\s*$")
_INSTRUCTION = re.compile(
    r"^\s*/\*(?P<address>[0-9a-f]{4,})\*/\s+(?:@!?U?P[T\d]+\s+)?(?P<opcode>[A-Z][\w.]*)(?P<rest>[^;]*);"
)
_LABEL = re.compile(r"^\s*(?P<label>\.L_x?_?\w+):")
_TARGET = re.compile(r"`\((?P<label>\.L\w+)\)|\b(?P<address>0x[0-9a-f]+)\s*$")
_ENTRY = re.compile(r"Compiling entry function '(\S+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_BARRIERS = re.compile(r"used (\d+) barriers")
RESOURCES = {"registers": "REG", "stack_bytes": "STACK", "shared_bytes": "SHARED"}
# What the work of a loop is, from the first family that any loop of the kernel has.
FAMILIES = (
    r"(UTC[A-Z]*|[HIQBDO]*G?)MMA\b",
    r"LDGSTS|UTMALDG|UBLKCP|LDG",
    r"LDS",
    r"",
)
# What PTX calls the tensor instructions, by their opcodes: of a warp, of four warps, of the tensor memory of an SM.
TENSOR = {
    "mma.sync": r"[HIQBDO]*MMA\b",
    "wgmma": r"[HIQBDO]*GMMA\b",
    "tcgen05": r"UTC[A-Z]*MMA\b",
}
PADDING = {"NOP"}  # after the last instruction, up to the size of a cache line


class Instruction(NamedTuple):
    """address: bytes from the kernel's start; target: where it branches to, None where it does not."""

    address: int
    opcode: str
    target: int | None


def kernels(listing: str) -> dict[str, JsonObject]:
    """Mangled name -> {instructions, code_bytes, mix, hot_loop} of each function of `cuobjdump -sass`.

    mix: opcode with its modifiers -> how often it stands in the code; hot_loop: {instructions, mix}
    of the innermost loop with the most tensor instructions, else loads; None in straight code.
    """
    return {name: _summary(code) for name, code in _functions(listing)}


def digests(listing: str) -> dict[str, str]:
    """Mangled name -> digest of its code, of `cuobjdump -sass`: instructions with their operands and encodings."""
    found: JsonObject = {}
    current = None
    for line in listing.splitlines():
        function = _FUNCTION.match(line)
        if function:
            current = found.setdefault(function[1], sha256())
        elif current is not None and line.lstrip().startswith("/*"):
            current.update(" ".join(line.split()).encode())
    return {name: code.hexdigest() for name, code in found.items()}


def resources(usage: str) -> dict[str, dict[str, int]]:
    """Mangled name -> registers (per thread), stack and static shared memory (bytes), of `-res-usage`."""
    found, name = {}, None
    for line in usage.splitlines():
        function = _FUNCTION.match(line)
        if function:
            name = function[1]
        elif name and "REG:" in line:
            said = dict(re.findall(r"(\w+):(\d+)", line))
            found[name] = {key: int(said[word]) for key, word in RESOURCES.items()}
    return found


def spills(said: str) -> dict[str, dict[str, int]]:
    """Mangled name -> spill_store_bytes, spill_load_bytes and barriers, of what `ptxas -v` said."""
    found: dict[str, dict[str, int]] = {}
    name = None
    for line in said.splitlines():
        entry, frame, barriers = _ENTRY.search(line), _FRAME.search(line), _BARRIERS.search(line)
        if entry:
            name = entry[1]
        elif frame and name:
            stores, loads = int(frame[2]), int(frame[3])
            found[name] = {"spill_store_bytes": stores, "spill_load_bytes": loads, "barriers": 0}
        if barriers and name in found:
            found[name]["barriers"] = int(barriers[1])
    return found


def _functions(listing: str) -> Iterator[tuple[str, list[Instruction]]]:
    name: str | None = None
    code: list[tuple[int, str, str]] = []
    labels: dict[str, int] = {}
    for line in [*listing.splitlines(), "Function : end"]:
        function, label = _FUNCTION.match(line), _LABEL.match(line)
        instruction = _INSTRUCTION.match(line)
        if function:
            if name and code:
                yield name, list(_resolved(code, labels))
            name, code, labels = function[1], [], {}
        elif label:
            labels[label["label"]] = code[-1][0] + 16 if code else 0
        elif instruction:
            text = (instruction["opcode"], instruction["rest"])
            code.append((int(instruction["address"], 16), *text))


def _resolved(
    code: Sequence[tuple[int, str, str]], labels: dict[str, int]
) -> Iterator[Instruction]:
    for address, opcode, rest in code:
        target = _TARGET.search(rest) if opcode.startswith("BRA") else None
        place = None
        if target:
            place = labels.get(target["label"]) if target["label"] else int(target["address"], 16)
        yield Instruction(address, opcode, place)


def _summary(code: Sequence[Instruction]) -> JsonObject:
    mix = Counter(i.opcode for i in code if i.opcode not in PADDING)
    hot = _hottest([Counter(i.opcode for i in loop) for loop in _innermost(code)])
    return {
        "instructions": mix.total(),
        "code_bytes": code[-1].address + 16,
        "mix": dict(sorted(mix.items())),
        "hot_loop": hot and {"instructions": hot.total(), "mix": dict(sorted(hot.items()))},
    }


def _innermost(code: Sequence[Instruction]) -> Iterator[Sequence[Instruction]]:
    """The instructions of each loop that holds no other: from a backward branch's target to the branch."""
    addresses = [i.address for i in code]
    back = sorted(
        {(i.target, i.address) for i in code if i.target is not None and i.target < i.address}
    )
    for start, end in back:
        if not any(start <= a and b <= end and (a, b) != (start, end) for a, b in back):
            yield code[bisect_left(addresses, start) : bisect_left(addresses, end) + 1]


def _hottest(loops: Sequence[Counter[str]]) -> Counter[str] | None:
    for family in FAMILIES:
        work = [count(loop, family) for loop in loops]
        if any(work):
            return loops[work.index(max(work))]
    return None


def count(mix: Counter[str] | dict[str, int], family: str) -> int:
    """How many instructions of a mix have an opcode that the pattern `family` begins."""
    return sum(n for opcode, n in mix.items() if re.match(family, opcode))
