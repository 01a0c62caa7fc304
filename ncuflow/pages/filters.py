"""The filters of the templates: values as ``ncuflow.format`` prints them, struck through where they cannot be true."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

from ncuflow.findings.limiter import label
from ncuflow.format import MISSING, micro, number, pct, percent, si, with_unit

_SPAN_OR_TAG = re.compile(r"`[^`]*`|<")


class Struck(float):
    """A number that cannot be true: computed with like any other, printed struck through."""


def _strikes(function: Callable[..., str]) -> Callable[..., str]:
    """A formatter whose text is struck through where its value is."""

    @wraps(function)
    def formatter(value: Any, *arguments: Any, **named: Any) -> str:
        text = function(value, *arguments, **named)
        return f"~~{text}~~" if isinstance(value, Struck) else text

    return formatter


def seconds(value: float | None) -> str:
    """A time in seconds, as milliseconds or microseconds where that reads better."""
    return micro(None if value is None else value * 1e6)


def cell(text: Any) -> str:
    """Text that is safe inside a Markdown table cell, whoever wrote it: one line, and no HTML in it."""
    if text is None or text == "":
        return MISSING
    return _SPAN_OR_TAG.sub(lambda found: "&lt;" if found[0] == "<" else found[0], _line(text))


def code(text: Any) -> str:
    """Text that stays inside the backticks around it, in a table cell or not."""
    return _line(text).replace("`", "'")


def _line(text: Any) -> str:
    plain = "".join(letter if letter.isprintable() else " " for letter in str(text))
    return plain.replace("|", "\\|")


FILTERS = {
    "number": _strikes(number),
    "unit": _strikes(with_unit),
    "si": _strikes(si),
    "percent": _strikes(percent),
    "pct": _strikes(pct),
    "micro": _strikes(micro),
    "seconds": seconds,
    "cell": cell,
    "limiter_name": label,
    "code": code,
    "rate_unit": {"tflops": "TFLOPS", "gbs": "GB/s"}.__getitem__,
}
