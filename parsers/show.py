"""Which reader reads a file: its content tells. A report or a trace on the terminal, as JSON or as CSV; a trace of either tool as
a timeline, whose reader has numpy, which reports do without."""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import shlex
import zlib
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from ncuflow.format import Sheet, in_one_unit
from ncuflow.io import BadInput, inert, sniff, sniff_packed
from ncuflow.model import Row
from ncuflow.parsers import show_ncu

if TYPE_CHECKING:
    from ncuflow.parsers.nsys import Trace
    from ncuflow.parsers.timeline import Timeline

HINTS = {"lfs": "fetch it with `git lfs pull`"}
# One of these stands at the beginning of what torch's profiler wrote.
OF_TORCH = (b'"traceEvents"', b'"deviceProperties"', b'"schemaVersion"')
BEGINNING = 1 << 18  # bytes: a harness may write what it measured before them


def of_torch(path: str | Path) -> bool:
    """Whether a JSON file, also packed, begins as what torch's profiler wrote."""
    opened = {"xz": lzma.open, "gzip": gzip.open}.get(sniff(path)[0], Path.open)
    try:
        with opened(Path(path), "rb") as file:  # type: ignore[operator]
            head = file.read(BEGINNING)
    except (OSError, EOFError, lzma.LZMAError, zlib.error):
        return False
    return any(word in head for word in OF_TORCH)


def strange(path: str | Path, of: str, kind: str, words: str) -> BadInput:
    """Of a file that is no report of these tools: what it is, and what reads it."""
    hint = f" ({HINTS[kind]})" if kind in HINTS else ""
    if kind in ("json", "gzip") and of_torch(path):
        words = "a trace of torch's profiler"
        hint = f": `ncuflow step {shlex.quote(str(path))}` reads it"
    return BadInput(path, f"not a report of {of} but {words}{hint}")


def as_csv(rows: Sequence[Row]) -> str:
    """CSV with a header; None is empty. No cell is one that a spreadsheet would compute."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: inert(value) for name, value in row.items()} for row in rows)
    return out.getvalue()


# --- a trace of Nsight Systems ------------------------------------------------------------------

FIELDS = (
    "index", "kind", "name", "demangled", "point", "nvtx", "launch", "start_ns", "duration_ns",
    "gap_before_ns", "stream_gap_before_ns", "api_name", "api_start_ns", "api_duration_ns",
    "device", "stream", "grid", "block", "graph", "bytes",
)  # fmt: skip


def show_trace(path: str) -> tuple[Sheet, Row, list[Row]]:
    """(table, document, a row per operation) of a trace. Raises BadInput where it cannot be read."""
    from ncuflow.parsers import nsys

    return show(nsys.read(path))


def show(trace: Trace) -> tuple[Sheet, Row, list[Row]]:
    """The same of a trace that was read."""
    launches = [{name: row.get(name) for name in FIELDS} for row in trace.timeline]
    found = summary(trace.timeline)
    return _table(trace, found), document(trace, found, launches), launches


def document(trace: Trace, found: list[Row], launches: list[Row]) -> Row:
    """The JSON form: {"report", "summary", "launches", "problems"}."""
    return {
        "report": {
            "file": Path(trace.file).name,
            "devices": list(trace.devices.values()),
            "nsys_version": trace.nsys_version,
            "operations": len(trace.timeline),
            "ranges": len(trace.ranges),
            "span_ns": _span(trace.timeline),
        },
        "summary": found,
        "launches": launches,
        "ranges": trace.ranges,
        "problems": trace.problems,
    }


def summary(rows: list[Row]) -> list[Row]:
    """A row per kind and name, longest total first. Totals of overlapping work exceed wall time."""
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        groups[row["kind"], row["name"] or "–"].append(row["duration_ns"])
    out = [
        {
            "name": name,
            "kind": kind,
            "count": len(times),
            "total_ns": sum(times),
            "median_ns": median(times),
            "min_ns": min(times),
            "max_ns": max(times),
        }
        for (kind, name), times in groups.items()
    ]
    return sorted(out, key=lambda row: (-row["total_ns"], row["name"]))


def _span(rows: list[Row]) -> int | None:
    if not rows:
        return None
    starts, ends = [row["start_ns"] for row in rows], [row["end_ns"] for row in rows]
    return int(max(ends) - min(starts))


def _table(trace: Trace, found: list[Row]) -> Sheet:
    version = f"nsys {trace.nsys_version}, " if trace.nsys_version else ""
    devices = ", ".join(dict.fromkeys(trace.devices.values())) or "no device name"
    head = f"{Path(trace.file).name}: {version}{devices}, {len(trace.timeline)} operations"
    named = ("total", "median", "min", "max")
    units, took = zip(
        *(in_one_unit([row[f"{one}_ns"] / 1e3 for row in found]) for one in named), strict=True
    )
    header = (
        "name",
        "kind",
        "n",
        *(f"{one}, {unit}" for one, unit in zip(named, units, strict=True)),
    )
    rows = [
        [row["name"], row["kind"], str(row["count"]), *of]
        for row, *of in zip(found, *took, strict=True)
    ]
    return Sheet(header, rows, head, [f"! {problem}" for problem in trace.problems], long=(0,))


READERS = {
    "ncu-rep": show_ncu.show_report, "csv": show_ncu.exported, "text": show_ncu.exported,
    "sqlite": show_trace, "nsys-rep": show_trace,
}  # fmt: skip

NSYS, TORCH = ("sqlite", "nsys-rep"), ("json", "gzip")


def is_trace(path: Path) -> bool:
    """Whether a file may be one."""
    return sniff_packed(path)[0] in NSYS + TORCH


def read_trace(path: Path) -> Timeline:
    """A trace of nsys or of torch's profiler. Raises BadInput for any other file."""
    kind, words = sniff_packed(path)
    if kind in NSYS:
        from ncuflow.parsers import nsys

        return nsys.read_timeline(path)
    if kind in TORCH:
        from ncuflow.parsers import torch_trace

        return torch_trace.read(path)
    hint = ": `ncuflow explain` reads it" if kind == "ncu-rep" else ""
    raise BadInput(path, f"neither an nsys export nor torch's profiler's JSON but {words}{hint}")
