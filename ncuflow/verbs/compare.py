"""What got slower, and why: two sides of results, or two reports of ncu or nsys of any program.

ncuflow compare outputs/A/results outputs/B/results [--format table|json] [--out FILE]
ncuflow compare recordings/A recordings/B
ncuflow compare A.ncu-rep B.ncu-rep [--format table|json]       or two of `ncu --csv`
ncuflow compare A.sqlite B.json.gz [--device N]                 two traces, of nsys or torch's profiler: kernels by name
"""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from ncuflow import answer
from ncuflow.compare import reports, traces
from ncuflow.compare.records import CompareAnswer, Thresholds, answered
from ncuflow.compare.verdict import METRICS, of_paths
from ncuflow.io import UsageError, dump_json, emit, not_over
from ncuflow.verbs.options import AS_TEXT, OutFile, Printed

ANSWER = CompareAnswer


def command(
    base: Path,
    head: Path,
    /,
    *,
    base_targets: list[str] | None = None,
    head_targets: list[str] | None = None,
    out: OutFile = None,
    format: Literal["table", "json"] = "table",
    alpha: float = Thresholds.alpha,
    threshold: float = Thresholds.threshold,
    floor: float | None = None,
    device: int | None = None,
    printed: Printed = AS_TEXT,
) -> None:
    """What changed between two sides.

    Args:
        base: results, outputs or a recording; or a report of ncu or nsys
        head: the same of the other side
        base_targets: of the first folder; default: all of it
        head_targets: of the second folder; default: all of it
        out: file to write; standard output by default
        format: table (the default) or json
        alpha: significance after the correction
        threshold: smaller changes do not matter
        floor: A/A floor known from elsewhere, of 1
        device: of two traces, the GPU that is compared; all of them by default
    """
    if not (0 < alpha < 1 and 0 <= threshold < math.inf and 0 <= (floor or 0) < math.inf):
        raise UsageError(
            "--alpha lies between 0 and 1; --threshold and --floor are finite and not negative"
        )
    not_over(out, base, head)
    settings = Thresholds(alpha, threshold, floor)
    found = of_paths(base, head, settings, base_targets, head_targets, device)
    if printed.json:
        answer.tell(answered(found, METRICS, printed.limit), out)
    else:
        of_traces = any(point.metric == traces.EACH for point in found.points)
        text = traces.table if of_traces else reports.table
        emit(dump_json(asdict(found)) if format == "json" else text(found), out)
