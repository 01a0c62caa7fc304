"""Files, schemas, timing records, and the tables of a target made of whole batches."""

from __future__ import annotations

import contextlib
import csv
import json
import lzma
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from command import ncuflow
from conftest import ROOT, some
from hypothesis import given
from hypothesis import strategies as st

from ncuflow import io, parquet
from ncuflow.io import BadInput
from ncuflow.model import TABLES
from ncuflow.parquet import build, check, schema, write_table
from ncuflow.parsers import show, tables
from ncuflow.record import KEPT

REPORTS = sorted(ROOT.glob("recordings/*/**/sweep.ncu-rep.xz"), key=lambda p: p.stat().st_size)


def whole(batch: Path) -> bool:
    """Whether both profilers saw every point of a recorded batch, which has several."""
    records = [batch / f"{name}.json" for name in ("sweep", "trace")]
    seen = all(p.exists() and json.loads(p.read_text())["lost"] == [] for p in records)
    return seen and len(json.loads((batch / "points.json").read_text())) > 1


T = {"unit": "us", "median": 3.0, "q25": 2.75, "q75": 3.25, "n": 2, "samples": [2.5, 3.5]}
SERIES = {"unit": "us", "median": 2.0, "q25": 1.5, "q75": 2.5, "n": 2, "samples": [1.0, 3.0]}
SIDE = {"cold": SERIES, "hot": SERIES, "host": SERIES, "plan": None}
PAIR = {"point": "a | b", "base": "a", "other": "b", "status": "ok", "sides": [SIDE, SIDE]}
OTHER = PAIR | {"point": "a | c", "other": "c"}
TIMED = {"point": "a", "target": "a", "status": "ok", "timing": {"cold": SERIES}}
RECORD = {
    "point": "decode/B1", "target": "decode", "params": {"batch": 1}, "status": "ok",
    "reason": None,
    "check": {"rel_l2": 1e-4, "max_abs": 1e-3, "tolerance": 1e-2},
    "work": {"flops": 100, "bytes": 200, "convention": "FlashInfer"},
    "timing": {"cold": T, "hot": T, "host": T, "plan": None},
    "clocks": {"before": {"sm_mhz": 1980, "mem_mhz": 3201, "throttle": []},
               "after": {"sm_mhz": 1700, "mem_mhz": 3201, "throttle": ["power"]}, "retakes": 1},
    "info": {"split_kv": False}, "peak_memory_bytes": 4096,
}  # fmt: skip


# --- timing.jsonl -----------------------------------------------------------------------------


def test_a_record_becomes_a_row():
    row = tables.flatten(RECORD)
    assert (row["cold_us"], row["cold_q25_us"], row["cold_n"]) == (3.0, 2.75, 2)
    assert row["cold_samples_us"] == [2.5, 3.5]
    assert row["host_samples_us"] == [2.5, 3.5]
    assert row.get("plan_us") is None
    assert (row["throttled"], row["throttle_reasons"]) == (True, "power")
    assert (row["sm_mhz_before"], row["sm_mhz_after"]) == (1980.0, 1700.0)
    assert json.loads(row["info"]) == {"split_kv": False}
    build("timing", [{"report": "r", "batch": "b", "run": 0, **row}])


@pytest.mark.parametrize(("after", "throttled"), [([], False), (None, None), (["power"], True)])
def test_what_the_driver_does_not_tell_is_not_known_to_be_calm(after, throttled):
    before = {"sm_mhz": 1980, "mem_mhz": None, "throttle": None if after else []}
    clocks = {"before": before, "after": {"sm_mhz": 1980, "throttle": after}, "retakes": 0}
    row = tables.flatten(RECORD | {"clocks": clocks})
    assert (row["throttled"], row["mem_mhz_before"]) == (throttled, None)


@pytest.mark.parametrize("status", ["skipped", "error", "lost", "wrong"])
def test_points_that_have_no_times_have_nulls(status):
    row = tables.flatten({"point": "p", "target": "t", "status": status, "reason": "why"})
    (stored,) = build("timing", [{"report": "r", "batch": "b", "run": 0, **row}]).to_pylist()
    assert stored["reason"] == "why"
    assert stored["cold_us"] is stored["flops"] is stored["throttled"] is None


def changed(**values):
    return json.dumps({**RECORD, **values})


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2"),
        ("[" * 100_000, "nested too deep"),
        ("[]", "valid dictionary"),
        ('{"point": "p"}', "target: Field required"),
        (changed(status="fine"), "status: Input should be 'ok', 'wrong'"),
        (changed(point=None), "point: "),
        (changed(reason={"a": 1}), "reason: "),
        (changed(timing={"cold": {**T, "unit": "ms"}}), "timing.cold.unit: Input should be 'us'"),
        (changed(timing={"cold": {**T, "median": "3"}}), "timing.cold.median: "),
        (changed(timing={"cold": {**T, "median": math.nan}}), "NaN is not JSON"),
        (changed(timing={"cold": {**T, "median": 1e30}}), "timing.cold.median: "),
        (changed(timing={"cold": {**T, "median": 3.1}}), "not those of the samples"),
        (changed(timing={"cold": {**T, "q25": 3.5}}), "not in order"),
        (changed(timing={"hot": {**T, "n": 3}}), "n is 3, but there are 2 samples"),
        (changed(timing={"hot": {**T, "n": 1}}), "n is 1, but there are 2 samples"),
        (changed(timing={"hot": {**T, "samples": [-2.5, 8.5]}}), "timing.hot.samples[0]: "),
        (changed(timing={"hot": {**T, "median": None}}), "timing.hot.median: "),
        (changed(work={"flops": 1.5}), "work.flops: "),
        (changed(work={"flops": 1 << 63}), "work.flops: "),
        (changed(peak_memory_bytes=-1), "peak_memory_bytes: "),
        (changed(timing=[1]), "timing: "),
    ],
)
def test_a_malformed_line_is_named_by_its_number(line, words, tmp_path):
    path = tmp_path / "timing.jsonl"
    path.write_text(json.dumps(RECORD) + "\n" + line + "\n")
    with pytest.raises(BadInput) as error:
        tables.read(path)
    assert "line 2: " in error.value.what and words in error.value.what


def test_the_last_record_of_a_point_stands_and_samples_are_kept_up_to_a_number(tmp_path):
    path = tmp_path / "timing.jsonl"
    path.write_text(changed(status="error", reason="x", timing=None) + "\n\n" + changed() + "\n")
    (row,) = tables.read(path)
    assert row["status"] == "ok"
    kept = T | {"n": 400, "samples": [3.0] * KEPT}
    assert tables.flatten(RECORD | {"timing": {"hot": kept}})["hot_n"] == 400


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        ({"decode/B1", "decode/B2"}, "1 planned points have no record, decode/B2 for one"),
        ({"decode/B2"}, "1 planned points have no record"),
        (set(), "decode/B1 is not in the plan"),
    ],
)
def test_the_plan_says_which_points_a_file_must_hold(plan, words, tmp_path):
    path = tmp_path / "timing.jsonl"
    path.write_text(changed() + "\n")
    assert tables.read(path, {"decode/B1"})
    with pytest.raises(BadInput, match=words):
        tables.read(path, plan)


@given(st.text(max_size=200))
def test_no_line_makes_a_traceback(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("t") / "timing.jsonl"
    path.write_bytes(text.encode("utf-8", "replace"))
    with contextlib.suppress(BadInput):
        assert tables.read(path) == []


# --- schemas ----------------------------------------------------------------------------------

METRIC = {
    "report": "r", "point": None, "kernel": 0, "key": "waves", "metric": "m", "value": 1.0,
    "unit": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"value": math.nan}, "not a number in column value"),
        ({"value": math.inf}, "not a number in column value"),
        ({"key": None}, "null in column key"),
        ({"value": "1"}, "table metrics"),
        ({"kernel": 1 << 70}, "table metrics"),
    ],
)
def test_what_does_not_fit_is_refused(change, words):
    build("metrics", [METRIC])
    with pytest.raises(ValueError, match=words):
        build("metrics", [METRIC | change])


def test_another_schema_is_refused_and_columns_say_what_they_are():
    with pytest.raises(ValueError, match="columns"):
        check("stalls", build("metrics", [METRIC]))
    for name in some(TABLES):
        assert build(name, []).column_names == schema(name).names
        for field in some(schema(name)):
            assert field.metadata[b"meaning"], (name, field.name)
            if field.name.endswith(("_ns", "_us", "_bytes", "_pct")):
                assert field.metadata[b"unit"], (name, field.name)


# --- files ------------------------------------------------------------------------------------


def test_writers_leave_nothing_half_written(tmp_path):
    path = tmp_path / "x.json"
    io.write_json(path, {"a": 1})
    with pytest.raises(ValueError):
        io.write_json(path, {"a": math.nan})
    with pytest.raises(RuntimeError), io.replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert json.loads(path.read_text()) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_writers_replace_files_alone(tmp_path, monkeypatch):
    """A pipe stands for every device: with rights to, a file moved over /dev/null is there for everybody."""
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("link").symlink_to("pipe")
    for name in ("pipe", "link"):
        with pytest.raises(BadInput, match=f"^{name}: a device or a pipe, not a file to write$"):
            io.write_text(name, "text")
    for name in ("", ".", "..", str(tmp_path)):
        with pytest.raises(IsADirectoryError):
            io.write_text(name, "text")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "pipe"]
    assert Path("pipe").is_fifo() and Path("link").is_symlink()


NUMBER = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBER | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(VALUE, st.integers(0, 4))
def test_json_with_lines_below_a_level_holds_the_same_value(value, levels):
    assert json.loads(io.dump_json(value, levels)) == value


def test_json_below_the_last_level_is_a_line_each():
    value = {"points": [{"id": "a", "work": {"flops": 1}}, {"id": "b", "work": {}}], "none": []}
    assert io.dump_json(value, 2) == (
        '{\n "points": [\n  {"id": "a", "work": {"flops": 1}},\n  {"id": "b", "work": {}}\n ],\n'
        ' "none": []\n}\n'
    )
    with pytest.raises(ValueError, match="not JSON compliant"):
        io.dump_json({"a": [{"b": math.nan}]}, 2)


def test_tables_are_written_twice(tmp_path):
    table = build("timing", [{"report": "r", "batch": "b", "run": 0, **tables.flatten(RECORD)}])
    parquet.write_table(tmp_path / "timing.parquet", table)
    assert pq.read_table(tmp_path / "timing.parquet").equals(table)
    with (tmp_path / "timing.csv").open() as text:
        (row,) = csv.DictReader(text)
    assert row["cold_samples_us"] == "[2.5, 3.5]"
    assert row["reason"] == ""


def test_a_compressed_file_is_opened_as_a_private_copy(tmp_path):
    path = tmp_path / "a.txt.xz"
    path.write_bytes(lzma.compress(b"hello"))
    with io.opened(path) as plain:
        assert plain.read_bytes() == b"hello"
        assert plain.name == "a.txt"
        assert plain.parent.stat().st_mode & 0o077 == 0
    assert not plain.exists()
    path.write_bytes(lzma.compress(b"hello" * 1000)[:40])
    with pytest.raises(BadInput, match="xz archive"), io.opened(path):
        pass


def test_what_cannot_be_read_is_bad_input(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        io.sniff(tmp_path / "none")
    with pytest.raises(BadInput, match="folder"):
        io.sniff(tmp_path)
    (tmp_path / "points.json").write_text("[" * 100_000)
    with pytest.raises(BadInput, match="nested too deep"):
        io.read_json(tmp_path / "points.json")
    os.mkfifo(tmp_path / "timing.jsonl")
    with pytest.raises(BadInput, match="not a regular file"):
        tables.read(tmp_path / "timing.jsonl")


def test_no_cell_of_a_csv_is_a_formula(tmp_path):
    texts = ["=1+1", "@sum", "+x", "-x", "\t=1", "\r=1", "x=1"]
    table = build("metrics", [METRIC | {"metric": text} for text in texts])
    write_table(tmp_path / "metrics.parquet", table)
    with (tmp_path / "metrics.csv").open(newline="", encoding="utf-8") as text:
        cells = [row["metric"] for row in csv.DictReader(text)]
    assert cells == [*(f"'{text}" for text in texts[:-1]), "x=1"]
    stored = pq.read_table(tmp_path / "metrics.parquet").to_pylist()
    assert [row["metric"] for row in stored] == texts
    assert show.as_csv([{"a": "=1", "b": -1.5}]) == "a,b\n'=1,-1.5\n"
    assert show.as_csv([{"a": "\t=1"}]) == "a\n'\t=1\n"


def test_a_file_that_another_writer_took_for_a_left_one_is_made_once_more(tmp_path, monkeypatch):
    flock, taken = io.fcntl.flock, []

    def late(handle, how):
        if not taken:
            taken.append(next(tmp_path.glob(".x.json.*.tmp")))
            taken[0].unlink()
        flock(handle, how)

    monkeypatch.setattr(io.fcntl, "flock", late)
    with io.replacing(tmp_path / "x.json") as temporary:
        assert taken == [temporary] and temporary.exists()


def test_what_a_killed_writer_left_goes_with_the_next(tmp_path):
    """And what one that lives is at work on stays."""
    path = tmp_path / "x.json"
    code = f"from ncuflow.io import replacing\nwith replacing({str(path)!r}) as f: print(f, flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": ROOT}
    killed, alive = (subprocess.Popen([sys.executable, "-c", code], **pipes) for _ in range(2))
    left, used = (Path(process.stdout.readline().strip()) for process in (killed, alive))
    killed.kill()
    killed.wait()
    assert left.exists()
    io.write_text(path, "{}")
    assert {found.name for found in tmp_path.iterdir()} == {path.name, used.name}
    used.write_text("[]")
    alive.communicate("\n")
    assert path.read_text() == "[]" and list(tmp_path.iterdir()) == [path]
    assert not path.stat().st_mode & 0o111


def test_an_archive_that_would_fill_the_disk_is_refused(tmp_path):
    path = tmp_path / "sweep.ncu-rep.xz"
    path.write_bytes(lzma.compress(bytes(128 << 20), preset=0))
    with pytest.raises(BadInput, match="more than 500 times its size"), io.opened(path):
        pass


@given(st.binary(max_size=200))
def test_every_file_has_a_description(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("f") / "x"
    path.write_bytes(data)
    kind, words = io.sniff(path)
    assert kind and words
    assert (kind == "empty") == (data == b"")


# --- a target's tables ------------------------------------------------------------------------


@pytest.fixture
def evidence(tmp_path):
    """An evidence root with one real batch, its times unpacked, and where it lies."""
    batch = next((report.parent for report in REPORTS if whole(report.parent)), None)
    if batch is None:
        pytest.skip("no recorded sweep here")
    folder = tmp_path / "root" / batch.parent.name / "b0"
    shutil.copytree(batch, folder)
    unpacked(folder, "*.jsonl.xz")
    return tmp_path / "root", folder


def unpacked(folder: Path, glob: str) -> list[Path]:
    """The files in place of their archives."""
    made = []
    for packed in [*folder.glob(glob)]:
        made.append(packed.with_suffix(""))
        made[-1].write_bytes(lzma.decompress(packed.read_bytes()))
        packed.unlink()
    return made


def command(root: Path, folder: Path, out: Path) -> subprocess.CompletedProcess[str]:
    arguments = ["--evidence", root, "--target", folder.parent.name, "--out", out, folder]
    return ncuflow("tables", *arguments)


def test_a_batch_becomes_tables(evidence, tmp_path):
    root, folder = evidence
    done = command(root, folder, tmp_path / "out")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert names == {f"{name}.{kind}" for name in TABLES for kind in ("parquet", "csv")}
    kernels = pq.read_table(tmp_path / "out" / "kernels.parquet").to_pylist()
    planned = {p["id"] for p in json.loads((folder / "points.json").read_text())}
    assert {k["point"] for k in kernels} == planned
    assert {k["report"] for k in kernels} == {f"{folder.parent.name}/b0/sweep.ncu-rep"}
    timed = pq.read_table(tmp_path / "out" / "timing.parquet").to_pylist()
    assert {row["point"] for row in timed} == planned
    assert not any(str(tmp_path) in p.read_text() for p in (tmp_path / "out").glob("*.csv"))


def test_plain_and_compressed_evidence_give_the_same_rows(evidence):
    root, folder = evidence
    packed = tables.collect(root, [folder])
    unpacked(folder, "*.xz")
    assert tables.collect(root, [folder]) == packed


def test_tiers_without_counters_or_trace(evidence):
    root, folder = evidence
    for path in [*folder.glob("sweep.*"), *folder.glob("trace.*")]:
        path.unlink()
    found = tables.collect(root, [folder])
    assert found["timing"] and not found["kernels"] and not found["timeline"]


def test_a_capture_says_with_what_it_was_made_and_what_its_tool_warned_of(evidence):
    root, folder = evidence
    written = json.loads((folder / "trace.json").read_text())
    written |= {"notes": ["cut"], "origin": {"nsys": "2026.1", "python": "3"}}
    (folder / "trace.json").write_text(json.dumps(written))
    (plain,) = unpacked(folder, "trace.sqlite.xz")
    with sqlite3.connect(plain) as database:
        database.execute("CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT)")
        database.execute("INSERT INTO DIAGNOSTIC_EVENT VALUES (2, 'Not all CUDA events')")
    database.close()

    def captured() -> dict[str, Any]:
        (row,) = (r for r in tables.collect(root, [folder])["captures"] if r["tool"] == "trace")
        return row

    assert captured()["warnings"].startswith("cut; nsys: Not all CUDA events")
    assert (captured()["nsys"], captured()["ncu"]) == ("2026.1", None)
    del written["origin"]  # of a format that did not say
    (folder / "trace.json").write_text(json.dumps(written))
    assert captured()["nsys"] is None


def test_records_of_two_processes_are_not_one_timing(evidence):
    root, folder = evidence
    path = folder / "timing.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for one in records:
        one["origin"] = {"flashinfer": "0.7.2", "date": "2026-01-01T00:00:00Z"}
    records[-1]["origin"] |= {"flashinfer": "0.6.18"}
    path.write_text(lines(*records))
    with pytest.raises(io.BadInput, match=r"timing\.jsonl: records of several runs"):
        tables.collect(root, [folder])


def record(folder: Path, tool: str = "sweep", **values) -> None:
    (folder / f"{tool}.json").write_text(json.dumps({"tool": tool, **values}))


def test_lost_points_are_listed(evidence):
    root, folder = evidence
    record(folder, lost=[{"point": "x/y", "reason": "out of memory"}])
    (lost,) = tables.collect(root, [folder])["lost"]
    report = f"{folder.parent.name}/b0/sweep.ncu-rep"
    whose = {"report": report, "batch": "b0", "tool": "sweep"}
    assert lost == whose | {"point": "x/y", "reason": "out of memory"}


def test_a_report_with_fewer_kernels_than_its_record_is_refused(evidence):
    root, folder = evidence
    found = [k["point"] for k in tables.collect(root, [folder])["kernels"]]
    record(folder, kernels={point: found.count(point) for point in found})
    tables.collect(root, [folder])
    record(folder, kernels={found[0]: found.count(found[0]) + 1})
    with pytest.raises(BadInput, match="its capture record says"):
        tables.collect(root, [folder])


def test_a_trace_is_held_against_its_record(evidence):
    """Half the kernels gone, another target's trace or lost ranges leave a well-formed trace."""
    root, folder = evidence
    traced = [row for row in tables.collect(root, [folder])["timeline"] if row["kind"] == "kernel"]
    counted = {p: n for p, n in Counter(row["point"] for row in traced).items() if p}
    outside = sum(row["point"] is None for row in traced)
    record(folder, "trace", kernels=counted, unattributed=outside)
    tables.collect(root, [folder])
    some = next(iter(counted))
    more, less = (
        counted | {some: counted[some] + 1},
        {p: n for p, n in counted.items() if p != some},
    )
    for kernels in (more, less, counted | {"rope/other": 5}, counted):
        record(folder, "trace", kernels=kernels, unattributed=outside + (kernels is counted))
        with pytest.raises(BadInput, match="its capture record says"):
            tables.collect(root, [folder])


@pytest.mark.parametrize(
    "content", ["[]", '{"lost": [1]}', '{"kernels": {"a": "x"}}', "[" * 100_000]
)
def test_what_is_no_capture_record_is_named(content, evidence):
    root, folder = evidence
    (folder / "sweep.json").write_text(content)
    with pytest.raises(BadInput, match=r"sweep\.json: (not a capture record|not JSON)"):
        tables.collect(root, [folder])


@pytest.mark.parametrize(
    ("lines", "said"), [(None, "1 planned points have no record"), (["{\n"], "line 1")]
)
def test_an_incomplete_or_broken_timing_writes_no_table(lines, said, evidence, tmp_path):
    root, folder = evidence
    whole = (folder / "timing.jsonl").read_text().splitlines(keepends=True)
    (folder / "timing.jsonl").write_text("".join(lines or whole[:-1]))
    done = command(root, folder, tmp_path / "out")
    assert done.returncode == 2
    assert f"timing.jsonl: {said}" in done.stderr and done.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_the_deep_batch(evidence):
    root, folder = evidence
    deep = folder.with_name("deep")
    deep.mkdir()
    shutil.copy(folder / "sweep.ncu-rep.xz", deep / "deep.ncu-rep.xz")
    ids = [p["id"] for p in json.loads((folder / "points.json").read_text())]
    (deep / "deep.json").write_text(json.dumps({"points": ids[:1]}))
    kernels = tables.collect(root, [deep])["kernels"]
    assert {k["batch"] for k in kernels} == {"deep"}
    assert {k["point"] for k in kernels} == {ids[0], None}


def test_evidence_outside_the_root_is_refused(evidence, tmp_path):
    _, folder = evidence
    with pytest.raises(BadInput, match="not below"):
        tables.collect(tmp_path / "elsewhere", [folder])
    with pytest.raises(BadInput, match="no such batch"):
        tables.collect(tmp_path, [tmp_path / "absent"])


def test_a_point_in_two_batches_is_refused_and_in_a_deep_one_beside_is_not(evidence):
    """A batch left from another sweep would double the kernels and the trace of its points."""
    root, folder = evidence
    ids = sorted(p["id"] for p in json.loads((folder / "points.json").read_text()))
    deep, stale = folder.with_name("deep"), folder.with_name("b1")
    for other in (deep, stale):
        other.mkdir()
        (other / "points.json").write_text(json.dumps([{"id": ids[0]}]))
    tables.collect(root, [folder, deep])
    with pytest.raises(BadInput, match="remove the stale one") as error:
        tables.collect(root, [folder, stale, deep])
    assert error.value.what.startswith(f"holds {ids[0]}, as does batch b0;")
    assert "b1: holds" in str(error.value) and "\n" not in str(error.value)


def lines(*records: object) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


def test_conditions_of_a_series_are_columns_of_their_own() -> None:
    clocked = SERIES | {"sm_mhz": 1500, "throttle": ["sw_power_cap"], "left_out": [9.0]}
    series = {"cold": clocked | {"floor_us": 3.5}, "hot": clocked | {"sm_mhz": 1600, "throttle": []},
              "sustained": clocked, "host": None, "plan": None}  # fmt: skip
    row = tables.flatten(TIMED | {"order": {"run": 1, "positions": [4, 0]}, "timing": series})
    assert (row["cold_floor_us"], row["cold_left_out_us"]) == (3.5, [9.0])
    assert (row["cold_sm_mhz"], row["hot_sm_mhz"], row["sustained_sm_mhz"]) == (1500, 1600, 1500)
    assert (row["cold_throttle"], row["hot_throttle"]) == ("sw_power_cap", None)
    assert row["sustained_us"] == 2.0 and row["sustained_samples_us"] == [1.0, 3.0]
    assert json.loads(row["order"]) == {"run": 1, "positions": [4, 0]}
    early = tables.flatten(TIMED)  # a format without conditions
    assert early["cold_sm_mhz"] is early["cold_throttle"] is early["order"] is None


@pytest.mark.parametrize(
    ("clock", "most"), [("sm_mhz", 3400), ("mem_mhz", 17500), ("series", 3400)]
)
def test_a_clock_is_one_that_a_gpu_can_have(clock: str, most: float) -> None:
    def record(value: float) -> dict[str, Any]:
        of_series = {"sm_mhz": value} if clock == "series" else {}
        state = {} if clock == "series" else {clock: value}
        clocks = {"before": state, "after": None}
        return TIMED | {"clocks": clocks, "timing": {"cold": SERIES | of_series}}

    tables.flatten(record(most))
    for impossible in (1e308, -1, 60_000):
        with pytest.raises(ValueError, match=r"Input should be (less|greater) than or equal"):
            tables.flatten(record(impossible))


@pytest.mark.parametrize(
    ("host", "known"), [(9.0, True), (10.0, False), (16.0, False), (None, True)]
)
def test_a_sustained_time_that_is_the_pace_of_the_host_is_not_read(host, known) -> None:
    """Early records hold one wherever the call is shorter than a cold launch (18 µs here)."""
    times = {"cold": 18.0, "hot": 10.0, "sustained": 17.0, "host": host}
    series = {
        kind: time and {"unit": "us", "median": time, "q25": time, "q75": time, "n": 1}
        for kind, time in times.items()
    }
    row = tables.flatten(TIMED | {"timing": series})
    assert row.get("sustained_us") == (17.0 if known else None)
    assert any(name.startswith("sustained") for name in row) == known
    assert row["hot_us"] == 10.0 and row.get("host_us") == host


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timing": None}, "ok, but without times"),
        ({"status": "wrong"}, "wrong, but with times"),
        ({"check": {"rel_l2": 0.2, "tolerance": 0.1}}, "ok, but its error 0.2 is above 0.1"),
    ],
)
def test_a_status_is_borne_out_by_its_record(change, message) -> None:
    tables.flatten(TIMED | {"check": {"rel_l2": 0.1, "tolerance": 0.1}})
    with pytest.raises(ValueError, match=message):
        tables.flatten(TIMED | change)


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([], "1 planned points have no record, a | b for one"),
        ([PAIR, PAIR], "line 2: a | b a second time"),
        ([PAIR, OTHER], "a | c is not in the plan"),
        ([PAIR | {"sides": [SIDE]}], "line 1: no timing record"),
        ([PAIR | {"sides": None}], "line 1: .*ok, but without times"),
        ([PAIR | {"status": "lost"}], "line 1: .*lost, but with times"),
        ([PAIR | {"point": "b | a"}], "line 1: .*not of its sides"),
    ],
)
def test_pairs_are_those_of_their_plan(tmp_path: Path, records, message) -> None:
    path = tmp_path / "pairs.jsonl"
    path.write_text(lines(*records), encoding="utf-8")
    with pytest.raises(BadInput, match=message):
        tables.read_pairs(path, ["a | b"])


MISSING = r"1 planned points have no record, a \| c for one"


def test_the_plan_of_pairs_is_that_of_their_folder(evidence) -> None:
    root, folder = evidence
    pairs = folder.with_name("pairs")
    pairs.mkdir()
    (pairs / "points.json").write_text(json.dumps([{"id": p} for p in "abac"]))
    (pairs / "pairs.jsonl").write_text(lines(PAIR, OTHER))
    assert len(tables.collect(root, [pairs])["pairs"]) == 4
    (pairs / "pairs.jsonl").write_text(lines(PAIR))
    with pytest.raises(BadInput, match=MISSING):
        tables.collect(root, [pairs])


def test_a_batch_has_its_pairs_beside_its_points(evidence) -> None:
    root, folder = evidence
    (folder / "pairs.json").write_text(json.dumps([{"id": p} for p in "ab"]))
    (folder / "pairs.jsonl").write_text(lines(PAIR))
    found = tables.collect(root, [folder])
    assert [(row["pair"], row["batch"]) for row in found["pairs"]] == [("a | b", folder.name)] * 2
    assert {row["tool"] for row in found["captures"]} >= {"timing", "pairs"}
    (folder / "pairs.json").write_text("[]")
    with pytest.raises(BadInput, match=r"a \| b is not in the plan"):
        tables.collect(root, [folder])
    (folder / "pairs.jsonl").write_text("")
    found = tables.collect(root, [folder])
    assert found["pairs"] == [] and "pairs" not in {row["tool"] for row in found["captures"]}
    (folder / "pairs.jsonl").write_text(lines(PAIR))
    (folder / "pairs.json").write_text(json.dumps([{"id": p} for p in "abac"]))
    with pytest.raises(BadInput, match=MISSING):
        tables.collect(root, [folder])


def test_a_pair_has_a_row_per_side_and_a_refused_one_has_no_times(tmp_path: Path) -> None:
    slow = {"median": 20.0, "q75": 25.0, "q25": 15.0, "samples": [10.0, 30.0]}
    sides = [SIDE | {"cold": SERIES | one | {"floor_us": 3.5}} for one in ({}, slow)]
    bad = OTHER | {"status": "wrong", "reason": "c: off", "sides": None}
    path = tmp_path / "pairs.jsonl"
    path.write_text(lines(PAIR | {"sides": sides}, bad), encoding="utf-8")
    rows = tables.read_pairs(path)
    assert [(r["pair"], r["side"], r["point"]) for r in rows] == [
        ("a | b", "base", "a"), ("a | b", "other", "b"), ("a | c", "base", "a"), ("a | c", "other", "c"),
    ]  # fmt: skip
    assert [r.get("cold_us") for r in rows] == [2.0, 20.0, None, None]
    assert rows[2]["reason"] == "c: off" and rows[0]["cold_floor_us"] == 3.5


@pytest.mark.parametrize("value", [{}, [512], [[]]])
def test_a_parameter_that_nothing_can_be_sorted_by_is_no_timing_record(tmp_path, value):
    path = tmp_path / "timing.jsonl"
    record = {"point": "a/b", "target": "a", "status": "skipped", "reason": "no"}
    path.write_text(json.dumps(record | {"params": {"seq_len": 512}}), encoding="utf-8")
    assert len(tables.read(path)) == 1
    path.write_text(json.dumps(record | {"params": {"seq_len": value}}), encoding="utf-8")
    with pytest.raises(BadInput, match=r"line 1: no timing record \(params\.seq_len"):
        tables.read(path)


def test_what_profilers_say_of_points_whose_timing_is_not_right_is_in_no_table():
    """Of the first run, which counters and traces are of; what belongs to no point stays."""
    status = {("good", 0): "ok", ("good", 1): "wrong", ("bad", 0): "wrong", ("gone", 0): "lost"}
    said = [{"point": point, "run": run, "status": is_so} for (point, run), is_so in status.items()]
    profiled = ("kernels", "metrics", "stalls", "breakdown", "rules", "lines", "timeline", "ranges")
    rows = [{"point": point} for point in ("good", "bad", "gone", None)]
    every = dict.fromkeys(("captures", *profiled), rows)
    found = tables._of_right_points(every, tables._not_right(said))
    assert found["captures"] == rows
    for name in profiled:
        assert [row["point"] for row in found[name]] == ["good", None], name
    assert {"captures", "pairs", "timing", "lost", *profiled} == set(TABLES)


def test_tables_built_report_by_report_are_those_of_all_rows(evidence, tmp_path):
    root, folder = evidence
    for name, how in {"rows": dict, "packed": tables.packed}.items():
        tables.write(tables.collect(root, [folder], how), tmp_path / name)
    files = {path.name: path.read_bytes() for path in (tmp_path / "rows").iterdir()}
    assert files == {path.name: path.read_bytes() for path in (tmp_path / "packed").iterdir()}
    assert len(files["metrics.csv"]) > 1000 and len(files["timeline.csv"]) > 1000


def test_a_value_that_fits_no_column_names_its_report():
    with pytest.raises(BadInput, match=r"^x/b0/sweep\.ncu-rep: table metrics: "):
        tables.packed({"captures": [{"report": "x/b0/sweep.ncu-rep"}], "metrics": [{"value": "7"}]})
