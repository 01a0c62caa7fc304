"""A report of Nsight Compute or Nsight Systems on the terminal, as JSON or as CSV.

    ncuflow show REPORT [--format table|json|csv | --json [--limit N]] [--out FILE]

Which of the two it is, its content tells. No GPU and none of NVIDIA's tools are needed; a .nsys-rep
is exported first, where nsys is installed.
"""

from __future__ import annotations

import argparse
import csv
import io
import sys
from collections.abc import Sequence
from pathlib import Path

from ncuflow import answer
from ncuflow.io import BadInput, dump_json, emit, inert, sniff_packed
from ncuflow.model import Row
from ncuflow.parsers import show_answer, show_ncu, show_nsys

READERS = {
    "ncu-rep": show_ncu.shown, "csv": show_ncu.exported, "text": show_ncu.exported,
    "sqlite": show_nsys.shown, "nsys-rep": show_nsys.shown,
}  # fmt: skip
ANSWER = show_answer.ANSWER
_TORCH = "`ncuflow step` reads it where torch's profiler wrote it"
HINTS = {"lfs": "fetch it with `git lfs pull`", "json": _TORCH, "gzip": _TORCH}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "report",
        help=".ncu-rep, what ncu printed (with --csv or without), .nsys-rep or its SQLite export; also as .xz",
    )
    parser.add_argument("--format", choices=("table", "json", "csv"), default="table")
    answer.options(parser)
    parser.add_argument("--out", help="write to this file, atomically, instead of standard output")


def run(args: argparse.Namespace) -> None:
    """Read the report, write it in the form asked for."""
    kind, words = sniff_packed(args.report)
    if kind not in READERS:
        raise strange(args.report, "ncu or nsys", kind, words)
    table, document, rows = READERS[kind](args.report)
    if args.json:
        answer.tell(show_answer.of(document, args.report, args.limit), args.out)
    elif args.format == "json":
        emit(dump_json(document), args.out)
    elif args.format == "csv":
        emit(as_csv(rows), args.out)
        # A row has no place for what is wrong with the file as a whole.
        for problem in document.get("problems", document["report"].get("problems", ())):
            print(f"! {problem}", file=sys.stderr)
    else:
        emit(table, args.out)


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
