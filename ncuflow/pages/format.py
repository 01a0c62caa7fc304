"""How values are printed: a few significant digits, a unit, and an en dash for what is not known."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

MISSING = "–"


class Struck(float):
    """A number that cannot be true: computed with like any other, printed struck through."""


def _struck(text: str, value: Any) -> str:
    return f"~~{text}~~" if isinstance(value, Struck) else text


def _strikes(function: Callable[..., str]) -> Callable[..., str]:
    """A formatter whose text is struck through where its value is."""

    @wraps(function)
    def formatter(value: Any, *arguments: Any, **named: Any) -> str:
        return _struck(function(value, *arguments, **named), value)

    return formatter


PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def number(value: float | None, digits: int = 3) -> str:
    """``digits`` significant digits, thousands kept whole: 4172, 41.7, 0.0417, 5.43e-8."""
    if value is None:
        return MISSING
    if isinstance(value, str):
        return value
    if value == 0:
        return "0"
    if abs(value) >= 10**digits:
        return f"{value:,.0f}".replace(",", " ")
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    if exponent.startswith("-"):
        return f"{mantissa}e{int(exponent)}"
    return f"{float(f'{value:.{digits}g}'):.0f}" if exponent else mantissa


def with_unit(value: float | None, unit: str, digits: int = 3) -> str:
    """``number`` and its unit; the dash stands alone."""
    return MISSING if value is None else f"{number(value, digits)} {unit}".rstrip()


def si(value: float | None, unit: str, digits: int = 3) -> str:
    """With a decimal prefix: 146.2e9 FLOP -> 146 GFLOP."""
    if value is None:
        return MISSING
    for factor, prefix in PREFIXES:
        if abs(value) >= factor:
            return f"{number(value / factor, digits)} {prefix}{unit}"
    return with_unit(value, unit, digits)


def percent(fraction: float | None, digits: int = 0) -> str:
    """A fraction of 1 as per cent: 0.884 -> 88 %."""
    return MISSING if fraction is None else f"{100 * fraction:.{digits}f} %"


def pct(value: float | None, digits: int = 0) -> str:
    """A value that is per cent already."""
    return MISSING if value is None else f"{value:.{digits}f} %"


def micro(value: float | None) -> str:
    """Microseconds, as milliseconds or seconds where that reads better."""
    if value is None:
        return MISSING
    if value >= 1e6:
        return f"{number(value / 1e6)} s"
    return f"{number(value / 1e3)} ms" if value >= 1e4 else f"{number(value)} µs"


def cell(text: Any) -> str:
    """Text that is safe inside a Markdown table cell."""
    return (
        MISSING if text is None or text == "" else str(text).replace("|", "\\|").replace("\n", " ")
    )


FILTERS = {
    "number": _strikes(number),
    "unit": _strikes(with_unit),
    "si": _strikes(si),
    "percent": _strikes(percent),
    "pct": _strikes(pct),
    "micro": _strikes(micro),
    "cell": cell,
}
