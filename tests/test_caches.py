"""Where caches lie: with the user, and below the outputs where the home folder does not serve."""

import os
from pathlib import Path

import pytest

from ncuflow.flow import jobs

VARIABLES = ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what is set is undone
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def given() -> dict[str, str]:
    return {name: os.environ[name] for name in VARIABLES if name in os.environ}


@pytest.mark.parametrize("folders", [(), (".cache", ".config")])
def test_a_home_folder_that_serves_is_left_as_it_is(home: Path, folders: tuple[str, ...]) -> None:
    for name in folders:
        (home / name).mkdir()
    assert jobs.provide_caches(home / "outputs") is None
    assert given() == {} and sorted(path.name for path in home.rglob("*")) == sorted(folders)


@pytest.mark.parametrize("name", ["/proc/nowhere", "/dev/null", "/dev/null/x", "", None])
def test_in_the_place_of_any_other_comes_a_folder_of_the_outputs(home, monkeypatch, name):
    monkeypatch.chdir(home)
    monkeypatch.delenv("HOME") if name is None else monkeypatch.setenv("HOME", name)
    assert jobs.provide_caches(Path("outputs")) is not None
    own = home / "outputs/.cache"
    assert given() == {"XDG_CACHE_HOME": str(own), "MPLCONFIGDIR": str(own / "matplotlib")}
    assert jobs.provide_caches(Path("outputs")) is None, "what is given serves"


def test_a_cache_that_the_user_names_is_kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/proc/nowhere")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home / "own"))
    assert jobs.provide_caches(Path("outputs")) is None
    assert os.environ["XDG_CACHE_HOME"] == str(home / "own")
