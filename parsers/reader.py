"""NVIDIA's own report reader, the package ncu-report."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def load(report: Path) -> Any:
    """The IContext of a report. Raises ImportError without the package.

    The reader finds the units of counters in a library beside it, but not below a folder whose name
    is not ASCII: there it loads in silence and every unit is empty. It is therefore shown its own
    folder under another name.
    """
    import ncu_report

    folder = Path(ncu_report.__file__).parent
    if not str(folder).isascii():
        # Open for as long as the process: the library is loaded anew for each report.
        ncu_report.__file__ = f"/proc/self/fd/{os.open(folder, os.O_RDONLY)}/__init__.py"
    try:
        str(report).encode()
    except UnicodeEncodeError:  # a name that is no UTF-8 would not reach the reader
        return ncu_report.load_report(f"/proc/self/fd/{os.open(report, os.O_RDONLY)}")
    return ncu_report.load_report(str(report))


def actions(context: Any, first: int = 0, last: int | None = None) -> Iterator[tuple[int, Any]]:
    """(index, action) of kernels first ≤ index < last; the others are not even parsed."""
    before = 0
    for number in range(context.num_ranges()):
        found = context.range_by_idx(number)
        count = found.num_actions()
        until = before + count if last is None else min(before + count, last)
        for index in range(max(first, before), until):
            yield index, found.action_by_idx(index - before)
        before += count
