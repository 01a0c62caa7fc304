"""A rule's command in a child of Snakemake's own process: libraries are loaded once, not in every job.

A run on recorded evidence has some twenty jobs, and each would import pandas, pyarrow and matplotlib
for longer than it works (benchmarks/RESULTS.md). One job for all targets would be the other way, but
Snakemake removes what a failed job made: one broken target would take the others' pages along.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from importlib import import_module
from pathlib import Path
from threading import Lock, Thread

from ncuflow import cli

# Imported in functions, of Snakemake or of commands; what takes long where the words of a command tell that it is used.
LATE = ("pandas",)
USED = {"tables": "ncuflow.parsers.nvperf", "--figures": "ncuflow.pages.markdown.figures"}
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
        used = [module for word, module in USED.items() if word in words]
        try:
            for module in (*LATE, *used, cli.COMMANDS[name][0]):
                import_module(module)
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
