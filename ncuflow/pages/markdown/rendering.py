"""Rendering: Jinja2 with what every page's template may use, and text of others in Markdown, of which nothing is markup.

What a page prints is `text`, unless its template says `prose` (lines of it), `code` (a span with its backticks),
`verbatim` (inside a block between fences), `path` (where a link goes) or `link` (an address of the web). Markdown of
our own making is `Markup`, and passes as it is.
"""

import re
from collections.abc import Callable, Iterable
from functools import cache, wraps
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from markupsafe import Markup

from ncuflow.evidence.provenance import named, one_line
from ncuflow.findings.limiter import CEILING, LATENCY, label, words
from ncuflow.findings.noise import CONFIDENCE, FASTER
from ncuflow.format import MISSING, Struck, micro, number, pct, percent, si, with_unit
from ncuflow.model import SOFTWARE, Measurement
from ncuflow.pages.series import MMA_FLOP, MOVED
from ncuflow.target.contract import template_folders

SPAN = re.compile(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)")
# Backslash first of all; `_` where a word does not hold it; what GitHub links and what stands for a character.
ACTIVE = re.compile(
    r"[\\`*\[\]|~]|<(?! )|(?<![^\W_])_|_(?![^\W_])|&(?=#?\w+;)|:(?=//)|(?<=www)\.|(?<=[\w.+-])@(?=\w)",
    re.IGNORECASE,
)
BY_NAME = {"<": "&lt;", "&": "&amp;"}
INDENT = re.compile(r"^ {2,}")
# What would be a heading, a quotation, a list or a rule if a line began with it.
START = re.compile(r"^( ?)(?=>|#{1,6} |[+-] |[-=]{2,} *$)|^( ?\d+)(?=[.)] )")
ADDRESS = re.compile(r"https?://[^\s<>\\`|]+")


def text(value: Any) -> Markup:
    """A value in a line of Markdown, in a cell of a table or not: the same text, with code where backticks enclose it."""
    if isinstance(value, Markup):
        return value
    parts = SPAN.split(_line(value))  # text, backticks, code, text, …
    shown = [ACTIVE.sub(_inert, parts[0])]
    for fence, inside, after in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        blank = not inside.strip()
        shown.append(ACTIVE.sub(_inert, f"{fence}{inside}{fence}") if blank else code(inside))
        shown.append(ACTIVE.sub(_inert, after))
    return Markup(START.sub(r"\1\2\\", INDENT.sub("", "".join(shown))))


def cell(value: Any) -> Markup:
    """`text`, and a dash where nothing is known; of Markdown that several lines made, one."""
    if value is None or value == "":
        return Markup(MISSING)
    return Markup(value.replace("\n", " ")) if isinstance(value, Markup) else text(value)


def prose(value: Any) -> Markup:
    """Several lines of `text`, with what blank lines between them make of them."""
    return Markup("\n").join(text(line) for line in str(value).split("\n"))


def code(value: Any) -> Markup:
    """A value as a span of code with its backticks, in a cell of a table or not; a dash where there is nothing."""
    plain = _line(value).strip()
    if not plain:
        return Markup(MISSING)
    longest = max(map(len, re.findall("`+", plain)), default=0)
    fence = "`" * (longest + 1)
    pad = " " if plain[0] == "`" or plain[-1] == "`" else ""
    # Renderers do not agree on what a pipe behind two backslashes is.
    inside = plain.replace("\\|", "\\ |").replace("|", "\\|")
    return Markup(f"{fence}{pad}{inside}{pad}{fence}")


def verbatim(value: Any) -> Markup:
    """A value inside a block between fences, which it cannot end."""
    lines = (_line(line) for line in str(value).split("\n"))
    return Markup("\n".join(lines).replace("```", "'''"))


def path(value: Any) -> Markup:
    """A file's path as the place that a link or a picture names."""
    return Markup(quote(str(value), safe="/._-~"))


def link(value: Any) -> Markup:
    """An address of the web as a link; what is none, as text."""
    address = str(value)
    return Markup(f"<{address}>") if ADDRESS.fullmatch(address) else text(value)


def shown(value: Any) -> Any:
    """What a template prints of a value: numbers as they are, all else as `text`."""
    return value if isinstance(value, int | float) else text(value)


def joined(parts: Iterable[Any]) -> str:
    """Values behind one another; where Markdown is among them, the others as `text`."""
    found = list(parts)
    if any(isinstance(part, Markup) for part in found):
        return Markup("".join(str(text(part)) for part in found))
    return "".join(map(str, found))


def single_spaced(page: str) -> str:
    """A page with one blank line where there were several, but in blocks of code; it ends in one newline."""
    lines: list[str] = []
    code = False
    for line in page.strip().splitlines():
        code ^= line.startswith("```")
        if code or line.strip() or lines[-1]:
            lines.append(line if code else line.rstrip())
    return "\n".join(lines) + "\n"


def _inert(found: re.Match[str]) -> str:
    return BY_NAME.get(found[0], f"\\{found[0]}")


def _line(value: Any) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in str(value))


def _strikes(function: Callable[..., str]) -> Callable[..., str]:
    """A formatter whose text is struck through where its value is."""

    @wraps(function)
    def formatter(value: Any, *arguments: Any, **named: Any) -> str:
        text = function(value, *arguments, **named)
        return Markup(f"~~{text}~~") if isinstance(value, Struck) else text

    return formatter


def seconds(value: float | None) -> str:
    """A time in seconds, as milliseconds or microseconds where that reads better."""
    return micro(None if value is None else value * 1e6)


def limited_by(row: Measurement) -> Markup | None:
    """The verdict of a measurement row in words; None where nothing is known."""
    said, figures = words(row), (row["busiest_pct"], row["second_pct"])
    if said is None:
        return None
    return Markup("~~{}~~" if any(isinstance(f, Struck) for f in figures) else "{}").format(
        text(said)
    )


FILTERS = {
    "number": _strikes(number),
    "unit": _strikes(with_unit),
    "si": _strikes(si),
    "percent": _strikes(percent),
    "pct": _strikes(pct),
    "micro": _strikes(micro),
    "seconds": seconds,
    "cell": cell,
    "code": code,
    "prose": prose,
    "verbatim": verbatim,
    "path": path,
    "link": link,
    "limiter_name": label,
    "limited_by": limited_by,
    "rate_unit": {"tflops": "TFLOPS", "gbs": "GB/s"}.__getitem__,
}


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
    joined = staticmethod(joined)


def environment(*beside: Path) -> jinja2.Environment:
    """Jinja2 with the project's filters; an undefined name is an error, not an empty cell.

    beside: folders of further templates.

    A string that a template prints is `text`, unless a filter or a macro made it.
    """
    return _environment((*template_folders(), *beside))


def compile_shared() -> None:
    """Compile what the pages of all targets are made of: children of this process find it done."""
    for name in ("target.md.j2", "_macros.j2", "guide/_section.md.j2", "guide/_algorithm.md.j2"):
        environment().get_template(name)


@cache
def _environment(folders: tuple[Path, ...]) -> jinja2.Environment:
    env = _Environment(
        loader=jinja2.FileSystemLoader(folders),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=True,  # so that macros return Markup
        finalize=shown,
    )
    env.filters.update(FILTERS)
    env.tests["contains"] = lambda items, item: item in items
    env.globals |= {
        "one_line": lambda p: cell(one_line(p)),
        "named": named,
        "SOFTWARE": SOFTWARE,
        "CEILING": CEILING,
        "LATENCY": LATENCY,
        "CONFIDENCE": CONFIDENCE,
        "FASTER": FASTER,
        "MOVED": MOVED,
        "MMA_FLOP": MMA_FLOP,
    }
    return env
