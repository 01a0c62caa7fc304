"""The templates that the pages of all targets share, compiled by the import of this module.

It takes a fifth of a page's time. The jobs of a run are children of one process: that compiles once, and they inherit it.
"""

from __future__ import annotations

from contextlib import suppress

import jinja2
from jinja2 import meta

from ncuflow.io import resource
from ncuflow.pages.markdown.rendering import environment

PAGE = "target.md.j2"

with suppress(jinja2.TemplateError):  # the job that renders it says what is wrong with one
    _tree = environment().parse(resource(f"templates/{PAGE}").read_text(encoding="utf-8"))
    for _name in (PAGE, *filter(None, meta.find_referenced_templates(_tree))):
        environment().get_template(_name)
