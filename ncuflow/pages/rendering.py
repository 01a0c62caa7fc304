"""Rendering: Jinja2 with what every page's template may use."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jinja2

from ncuflow.findings.limiter import CEILING, DRAW
from ncuflow.findings.noise import CONFIDENCE
from ncuflow.findings.provenance import TIERS, named, one_line
from ncuflow.pages.filters import FILTERS, cell
from ncuflow.target import template_folders


def environment() -> jinja2.Environment:
    """Jinja2 with the project's filters; an undefined name is an error, not an empty cell."""
    return _environment(tuple(template_folders()))


@cache
def _environment(folders: tuple[Path, ...]) -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.filters.update(FILTERS)
    env.globals |= {"one_line": lambda p: cell(one_line(p)), "named": named, "TIERS": TIERS}
    env.globals |= {"CEILING": CEILING, "DRAW": DRAW, "CONFIDENCE": CONFIDENCE}
    return env
