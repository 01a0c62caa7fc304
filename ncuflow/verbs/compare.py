"""What got slower, and why: two folders of results, or two reports of ncu or nsys of any program.

ncuflow compare outputs/A/results outputs/B/results [--format table|md | --json] [--out FILE]
ncuflow compare recordings/A recordings/B
ncuflow compare A.ncu-rep B.ncu-rep [--format table|md | --json]       or two of `ncu --csv`
ncuflow compare A.sqlite B.json.gz [--device N]                 two traces, of nsys or torch's profiler: kernels by name
"""

import math
from pathlib import Path
from typing import Annotated, Literal

from ncuflow import answer
from ncuflow.compare import records, verdict
from ncuflow.io import UsageError, emit, not_over
from ncuflow.verbs.options import AS_TEXT, Each, OutFile, Printed


def command(
    base: Path,
    head: Path,
    /,
    *,
    base_targets: list[str] | None = None,
    head_targets: list[str] | None = None,
    out: OutFile = None,
    format: Literal["table", "json", "md"] = "table",
    alpha: float = records.Thresholds.alpha,
    threshold: float = records.Thresholds.threshold,
    floor: float | None = None,
    device: int | None = None,
    map: Annotated[list[str] | None, Each] = None,
    printed: Printed = AS_TEXT,
) -> None:
    """What changed from a baseline to a candidate.

    Args:
        base: the baseline: results, outputs or a recording; or a report of ncu or nsys
        head: the candidate, of the same kind
        base_targets: of the first folder; default: all of it
        head_targets: of the second folder; default: all of it
        out: file to write; standard output by default
        format: table (the default), md (a table for a pull request), or json as --json
        alpha: significance after the correction
        threshold: smaller changes do not matter
        floor: noise floor known from elsewhere, of 1
        map: of two traces, OLD=NEW: a kernel that has another name in the second
        device: of two traces, the GPU that is compared; all of them by default
    """
    if not (0 < alpha < 1 and 0 <= threshold < math.inf and 0 <= (floor or 0) < math.inf):
        raise UsageError(
            "--alpha lies between 0 and 1; --threshold and --floor are finite and not negative"
        )
    not_over(out, base, head)
    maps = dict(one.partition("=")[::2] for one in map or ())
    if not all(maps) or not all(maps.values()):
        raise UsageError("--map: OLD=NEW, two names of kernels")
    settings = records.Thresholds(alpha, threshold, floor)
    found = verdict.of_paths(base, head, settings, base_targets, head_targets, device, maps)
    printed = printed.as_asked(format)
    if printed.json:
        answer.tell(records.answered(found, verdict.METRICS, printed.limit), out)
    elif format == "md":
        emit(verdict.sheet(found).markdown(), out)
    else:
        emit(verdict.as_text(found), out)
