"""Figures: what they show of a sweep, whose ceilings stand over it, and which numbers label an axis."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from conftest import Recorded, some
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from results_data import PROVENANCE, entry, kernel, results

from ncuflow.pages.markdown import figures, guide
from ncuflow.pages.markdown.rendering import environment
from ncuflow.pages.section import target_section
from ncuflow.pages.series import best

HMMA, HGMMA = 2000.0, 3000.0  # made up: FLOP a cycle and SM
CLOCK, SMS = 1e9, 100.0


def rated(tflops: float, seq_len: int = 512, measured: float = 700.0, **params: Any) -> Any:
    """A point of a prefill sweep with a rate."""
    name = "_".join(map(str, (seq_len, *params.values())))
    columns = {"tflops": tflops, "time_cold_us": 10.0, "ai_analytic": 200.0}
    columns["ceiling_tensor_tflops_measured"] = measured
    return entry(f"prefill/{name}", {"seq_len": seq_len, **params}, **columns)


def profiled(name: str, per_cycle: float | None, clock: float = CLOCK, **columns: Any) -> Any:
    """A point with counters: 1 TFLOP of 1 GB in 10 ms, on ``per_cycle`` where tensor cores ran."""
    metrics = {"sm_clock_hz": clock, "sm_count": SMS}
    peak = per_cycle * clock * SMS if per_cycle else None
    metrics |= {"tensor_flops_peak_per_second": peak} if peak else {}
    counted = {"flops_counted": 1e12, "time_ncu_us": 1e4, "ai_counted": 1e3} | columns
    counted |= {"ceiling_dram_gbs_counter": 4000.0, "ceiling_tensor_tflops_datasheet": 310.0}
    counted |= {"ceiling_dram_gbs_datasheet": 4000.0}
    counted["ceiling_tensor_tflops_counter"] = peak and peak / 1e12
    return entry(f"prefill/{name}", {}, [kernel(metrics=metrics)], **counted)


def deep(per_cycle: float, *opcodes: str | None) -> Any:
    """A kernel of a deep profile, at a clock that no sweep had."""
    found = profiled("deep", per_cycle, 0.7 * CLOCK)["kernels"][0]
    return found | {"lines": [{"opcode": opcode} for opcode in opcodes]}


def two_kinds() -> Any:
    """Clocks fall under load: the ceiling of HMMA at the high clock is that of HGMMA at the low one."""
    low = CLOCK * HMMA / HGMMA
    return results(
        profiled("a", HMMA), profiled("b", HMMA, 1.01 * CLOCK), profiled("c", HGMMA, low), profiled("d", HGMMA)
    )  # fmt: skip


def drawn(found: Any) -> Axes:
    """The sweep of a target."""
    (axes,) = figures.sweep(found).axes
    return axes


def roofs(*found: Any, levels: bool = False) -> Axes:
    """The roofline of targets."""
    (axes,) = figures.roofline([*found], levels=levels).axes
    return axes


def counters(axes: Axes) -> list[float]:
    """Heights of the ceilings by counters, the lowest first."""
    return sorted(height for label, height in flat(axes).items() if "counter" in label)


def labels(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    return [" ".join(text.get_text().split()) for text in legend.get_texts()]


def flat(axes: Axes) -> dict[str, float]:
    """Height of each flat line by its label."""
    lines = {str(line.get_label()): list(line.get_ydata()) for line in axes.lines}  # type: ignore[arg-type]
    return {label: ys[0] for label, ys in lines.items() if len(ys) > 1 and len(set(ys)) == 1}


def ticks(figure: Figure) -> list[str]:
    """The numbers along x that lie within the axes."""
    (axes,) = figure.axes
    FigureCanvasAgg(figure).draw()
    low, high = axes.get_xlim()
    labelled = zip(axes.get_xticks(), axes.get_xticklabels(), strict=True)
    return [label.get_text() for value, label in labelled if low <= value <= high]


# --- the lines of a sweep -----------------------------------------------------------------------


def many(lines: int, best: int) -> Any:
    """A sweep of as many lines of equal length, the given one the fastest."""
    return results(*(
        rated(500.0 if n == best else 100.0 + 10 * n, size, heads=f"h{n}") for n in range(lines) for size in (512, 1024)
    ))  # fmt: skip


def caption(found: Any) -> str:
    """The target's page."""
    context = {"provenance": PROVENANCE, "t": target_section(found) | guide.chapter(found, None)}
    return environment().get_template("target.md.j2").render(context)


def test_the_ceilings_of_a_sweep_are_those_of_the_points_drawn() -> None:
    """A single point of another type has no line, and its higher ceiling is not theirs; unless it is the best."""
    two = [rated(100.0, 512), rated(100.0, 1024)]
    lone = rated(90.0, 2048, 800.0, dtype="bf16")
    assert "measured ceiling: 700" in labels(drawn(results(*two, lone)))
    best = rated(500.0, 2048, dtype="bf16")
    assert "dtype bf16" in labels(drawn(results(*two, best)))


@pytest.mark.parametrize("best", [0, 7, 9])
def test_the_line_of_the_best_point_is_always_drawn(best: int) -> None:
    axes = drawn(many(10, best))
    lines = [line for line in axes.lines if line.get_marker() in figures.MARKERS]
    assert len(lines) == 8
    assert max(max(line.get_ydata()) for line in lines) == 500.0  # type: ignore[arg-type]


def test_a_point_of_torch_and_a_rate_above_what_streams_are_best_only_where_no_other_is() -> None:
    own, other = rated(400.0, 512), rated(500.0, 2048)
    own["measurement"]["tflops_fraction_measured"] = 0.8
    assert best([own, other], "tflops") is own
    assert best([other], "tflops") is other
    add = "void at::native::vectorized_elementwise_kernel<4>(int)"
    other["measurement"]["tflops_fraction_measured"] = 0.9
    other["kernels"] = [kernel() | {"demangled": add}]
    assert best([own, other], "tflops") is own
    assert best([other], "tflops") is other


def test_the_axis_is_a_size_that_points_lie_along() -> None:
    """Of batch, which has more values, no two points differ in it alone; where none do there is no line."""
    found = results(*(rated(100.0 * size, size, batch=size) for size in (1, 2, 4)))
    axes = drawn(found)
    assert not axes.lines and "No two points" in axes.get_title()
    assert "prefill-sweep.svg" not in caption(found)
    points = [rated(100.0, 512, batch=1), rated(100.0, 1024, batch=1)]
    points += [rated(90.0, 512, batch=size, heads=f"h{size}") for size in (2, 3)]
    found = results(*points)
    assert drawn(found).get_xlabel() == "seq_len"
    assert "rate over seq_len" in caption(found)


@pytest.mark.parametrize(
    ("lines", "said"), [(10, "2 further lines are"), (9, "1 further line is"), (8, None)]
)
def test_lines_left_out_are_counted(lines: int, said: str | None) -> None:
    found = many(lines, 0)
    legend = " ".join(labels(drawn(found)))
    if said is None:
        assert "not drawn" not in caption(found) and "more in the CSV" not in legend
    else:
        assert f" {said} not drawn: all points are in the CSV." in caption(found)
        assert f"({said[0]} more in the CSV)" in legend


# --- roofs --------------------------------------------------------------------------------------


def test_each_tensor_instruction_has_a_counter_roof_of_its_own() -> None:
    found = two_kinds()
    found["deep"] = [
        deep(HMMA, None, "HMMA.16816.F32", "HFMA2.MMA"),
        deep(HGMMA, "HGMMA.64x128x16.F32", "LDG"),
    ]
    axes = roofs(found)
    assert {
        label: height for label, height in flat(axes).items() if "counter" in label
    } == pytest.approx({"counter, HGMMA: 300 TFLOPS": 300.0, "counter, HMMA: 202 TFLOPS": 202.0})
    assert {"prefill HMMA", "prefill HGMMA"} <= set(labels(axes))


def test_a_kind_that_no_deep_profile_names_is_told_by_its_peak_and_a_single_one_is_tensor() -> None:
    told = {"counter, 3 000 FLOP/cycle: 300 TFLOPS", "counter, 2 000 FLOP/cycle: 202 TFLOPS"}
    axes = roofs(two_kinds())
    assert told <= set(labels(axes))
    heights = list(flat(axes).values())  # listed from the top down
    assert len(heights) == 3 and heights == sorted(heights, reverse=True)
    axes = roofs(results(profiled("a", HMMA), profiled("b", None)))
    assert [label for label in labels(axes) if "prefill" in label] == ["prefill tensor", "prefill"]
    assert "counter, tensor: 200 TFLOPS" in labels(axes)


def test_the_flat_roof_is_that_of_the_type_that_a_kernel_computed_with() -> None:
    def typed(name: str, kind: str, sheet: float | None, **columns: Any) -> Any:
        roofs = {"ceiling_tensor_tflops_datasheet": sheet, "ceiling_tensor_tflops_measured": None}
        point = profiled(name, None, flop_type=kind, **columns)
        point["measurement"] |= roofs
        return point

    cuda = {"ceiling_fp32_tflops_datasheet": 66.9, "ceiling_fp32_tflops_counter": 60.0}
    found = results(
        typed("a", "bf16", 989.5), typed("b", "fp8", 1979.0), typed("c", "fp32", 989.5, **cuda),
        typed("d", "fp4", None), typed("e", "bf16+fp8", None),
    )  # fmt: skip
    axes = roofs(found)
    assert flat(axes) == {
        "datasheet, fp8: 1 979 TFLOPS": 1979.0,
        "datasheet, bf16: 990 TFLOPS": 989.5,
        "datasheet, fp32: 67 TFLOPS": 66.9,
        "counter, fp32: 60 TFLOPS": 60.0,
    }
    assert labels(axes)[-2:] == ["bf16+fp8: no roof known", "fp4: no roof known"]


def test_a_split_point_has_the_kind_of_the_kernel_that_ran_one() -> None:
    """The longest kernel may be the one that merges; the counted work is not its."""
    point = profiled("a", HMMA)
    point["kernels"].append(kernel("Merge") | {"duration_ns": 900e3})
    assert "prefill tensor" in labels(roofs(results(point)))


def test_no_two_roofs_look_alike_and_each_level_has_its_own() -> None:
    found = two_kinds()
    for point in found["points"]:
        point["measurement"] |= {"ai_l2_counted": 40.0, "ai_l1_counted": 9.0, "ceiling_l2_gbs_counter": 1e4,
                                 "ceiling_l1_gbs_counter": 3e4}  # fmt: skip
    axes = roofs(found, levels=True)
    looks = {str(line.get_label()): (line.get_color(), line.get_linestyle()) for line in axes.lines}
    assert {"L2, counter: 10 000 GB/s", "L1, counter: 30 000 GB/s"} <= set(looks)
    # a source's flat and slanted roof are one line
    assert len(set(looks.values())) >= len(looks) - 3
    slanted = {look for label, look in looks.items() if "GB/s" in label}
    flat_ones = [look for label, look in looks.items() if "TFLOPS" in label]
    assert len(slanted) == sum("GB/s" in label for label in looks)
    assert len(set(flat_ones)) == len(flat_ones)
    assert not [line for line in roofs(found).lines if str(line.get_label())[:2] in ("L1", "L2")]


def test_an_instruction_has_the_same_ceiling_on_the_sweep_and_on_the_roofline() -> None:
    """Its highest clock may be that of a point that has no line."""
    found = two_kinds()
    alone = profiled("alone", HMMA, 1.1 * CLOCK)
    for index, point in enumerate([*found["points"], alone]):
        point["params"] |= {"seq_len": index % 2, "backend": f"fa{2 + index // 2}"}
        rate = 90.0 if point is alone else 100.0 + 10 * (index // 2)
        point["measurement"] |= {"tflops": rate, "time_cold_us": 10.0, "ai_analytic": 200.0}
    axes = drawn(found)
    assert counters(axes) == pytest.approx([202.0, 300.0])
    lines = [line for line in axes.lines if "ceiling" in str(line.get_label())]
    assert len({(line.get_color(), line.get_linestyle()) for line in lines}) == len(lines) == 3
    found["points"].append(alone)
    heights = counters(drawn(found))
    assert heights == counters(roofs(found)) == pytest.approx([220.0, 300.0])


def test_labels_neither_overlap_nor_leave_the_figure() -> None:
    with mpl.rc_context(figures.STYLE):
        figure = figures.roofline([two_kinds()], levels=True)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    legend = figure.axes[0].get_legend()
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in legend.get_texts()]
    assert not [pair for pair in combinations(boxes, 2) if pair[0].overlaps(pair[1])]
    assert max(box.x1 for box in boxes) <= figure.bbox.x1
    assert min(box.y0 for box in boxes) >= figure.bbox.y0


def test_a_roofline_of_nothing_counted_is_drawn() -> None:
    assert roofs(results(entry("prefill/a", {})), levels=True).get_legend() is None


# --- axes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("intensities", "shown"),
    [
        ((0.4, 2.0), ["0.2", "0.5", "1", "2"]),
        ((0.1, 3.3), ["0.05", "0.1", "0.2", "0.5", "1", "2", "5"]),
        ((0.4, 300.0), ["1", "10", "100"]),
    ],
)
def test_an_axis_of_few_powers_is_labelled_between_them(intensities: Any, shown: Any) -> None:
    points = [profiled(f"p{n}", None, ai_counted=one) for n, one in enumerate(intensities)]
    assert ticks(figures.roofline([results(*points)], levels=False)) == shown


def test_each_data_type_has_its_own_measured_roof() -> None:
    def typed(dtype: str, rate: float) -> Any:
        point = profiled(dtype, HMMA)
        point["measurement"] |= {"ceiling_tensor_tflops_measured": rate, "dtype": dtype}
        point["measurement"] |= {"ceiling_dram_gbs_measured": 3500.0}
        return point

    half, brain = typed("f16", 700.0), typed("bf16", 740.0)
    told = {"measured, f16: 700 TFLOPS", "measured, bf16: 740 TFLOPS"}
    assert told <= set(labels(roofs(results(half, brain, half))))
    assert "measured: 700 TFLOPS" in labels(roofs(results(half, half)))


def test_a_device_whose_name_has_dollar_signs_is_no_formula(tmp_path):
    with mpl.rc_context(figures.STYLE):
        figures.save(figures.new()[0], tmp_path / "x.svg", PROVENANCE | {"gpu": r"$\no$ & <GPU>"})
    assert r"$\no$ &amp; &lt;GPU&gt;" in (tmp_path / "x.svg").read_text()


def test_no_shipped_figure_shows_the_source_of_a_formula():
    """Formulas are off for the sake of names, so that a formatter that writes them would show its code."""
    for figure in some((Path(__file__).parents[1] / "docs/sample").rglob("*.svg")):
        assert "mathdefault" not in figure.read_text("utf-8")


def test_pages_read_the_same_figure_the_same_way() -> None:
    """What a line under a ceiling and a mark under a roof mean is said once, in the glossary; figures refer to it."""
    templates = Path(__file__).parents[1] / "templates"
    said = {p.name: p.read_text() for p in templates.rglob("*.j2")}
    explained = {name for name, text in said.items() if "flattens" in text or "knee" in text}
    users = {name for name, text in said.items() if "{{ reads_" in text}
    assert (explained, users) == ({"_macros.j2"}, {"reference.md.j2"})
    found = results(rated(100.0), rated(200.0, 1024))
    for point in found["points"]:
        point["measurement"]["time_ncu_us"] = 10.0
    assert caption(found).count("[How to read it](kernel-dev-guide.md#glossary).*") == 2
    assert "flattens well below, something else does: the table names it." in said["_macros.j2"]
    assert "one well below both by something else: another unit, or waits." in said["_macros.j2"]


def test_a_page_leads_with_a_rate_whose_bytes_passed_dram(recorded: Recorded) -> None:
    """L2 kept more than a fifth of the bytes of points with higher rates, at which DRAM is busy less than 70 % of the time."""
    points = recorded("h100/0.7.2/default", "rmsnorm")["points"]
    top = best(points, "gbs")
    assert top and top["point"] == "rmsnorm/rmsnorm_R16384_D4096_f16"
    rows = [p["measurement"] for p in points if p["measurement"]["gbs_fraction_measured"]]
    above = [m for m in rows if m["gbs"] > top["measurement"]["gbs"]]
    kept = [(m["bytes_beyond_dram_pct"] or 0, m["sol_dram_pct"] or 0) for m in above]
    assert any(beyond > 20 and busy < 70 for beyond, busy in kept)
    assert (top["measurement"]["sol_dram_pct"] or 0) > 80
    cached = [p for p in points if (p["measurement"]["bytes_beyond_dram_pct"] or 0) > 20]
    assert best(cached, "gbs") in cached  # where no others are


def test_both_axes_of_a_sweep_print_their_numbers_in_one_way() -> None:
    axes = drawn(results(rated(4000.0, 512), rated(5000.0, 16384)))
    FigureCanvasAgg(axes.figure).draw()  # type: ignore[arg-type]
    said = [
        label.get_text() for axis in (axes.xaxis, axes.yaxis) for label in axis.get_ticklabels()
    ]
    assert {"16 384", "4 000"} <= {*said} and "4000" not in said
