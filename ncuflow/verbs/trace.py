"""Trace: from a number on a page back to the report, kernel and metric that it comes from.

    ncuflow trace decode/B32_L2048_H32_K32_D128_P16_f16_cc gbs_fraction_counter
    ncuflow trace report.ncu-rep#0 busiest_pct

Prints the column's formula, the columns under it, and at the bottom each metric with its report and kernel.
"""

from pathlib import Path

from ncuflow.findings.derivation import TraceSteps, found, line
from ncuflow.verbs.options import AS_TEXT, Printed


def command(
    point: str, column: str, outputs: Path | None = None, /, *, printed: Printed = AS_TEXT
) -> None:
    """Where a number comes from.

    Args:
        point: point id, or REPORT#INDEX of a launch of any report of ncu
        column: column of the measurement table, or of a launch: metric, stall, rule, line
        outputs: outputs/<machine> or a recording; default: what has the point
    """
    steps = found(point, column, outputs)
    asked = Path(point).name if "#" in point else point
    printed.tell(
        TraceSteps(point=asked, name=column, steps=steps),
        lambda: "".join(f"{line(step)}\n" for step in steps),
    )
