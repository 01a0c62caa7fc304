"""The guide's prose inside the HTML page: the Markdown pages rendered, their links leading to the page's own views."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from ncuflow.pages import Context

# Where a link to a page that has a view of its own leads.
VIEWS = {
    "analysis": "points",
    "claims": "claims",
    "environment": "environment",
    "INDEX": "overview",
}


def anchor(heading: str) -> str:
    """The link target that Markdown renderers make of a heading."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def pages(folder: Path, targets: Iterable[str]) -> list[Context]:
    """[{name, title, html, toc: [[level, text, anchor]]}] of the pages that are there: the guide, and one per target.

    Text of a page is never markup here: HTML in it is shown as it is written.
    """
    markdown = MarkdownIt("commonmark", {"html": False}).enable("table")
    names = ("kernel-dev-guide", *targets, "final-report", "jit")
    here = [name for name in names if (folder / f"{name}.md").exists()]
    return [_page(markdown, name, folder / f"{name}.md", here) for name in here]


def _page(markdown: MarkdownIt, name: str, path: Path, here: list[str]) -> Context:
    tokens = markdown.parse(path.read_text(encoding="utf-8"))
    toc = []
    for at, token in enumerate(tokens):
        if token.type == "heading_open":
            text = tokens[at + 1].content
            token.attrSet("id", f"{name}/{anchor(text)}")
            toc.append([int(token.tag[1]), text, anchor(text)])
        if token.children:
            token.children = [_relinked(child, name, here) for child in token.children]
    html = markdown.renderer.render(tokens, markdown.options, {})
    return {"name": name, "title": toc[0][1] if toc else name, "html": html, "toc": toc}


def _relinked(token: Token, page: str, here: list[str]) -> Token:
    """A link into the pages leads to a view; a picture, which the views draw, is its name."""
    if token.type == "image":
        return Token("text", "", 0, content="")
    if token.type == "link_open":
        token.attrSet("href", _view(str(token.attrGet("href") or ""), page, here))
    return token


def _view(link: str, page: str, here: list[str]) -> str:
    """A link of a Markdown page as one of this page; one that leads away stays."""
    if "://" in link:
        return link
    path, _, at = link.partition("#")
    if path.endswith(".py"):
        return path.removeprefix("../")  # beside the page, as the pages' folder is
    name = path.rsplit("/", 1)[-1].removesuffix(".md") if path else page
    if name in here:
        return f"#/guide?page={name}" + (f"&at={at}" if at else "")
    if name in VIEWS:
        return f"#/{VIEWS[name]}"
    return (
        f"#/points?q=target:{name}"
        if path.endswith(".md")
        else f"#/points?q=target:{Path(path).parent.name}"
    )
