"""The comparison on recorded captures: A/A, and slow-downs that were planted in the captures."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
from compare_data import compare

from ncuflow.cli import dispatch
from ncuflow.compare.records import Settings
from ncuflow.compare.verdict import load
from ncuflow.flow import evidence
from ncuflow.io import write_json

ROOT = Path(__file__).parents[1]
RECORDINGS = ROOT / "recordings"
BASE, AGAIN, PLANTED = "flashinfer-0.6.18", "flashinfer-0.6.18-again", "planted-slow-downs"
# What was planted there, all in one capture: fa2 built to take tiles of 64 query rows, copies after the long norm
# kernels, a host that waits in one norm call. docs/compare.md says how.
TILE, COPY, DELAY = "prefill/*", "rmsnorm/*_R16384_*", "rmsnorm/rmsnorm_R128_*"
Compared = Callable[[str, str], dict[str, Any]]


@pytest.fixture(scope="session")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    """``compared("flashinfer-0.6.18", "planted-slow-downs")``: the document, from the evidence on."""
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
        command("tables", *root, "--out", str(tables), *batches)
        out = folder / "results" / f"{target}_results.json"
        files = ("--out", str(out), "--measurements", str(tables / "measurements.parquet"))
        command("results", *root, "--tables", str(tables), "--recording", name, *files)
    return folder / "results"


def command(name: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "ncuflow", name, *arguments], cwd=ROOT, check=True)


def changed(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {p["id"]: p for p in document["points"] if p["verdict"] in ("slower", "faster")}


def points(document: dict[str, Any], glob: str) -> list[dict[str, Any]]:
    found = [p for p in document["points"] if fnmatchcase(p["id"], glob)]
    assert found
    return found


def test_a_recording_against_itself_captured_again_reports_no_change(compared: Compared) -> None:
    document = compared(BASE, AGAIN)
    assert changed(document) == {}
    assert len(document["points"]) >= 10
    assert document["statistics"]["tests"] >= 10


def test_a_worse_tile_is_found_and_named(compared: Compared) -> None:
    for point in points(compared(BASE, PLANTED), "prefill/*_S4096_*"):
        row = point["metrics"]["cold_us"]
        assert (point["verdict"], row["verdict"]) == ("slower", "slower"), point["id"]
        assert row["causes"][0]["kind"] == "template"
        assert "CTA_TILE_Q 64" in row["causes"][0]["head"]
        assert row["causes"][0]["share_of_delta"] > 0.5


def test_the_same_tile_is_a_gain_where_it_saves_the_merge_kernel(compared: Compared) -> None:
    (point,) = points(compared(BASE, PLANTED), "prefill/*_S512_*")
    assert point["verdict"] == "faster"
    assert "MergeStates" in point["causes"][0]["what"]


def test_an_injected_host_delay_is_found_on_the_host(compared: Compared) -> None:
    (point,) = points(compared(BASE, PLANTED), DELAY)
    row = point["metrics"]["host_us"]
    assert row["verdict"] == "slower"
    assert row["causes"][0]["kind"] == "host_launch"
    assert row["causes"][0]["share_of_delta"] > 0.5


def test_an_injected_copy_is_found_in_the_trace(compared: Compared) -> None:
    for point in points(compared(BASE, PLANTED), COPY):
        row = point["metrics"]["cold_us"]
        assert (point["verdict"], row["verdict"]) == ("slower", "slower"), point["id"]
        first = row["causes"][0]
        assert (first["kind"], first["base"]) == ("copy_added", 0), point["id"]
        assert first["what"] == "memcpy Device-to-Device" and first["head"] >= 1
        assert first["share_of_delta"] > 0.5
        assert not [c for c in row["causes"] if c["kind"].startswith("kernel_")]


def test_nothing_is_called_changed_that_nobody_planted(compared: Compared) -> None:
    touched = (TILE, COPY, DELAY)
    found = changed(compared(BASE, PLANTED))
    assert [p for p in found if not any(fnmatchcase(p, glob) for glob in touched)] == []


def test_the_gate_prints_what_its_page_shows(
    compared: Compared, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(tmp_path / "compare.json", compared(BASE, PLANTED))
    assert dispatch(["gate", str(tmp_path / "compare.json")]) == 1
    printed = capsys.readouterr().out.splitlines()
    text = (ROOT / "docs/ci.md").read_text()
    shown = re.search(r"and names it:\n\n```\n(.*?)\n```", text, re.DOTALL)
    assert shown is not None
    for line in shown[1].splitlines():
        assert line in printed or line == "…"
