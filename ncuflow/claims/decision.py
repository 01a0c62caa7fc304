"""A decision: values over points, aggregated, compared with what was published, less noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from ncuflow.claims.evidence import Unanswered
from ncuflow.claims.expression import ExpressionError, evaluate, names
from ncuflow.claims.scope import Scope

Row = dict[str, Any]
Functions = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True)
class Expected:
    """What the measurement is compared with, in the unit of the comparison.

    low and high: the range.
    """

    value: float | None
    low: float | None
    high: float | None
    unit: str


@dataclass(frozen=True)
class Outcome:
    """A decision that could be made.

    holds: the claim's comparison holds; margin: distance to where it would turn, in the measured
    unit (None for a yes or no); noise: absolute floor of the measured value (None where unknown).
    """

    holds: bool
    measured: Any
    margin: float | None
    noise: float | None
    within_noise: bool
    scope: Scope
    values: list[tuple[str | None, Any]]
    decide: Row
    expected: Expected


def expected(claim: Row, decide: Row) -> Expected:
    """The published figure, or the limit; a fraction of the GPU's ceiling if the claim has one."""
    published = claim["published"]
    ceiling = published.get("ceiling")
    low, high = published.get("range") or (None, None)
    scale = 1 / ceiling if ceiling else 1.0
    value, low, high = (None if v is None else v * scale for v in (published["value"], low, high))
    value = decide.get("limit", value)
    unit = decide.get("unit", "of the ceiling" if ceiling else published["unit"])
    return Expected(value, low, high, unit)


def decide_over(claim: Row, decide: Row, scopes: list[Scope], functions: Functions) -> Outcome:
    """Evaluate, aggregate and compare. Raises Unanswered where values that decide are unknown."""
    published = claim["published"]
    given = {"published": published["value"], "ceiling": published.get("ceiling")}
    scopes = [scope.with_values(**given) for scope in scopes]
    text, wanted = str(decide["value"]), expected(claim, decide)
    pairs = [(scope, _value(text, scope, functions)) for scope in scopes]
    known = [(scope, value) for scope, value in pairs if value is not None]
    if not known:
        raise Unanswered(_lacking(text, scopes))
    if "by" in decide:  # max and min below keep the first of equals
        known.sort(key=lambda pair: _rank(str(decide["by"]), pair[0]), reverse=True)
    compare = _comparison(decide, wanted)
    aggregate = decide.get("aggregate", "all")
    scope, measured = _aggregate(aggregate, known, compare)
    holds = compare(measured) >= 0
    if len(known) < len(pairs) and holds != _settled(aggregate, decide["compare"]):
        missing = next(s for s, value in pairs if value is None)
        raise Unanswered(f"{_lacking(text, [missing])}, and the points that have it do not decide")
    margin = None if isinstance(measured, bool) else abs(compare(measured))
    noise, flips = _noise(text, scope, functions)
    return Outcome(
        holds=holds,
        measured=measured,
        margin=margin,
        noise=noise,
        within_noise=flips or (noise is not None and margin is not None and 0 < margin < noise),
        scope=scope,
        values=[(s.point, value) for s, value in pairs],
        decide=decide,
        expected=wanted,
    )


def _value(text: str, scope: Scope, functions: Functions) -> Any:
    value = evaluate(text, scope, functions)
    if value is not None and not isinstance(value, bool | int | float):
        raise ExpressionError(f"{text!r} gives {value!r}: neither a number nor true or false")
    return value


def _rank(text: str, scope: Scope) -> float:
    value = evaluate(text, scope)
    return -math.inf if value is None else float(value)


def _lacking(text: str, scopes: list[Scope]) -> str:
    """Which names are unknown at which point."""
    scope = scopes[0]
    missing = [name for name in names(text) if scope.get(name) is None]
    where = f" at {scope.point}" if scope.point else ""
    what = ", ".join(missing) or f"the value of {text!r}"
    return f"the evidence lacks {what}{where}"


def _comparison(decide: Row, wanted: Expected) -> Callable[[Any], float]:
    """value -> margin: how far it is inside the claim (≥ 0 holds) or outside (< 0)."""
    kind = decide["compare"]
    if kind == "holds":
        return lambda value: 1.0 if value else -1.0
    target, low, high = wanted.value, wanted.low, wanted.high
    if kind == "between":
        if low is None and high is None:
            raise ExpressionError("compare 'between' needs published.range")
        slack = _slack(decide, high if high is not None else low)
        return lambda v: min(
            math.inf if low is None else v - low + slack,
            math.inf if high is None else high + slack - v,
        )
    if target is None:
        raise ExpressionError(f"compare {kind!r} needs published.value, or a limit")
    slack = _slack(decide, target)
    margins: dict[str, Callable[[Any], float]] = {
        "within": lambda v: slack - abs(v - target),
        "at least": lambda v: v - (target - slack),
        "at most": lambda v: target + slack - v,
    }
    return margins[kind]


def _slack(decide: Row, target: float | None) -> float:
    tolerance = decide.get("tolerance") or {}
    return float(tolerance.get("absolute", abs(target or 0) * tolerance.get("relative", 0)))


def _aggregate(
    kind: str, known: list[tuple[Scope, Any]], compare: Callable[[Any], float]
) -> tuple[Scope, Any]:
    """(deciding point, measured value)."""
    if kind in ("max", "min"):
        return (max if kind == "max" else min)(known, key=lambda pair: float(pair[1]))
    if kind == "median":
        # Not the mean of two middle points: no point has it.
        middle = median_low(float(value) for _, value in known)
        return next(pair for pair in known if float(pair[1]) == middle)
    return (min if kind == "all" else max)(known, key=lambda pair: compare(pair[1]))


def _settled(kind: str, comparison: str) -> bool | None:
    """The answer that no further value could turn: a maximum only rises, a minimum only falls."""
    if kind in ("all", "any"):
        return kind == "any"
    return {
        ("max", "at least"): True,
        ("max", "at most"): False,
        ("min", "at least"): False,
        ("min", "at most"): True,
    }.get((kind, comparison))


def _noise(text: str, scope: Scope, functions: Functions) -> tuple[float | None, bool]:
    """(absolute floor of the value at this point, whether the floor alone turns a yes or no).

    Each uncertain input is moved by its floor, and what that changes is added in squares.
    """
    known = [name for name in names(text) if scope.get(name) is not None]
    uncertain = {name: floor for name in known if (floor := scope.noise(name))}
    if not uncertain:
        return None, False
    here, moved = evaluate(text, scope, functions), []
    for name, floor in uncertain.items():
        for sign in (1, -1):
            value = scope.known[name] * (1 + sign * floor)
            moved.append(evaluate(text, scope.with_values(**{name: value}), functions))
    if isinstance(here, bool):
        return None, any(value is not None and value != here for value in moved)
    changes = [abs(value - here) for value in moved[::2] if value is not None]
    return math.sqrt(sum(change**2 for change in changes)), False
