"""Jobs work from what their rules declare alone, and what they make is noted, and made again where it is lost."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import fake_machine
import pytest
import warm
from command import ran
from conftest import ROOT, Pipeline
from dag import (
    RECORDED,
    Job,
    all_lost_are_made_again,
    asked,
    dependents,
    graph,
    one_of_each_rule,
    representatives,
)
from fake_machine import TABLE, Machine
from test_rules import LINKS, project_files

from ncuflow.flow import jobs

SIDES = {"base": "recordings/one", "head": "recordings/two"}
# Every command starts there, and all that they do is to call its module.
ALWAYS = ("ncuflow/__main__.py", "ncuflow/cli.py", "ncuflow/io.py", "ncuflow/__init__.py")
# The list of counters is a parameter of these, so an edit of the registry that leaves it alone captures nothing again.
CAPTURES = ("profile", "profile_deep", "trace")
REGISTRY = [str(Path(name).resolve().relative_to(ROOT)) for name in jobs.inputs("static counters")]


@pytest.fixture(scope="module")
def machine(undisturbed: Machine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A live run on the fake machine, as far as its tables."""
    return undisturbed.copied(tmp_path_factory.mktemp("live") / "machine")


def test_a_change_of_what_a_capture_executes_captures_again(machine: Machine):
    jobs, _ = graph(machine.folder, TABLE, {}, (), machine.environment)
    chosen = representatives(jobs, project_files(machine.folder))
    _, reruns = graph(machine.folder, TABLE, {}, chosen, machine.environment)
    for file in chosen:
        assert sorted(reruns[file]) == dependents(jobs, file), file
    assert {"plan", "time", "profile", "tables"} <= set().union(*reruns.values())


def test_every_output_is_noted_as_it_was_made(made: Path):
    jobs, _ = graph(made, "all", RECORDED)
    outputs = {file for job in jobs for file in job["output"] if "/captures/" not in file}
    notes = [(note.relative_to(made).parent, note) for note in made.glob("outputs/*/made.json")]
    noted = {str(folder / name) for folder, note in notes for name in json.loads(note.read_text())}
    assert noted == outputs


# --- nothing is read that is not declared -------------------------------------------------------


def alone(project: Path, job: Job, folder: Path, environment: dict[str, str]) -> None:
    """Run a job's command in a folder that holds its declared inputs and nothing else of the project."""
    for name in LINKS:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        if (project / name).is_symlink():
            (folder / name).symlink_to((project / name).readlink())
        else:
            shutil.copytree(project / name, folder / name, symlinks=True)
    for name in {*job["input"], *ALWAYS, *(REGISTRY if job["rule"] in CAPTURES else ())}:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (project / name).is_dir() else shutil.copy2
        copy(project / name, target)
        compiled = Path(cache_from_source(str(project / name)))
        if name.endswith(".py") and compiled.exists():
            (target.parent / "__pycache__").mkdir(exist_ok=True)
            shutil.copy2(compiled, target.parent / "__pycache__")
    for name in job["output"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for log in job["log"]:
        (folder / log).parent.mkdir(parents=True, exist_ok=True)
    # As the rules' prefix does: the Python of this run, also where nobody activated its environment.
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"}
    *words, to, log = shlex.split(job["command"])
    if words[:3] == ["python", "-m", "ncuflow"] and to == "2>":
        done = warm.run("ncuflow", *words[3:], cwd=folder, env=environment | path)
        (folder / log).write_text(done.stderr, encoding="utf-8")
    else:
        command = ("bash", "-euo", "pipefail", "-c", job["command"])
        done = ran(*command, cwd=folder, **environment | path)
    logs = [(folder / log).read_text() for log in job["log"]]
    assert done.returncode == 0, (job["rule"], done.stderr, *logs)


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    kept = [file for file in files if file.name != ".snakemake_timestamp"]
    return {str(file.relative_to(path.parent)): file.read_bytes() for file in kept}


def same_from_declared_inputs_alone(project: Path, jobs: list[Job], folder: Path) -> set[str]:
    """The rules whose commands made the same bytes from their declared inputs alone."""
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    for job in one_of_each_rule(jobs):
        place = folder / job["rule"]
        alone(project, job, place, environment)
        for name in job["output"]:
            assert contents(place / name) == contents(project / name), name
    return {job["rule"] for job in one_of_each_rule(jobs)}


def test_every_job_makes_the_same_of_its_declared_inputs_alone(made: Path, tmp_path: Path):
    jobs, _ = graph(made, "all", RECORDED)
    rules = same_from_declared_inputs_alone(made, jobs, tmp_path)
    assert {"tables", "findings", "environment_info", "claims", "hotlines", "pages"} <= rules


@pytest.mark.exhaustive
def test_so_does_every_job_of_a_comparison_and_makes_what_is_lost(two_sides, tmp_path, every):
    """Of its own rules, and of each: what it shares with `all`, the tests above have."""
    config = SIDES | {"source": "recorded", "recording": "recordings/one"}
    settings = [f"{key}={value}" for key, value in config.items()]
    two_sides.run("compare", "--config", *settings)
    below = "outputs/" if every else "outputs/compare/"
    all_lost_are_made_again(two_sides.folder, "compare", config, below, every)
    jobs, _ = graph(two_sides.folder, "compare", config)
    own = [job for job in jobs if every or job["rule"].startswith("compare_")]
    rules = same_from_declared_inputs_alone(two_sides.folder, own, tmp_path / "alone")
    assert {"compare_sides", "compare_figures", "compare_page"} <= rules
    assert ({"tables", "findings"} <= rules) is every


@pytest.mark.parametrize(
    ("floor", "words"), [(0, " --floor 0.0 "), pytest.param(None, "", marks=pytest.mark.exhaustive)]
)
def test_a_floor_of_zero_is_not_none(two_sides: Pipeline, floor: float | None, words: str):
    config = SIDES | {"source": "recorded", "recording": "recordings/one"}
    config["compare"] = {"floor": floor}
    jobs = asked(two_sides.folder, "compare", config)["jobs"]
    (command,) = (job["command"] for job in jobs if job["rule"] == "compare_sides")
    assert (words in command) if words else ("--floor" not in command)


def test_every_job_of_a_live_run_works_from_its_declared_inputs_alone(machine, tmp_path):
    """What they measure differs from run to run; a file that is not there is a failure."""
    jobs, _ = graph(machine.folder, TABLE, {}, (), machine.environment)
    rules = set()
    for job in one_of_each_rule(jobs):
        rules.add(job["rule"])
        alone(machine.folder, job, tmp_path / job["rule"], machine.environment)
        for name in job["output"]:
            size = (tmp_path / job["rule"] / name).stat().st_size
            assert size > 0 or name.endswith("/pairs.jsonl")  # the toy has nothing to pair
    assert {"plan", "build", "time", "profile", "tables"} <= rules


def test_what_compiles_quickly_is_profiled_while_the_rest_compiles(tmp_path: Path):
    """It waits for no times, and its programs for their own modules; nothing is timed before all are compiled."""
    machine = fake_machine.make(tmp_path)
    toy = (machine.folder / "targets/toy.py").read_text()
    quick = toy.replace('"toy"', '"swift"').replace("p: [])", "p: [], early=True)")
    (machine.folder / "targets/swift.py").write_text(quick)

    def both(config: dict[str, Any]) -> None:
        config["targets"] = ["toy", "swift"]
        config["sweeps"]["default"]["swift"] = [{"n": 1}]

    machine.configure(both)
    fake_machine.trace_as_well(machine, early=False)
    jobs = asked(machine.folder, "all", {}, (), machine.environment)["jobs"]
    needs = {
        (job["rule"], Path(job["output"][0]).parts[-3]): {Path(name).name for name in job["input"]}
        for job in jobs
        if job["rule"] in ("time", "profile", "trace")
    }
    wanted = {
        ("time", "toy"): {"build.json"}, ("time", "swift"): {"build.json"},
        ("profile", "toy"): {"build.json", "timing.jsonl"}, ("profile", "swift"): set(),
        ("trace", "toy"): {"timing.jsonl"}, ("trace", "swift"): set(),
    }  # fmt: skip
    told = {"build.json", "timing.jsonl"}
    assert {job: files & told for job, files in needs.items()} == wanted
    (build,) = (job for job in jobs if job["rule"] == "build")
    built = {Path(name).parts[-3] for name in build["input"] if "captures" in name}
    assert built == {"toy", "swift"}
    commands = {job["command"] for job in jobs if job["rule"] in ("profile", "trace")}
    assert len(commands) == 2 * len([job for job in jobs if job["rule"] == "time"])
    for command in commands:
        assert ("--timing" in command) == (" toy " in command)
        assert ("--unchecked" in command) == ("nsys swift" in command)
    first: dict[str, int] = {job["rule"]: job["priority"] for job in jobs}
    order = ("preflight", "plan", "build", "time", "profile", "trace", "tables")
    assert sorted(order, key=first.__getitem__, reverse=True) == list(order)
    assert first["plan_pairs"] == first["plan"]  # what is timed waits for both


def test_as_many_jobs_run_as_are_asked_for(tmp_path: Path):
    """Each of them ends well if all begin while it waits."""
    count = 12
    begun = f'[ "$(ls *.begun | wc -l)" = {count} ]'
    wait = f"touch {{output}}.begun; for _ in $(seq 200); do {begun} && break; sleep 0.1; done; {begun} && touch {{output}}"
    rules = f"rule each:\n    output:\n        '{{n}}.done',\n    shell:\n        {wait!r}\n"
    rules = f"rule all:\n    input:\n        expand('{{n}}.done', n=range({count})),\n{rules}"
    (tmp_path / "Snakefile").write_text(rules)
    command = [sys.executable, "-m", "snakemake", "-d", str(tmp_path), "-s", str(tmp_path / "Snakefile")]  # fmt: skip
    command += [f"-j{count}", "--workflow-profile", str(ROOT / "profiles/default")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert len([*tmp_path.glob("*.done")]) == count
