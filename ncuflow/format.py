"""How values are printed: three significant digits, a unit, and an en dash for what is not known. In a sentence zeros at the end
of a number are left out; in a column, which has one unit, they stand: 28.0 beside 29.3. Per cent have one decimal, or none."""

import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MISSING = "–"


PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
# Units that stand with a decimal prefix, by the name that the registry has for them.
PREFIXED = {
    "B": "B", "byte": "B", "byte/s": "B/s", "hz": "Hz", "FLOP": "FLOP", "FLOP/s": "FLOP/s", "op": "op", "op/s": "op/s",
}  # fmt: skip
COUNTED = re.compile("[a-z ]{3,}s")  # units that are words in the plural; ms and TFLOPS are none
ACTIVE = re.compile(
    r"[\\`*_\[\]<>|~&@]|#\d|://|www\.|^[-+#]"
)  # what Markdown or GitHub reads as something else
NARROW = 24  # characters that a cut column keeps
# Units of a column of times in µs, and from which time on one has it: below stand shorter ones, with as few zeros.
TIMES = (("s", 1e6, 1e6), ("ms", 1e4, 1e3), ("µs", 0.0, 1.0))
LARGE = 1e5  # from here on a count reads better with a prefix


class Struck(float):
    """A number that cannot be true: computed with like any other, printed struck through."""


def number(value: float | str | None, digits: int = 3) -> str:
    """``digits`` significant digits, thousands kept whole: 4172, 41.7, 0.0417, 5.43e-8."""
    if value is None:
        return MISSING
    if isinstance(value, str):
        return value
    if value == 0:
        return "0"
    if abs(value) >= 10**digits:
        return plain(value, ".0f")
    mantissa, _, exponent = f"{value:.{digits}g}".partition("e")
    if exponent.startswith("-"):
        return f"{mantissa}e{int(exponent)}"
    return f"{float(f'{value:.{digits}g}'):.0f}" if exponent else mantissa


def plain(value: float, form: str = ".10g") -> str:
    """A number of an axis or of a label, by a format, with the separator of thousands that pages have: 4 637."""
    return f"{value:,{form}}".replace(",", " ")


def with_unit(value: float | None, unit: str, digits: int = 3) -> str:
    """``number`` and its unit, of which "1 chunks" is "1 chunk"; the dash stands alone."""
    if value is None:
        return MISSING
    text = number(value, digits)
    return f"{text} {unit[:-1] if text == '1' and COUNTED.fullmatch(unit) else unit}".rstrip()


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


def change(value: float) -> str:
    """A relative change, of 1, with its sign; of what is 0.0 % without one."""
    size = percent(abs(value), 1)
    return size if size == percent(0, 1) else f"{'+' if value > 0 else '−'}{size}"


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


def in_one_unit(us: Sequence[float | None]) -> tuple[str, list[str]]:
    """The unit that suits the longest of some times (µs), and each in it."""
    longest = max((one for one in us if one is not None), default=0.0)
    unit, factor = next((u, f) for u, start, f in TIMES if longest >= start)
    return unit, in_column([None if one is None else one / factor for one in us])


def in_column(values: Sequence[float | None]) -> list[str]:
    """Numbers of one unit below each other: with the zeros at their end, unless all are whole."""
    whole = all(one is None or one == int(one) for one in values)
    return [number(one) if whole else _filled(number(one)) for one in values]


def _filled(text: str, digits: int = 3) -> str:
    """A number with the zeros that `number` leaves out at its end."""
    missing = digits - len(re.sub(r"\D", "", text).lstrip("0"))
    if text in ("0", MISSING) or "e" in text or missing <= 0:
        return text
    return f"{text}{'' if '.' in text else '.'}{'0' * missing}"


def quantity(value: Any, unit: str) -> str:
    """A value in a unit of the registry, or text as it is. ValueError of NaN and infinity."""
    if value is None or isinstance(value, str):
        return value or MISSING
    if not math.isfinite(value):
        raise ValueError(f"{value} is not a measurement")
    if unit in PREFIXED:
        return si(value, PREFIXED[unit])
    if unit in ("ns", "µs"):
        return micro(value / 1e3 if unit == "ns" else value)
    plain = "" if unit == "count" else unit
    if abs(value) < LARGE:
        return with_unit(value, plain)
    return f"{si(value, '').rstrip()} {plain}".rstrip()


def short(text: str | None, width: int) -> str:
    """At most `width` characters, the end cut off with "…"; None is "–"."""
    if text is None:
        return MISSING
    text = text.replace("\n", " ")
    return text if len(text) <= width else text[: width - 1] + "…"


def columns(without: int = 100) -> int:
    """The width of the terminal, or what there is without one."""
    return max(40, shutil.get_terminal_size((without, 24)).columns)


@dataclass(frozen=True)
class Sheet:
    """A table for a terminal, with a line before and lines after. long: columns whose text is cut, in turn, where a
    line is too long; spare: those left out, in turn, where it still is. A column in which no row has anything is left out."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    head: str = ""
    notes: Sequence[str] = ()
    left: int = 2
    long: Sequence[int] = (1,)
    spare: Sequence[int] = ()

    def text(self) -> str:
        """Lines that fit the terminal, unless long columns would keep less than `NARROW`."""
        kept, spare = self._kept(), [*self.spare]
        widths = [max(map(len, column)) for column in zip(self.header, *self.rows, strict=True)]
        least = [
            min(width, NARROW) if at in self.long else width for at, width in enumerate(widths)
        ]
        while spare and sum(least[at] + 2 for at in kept) - 2 > columns():
            kept = [at for at in kept if at != spare[0]]
            del spare[0]
        over = sum(widths[at] + 2 for at in kept) - 2 - columns()
        for at in self.long:
            cut = max(0, min(over, widths[at] - NARROW))
            widths[at], over = widths[at] - cut, over - cut
        rows = [
            [short(row[at], widths[at]) if at in self.long else row[at] for at in kept]
            for row in self.rows
        ]
        head = [self.header[at] for at in kept]
        parts = [self.head, aligned(head, rows, self.left), "\n".join(self.notes)]
        return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"

    def _kept(self) -> list[int]:
        """The columns in which a row has something; of no rows all."""
        every = range(len(self.header))
        return [at for at in every if not self.rows or any(row[at] for row in self.rows)]

    def markdown(self) -> str:
        """One table for a pull request, behind the line before it."""
        kept = self._kept()
        lines = [[inert_markdown(row[at]) for at in kept] for row in (self.header, *self.rows)]
        table = [lines[0], ["---"] * len(kept), *lines[1:]]
        head = f"{inert_markdown(self.head)}\n\n" if self.head else ""
        return head + "".join(f"| {' | '.join(line)} |\n" for line in table)


def inert_markdown(text: str) -> str:
    """Text of others in a cell: as code where anything in it would be markup, a link or a name that is called."""
    text = " ".join(text.split()) or MISSING
    if not ACTIVE.search(text):
        return text
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    space = " " * ("`" in text)
    return f"{fence}{space}{text}{space}{fence}".replace("|", "\\|")


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """A table in columns: the first `left` aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [
        "  ".join(f"{cell:{'<' if at < left else '>'}{widths[at]}}" for at, cell in enumerate(row))
        for row in (header, *rows)
    ]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def slug(name: str) -> str:
    """A GPU's name as that of a folder: ``NVIDIA H100 80GB HBM3`` -> ``h100-80gb-hbm3``."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower().replace("nvidia", "")).strip("-")
