"""Results in other tools' formats, as these ask for them, and what single points must hold."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import junitparser
import pytest
from results_data import completed, entry

from ncuflow.cli import dispatch
from ncuflow.export import check
from ncuflow.export import formats as export
from ncuflow.io import BadInput, CommandError
from ncuflow.model import Results


def point(name: str, status: str = "ok", share: float | None = 0.5, **more: Any) -> dict[str, Any]:
    row: dict[str, Any] = {"limiter": "dram", "verdict": "partly", "busiest_unit": "dram"}
    row |= {"busiest_pct": 72.0, "second_unit": "l2"}
    if status == "ok":
        times = {"time_cold_us": 20.0, "time_cold_q25_us": 19.0, "time_cold_q75_us": 21.0}
        row |= times | {"gbs": 1600.0, "gbs_fraction_datasheet": share}
        row["tflops_fraction_datasheet"] = 0.01 if share else None
    reason = None if status == "ok" else "off by 1"
    own = {"params": {}, "tier": "C", "reason": reason}
    return entry(name, {}, status=status, **row | more) | own


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """Three points: right and near the roof, right without a roof, and wrong."""
    folder = tmp_path / "results"
    folder.mkdir()
    points = [point("rope/a", share=0.9), point("rope/b", share=None), point("rope/c", "wrong")]
    found = {"target": "rope", "provenance": {"tier": "C"}, "points": points, "deep": []}
    (folder / "rope_results.json").write_text(json.dumps(completed(found, Results)))
    return folder


def exported(form: str, results: Path, *more: str) -> str:
    out = results.parent / "out"
    dispatch(["export", form, "--results", str(results), "--out", str(out), *more])
    return out.read_text("utf-8")


def gate(folder: Path, text: str) -> Path:
    path = folder / "gate.yaml"
    path.write_text(text)
    return path


def test_bencher_metrics(results: Path) -> None:
    found = json.loads(exported("bencher", results))
    latency = {"value": 20000.0, "lower_value": 19000.0, "upper_value": 21000.0}  # in ns
    entry = {"latency": latency, "gbs": {"value": 1600.0}}
    assert found == {"rope/a": entry, "rope/b": entry}  # of a wrong result there is no time


def test_benchmark_action(results: Path) -> None:
    found = json.loads(exported("benchmark-action", results))
    entry = {"unit": "us", "value": 20.0, "range": "19 to 21"}
    entry["extra"] = "NVIDIA H200, DRAM 72 %, otherwise latency-bound"
    assert found == [{"name": name, **entry} for name in ("rope/a", "rope/b")]


def test_a_case_of_junit_per_gated_point(results: Path) -> None:
    asked = gate(results.parent, "- points: rope/*\n  hold: of_roof >= 0.8\n")
    text = exported("junit", results, "--require", str(asked))
    suite = junitparser.JUnitXml.fromstring(text.encode())
    (found,) = list(suite)
    assert (suite.tests, suite.failures, found.tests) == (3, 2, 3)
    assert {case.name.split(":")[0]: [r.message for r in case.result] for case in found} == {
        "rope/a": [], "rope/b": ["cannot be computed"], "rope/c": ["wrong: off by 1"],
    }  # fmt: skip


def test_junit_says_whatever_a_reason_holds() -> None:
    told = {"hold": "a < b & c", "shown": "\x00\x1b<>&", "why": "\udc80 bad ]]>"}
    case = check.CheckedPoint(point="x/y", **told)
    root = ET.fromstring(export.junit({}, [case]))
    assert root.find(".//failure") is not None


def test_a_summary_shows_what_fails_first_and_fits(results, monkeypatch):
    asked = gate(results.parent, "- points: rope/[ab]\n  hold: of_roof >= 0.8\n")
    text = exported("summary", results, "--require", str(asked))
    assert "1 of 2 requirements do not hold." in text
    assert text.index("`rope/b`") < text.index("`rope/a`")
    monkeypatch.setattr(export, "MOST_BYTES", 400)
    short = exported("summary", results, "--require", str(asked))
    assert len(short.encode()) <= 400 and "lines more do not fit" in short


def test_the_timeline_as_chrome_trace(finished: Any, tmp_path: Path) -> None:
    tables = next(path.parent for path in finished.outputs.glob("tables/rope/timeline.parquet"))
    out = tmp_path / "trace.json"
    dispatch(["export", "trace", "--tables", str(tables), "--out", str(out)])
    found = json.loads(out.read_text())
    events = {phase: [e for e in found["traceEvents"] if e["ph"] == phase] for phase in "XM"}
    assert sum(map(len, events.values())) == len(found["traceEvents"]) and all(events.values())
    assert all(e["dur"] >= 0 and e["ts"] >= 0 and e["name"] for e in events["X"])
    assert all(e["args"]["name"] and {"name", "pid", "tid"} <= e.keys() for e in events["M"])
    rows = export.read_table(tables / "timeline.parquet")
    kernels = [event for event in events["X"] if event["cat"] == "kernel"]
    assert len(kernels) == sum(row["kind"] == "kernel" for row in rows) > 0
    first = next(row for row in rows if row["kind"] == "kernel")
    assert kernels[0]["ts"] == first["start_ns"] / 1e3
    assert kernels[0]["dur"] == first["duration_ns"] / 1e3


@pytest.mark.parametrize("read", ["results", "--require", "--comparison"])
def test_an_export_is_not_written_over_what_it_is_made_of(read: str, results: Path) -> None:
    (path, *_) = results.glob("*_results.json")
    if read != "results":
        path = gate(results.parent, "[]")
    before = path.read_bytes()
    words = ["--results", str(results), *([read, str(path)] if read != "results" else [])]
    with pytest.raises(BadInput, match="is one of the files to read"):
        dispatch(["export", "junit", *words, "--out", str(path)])
    assert path.read_bytes() == before


# --- the gate on single points ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("- {points: rope/a, hold: of_roof >= 0.8}", 0, "check: 1 hold"),
        (
            "- {points: rope/a, hold: of_roof >= 0.95}",
            1,
            "rope/a: of_roof >= 0.95: does not hold (of_roof 0.9)",
        ),
        ("- {points: rope/b, hold: of_roof >= 0.8}", 1, "cannot be computed (of_roof unknown)"),
        ("- {points: rope/c, hold: of_roof >= 0.8}", 1, "wrong: off by 1"),
        ("- {points: rope/nope, hold: of_roof >= 0.8}", 1, "no point of these results"),
        ("- {points: [rope/a, rope/b], hold: time_cold_us <= 20}", 0, "check: 2 hold"),
    ],
)
def test_what_cannot_be_computed_does_not_pass(results, capsys, text, status, said):
    asked = gate(results.parent, text)
    assert dispatch(["check", str(asked), "--results", str(results)]) == status
    assert said in capsys.readouterr().out


def test_an_earlier_name_of_the_check_names_the_new_one(results, capsys):
    asked = gate(results.parent, "- {points: rope/b, hold: of_roof >= 0.8}")
    words = [str(asked), "--results", str(results)]
    assert dispatch(["check", *words]) == 1
    out, err = capsys.readouterr()
    for name in ("require", "gate"):
        assert dispatch([name, *words]) == 1
        assert capsys.readouterr() == (out, f"{err}note: {name} is now `ncuflow check`\n")


def test_a_share_above_one_stops_the_gate(results: Path) -> None:
    found = json.loads((results / "rope_results.json").read_text())
    found["points"] = [point("rope/a", share=0.9), point("rope/b", share=1.01)]
    (results / "rope_results.json").write_text(json.dumps(completed(found, Results)))
    asked = gate(results.parent, "- {points: rope/*, hold: of_roof >= 0.8}")
    with pytest.raises(CommandError, match=r"rope/b: of_roof 1\.010 is above 1"):
        dispatch(["check", str(asked), "--results", str(results)])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[]", "at least 1 item"),
        ("- {points: [], hold: of_roof > 1}", "points"),
        ("- {points: x, hold: of_rof > 1}", "no column of_rof"),
        ("- {points: x, hold: 1 > 0}", "asks for nothing of a point"),
        ("- {points: x, hold: 'of_roof >'}", "of_roof >"),
        ("- {points: x, hold: of_roof > 1, wen: 2}", "wen"),
        ("- {points: 3, hold: of_roof > 1}", "points"),
        ("{", "not YAML"),
    ],
)
def test_a_file_that_asks_for_nothing_that_is_there_is_named(tmp_path, text, named):
    with pytest.raises(BadInput) as error:
        check.load(gate(tmp_path, text))
    assert named in str(error.value) and "\n" not in str(error.value)
