"""The filters of the templates: values as ``ncuflow.format`` prints them, struck through where they cannot be true."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from markupsafe import Markup

from ncuflow.findings.limiter import label, words
from ncuflow.format import micro, number, pct, percent, si, with_unit
from ncuflow.model import Measurement
from ncuflow.pages.markdown.text import cell, code, link, path, prose, text, verbatim


class Struck(float):
    """A number that cannot be true: computed with like any other, printed struck through."""


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
