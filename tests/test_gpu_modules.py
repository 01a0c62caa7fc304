"""What GPU tests declare that they launch, which is compiled before the first of them."""

import json
import os
import re
from pathlib import Path
from typing import Any

import gpu_modules
import pytest
from command import python
from conftest import ROOT, some_by_default

from ncuflow.sweep import points as sweep
from ncuflow.target.contract import known, load

MARKED = re.compile(r"mark\.gpu|needs_gpu")
TESTS = sorted((ROOT / "tests").glob("test_*.py"))
GPU_TESTS = [path for path in TESTS if MARKED.search(path.read_text()) and path != Path(__file__)]

# Writes down what the chosen tests declare.
COLLECTING = """
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
"""


def test_without_the_cute_dsl_what_needs_it_is_skipped() -> None:
    gpu_modules.skip_without_cute_dsl([None, "ModuleNotFoundError: No module named 'triton'"])
    with pytest.raises(pytest.skip.Exception, match="CuTe DSL"):
        gpu_modules.skip_without_cute_dsl([None, "ModuleNotFoundError: No module named 'cutlass'"])


def collect(folder: Path, marker: str) -> dict[str, Any]:
    """What the GPU tests of this project declare that a marker chooses."""
    (folder / "collecting.py").write_text(COLLECTING)
    options = [
        f"--config-file={ROOT / 'pyproject.toml'}",
        f"--rootdir={folder}",
        "-pno:cacheprovider",
    ]
    words = [*options, "-pcollecting", "-m", marker, "--collect-only", *GPU_TESTS]
    paths = os.pathsep.join(map(str, (ROOT, ROOT / "tests", folder)))
    said = python("-m", "pytest", *words, cwd=folder, PYTHONPATH=paths)
    assert (folder / "collected.json").exists(), said
    return json.loads((folder / "collected.json").read_text())


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
    paths = [*(ROOT / "templates/guide").rglob("*.py")]
    short = [path for path in paths if path.parent.name not in gpu_modules.LONG]
    examples = {*map(str, paths if collected["all"] else short)}
    assert set(collected["plan"]["examples"]) == examples


@pytest.mark.exhaustive
def test_each_test_of_a_gpu_has_a_marker(tmp_path: Path) -> None:
    found = collect(tmp_path, "not gpu and not gpu_long")
    assert "test_gpu.py" not in {file for file, _ in found["all"]}
