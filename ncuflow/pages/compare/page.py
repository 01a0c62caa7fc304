"""The page of a comparison: what differs, what changed and why, what stays unexplained.

    ncuflow compare-page --comparison A.json [B.json …] --figures DIR … --out FILE.md

Several comparisons of one sweep, each side compared with the one before it, make one page that
leads with the times of all sides.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ncuflow.compare import decomposition, records
from ncuflow.compare.records import Cause, Change, Comparison, Fact, PointChange, Value
from ncuflow.format import MISSING, quantity
from ncuflow.io import write_text
from ncuflow.pages import Context
from ncuflow.pages.markdown.rendering import environment
from ncuflow.target.contract import known

MOST_CHANGED = 12  # told in full, with a waterfall each
MOST_ROWS = 60
MOST_PARTS, LEAST_SHARE, MOST_CAUSES = 5, 0.05, 3
LABELS = {
    "cold_us": "time",
    "cold_us_short": "time of short launches",
    "host_us": "host",
    "plan_us": "plan",
}
# facts that a reader of the page wants first; bytes and rates follow in the order found
FIRST = ("template", "launch", "code", "smem", "occupancy")
WORK = (
    "instructions",
    "tensor",
    "dram",
    "l2",
)  # of another kernel: the work that it makes of the same call
MOST = 0.5  # of a change: a cause with less did not take most of it
MOST_FACTS = 12
# causes that are another time of what both sides did alike
TIMES_ONLY = ("clock", "execution", "copy_changed", "gap")
SAID_BY_PARTS = ("instructions executed", "SM clock", "active warps per scheduler")


def figure_name(point: PointChange) -> str | None:
    """File name of a point's waterfall; None for a host time, which has one cause and no parts."""
    if point.metric != "cold_us":
        return None
    return f"waterfall-{re.sub(r'[^A-Za-z0-9]+', '-', point.id)}.svg"


def by_change(found: Comparison) -> list[PointChange]:
    """What changed first (slow-downs before speed-ups), then the largest of the rest."""
    rest = [point for point in found.points if not point.changed]
    return found.changed + sorted(rest, key=lambda point: -abs(point.relative))


def context(found: Comparison, figures: str | None) -> Context:
    """What the template is given of one comparison. figures: their folder, from the page."""
    return vars(found) | {
        "figures": figures,
        "targets": _counts(found.points),
        "changed": found.changed,
        "told": [_told(point) for point in found.changed[:MOST_CHANGED]],
        "rows": by_change(found)[:MOST_ROWS],
        "causes": found.causes,
    }


def _counts(points: Iterable[PointChange]) -> dict[str, Counter[str]]:
    out: dict[str, Counter[str]] = defaultdict(Counter)
    for point in points:
        out[point.target][point.verdict] += 1
    return dict(sorted(out.items()))


def _told(
    point: PointChange,
) -> tuple[PointChange, str | None, list[tuple[str, Change]], list[float]]:
    """(the point with what is worth a line of its causes, its figure, its other times that changed, µs of the other causes)."""
    causes = [
        replace(
            cause,
            parts=decomposition.causes(cause.parts, LEAST_SHARE)[:MOST_PARTS],
            facts=[_fact(fact) for fact in _ordered(cause) if not _said(fact, cause)],
        )
        for cause in point.causes
        if _worth_a_line(cause)
    ]
    smaller = [cause.delta_us or 0.0 for cause in point.causes if not _worth_a_line(cause)]
    others = [(metric, row) for metric, row in point.metrics.items() if metric != point.metric]
    also = [(metric, row) for metric, row in others if row.changed]
    return replace(point, causes=causes), figure_name(point), also, smaller


def _worth_a_line(cause: Cause) -> bool:
    """Large enough, or something that another binary or another call did: of those none is left out."""
    small = cause.delta_us is not None and abs(cause.share_of_delta or 0) < LEAST_SHARE
    return not small or cause.kind not in TIMES_ONLY


def _said(fact: Fact, cause: Cause) -> bool:
    """The headline or a part of the cause says it already."""
    in_parts = bool(cause.parts) and fact.what in SAID_BY_PARTS
    return fact.kind == "template" == cause.kind or in_parts


def _ordered(cause: Cause) -> list[Fact]:
    """The first kinds, then the rest in the order found, the source lines at the end of all."""
    first = (*WORK, *FIRST) if cause.kind == "kernel_replaced" else FIRST
    rank = {kind: place for place, kind in enumerate(first)}
    facts = sorted(cause.facts, key=lambda fact: rank.get(fact.kind, len(first)))
    lines = [fact for fact in facts if fact.kind == "line"]
    return [fact for fact in facts if fact.kind != "line"][:MOST_FACTS] + lines


def _fact(fact: Fact) -> Fact:
    return replace(fact, base=value(fact.base, fact.unit), head=value(fact.head, fact.unit))


def value(found: Value, unit: str) -> str:
    """A fact's value: a number with its unit, text and lists as code."""
    if found is None or found == "":
        return MISSING
    if isinstance(found, bool) or not isinstance(found, int | float):
        return f"`{found}`"
    return quantity(found, unit)


# --- several sides ----------------------------------------------------------------------------


def series_figure(target: str) -> str:
    """File name of a target's times over the sides."""
    return f"series-{target}.svg"


def over_sides(found: Sequence[Comparison]) -> dict[str, list[float | None]]:
    """Cold time of every point on each side of comparisons that follow one another, None where it has none."""
    sides = len(found) + 1
    times: dict[str, list[float | None]] = {}
    for index, comparison in enumerate(found):
        for point in comparison.points:
            if "cold_us" in point.metrics:
                row = point.metrics["cold_us"]
                own = times.setdefault(point.id, [None] * sides)
                own[index] = row.base if own[index] is None else own[index]
                own[index + 1] = row.head
    return times


def series(found: Sequence[Comparison], figures: str | None = None) -> Context:
    """All sides of comparisons that follow one another: a time for each side of every point.

    figures: the folder of their charts, from the page.
    """
    sides = [found[0].base, *(comparison.head for comparison in found)]
    times = over_sides(found)
    steps = [{point.id: point for point in comparison.points} for comparison in found]
    rows = [
        {"id": name, "times": own, "steps": [points.get(name) for points in steps]}
        for name, own in times.items()
    ]
    moved = [
        row
        for row in rows
        if any(points[row["id"]].changed for points in steps if row["id"] in points)
    ]
    ran = [(name, _ran([points.get(name) for points in steps])) for name in times]
    return {
        "sides": sides,
        "rows": (moved or rows)[:MOST_ROWS],
        "ran": [(name, kernels) for name, kernels in ran if any(kernels)][:MOST_ROWS],
        "moved": len(moved),
        "points": len(rows),
        "told": [_step(comparison) for comparison in found],
        "figures": [
            (target, f"{figures}/{series_figure(target)}")
            for target in sorted({name.split("/")[0] for name in times})
            if figures
        ],
    }


def _ran(steps: Sequence[PointChange | None]) -> list[str]:
    """What ran for a point, step by step, where another kernel took a place: ``a (its header) → b (its header)``."""
    return [
        "; ".join(
            " → ".join(
                ", ".join(_from(point.target, kernel) for kernel in _names(side))
                for side in (cause.base, cause.head)
            )
            for cause in point.causes
            if cause.kind == "kernel_replaced"
        )
        if point and point.changed
        else ""
        for point in steps
    ]


def _names(kernels: Value) -> list[Value]:
    """One kernel, or several that stand for one another as a whole."""
    return kernels if isinstance(kernels, list) else [kernels]


def _from(target: str, kernel: Value) -> str:
    """A kernel's name with FlashInfer's header that it comes from, where its target knows it, or else another."""
    own = sorted(known().values(), key=lambda one: one.name != target)
    symbols = (symbol for one in own for symbol in one.source.kernels)
    header = next((symbol.header for symbol in symbols if symbol.name == kernel), None)
    return f"`{kernel}`" + (f" ({header})" if header else "")


def _step(found: Comparison) -> Context:
    """What changed from one side to the next, by target, and the causes that took most of a change most often."""
    leading = Counter(
        first.what if (first.share_of_delta or 0) >= MOST else "unexplained"
        for first in (
            max(point.causes, key=lambda cause: cause.share_of_delta or 0)
            for point in found.changed
            if point.causes
        )
    )
    return {
        "targets": {
            target: counts
            for target, counts in _counts(found.points).items()
            if counts["slower"] or counts["faster"]
        },
        "causes": leading.most_common(MOST_CAUSES),
        "only": (len(found.only_base), len(found.only_head)),
    }


def render(
    found: Sequence[Comparison], figures: Sequence[str | None], charts: str | None = None
) -> str:
    """The Markdown of one comparison or of several that follow one another, with their charts' folder."""
    given = {
        "comparisons": [context(one, folder) for one, folder in zip(found, figures, strict=True)],
        "series": series(found, charts) if len(found) > 1 else None,
        "labels": LABELS,
    }
    return environment().get_template("compare.md.j2").render(given).rstrip() + "\n"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--comparison", type=Path, nargs="+", required=True)
    parser.add_argument("--figures", type=Path, nargs="*", default=[], help="one per comparison")
    parser.add_argument("--series", type=Path, help="figures of several comparisons together")
    parser.add_argument("--out", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    charts = args.series and os.path.relpath(args.series, args.out.parent)
    folders: list[str | None] = [os.path.relpath(f, args.out.parent) for f in args.figures]
    folders += [None] * (len(args.comparison) - len(folders))
    write_text(args.out, render([records.read(path) for path in args.comparison], folders, charts))
