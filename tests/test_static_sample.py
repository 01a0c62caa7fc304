"""The pages of docs/sample/a100-static are what the recorded facts and the default recording give."""

from __future__ import annotations

import re

from conftest import ROOT

from ncuflow.gpu.table import device
from ncuflow.static.results import default_blocks, results, stored
from ncuflow.target.contract import load

SAMPLE = ROOT / "docs/sample/a100-static"
INDEX = (SAMPLE / "INDEX.md").read_text()


def rows(point):
    """Cells of each launch of a point on the page."""
    found = re.findall(rf"^\| `{re.escape(point)}` \| (.*) \|$", INDEX, re.MULTILINE)
    return [row.split(" | ") for row in found if " µs" not in row]


def test_every_launch_of_the_sweep_is_on_the_page_as_it_is_computed():
    seen = 0
    for name, blocks in default_blocks().items():
        if load(name).rules.launches:
            found = results(load(name), blocks, stored("8.0"), device("NVIDIA A100-SXM4-80GB"))
            for point in found["points"]:
                shown = [[k["grid"], k["registers"]] for k in point["kernels"] if k["grid"]]
                told = [[row[1], int(row[3])] for row in rows(point["point"]) if row[1] != "–"]
                assert told == shown, point["point"]
                seen += len(shown)
    assert seen > 130
