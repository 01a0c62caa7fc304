"""Figures of one kernel target (or of all): roofline, stall bars, rate over the sweep. SVG, same bytes every time.

python -m reporting.figures --results decode_results.json --out-dir DIR
python -m reporting.figures --overview --results A.json B.json … --out-dir DIR
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.scale import LogScale
from matplotlib.ticker import FuncFormatter, NullLocator

from analysis.provenance import one_line
from parsers.files import main_guard, write_text
from reporting.series import Series, axis_of, drawn, series_of, spread

# Okabe and Ito's palette: told apart by colour-blind readers.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8C8C8C")
MARKERS = "osD^vP*X"
CEILING_STYLE: dict[Any, Any] = {"datasheet": ":", "counter": "-", "measured": "--"}
STYLE: dict[Any, Any] = {
    "svg.hashsalt": "ncuflow",
    "svg.fonttype": "none",
    "font.size": 9,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 8,
}
STALL_BARS, STALL_REASONS = 12, 6


def new(
    height: float = 4.0, left: float = 0.8, right: float = 2.2, top: float = 0.15
) -> tuple[Figure, Axes]:
    """An empty figure with margins in inches: fixed ones, as a layout engine would draw everything twice."""
    width = 7.6
    figure = Figure(figsize=(width, height))
    figure.subplots_adjust(
        left=left / width, right=1 - right / width, top=1 - top / height, bottom=0.75 / height
    )
    return figure, figure.add_subplot()


def _plain_log(axis: Axis, base: int = 10) -> None:
    """A logarithmic axis with plain numbers at its powers and nothing between."""
    which = "xscale" if axis is axis.axes.xaxis else "yscale"
    axis.axes.set(**{which: LogScale(axis, base=base)})
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())


def save(figure: Figure, path: Path, provenance: dict[str, Any]) -> None:
    """Write the SVG with its origin underneath; no date, so that a second run gives the same bytes."""
    figure.text(0.01, 0.01, one_line(provenance), fontsize=6, color="#666666")
    text = StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
    write_text(path, text.getvalue())


def _legend(axes: Axes) -> None:
    """Beside the axes: never on a point."""
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0), borderaxespad=0)


def measured(results: dict[str, Any]) -> list[dict[str, Any]]:
    """Measurement rows of the points that are right and were measured."""
    return [p["measurement"] for p in results["points"] if p["status"] == "ok"]


def roofline(all_results: list[dict[str, Any]], levels: bool) -> Figure:
    """Counted FLOP rate over counted intensity, under the ceilings.

    With ``levels`` each point stands three times: against DRAM (filled), L2 and L1 (hollow) traffic.
    """
    figure, axes = new()
    xs: list[float] = []
    for index, results in enumerate(all_results):
        colour = COLOURS[index % len(COLOURS)]
        rows = measured(results)
        for column, face, size in (("ai_l1_counted", "none", 9), ("ai_l2_counted", "none", 14),
                                   ("ai_counted", colour, 22)):  # fmt: skip
            if column != "ai_counted" and not levels:
                continue
            found = [(r[column], r["flops_counted"] / r["time_ncu_us"] / 1e6) for r in rows
                     if r[column] and r["flops_counted"] and r["time_ncu_us"]]  # fmt: skip
            if not found:
                continue
            xs += [x for x, _ in found]
            label = {"ai_counted": "DRAM", "ai_l2_counted": "L2", "ai_l1_counted": "L1"}[column]
            axes.scatter(
                [x for x, _ in found],
                [y for _, y in found], s=size, facecolors=face, edgecolors=colour,
                marker=MARKERS[index % len(MARKERS)], linewidths=0.8,
                label=f"{results['target']}, {label}" if levels else results["target"],
            )  # fmt: skip
    _roofs(axes, all_results, xs)
    axes.set(xlabel="counted FLOP per byte", ylabel="counted TFLOPS")
    _plain_log(axes.xaxis)
    _plain_log(axes.yaxis)
    _legend(axes)
    return figure


def _roofs(axes: Axes, all_results: list[dict[str, Any]], xs: list[float]) -> None:
    """Slanted DRAM roofs and flat tensor roofs, the highest of each source over the points."""
    if not xs:
        return
    rows = [row for results in all_results for row in measured(results)]
    low, high = min(xs) / 2, max(xs) * 2
    for source, line in CEILING_STYLE.items():
        memory = max((r[f"ceiling_dram_gbs_{source}"] or 0 for r in rows), default=0)
        tensor = max((r[f"ceiling_tensor_tflops_{source}"] or 0 for r in rows), default=0)
        if memory:
            knee = min(high, tensor / memory * 1e3) if tensor else high
            axes.plot([low, knee], [low * memory / 1e3, knee * memory / 1e3], line, color="#555555", lw=1,
                      label=f"{source}: {memory:,.0f} GB/s")  # fmt: skip
        if tensor and memory and tensor / memory * 1e3 < high:
            axes.plot([tensor / memory * 1e3, high], [tensor, tensor], line, color="#555555", lw=1)


def stalls(results: dict[str, Any]) -> Figure:
    """Where scheduler cycles went: issued, or not issued and what the warps then waited for."""
    points = spread([p for p in results["points"] if _has_stalls(p)], STALL_BARS)
    rows = [_slots(point) for point in points]
    totals: dict[str, float] = defaultdict(float)
    for row in rows:
        for reason, share in row.items():
            totals[reason] += share
    reasons = sorted((r for r in totals if r != "issued"), key=lambda r: -totals[r])[:STALL_REASONS]
    labels = [p["point"].split("/", 1)[1] for p in points]
    margin = 0.2 + 0.066 * max((len(label) for label in labels), default=0)
    figure, axes = new(1.3 + 0.26 * max(len(rows), 1), left=margin, right=1.55)
    left = [0.0] * len(rows)
    for index, reason in enumerate(["issued", *reasons, "other"]):
        widths = [
            row.get(reason, 0.0) if reason != "other"
            else sum(v for k, v in row.items() if k != "issued" and k not in reasons)
            for row in rows
        ]  # fmt: skip
        colour = "#BBBBBB" if reason == "other" else COLOURS[index % 7]
        axes.barh(
            labels, [100 * w for w in widths], left=left, color=colour, label=reason, height=0.75
        )
        left = [a + 100 * w for a, w in zip(left, widths, strict=True)]
    axes.set(xlabel="% of scheduler cycles", xlim=(0, 100))
    axes.tick_params(axis="y", labelsize=7)
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    _legend(axes)
    return figure


def _has_stalls(point: dict[str, Any]) -> bool:
    return point["status"] == "ok" and point["measurement"]["top_stall"] is not None


def _slots(point: dict[str, Any]) -> dict[str, float]:
    """Issued and not issued cycles of the main kernel; the latter divided by the stall shares."""
    m = point["measurement"]
    main = max(point["kernels"], key=lambda k: k["duration_ns"] or 0)
    issued = m["issue_active"] or 0.0
    shares = {
        s["reason"]: s["share"] for s in main["stalls"] if s["kind"] == "stall" and s["share"]
    }
    return {"issued": issued} | {reason: (1 - issued) * share for reason, share in shares.items()}


def sweep(results: dict[str, Any]) -> Figure:
    """The rate that limits this target, over its main sweep dimension, with the ceilings."""
    points = [p for p in results["points"] if p["status"] == "ok"]
    axis = axis_of(points)
    figure, axes = new()
    for index, line in enumerate(series_of(points, axis)):
        _line(axes, line, index)
    rows = [point["measurement"] for point in drawn(points, axis)]
    stem = "ceiling_tensor_tflops" if axis.rate == "tflops" else "ceiling_dram_gbs"
    for source, style in CEILING_STYLE.items():
        top = max((r[f"{stem}_{source}"] or 0 for r in rows), default=0)
        if top:
            axes.axhline(
                top, ls=style, color="#555555", lw=1, label=f"{source} ceiling: {top:,.0f}"
            )
    unit = {"tflops": "TFLOPS", "gbs": "GB/s"}[axis.rate]
    axes.set(xlabel=axis.name, ylabel=f"{unit} (analytic work / cold event time)", ylim=(0, None))
    _plain_log(axes.xaxis, base=2)
    _legend(axes)
    return figure


def _line(axes: Axes, line: Series, index: int) -> None:
    axes.plot(line.x, line.y, marker=MARKERS[index % len(MARKERS)], color=COLOURS[index % len(COLOURS)], ms=4,
              lw=1.2, label=line.label)  # fmt: skip
    axes.fill_between(
        line.x, line.low, line.high, color=COLOURS[index % len(COLOURS)], alpha=0.15, lw=0
    )


def draw(results: dict[str, Any], folder: Path) -> None:
    """All figures of one target."""
    target, provenance = results["target"], results["provenance"]
    save(roofline([results], levels=True), folder / f"{target}-roofline.svg", provenance)
    save(stalls(results), folder / f"{target}-stalls.svg", provenance)
    save(sweep(results), folder / f"{target}-sweep.svg", provenance)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, nargs="+", required=True)
    parser.add_argument("--out-dir", type=Path, required=True)
    parser.add_argument(
        "--overview", action="store_true", help="one roofline of all given targets instead"
    )
    args = parser.parse_args()
    found = [json.loads(path.read_text()) for path in args.results]
    with mpl.rc_context(STYLE):
        if args.overview:
            save(
                roofline(found, levels=False), args.out_dir / "roofline.svg", found[0]["provenance"]
            )
            return
        for results in found:
            draw(results, args.out_dir)


if __name__ == "__main__":
    main_guard(main)
