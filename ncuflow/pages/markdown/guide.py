"""The kernel developer guide's context: what each kernel was, where it sits, what it waits for.

Everything is read from findings. What evidence lacks is None or empty here, and a plain line on the
page; a section is never left out and never empty.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

from ncuflow.findings import crossing
from ncuflow.findings.kernelname import Decoder
from ncuflow.model import Point
from ncuflow.pages import Context
from ncuflow.pages.markdown import (
    guide_choices,
    guide_commands,
    guide_kernels,
    guide_source,
    guide_splitkv,
)
from ncuflow.pages.markdown.findings import Findings
from ncuflow.pages.markdown.guide_waits import hot_kernels, trees
from ncuflow.pages.markdown.series import axis_of, best, spread, varying
from ncuflow.target.contract import Target, known, template_folders

MOST_ROWS = 10  # of the behaviour table
MOST_LINES = 4  # crossings per target that are spelt out
# Parameters by which a sweep grows, the first that a target varies is the one that is read.
GROWTH = ("seq_len", "batch", "rows", "tokens", "kv_len")


def context(findings: Findings, shown: Mapping[str, Context]) -> Context:
    """The guide's part of the template context; ``guide`` is its only key.

    shown: what the other pages say of each target (``contexts.target_section``).
    """
    index = findings.source_index
    jit = findings.optional("jit_analysis")
    names = Decoder((index or {}).get("templates"))
    # An older recording knows nothing of a target that was added since.
    told = {*findings.targets, *findings.stopped, *(index["targets"] if index else known())}
    sections = {
        target.name: section(target, number, findings, shown.get(target.name, {}), jit, names)
        for number, target in enumerate((t for t in known().values() if t.name in told), start=1)
    }
    return {
        "guide": {
            "sections": sections,
            "version": (index or {}).get("version"),
            "functions": guide_source.functions(index),
            "environment": guide_source.environment(index),
            "other_variables": guide_source.other_variables(index),
            "scheduler": (index or {}).get("scheduler") or {},
            "jit": guide_source.jit(jit),
            "commands": guide_commands.of_evidence(findings.evidence),
            "performance": [row for s in sections.values() if (row := performance(s))],
        }
    }


def section(
    target: Target, number: int, findings: Findings, shown: Context, jit: Any, names: Decoder
) -> Context:
    """All that the page says of one kernel target; ``results`` is None where evidence lacks it."""
    name, heading, index = target.name, target.heading or target.title, findings.source_index
    results = findings.targets.get(name)
    out: Context = {
        "name": name,
        "number": number,
        "heading": heading,
        "anchor": anchor(f"{number}. {heading}"),
        "about": target.about,
        "stopped": name in findings.stopped,
        "prose": prose(name),
        "absent": ((index or {}).get("missing") or {}).get(name),
        "code": guide_source.code_path(name, index, results, jit),
        "measured": False,
    }
    points = [p for p in (results["points"] if results else ()) if p["status"] == "ok"]
    if results is None or not points:
        return out
    deep = results["deep"]
    axis, swept = main_axis(points), shown["axis"]
    return out | {
        "measured": True,
        "provenance": results["provenance"],
        "good": len(points),
        "axis": axis,
        "swept": swept.name,
        "rate": swept.rate,
        "best": best(points, swept.rate),
        "points": points,
        "behaviour": behaviour(points, axis),
        "limiters": limiters(points),
        "crossings": crossings(points, axis),
        "batches": batches(points, target),
        "has_counters": any(p["measurement"]["time_ncu_us"] for p in points),
        "trees": trees(points, deep),
        "hot": hot_kernels(deep, index, results["provenance"].get("flashinfer")),
        "deep_command": f"snakemake -j1 {name}",
        "parameters": guide_kernels.parameter_tables(
            points, names, [kernel.name for kernel in target.kernels]
        ),
        "launches": guide_kernels.launches(points),
        "opportunities": shown["opportunities"],
        "looked": shown["looked"],
        "choices": (choices := guide_choices.shown_choices(results)),
        "knobs": guide_choices.knobs(results, choices, index),
        "split": guide_splitkv.rows(points, results["provenance"].get("sm_count"), names),
    }


def batches(points: list[Any], target: Target) -> list[Any]:
    """Points that leave all but ``batch`` and ``kv_heads`` at the target's defaults, most KV heads first."""
    if not {"batch", "kv_heads"} <= target.parameters.keys():
        return []
    usual = target.parameters.items() - {(k, target.parameters[k]) for k in ("batch", "kv_heads")}
    found = [p for p in points if all(p["params"][k] == v for k, v in usual)]
    return sorted(found, key=lambda p: (-p["params"]["kv_heads"], p["params"]["batch"]))


def anchor(heading: str) -> str:
    """The link target that Markdown renderers make of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def prose(target: str) -> list[str]:
    """Names of the templates and examples that were written for a target."""
    return [
        path.name for folder in template_folders() for path in (folder / "guide" / target).glob("*")
    ]


def main_axis(points: list[Point]) -> str:
    """The parameter along which a target is read: of GROWTH, where points lie along it, the first of three values or more."""
    found = varying(points)
    along = [name for name in GROWTH if name in found and _line(points, name)]
    long = [name for name in along if len(found[name]) >= crossing.FEWEST]
    return next(iter(long + along), axis_of(points).name)


def behaviour(points: list[Point], axis: str) -> list[Point]:
    """Rows of the expected-behaviour table: the longest lines along the axis, evenly thinned."""
    lines = crossing.lines(points, axis)
    chosen = [p for line in lines[:2] for p in line] or points
    return spread(chosen, MOST_ROWS)


def limiters(points: list[Point]) -> list[tuple[str, int]]:
    """(limiter, points), the most frequent first; points without counters aside."""
    rows = [point["measurement"] for point in points]
    counts = Counter(row["limiter"] for row in rows if row["verdict"] is not None)
    return sorted(counts.items(), key=lambda c: (-c[1], c[0]))


def crossings(points: list[Point], axis: str) -> list[Context]:
    """Where lines of the sweep cross, with only those parameters that tell the lines apart."""
    differing = varying(points)
    axes = [
        axis,
        *(a for a in GROWTH if a != axis and len(differing.get(a, ())) >= crossing.FEWEST),
    ]
    found = [c for a in axes for c in crossing.crossings(points, a)]
    return [
        {"c": c, "label": ", ".join(f"{k} {v}" for k, v in c.fixed if k in differing)}
        for c in found[:MOST_LINES]
    ]


def performance(found: Context) -> Context | None:
    """One row of the quick reference, along the axis of the sweep figure; None where no two points lie along one.

    Of the longest lines that with the highest rate: its smallest, middle and largest point; best: that of all points.
    """
    if not found["measured"] or found["swept"] == "point":
        return None
    axis, rate = found["swept"], found["rate"]
    rated = [p for p in found["points"] if p["measurement"][rate] is not None]
    lines = crossing.lines(rated, axis)
    line = max(lines, key=lambda line: (len(line), max(p["measurement"][rate] for p in line)))
    middle = line[len(line) // 2] if len(line) > 2 else None
    return {
        "name": found["name"],
        "heading": found["heading"],
        "axis": axis,
        "fixed": {k: v for k, v in line[0]["params"].items() if k != axis},
        "rate": rate,
        "cells": [line[0], middle, line[-1]],
        "best": found["best"],
    }


def _line(points: list[Point], axis: str) -> list[Point] | None:
    lines = [line for line in crossing.lines(points, axis) if len(line) >= 2]
    return lines[0] if lines else None
