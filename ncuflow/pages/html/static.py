"""Pages without views, made of one record each: their frame, and the one script that hands their tables out as CSV."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import jinja2

from ncuflow.io import clean, resource
from ncuflow.pages.html.page import FOLDER, policy, script

Section = tuple[str, str]  # id of a section, and what the head of the page calls it


def rendered(
    template: str, title: str, origin: str, sections: Sequence[Section], **given: Any
) -> str:
    """The page's text. title, origin: what its head says of it."""
    own = f"\n{script(resource(FOLDER), 'static')}"
    return environment().get_template(template).render(
        title=title,
        origin=origin,
        sections=sections,
        policy=policy([own]),
        script=own,
        style="".join(
            (resource(FOLDER) / name).read_text(encoding="utf-8")
            for name in ("style.css", "static.css")
        ),
        **given,
    )  # fmt: skip


@cache
def environment() -> jinja2.Environment:
    """Jinja2 by which all that a record says is text; an undefined name is an error."""
    return jinja2.Environment(
        loader=jinja2.FileSystemLoader(resource(FOLDER)),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_printable,
    )


def _printable(value: Any) -> Any:
    """What a template prints: characters that a reader could not see are made visible, and a dash is what is not known."""
    if value is None:
        return "–"
    return clean(value) if type(value) is str else value
