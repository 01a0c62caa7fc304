"""Python programs that start with libraries loaded: each is a fork of one process, which has imported them and nothing of ours.

What is run is the same as `python -m MODULE WORDS…` in a folder, without the second and more that Snakemake, pandas and
pyarrow take to import.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

LIBRARIES = (
    "numpy", "scipy.stats", "pandas", "pyarrow.parquet", "pydantic", "jinja2", "yaml", "pygments.lexers",
    "snakemake.api", "snakemake.cli", "snakemake.workflow",
)  # fmt: skip
_server: subprocess.Popen[str] | None = None
_environment = dict(os.environ)  # before a test changes it


def run(
    module: str, *words: str, cwd: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """`python -m MODULE WORDS…`, its outputs captured."""
    global _server
    command = [sys.executable, "-m", module, *words]
    folders = filter(None, env.get("PYTHONPATH", "").split(os.pathsep))
    if any([*Path(folder).glob("snakemake_*")] for folder in folders):
        # A plugin of Snakemake's, which looks for them when it is imported.
        how = {"capture_output": True, "text": True, "check": False}
        return subprocess.run(command, cwd=cwd, env=env, **how)
    if _server is None:
        how = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        _server = subprocess.Popen([sys.executable, __file__], env=_environment, **how)
        atexit.register(_server.communicate)
    assert _server.stdin is not None and _server.stdout is not None
    with tempfile.TemporaryDirectory() as folder:
        said = [Path(folder, name) for name in ("out", "err")]
        request = [module, words, str(cwd), dict(env), *map(str, said)]
        print(json.dumps(request), file=_server.stdin, flush=True)
        status = int(_server.stdout.readline())
        texts = [path.read_text(encoding="utf-8") for path in said]
    return subprocess.CompletedProcess(command, status, *texts)


def _asked() -> tuple[str, list[str]]:
    """In each child what it is to run; the parent ends with its input."""
    for line in sys.stdin:
        if child := os.fork():
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
        else:
            module, words, cwd, env, out, err = json.loads(line)
            _become(cwd, env, out, err)
            return module, words
    sys.exit()


def _become(cwd: str, env: dict[str, str], out: str, err: str) -> None:
    """Folder, environment and open files of a process that was started so."""
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(env)
    written = os.O_WRONLY | os.O_CREAT
    flags = {os.devnull: os.O_RDONLY, out: written, err: written}
    for number, opened in enumerate([os.open(path, how) for path, how in flags.items()]):
        os.dup2(opened, number)
        os.close(opened)
    sys.path[:1] = ["", *filter(None, env.get("PYTHONPATH", "").split(os.pathsep))]
    sys.dont_write_bytecode = bool(env.get("PYTHONDONTWRITEBYTECODE"))


def _serve(words: Sequence[str]) -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    gc.freeze()
    module, words = _asked()
    sys.argv[1:] = words
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve(sys.argv)
