"""`ncuflow bisect` over wheels from end to end: real processes, builds, pip and pipes; FlashInfer and the GPU are none."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import fake_gpus
import pytest
from conftest import copy_project

from ncuflow.bisection.record import Bisection
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
    with (folder / "ncuflow/runner/gpu.py").open("a") as device:
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


def bisected(machine: Path, *words: str) -> tuple[int, str, Bisection | None]:
    """(exit status, output, record or None); checks that nothing is left of what was installed."""
    out = machine / "out.json"
    out.unlink(missing_ok=True)
    env = os.environ | fake_gpus.environment(machine) | {
        "NCUFLOW_LOCK_DIR": str(machine / "locks"),
        "NCUFLOW_TARGETS": str(FAKE / "targets"),
        "FLASHINFER_WORKSPACE_BASE": str(machine / "base"),
        "TMPDIR": str(machine / "tmp"),
        "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    env.pop("CUDA_VISIBLE_DEVICES", None)
    done = subprocess.run(
        [sys.executable, "-m", "ncuflow", "bisect", "--point", "twice/toy_n3", "--out", str(out), *words],
        cwd=machine, env=env, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not list((machine / "tmp").glob(f"{SCRATCH}*"))
    found = Bisection.model_validate(json.loads(out.read_text())) if out.exists() else None
    return done.returncode, done.stdout + done.stderr, found


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
