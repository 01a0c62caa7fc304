"""A report of Nsight Compute or Nsight Systems on the terminal, as JSON or as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from ncuflow.io import BadInput, inert
from ncuflow.model import Row
from ncuflow.parsers import show_ncu, show_nsys

READERS = {
    "ncu-rep": show_ncu.show_report, "csv": show_ncu.exported, "text": show_ncu.exported,
    "sqlite": show_nsys.show_trace, "nsys-rep": show_nsys.show_trace,
}  # fmt: skip
_TORCH = "`ncuflow step` reads it where torch's profiler wrote it"
HINTS = {"lfs": "fetch it with `git lfs pull`", "json": _TORCH, "gzip": _TORCH}


def strange(path: str | Path, of: str, kind: str, words: str) -> BadInput:
    """Of a file that is no report of these tools: what it is, and what reads it."""
    hint = f" ({HINTS[kind]})" if kind in HINTS else ""
    return BadInput(path, f"not a report of {of} but {words}{hint}")


def as_csv(rows: Sequence[Row]) -> str:
    """CSV with a header; None is empty. No cell is one that a spreadsheet would compute."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: inert(value) for name, value in row.items()} for row in rows)
    return out.getvalue()
