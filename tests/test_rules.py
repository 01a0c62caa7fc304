"""What rules declare is what their commands read: a change reruns what holds it, and closures hold every file."""

import ast
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT, some
from dag import RECORDED, all_lost_are_made_again, dependents, graph, representatives

from ncuflow.cli import COMMANDS
from ncuflow.flow import jobs

FOLDERS = ("ncuflow", "parsers", "targets", "templates", "claims")
LINKS = ("ncuflow/parsers", "ncuflow/targets", "ncuflow/data")


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
    chosen = chosen if every else chosen[::16]
    _, reruns = graph(made, "all", RECORDED, (*chosen, *edited))
    for file, rules in reruns.items():
        assert sorted(rules) == dependents(jobs, file), file
    for file, (some_of, none_of) in edited.items():
        assert some_of <= set(reruns[file]) and not none_of & set(reruns[file]), file


def test_every_file_of_the_project_is_read_by_a_command(monkeypatch):
    monkeypatch.chdir(ROOT)
    pages = [path.name.removesuffix(".md.j2") for path in (ROOT / "templates").glob("*.md.j2")]
    read = {file for name in COMMANDS for file in jobs.inputs(name, pages=pages)}
    # No rule reads what a notebook imports, what `scripts/docs.py` writes for readers of answers, what `export script` fills.
    workflow = {"ncuflow/cli.py", "ncuflow/__main__.py", "ncuflow/api.py"}
    workflow |= {f for f in project_files(ROOT) if f.startswith("ncuflow/schemas/")}
    workflow |= {f for f in project_files(ROOT) if f.startswith("templates/script/")}
    workflow |= {f for f in project_files(ROOT) if f.startswith("ncuflow/flow/")}
    read |= set(jobs.data("templates/html"))
    claims = {f for f in project_files(ROOT) if f.startswith("claims/")}
    assert project_files(ROOT) - read - workflow - claims == {
        "ncuflow/py.typed"
    }  # for type checkers


def test_every_output_that_is_lost_is_made_again(made: Path, every: bool):
    all_lost_are_made_again(made, "all", RECORDED, "outputs/", every)


# --- closures -----------------------------------------------------------------------------------


@cache
def imports(module: str) -> set[str]:
    """The project's modules that a module's import statements name, by a whole parse; not those for types alone."""
    path = jobs._path(module)
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
    return {name for name in found if jobs._path(name)}


@pytest.mark.parametrize("module", sorted({m for m, _ in COMMANDS.values()}))
def test_import_statements_are_found_as_a_parser_finds_them(module: str):
    for name in some(jobs._closure(module)):
        started = {COMMANDS[c][0] for c in jobs._STARTED.findall(jobs._text(name))}
        found = {other for other in jobs.imported(name) if jobs._path(other)}
        assert found == imports(name) | started


def test_a_target_is_read_where_targets_are_loaded_by_name(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert "targets/decode.py" in jobs.inputs("launch", target="decode")
    assert "targets/rope.py" not in jobs.inputs("launch", target="decode")
    assert {"targets/decode.py", "targets/rope.py"} <= set(jobs.inputs("check claims"))


def test_data_files_are_read_by_what_names_them(monkeypatch):
    monkeypatch.chdir(ROOT)
    for command in ("environment", "results", "static-results"):
        assert "ncuflow/gpu/gpus.yaml" in jobs.inputs(command)
    # another published figure measures nothing again
    for command in ("preflight", "launch", "ncu", "lock"):
        assert "ncuflow/gpu/gpus.yaml" not in jobs.inputs(command)
    pages = jobs.inputs("pages", pages=["kernel-dev-guide"])
    assert "templates/guide/_section.md.j2" in pages and "templates/claims.md.j2" not in pages
    assert {f"templates/guide/{name}/usage.py" for name in ("decode", "rope")} <= set(
        jobs.inputs("pages", pages=["target"])
    )
    # nor does another word of what counters suggest
    suggested = {"templates/guide/decode/opportunities.yaml", "templates/guide/decode/options.yaml"}
    assert suggested <= {*pages}
    assert not suggested & {*jobs.inputs("ncu", "launch", "build", target="decode")}


def test_what_the_rule_hands_over_is_not_read_by_the_command(monkeypatch):
    monkeypatch.chdir(ROOT)
    counted = {"parsers/registry.py", "parsers/catalogue.yaml"}
    assert counted <= {*jobs.inputs("ncu", target="decode")}
    assert not counted & {*jobs.inputs("ncu", target="decode", given=["ncuflow.parsers.registry"])}


def test_a_started_command_is_part_of_what_starts_it(monkeypatch):
    monkeypatch.chdir(ROOT)
    assert "ncuflow/run/timing.py" in jobs.inputs("ncu", target="decode")
