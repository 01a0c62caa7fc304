"""The record of a claim: its verdict with everything that the verdict rests on."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ncuflow.answer import AnswerPart
from ncuflow.claims.decision import Answer, Decided, Expected, expected
from ncuflow.claims.model import Claim
from ncuflow.expression import names
from ncuflow.findings.join import architecture
from ncuflow.findings.scope import ValueOrigin
from ncuflow.model import Provenance

CONFIRMED, REFUTED = "confirmed", "refuted"
DIFFERS, NOT_TESTABLE = "differs by architecture", "not testable here"
VERDICTS = (CONFIRMED, REFUTED, DIFFERS, NOT_TESTABLE)


class ClaimCited(AnswerPart):
    """A value that a verdict rests on, and where it was read."""

    name: str
    """as the claim calls it"""
    report: str | None
    """the report or file of evidence"""
    point: str | None
    """id of the point; with ``name`` what `ncuflow trace` takes"""
    kernel: str | None
    """of a counter: its kernel"""
    metric: str
    """the counter or column"""
    value: Any
    """in the unit of that column; null where it is not known"""
    formula: str | None
    """what it is computed as"""


@dataclass(frozen=True)
class Record:
    """A judged claim. found: None where no decision could be made; reason: why, in sentences."""

    claim: Claim
    verdict: str
    reason: str
    found: Decided | None
    provenance: Provenance | None

    def as_json(self) -> dict[str, Any]:
        """An entry of claims.json; what only a decision has is null without one.

        published: the figure as stated, and as it is compared (``compared``); another_gpu: the GPU
        of the figure where it is not the one that was measured; measured: the value that decides,
        by which ``aggregate`` of how many ``points`` it was chosen, and how many of them have a
        value (``known``).
        """
        claim, found = self.claim, self.found
        here: dict[str, Any] = {**(self.provenance or {})}
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
