"""The record of a claim: its verdict with everything that the verdict rests on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ncuflow.claims.decision import Answer, Expected, Outcome, expected
from ncuflow.claims.expression import names
from ncuflow.claims.model import Claim
from ncuflow.claims.scope import Origin
from ncuflow.findings.join import architecture
from ncuflow.model import Provenance

CONFIRMED, REFUTED = "confirmed", "refuted"
DIFFERS, NOT_TESTABLE = "differs by architecture", "not testable here"
VERDICTS = (CONFIRMED, REFUTED, DIFFERS, NOT_TESTABLE)


@dataclass(frozen=True)
class Measured:
    """The value that decides: how many points it was chosen from, and how many had a value."""

    value: Answer
    unit: str
    aggregate: str
    point: str | None
    points: int
    known: int


@dataclass(frozen=True)
class Difference:
    """Measured minus published, in ``unit`` and as a fraction; of a range, its nearer end."""

    absolute: float
    relative: float | None
    unit: str


@dataclass(frozen=True)
class Cited:
    """A value of the evidence under the name that the claim uses, and where it was read."""

    name: str
    report: str | None
    point: str | None
    kernel: str | None
    metric: str
    value: Any
    formula: str | None


@dataclass(frozen=True)
class PointValue:
    """The value of one selected point; None where it is unknown."""

    point: str | None
    value: Answer | None


@dataclass(frozen=True)
class Record:
    """A judged claim. What only a decision that could be made has is None without one.

    published: the figure as stated, and as it is compared (``compared``); another_gpu: the GPU of
    the figure where it is not the one that was measured; evidence: the measured value first, then
    every input that it was computed from.
    """

    id: str
    file: str
    statement: str
    source: dict[str, str]
    target: str
    verdict: str
    another_gpu: str | None
    published: dict[str, Any]
    measured: Measured | None
    unit: str
    difference: Difference | None
    tolerance: dict[str, float] | None
    compare: str | None
    limit: float | None
    over: str | None
    evidence: list[Cited]
    points: list[PointValue]
    reason: str
    independent: str | None
    needs: str | None
    gpu: str | None
    architecture: str | None
    tier: str | None
    flashinfer: str | None
    noise_floor: float | None


def record(
    claim: Claim, provenance: Provenance | None, verdict: str, found: Outcome | None, reason: str
) -> Record:
    """``found``: None where no decision could be made."""
    here: Mapping[str, Any] = provenance or {}
    wanted = found.expected if found else expected(claim, None)
    decide = found.decide if found else None
    stated = claim.published.gpu
    elsewhere = decide and decide.over in ("points", "jit") and not same_gpu(stated, provenance)
    given: dict[str, float] | None = None
    if decide and decide.tolerance:
        given = decide.tolerance.model_dump(exclude_none=True)
    return Record(
        id=claim.id,
        file=claim.path.name,
        statement=" ".join(claim.statement.split()),
        source=claim.source.model_dump(exclude_none=True),
        target=claim.applies.target,
        verdict=verdict,
        another_gpu=(stated or None) if elsewhere else None,
        published=claim.published.model_dump() | {"compared": vars(wanted)},
        measured=_measured(found) if found else None,
        unit=wanted.unit,
        difference=_difference(found.measured, wanted) if found else None,
        tolerance=given,
        compare=decide.compare if decide else None,
        limit=decide.limit if decide else None,
        over=decide.over if decide else None,
        evidence=_evidence(found) if found else [],
        points=[PointValue(*pair) for pair in found.values] if found else [],
        reason=reason,
        independent=claim.independent,
        needs=claim.needs if verdict == NOT_TESTABLE else None,
        gpu=here.get("gpu"),
        architecture=architecture(here),
        tier=here.get("tier"),
        flashinfer=here.get("flashinfer"),
        noise_floor=found.noise if found else None,
    )


def same_gpu(stated: str | None, provenance: Provenance | None) -> bool:
    """Whether both name the same model."""
    models = [_model(stated), _model(provenance["gpu"] if provenance else None)]
    return None not in models and models[0] == models[1]


def _model(gpu: str | None) -> str | None:
    found = re.search(r"RTX \d+|\b(?!GB)[A-Z]{1,3}\d{2,3}[A-Z]?\b", gpu or "")
    return found[0] if found else None


def _measured(found: Outcome) -> Measured:
    return Measured(
        value=found.measured,
        unit="" if isinstance(found.measured, bool) else found.expected.unit,
        aggregate=found.decide.aggregate,
        point=found.scope.point,
        points=len(found.values),
        known=sum(value is not None for _, value in found.values),
    )


def _difference(measured: Answer, wanted: Expected) -> Difference | None:
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
    return Difference(value - nearest, relative, wanted.unit)


def _evidence(found: Outcome) -> list[Cited]:
    """The measured value first, with its formula, then every input that it was computed from."""
    text = " ".join(found.decide.value.split())
    unknown = Origin(None, found.scope.point, None, "", None)
    inputs = []
    for name in names(text):
        if name not in ("published", "ceiling"):
            at = found.scope.origin(name) or unknown
            value = found.scope[name]
            metric = at.metric or name
            inputs.append(Cited(name, at.report, at.point, at.kernel, metric, value, at.formula))
    reports = list(dict.fromkeys(row.report for row in inputs if row.report))
    if found.decide.over == "source":
        reports = ["source_index.json"]
    cited = ", ".join(reports) or None
    what = "the claim's value"
    return [Cited("value", cited, found.scope.point, None, what, found.measured, text), *inputs]
