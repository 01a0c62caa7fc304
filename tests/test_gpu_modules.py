"""What GPU tests load is compiled before the first of them, and said: on a target whose modules are empty files."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path
from typing import Any

import gpu_modules
import pytest
from conftest import COLLECTED, ROOT, some_by_default

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
    environment = os.environ | {
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}:{folder}",
        "FLASHINFER_CUDA_ARCH_LIST": "9.0a",
        "FLASHINFER_WORKSPACE_BASE": str(folder),
        "PATH": str(folder),  # without ninja
        FOLDERS: str(folder / "targets"),
    }
    command = [sys.executable, "-m", "pytest", f"--config-file={ROOT / 'pyproject.toml'}"]
    command += [f"--rootdir={folder}", "-pno:cacheprovider", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
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


def test_only_what_the_chosen_gpu_tests_load_is_compiled(made: Path) -> None:
    assert run_made(made)[0] == []
    library = made / ".cache/flashinfer/1/90a/cached_ops/made4/made4.so"
    assert not library.exists()
    library.parent.mkdir(parents=True)
    library.touch()
    (first, *lines), _ = run_made(made, "-m", "gpu", "-k", "early")
    assert first.startswith("2 points of 1 targets, 0 examples: 2 modules")
    assert lines == ["built: made2 (4 s in 2 files)", "there before: made4"]


@pytest.mark.exhaustive
def test_what_compiles_for_minutes_waits_for_its_own_marker(made: Path) -> None:
    assert run_made(made)[1].startswith("1 passed, 4 deselected")
    (_, *lines), _ = run_made(made, "-m", "gpu_long")
    assert lines == ["built: made14 (16 s in 2 files)"]


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
def collected(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
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


def test_each_test_of_a_gpu_has_a_marker(tmp_path: Path) -> None:
    found = collect(tmp_path, "not gpu and not gpu_long")
    assert "test_gpu.py" not in {file for file, _ in found["all"]}


# Tests that start many processes, at night alone: the ordinary test whose kind each is of.
NIGHTLY = {
    "test_where_nothing_compiles_nothing_is_timed":
        "test_a_default_that_does_not_compile_ends_a_search",
    "test_without_ncu_one_line_says_so":
        "test_without_permission_one_line_says_so",
    "test_the_patch_of_a_winner_is_one_that_a_trial_takes":
        "test_the_winner_of_each_shape_its_price_and_what_became_of_the_others",
    "test_what_hangs_is_stopped_at_the_limit":
        "test_what_crashes_is_named",
    "test_a_wrong_result_is_named_and_not_timed":
        "test_of_several_changes_the_fastest_comes_first_and_a_broken_one_costs_itself",
    "test_python_that_cannot_be_imported_does_not_compile":
        "test_what_does_not_compile_is_its_first_error",
    "test_an_interrupted_build_is_gone_on_with":
        "test_after_snakemake_was_killed_the_same_command_goes_on",
    "test_a_point_that_was_wrong_once_is_not_profiled_unchecked":
        "test_a_batch_without_a_good_point_has_nothing_to_profile_and_the_others_stand",
    "test_counters_refused_in_mid_run_cost_the_counters_alone":
        "test_a_broken_tool_costs_its_own_numbers_alone_and_every_page_says_so",
    "test_after_a_failed_job_over_existing_outputs_a_rerun_makes_them":
        "test_whatever_of_the_outputs_is_damaged_a_rerun_makes_it_again",
    "test_the_preflight_looks_again_where_another_tool_is_here":
        "test_after_an_upgrade_every_row_says_with_what_it_was_measured",
    "test_so_is_every_output_of_a_gpu_that_is_not_there":
        "test_so_does_every_job_of_a_comparison_and_what_is_lost_is_made_again",
    "test_several_heads_make_a_page_of_all_sides":
        "test_the_rules_make_the_page_and_the_gate_passes_and_fails",
    "test_what_does_not_compile_stands_between_the_neighbours":
        "test_the_wheel_that_became_slower_is_found_and_what_does_not_compile_passed_over",
    "test_what_compiles_for_minutes_waits_for_its_own_marker":
        "test_only_what_the_chosen_gpu_tests_load_is_compiled",
    "test_a_job_killed_twice_costs_its_batch_alone_and_the_next_run_tries_again":
        "test_a_killed_job_is_tried_again_and_its_half_file_is_not_taken",
    "test_a_preflight_whose_ncu_makes_no_report_says_so_and_nothing_is_profiled":
        "test_a_broken_tool_costs_its_own_numbers_alone_and_every_page_says_so",
    "test_a_measurement_that_outlives_snakemake_keeps_its_gpu":
        "test_after_snakemake_was_killed_the_same_command_goes_on",
    "test_leftovers_of_a_killed_holder_do_not_block_the_next":
        "test_after_snakemake_was_killed_the_same_command_goes_on",
    "test_of_a_point_that_is_wrong_no_table_has_what_came_before_its_timing":
        "test_points_that_break_their_process_cost_themselves_alone",
    "test_a_gpu_lost_once_costs_a_retry":
        "test_a_gpu_lost_for_good_costs_what_was_not_visited_before_and_no_number_is_made_up",
    "test_neither_has_a_deep_report_none_of_whose_points_is_right":
        "test_a_batch_without_a_good_point_has_nothing_to_profile_and_the_others_stand",
    "test_a_full_disk_for_temporary_files_is_named":
        "test_a_full_disk_leaves_no_half_table",
    "test_a_damaged_page_of_everything_is_made_again":
        "test_whatever_of_the_outputs_is_damaged_a_rerun_makes_it_again",
    "test_what_is_damaged_of_a_comparison_is_made_again":
        "test_whatever_of_the_outputs_is_damaged_a_rerun_makes_it_again",
}  # fmt: skip


def test_of_each_exhaustive_test_one_case_runs_where_all_do_not(request: pytest.FixtureRequest):
    ordinary: dict[str, bool] = {}
    for item in request.config.stash[COLLECTED]:
        name = item.nodeid.partition("[")[0]
        ordinary[name] = ordinary.get(name, False) or not item.get_closest_marker("exhaustive")
    left = {name.rpartition("::")[2] for name, runs in ordinary.items() if not runs}
    run = {name.rpartition("::")[2] for name, runs in ordinary.items() if runs}
    assert left <= NIGHTLY.keys() and {NIGHTLY[name] for name in left} <= run
