"""The HTML page in a browser: each view by mouse and by keyboard, from a disk, without a network."""

import json
import lzma
import re
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import DEFAULT, ROOT, some
from test_html import blocks

from ncuflow.compare import verdict
from ncuflow.findings import limiter
from ncuflow.findings.columns import BY_NAME
from ncuflow.findings.results import read
from ncuflow.format import micro, number, pct, percent, quantity, si
from ncuflow.pages.html import page as html
from ncuflow.pages.section import Findings
from ncuflow.parsers.registry import METRICS

playwright = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.browser
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
)  # fmt: skip
AXE = lzma.decompress((ROOT / "tests" / "vendor" / "axe.min.js.xz").read_bytes()).decode()
VIEWS = ("overview", "points", "source", "claims", "choices", "guide", "environment")
HOSTILE = "Kernel<img src=x onerror=\"document.title='hit'\">|a\x07b\u202ec"
WRONG = ("undefined", "NaN", "[object", "null", "Infinity", "false,")
POINT = "decode/B32_L2048_H32_K32_D128_P16_f16_cc"


@dataclass
class Browser:
    """A browser without a network. opened: what it was made to ask for; said: errors of its console."""

    context: Any
    asked: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def open(self, path: Path, fragment: str = "", size: tuple[int, int] = (1400, 900)) -> Any:
        page = self.context.new_page()
        page.set_viewport_size({"width": size[0], "height": size[1]})
        page.on("request", lambda r: self.asked.append(r.url) if r.url.startswith("http") else None)
        page.on("console", lambda m: m.type in ("error", "warning") and self.said.append(m.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.goto(f"file://{path}{fragment}")
        page.wait_for_selector("html[data-ready]", state="attached")
        return page


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no chromium here: apt-get install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield browser
        browser.close()


@pytest.fixture
def browser(chromium) -> Iterator[Browser]:
    """A browser in which nothing may be asked for and nothing go wrong."""
    context = chromium.new_context(offline=True, accept_downloads=True)
    context.set_default_timeout(20_000)
    found = Browser(context)
    yield found
    context.close()
    assert found.asked == []
    assert found.said == []


@pytest.fixture(scope="module")
def report(finished) -> Path:
    return finished.outputs / "report.html"


@pytest.fixture(scope="module")
def points(finished) -> list[str]:
    """The target of each point."""
    folders = sorted((finished.outputs / "tables").iterdir())
    return [path.name for path in folders for _ in read(path, "measurements")]


@pytest.fixture(scope="module")
def written(finished, tmp_path_factory) -> Callable[..., Path]:
    """A report of changed results: written(change) of one side, written(change, change) of two that are compared."""

    def write(*changes: Callable[[Any], None], targets: tuple[str, ...] = ("merge_state",)) -> Path:
        folder = tmp_path_factory.mktemp("written")
        sides = []
        for number_, change in enumerate(changes):
            side = folder / f"side{number_}"
            for target in targets:
                found = results_of(finished, target)
                found["provenance"]["recording"] = side.name
                change(found)
                path = side / "results" / f"{target}_results.json"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(found))
                shutil.copytree(finished.outputs / "tables" / target, side / "tables" / target)
            sides.append(Findings(side / "results", DEFAULT))
        comparisons = (
            [compared(sides[0].folder.parent, sides[1].folder.parent)] if len(sides) > 1 else []
        )
        path = folder / "report.html"
        path.write_text(html.report(sides, comparisons), encoding="utf-8")
        return path

    return write


def compared(base: Path, head: Path) -> Any:
    """What the comparison of two sides says, as the rules ask for it."""
    sides = [verdict.load(folder / "results") for folder in (base, head)]
    return asdict(verdict.compare(*sides, verdict.Thresholds()))


def same(found: Any) -> None:
    """Leave results as they are."""


def texts(locator: Any) -> list[str]:
    return [text.strip().replace("\u00a0", " ") for text in locator.all_inner_texts()]


def test_each_view_opens_by_its_tab_and_by_its_key(browser, report):
    page = browser.open(report)
    for number_, view in enumerate(VIEWS, 1):
        page.click(f'nav a[data-view="{view}"]')
        page.wait_for_selector(f'main[data-view="{view}"] :text-matches(".")')
        shown = page.inner_text("main")
        assert "undefined" not in shown and "NaN" not in shown and "[object" not in shown, view
        page.keyboard.press(str(VIEWS.index("environment") + 1))
        page.wait_for_selector('main[data-view="environment"]')
        page.keyboard.press(str(number_))
        page.wait_for_selector(f'main[data-view="{view}"]')
        assert page.get_attribute(f'nav a[data-view="{view}"]', "aria-current") == "page"


def test_the_overview_has_a_row_per_kernel_and_leads_to_its_points(browser, report):
    page = browser.open(report)
    rows = page.locator("table.overview tbody tr")
    assert rows.count() == 5
    assert "TFLOPS" in rows.nth(0).inner_text()
    rows.nth(1).locator("th a").click()
    page.wait_for_selector('main[data-view="points"]')
    assert page.input_value("[data-filter]") == "target=decode"


def test_a_sweep_is_a_few_lines_that_are_named(browser, report):
    page = browser.open(report)
    prefill = page.locator('tr[data-target="prefill"] .sparked')
    drawn = prefill.locator("svg[role=img] path")
    named = texts(prefill.locator(".lines > span"))
    assert len(named) == drawn.and_(page.locator(":not(.faint)")).count() == 3
    assert drawn.and_(page.locator(".faint")).count() >= 3
    assert len(set(named)) == 3
    assert {name.split(",")[0] for name in named} == {"kv_heads 8", "kv_heads 32"}
    paths = prefill.locator(".lines path").all()
    assert len({path.get_attribute("stroke-dasharray") for path in paths}) == 3, (
        "told apart without colours too"
    )


def test_verdicts_are_in_the_words_of_the_limiter(browser, report, finished):
    page = browser.open(report)
    for target in ("prefill", "decode", "rmsnorm", "rope", "merge_state"):
        rows = rows_of(finished, target)
        shown = page.locator(f'tr[data-target="{target}"]')
        kinds = Counter(limiter.kind(row) for row in rows.values()).most_common()
        said = texts(shown.locator(".shares li"))
        assert [int(one.split()[0]) for one in said[:4]] == [count for _, count in kinds[:4]]
        assert set(said[:4]) <= {f"{count} {words}" for words, count in kinds}
        best = rows[f"{target}/{shown.locator('a.id').text_content()}"]
        assert shown.locator(".limited").inner_text() == limiter.words(best)
    page = browser.open(report, "#/points?q=target%3Dprefill&cols=limits,limited_by")
    for row in some(page.locator("table.grid tbody tr[aria-rowindex]").all()):
        _, point, *told = texts(row.locator("th, td"))
        found = rows_of(finished, "prefill")[point]
        assert told == [limiter.kind(found), limiter.words(found)]


def results_of(finished: Any, target: str) -> Any:
    return json.loads((finished.outputs / f"results/{target}_results.json").read_text())


def rows_of(finished: Any, target: str) -> dict[str, Any]:
    return {row["point"]: row for row in read(finished.outputs / "tables" / target, "measurements")}


def test_a_series_of_the_roofline_stands_alone_and_short_points_go(browser, report):
    page = browser.open(report)
    marks = page.locator(".roofline .mark-dot path")
    all_of_them = marks.count()
    page.click('.roofline .legend button:has-text("rope")')
    assert 0 < marks.count() < all_of_them
    assert "only=rope" in page.url
    page.click('.roofline .legend button:has-text("rope")')
    assert marks.count() == all_of_them
    page.locator(".roofline input[type=range]").fill("60")
    assert 0 < marks.count() < all_of_them
    page.click('.roofline button:has-text("L2")')
    assert "level=l2" in page.url and "least=" in page.url
    again = browser.open(report, page.url.partition("#")[1] + page.url.partition("#")[2])
    assert again.locator(".roofline .mark-dot path").count() == marks.count()


ROOF = r"of its roofline: (.*), (.*) TFLOPS"


def test_each_mark_is_held_against_the_roof_of_its_type(browser, report, finished):
    rows = rows_of(finished, "prefill")
    roofs = {row["dtype"]: row["ceiling_tensor_tflops_measured"] for row in rows.values()}
    page = browser.open(report, "#/overview?only=prefill")
    marks = page.locator(".roofline .mark-dot path").all()
    said = {mark.get_attribute("aria-label").split("\n")[0]: mark for mark in marks}
    held = 0
    for point, row in rows.items():
        (of,) = re.findall(ROOF, said[point.removeprefix("prefill/")].get_attribute("aria-label"))
        instruction = row["ceiling_tensor_tflops_counter"]
        if row["flops_tensor_counted"] and roofs[row["dtype"]] < instruction:
            assert of == (f"measured {row['dtype']}", number(roofs[row["dtype"]])), point
            held += 1
        else:
            assert of == ("HMMA", number(instruction)), point
    assert held > 10
    key = page.inner_text(".roofs")
    assert all(f"tensor {dtype} {number(top)} TFLOPS" in plain(key) for dtype, top in roofs.items())


def test_a_mark_of_the_roofline_opens_its_point(browser, report):
    page = browser.open(report)
    mark = page.locator(".roofline .mark-dot path").nth(3)
    mark.scroll_into_view_if_needed()
    box = mark.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector('.roofline [aria-label="tip"] text')
    told = page.text_content('.roofline [aria-label="tip"]')
    assert "limited by" in told and "of its roofline" in told
    page.mouse.down()
    page.mouse.up()
    page.wait_for_selector('main[data-view="point"]')


# Of each cell of a column that has a point, where it stands; of one that has none, where its last digit ends.
POINTS = r"""place => [...document.querySelectorAll("table.grid tbody tr[aria-rowindex]")].map((row) => {
  const cell = row.cells[place], text = cell.firstChild;
  if (!/\d/.test(cell.textContent)) return null;
  const at = text.data.indexOf("."), end = text.data.trimEnd().length;
  const range = document.createRange();
  range.setStart(text, at < 0 ? end - 1 : at - 1);
  range.setEnd(text, at < 0 ? end : at);
  return [text.data.trim(), Math.round(range.getBoundingClientRect().right)];
}).filter(Boolean)"""


def test_numbers_of_a_column_stand_point_under_point(browser, report):
    names = [
        "time_cold_us",
        "gbs",
        "issue_active",
        "ai_counted",
        "tflops_fraction_measured",
        "grid_size",
    ]
    page = browser.open(report, f"#/points?q=target%3Dprefill&cols={','.join(names)}")
    for place, name in enumerate(some(names), start=2):
        cells = page.evaluate(POINTS, place)
        assert len(cells) > 30
        assert len({right for _, right in cells}) == 1, name
        if name.endswith("fraction_measured"):
            assert all(len(text.split(".")[1]) == 1 for text, _ in cells), "per cent"
        else:
            digits = {len(text.replace(".", "").lstrip("0")) for text, _ in cells if "." in text}
            assert digits <= {3}, name


def test_the_page_rounds_as_the_markdown_does(browser, report, finished):
    """format.js and ncuflow/format.py on each value of each table, in its unit."""
    odd = (0.5, 1.5, 2.5, 0.125, 62.25, 1234.5, 99999.5, 1e5, 1e-7, 0, -3.25)
    values = {("", value) for value in odd}
    units = {column.name: column.unit for column in BY_NAME.values()}
    registry = {metric.key: metric.unit for metric in METRICS.values()}
    for folder in (finished.outputs / "tables").iterdir():
        for row in read(folder, "measurements"):
            values |= {(units[k], v) for k, v in row.items() if isinstance(v, int | float)}
        for row in read(folder, "metrics"):
            if isinstance(row["value"], int | float):
                values.add((registry[row["key"]], row["value"]))
    shown = [(unit, value) for unit, value in sorted(values) if unit != "of 1"]
    assert len(shown) > 10_000
    text = (ROOT / "templates/html/format.js").read_text().replace("export ", "")
    page = browser.open(report)
    found = page.evaluate(
        f"""values => {{ {text}
        return values.map(([name, value]) =>
          [number(value), quantity(value, name), si(value, "B"), micro(value), percent(value), pct(value, 1)]); }}""",
        shown,
    )
    for (unit, value), told in zip(shown, found, strict=True):
        wanted = [
            number(value), quantity(value, unit), si(value, "B"), micro(value), percent(value), pct(value, 1),
        ]  # fmt: skip
        assert [plain(one) for one in told] == [plain(one) for one in wanted], (value, unit)
    signs = page.evaluate(
        f"() => {{ {text} return [-4e-4, 4e-4, 0, -0.01, 0.2].map((one) => change(one)); }}"
    )
    assert [*map(plain, signs)] == ["0.0 %", "0.0 %", "0.0 %", "−1.0 %", "+20.0 %"]


def plain(text: str) -> str:
    """Text in which a space is a space, however wide it is."""
    return " ".join(text.split())


def test_a_number_tells_the_counter_that_it_comes_from(browser, report):
    page = browser.open(report, f"#/point?id={POINT}")
    page.click('.tiles button[title^="gbs:"]')
    assert BY_NAME["gbs"].formula in page.inner_text("dialog")
    page.keyboard.press("Escape")
    page.click('section button[title^="bytes_dram_counted"]')
    told = page.inner_text("dialog")
    assert "dram__bytes_read.sum" in told and "sweep.ncu-rep" in told


def test_sorting_puts_what_is_not_known_last_both_ways(browser, report):
    page = browser.open(report, "#/points?cols=ceiling_tensor_tflops_counter")
    head = page.locator("table.grid thead button", has_text="TFLOPS")
    for direction, arrow in (("sort=ceil", "▲"), ("sort=-ceil", "▼")):
        head.click()
        assert direction in page.url
        values = texts(page.locator("table.grid tbody tr[aria-rowindex] td:nth-child(3)"))
        assert arrow in head.inner_text()
        assert values[0] != "–"
        page.evaluate("document.querySelector('.grid-frame').scrollTop = 1e6")
        page.wait_for_selector("table.grid tbody tr:last-of-type td:nth-child(3):text-is('–')")
        page.evaluate("document.querySelector('.grid-frame').scrollTop = 0")


def test_filters_are_words_names_and_bounds(browser, report, points):
    decode, every = points.count("decode"), len(points)
    page = browser.open(report, "#/points")
    count = page.locator("output.count")
    some = {"decode batch=1 -tc": None, "time_cold_us>1000": None}
    all_of = {"target=decode": f"{decode} of {every}", "nosuchcolumn:1": f"0 of {every}"}
    for query, expected in (some | all_of).items():
        page.fill("[data-filter]", query)
        shown = count.inner_text()
        assert expected is None or shown.startswith(expected), query
        if expected is None:
            assert 0 < int(shown.split()[0]) < every, query
    page.fill("[data-filter]", "")
    page.click('.facets button:has-text("prefill")')
    assert page.input_value("[data-filter]") == "target=prefill"
    assert count.inner_text().startswith(f"{points.count('prefill')} of {every}")


def test_back_leads_from_a_point_to_the_list_as_it_was(browser, report):
    page = browser.open(report, "#/points")
    page.fill("[data-filter]", "batch=1")
    page.click("table.grid thead button:has-text('cold')")
    kept = page.url
    page.locator("table.grid tbody tr[aria-rowindex]").nth(2).locator("td").nth(1).click()
    page.wait_for_selector('main[data-view="point"]')
    page.go_back()
    page.wait_for_selector('main[data-view="points"]')
    assert page.url == kept
    assert page.input_value("[data-filter]") == "batch=1"


def test_the_table_by_keyboard_alone(browser, report):
    page = browser.open(report, "#/points")
    page.keyboard.press("/")
    page.keyboard.type("target=rmsnorm")
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("m")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("j")
    page.keyboard.press("m")
    assert page.locator(".marked code").count() == 2
    assert page.url.count("mark=") == 2
    page.keyboard.press("Enter")
    page.wait_for_selector('main[data-view="point"]')
    shown = page.inner_text("h1")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(f"h1:not(:text-is('{shown}'))")
    page.keyboard.press("ArrowLeft")
    page.wait_for_selector(f"h1:text-is('{shown}')")
    page.keyboard.press("?")
    assert "filter" in page.inner_text("dialog")
    page.keyboard.press("Escape")
    page.wait_for_selector("dialog", state="detached")


def test_two_marked_points_stand_side_by_side(browser, report):
    page = browser.open(report, "#/points?q=target%3Ddecode")
    for at in (0, 4):
        page.locator("table.grid tbody input[type=checkbox]").nth(at).check()
    page.click("text=Open side by side")
    page.wait_for_selector(".beside")
    assert page.locator(".beside h1").count() == 2
    assert "They differ in batch" in page.inner_text("main")


def test_columns_are_chosen_and_kept(browser, report):
    page = browser.open(report, "#/points")
    page.click("text=Columns…")
    page.fill("dialog input[type=search]", "l2_counted")
    page.check('dialog label[data-name^="bytes_l2_counted"] input')
    page.keyboard.press("Escape")
    assert "bytes_l2_counted" in page.url
    again = browser.open(report, "#" + page.url.partition("#")[2])
    assert "bytes L2 counted" in again.inner_text("table.grid thead")


def test_the_csv_is_what_is_shown(browser, report, finished):
    page = browser.open(
        report, "#/points?q=target%3Drope&cols=time_cold_us,ceiling_tensor_tflops_counter"
    )
    with page.expect_download() as download:
        page.click("button:text-is('CSV')")
    lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    rows = read(finished.outputs / "tables" / "rope", "measurements")
    assert lines[0] == "point,target,time_cold_us,ceiling_tensor_tflops_counter"
    assert [float(line.split(",")[2]) for line in lines[1:]] == [
        row["time_cold_us"] for row in rows
    ]
    assert all(line.endswith(",") for line in lines[1:])  # no tensor instruction ran: not 0


def test_a_point_has_all_that_is_known_of_it(browser, report):
    page = browser.open(report, f"#/point?id={POINT}")
    titles = texts(page.locator("main h2"))
    wanted = {
        "Times",
        "Work: analytic and counted",
        "Speed of Light",
        "Stalls",
        "Launch and occupancy",
    }
    assert {*wanted, "NVIDIA's advice", "Timeline"} <= {*titles}
    assert page.locator("text=shared memory ◂ the limit").count() == 1
    page.wait_for_selector('figure[aria-label="Times on the GPU"] circle')
    assert page.locator('figure[aria-label="Times on the GPU"] circle').count() > 60
    assert page.locator('figure[aria-label="Stall tree"] rect').count() > 5
    page.select_option('label:has-text("Repeat") select', "3")
    assert page.locator('figure[aria-label="Timeline"] rect').count() >= 2


def test_each_view_of_the_time_has_its_rate_and_clock(browser, report, finished):
    rows = rows_of(finished, "prefill").items()
    (at, row) = next((point, row) for point, row in rows if row["throttle_sustained"])
    page = browser.open(report, f"#/point?id={at}")
    table = page.locator('section:has(h2:text-is("Times")) table.plain').first
    shown = {cells[0]: cells[1:] for cells in map(cells_of, table.locator("tbody tr").all())}
    assert shown["sustained: at settled clocks"] == [
        micro(row["time_sustained_us"]),
        f"{micro(row['time_sustained_q25_us'])} to {micro(row['time_sustained_q75_us'])}",
        f"{number(row['tflops_sustained'])} TFLOPS",
        quantity(row["clock_sustained_mhz"], "MHz"),
        row["throttle_sustained"],
    ]
    others = {"in application: nsys": "time_insitu_us", "profiled: ncu": "time_ncu_us"}
    others |= {"the host's call": "host_launch_us", "plan() on the host": "plan_us"}
    assert [shown[view][0] for view in others] == [micro(row[name]) for name in others.values()]


def cells_of(row: Any) -> list[str]:
    return [plain(text) for text in texts(row.locator("th, td"))]


def test_all_stall_reasons_of_a_kernel_stand_in_full(browser, report, finished):
    points = results_of(finished, "decode")["points"]
    point, (kernel,) = next((p["point"], p["kernels"]) for p in points if len(p["kernels"]) == 1)
    page = browser.open(report, f"#/point?id={point}")
    page.click('summary:has-text("reasons as a table")')
    rows = map(cells_of, page.locator('[aria-label="Stall reasons"] tbody tr').all())
    counted = {one["reason"]: number(one["ratio"]) for one in kernel["stalls"]}
    assert counted == {cells[0]: cells[4] for cells in rows}


def test_each_pair_of_a_choice_has_its_interval_and_verdict(browser, report, finished):
    (side,) = blocks(report.read_text())["main"]["sides"]
    choices = [choice for target in side["targets"] for choice in target["prices"]]
    pairs = [pair for choice in choices for pair in choice["pairs"]]
    page = browser.open(report, "#/choices")
    for summary in page.locator('.choice summary:text-is("As a table")').all():
        summary.click()
    shown = [cells_of(row) for row in page.locator(".choice tbody tr").all()]
    assert [row[-1] for row in shown] == [pair["verdict"] for pair in pairs]
    assert [("…" in row[4]) for row in shown] == [pair["low"] is not None for pair in pairs]


def test_a_claim_shows_what_decides_it(browser, report, finished):
    claims = json.loads((finished.outputs / "results" / "claims.json").read_text())
    page = browser.open(report, "#/claims")
    page.evaluate("document.querySelectorAll('.claims > li summary').forEach((one) => one.click())")
    page.wait_for_selector(".claims > li:last-child dl")
    shown = page.locator(".claims > li")
    assert shown.count() == len(claims)
    judged = 0
    for item, claim in zip(shown.all(), claims, strict=True):
        said = plain(item.inner_text())
        assert claim["statement"] in said and claim["source"].get("section", "") in said
        facts = item.locator("dl").first
        told = dict(zip(texts(facts.locator("dt")), texts(facts.locator("dd")), strict=True))
        of = {"rule": "compare", "tolerance": "tolerance", "noise floor": "noise_floor"}
        assert {name for name in of if name in told} == {n for n in of if claim[of[n]] is not None}
        published = [claim["published"][name] for name in ("value", "range")]
        assert ("published" in told) == (published != [None, None]), claim["id"]
        if claim["compare"]:
            judged += 1
            assert f"over {claim['over']} {claim['compare']}" in said, claim["id"]
        for one in claim["evidence"]:
            assert plain(one["formula"] or one["metric"] or "–") in said, claim["id"]
    assert judged > 50


def test_the_kernels_of_a_split_are_chosen_between(browser, report):
    page = browser.open(report, "#/point?id=decode%2FB1_L2048_H32_K32_D128_P16_f16_cc")
    options = page.locator('label:has-text("Kernel") option')
    assert options.count() == 2
    page.select_option('label:has-text("Kernel") select', index=1)
    assert "PersistentVariableLengthMergeStatesKernel" in page.inner_text(
        "section:has(h2:text-is('Speed of Light'))"
    )
    assert "kernel=" in page.url


def test_the_source_is_grouped_filtered_and_leads_to_flashinfer(browser, report, finished):
    tag = f"v{results_of(finished, 'decode')['provenance']['flashinfer']}"
    page = browser.open(report, "#/source")
    link = page.locator(".places a").first
    source = f"https://github.com/flashinfer-ai/flashinfer/blob/{tag}/include/flashinfer/"
    assert link.get_attribute("href").startswith(source)
    count = page.locator("output.count")
    everything = count.inner_text()
    page.locator(".places button.place").first.click()
    assert count.inner_text() != everything and "at=" in page.url
    page.click('button:text-is("opcode")')
    opcode = texts(page.locator(".places button.place"))[0].split()[0]
    page.fill("[data-filter]", f"{opcode} samples>5")
    assert 0 < int(count.inner_text().split()[0]) < int(everything.split()[0])
    page.locator("table.grid tbody tr[aria-rowindex] td").nth(4).click()
    assert "a warp waits for" in page.inner_text(".instruction")


def test_claims_are_filtered_and_show_their_evidence(browser, report):
    page = browser.open(report, "#/claims")
    everything = page.locator(".claims > li").count()
    page.click('.facets button:has-text("refuted")')
    some = page.locator(".claims > li").count()
    assert 0 < some < everything
    assert "verdict=refuted" in page.url
    page.locator(".claims summary").first.click()
    assert "source" in page.inner_text(".claims dl")
    split = page.locator(".claims > li", has_text="into 4 KV chunks")
    split.locator("summary").click()
    said = split.locator("dl").inner_text()
    assert "measured\n1 chunk\n" in said and "published\n4 chunks, on NVIDIA A100" in said


def test_the_guide_is_rendered_and_its_links_stay_inside(browser, report):
    page = browser.open(report, "#/guide")
    page.click('.prose a:has-text("Decode Attention Kernel") >> nth=0')
    page.click('.toc a:has-text("Options")')
    playwright.expect(page.locator('[id="decode/options"]')).to_be_in_viewport()
    assert page.locator('.prose a[href$=".md"]').count() == 0
    page.select_option(".controls select", "kernel-dev-guide")
    page.click('.prose a[href="#/claims"] >> nth=0')
    page.wait_for_selector('main[data-view="claims"]')


def test_two_captures_are_compared_the_changed_points_first(browser, written):
    def slower(found: Any) -> None:
        point = found["points"][5]
        row = point["measurement"]
        for name in row:
            if re.fullmatch(r"time_cold(_q\d+)?_us", name):
                row[name] *= 1.5
            elif re.fullmatch(r"(gbs|tflops)(_fraction_(datasheet|measured))?", name) and row[name]:
                row[name] /= 1.5
        point["samples"]["cold_us"] = [us * 1.5 for us in point["samples"]["cold_us"]]
        point["runs"]["cold_us"] = [[us * 1.5 for us in run] for run in point["runs"]["cold_us"]]

    path = written(same, slower)
    page = browser.open(path)
    page.wait_for_selector('main[data-view="compare"], main section')
    first = page.locator(".claims > li").first
    assert "slower" in first.inner_text()
    first.locator("summary").click()
    assert "interval +" in first.locator("dl").inner_text()
    assert "[object" not in first.inner_text()
    first.locator("text=Both sides of this point").click()
    page.wait_for_selector(".beside")
    assert "+50.0" in page.inner_text("main")
    assert page.url.count("id=") == 2


def test_a_hostile_name_is_shown_as_text(browser, written):
    def hostile(found: Any) -> None:
        found["provenance"] |= dict.fromkeys(("gpu", "driver", "ncu", "flashinfer"), HOSTILE)
        for point in found["points"]:
            name = point["point"] + HOSTILE
            point["point"] = point["measurement"]["point"] = name
            point["measurement"]["main_kernel"] = HOSTILE
            point["params"]["kind"] = HOSTILE
            for kernel in point["kernels"]:
                kernel["name"] = kernel["demangled"] = HOSTILE
                kernel["point"] = name
                for rule in kernel["rules"]:
                    rule["message"] = HOSTILE
        for kernel in found["deep"]:
            kernel["name"] = kernel["demangled"] = HOSTILE
            for line in kernel["lines"]:
                line["file"] = line["function"] = "</script><script>document.title='hit'</script>"

    path = written(hostile)
    views = ("claims", "points?cols=main_kernel,kind", "source?by=file", "choices", "environment")
    for fragment in ("", *(f"#/{view}" for view in views)):
        page = browser.open(path, fragment)
        assert page.title() != "hit"
        assert page.locator("img").count() == 0
    page = browser.open(path, "#/points?cols=main_kernel")
    assert "Kernel<img src=x onerror=" in page.inner_text("table.grid")
    assert "|a\u2407b\ufffdc" in page.inner_text("table.grid"), "control characters are seen"
    page.locator("table.grid tbody a").first.click()
    page.wait_for_selector('main[data-view="point"] h2')
    assert page.title() != "hit" and page.locator("img").count() == 0


def without_counters(found: Any) -> None:
    """As where ncu may not read counters."""
    found["deep"] = []
    for point in found["points"]:
        point["kernels"] = []
        nulled(point["measurement"], {"ncu", "ceilings"})


def without_trace(found: Any) -> None:
    for point in found["points"]:
        nulled(point["measurement"], {"nsys"})
        point["samples"] = {k: v for k, v in point["samples"].items() if k == "cold_us"}


def without_anything(found: Any) -> None:
    """As where every point failed before its first launch."""
    without_counters(found)
    found["noise"] = {}
    for point in found["points"]:
        point |= {"status": "error", "reason": HOSTILE, "samples": {}, "runs": {}, "info": {}}
        point["check"] = dict.fromkeys(point["check"])
        nulled(point["measurement"], {"events", "nsys"})


def nulled(row: dict[str, Any], sources: set[str]) -> None:
    """Take away what comes from these sources or is computed of it."""
    for name in row:
        if BY_NAME[name].source in sources:
            row[name] = None


@pytest.mark.parametrize("change", [without_counters, without_trace, without_anything])
def test_a_page_of_less_evidence_opens_and_has_dashes(browser, written, change):
    page = browser.open(written(change, targets=("decode", "merge_state")))
    for view in (*VIEWS, "point?id=" + POINT, f"points?cols={','.join(BY_NAME)}"):
        page.evaluate("to => { location.hash = '#/' + to }", view)
        page.wait_for_selector(f'main[data-view="{view.split("?")[0]}"] > *')
        shown = page.inner_text("main")
        assert [word for word in WRONG if word in shown] == [], view
    assert "–" in texts(page.locator("table.grid tbody td"))


def test_points_of_one_capture_alone_are_named_beside_the_changes(browser, written):
    def renamed(found: Any) -> None:
        for point in found["points"][1:]:
            point["point"] = point["measurement"]["point"] = point["point"] + HOSTILE
            for kernel in point["kernels"]:
                kernel["point"] = point["point"]

    page = browser.open(written(same, renamed))
    shown = page.inner_text("main")
    assert "Points of the base alone" in shown and "Points of the head alone" in shown
    assert "Kernel<img src=x onerror=" in shown and page.locator("img").count() == 0
    assert "[object" not in shown and "undefined" not in shown


def test_thousands_of_points_are_few_rows(browser, written):
    def many(found: Any) -> None:
        points = list(found["points"])
        for number_ in range(3000 - len(points)):
            point = json.loads(json.dumps(points[number_ % len(points)] | {"kernels": []}))
            point["point"] = point["measurement"]["point"] = f"{point['point']}_{number_}"
            point["params"]["seq_len"] = number_ + 1
            found["points"].append(point)

    page = browser.open(written(many), "#/points")
    assert page.inner_text("output.count").startswith("3000 of 3000")
    assert page.locator("table.grid tbody tr").count() < 100
    page.click("table.grid thead button:has-text('cold')")
    page.fill("[data-filter]", "_77")
    assert 0 < int(page.inner_text("output.count").split()[0]) < 1000
    page.evaluate("document.querySelector('.grid-frame').scrollTop = 1e6")
    page.wait_for_selector("table.grid tbody tr[aria-rowindex]")


@pytest.mark.parametrize("fragment", [*(f"#/{view}" for view in VIEWS), f"#/point?id={POINT}"])
def test_a_telephone_need_not_scroll_sideways_and_axe_finds_nothing_serious(
    browser, report, fragment
):
    accessible_on_a_telephone_and_beside_it(browser.open(report, fragment, size=(360, 740)))


def accessible_on_a_telephone_and_beside_it(page: Any, several_views: bool = True) -> None:
    """A page that was opened on a telephone, and is as wide as a screen afterwards."""
    page.wait_for_selector("main > *")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    if several_views:
        current = page.locator("nav [aria-current]").first
        playwright.expect(current).to_be_in_viewport(ratio=0.99)
    page.set_viewport_size({"width": 1400, "height": 900})
    page.evaluate(AXE)
    # Of two colour schemes only the colours differ.
    assert serious(page, "light", {}) == []
    assert serious(page, "dark", {"runOnly": ["color-contrast"]}) == []


def serious(page: Any, scheme: str, options: dict[str, Any]) -> list[str]:
    """What axe finds serious in a page under a colour scheme."""
    page.emulate_media(color_scheme=scheme)
    found = page.evaluate(
        "options => axe.run(document, {resultTypes: ['violations'], ...options})", options
    )
    return [
        f"{v['id']}: {v['nodes'][0]['html'][:200]} ({len(v['nodes'])})"
        for v in found["violations"]
        if v["impact"] in ("serious", "critical")
    ]


# Of each table that is shown: its columns of sentences, words that stand on two lines, and whether it is cut off.
TABLES = r"""() => [...document.querySelectorAll("main table.plain, .prose table")].filter((t) => t.offsetWidth).map((table) => {
  const columns = new Map(), broken = [];
  for (const cell of table.querySelectorAll("tbody td")) {
    const found = columns.get(cell.cellIndex) ?? [0, 0];
    columns.set(cell.cellIndex, [Math.max(found[0], cell.innerText.length), cell.offsetWidth]);
    const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (texts.nextNode())
      for (const word of texts.currentNode.data.matchAll(/[A-Za-z]{2,}/g)) {
        const range = document.createRange();
        range.setStart(texts.currentNode, word.index);
        range.setEnd(texts.currentNode, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1) broken.push(word[0]);
      }
  }
  const frame = table.closest(".scroll");
  const cut = table.offsetWidth > frame.clientWidth + 1 && getComputedStyle(frame).overflowX !== "auto";
  return {columns: [...columns.values()], broken, cut};
})"""
GUIDE = [f"guide?page={name}" for name in ("kernel-dev-guide", "prefill", "decode", "final-report")]


@pytest.mark.parametrize("view", [*GUIDE, "choices", "claims", "environment"])
def test_a_table_can_be_read_at_any_width(browser, report, view):
    page = browser.open(report, f"#/{view}", size=(1440, 900))
    page.wait_for_selector("main > *")
    for width in (1440, 1142, 390):
        page.set_viewport_size({"width": width, "height": 900})
        found = page.evaluate(TABLES)
        assert found or view == "claims"
        assert [word for table in found for word in table["broken"]] == [], width
        assert not any(table["cut"] for table in found), width
        narrow = [c for table in found for c in table["columns"] if c[0] >= 60 and c[1] < 200]
        assert narrow == [], f"a sentence in a column of few letters at {width}"
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_what_won_is_advised_before_what_nobody_tried(browser, report):
    page = browser.open(report, "#/choices")
    titles = texts(page.locator("main h2"))
    groups = ["Tried, and faster", "Not tried", "Tried, and not faster"]
    assert [title for title in titles if title in groups] == groups


def test_paper_has_all_rows(browser, report, points):
    page = browser.open(report, "#/points")
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("table.grid tbody tr[aria-rowindex]").count() == len(points)
