"""Reports of any program in one HTML file, to read, to compare and to pass on, without a network.

    ncuflow view FILE… [--out page.html] [--source FOLDER]

Files are reports of ncu, traces of nsys (their SQLite export, or .nsys-rep where nsys is installed) and what `ncu --csv`
printed, each also as .xz. Of several reports the first is the baseline, and the others are compared with it kernel by
kernel. No GPU and none of NVIDIA's tools are needed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ncuflow.format import with_unit
from ncuflow.io import BadInput, write_text
from ncuflow.pages.html import page, view_columns
from ncuflow.view import files
from ncuflow.view.model import View

# Bytes of a page beside its script, style and libraries: what does not fit is left out from the end, and counted.
BUDGET = 1_500_000
AT_ONCE = 24  # kernels whose panels come before their code, and that before their counters
MOST_MISSES = 32  # blocks that did not fit, after which nothing more is tried
SAME = "`ncuflow explain` and `ncuflow show` print the same of each report."


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument(
        "--out", type=Path, help="default: the first file's name with .html, in this folder"
    )
    parser.add_argument(
        "--source", type=Path, metavar="FOLDER", help="where source files are that no report embeds"
    )


def run(args: argparse.Namespace) -> None:
    if args.source and not args.source.is_dir():
        raise BadInput(args.source, "not a folder")
    out = args.out or Path(_stem(args.files[0]) + ".html")
    if any(out.resolve() == path.resolve() for path in args.files):
        raise BadInput(out, "is one of the files to read")
    text = rendered(files.view(args.files, args.source))
    write_text(out, text)
    print(f"{out}: {with_unit(round(len(text.encode()) / 1e3), 'kB')}")


def _stem(path: Path) -> str:
    """report.ncu-rep.xz is report."""
    name = path.name.removesuffix(".xz")
    return name.rpartition(".")[0] or name


def rendered(view: View, budget: int = BUDGET) -> str:
    """The page's text. Blocks that do not fit into `budget` bytes are left out; the page counts them by their absence."""
    names = [*(one.file for one in view.reports), *(one.file for one in view.traces)]
    packed = [page.packed_block("main", view_columns.main(view))]
    packed += _fitting(_blocks(view), budget)
    return page.assembled("view", " → ".join(names), ", ".join(names), SAME, packed)


def _fitting(blocks: Iterable[tuple[str, Any]], budget: int) -> Iterator[str]:
    misses = 0
    for name, value in blocks:
        block = page.packed_block(name, value)
        if len(block) <= budget:
            budget -= len(block)
            yield block
        elif (misses := misses + 1) > MOST_MISSES:
            return


def _blocks(view: View) -> Iterator[tuple[str, Any]]:
    """(name, value) of what is unpacked when it is opened, what matters most first: of each report the longest kernels."""
    for number, trace in enumerate(view.traces):
        yield f"trace {number}", view_columns.trace(trace)
    ranked = sorted(
        (at, number)
        for number, report in enumerate(view.reports)
        for at in range(len(report.kernels))
    )
    for first in range(0, len(ranked), AT_ONCE):
        for make in (view_columns.kernel, view_columns.code, view_columns.counters):
            for at, number in ranked[first : first + AT_ONCE]:
                found = make(view.reports[number], at)
                if found is not None:
                    yield f"{make.__name__} {number} {at}", found
