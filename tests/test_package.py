"""The package as it is installed: one name in site-packages, and all that it needs in any folder."""

import shutil
import zipfile
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from command import python as command_of
from conftest import DEFAULT, ROOT

from ncuflow.evidence import location

SOURCES = (
    "ncuflow",
    "parsers",
    "targets",
    "claims",
    "config",
    "profiles",
    "templates",
    "workflows",
)
FILES = ("Snakefile", "pyproject.toml", "README.md")
REPORT = min(DEFAULT.glob("*/*/sweep.ncu-rep.xz"), key=lambda path: path.stat().st_size)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel that is made from the source distribution of a copy of the project, without a network."""
    setuptools = find_spec("setuptools") and version("setuptools").split(".")[0]
    if not find_spec("pip") or int(setuptools or 0) < 77:
        pytest.skip("needs pip and setuptools 77, which the extra `test` brings")
    copy = tmp_path_factory.mktemp("project")
    ignored = shutil.ignore_patterns("__pycache__")
    for name in SOURCES:
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
    for name in FILES:
        shutil.copy(ROOT / name, copy)
    (copy / "recordings").symlink_to(ROOT / "recordings")
    sdist = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
    wheel = "pip wheel --no-build-isolation --no-deps --no-index -q -w dist"
    for command in (["-c", sdist], ["-m", *wheel.split(), "dist/ncuflow-0.1.0.tar.gz"]):
        done = command_of(*command, cwd=copy)
        assert done.returncode == 0, done.stderr
    (built,) = copy.glob("dist/*.whl")
    return zipfile.ZipFile(built)


@pytest.fixture(scope="module")
def installed(wheel: zipfile.ZipFile, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has in it what the wheel puts into site-packages."""
    folder = tmp_path_factory.mktemp("site")
    wheel.extractall(folder)
    return folder


def python(installed: Path, folder: Path, *arguments: str | Path) -> Any:
    """Python in a folder, with the wheel in the place of whatever else is installed."""
    return command_of(*arguments, cwd=folder, PYTHONPATH=str(installed))


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in names} == {"ncuflow"}
    assert wheel.read("ncuflow-0.1.0.dist-info/entry_points.txt") == (
        b"[console_scripts]\nncuflow = ncuflow.cli:main\n"
    )
    folders = [ROOT / "ncuflow", *(ROOT / "ncuflow").iterdir(), *(ROOT / "ncuflow/data").iterdir()]
    paths = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    wanted = {str(path.relative_to(ROOT)) for path in paths if "__pycache__" not in path.parts}
    others = {name for name in wanted if name.startswith("ncuflow/data/recordings/")}
    shipped = (f"ncuflow/data/{DEFAULT.relative_to(ROOT)}/", "ncuflow/data/recordings/sm_")
    others = {name for name in others if not name.startswith(shipped)}
    assert names - {"ncuflow/data/Snakefile"} == wanted - others - {"ncuflow/data/Snakefile"}
    assert wheel.read("ncuflow/data/Snakefile") == (ROOT / "Snakefile").read_bytes()


def test_a_report_is_shown_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    done = python(installed, tmp_path, "-m", "ncuflow", "show", REPORT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "NVIDIA H200" in done.stdout and "top stall" in done.stdout


@pytest.mark.parametrize("name", ["targets", "parsers"])
def test_the_folders_of_the_checkout_are_no_packages_of_their_own(name, installed, tmp_path):
    assert "ModuleNotFoundError" in python(installed, tmp_path, "-c", f"import {name}").stderr
    assert python(installed, tmp_path, "-c", f"import ncuflow.{name}").returncode == 0


def test_the_workflow_runs_in_any_folder_by_its_own_code(installed, small, tmp_path):
    """Also where the folder has a package of that name, such as another checkout."""
    decoy = tmp_path / "ncuflow/__init__.py"
    decoy.parent.mkdir()
    decoy.write_text("raise RuntimeError('not this one')\n")
    (tmp_path / "yaml.py").write_text("raise RuntimeError('nor this one')\n")
    arguments = ("run", "rmsnorm", "--", "-j2", "--config", "source=recorded")
    done = python(installed, tmp_path, "-P", "-m", "ncuflow", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    page = "reports/rmsnorm.md"
    made = tmp_path / f"outputs/recorded-{location.name(DEFAULT)}"
    assert (made / page).read_bytes() == (small.outputs / page).read_bytes()
    kept = [path for path in (tmp_path / ".snakemake/metadata").rglob("*") if path.is_file()]
    assert kept and not any(str(ROOT) in path.read_text() for path in kept)
