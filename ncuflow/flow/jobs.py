"""A rule's command in a child of Snakemake's own process: libraries are loaded once, not in every job.

A run on recorded evidence has some twenty jobs, and each would import pandas, pyarrow and matplotlib
for longer than it works (benchmarks/RESULTS.md). One job for all targets would be the other way, but
Snakemake removes what a failed job made: one broken target would take the others' pages along.

Where the home folder cannot be written, caches of programs lie below the outputs: so it is in a container that runs as
any user, and for a service. Snakemake's own is none of these: the profile has it in the temporary folder, since Snakemake
asks for it before a rule file is read.
"""

import gc
import multiprocessing
import os
import shlex
import sys
import tempfile
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from threading import Lock, Thread

from ncuflow import cli

# Imported in functions, of libraries and of commands. What the jobs of a command share beside, the function `share` of its
# module makes, of the words of the first of them.
LATE = ("cyclopts.help", "pandas", "pyarrow.csv", "pyarrow.parquet")
Value = str | Path | float | bool | Iterable[str | Path] | None
# A child has the threads' locks but not the threads: a module that was half imported would be so for ever.
_importing = Lock()


def run(log: str, name: str, *given: Value, **options: Value) -> None:
    """Run a command of `ncuflow` with what it is given, what it says on stderr going to the file `log`.

    Raises RuntimeError where it ends with another status than 0.
    """
    words = words_of(name, *given, **options)
    child = multiprocessing.get_context("fork").Process(target=_run, args=(words, log))
    # Not from a thread of Snakemake's pool: the child would wait for that pool when it ends.
    start = Thread(target=child.start)
    with _importing:
        try:
            for module in LATE:
                import_module(module)
            if share := getattr(import_module(cli.COMMANDS[name][0]), "share", None):
                share(words)
        except ImportError as error:
            Path(log).write_text(f"error: {error}\n", encoding="utf-8")
            raise RuntimeError(f"ncuflow {name}: {error}") from error
        # What is here is no garbage: each collection would go through all of it, and copy what a child shares.
        gc.freeze()
        start.start()
        start.join()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"ncuflow {shlex.join(words)}: exit status {child.exitcode}")


def words_of(name: str, *given: Value, **options: Value) -> list[str]:
    """The words of a command: of a list each value, of None, False and an empty list nothing, of True the option alone.

    words_of("pages", ["INDEX"], out_dir=Path("out"), strict=True) is pages INDEX --out-dir out --strict.
    """
    words = [*name.split(), *(word for value in given for word in _texts(value))]
    for option, value in options.items():
        texts = _texts(value)
        if texts or value is True:
            words += [f"--{option.replace('_', '-')}", *texts]
    return words


def _texts(value: Value) -> list[str]:
    if value is None or isinstance(value, bool):
        return []
    if isinstance(value, str | Path | int | float):
        return [str(value)]
    return [str(one) for one in value]


def _run(words: Sequence[str], log: str) -> None:
    sys.stderr = Path(log).open("w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    os.dup2(sys.stderr.fileno(), 2)
    gc.disable()  # it lives for one command; the more points, the longer collections go through their rows for nothing
    cli.main(words)


def params_are_no_frames() -> None:
    """Keep Snakemake from importing pandas to see whether a param is a frame: half a second of each start, and ours are none."""
    from snakemake.persistence import PersistenceBase

    PersistenceBase._serialize_param_pandas = PersistenceBase._serialize_param_builtin


FOLDER = ".cache"


def provide_caches(outputs: Path) -> str | None:
    """Let compiled modules and Matplotlib's fonts lie below the outputs where home does not serve.

    It is the environment that is changed: of this process, and of all that it starts. Returns a line that says so.
    """
    own = outputs.absolute() / FOLDER
    if not _serves("XDG_CONFIG_HOME", ".config"):
        os.environ.setdefault("MPLCONFIGDIR", str(own / "matplotlib"))
    if _serves("XDG_CACHE_HOME", ".cache"):
        return None
    os.environ["XDG_CACHE_HOME"] = str(own)
    return f"the home folder cannot be written: caches are in {outputs / FOLDER}"


def _serves(variable: str, below_home: str) -> bool:
    """Whether a file can be written where this variable, or else the home folder, says."""
    home = os.environ.get("HOME")
    place = os.environ.get(variable) or (home and f"{home}/{below_home}")
    if not place:
        return False
    try:
        there = next(path for path in (Path(place), *Path(place).parents) if path.exists())
        with tempfile.TemporaryFile(dir=there):
            return True
    except OSError:
        return False
