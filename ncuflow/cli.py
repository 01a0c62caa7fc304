"""The command line: one parser, one table of commands, one way in which each of them ends.

A command is a module with a typed function `command`: its parameters are the words and options, its docstring says what each
is for, the module's says the rest, and what it returns is the exit status (None is 0). One that stands beside others is a
function of its name; a part of a verb says all itself there. Only the module of the command that was asked for is imported.
"""

from __future__ import annotations

import importlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import cleandoc
from itertools import takewhile
from pathlib import Path
from textwrap import wrap
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn, cast

from ncuflow import __version__
from ncuflow.io import CommandError, UsageError, clean, refused, repeatedly, status_line

if TYPE_CHECKING:
    from cyclopts import App

WIDTH = 130  # of a line of help
# What each verb does, in the groups that --help shows. --help-all lists also what only rules, other commands and scripts call,
# with its module; what both call is of the first.
GROUPS = {
    "read a report": {
        "show": "a report of ncu or nsys as a table, JSON or CSV",
        "explain": "what limits a kernel, where it waits, and what to try",
        "view": "reports of any program in one HTML file",
        "step": "a serving step of a trace, kernel by kernel: shapes, roofs, gains",
        "compare": "what got slower between A and B, and why",
        "trace": "from a number back to its report, kernel and metric",
    },
    "experiments on a GPU": {
        "try": "a change of FlashInfer: still right? faster, where, by how much, why?",
        "advise": "which backend, settings and tunables are fastest, shape by shape",
        "upgrade": "will another FlashInfer slow an engine? GPU and host; which release did it",
        "targets": "what can be measured here, and why the rest cannot",
        "preflight": "what can be measured on this machine",
    },
    "the pipeline": {
        "run": "make pages and what they need: Snakemake on the packaged rules",
        "workload": "a sweep of a test list, a trace, or what a server called",
        "check": "fail on a slow-down, or on what a file asks of single points; claims, sanity",
        "export": "results for Bencher, GitHub, JUnit and Perfetto; a point as a script",
    },
    "evidence": {
        "record": "keep captures as a recording, verify one, or remove what is private",
        "static": "a GPU that is not here: its kernels compiled, times predicted, counters",
        "mcp": "answer programs over the Model Context Protocol",
    },
}
# Parts of a verb, which its help names: two words, each with arguments of its own.
PARTS_OF = {
    "check claims": "judge claims by measured results",
    "check sanity": "numbers of results that cannot be",
    "step annotate": "an engine with its shapes in ranges, as step reads them",
    "export script": "a point as a Python file, for your own ncu and nsys",
    "upgrade bisect": "between which two versions a point changed, and why",
    "static predict": "times of a GPU that is not there, with intervals",
    "static counters": "the counters that `ncu --metrics` is given",
}


# Commands that stand in a module beside others: their functions have their names, or the last word of these.
BESIDE = {
    "check sanity", "step annotate", "export script", "upgrade bisect", "mcp", "trace",
    "jit-probe", "machine-page", "static-cute", "static-page", "predict-page",
}  # fmt: skip


def _verbs(listed: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The module of each, which has the name of its last word, or its verb's; "try" is a word of Python's own."""
    own = {"try": "verbs.trial", "mcp": "mcp", "trace": "verbs.explain"}
    named = {name: f"verbs.{name.split()[0 if name in BESIDE else -1]}" for name in listed} | own
    return {name: (f"ncuflow.{named[name]}", what) for name, what in listed.items()}


USER = _verbs({name: what for group in GROUPS.values() for name, what in group.items()})
PARTS = _verbs(PARTS_OF)
RULES = {
    "plan": ("ncuflow.sweep.points", "the points of a batch"),
    "lock": ("ncuflow.gpu.lock", "run a command with one GPU locked"),
    "build": ("ncuflow.run.builds", "compile the JIT modules of a sweep"),
    "launch": ("ncuflow.run.launch", "check, time or trace the points of a batch"),
    "worker": ("ncuflow.race.worker", "a process of a race: it does what lines ask for"),
    "nsys": ("ncuflow.run.nsys", "trace a batch under Nsight Systems"),
    "ncu": ("ncuflow.run.ncu", "profile a batch under Nsight Compute"),
    "give-up": ("ncuflow.run.loss", "what stands for a capture that failed for good"),
    "jit": ("ncuflow.run.jit", "measure FlashInfer's compilation and caches"),
    "jit-probe": ("ncuflow.run.jit", "one measurement of jit, in a process of its own"),
    "static-cute": ("ncuflow.static.build", "a kernel of CuTe DSL, compiled without a GPU"),
    "static-results": ("ncuflow.static.results", "launches of a sweep on a GPU that is not there"),
    "claims-predicted": ("ncuflow.claims.audit", "claims compared with predicted times"),
    "source-index": ("ncuflow.source", "symbols and kernels of the installed FlashInfer"),
    "tables": ("ncuflow.parsers.tables", "captures of a target -> tables"),
    "results": ("ncuflow.findings.results", "tables of a target -> joined measurements"),
    "environment": ("ncuflow.findings.ceilings", "the machine, its versions and ceilings"),
    "hotlines": ("ncuflow.findings.waits", "source lines where kernels wait"),
    "jit-results": ("ncuflow.findings.jit", "what the pages say of compilation"),
    "pages": ("ncuflow.pages.markdown.pages", "findings -> Markdown pages and figures"),
    "machine-page": ("ncuflow.pages.markdown.gpu_pages", "the machine -> a Markdown page"),
    "static-page": ("ncuflow.pages.markdown.gpu_pages", "static evidence -> a Markdown page"),
    "predict-page": (
        "ncuflow.pages.markdown.gpu_pages",
        "predictions beside what was measured",
    ),
    "report": ("ncuflow.pages.html.page", "results of one or more captures -> one HTML file"),
    "compare-figures": ("ncuflow.pages.markdown.comparison_figures", "a comparison -> figures"),
    "compare-page": ("ncuflow.pages.markdown.comparison", "comparisons -> a Markdown page"),
}
COMMANDS = USER | PARTS | RULES
# Names of an earlier version, and those that they go by now.
RENAMED = {
    "gate": "check",
    "require": "check",
    "scrub": "record --scrub",
    "search": "advise --tunables",
    "trial-page": "try --from",
    "claims": "check claims",
    "sanity": "check sanity",
    "script": "export script",
    "annotate": "step annotate",
    "predict": "static predict",
    "counters": "static counters",
    "bisect": "upgrade bisect",
}


SHELLS = ("bash", "zsh", "fish")
WRITE = ("out", "html", "json", "apply", "ceilings")  # options that name a file to write
CLOCK_S = 0.1  # what a file system's clock may be behind
PATIENCE_S = 2.0
# What tells its progress itself, or writes a protocol.
TELLING = {"run", "try", "upgrade", "upgrade bisect", "mcp", "static", *RULES}


OVERVIEW = """usage: ncuflow COMMAND …

Measured kernel guides for FlashInfer. `ncuflow COMMAND --help` says more.

options:
  -h, --help  show this help message and exit; `help COMMAND` that of one
  --help-all  and what the rules call
  --version   the version of ncuflow
  --completion SHELL
              the script by which bash, zsh or fish completes the rest"""


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command that `argv` (default: the command line) names, and exit with its status.

    A `CommandError`, or what the system refuses, is one line on stderr; a closed pipe is quiet.
    """
    signal.signal(signal.SIGTERM, _interrupt)  # so that locks, children and half-written files go
    _utf_8()
    words = sys.argv[1:] if argv is None else list(argv)
    sys.exit(ended(lambda: dispatch(words)))


def _utf_8() -> None:
    """Files and pipes get UTF-8, as all files here are; a terminal of another locale what it can show."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            shows = stream.isatty()
            stream.reconfigure(encoding=None if shows else "utf-8", errors="backslashreplace")


def dispatch(words: Sequence[str]) -> int:
    """The exit status of a command and its arguments; SystemExit 2 where they are bad usage."""
    if words and words[0] in RENAMED:
        print(f"note: {words[0]} is now `ncuflow {RENAMED[words[0]]}`", file=sys.stderr)
        words = [*RENAMED[words[0]].split(), *words[1:]]
    if words[:1] == ["help"] and len(words) > 1:
        words = [*words[1:], "--help"]
    name, rest = named(["/dev/stdin" if word == "-" else word for word in words])
    if words[:1] == ["--version"]:
        print(f"ncuflow {__version__}")
        return 0
    if words[:1] == ["--completion"]:
        print(completion(words[1] if len(words) == 2 else ""))
        return 0
    if name not in COMMANDS:
        return _overview(words)
    module = importlib.import_module(COMMANDS[name][0])
    try:
        return int(_called(module, name, rest) or 0)
    except UsageError as error:
        _misused(name, str(error))


def named(words: Sequence[str]) -> tuple[str, Sequence[str]]:
    """(the command that words begin with, of one word or of two, and those after it)."""
    first = " ".join(words[:2])
    return (first, words[2:]) if first in PARTS else ("".join(words[:1]), words[1:])


def completion(shell: str) -> str:
    """The script by which a shell completes verbs, their options and files; of a verb that lacks a package its name alone."""
    from cyclopts import App

    def parser(name: str) -> App:
        try:
            return app(importlib.import_module(COMMANDS[name][0]), name)
        except ModuleNotFoundError:
            return App(name=f"ncuflow {name}")

    if shell not in SHELLS:
        tell(f"--completion {shell}: choose from {', '.join(SHELLS)}", 2)
        raise SystemExit(2)
    root = App(name="ncuflow", version_flags=[])
    verbs = {name: parser(name) for name in USER | PARTS}
    for name, made in verbs.items():
        *parents, last = name.split()
        (verbs[parents[0]] if parents else root).command(made, name=last)
    return root.generate_completion(shell=cast(Any, shell))


def function(module: ModuleType, name: str) -> Callable[..., int | None]:
    """The typed function of a command."""
    own = name.split()[-1].replace("-", "_") if name in BESIDE else "command"
    return cast(Callable[..., int | None], getattr(module, own))


def app(module: ModuleType, name: str) -> App:
    """The parser of a command that is a typed function."""
    from cyclopts import App, Parameter  # takes as long as all else of an overview

    return App(
        name=f"ncuflow {name}",
        default_command=function(module, name),
        usage="",
        help="",
        help_formatter="plain",
        help_flags=[],
        version_flags=[],
        group_arguments="arguments",
        group_parameters="options",
        default_parameter=Parameter(negative=(), consume_multiple=1, show_default=False),
        result_action="return_value",
    )


def _called(module: ModuleType, name: str, words: Sequence[str]) -> int | None:
    from cyclopts import CycloptsError

    made = app(module, name)
    if {"--help", "-h"} & {*takewhile(lambda word: word != "--", words)}:
        print(f"{_usage(made)}\n\n{_about(module, name)}\n\n{_parameters(made)}")
        return 0
    try:
        command, given, _ = made.parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        _misused(name, str(error))
    begun = time.time()
    with ticking(name):
        status = command(*given.args, **given.kwargs)
    if name in USER | PARTS:
        _tell_written(given.arguments, begun)
    return cast(int | None, status)


def _about(module: ModuleType, name: str) -> str:
    """What a command does: what its module says, or where a verb or a part stands beside others the function."""
    said = (
        function(module, name) if name in (USER | PARTS).keys() & BESIDE else module
    ).__doc__ or ""
    return cleandoc(said).partition("\nArgs:")[0].rstrip()


def _tell_written(given: Mapping[str, object], since: float) -> None:
    """Name each file that the options had written."""
    from ncuflow.answer import wrote  # it takes as long as all else of an overview

    for path in (path for option in WRITE for path in _paths(given.get(option))):
        if path.is_file() and path.stat().st_mtime > since - CLOCK_S:
            wrote(path)


def _paths(value: object) -> Iterator[Path]:
    if isinstance(value, Path):
        yield value
    for one in value if isinstance(value, list | tuple) else ():
        yield from _paths(one)


@contextmanager
def ticking(name: str) -> Iterator[None]:
    """Say on a terminal, every few seconds, that a command is at work, unless it tells that itself."""
    if name in TELLING or not sys.stderr.isatty():
        yield
        return
    begun = time.monotonic()

    def tick() -> None:
        at = f" {status_line.at}" if status_line.at else ""
        text = f"\r\x1b[K{name}{at}: {time.monotonic() - begun:.0f} s"
        print(text, end="", file=sys.stderr, flush=True)

    try:
        with repeatedly(tick, PATIENCE_S):
            yield
    finally:
        status_line.clear()


def _usage(made: App) -> str:
    from cyclopts.help import format_usage

    return f"usage: {str(format_usage(made, [])).removeprefix('Usage: ').strip()}"


def _parameters(made: App) -> str:
    """What a command takes, a line each as long as those of the module's docstring."""
    from rich.console import Console

    wide = Console(file=io.StringIO(), width=10_000)
    with wide.capture() as said:
        made.help_print([], console=wide)
    rows = (wrap(line, WIDTH, subsequent_indent=" " * 6) for line in said.get().splitlines())
    return "\n".join("\n".join(row) for row in rows).rstrip()


def _misused(name: str, why: str) -> NoReturn:
    """End with 2 and two lines: what is wrong with the words, and where their meaning is said."""
    tell(f"{name}: {why}", 2)
    print(f"`ncuflow {name} --help` says what it takes", file=sys.stderr)
    raise SystemExit(2)


def _overview(words: Sequence[str]) -> int:
    """The list of commands, where none was named: those that people call, or all."""
    groups = dict(GROUPS)
    if "--help-all" in words[:1]:
        groups["parts"] = PARTS_OF
        groups["called by rules"] = {name: what for name, (_, what) in RULES.items()}
    listed = [
        "\n".join([f"{group}:", *(f"  {name:18}{what}" for name, what in of.items())])
        for group, of in groups.items()
    ]
    if words and words[0] not in ("-h", "--help", "--help-all", "help"):
        from difflib import get_close_matches

        near = get_close_matches(words[0], [*USER, *RENAMED], 1)
        tell(f"no command {words[0]!r}" + "".join(f"; did you mean {one!r}?" for one in near), 2)
        print("`ncuflow --help` lists them", file=sys.stderr)
        raise SystemExit(2)
    print(OVERVIEW, *listed, sep="\n\n")
    return 0 if words else 2


def ended(command: Callable[[], int]) -> int:
    """The exit status of a command, with what ended it early told in one line on stderr."""
    try:
        status = command()
        sys.stdout.flush()
    except CommandError as error:
        status = tell(str(error), error.code)
    except ModuleNotFoundError as error:
        if (missing := (error.name or "").partition(".")[0]) in ("", "ncuflow"):
            raise
        from ncuflow.origin import remedy

        status = tell(f"the package {missing} is missing: {remedy(missing)}", 1)
    except BrokenPipeError:
        status = 128 + 13  # SIGPIPE, by its number: Windows has no such signal
    except OSError as error:
        status = tell(refused(error), 2)
    except KeyboardInterrupt:
        status = tell("interrupted", 128 + signal.SIGINT)
    _flush_streams()
    return status


def tell(line: str, status: int) -> int:
    """The status, with why in one line on stderr."""
    # Names of files are in it, and theirs may hold line breaks and what a terminal obeys.
    print(f"error: {' '.join(clean(line).splitlines())}", file=sys.stderr)
    return status


def _flush_streams() -> None:
    """Flush stdout and stderr, which Python would do at exit, without a word where one is closed."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            # What it still holds Python would write again, and complain of the same pipe or disk.
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _interrupt(number: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
