"""A command of ncuflow in this process: what a process of its own would end with and print, without its start."""

from __future__ import annotations

import io
import os
import subprocess
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
