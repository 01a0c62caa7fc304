"""A rule's command runs in a child: its status, its log, and what becomes of the process that started it."""

import gc
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from snakemake.persistence import PersistenceBase
from snakemake.scheduling import job_scheduler
from snakemake.settings.types import MaxJobsPerTimespan

from ncuflow import cli
from ncuflow.flow import jobs


def in_pool(log: Path, name: str, *given: jobs.Value, **options: jobs.Value) -> None:
    """Run a command from a thread of a pool, as Snakemake does."""
    with ThreadPoolExecutor(1) as pool:
        pool.submit(jobs.run, str(log), name, *given, **options).result()


def test_a_command_that_ends_well_leaves_an_empty_log(tmp_path: Path):
    evidence = Path(__file__).parents[1] / "recordings/h200/0.7.2/default"
    in_pool(tmp_path / "log", "environment", evidence=evidence, out=tmp_path / "machine.json")
    assert (tmp_path / "machine.json").exists()
    assert (tmp_path / "log").read_text() == ""


def test_a_failure_is_a_line_in_the_log_and_an_error_with_its_status(tmp_path: Path):
    with pytest.raises(RuntimeError, match=r"^ncuflow show .*: exit status 2$"):
        in_pool(tmp_path / "log", "show", tmp_path / "none.ncu-rep")
    assert (tmp_path / "log").read_text().startswith("error: ")


def test_a_child_that_is_killed_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def killed(_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(cli, "main", killed)
    with pytest.raises(RuntimeError, match="exit status -9"):
        in_pool(tmp_path / "log", "check sanity")


def test_a_mistake_of_the_program_leaves_its_traceback(tmp_path, monkeypatch):
    def wrong(_: Any) -> None:
        raise AssertionError("a mistake")

    monkeypatch.setattr(cli, "main", wrong)
    with pytest.raises(RuntimeError, match="exit status 1"):
        in_pool(tmp_path / "log", "check sanity")
    assert "AssertionError: a mistake" in (tmp_path / "log").read_text()


def test_a_missing_package_is_a_line_in_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(jobs, "LATE", ("nowhere_to_be_found",))
    with pytest.raises(RuntimeError, match="No module named 'nowhere_to_be_found'"):
        in_pool(tmp_path / "log", "check sanity")
    assert (tmp_path / "log").read_text() == "error: No module named 'nowhere_to_be_found'\n"


def test_many_at_once_do_not_wait_for_each_other(tmp_path: Path):
    evidence = Path(__file__).parents[1] / "recordings/h200/0.7.2/default"
    with ThreadPoolExecutor(8) as pool:
        logs = [tmp_path / f"{number}.log" for number in range(24)]
        given = [{"evidence": evidence, "out": log.with_suffix(".json")} for log in logs]
        runs = zip(map(str, logs), given, strict=True)
        done = [pool.submit(jobs.run, log, "environment", **one) for log, one in runs]
    assert all(job.exception() is None for job in done)
    assert len(list(tmp_path.glob("*.json"))) == 24


def test_nobody_searches_for_garbage_what_a_child_inherited(tmp_path, monkeypatch):
    monkeypatch.setattr(cli, "main", lambda _: sys.exit(gc.isenabled()))
    inherited = [[number] for number in range(100_000)]
    in_pool(tmp_path / "log", "check sanity")
    assert len(gc.get_objects()) < len(inherited)


def test_the_scheduler_does_not_count_jobs_by_the_second(monkeypatch: pytest.MonkeyPatch):
    """It would look at the sizes of all inputs again for each job that began, each second (Snakemake 9.13 to 9.27)."""
    for of, name in (
        (job_scheduler, "JobRateLimiter"),
        (PersistenceBase, "_serialize_param_pandas"),
    ):
        monkeypatch.setattr(of, name, getattr(of, name))
    jobs.spare_snakemake()
    assert job_scheduler.JobRateLimiter(MaxJobsPerTimespan(100, "1s")) is None
    assert "JobRateLimiter" in job_scheduler.JobScheduler.__init__.__code__.co_names


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"out_dir": Path("a b")}, ["--out-dir", "a b"]),
        ({"floor": 0.5, "of": ["x", Path("y'z")]}, ["--floor", "0.5", "--of", "x", "y'z"]),
        ({"none": None, "off": False, "empty": [], "zero": 0, "on": True}, ["--zero", "0", "--on"]),
    ],
)
def test_values_are_words_as_they_are(options: dict[str, jobs.Value], words: list[str]):
    assert jobs.words_of("pages", "INDEX", ["jit"], **options) == ["pages", "INDEX", "jit", *words]
