"""A report of Nsight Compute or Nsight Systems on the terminal, as JSON or as CSV.

    ncuflow show REPORT [--format table|json|csv | --json [--limit N]] [--out FILE]

Which of the two it is, its content tells. No GPU and none of NVIDIA's tools are needed; a .nsys-rep
is exported first, where nsys is installed.
"""

from __future__ import annotations

import sys
from typing import Literal

from ncuflow import answer
from ncuflow.io import dump_json, emit, sniff_packed
from ncuflow.parsers import show_ncu
from ncuflow.parsers.show import READERS, as_csv, strange
from ncuflow.verbs.options import AS_TEXT, OutFile, Printed

ANSWER = show_ncu.ANSWER


def command(
    report: str,
    /,
    *,
    format: Literal["table", "json", "csv"] = "table",
    out: OutFile = None,
    printed: Printed = AS_TEXT,
) -> None:
    """A report, in the form asked for.

    Args:
        report: .ncu-rep, what ncu printed (with --csv or without), .nsys-rep or its SQLite export; also as .xz
        format: table (the default), json or csv
        out: write to this file, atomically, instead of standard output
    """
    kind, words = sniff_packed(report)
    if kind not in READERS:
        raise strange(report, "ncu or nsys", kind, words)
    table, document, rows = READERS[kind](report)
    if printed.json:
        answer.tell(show_ncu.answer_of(document, report, printed.limit), out)
    elif format == "json":
        emit(dump_json(document), out)
    elif format == "csv":
        emit(as_csv(rows), out)
        # A row has no place for what is wrong with the file as a whole.
        for problem in document.get("problems", document["report"].get("problems", ())):
            print(f"! {problem}", file=sys.stderr)
    else:
        emit(table, out)
