"""The tools: one function for each question, over what the other rooms say. Every path is asked of the `Root` first.

A function's name, arguments and first words are those of its tool. An answer is what the command of that name prints with
``--json``, cut to what a program reads.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import ConfigDict, Field, RootModel

from ncuflow.answer import AnswerPart, cut, limited
from ncuflow.compare import verdict
from ncuflow.compare.records import CompareAnswer
from ncuflow.compare.records import answered as compared
from ncuflow.evidence import location, manifest
from ncuflow.experiments import recorded as advised
from ncuflow.experiments.record import Advice, Trial
from ncuflow.explain import launch, verb
from ncuflow.explain.record import Explanation, Lineage, Subject, Suggestion, WaitingLine
from ncuflow.findings import derivation, locate, profiled, stored
from ncuflow.findings.derivation import TraceSteps
from ncuflow.io import CommandError, JsonObject, read_as, scratch, sniff_packed
from ncuflow.mcp.root import Root
from ncuflow.parsers import show as shown
from ncuflow.parsers import show_ncu
from ncuflow.parsers.show_ncu import ReportAnswer, TraceAnswer
from ncuflow.process import die_with_parent, python_environment
from ncuflow.race import rounds
from ncuflow.run import listing
from ncuflow.target.contract import load

RECORDING_OF_REPORT = 2  # folders above a report of a recording: target and batch
OUTPUTS = Path("outputs")  # where a point is looked for
LAST_WORDS = 400  # characters of what a trial that failed says last
CAUSES = 3  # of a change
METRIC = "time_cold_us"  # that decides an advice
T = TypeVar("T")

Limit = Annotated[int, Field(ge=1, le=500, description="entries of a list at most")]
Source = Annotated[str, Field(description="path of a report of ncu or nsys, or the id of a point")]
Kernel = Annotated[
    str | None,
    Field(
        description="of a report: index of a launch, or pattern of a name; default: of the largest total the longest"
    ),
]
Folder = Annotated[
    str | None,
    Field(description="outputs/<machine> or a recording; default: outputs, else what ships"),
]
Advised = Annotated[
    str | None,
    Field(
        description="outputs, a recording, or what `ncuflow advise --out` wrote; default: what ships"
    ),
]
Metrics = Annotated[
    list[str], Field(description="keys of docs/metrics.md or patterns of them, such as dram_*")
]
Below = Annotated[str, Field(description="path from the served folder on")]
Blocks = Annotated[
    list[JsonObject] | None,
    Field(description="parameters of the points; default: the target's own point"),
]


class TargetsAtHand(listing.TargetsAnswer):
    """The kernel targets, and what is at hand of each."""

    points: dict[str, int]
    """How many points each target has in the outputs or recording that was asked about."""


class Points(AnswerPart):
    """The points of a target in outputs or in a recording."""

    lineage: str
    """The folder that has the points."""
    points: list[str]
    """The ids that explain and trace take."""
    left_out: int
    """How many points the limit left out."""


class Report(RootModel[ReportAnswer | TraceAnswer]):
    """A report of ncu, or a trace of nsys."""

    model_config = ConfigDict(json_schema_extra={"type": "object"})


class HotLines(AnswerPart):
    """Where warps of a kernel stood when they were sampled: the lines that wait, seldom those that cause the wait."""

    subject: Subject
    """The launch."""
    lineage: Lineage
    """Where the samples come from."""
    lines: list[WaitingLine]
    """The lines, the hottest first; empty without samples."""
    missing: list[str]
    """What was not measured, and which option measures it."""
    left_out: int
    """How many lines the limit left out."""


class Suggestions(AnswerPart):
    """What the evidence suggests to try at a kernel or a point."""

    subject: Subject
    """The launch."""
    lineage: Lineage
    """Where the evidence comes from."""
    suggestions: list[Suggestion]
    """The suggestions, the most promising first."""
    left_out: int
    """How many suggestions the limit left out."""


def list_targets(root: Root, folder: Folder = None, limit: Limit = 50) -> TargetsAtHand:
    """The kernel targets, whether each can be measured on this machine, and how many points of it are at hand."""
    where = root.inside(folder) if folder else locate.shipped()
    every = listing.targets(*listing.gpu())
    rows, left_out = cut(every, limit)
    return TargetsAtHand(
        ready=sum(row["status"] in listing.READY for row in every),
        targets=[listing.Measurable.model_validate(row) for row in rows],
        points={name: len(ids) for name, ids in _ids(where).items()},
        left_out=left_out,
    )


def list_points(root: Root, target: str, folder: Folder = None, limit: Limit = 50) -> Points:
    """The ids of a target's points, which explain, hot_lines, opportunities and trace take."""
    where = root.inside(folder) if folder else locate.shipped()
    _known(target)
    named = folder or f"the recording that ships ({location.name(where)})"
    found, left_out = cut(_ids(where).get(target, []), limit)
    return Points(lineage=named, points=found, left_out=left_out)


def _known(target: str) -> None:
    """Raises CommandError for an unknown target."""
    try:
        load(target)
    except ValueError as error:
        raise CommandError(str(error)) from None


def _ids(where: Path) -> dict[str, list[str]]:
    """The ids of the points of outputs or of a recording, by target."""
    if not locate.is_recording(where):
        results = where / "results"
        every = stored.folder(results if results.is_dir() else where)
        return {name: [point["point"] for point in one["points"]] for name, one in every.items()}
    try:
        batches = manifest.read(where).targets
    except ValueError as error:
        raise CommandError(str(error)) from None
    return {
        name: list(dict.fromkeys(one for ids in of.values() for one in ids))
        for name, of in batches.items()
    }


def show(root: Root, report: Below, metrics: Metrics = [], limit: Limit = 20) -> Report:  # noqa: B006
    """The launches of a report of ncu or nsys, of any program, with the counters that are asked for."""
    path = root.inside(report)
    kind, words = sniff_packed(path)
    if kind not in shown.READERS:
        raise shown.strange(path, "ncu or nsys", kind, words)
    document = shown.READERS[kind](str(path))[1]
    for kernel in document.get("kernels", ()):
        counted = kernel["metrics"].items()
        kernel["metrics"] = {k: v for k, v in counted if any(fnmatchcase(k, m) for m in metrics)}
    return Report(show_ncu.answer_of(document, report, limit))


def explain(
    root: Root, source: Source, kernel: Kernel = None, folder: Folder = None, limit: Limit = 5
) -> Explanation:
    """What limits a kernel, what its warps wait for, what it could gain at most, and what to try."""
    return limited(_explained(root, source, kernel, folder), limit)


def _explained(root: Root, source: str, kernel: str | None, folder: str | None) -> Explanation:
    path = root.inside(source)
    outputs = _at_hand(root, folder)
    if not path.exists() or sniff_packed(path)[0] in profiled.TRACES:
        return verb.explain(source, kernel, outputs)
    above = path.absolute().parents
    if len(above) <= RECORDING_OF_REPORT or root.holds(above[RECORDING_OF_REPORT]):
        return verb.explain(source, kernel)
    # what lies above the folder may be the recording that the report is of: it is not looked at
    kind = "ncu" if sniff_packed(path)[0] == "ncu-rep" else "ncu csv"
    return launch.of_report(profiled.read(path), kernel, kind)


def _at_hand(root: Root, folder: str | None) -> Path | None:
    """The folder that is named; None where none is, and what is looked through then lies below the served one as well."""
    if folder is None and OUTPUTS.exists():
        root.inside(str(OUTPUTS))
    return root.inside(folder) if folder else None


def hot_lines(
    root: Root, source: Source, kernel: Kernel = None, folder: Folder = None, limit: Limit = 5
) -> HotLines:
    """The source lines at which a kernel's warps stood, and what for; the line's text where its source is installed."""
    found = _explained(root, source, kernel, folder)
    missing = [f"{one.what}: {one.brought_by}" for one in found.missing]
    lines, left_out = cut(found.lines, limit)
    return HotLines(subject=found.subject, lineage=found.lineage, lines=lines, missing=missing, left_out=left_out)  # fmt: skip


def opportunities(
    root: Root, source: Source, kernel: Kernel = None, folder: Folder = None, limit: Limit = 5
) -> Suggestions:
    """What the evidence suggests to try at a kernel or a point, with what it can bring at most."""
    found = _explained(root, source, kernel, folder)
    kept, left_out = cut(found.suggestions, limit)
    return Suggestions(subject=found.subject, lineage=found.lineage, suggestions=kept, left_out=left_out)  # fmt: skip


def compare(root: Root, base: Below, head: Below, limit: Limit = 20) -> CompareAnswer:
    """What got slower from base to head, and why: two folders of results, outputs or recordings, or two reports. A point has its
    largest causes, without their parts."""
    found = compared(verdict.compared(root.inside(base), root.inside(head)), verdict.METRICS, limit)
    for point in found.points:
        point.causes = [replace(cause, parts=[], facts=[]) for cause in point.causes[:CAUSES]]
        point.metrics = {name: replace(one, causes=[]) for name, one in point.metrics.items()}
    return found


def trace(
    root: Root, source: str, name: str, folder: Folder = None, limit: Limit = 50
) -> TraceSteps:
    """From a number back to its report, kernel and counter; source: what an answer's `trace` says, the id of a point or
    REPORT#INDEX; name: a column or counter; folder: the outputs or the recording of the point."""
    report, sign, _ = source.rpartition("#")
    root.inside(report if sign else source)
    steps, left_out = cut(derivation.found(source, name, _at_hand(root, folder)), limit)
    return TraceSteps(point=source, name=name, steps=steps, left_out=left_out)


def advice(root: Root, target: str, folder: Advised = None, limit: Limit = 5) -> Advice:
    """Which backend and settings are fastest for each shape of a target that was measured, by how much, and why. Choices that
    were not timed are left out."""
    where = root.inside(folder) if folder else locate.shipped()
    _known(target)
    if where.is_dir():
        found = advised.advise(where, [target], {}, METRIC, rounds.EFFECT)
    else:
        found = advised.read(where)
        found.shapes = [shape for shape in found.shapes if shape.target == target]
        found.rules = [rule for rule in found.rules if rule.target == target]
    return _timed(found, limit)


def try_change(
    root: Root, change: Below, target: str, blocks: Blocks = None, effect: str = "2%"
) -> Trial:
    """Compile a patch of FlashInfer, hold it against the reference, and time it beside what is installed. It is code, and runs as
    the user who serves; it takes minutes, and a GPU."""
    words = ["try", f"./{root.inside(change)}", f"--target={target}", f"--effect={effect}"]
    words += [f"--blocks={json.dumps(blocks)}"] if blocks else []
    return _run(words, "--json", Trial, "the record of a trial")


def advise(
    root: Root, target: str, blocks: Blocks = None, effect: str = "2%", limit: Limit = 5
) -> Advice:
    """Race all legal choices of each shape on this machine's GPU, checked against the reference. It compiles what is not compiled
    yet, and takes minutes."""
    words = ["advise", f"--target={target}", f"--blocks={json.dumps(blocks or [{}])}"]
    return _timed(_run([*words, f"--effect={effect}"], "--out", Advice, "an advice"), limit)


def _timed(found: Advice, limit: int) -> Advice:
    """So many shapes, each with the choices that were timed; the rest is counted."""
    shapes, left_out = cut(found.shapes, limit)
    for shape in shapes:
        timed = [one for one in shape.choices if one.time_us is not None]
        left_out += len(shape.choices) - len(timed)
        shape.choices = timed
    return found.model_copy(update={"shapes": shapes, "left_out": found.left_out + left_out})


def _run(words: Sequence[str], option: str, kind: type[T], what: str) -> T:
    """The record that a command of ncuflow writes where this option says. Raises CommandError with its last word."""
    with scratch() as folder:
        out = folder / "record.json"
        done = subprocess.run(
            [sys.executable, "-m", "ncuflow", *words, f"{option}={out}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=python_environment(os.environ),
            preexec_fn=die_with_parent,
        )
        if not out.exists():
            said = [line for line in done.stderr.splitlines() if line.strip()]
            last = said[-1][:LAST_WORDS] if said else f"it ended with status {done.returncode}"
            raise CommandError(last.partition("error: ")[2] or last, done.returncode)
        return read_as(out, kind, what)


READ = (list_targets, list_points, show, explain, hot_lines, opportunities, compare, trace, advice)
RUN = (try_change, advise)  # code, as the user who serves
