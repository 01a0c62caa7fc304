"""Launches of a report that stands alone: each with all that was measured of it, and the columns that its counters give.

The columns are those of a point (`findings/columns.py`): what needs a time of events, a trace or a count of the work is
null, and what limits a launch is judged as everywhere.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

from ncuflow.evidence.provenance import whole
from ncuflow.findings import ceilings, columns, join
from ncuflow.io import sniff_packed
from ncuflow.model import Kernel, KernelRow, Measurement, Provenance, Row
from ncuflow.parsers import ncu, ncu_text, show
from ncuflow.parsers.show import RECORDED as RECORDED

NESTED = ("stalls", "breakdown", "rules", "lines")
if TYPE_CHECKING:
    from ncuflow.parsers.nsys import Trace

TRACES = ("sqlite", "nsys-rep")  # kinds of files (`ncuflow.io.sniff`) that are traces of nsys
TEXT = ("csv", "text")  # what ncu printed may be


def read(path: str | Path) -> ncu.Report:
    """A report of ncu, or what ncu printed, with its lines. Raises BadInput of anything else."""
    kind, words = sniff_packed(path)
    if kind == "ncu-rep":
        return ncu.read(path)
    if kind in TEXT:
        return ncu_text.read(path)
    raise show.strange(path, "ncu", kind, words)


def launches(path: str | Path, name: str | None = None) -> list[Kernel]:
    """Those of a report of ncu, or the kernels of a trace of nsys; name: as of ``kernels``."""
    if sniff_packed(path)[0] in TRACES:
        return traced(trace(path))
    return kernels(read(path), name)


def trace(path: str | Path) -> Trace:
    """A trace of nsys, by the reader that reports do without."""
    from ncuflow.parsers import nsys

    return nsys.read(path)


def kernels(report: ncu.Report, name: str | None = None) -> list[Kernel]:
    """Every launch with its metrics by registry key, stalls, breakdown, rules and lines, in the order of the report.

    name: what its records call the report; the path that it was read from by default.
    """
    rows: dict[int, Row] = {
        row["kernel"]: {
            **row, "report": name or report.file, "batch": "", "metrics": {}, **{key: [] for key in NESTED},
        }
        for row in report.kernels
    }  # fmt: skip
    for metric in report.metrics:
        rows[metric["kernel"]]["metrics"][metric["key"]] = metric["value"]
    for key in NESTED:
        for part in getattr(report, key):
            rows[part["kernel"]][key].append(part)
    return [cast(Kernel, row) for row in rows.values()]


def traced(trace: Trace) -> list[Kernel]:
    """The kernels of a trace in order of their start, with their times and without counters; their index is that of the
    operation."""
    rows = [row for row in trace.timeline if row["kind"] == "kernel"]
    return [cast(Kernel, _of_operation(row, trace)) for row in rows]


def _of_operation(row: Row, trace: Trace) -> Row:
    blank: Row = dict.fromkeys(KernelRow.__annotations__)
    same = {
        name: row[name]
        for name in ("name", "demangled", "nvtx", "grid", "block", "stream", "point")
    }
    return blank | same | {
        "report": trace.file,
        "batch": "",
        "kernel": row["index"],
        "name": row["name"] or "kernel",
        "duration_ns": float(row["duration_ns"]),
        "device": trace.devices.get(row["device"]),
        "metrics": {},
        **{key: [] for key in NESTED},
    }  # fmt: skip


def provenance(kernel: Kernel, ncu_version: str | None) -> Provenance:
    """What a report says of where a launch was measured."""
    return whole(
        {
            "tier": RECORDED,
            "gpu": kernel["device"],
            "compute_capability": kernel["compute_capability"],
            "ncu": ncu_version,
        }
    )


def row(kernel: Kernel, origin: Provenance) -> Measurement:
    """The columns of one launch."""
    return row_of([kernel], origin)


def row_of(kernels: Sequence[Kernel], origin: Provenance) -> Measurement:
    """The columns of the launches of one call, of one at least."""
    timing: Row = defaultdict(lambda: None)
    machine = ceilings.machine(kernels[0]["device"], None)
    return columns.measurement(join.Joined(timing, {}, kernels, (), machine, origin))


def longest(some: Sequence[Kernel]) -> Kernel:
    """The longest of some launches; the first where none has a time."""
    return max(some, key=lambda kernel: kernel["duration_ns"] or 0.0)


def by_name(kernels: Sequence[Kernel]) -> list[list[Kernel]]:
    """Launches of one full name together, the longest total first; those without a time last."""
    groups: dict[tuple[str, str | None], list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        groups[whole_name(kernel)].append(kernel)
    return sorted(groups.values(), key=lambda group: -total(group))


def whole_name(kernel: Kernel) -> tuple[str, str | None]:
    """What tells kernels apart: many templates have one function name."""
    return kernel["name"], kernel["demangled"]


def total(some: Sequence[Kernel]) -> float:
    """The time of some launches together, as far as it is known."""
    return sum(kernel["duration_ns"] or 0.0 for kernel in some)
