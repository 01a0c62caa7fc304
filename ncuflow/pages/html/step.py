"""The page of a trace's steps: one HTML file without script, made of the answer alone."""

from __future__ import annotations

from functools import partial

import jinja2

from ncuflow.format import micro, pct, short
from ncuflow.io import resource
from ncuflow.pages.html.page import FOLDER
from ncuflow.step import trace
from ncuflow.step.record import StepAnswer
from ncuflow.step.trace import limited

MOST_ROWS, LONGEST = 400, 1000  # of a table of the page, and of a name on it


def rendered(found: StepAnswer) -> str:
    """The page's text, with so many rows of each table at most."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource(FOLDER)),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= {
        "micro": micro,
        "pct": pct,
        "shape": trace.shape_text,
        "roof": trace.roof_text,
        "each": trace.each_text,
        "alone": trace.alone_text,
        "gain": trace.gain_text,
        "short": partial(short, width=LONGEST),
    }
    env.globals |= {"told_by": trace.told_by}
    style = (resource(FOLDER) / "style.css").read_text(encoding="utf-8")
    return env.get_template("step.html").render(found=limited(found, MOST_ROWS), style=style) + "\n"
