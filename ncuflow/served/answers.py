"""The answers: one function for each question, over what the other rooms say. Every path is asked of the `Root` first."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from ncuflow.answer import Tier
from ncuflow.compare import records as compared
from ncuflow.compare import verdict
from ncuflow.evidence import location, manifest
from ncuflow.experiments import recorded as advised
from ncuflow.experiments.record import Advice, Trial
from ncuflow.explain import launch, verb
from ncuflow.explain.launch import TIMES, TraceWords
from ncuflow.explain.record import Explanation, Number
from ncuflow.findings import lineage, locate, profiled, stored
from ncuflow.findings.columns import BY_NAME
from ncuflow.io import CommandError, clean, read_as, scratch, sniff_packed
from ncuflow.model import Kernel, Row
from ncuflow.parsers import nsys
from ncuflow.parsers.registry import METRICS
from ncuflow.process import die_with_parent, python_environment
from ncuflow.race import rounds
from ncuflow.runner import listing
from ncuflow.served.records import (
    HotLines,
    Lineages,
    Points,
    ServedComparison,
    ServedLaunch,
    ServedPoint,
    ServedReport,
    ServedTarget,
    Suggestions,
    Targets,
)
from ncuflow.served.root import Root
from ncuflow.target.contract import load

RECORDING_OF_REPORT = 2  # folders above a report of a recording: target and batch
OUTPUTS = Path("outputs")  # where a point is looked for
LAST_WORDS = 400  # characters of what a trial that failed says last
OF_TRACE = "nsys_us"  # the metric of two reports of nsys
CAUSES = 3  # of a change
METRIC = "time_cold_us"  # that decides an advice
T = TypeVar("T")


def targets(root: Root, folder: str | None, limit: int) -> Targets:
    """The kernel targets, and how many points of each the folder (by default the recording that ships) has."""
    where = root.inside(folder) if folder else locate.shipped()
    counted = {name: len(ids) for name, ids in _ids(where).items()}
    rows = [
        ServedTarget(**row, points=counted.get(row["name"]))
        for row in listing.targets(*listing.gpu())
    ]
    return Targets(targets=rows[:limit], left_out=_rest(rows, limit))


def points(root: Root, target: str, folder: str | None, limit: int) -> Points:
    """The ids of a target's points. Raises CommandError for an unknown target."""
    where = root.inside(folder) if folder else locate.shipped()
    try:
        load(target)
    except ValueError as error:
        raise CommandError(str(error)) from None
    found = _ids(where).get(target, [])
    named = folder or f"the recording that ships ({location.name(where)})"
    return Points(lineage=named, points=found[:limit], left_out=_rest(found, limit))


def _ids(where: Path) -> dict[str, list[str]]:
    """The ids of the points of outputs or of a recording, by target."""
    if not locate.is_recording(where):
        every = stored.folder(_results(where))
        return {name: [point["point"] for point in one["points"]] for name, one in every.items()}
    try:
        batches = manifest.read(where).targets
    except ValueError as error:
        raise CommandError(str(error)) from None
    return {
        name: list(dict.fromkeys(one for ids in of.values() for one in ids))
        for name, of in batches.items()
    }


def show(root: Root, report: str, metrics: Sequence[str], limit: int) -> ServedReport:
    """The launches of a report, with the counters whose key (docs/metrics.md) a pattern of `metrics` matches."""
    path = root.inside(report)
    kernels, counted, timed_by = _read(path)
    return ServedReport(
        report=report,
        gpus=sorted({str(kernel["device"]) for kernel in kernels if kernel["device"]}),
        launches=[
            _launch(kernel, f"{report}#{kernel['kernel']}", counted[kernel["kernel"]], metrics, timed_by)
            for kernel in kernels[:limit]
        ],
        left_out=_rest(kernels, limit),
    )  # fmt: skip


def _launch(
    kernel: Kernel, called: str, counted: Sequence[Row], metrics: Sequence[str], timed_by: str
) -> ServedLaunch:
    """A launch with what was counted of what is asked for."""
    at = TraceWords(called)
    numbers = {
        row["key"]: _number(row["value"], row["unit"], row["metric"], profiled.RECORDED, at.to(row["key"]))
        for row in counted
    }  # fmt: skip
    names = [*numbers, *(key for key in METRICS if key not in numbers)]
    asked = [key for key in names if any(fnmatchcase(key, pattern) for pattern in metrics)]
    return ServedLaunch(
        index=kernel["kernel"],
        name=clean(str(kernel["name"])),
        nvtx=kernel["nvtx"],
        grid=kernel["grid"],
        block=kernel["block"],
        duration=_number(kernel["duration_ns"], "ns", timed_by, profiled.RECORDED, at.to(TIMES[0])),
        metrics=[number for key in asked if (number := numbers.get(key))],
        unknown=[
            *(key for key in asked if numbers.get(key) is None),
            *(one for one in metrics if not any(fnmatchcase(key, one) for key in asked)),
        ],
    )


def _read(path: Path) -> tuple[list[Kernel], dict[int, list[Row]], str]:
    """The launches of a report of ncu or nsys, the counters of each by its index, and what their time is called there."""
    counted: dict[int, list[Row]] = defaultdict(list)
    if sniff_packed(path)[0] in profiled.TRACES:
        return profiled.traced(nsys.read(path)), counted, TIMES[0]
    report = profiled.read(path)
    for row in report.metrics:
        counted[row["kernel"]].append(dict(row))
    return profiled.kernels(report), counted, TIMES[1]


def explain(
    root: Root, source: str, kernel: str | None, folder: str | None, limit: int
) -> Explanation:
    """What limits a launch of a report, or a point; lists hold `limit` entries at most."""
    found = _explained(root, source, kernel, folder)
    lists = {name: getattr(found, name) for name in ("stalls", "lines", "suggestions")}
    cut: dict[str, Any] = {name: entries[:limit] for name, entries in lists.items()}
    rest = sum(_rest(entries, limit) for entries in lists.values())
    return found.model_copy(update={**cut, "left_out": found.left_out + rest})


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
    root: Root, source: str, kernel: str | None, folder: str | None, limit: int
) -> HotLines:
    """The source lines at which a kernel's warps stood."""
    found = _explained(root, source, kernel, folder)
    return HotLines(
        subject=found.subject,
        lineage=found.lineage,
        lines=found.lines[:limit],
        missing=[f"{one.what}: {one.brought_by}" for one in found.missing],
        left_out=_rest(found.lines, limit),
    )


def opportunities(
    root: Root, source: str, kernel: str | None, folder: str | None, limit: int
) -> Suggestions:
    """What to try at a kernel or a point."""
    found = _explained(root, source, kernel, folder)
    return Suggestions(
        subject=found.subject,
        lineage=found.lineage,
        suggestions=found.suggestions[:limit],
        left_out=_rest(found.suggestions, limit),
    )


def trace(root: Root, source: str, name: str, folder: str | None, limit: int) -> Lineages:
    """Where a number comes from; source: a point's id, or REPORT#INDEX."""
    report, sign, _ = source.rpartition("#")
    root.inside(report if sign else source)
    steps = lineage.found(source, name, _at_hand(root, folder))
    return Lineages(steps=steps[:limit], left_out=_rest(steps, limit))


def compare(root: Root, base: str, head: str, limit: int) -> ServedComparison:
    """What changed between two sides: outputs, results or recordings, or two reports of ncu or nsys."""
    sides = (root.inside(base), root.inside(head))
    found = verdict.compared(*sides)
    changed = found.changed
    ordered = [*changed, *(point for point in found.points if not point.changed)]
    rows = [(point, name, point.metrics[name]) for point in ordered for name in point.metrics]
    return ServedComparison(
        base=base,
        head=head,
        differences=[
            f"{one.axis}: {one.base} → {one.head}" + " (can be a cause)" * one.cause
            for one in found.differences
        ],
        tests=found.statistics.tests,
        notes=list(found.statistics.notes),
        points=[_compared(found, sides, *row) for row in islice(rows, limit)],
        only_base=len(found.only_base),
        only_head=len(found.only_head),
        not_compared=len(found.not_compared),
        left_out=_rest(rows, limit),
    )


def _results(folder: Path) -> Path:
    return folder / "results" if (folder / "results").is_dir() else folder


def _compared(
    found: compared.Comparison,
    sides: Sequence[Path],
    point: compared.PointChange,
    metric: str,
    change: compared.MetricChange,
) -> ServedPoint:
    column = verdict.METRICS.get(metric)

    def side(value: float, named: compared.Named, folder: Path) -> Number | None:
        tier: Tier = named.provenance.get("tier") or profiled.RECORDED
        # a kernel of a report is the median of launches: no single one of them is its number
        at = None
        if column in BY_NAME:
            outputs = folder.parent if folder.name == "results" else folder
            at = TraceWords(point.id, outputs).to(str(column))
        return _number(value, "µs", column or TIMES[metric != OF_TRACE], tier, at)

    return ServedPoint(
        id=point.id,
        metric=metric,
        verdict=change.verdict,
        base=side(change.base, found.base, sides[0]),
        head=side(change.head, found.head, sides[1]),
        change=change.relative,
        low=change.low,
        high=change.high,
        q=change.q,
        basis=change.basis,
        causes=[clean(cause.what) for cause in change.causes[:CAUSES]],
    )


def try_change(
    root: Root, change: str, target: str, blocks: list[dict[str, Any]] | None, effect: str
) -> Trial:
    """Compile, check and time a change of FlashInfer, as `ncuflow try` does. Raises CommandError where that did not begin."""
    words = ["try", f"./{root.inside(change)}", f"--target={target}", f"--effect={effect}"]
    words += [f"--blocks={json.dumps(blocks)}"] if blocks else []
    return _run(words, "--json", Trial, "the record of a trial")


def advice(root: Root, target: str, folder: str | None, limit: int) -> Advice:
    """Which choice for which shape of a target, of a recording, outputs, or a file of `ncuflow advise --out`."""
    where = root.inside(folder) if folder else locate.shipped()
    try:
        load(target)
    except ValueError as error:
        raise CommandError(str(error)) from None
    if where.is_dir():
        found = advised.advise(where, [target], {}, METRIC, rounds.EFFECT)
    else:
        found = advised.read(where)
        found.shapes = [shape for shape in found.shapes if shape.target == target]
        found.rules = [rule for rule in found.rules if rule.target == target]
    return _shown(found, limit)


def advise(
    root: Root, target: str, blocks: list[dict[str, Any]] | None, effect: str, limit: int
) -> Advice:
    """Race the choices of shapes, as `ncuflow advise` does. Raises CommandError where that did not begin."""
    words = ["advise", f"--target={target}", f"--blocks={json.dumps(blocks or [{}])}"]
    return _shown(_run([*words, f"--effect={effect}"], "--out", Advice, "an advice"), limit)


def _shown(found: Advice, limit: int) -> Advice:
    """So many shapes, each with the choices that were timed; the rest is counted."""
    shapes = found.shapes[:limit]
    timed = [[one for one in shape.choices if one.time_us is not None] for shape in shapes]
    rest = sum(len(s.choices) - len(few) for s, few in zip(shapes, timed, strict=True))
    cut = [s.model_copy(update={"choices": few}) for s, few in zip(shapes, timed, strict=True)]
    left_out = found.left_out + _rest(found.shapes, limit) + rest
    return found.model_copy(update={"shapes": cut, "left_out": left_out})


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


def _number(
    value: float | None, unit: str, metric: str, tier: Tier, trace: str | None
) -> Number | None:
    """A number; None where it is not known."""
    if value is None:
        return None
    return Number(value=float(value), unit=unit, metric=metric, tier=tier, trace=trace)


def _rest(entries: Sequence[object], limit: int) -> int:
    return max(0, len(entries) - limit)
