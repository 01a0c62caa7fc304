"""Figures of a comparison: both times and the change of every point; a waterfall per changed point.

    ncuflow compare-figures --comparison A.json [B.json …] --out-dir DIR

Of several that follow one another: for each kernel target, how its points' times went over all sides.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogFormatter, NullLocator

from ncuflow.compare import records
from ncuflow.format import plain
from ncuflow.io import write_text
from ncuflow.pages.markdown import comparison as page
from ncuflow.pages.markdown.figures import STYLE, svg

COLOURS = {
    "slower": "#D55E00",
    "faster": "#009E73",
    "same": "#555555",
    "inconclusive": "#BBBBBB",
    "not tested": "#BBBBBB",
}
BASE, HEAD, UNEXPLAINED = "#0072B2", "#000000", "#BBBBBB"
LINEAR = 10.0
# Ticks up to 300 % and beyond.
FINE, COARSE = (5, 10, 30, 100, 300), (10, 100, 1000, 10_000, 100_000)
PLAIN = FuncFormatter(lambda value, _: plain(value))
MOST_POINTS, MOST_STEPS, MOST_NAMED = 50, 9, 12
EXPANDED = 0.2  # a kernel with this share of the change is split into its parts


def paired(found: records.Comparison) -> Figure:
    """Left: base and head time of each point. Right: the change with its interval, by verdict."""
    points = page.by_change(found)[:MOST_POINTS]
    rows = range(len(points))
    figure = Figure(figsize=(9.6, 1.4 + 0.2 * max(len(points), 1)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=[1, 1.1])
    left.hlines(rows, [p.base for p in points], [p.head for p in points], color="#cccccc")
    left.scatter([p.base for p in points], rows, s=34, facecolor="none", color=BASE, label="base")
    left.scatter([p.head for p in points], rows, s=9, color=HEAD, label="head", zorder=3)
    left.set_yticks(list(rows), [label(point) for point in points], fontsize=6.5)
    left.set(xscale="log", xlabel="µs")
    left.xaxis.set_major_formatter(PLAIN)
    # the default one writes formulas, which names with dollar signs forbid
    left.xaxis.set_minor_formatter(LogFormatter())
    left.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    for row, point in zip(rows, points, strict=True):
        _change(right, row, point)
    _threshold(right, 100 * found.settings.threshold)
    left.set_ylim(len(points) - 0.3, -0.7)
    return figure


def _threshold(axes: Any, limit: float) -> None:
    """Grey where a change does not matter; beyond LINEAR per cent the axis is logarithmic."""
    axes.axvspan(-limit, limit, color="#eeeeee", zorder=0)
    axes.axvline(0, color="#888888", lw=0.8)
    axes.set_xscale("symlog", linthresh=LINEAR, linscale=1.5)
    low, high = axes.get_xlim()
    marks = FINE if max(-low, high) < FINE[-1] else COARSE
    axes.xaxis.set_major_locator(FixedLocator([*(-mark for mark in marks), 0, *marks]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(PLAIN)
    axes.set_xlim(min(low, -LINEAR), max(high, LINEAR))
    axes.set_xlabel(f"change, % (grey: threshold ± {limit:g} %)")


def label(point: records.PointChange) -> str:
    """The id, and which time it is where it is not the launch's."""
    return point.id if point.metric == "cold_us" else f"{point.id} (host)"


def _change(axes: Any, row: int, point: records.PointChange) -> None:
    colour = COLOURS[point.verdict]
    if point.interval is not None:
        low, high = (100 * bound for bound in point.interval)
        axes.hlines(row, low, high, color=colour, lw=1.4)
    axes.plot(100 * point.relative, row, "o", color=colour, ms=3.5)


# --- waterfall --------------------------------------------------------------------------------


def steps(point: records.PointChange) -> list[tuple[str, float]]:
    """(label, µs) from base to head: causes, the large ones by part, then the unexplained."""
    out: list[tuple[str, float]] = []
    for cause in point.causes:
        if cause.delta_us is None:
            continue
        if cause.parts and abs(cause.share_of_delta or 0) >= EXPANDED:
            out += [(part.what, part.delta_us) for part in cause.parts]
        else:
            out.append((cause.what, cause.delta_us))
    out.sort(key=lambda step: -abs(step[1]))
    other = sum(amount for _, amount in out[MOST_STEPS:])
    out = out[:MOST_STEPS]
    if other:
        out.append(("other explained", other))
    return [*out, ("unexplained", point.unexplained or 0.0)]


def waterfall(point: records.PointChange) -> Figure:
    """From the base's time to the head's, a bar for each thing that moved it."""
    moved = steps(point)
    figure = Figure(figsize=(7.2, 1.0 + 0.26 * (len(moved) + 2)), layout="constrained")
    axes = figure.add_subplot()
    labels = ["base", *(name for name, _ in moved), "head"]
    axes.barh(0, point.base, color=BASE, height=0.7)
    at = point.base
    for row, (name, amount) in enumerate(moved, start=1):
        colour = COLOURS["slower" if amount > 0 else "faster"]
        colour = UNEXPLAINED if name == "unexplained" else colour
        axes.barh(row, amount, left=at, color=colour, height=0.7)
        at += amount
        end = (max(at, at - amount), row)
        offset: Any = {"xytext": (3, 0), "textcoords": "offset points"}
        axes.annotate(f"{amount:+.3g}", end, **offset, va="center", fontsize=7)
    axes.barh(len(moved) + 1, point.head, color=HEAD, height=0.7)
    axes.set_yticks(range(len(labels)), [text[:60] for text in labels], fontsize=7)
    axes.set(xlabel="µs", title=point.id, xlim=_range(point, moved))
    axes.title.set_fontsize(8)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    return figure


def _range(point: records.PointChange, moved: list[tuple[str, float]]) -> tuple[float, float]:
    """Limits around everything that is drawn; from zero unless that would hide the steps."""
    levels = [point.base]
    for _, amount in moved:
        levels.append(levels[-1] + amount)
    low, high = min(*levels, point.head), max(*levels, point.head)
    margin = 0.12 * (high - low)
    return (0.0 if high - low > 0.2 * high else low - margin, high + margin)


# --- several sides ----------------------------------------------------------------------------


def over_versions(found: Sequence[records.Comparison], target: str) -> Figure:
    """Times of a target's points over all sides, each of its first; those that changed in some step are named."""
    sides = [found[0].base, *(one.head for one in found)]
    every = [point for one in found for point in one.points]
    changed = {p.id for p in every if "cold_us" in p.metrics and p.metrics["cold_us"].changed}
    figure = Figure(figsize=(7.2, 3.6), layout="constrained")
    axes = figure.add_subplot()
    axes.axhline(100, color="#888888", lw=0.8)
    moved = 0
    for name, times in page.over_sides(found).items():
        first = next((time for time in times if time), None)
        if name.split("/")[0] != target or first is None:
            continue
        relative = [None if time is None else 100 * time / first for time in times]
        style: dict[str, Any] = {"color": "#bbbbbb", "lw": 0.8, "zorder": 1}
        if name in changed:
            label = name.split("/", 1)[1] if moved < MOST_NAMED else None
            style = {"color": f"C{moved % 10}", "lw": 1.4, "zorder": 2, "label": label}
            moved += 1
        places = range(len(sides))
        axes.plot(places, [float("nan") if r is None else r for r in relative], "o-", ms=3, **style)
    axes.set_xticks(range(len(sides)), [_version(side) for side in sides], fontsize=7)
    axes.set(ylabel="time, % of the first side's", title=target)
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, 95), max(high, 105))  # noise is not to fill the chart
    if moved:
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=6)
    return figure


def _version(side: records.Named) -> str:
    """The name of a side, a part a line, with FlashInfer's version below where the name does not say it."""
    version = side.provenance.get("flashinfer") or ""
    lines = side.name.split("-") + [version] * (version not in side.name)
    return "\n".join(lines)


def save(figure: Figure, path: Path, sides: Sequence[records.Named]) -> None:
    """Write the SVG with its sides underneath; the same bytes every time."""
    named = " → ".join(
        f"{side.name} (FlashInfer {side.provenance.get('flashinfer') or '–'}, "
        f"{side.provenance.get('gpu')}, {side.provenance.get('date')})"
        for side in sides
    )
    figure.supxlabel(named, fontsize=6, color="#666666", x=0.01, ha="left", wrap=True)
    write_text(path, svg(figure))


def draw(found: records.Comparison, folder: Path) -> None:
    """``compare.svg`` and a waterfall for each of the largest changes of a launch's time."""
    folder.mkdir(parents=True, exist_ok=True)
    if found.points:
        save(paired(found), folder / "compare.svg", (found.base, found.head))
    for point in found.changed[: page.MOST_CHANGED]:
        name = page.figure_name(point)
        if name:
            save(waterfall(point), folder / name, (found.base, found.head))


def draw_series(found: Sequence[records.Comparison], folder: Path) -> None:
    """A chart for each kernel target that comparisons which follow one another hold."""
    folder.mkdir(parents=True, exist_ok=True)
    sides = [found[0].base, *(one.head for one in found)]
    for target in sorted({name.split("/")[0] for name in page.over_sides(found)}):
        save(over_versions(found, target), folder / page.series_figure(target), sides)


def command(*, comparison: list[Path], out_dir: Path) -> None:
    """Figures of a comparison, or of several together."""
    style: Any = STYLE
    with mpl.rc_context(style):
        found = [records.read(path) for path in comparison]
        if len(found) > 1:
            draw_series(found, out_dir)
        else:
            draw(found[0], out_dir)
