"""What limits a kernel, what its warps wait for, what it could gain at most, and what to try: on one screen.

    ncuflow explain REPORT… [--kernel K] [--json]    reports of ncu or nsys, or what ncu printed; - is standard input
    ncuflow explain REPORT --all                     a line for each kernel of a report of ncu
    ncuflow explain POINT [--outputs DIR] [--json]   a point of outputs/, or of a recording
    ncuflow explain REPORT… --format md              a table for a pull request: a line for each

K is the index of a launch, a kernel's name or a part of it, a pattern (`*`, `?`), or regex:EXPRESSION as ncu takes it; of
several launches the longest is explained, without K that of the kernel whose launches take the most time together. Each number
where it comes from, and `ncuflow trace` shows it there. The JSON of several is a list.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from ncuflow.compare.reports import distinct
from ncuflow.explain.launch import of_every
from ncuflow.explain.record import Explanation, as_text, overview
from ncuflow.explain.verb import explain
from ncuflow.findings import derivation, profiled
from ncuflow.format import Sheet
from ncuflow.io import UsageError, emit
from ncuflow.verbs.options import AS_TEXT, Printed, given


def command(
    source: str,
    /,
    *more: str,
    kernel: str | None = None,
    all: bool = False,
    outputs: Path | None = None,
    format: Literal["text", "json", "md"] = "text",
    printed: Printed = AS_TEXT,
) -> None:
    """What limits a kernel.

    Args:
        source: SOURCE…, report of ncu or nsys, or the id of a point
        more: further ones
        kernel: index of a launch, or a name, a pattern or a regex:EXPRESSION of it
        all: each kernel of the report, in a line
        outputs: of a point: its outputs, or a recording
        format: text (the default), md (a table for a pull request), or json as --json
    """
    printed = printed.as_asked(format)
    if all and kernel is not None:
        raise UsageError("--all does not go with --kernel")
    sheets: list[Sheet] = []
    found: list[Explanation] = []
    with given(source, *more) as files:
        for name, path in files:
            if all and printed.json:
                found += [_called(one, name, path) for one, _ in of_every(profiled.read(path))]
            elif all:
                sheet = overview(of_every(profiled.read(path)), more=format == "md")
                sheets.append(replace(sheet, head=name) if more else sheet)
            else:
                found.append(_called(explain(path, kernel, outputs), name, path))
    if format == "md":
        tables = sheets or [_compared(found, distinct([name for name, _ in files]))]
        emit("\n".join(sheet.markdown() for sheet in tables), None)
    elif sheets:
        emit("\n".join(sheet.text() for sheet in sheets), None)
    else:
        printed.tell_all(found, "" if printed.json else "\n".join(map(as_text, found)))


def _compared(found: Sequence[Explanation], names: Sequence[str]) -> Sheet:
    """A line for each, with its report where there are several."""
    sheet = overview([(one, None) for one in found], more=True)
    if len(found) == 1:
        return sheet
    rows = [[name, *row] for name, row in zip(names, sheet.rows, strict=True)]
    return replace(sheet, header=["report", *sheet.header], rows=rows)


def _called(found: Explanation, named: str, path: str) -> Explanation:
    """Under the name that was asked for, where that is standard input."""
    if named == path:
        return found
    return Explanation.model_validate_json(found.model_dump_json().replace(path, named))


def trace(
    point: str, column: str, outputs: Path | None = None, /, *, printed: Printed = AS_TEXT
) -> None:
    """Trace: from a number on a page back to the report, kernel and metric that it comes from.

        ncuflow trace decode/B32_L2048_H32_K32_D128_P16_f16_cc gbs_fraction_counter
        ncuflow trace report.ncu-rep#0 busiest_pct

    Prints the column's formula, the columns under it, and at the bottom each metric with its report and kernel.

    Args:
        point: point id, or REPORT#INDEX of a launch of any report of ncu
        column: column of the measurement table, or of a launch: metric, stall, rule, line
        outputs: outputs/<machine> or a recording; default: what has the point
    """
    steps = derivation.found(point, column, outputs)
    asked = Path(point).name if "#" in point else point
    printed.tell(
        derivation.TraceSteps(point=asked, name=column, steps=steps),
        lambda: "".join(f"{derivation.line(step)}\n" for step in steps),
    )
