"""The comparison on recorded captures: A/A, and slow-downs that were planted in the captures."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from analysis.compare import CHANGED, Settings, compare, load
from capture import evidence

ROOT = Path(__file__).parents[1]
RECORDINGS = ROOT / "recordings"
BASE = "compare-base"
# recording: (points made slower, points that the plant may touch); docs/compare.md says how
PLANTED = {
    "compare-tile": ("prefill/*_S4096_*", "prefill/*"),
    "compare-copy": ("rmsnorm/*_R16384_*", "rmsnorm/*_R16384_*"),
    "compare-delay": ("decode/B32_*", "decode/B32_*"),
}
Compared = Callable[[str, str], dict[str, Any]]


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """``compared("compare-base", "compare-again")``: the document, from the evidence on."""
    folder = tmp_path_factory.mktemp("sides")
    done: dict[str, Path] = {}

    def of(base: str, head: str) -> dict[str, Any]:
        for name in (base, head):
            if not (RECORDINGS / name / "manifest.json").exists():
                pytest.skip(f"recordings/{name} is not here")
            if name not in done:
                done[name] = results_of(name, folder / name)
        return compare(load(done[base]), load(done[head]), Settings())

    return of


def results_of(name: str, folder: Path) -> Path:
    """Tables and results of a recording, as the rules make them."""
    found = evidence.recorded(RECORDINGS / name)
    for target in found.targets:
        if target == "jit":
            continue
        tables = folder / "tables" / target
        batches = [str(found.root / target / batch) for batch in found.batches(target)]
        root = ("--evidence", str(found.root), "--target", target)
        module("parsers.tables", *root, "--out", str(tables), *batches)
        out = folder / "results" / f"{target}_results.json"
        files = ("--out", str(out), "--measurements", str(tables / "measurements.parquet"))
        module("analysis.results", *root, "--tables", str(tables), "--recording", name, *files)
    return folder / "results"


def module(name: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", name, *arguments], cwd=ROOT, check=True)


def changed(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {p["id"]: p for p in document["points"] if p["verdict"] in CHANGED}


def test_a_recording_against_itself_captured_again_reports_no_change(compared: Compared) -> None:
    document = compared(BASE, "compare-again")
    assert changed(document) == {}
    assert len(document["points"]) >= 10 and document["statistics"]["tests"] >= 10


@pytest.mark.parametrize(
    ("name", "metric", "kind"),
    [
        ("compare-tile", "cold_us", "template"),
        ("compare-copy", "cold_us", "copy_added"),
        ("compare-delay", "host_us", "host_launch"),
    ],
)
def test_a_planted_slow_down_is_found_and_put_down_to_its_cause(
    name: str, metric: str, kind: str, compared: Compared
) -> None:
    slower, touched = PLANTED[name]
    document = compared(BASE, name)
    planted = [p for p in document["points"] if fnmatchcase(p["id"], slower)]
    assert planted
    for point in planted:
        row = point["metrics"][metric]
        assert (point["verdict"], row["verdict"]) == ("slower", "slower"), point["id"]
        assert row["causes"][0]["kind"] == kind
        assert row["causes"][0]["share_of_delta"] > 0.5
    others = [point for point in changed(document) if not fnmatchcase(point, touched)]
    assert others == []
