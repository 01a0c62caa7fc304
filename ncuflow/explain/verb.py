"""What limits a kernel, what its warps wait for, what it could gain at most, and what to try: on one screen.

    ncuflow explain REPORT [--kernel K] [--json]     a report of ncu or nsys, or what `ncu --csv` printed
    ncuflow explain POINT [--outputs DIR] [--json]   a point of outputs/, or of a recording

K is the index of a launch, or a pattern of a kernel's name; of several launches the longest is explained. Each number
says where it comes from, and `ncuflow trace` shows it there.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ncuflow.explain import launch
from ncuflow.explain.record import Explanation
from ncuflow.explain.screen import screen
from ncuflow.findings import profiled
from ncuflow.io import dump_json, emit, sniff_packed


def explain(source: str | Path, kernel: str | int | None = None) -> Explanation:
    """What limits a kernel of a report. Raises BadInput where the source cannot be read, or has no such kernel."""
    kind = "ncu" if sniff_packed(source)[0] == "ncu-rep" else "ncu csv"
    return launch.of_report(profiled.read(source), kernel, kind)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("source", help="report of ncu or nsys, or the id of a point")
    parser.add_argument("--kernel", metavar="K", help="index of a launch, or pattern of a name")
    parser.add_argument("--json", action="store_true", help="the record in place of the screen")


def run(args: argparse.Namespace) -> None:
    found = explain(args.source, args.kernel)
    emit(dump_json(found.model_dump()) if args.json else screen(found), None)
