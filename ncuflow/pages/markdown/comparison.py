"""The page of a comparison: what differs, what changed and why, what stays unexplained.

    ncuflow compare-page --comparison A.json [B.json …] --figures DIR … --out FILE.md

Several comparisons of one sweep, each side compared with the one before it, make one page that
leads with the times of all sides.
"""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from ncuflow.compare import decomposition, records
from ncuflow.compare.records import Cause, Comparison, Fact, MetricChange, PointChange, Value
from ncuflow.format import MISSING, quantity
from ncuflow.io import write_text
from ncuflow.pages import Context
from ncuflow.pages.markdown.rendering import environment
from ncuflow.target.contract import known

MOST_CHANGED = 6  # in full, with a waterfall each; the others are rows
MOST_OF_STEP = 2  # the same in a step of several
MOST_ROWS = 24
MOST_PARTS, LEAST_SHARE = 5, 0.05
# facts that a reader of the page wants first; bytes and rates follow in the order found
FIRST = ("template", "launch", "code", "smem", "occupancy")
# Of another kernel: the work that it makes of the same call.
WORK = ("instructions", "tensor", "dram", "l2")
MOST_FACTS = 6
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


def context(found: Comparison, figures: str | None, most: int = MOST_CHANGED) -> Context:
    """What the template is given of one comparison. figures: their folder, from the page; most: points in full."""
    return vars(found) | {
        "figures": figures,
        "targets": _counts(found.points),
        "changed": found.changed,
        "detailed": [_detailed(point) for point in found.changed[:most]],
        "rows": found.changed[most : most + MOST_ROWS],
        "causes": found.causes,
    }


def _counts(points: Iterable[PointChange]) -> dict[str, Counter[str]]:
    out: dict[str, Counter[str]] = defaultdict(Counter)
    for point in points:
        out[point.target][point.verdict] += 1
    return dict(sorted(out.items()))


def _detailed(point: PointChange) -> tuple[PointChange, str | None, list[float]]:
    """(the point with what is worth a line of its causes, its figure, µs of the other causes)."""
    causes = [
        replace(
            cause,
            parts=decomposition.causes(cause.parts, LEAST_SHARE)[:MOST_PARTS],
            facts=[_fact(fact) for fact in _ordered(cause) if not _is_repeated(fact, cause)],
        )
        for cause in point.causes
        if _worth_a_line(cause, point.delta)
    ]
    smaller = [c.delta_us or 0.0 for c in point.causes if not _worth_a_line(c, point.delta)]
    return replace(point, causes=causes), figure_name(point), smaller


def _worth_a_line(cause: Cause, delta_us: float) -> bool:
    """Large enough, or something that another binary or another call did: of those none is left out."""
    small = cause.delta_us is not None and abs(cause.delta_us) < LEAST_SHARE * abs(delta_us)
    return not small or cause.kind not in TIMES_ONLY


def _is_repeated(fact: Fact, cause: Cause) -> bool:
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
    rows = [_row(name, own, [points.get(name) for points in steps]) for name, own in times.items()]
    moved = [row for row in rows if row["changes"]]
    return {
        "sides": sides,
        "rows": moved[:MOST_ROWS],
        "ran": [
            (name, number, ran)
            for name in times
            for number, points in enumerate(steps, start=1)
            if (ran := _ran(points.get(name)))
        ][:MOST_ROWS],
        "shifts": [_shift(one) for one in records.shifts(found)],
        "moved": len(moved),
        "points": len(rows),
        "steps": [_step(comparison) for comparison in found],
        "figures": [
            (target, f"{figures}/{series_figure(target)}")
            for target in sorted({name.split("/")[0] for name in times})
            if figures
        ],
    }


def _row(name: str, times: list[float | None], steps: Sequence[PointChange | None]) -> Context:
    """A point over the sides: its first, last, least and greatest time, and the steps that changed it."""
    known = [time for time in times if time is not None]
    changes = [(at, p.relative) for at, p in enumerate(steps, start=1) if p and p.changed]
    ends = {"first": known[0], "last": known[-1], "least": min(known), "most": max(known)}
    return {"id": name, "times": times, "changes": changes, **ends}


def _shift(one: records.Shift) -> Context:
    """A change that points share, in words: by how much, why, and what took it back."""
    return {
        **vars(one),
        "by": _span(one.changes),
        "why": _why(one.target, one.cause),
        "host": one.host and f"{one.host.base:.0f} → {one.host.head:.0f} µs",
        "back_by": _span(one.returned),
        "back_why": _why(one.target, one.undone),
    }


def _span(changes: Sequence[MetricChange]) -> str:
    """``+5.6 to +6.2 %``"""
    ends = sorted({f"{100 * row.relative:+.1f}" for row in changes}, key=float)
    return f"{' to '.join(ends[:: max(1, len(ends) - 1)])} %" if ends else ""


def _why(target: str, cause: Cause | None) -> str:
    """A cause in one sentence: the kernels and their headers, or the code that differs, and how many more instructions."""
    if cause is None:
        return "nothing that both sides recorded explains it"
    if cause.kind == "kernel_replaced":
        sides = (", ".join(_from(target, k) for k in _names(s)) for s in (cause.base, cause.head))
        chosen = [f"{f.what} {f.base} → {f.head}" for f in cause.facts if f.kind == "plan"]
        return f"another kernel: {' → '.join(sides)}" + "".join(f"; {text}" for text in chosen[:1])
    ratio = "".join(
        f"; instructions {100 * (f.head / f.base - 1):+.1f} %"
        for f in cause.facts
        if f.kind == "instructions" and isinstance(f.base, float) and isinstance(f.head, float)
    )
    differs = f": {cause.base} → {cause.head}" if isinstance(cause.base, str) else ""
    if cause.kind == "setting" and isinstance(cause.base, float):
        part = f", {100 * cause.share_of_delta:.0f} % of the change" if cause.share_of_delta else ""
        differs = f" it takes {quantity(cause.base, 'µs')}{part}"
    return f"{cause.what}{differs}{ratio}"


def _ran(point: PointChange | None) -> str:
    """What ran for a point where another kernel took a place: ``a (its header) → b (its header)``."""
    if point is None or not point.changed:
        return ""
    return "; ".join(
        " → ".join(
            ", ".join(_from(point.target, kernel) for kernel in _names(side))
            for side in (cause.base, cause.head)
        )
        for cause in point.causes
        if cause.kind == "kernel_replaced"
    )


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
    """What changed from one side to the next, by target."""
    return {
        "targets": {
            target: counts
            for target, counts in _counts(found.points).items()
            if counts["slower"] or counts["faster"]
        }
    }


def render(
    found: Sequence[Comparison], figures: Sequence[str | None], charts: str | None = None
) -> str:
    """The Markdown of one comparison or of several that follow one another, with their charts' folder."""
    most = MOST_CHANGED if len(found) == 1 else MOST_OF_STEP
    given = {
        "comparisons": [
            context(one, folder, most) for one, folder in zip(found, figures, strict=True)
        ],
        "series": series(found, charts) if len(found) > 1 else None,
    }
    return environment().get_template("compare.md.j2").render(given).rstrip() + "\n"


def command(
    *,
    comparison: list[Path],
    out: Path,
    figures: list[Path] | None = None,
    series: Path | None = None,
) -> None:
    """The page of comparisons.

    Args:
        figures: one per comparison
        series: figures of several comparisons together
    """
    charts = os.path.relpath(series, out.parent) if series else None
    folders: list[str | None] = [os.path.relpath(f, out.parent) for f in figures or ()]
    folders += [None] * (len(comparison) - len(folders))
    write_text(out, render([records.read(path) for path in comparison], folders, charts))
