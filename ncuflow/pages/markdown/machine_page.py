"""The page of a machine: what it is, what it reaches and can measure. It needs no kernel's results.

ncuflow machine-page --environment environment_info.json [--jit jit_analysis.json] --out FILE.md
"""

from __future__ import annotations

from pathlib import Path

from ncuflow.findings import stored
from ncuflow.io import write_text
from ncuflow.pages.markdown.rendering import environment


def render(machine: Path, jit: Path | None = None) -> str:
    """The text of the page of what `ncuflow environment` wrote; jit: what `ncuflow jit-results` wrote, if it was measured."""
    found = stored.written(machine, "environment_info.json")
    given = {
        "provenance": found["provenance"],
        "machine": found,
        "jit": stored.written(jit, "jit_analysis.json") if jit else None,
    }
    return environment().get_template("environment.md.j2").render(given).rstrip() + "\n"


def command(*, environment: Path, out: Path, jit: Path | None = None) -> None:
    """The page of a machine.

    Args:
        environment: environment_info.json
        jit: jit_analysis.json, where it was measured
    """
    write_text(out, render(environment, jit))
