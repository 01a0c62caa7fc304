"""The workflow file of docs/ci.md, step by step, and what the container file copies and runs."""

import os
import re
import sys
from pathlib import Path

import yaml
from command import ran
from conftest import ROOT, Pipeline, some

INSTALLS = "pip install"


def steps() -> list[str]:
    """The commands of the workflow file, in order; what installs this very checkout is left out."""
    text = (ROOT / "docs/ci.md").read_text()
    found = re.search(r"<!-- workflow -->\n```yaml\n(.*?)```", text, re.DOTALL)
    assert found
    job = yaml.safe_load(found[1])["jobs"]["kernels"]
    return [step["run"] for step in job["steps"] if "run" in step]


def test_every_command_of_the_workflow_file_runs(project: Pipeline) -> None:
    summary = project.folder / "step-summary"
    python = Path(sys.executable).parent
    # `ncuflow` and `snakemake` as the install step would bring them, of this checkout
    bin_folder = project.folder / "bin"
    bin_folder.mkdir()
    for name in ("ncuflow", "snakemake"):
        program = bin_folder / name
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -m {name} "$@"\n')
        program.chmod(0o755)
    environment = {
        "PATH": f"{bin_folder}:{python}:{os.environ['PATH']}",
        "PYTHONPATH": str(project.folder),
        "GITHUB_STEP_SUMMARY": str(summary),
    }
    commands = steps()
    assert sum(INSTALLS in command for command in commands) == 1
    for command in commands:
        if INSTALLS not in command:
            done = ran("bash", "-e", "-c", command, cwd=project.folder, **environment)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    assert "All 1 requirements hold." in summary.read_text()
    assert (project.folder / "junit.xml").exists() and (project.folder / "benchmark.json").exists()


def normal(pinned: str) -> str:
    """A pinned name as indexes have it."""
    name, _, version = pinned.partition("==")
    return f"{re.sub(r'[-_.]+', '-', name).lower()}=={version}"


def test_both_locks_name_the_same_versions_and_one_has_a_hash_of_each() -> None:
    pinned = re.findall(r"^\S+==\S+$", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    text = (ROOT / "requirements-hashes.lock").read_text().replace("\\\n", " ")
    hashed = [line.split() for line in text.splitlines() if not line.startswith("#")]
    assert pinned and {normal(one) for one, *_ in hashed} == {normal(one) for one in pinned}
    for _, *hashes in hashed:
        assert hashes and all(re.fullmatch("--hash=sha256:[0-9a-f]{64}", one) for one in hashes)


def test_actions_are_taken_by_their_commit() -> None:
    for path in some((ROOT / ".github/workflows").glob("*.yml")):
        used = re.findall(r"uses: (\S+)", path.read_text())
        assert used and all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one) for one in used)
