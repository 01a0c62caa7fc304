"""Units of the profilers, brought to one base, and values as text.

Scaling is by whole powers of ten, so a value that is in its base unit already is left untouched.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from tabulate import tabulate

PREFIXES = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "K": 3, "M": 6, "G": 9, "T": 12, "P": 15}
BASES = {
    "second": "s", "seconds": "s", "s": "s", "sec": "s",
    "byte": "byte", "bytes": "byte", "B": "byte",
    "hz": "hz", "Hz": "hz", "cycle": "cycle", "cycles": "cycle", "inst": "inst", "%": "%",
    "sector": "sector", "sectors": "sector", "warp": "warp", "thread": "thread", "block": "block",
    "request": "request", "register": "register", "pass": "pass", "FLOP": "FLOP",
}  # fmt: skip

# What a counter's name says of its unit, for those that are scaled by it, bounded, or counted in something.
_EXPECTED = (
    (re.compile(r"\.pct|_pct$"), "%"),
    (re.compile(r"\.ratio$|^derived__|^memory_"), ""),
    (re.compile(r"__time_duration"), "s"),
    (re.compile(r"__cycles_elapsed\.\w+\.per_second$"), "hz"),
    (re.compile(r"__(t_)?bytes|launch__shared_mem_per_block"), "byte"),
    (re.compile(r"__(t_)?sectors"), "sector"),
    (re.compile(r"inst_executed"), "inst"),
    (re.compile(r"launch__occupancy_limit"), "block"),
)


def expected_unit(name: str) -> str:
    """The base unit (of a rate: its numerator) that a counter of ncu has by its name; "" if any."""
    return next((unit for pattern, unit in _EXPECTED if pattern.search(name)), "")


def base_unit(unit: str) -> tuple[int, str]:
    """(power of ten, base unit) of a unit: ("us") is (-6, "s"), ("Gbyte/second") is (9, "byte/s").

    A unit that is not known is its own base.
    """
    top, _, bottom = unit.strip().partition("/")
    exponent, name = _single(top)
    if not bottom:
        return exponent, name
    low, per = _single(bottom)
    if (name, per) == ("cycle", "s"):
        return exponent - low, "hz"
    return exponent - low, f"{name}/{per}"


def _single(unit: str) -> tuple[int, str]:
    if unit in BASES:
        return 0, BASES[unit]
    prefix, rest = unit[:1], unit[1:]
    if prefix in PREFIXES and rest in BASES:
        return PREFIXES[prefix], BASES[rest]
    return 0, unit


def scale(value: float, exponent: int) -> float:
    """value × 10^exponent, dividing where the exponent is negative: 1e-9 is not exact, 1e9 is."""
    if exponent == 0:
        return value
    return value * 10.0**exponent if exponent > 0 else value / 10.0**-exponent


def significant(value: float, digits: int = 3) -> str:
    """A number with so many significant digits, without an exponent: 4.81, 95.1, 146, 0.00123."""
    if value == 0:
        return "0"
    exponent = int(f"{value:.{digits - 1}e}".partition("e")[2])  # of the rounded value
    decimals = max(0, digits - 1 - exponent)
    return f"{value:,.{min(decimals, 12)}f}"


def si(value: float, unit: str, digits: int = 3) -> str:
    """A number with an SI prefix: si(4.81e12, "B/s") is "4.81 TB/s"."""
    steps = ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k"))
    for exponent, prefix in steps:
        if abs(value) >= 0.9995 * 10.0**exponent:
            return f"{significant(value / 10.0**exponent, digits)} {prefix}{unit}".rstrip()
    return f"{significant(value, digits)} {unit}".rstrip()


def duration(ns: float) -> str:
    """Nanoseconds as ns, µs, ms or s with three significant digits."""
    for factor, unit in ((1e9, "s"), (1e6, "ms"), (1e3, "µs")):
        if abs(ns) >= 0.9995 * factor:
            return f"{significant(ns / factor)} {unit}"
    return f"{significant(ns)} ns"


def as_text(value: float | int | str | None, unit: str) -> str:
    """A value in its base unit as text with the unit and sensible digits; None is "–"."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a measurement")
    if unit == "ns":
        return duration(value)
    if unit == "%":
        return f"{value:.1f} %"
    if unit in ("byte", "byte/s", "hz", "FLOP", "FLOP/s", "op", "op/s"):
        return si(value, unit.replace("byte", "B").replace("hz", "Hz"))
    if unit == "count":
        return f"{value:,.0f}" if abs(value) < 1e6 else si(value, "")
    if float(value).is_integer() and abs(value) < 1e6:
        return f"{value:,.0f} {unit}".rstrip()
    return f"{significant(value)} {unit}".rstrip()


def short(text: str | None, width: int) -> str:
    """At most `width` characters, the end cut off with "…"; None is "–"."""
    if text is None:
        return "–"
    text = text.replace("\n", " ")
    return text if len(text) <= width else text[: width - 1] + "…"


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table in columns: the first `left` aligned left, the others right."""
    sides = ["left"] * left + ["right"] * (len(header) - left)
    text = tabulate(rows, header, "plain", disable_numparse=True, colalign=sides)
    return str(text) + "\n"
