"""Rows as aligned text, CSV or JSON for the two reader commands."""

from __future__ import annotations

import argparse
import csv
import io
from collections.abc import Sequence
from typing import Any

from ncuflow.io import dump_json, emit

Row = dict[str, Any]


def arguments(doc: str, what: str) -> argparse.Namespace:
    """FILE --format --out, as both commands take them; a wrong option exits with 2."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("file", help=what)
    parser.add_argument("--format", choices=("table", "json", "csv"), default="table")
    parser.add_argument("--out", help="write to this file, atomically, instead of standard output")
    return parser.parse_args()


def write(args: argparse.Namespace, table: str, document: Any, rows: Sequence[Row]) -> None:
    """The form that was asked for."""
    if args.format == "json":
        emit(dump_json(document), args.out)
    elif args.format == "csv":
        emit(as_csv(rows), args.out)
    else:
        emit(table, args.out)


def as_csv(rows: Sequence[Row]) -> str:
    """CSV with a header; None is empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table in columns: the first `left` aligned left, the others right."""
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    out = []
    for row in cells:
        texts = [
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        out.append("  ".join(texts).rstrip())
    return "\n".join(out) + "\n"


def short(text: str | None, width: int) -> str:
    """At most `width` characters, the end cut off with "…"; None is "–"."""
    if text is None:
        return "–"
    text = text.replace("\n", " ")
    return text if len(text) <= width else text[: width - 1] + "…"
