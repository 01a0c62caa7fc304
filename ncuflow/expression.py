"""Expressions over what is known: arithmetic and comparisons over names, where missing stays missing.

A value is a number, a string, a bool, a list of these, or None. None is *unknown*: it passes
through arithmetic, comparisons and calls, and ``and``/``or``/``not`` follow Kleene's three-valued
logic, so that ``False and None`` is False and ``True and None`` is None. Nothing but the syntax
listed here is accepted: no attributes, no subscripts, no calls except ``known(x)`` (False where x
is unknown), those in ``FUNCTIONS`` and those given by the caller.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache, partial
from statistics import median
from typing import Any

Functions = Mapping[str, Callable[..., Any]]
Evaluator = Callable[[Mapping[str, Any], Functions], Any]
# How a comparison reads in a sentence.
IN_WORDS: Mapping[type[ast.cmpop], str] = {
    ast.Eq: "=", ast.NotEq: "≠", ast.Lt: "<", ast.LtE: "≤", ast.Gt: ">", ast.GtE: "≥", ast.In: "=",
}  # fmt: skip


class ExpressionError(ValueError):
    """What is wrong with an expression: its syntax, a name, or a value of the wrong kind."""


def _power(base: float, exponent: float) -> float | None:
    result = float(base) ** exponent  # of floats: whole numbers could have any number of digits
    return result if isinstance(result, float) else None


def _search(pattern: str, text: str) -> re.Match[str] | None:
    try:
        return re.search(pattern, text)
    except re.error as error:
        raise ExpressionError(f"not a regular expression: {pattern!r} ({error})") from None


def _matches(text: str | list[str], pattern: str) -> bool:
    """Whether the pattern is found in the text, or in any text of the list."""
    texts = [text] if isinstance(text, str) else text
    return any(_search(pattern, item) for item in texts)


def _count(texts: list[str], pattern: str) -> int:
    return sum(bool(_search(pattern, text)) for text in texts)


def _capture(text: str, pattern: str) -> float | str | None:
    """The pattern's first group, as a number where it is one; None without a match, or where the group has none."""
    found = _search(pattern, text)
    if not found or found[1] is None:
        return None
    try:
        return float(found[1])
    except ValueError:
        return str(found[1])


def _log2(value: float) -> float | None:
    """None of what has no logarithm: as with a division by zero, one point's value is no fault of the expression."""
    return math.log2(value) if value > 0 else None


def _sqrt(value: float) -> float | None:
    return math.sqrt(value) if value >= 0 else None


NUMBER = (int, float)
FUNCTIONS: Functions = {
    "abs": abs,
    "capture": _capture,
    "count": _count,
    "len": len,
    "log2": _log2,
    "matches": _matches,
    "max": max,
    "median": median,
    "min": min,
    "round": round,
    "sqrt": _sqrt,
    "sum": sum,
}
ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, group: item in group,
    ast.NotIn: lambda item, group: item not in group,
}


_PLACEHOLDER = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")
_FORMAT = re.compile(r"[-+,]?\d{0,2}(\.\d{1,2})?[a-zA-Z%]?")  # a width of 10⁹ would fill the memory


@lru_cache(maxsize=4096)
def parse(text: str) -> ast.expr:
    """The syntax tree of an expression. Raises ExpressionError for anything but an expression."""
    try:
        return ast.parse(" ".join(text.split()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"not an expression: {text.strip()!r} ({error})") from error


@lru_cache(maxsize=4096)
def names(text: str) -> tuple[str, ...]:
    """The value names that an expression reads, in order of first use, without functions."""
    nodes = list(ast.walk(parse(text)))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    found = [n for n in nodes if isinstance(n, ast.Name) and id(n) not in called]
    found.sort(key=lambda node: node.col_offset)  # an expression is one line, see parse
    return tuple(dict.fromkeys(node.id for node in found))


def evaluate(text: str, values: Mapping[str, Any], functions: Functions | None = None) -> Any:
    """The value of an expression; None where a value it needs is unknown.

    values: what each name means; functions: calls allowed beside ``FUNCTIONS``. Raises
    ExpressionError for a name in neither, for syntax outside the list, for a wrong kind of value.
    """
    try:
        return _evaluator(text)(values, {**FUNCTIONS, **functions} if functions else FUNCTIONS)
    except ZeroDivisionError:
        return None
    except ExpressionError:
        raise
    except (TypeError, ValueError, OverflowError, IndexError, RecursionError) as error:
        raise ExpressionError(f"{text.strip()!r}: {error}") from error


def holds(text: str, values: Mapping[str, Any]) -> bool:
    """Whether a condition is known to hold: what it needs is there, and says so."""
    return evaluate(text, values) is True


def terms(text: str) -> list[str]:
    """The conditions of which an expression asks for all."""
    match node := parse(text):
        case ast.BoolOp(op=ast.And(), values=parts):
            return list(map(ast.unparse, parts))
    return [ast.unparse(node)]


def conditions(text: str) -> list[str]:
    """What an expression asks for, in words: ``a == 1 and not b`` is "a = 1", "not b".

    A condition of what is not known everywhere (``not known(x) or x == y``) is that of where it is known.
    """
    try:
        return list(_conditions(parse(text)))
    except RecursionError as error:
        raise ExpressionError(f"{text.strip()!r}: {error}") from error


def _conditions(node: ast.expr) -> Iterator[str]:
    match node:
        case ast.BoolOp(op=ast.And(), values=parts):
            for part in parts:
                yield from _conditions(part)
        case ast.BoolOp(
            op=ast.Or(),
            values=[ast.UnaryOp(operand=ast.Call(func=ast.Name(id="known"))), condition],
        ):
            yield from _conditions(condition)
        case ast.Compare(left=left, ops=[operation], comparators=[right]) if (
            type(operation) in IN_WORDS
        ):
            yield f"{_in_words(left)} {IN_WORDS[type(operation)]} {_in_words(right)}"
        case _:
            yield _in_words(node)


def _in_words(node: ast.expr) -> str:
    """A term without the quotes around texts; of a list its items."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.List):
        return " or ".join(map(_in_words, node.elts))
    return ast.unparse(node).replace(" * ", " × ")


def placeholders(text: str) -> list[str]:
    """The expressions of a sentence, see ``said``. Raises ExpressionError for a brace that is of none of them."""
    if re.search("[{}]", _PLACEHOLDER.sub("", text)):
        raise ExpressionError(f"a brace is of no {{expression}}: {text.strip()!r}")
    return [match[1] for match in _PLACEHOLDER.finditer(text)]


def filled_in(
    text: str,
    values: Mapping[str, Any],
    functions: Functions | None = None,
    shown: Callable[[str, Any], str] | None = None,
) -> str | None:
    """A sentence with each ``{expression:format}`` in it replaced by its value.

    shown: (expression, value or None) -> text, of those without a format. None where a value is unknown that
    it is not given.
    """
    parts: list[str] = []
    end = 0
    for match in _PLACEHOLDER.finditer(text):
        value = evaluate(match[1], values, functions)
        by_unit = shown is not None and match[2] is None
        if value is None and not by_unit:
            return None
        printed = shown(match[1], value) if shown and by_unit else _formatted(value, match)
        parts += [text[end : match.start()], printed]
        end = match.end()
    return "".join([*parts, text[end:]])


def _formatted(value: Any, placeholder: re.Match[str]) -> str:
    wanted = placeholder[2] or ""
    if not _FORMAT.fullmatch(wanted):
        raise ExpressionError(f"{placeholder[0]}: {wanted!r} is not a format such as .1f")
    try:
        return format(value, wanted)
    except (TypeError, ValueError) as error:
        raise ExpressionError(f"{placeholder[0]}: {error}") from None


@lru_cache(maxsize=4096)
def _evaluator(text: str) -> Evaluator:
    return _of(parse(text))


def _of(node: ast.expr) -> Evaluator:
    """What computes a node from (values, functions): a condition is asked of thousands of points."""
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as constant):
            known = _known(constant)
            return lambda v, f: known
        case ast.Name(id=name):
            return partial(_named, name)
        case ast.List(elts=items) | ast.Tuple(elts=items):
            parts = [_of(item) for item in items]
            return lambda v, f: [part(v, f) for part in parts]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _of(operand)
            return lambda v, f: None if (value := inner(v, f)) is None else not value
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _of(operand)
            return lambda v, f: None if (value := inner(v, f)) is None else -_number(value)
        case ast.BoolOp(op=op, values=values):
            return partial(_logic, isinstance(op, ast.Or), [_of(value) for value in values])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in ARITHMETIC:
            compute, one, other = ARITHMETIC[type(op)], _of(left), _of(right)
            return lambda v, f: _binary(compute, one(v, f), other(v, f))
        case ast.Compare(left=left, ops=ops, comparators=rest) if {
            *map(type, ops)
        } <= COMPARISONS.keys():
            compared = [COMPARISONS[type(op)] for op in ops]
            if len(compared) == 1:
                return partial(_compared, compared[0], _of(left), _of(rest[0]))
            return partial(_chained, compared, [_of(term) for term in (left, *rest)])
        case ast.IfExp(test=test, body=body, orelse=orelse):
            chosen, branches = _of(test), (_of(orelse), _of(body))
            return lambda v, f: (
                None if (is_so := chosen(v, f)) is None else branches[bool(is_so)](v, f)
            )
        case ast.Call(func=ast.Name(id="known"), args=args, keywords=[]):
            parts = [_of(arg) for arg in args]
            return lambda v, f: all(part(v, f) is not None for part in parts)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]):
            parts = [_of(arg) for arg in args]
            return lambda v, f: _called(name, f, [part(v, f) for part in parts])
    return lambda v, f: _refused(node)


def _refused(node: ast.expr) -> None:
    raise ExpressionError(f"{ast.unparse(node)!r}: {type(node).__name__} is not allowed")


def _named(name: str, values: Mapping[str, Any], _: Functions) -> Any:
    try:
        value = values[name]
    except KeyError:
        raise ExpressionError(f"unknown name {name!r}") from None
    return _known(value) if isinstance(value, NUMBER) else value


def _called(name: str, functions: Functions, arguments: list[Any]) -> Any:
    if name not in functions:
        raise ExpressionError(f"unknown function {name!r} (known: {', '.join(sorted(functions))})")
    unknown = any(a is None or (isinstance(a, list) and None in a) for a in arguments)
    return None if unknown else _known(functions[name](*arguments))


def _known(value: Any) -> Any:
    """NaN, infinity and a whole number beyond every float are unknown, as None is."""
    if not isinstance(value, NUMBER):
        return value
    try:
        return value if math.isfinite(value) else None
    except OverflowError:
        return None


def _number(value: Any) -> float:
    if isinstance(value, bool | int | float):
        return value
    raise ExpressionError(f"{value!r} is not a number")


def _binary(compute: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    return _known(compute(_number(left), _number(right)))


def _compared(
    compare: Callable[[Any, Any], Any],
    one: Evaluator,
    other: Evaluator,
    values: Mapping[str, Any],
    functions: Functions,
) -> bool | None:
    left, right = one(values, functions), other(values, functions)
    return None if left is None or right is None else bool(compare(left, right))


def _chained(
    compared: list[Callable[[Any, Any], Any]],
    terms: list[Evaluator],
    values: Mapping[str, Any],
    functions: Functions,
) -> bool | None:
    """``a < b < c``: all of its comparisons."""
    found = [term(values, functions) for term in terms]
    return _decided(
        False,
        [
            None if left is None or right is None else compare(left, right)
            for left, compare, right in zip(found, compared, found[1:], strict=False)
        ],
    )


def _logic(
    deciding: bool, parts: list[Evaluator], values: Mapping[str, Any], functions: Functions
) -> bool | None:
    # All of them, also after one that decides: a wrong name is told wherever it stands.
    return _decided(deciding, [part(values, functions) for part in parts])


def _decided(deciding: bool, parts: list[Any]) -> bool | None:
    """Kleene's or, which a true operand decides, and his and: whatever is unknown beside it."""
    unknown = False
    for part in parts:
        if part is None:
            unknown = True
        elif bool(part) is deciding:
            return deciding
    return None if unknown else not deciding
