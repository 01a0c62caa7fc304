"""Figures of one kernel target (or of all): roofline, stall bars, rate over the sweep. SVG, same bytes every time."""

import re
from collections import defaultdict
from collections.abc import Collection, Sequence
from io import StringIO
from math import ceil, floor, log10
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib as mpl
import matplotlib.backends.backend_svg  # which is loaded where a figure is saved, by each child of a run
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.scale import LogScale
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ncuflow.evidence.provenance import one_line
from ncuflow.findings.ceilings import flat_roofs, roofless
from ncuflow.findings.join import is_merge, main_kernel
from ncuflow.format import plain
from ncuflow.io import write_text
from ncuflow.model import Measurement, Point, Provenance, Results
from ncuflow.pages.series import Curve, axis_of, drawn, sent, series_of, spread, tensor_kinds
from ncuflow.parsers.stalls import OTHER, STALL_REASONS

# Okabe and Ito's palette: told apart by colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
MARKERS = "osD^vP*X"
CEILING_STYLE: dict[Any, Any] = {"datasheet": ":", "counter": "-", "measured": "--"}
# Roofs of one source differ by colour: of the tensor instruction, or of the memory level.
SOURCE_COLOURS = {"datasheet": "#8B6F00", "counter": "#222222", "measured": "#7A4FA3"}
FURTHER_COLOURS = {"L2": "#999999", "L1": "#CCCCCC"}
FURTHER_INSTRUCTIONS = ("#B22222", "#006D5B")
# One reason, one colour, on every figure.
STALL_COLOURS = {"issued": COLOURS[0]} | dict(
    zip(
        (name for name, r in STALL_REASONS.items() if r.kind == "stall" and name != OTHER),
        ("#D55E00", "#E69F00", "#009E73", "#006D5B", "#56B4E9", "#CC79A7", "#8B6F00", "#000000", "#7A4FA3", "#B22222",
         "#4C72B0", "#8C8C8C", "#C4A484", "#A6D854", "#FB9A99", "#CAB2D6", "#666666"),
        strict=True,
    )
)  # fmt: skip
_TAG = re.compile(r"<[^>]*>")  # what lies between tags is a reader's
_NEEDLESS = re.compile(r'^ +|(?<=<g) id="[^"]+"', re.MULTILINE)
_UNTURNED = re.compile(r' transform="rotate\(-?0 [^"]*\)"')  # of every text that is not turned
_FINE = re.compile(r"(?<![\w.#])-?\d+\.\d{3,}(?![\w.])")
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "ncuflow",
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name with dollar signs is a name
    "font.size": 9,
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
DRAM, TENSOR, FP32 = "ceiling_dram_gbs", "ceiling_tensor_tflops", "ceiling_fp32_tflops"
CACHES = {"L2": "ceiling_l2_gbs", "L1": "ceiling_l1_gbs"}
STALL_BARS, MOST_REASONS = 12, 6
PLAIN = FuncFormatter(lambda value, _: plain(value))  # one way to print a number on both axes
FEW_DECADES = 2  # between the outer powers of an axis, below which powers alone say too little
WIDTH, MARGIN_BELOW = 7.6, 0.75  # inches
Ceiling = tuple[str, str, float]  # source, label, the highest over the points
LABEL_START, LABEL_CHARACTER = 0.45, 0.066  # of a legend beside the axes, inches
LABEL_WIDTH, LABEL_LINE = 36, 0.15  # characters of a line of a label, and its height, inches


def new(
    height: float = 4.0, left: float = 0.8, right: float = 2.2, top: float = 0.15
) -> tuple[Figure, Axes]:
    """An empty figure with margins in inches: fixed ones, as a layout engine would draw everything twice."""
    figure = Figure(figsize=(WIDTH, height))
    figure.subplots_adjust(
        left=left / WIDTH,
        right=1 - right / WIDTH,
        top=1 - top / height,
        bottom=MARGIN_BELOW / height,
    )
    return figure, figure.add_subplot()


def _plain_log(axis: Axis, base: int = 10) -> None:
    """A logarithmic axis with plain numbers at its powers; at 2 and 5 too where powers alone are few."""
    which = "xscale" if axis is axis.axes.xaxis else "yscale"
    axis.axes.set(**{which: LogScale(axis, base=base)})
    low, high = axis.get_view_interval()
    if base == 10 and floor(log10(high)) - ceil(log10(low)) < FEW_DECADES:
        axis.set_major_locator(LogLocator(base, subs=(1, 2, 5)))
    axis.set_major_formatter(PLAIN)
    axis.set_minor_locator(NullLocator())


def save(figure: Figure, path: Path, provenance: Provenance) -> None:
    """Write the SVG with its origin underneath."""
    # Characters of 6 points are a good 3 points wide; what does not fit goes on above, not over the edge.
    caption = fill(one_line(provenance), int(figure.get_figwidth() * 72 / 3.3))
    figure.text(0.01, 0.01, caption, fontsize=6, color="#666666")
    write_text(path, svg(figure))


def svg(figure: Figure) -> str:
    """The figure with coordinates to a hundredth of a point, no group names and no date: a second run gives the same bytes."""
    text = StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(text, format="svg", metadata=nothing)
    flat = _NEEDLESS.sub("", text.getvalue())
    return _TAG.sub(
        lambda tag: _FINE.sub(lambda n: f"{float(n[0]):.2f}", _UNTURNED.sub("", tag[0])), flat
    )


def _legend(axes: Axes) -> None:
    """Beside the axes: never on a point; labels are wrapped, the axes give way where one is long and the figure where they are
    many."""
    figure, (handles, found) = axes.figure, axes.get_legend_handles_labels()
    assert isinstance(figure, Figure)
    # Within a setting, "kv_len 2048", no line ends.
    joined = (re.sub(r"(?<![,;:]) ", "\N{NO-BREAK SPACE}", label) for label in found)
    labels = [fill(one, LABEL_WIDTH, break_long_words=False, break_on_hyphens=False) for one in joined]  # fmt: skip
    labels = [label.replace("\N{NO-BREAK SPACE}", " ") for label in labels]
    if not labels:
        return
    axes.legend(handles, labels, loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)
    lines = [line for label in labels for line in label.splitlines()]
    room = LABEL_START + LABEL_CHARACTER * max(map(len, lines))
    bounds, height = figure.subplotpars, figure.get_figheight()
    figure.subplots_adjust(right=min(bounds.right, 1 - room / WIDTH))
    if (longer := LABEL_LINE * len(lines) + MARGIN_BELOW - height * bounds.top) > 0:
        bottom, top = MARGIN_BELOW, height * (1 - bounds.top)
        figure.set_figheight(height + longer)
        figure.subplots_adjust(bottom=bottom / (height + longer), top=1 - top / (height + longer))


def measured(results: Results) -> list[Point]:
    """The points that are right and were measured."""
    return [p for p in results["points"] if p["status"] == "ok"]


def roofline(all_results: list[Results], levels: bool) -> Figure:
    """Counted FLOP rate over counted intensity, under the ceilings.

    With ``levels`` each point stands three times: against DRAM (filled), L2 and L1 (hollow) traffic.
    """
    figure, axes = new()
    kinds = tensor_kinds(all_results)
    groups: dict[str, list[Measurement]] = defaultdict(list)
    for results in all_results:
        for point in measured(results):
            kind = kinds.get(point["point"])
            groups[results["target"] + (f" {kind}" if kind else "")].append(point["measurement"])
    xs: list[float] = []
    for index, (label, rows) in enumerate(groups.items()):
        xs += _marks(axes, label, rows, index, levels)
    points = [p for results in all_results for p in measured(results)]
    memory = {"DRAM": DRAM} | (CACHES if levels else {})
    _roofs(axes, {name: _ceilings(points, stem, kinds) for name, stem in memory.items()},
           _ceilings(points, TENSOR, kinds), xs)  # fmt: skip
    for kind in roofless([point["measurement"] for point in points]):
        axes.plot([], [], " ", label=f"{kind}: no roof known")
    axes.set(xlabel="counted FLOP per byte", ylabel="counted TFLOPS")
    _plain_log(axes.xaxis)
    _plain_log(axes.yaxis)
    _legend(axes)
    return figure


def _marks(
    axes: Axes, label: str, rows: list[Measurement], index: int, levels: bool
) -> list[float]:
    """Draw the marks of one group of points; their intensities."""
    colour, xs = COLOURS[index % len(COLOURS)], []
    for column, level, face, size in (("ai_l1_counted", "L1", "none", 9), ("ai_l2_counted", "L2", "none", 14),
                                      ("ai_counted", "DRAM", colour, 22)):  # fmt: skip
        found = [(r[column], r["flops_counted"] / r["time_ncu_us"] / 1e6) for r in rows
                 if r[column] and r["flops_counted"] and r["time_ncu_us"]]  # fmt: skip
        if not found or (level != "DRAM" and not levels):
            continue
        xs += [x for x, _ in found]
        axes.scatter(
            [x for x, _ in found], [y for _, y in found], s=size, facecolors=face, edgecolors=colour,
            marker=MARKERS[index % len(MARKERS)], linewidths=0.8,
            label=f"{label}, {level}" if levels else label,
        )  # fmt: skip
    return xs


def _ceilings(points: list[Point], stem: str, kinds: dict[str, str]) -> list[Ceiling]:
    """(source, label, the highest over the points), the highest first.

    Counters state that of the instruction that ran: HMMA's is far below HGMMA's, so each kind has its own.
    What was published and measured of arithmetic is of the type that a point computed with, and each type has its own.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for point in points:
        cuda_cores = stem == TENSOR and point["measurement"].get("flop_type") == "fp32"
        for source in ("counter",) if stem == TENSOR else CEILING_STYLE:
            kind = "fp32" if cuda_cores else kinds.get(point["point"]) if stem == TENSOR else None
            key = source, f"{source}, {kind}" if kind else source
            if top := point["measurement"].get(f"{FP32 if cuda_cores else stem}_{source}"):
                found[key].append(top)
    tops = [(*key, max(values)) for key, values in found.items()]
    for source in ("datasheet", "measured") if stem == TENSOR else ():
        by_type = flat_roofs([point["measurement"] for point in points], source)
        alone = len(set(by_type.values())) == 1
        labels = {source if alone else f"{source}, {dtype}": top for dtype, top in by_type.items()}
        tops += [(source, label, top) for label, top in labels.items()]
    return sorted(tops, key=lambda c: -c[2])


def _roofs(
    axes: Axes, memory: dict[str, list[Ceiling]], tensor: list[Ceiling], xs: list[float]
) -> None:
    """Flat tensor roofs, then a slanted one per memory level and source, in the legend from the top down.

    A slanted roof ends where it meets the highest flat one of its source.
    """
    if not xs:
        return
    low, high = min(xs) / 2, max(xs) * 2
    flat: dict[str, float] = {}
    slopes = {source: top / 1e3 for source, _, top in memory["DRAM"]}
    for (source, label, top), colour in zip(tensor, _colours(tensor), strict=True):
        flat.setdefault(source, top)
        knee = top / slopes[source] if source in slopes else high
        if knee < high:
            _roof(
                axes,
                source,
                colour,
                f"{label}: {plain(top, '.0f')} TFLOPS",
                [(knee, top), (high, top)],
            )
    for level, roofs in reversed(memory.items()):
        for source, label, top in roofs:
            slope = top / 1e3
            end = min(high, flat[source] / slope if source in flat else high)
            colour = FURTHER_COLOURS.get(level, SOURCE_COLOURS[source])
            if end > low:
                ends = [(low, low * slope), (end, end * slope)]
                _roof(axes, source, colour, f"{level}, {label}: {plain(top, '.0f')} GB/s", ends)


def _colours(ceilings: Sequence[Ceiling]) -> list[str]:
    """A colour for each: that of its source, but of several of one source the further ones differ."""
    further, seen, out = iter(FURTHER_INSTRUCTIONS), set[str](), list[str]()
    for source, _, _ in ceilings:
        out.append(next(further, "#555555") if source in seen else SOURCE_COLOURS[source])
        seen.add(source)
    return out


def _roof(
    axes: Axes, source: str, colour: str, label: str, ends: list[tuple[float, float]]
) -> None:
    """One roof; what was published is drawn over what was counted, which is often as high."""
    axes.plot(*zip(*ends, strict=True), CEILING_STYLE[source], label=label, color=colour,
              lw=2 if source == "datasheet" else 1.2, zorder=3 if source == "datasheet" else 2)  # fmt: skip


def stalls(results: Results) -> Figure:
    """Where scheduler cycles went: issued, or not issued and what the warps then waited for."""
    points = spread([p for p in results["points"] if _has_stalls(p)], STALL_BARS)
    rows = [_slots(point) for point in points]
    totals: dict[str, float] = defaultdict(float)
    for row in rows:
        for reason, share in row.items():
            totals[reason] += share
    named = (reason for reason in totals if reason not in ("issued", OTHER))
    reasons = sorted(named, key=lambda reason: -totals[reason])[:MOST_REASONS]
    labels = [p["point"].split("/", 1)[1] + _of_merge(p) for p in points]
    margin = 0.2 + 0.066 * max((len(label) for label in labels), default=0)
    figure, axes = new(1.3 + 0.26 * max(len(rows), 1), left=margin, right=1.55)
    left = [0.0] * len(rows)
    for reason in ["issued", *reasons, OTHER]:
        widths = [
            row.get(reason, 0.0) if reason != OTHER
            else sum(v for k, v in row.items() if k != "issued" and k not in reasons)
            for row in rows
        ]  # fmt: skip
        axes.barh(
            labels,
            [100 * w for w in widths],
            left=left,
            color=STALL_COLOURS.get(reason, "#BBBBBB"),
            label=reason,
            height=0.75,
        )
        left = [a + 100 * w for a, w in zip(left, widths, strict=True)]
    axes.set(xlabel="% of scheduler cycles", xlim=(0, 100))
    axes.tick_params(axis="y", labelsize=7)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    _legend(axes)
    return figure


def _of_merge(point: Point) -> str:
    """What a bar says where the longest kernel is not the target's own, but merges what that split."""
    main = main_kernel(point["kernels"])
    return " (its merge)" if main and is_merge(main) else ""


def _has_stalls(point: Point) -> bool:
    return point["status"] == "ok" and point["measurement"]["top_stall"] is not None


def _slots(point: Point) -> dict[str, float]:
    """Issued and not issued cycles of the main kernel; the latter divided by the stall shares."""
    m = point["measurement"]
    main = main_kernel(point["kernels"])
    issued = m["issue_active"] or 0.0
    stalls = [s for s in (main["stalls"] if main else ()) if s["kind"] == "stall"]
    shares = {s["reason"]: s["share"] for s in stalls if s["share"]}
    return {"issued": issued} | {reason: (1 - issued) * share for reason, share in shares.items()}


def sweep(results: Results) -> Figure:
    """The rate that limits this target, over its main sweep dimension, with the ceilings; a word where there is none."""
    points = measured(results)
    axis = axis_of(points)
    if axis.name == "point":
        figure, axes = new(height=1.4, top=0.5)
        axes.set_title("No two points with a rate differ in one size alone.", fontsize=9)
        axes.set_axis_off()
        return figure
    figure, axes = new()
    for index, line in enumerate(series_of(points, axis)):
        _line(axes, line, index)
    if axis.further:
        axes.plot([], [], " ", label=f"({axis.further} more in the CSV)")
    stem, kinds = (TENSOR if axis.rate == "tflops" else DRAM), tensor_kinds([results])
    # At the highest clock of all launches, drawn or not, as on the roofline: one instruction has one ceiling.
    highest = {label: top for source, label, top in _ceilings(points, stem, kinds) if source == "counter"}  # fmt: skip
    over_links = any(sent(point) for point in points)
    ceilings = [] if over_links else _ceilings(drawn(points, axis), stem, kinds)
    for (source, label, top), colour in zip(ceilings, _colours(ceilings), strict=True):
        height = highest.get(label, top)
        axes.axhline(height, ls=CEILING_STYLE[source], color=colour, lw=1,
                     label=f"{label} ceiling: {plain(height, '.0f')}")  # fmt: skip
    unit = {"tflops": "TFLOPS", "gbs": "GB/s"}[axis.rate]
    work = "2(n − 1)/n of a message" if over_links else "analytic work"
    axes.set(xlabel=axis.name, ylabel=f"{unit} ({work} / cold event time)", ylim=(0, None))
    _plain_log(axes.xaxis, base=2)
    axes.yaxis.set_major_formatter(PLAIN)
    _legend(axes)
    return figure


def _line(axes: Axes, line: Curve, index: int) -> None:
    axes.plot(line.x, line.y, marker=MARKERS[index % len(MARKERS)], color=COLOURS[index % len(COLOURS)], ms=4,
              lw=1.2, label=line.label)  # fmt: skip
    axes.fill_between(
        line.x, line.low, line.high, color=COLOURS[index % len(COLOURS)], alpha=0.15, lw=0
    )


def draw(results: Results, folder: Path) -> None:
    """All figures of one target."""
    target, provenance = results["target"], results["provenance"]
    save(roofline([results], levels=True), folder / f"{target}-roofline.svg", provenance)
    save(stalls(results), folder / f"{target}-stalls.svg", provenance)
    save(sweep(results), folder / f"{target}-sweep.svg", provenance)


def draw_all(found: Sequence[Results], folder: Path, impossible: Collection[str] | None) -> None:
    """The figures of each of the results; with ``impossible`` one roofline of them all, without these points, of which a number
    cannot be true: their target's own page stops, this figure does not."""
    with mpl.rc_context(STYLE):
        if impossible is not None:
            points = [[p for p in one["points"] if p["point"] not in impossible] for one in found]
            possible = [one | {"points": own} for one, own in zip(found, points, strict=True)]
            figure = roofline(possible, levels=False)
            save(figure, folder / "roofline.svg", found[0]["provenance"])
            return
        for results in found:
            draw(results, folder)
