"""How the project checks itself: what workers share, and what the long check runs."""

from __future__ import annotations

import fcntl
from pathlib import Path

import pytest
from conftest import ROOT, filled_once


def test_what_workers_share_is_filled_once_while_others_wait(tmp_path: Path) -> None:
    filled = []

    def fill(folder: Path) -> None:
        with (tmp_path / "shared.lock").open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as another worker would
        filled.append(folder)
        (folder / "page").write_text("whole")

    for _ in range(2):
        assert (filled_once(tmp_path / "shared", fill) / "page").read_text() == "whole"
    assert filled == [tmp_path / "shared"]


def test_what_a_worker_left_half_is_made_again(tmp_path: Path) -> None:
    def fails(folder: Path) -> None:
        (folder / "half").touch()
        raise OSError("killed")

    with pytest.raises(OSError, match="killed"):
        filled_once(tmp_path / "shared", fails)
    shared = filled_once(tmp_path / "shared", lambda folder: (folder / "whole").touch())
    assert [path.name for path in shared.iterdir()] == ["whole"]


def test_tests_of_every_case_run_in_the_long_check_and_not_by_default() -> None:
    settings = (ROOT / "pyproject.toml").read_text()
    assert "and not exhaustive" in settings
    assert "-m exhaustive" in (ROOT / "scripts/check-all").read_text()
