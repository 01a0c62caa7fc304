"""The HTML page without a browser: what is in its blocks, what its scripts may do."""

import base64
import json
import re
import shutil
import zlib
from pathlib import Path
from typing import Any

import pytest
from conftest import DEFAULT, ROOT, some

from ncuflow.findings.ceilings import environment_info
from ncuflow.findings.columns import COLUMNS
from ncuflow.findings.results import read
from ncuflow.io import BadInput
from ncuflow.pages.html import page as html
from ncuflow.pages.html.columns import main
from ncuflow.pages.markdown.pages import render
from ncuflow.pages.section import Findings

TARGETS = ("prefill", "decode", "rmsnorm", "rope", "merge_state")
LARGEST = 1.5e6  # bytes, of the shipped recording's file


def blocks(text: str) -> dict[str, Any]:
    """The values that a file holds, by block."""
    found = re.findall(r'data-block="([^"]*)">([^<]*)</script>', text)
    return {name: json.loads(zlib.decompress(base64.b64decode(packed))) for name, packed in found}


@pytest.fixture(scope="module")
def text(finished) -> str:
    return (finished.outputs / "report.html").read_text()


@pytest.fixture(scope="module")
def held(text) -> dict[str, Any]:
    return blocks(text)


def test_a_mark_is_held_against_the_roof_of_the_type_that_it_computed_with(finished, held):
    (side,) = held["main"]["sides"]
    prefill = json.loads((finished.outputs / "results/prefill_results.json").read_text())
    peaks = prefill["ceilings"]["measured"]["tensor_tflops"]
    assert peaks["f16"] < peaks["bf16"]
    assert side["flat_roofs"]["measured"] == {"f16": peaks["f16"]}  # of bf16 no product was made
    assert side["flat_roofs"]["datasheet"] == {"f16": 989.5, "fp32": 66.9}
    assert side["roofless"] == []


def test_each_type_that_points_computed_with_has_its_own_roof(results_once):
    recording = ROOT / "recordings/h200/0.7.2/kernels"
    made = results_once(recording, "prefill")
    (side,) = main([Findings(made / "results", recording, names=["prefill"])])["sides"]
    (target,) = side["targets"]
    shown = side["points"]["measurement"]
    computed = {a or b for a, b in zip(shown["flop_type"], shown["dtype"], strict=True)}
    peaks = target["ceilings"]["measured"]["tensor_tflops"]
    assert {"f16", "bf16"} <= computed and peaks["f16"] < peaks["bf16"]
    assert side["flat_roofs"]["measured"] == {kind: peaks[kind] for kind in computed & peaks.keys()}


def test_a_rate_that_is_itself_the_measured_peak_is_no_share_of_it(finished, held):
    (side,) = held["main"]["sides"]
    reached = side["machine"]["ceilings"]["measured"]
    index = (finished.outputs / "reports/INDEX.md").read_text()
    for target in some(side["targets"]):
        own = target["ceilings"]["measured"]
        passed = own["points"].get("dram_gbs") == target["best"]
        assert passed == (target["passed"] == "any copy or read")
        assert passed == (own["dram_gbs"] > reached["dram_gbs"])
        (row,) = re.findall(rf".*\]\({target['name']}\.md\).*GB/s \|.*", index) or [""]
        assert passed == ("| above any copy or read |" in row)


def test_a_point_that_passes_every_copy_and_read_is_said_to(results_once, tmp_path):
    recording = ROOT / "recordings/h200/0.6.18/versions"
    made = shutil.copytree(results_once(recording, "decode"), tmp_path / "made")
    machine = json.dumps(environment_info(recording, "h200-0.6.18-versions"))
    (made / "results/environment_info.json").write_text(machine)
    (side,) = main([Findings(made / "results", recording, names=["decode"])])["sides"]
    (target,) = side["targets"]
    own = target["ceilings"]["measured"]
    assert own["points"]["dram_gbs"] == target["best"] and target["passed"] == "any copy or read"
    assert own["dram_gbs"] > side["machine"]["ceilings"]["measured"]["dram_gbs"]
    index = render("INDEX", Findings(made / "results", recording, names=["decode"]))
    (row,) = [line for line in index.splitlines() if "](decode.md)" in line and "GB/s |" in line]
    assert "| above any copy or read |" in row


def test_each_number_of_the_page_is_that_of_the_tables(finished, held):
    (side,) = held["main"]["sides"]
    shown = side["points"]
    names = [column.name for column in COLUMNS]
    folders = [finished.outputs / "tables" / name for name in TARGETS]
    rows = [row for folder in folders for row in read(folder, "measurements")]
    assert [row["point"] for row in rows] == shown["id"]
    for name in names:
        assert [row[name] for row in rows] == shown["measurement"][name], name
    assert any(value is None for value in shown["measurement"]["ceiling_tensor_tflops_counter"])


@pytest.mark.parametrize("target", TARGETS)
def test_each_counter_and_operation_is_that_of_the_tables(finished, held, target):
    detail, tables = held[f"detail 0 {target}"], finished.outputs / "tables" / target
    kernels = detail["kernels"]
    keys = zip(kernels["report"], kernels["kernel"], strict=True)
    place, seen = {key: at for at, key in enumerate(keys)}, 0
    for row in read(tables, "metrics"):
        at = place.get((row["report"], row["kernel"]))
        if at is None:
            continue  # of the deep profile, whose kernels are in the source block
        seen += 1
        assert kernels["metrics"][row["key"]][at] == row["value"]
        counters = detail["counters"]
        assert counters["names"][counters["of"][row["key"]][at]] == row["metric"]
    assert seen > 0
    rows = [op for op in read(tables, "timeline") if None not in (op["point"], op["launch"])]
    shown = detail["timeline"]
    assert [detail["id"][at] for at in shown["point"]] == [op["point"] for op in rows]
    assert shown["duration_ns"] == [op["duration_ns"] for op in rows]
    assert all(start >= 0 for start in shown["start_ns"])


def test_the_sample_holds_the_blocks_that_are_rendered(held):
    """Its words may be older: ``snakemake -j1 sample`` makes it again."""
    assert set(blocks((ROOT / "docs/sample/report.html").read_text())) == set(held)


def test_samples_of_the_source_are_those_of_the_table(finished, held):
    for target in TARGETS:
        lines = some(read(finished.outputs / "tables" / target, "lines"))
        shown = held[f"source 0 {target}"]
        samples = sum(n for k in shown for by in k["samples"] for _, n, _ in by)
        assert samples == sum(row["samples"] for row in lines)
        # A recording's listing has the text of each sampled instruction.
        assert None not in [sass for kernel in shown for sass in kernel["sass"]]


def test_the_shipped_recording_fits_a_mail(text):
    assert len(text.encode()) < LARGEST


def test_no_script_but_the_page_s_own_may_run_and_nothing_is_requested(text):
    (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy.replace("style-src 'unsafe-inline'", "")
    assert "*" not in policy
    assert len(re.findall("'sha256-", policy)) == 3
    assert not re.findall(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(?!data:,)", text)


def test_every_module_is_in_a_page_and_no_import_is_left(text):
    folder = ROOT / "templates" / "html"
    scripts = {entry: html.script(folder, entry) for entry in ("app", "view", "static")}
    assert scripts["app"] in text
    for module in folder.glob("*.js"):
        begins = f"const {module.stem}_js = (() => {{"
        counts = {script.count(begins) for script in scripts.values()}
        assert counts <= {0, 1} and 1 in counts, module.name
    assert all("import {" not in script for script in scripts.values())
    assert "view_source_js" not in scripts["app"] and "point_js" not in scripts["view"]


def test_a_library_that_is_not_the_declared_one_is_refused(tmp_path):
    folder = tmp_path / "html"
    shutil.copytree(ROOT / "templates" / "html", folder)
    (folder / "vendor" / "d3.min.js").write_text("alert(1)")
    with pytest.raises(ValueError, match=r"d3\.min\.js is not d3 7\.9\.2"):
        html.vendored(folder)


def test_markup_in_a_page_s_text_stays_text(tmp_path):
    (tmp_path / "final-report.md").write_text(
        "# A <img src=x onerror=alert(1)>\n\n[x](javascript:alert(1)) [claims](claims.md) ![p](../figures/p.svg)\n"
    )
    (page,) = html.prose_pages(tmp_path, [])
    assert "<img" not in page["html"] and "&lt;img" in page["html"]
    assert 'href="javascript:' not in page["html"]
    assert '<a href="#/claims">claims</a>' in page["html"]


def test_an_impossible_number_stops_the_target_and_is_named(finished, tmp_path):
    side = broken(finished.outputs, tmp_path)
    text = html.report([side], [])
    (shown,) = blocks(text)["main"]["sides"]
    assert "merge_state" in shown["stopped"]
    assert "merge_state" not in {target["name"] for target in shown["targets"]}


def test_without_strict_it_is_struck_through(finished, tmp_path):
    side = broken(finished.outputs, tmp_path, strict=False)
    (shown,) = blocks(html.report([side], []))["main"]["sides"]
    assert any("gbs" in names for names in shown["points"]["struck"])
    assert shown["struck"]


def broken(outputs: Path, folder: Path, strict: bool = True) -> Findings:
    """A copy of two targets' results in which one bandwidth is ten times what it was."""
    (folder / "results").mkdir()
    for name in ("rope", "merge_state"):
        found = json.loads((outputs / "results" / f"{name}_results.json").read_text())
        if name == "merge_state":
            found["points"][-1]["measurement"]["gbs"] *= 10
        (folder / "results" / f"{name}_results.json").write_text(json.dumps(found))
    return Findings(folder / "results", DEFAULT, strict)


def test_a_folder_without_results_is_one_line(tmp_path):
    with pytest.raises(BadInput, match="no results"):
        html.report([Findings(tmp_path / "results", tmp_path)], [])


def test_a_name_in_the_head_of_a_page_is_text() -> None:
    name = "</title><script>a&b</script>"
    text = html.assembled("view", name, name, name, [])
    assert name not in text and text.count("&lt;/title&gt;&lt;script&gt;a&amp;b") == 3
