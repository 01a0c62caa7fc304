"""Builds: which modules are compiled, what a failure says."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_device import made, points_file

from ncuflow.cli import dispatch
from ncuflow.runner import builds, gpu, sweep
from ncuflow.runner import run as running
from ncuflow.target import load


def test_the_watch_counts_compilers_that_any_library_starts() -> None:
    watch = builds.CompilerWatch()
    for program in (["ninja", "-v"], "/usr/local/cuda/bin/nvcc -c x.cu", [b"/bin/ninja"]):
        sys.audit("subprocess.Popen", None, program, None, None)
    sys.audit("subprocess.Popen", "/opt/bin/ninja", ["x"], None, None)
    assert watch.started == 4
    for other in (["nvidia-smi"], "git ninja", [], [Path("a")]):
        sys.audit("subprocess.Popen", None, other, None, None)
    subprocess.run([sys.executable, "-c", ""], check=True)
    assert watch.started == 4


NINJA = """Ninja build failed. Ninja output:
ninja: Entering directory `/home/someone/.cache'
FAILED: norm.cuda.o
/usr/local/cuda/bin/nvcc -c /home/someone/norm.cu
/home/someone/site/include/norm.cuh(7): error: identifier "x" is undefined
ninja: build stopped: subcommand failed."""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", "RuntimeError"),
        ("CUDA error: misaligned address\nSet CUDA_LAUNCH_BLOCKING",
         "RuntimeError: CUDA error: misaligned address"),
        (NINJA, "RuntimeError: Ninja build failed. Ninja output: "
         'norm.cuh(7): error: identifier "x" is undefined'),
        ("cannot read /root/a/b.so", "RuntimeError: cannot read b.so"),
        ("9 / 2 and/or x", "RuntimeError: 9 / 2 and/or x"),
    ],
)  # fmt: skip
def test_the_reason_of_an_error_is_one_line_without_folders(text: str, line: str) -> None:
    assert builds.one_line(RuntimeError(text)) == line


class Spec:
    """A JIT module: built with FlashInfer's arguments, or failing."""

    def __init__(self, name: str, error: str | None = None, is_aot: bool = False) -> None:
        self.name, self.error, self.is_aot = name, error, is_aot
        self.builds = 0

    def build(self, verbose: bool, need_lock: bool) -> None:
        self.builds += 1
        if self.error is not None:
            raise RuntimeError(self.error)


def test_modules_are_built_once_each_and_a_failure_is_of_one_module() -> None:
    specs = [Spec("norm"), Spec("rope", "ninja: failed"), Spec("page", is_aot=True)]
    target: Any = SimpleNamespace(modules=lambda p: [specs[p["n"] % 3]])
    found = builds.modules(target, made(6))
    assert len(found) == 3
    report = {entry["name"]: entry for entry in builds.build(found, lambda line: None)}
    assert {name: entry["status"] for name, entry in report.items()} == {
        "norm": "built",
        "rope": "error",
        "page": "prebuilt",
    }
    assert report["rope"]["reason"] == "RuntimeError: ninja: failed"
    assert [spec.builds for spec in specs] == [1, 1, 0]
    assert all(entry["seconds"] >= 0 for entry in report.values())


def test_build_mode_writes_its_report_and_tells_failure(tmp_path: Path) -> None:
    target: Any = SimpleNamespace(name="fake", modules=lambda p: [Spec("norm", "no nvcc")])
    assert running.build(target, made(1), tmp_path / "build.json") == 3
    target.modules = lambda p: [Spec("norm")]
    assert running.build(target, made(1), tmp_path / "build.json") == 0
    assert json.loads((tmp_path / "build.json").read_text("utf-8"))["target"] == "fake"


PREFILL = load("prefill")
BOTH = sweep.points(PREFILL, [{"backend": ["fa2", "fa3"]}])


def test_the_arch_list_stands_in_for_the_gpus() -> None:
    told = {"FLASHINFER_CUDA_ARCH_LIST": "8.0 9.0a 12.0f"}
    assert builds.capabilities(told, lambda: pytest.fail("asked")) == ["8.0", "9.0", "12.0"]
    assert builds.capabilities({}, lambda: ["8.6"]) == ["8.6"]


@pytest.mark.parametrize(
    ("capabilities", "backends"),
    [
        (["8.0"], ["fa2"]),
        (["9.0"], ["fa2", "fa3"]),
        (["8.0", "9.0"], ["fa2", "fa3"]),
        ([], ["fa2", "fa3"]),
    ],
)
def test_what_none_of_the_gpus_can_run_is_not_built(
    capabilities: list[str], backends: list[str]
) -> None:
    said: list[str] = []
    kept = builds.buildable(PREFILL, BOTH, capabilities, said.append)
    assert [point.params["backend"] for point in kept] == backends
    assert len(said) == 2 - len(backends)
    assert all(line.endswith("fa3 needs compute capability 9.0, this GPU has 8.0") for line in said)


def test_build_mode_with_an_arch_list_asks_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "8.0")
    monkeypatch.setattr(gpu, "Gpu", lambda: pytest.fail("asked"))
    monkeypatch.setattr(gpu, "capabilities", lambda: pytest.fail("asked"))
    monkeypatch.setattr(PREFILL, "generate", lambda p: [Spec(p["backend"])])
    path, out = points_file(tmp_path, [p.as_dict() for p in BOTH]), tmp_path / "build.json"
    files = ["--points", str(path), "--out", str(out)]
    assert dispatch(["launch", "prefill", "--mode", "build", *files]) == 0
    assert [module["name"] for module in json.loads(out.read_text("utf-8"))["modules"]] == ["fa2"]
