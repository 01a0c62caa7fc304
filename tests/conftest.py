"""Shared fixtures: the checkout, its recordings, and one run of the whole pipeline over them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import gpu_modules
import pytest
import yaml

from ncuflow.evidence.manifest import checksums, sealed

ROOT = Path(__file__).parents[1]
COPIED = (
    "Snakefile", "workflows", "config", "profiles", "targets", "parsers", "ncuflow", "templates", "claims",
    "recordings",
)  # fmt: skip
# The recording that the pages show unless a setting names another.
DEFAULT = ROOT / yaml.safe_load((ROOT / "config/config.yaml").read_text())["recording"]
SECRET = "hunter2-planted-secret"
MODULES = pytest.StashKey[gpu_modules.Modules]()


@dataclass(frozen=True)
class Pipeline:
    """A copy of the project in which the pipeline can be run without touching the checkout."""

    folder: Path

    def run(self, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """``snakemake -j1 ARGUMENTS``; a secret stands in the environment all the while."""
        command = [sys.executable, "-m", "snakemake", "-j1", *arguments]
        environment = os.environ | {"NCUFLOW_TEST_TOKEN": SECRET, "PYTHONDONTWRITEBYTECODE": "1"}
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False
        )
        if check and done.returncode:
            pytest.fail(
                f"{' '.join(arguments)}: status {done.returncode}\n{done.stdout}\n{done.stderr}"
            )
        return done

    def planned(self, *arguments: str) -> list[str]:
        """Names of the rules that a dry run would execute, one an entry a job."""
        done = self.run("-n", "--quiet", "host", *arguments)
        text = done.stdout + done.stderr
        return [
            line.split()[1].rstrip(":")
            for line in text.splitlines()
            if line.startswith(("rule ", "localrule ", "checkpoint "))
        ]

    @property
    def outputs(self) -> Path:
        """The folder of the one machine that the run made pages for."""
        (folder,) = (
            path for path in (self.folder / "outputs").iterdir() if path.name != "this-machine"
        )
        return folder


def copy_project(folder: Path, names: Sequence[str] = COPIED) -> Pipeline:
    """A working copy of the parts that the pipeline needs; recordings are linked, being large."""
    for name in names:
        source = ROOT / name
        if name == "recordings":
            (folder / name).symlink_to(source)
        elif source.is_dir():
            shutil.copytree(
                source, folder / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
            )
        elif source.exists():
            shutil.copy(source, folder / name)
    return Pipeline(folder)


@pytest.fixture(scope="session", autouse=True)
def modules_ahead(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What the chosen GPU tests load is compiled before the first; not by workers of xdist, which share a cache."""
    plan = gpu_modules.plan(request.session.items)
    if any(plan.values()) and not hasattr(request.config, "workerinput"):
        folder = tmp_path_factory.mktemp("modules")
        request.config.stash[MODULES] = gpu_modules.build(plan, folder)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if MODULES in config.stash:
        terminalreporter.section("JIT modules of the GPU tests")
        for line in config.stash[MODULES].summary():
            terminalreporter.line(line)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    """The project after ``snakemake -j1 all`` on recorded evidence. Read it; do not change it."""
    pipeline = copy_project(tmp_path_factory.mktemp("project"))
    pipeline.run("all", "--config", "source=recorded")
    return pipeline


@pytest.fixture
def project(tmp_path: Path) -> Pipeline:
    """A fresh copy of the project, to be changed by the test."""
    return copy_project(tmp_path)


@pytest.fixture
def two_sides(project: Pipeline) -> Pipeline:
    """The project with recordings/one and recordings/two: one target of the shipped recording."""
    source = ROOT / "recordings/h200-flashinfer-0.7.2"
    if not (source / "merge_state").exists():
        pytest.skip("the shipped recording has no merge_state")
    (project.folder / "recordings").unlink()
    for name in ("one", "two"):
        folder = project.folder / "recordings" / name
        shutil.copytree(source / "merge_state", folder / "merge_state")
        for file in ("environment.json", "ceilings.json", "source_index.json.xz"):
            shutil.copy(source / file, folder)
        manifest = json.loads((source / "manifest.json").read_text())
        manifest["targets"] = {"merge_state": manifest["targets"]["merge_state"]}
        manifest["files"] = checksums(folder)
        (folder / "manifest.json").write_text(json.dumps(sealed(manifest)))
    return project


def run_python(code: str, stdout: int | IO[str] = subprocess.PIPE) -> tuple[int, str]:
    """(exit status, stderr) of a Python process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"PYTHONUNBUFFERED": ""},  # a flush that fails leaves its text
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr
