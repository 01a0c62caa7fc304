"""Rendering: Jinja2 with what every page's template may use."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame

from ncuflow.evidence.provenance import TIERS, named, one_line
from ncuflow.findings.limiter import CEILING, DRAW, LATENCY
from ncuflow.findings.noise import CONFIDENCE
from ncuflow.model import SOFTWARE
from ncuflow.pages.markdown import text as markdown
from ncuflow.pages.markdown.filters import FILTERS
from ncuflow.target.contract import template_folders


class _Generator(CodeGenerator):
    """`~` of templates takes what is no Markdown for text, where Jinja's takes it for HTML."""

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.joined((")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")


class _Environment(jinja2.Environment):
    code_generator_class = _Generator
    joined = staticmethod(markdown.joined)


def environment(*beside: Path) -> jinja2.Environment:
    """Jinja2 with the project's filters; an undefined name is an error, not an empty cell.

    beside: folders of further templates.

    A string that a template prints is `markdown.text`, unless a filter or a macro made it.
    """
    return _environment((*template_folders(), *beside))


@cache
def _environment(folders: tuple[Path, ...]) -> jinja2.Environment:
    env = _Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=True,  # so that macros return Markup
        finalize=markdown.shown,
    )
    env.filters.update(FILTERS)
    env.tests["contains"] = lambda items, item: item in items
    env.globals |= {
        "one_line": lambda p: markdown.cell(one_line(p)),
        "named": named,
        "SOFTWARE": SOFTWARE,
        "TIERS": TIERS,
    }
    env.globals |= {"CEILING": CEILING, "DRAW": DRAW, "LATENCY": LATENCY, "CONFIDENCE": CONFIDENCE}
    return env
