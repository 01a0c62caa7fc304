"""The kernel guide's context: what a kernel was, where it sits, what it waits for; and the frame around the kernels' pages.

Everything is read from findings. What evidence lacks is None or empty here, and stands in no chapter: the frame
lists it once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ncuflow.findings import limiter, waits
from ncuflow.findings.kernelname import Decoder
from ncuflow.findings.limiter import kind
from ncuflow.findings.steps import LAYERS, Step, planned, steps
from ncuflow.model import Point, Results
from ncuflow.pages import Context
from ncuflow.pages.context.section import Findings
from ncuflow.pages.context.series import axis_of, best, varying
from ncuflow.pages.markdown import guide_kernels, guide_source, guide_waits
from ncuflow.target.contract import Target, known, template_folders

MOST_STEPS = 6
SIZES = (1, 32, 128)  # requests or rows of a call, as a reader looks them up
COUNTED = ("batch", "rows")  # the parameters that count them
MOST_SIZED = 3  # lines of a target
MOST_LINES = 4  # crossings per target that are spelt out
# Parameters by which a sweep grows, the first that a target varies is the one that is read.
GROWTH = ("seq_len", "batch", "rows", "tokens", "kv_len")


def context(findings: Findings, shown: Mapping[str, Context]) -> Context:
    """The frame's part of the template context; ``guide`` is its only key.

    shown: what the other pages say of each target (``contexts.target_section``).
    """
    index = findings.source_index
    jit = findings.optional("jit_analysis")
    # An older recording knows nothing of a target that was added since.
    covered = {*findings.targets, *findings.stopped, *(index["targets"] if index else known())}
    kernels = {
        name: kernel(target, findings.targets[name], shown[name])
        for name, target in known().items()
        if name in shown and shown[name]["good"]
    }
    return {
        "guide": {
            "kernels": kernels,
            "unmeasured": [
                target.heading or target.title
                for name, target in known().items()
                if name in covered and name not in kernels and name not in findings.stopped
            ],
            "version": (index or {}).get("version"),
            "environment": guide_source.environment(index),
            "other_variables": guide_source.other_variables(index),
            "jit": guide_source.jit(jit),
            "commands": guide_source.commands(findings.evidence),
            "stalls": [
                (name, waits.meaning(name), text) for name, text in guide_waits.REMEDIES.items()
            ],
            "steps": _steps(findings),
            "layers": LAYERS,
            "performance": [row for k in kernels.values() if (row := performance(k))],
            "engine": guide_source.ENGINE,
            "columns": SIZES,
            "sizes": [row for k in kernels.values() for row in by_size(k)],
            "generators": guide_source.generators(index),
        }
    }


def _steps(findings: Findings) -> list[Step]:
    """Steps of as many shapes as there are, two of each phase of one."""
    found: dict[Any, list[Step]] = {}
    for step in steps(findings.targets):
        found.setdefault((step.attention.phase, step.shape), []).append(step)
    return [step for alike in found.values() for step in alike[:2]][:MOST_STEPS]


def kernel(target: Target, results: Results, shown: Context) -> Context:
    """What the frame says of one measured kernel."""
    points = [p for p in results["points"] if p["status"] == "ok"]
    axis = shown["axis"]
    return {
        "name": target.name,
        "heading": target.heading or target.title,
        "prose": prose(target.name),
        "axis": axis.name,
        "rate": axis.rate,
        "best": best(points, axis.rate),
        "points": points,
        "opportunities": shown["opportunities"],
        "choices": guide_waits.shown_choices(results),
        "batches": (rows := batches(points, target)),
        "grouped": grouped(rows),
    }


def chapter(results: Results, index: Any) -> Context:
    """What the page of one kernel says beyond its points: algorithm, source, launches, waits, settings."""
    name = results["target"]
    target, names = known().get(name), Decoder((index or {}).get("templates"))
    points = [p for p in results["points"] if p["status"] == "ok"]
    choices = guide_waits.shown_choices(results)
    own = [kernel.name for kernel in target.source.kernels] if target else []
    return {
        "about": target.about if target else "",
        "prose": prose(name),
        "code": guide_source.code_path(name, index, results),
        "version": (index or {}).get("version"),
        "functions": guide_source.functions(index),
        "scheduler": (index or {}).get("scheduler") or {},
        "points": points,
        "limited_by": limiters(points),
        "regime_changes": regime_changes(points, main_axis(points)),
        "trees": guide_waits.trees(points, results["deep"]),
        "hot": guide_waits.hot_kernels(
            results["deep"], index, results["provenance"].get("flashinfer")
        ),
        "parameters": guide_kernels.parameter_tables(points, names, own),
        "launched": guide_kernels.launches(points, results["provenance"].get("gpu") or ""),
        "choices": choices,
        "ran": sorted({kernel["name"] for p in points for kernel in p["kernels"]}),
        "plans": planned(points),
        "instructions": guide_kernels.instructions(results),
        "waiting_mma": guide_kernels.waiting(results),
        "call": guide_kernels.calls(points),
        "tails": guide_kernels.tails(points, main_axis(points)),
        "options": guide_waits.options(results, choices, index),
        "split": guide_kernels.split_rows(
            target, points, results["provenance"].get("sm_count"), names
        )
        if target
        else [],
    }


def batches(points: list[Any], target: Target) -> list[Any]:
    """Points that leave all but ``batch``, ``kv_heads`` and ``cores`` at the target's defaults, most KV heads first."""
    if not {"batch", "kv_heads"} <= target.parameters.keys():
        return []
    usual = {k: v for k, v in target.parameters.items() if k not in ("batch", "kv_heads", "cores")}
    found = [p for p in points if all(p["params"][k] == v for k, v in usual.items())]

    def place(point: Point) -> tuple[Any, ...]:
        params = point["params"]
        return -params["kv_heads"], params.get("cores") or "", params["batch"]

    return sorted(found, key=place)


def grouped(points: list[Any]) -> Context | None:
    """Of the largest batch that was measured with several numbers of KV heads: {batch, kv_len, times: (KV heads, µs of the
    fastest cores), most first}."""
    least: dict[tuple[int, int], dict[int, float]] = {}
    for params, us in ((p["params"], p["measurement"]["time_cold_us"]) for p in points):
        of = least.setdefault((params["batch"], params.get("kv_len", 0)), {})
        of[params["kv_heads"]] = min(us, of.get(params["kv_heads"], us))
    size = max((size for size, of in least.items() if len(of) > 1), default=None)
    if size is None:
        return None
    times = sorted(least[size].items(), reverse=True)
    return {"batch": size[0], "kv_len": size[1], "times": times}


def prose(target: str) -> list[str]:
    """Names of the templates and examples that were written for a target."""
    return [
        path.name for folder in template_folders() for path in (folder / "guide" / target).glob("*")
    ]


def example(target: str) -> str:
    """The code of its calls, one file that runs as it is."""
    found = [
        path for folder in template_folders() for path in (folder / "guide" / target).glob("*.py")
    ]
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(found))


def main_axis(points: list[Point]) -> str:
    """The parameter along which a target is read: of GROWTH, where points lie along it, the first of three values or more."""
    found = varying(points)
    along = [name for name in GROWTH if name in found and _line(points, name)]
    long = [name for name in along if len(found[name]) >= limiter.FEWEST_JUDGED]
    return next(iter(long + along), axis_of(points).name)


def limiters(points: list[Point]) -> list[tuple[str, int]]:
    """(verdict, points), the most frequent first; points without counters aside."""
    rows = [point["measurement"] for point in points]
    counts = Counter(said for row in rows if (said := kind(row)))
    return sorted(counts.items(), key=lambda c: (-c[1], c[0]))


def regime_changes(points: list[Point], axis: str) -> list[Context]:
    """Where lines of the sweep cross, with only those parameters that tell the lines apart."""
    differing = varying(points)
    axes = [
        axis,
        *(a for a in GROWTH if a != axis and len(differing.get(a, ())) >= limiter.FEWEST_JUDGED),
    ]
    every = [c for a in axes for c in limiter.regime_changes(points, a)]
    shown = [c for c in every if c.kind == "crosses"][:MOST_LINES]
    apart = {k for k in dict(differing) if len({dict(c.fixed).get(k) for c in shown}) > 1}
    # One that does not cross differs from one that does in this alone.
    pairs = [
        (dict(c.fixed), dict(o.fixed))
        for c in shown
        for o in every
        if (c.axis, "crosses") != (o.axis, o.kind)
    ]
    unlike = [
        {k for k in one if one[k] != other.get(k)}
        for one, other in pairs
        if one.keys() == other.keys()
    ]
    apart |= {key for keys in unlike if len(keys) == 1 for key in keys}
    return [
        {"c": c, "label": ", ".join(f"{k} {v}" for k, v in c.fixed if k in apart)} for c in shown
    ]


def performance(found: Context) -> Context | None:
    """One row of the quick reference, along the axis of the sweep figure; None where no two points lie along one.

    Of the longest lines that with the highest rate: its smallest, middle and largest point; fixed: its other parameters, of
    those that differ between points; best: that of all points.
    """
    if found["axis"] == "point":
        return None
    axis, rate = found["axis"], found["rate"]
    rated = [p for p in found["points"] if p["measurement"][rate] is not None]
    lines = limiter.lines_along(rated, axis)
    line = max(lines, key=lambda line: (len(line), max(p["measurement"][rate] for p in line)))
    middle = line[len(line) // 2] if len(line) > 2 else None
    return {
        "name": found["name"],
        "heading": found["heading"],
        "axis": axis,
        "fixed": {k: line[0]["params"][k] for k in varying(rated) if k != axis},
        "rate": rate,
        "cells": [line[0], middle, line[-1]],
        "best": found["best"],
    }


def by_size(found: Context) -> list[Context]:
    """Rows of a target with two of ``SIZES`` or more: {heading, axis, fixed, rate, cells: a point for each size, or None}."""
    rows: list[Context] = []
    differing = varying(found["points"])
    for axis in COUNTED:
        for line in limiter.lines_along(found["points"], axis):
            sized = {p["params"][axis]: p for p in line if p["measurement"]["time_cold_us"]}
            cells = [sized.get(size) for size in SIZES]
            if sum(cell is not None for cell in cells) >= 2:
                fixed = {k: line[0]["params"][k] for k in differing if k != axis}
                row = {"heading": found["heading"], "axis": axis, "rate": found["rate"]}
                rows.append(row | {"fixed": fixed, "cells": cells})
    return rows[:MOST_SIZED]


def _line(points: list[Point], axis: str) -> list[Point] | None:
    lines = [line for line in limiter.lines_along(points, axis) if len(line) >= 2]
    return lines[0] if lines else None
