"""A decision: values over points, aggregated, compared with what was published, less noise; and the record of its verdict."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median_low
from typing import Any

from ncuflow.answer import AnswerPart
from ncuflow.claims.evidence import Unanswered
from ncuflow.claims.files import Claim, Decision
from ncuflow.expression import ExpressionError, Functions, evaluate, names
from ncuflow.findings.join import architecture
from ncuflow.findings.scope import Scope, ValueOrigin
from ncuflow.format import number, with_unit
from ncuflow.io import JsonObject
from ncuflow.model import Provenance

Answer = bool | int | float
Known = tuple[Scope, Answer]
OF_CEILING = "of the ceiling"  # the unit of a figure that is compared as a fraction
NEAREST = "nearest to the limit"  # what is cited of one or two values where a median is asked for


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
class Decided:
    """A decision that could be made.

    holds: the claim's comparison holds; margin: distance to where it would turn, in the measured
    unit (None for a yes or no); noise: absolute floor of the measured value (None where unknown);
    scope: of the point that decides; values: of every selected point, None where unknown;
    aggregate: how the value was chosen among several, None where only one point has it.
    """

    holds: bool
    measured: Answer
    margin: float | None
    noise: float | None
    within_noise: bool
    scope: Scope
    values: list[tuple[str | None, Answer | None]]
    decide: Decision
    expected: Expected
    aggregate: str | None


def expected(claim: Claim, decide: Decision | None) -> Expected:
    """The published figure, or the limit; a fraction of the GPU's ceiling if the claim has one."""
    published = claim.published
    ends = published.value, *(published.range or (None, None))
    scale = 1 / published.ceiling if published.ceiling else 1.0
    value, low, high = (None if v is None else v * scale for v in ends)
    unit = OF_CEILING if published.ceiling else published.unit
    if decide is not None:
        value = value if decide.limit is None else decide.limit
        unit = unit if decide.unit is None else decide.unit
    return Expected(value, low, high, unit)


def amount(value: float, unit: str) -> str:
    """A value of a comparison with its unit; a fraction of a ceiling as per cent."""
    return f"{number(100 * value)} % of the peak" if unit == OF_CEILING else with_unit(value, unit)


def decide_over(
    claim: Claim, decide: Decision, scopes: Sequence[Scope], functions: Functions
) -> Decided:
    """Evaluate, aggregate and compare. Raises Unanswered where values that decide are unknown."""
    given = {"published": claim.published.value, "ceiling": claim.published.ceiling}
    scopes = [scope.with_values(**given) for scope in scopes]
    wanted = expected(claim, decide)
    pairs = [(scope, value_at(decide.value, scope, functions)) for scope in scopes]
    known = [(scope, value) for scope, value in pairs if value is not None]
    if not known:
        raise Unanswered(_lacking(decide.value, scopes[0]))
    if decide.by is not None:  # max and min below keep the first of equals
        by = decide.by
        known.sort(key=lambda pair: _rank(by, pair[0]), reverse=True)
    margin_of = margins(decide, wanted)
    aggregate = _chosen_by(decide, wanted.unit, [value for _, value in known], margin_of)
    scope, measured = _aggregate(aggregate, known, margin_of)
    margin = margin_of(measured)
    holds = margin >= 0
    if len(known) < len(pairs) and holds != _settled(decide):
        missing = next(scope for scope, value in pairs if value is None)
        lacking = _lacking(decide.value, missing)
        raise Unanswered(f"{lacking}, and the points that have it do not decide")
    distance = None if isinstance(measured, bool) else abs(margin)
    noise, flips = _noise(decide.value, scope, functions)
    return Decided(
        holds=holds,
        measured=measured,
        margin=distance,
        noise=noise,
        within_noise=flips or (noise is not None and distance is not None and 0 < distance < noise),
        scope=scope,
        values=[(s.point, value) for s, value in pairs],
        decide=decide,
        expected=wanted,
        aggregate=aggregate if len(known) > 1 else None,
    )


def value_at(text: str, scope: Scope, functions: Functions) -> Answer | None:
    value = evaluate(text, scope, functions)
    if value is None or isinstance(value, bool | int | float):
        return value
    raise ExpressionError(f"{text!r} gives {value!r}: neither a number nor true or false")


def _rank(text: str, scope: Scope) -> float:
    value = value_at(text, scope, {})
    return -math.inf if value is None else float(value)


def _lacking(text: str, scope: Scope) -> str:
    """Which names are unknown at which point."""
    missing = [name for name in names(text) if scope.get(name) is None]
    where = f" at {scope.point}" if scope.point else ""
    what = ", ".join(missing) or "what this asks for"
    return f"the evidence lacks {what}{where}"


def allowed(decide: Decision, wanted: Expected) -> tuple[float, float]:
    """(least, most) value with which the claim holds, in the unit of the comparison; infinite where there is no such end."""
    low = -math.inf if wanted.low is None else wanted.low
    high = math.inf if wanted.high is None else wanted.high
    # A claim whose comparison lacks its figure is not accepted: the 0 stands for none.
    target = wanted.value or 0.0
    figure = target if decide.compare != "between" else high if high < math.inf else low
    slack = decide.tolerance.slack(figure) if decide.tolerance else 0.0
    if decide.compare == "between":
        return low - slack, high + slack
    least = -math.inf if decide.compare == "at most" else target - slack
    return least, math.inf if decide.compare == "at least" else target + slack


def margins(decide: Decision, wanted: Expected) -> Callable[[Answer], float]:
    """value -> margin: how far it is inside the claim (≥ 0 holds) or outside (< 0)."""
    if decide.compare == "holds":
        return lambda value: 1.0 if value else -1.0
    least, most = allowed(decide, wanted)
    return lambda value: min(value - least, most - value)


def _chosen_by(
    decide: Decision, unit: str, values: Sequence[Answer], margin: Callable[[Answer], float]
) -> str:
    """How one of these values is chosen. Raises Unanswered for two of which one holds and the other does not.

    Of fewer than three a median is one of them by chance: they decide where they agree, and the nearer to the limit is cited.
    """
    if decide.aggregate != "median" or len(values) > 2:
        return decide.aggregate
    if len({margin(value) >= 0 for value in values}) > 1:
        low, high = sorted(values)
        raise Unanswered(
            f"the two points that there are do not agree: {amount(low, unit)} and {amount(high, unit)}"
        )
    return NEAREST


def _aggregate(kind: str, known: Sequence[Known], margin: Callable[[Answer], float]) -> Known:
    """(deciding point, measured value)."""
    if kind == NEAREST:
        return min(known, key=lambda pair: abs(margin(pair[1])))
    if kind in ("max", "min"):
        return (max if kind == "max" else min)(known, key=lambda pair: pair[1])
    if kind == "median":
        # Not the mean of two middle points of four or more: no point has it.
        middle = median_low(value for _, value in known)
        return next(pair for pair in known if pair[1] == middle)
    return (min if kind == "all" else max)(known, key=lambda pair: margin(pair[1]))


def _settled(decide: Decision) -> bool | None:
    """The answer that no further value could turn: a maximum only rises, a minimum only falls."""
    if decide.aggregate in ("all", "any"):
        return decide.aggregate == "any"
    return {
        ("max", "at least"): True,
        ("max", "at most"): False,
        ("min", "at least"): False,
        ("min", "at most"): True,
    }.get((decide.aggregate, decide.compare))


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


CONFIRMED, REFUTED = "confirmed", "refuted"
DIFFERS, NOT_TESTABLE = "differs by architecture", "not testable here"
VERDICTS = (CONFIRMED, REFUTED, DIFFERS, NOT_TESTABLE)


class ClaimCited(AnswerPart):
    """A value that a verdict rests on, and where it was read."""

    name: str
    """The name by which the claim refers to the value."""
    report: str | None
    """The report or file that holds the value."""
    point: str | None
    """The id of the point; together with ``name`` it is what `ncuflow trace` takes."""
    kernel: str | None
    """The kernel that a counter was read of."""
    metric: str
    """The counter or column."""
    value: Any
    """The value in the unit of that column; null where it is not known."""
    formula: str | None
    """The formula that computes the value."""


@dataclass(frozen=True)
class Record:
    """A judged claim. found: None where no decision could be made; reason: why, in sentences."""

    claim: Claim
    verdict: str
    reason: str
    found: Decided | None
    provenance: Provenance | None

    def as_json(self) -> JsonObject:
        """An entry of claims.json; what only a decision has is null without one.

        published: the figure as stated, and as it is compared (``compared``); another_gpu: the GPU
        of the figure where it is not the one that was measured; measured: the value that decides,
        by which ``aggregate`` of how many ``points`` it was chosen, and how many of them have a
        value (``known``).
        """
        claim, found = self.claim, self.found
        here: JsonObject = {**(self.provenance or {})}
        wanted = found.expected if found else expected(claim, None)
        decide = found.decide if found else None
        stated = claim.published.gpu
        on_gpu = decide is not None and decide.over in ("points", "jit", "machine")
        return {
            "id": claim.id,
            "file": claim.path.name,
            "statement": " ".join(claim.statement.split()),
            "source": claim.source.model_dump(exclude_none=True),
            "target": claim.applies.target,
            "verdict": self.verdict,
            "another_gpu": stated or None
            if on_gpu and not same_gpu(stated, self.provenance)
            else None,
            "published": claim.published.model_dump() | {"compared": vars(wanted)},
            "measured": _measured(found) if found else None,
            "unit": wanted.unit,
            "difference": _difference(found.measured, wanted) if found else None,
            "tolerance": decide.tolerance.model_dump(exclude_none=True)
            if decide and decide.tolerance
            else None,
            "compare": decide.compare if decide else None,
            "limit": decide.limit if decide else None,
            "over": decide.over if decide else None,
            "evidence": [vars(cited) for cited in _evidence(found)] if found else [],
            "points": [{"point": point, "value": value} for point, value in found.values]
            if found
            else [],
            "reason": self.reason,
            "independent": claim.independent,
            "needs": claim.needs.strip() if claim.needs and self.verdict == NOT_TESTABLE else None,
            "gpu": here.get("gpu"),
            "architecture": architecture(here),
            "tier": here.get("tier"),
            "flashinfer": here.get("flashinfer"),
            "noise_floor": found.noise if found else None,
        }


def same_gpu(stated: str | None, provenance: Provenance | None) -> bool:
    """Whether both name the same model."""
    models = [_model(stated), _model(provenance["gpu"] if provenance else None)]
    return None not in models and models[0] == models[1]


def _model(gpu: str | None) -> str | None:
    found = re.search(r"RTX \d+|\b(?!GB)[A-Z]{1,3}\d{2,3}[A-Z]?\b", gpu or "")
    return found[0] if found else None


def _measured(found: Decided) -> dict[str, Answer | str | None]:
    return {
        "value": found.measured,
        "unit": "" if isinstance(found.measured, bool) else found.expected.unit,
        "aggregate": found.aggregate,
        "point": found.scope.point,
        "points": len(found.values),
        "known": sum(value is not None for _, value in found.values),
    }


def _difference(measured: Answer, wanted: Expected) -> dict[str, float | str | None] | None:
    """Measured minus published, in ``unit`` and as a fraction; of a range, its nearer end."""
    if isinstance(measured, bool):
        return None
    value, nearest = float(measured), wanted.value
    if nearest is None:
        ends = [end for end in (wanted.low, wanted.high) if end is not None]
        inside = len(ends) == 2 and ends[0] <= value <= ends[1]
        nearest = value if inside else min(ends, key=lambda end: abs(end - value), default=None)
    if nearest is None:
        return None
    relative = (value - nearest) / abs(nearest) if nearest else None
    return {"absolute": value - nearest, "relative": relative, "unit": wanted.unit}


def _evidence(found: Decided) -> list[ClaimCited]:
    """The measured value first, with its formula, then every input that it was computed from."""
    text = " ".join(found.decide.value.split())
    unknown = ValueOrigin(None, found.scope.point, None, "", None)
    inputs = []
    for name in names(text):
        if name not in ("published", "ceiling"):
            at = found.scope.origin(name) or unknown
            value = found.scope[name]
            metric = at.metric or name
            inputs.append(ClaimCited(**vars(at) | {"metric": metric}, name=name, value=value))
    reports = list(dict.fromkeys(row.report for row in inputs if row.report))
    if found.decide.over == "source":
        reports = ["source_index.json"]
    decides = ClaimCited(
        name="value", report=", ".join(reports) or None, point=found.scope.point, kernel=None,
        metric="the claim's value", value=found.measured, formula=text,
    )  # fmt: skip
    return [decides, *inputs]
