"""What ncu printed, with `--csv` or for a console (raw or details page) → the rows that a report gives.

Counters go by ncu's names or, on the details page, by the labels of its sections. What stands around the
table, the program's own output above all, is passed over; several runs may follow each other. The raw page
that ncu's GUI exports is read like ncu's own: it may name the device, and have its units in the header or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ncuflow.io import BadInput, opened, read_yaml, shown
from ncuflow.parsers import console, csv_table, demangled, ncu
from ncuflow.parsers.csv_table import Cells
from ncuflow.parsers.units import base_unit, expected_unit

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

    def value(self) -> float | str:
        return self.number

    def unit(self) -> str:
        return self.written_in


@dataclass
class Exported:
    """A kernel of an export: the part of NVIDIA's IAction that is asked for."""

    full: str
    metrics: dict[str, Value] = field(default_factory=dict)
    rules: list[dict[str, Any]] = field(default_factory=list)
    NameBase_DEMANGLED = 2

    def name(self, base: int = 0) -> str:
        return self.full if base else demangled.function(self.full)

    def nvtx_state(self) -> None:
        return None

    def metric_by_name(self, name: str) -> Value | None:
        return self.metrics.get(name)

    def metric_names(self) -> tuple[str, ...]:
        return tuple(self.metrics)

    def rule_results_as_dicts(self) -> list[dict[str, Any]]:
        return self.rules


def read(path: str | Path) -> ncu.Report:
    """The kernels of an export, plain or `.xz`. Where it is cut short, its problems or those of a kernel say so.

    Raises BadInput where it holds no whole kernel, and where its numbers may have a decimal comma.
    """
    called = shown(path)
    with opened(path) as plain:
        text = plain.read_bytes().decode("utf-8-sig", "replace")
    table = csv_table.read(text)
    if not table.rows and (pasted := console.read(text)).rows:
        table = pasted
    if not table.rows:
        what = f"no kernel in it as ncu prints them, with --csv or without{_why_none(text, table)}"
        raise BadInput(called, what)
    _refuse_commas(called, table.rows)
    kernels: dict[csv_table.Key, Exported] = {}
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


def _why_none(text: str, table: csv_table.CsvTable) -> str:
    said = re.search(r"^==ERROR== *(.+)", text, re.MULTILINE)
    if said:
        return f" (it says: {said[1].strip()})"
    if NSYS_STATS.search(text):
        return "; it is from `nsys stats`: give the trace itself, .nsys-rep or what `nsys export --type sqlite` makes of it"
    if RESAVED.search(text):
        return f": another program saved it again, without ncu's quotes or commas: {AGAIN}"
    return f" ({'; '.join(table.problems)})" if table.problems else ""


def _refuse_commas(called: str, rows: list[csv_table.CsvRow]) -> None:
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


def _without_units(row: csv_table.CsvRow) -> bool:
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


def _rules(cells: Cells) -> list[dict[str, Any]]:
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
