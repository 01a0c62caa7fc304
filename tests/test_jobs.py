"""A rule's command runs in a child: its status, its log, and what becomes of the process that started it."""

from __future__ import annotations

import gc
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ncuflow import cli
from ncuflow.flow import jobs


def in_pool(command: str, log: Path) -> None:
    """Run a command from a thread of a pool, as Snakemake does."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(jobs.run, command, str(log)).result()


def test_a_command_that_ends_well_leaves_an_empty_log(tmp_path: Path):
    evidence = Path(__file__).parents[1] / "recordings/h200-flashinfer-0.7.2"
    in_pool(f"environment --evidence {evidence} --out {tmp_path}/machine.json", tmp_path / "log")
    assert (tmp_path / "machine.json").exists()
    assert (tmp_path / "log").read_text() == ""


def test_a_failure_is_a_line_in_the_log_and_an_error_with_its_status(tmp_path: Path):
    with pytest.raises(RuntimeError, match=r"^ncuflow show .*: exit status 2$"):
        in_pool(f"show {tmp_path}/none.ncu-rep", tmp_path / "log")
    assert (tmp_path / "log").read_text().startswith("error: ")


def test_a_child_that_is_killed_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(cli, "main", killed)
    with pytest.raises(RuntimeError, match="exit status -9"):
        in_pool("docs", tmp_path / "log")


def test_a_mistake_of_the_program_leaves_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def wrong(_: Any) -> None:
        raise AssertionError("a mistake")

    monkeypatch.setattr(cli, "main", wrong)
    with pytest.raises(RuntimeError, match="exit status 1"):
        in_pool("docs", tmp_path / "log")
    assert "AssertionError: a mistake" in (tmp_path / "log").read_text()


def test_many_at_once_do_not_wait_for_each_other(tmp_path: Path):
    evidence = Path(__file__).parents[1] / "recordings/h200-flashinfer-0.7.2"
    with ThreadPoolExecutor(8) as pool:
        done = [
            pool.submit(
                jobs.run,
                f"environment --evidence {evidence} --out {tmp_path}/{number}.json",
                str(tmp_path / f"{number}.log"),
            )
            for number in range(24)
        ]
    assert all(job.exception() is None for job in done)
    assert len(list(tmp_path.glob("*.json"))) == 24


def test_a_child_searches_nothing_for_garbage_and_its_parent_nothing_that_a_child_inherited(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(cli, "main", lambda _: sys.exit(gc.isenabled()))
    inherited = [[number] for number in range(100_000)]
    in_pool("docs", tmp_path / "log")
    assert len(gc.get_objects()) < len(inherited)
