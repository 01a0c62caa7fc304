"""What GPU tests load is compiled before the first of them, and said: on a target whose modules are empty files."""

from __future__ import annotations

import json
import re
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import gpu_modules
import pytest
from command import ran
from conftest import ROOT, some_by_default

from ncuflow.sweep import points as sweep
from ncuflow.target.contract import FOLDERS, known, load

MARKED = re.compile(r"mark\.gpu|needs_gpu")
GPU_TESTS = [
    path
    for path in sorted((ROOT / "tests").glob("test_*.py"))
    if MARKED.search(path.read_text()) and path != Path(__file__)
]

# A FlashInfer whose modules are empty files where it puts its own, and do nothing; of an odd number they do not compile.
FILES = {
    "torch.py": """
def zeros(*shape): return 0
def empty(*shape): return 7
""",
    "flashinfer/__init__.py": """
import torch
from flashinfer.jit.core import JitSpec

def asked(n):
    return JitSpec(n).build_and_load()

def call(n):
    asked(n).run(out := torch.empty(1))
    return out
""",
    "flashinfer/jit/core.py": """
import os
from pathlib import Path

CACHE = Path(os.environ["FLASHINFER_WORKSPACE_BASE"]) / ".cache/flashinfer/1/90a/cached_ops"

class JitSpec:
    def __init__(self, n):
        self.n, self.name = n, f"made{n}"
        self.jit_library_path = CACHE / self.name / f"{self.name}.so"
    def write_ninja(self):
        raise RuntimeError("there is no ninja")
    def build(self, verbose, need_lock):
        if self.n % 2:
            raise RuntimeError("no boost")
        self.jit_library_path.parent.mkdir(parents=True, exist_ok=True)
        self.jit_library_path.touch()
        # As ninja, whose log has the files of all modules of a graph, and of each of its runs.
        files = [("a.o", 9000), ("b.o", 2000), ("a.o", 1000 * self.n)]
        lines = [f"500\\t{500 + ms}\\t0\\t{CACHE / self.name / name}\\tf0" for name, ms in files]
        lines = ["# ninja log v6", *lines, f"0\\t7000\\t0\\t{CACHE}/made77/a.o\\tf0"]
        (CACHE / self.name / ".ninja_log").write_text("\\n".join(lines))
    def build_and_load(self):
        self.build(False, True)
        return self
    def run(self, out): ...
""",
    "targets/made.py": '''
"""A target of them."""
from ncuflow.target.contract import Target, Work
from ncuflow.target.source import Build

def generate(p):
    from flashinfer.jit.core import JitSpec
    return [JitSpec(p["n"])]

TARGET = Target(
    name="made", title="Made", parameters={"n": 2}, id="N{n}", work=lambda p: Work(1, 2, "none"),
    prepare=None, build=Build(generate=generate),
)
''',
    "made/usage.py": """
from flashinfer import asked, call

assert call(6) == 1
count, algorithms = asked(8).count(0)
assert 0 < count and algorithms.first() == 7, "the module ran"
there = call(8)
raise ValueError(f"no {there} here")
assert call(12) == 7
""",
    "test_made.py": """
import flashinfer, gpu_modules, pytest
from pathlib import Path

@pytest.mark.gpu
@pytest.mark.points("made", {"n": [2, 4]})
def test_early():
    assert gpu_modules.compiled() >= {"made2", "made4"}

@pytest.mark.gpu
@pytest.mark.points("made", {"n": [1, 2]})
def test_late():
    assert flashinfer.call(10) == 7

@pytest.mark.gpu
@pytest.mark.example(Path("made/usage.py").absolute())
def test_example():
    assert {"made6", "made8", "made12"} <= gpu_modules.compiled()

@pytest.mark.gpu_long
@pytest.mark.points("made", {"n": 14})
def test_long(): ...

@pytest.mark.points("made", {"n": 16})
def test_elsewhere(): ...
""",
    # Writes down what the chosen tests declare.
    "collecting.py": """
import gpu_modules, json
from pathlib import Path

def pytest_collection_finish(session):
    found = {"plan": gpu_modules.plan(session.items)}
    found["tests"] = {
        item.nodeid: [point.id for point in gpu_modules.declared(item)]
        for item in session.items
        if "points" in item.fixturenames or item.get_closest_marker("points")
    }
    found["all"] = [[item.path.name, item.name] for item in session.items]
    Path("collected.json").write_text(json.dumps(found))
""",
}


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A folder with all that."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def pytest_in(folder: Path, *arguments: str) -> str:
    """What a pytest says that runs in a folder, and finds there what it imports."""
    environment = {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{folder}",
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        "FLASHINFER_WORKSPACE_BASE": str(folder),
        "PATH": str(folder),  # without ninja
        FOLDERS: str(folder / "targets"),
    }
    command = [sys.executable, "-m", "pytest", f"--config-file={ROOT / 'pyproject.toml'}"]
    command += [f"--rootdir={folder}", "-pno:cacheprovider", *arguments]
    done = ran(*command, cwd=folder, **environment)
    return done.stdout + done.stderr


def run_made(folder: Path, *arguments: str) -> tuple[list[str], str]:
    """(summary of modules, empty without one; last line) of a run of the folder's tests with this project's hooks."""
    lines = pytest_in(folder, "-pconftest", *arguments, "test_made.py").splitlines()
    heads = [n for n, line in enumerate(lines) if "JIT modules of the GPU tests" in line]
    following = lines[heads[0] + 1 :] if heads else []
    ends = re.compile(r"=|\d+ (passed|failed)")
    return list(takewhile(lambda line: not ends.match(line), following)), lines[-1]


def test_modules_of_gpu_tests_are_compiled_before_the_first_and_said(made: Path) -> None:
    (first, *lines), end = run_made(made, "-m", "gpu")
    assert end.startswith("3 passed, 2 deselected")
    said = r"3 points of 1 targets, 1 examples: 6 modules in one graph: \d+ s, \d+ files at once"
    assert re.fullmatch(said, first)
    assert lines == [
        "error: made1: RuntimeError: no boost",
        "built: made12 (14 s in 2 files)",
        "built: made2 (4 s in 2 files)",
        "built: made4 (6 s in 2 files)",
        "built: made6 (8 s in 2 files)",
        "built: made8 (10 s in 2 files)",
        "not all of made/usage.py: ValueError: no 0 here",
        "compiled by a test: made10 (12 s in 2 files)",
    ]


@pytest.mark.exhaustive
def test_only_what_the_chosen_gpu_tests_load_is_compiled(made: Path) -> None:
    assert run_made(made)[0] == []
    library = made / ".cache/flashinfer/1/90a/cached_ops/made4/made4.so"
    assert not library.exists()
    library.parent.mkdir(parents=True)
    library.touch()
    (first, *lines), _ = run_made(made, "-m", "gpu", "-k", "early")
    assert first.startswith("2 points of 1 targets, 0 examples: 2 modules")
    assert lines == ["built: made2 (4 s in 2 files)", "there before: made4"]


def test_without_the_cute_dsl_what_needs_it_is_skipped() -> None:
    gpu_modules.skip_without_cute_dsl([None, "ModuleNotFoundError: No module named 'triton'"])
    with pytest.raises(pytest.skip.Exception, match="CuTe DSL"):
        gpu_modules.skip_without_cute_dsl([None, "ModuleNotFoundError: No module named 'cutlass'"])


def test_a_build_that_cannot_begin_is_said_and_the_tests_run(made: Path) -> None:
    (made / "flashinfer/jit/core.py").unlink()
    (made / "flashinfer/__init__.py").write_text("")
    (line,), end = run_made(made, "-m", "gpu", "-k", "early")
    why = "ModuleNotFoundError: No module named 'flashinfer.jit.core'"
    assert line == f"2 points of 1 targets, 0 examples: nothing was compiled ahead: {why}"
    assert end.startswith("1 failed")


def collect(folder: Path, marker: str) -> dict[str, Any]:
    """What the GPU tests of this project declare that a marker chooses."""
    (folder / "targets").mkdir()
    (folder / "collecting.py").write_text(FILES["collecting.py"])
    said = pytest_in(folder, "-pcollecting", "-m", marker, "--collect-only", *map(str, GPU_TESTS))
    assert (folder / "collected.json").exists(), said
    found: dict[str, Any] = json.loads((folder / "collected.json").read_text())
    return found


@pytest.fixture(scope="module", params=some_by_default(["gpu or gpu_long", "gpu"], 2))
def collected(request, tmp_path_factory):
    """The same, and whether all of them were asked for."""
    found = collect(tmp_path_factory.mktemp("collected"), request.param)
    return found | {"all": request.param != "gpu"}


def test_what_gpu_tests_launch_is_one_plan(collected: dict[str, Any]) -> None:
    points = [point["id"] for found in collected["plan"]["points"].values() for point in found]
    assert collected["plan"]["points"].keys() == known().keys()
    assert len(points) == len(set(points))
    assert set(points) == {point for found in collected["tests"].values() for point in found}
    assert [test for test, found in collected["tests"].items() if not found] == []
    targets = map(load, gpu_modules.LONG)
    long = {point.id for target in targets for point in sweep.points(target, [target.small])}
    assert set(points) & long == (long if collected["all"] else set())


def test_the_examples_of_the_guide_are_in_it(collected: dict[str, Any]) -> None:
    examples = {
        str(path)
        for path in (ROOT / "templates/guide").rglob("*.py")
        if collected["all"] or path.parent.name not in gpu_modules.LONG
    }
    assert set(collected["plan"]["examples"]) == examples


@pytest.mark.exhaustive
def test_each_test_of_a_gpu_has_a_marker(tmp_path: Path) -> None:
    found = collect(tmp_path, "not gpu and not gpu_long")
    assert "test_gpu.py" not in {file for file, _ in found["all"]}
