"""A run's command line: the points it reads, the records it writes, its exit status."""

import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import ncuflow, python
from fake_device import Device, fake_target, made, points_file

from ncuflow.cli import dispatch, ended
from ncuflow.io import BadInput
from ncuflow.run import builds, gpu, launch, timing
from ncuflow.run import launch as running
from ncuflow.run.launch import read_points
from ncuflow.run.visits import shuffled
from ncuflow.target.contract import Target


def test_points_are_read_and_completed_by_the_defaults(tmp_path: Path) -> None:
    path = points_file(tmp_path, [{"id": "fake/p1", "target": "fake", "params": {}}])
    assert read_points(path, fake_target(Device())) == made(1)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ("{", "not JSON"),
        ([], "not a list of points"),
        ({"id": "x"}, "not a list of points"),
        ([{"id": "fake/p1"}], "without id, target and params"),
        ([{"id": "fake/p1", "target": "other", "params": {}}], "a point of other, not fake"),
        ([{"id": "fake/p1", "target": "fake", "params": {"m": 1}}], "unknown parameter 'm'"),
        ([{"id": "fake/p1", "target": "fake", "params": {"n": [1, 2]}}], "several values"),
        ([{"id": "fake/p1", "target": "fake", "params": {"n": 2}}], "are those of fake/p2"),
    ],
)
def test_a_bad_points_file_is_named(tmp_path: Path, entries: Any, message: str) -> None:
    path = points_file(tmp_path, entries)
    with pytest.raises(BadInput, match=message) as caught:
        read_points(path, fake_target(Device()))
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


def ran(
    monkeypatch, folder: Path, device: Any, n: int, words: list[str], **kinds: Any
) -> tuple[int, Path]:
    """(exit status, OUT) of the command line on n points of a fake target; what a run starts as further processes runs in
    this one."""
    monkeypatch.setattr(gpu, "Gpu", device)
    log = SimpleNamespace(log=[])
    monkeypatch.setattr(running, "load", lambda name: fake_target(log, **kinds))
    monkeypatch.setattr(builds, "CompilerWatch", lambda: SimpleNamespace(started=0))
    monkeypatch.setattr(running, "_apart", alone)
    path, out = points_file(folder, [point.as_dict() for point in made(n)]), folder / "out.jsonl"
    return dispatch(["launch", "fake", "--points", str(path), "--out", str(out), *words]), out


@pytest.fixture
def command(tmp_path, monkeypatch) -> Callable[..., tuple[int, Path]]:
    """(exit status, OUT) of the command line on two points of a fake target and device."""
    return lambda *words, **kinds: ran(monkeypatch, tmp_path, Device, 2, [*words], **kinds)


def alone(asked: running.LaunchAsked, target: Target) -> int:
    """A further process, in this one."""
    return running.launched(target, replace(asked, alone=True))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_command_writes_one_record_a_point(command, capsys):
    status, out = command("--mode", "time")
    assert status == 0
    assert [record["point"] for record in lines(out)] == ["fake/p1", "fake/p2"]
    assert sorted(p.name for p in out.parent.iterdir()) == ["out.jsonl", "points.json"]
    assert "[1/2] fake/p1: ok" in capsys.readouterr().err


class Cut(BaseException):
    """As KeyboardInterrupt: no error of the point."""


def test_a_run_that_is_cut_off_leaves_no_output_but_what_it_had(command, tmp_path):
    with pytest.raises(Cut):
        command("--mode", "check", p2=Cut())
    assert not (tmp_path / "out.jsonl").exists()
    assert [r["point"] for r in lines(tmp_path / "out.jsonl.partial")] == ["fake/p1"]


@pytest.mark.parametrize(
    ("mode", "expected"), [("trace", "ok"), ("time", "wrong"), ("check", "wrong")]
)
def test_only_a_trace_can_go_unchecked(command, mode, expected):
    _, out = command("--mode", mode, "--unchecked", p1=2.5)
    assert lines(out)[0]["status"] == expected


def test_records_can_be_followed_while_the_run_goes_on(command, tmp_path):
    seen: list[str] = []
    partial = tmp_path / "out.jsonl.partial"
    command("--mode", "check", p2=lambda: seen.extend(r["point"] for r in lines(partial)))
    assert set(seen) == {"fake/p1"}


Command = Callable[..., tuple[int, Path]]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., Command]:
    """A run of n points on a GPU whose context breaks where a point says so; from the start ``gone`` on there is none."""

    def make(n: int, gone: int = 99) -> Command:
        class Context(Device):
            started = 0

            def __init__(self) -> None:
                super().__init__()
                Context.started += 1
                if Context.started >= gone:
                    raise RuntimeError("no CUDA device is available to torch")
                seen.append(self)

        dates = iter(range(99))
        monkeypatch.setattr(running, "origin", lambda *a: {"date": next(dates)})
        seen: list[Context] = []

        def broken() -> None:
            seen[-1].answers = False
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

        def call(mode: str, *arguments: str, bad: Sequence[str] = ()) -> tuple[int, Path]:
            kinds = dict.fromkeys(bad, broken)
            status, out = ran(
                monkeypatch, tmp_path, Context, n, ["--mode", mode, *arguments], **kinds
            )
            call.started = Context.started
            return status, out

        return call

    return make


@pytest.mark.parametrize("mode", ["check", "time"])
@pytest.mark.parametrize("bad", [["p2"], ["p2", "p5"], ["p1", "p2", "p6"]])
def test_a_point_that_breaks_its_process_costs_itself_alone(machine, mode, bad):
    command = machine(6)
    status, out = command(mode, bad=bad)
    assert status == 3
    assert len({record["origin"]["date"] for record in lines(out)}) == 1  # of the first process
    for name, record in zip(made(6), lines(out), strict=True):
        assert record["point"] == name.id
        expected = "error" if name.id.removeprefix("fake/") in bad else "ok"
        assert record["status"] == expected
        if expected == "error":
            why = "RuntimeError: CUDA error: an illegal memory access was encountered"
            assert (record["reason"], record["timing"]) == (why, None)
    assert sorted(p.name for p in out.parent.iterdir()) == ["out.jsonl", "points.json"]


def test_the_order_and_the_samples_are_those_of_a_run_without_the_fault(machine):
    whole = {record["point"]: record for record in lines(machine(6)("time")[1])}
    command = machine(6)
    _, out = command("time", bad=["p3"])
    assert command.started == 2
    for record in lines(out):
        if record["status"] == "ok":
            assert record["order"] == whole[record["point"]]["order"]
            assert record["timing"]["cold"]["n"] == whole[record["point"]]["timing"]["cold"]["n"]
            assert record["check"] == whole[record["point"]]["check"]


def test_a_gpu_that_no_further_process_can_use_is_lost(machine: Callable[..., Command]) -> None:
    status, out = machine(4, gone=2)("check", bad=["p2"])
    assert status == 4
    assert [record["status"] for record in lines(out)] == ["ok", "error", "lost", "lost"]
    assert lines(out)[2]["work"]["flops"] == 1
    assert {record["reason"] for record in lines(out)[2:]} == {
        "the GPU was lost at fake/p2: RuntimeError: CUDA error: an illegal memory access was encountered"
    }


def test_what_was_measured_before_the_gpu_was_lost_stands(machine: Callable[..., Command]) -> None:
    order = [point.id for point in shuffled(made(6), 0, 0)]
    bad = [order[1].removeprefix("fake/"), order[3].removeprefix("fake/")]
    status, out = machine(6, gone=3)("time", bad=bad)
    found = {record["point"]: record["status"] for record in lines(out)}
    assert status == 4
    assert [found[point] for point in order] == ["ok", "error", "ok", "error", "lost", "lost"]


def test_restarts_are_bounded(machine: Callable[..., Command], monkeypatch) -> None:
    count = launch.RESTARTS + 3
    command = machine(count)
    status, out = command("check", bad=[f"p{n}" for n in range(1, count)])
    assert status == 4 and command.started == launch.RESTARTS + 1
    assert [r["status"] for r in lines(out)] == ["error"] * (count - 2) + ["lost"] * 2
    assert lines(out)[-1]["reason"].endswith("; 11 points did so, and no further process tries")


def test_the_last_point_of_a_run_loses_nothing(machine: Callable[..., Command]) -> None:
    command = machine(2)
    status, out = command("check", bad=["p2"])
    assert (status, command.started) == (3, 1)
    assert [r["status"] for r in lines(out)] == ["ok", "error"]


def test_a_trace_stays_in_its_process(machine: Callable[..., Command]) -> None:
    command = machine(3)
    status, out = command("trace", bad=["p2"])
    assert (status, command.started) == (4, 1)
    assert [r["status"] for r in lines(out)] == ["ok", "error", "lost"]


def pairs_of(folder: Path, points: Sequence[Any]) -> tuple[Path, list[str]]:
    """Where a run of these pairs puts them, and the words that ask for it."""
    path, found = folder / "pairs.json", folder / "pairs.jsonl"
    path.write_text(json.dumps([point.as_dict() for point in points]))
    return found, ["--pairs", str(path), "--pairs-out", str(found)]


def test_pairs_go_on_after_a_point_that_broke_its_process(machine, tmp_path):
    found, words = pairs_of(tmp_path, made(6))
    command = machine(6)
    status, out = command("time", "--rounds", "1", *words, bad=["p3"])
    assert (status, [r["status"] for r in lines(out)]) == (3, ["ok", "ok", "error", *["ok"] * 3])
    assert [r["status"] for r in lines(found)] == ["ok", "error", "ok"]
    assert lines(found)[1]["reason"].startswith("fake/p3: RuntimeError: CUDA error: ")
    assert command.started == 2
    dates = {record["origin"]["date"] for record in [*lines(out), *lines(found)]}
    assert dates == {0}  # they are of one run
    _, out = machine(6)("time", *words)
    assert {r["status"] for r in [*lines(out), *lines(found)]} == {"ok"}


def test_a_pair_that_breaks_its_process_costs_itself_alone(machine, tmp_path, monkeypatch):
    found, words = pairs_of(tmp_path, made(6))
    pair, taken = timing.pair, []

    def second_breaks(device: Device, *rest: Any) -> Any:
        taken.append(device)
        if len(taken) == 2:
            device.answers = False
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return pair(device, *rest)

    monkeypatch.setattr(timing, "pair", second_breaks)
    status, out = machine(6)("time", *words)
    assert (status, len(set(map(id, taken)))) == (3, 2)
    assert {r["status"] for r in lines(out)} == {"ok"}
    assert [r["status"] for r in lines(found)] == ["ok", "error", "ok"]


def test_a_side_of_another_batch_breaks_one_process_for_all_its_pairs(machine, tmp_path):
    *points, bad = made(13)
    found, words = pairs_of(tmp_path, [side for point in points for side in (point, bad)])
    command = machine(12)
    status, out = command("time", "--rounds", "1", *words, bad=["p13"])
    assert (status, command.started) == (3, 2)
    assert {r["status"] for r in lines(out)} == {"ok"}
    told = [(r["status"], r["reason"].split(":")[0]) for r in lines(found)]
    assert told == [("error", "fake/p13")] * 12


@pytest.mark.parametrize(
    ("moment", "bad", "visited", "pairs_timed"),
    [  # 1 | 8, which p1 needs no more
        (("pair", 2), ["p1 | p8"], ["p7", "p8"], 5),
        # the sustained rate of p3, after 3 | 4 was timed: p4 has no record yet, and 3 | 5 is refused
        (("complete", 4), ["p3", "p3 | p5"], ["p7", "p4"], 4),
    ],
)
def test_what_breaks_in_a_pair_loses_no_other_point_and_times_none_twice(
    moment, bad, visited, pairs_timed, machine, tmp_path, monkeypatch, capsys
):
    taken = Counter[str]()
    sides = [(1, 2), (3, 4), (5, 6), (3, 5), (1, 8)]
    points = made(8)
    found, words = pairs_of(tmp_path, [points[n - 1] for pair in sides for n in pair])

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(device: Device, *rest: Any) -> Any:
            taken[name] += 1
            if (name, taken[name]) == moment:
                device.answers = False
                raise RuntimeError("CUDA error: an illegal memory access was encountered")
            return real(device, *rest)

        return call

    for name in ("pair", "complete", "visit"):
        monkeypatch.setattr(timing, name, counted(name, getattr(timing, name)))
    command = machine(8)
    status, out = command("time", "--rounds", "1", *words)
    assert (status, command.started) == (3, 2)
    assert [r["point"] for r in lines(out)] == [point.id for point in points]
    assert [r["point"] for r in lines(found)] == [f"fake/p{a} | fake/p{b}" for a, b in sides]
    records = [*lines(out), *lines(found)]
    assert [r["point"].replace("fake/", "") for r in records if r["status"] != "ok"] == bad
    assert (taken["visit"], taken["pair"]) == (len(visited), pairs_timed)
    # Each has a place of its own: that of p3 is its own too, but an error has no order.
    places = {r["point"]: r["order"]["positions"][0] for r in lines(out) if r["order"]}
    assert len(set(places.values())) == len(places) and set(places.values()) <= set(range(8))
    assert sorted(visited, key=lambda p: places[f"fake/{p}"]) == visited
    told = [line for line in capsys.readouterr().err.splitlines() if line.startswith("[")]
    assert [line.split("/")[0] for line in told] == [f"[{n}" for n in range(1, 14)]
    assert told[-1].endswith("about 0 s left")


@pytest.mark.parametrize("words", ["time --pairs p", "trace --pairs p --pairs-out o"])
def test_pairs_without_a_timing_or_a_place_are_bad_usage(command, words):
    with pytest.raises(SystemExit) as left:
        command("--mode", *words.split())
    assert left.value.code == 2


def test_faults_come_from_the_environment(command, monkeypatch):
    monkeypatch.setenv("NCUFLOW_FAULT", "wrong:*p2")
    status, out = command("--mode", "check")
    assert (status, [r["status"] for r in lines(out)]) == (3, ["ok", "wrong"])


def test_no_gpu_is_fatal_and_one_line(monkeypatch, capsys, tmp_path):
    def none() -> None:
        raise RuntimeError("no CUDA device is available to torch")

    monkeypatch.setattr(gpu, "Gpu", none)
    monkeypatch.setattr(running, "_apart", alone)
    entry = {"id": "rmsnorm/rmsnorm_R4096_D4096_f16", "target": "rmsnorm", "params": {}}
    path, out = points_file(tmp_path, [entry]), tmp_path / "out.jsonl"
    words = ["launch", "rmsnorm", "--points", str(path), "--out", str(out)]
    assert ended(lambda: dispatch(words)) == 1
    assert capsys.readouterr().err == "error: RuntimeError: no CUDA device is available to torch\n"
    assert not out.exists()


def test_a_build_without_what_it_needs_is_fatal_and_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "flashinfer", None)
    entry = {"id": "rmsnorm/rmsnorm_R4096_D4096_f16", "target": "rmsnorm", "params": {}}
    path, out = points_file(tmp_path, [entry]), tmp_path / "build.json"
    files = ["--points", str(path), "--out", str(out)]
    assert ended(lambda: dispatch(["build", *files])) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ModuleNotFoundError: ") and "flashinfer" in error
    assert error.count("\n") == 1 and not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope", "--points", "p", "--out", "o"], "error: unknown kernel target 'nope'"),
        (["decode", "--out", "o"], "--points requires an argument"),
        (["decode", "--points", "none.json", "--out", "o"], "error: none.json: no such file"),
        (["decode", "--points", "p", "--out", "o", "--repeats", "0"], "--repeats must be"),
    ],
)
def test_bad_usage_exits_2_and_writes_nothing(tmp_path, arguments, message):
    done = ncuflow("launch", *arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_a_profiler_hooked_into_the_exit_runs() -> None:
    """A profiler that is inside the process writes its last buffers there."""
    code = "import atexit; from ncuflow.cli import main; atexit.register(print, 'hooked'); "
    code += "main(['launch', 'decode', '--points', 'none.json', '--out', 'o'])"
    done = python("-c", code)
    assert (done.returncode, done.stdout) == (2, "hooked\n")
