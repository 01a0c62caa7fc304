"""Child processes: what reaches them, how they end."""

from __future__ import annotations

import ctypes
import os
import select
import sys
from functools import partial
from pathlib import Path

import pytest

from ncuflow import process
from ncuflow.process import CaptureError, minimal_environment, run_child, scrub_command


def test_a_child_starts_while_another_thread_holds_the_loader(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    def waits(*given: object) -> None:
        raise RuntimeError("loading torch holds it")

    monkeypatch.setattr(ctypes, "CDLL", waits)
    assert process.output_of(["echo", "here"]) == "here"


def test_minimal_environment_passes_what_a_build_needs_and_no_secret() -> None:
    kept = {
        "PATH": "/bin",
        "CUDA_HOME": "/usr/local/cuda",
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        "MAX_JOBS": "4",
    }
    private = ("HF_TOKEN", "FLASHINFER_API_TOKEN", "NCUFLOW_SECRET", "AWS_REGION", "SSH_AUTH_SOCK")
    assert minimal_environment(kept | dict.fromkeys(private, "planted")) == kept


def test_a_child_runs_this_code_and_takes_no_module_from_the_folder_that_it_works_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("yaml", "ncuflow", "pip", "torch"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
    monkeypatch.chdir(tmp_path)
    lines: list[str] = []
    code = "import ncuflow.io, yaml, sys; print(ncuflow.io.__file__)"
    env = process.python_environment()
    for words in (
        ["-c", code],
        ["-m", "ncuflow", "static", "counters", "gh100"],
        ["-m", "pip", "-V"],
    ):
        done = run_child([sys.executable, *words], env=env, on_line=lines.append)
        assert done.returncode == 0, lines
    assert lines[0] == str(Path(process.__file__).with_name("io.py"))
    monkeypatch.setenv("PYTHONPATH", "/first")
    found = process.python_environment()["PYTHONPATH"].split(os.pathsep)
    assert found[-1] == "/first" and "" not in found
    monkeypatch.setattr(process, "__file__", "/usr/lib/python3/site-packages/ncuflow/process.py")
    assert process.python_environment()["PYTHONPATH"] == "/first"


def test_every_python_that_the_package_starts_has_that_environment() -> None:
    """Or hands its command to who has it."""
    folder = Path(process.__file__).parent
    texts = {
        path.relative_to(folder).as_posix(): path.read_text("utf-8")
        for path in folder.glob("*/*.py")
    }
    starts = {name for name, text in texts.items() if "[sys.executable" in text}
    assert {name for name in starts if "python_environment(" not in texts[name]} == {
        "run/profiler.py"
    }


def test_run_hands_over_lines_and_status() -> None:
    lines: list[str] = []
    outcome = run_child(["sh", "-c", "echo one; echo two >&2; exit 3"], on_line=lines.append)
    assert (lines, outcome.returncode, outcome.timed_out) == (["one", "two"], 3, False)


def test_what_is_done_meanwhile_is_done_while_the_program_runs(tmp_path: Path) -> None:
    pipe, lines = tmp_path / "done", list[str]()
    os.mkfifo(pipe)
    both = os.open(pipe, os.O_RDWR)  # neither end waits for the other
    writes = partial(os.write, both, b"it\n")
    run_child(["head", "-1", str(pipe)], timeout=5.0, on_line=lines.append, meanwhile=writes)
    os.close(both)
    assert lines == ["it"]  # for which the program waited


def test_what_fails_meanwhile_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "held"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def fails() -> None:
        assert select.select([reader], [], [], 5.0)[0]  # the program has begun
        raise OSError("no space left")

    with pytest.raises(OSError, match="no space left"):
        run_child(["sh", "-c", f"exec 3>{pipe}; echo begun >&3; exec sleep 100"], meanwhile=fails)
    assert os.read(reader, 10) == b"begun\n" and os.read(reader, 10) == b""  # nobody holds it
    os.close(reader)


def test_a_profile_begins_without_what_describes_tables() -> None:
    code = "import sys, ncuflow.run.ncu; print(*sys.modules)"
    loaded = (process.output_of([sys.executable, "-c", code]) or "").split()
    assert "ncuflow.run.profiler" in loaded
    assert not {"ncuflow.model", "pydantic.main"} & set(loaded)


def test_time_limit_ends_the_whole_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    pipe = tmp_path / "held"
    os.mkfifo(pipe)
    # Both ignore polite signals; the grandchild holds the pipe as long as it lives.
    child = f"trap '' INT TERM; exec 3>{pipe}; while :; do sleep 100; done"
    script = f"trap '' INT TERM; ({child}) & wait; wait"
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    outcome = run_child(["bash", "-c", script], timeout=0.5)
    assert outcome.timed_out
    assert select.select([reader], [], [], 20)[0], "the grandchild outlived the time limit"
    assert os.read(reader, 1) == b""  # end of file: nobody holds the pipe any more
    os.close(reader)


def test_missing_program_is_one_clear_error() -> None:
    with pytest.raises(CaptureError, match="no-such-program: No such file"):
        run_child(["no-such-program"])


def test_scrub_command_keeps_no_absolute_path(tmp_path: Path) -> None:
    inside = tmp_path / "outputs" / "points.json"
    command = [sys.executable, "-m", "x", str(inside), "/opt/nvidia/ncu", f"--output={inside}"]
    kept = "python -m x outputs/points.json ncu --output=outputs/points.json"
    assert scrub_command(command, root=tmp_path) == kept.split()


def test_the_time_that_a_program_waits_for_its_turn_does_not_count() -> None:
    asked: list[float] = []

    def waited() -> float:
        asked.append(0.0)
        return 1000.0 if len(asked) < 3 else 0.0

    hangs = [sys.executable, "-c", "import signal; signal.pause()"]
    assert run_child(hangs, timeout=0.01, waited=lambda: 0.0).timed_out
    ends = [sys.executable, "-c", "pass"]
    assert not run_child(ends, timeout=0.0, waited=waited).timed_out
