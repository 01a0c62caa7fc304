"""A trace in columns: what ran on the GPUs, which call of the host launched it, and which ranges were open there.

As few bytes an operation as it takes, for a trace of a server has millions. Times are ns; -1 is what a trace does not say.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

KERNEL, MEMCPY, MEMSET, GRAPH = "kernel", "memcpy", "memset", "graph"
UNSAID = -1
Ints = NDArray[np.int64]
Dim3 = tuple[int, int, int]
PROCESS_BITS = 40  # what of a key is the correlation id; the rest numbers the process


class Launched(NamedTuple):
    """What operations have in common. name: a kernel's with its template arguments, a copy's direction; registers of a
    thread; shared: bytes of a block's shared memory; dynamic: of these, those that the launch asked for."""

    kind: str
    name: str
    grid: Dim3 | None = None
    block: Dim3 | None = None
    registers: int | None = None
    shared: int | None = None
    dynamic: int | None = None


class Operator(NamedTuple):
    """The operator of a framework that launched a kernel, as the profiler wrote it down: shapes and types of its inputs."""

    name: str
    dims: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]


OPERATION = ("start", "end", "what", "device", "stream", "key", "graph", "bytes", "operator")
CALL = ("start", "end", "thread", "name", "key")
RANGE = ("start", "end", "thread", "name")


class Columns:
    """Rows of whole numbers, by column; they grow row by row and are read as arrays."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._values = {name: array("q") for name in names}
        self._append = [values.append for values in self._values.values()]

    def add(self, *row: int) -> None:
        for append, value in zip(self._append, row, strict=True):
            append(value)

    def extend(self, *columns: Ints) -> None:
        """Rows at once."""
        for name, values in zip(self._names, columns, strict=True):
            self._values[name].frombytes(np.ascontiguousarray(values, np.int64).tobytes())

    def __len__(self) -> int:
        return len(self._values[self._names[0]])

    def arrays(self) -> dict[str, Ints]:
        return {n: np.frombuffer(v, dtype=np.int64) if v else np.zeros(0, np.int64) for n, v in self._values.items()}  # fmt: skip


class Numbered(dict[Any, int]):
    """Values by the number that each gets when it is asked for first."""

    def __missing__(self, value: Any) -> int:
        self[value] = number = len(self)
        return number


@dataclass
class Timeline:
    """One trace. tool: what wrote it; devices: GPU names by index; sms: of each, where it is said; problems: what is missing
    or was left out; whole_graphs: of CUDA graphs that were traced as one operation."""

    file: str
    tool: str
    devices: dict[int, str] = field(default_factory=dict)
    sms: dict[int, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    launched: Numbered = field(default_factory=Numbered)
    operators: Numbered = field(default_factory=Numbered)
    names: Numbered = field(default_factory=Numbered)
    operations: Columns = field(default_factory=lambda: Columns(OPERATION))
    calls: Columns = field(default_factory=lambda: Columns(CALL))
    ranges: Columns = field(default_factory=lambda: Columns(RANGE))

    @cached_property
    def kinds(self) -> list[Launched]:
        """What operations have in common, by the number that they have of it."""
        return list(self.launched)

    @cached_property
    def texts(self) -> list[str]:
        """Names of calls and ranges, by number."""
        return list(self.names)

    @cached_property
    def shapes(self) -> list[Operator]:
        """Operators, by number."""
        return list(self.operators)

    @cached_property
    def rows(self) -> dict[str, Ints]:
        """Operations in the order of their starts, with ``call``, ``called`` and ``thread``: begin and end of the host's call
        that launched each, and its thread."""
        found = self.operations.arrays()
        order = np.lexsort((found["end"], found["start"]))
        found = {name: values[order] for name, values in found.items()}
        calls = self.calls.arrays()
        by_key = np.argsort(calls["key"], kind="stable")
        keys = calls["key"][by_key]
        place = np.searchsorted(keys, found["key"])
        known = place < len(keys)
        known[known] = keys[place[known]] == found["key"][known]
        for name, column in (
            ("call", "start"),
            ("called", "end"),
            ("thread", "thread"),
            ("api", "name"),
        ):
            values = np.full(len(found["start"]), UNSAID, np.int64)
            values[known] = calls[column][by_key][place[known]]
            found[name] = values
        return found

    @property
    def whole_graphs(self) -> int:
        graphs = [number for number, one in enumerate(self.kinds) if one.kind == GRAPH]
        return int(np.isin(self.rows["what"], graphs).sum()) if graphs else 0


def key(process: Any, correlation: Any) -> Any:
    """One number of a process's number and a correlation id, or an array of them."""
    return (process << PROCESS_BITS) | (correlation & ((1 << PROCESS_BITS) - 1))
