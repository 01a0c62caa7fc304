"""Commands: of ncuflow in this process, without the start of one of its own, and programs as processes of their own."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from ncuflow.cli import dispatch, ended

ROOT = Path(__file__).parents[1]


def ncuflow(*words: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """`ncuflow WORDS…` in a folder, its outputs captured."""
    out, err, here = io.StringIO(), io.StringIO(), Path.cwd()
    given = list(map(str, words))
    with redirect_stdout(out), redirect_stderr(err):
        os.chdir(cwd)
        try:
            status = ended(lambda: dispatch(given))
        except SystemExit as left:
            status = left.code if isinstance(left.code, int) else 1
        finally:
            os.chdir(here)
    return subprocess.CompletedProcess(given, status, out.getvalue(), err.getvalue())


def ran(*command: object, cwd: Path = ROOT, **env: str | None) -> subprocess.CompletedProcess[str]:
    """A program in a folder, its outputs captured. env: beside this process's variables; None takes one away."""
    words = list(map(str, command))
    told = {name: value for name, value in (os.environ | env).items() if value is not None}
    return subprocess.run(words, cwd=cwd, env=told, capture_output=True, text=True, check=False)


def python(*words: object, cwd: Path = ROOT, **env: str | None) -> subprocess.CompletedProcess[str]:
    return ran(sys.executable, *words, cwd=cwd, **env)
