"""What ncu printed, with `--csv` or for a console (raw or details page) → the rows that a report gives.

Counters go by ncu's names or, on the details page, by the labels of its sections. What stands around the
table, the program's own output above all, is skipped; several runs may follow each other. The raw page
that ncu's GUI exports is read like ncu's own: it may name the device, and have its units in the header or not at all.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ncuflow.io import BadInput, opened, printable, read_yaml
from ncuflow.model import Row
from ncuflow.parsers import demangled, ncu
from ncuflow.parsers.registry import base_unit, expected_unit

# --- with --csv: tables, line by line --------------------------------------------------------

# Each table has a header, a raw page a line of units below it. A file that ends between two rows looks whole. What tells
# is the number of kernels in ncu's messages, or, of the last kernel, the metrics that all others have.

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


def csv_tables(text: str) -> CsvTable:
    """The tables of an export."""
    table = CsvTable()
    *lines, rest = re.split(r"\r\n|\n|\r", text)
    for line in lines:
        table.take(line, last=False)
    if rest:
        table.take(rest, last=True)
    if rest:
        table.problems.append("no line break at its end: it may be cut short")
    count_kernels(table, text)
    return table


def count_kernels(table: CsvTable, text: str) -> None:
    """Add to a table's problems that its text lacks kernels which ncu's messages tell of."""
    profiled, found = len(PROFILED.findall(text)), len({row.key for row in table.rows})
    if found < profiled:
        table.problems.append(f"it holds {found} of the {profiled} kernels that ncu profiled")


def _cells(line: str) -> tuple[list[str], bool]:
    """(cells of a line, whether the last of them ends in it); no cells where Python's reader refuses it."""
    try:
        # a cell that is still open takes in the next line
        cells = next(csv.reader([f"{line}\n", END]))
    except csv.Error:  # a cell of more than 131 072 characters
        return [], False
    return cells, not cells[-1].endswith(END)


# --- for a console ---------------------------------------------------------------------------

# As people paste it into issues and keep it in logs. A line with its name, shape and stream begins a kernel. Sections follow:
# a title, a table between lines of dashes, which tell its columns, and what rules say. Versions before 2022 print no shape in
# the first line and no header in a table. A paste may have lost its indentation.

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
        elif launch := _launch_line(line):
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
            self._rule_text(line)

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

    def _rule_text(self, line: str) -> None:
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


def console_table(text: str) -> CsvTable:
    """The rows of each kernel that a text has; none where ncu did not print it."""
    console = Console()
    *lines, rest = re.split(r"\r\n|\n|\r", text)
    for line in lines:
        if len(line) <= LONGEST:
            console.take(line.strip(" \t>"))  # a quotation in Markdown has a > before each line
    # Of a row without a line break its number may break off, and is then another.
    console.take(rest.strip(" \t>") if not console.ends or DASHES.fullmatch(rest.strip()) else "")
    console.close()
    count_kernels(console.table, text)
    return console.table


def _launch_line(line: str) -> Cells | None:
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


# --- rows of kernels -------------------------------------------------------------------------

NO_UNITS = "no units in it: what is counted in seconds or bytes is left out"
IN_HEADER = re.compile(r"(\w+__\S+) [\[(](.+)[\])]")  # gpu__time_duration.sum [us]
LAUNCH = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context",
          "Stream", "Block Size", "Grid Size", "Device", "Device Name", "CC")  # fmt: skip
# (label, unit) on the details page -> counter.
LABELS = {
    (label, unit): name
    for label, unit, name in read_yaml(Path(__file__).with_name("ncu_labels.yaml"))
}
RULES = {"INF": 1, "OK": 1, "OPT": 2, "WRN": 3, "ERR": 4}
# A number that only one of the two ways of writing it explains: 1,234.5 or 0.25 and 1.234,5 or 0,25.
_WRITTEN = (
    r"-?(?:\d{{1,3}}(?:\{0}\d{{3}})+\{1}\d+|\d{{1,3}}(?:\{0}\d{{3}}){{2,}}|\d{{4,}}\{1}\d+|0\{1}\d+"
    r"|\d+\{1}(?:\d\d?|\d{{4,}})|\d+\{1}\d+[eE][-+]?\d+)"
)
ENGLISH, EUROPEAN = re.compile(_WRITTEN.format(",", ".")), re.compile(_WRITTEN.format(".", ","))
# Of 1,234 and 1.234 alone the second is in doubt: ncu writes thousands with a separator, and two digits of a fraction
# (three only by chance, with --print-fp).
DOUBTFUL = re.compile(r"-?\d{1,3}\.\d{3}")
NSYS_STATS = re.compile(r"^\W*(Time ?\(%\)|Start ?\(\w+\))\W+(Total Time|Duration)\b", re.MULTILINE)
RESAVED = re.compile(r'^(?:ID[,;\t]|"ID"[;\t]).*Kernel Name', re.MULTILINE)
AGAIN = "read the report itself, or export it again: LC_ALL=C ncu --import REPORT --csv --page raw"


@dataclass(frozen=True)
class Value:
    """A metric of an export: the part of NVIDIA's IMetric that is asked for."""

    number: float | str
    written_in: str = ""

    def has_value(self) -> bool:
        return True

    def kind(self) -> None:
        return None

    def value(self) -> float | str:
        return self.number

    def unit(self) -> str:
        return self.written_in


@dataclass
class Exported:
    """A kernel of an export: the part of NVIDIA's IAction that is asked for."""

    full: str
    metrics: dict[str, Value] = field(default_factory=dict)
    rules: list[Row] = field(default_factory=list)
    NameBase_DEMANGLED = 2

    def name(self, base: int = 0) -> str:
        return self.full if base else demangled.function(self.full)

    def nvtx_state(self) -> None:
        return None

    def metric_by_name(self, name: str) -> Value | None:
        return self.metrics.get(name)

    def metric_names(self) -> tuple[str, ...]:
        return tuple(self.metrics)

    def rule_results_as_dicts(self) -> list[Row]:
        return self.rules


def read(path: str | Path) -> ncu.Report:
    """The kernels of an export, plain or `.xz`. Where it is cut short, its problems or those of a kernel say so.

    Raises BadInput where it holds no whole kernel, and where its numbers may have a decimal comma.
    """
    called = printable(path)
    with opened(path) as plain:
        text = plain.read_bytes().decode("utf-8-sig", "replace")
    table = csv_tables(text)
    if not table.rows and (pasted := console_table(text)).rows:
        table = pasted
    if not table.rows:
        what = f"no kernel in it as ncu prints them, with --csv or without{_why_none(text, table)}"
        raise BadInput(called, what)
    _refuse_commas(called, table.rows)
    kernels: dict[Key, Exported] = {}
    for row in table.rows:
        kernel = kernels.setdefault(row.key, Exported(row.cells["Kernel Name"]))
        kernel.metrics |= _launch(row.cells) | dict(_metrics(row.cells, row.units))
        kernel.rules += _rules(row.cells)
    problems = table.problems + ([NO_UNITS] if any(map(_without_units, table.rows)) else [])
    report = ncu.Report(called, ranges=1, problems=problems)
    lacking = dict(table.lacking())
    for index, (key, kernel) in enumerate(kernels.items()):
        ncu.add_kernel(
            report, ncu.Profiled(kernel, index), ncu.Request(path, with_lines=False), None
        )
        said = (report.kernels[-1]["problems"], lacking.get(key))
        report.kernels[-1]["problems"] = "; ".join(filter(None, said)) or None
    if not report.metrics:
        raise BadInput(called, "kernels without a metric that is read here")
    report.problems += ncu.unknown_chips(report)
    return report


def _why_none(text: str, table: CsvTable) -> str:
    said = re.search(r"^==ERROR== *(.+)", text, re.MULTILINE)
    if said:
        return f" (it says: {said[1].strip()})"
    if NSYS_STATS.search(text):
        return "; it is from `nsys stats`: give the trace itself, .nsys-rep or what `nsys export --type sqlite` makes of it"
    if RESAVED.search(text):
        return f": another program saved it again, without ncu's quotes or commas: {AGAIN}"
    return f" ({'; '.join(table.problems)})" if table.problems else ""


def _refuse_commas(called: str, rows: list[CsvRow]) -> None:
    """BadInput where a number has a decimal comma, or may have: a spreadsheet or another locale wrote the file."""
    values = {text.partition(" (")[0].strip() for row in rows for text in _numbers(row.cells)}
    found = sorted(filter(EUROPEAN.fullmatch, values))
    if not any(map(ENGLISH.fullmatch, values)):
        found += sorted(filter(DOUBTFUL.fullmatch, values))
    if found:
        raise BadInput(called, f"{found[0]} is or may be a number with a decimal comma: {AGAIN}")


def _numbers(cells: Cells) -> Iterator[str]:
    """The cells of a row that numbers stand in."""
    if "Metric Name" in cells:
        yield from (cells.get("Metric Value", ""), cells.get("Estimated Speedup", ""))
    else:
        yield from (value for name, value in cells.items() if "__" in name)


def _without_units(row: CsvRow) -> bool:
    """Whether a row of counters has neither a line of units above it nor units in its header."""
    wide = "Metric Name" not in row.cells
    return wide and not row.units and not any(map(IN_HEADER.fullmatch, row.cells))


def _metrics(cells: Cells, units: Cells) -> Iterator[tuple[str, Value]]:
    if "Metric Name" in cells:
        unit, label = cells.get("Metric Unit", ""), cells["Metric Name"]
        named = LABELS.get((label, base_unit(unit)[1]), label)
        found = [(named, cells.get("Metric Value", ""), unit)]
    else:
        found = [_counter(n, v, units) for n, v in cells.items() if n not in LAUNCH]
    for name, text, unit in found:
        value = _number(text)
        if "__" in name and (value is not None or text):
            yield name, Value(text if value is None else value, unit)


def _counter(head: str, text: str, units: Cells) -> tuple[str, str, str]:
    """(name, value, unit) of a cell under a counter. A percentage is one by its name."""
    within = IN_HEADER.fullmatch(head)
    name, unit = within.groups() if within else (head, units.get(head, ""))
    known = expected_unit(name) if not units and not unit else ""
    return name, text, known if known == "%" else unit


def _number(text: str) -> float | None:
    text = text.partition(" (")[0].strip().replace(",", "")  # what follows are the instances
    try:
        return None if "_" in text else float(text)  # Python takes 1_000 for a number
    except ValueError:
        return None


def _launch(cells: Cells) -> dict[str, Value]:
    """What stands in columns of its own, under the names that counters have for it."""
    found: dict[str, Value] = {}
    for column, of in (("Grid Size", "grid"), ("Block Size", "block")):
        sizes = [float(size) for size in re.findall(r"\d+", cells.get(column, ""))]
        if len(sizes) == 3:
            found |= {
                f"launch__{of}_dim_{axis}": Value(s) for axis, s in zip("xyz", sizes, strict=True)
            }
            found[f"launch__{of}_size"] = Value(sizes[0] * sizes[1] * sizes[2])
    capability = re.fullmatch(r"(\d+)\.(\d+)", cells.get("CC", ""))
    for part, number in zip(
        ("major", "minor"), capability.groups() if capability else (), strict=False
    ):
        found[f"device__attribute_compute_capability_{part}"] = Value(float(number))
    device = cells.get("Device Name") or cells.get("Device", "")
    if device and not device.isdigit():  # the number of the device, or its name
        found["device__attribute_display_name"] = Value(re.sub(r"^\d+\s*-\s*", "", device))
    if cells.get("Stream", "").isdecimal():
        found["launch__stream_id"] = Value(float(cells["Stream"]))
    return found


def _rules(cells: Cells) -> list[Row]:
    if not cells.get("Rule Description"):
        return []
    kind = RULES.get(cells.get("Rule Type", ""), 0)
    speedup = {"speedup": _number(cells.get("Estimated Speedup", ""))}
    return [{
        "rule_identifier": cells.get("Rule Name", ""),
        "section_identifier": cells.get("Section Name", ""),
        "rule_message": {"message": cells["Rule Description"], "type": kind},
        "speedup_estimation": speedup
        | {"type": {"local": 1, "global": 2}.get(cells.get("Estimated Speedup Type", ""), 0)},
    }]  # fmt: skip
