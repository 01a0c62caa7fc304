"""A run's command line: the points it reads, the records it writes, its exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_device import Device, fake_target, made, points_file

from ncuflow.cli import dispatch
from ncuflow.io import BadInput
from ncuflow.runner import builds, gpu
from ncuflow.runner import run as running
from ncuflow.runner.run import read_points


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


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, Path]]:
    """(exit status, OUT) of the command line on two points of a fake target and device."""

    def call(*arguments: str, out: str = "out.jsonl", **kinds: Any) -> tuple[int, Path]:
        device = Device()
        monkeypatch.setattr(gpu, "Gpu", lambda: device)
        monkeypatch.setattr(running, "load", lambda name: fake_target(device, **kinds))
        monkeypatch.setattr(builds, "CompilerWatch", lambda: SimpleNamespace(started=0))
        path = points_file(tmp_path, [point.as_dict() for point in made(2)])
        files = ["--points", str(path), "--out", str(tmp_path / out)]
        return dispatch(["launch", "fake", *files, *arguments]), tmp_path / out

    return call


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_the_command_writes_one_record_a_point(
    command: Callable[..., tuple[int, Path]], capsys: pytest.CaptureFixture[str]
) -> None:
    status, out = command("--mode", "time")
    assert status == 0
    assert [record["point"] for record in lines(out)] == ["fake/p1", "fake/p2"]
    assert sorted(p.name for p in out.parent.iterdir()) == ["out.jsonl", "points.json"]
    assert "[1/2] fake/p1: ok" in capsys.readouterr().err


class Cut(BaseException):
    """As KeyboardInterrupt: no error of the point."""


def test_a_run_that_is_cut_off_leaves_no_output_but_what_it_had(
    command: Callable[..., tuple[int, Path]], tmp_path: Path
) -> None:
    with pytest.raises(Cut):
        command("--mode", "check", p2=Cut())
    assert not (tmp_path / "out.jsonl").exists()
    assert [r["point"] for r in lines(tmp_path / "out.jsonl.partial")] == ["fake/p1"]


@pytest.mark.parametrize(
    ("mode", "expected"), [("trace", "ok"), ("time", "wrong"), ("check", "wrong")]
)
def test_only_a_trace_can_go_unchecked(
    command: Callable[..., tuple[int, Path]], mode: str, expected: str
) -> None:
    _, out = command("--mode", mode, "--unchecked", p1=2.5)
    assert lines(out)[0]["status"] == expected


def test_records_can_be_followed_while_the_run_goes_on(
    command: Callable[..., tuple[int, Path]], tmp_path: Path
) -> None:
    seen: list[str] = []
    partial = tmp_path / "out.jsonl.partial"
    command("--mode", "check", p2=lambda: seen.extend(r["point"] for r in lines(partial)))
    assert set(seen) == {"fake/p1"}


def test_a_lost_gpu_still_writes_all_records(
    command: Callable[..., tuple[int, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "alive", lambda self: False)
    status, out = command("--mode", "time", p1=RuntimeError("sticky"))
    assert status == 4
    assert [record["status"] for record in lines(out)] == ["error", "lost"]


def test_faults_come_from_the_environment(
    command: Callable[..., tuple[int, Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCUFLOW_FAULT", "wrong:*p2")
    status, out = command("--mode", "check")
    assert (status, [r["status"] for r in lines(out)]) == (3, ["ok", "wrong"])


def test_no_gpu_is_fatal_and_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def none() -> None:
        raise RuntimeError("no CUDA device is available to torch")

    monkeypatch.setattr(gpu, "Gpu", none)
    entry = {"id": "rmsnorm/rmsnorm_R4096_D4096_f16", "target": "rmsnorm", "params": {}}
    path, out = points_file(tmp_path, [entry]), tmp_path / "out.jsonl"
    assert dispatch(["launch", "rmsnorm", "--points", str(path), "--out", str(out)]) == 1
    assert capsys.readouterr().err == "error: RuntimeError: no CUDA device is available to torch\n"
    assert not out.exists()


@pytest.mark.parametrize("missing", ["torch", "flashinfer"])
def test_a_build_without_what_it_needs_is_fatal_and_one_line(
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    if missing == "flashinfer":  # the GPUs, which torch would know, are not asked for then
        monkeypatch.setenv(builds.ARCH_LIST, "9.0a")
    monkeypatch.setitem(sys.modules, missing, None)
    entry = {"id": "rmsnorm/rmsnorm_R4096_D4096_f16", "target": "rmsnorm", "params": {}}
    path, out = points_file(tmp_path, [entry]), tmp_path / "build.json"
    files = ["--points", str(path), "--out", str(out)]
    assert dispatch(["build", *files]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: ModuleNotFoundError: ") and missing in error
    assert error.count("\n") == 1 and not out.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nope", "--points", "p", "--out", "o"], "error: unknown kernel target 'nope'"),
        (["decode", "--out", "o"], "required: --points"),
        (["decode", "--points", "none.json", "--out", "o"], "error: none.json: no such file"),
        (["decode", "--points", "p", "--out", "o", "--repeats", "0"], "--repeats must be"),
    ],
)
def test_bad_usage_exits_2_and_writes_nothing(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    root = Path(__file__).parents[1]
    code = f"import sys; sys.path.insert(0, {str(root)!r}); from ncuflow.cli import main; "
    code += f"main({['launch', *arguments]!r})"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert message in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_what_a_profiler_hooked_into_the_exit_runs() -> None:
    """A profiler that is inside the process writes its last buffers there."""
    code = "import atexit; from ncuflow.cli import main; atexit.register(print, 'hooked'); "
    code += "main(['launch', 'decode', '--points', 'none.json', '--out', 'o'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "hooked\n")
