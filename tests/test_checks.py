"""How the project checks itself: what workers share, and that CI fails where a part of it does."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
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


@pytest.mark.parametrize(
    ("tests", "lint", "says"),
    [
        ("true", "echo unused import; false", "error: failed: lint"),
        ("false", "echo clean", "error: failed: tests"),
        ("false", "echo unused import; false", "error: failed: tests lint"),
        ("true", "echo clean", ""),
    ],
)
def test_ci_shows_lint_and_fails_with_it_and_with_the_tests(
    tmp_path: Path, tests: str, lint: str, says: str
) -> None:
    for name in (".ci", "scripts"):
        (tmp_path / name).mkdir()
    for name in (".ci/run", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    before = "```bash\nread\n```\n\n```bash\ntry\n```\n\n```bash\nfirst run\n```\n\n"
    blocks = f"{before}```bash\necho install\n{tests}\n```\n"
    (tmp_path / "README.md").write_text(blocks)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    programs = {"scripts/check": lint, ".venv/bin/pip": "test $1 = download"}
    programs |= {".venv/bin/python": "", ".venv/bin/chromium": ""}
    for name, line in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        [tmp_path / ".ci/run"], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        env=os.environ | {"PATH": f"{tmp_path / '.venv/bin'}:{os.environ['PATH']}"},
    )  # fmt: skip
    assert lint.split(";")[0].removeprefix("echo ") in done.stdout.splitlines()
    assert done.returncode != 0  # where both pass, what comes after them is not there
    assert ("a real Slurm of two nodes" in done.stdout) is (not says)
    assert says in done.stderr.splitlines() if says else "error: failed" not in done.stderr


def test_tests_of_every_case_run_in_the_long_check_and_not_by_default() -> None:
    settings = (ROOT / "pyproject.toml").read_text()
    assert "and not exhaustive" in settings
    assert "-m exhaustive" in (ROOT / "scripts/check-all").read_text()
    assert "scripts/check-all" in (ROOT / ".github/workflows/nightly.yml").read_text()
