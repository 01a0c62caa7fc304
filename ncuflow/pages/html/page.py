"""One HTML file with all evidence of one or more captures, to open from a disk, without a network.

ncuflow report outputs/<machine> --evidence ROOT --out report.html
ncuflow report BASE HEAD --evidence BASE_ROOT HEAD_ROOT --comparison compare.json --out report.html

The guide's prose is in it, the Markdown pages rendered, their links leading to the page's own views.
"""

import base64
import hashlib
import html
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from graphlib import TopologicalSorter
from itertools import chain
from pathlib import Path
from string import Template
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markdown_it.token import Token

from ncuflow.evidence.provenance import one_line
from ncuflow.findings import choices, stored
from ncuflow.io import UsageError, clean, read_json, resource, write_text
from ncuflow.pages import Context
from ncuflow.pages.html import columns as html_columns
from ncuflow.pages.html.columns import told
from ncuflow.pages.section import Findings

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


def prose_pages(folder: Path, targets: Iterable[str]) -> list[Context]:
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


FOLDER = "templates/html"
_IMPORT = re.compile(r'^import (\{[^}]*\}) from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const|class) (\w+))", re.MULTILINE)
ELSEWHERE = "The same findings are in the Markdown pages beside it."
LEVEL = 6  # of the compression: 9 takes twice as long for 1 % less


def report(sides: Sequence[Findings], comparisons: Sequence[Any]) -> str:
    """The text of the file. Raises BadInput for a number that cannot be true, as the other pages do."""
    blocks = _blocks(sides, comparisons)
    first = next(blocks)
    shown = first[1]["sides"]
    names = " → ".join(side["name"] for side in shown)
    origin = one_line(shown[-1]["provenance"])
    # Each is packed before the next is made: together they would be as large as the results.
    packed = [packed_block(name, value) for name, value in chain([first], blocks)]
    return assembled("app", names, origin, ELSEWHERE, packed)


def assembled(entry: str, title: str, origin: str, without: str, packed: Sequence[str]) -> str:
    """One file of a page's script, its style, and blocks that are packed.

    entry: the module that starts the page; origin: what stands there until it has; without: what is said where no
    script runs.
    """
    folder = resource(FOLDER)
    libraries, code = vendored(folder), script(folder, entry)
    return Template((folder / "page.html").read_text(encoding="utf-8")).substitute(
        title=html.escape(title),
        origin=html.escape(origin),
        without=html.escape(without),
        policy=policy([*libraries, code]),
        style=(folder / "style.css").read_text(encoding="utf-8"),
        blocks="\n".join([*(_packed("library", text) for text in libraries), *packed]),
        script=f'<script type="module">{code}</script>',
    )


def packed_block(name: str, value: Any) -> str:
    """A JSON value as an element that the page unpacks when it is asked for."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return _packed("block", text, name)


def _blocks(sides: Sequence[Findings], comparisons: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """(name, JSON value), ``main`` first."""
    yield "main", html_columns.main(sides)
    for number, side in enumerate(sides):
        yield from html_columns.blocks(side, number)
        if claims := side.optional("claims"):
            yield f"claims {number}", [claim | {"told": told(claim)} for claim in claims]
    if comparisons:
        yield "compare", list(comparisons)
    elif prose := prose_pages(sides[-1].folder.parent / "reports", sides[-1].targets):
        yield "prose", prose


def _packed(kind: str, text: str, name: str = "") -> str:
    """Text as an element that the page unpacks, found by its kind and name."""
    packed = base64.b64encode(zlib.compress(text.encode(), LEVEL)).decode()
    return (
        f'<script type="application/x-deflate" data-{kind}="{html.escape(name)}">{packed}</script>'
    )


def vendored(folder: Path) -> list[str]:
    """The libraries, each under its licence. Raises ValueError where a file is not the one that is declared."""
    texts = []
    for library in read_json(folder / "vendor" / "libraries.json"):
        text = (folder / "vendor" / library["file"]).read_text(encoding="utf-8")
        if hashlib.sha256(text.encode()).hexdigest() != library["sha256"]:
            raise ValueError(f"{library['file']} is not {library['name']} {library['version']}")
        licence = (folder / "vendor" / library["licence"]).read_text(encoding="utf-8").strip()
        texts.append(f"/*! {licence}\n*/\n{text}")
    return texts


def script(folder: Path, entry: str) -> str:
    """A module and all that it imports in one script, each a scope of its own: a file on a disk can import no other."""
    texts: dict[str, str] = {}
    needs: dict[str, list[str]] = {}
    asked = [entry]
    while asked:
        name = asked.pop()
        if name not in texts:
            texts[name] = (folder / f"{name}.js").read_text(encoding="utf-8")
            needs[name] = [of for _, of in _IMPORT.findall(texts[name])]
            asked += needs[name]
    order = TopologicalSorter({name: needs[name] for name in sorted(needs)}).static_order()
    return "\n".join(_scope(name, texts[name]) for name in order)


def _scope(name: str, text: str) -> str:
    """A module as a function that is called once and gives what the module exports."""
    exported = ", ".join(found for _, found in _EXPORT.findall(text))
    body = _EXPORT.sub(r"\1", _IMPORT.sub(r"const \1 = \2_js;", text))
    return f"const {name}_js = (() => {{\n{body}return {{ {exported} }};\n}})();\n"


def policy(scripts: Sequence[str]) -> str:
    """A content security policy under which these scripts run, no other does, and nothing is requested."""
    hashes = (base64.b64encode(hashlib.sha256(s.encode()).digest()).decode() for s in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    rest = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


def share(words: Iterable[str]) -> None:
    """Load what the pages before have read: children of this process find it done."""
    stored.share(words)
    choices.every_tried()


def command(
    folders: list[Path],
    /,
    *,
    evidence: list[Path],
    out: Path,
    comparison: list[Path] | None = None,
    targets: list[str] | None = None,
    no_strict: bool = False,
) -> None:
    """The page of one or more captures.

    Args:
        folders: folders with results and tables
        evidence: of each folder, in their order
        comparison: of each folder with the next
        targets: shown; default: all of the folder
        no_strict: strike impossible numbers through instead
    """
    if len(evidence) != len(folders):
        raise UsageError("--evidence: one folder for each of outputs")
    sides = [
        Findings(folder / "results", own, not no_strict, targets)
        for folder, own in zip(folders, evidence, strict=True)
    ]
    write_text(out, report(sides, [read_json(path) for path in comparison or ()]))


# --- pages without views, made of one record each --------------------------------------------

Section = tuple[str, str]  # id of a section, and what the head of the page calls it


def framed(
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
