"""What reads a report loads little: a laptop without the pipeline's packages has all that it needs."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from pathlib import Path

import pytest
from command import python
from conftest import ROOT, some_by_default

from ncuflow import origin
from ncuflow.cli import COMMANDS

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HEAVY, TRACE = (
    [re.match(r"[\w-]+", one)[0] for one in PROJECT["optional-dependencies"][extra]]
    for extra in ("pipeline", "trace")
)
REPORT = ROOT / "tests/data/rmsnorm_set_full.ncu-rep.xz"


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a Python that cannot import what extras bring."""
    for name in {*HEAVY, *TRACE} - {"ncuflow"}:
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError({name!r}, name={name!r})")
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}


@pytest.mark.parametrize("verb", ["trace", "targets", "mcp"])
def test_a_verb_that_reads_imports_nothing_of_the_pipeline(bare: dict[str, str], verb: str) -> None:
    code = f"import sys, {COMMANDS[verb][0]}; print(len(sys.modules))"
    done = python("-c", code, **bare)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 650


@pytest.mark.parametrize("verb", some_by_default(["show", "view", "explain", "step"], 3))
def test_a_trace_without_numpy_is_one_line(bare: dict[str, str], verb: str) -> None:
    done = python("-m", "ncuflow", verb, ROOT / "tests/data/engine/nsys-node.sqlite.xz", **bare)
    assert done.returncode == 1 and done.stdout == ""
    said = r"error: the package numpy is missing: pip install '?numpy\S*\n"
    assert re.fullmatch(said, done.stderr)


def test_a_missing_package_is_installed_with_its_own_extra_alone(monkeypatch):
    extras = PROJECT["optional-dependencies"].items()
    asked = [f'{one}; extra == "{extra}"' for extra, some in extras for one in some]
    monkeypatch.setattr(origin.importlib.metadata, "requires", lambda _: asked)
    assert origin.remedy("mcp") == "pip install 'mcp>=2.3,<3'"
    assert origin.remedy("numpy.linalg") == "pip install 'numpy>=1.26,<3'"
    assert "flashinfer-python" in origin.remedy("torch")
    assert "nvidia-cuda-nvcc" not in origin.remedy("torch")
    assert origin.remedy("scipy") == origin.remedy("pyarrow") != "pip install pyarrow"
    assert origin.remedy("absent") == "pip install absent"


def test_what_needs_the_pipeline_says_how_to_install_it(bare: dict[str, str]) -> None:
    done = python("-m", "ncuflow", "compare", *["recordings/h200/0.6.18/versions"] * 2, **bare)
    assert done.returncode == 1
    said = r"error: the package pyarrow is missing: pip install .*pyarrow.*\n"
    assert re.fullmatch(said, done.stderr)


@pytest.mark.parametrize(
    ("words", "without"),
    [
        (("show", REPORT), "numpy tabulate jinja2 ncuflow.target ncuflow.findings ncuflow.pages"),
        (("explain", REPORT), "numpy jinja2 ncuflow.findings.opportunities ncuflow.pages"),
        (("view", REPORT, "--out", "page.html"), "numpy ncuflow.parsers.nsys ncuflow.step"),
        (("compare", REPORT, REPORT), "numpy jinja2 ncuflow.parsers.nsys ncuflow.pages"),
        (("step", ROOT / "tests/data/engine/trace.json.xz"), "jinja2 ncuflow.pages ncu_report"),
    ],
    ids=lambda one: one[0] if isinstance(one, tuple) else "",
)
def test_a_verb_reads_without_any_extra_and_loads_what_it_needs_when_it_runs(
    bare, tmp_path, words, without
):
    """By modules, for seconds depend on the machine; those of its own are fewer than 650."""
    given = [str(tmp_path / one) if one == "page.html" else str(one) for one in words]
    if words[0] == "step":
        (tmp_path / "numpy.py").unlink()
    ran = f"import sys, ncuflow.verbs.{words[0]}; from ncuflow import cli; own = len(sys.modules)"
    ran += f"; cli.dispatch({given}); print(own, *sys.modules, file=sys.stderr)"
    done = python("-c", ran, **bare)
    assert done.returncode == 0 and (done.stdout or "wrote" in done.stderr), done.stderr
    own, *loaded = done.stderr.splitlines()[-1].split()
    assert int(own) < 650 and {"ncuflow.cli", "pydantic"} <= {*loaded}
    assert [name for name in without.split() if name in loaded] == []


def test_an_older_python_is_told_in_one_line(bare: dict[str, str]) -> None:
    code = "import runpy, sys; sys.version_info = (3, 10, 13); runpy.run_module('ncuflow')"
    done = python("-c", code, **bare)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == "error: ncuflow needs Python 3.11 or newer, and this is 3.10\n"
    for name in ("__init__.py", "__main__.py"):  # what such a Python reads until then
        ast.parse((ROOT / "ncuflow" / name).read_text(encoding="utf-8"), feature_version=(3, 8))


def test_a_look_at_what_is_to_do_imports_none_of_the_tables_and_figures(tmp_path: Path) -> None:
    words = ["-n", "-q", "-s", str(ROOT / "Snakefile"), "--config", "source=recorded"]
    words += [f"recording={ROOT / 'recordings/h200/0.7.2/default'}"]
    code = (
        "import atexit, runpy, sys\n"
        f"sys.argv[1:] = {words}\n"
        "atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
        "runpy.run_module('snakemake', run_name='__main__')"
    )
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    loaded = done.stderr.splitlines()[-1].split()
    assert "ncuflow.flow.jobs" in loaded
    assert {"pandas", "pyarrow", "matplotlib", "cyclopts", "scipy"} & {*loaded} == set()


def test_a_shell_completes_where_only_the_core_is_installed(bare: dict[str, str]) -> None:
    """Of a verb that lacks a package its name."""
    done = python("-m", "ncuflow", "--completion", "bash", **bare)
    assert done.returncode == 0, done.stderr
    assert {"--kernel", "predict"} <= {*done.stdout.split()} and "--measured" not in done.stdout
