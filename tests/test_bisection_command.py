"""`ncuflow bisect` over wheels, and git's over commits, from end to end: real processes, builds and pipes; FlashInfer and the
GPU are none."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import fake_gpus
import pytest
from conftest import ROOT, copy_project

from ncuflow.experiments.bisection import Bisection
from ncuflow.io import SCRATCH

FAKE = Path(__file__).parent / "fake_flashinfer"
PARTS = ("targets", "parsers", "ncuflow", "templates", "claims", "config", "workflows")
pytestmark = pytest.mark.skipif(
    not (shutil.which("ninja") and shutil.which("c++")), reason="needs ninja and a compiler"
)


def wheel(folder: Path, version: str, old: str = "", new: str = "") -> None:
    """A wheel of the FlashInfer that is none, with a text of its kernel replaced."""
    info = f"flashinfer_python-{version}.dist-info"
    path = folder / f"flashinfer_python-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as packed:
        for file in sorted(FAKE.glob("flashinfer/**/*")):
            if file.is_file() and "__pycache__" not in file.parts:
                text = file.read_text()
                if file.name == "toy.cuh":
                    assert old in text
                    text = text.replace(old, new) if old else text
                packed.writestr(file.relative_to(FAKE).as_posix(), text)
        about = f"Metadata-Version: 2.1\nName: flashinfer-python\nVersion: {version}\n"
        packed.writestr(f"{info}/METADATA", about)
        pure = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        packed.writestr(f"{info}/WHEEL", pure)
        packed.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project on a machine with one GPU that is none, and wheels of five versions: the third is slower, the fourth does
    not compile."""
    folder = tmp_path_factory.mktemp("machine")
    copy_project(folder, PARTS)
    with (folder / "ncuflow/run/gpu.py").open("a") as device:
        device.write((FAKE / "device.py").read_text())
    fake_gpus.write(folder, fake_gpus.H200)
    (folder / "tmp").mkdir()
    (folder / "wheels").mkdir()
    for version in ("0.6.1", "0.6.2"):
        wheel(folder / "wheels", version)
    for version in ("0.6.3", "0.6.10"):
        wheel(folder / "wheels", version, "return 100.0", "return 130.0")
    wheel(folder / "wheels", "0.6.9", "return 100.0", "return undeclared")
    return folder


def ran(machine: Path, folder: Path, *command: str, path: str = "") -> tuple[int, str]:
    """(exit status, output) of a command; checks that nothing is left of what was installed. path: of Python, before its own."""
    env = os.environ | fake_gpus.environment(machine) | {
        "NCUFLOW_LOCK_DIR": str(machine / "locks"),
        "NCUFLOW_TARGETS": str(FAKE / "targets"),
        "FLASHINFER_WORKSPACE_BASE": str(machine / "base"),
        "TMPDIR": str(machine / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    env.pop("CUDA_VISIBLE_DEVICES", None)
    env["PYTHONPATH"] = os.pathsep.join([*filter(None, [path]), env["PYTHONPATH"]])
    env["PATH"] = os.pathsep.join([str(machine / "bin"), env["PATH"]])
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert not list((machine / "tmp").glob(f"{SCRATCH}*"))
    return done.returncode, done.stdout + done.stderr


def bisected(machine: Path, *words: str) -> tuple[int, str, Bisection | None]:
    """(exit status, output, record or None)."""
    out = machine / "out.json"
    out.unlink(missing_ok=True)
    command = [
        sys.executable,
        "-m",
        "ncuflow",
        "bisect",
        "--point",
        "twice/toy_n3",
        "--out",
        str(out),
    ]
    status, said = ran(machine, machine, *command, *words)
    found = Bisection.model_validate(json.loads(out.read_text())) if out.exists() else None
    return status, said, found


def test_the_wheel_that_became_slower_is_found_and_what_does_not_compile_passed_over(
    machine: Path, tmp_path: Path
) -> None:
    ends = ["--wheels", "wheels", "--good", "0.6.1", "--bad", "0.6.10"]
    journal = tmp_path / "bisect.jsonl"
    status, said, found = bisected(machine, *ends, "--journal", str(journal))
    assert status == 0 and found is not None, said
    (one,) = found.found
    assert (one.before, one.after, one.between) == ("0.6.2", "0.6.3", [])
    assert one.change is not None and 0.29 < one.change.low <= one.change.high < 0.31
    assert one.files == ["data/include/flashinfer/toy.cuh"]
    assert "0.6.10: held against 0.6.1" in said
    steps = len(found.steps)
    status, said, found = bisected(machine, *ends, "--journal", str(journal))
    assert status == 0 and found is not None and len(found.steps) == steps
    assert "0.6.10: held against 0.6.1" not in said


@pytest.mark.exhaustive
def test_what_does_not_compile_stands_between_the_neighbours(machine: Path) -> None:
    words = ["--wheels", "wheels", "--good", "0.6.3", "--bad", "0.6.9"]
    status, said, found = bisected(machine, *words)
    assert status == 5 and found is not None and found.outcome == "untold", said
    assert "undeclared" in str(found.steps[0].reason)


def test_values_of_a_variable_that_nothing_reads_are_the_same(machine: Path) -> None:
    shutil.copytree(FAKE / "flashinfer", machine / "flashinfer", dirs_exist_ok=True)
    try:
        status, said, found = bisected(machine, "--env", "NCUFLOW_NOBODY=1,2")
    finally:
        shutil.rmtree(machine / "flashinfer")
    assert status == 3 and found is not None and found.outcome == "no change", said


# The two lines of the documentation that tell git what a trial found.
JUDGE = re.search(r"```sh\n(.*?)```", (ROOT / "docs/advise.md").read_text(), re.DOTALL)
LINK = re.search(r"^mkdir.*ln -sf.*$", (ROOT / "docs/advise.md").read_text(), re.MULTILINE)


@pytest.mark.parametrize(
    ("second", "more", "ends", "named"),
    [
        pytest.param("return 100.0 + 0", "", "is the first bad commit", [2], id="slower"),
        *(
            pytest.param(*case, id=case[2], marks=pytest.mark.exhaustive)
            for case in (
                ("return undeclared", "", "The first bad commit could be any of", [1, 2]),
                ("return 100.0 + 0", "--points nowhere.json", "bisect run failed", []),
            )
        ),
    ],
)
def test_git_finds_the_commit_by_what_the_documentation_says(
    machine: Path, tmp_path: Path, second: str, more: str, ends: str, named: list[int]
) -> None:
    shutil.copytree(FAKE / "flashinfer", machine / "site/flashinfer", dirs_exist_ok=True)
    (machine / "bin").mkdir(exist_ok=True)
    program = machine / "bin/ncuflow"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m ncuflow "$@"\n')
    program.chmod(0o755)

    def done(*command: str) -> str:
        path = os.pathsep.join(map(str, (machine, machine / "site")))
        return ran(machine, tmp_path, *command, path=path)[1]

    def git(*words: str) -> str:
        return done("git", "-c", "user.name=a", "-c", "user.email=a@b.c", *words)

    # A checkout as FlashInfer's own lies, without the links of a build.
    shutil.copytree(FAKE / "flashinfer", tmp_path / "flashinfer")
    (tmp_path / "flashinfer/data/include").rename(tmp_path / "include")
    for folder in ("csrc", "3rdparty/cutlass"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "a.cuh").touch()
    (tmp_path / ".gitignore").write_text("flashinfer/data/\n__pycache__/\n")
    git("init", "-q", "-b", "main")
    header, commits = tmp_path / "include/flashinfer/toy.cuh", []
    text = header.read_text()
    for takes in ("return 100.0", second, "return 130.0", "return 130.0 + 0"):
        header.write_text(text.replace("return 100.0", takes))
        git("add", "-A")
        git("commit", "-qm", takes)
        commits.append(git("rev-parse", "HEAD").strip())
    assert JUDGE is not None and LINK is not None
    judge = JUDGE[1].replace("--target decode", f"--target twice {more}")
    (tmp_path / "judge.sh").write_text(judge)
    done("sh", "-c", LINK[0])
    git("bisect", "start", commits[3], commits[0])
    said = git("bisect", "run", "sh", "judge.sh")
    assert ends in said, said
    about = said[said.index(ends) - 41 :]  # behind the commit that is named
    assert [number for number in (1, 2) if commits[number] in about] == named, said
