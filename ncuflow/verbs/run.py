"""The workflow from any folder: Snakemake on the packaged rules, outputs and recorded evidence here.

    ncuflow run all
    ncuflow run decode -- -j2 --config sweep=smoke
    ncuflow run -- --list-target-rules

What follows `--` is handed to Snakemake; one job at a time unless -j, -c or a profile says otherwise. Settings and their
defaults: config/config.yaml of the project; --configfile FILE or --config KEY=VALUE override them.
"""

import os
import re
import sys
from importlib.util import find_spec
from itertools import takewhile
from typing import Annotated, NoReturn

from cyclopts import Parameter

from ncuflow.io import resource
from ncuflow.process import python_environment

# Options that say how many jobs run at a time.
NUMBERS = frozenset({"--jobs", "--cores", "--profile", "--workflow-profile"})
NUMBER = re.compile(r"-[jc]")


def command(*words: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> NoReturn:
    """Become Snakemake. Raises ModuleNotFoundError where it, or what the rules import, is not installed.

    Args:
        words: TARGET… [-- OPTIONS], as for snakemake
    """
    for module in ("snakemake", "pyarrow", "scipy", "matplotlib"):
        if find_spec(module) is None:
            raise ModuleNotFoundError(name=module)
    command = [sys.executable, "-m", "snakemake", "--snakefile", str(resource("Snakefile"))]
    os.execve(sys.executable, [*command, *arguments([*words])], python_environment(os.environ))


def arguments(words: list[str]) -> list[str]:
    """Snakemake's arguments: options first, then targets, which no option takes for its values."""
    targets = list(takewhile(lambda word: not word.startswith("-"), words))
    options = words[len(targets) :]
    options = options[options[:1] == ["--"] :]
    said = any(option.split("=")[0] in NUMBERS or NUMBER.match(option) for option in options)
    if not said and "SNAKEMAKE_PROFILE" not in os.environ:
        options = ["-j1", *options]
    return [*options, "--", *targets] if targets else options
