"""What ncu prints on a console, as people paste it into issues and keep it in logs → rows like those of `csv_table`.

A line with its name, shape and stream begins a kernel. Sections follow: a title, a table between lines of dashes, which
tell its columns, and what rules say. Versions before 2022 print no shape in the first line and no header in a table. A
paste may have lost its indentation. What stands around is passed over.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ncuflow.parsers import csv_table
from ncuflow.parsers.csv_table import Cells, CsvRow, CsvTable

LONGEST = 131_072  # characters of a line that is read: as many as of a cell in `csv_table`
MOST_LINES = 40  # of what a rule says
PROCESS = re.compile(r"\[(\d+)\] [^@]+@\S+")
LAUNCHED = re.compile(
    r", Context (?P<Context>\d+), Stream (?P<Stream>\d+)(?:, Device (?P<Device>\d+), CC (?P<CC>\d+\.\d+))?"
)
DATED = re.compile(r", \d{4}-\w+-\d+ [\d:]+")
SHAPE = re.compile(r" (\(\d+, \d+, \d+\))x(\(\d+, \d+, \d+\))")
DASHES = re.compile(r"(-+) +(-+) +(-+)")
COLUMNS = ("Metric Name", "Metric Unit", "Metric Value")
RULE = re.compile(r"(INF|OPT|WRN|ERR|OK) +(\S.*)")
GAIN = re.compile(r"Est\. (Local )?Speedup: ([\d.,]+)% *(.*)")


@dataclass
class Console:
    """What was read of a text, and where in it the next line stands.

    launch: cells that all rows of the present kernel have; ends: of the first two columns of the table that is open;
    awaits: whether a table may follow; rule: the row of the rule that speaks, its place in the section, and its lines.
    """

    table: CsvTable = field(default_factory=CsvTable)
    process: str = ""
    launch: Cells = field(default_factory=dict)
    section: str = ""
    awaits: bool = False
    header: bool = False
    ends: tuple[int, int] | None = None
    rule: Cells | None = None
    rules: int = 0
    lines: int = 0
    kernels: int = 0

    def take(self, line: str) -> None:
        """A line, without the blanks around it."""
        if process := PROCESS.fullmatch(line):
            self.process = process[1]
        elif launch := _launch(line):
            self._begin("")
            self.launch = {"ID": str(self.kernels), "Process ID": self.process} | launch
            self.kernels += 1
        elif not self.launch:
            return
        elif line.startswith("Section: "):
            self._begin(line.removeprefix("Section: "))
        elif (dashes := DASHES.fullmatch(line)) and (self.awaits or self.ends):
            closes = self.ends and not self.header
            self.ends = None if closes else (dashes.end(1), dashes.end(2))
            self.awaits = self.header = False
        elif self.ends:
            self._metric(line, self.ends)
        else:
            self._said(line)

    def _begin(self, section: str) -> None:
        """A kernel or a section begins."""
        self.close()
        self.section, self.rule, self.rules, self.awaits = section, None, 0, True

    def close(self) -> None:
        """The end of a table: one that is open has lost its last line, and what stood above that."""
        if self.ends:
            which = f"of kernel {self.launch['ID']}"
            self.table.problems.append(
                f"cut short: metrics {which} may be missing ({self.section})"
            )
        self.ends, self.header = None, False

    def _metric(self, line: str, ends: tuple[int, int]) -> None:
        """A line of an open table; the first may be its header."""
        name, unit = ends
        cells = (line[:name].strip(), line[name:unit].strip(), line[unit:].strip())
        if cells == COLUMNS:
            self.header = True
        elif not line:
            self.close()
        elif line[name : name + 1].strip() or line[unit : unit + 1].strip() or not cells[2]:
            self.table.problems.append("a row that does not stand in its columns is left out")
        else:
            self._add(dict(zip(COLUMNS, cells, strict=True)))

    def _said(self, line: str) -> None:
        """What a rule says, up to an empty line."""
        if found := RULE.fullmatch(line):
            kind, line = found.groups()
            self.rules += 1
            name = f"{self.section} {self.rules}" if self.rules > 1 else self.section
            rule = {COLUMNS[0]: "", "Rule Name": name, "Rule Type": kind, "Rule Description": ""}
            self.rule, self.lines = self._add(rule), 0
        if not line or self.lines == MOST_LINES:
            self.rule = None
        if self.rule is None:
            return
        if gain := GAIN.fullmatch(line):
            self.rule["Estimated Speedup Type"] = "local" if gain[1] else "global"
            self.rule["Estimated Speedup"], line = gain[2], gain[3]
        self.rule["Rule Description"] = f"{self.rule['Rule Description']} {line}".strip()
        self.lines += 1

    def _add(self, cells: Cells) -> Cells:
        found = self.launch | {"Section Name": self.section} | cells
        self.table.rows.append(CsvRow(1, {}, found, 0))
        return found


def read(text: str) -> CsvTable:
    """The rows of each kernel that a text has; none where ncu did not print it."""
    console = Console()
    *lines, rest = re.split(r"\r\n|\n|\r", text)
    for line in lines:
        if len(line) <= LONGEST:
            console.take(line.strip(" \t>"))  # a quotation in Markdown has a > before each line
    # Of a row without a line break its number may break off, and is then another.
    console.take(rest.strip(" \t>") if not console.ends or DASHES.fullmatch(rest.strip()) else "")
    console.close()
    csv_table.count(console.table, text)
    return console.table


def _launch(line: str) -> Cells | None:
    """The cells of the line that begins a kernel; None of another one."""
    at = line.rfind(", Context ")
    found = LAUNCHED.fullmatch(line, at) if at > 0 else None
    if found is None:
        return None
    cells = {name: cell for name, cell in found.groupdict().items() if cell}
    name = line[:at]
    if DATED.fullmatch(name, before := max(0, name.rfind(", "))):
        name = name[:before]
    if shape := SHAPE.fullmatch(name, before := max(0, name.rfind(" ("))):
        name, cells["Grid Size"], cells["Block Size"] = name[:before], shape[1], shape[2]
    return {"Kernel Name": name, **cells}
