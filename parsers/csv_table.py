"""The tables in what `ncu --csv` printed, line by line, and what of them a file that was cut short has lost.

Each table has a header, a raw page a line of units below it. What stands around them is passed over: ncu's own
messages, and whatever the profiled program printed. Several runs may follow each other.

A file that ends between two rows looks whole. What tells is the number of kernels in ncu's messages, or, of the last
kernel, the metrics that all others have.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

Cells = dict[str, str]
Key = tuple[int, str, str]  # of a kernel: run, process, launch
END = "\0"  # stands in no line
BEGINS = re.compile(r'"[\d.,]*(?:"(?:,|$)|$)')  # a row with its launch, units with an empty cell
WHOLE = re.compile(r'(?:(?:"[^"]*(?:""[^"]*)*"|[^",]*)(?:,|$))*')  # cells without a stray quote
SIZES = re.compile(r"(?:\(.*\))?")  # (128, 1, 1)
PROFILED = re.compile(r'^==PROF== Profiling "', re.MULTILINE)


@dataclass(frozen=True)
class CsvRow:
    """A row of a table: cells by column, and units by column where the page has a line of them.

    `lacks` counts the columns that are missing at its end.
    """

    run: int
    units: Cells
    cells: Cells
    lacks: int

    @property
    def key(self) -> Key:
        return self.run, self.cells.get("Process ID", ""), self.cells["ID"]


@dataclass
class CsvTable:
    """The whole rows of all tables; `problems` say what is not there."""

    rows: list[CsvRow] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    header: list[str] = field(default_factory=list)
    units: Cells = field(default_factory=dict)
    run: int = 0

    def take(self, line: str, last: bool) -> None:
        """A line of the file; the `last` has no line break behind it."""
        row = bool(self.header and BEGINS.match(line))
        cells, closed = _cells(line) if line.startswith('"') else ([], False)
        if row and not cells:
            self.problems.append("a row that cannot be read is left out")
        elif closed and cells[0] == "ID" and "Kernel Name" in cells:
            self.header, self.units, self.run = cells, {}, self.run + 1
        elif row and (not closed or (last and len(cells) < self._least(cells))):
            self._left_out(cells[:-1], "cut short in the middle of a row")
        elif row and self._mixed_up(line, cells):
            self._left_out(cells, "something else stands within a row")
        elif row:
            self._add(cells)

    def _add(self, cells: list[str]) -> None:
        found = dict(zip(self.header, cells, strict=False))
        if found["ID"] and "Kernel Name" in found:
            lacks = max(0, self._least(cells) - len(cells))
            self.rows.append(CsvRow(self.run, self.units, found, lacks))
        elif found.get("Kernel Name") == "" and "Metric Name" not in self.header:
            self.units = found

    def _least(self, cells: list[str]) -> int:
        """How many cells such a row has at least: a metric's may end before the columns for rules."""
        if dict(zip(self.header, cells, strict=False)).get("Metric Name"):
            return 1 + self.header.index(
                "Metric Value" if "Metric Value" in self.header else "Metric Name"
            )
        return len(self.header)

    def _mixed_up(self, line: str, cells: list[str]) -> bool:
        """Whether something else came between a row's cells, so that they stand in other columns than theirs."""
        found = dict(zip(self.header, cells, strict=False))
        if not all(SIZES.fullmatch(found.get(name, "")) for name in ("Grid Size", "Block Size")):
            return True
        if "Metric Name" in self.header and not found.get("Metric Name"):
            return False  # a rule's, which has prose in it
        return not WHOLE.fullmatch(line) or any(cells[len(self.header) :])

    def _left_out(self, cells: list[str], why: str) -> None:
        """A row that is not whole goes, and with it the other rows of its kernel, which may be missing some."""
        found = dict(zip(self.header, cells, strict=False))
        key = (self.run, found["Process ID"], found["ID"]) if "Process ID" in found else None
        if "Metric Name" in self.header and self.rows:
            key = key or self.rows[-1].key
            self.rows = [row for row in self.rows if row.key != key]
        which = f"kernel {key[2]}" if key else "a kernel"
        self.problems.append(f"{why}: {which} is left out")

    def lacking(self) -> Iterator[tuple[Key, str]]:
        """Kernels whose rows are whole and yet not all there, with what tells so."""
        for row in self.rows:
            if row.lacks:
                yield row.key, f"its row lacks the last {row.lacks} columns"
        named: dict[Key, set[tuple[str, str]]] = {}
        for row in self.rows:
            if row.run == self.rows[-1].run and row.cells.get("Metric Name"):
                section = row.cells.get("Section Name", "")
                named.setdefault(row.key, set()).add((section, row.cells["Metric Name"]))
        *others, last = named.values() or [set()]
        missing = set.intersection(*others) - last if others else set()
        if missing:
            yield self.rows[-1].key, f"it lacks {len(missing)} metrics that every other kernel has"


def read(text: str) -> CsvTable:
    """The tables of an export."""
    table = CsvTable()
    *lines, rest = re.split(r"\r\n|\n|\r", text)
    for line in lines:
        table.take(line, last=False)
    if rest:
        table.take(rest, last=True)
    if rest:
        table.problems.append("no line break at its end: it may be cut short")
    count(table, text)
    return table


def count(table: CsvTable, text: str) -> None:
    """Add to a table's problems that its text lacks kernels which ncu's messages tell of."""
    profiled, found = len(PROFILED.findall(text)), len({row.key for row in table.rows})
    if found < profiled:
        table.problems.append(f"it holds {found} of the {profiled} kernels that ncu profiled")


def _cells(line: str) -> tuple[list[str], bool]:
    """(cells of a line, whether the last of them ends in it); no cells where Python's reader refuses it."""
    try:
        cells = next(
            csv.reader([f"{line}\n", END])
        )  # a cell that is still open takes in the next line
    except csv.Error:  # a cell of more than 131 072 characters
        return [], False
    return cells, not cells[-1].endswith(END)
