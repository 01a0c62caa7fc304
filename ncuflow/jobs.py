"""A rule's command in a child of Snakemake's own process: libraries are loaded once, not in every job.

The child is a fork, so a crash, a leak or a changed setting ends with it, and jobs run side by side.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import shlex
import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from ncuflow import cli


def run(command: str, log: str) -> None:
    """Run a command line of `ncuflow`, what it says on stderr going to the file `log`.

    Raises RuntimeError where it ends with another status than 0.
    """
    words = shlex.split(command)
    import_module(cli.COMMANDS[words[0]][0])
    child = multiprocessing.get_context("fork").Process(target=_run, args=(words, log))
    # Not from a thread of Snakemake's pool: the child would wait for itself when it ends.
    start = threading.Thread(target=child.start)
    start.start()
    start.join()
    child.join()
    if child.exitcode:
        raise RuntimeError(f"ncuflow {command}: exit status {child.exitcode}")


def _run(words: Sequence[str], log: str) -> None:
    sys.stderr = Path(log).open("w", encoding="utf-8")  # noqa: SIM115 - until the process ends
    os.dup2(sys.stderr.fileno(), 2)
    gc.disable()  # a job ends before garbage matters, and to look for it takes a fifth of its time
    cli.main(words)
