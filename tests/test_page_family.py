"""The six pages are one family: each is made of files in a folder that nobody else may learn of, and looked at in a browser."""

import json
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from command import ncuflow
from conftest import DEFAULT, ROOT, some
from test_html import blocks
from test_html_browser import browser, chromium
from test_view import DECODE

from ncuflow.compare import verdict
from ncuflow.pages.html import page as html
from ncuflow.pages.section import Findings

pytestmark = pytest.mark.browser
__all__ = ["browser", "chromium"]  # fixtures
SECRET = "acme-merger-kai"  # of the folder that all files lie in
PAGES = ("view", "step", "advise", "trial", "compare", "report")
PARTS = ("", "&part=source")
VIEWS = {
    "view": ["kernels", "compare", "trace", "files", *(f"kernel?r=0&k=0{part}" for part in PARTS)],
    "report": ["overview", "points", "source", "claims", "choices", "environment"],
    "compare": ["compare"],
}
ALL = [(name, f"#/{view}" if view else "") for name in PAGES for view in VIEWS.get(name, [""])]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, small: Any) -> Path:
    """A folder with two reports of one name, a trace, a recording, a trial, and two outputs."""
    folder: Path = tmp_path_factory.mktemp("home") / SECRET
    for name in "ab":
        (folder / name).mkdir(parents=True)
        shutil.copy(DECODE, folder / name / "mine.ncu-rep.xz")
    shutil.copy(next(DEFAULT.glob("decode/b*/trace.sqlite.xz")), folder / "trace.sqlite.xz")
    shutil.copytree(DEFAULT, folder / "recorded")
    shutil.copy(ROOT / "examples/changes/rmsnorm-occupancy/trial.json.xz", folder / "trial.json.xz")
    for name in ("base", "head"):
        shutil.copytree(small.outputs, folder / name)
    return folder


@pytest.fixture(scope="module")
def made(files: Path) -> dict[str, Path]:
    """The pages by name."""
    pages = {name: files.parent / f"{name}.html" for name in PAGES}
    reports = [files / name / "mine.ncu-rep.xz" for name in "ab"]
    trace = files / "trace.sqlite.xz"
    for words in (
        ("view", *reports, trace, "--out", pages["view"]),
        ("step", trace, "--html", pages["step"]),
        ("advise", "--recorded", files / "recorded", "--html", pages["advise"]),
        ("try", "--from", files / "trial.json.xz", "--html", pages["trial"]),
    ):
        assert ncuflow(*words).returncode == 0, words
    sides = [Findings(files / name / "results", DEFAULT) for name in ("base", "head")]
    found = verdict.compare(*(verdict.load(side.folder) for side in sides), verdict.Thresholds())
    pages["compare"].write_text(html.report(sides, [asdict(found)]), encoding="utf-8")
    pages["report"].write_text(html.report(sides[:1], []), encoding="utf-8")
    return pages


CONTRAST = (ROOT / "tests/data/contrast.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("name,view", ALL)
def test_every_text_stands_out_and_is_neither_markup_nor_a_tiny_number(browser, made, name, view):
    shown = browser.open(made[name], view)
    shown.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    said = shown.evaluate("""() => {
      const copy = document.querySelector("main").cloneNode(true);
      copy.querySelectorAll("code, pre").forEach((one) => one.remove());
      return copy.textContent;
    }""")
    assert "`" not in said
    assert re.findall(r"[+−-]\d[\d.]*e-\d+ (?:points|µs)", said.replace("\u00a0", " ")) == []
    for scheme in ("light", "dark"):
        shown.emulate_media(color_scheme=scheme)
        shown.wait_for_timeout(50)
        assert shown.evaluate(CONTRAST) == [], scheme


def test_a_text_that_does_not_stand_out_is_found(browser, made):
    """The advice map of pastel cells and links of the dark mode had 1.36."""
    shown = browser.open(made["advise"])
    shown.emulate_media(color_scheme="dark")
    shown.add_style_tag(content="table.map td { background: #9ecae1 !important }")
    assert any("cores=tensor" in one for one in shown.evaluate(CONTRAST))


@pytest.mark.parametrize("name,view", ALL)
def test_a_telephone_scrolls_tables_alone(browser, made, name, view):
    shown = browser.open(made[name], view, size=(390, 844))
    shown.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true })")
    assert shown.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("name,view", ALL)
def test_every_page_has_its_head_and_each_table_a_file(browser, made, name, view):
    shown = browser.open(made[name], view)
    assert shown.locator("header.top .brand b").inner_text() == "ncuflow"
    assert shown.locator("header.top nav a").count() >= 2
    tables, buttons = shown.locator("main table"), shown.locator("main button.csv")
    assert buttons.count() == tables.count(), "one for each"
    if not shown.locator("main table.plain").count():
        return
    table = shown.locator("main table.plain").first
    table.evaluate(
        "one => { for (let at = one; at; at = at.parentElement) if (at.tagName === 'DETAILS') at.open = true }"
    )
    with shown.expect_download() as download:
        table.locator(
            "xpath=ancestor::*[contains(@class, 'scroll')][1]//button[@class='csv']"
        ).first.click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    assert len(text.splitlines()) >= table.locator("tr").count()
    last = table.locator("tr").last.locator("th, td").first.text_content() or ""
    assert " ".join(last.split()).replace("–", "") in text


def test_no_page_names_the_readers_folder(made):
    for name, path in some(made.items()):
        text = path.read_text(encoding="utf-8")
        packed = json.dumps(blocks(text))
        assert SECRET not in text and SECRET not in packed, name


@pytest.mark.parametrize("name", ["view", "report"])
def test_what_an_address_asks_for_in_vain_is_said(browser, made, name):
    view = VIEWS[name][0] if name == "view" else "points"
    shown = browser.open(made[name], f"#/{view}?filtre=x")
    assert shown.locator("main > p.warning").inner_text() == "Unknown in the address: filtre."
    shown = browser.open(made[name], "#/nowhere")
    assert shown.locator("main > p.warning").inner_text() == "Unknown in the address: nowhere."
    shown = browser.open(made[name], f"#/{view}?q=colour%3Dred")
    assert "no column colour" in shown.locator("output.count").inner_text()
    shown = browser.open(made[name], f"#/{view}")
    assert shown.locator("main > p.warning").count() == 0


def test_an_unknown_column_of_the_points_is_said(browser, made):
    shown = browser.open(made["report"], "#/points?by=colour&sort=-size&cols=time_cold_us,weight")
    assert "no column weight, colour, size" in shown.locator("output.count").inner_text()


def test_the_timeline_is_searched_and_widened(browser, made):
    shown = browser.open(made["view"], "#/trace")
    where = shown.locator("section output.count")
    assert where.inner_text().startswith("operations 0 to 119 of")
    shown.click("[aria-label='Zoom in']")
    assert where.inner_text().startswith("operations 30 to 89 of")
    shown.fill("[aria-label='Find an operation']", "persistent")
    first = where.inner_text()
    assert re.search(r"; \d+ of that name", first)
    assert shown.locator("figure .box rect[style*='--c1']").count() > 0
    shown.press("[aria-label='Find an operation']", "Enter")
    assert where.inner_text() != first


def test_ptx_makes_room_for_the_source(browser, made):
    shown = browser.open(made["view"], "#/kernel?r=0&k=0&part=source")
    panes = shown.locator(".pane")
    shown.wait_for_selector(".pane")
    before, wide = panes.count(), panes.first.bounding_box()["width"]
    shown.click("button:text-is('PTX')")
    assert panes.count() == before - 1
    assert panes.first.bounding_box()["width"] > wide
    assert "PTX" not in shown.locator(".pane h3").all_inner_texts()


def test_charts_of_occupancy_have_their_units(browser, made):
    shown = browser.open(made["view"], "#/kernel?r=0&k=0")
    said = shown.locator("figure[aria-label^='Occupancy over'] svg").all_text_contents()
    assert len(said) >= 2 and all("warps per SM" in one for one in said)
    assert any("registers per thread" in one for one in said)
    assert any("KiB of shared memory per block" in one for one in said)


def test_sections_are_listed_when_asked_for(browser, made):
    shown = browser.open(made["view"], "#/kernel?r=0&k=0")
    shown.click("summary:text-is('Sections')")
    names = shown.locator(".index li button").all_inner_texts()
    assert names == shown.locator("main h2").all_inner_texts() and len(names) > 3
