"""A report of Nsight Compute or Nsight Systems on the terminal, as JSON or as CSV."""

from __future__ import annotations

import csv
import gzip
import io
import lzma
import shlex
import zlib
from collections.abc import Sequence
from pathlib import Path

from ncuflow.io import HEAD, BadInput, inert, sniff
from ncuflow.model import Row
from ncuflow.parsers import show_ncu, show_nsys

READERS = {
    "ncu-rep": show_ncu.show_report, "csv": show_ncu.exported, "text": show_ncu.exported,
    "sqlite": show_nsys.show_trace, "nsys-rep": show_nsys.show_trace,
}  # fmt: skip
HINTS = {"lfs": "fetch it with `git lfs pull`"}
OF_TORCH = (
    b'"traceEvents"',
    b'"deviceProperties"',
    b'"schemaVersion"',
)  # one stands at its beginning


def of_torch(path: str | Path) -> bool:
    """Whether a JSON file, also packed, begins as what torch's profiler wrote."""
    opened = {"xz": lzma.open, "gzip": gzip.open}.get(sniff(path)[0], Path.open)
    try:
        with opened(Path(path), "rb") as file:  # type: ignore[operator]
            head = file.read(HEAD)
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
