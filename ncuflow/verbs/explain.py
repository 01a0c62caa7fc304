"""What limits a kernel, what its warps wait for, what it could gain at most, and what to try: on one screen.

    ncuflow explain REPORT [--kernel K] [--json]     a report of ncu or nsys, or what ncu printed
    ncuflow explain REPORT --all                     a line for each kernel of a report of ncu
    ncuflow explain POINT [--outputs DIR] [--json]   a point of outputs/, or of a recording

K is the index of a launch, or a pattern of a kernel's name; of several launches the longest is explained, without K that
of the kernel whose launches take the most time together. Each number where it comes from, and `ncuflow trace` shows it there.
"""

from __future__ import annotations

from pathlib import Path

from ncuflow.explain.launch import of_every
from ncuflow.explain.record import Explanation, as_text, overview
from ncuflow.explain.verb import explain
from ncuflow.findings import profiled
from ncuflow.io import UsageError, emit
from ncuflow.verbs.options import AS_TEXT, Printed

ANSWER = Explanation


def command(
    source: str,
    /,
    *,
    kernel: str | None = None,
    all: bool = False,
    outputs: Path | None = None,
    printed: Printed = AS_TEXT,
) -> None:
    """What limits a kernel.

    Args:
        source: report of ncu or nsys, or the id of a point
        kernel: index of a launch, or pattern of a name
        all: each kernel of the report, in a line
        outputs: of a point: its outputs, or a recording
    """
    if all:
        if kernel is not None or printed.json:
            raise UsageError("--all goes with neither --kernel nor --json")
        emit(overview(of_every(profiled.read(source))), None)
        return
    found = explain(source, kernel, outputs)
    printed.tell(found, lambda: as_text(found))
