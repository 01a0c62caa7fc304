"""What reads reports works on a system without POSIX: no module of it is imported, and no function of it called."""

from pathlib import Path

import pytest
from command import ncuflow, python
from conftest import ROOT, some_by_default

RECORDED = ROOT / "recordings/h200/0.7.2/default"
REPORT = str(next(RECORDED.glob("rmsnorm/*/sweep.ncu-rep.xz")))
OTHER = str(next((ROOT / "recordings/h100/0.7.2/default").glob("rmsnorm/*/sweep.ncu-rep.xz")))
# As Windows: what only POSIX has is hidden from this project's modules, and from all once the libraries are loaded.
HIDES = """
import builtins, ctypes, importlib, multiprocessing, os, signal, sys
MODULES = {"fcntl", "grp", "pwd", "resource", "termios"}
NAMES = "fork geteuid getuid killpg mkfifo sched_getaffinity setsid uname O_CLOEXEC O_NOFOLLOW O_NONBLOCK".split()
imports, opens = builtins.__import__, ctypes.CDLL.__init__

def hidden(name, globals=None, *more, **named):
    if name in MODULES and str((globals or {}).get("__name__")).startswith("ncuflow"):
        raise ImportError(f"no module named {name!r}")
    return imports(name, globals, *more, **named)

def library(self, name, *more, **named):
    if name is None:
        raise TypeError("no library has no name")
    opens(self, name, *more, **named)

import jinja2, ncu_report, numpy, pandas, pyarrow.parquet, pydantic, scipy.stats, yaml
builtins.__import__, ctypes.CDLL.__init__ = hidden, library
for name in NAMES:
    delattr(os, name)
for name in ("SIGPIPE", "SIGKILL", "SIGHUP", "SIGALRM"):
    delattr(signal, name)
multiprocessing.get_all_start_methods = lambda: ["spawn"]
"""
RUN = f"{HIDES}\nfrom ncuflow.cli import main\nmain(sys.argv[1:])\n"


@pytest.mark.parametrize(
    "words",
    some_by_default(
        [
            ("show", REPORT),
            ("explain", REPORT, "--json"),
            ("view", REPORT, "--out", "page.html"),
            ("compare", OTHER, REPORT, "--json"),
        ],
        2,
    ),
    ids=lambda words: words[0],
)
def test_a_verb_that_reads_needs_no_posix(words: tuple[str, ...], tmp_path: Path) -> None:
    found = python("-c", RUN, *words, cwd=tmp_path, PYTHONPATH=str(ROOT), HOME=str(tmp_path))
    plain = ncuflow(*words, cwd=tmp_path)
    assert (found.returncode, found.stdout) == (plain.returncode, plain.stdout), found.stderr
    assert found.stderr == plain.stderr
    assert found.stdout or (tmp_path / "page.html").stat().st_size > 100_000


def test_the_package_and_its_entries_import_without_posix() -> None:
    code = (
        f"{HIDES}\nimport ncuflow, ncuflow.api, ncuflow.cli, ncuflow.gpu.lock, ncuflow.run.builds"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
