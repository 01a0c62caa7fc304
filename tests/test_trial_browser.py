"""The page of a trial in a browser: from a disk, without a network, for every reader."""

from pathlib import Path

import pytest
import trial_data
from test_html_browser import AXE, browser, chromium, serious

from ncuflow.pages.html import trial as page

pytestmark = pytest.mark.browser
__all__ = ["browser", "chromium"]  # fixtures


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("trial") / "try.html"
    trials = [trial_data.trial(), trial_data.wrong(), trial_data.broken()]
    path.write_text(page.rendered(trials), encoding="utf-8")
    return path


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_accessible(browser, written, scheme):
    shown = browser.open(written)
    shown.evaluate(AXE)
    assert serious(shown, scheme, {}) == []


def test_a_telephone_shows_it_without_scrolling_sideways(browser, written):
    shown = browser.open(written, size=(360, 740))
    assert shown.evaluate("document.documentElement.scrollWidth") <= 360


def test_what_is_closed_opens_without_a_script(browser, written):
    shown = browser.open(written)
    closed = shown.locator("details:not([open]) > summary").first
    closed.click()
    assert shown.locator("details").first.evaluate("element => element.open")
