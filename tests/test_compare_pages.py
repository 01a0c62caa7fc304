"""The page, the figures and the rules of a comparison."""

from __future__ import annotations

import itertools
import json
import math
import re
import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from compare_data import kernel, pair, point, sweep
from conftest import Pipeline, some

from ncuflow.compare import records
from ncuflow.compare.records import Cause, ChangeTerm, Comparison, Fact, PointChange, Thresholds
from ncuflow.compare.verdict import compare
from ncuflow.pages.markdown import comparison as compare_page
from ncuflow.pages.markdown import comparison_figures as compare_figures
from ncuflow.pages.markdown.comparison import context, figure_name, render, series, value

B8_US = sweep()[7]["measurement"]["time_cold_us"]


def kernel_of_b8(**change: object) -> dict:
    """The kernel that takes as long as decode/B8 does, changed."""
    return kernel(instructions=77e6 * B8_US / (kernel()["duration_ns"] / 1e3), **change)


def points_of_a_side() -> list[dict]:
    rows = sweep()
    rows[7] = point("decode/B8", B8_US, [kernel_of_b8()])
    return rows


def document(change: dict | None = None, count: int = 5, **provenance: str) -> Comparison:
    """A comparison; ``change`` replaces the point decode/B8 of the head."""
    head_points = points_of_a_side()
    if change is not None:
        head_points[7] = head_points[7] | change
    base, head = pair(points_of_a_side(), head_points, count=count)
    head.provenance = {**head.provenance, **provenance}
    return compare(base, head, Thresholds())


@pytest.fixture(scope="module")
def slower() -> Comparison:
    worse = kernel_of_b8(tile=1, registers=110, warps=4.6, long_scoreboard=6.5)
    return document(point("decode/B8", 60.0, [worse]), flashinfer="0.7.2", driver="590.1")


def with_causes(found: Comparison, change: Callable[[PointChange], list[Cause]]) -> Comparison:
    """The comparison with other causes of its changes."""
    points = [replace(p, causes=change(p)) if p.changed else p for p in found.points]
    return replace(found, points=points)


def test_the_page_leads_with_the_differences_then_counts_then_changes(slower: Comparison) -> None:
    text = render([slower], ["../figures"])
    assert re.findall(r"^##+ (.*)$", text, re.MULTILINE) == [
        "What differs", "Summary", "The largest changes",
        f"`decode/B8`: slower, {100 * slower.points[7].relative:+.1f} %",
    ]  # fmt: skip
    assert "| FlashInfer | 0.6.18 | 0.7.2 | yes |" in text
    assert "**Mixed causes.** driver, FlashInfer differ at once." in text
    assert "1 of 24 points changed beyond 3 %." in text
    told = text.partition("### `decode/B8`")[2].partition("more points are in")[0]
    assert "template arguments**: tile_size_per_bdx 4 → tile_size_per_bdx 1" in told
    assert "long_scoreboard: 5 → 6.5 cycles per instruction" in told
    assert "registers 70 → 110" in told and "Unexplained: " in told
    assert f"(../figures/{figure_name(slower.points[7])})" in told


def test_causes_on_the_page_add_up(slower: Comparison) -> None:
    """A small cause that another binary explains is told; small times of what is alike are one line."""

    def page(*others: tuple[str, float]) -> str:
        def more(p: PointChange) -> list[Cause]:
            small = [
                Cause(kind, f"a {kind}", "x", "y", us, "ncu", us / p.delta) for kind, us in others
            ]
            return [*p.causes, *small]

        return render([with_causes(slower, more)], [None])

    for kind in ("template", "code", "launch_shape", "kernel_added", "copy_added"):
        text = page((kind, 0.1))
        assert f"**a {kind}**: x → y. +0.1 µs" in text and "Smaller" not in text
    text = page(("gap", 0.25), ("clock", -0.05))
    assert "a gap" not in text and "\n\nSmaller causes: +0.2 µs in all.\n\nUnexplained" in text
    assert "\n\nSmaller causes: +0.25 µs.\n\n" in page(("gap", 0.25))
    large = page(("gap", 5.0))
    assert "**a gap**" in large and "Smaller" not in large


def test_source_lines_are_introduced_as_sampled_time(slower: Comparison) -> None:
    line = Fact("line", "norm.cuh:20", 5.0, 15.0, "µs")

    def lined(p: PointChange) -> list[Cause]:
        return [replace(p.causes[0], facts=[*p.causes[0].facts, line])]

    text = render([with_causes(slower, lined)], [None])
    assert re.search(r"^   - .*registers 70 → 110", text, re.M)
    said = "sampled time of source lines, or of opcodes where no line is known: norm.cuh:20 5 µs → 15 µs"
    assert f"\n   - {said}\n" in text


def test_slow_downs_come_before_larger_speed_ups() -> None:
    points = sweep()
    points[3], points[7] = point("decode/B4", 5.0), point("decode/B8", 60.0)
    found = compare(*pair(sweep(), points), Thresholds())
    assert [p.id for p in found.changed] == ["decode/B8", "decode/B4"]


def test_nothing_changed_is_said_plainly() -> None:
    text = render([document()], ["../figures"])
    assert "**Nothing changed.** None of 24 points is slower or faster" in text
    assert "Nothing that is recorded: same GPU, driver, versions and clock policy on both" in text
    assert "The largest changes" not in text and "Mixed causes" not in text
    assert "\n24 points are in `compare.json`" in text  # none stands above of which they were more
    sides = pair(sweep(2), [point("decode/B1", 50.0), *sweep(2)[1:]])
    text = render([compare(*sides, Thresholds())], [None])
    assert "\n1 more point is in `compare.json`" in text
    assert "- 1 and 1 runs per side, fewer than 5" in render([document(count=1)], [None])


def test_tables_are_whole_and_have_at_most_eight_columns(
    slower: Comparison, seven: list[Comparison]
) -> None:
    text = render([slower, slower], [None, None]) + render(seven, [None] * 6)
    for table in some(re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)):
        columns = {len(re.findall(r"(?<!\\)\|", line)) - 1 for line in table.splitlines()}
        assert len(columns) == 1 and max(columns) <= 8, table


def test_points_of_one_side_and_broken_points_are_on_the_page(tmp_path: Path) -> None:
    base, head = pair(sweep(8))
    del head.points["decode/B1"]
    head.points["decode/B2"] |= {"status": "wrong", "reason": "off by 3 %"}
    text = render([compare(base, head, Thresholds())], [None])
    assert "1 point only in the base: `decode/B1`." in text
    assert "| `decode/B2` | ok | wrong: off by 3 % |" in text
    # A head that failed everywhere has a page and a figure.
    for row in head.points.values():
        row |= {"status": "error", "reason": "CUDA error"}
    found = compare(base, head, Thresholds())
    text = render([found], ["F"])
    assert "No point could be compared." in text and "error: CUDA error" in text
    assert "](F/" not in text
    compare_figures.draw(found, tmp_path)


def test_a_long_comparison_shows_what_changed_first_and_says_what_it_left_out() -> None:
    long = [point(f"decode/B{i}", 50.0) for i in range(100)]
    other = [point(f"decode/B{i}", 40.0 + i) for i in range(60, 100)]
    compared = compare(*pair(long, [*long[:60], *other]), Thresholds())
    found = context(compared, None)
    assert found["detailed"][0][0].id == "decode/B99"
    assert len(found["detailed"]) == compare_page.MOST_CHANGED
    assert len(found["rows"]) == compare_page.MOST_ROWS
    assert all(row.changed for row in found["rows"])
    left = 100 - compare_page.MOST_CHANGED - compare_page.MOST_ROWS
    assert f"{left} more points are in `compare.json`" in render([compared], [None])


def test_several_sides_make_one_page_with_all_times(slower: Comparison) -> None:
    found = series([slower, slower])
    assert [side.name for side in found["sides"]] == ["base", "head", "head"]
    (row,) = found["rows"]
    assert row["id"] == "decode/B8" and len(row["times"]) == 3 and found["moved"] == 1
    text = render([slower, slower], [None, None])
    assert "1 of 24 points changed in some step." in text
    assert "Nothing changed: on none of 24 points" in render([document()] * 2, [None, None])


VERSIONS = ("0.5.3", "0.6.0", "0.6.6", "0.6.12", "0.6.14", "0.6.18.post1", "0.7.2.post1")


@pytest.fixture(scope="module")
def seven() -> list[Comparison]:
    """Seven versions: from the fourth to the fifth, the kernel of decode/B8 is another and takes half as long again."""
    worse = kernel_of_b8(tile=1, registers=110, warps=4.6, long_scoreboard=6.5)
    found = []
    for before, (old, new) in enumerate(itertools.pairwise(VERSIONS)):
        points, others = points_of_a_side(), points_of_a_side()
        slow = point("decode/B8", points[7]["measurement"]["time_cold_us"] * 1.5, [worse])
        if before >= 3:
            others[7] = slow
        if before > 3:
            points[7] = slow
        base, head = pair([*points, point("rope/T1", 5.0)], [*others, point("rope/T1", 5.0)])
        base = replace(base, name=old, provenance=base.provenance | {"flashinfer": old})
        head = replace(head, name=new, provenance=head.provenance | {"flashinfer": new})
        found.append(compare(base, head, Thresholds()))
    return found


def test_a_series_of_seven_versions_says_which_changed_what_and_why(
    seven: list[Comparison],
) -> None:
    text = render(seven, [None] * 6, "../figures")
    row = r"^\| (\d): (\S+) → (\S+) \| (.*?) \| (.*?) \| (.*?) \|$"
    steps = re.findall(row, text, re.MULTILINE)
    counts = [Counter(p.target for p in step.points) for step in seven]
    compared = [[str(count["decode"]), str(count["rope"])] for count in counts]
    assert [re.findall(r"\d+", step[3]) for step in steps] == compared
    assert [step[1:3] for step in steps] == list(itertools.pairwise(VERSIONS))
    assert [step[4:6] for step in steps] == [("–", "–")] * 3 + [("decode 1", "–")] + [
        ("–", "–")
    ] * 2
    assert "- **decode**, step 4 (0.6.12 → 0.6.14): 1 point, +" in text
    assert "tile_size_per_bdx 4 → tile_size_per_bdx 1. No later step took it back." in text
    assert re.search(r"^\| `decode/B8` \| 4\S* µs \| 6\S* µs \| .* \| 4: \+\d\S* % \|$", text, re.M)
    assert re.findall(r"\]\(\.\./figures/(.*?)\)", text) == ["series-decode.svg", "series-rope.svg"]


def test_a_series_names_the_kernels_where_another_ran_for_the_same_call(
    slower: Comparison,
) -> None:
    """fa3 was asked for and fa2's kernel ran: the change is none of fa3's."""
    names = ("BatchPrefillWithPagedKVCacheKernel", "PrefillWithKVCacheKernel")
    place, moved = next((i, p) for i, p in enumerate(slower.points) if p.changed)
    other = replace(moved.causes[0], kind="kernel_replaced", base=names[0], head=names[1])

    def ran(cause: Cause) -> PointChange:
        cold = replace(moved.metrics["cold_us"], causes=[cause])
        return replace(moved, causes=[cause], metrics={"cold_us": cold})

    points = [*slower.points]
    points[place] = ran(other)
    swapped = replace(slower, points=points)
    text = render([slower, swapped], [None, None])
    headers = ("attention/prefill.cuh", "attention/hopper/prefill_sm90.cuh")
    was, came = (f"`{n}` ({header})" for n, header in zip(names, headers, strict=True))
    assert f"| `decode/B8` | 2 | {was} → {came} |" in text
    assert f"Why: another kernel: {was} → {came}" in text
    points[place] = ran(replace(other, base=[names[0]], head=[*names]))
    text = render([slower, replace(slower, points=points)], [None, None])
    assert f"| `decode/B8` | 2 | {was} → {was}, {came} |" in text
    assert f": {names[0]} → {names[0]}, {names[1]}. " in text
    assert "The same call" not in render([slower, slower], [None, None])


def test_a_change_that_a_later_step_took_back_is_one_story(seven: list[Comparison]) -> None:
    """The time is again what it was: the way back is no change of its own."""
    undone = replace(seven[3], points=[_turned(p) for p in seven[3].points])
    text = render([*seven[:4], undone], [None] * 5)
    (told,) = [line for line in text.splitlines() if line.startswith("- **decode**")]
    assert "step 4 (0.6.12 → 0.6.14)" in told and "Step 5 (0.6.14 → 0.6.14) took it back, -" in told
    assert len(records.shifts([*seven[:4], undone])) == 1
    halfway = replace(undone, points=[_turned(p, 1.2) for p in seven[3].points])
    (came, less) = records.shifts([*seven[:4], halfway])
    assert (came.step, came.back, less.step, less.back) == (3, None, 4, None)


def _turned(p: PointChange, to: float = 1.0) -> PointChange:
    """The change of a point in the other direction, to so much of what it was before."""
    if not p.changed:
        return p
    back = {"base": p.head, "head": to * p.base, "relative": to * p.base / p.head - 1}
    back["verdict"] = "faster"
    return replace(p, **back, metrics={"cold_us": replace(p.metrics["cold_us"], **back)})


def test_a_chart_for_each_kernel_goes_over_all_versions(
    seven: list[Comparison], tmp_path: Path
) -> None:
    compare_figures.draw_series(seven, tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["series-decode.svg", "series-rope.svg"]
    (axes,) = compare_figures.over_versions(seven, "decode").axes
    named = [line for line in axes.lines if line.get_label() == "B8"]
    assert len(named) == 1 and len(axes.lines) == 1 + 24  # and the line of 100 %
    heights = [float(y) for y in named[0].get_ydata()]
    assert heights == pytest.approx([100] * 4 + [150] * 3, rel=0.05)
    assert [label.get_text() for label in axes.get_xticklabels()] == list(VERSIONS)
    (quiet,) = compare_figures.over_versions(seven, "rope").axes
    assert quiet.get_legend() is None


def test_a_point_that_a_version_lacks_is_a_gap_in_its_line(seven: list[Comparison]) -> None:
    few = [replace(s, points=[p for p in s.points if p.id != "rope/T1"]) for s in seven[:2]]
    (axes,) = compare_figures.over_versions([*few, *seven[2:]], "rope").axes
    heights = [float(y) for y in axes.lines[1].get_ydata()]
    assert [math.isnan(height) for height in heights] == [True, True] + [False] * 5


@pytest.mark.parametrize(
    ("found", "unit", "text"),
    [
        (1.07e9, "byte", "1.07 GB"),
        (1.9e9, "hz", "1.9 GHz"),
        (77e6, "", "77 M"),
        (70, "", "70"),
        (12.5, "%", "12.5 %"),
        ("32,32,1", "", "`32,32,1`"),
        (True, "", "`True`"),
        ([1, 2], "", "`[1, 2]`"),
        (None, "byte", "–"),
    ],
)
def test_values_are_printed_as_their_kind(found: object, unit: str, text: str) -> None:
    assert value(found, unit) == text


# --- figures ----------------------------------------------------------------------------------


def test_a_waterfall_goes_from_base_to_head(slower: Comparison) -> None:
    changed = slower.points[7]
    steps = compare_figures.steps(changed)
    assert changed.base + sum(amount for _, amount in steps) == pytest.approx(changed.head)
    assert steps[-1] == ("unexplained", changed.unexplained)
    assert "long_scoreboard" in dict(steps)


def test_many_small_parts_are_one_step() -> None:
    parts = [ChangeTerm("stall", f"p{i}", None, None, "", float(i)) for i in range(1, 21)]
    cause = Cause("execution", "k", None, None, 210.0, "", 1.0, parts)
    point = replace(document().points[0], causes=[cause], unexplained=0.0)
    steps = compare_figures.steps(point)
    assert len(steps) == compare_figures.MOST_STEPS + 2
    assert steps[-2] == ("other explained", sum(range(1, 12)))


def test_a_host_time_is_a_note_and_no_change() -> None:
    time = sweep()[7]["measurement"]["time_cold_us"]
    text = render([document(point("decode/B8", time, host=215.0))], ["../figures"])
    assert "**Nothing changed.**" in text and "- Host times are shown, not judged" in text
    assert "`decode/B8` 15 → 21" in text


def test_of_many_host_times_the_most_are_named_as_such() -> None:
    others = [point(p["point"], p["measurement"]["time_cold_us"], host=215.0) for p in sweep(4)]
    text = render([compare(*pair(sweep(4), others), Thresholds())], [None])
    said = "4 host times moved further than two runs of one side lie apart, the most: launch"
    assert said in text


def test_a_tiny_negative_share_is_no_negative_zero(slower: Comparison) -> None:
    row = replace(slower.points[7], unexplained=-1e-6, relative=-1e-6)
    assert not re.search(r"-0(\.0)? %", render([replace(slower, points=[row])], [None]))


def test_figures_are_the_same_bytes_and_named_as_the_page_says(
    slower: Comparison, tmp_path: Path
) -> None:
    for folder in ("a", "b"):
        with compare_figures.mpl.rc_context(compare_figures.STYLE):  # type: ignore[arg-type]
            compare_figures.draw(slower, tmp_path / folder)
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == ["compare.svg", "waterfall-decode-B8.svg"]
    for name in names:
        first, second = ((tmp_path / folder / name).read_bytes() for folder in ("a", "b"))
        assert first == second and b"<dc:date>" not in first
    linked = re.findall(r"\]\(F/(.*?)\)", render([slower], ["F"]))
    assert sorted(linked) == names


# --- rules ------------------------------------------------------------------------------------


SOURCE = ("source=recorded", "recording=recordings/one")


def test_the_rules_make_the_page_and_the_gate_passes_and_fails(two_sides: Pipeline) -> None:
    sides = ("--config", *SOURCE, "base=recordings/one", "head=recordings/two/")
    two_sides.run("compare", *sides)
    folder = two_sides.folder / "outputs/compare/one-vs-two"
    found = json.loads((folder / "results/compare.json").read_text())
    assert (found["base"]["name"], found["head"]["name"]) == ("one", "two")
    assert found["points"]
    assert "**No change was found.**" in (folder / "reports/compare.md").read_text()
    assert (folder / "figures/compare.svg").exists()
    assert two_sides.planned(*sides, "--", "compare") == []
    assert "check: no slow-down" in two_sides.run("compare_gate", *sides).stdout
    slow = next(p for p in found["points"] if p["verdict"] == "same")
    slow["metrics"]["cold_us"] |= {"verdict": "slower", "relative": 0.2}
    (folder / "results/compare.json").write_text(json.dumps(found))
    (folder.parent / "made.json").unlink()  # or what was edited would be made again
    done = two_sides.run("compare_gate", *sides, check=False)
    assert done.returncode == 1 and slow["id"] in done.stdout


@pytest.mark.exhaustive
def test_several_heads_make_a_page_of_all_sides(two_sides: Pipeline) -> None:
    shutil.copytree(two_sides.folder / "recordings/two", two_sides.folder / "recordings/three")
    heads = "head=recordings/two,recordings/three"
    two_sides.run("compare", "--config", *SOURCE, "base=recordings/one", heads)
    made = two_sides.folder / "outputs/compare"
    assert (made / "two-vs-three/reports/compare.md").exists()
    text = (made / "one-vs-two-vs-three/reports/series.md").read_text()
    assert "| step | points compared | slower | faster |" in text
    charts = re.findall(r"\]\(\.\./figures/(series-.*?)\)", text)
    assert charts and sorted(charts) == sorted(
        path.name for path in (made / "one-vs-two-vs-three/figures").glob("*.svg")
    )
    for number, sides_of in enumerate(("one-vs-two", "two-vs-three")):
        found = json.loads((made / sides_of / "results/compare.json").read_text())
        found["points"][number]["metrics"]["cold_us"] |= {"verdict": "slower", "relative": 0.2}
        (made / sides_of / "results/compare.json").write_text(json.dumps(found))
    (made / "made.json").unlink()  # or what was edited would be made again
    sides = ("--config", *SOURCE, "base=recordings/one", heads)
    gate = two_sides.run("compare_gate", *sides, check=False)
    assert gate.returncode != 0
    assert all(point["id"] in gate.stdout for point in found["points"][:2])


def test_seven_sides_are_compared_in_one_run(two_sides: Pipeline) -> None:
    names = ["one", *(f"v{number}" for number in range(2, 8))]
    for name in names[1:]:
        shutil.copytree(two_sides.folder / "recordings/two", two_sides.folder / "recordings" / name)
    heads = "head=" + ",".join(f"recordings/{name}" for name in names[1:])
    planned = two_sides.planned("--config", *SOURCE, "base=recordings/one", heads, "--", "compare")
    assert planned.count("compare_sides") == 6
    assert planned.count("compare_series") == planned.count("compare_series_figures") == 1


@pytest.mark.parametrize(
    ("sides", "says"),
    [
        (("base=recordings/one", "head=recordings/one"), "two sides are called one"),
        *(
            pytest.param(
                ("base=recordings/one", f"head={head}"), says, marks=pytest.mark.exhaustive
            )
            for head, says in (
                ("recordings/none", "no recording here"),
                ("live", "a side is live, but this run"),
            )
        ),
    ],
)
def test_sides_that_cannot_be_compared_say_so(
    sides: tuple[str, ...], says: str, two_sides: Pipeline
) -> None:
    done = two_sides.run("-n", "compare", "--config", *SOURCE, *sides, check=False)
    assert done.returncode != 0 and says in done.stdout + done.stderr
