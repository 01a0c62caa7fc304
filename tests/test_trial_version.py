"""Another FlashInfer as a change: where it comes from, and what of it differs."""

import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any

import pytest

from ncuflow.experiments import variant
from ncuflow.experiments.variant import lay_version, named_version
from ncuflow.io import BadInput, CommandError, UsageError


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    return made(tmp_path / "site", {"decode.py": "old", "norm.py": "same", "gone.py": ""})


def made(root: Path, files: dict[str, str]) -> Path:
    package = root / "flashinfer"
    for name, text in ({"__init__.py": "", "data/aot/m/m.so": "prebuilt"} | files).items():
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text(text, encoding="utf-8")
    return package


def other(root: Path) -> Path:
    return made(root, {"decode.py": "new", "norm.py": "same", "data/include/x.cuh": "x"})


def wheel(path: Path, package: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in package.rglob("*"):
            archive.write(file, PurePosixPath("flashinfer", file.relative_to(package)))
        archive.writestr("flashinfer_python-0.7.1.dist-info/METADATA", "")
    return path


def test_a_wheel_a_folder_and_the_package_itself_are_laid(installed: Path, tmp_path: Path) -> None:
    package = other(tmp_path / "other")
    for place in (package, package.parent, wheel(tmp_path / "f.whl", package)):
        folder = tmp_path / f"laid-{place.name}"
        folder.mkdir()
        found = lay_version(f"flashinfer@{place}", installed, folder)
        assert sorted(map(str, found.files)) == ["data/include/x.cuh", "decode.py", "gone.py"]
        assert (found.package / "decode.py").read_text() == "new"
        assert found.package.parent != package.parent and found.workspace is not None
        assert not (found.package / "data/aot").exists() and found.whole
        assert [path.name for path in found.package.parent.iterdir()] == ["flashinfer"]
    assert (package / "data/aot/m/m.so").exists()


def test_a_version_is_the_wheel_that_pip_has_of_it(installed, tmp_path, monkeypatch):
    package, asked = other(tmp_path / "other"), []

    def pip(command: Sequence[str], *, cwd: Path, **rest: Any) -> SimpleNamespace:
        asked.append(command)
        wheel(cwd / "flashinfer_python-0.7.1-py3-none-any.whl", package)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(variant, "run_child", pip)
    (tmp_path / "laid").mkdir()
    found = lay_version("flashinfer==0.7.1", installed, tmp_path / "laid")
    assert (found.package / "decode.py").read_text() == "new"
    assert asked[0][:4] == [sys.executable, "-m", "pip", "download"]
    assert "--no-deps" in asked[0] and "flashinfer-python==0.7.1" in asked[0]


def says(*lines: str, status: int) -> Any:
    """A pip that prints these lines."""

    def pip(command: Sequence[str], *, on_line: Any, **rest: Any) -> SimpleNamespace:
        for line in lines:
            on_line(line)
        return SimpleNamespace(returncode=status, timed_out=False)

    return pip


def test_a_version_that_pip_has_not_is_one_line(installed, tmp_path, monkeypatch):
    lines = ("WARNING: Retrying", "ERROR: No matching distribution found for flashinfer-python==9")
    monkeypatch.setattr(variant, "run_child", says(*lines, status=1))
    with pytest.raises(CommandError, match=r"^flashinfer==9: ERROR: No matching distribution"):
        lay_version("flashinfer==9", installed, tmp_path)


def test_versions_are_those_that_pip_lists(monkeypatch):
    lines = ("flashinfer-python (0.7.2)", "Available versions: 0.7.2, 0.7.1.post1")
    monkeypatch.setattr(variant, "run_child", says(*lines, status=0))
    assert variant.versions() == ["0.7.2", "0.7.1.post1"]
    monkeypatch.setattr(variant, "run_child", says("ERROR: no index", status=0))
    with pytest.raises(CommandError, match="pip names no version of flashinfer-python: ERROR: no"):
        variant.versions()


@pytest.mark.parametrize("place", ["none.whl", "empty", "bad.whl"])
def test_what_holds_no_package_is_bad_input(installed: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "bad.whl").write_text("no archive", encoding="utf-8")
    (tmp_path / "laid").mkdir()
    with pytest.raises(BadInput):
        lay_version(f"flashinfer@{tmp_path / place}", installed, tmp_path / "laid")


def test_what_is_a_version() -> None:
    assert named_version(Path("flashinfer==0.7.1.post1")) == "flashinfer==0.7.1.post1"
    assert named_version(Path("flashinfer@x/y.whl")) == "flashinfer@x/y.whl"
    assert named_version(Path("flashinfer.patch")) is None
    assert named_version(Path("mine:rmsnorm")) is None
    with pytest.raises(UsageError, match="not a version"):
        named_version(Path("flashinfer==--index-url=x"))
