"""How soon report.html answers in a browser: from the start of opening it, and after a sort or a filter.

    python benchmarks/bench_html.py outputs/*/report.html --out benchmarks/results/html.json

Times are the page's own clock, to the frame after the last change; each is the median of ``--repeats``.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from pathlib import Path
from statistics import median
from typing import Any

from playwright.sync_api import Page, sync_playwright

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import description

READY = """
new MutationObserver(() => { window.readyAt ??= performance.now(); })
    .observe(document, {subtree: true, attributeFilter: ["data-ready"]});
"""
# When the page has come to rest, do something and wait for the frame that shows it: ms.
TIMED = """async () => {
    await new Promise((rested) => requestIdleCallback(rested));
    const started = performance.now();
    ACT;
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    return performance.now() - started;
}"""
VIEW = "document.querySelector('nav a[data-view=points]').click()"
ACTS = {
    "sort": "document.querySelectorAll('table.grid thead button')[1].click()",
    "filter": "const box = document.querySelector('[data-filter]'); box.value = box.value ? '' : 'decode batch=32';"
    " box.dispatchEvent(new Event('input'))",
}


def opened(page: Page, path: Path) -> dict[str, float]:
    """ms of opening a file and of each act on its table of points."""
    page.goto(path.resolve().as_uri())
    page.wait_for_selector("html[data-ready]", state="attached")
    found = {"ready": page.evaluate("readyAt")}
    page.evaluate(VIEW)
    page.wait_for_selector("table.grid tbody tr[aria-rowindex]")
    return found | {name: page.evaluate(TIMED.replace("ACT", act)) for name, act in ACTS.items()}


def measured(browser: Any, path: Path, repeats: int) -> dict[str, Any]:
    """Medians of one file, each time in a browser context of its own."""
    rows = []
    for _ in range(repeats):
        context = browser.new_context(offline=True, viewport={"width": 1280, "height": 900})
        page = context.new_page()
        page.add_init_script(READY)
        rows.append(opened(page, path))
        points = int(page.inner_text("output.count").split()[2])
        context.close()
    times = {f"{name}_ms": round(median(row[name] for row in rows)) for name in rows[0]}
    return {"points": points, "bytes": path.stat().st_size, **times}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("reports", type=Path, nargs="+")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="JSON with all figures")
    args = parser.parse_args()
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox", "--disable-gpu"]
        )
        rows = [measured(browser, path, args.repeats) for path in args.reports]
        chromium = browser.version
    machine = description() | {"chromium": chromium}
    found = {"benchmark": "html", "machine": machine, "repeats": args.repeats, "rows": rows}
    print(json.dumps(found, indent=1))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
