"""Tracing under a fake nsys: what it gets to see, what is stored, what is lost."""

from __future__ import annotations

import json
import lzma
import os
import re
import sqlite3
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import fake_gpus
import pytest
from fake_gpus import TOKEN, program

from ncuflow.cli import dispatch
from ncuflow.evidence.scrub import scrub_trace, tables
from ncuflow.process import CaptureError
from ncuflow.run import nsys

POINTS = ["rope/T512", "rope/T4096"]
RECORDED = Path(__file__).parents[1] / "recordings/h200/0.7.2/default"
SCHEMA = """
CREATE TABLE StringIds (id INTEGER NOT NULL PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, text TEXT, globalTid INTEGER, textId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start INTEGER, end INTEGER, globalTid INTEGER,
    correlationId INTEGER, nameId INTEGER);
CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, correlationId INTEGER,
    shortName INTEGER NOT NULL, -- REFERENCES StringIds(id) -- Base kernel function name
    cacheLabel INTEGER -- REFERENCES StringIds(id)
);
CREATE TABLE TARGET_INFO_GPU (id INTEGER, name TEXT, busLocation TEXT, uuid TEXT);
CREATE TABLE TARGET_INFO_CUDA_DEVICE (gpuId INTEGER NOT NULL, uuid TEXT NOT NULL);
CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, nameEnum INTEGER, value TEXT);
CREATE TABLE PROCESSES (globalPid INTEGER, name TEXT);
CREATE TABLE ANALYSIS_DETAILS (command TEXT);
CREATE TABLE DIAGNOSTIC_EVENT (severity INTEGER, text TEXT);
CREATE TABLE FUTURE_TABLE (surprise TEXT);
CREATE TABLE META_DATA_CAPTURE (name TEXT, value TEXT);
CREATE TABLE META_DATA_EXPORT (name TEXT, value TEXT);
CREATE INDEX someIndex ON PROCESSES(name);
"""


STRINGS = (
    "RopeKernel",
    "cudaLaunchKernel",
    f"/home/alice/run.py --token {TOKEN}",
    POINTS[-1],
    "/home/alice/k",
)
# What a real one has beside the launches, most of it private.
ROWS = {
    "TARGET_INFO_GPU": [(0, "NVIDIA H200", "0000:41:00.0", "ffcf-uuid")],
    "TARGET_INFO_CUDA_DEVICE": [(0, "ffcf-uuid")],
    "TARGET_INFO_SYSTEM_ENV": [("HF_TOKEN", number, TOKEN) for number in range(200)],
    "PROCESSES": [(1, "/home/alice/venv/bin/python")],
    "ANALYSIS_DETAILS": [("nsys profile alice",)],
    "DIAGNOSTIC_EVENT": [(2, "Not all CUDA events might have been collected."), (2, "see /home/alice/log.txt")],
    "FUTURE_TABLE": [("alice was here",)],
    "META_DATA_EXPORT": [("EXPORT_SCHEMA_VERSION", "3.7.2"), ("EXPORT_USER", "alice"),
                         ("EXPORT_PARAM_INPUT_FILE", "/home/alice/x")],
    "META_DATA_CAPTURE": [("COMMAND", "alice")],
}  # fmt: skip


def insert(database: sqlite3.Connection, table: str, *rows: tuple[Any, ...]) -> None:
    marks = ",".join("?" * len(rows[0]))
    database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


@contextmanager
def changing(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as database, database:
        yield database


def make_export(path: Path, points: Sequence[str] = POINTS) -> Path:
    """A small export with everything private that a real one has."""
    path.unlink(missing_ok=True)
    with changing(path) as database:
        database.executescript(SCHEMA)
        insert(database, "StringIds", *enumerate((*STRINGS[:3], points[-1], STRINGS[4])))
        for n, point in enumerate(points):
            start = 1000 * n
            registered = n == len(points) - 1  # a registered NVTX string has no text, only an id
            text, text_id = (None, 3) if registered else (point, None)
            # a range of another thread, at the same time, launched none of these kernels
            own, another = (
                (start, start + 500, text, 7, text_id),
                (start, start + 500, points[0], 9, None),
            )
            insert(database, "NVTX_EVENTS", own, another)
            for k in range(n + 1):
                launch = (start + 10 + k, start + 20 + k, 7, 10 * n + k, 1)
                insert(database, "CUPTI_ACTIVITY_KIND_RUNTIME", launch)
                # it runs after its range has closed
                insert(
                    database,
                    "CUPTI_ACTIVITY_KIND_KERNEL",
                    (start + 600, start + 700, 10 * n + k, 0, 4),
                )
        insert(database, "CUPTI_ACTIVITY_KIND_KERNEL", (0, 1, 999, 0, None))  # warm-up
        for table, rows in ROWS.items():
            insert(database, table, *rows)
    return path


def known(value: str) -> dict[str, re.Pattern[bytes]]:
    return {"planted value": re.compile(re.escape(value.encode()))}


def test_kernels_belong_to_the_range_that_launched_them(tmp_path: Path) -> None:
    found = nsys.count_kernels(make_export(tmp_path / "t.sqlite"), [*POINTS, "rope/T9"])
    assert found.kernels == {"rope/T512": 1, "rope/T4096": 2}
    assert (found.total, found.unattributed) == (4, 1)


def many_ranges(path: Path, number: int) -> Path:
    """An export of `number` ranges, each with a kernel and four other calls."""
    with changing(make_export(path, POINTS[:1])) as database:
        for start in range(1000, 1000 * number, 1000):
            insert(database, "NVTX_EVENTS", (start, start + 500, POINTS[0], 7, None))
            calls = [(at, at, 7, at, 1) for at in range(start, start + 5)]
            insert(database, "CUPTI_ACTIVITY_KIND_RUNTIME", *calls)
            insert(database, "CUPTI_ACTIVITY_KIND_KERNEL", (0, 1, start, 0, None))
    return path


def test_counting_takes_steps_in_proportion_to_the_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs while the GPU is locked."""
    files = {number: many_ranges(tmp_path / f"{number}.sqlite", number) for number in (100, 400)}
    steps: list[int] = []
    connect = sqlite3.connect

    def counted(*args: Any, **options: Any) -> sqlite3.Connection:
        database = connect(*args, **options)
        database.set_progress_handler(lambda: steps.append(number), 100)
        return database

    monkeypatch.setattr(sqlite3, "connect", counted)
    for number, path in files.items():
        assert nsys.count_kernels(path, POINTS).kernels == {POINTS[0]: number}
    assert 0 < steps.count(400) < 6 * steps.count(100)


def test_scrub_leaves_no_byte_of_what_is_private(tmp_path: Path) -> None:
    path = make_export(tmp_path / "t.sqlite")
    before, counted = path.read_bytes(), nsys.count_kernels(path, POINTS)
    private = (TOKEN.encode(), b"alice", b"ffcf-uuid", b"0000:41:00.0")
    assert all(value in before for value in private)
    scrub_trace(path, known(TOKEN))
    after = path.read_bytes()
    assert not [value for value in private if value in after]
    assert len(after) < len(before)
    # What the timeline needs is kept.
    assert nsys.count_kernels(path, POINTS) == counted
    with changing(path) as database:
        assert set(tables(database)) == {
            "StringIds", "NVTX_EVENTS", "CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_KERNEL",
            "TARGET_INFO_GPU", "META_DATA_EXPORT", "DIAGNOSTIC_EVENT",
        }  # fmt: skip
        kept = {
            "text FROM DIAGNOSTIC_EVENT": [("Not all CUDA events might have been collected.",), ("[removed]",)],
            "* FROM StringIds": [(0, "RopeKernel"), (1, "cudaLaunchKernel"), (3, "rope/T4096"), (4, "[removed]")],
            "name, uuid FROM TARGET_INFO_GPU": [("NVIDIA H200", None)],
            "* FROM META_DATA_EXPORT": [("EXPORT_SCHEMA_VERSION", "3.7.2")],
        }  # fmt: skip
        for what, rows in kept.items():
            assert database.execute(f"SELECT {what}").fetchall() == rows


def test_a_secret_that_scrubbing_cannot_reach_and_what_is_no_database_are_refused(
    tmp_path: Path,
) -> None:
    path = make_export(tmp_path / "t.sqlite")
    with pytest.raises(CaptureError, match="still holds planted value"):
        scrub_trace(path, known("NVIDIA H200"))
    path.write_text("version https://git-lfs.github.com/spec/v1\n" * 40)
    with pytest.raises(CaptureError, match=r"t\.sqlite: not an nsys SQLite export"):
        scrub_trace(path, {})


@pytest.mark.parametrize("name", ["rope", "decode"])
def test_scrub_of_a_real_export_keeps_its_kernels(tmp_path: Path, name: str) -> None:
    path = tmp_path / "t.sqlite"
    (recorded,) = RECORDED.glob(f"{name}/b*/trace.sqlite.xz")
    path.write_bytes(lzma.decompress(recorded.read_bytes()))
    named = f"SELECT text FROM NVTX_EVENTS WHERE text LIKE '{name}/%'"
    with changing(path) as database:
        database.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        insert(database, "TARGET_INFO_SYSTEM_ENV", ("HF_TOKEN", TOKEN))
        ranges = [text for (text,) in database.execute(named)]
    before = nsys.count_kernels(path, ranges)
    assert set(before.kernels) == set(ranges) and TOKEN.encode() in path.read_bytes()
    scrub_trace(path, known(TOKEN))
    assert nsys.count_kernels(path, ranges) == before
    assert TOKEN.encode() not in path.read_bytes()


FAKE = """
case "$1" in
--version) echo "NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0"; exit;;
export) for word; do case $word in --output=*) out=${{word#--output=}};; esac; done
  cp export.sqlite "$out"; exit;;
esac
echo "$*" >args; env >seen; echo "$LD_LIBRARY_PATH" >nsys-libraries
while [ $# -gt 0 ]; do
  case $1 in -o) echo x >"$2.nsys-rep"; shift 2;; profile|--*) shift;; *) break;; esac
done
eval "$(echo "$*" | sed 's# [^ ]*python[^ ]* .*# env >program-seen#')"
{more}
"""


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/program/libraries")
    make_export(tmp_path / "export.sqlite")
    program(tmp_path, "nsys", FAKE.format(more=""))
    return fake_gpus.bench(monkeypatch, tmp_path, POINTS, **fake_gpus.H200)


def trace(*more: str, target: str = "rope") -> int:
    return dispatch(["nsys", target, "--points", "points.json", "--out", "out", *more])


def recorded(bench: Path) -> dict[str, Any]:
    return json.loads((bench / "out/trace.json").read_text())


def test_a_complete_trace_is_scrubbed_and_its_record_names_no_path(bench, monkeypatch):
    """And nsys has a minimal environment, and libraries of its own that the program does not see."""
    monkeypatch.setenv("NCUFLOW_NSYS_LD_LIBRARY_PATH", "/nsys/libraries")
    assert trace() == 0
    record = recorded(bench)
    assert record["kernels"] == {"rope/T512": 1, "rope/T4096": 2}
    assert (record["lost"], record["unattributed"]) == ([], 1)
    assert (record["origin"]["nsys"], record["origin"]["ncu"]) == ("2023.4.4.54", None)
    stored = (bench / "out/trace.sqlite").read_bytes()
    assert TOKEN.encode() not in stored and b"alice" not in stored
    assert sorted(p.name for p in (bench / "out").iterdir()) == ["trace.json", "trace.sqlite"]
    text, command = (bench / "out/trace.json").read_text(), record["command"]
    assert command[:3] == ["nsys", "profile", "--trace=cuda,nvtx"]
    assert command[command.index("python") :][:5] == ["python", "-m", "ncuflow", "launch", "rope"]
    assert '"/' not in text and str(bench) not in text and "libraries" not in text
    ran = f"env LD_LIBRARY_PATH=/program/libraries {sys.executable} -m ncuflow launch rope"
    assert ran in (bench / "args").read_text()
    seen = (bench / "seen").read_text()
    home = re.search("^HOME=(.*)$", seen, re.MULTILINE)
    assert TOKEN not in seen and home and home[1] != str(Path.home())
    name = "FLASHINFER_WORKSPACE_BASE"
    assert f"{name}={Path.home()}" in seen or name in os.environ
    assert (bench / "nsys-libraries").read_text().strip() == "/nsys/libraries"
    program_seen = (bench / "program-seen").read_text()
    assert "LD_LIBRARY_PATH=/program/libraries" in program_seen
    assert "/nsys/libraries" not in program_seen


def test_a_lost_point_is_named_and_the_trace_stands(bench: Path) -> None:
    make_export(bench / "export.sqlite", [POINTS[0], "rope/other"])
    assert trace() == 3
    assert recorded(bench)["lost"] == [{"point": "rope/T4096", "reason": "not reached"}]


def traced(
    folder: Path, target: str, params: Mapping[str, Mapping[str, Any]], held: Sequence[str]
) -> tuple[list[str], dict[str, str]]:
    """(points in the order in which they were launched, why points are lost) of a trace that holds kernels of ``held``."""
    plan = [{"id": point, "target": target, "params": dict(p)} for point, p in params.items()]
    (folder / "points.json").write_text(json.dumps(plan))
    make_export(folder / "export.sqlite", held)
    says(folder, [{"point": point, "status": "traced"} for point in params])
    assert trace(target=target) == 3
    order = [point["id"] for point in json.loads((folder / "planned").read_text())]
    return order, {entry["point"]: entry["reason"] for entry in recorded(folder)["lost"]}


def says(folder: Path, records: list[dict[str, str]]) -> None:
    """The program leaves these records; what it was given is kept."""
    (folder / "ran").write_text("".join(f"{json.dumps(record)}\n" for record in records))
    look = 'for word; do case $word in */points.json) cp "$word" planned; cp ran "${word%/*}/progress.jsonl";; esac; done'
    program(folder, "nsys", FAKE.format(more=look))


def without_kernels(bench: Path) -> None:
    with changing(bench / "export.sqlite") as database:
        database.execute("DROP TABLE CUPTI_ACTIVITY_KIND_KERNEL")


def test_what_stops_tracing_is_traced_last_and_what_may_before_it(bench: Path) -> None:
    """Decode by fa3 did so in the middle of a sweep, and the points after it had no trace."""
    one, two, three, four = (f"decode/{n}" for n in range(4))
    params = {one: "fa3", two: "auto", three: "fa3", four: "fa2"}
    points = {id: {"cores": "tensor", "backend": backend} for id, backend in params.items()}
    order, lost = traced(bench, "decode", points, [four, two])
    assert order == [four, two, one, three]
    assert set(lost) == {one, three}


def test_a_lost_point_names_the_one_from_which_on_nsys_recorded_nothing(bench: Path) -> None:
    """Also where no target said that it would; a point without a kernel between others is another matter."""
    points = [f"rope/T{tokens}" for tokens in (1, 2, 3, 4, 5)]
    order, lost = traced(bench, "rope", {point: {} for point in points}, [points[0], points[2]])
    assert order == points
    nothing = "no kernel in its NVTX range"
    after = f"{nothing}; nsys 2023.4.4.54 recorded none from rope/T4 on"
    assert lost == {points[1]: nothing, points[3]: after, points[4]: after}


def test_no_report_means_nothing_is_written(bench: Path) -> None:
    program(bench, "nsys", "echo 'Importer error: libssh.so.4 not found'; exit 1")
    with pytest.raises(CaptureError, match=r"libssh\.so\.4") as error:
        trace()
    assert error.value.code == 1
    assert list((bench / "out").iterdir()) == []


def test_a_trace_without_kernels_is_nothing(bench: Path) -> None:
    without_kernels(bench)
    with pytest.raises(CaptureError, match="no kernel") as error:
        trace()
    assert error.value.code == 1


def test_only_points_that_timed_well_are_traced_and_those_unchecked(bench: Path) -> None:
    status = {POINTS[0]: "ok", POINTS[1]: "wrong"}
    rows = [json.dumps({"point": point, "status": value}) for point, value in status.items()]
    (bench / "timing.jsonl").write_text("\n".join(rows))
    trace()
    assert "--unchecked" not in (bench / "args").read_text()
    trace("--timing", "timing.jsonl")
    assert "--unchecked" in (bench / "args").read_text()
    assert recorded(bench)["points"] == [POINTS[0]]


def test_what_a_timing_compares_later_is_not_compared_here(bench: Path) -> None:
    assert trace("--unchecked") == 0
    words = (bench / "args").read_text()
    assert "--unchecked" in words and "--after-builds" in words
    assert recorded(bench)["points"] == POINTS


BROKEN = """
for word; do case $word in */points.json) plan=$word; out=${{word%/*}}/progress.jsonl;; esac; done
cat "$plan" >>launched
if grep -q T512 "$plan"; then
  echo '{{"point": "rope/T512", "status": "error", "reason": "illegal access"}}' >"$out"
  echo '{{"point": "rope/T4096", "status": "lost", "reason": "the GPU was lost"}}' >>"$out"
  exit 4
fi
{then}
"""
GOES_ON = """echo '{"point": "rope/T4096", "status": "ok"}' >"$out"; rm export.sqlite; mv later.sqlite export.sqlite"""


def test_points_that_one_took_along_are_traced_again_without_it(bench: Path) -> None:
    make_export(bench / "later.sqlite", ["rope/other", POINTS[1]])
    program(bench, "nsys", FAKE.format(more=BROKEN.format(then=GOES_ON)))
    assert trace("--unchecked") == 3
    launched = (bench / "launched").read_text()
    assert [launched.count(f'"{point}"') for point in POINTS] == [1, 2]
    record = recorded(bench)
    assert record["points"] == POINTS and set(record["kernels"]) == {POINTS[1]}
    assert record["lost"] == [{"point": POINTS[0], "reason": "error: illegal access"}]


def test_a_report_of_a_broken_run_is_not_taken_for_that_of_the_next(bench: Path) -> None:
    """The second run leaves none."""
    program(bench, "nsys", FAKE.format(more=BROKEN.format(then='rm "$2" 2>/dev/null; exit 1')))
    text = (bench / "bin/nsys").read_text()
    writes = 'echo x >"$2.nsys-rep"'
    assert writes in text
    (bench / "bin/nsys").write_text(text.replace(writes, f"[ -e launched ] || {writes}"))
    with pytest.raises(CaptureError, match="nsys ended with status 1"):
        trace("--unchecked")
    assert list((bench / "out").iterdir()) == []


def test_where_no_point_was_ok_an_empty_trace_says_why(bench: Path) -> None:
    says(bench, [{"point": p, "status": "error", "reason": "no module"} for p in POINTS])
    without_kernels(bench)
    assert trace("--unchecked") == 3
    record = recorded(bench)
    assert (bench / "out/trace.sqlite").stat().st_size == 0 and record["kernels"] == {}
    assert {loss["reason"] for loss in record["lost"]} == {"error: no module"}
