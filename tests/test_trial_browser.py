"""The page of a trial in a browser: from a disk, without a network, for every reader."""

from pathlib import Path

import pytest
import trial_data
from test_html_browser import accessible_on_a_telephone_and_beside_it, browser, chromium

from ncuflow.pages.html import experiments as page

pytestmark = pytest.mark.browser
__all__ = ["browser", "chromium"]  # fixtures


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("trial") / "try.html"
    trials = [trial_data.trial(), trial_data.wrong(), trial_data.broken()]
    path.write_text(page.rendered(trials), encoding="utf-8")
    return path


def test_a_telephone_need_not_scroll_sideways_and_it_is_accessible(browser, written):
    shown = browser.open(written, size=(360, 740))
    accessible_on_a_telephone_and_beside_it(shown, several_views=False)


def test_what_is_closed_opens_without_a_script(browser, written):
    shown = browser.open(written)
    closed = shown.locator("details:not([open]) > summary").first
    closed.click()
    assert shown.locator("details").first.evaluate("element => element.open")
