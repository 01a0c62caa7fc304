"""Whatever is to be explained: a launch of a report, a kernel of a trace, or a point."""

import os
from pathlib import Path

from ncuflow.explain import launch, record
from ncuflow.findings import profiled, stored
from ncuflow.io import BadInput, UsageError, sniff_packed
from ncuflow.parsers.ncu import Report


def explain(
    source: str | Path, kernel: str | int | None = None, outputs: str | Path | None = None
) -> record.Explanation:
    """What limits a kernel of a report, or the main kernel of a point.

    outputs: where the point is: a folder of outputs, or a recording. Raises BadInput where the source cannot be read,
    or has no such kernel or point.
    """
    if not Path(source).exists() and stored.is_point(str(source)):
        if kernel is not None:
            raise UsageError("--kernel is of a report; of a point its main kernel is explained")
        folder = Path(outputs) if outputs else None
        from ncuflow.explain import point  # with all that targets suggest

        with stored.of_point(str(source), folder) as where:
            return point.of_point(where, str(source), folder)
    kind, _ = sniff_packed(source)
    if kind in profiled.TRACES:
        return launch.of_trace(profiled.trace(source), kernel)
    kind = "ncu" if kind == "ncu-rep" else "ncu csv"
    return of_report(profiled.read(source), kernel, kind)


def of_report(report: Report, kernel: str | int | None, kind: str = "ncu") -> record.Explanation:
    """Of a report that was read with its lines: what `launch.of_report` makes, and in place of NVIDIA's rules what the target
    suggests, where the report lies in a recording that has the launch's point."""
    found = launch.of_report(report, kernel, kind)
    name, recording = found.subject.point, _around(Path(report.file))
    if name is None or recording is None:
        return found
    from ncuflow.explain import point

    try:
        with stored.of_point(name, recording) as where:
            suggestions = point.suggested_at(where, name)
    except BadInput:  # of what lies around it: the report itself was read
        return found
    held = [_within_room(one, found.headroom) for one in suggestions]
    return found.model_copy(update={"suggestions": held}) if held else found


def _around(report: Path) -> Path | None:
    """The recording that a report lies in, told as the report is: from this folder on, where that was."""
    above = Path(os.path.normpath(report.absolute())).parents[2:3]
    if not above or not stored.is_recording(above[0]):
        return None
    return above[0] if report.is_absolute() else Path(os.path.relpath(above[0]))


def _within_room(one: record.Suggestion, room: record.Headroom | None) -> record.Suggestion:
    """A suggestion for the same work, with no more than what is left of the launch."""
    above = one.scope == "point" and one.most and room and one.most.value > room.most.value
    return one.model_copy(update={"most": room.most}) if above and room else one
