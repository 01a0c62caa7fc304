"""`ncuflow bisect` over wheels, and git's over commits, from end to end: real processes, builds and pipes; FlashInfer and the
GPU are none."""

import os
import re
import shutil
import sys
from pathlib import Path

import fake_race
import pytest
from conftest import ROOT
from fake_race import FAKE

from ncuflow.experiments.bisection import Bisection

HEADER = "data/include/flashinfer/toy.cuh"
pytestmark = pytest.mark.skipif(
    not (shutil.which("ninja") and shutil.which("c++")), reason="needs ninja and a compiler"
)


def wheel(folder: Path, version: str, old: str = "", new: str = "") -> None:
    """A wheel of the FlashInfer that is none, with a text of its kernel replaced."""
    package = FAKE / "flashinfer"
    paths = [path for path in sorted(package.rglob("*.*")) if path.suffix in (".py", ".cuh")]
    files = {path.relative_to(package).as_posix(): path.read_text() for path in paths}
    assert old in files[HEADER]
    files[HEADER] = files[HEADER].replace(old, new) if old else files[HEADER]
    fake_race.wheel(folder, version, files)


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project on a machine with one GPU that is none, and wheels of five versions: the third is slower, the fourth does
    not compile."""
    folder = fake_race.make(tmp_path_factory.mktemp("machine"))
    (folder / "wheels").mkdir()
    for version in ("0.6.1", "0.6.2"):
        wheel(folder / "wheels", version)
    for version in ("0.6.3", "0.6.10"):
        wheel(folder / "wheels", version, "return 100.0", "return 130.0")
    wheel(folder / "wheels", "0.6.9", "return 100.0", "return undeclared")
    return folder


def bisected(machine: Path, *words: str) -> tuple[int, str, Bisection | None]:
    """(exit status, output, record or None)."""
    command = ["bisect", "--point", "twice/toy_n3", *words]
    status, said, found = fake_race.recorded(machine, *command)
    return status, said, found and Bisection.model_validate(found)


def test_the_wheel_that_became_slower_is_found_beside_one_that_does_not_compile(machine, tmp_path):
    ends = ["--wheels", "wheels", "--good", "0.6.1", "--bad", "0.6.10"]
    journal = tmp_path / "bisect.jsonl"
    status, said, found = bisected(machine, *ends, "--journal", str(journal))
    assert status == 0 and found is not None, said
    (one,) = found.found
    assert (one.before, one.after, one.between) == ("0.6.2", "0.6.3", [])
    assert one.change is not None and 0.29 < one.change.low <= one.change.high < 0.31
    assert one.files == ["data/include/flashinfer/toy.cuh"]
    assert "0.6.10: compared with 0.6.1" in said
    steps = len(found.steps)
    status, said, found = bisected(machine, *ends, "--journal", str(journal))
    assert status == 0 and found is not None and len(found.steps) == steps
    assert "0.6.10: compared with 0.6.1" not in said


@pytest.mark.exhaustive
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
    ("between", "more", "ends", "named"),
    [
        pytest.param(["100.0 + 0"], "", "is the first bad commit", [2], id="slower"),
        *(
            pytest.param([one, "130.0"], *case, id=case[1], marks=pytest.mark.exhaustive)
            for one, *case in (
                ("undeclared", "", "The first bad commit could be any of", [1, 2]),
                ("100.0 + 0", "--points nowhere.json", "bisect run failed", []),
            )
        ),
    ],
)
def test_git_finds_the_commit_by_what_the_documentation_says(
    machine, tmp_path, between, more, ends, named
):
    shutil.copytree(FAKE / "flashinfer", machine / "site/flashinfer", dirs_exist_ok=True)
    (machine / "bin").mkdir(exist_ok=True)
    program = machine / "bin/ncuflow"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -P -m ncuflow "$@"\n')
    program.chmod(0o755)

    def done(*command: str) -> str:
        path = os.pathsep.join(map(str, (machine, machine / "site")))
        programs = os.pathsep.join([str(machine / "bin"), os.environ["PATH"]])
        return fake_race.run(machine, *command, cwd=tmp_path, path=path, PATH=programs)[1]

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
    for takes in ("100.0", *between, "130.0 + 0"):
        header.write_text(text.replace("return 100.0", f"return {takes}"))
        git("add", "-A")
        git("commit", "-qm", takes)
        commits.append(git("rev-parse", "HEAD").strip())
    judge = JUDGE[1].replace("--target decode", f"--target twice {more}")
    (tmp_path / "judge.sh").write_text(judge)
    done("sh", "-c", LINK[0])
    git("bisect", "start", commits[-1], commits[0])
    said = git("bisect", "run", "sh", "judge.sh")
    assert ends in said, said
    about = said[said.index(ends) - 41 :]  # behind the commit that is named
    assert [number for number in (1, 2) if commits[number] in about] == named, said
