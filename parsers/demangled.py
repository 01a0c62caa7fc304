"""Names of kernels: demangled ones taken apart by their brackets, in time that grows with their length, and those of the CuTe
DSL, which are mangled from all that one was compiled for.

A name is anybody's: of a megabyte, nested a thousand deep, with brackets that do not match.
"""

import re
from collections.abc import Iterator

# Its module, the class of its object, and the tensors and constants that it was compiled for.
CUTE_MANGLED = re.compile(
    r"kernel_cutlass_[^A-Z]*(?P<kind>[A-Z][A-Za-z0-9]*)_object_at_++(?P<compiled_for>\w+)"
)


def cute_name(name: str) -> str:
    """``RMSNormKernel (CuTe DSL)`` of a mangled name, since a class may be called as the CUDA kernel whose work it does;
    any other name as it is."""
    found = CUTE_MANGLED.fullmatch(name)
    return f"{found['kind']} (CuTe DSL)" if found else name


_CLOSES = {">": "<", ")": "(", "]": "[", "}": "{"}
_OPENS = frozenset(_CLOSES.values())
# what a name without one begins with: <unnamed>, (anonymous namespace), [lambda(int)]
_UNNAMED = "<([{"


def _outside(text: str) -> Iterator[tuple[int, str]]:
    """(place, character) of what stands outside of all brackets, an opening one before its inside. A `>` that no `<` is open
    for is a sign, and a bracket closes those within it that are open."""
    opened: list[str] = []
    for index, char in enumerate(text):
        if not opened:
            yield index, char
        if char in _OPENS:
            opened.append(char)
        elif char == ">":
            if opened and opened[-1] == "<":
                opened.pop()
        elif char in _CLOSES:
            while opened and opened.pop() != _CLOSES[char]:
                pass


def without_parameters(name: str) -> str:
    """``void ns::kernel<…>`` of ``void ns::kernel<…>(T1 *, …)``."""
    for index, char in _outside(name):
        begins = char == "(" and index and not name.endswith(("::", " ", "decltype"), 0, index)
        if begins:
            return name[:index]
    return name


def function(name: str) -> str:
    """``kernel`` of ``enable_if<(a > 0), void>::type ns::<unnamed>::kernel<…>(T1 *, …)``; the name itself where it has none."""
    head = without_parameters(name)
    starts = [0]
    starts += [index + 1 for index, char in _outside(head) if char in ": "]
    ends = [*(start - 1 for start in starts[1:]), len(head)]
    for start, end in zip(reversed(starts), reversed(ends), strict=True):
        if start < end and head[start] not in _UNNAMED:
            return head[start:end].partition("<")[0]
    return name


def split(template: str) -> tuple[str, list[str]]:
    """``("ns::name", ["a", "b<c, d>"])`` of ``ns::name<a, b<c, d>>``."""
    template = template.strip()
    name, bracket, rest = template.partition("<")
    if not bracket or not rest.endswith(">"):
        return template, []
    body = rest[:-1]
    commas = [index for index, char in _outside(body) if char == ","]
    parts = [
        body[a + 1 : b].strip() for a, b in zip([-1, *commas], [*commas, len(body)], strict=True)
    ]
    return name, parts if parts[-1] else parts[:-1]
