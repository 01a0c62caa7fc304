"""The pipeline through a real Slurm of two nodes, n1 and n2, which `scripts/slurm-test` starts.

Capture runs on the fake machine (`fake_machine.py`); scheduler, nodes, generic resources and the
Snakemake plugin are real, and the profile is the one that ships.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import DEFAULT, Finished, Pipeline
from fake_machine import LIMIT_S, Machine, make
from test_faults import GATED, TABLE, outputs, same_as

from ncuflow.evidence import location

pytestmark = pytest.mark.slurm

# What a small test cluster needs beside the profile: no accounting, and no patience. The plugin waits ten seconds more
# after each look at which no job has ended, so that the first is when one should have.
PROFILE = [
    "--workflow-profile", "profiles/slurm", "--jobs", "4", "--latency-wait", "10",
    "--slurm-status-command", "squeue", "--slurm-init-seconds-before-status-checks", "9",
    "--seconds-between-status-checks", "2",
]  # fmt: skip
RUNS: list[subprocess.Popen[str]] = []  # of the test that runs


@pytest.fixture(scope="module", autouse=True)
def slurm() -> None:
    if not shutil.which("sinfo") or "n1" not in scontrol("show", "nodes"):
        pytest.fail("no Slurm with the nodes n1 and n2 here: scripts/slurm-test starts one")


@pytest.fixture(autouse=True)
def healthy() -> Iterator[None]:
    yield
    for run in RUNS:  # those that a test which failed left behind
        run.kill()
        run.wait()
    RUNS.clear()
    for node in ("n1", "n2"):
        scontrol("update", f"nodename={node}", "state=resume")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return make(tmp_path)


def scontrol(*words: str) -> str:
    return subprocess.run(["scontrol", *words], capture_output=True, text=True, check=False).stdout


def jobs(folder: Path) -> list[dict[str, str]]:
    """Slurm's account of the jobs that were submitted from a folder."""
    found = [
        dict(re.findall(r"(\S+?)=(\S*)", text)) for text in scontrol("show", "jobs").split("\n\n")
    ]
    return [job for job in found if job.get("WorkDir") == str(folder)]


def submit(folder: Path, environment: dict[str, str], *words: str) -> subprocess.Popen[str]:
    """Snakemake with the profile, in the background; its output in `slurm.log`."""
    with (folder / "slurm.log").open("a") as log:
        RUNS.append(subprocess.Popen(
            [sys.executable, "-m", "snakemake", *PROFILE, *words], cwd=folder, env=environment,
            stdout=log, stderr=subprocess.STDOUT, text=True, preexec_fn=interruptible,
        ))  # fmt: skip
    return RUNS[-1]


def interruptible() -> None:
    # A shell starts what runs in its background with interrupts ignored, and so are its children's.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def finish(folder: Path, environment: dict[str, str], *words: str) -> None:
    status = submit(folder, environment, *words).wait(LIMIT_S)
    assert status == 0, (folder / "slurm.log").read_text()


def job_at_gate(machine: Machine, run: subprocess.Popen[str]) -> str:
    """The Slurm job of a run whose measuring process stands at the gate."""
    pid = machine.wait_at_gate(run)
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    # a profiled program has a minimal environment: its Slurm job is its ancestors'
    while not any(v.startswith(b"SLURM_JOB_ID=") for v in variables):
        pid = int(
            Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[1]
        )
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(v for v in variables if v.startswith(b"SLURM_JOB_ID=")).decode().split("=")[1]


def processes_of(job: str) -> list[int]:
    """Processes of a Slurm job on any node (both are this machine)."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if f"SLURM_JOB_ID={job}".encode() in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return found


def until(what: str, condition) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def state(job: str) -> str:
    return re.findall(r"JobState=(\S+)", scontrol("show", "job", job) or "JobState=GONE")[0]


def test_recorded_evidence_end_to_end(project: Pipeline, finished: Finished):
    finish(project.folder, os.environ | {}, "all", "--config", "source=recorded")
    assert outputs(project) == outputs(finished)
    ran = jobs(project.folder)
    assert {job["JobState"] for job in ran} == {"COMPLETED"}
    assert {job["NodeList"] for job in ran} == {"n1", "n2"}


def test_capture_asks_for_one_gpu_a_job(machine: Machine, undisturbed: Machine):
    finish(machine.folder, machine.environment, TABLE)
    same_as(machine, undisturbed)
    asked = {}
    for job in jobs(machine.folder):
        rule = re.sub(r"^(rule|group)_|_wildcards.*$", "", job["Comment"])
        asked.setdefault(rule, set()).add("gpu" in job.get("TresPerJob", ""))
    assert asked["time"] == asked["profile"] == {True}
    assert asked["build"] == {False}


def test_jobs_of_one_rule_can_be_an_array(project: Pipeline):
    files = [
        f"outputs/recorded-{location.name(DEFAULT)}/tables/{name}/timing.parquet"
        for name in ("decode", "rope")
    ]
    more = ["--config", "source=recorded", "--groups", "none=none", "--slurm-array-jobs", "tables"]
    finish(project.folder, os.environ | {}, *more, "--", *files)
    assert [job.get("ArrayTaskId") for job in jobs(project.folder)] == ["1", "2"]


def test_a_cancelled_job_is_survived_by_a_rerun(machine: Machine, undisturbed: Machine):
    machine.plan("gate", GATED)
    run = submit(machine.folder, machine.environment, TABLE)
    for _ in range(2):  # the job and its one retry
        subprocess.run(["scancel", job_at_gate(machine, run)], check=True)
    assert run.wait(LIMIT_S) != 0
    assert GATED not in machine.records()
    machine.forget("gate", GATED)
    finish(machine.folder, machine.environment, TABLE)
    same_as(machine, undisturbed)


def test_a_node_that_dies_loses_nothing(machine: Machine, undisturbed: Machine):
    machine.plan("gate", GATED, once=True)
    run = submit(machine.folder, machine.environment, TABLE)
    job = job_at_gate(machine, run)
    (node,) = re.findall(r" NodeList=(\S+)", scontrol("show", "job", job))
    for pid in processes_of(job):  # what runs on a node dies with it
        os.kill(pid, signal.SIGKILL)
    scontrol("update", f"nodename={node}", "state=down", "reason=test")
    if run.wait(LIMIT_S):  # neither Slurm's requeue nor the retry took it up: a plain rerun does
        finish(machine.folder, machine.environment, TABLE)
    same_as(machine, undisturbed)


def test_an_interrupted_run_leaves_no_job_behind(machine: Machine, undisturbed: Machine):
    machine.plan("gate", GATED, once=True)
    run = submit(machine.folder, machine.environment, TABLE)
    job = job_at_gate(machine, run)
    run.send_signal(signal.SIGINT)
    run.wait(LIMIT_S)
    until("the job to be cancelled", lambda: state(job) == "CANCELLED")
    machine.run("--unlock")
    finish(machine.folder, machine.environment, TABLE)
    same_as(machine, undisturbed)
