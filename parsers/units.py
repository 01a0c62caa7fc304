"""Units of the profilers, brought to one base.

Scaling is by whole powers of ten, so a value that is in its base unit already is left untouched.
"""

from __future__ import annotations

import re
from functools import cache

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


@cache  # of a few hundred names, asked for in every kernel
def expected_unit(name: str) -> str:
    """The base unit (of a rate: its numerator) that a counter of ncu has by its name; "" if any."""
    return next((unit for pattern, unit in _EXPECTED if pattern.search(name)), "")


@cache
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
