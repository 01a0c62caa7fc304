"""Pages of a recording in which every string carries markup, held against the same pages without it."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partialmethod
from typing import Any

import jinja2
from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from ncuflow.target.contract import known

BEGIN, END = "⟦", "⟧"
MARKUP = (
    BEGIN + "`a` `b | <img src=x onerror=alert(1)> <b>h</b> <!-- [l](https://evil.example) ![i](http://evil.example/i.png)"
    " [r]: x *e* _e_ **s** ~~d~~ &lt; www.evil.example a@evil.example <https://evil.example> \\ ```\n"
    "# h\n- l\n> q\n\n---\n\n    x\n\x1b[31m\u202e|x|" + END
)  # fmt: skip
# What a line may begin with; the last leaves the string as it begins.
STARTS = ("# ", "- ", "1. ", "> ", ">", "    ", "--- ", "```\n", "<b>", "")
PROSE = ("about",)  # entries of several lines, which stay several
# Names that code looks up and recordings are refused for (`manifest.NAMES`), and the two rates.
OURS = {*known(), "tflops", "gbs"}
MARKDOWN = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])


class Foreign(str):
    """A string that reads as it is and prints with markup around it."""

    plain: str
    start: str

    def __new__(cls, plain: str, start: str) -> Foreign:
        made = super().__new__(cls, start + plain + MARKUP)
        made.plain, made.start = plain, start
        return made

    def __eq__(self, other: object) -> bool:
        return self.plain == getattr(other, "plain", other)

    def __hash__(self) -> int:
        return hash(self.plain)

    def __contains__(self, part: object) -> bool:
        return getattr(part, "plain", part) in self.plain

    def __lt__(self, other: str) -> bool:
        return self.plain < getattr(other, "plain", other)

    def lower(self) -> str:
        return Foreign(self.plain.lower(), self.start)

    def startswith(self, *start: Any) -> bool:
        return self.plain.startswith(*start)


def foreign(value: Any, start: str) -> Any:
    """The same value with every string in it, names of entries among them, written by somebody else."""
    ours = isinstance(value, str) and value in OURS
    if ours or isinstance(value, Markup) or value in ("", None):
        return value
    if isinstance(value, str):
        return Foreign(value, start)
    if isinstance(value, dict):
        prose = {key: value[key] for key in PROSE if key in value}
        made = {foreign(k, start): prose.get(k) or foreign(one, start) for k, one in value.items()}
        return Counter(made) if isinstance(value, Counter) else made
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(foreign(each, start) for each in value))
    if isinstance(value, list | tuple):
        return type(value)(foreign(each, start) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = [field.name for field in dataclasses.fields(value) if field.init]
        changed = {name: foreign(getattr(value, name), start) for name in fields}
        return dataclasses.replace(value, **changed)
    return value


def check(render: Callable[[], str], monkeypatch: Any, starts: tuple[str, ...] = STARTS) -> None:
    """Nothing of hostile strings leaves the place where `render` prints them."""
    plain = render()
    assert BEGIN not in plain
    for start in starts:
        with monkeypatch.context() as patched:
            whole = partialmethod(_render, jinja2.Template.render, start)
            patched.setattr(jinja2.Template, "render", whole)
            text = render()
        assert text.count(BEGIN) > 10
        compare(plain, text)


def _render(
    template: jinja2.Template, whole: Callable[..., str], start: str, /, *context: Any, **named: Any
) -> str:
    given = dict(*context, **named)
    return whole(template, foreign(given, start))


def compare(plain: str, text: str) -> None:
    """That a page has the structure of another, with no link of its own, and every hostile string whole in its place."""
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", text)
    before, after = MARKDOWN.parse(plain), MARKDOWN.parse(text)
    for old, new in zip(before, after, strict=False):
        assert new.type == old.type, (old, new)
    assert len(after) == len(before)
    kept = set(links(before))
    assert [link for link in links(after) if ":" in link and link not in kept] == []
    for old, new in zip(before, after, strict=True):
        assert structure(new) == structure(old), (old.content, new.content)
        for shown in texts(new):
            held(shown)


def structure(token: Token) -> list[str]:
    """What a line holds beside text and code; addresses of the web aside, which hostile ones are not."""
    beside = ("text", "code_inline", "softbreak", "text_special")
    children = token.children or ()
    return [t.type for t in children if t.type not in beside and t.markup != "autolink"]


def links(tokens: list[Token]) -> Iterator[str]:
    for token in tokens:
        for each in token.children or ():
            if each.type in ("link_open", "image"):
                yield str(each.attrGet("href") or each.attrGet("src"))


def texts(token: Token) -> Iterator[str]:
    """What a reader sees of a line or a block of code, and of its source what a renderer might make a link of."""
    if token.type == "fence":
        yield token.content
    elif token.type == "inline":
        words = [word for each in token.children or () for word in each.children or [each]]
        bare = "".join(word.content for word in words if word.type != "code_inline")
        assert token.content.count("\\://evil") >= bare.count("://evil")
        yield "".join(word.content for word in words)


def held(shown: str) -> None:
    """Every hostile string in a text stands there whole, or as far as it was shortened to."""
    whole = squeezed(MARKUP)
    for part in shown.split(BEGIN)[1:]:
        said = squeezed(BEGIN + part)
        short = said.partition("...")[0]
        assert said.startswith(whole) or ("..." in said and whole.startswith(short)), shown


def squeezed(text: str) -> str:
    """What of a string is compared: spans drop backticks and blanks and show the backslash of a pipe outside of tables, blocks
    replace backticks, titles may be lower case."""
    return re.sub(r"[\s`'\\\x1b\u202e]", "", text).casefold()
