"""Results in the formats of other tools."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ncuflow import format as form
from ncuflow.compare import records
from ncuflow.experiments import upgrade
from ncuflow.export import check
from ncuflow.export.check import CheckedPoint
from ncuflow.findings import limiter
from ncuflow.io import JsonObject, clean, dump_json
from ncuflow.model import Measurement, Results
from ncuflow.pages.markdown.rendering import cell, code
from ncuflow.parquet import read_table
from ncuflow.race import measure

MOST_BYTES = 1 << 20  # of a step summary: GitHub drops a longer one
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
Found = Mapping[str, Results]


def measured(results: Found) -> Iterator[Measurement]:
    """The rows of the points that ran, gave the right result and have a time."""
    for found in results.values():
        for point in found["points"]:
            if point["status"] == "ok" and point["measurement"]["time_cold_us"] is not None:
                yield point["measurement"]


def bencher(results: Found) -> str:
    """https://bencher.dev/docs/reference/bencher-metric-format/"""
    out: dict[str, dict[str, dict[str, float]]] = {}
    for row in measured(results):
        names = {
            "value": "time_cold_us",
            "lower_value": "time_cold_q25_us",
            "upper_value": "time_cold_q75_us",
        }
        latency = {key: row[name] * 1e3 for key, name in names.items() if row[name] is not None}
        out[row["point"]] = {"latency": latency}
        for name in ("gbs", "tflops"):
            if row[name] is not None:
                out[row["point"]][name] = {"value": row[name]}
    return dump_json(out)


def benchmark_action(results: Found) -> str:
    """https://github.com/benchmark-action/github-action-benchmark (tool: customSmallerIsBetter)"""
    out = []
    for row in measured(results):
        entry = {"name": row["point"], "unit": "us", "value": row["time_cold_us"]}
        low, high = row["time_cold_q25_us"], row["time_cold_q75_us"]
        if low is not None and high is not None:
            entry["range"] = f"{low:g} to {high:g}"
        out.append(entry | {"extra": f"{row['gpu']}, {limiter.words(row) or 'limiter unknown'}"})
    return dump_json(out)


def junit(results: Found, cases: Iterable[CheckedPoint]) -> str:
    """https://github.com/testmoapp/junitxml: one suite, a case per gated point."""
    every = list(cases)
    failed = sum(case.why is not None for case in every)
    counts = {"tests": str(len(every)), "failures": str(failed), "errors": "0"}
    root = ET.Element("testsuites", counts)
    suite = ET.SubElement(root, "testsuite", {"name": "ncuflow", **counts})
    for case in every:
        name = f"{case.point}: {case.hold}"
        words = {"classname": case.point.split("/")[0], "name": _xml(name)}
        element = ET.SubElement(suite, "testcase", words)
        if case.why:
            ET.SubElement(element, "failure", {"message": _xml(case.why)}).text = _xml(case.shown)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def summary(results: Found, cases: Iterable[CheckedPoint]) -> str:
    """Markdown: what was checked, what does not hold first, then every point; cut at MOST_BYTES, with a word about it."""
    every = sorted(cases, key=lambda case: case.why is None)
    failed = sum(case.why is not None for case in every)
    lines = ["# FlashInfer kernels, measured", ""]
    if every:
        lines += [
            f"{failed} of {len(every)} requirements do not hold."
            if failed
            else f"All {len(every)} requirements hold."
        ]
        lines += ["", "| point | must hold | measured | |", "|---|---|---|---|"]
        lines += [
            f"| {code(case.point)} | {cell(case.hold)} | {cell(case.shown)} | {cell(case.why) if case.why else 'holds'} |"
            for case in every
        ]
    if not results:
        return _cut(lines)
    lines += [
        "",
        "| point | cold | of the datasheet's roof | limited by | GPU |",
        "|---|---:|---:|---|---|",
    ]
    for row in measured(results):
        share = check.share(row)
        bound = limiter.words(row) or form.MISSING
        shown = (
            f"{form.number(row['time_cold_us'])} µs",
            form.percent(share),
            cell(bound),
            cell(row["gpu"]),
        )
        lines.append(f"| {code(row['point'])} | {' | '.join(shown)} |")
    return _cut(lines)


def _cut(lines: list[str]) -> str:
    kept: list[str] = []
    size = 0
    for line in lines:
        size += len(line.encode()) + 1
        if size > MOST_BYTES - 100:
            kept += ["", f"{len(lines) - len(kept)} lines more do not fit in here."]
            break
        kept.append(line)
    return "\n".join(kept) + "\n"


def trace(tables: Path) -> str:
    """https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU (Trace Event Format).

    A process per trace, with a thread per stream and one of the host's calls; times in µs from the trace's start.
    """
    rows = read_table(tables / "timeline.parquet")
    reports = {name: number for number, name in enumerate(dict.fromkeys(r["report"] for r in rows))}
    events: list[JsonObject] = []
    for report, pid in reports.items():
        streams = sorted({r["stream"] or 0 for r in rows if r["report"] == report})
        threads = ["host: CUDA calls", *(f"stream {stream}" for stream in streams)]
        events.append(_named("process_name", pid, 0, report))
        for tid, name in zip([0, *(1 + stream for stream in streams)], threads, strict=True):
            events.append(_named("thread_name", pid, tid, name))
    keys = ("point", "launch", "grid", "block", "bytes", "nvtx")
    for row in rows:
        known = {key: row[key] for key in keys if row[key] is not None}
        event = {"ph": "X", "pid": reports[row["report"]], "args": known}
        for name, category, tid, start, length in (
            (row["name"] or row["kind"], row["kind"], 1 + (row["stream"] or 0), row["start_ns"], row["duration_ns"]),
            (row["api_name"] or "CUDA call", "call", 0, row["api_start_ns"], row["api_duration_ns"]),
        ):  # fmt: skip
            if start is not None and length is not None:
                span = {"ts": start / 1e3, "dur": length / 1e3}
                events.append({"name": name, "cat": category, "tid": tid} | event | span)
    return dump_json({"traceEvents": events, "displayTimeUnit": "ns"})


def _named(what: str, pid: int, tid: int, name: str) -> JsonObject:
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}


def _xml(text: str) -> str:
    """Text without what XML has no way to say."""
    return _NOT_XML.sub("?", text)


def compared(path: Path, threshold: float) -> list[CheckedPoint]:
    """The points of a comparison as cases: a significant slow-down beyond the threshold does not hold."""
    found = records.read(path)
    cases = [*check.compared(found, threshold)]
    if not found.statistics.tests:
        hold = f"no slow-down beyond {100 * threshold:g} %"
        why = "nothing was tested"
        cases.insert(0, CheckedPoint(point="comparison", hold=hold, shown="", why=why))
    order = {point.id: number for number, point in enumerate(found.points)}
    return sorted(cases, key=lambda case: order.get(case.point, -1))


def upgraded(path: Path, threshold: float) -> list[CheckedPoint]:
    """The times of an upgrade as cases, and its sums first: slower beyond the threshold does not hold, nor what is wrong."""
    found = upgrade.read(path)
    sums = zip(upgrade.KINDS, (found.gpu_time, found.call_time, found.plan_time), strict=True)
    cases = [_timed("the workload", name, one, one.outcome, threshold) for name, one in sums if one]
    for point in found.points.values():
        if point.timing is None:
            why = f"{point.outcome}: {point.reason}" if point.outcome in upgrade.WRONG else None
            cases.append(
                CheckedPoint(point=point.point, hold="right", shown=point.reason or "", why=why)
            )
        for kind, outcome in upgrade.outcomes(point).items():
            if (timing := upgrade.KINDS[kind](point)) is not None:
                cases.append(_timed(point.point, kind, timing, outcome, threshold))
    for shape in found.shapes:
        if (curve := shape.plan_curve) is not None:
            verdicts = upgrade.curved(curve)
            cases += [
                _timed(
                    shape.point,
                    f"plan() of {one.batch} sequences",
                    one.timing,
                    verdicts[one.batch],
                    threshold,
                )
                for one in curve.points
            ]
    return cases


def _timed(point: str, kind: str, one: Any, outcome: str, threshold: float) -> CheckedPoint:
    """A time on both sides as a case."""
    times = f"{form.number(one.base_us)} → {form.number(one.change_us)} µs, {measure.with_interval(one.change)}"
    late = outcome == "slower" and one.change.estimate > threshold
    hold = f"{kind} no slower beyond {100 * threshold:g} %"
    return CheckedPoint(
        point=point, hold=hold, shown=times, why=f"slower: {times}" if late else None
    )


def commands(cases: Iterable[CheckedPoint]) -> str:
    """GitHub's workflow commands, one for each case that does not hold."""
    lines = []
    for case in cases:
        if case.why:
            title, text = (_escaped(word) for word in (f"{case.point}: {case.hold}", case.why))
            lines.append(f"::error title={title.replace(':', '%3A').replace(',', '%2C')}::{text}\n")
    return "".join(lines)


def _escaped(text: str) -> str:
    """As GitHub takes a message: what begins a command there is no part of it."""
    return clean(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


GATED: dict[str, Callable[[Found, Iterable[CheckedPoint]], str]] = {
    "annotations": lambda results, cases: commands(cases),
    "junit": junit,
    "summary": summary,
}
PLAIN: dict[str, Callable[[Found], str]] = {
    "bencher": bencher,
    "benchmark-action": benchmark_action,
}
