"""The page of a view in a browser: any program's reports, from a disk, without a network."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, some
from test_html_browser import (
    AXE,
    HOSTILE,
    WRONG,
    accessible_on_a_telephone_and_beside_it,
    browser,
    chromium,
    serious,
    texts,
)
from test_view import CORPUS, DECODE, DEEP, SWEEP

from ncuflow.explain.record import as_text
from ncuflow.format import micro, pct
from ncuflow.pages.html import view as page
from ncuflow.parsers.detail import Counter
from ncuflow.view import files
from ncuflow.view.model import View

pytestmark = pytest.mark.browser
__all__ = ["browser", "chromium"]  # fixtures
TRACE = ROOT / "recordings/h200/0.7.2/default/merge_state"
LARGEST = 2e6  # bytes
VIEWS = ("kernels", "compare", "trace", "ranges", "files")
PARTS = [f"kernel?r=0&k=0&part={part}" for part in ("profile", "source", "counters")]


@pytest.fixture(scope="module")
def view() -> View:
    """Two reports and a trace."""
    (trace,) = (path for path in TRACE.glob("b*/trace.sqlite.xz"))
    return files.view([DEEP, SWEEP, trace])


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Callable[[View], Path]:
    def write(found: View) -> Path:
        path: Path = tmp_path_factory.mktemp("view") / "view.html"
        path.write_text(page.rendered(found), encoding="utf-8")
        return path

    return write


@pytest.fixture(scope="module")
def opened(view, written) -> Path:
    return written(view)


def only(view: View, **changed: Any) -> View:
    """Its first report alone, changed."""
    report = dataclasses.replace(view.reports[0], **changed)
    return View([report], [], [])


def plain(text: str) -> str:
    return text.replace("\u00a0", " ")


def test_the_first_thing_said_is_what_limits_each_kernel(browser, opened, view):
    shown = browser.open(opened)
    assert shown.locator("main h2").first.inner_text() == "What limits each kernel"
    said = texts(shown.locator(".answers li"))
    for kernel, line in zip(view.reports[0].kernels, said, strict=False):
        assert kernel.name in line and line.endswith(kernel.longest_launch.words)


def test_values_of_the_list_are_those_of_the_records(browser, opened, view):
    shown = browser.open(opened, "#/kernels?r=1")
    rows = shown.locator("table.grid tbody tr[aria-rowindex]")
    found = [[cell.strip() for cell in texts(row.locator("th, td"))] for row in rows.all()]
    every = view.reports[1].kernels
    assert len(found) == len(every)
    for cells, kernel in zip(found, every, strict=True):
        of = kernel.longest_launch.kernel
        assert cells[2] == plain(micro(of["duration_ns"] / 1e3))
        assert cells[3] == str(len(kernel.launches))
        assert cells[8] == plain(pct(of["metrics"]["sm_throughput_pct"], 0)).removesuffix(" %")


def test_a_time_that_is_not_known_is_no_zero(browser, written, view):
    timed, *_ = view.reports[1].kernels
    untold = {"duration_ns": None, "breakdown": [], "problems": "failed"}
    failed = files.kernel_view([{**timed.longest_launch.kernel, **untold}], {})
    report = dataclasses.replace(view.reports[1], kernels=[timed, failed])
    shown = browser.open(written(View([report], [], [])))
    cells = texts(shown.locator("table.grid tr[aria-rowindex='3'] > *"))
    assert cells[1:3] == ["–", "–"], "of the time, and time"
    assert "1 kernel without a time" in shown.inner_text("main")
    legend = texts(shown.locator(".kinds li"))
    assert legend and not [kind for kind in legend if "not known" in kind]
    assert "no time" in texts(shown.locator(".answers li"))[1]
    assert "0 %" not in plain(shown.inner_text(".kinds")).replace("100 %", "")
    shown.click("table.grid thead button:has-text('of the')")
    assert texts(shown.locator("table.grid tr[aria-rowindex='3'] > *"))[1] == "–", (
        "last in either order"
    )


def test_a_kernel_is_headed_by_its_explanation(browser, opened, view):
    shown = browser.open(opened, "#/kernel?r=0&k=0")
    report = view.reports[0]
    text = as_text(report.explained[report.kernels[0].longest_launch.index], 160)
    assert shown.locator("pre.explained").inner_text().strip() == text.strip()
    assert "Memory" in texts(shown.locator("main h2"))


def test_a_line_is_found_in_all_panes(browser, opened, view):
    shown = browser.open(opened, "#/kernel?r=0&k=0&part=source")
    shown.wait_for_function("document.querySelectorAll('.linked').length > 2")
    panes = shown.locator(".pane")
    assert texts(panes.locator("h3")) == ["Source lines, without their text", "PTX", "SASS"]
    panes.nth(2).locator(".grid-frame").evaluate("frame => { frame.scrollTop = 0 }")
    first = panes.nth(2).locator("tr[aria-rowindex='2']")
    instruction = first.locator("code").inner_text()
    first.click()
    assert panes.nth(2).locator("tr:has(.linked)").get_attribute("aria-rowindex") == "2"
    assert shown.locator(".instruction h3").inner_text() == instruction.strip()
    panes.nth(2).locator("[data-filter]").fill("EXIT")
    assert all("EXIT" in text for text in texts(panes.nth(2).locator("tr[aria-rowindex] code")))


def test_what_is_lacked_is_said_once(browser, opened, view):
    shown = browser.open(opened)
    said = shown.inner_text("main")
    assert view.reports[0].missing
    for what, option in view.reports[0].missing:
        assert said.count(what) == 1 and option in said


def test_the_roof_is_that_of_the_work_that_ran(browser, written):
    """A few FP16 operations beside FP32 do not raise the roof to that of FP16."""
    (report,) = files.view([DECODE]).reports
    k = next(k for k, one in enumerate(report.kernels) if "Merge" in one.name)
    launch = report.kernels[k].longest_launch
    work, peaks = launch.roofline.flops, dict(launch.roofline.compute)
    assert work["FP16"] < 0.1 * work["FP32"] and peaks["FP16"] > 1.9 * peaks["FP32"]
    shown = browser.open(written(View([report], [], [])), f"#/kernel?r=0&k={k}")
    (said,) = [one for one in texts(shown.locator(".kinds li")) if one.startswith("DRAM:")]
    reached = work["FP32"] / peaks["FP32"] / launch.kernel["duration_ns"] * 1e9
    assert f"{100 * reached:.1f} % of its roofline" in plain(said)


def test_what_l2s_roll_up_is_stands_below_it_where_it_leads(browser, written, decode):
    path = written(decode)
    told = "NVIDIA's roll-up (lts__throughput)"
    light = "section:has(h2:text-is('Speed of Light'))"
    assert told in browser.open(path, "#/kernel?r=0&k=0").inner_text(light)
    assert told not in browser.open(path, "#/kernel?r=0&k=2").inner_text(light)


def test_launches_that_another_report_has_not_are_no_change(browser, written, view):
    """The longest of nine launches against the longest of four is no speed-up."""
    report = view.reports[1]
    kernel = next(one for one in report.kernels if len(one.launches) > 1)
    rows = [launch.kernel for launch in kernel.launches]
    shorter = [row for row in rows if row is not kernel.longest_launch.kernel]
    fewer = files.kernel_view(shorter, {})
    same, less = ([kernel], [fewer])
    comparisons = files.view([SWEEP, SWEEP]).comparisons
    for other, said in ((same, "0.0 %"), (less, "other launches")):
        pair = [dataclasses.replace(report, kernels=side) for side in ([kernel], other)]
        shown = browser.open(written(View(pair, [], comparisons)), "#/compare")
        row = shown.locator("table:has(caption:text-is('Kernels side by side')) tbody tr")
        assert plain(texts(row.locator("td"))[3]) == said
        noted = "need not have done the same work" in shown.inner_text("main")
        assert noted == (said == "other launches")


@pytest.fixture(scope="module")
def decode() -> View:
    return files.view([DECODE])


def test_the_memory_tables_are_those_of_the_records(browser, written, decode):
    report = decode.reports[0]
    shown = browser.open(written(decode), "#/kernel?r=0&k=0")
    for table in some(report.details[report.kernels[0].longest_launch.index].tables):
        rows = shown.locator(f"table:has(caption:text-is('{table.name}, by kind of access')) tr")
        found = [texts(row.locator("th, td")) for row in rows.all()]
        assert found[0][1:] == [label for label, _ in table.columns]
        assert [cells[0] for cells in found[1:]] == [row.label for row in table.rows]
        for cells, row in zip(found[1:], table.rows, strict=True):
            assert [cell == "–" for cell in cells[1:]] == [value is None for value in row.values]
    bars = shown.locator("table:has(caption:text-is('Spread')) .range .between").all()
    lefts = [bar.evaluate("bar => parseFloat(bar.style.left)") for bar in bars]
    spread = report.details[report.kernels[0].longest_launch.index].spread[: len(bars)]
    assert lefts == [pytest.approx(100 * one.least / one.most, abs=0.01) for one in some(spread)]


def test_a_line_says_what_it_asks_of_memory_beside_the_least(browser, written, decode):
    report = decode.reports[0]
    rows = report.details[report.kernels[0].longest_launch.index].code.instructions
    worst = max((one for one in rows if one.wavefronts and one.wavefronts.ideal),
                key=lambda one: one.wavefronts.asked / one.wavefronts.ideal)  # fmt: skip
    shown = browser.open(written(decode), "#/kernel?r=0&k=0&part=source")
    sass = shown.locator(".pane").last
    sass.locator("[data-filter]").fill(f"pc={worst.pc}")
    sass.locator("tr[aria-rowindex='2']").click()
    times = worst.wavefronts.asked / worst.wavefronts.ideal
    assert times >= 2
    assert f"that is {times:.3g} times as many" in plain(shown.inner_text(".instruction"))
    heads = texts(sass.locator("thead th"))
    cells = texts(sass.locator("tr[aria-rowindex='2'] > *"))
    assert cells[heads.index("shared, × ideal")] == f"{times:.3g}"


def test_a_source_line_has_the_higher_of_its_excesses(browser, written, decode):
    report = decode.reports[0]
    code = report.details[report.kernels[0].longest_launch.index].code
    at = next(n for n, name in enumerate(code.files) if name.endswith("decode.cuh"))
    shown = browser.open(written(decode), "#/kernel?r=0&k=0&part=source")
    lines = shown.locator(".pane").first
    place = texts(lines.locator("thead th")).index("× ideal")
    rows = [texts(row.locator("th, td")) for row in lines.locator("tr[aria-rowindex]").all()]
    expected = {}
    for line in {int(cells[place - 1]) for cells in rows}:
        own = [one for one in code.instructions if (one.file, one.line) == (at, line)]
        keys = ("sectors", "wavefronts")
        known = [[a for one in own if (a := getattr(one, key))] for key in keys]
        sums = [(sum(a.asked for a in of), sum(a.ideal for a in of)) for of in known]
        ratios = [asked / least for asked, least in sums if least]
        expected[line] = f"{max(ratios):.3g}" if ratios else ""
    assert {int(cells[place - 1]): cells[place] for cells in rows} == expected
    assert len(set(expected.values())) > 2


def changed(view: View, **code: Any) -> Any:
    """The first report with other code of its first kernel."""
    report = view.reports[0]
    close = report.details[report.kernels[0].longest_launch.index]
    other = dataclasses.replace(close, code=dataclasses.replace(close.code, **code))
    return dataclasses.replace(report, details={close.kernel: other})


def test_the_source_of_two_reports_stands_side_by_side(browser, written, decode):
    """A line above all others moves them; each is beside itself, with the part of the samples that it had and has."""
    code = decode.reports[0].details[decode.reports[0].kernels[0].longest_launch.index].code
    at = next(n for n, name in enumerate(code.files) if name.endswith("decode.cuh"))
    text = [f"line {n}" for n in range(1, 700)]
    base = changed(decode, sources={at: text}, found={at: "report"})
    moved = [one._replace(line=one.line + 1) if one.file == at and one.line else one for one in code.instructions]  # fmt: skip
    twice = [row | {"samples": 2 * row["samples"]} for row in code.samples]
    head = changed(decode, sources={at: ["new", *text]}, found={at: "report"}, instructions=moved, samples=twice)  # fmt: skip
    view = View([base, head], [], files.view([DECODE, DECODE]).comparisons)
    shown = browser.open(written(view), "#/compare")
    shown.locator("[data-beside]").first.click()
    grid = shown.locator("table.grid[aria-label='Source side by side']")
    grid.wait_for()
    shown.wait_for_function("document.querySelector('.grid-frame').scrollTop > 0")
    current = grid.locator("tr.current")
    assert current.locator("code").inner_text() == "line 88", (
        "of what did not change the most sampled"
    )
    frame = shown.locator(".grid-frame").first
    frame.evaluate("frame => { frame.scrollTop = 0 }")
    grid.locator("tr[aria-rowindex='2']").wait_for()
    rows = [texts(row.locator("th, td")) for row in grid.locator("tr[aria-rowindex]").all()]
    assert rows[0][3:] == ["", "1", "+", "new"]
    assert rows[5][3:] == ["5", "6", "", "line 5"]
    frame.evaluate("frame => { frame.scrollTop = 84 * 26 }")
    row = grid.locator("tr[aria-rowindex]:has(code:text-is('line 88'))")
    row.wait_for()
    cells = texts(row.locator("th, td"))
    assert cells[0] == cells[1] == "15.8" and cells[2:5] == ["", "88", "89"]
    opcodes = shown.locator("table:has(caption:text-is('Instructions, by opcode')) tbody tr")
    assert set(texts(opcodes.locator("td:nth-child(4)"))) == {"same"}
    shown.set_viewport_size({"width": 360, "height": 740})
    assert shown.evaluate("document.documentElement.scrollWidth") <= 360
    shown.evaluate(AXE)
    assert serious(shown, "light", {}) == []


@pytest.mark.parametrize("fragment", [*VIEWS, *PARTS])
def test_every_view_of_every_file_is_whole_and_accessible(browser, opened, fragment):
    shown = browser.open(opened, f"#/{fragment}", size=(360, 740))
    accessible_on_a_telephone_and_beside_it(shown)
    text = shown.inner_text("main")
    assert [word for word in WRONG if word in text] == []


@pytest.mark.corpus
@pytest.mark.parametrize("report", sorted(CORPUS.glob("*.ncu-rep")), ids=lambda path: path.stem)
def test_reports_of_other_gpus_are_whole(browser, written, report):
    found = files.view([report])
    path = written(found)
    for k in range(len(found.reports[0].kernels)):
        for part in ("profile", "source", "counters"):
            shown = browser.open(path, f"#/kernel?r=0&k={k}&part={part}")
            text = shown.inner_text("main")
            assert [word for word in WRONG if word in text] == [], (k, part)


def hostile(view: View) -> View:
    """The first report with markup in every text that others write."""
    report = view.reports[0]
    kernel = report.kernels[0]
    launch = kernel.longest_launch
    row: Any = dict(launch.kernel)
    row |= dict.fromkeys(("name", "nvtx", "device", "problems"), HOSTILE) | {
        "demangled": HOSTILE + "x"
    }
    markup = dict.fromkeys(("rule", "message", "section"), HOSTILE)
    row["rules"] = [rule | markup for rule in row["rules"]]
    changed = dataclasses.replace(launch, kernel=row)
    close = report.details[launch.index]
    code = close.code
    text = [HOSTILE + "</script><script>document.title='hit'</script>"] * 4000
    code = dataclasses.replace(
        code,
        files=[HOSTILE for _ in code.files],
        sources=dict.fromkeys(range(len(code.files)), text),
        found=dict.fromkeys(range(len(code.files)), "report"),
        instructions=[one._replace(sass=HOSTILE, ptx=HOSTILE) for one in code.instructions],
    )
    detail = dataclasses.replace(
        close.detail, counters={HOSTILE: Counter(1.0, HOSTILE)}, sections=[HOSTILE]
    )
    close = dataclasses.replace(
        close, code=code, detail=detail, opcodes=[(HOSTILE, 1.0)], pipes=[(HOSTILE, 1.0)]
    )
    said = {"notes": [HOSTILE], "missing": []}
    explained = report.explained[launch.index].model_copy(update=said)
    named = {"name": HOSTILE, "demangled": HOSTILE + "x"}
    return only(
        view,
        file=f"a/{HOSTILE}.ncu-rep",
        devices=[HOSTILE],
        version=HOSTILE,
        problems=[HOSTILE],
        kernels=[dataclasses.replace(kernel, **named, launches=(changed,), longest=0)],
        explained={launch.index: explained},
        details={launch.index: close},
        nvtx=[dataclasses.replace(node, name=HOSTILE) for node in report.nvtx],
    )


def test_nothing_of_a_hostile_report_runs(browser, written, view):
    path = written(hostile(view))
    for fragment in ("kernels", "ranges", "files", *PARTS):
        shown = browser.open(path, f"#/{fragment}")
        shown.wait_for_selector("main > *")
        assert "<img src=x onerror=" in shown.inner_text("main"), fragment
        assert shown.locator("img").count() == 0 and shown.title() != "hit", fragment
        shown.close()


def test_ten_thousand_kernels_open(browser, written, view):
    kernel = view.reports[1].kernels[0]
    many = [
        dataclasses.replace(kernel, name=f"kernel_{n}", demangled=f"kernel_{n}<{n}>()")
        for n in range(10_000)
    ]
    report = dataclasses.replace(view.reports[1], kernels=many)
    path = written(View([report], [], []))
    assert path.stat().st_size <= LARGEST + 1e6
    shown = browser.open(path)
    told = shown.locator("output.count").inner_text()
    assert told.startswith("10000 of 10000 kernels") and "left out for the size" in told
    assert shown.locator("table.grid tbody tr").count() < 100
    shown.fill("[data-filter]", "kernel_9999")
    assert shown.locator("output.count").inner_text().startswith("1 of 10000")
    shown.evaluate("location.hash = '#/kernel?r=0&k=9999'")
    shown.wait_for_selector("main h1")
    assert "Left out for the size of this file" in shown.inner_text("main")


def test_a_list_shows_numbers_beside_names_however_wide_the_page_is(browser, opened, view):
    """On a telephone the first column leaves room for the next; a wide screen has no need to scroll, and no column is empty."""
    shown = browser.open(opened, "#/kernels", (390, 800))
    heads = shown.locator(".grid thead th")
    ends = [box["x"] + box["width"] for box in (heads.nth(at).bounding_box() for at in (0, 1))]
    assert ends[0] < 270 and ends[1] <= 390
    shown = browser.open(opened, "#/kernels", (1920, 1000))
    wide = "(frame) => frame.scrollWidth - frame.clientWidth"
    assert shown.locator(".grid-frame").evaluate(wide) == 0
    labels = texts(shown.locator(".grid thead th"))
    several = any(len(kernel.launches) > 1 for kernel in view.reports[0].kernels)
    assert ("min · median · max" in labels) == several
    rows = shown.locator(".grid tbody tr:not(.space)")
    for at, label in enumerate(labels):
        cells = [
            rows.nth(row).locator("th, td").nth(at).inner_html() for row in range(rows.count())
        ]
        assert any(cell not in ("", "–") for cell in cells), label
