"""Any two .ncu-rep files: matched by range, or by name and order; statistics where samples are."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from command import ncuflow
from compare_data import kernel
from conftest import ROOT

from ncuflow.cli import dispatch
from ncuflow.compare import reports as compare_reports
from ncuflow.compare.records import Comparison, Thresholds
from ncuflow.compare.reports import compare, match, table
from ncuflow.io import BadInput
from ncuflow.parsers import ncu

REPORTS = sorted((ROOT / "recordings/h200/0.7.2/default").glob("merge_state/b*/sweep.ncu-rep.xz"))


def launch(name: str, nvtx: str | None = None, grid: str = "1,1,1", ns: float = 1e4) -> dict:
    return kernel(name, grid=grid) | {"nvtx": nvtx, "duration_ns": ns}


def named(pairs: list) -> list[tuple[int, int, str | None]]:
    return [(len(a), len(b), a[0]["nvtx"]) for a, b in pairs]


def test_launches_of_a_range_match_whatever_their_order() -> None:
    base = [launch("k", "p"), launch("k", "q")]
    pairs, removed, added = match(base, base[::-1])
    assert [(a[0]["nvtx"], b[0]["nvtx"]) for a, b in pairs] == [("p", "p"), ("q", "q")]
    assert removed == added == []


def test_without_a_common_range_name_and_order_match() -> None:
    base = [launch("k", "p", "1,1,1"), launch("k", "p", "2,1,1"), launch("other", "p")]
    head = [launch("k", None, "1,1,1"), launch("k", None, "4,1,1")]
    pairs, removed, added = match(base, head)
    assert [a[0]["grid"] + b[0]["grid"] for a, b in pairs] == ["1,1,11,1,1", "2,1,14,1,1"]
    assert [group[0]["name"] for group in removed] == ["other"] and added == []


def test_launches_on_one_grid_are_samples_of_one_kernel() -> None:
    pairs, _, _ = match([launch("k")] * 3, [launch("k", grid="2,1,1")] * 4)
    assert named(pairs) == [(3, 4, None)]


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[dict]]:
    """Kernels of reports that are not files."""
    found: dict[str, list[dict]] = {}
    monkeypatch.setattr(compare_reports, "_kernels", lambda path: (found[path.name], 0))
    monkeypatch.setattr(compare_reports, "sniff_packed", lambda path: ("ncu-rep", ""))
    return found


def of(reports: dict, base: list[dict], head: list[dict]) -> Comparison:
    for name, rows in (("a", base), ("b", head)):
        reports[name] = [{"device": "GPU", "lines": []} | row for row in rows]
    return compare(Path("a"), Path("b"), Thresholds())


def test_the_name_of_a_file_is_printed_as_text(reports: dict) -> None:
    for name in ("a\x1b[31m.csv", "b\u202e\n.csv"):
        reports[name] = [launch("k") | {"device": "GPU", "lines": []}]
    found = compare(*map(Path, reports), Thresholds())
    assert not {"\x1b", "\u202e"} & set(table(found)) and "a?[31m.csv" in table(found)


def test_one_sample_a_side_has_no_verdict_and_says_so(reports: dict) -> None:
    document = of(reports, [launch("k", ns=1e4)], [launch("k", ns=2e4)])
    (found,) = document.points
    assert (found.verdict, found.interval, found.p) == ("not tested", None, None)
    assert found.relative == pytest.approx(1.0) and found.causes
    notes = document.statistics.notes
    assert notes == ["1 of 1 kernel not tested: one sample on a side."]
    assert "[not tested: one sample]" in table(document)


def test_samples_on_both_sides_have_a_verdict(reports: dict) -> None:
    base = [launch("k", ns=1e4 + n) for n in range(10)]
    head = [launch("k", ns=2e4 + n) for n in range(10)]
    (found,) = of(reports, base, head).points
    assert found.verdict == "slower" and found.interval and found.interval[0] > 0.9
    (same,) = of(reports, base, base).points
    assert same.verdict == "same" and same.causes == []


def test_numbers_of_torchs_calls_in_a_range_tell_no_launches_apart(reports: dict) -> None:
    def within(number: int) -> dict:
        return launch("k") | {"nvtx": f"step/aten::mm, seq = {number}, op_id = {number}"}

    (point,) = of(reports, [within(1)], [within(2)]).points
    assert point.id.startswith("step/aten::mm: k")


def test_kernels_of_one_report_are_listed(reports: dict) -> None:
    text = table(of(reports, [launch("k"), launch("gone")], [launch("k"), launch("new")]))
    assert "only in base: gone" in text and "only in head: new" in text


def test_reports_without_a_common_kernel_are_not_compared(
    reports: dict, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said = "b: has no kernel in common with a: nothing can be compared"
    with pytest.raises(BadInput) as told:
        of(reports, [launch("gone")] * 100, [launch("new")])
    assert (str(told.value), told.value.code) == (said, 2)
    monkeypatch.setattr(compare_reports, "_kernels", lambda path: (reports[path.name], 3))
    with pytest.raises(BadInput, match=r"; 3 and 3 kernels without a duration are left out$"):
        of(reports, [], [launch("new")])
    out = tmp_path / "compare.json"
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        Path(name).touch()
    with pytest.raises(BadInput, match="no kernel in common"):
        dispatch(["compare", "a", "b", "--format", "json", "--out", str(out)])
    assert not out.exists()


def test_a_comparison_is_not_written_over_a_report(tmp_path: Path) -> None:
    a, b = tmp_path / "a", tmp_path / "b"
    for path in (a, b):
        path.write_text("a report")
        with pytest.raises(BadInput, match=f"{path}: is one of the files to read$"):
            dispatch(["compare", str(a), str(b), "--out", str(path)])
        assert path.read_text() == "a report"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return ncuflow("compare", *arguments)


def test_a_report_against_itself_changed_nothing() -> None:
    done = run(REPORTS[0], REPORTS[0])
    assert done.returncode == 0
    assert done.stdout.endswith("nothing changed by more than 3 %\n")
    as_json = json.loads(run(REPORTS[0], REPORTS[0], "--format", "json").stdout)
    assert as_json["points"] and all(p["relative"] == 0 for p in as_json["points"])
    assert as_json["differences"] == []


def test_reports_of_two_gpus_name_the_gpu(reports: dict) -> None:
    here, there = ([launch("k") | {"device": f"NVIDIA {name}"}] for name in ("T4", "A40"))
    assert "differs: GPU: NVIDIA T4 → NVIDIA A40" in table(of(reports, here, there))


def test_a_kernel_that_was_not_timed_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(path: Path) -> ncu.Report:
        found = ncu.read(path)
        found.kernels[0]["duration_ns"] = None
        return found

    monkeypatch.setattr(compare_reports.profiled, "read", failing)
    text = table(compare(REPORTS[0], REPORTS[0], Thresholds()))
    assert "1 and 1 kernels without a duration are left out" in text


@pytest.mark.parametrize("content", [b"", b"a,b,c\n1,2,3\n", b"NVR\0cut short"])
def test_what_is_no_report_is_one_line_and_status_2(content: bytes, tmp_path: Path) -> None:
    bad = tmp_path / "bad.ncu-rep"
    bad.write_bytes(content)
    done = run(REPORTS[0], bad, "--out", tmp_path / "out.json")
    assert done.returncode == 2 and done.stderr.startswith(f"error: {bad}: ")
    assert done.stderr.count("\n") == 1 and list(tmp_path.iterdir()) == [bad]
