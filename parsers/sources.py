"""How one value is read off a kernel's counters: a name, a sum, a product, a work-weighted mean.

A counter that the report does not hold makes the value None. A counter that is there without being
a number (NaN, infinity, a negative count) raises NotANumber: the reader makes it a named problem.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ncuflow.parsers.units import scale

# (value, power of ten of its unit) of a counter, or None where the report lacks it.
Counter = tuple[float, int]
Lookup = Callable[[str], Counter | None]

PEAK = ".peak_sustained_elapsed.per_second"  # behind the name of a counter of work


class NotANumber(Exception):  # noqa: N818
    """A counter is in the report but holds no usable number; the argument is its name."""


@dataclass(frozen=True)
class Term:
    """factor × the product of the named counters."""

    names: tuple[str, ...]
    factor: float = 1.0

    def value(self, get: Lookup, exponent: int) -> float | None:
        """The term in units of 10^exponent of its base; None where a counter is absent."""
        product, power = self.factor, 0
        for name in self.names:
            counter = get(name)
            if counter is None:
                return None
            product, power = product * counter[0], power + counter[1]
        return scale(product, power - exponent)


@dataclass(frozen=True)
class MetricSource:
    """The sum of terms. With `partial`, absent terms are left out as long as one is there: ncu
    omits the counters of instructions that a section does not ask for.

    kind: of a partial sum, a pattern of all counters of the work that it sums, on whatever chip.
    """

    terms: tuple[Term, ...]
    partial: bool = False
    kind: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(chain.from_iterable(t.names for t in self.terms)))

    @property
    def work(self) -> tuple[str, ...]:
        """The counters that count it."""
        return self.names

    def read(self, get: Lookup, exponent: int = 0) -> tuple[float, str] | None:
        """(value, names that contributed), or None."""
        found = [(term.value(get, exponent), term) for term in self.terms]
        known = [(value, term) for value, term in found if value is not None]
        if not known or (len(known) < len(found) and not self.partial):
            return None
        return sum(value for value, _ in known), _contributors(known)

    def __str__(self) -> str:
        return " + ".join(_formula(term) for term in self.terms)


@dataclass(frozen=True)
class Ceiling:
    """The ceiling of the work that ran: Σ work ÷ Σ (work ÷ peak), over pairs of work and peak.

    With one kind of instruction it is that instruction's peak; a kernel without has no ceiling. kind: as of a MetricSource.
    """

    pairs: tuple[tuple[str, str], ...] = field(default=())
    kind: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(chain.from_iterable(self.pairs))

    @property
    def work(self) -> tuple[str, ...]:
        """The counters that count it, without their peaks."""
        return tuple(done for done, _ in self.pairs)

    def read(self, get: Lookup, exponent: int = 0) -> tuple[float, str] | None:
        """(ceiling, names of the peaks that count), or None."""
        work, seconds, peaks = 0.0, 0.0, []
        for done_name, peak_name in self.pairs:
            done = get(done_name)
            if not done or not done[0]:
                continue
            peak = get(peak_name)
            if not peak or not peak[0]:
                return None
            work += scale(*done)
            seconds += scale(*done) / scale(*peak)
            peaks.append(peak_name)
        return (scale(work / seconds, -exponent), " + ".join(peaks)) if peaks else None

    def __str__(self) -> str:
        return "work-weighted " + ", ".join(peak for _, peak in self.pairs)


def _contributors(known: list[tuple[float, Term]]) -> str:
    active = [term for value, term in known if value] or [known[0][1]]
    return " + ".join(dict.fromkeys(_formula(term) for term in active))


def _formula(term: Term) -> str:
    product = " × ".join(term.names)
    return product if term.factor == 1 else f"{term.factor:g} × {product}"


def source(said: Any) -> MetricSource | Ceiling:
    """A source as the catalogue writes it; `catalogue.yaml` says how."""
    match said:
        case str():
            return MetricSource((Term((said,)),))
        case {"product": names}:
            return MetricSource((Term(tuple(names), said.get("factor", 1)),))
        case {"sum": dict(weights)}:
            common = said.get("times", ())
            return MetricSource(tuple(Term((name, *common), weights[name]) for name in weights))
        case {"sum": names}:
            return MetricSource(tuple(Term((name,), said.get("factor", 1)) for name in names))
        case {"any_of": names}:
            kind = said.get("kind", "")
            return MetricSource(
                tuple(Term((name,)) for name in _flat(names)), partial=True, kind=kind
            )
        case {"peak_of": names}:
            pairs = tuple((name, f"{name}{PEAK}") for name in _flat(names))
            return Ceiling(pairs, kind=said.get("kind", ""))
    raise ValueError(f"no source: {said}")


def _flat(names: list[Any]) -> Iterator[str]:
    """The names of a list; a list in it stands for its own."""
    for name in names:
        yield from _flat(name) if isinstance(name, list) else (name,)
