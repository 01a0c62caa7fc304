"""ncuflow in a notebook: the frames of a report, and the functions that the command line has."""

import doctest
import inspect
import json
import os
import pickle
import re
import shutil
import subprocess
import sys

import pandas as pd
import pytest
from conftest import ROOT

import ncuflow
from ncuflow import api
from ncuflow.cli import dispatch
from ncuflow.compare import verdict
from ncuflow.evidence import location
from ncuflow.io import BadInput
from ncuflow.parsers import ncu, nsys
from ncuflow.parsers.registry import METRICS

pytestmark = pytest.mark.usefixtures("read_once")

DEEP = ROOT / "recordings/h200/0.7.2/default/decode/deep/deep.ncu-rep.xz"
(TRACE,) = (ROOT / "recordings/h200/0.7.2/default/decode").glob("b*/trace.sqlite.xz")
ENGINE = ROOT / "tests/data/engine/trace.json.xz"
OLD, NEW = (ROOT / f"recordings/{name}" for name in ("h200/0.5.3/versions", "h200/0.6.1/versions"))


@pytest.fixture(scope="module")
def report() -> api.Frames:
    return ncuflow.read(DEEP)


def test_the_examples_of_the_docstring_are_so(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testmod(api)
    assert (failed, tried) == (0, 5)


def test_the_examples_of_the_page_are_so(monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    failed, tried = doctest.testfile(str(ROOT / "docs/api.md"), module_relative=False)
    assert failed == 0 and tried >= 8


def test_a_frame_has_a_row_per_launch_and_a_column_per_metric_with_its_unit(report) -> None:
    frame, read = report.kernels, ncu.read(DEEP)
    assert list(frame.index) == [kernel["kernel"] for kernel in read.kernels]
    assert set(METRICS) <= set(frame.columns)
    assert {key: frame.attrs["units"][key] for key in METRICS} == {
        k: m.unit for k, m in METRICS.items()
    }
    assert (frame.attrs["tier"], frame.attrs["file"]) == ("C", str(DEEP))
    for metric in read.metrics:
        assert frame.loc[metric["kernel"], metric["key"]] == metric["value"]


def test_what_is_not_known_is_na_and_not_zero(tmp_path) -> None:
    path = tmp_path / "x.csv"
    text = (
        '"ID","Kernel Name","gpu__time_duration.sum"\n"","","us"\n"0","add","5.5"\n"1","mul",""\n'
    )
    path.write_text(text, encoding="utf-8")
    frame = ncuflow.read(path).kernels
    assert frame.loc[0, "duration_ns"] == 5500
    assert frame.loc[1, "duration_ns"] is pd.NA and frame.loc[0, "dram_throughput_pct"] is pd.NA
    assert ncuflow.read(path).lines.empty and ncuflow.read(path).timeline.empty


def test_the_other_tables_are_those_of_the_report(report) -> None:
    read = ncu.read(DEEP)
    assert len(report.stalls) == len(read.stalls) and len(report.rules) == len(read.rules)
    assert report.lines["samples"].sum() == sum(line["samples"] for line in read.lines) > 0
    assert report.stalls.attrs["units"]["ratio"] == "cycle"
    assert report.launches[1]["metrics"]["duration_ns"] == read.kernels[1]["duration_ns"]


def test_a_trace_has_its_timeline() -> None:
    frames, trace = ncuflow.read(TRACE), nsys.read(TRACE)
    kernels = [row for row in trace.timeline if row["kind"] == "kernel"]
    assert len(frames.timeline) == len(trace.timeline) and len(frames.kernels) == len(kernels)
    assert list(frames.kernels["duration_ns"]) == [row["duration_ns"] for row in kernels]
    assert frames.stalls.empty and frames.explain().lineage.kind == "nsys"


def test_the_functions_are_those_of_the_commands(report, capsys) -> None:
    assert dispatch(["explain", str(DEEP), "--kernel", "2", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert ncuflow.explain(DEEP, 2).model_dump() == printed
    assert report.explain(2) == ncuflow.explain(DEEP, 2)
    reports = [next((side / "prefill").glob("b*/sweep.ncu-rep.xz")) for side in (OLD, NEW)]
    assert dispatch(["compare", *map(str, reports), "--format", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = ncuflow.compare(*reports)
    assert [point.id for point in found.points] == [point["id"] for point in printed["points"]]


def test_recordings_and_traces_are_compared_as_they_are() -> None:
    found = ncuflow.compare(OLD, NEW)
    assert (found.base.name, found.head.name) == (location.name(OLD), location.name(NEW))
    assert {point.target for point in found.points} == {"prefill"} and found.statistics.tests
    traces = [next((side / "prefill").glob("b*/trace.sqlite.xz")) for side in (OLD, NEW)]
    assert {point.metric for point in ncuflow.compare(*traces).points} == {"each_us"}
    with pytest.raises(BadInput, match=r"of nsys, and .* is not: their times are not compared"):
        ncuflow.compare(traces[0], next((NEW / "prefill").glob("b*/sweep.ncu-rep.xz")))


def test_a_package_that_is_called_is_still_a_package() -> None:
    assert ncuflow.compare.verdict is verdict
    assert {"read", "compare", "explain"} <= set(dir(ncuflow))
    with pytest.raises(AttributeError, match="no attribute 'shwo'"):
        _ = ncuflow.shwo  # type: ignore[attr-defined]


def test_to_import_ncuflow_imports_nothing_of_it() -> None:
    code = "import sys, ncuflow; print([m for m in sys.modules if m.startswith(('ncuflow.', 'pandas'))])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n"


def test_a_file_of_any_name_is_read(tmp_path) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/\xe9.ncu-rep.xz")
    shutil.copy(DEEP, path)
    found = ncuflow.read(path)
    assert len(found.kernels) == len(found.launches) > 0 and len(found.stalls) > 0


def test_what_the_command_line_has_a_notebook_has_with_its_signature(tmp_path) -> None:
    for name in ("compare", "explain", "step", "view"):
        assert inspect.signature(getattr(ncuflow, name)) == inspect.signature(getattr(api, name))
        assert "Path" in str(inspect.signature(getattr(ncuflow, name)))
    page = ncuflow.view(DEEP)
    assert page.save(tmp_path / "x.html").read_text(encoding="utf-8") == page.html
    assert "<script" not in page._repr_html_() and "srcdoc" in page._repr_html_()


def test_a_notebook_shows_the_text_of_the_command(report, capsys) -> None:
    class Printer(list):
        text = list.append

    reports = [next((side / "prefill").glob("b*/sweep.ncu-rep.xz")) for side in (OLD, NEW)]
    for words, found in (
        (["show", DEEP], report),
        (["explain", DEEP], ncuflow.explain(DEEP)),
        (["compare", *reports], ncuflow.compare(*reports)),
        (["step", ENGINE], ncuflow.step(ENGINE)),
    ):
        assert dispatch([str(word) for word in words]) == 0
        printed = capsys.readouterr().out
        found._repr_pretty_(shown := Printer(), False)
        assert shown == [printed] == [str(found)]
        html = found._repr_html_()
        assert printed.split()[0] in html and not re.search(
            r"<(?!/?(pre|p|br|table|tr|t[hd])>)", html
        )


def test_all_metrics_of_a_report_are_there_by_name(report, tmp_path) -> None:
    found = report.metrics(0)
    assert (
        len(found) > 1000 and found["gpu__time_duration.sum"] == report.launches[0]["duration_ns"]
    )
    assert found["device__attribute_display_name"] == "NVIDIA H200"
    assert report.metrics("MergeStates") == report.metrics(1) != found
    for kernel in (9, "nothing"):
        with pytest.raises(ncuflow.BadInput, match="has no kernel"):
            report.metrics(kernel)
    with pytest.raises(ncuflow.BadInput, match="only a report of ncu"):
        ncuflow.read(TRACE).metrics()


def test_bad_input_is_a_value_error_and_a_missing_file_not_found(tmp_path) -> None:
    with pytest.raises(FileNotFoundError, match="no such file") as missing:
        ncuflow.read(tmp_path / "x")
    error = missing.value
    assert isinstance(error, ncuflow.BadInput) and error.filename == str(tmp_path / "x")
    assert str(pickle.loads(pickle.dumps(error))) == str(error) == f"{tmp_path / 'x'}: no such file"
    (tmp_path / "x").write_text("no report", encoding="utf-8")
    with pytest.raises(ValueError, match="no kernel in it") as wrong:
        ncuflow.read(tmp_path / "x").kernels  # noqa: B018
    assert not isinstance(wrong.value, OSError)
