"""The nsys reader: synthetic exports of every shape that real ones come in, and recorded ones."""

from __future__ import annotations

import functools
import json
import lzma
import sqlite3
import subprocess

import pytest
from command import ncuflow
from conftest import ROOT, some
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nsys_export import CUPTI, NAMES, PID, THREAD, Export

from ncuflow.cli import dispatch
from ncuflow.io import BadInput
from ncuflow.parquet import build
from ncuflow.parsers import nsys

RECORDED = sorted(ROOT.glob("recordings/*/**/trace.sqlite.xz"), key=lambda p: p.stat().st_size)


def one_point() -> Export:
    """A point's range with a main and a merge kernel, and a warm-up kernel before it."""
    return (
        Export()
        .call(10, 20, 1).kernel(30, 40, 1)
        .range(100, 200, "decode/B1")
        .call(110, 120, 2).kernel(150, 250, 2)
        .call(130, 140, 3).kernel(260, 300, 3, name=7)
    )  # fmt: skip


@pytest.fixture
def path(tmp_path):
    return tmp_path / "t.sqlite"


def points(trace):
    return [row["point"] for row in trace.timeline]


def gaps(trace):
    """Before each operation, on its device and its stream."""
    of = ("gap_before_ns", "stream_gap_before_ns")
    return tuple([row[column] for row in trace.timeline] for column in of)


def test_kernels_belong_to_the_range_of_their_call(path):
    trace = nsys.read(one_point().range(105, 108, "plan").write(path))
    assert points(trace) == [None, "decode/B1", "decode/B1"]  # the merge ran after the range's end
    names = [row["name"] for row in trace.timeline]
    assert names == ["DecodeKernel", "DecodeKernel", "MergeKernel"]
    assert trace.timeline[1].items() >= {
        "demangled": "void DecodeKernel<128>(float*)", "api_name": "cudaLaunchKernel", "api_start_ns": 110,
        "api_duration_ns": 10, "grid": "8,1,1", "block": "128,1,1",
    }.items()  # fmt: skip
    assert trace.problems == []
    build("timeline", [{"report": "r", **row} for row in trace.timeline])
    build("ranges", [{"report": "r", **row} for row in trace.ranges])


def test_gaps_are_idle_time_of_the_device(path):
    export = one_point().kernel(255, 270, 9, streamId=8).kernel(280, 290, 10, deviceId=1)
    trace = nsys.read(export.write(path))
    assert [row["start_ns"] for row in trace.timeline] == [30, 150, 255, 260, 280]
    assert gaps(trace) == ([None, 110, 5, 0, None], [None, 110, None, 10, None])
    # A long kernel hides the gap behind a short one.
    export = Export().kernel(0, 100, 1).kernel(10, 20, 2, streamId=8).kernel(50, 60, 3, streamId=8)
    trace = nsys.read(export.write(path.with_name("long.sqlite")))
    assert gaps(trace) == ([None, 0, 0], [None, None, 30])


def test_launch_counts_the_repeats_of_a_range(path):
    export = Export()
    for repeat in range(3):
        at = 1000 * repeat
        export.range(at, at + 100, "decode/B1").call(at + 10, at + 20, repeat)
        export.kernel(at + 30, at + 40, repeat)
    export.range(5000, 5100, "decode/B2").call(5010, 5020, 9).kernel(5030, 5040, 9)
    trace = nsys.read(export.write(path))
    assert [(r["point"], r["launch"]) for r in trace.timeline] == [
        ("decode/B1", 0), ("decode/B1", 1), ("decode/B1", 2), ("decode/B2", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("ranges", "plan", "found"),
    [
        ([(105, 108, "plan"), (50, 90, "plan")], {"decode/B1"}, ["decode/B1"] * 2),
        # The plan names the point, and without one it is the outermost; the innermost of the plan.
        ([(90, 210, "whole run"), (108, 125, "inner")], None, ["whole run"] * 2),
        ([(90, 210, "whole run"), (108, 125, "inner")], {"decode/B1"}, ["decode/B1"] * 2),
        ([(108, 145, "decode/B2")], {"decode/B1", "decode/B2"}, ["decode/B2"] * 2),
    ],
)
def test_the_range_of_the_plan_is_the_point_and_nvtx_keeps_all(path, ranges, plan, found):
    export = one_point()
    for start, end, name in ranges:
        export.range(start, end, name)
    trace = nsys.read(export.write(path), points=plan)
    assert points(trace) == [None, *found]
    for row in trace.ranges:  # that of plan() lies in its point, or in none
        if row["name"] == "plan":
            assert row["point"] == ("decode/B1" if row["start_ns"] > 100 else None)
    within = [name for _, _, name in ranges if name not in ("plan", "decode/B2")]
    if within:
        assert trace.timeline[1]["nvtx"] == "whole run/decode/B1/inner"
        assert trace.timeline[2]["nvtx"] == "whole run/decode/B1"


def test_ranges_of_other_threads_and_processes_do_not_count(path):
    export = Export().range(0, 100, "other", thread=THREAD + 1).call(10, 20, 1).kernel(30, 40, 1)
    other = PID + (1 << 24)
    export.range(0, 100, "mine", thread=other + 5).call(10, 20, 1, thread=other + 5)
    export.kernel(50, 60, 1, globalPid=other)
    assert points(nsys.read(export.write(path))) == [None, "mine"]


@pytest.mark.parametrize(
    ("given", "more", "point"),
    [
        ((0, 100, "all"), {"kind": 60, "thread": THREAD + 1}, "all"),  # for its process
        ((0, None, "open"), {}, "open"),  # never closed
        ((0, 100, None), {"textId": 6}, "decode/B1"),
    ],
)
def test_a_range_may_be_of_a_process_open_or_have_its_text_elsewhere(path, given, more, point):
    export = Export().range(*given, **more).call(10, 20, 1).kernel(30, 40, 1)
    trace = nsys.read(export.range(5, None, "a mark is none", kind=34).write(path))
    assert points(trace) == [point]
    assert [row["end_ns"] for row in trace.ranges] == [given[1]]


def test_graphs_traced_as_a_whole(path):
    export = Export().range(0, 100, "decode/B1").call(10, 20, 1, name=5)
    export.add(
        "GRAPH_TRACE", start=30, end=530, deviceId=0, streamId=7, correlationId=1, globalPid=PID,
        graphId=4,
    )  # fmt: skip
    trace = nsys.read(export.write(path))
    (row,) = trace.timeline
    assert (row["kind"], row["graph"], row["duration_ns"]) == ("graph", True, 500)
    assert (row["point"], row["api_name"]) == ("decode/B1", "cudaGraphLaunch")
    assert any("traced as a whole" in problem for problem in trace.problems)


def test_graphs_traced_by_node(path):
    export = Export().range(0, 100, "decode/B1").call(10, 20, 1, name=5)
    export.kernel(30, 40, 1, graphNodeId=11).kernel(45, 60, 1, graphNodeId=12)
    trace = nsys.read(export.write(path))
    assert [r["graph"] for r in trace.timeline] == [True, True]
    assert points(trace) == ["decode/B1"] * 2
    assert {r["launch"] for r in trace.timeline} == {0}


def test_copies_only(path):
    export = Export().call(0, 5, 1, name=4)
    export.add(
        "MEMCPY", start=10, end=20, deviceId=0, streamId=7, correlationId=1, globalPid=PID,
        bytes=4096, copyKind=1,
    )  # fmt: skip
    export.add("MEMSET", start=30, end=31, deviceId=0, streamId=7, correlationId=2, bytes=8)
    trace = nsys.read(export.write(path))
    assert [(r["kind"], r["name"], r["bytes"]) for r in trace.timeline] == [
        ("memcpy", "Host-to-Device", 4096), ("memset", "memset", 8),
    ]  # fmt: skip
    assert {"the trace holds no kernels", "the trace holds no NVTX ranges"} <= {*trace.problems}


@pytest.mark.parametrize("table", ["META_DATA_EXPORT", "EXPORT_META_DATA", None])
def test_version_tables(path, table):
    export = one_point()
    if table:
        export.add(table, name="EXPORT_PRODUCT_VERSION", value="2023.4.4.54")
    trace = nsys.read(export.write(path))
    assert trace.nsys_version == ("2023.4.4.54" if table else None)


def test_device_names_go_by_cuda_device(path):
    export = one_point().add("TARGET_INFO_GPU", id=3, cuDevice=0, name="NVIDIA H200")
    export.add("TARGET_INFO_GPU", id=0, cuDevice=1, name="NVIDIA A10G")
    assert nsys.read(export.write(path)).devices == {0: "NVIDIA H200", 1: "NVIDIA A10G"}
    old = one_point().add("TARGET_INFO_GPU", id=0, name="Tesla V100")
    other = old.write(path.with_name("old.sqlite"), drop=("cuDevice",))
    assert nsys.read(other).devices == {0: "Tesla V100"}


def test_old_exports_lack_columns(path):
    drop = ("globalPid", "graphNodeId", "contextId", "gridZ", "textId", "returnValue")
    trace = nsys.read(one_point().write(path, drop=drop))
    assert points(trace) == [None, "decode/B1", "decode/B1"]
    assert trace.timeline[0]["grid"] is None
    assert trace.timeline[0]["graph"] is False


def test_launches_without_their_other_half_are_told(path):
    trace = nsys.read(one_point().call(500, 510, 77).write(path))
    assert any(problem.startswith("1 kernel launches without") for problem in trace.problems)
    export = Export().range(0, 100, "decode/B1").kernel(30, 40, 1)
    trace = nsys.read(export.write(path.with_name("uncalled.sqlite")))
    assert points(trace) == [None]
    assert any("without the CUDA call" in problem for problem in trace.problems)


TIMELESS = "operations without usable times were left out"


@pytest.mark.parametrize(
    ("operations", "kept", "problem"),
    [
        ([(90, 80), ("x", 80), (None, 80), (0, 1 << 62)], 3, f"4 {TIMELESS}"),
        ([(-40, 10)], 3, f"1 {TIMELESS}"),
        ([(30, 40), (30, 40)], 3, "2 operations stand there twice, and were counted once"),
    ],
)
def test_operations_that_make_no_sense_or_stand_there_twice_are_counted(
    path, operations, kept, problem
):
    export = one_point().range(500, 400, "decode/B1").range(-5, 10, "decode/B1")
    once = nsys.read(export.write(path)).timeline
    for number, (start, end) in enumerate(operations):
        export.kernel(start, end, 1 if "twice" in problem else 5 + number)
    trace = nsys.read(export.write(path.with_name("more.sqlite")))
    assert len(trace.timeline) == kept and problem in trace.problems
    assert "twice" not in problem or trace.timeline == once
    assert len(trace.ranges) == 1
    assert "2 NVTX ranges without usable times were left out" in trace.problems


@pytest.mark.parametrize(("lacks", "of_device"), [("deviceId", False), ("streamId", True)])
def test_a_gap_is_null_where_an_operation_does_not_say_where_it_ran(tmp_path, lacks, of_device):
    export = Export().kernel(100, 200, 1).kernel(250, 300, 2, **{lacks: None}).kernel(400, 500, 3)
    trace = nsys.read(export.write(tmp_path / "a.sqlite"))
    assert gaps(trace) == ([None, 50, 100] if of_device else [None] * 3, [None] * 3)
    what = "stream" if of_device else "GPU"
    assert any(f"1 operations without a {what}" in problem for problem in trace.problems)


def test_dimensions_that_no_gpu_launches_or_are_no_whole_numbers_are_null(tmp_path):
    export = Export().kernel(100, 200, 1, blockY=0).kernel(300, 400, 2, gridY=1 << 40)
    export.kernel(500, 510, 3, gridX=8).kernel(520, 530, 4, gridX=8.0)  # though an equal one is
    rows = nsys.read(export.write(tmp_path / "a.sqlite")).timeline
    assert [row["grid"] for row in rows] == ["8,1,1", None, "8,1,1", None]
    assert [row["block"] for row in rows] == [None, *["128,1,1"] * 3]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 1000), st.integers(0, 200), st.integers(0, 2), st.integers(0, 2)),
        min_size=1, max_size=30,
    )
)  # fmt: skip
def test_gaps_are_never_negative_and_add_up(spans):
    rows = sorted(
        ({"start_ns": s, "end_ns": s + d, "device": v, "stream": t} for s, d, v, t in spans),
        key=lambda row: (row["start_ns"], row["end_ns"]),
    )
    nsys._gaps(rows, "gap", ("device",))
    for device in some({row["device"] for row in rows}):
        mine = [row for row in rows if row["device"] == device]
        idle = sum(row["gap"] or 0 for row in mine)
        covered = set()
        for row in mine:
            covered |= set(range(row["start_ns"], row["end_ns"]))
        span = max(row["end_ns"] for row in mine) - mine[0]["start_ns"]
        assert idle == span - len(covered)
        assert mine[0]["gap"] is None and all(row["gap"] >= 0 for row in mine[1:])


# --- files that are no export -----------------------------------------------------------------

NOT_EXPORTS = {
    "empty": (b"", "empty file"),
    "ncu": (b"NVR\0\2\0\0\0\x08\7", "Nsight Compute report"),
    "nsys": (b"NVIDIA Tegra Profiler Report 2023@4", "nsys export --type sqlite"),
    "csv": (b"Time (%),Total,Name\n1,2,3\n", "CSV"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
    "header": (b"SQLite format 3\0" + bytes(20), "truncated"),
}


SECOND = 1_000_000_000


@pytest.mark.parametrize(
    ("length", "end", "kept"),
    [(900, 1040, True), (900, 1060, False), (None, 2 * SECOND, False), (None, SECOND, True)],
)
def test_an_operation_that_is_longer_than_the_trace_is_left_out(path, length, end, kept):
    export = one_point().kernel(150, end, 9, streamId=8)
    if length:
        export.add("ANALYSIS_DETAILS", duration=length)
    trace = nsys.read(export.write(path))
    assert (end in {row["end_ns"] for row in trace.timeline}) is kept
    told = "1 operations longer than the trace were left out"
    assert len(trace.timeline) == 3 + kept and (told in trace.problems) is not kept


def test_an_operation_that_the_host_waits_for_is_as_long_as_it_is(path):
    export = one_point().call(400, 60 * SECOND, 5).kernel(410, 59 * SECOND, 5)
    assert nsys.read(export.write(path)).timeline[-1]["duration_ns"] == 59 * SECOND - 410
    path.unlink()
    damaged = nsys.read(export.kernel(500, 300 * SECOND, 6).write(path))
    assert len(damaged.timeline) == 4 and damaged.timeline[-1]["end_ns"] == 59 * SECOND


def test_what_nsys_itself_warns_of_is_passed_on(path):
    export = one_point()
    for severity, text in ((1, "8 cores"), (2, "lost"), (3, "no driver"), (2, "lost")):
        export.add("DIAGNOSTIC_EVENT", severity=severity, text=text)
    problems = nsys.read(export.write(path)).problems
    assert [p for p in problems if p.startswith("nsys")] == ["nsys: lost", "nsys: no driver"]


@pytest.mark.parametrize("kind", ["NVTX", "CUDA"])
def test_a_process_without_events_is_no_warning_where_another_had_some(path, kind):
    none = {f"No {of} events collected. Does the process use {of}?" for of in ("NVTX", "CUDA")}
    none.add("CUDA profiling might have not been started correctly.")
    export = one_point()
    for text in (*sorted(none), "events lost"):
        export.add("DIAGNOSTIC_EVENT", severity=2, text=text)
    found = nsys.read(export.write(path)).problems
    assert {f"nsys: {text}" for text in none} < set(found)
    export.add("DIAGNOSTIC_EVENT", severity=1, text=f"Number of {kind} events collected: \t481.")
    found = nsys.read(export.write(path.with_name("other.sqlite"))).problems
    kept = {f"nsys: {text}" for text in (*none, "events lost") if kind not in text}
    assert {text for text in found if text.startswith("nsys: ")} == kept


@pytest.mark.parametrize("suffix", ["-wal", "-journal"])
def test_a_trace_whose_writer_was_killed_is_refused(path, suffix):
    one_point().write(path)
    beside = path.with_name(path.name + suffix)
    beside.touch()
    assert nsys.read(path).timeline  # an empty one holds nothing back
    beside.write_bytes(b"\x37\x7f\x06\x82" + bytes(100))
    with pytest.raises(BadInput, match=f"{beside.name} lies beside it"):
        nsys.read(path)


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_whatever_text_an_export_holds_a_terminal_may_show_it(form, tmp_path, capsys):
    hostile = "\x1b[31m\u202e\u200b\x07"
    export = one_point().range(0, 400, f"{hostile}run")
    export.rows["StringIds"] = [{"id": k, "value": hostile + v} for k, v in NAMES.items()]
    export.add("TARGET_INFO_GPU", id=0, cuDevice=0, name=f"{hostile}H200")
    export.add("META_DATA_EXPORT", name="EXPORT_PRODUCT_VERSION", value=f"{hostile}2025.1")
    export.add("DIAGNOSTIC_EVENT", severity=2, text=f"{hostile}lost")
    path = export.write(tmp_path / f"{hostile}.sqlite")
    ranges = {row["nvtx"] for row in nsys.read(path).timeline}
    assert ranges == {"?[31m???run", "?[31m???run/decode/B1"}
    dispatch(["show", str(path), "--format", form])
    printed = "".join(capsys.readouterr())
    assert "?[31m???DecodeKernel" in printed and "?[31m???lost" in printed
    assert printed.replace("\n", "").isprintable()


def test_a_view_is_never_asked(path):
    export = one_point()
    export.write(path)
    with sqlite3.connect(path) as db:
        db.execute(f"DROP TABLE {CUPTI}KERNEL")
        db.execute(
            f"CREATE VIEW {CUPTI}KERNEL AS WITH RECURSIVE n(start) AS"
            " (SELECT 1 UNION ALL SELECT start + 1 FROM n) SELECT start, start AS end FROM n"
        )
    db.close()
    assert "the trace holds no kernels" in nsys.read(path).problems


def test_a_report_is_exported_where_nsys_is_installed(path, tmp_path, monkeypatch):
    export = one_point().write(tmp_path / "made.sqlite")
    report = tmp_path / "trace.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report\0")
    monkeypatch.setenv("NCUFLOW_NSYS", str(tmp_path / "absent"))
    with pytest.raises(BadInput, match="`nsys export --type sqlite` makes what is read here"):
        nsys.read(report)
    program = tmp_path / "nsys"
    program.write_text(f'#!/bin/sh\ncp {export} "${{4#--output=}}"\n')
    program.chmod(0o755)
    monkeypatch.setenv("NCUFLOW_NSYS", str(program))
    assert len(nsys.read(report).timeline) == 3
    program.write_text("#!/bin/sh\necho 'newer than me' >&2; exit 1\n")
    with pytest.raises(BadInput, match="nsys cannot export it: newer than me"):
        nsys.read(report)


@pytest.mark.parametrize("case", NOT_EXPORTS)
def test_what_is_no_export_is_named(case, path):
    data, words = NOT_EXPORTS[case]
    path.write_bytes(data)
    with pytest.raises(BadInput) as error:
        nsys.read(path)
    assert words in error.value.what


def test_another_database_and_an_export_without_events_are_named(path):
    with pytest.raises(BadInput, match="no CUDA or NVTX event"):
        nsys.read(Export().write(path))
    with sqlite3.connect(path) as db:
        db.execute("DROP TABLE StringIds")
        db.execute("CREATE TABLE users (name)")
    db.close()
    with pytest.raises(BadInput, match="not an nsys export"):
        nsys.read(path)


@functools.cache
def recorded() -> bytes:
    return lzma.decompress(RECORDED[0].read_bytes())


SLOW = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@SLOW
@given(st.data())
def test_a_truncated_trace_is_always_noticed(path, data):
    whole = recorded()
    kept = data.draw(st.integers(0, len(whole) - 1))
    path.write_bytes(whole[:kept])
    with pytest.raises(BadInput) as error:
        nsys.read(path)
    assert kept < 16 or "truncated" in error.value.what


@SLOW
@given(st.data())
def test_a_damaged_trace_is_noticed_or_read_into_numbers(path, data):
    damaged = bytearray(recorded())
    for _ in range(data.draw(st.integers(1, 40))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(damaged)
    try:
        trace = nsys.read(path)
    except BadInput:
        return
    build("timeline", [{"report": "r", **row} for row in trace.timeline])
    build("ranges", [{"report": "r", **row} for row in trace.ranges])


@pytest.mark.parametrize("source", RECORDED, ids=lambda p: p.parent.parent.name)
def test_recorded_traces_attribute_every_point(source):
    record = json.loads((source.parent / "trace.json").read_text())
    planned = set(record["points"]) - {loss["point"] for loss in record["lost"]}
    trace = nsys.read(source, planned)
    ran = {row["point"] for row in trace.timeline if row["kind"] == "kernel"} - {None}
    assert ran == planned
    assert all(row["gap_before_ns"] is None or row["gap_before_ns"] >= 0 for row in trace.timeline)


# --- the command ------------------------------------------------------------------------------


def command(*arguments: object) -> subprocess.CompletedProcess[str]:
    return ncuflow("show", *arguments)


def test_the_command_in_its_three_forms(path):
    one_point().write(path)
    document = json.loads(command(path, "--format", "json").stdout)
    assert document["report"]["operations"] == 3 == len(document["launches"])
    assert document["summary"][0] == {
        "name": "DecodeKernel", "kind": "kernel", "count": 2, "total_ns": 110, "median_ns": 55.0,
        "min_ns": 10, "max_ns": 100,
    }  # fmt: skip
    assert len(command(path, "--format", "csv").stdout.splitlines()) == 4
    table = command(path).stdout
    assert "MergeKernel" in table and max(map(len, table.splitlines())) <= 100
