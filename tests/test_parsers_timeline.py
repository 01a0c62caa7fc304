"""Traces in columns: what torch's profiler writes, and exports of nsys, are read to the same timeline."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import numpy as np
import pytest
from conftest import ROOT, some
from engine_trace import DECODE, GPU, MadeTrace, decode_step
from test_parsers_nsys import PID, THREAD, Export

from ncuflow.cli import dispatch
from ncuflow.findings import profiled
from ncuflow.io import BadInput
from ncuflow.parsers import nsys, torch_trace
from ncuflow.parsers.demangled import cute_name
from ncuflow.parsers.timeline import Columns, Launched, Timeline
from ncuflow.view import files

RECORDED = ROOT / "recordings/h100/0.7.2/default"


def made() -> MadeTrace:
    trace = MadeTrace()
    decode_step(trace)
    return trace


def same(one: Timeline, other: Timeline) -> None:
    assert one.kinds == other.kinds and one.rows.keys() == other.rows.keys()
    assert all(np.array_equal(values, other.rows[name]) for name, values in one.rows.items())


def reading(trace: MadeTrace, folder: Path) -> Timeline:
    return torch_trace.read(trace.write(folder / "trace.json"))


@pytest.mark.parametrize("block", [64, 1 << 10, 1 << 22])
def test_events_may_be_cut_anywhere_between_reads(block, tmp_path, monkeypatch):
    path = made().write(tmp_path / "trace.json")
    whole = torch_trace.read(path)
    monkeypatch.setattr(torch_trace, "BLOCK", block)
    same(torch_trace.read(path), whole)
    assert len(whole.operations) == 5 + 2 * 6 + 1
    assert whole.devices == {0: GPU}


def test_packed_traces_and_a_list_of_events_are_read(tmp_path):
    plain = made().write(tmp_path / "trace.json")
    whole, text = torch_trace.read(plain), plain.read_bytes()
    for name, content in (
        ("trace.json.gz", gzip.compress(text)),
        ("trace.json.xz", lzma.compress(text)),
        ("list.json", json.dumps(made().events).encode()),
    ):
        (tmp_path / name).write_bytes(content)
        same(torch_trace.read(tmp_path / name), whole)


@pytest.mark.parametrize("kept", [0.2, 0.5, 0.95, 0.999])
def test_a_trace_that_is_cut_short_is_refused(kept, tmp_path):
    text = made().write(tmp_path / "trace.json").read_bytes()
    for name, whole, said in (
        ("trace.json", text, "damaged JSON, or cut short"),
        ("trace.json.gz", gzip.compress(text), "truncated or damaged"),
    ):
        (tmp_path / name).write_bytes(whole[: round(kept * len(whole))])
        with pytest.raises(BadInput, match=said):
            torch_trace.read(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{}", "no operation of a GPU"),
        ('{"traceEvents": []}', "no operation of a GPU"),
        ("[1, 2]", "no operation of a GPU"),
        ('"x"', "neither an nsys export"),
        ('{"a" 1}', "damaged JSON"),
        ("[" * 100_000 + "]" * 100_000, "nested too deep"),
    ],
)
def test_other_json_is_refused_in_a_line(text, said, tmp_path):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=said):
        torch_trace.read(path)


def test_what_makes_no_sense_is_left_out_and_counted(tmp_path):
    trace = made()
    kernel = next(e for e in trace.events if e["cat"] == "kernel")
    trace.events += [
        {**kernel, "ts": -5.0}, {**kernel, "dur": "long"}, {**kernel, "ts": 1e300}, {**kernel, "name": None, "ts": "x"},
        {**kernel, "args": None}, 7, None, {"ph": "M"}, {"cat": "cpu_op", "ph": "X"},
        {name: value for name, value in kernel.items() if name != "dur"},
    ]  # fmt: skip
    found = reading(trace, tmp_path)
    assert len(found.operations) == 18 + 1  # of the one without arguments the times are good
    assert found.problems == ["5 events without usable times or names were left out"]


def test_an_operator_is_that_of_the_kernel_it_launched(tmp_path):
    found = reading(made(), tmp_path)
    products = found.rows["operator"] >= 0
    assert products.sum() == 2
    assert found.shapes[0].dims == ((32, 4096), (4096, 6144))
    assert {found.kinds[n].name for n in found.rows["what"][products]} == {"nvjet_hsh_128x256_64x4_1x2_h_bz_TNN"}  # fmt: skip


def test_memory_does_not_grow_with_what_is_passed_over(tmp_path):
    trace = made()
    stack = {"ph": "X", "cat": "python_function", "name": "x.py(1): f", "ts": 1.0, "dur": 1.0}
    trace.events += [dict(stack) for _ in range(5000)]
    plan = {**stack, "name": "a/flashinfer/decode.py(1834): plan"}
    trace.events.append(plan)
    found = reading(trace, tmp_path)
    assert len(found.ranges) == 1
    assert found.texts[found.ranges.arrays()["name"][0]] == plan["name"]


@pytest.mark.parametrize(
    "path", sorted(RECORDED.glob("*/b*/trace.sqlite.xz")), ids=lambda p: p.parts[-3]
)
def test_a_timeline_is_what_the_rows_of_an_export_say(path):
    rows, found = nsys.read(path).timeline, nsys.read_timeline(path)
    columns = found.rows
    assert columns["start"].tolist() == [row["start_ns"] for row in rows]
    assert columns["end"].tolist() == [row["end_ns"] for row in rows]
    for row, what, call, graph in some(
        zip(rows, columns["what"], columns["call"], columns["graph"], strict=True)
    ):
        one = found.kinds[what]
        assert (one.kind, call) == (row["kind"], row["api_start_ns"])
        assert (graph >= 0) == row["graph"]
        if one.kind == "kernel":
            assert one.name == cute_name(row["demangled"])
            assert ",".join(map(str, one.grid)) == row["grid"]


def test_processes_do_not_share_correlation_ids(tmp_path):
    export = Export()
    other = PID + (1 << 24)
    export.kernel(100, 200, 1).call(10, 20, 1)
    export.kernel(300, 400, 1, globalPid=other).call(250, 260, 1, thread=other + 1)
    found = nsys.read_timeline(export.write(tmp_path / "a.sqlite"))
    assert found.rows["call"].tolist() == [10, 250]
    assert found.rows["thread"].tolist() == [THREAD, other + 1]


def test_what_an_export_lacks_is_not_said(tmp_path):
    export = Export().add("KERNEL", start=5, end=9, correlationId=3, shortName=2, streamId=7, deviceId=0)  # fmt: skip
    export.add("KERNEL", start=9, end=5, correlationId=4, shortName=2)
    export.call(1, 2, 3)
    found = nsys.read_timeline(export.write(tmp_path / "a.sqlite"))
    assert found.kinds == [Launched("kernel", "DecodeKernel", function="DecodeKernel")]
    assert found.rows["call"].tolist() == [1]
    assert found.problems == ["1 operations without usable times were left out"]
    with pytest.raises(BadInput, match="no operation of a GPU"):
        nsys.read_timeline(Export().write(tmp_path / "empty.sqlite"))


def test_a_row_is_appended_whole_or_not_at_all():
    rows = Columns(("start", "end", "thread"))
    rows.add(1, 2, 3)
    for bad in ((4, 5, 1 << 64), (4, 5, "x"), (4, 5)):
        with pytest.raises((OverflowError, TypeError, ValueError)):
            rows.add(*bad)
    with pytest.raises(ValueError, match="columns"):
        rows.extend(np.array([6]), np.array([7]))
    rows.add(8, 9, 10)
    assert {name: values.tolist() for name, values in rows.arrays().items()} == {
        "start": [1, 8], "end": [2, 9], "thread": [3, 10],
    }  # fmt: skip


@pytest.mark.parametrize("tid", [(1 << 64) - 1, -(1 << 64), 1 << 5000, None, "worker", 1.5, [1]])
def test_a_thread_without_a_usable_number_moves_no_name_of_another(tid, tmp_path):
    trace = MadeTrace()
    for name in ("prefill", "decode"):
        begin = trace.at - 10
        trace.kernel(DECODE, 60, (4, 8, 1), (16, 4, 2)).range(name, begin, trace.at)
    trace.events.insert(0, {**trace.events[-1], "name": "of another", "tid": tid})
    found = reading(trace, tmp_path)
    ranges = found.ranges.arrays()
    starts = {found.texts[n]: start for n, start in zip(ranges["name"], ranges["start"], strict=True)}  # fmt: skip
    assert starts["prefill"] == 990_000 and starts["decode"] == starts["of another"] == 1_050_000
    assert found.problems == []


def test_a_number_of_calls_of_two_processes_is_of_neither(tmp_path):
    trace = MadeTrace()
    for _ in range(2):
        trace.kernel(DECODE, 60, (4, 8, 1), (16, 4, 2))
    call = next(one for one in trace.events if one["cat"] == "cuda_runtime")
    trace.events.append(call | {"pid": 11})
    assert [call >= 0 for call in reading(trace, tmp_path).rows["call"].tolist()] == [False, True]


@pytest.mark.parametrize("since", ["", "17000000000000", "1700000000000000000"])
def test_times_are_as_exact_as_they_are_written(since, tmp_path):
    event = '{"ph":"X","cat":"kernel","name":"k","ts":%s,"dur":%s,"args":{"device":0,"stream":7}}'
    texts = [event % (f"{since}{start:02}.{start:03}", "1.344") for start in (10, 36, 73)]
    path = tmp_path / "trace.json"
    path.write_text(f"[{','.join(texts)}]")
    if len(since) > 16:  # beyond what 64 bits hold of ns
        with pytest.raises(BadInput, match="no operation"):
            torch_trace.read(path)
        return
    rows = torch_trace.read(path).rows
    assert (rows["end"] - rows["start"]).tolist() == [1344] * 3
    assert np.diff(rows["start"]).tolist() == [26_026, 37_037]


def test_categories_of_early_versions_are_read_and_columns_are_in_the_order_of_starts(tmp_path):
    trace = made()
    trace.events.reverse()
    found = reading(trace, tmp_path)
    assert np.all(np.diff(found.rows["start"]) >= 0)
    assert any(found.kinds[n].name == DECODE for n in found.rows["what"])
    whole = torch_trace.read(trace.write(tmp_path / "new.json"))
    early = {"kernel": "Kernel", "gpu_memcpy": "Memcpy", "cuda_runtime": "Runtime", "cpu_op": "Operator"}  # fmt: skip
    for event in trace.events:
        event["cat"] = early[event["cat"]]
        event["args"] = {{"External id": "external id"}.get(k, k): v for k, v in event["args"].items()}  # fmt: skip
    same(torch_trace.read(trace.write(tmp_path / "early.json")), whole)


@pytest.mark.parametrize("devices", [5, "H100", {"id": 0}, [5, None, {"id": 1 << 70, "name": 3}]])
def test_devices_that_are_no_table_are_none(devices, tmp_path):
    content = {"deviceProperties": devices, "traceEvents": made().events}
    (tmp_path / "trace.json").write_text(json.dumps(content))
    assert torch_trace.read(tmp_path / "trace.json").devices == {}


def test_what_stands_beside_the_events_costs_no_memory(tmp_path, monkeypatch):
    """Lists, strings with signs in them and numbers, cut anywhere between reads."""
    monkeypatch.setattr(torch_trace, "BLOCK", 512)
    monkeypatch.setattr(torch_trace, "LONGEST", 1 << 12)
    beside = {"a": [[]] * 5000, "b": {"[\\": ["]}\\\"[", 1.5, None] * 900}, "c": "x[", "d": 7, "e": {}}  # fmt: skip
    content = {**beside, "traceEvents": made().events, **{f"{k}2": v for k, v in beside.items()}}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(content))
    assert len(torch_trace.read(path).operations) == 18
    path.write_text(json.dumps({"traceEvents": [{"args": "x" * 9000}]}))
    with pytest.raises(BadInput, match="a value of more than"):
        torch_trace.read(path)


def test_an_archive_of_nothing_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_trace, "MOST_UNPACKED", -2000)
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(b" " * (1 << 26)))
    with pytest.raises(BadInput, match="times its size"):
        torch_trace.read(path)


def test_what_follows_the_json_is_said(tmp_path):
    path = made().write(tmp_path / "trace.json")
    packed, text = tmp_path / "members.json.gz", path.read_bytes()
    for place, content, follows in (
        (path, text, False), (path, text + b"\n \n", False), (path, text + text, True), (packed, gzip.compress(text) * 2, True),
    ):  # fmt: skip
        place.write_bytes(content)
        found = torch_trace.read(place)
        assert len(found.operations) == 18
        assert any("follows the JSON" in problem for problem in found.problems) == follows


def test_what_stands_there_twice_is_counted_once(tmp_path):
    trace = made()
    whole = torch_trace.read(trace.write(tmp_path / "once.json"))
    trace.events += trace.events
    trace.range("plan", 1, 2)
    trace.range("plan", 1, 2)
    twice = torch_trace.read(trace.write(tmp_path / "twice.json"))
    same(twice, whole)
    assert (len(twice.calls), len(twice.ranges)) == (len(whole.calls), 1)
    assert twice.problems == ["18 operations stand there twice, and were counted once"]
    export = Export()
    for node in (0, 0, 11, 12):
        export.kernel(100, 200, 1, graphNodeId=node)
    found = nsys.read_timeline(export.write(tmp_path / "a.sqlite"))
    assert len(found.operations) == 3
    assert found.problems == ["1 operations stand there twice, and were counted once"]


@pytest.mark.parametrize(
    ("blocks", "threads"),
    [((8, 1, 1), (128, 0, 1)), ((8, 1 << 40, 1), (128, 1, 1)), ((10**400, 1, 1), (1024, 2, 1)), ("8", None)],
)  # fmt: skip
def test_no_launch_has_dimensions_that_no_gpu_has(blocks, threads, tmp_path):
    trace = MadeTrace().kernel(DECODE, 60, (4, 8, 1), (16, 4, 2))
    trace.events[0]["args"] |= {"grid": blocks, "block": threads}
    (one,) = reading(trace, tmp_path).kinds
    assert None in (one.grid, one.block)
    assert one.grid in (None, (8, 1, 1)) and one.block in (None, (128, 1, 1))


def test_shapes_of_an_operator_are_whole_numbers(tmp_path):
    trace = made()
    for event in trace.events:
        if event["cat"] == "cpu_op":
            event["args"]["Input Dims"] = [[32, 10**400], [8, 8]]
    path = trace.write(tmp_path / "trace.json")
    assert torch_trace.read(path).shapes[0].dims == ((), (8, 8))
    path.write_text(path.read_text().replace(str(10**400), "1e999"))
    assert torch_trace.read(path).shapes[0].dims == ((), (8, 8))


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_verbs_of_reports_name_the_one_that_reads_a_trace_of_torch(name, tmp_path):
    path = made().write(tmp_path / name)
    verbs = (profiled.read, lambda one: files.view([one]), lambda one: dispatch(["show", str(one)]))
    for verb in some(verbs):
        with pytest.raises(BadInput, match=r"`ncuflow step .*` reads it"):
            verb(path)
