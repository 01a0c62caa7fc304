"""A trace in columns: what ran on the GPUs, which call of the host launched it, and which ranges were open there.

As few bytes an operation as it takes, for a trace of a server has millions. Times are ns; -1 is what a trace does not say.
"""

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import starmap
from operator import le
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ncuflow.io import clean

KERNEL, MEMCPY, MEMSET, GRAPH = "kernel", "memcpy", "memset", "graph"
UNSAID = -1
Ints = NDArray[np.int64]
Dim3 = tuple[int, int, int]
PROCESS_BITS = 40  # what of a key is the correlation id; the rest numbers the process
LONGEST_NAME = 1 << 16  # characters; a kernel of CUTLASS has 20 000
MOST_BLOCKS, MOST_THREADS = ((1 << 31) - 1, 1 << 16, 1 << 16), 1024  # of a grid, of a block


class Launched(NamedTuple):
    """What operations have in common. name: a kernel's with its template arguments, a copy's direction; registers of a
    thread; shared: bytes of a block's shared memory; dynamic: of these, those that the launch asked for; function,
    demangled: of a kernel, its names as nsys wrote them."""

    kind: str
    name: str
    grid: Dim3 | None = None
    block: Dim3 | None = None
    registers: int | None = None
    shared: int | None = None
    dynamic: int | None = None
    function: str | None = None
    demangled: str | None = None


class Operator(NamedTuple):
    """The operator of a framework that launched a kernel, as the profiler wrote it down: shapes and types of its inputs."""

    name: str
    dims: tuple[tuple[int, ...], ...]
    types: tuple[str, ...]


OPERATION = ("start", "end", "what", "device", "stream", "key", "graph", "bytes", "operator")
CALL = ("start", "end", "thread", "name", "key")
RANGE = ("start", "end", "thread", "name")


class Columns:
    """Rows of whole numbers, by column; they grow row by row, each whole or not at all, and are read as arrays."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names
        self._values = array("q")  # row behind row: none is ever shorter than the others

    def add(self, *row: int) -> None:
        whole = array("q", row)  # raises of what is no such number
        if len(whole) != len(self._names):
            raise ValueError(f"{len(whole)} of {len(self._names)} columns")
        self._values.extend(whole)

    def extend(self, *columns: Ints) -> None:
        """Rows at once."""
        if len(columns) != len(self._names):
            raise ValueError(f"{len(columns)} of {len(self._names)} columns")
        self._values.frombytes(np.stack(columns, axis=1).astype(np.int64).tobytes())

    def number(self, name: str, numbers: Mapping[int, int]) -> None:
        """Put in place of each value of a column the number that it has; UNSAID of what has none."""
        for place in range(self._names.index(name), len(self._values), len(self._names)):
            self._values[place] = numbers.get(self._values[place], UNSAID)

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Leave out the other rows."""
        if not kept.all():
            self._values = array("q", self._rows()[kept].tobytes())

    def once(self) -> int:
        """Leave one of rows that are alike in every column; how many are left out."""
        rows = self._rows()
        first, inverse = alike(rows)
        again = np.flatnonzero(first[inverse] != np.arange(len(rows)))
        again = again[(rows[again] == rows[first[inverse[again]]]).all(axis=1)]
        self.keep(~np.isin(np.arange(len(rows)), again))
        return len(again)

    def _rows(self) -> Ints:
        return np.array(self._values, np.int64).reshape(-1, len(self._names))

    def __len__(self) -> int:
        return len(self._values) // len(self._names)

    def arrays(self) -> dict[str, Ints]:
        columns = np.ascontiguousarray(self._rows().T)
        return dict(zip(self._names, columns, strict=True))


def alike(rows: Ints) -> tuple[Ints, Ints]:
    """(place of the first of each kind of rows, kind of each row). Rows are told apart by a sum of their columns, each times a
    number of 62 bits of its own: two that differ have the same one once in 2^62."""
    factors = np.random.default_rng(0).integers(1, 1 << 62, rows.shape[1], np.int64)
    sums = (rows * factors).sum(axis=1)
    _, first, inverse = np.unique(sums, return_index=True, return_inverse=True)
    return first, inverse


class Numbered(dict[Any, int]):
    """Values by the number that each gets when it is asked for first."""

    def __missing__(self, value: Any) -> int:
        self[value] = number = len(self)
        return number


@dataclass
class Timeline:
    """One trace. tool: what wrote it; devices: GPU names by index; problems: what is missing or was left out; whole_graphs: of
    CUDA graphs that were traced as one operation."""

    file: str
    tool: str
    devices: dict[int, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    launched: Numbered = field(default_factory=Numbered)
    operators: Numbered = field(default_factory=Numbered)
    names: Numbered = field(default_factory=Numbered)
    operations: Columns = field(default_factory=lambda: Columns(OPERATION))
    calls: Columns = field(default_factory=lambda: Columns(CALL))
    ranges: Columns = field(default_factory=lambda: Columns(RANGE))

    def once(self) -> None:
        """Leave out what stands there twice, once all is read."""
        if repeated := self.operations.once():
            self.problems.append(f"{repeated} operations stand there twice, and were counted once")
        self.calls.once()
        self.ranges.once()

    def finish(self) -> None:
        """As ``once``; and what does not say its GPU ran on the only one."""
        self.once()
        devices = self.operations.arrays()["device"]
        known = {*self.devices, *devices[devices != UNSAID].tolist()}
        if len(known) == 1:
            self.operations.number("device", dict.fromkeys((UNSAID, *known), *known))

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
        # Of merged traces a number may be of calls of several processes: whose it is is not said.
        threads, last = calls["thread"][by_key], np.searchsorted(keys, found["key"], "right") - 1
        known[known] = threads[place[known]] == threads[last[known]]
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


def name(text: Any) -> str:
    """A name that others wrote, as it is printed and searched. Raises TypeError of what is no text."""
    if not isinstance(text, str):
        raise TypeError(text)
    return clean(text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…")


def grid(values: Any) -> Dim3 | None:
    """Blocks of a grid; None of what no GPU launches."""
    found = _dim3(values)
    return found if found and all(starmap(le, zip(found, MOST_BLOCKS, strict=True))) else None


def block(values: Any) -> Dim3 | None:
    """Threads of a block; None of what no GPU launches."""
    found = _dim3(values)
    return found if found and found[0] * found[1] * found[2] <= MOST_THREADS else None


def _dim3(values: Any) -> Dim3 | None:
    if isinstance(values, (list, tuple)) and len(values) == 3:
        x, y, z = values
        if all(type(n) is int and n > 0 for n in values):
            return (x, y, z)
    return None
