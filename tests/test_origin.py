"""What a capture is made with, read from what is installed."""

from __future__ import annotations

import importlib.metadata

from ncuflow import origin


def test_a_flashinfer_without_a_distribution_says_its_version_itself(tmp_path, monkeypatch):
    folder = tmp_path / "flashinfer"
    folder.mkdir()
    (folder / "__init__.py").touch()

    def none(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(origin.importlib.metadata, "version", none)
    monkeypatch.setattr(origin, "package_folder", lambda name: folder)
    assert origin.flashinfer_version() is None
    (folder / "_build_meta.py").write_text('__version__ = "0.6.14"\n')
    assert origin.flashinfer_version() == "0.6.14"


def test_a_cute_dsl_that_is_installed_and_not_found_is_none(tmp_path, monkeypatch):
    """A folder on PYTHONPATH has its distribution and not its .pth file, which names where the module lies."""
    monkeypatch.setattr(origin, "package_version", lambda name: "4.8.1")
    monkeypatch.setattr(origin.importlib.util, "find_spec", lambda name: None)
    assert origin.cutlass_dsl() is None
    monkeypatch.setattr(origin.importlib.util, "find_spec", lambda name: name == "cutlass")
    assert origin.cutlass_dsl() == "4.8.1"
