"""What rules declare is what their commands read: no file less, and a change reruns what holds it."""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import fake_machine
import pytest
from conftest import ROOT, SMALL, Finished, Pipeline, some
from fake_machine import TABLE, Machine

from ncuflow.cli import COMMANDS
from ncuflow.flow import closure

Job = dict[str, Any]
RECORDED: dict[str, Any] = {"source": "recorded", "targets": ["merge_state", "rmsnorm"]}  # SMALL
SIDES = {"base": "recordings/one", "head": "recordings/two"}
FOLDERS = ("ncuflow", "parsers", "targets", "templates", "claims")
# Every command starts there, and all that they do is to call its module.
ALWAYS = ("ncuflow/__main__.py", "ncuflow/cli.py", "ncuflow/io.py", "ncuflow/__init__.py")
# The list of counters is a parameter of these, so an edit of the registry that leaves it alone captures nothing again.
CAPTURES = ("profile", "profile_deep", "trace")
REGISTRY = [str(Path(name).resolve().relative_to(ROOT)) for name in closure.of("counters")]
LINKS = ("ncuflow/parsers", "ncuflow/targets", "ncuflow/data")


def graph(
    folder: Path,
    target: str,
    config: Mapping[str, Any],
    changes: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
    lost: tuple[str, ...] = (),
) -> tuple[list[Job], dict[str, list[str]]]:
    """(jobs, changed or lost file -> rules of the jobs that would run) of a project whose outputs are made."""
    found = asked(folder, target, config, changes, environment, lost)
    assert not any(job["runs"] for job in found["jobs"])
    return found["jobs"], found["reruns"]


def asked(
    folder: Path,
    target: str,
    config: Mapping[str, Any],
    changes: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
    lost: tuple[str, ...] = (),
) -> Any:
    """What tests/dag.py says of a project: {jobs, reruns}."""
    question = {"targets": [target], "config": config, "changes": changes, "lost": lost}
    done = subprocess.run(
        [sys.executable, ROOT / "tests/dag.py", json.dumps(question)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def made(small: Finished, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project that has run."""
    return small.copied(tmp_path_factory.mktemp("made") / "p").folder


@pytest.fixture(scope="module")
def machine(undisturbed: Machine, tmp_path_factory: pytest.TempPathFactory) -> Machine:
    """A live run on the fake machine, as far as its tables."""
    return undisturbed.copied(tmp_path_factory.mktemp("live") / "machine")


def project_files(folder: Path) -> set[str]:
    """Every file of the project that a command may read."""
    return {
        str(path.relative_to(folder))
        for top in FOLDERS
        for path in (folder / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not linked(path, folder)
    }


def linked(path: Path, folder: Path) -> bool:
    return any(str(path.relative_to(folder)).startswith(f"{link}/") for link in LINKS)


# --- a change reruns what reads the file --------------------------------------------------------


def dependents(jobs: list[Job], file: str) -> list[str]:
    """Rules of the jobs that an input's change runs, and of all that is made from what these make."""
    stale = {file}
    for _ in jobs:
        stale |= {out for j in jobs if stale.intersection(j["triggers"]) for out in j["output"]}
    return sorted(job["rule"] for job in jobs if stale.intersection(job["triggers"]))


def representatives(jobs: list[Job], files: set[str]) -> tuple[str, ...]:
    """One file of each set of files that the same jobs read."""
    classes = {tuple(file in job["input"] for job in jobs): file for file in sorted(files)}
    return tuple(classes.values())


def test_a_change_of_a_file_reruns_exactly_what_reads_it(made: Path, every: bool):
    edited = {
        "templates/final-report.md.j2": ({"pages"}, {"target_page", "tables"}),
        "templates/target.md.j2": ({"target_page"}, {"pages", "findings"}),
        "parsers/nsys.py": ({"tables", "findings"}, {"environment_info"}),
        "ncuflow/pages/markdown/figures.py": ({"pages", "target_page"}, {"tables", "findings", "claims"}),
    }  # fmt: skip
    jobs, _ = graph(made, "all", RECORDED)
    chosen = representatives(jobs, project_files(made))
    assert len(chosen) > 10
    chosen = chosen if every else chosen[::8]
    _, reruns = graph(made, "all", RECORDED, (*chosen, *edited))
    for file, rules in reruns.items():
        assert sorted(rules) == dependents(jobs, file), file
    for file, (some_of, none_of) in edited.items():
        assert some_of <= set(reruns[file]) and not none_of & set(reruns[file]), file


def test_a_change_of_what_a_capture_executes_captures_again(machine: Machine):
    jobs, _ = graph(machine.folder, TABLE, {}, (), machine.environment)
    chosen = representatives(jobs, project_files(machine.folder))
    _, reruns = graph(machine.folder, TABLE, {}, chosen, machine.environment)
    for file in chosen:
        assert sorted(reruns[file]) == dependents(jobs, file), file
    assert {"plan", "time", "profile", "tables"} <= set().union(*reruns.values())


def test_every_file_of_the_project_is_read_by_a_command(monkeypatch):
    monkeypatch.chdir(ROOT)
    pages = [path.name.removesuffix(".md.j2") for path in (ROOT / "templates").glob("*.md.j2")]
    read = {file for name in COMMANDS for file in closure.of(name, pages=pages)}
    # No rule reads what a notebook imports, what `scripts/docs.py` writes for readers of answers, what `ncuflow script` fills.
    workflow = {"ncuflow/cli.py", "ncuflow/__main__.py", "ncuflow/api.py"}
    workflow |= {f for f in project_files(ROOT) if f.startswith("ncuflow/schemas/")}
    workflow |= {f for f in project_files(ROOT) if f.startswith("templates/script/")}
    workflow |= {f for f in project_files(ROOT) if f.startswith("ncuflow/flow/")}
    read |= set(closure.data("templates/html"))
    claims = {f for f in project_files(ROOT) if f.startswith("claims/")}
    assert project_files(ROOT) - read - workflow - claims == set()


def all_lost_are_made_again(
    folder: Path, target: str, config: Mapping[str, Any], below: str, every: bool
) -> None:
    """Of each rule whose outputs lie below a folder, every output or the last: Snakemake makes what is lost where it is
    asked for, and no other."""
    jobs, _ = graph(folder, target, config)
    chosen = {}
    for job in one_of_each_rule(jobs):
        files = [file for file in job["output"] if file.startswith(below)]
        chosen |= dict.fromkeys(files if every else files[-1:], job["rule"])
    assert chosen
    _, reruns = graph(folder, target, config, lost=tuple(chosen))
    for file, rule in chosen.items():
        assert rule in reruns[file], file


def test_every_output_that_is_lost_is_made_again(made: Path, every: bool):
    all_lost_are_made_again(made, "all", RECORDED, "outputs/", every)


def test_so_is_every_output_of_a_gpu_that_is_not_there(made: Path, tmp_path: Path, every: bool):
    own = Finished(made).copied(tmp_path / "p")
    config = RECORDED | {"machine": "a100-static"}
    own.run("all", *SMALL, "machine=a100-static")
    all_lost_are_made_again(own.folder, "all", config, "outputs/a100-static/", every)


def test_every_output_is_noted_as_it_was_made(made: Path):
    jobs, _ = graph(made, "all", RECORDED)
    outputs = {file for job in jobs for file in job["output"] if "/captures/" not in file}
    noted = {
        str(note.relative_to(made).parent / name)
        for note in made.glob("outputs/*/made.json")
        for name in json.loads(note.read_text())
    }
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
        copy = shutil.copytree if (project / name).is_dir() else shutil.copyfile
        copy(project / name, target)
    for name in job["output"]:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
    for log in job["log"]:
        (folder / log).parent.mkdir(parents=True, exist_ok=True)
    # As the rules' prefix does: the Python of this run, also where nobody activated its environment.
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment['PATH']}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", job["command"]],
        cwd=folder, env=environment | path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    logs = [(folder / log).read_text() for log in job["log"]]
    assert done.returncode == 0, (job["rule"], done.stderr, *logs)


def one_of_each_rule(jobs: list[Job]) -> Iterator[Job]:
    found = {job["rule"]: job for job in jobs if job["output"] and job["command"]}
    return iter(found.values())


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return {
        str(file.relative_to(path.parent)): file.read_bytes()
        for file in files
        if file.name != ".snakemake_timestamp"
    }


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


def test_so_does_every_job_of_a_comparison_and_what_is_lost_is_made_again(
    two_sides: Pipeline, tmp_path: Path, every: bool
):
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


@pytest.mark.parametrize(("floor", "words"), [(0, " --floor 0.0 "), (None, "")])
def test_a_floor_of_zero_is_not_none(two_sides: Pipeline, floor: float | None, words: str):
    config = SIDES | {
        "source": "recorded",
        "recording": "recordings/one",
        "compare": {"floor": floor},
    }
    jobs = asked(two_sides.folder, "compare", config)["jobs"]
    (command,) = (job["command"] for job in jobs if job["rule"] == "compare_sides")
    assert (words in command) if words else ("--floor" not in command)


def test_every_job_of_a_live_run_works_from_its_declared_inputs_alone(
    machine: Machine, tmp_path: Path
):
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
    assert {Path(name).parts[-3] for name in build["input"] if "captures" in name} == {
        "toy",
        "swift",
    }
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


# --- closures -----------------------------------------------------------------------------------


@cache
def imports(module: str) -> set[str]:
    """The project's modules that a module's import statements name, by a whole parse; not those for types alone."""
    path = closure._path(module)
    assert path
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert not node.level, f"{module}: a relative import"
            found |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
    return {name for name in found if closure._path(name)}


@pytest.mark.parametrize("module", sorted({m for m, _ in COMMANDS.values()}))
def test_import_statements_are_found_as_a_parser_finds_them(module: str):
    for name in some(closure._closure(module)):
        started = {COMMANDS[c][0] for c in closure._STARTED.findall(closure._text(name))}
        found = {other for other in closure.imported(name) if closure._path(other)}
        assert found == imports(name) | started


def test_a_target_is_read_where_targets_are_loaded_by_name(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert "targets/decode.py" in closure.of("launch", target="decode")
    assert "targets/rope.py" not in closure.of("launch", target="decode")
    assert {"targets/decode.py", "targets/rope.py"} <= set(closure.of("claims"))


def test_data_files_are_read_by_what_names_them(monkeypatch):
    monkeypatch.chdir(ROOT)
    for command in ("environment", "results", "static-results"):
        assert "ncuflow/gpu/gpus.yaml" in closure.of(command)
    # another published figure measures nothing again
    for command in ("preflight", "launch", "ncu", "lock"):
        assert "ncuflow/gpu/gpus.yaml" not in closure.of(command)
    pages = closure.of("pages", pages=["kernel-dev-guide"])
    assert "templates/guide/_section.md.j2" in pages and "templates/claims.md.j2" not in pages
    assert {f"templates/guide/{name}/usage.py" for name in ("decode", "rope")} <= set(
        closure.of("pages", pages=["target"])
    )


def test_what_the_rule_hands_over_is_not_read_by_the_command(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert {"parsers/registry.py", "parsers/catalogue.yaml"} <= set(
        closure.of("ncu", target="decode")
    )
    given = closure.of("ncu", target="decode", given=["ncuflow.parsers.registry"])
    counted = {"parsers/registry.py", "parsers/catalogue.yaml", "parsers/sources.py"}
    assert not counted & set(given)


def test_a_started_command_is_part_of_what_starts_it(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert "ncuflow/runner/timing.py" in closure.of("ncu", target="decode")
