"""Functions of a CUDA header, by scanning braces: no compiler, no macros expanded."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Sequence
from typing import NamedTuple


class Function(NamedTuple):
    """A definition: its name and that name's line, first (with the template) and last line."""

    name: str
    line: int
    line_start: int
    line_end: int
    kernel: bool


NOISE = re.compile(
    r"""//[^\n]*|/\*.*?\*/|R"\((?:.*?)\)"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])'""", re.DOTALL
)
MACRO_LINE = re.compile(
    r"^[A-Z][A-Z0-9_]*\([^\n;{}]*\)[ \t]*$", re.MULTILINE
)  # DEFINE_X(y), no semicolon
ALIAS = re.compile(r"\s*(?:using|typedef|static_assert|return|constexpr\s+\w+\s*=)\b")
MEMBER = re.compile(r"[:,]\s*\w+(?:<[^<>]*>)?\s*$")
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.MULTILINE)
TEMPLATE = re.compile(r"\btemplate\s*<")
CONTROL = {"if", "for", "while", "switch", "catch", "return", "do", "else", "sizeof", "decltype"}
# What looks like a call before a function's name: attributes, and macros that stand for them.
ATTRIBUTES = re.compile(
    r"\b(?:__\w+__|__declspec|alignas|requires|noexcept|decltype|[A-Z][A-Z0-9]*_[A-Z0-9_]+)\s*\("
)
NAME = re.compile(r"(~?[A-Za-z_]\w*|operator\s*(?:\(\s*\)|\[\s*\]|[^\s\w(]+|\w+))\s*$")


def functions(text: str) -> list[Function]:
    """Function definitions at namespace or class level, in order of appearance."""
    plain = blank(text)
    breaks = [match.start() for match in re.finditer("\n", plain)]
    found: list[Function] = []
    stack: list[Function | None] = []  # open function (last line unknown yet), or None for a scope
    nested = 0  # open braces inside a function body, or inside an initialiser such as `Shape{}`
    begin = 0  # where the current declaration starts
    for position in (match.start() for match in re.finditer(r"[{};]", plain)):
        if plain[position] == "{":
            if nested or (stack and stack[-1]) or _is_initialiser(plain[begin:position]):
                nested += 1
                continue
            stack.append(_function(plain[begin:position], begin, breaks))
        elif plain[position] == "}":
            if nested:
                nested -= 1
                continue
            top = stack.pop() if stack else None
            if top is not None:
                found.append(top._replace(line_end=_line(breaks, position)))
        if not nested:
            begin = position + 1
    return sorted(found, key=lambda f: f.line_start)


def blank(text: str) -> str:
    """The text with comments, strings and preprocessor lines as spaces; every newline stays."""
    return MACRO_LINE.sub(_spaces, DIRECTIVE.sub(_spaces, NOISE.sub(_spaces, text)))


def _spaces(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match.group())


def _is_initialiser(head: str) -> bool:
    """Whether a brace after `head` is a value: in parentheses, an alias, or of a member."""
    head = _without_templates(head)
    if head.count("(") != head.count(")") or ALIAS.match(head):
        return True
    return bool(re.search(r"\)\s*(?:noexcept\s*)?:(?!:)", head) and MEMBER.search(head))


def _function(head: str, begin: int, breaks: Sequence[int]) -> Function | None:
    """The function whose body opens after `head`, or None for a namespace, class or variable."""
    signature = _without_templates(_without_attributes(head))
    before = signature[: max(signature.find("("), 0)]
    if before.rstrip().endswith("operator"):  # operator()(…)
        before = signature[: signature.find(")") + 1]
    match = NAME.search(before)
    if match is None or match.group(1) in CONTROL or ("=" in before and "operator" not in before):
        return None
    start = begin + len(head) - len(head.lstrip())
    line = _line(breaks, begin + match.start(1))
    name = re.sub(r"\s+", "", match.group(1))
    return Function(name, line, _line(breaks, start), line, "__global__" in head)


def _line(breaks: Sequence[int], offset: int) -> int:
    return bisect_left(breaks, offset) + 1


def _without_attributes(text: str) -> str:
    return _without(ATTRIBUTES, "()", text)


def _without_templates(text: str) -> str:
    return _without(TEMPLATE, "<>", text)


def _without(opening: re.Pattern[str], brackets: str, text: str) -> str:
    """The text with spaces for what the pattern opens, up to the bracket that closes it."""
    while match := opening.search(text):
        end = _closing(text, match.end() - 1, *brackets)
        text = text[: match.start()] + " " * (end - match.start()) + text[end:]
    return text


def _closing(text: str, start: int, left: str, right: str) -> int:
    """Offset after the bracket that closes the one at `start`; `(a > b)` closes no `<`."""
    depth = parentheses = 0
    for offset in range(start, len(text)):
        mark = text[offset]
        if left == "<" and mark in "()":
            parentheses += 1 if mark == "(" else -1
        elif mark == left and not parentheses:
            depth += 1
        elif mark == right and not parentheses:
            depth -= 1
            if depth == 0:
                return offset + 1
    return len(text)


def templates(text: str) -> dict[str, list[list[str]]]:
    """Parameter names of the templates of kernels and structs, in order, by name; each overload's."""
    plain, found = blank(text), dict[str, list[list[str]]]()
    for match in TEMPLATE.finditer(plain):
        end = _closing(plain, match.end() - 1, "<", ">")
        head = re.split(r"[{;]", plain[end:], maxsplit=1)[0]
        struct = re.match(r"\s*(?:struct|class)\s+(\w+)\s*(?!<)(?::|$)", head)
        kernel = NAME.search(_without_attributes(head).partition("(")[0])
        names = _parameters(plain[match.end() : end - 1])
        named = struct or (kernel if "__global__" in head else None)
        if named and names:
            found.setdefault(named[1], []).append(names)
    return found


def _parameters(text: str) -> list[str]:
    """``["kTile", "T", "Act"]`` of ``int kTile_ = 2, typename T, float (*Act)(const float&)``."""
    parts, angles, parentheses = [""], 0, 0
    for char in text:
        parentheses += (char == "(") - (char == ")")
        angles += 0 if parentheses else (char == "<") - (char == ">")
        if char == "," and not angles and not parentheses:
            parts.append("")
        else:
            parts[-1] += char
    names = (
        re.search(r"\(\s*\*\s*(\w+)\s*\)", part) for part in parts
    )  # of a pointer to a function
    words = (re.findall(r"\w+", part.partition("=")[0]) for part in parts)
    return [
        (name[1] if name else found[-1]).rstrip("_")
        for name, found in zip(names, words, strict=True)
        if found
    ]
