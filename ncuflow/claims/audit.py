"""Claims: each statement of ``claims/*.yaml`` gets a verdict from the measurements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import ClassVar, Literal

from pydantic import ConfigDict

from ncuflow import answer, expression
from ncuflow.claims.decision import (
    CONFIRMED,
    DIFFERS,
    NOT_TESTABLE,
    REFUTED,
    VERDICTS,
    ClaimCited,
    Decided,
    Record,
    allowed,
    amount,
    decide_over,
    same_gpu,
)
from ncuflow.claims.evidence import ClaimEvidence, Unanswered, select
from ncuflow.claims.files import Claim
from ncuflow.expression import ExpressionError, evaluate, names, placeholders
from ncuflow.findings.join import architecture
from ncuflow.findings.scope import Scope
from ncuflow.io import BadInput, JsonObject
from ncuflow.model import Provenance

UNDECIDABLE = "No measurement of this pipeline decides it"


def judge(claim: Claim, evidence: ClaimEvidence) -> Record:
    """The record of one claim.

    Raises BadInput naming file and claim for an expression or a format that is wrong.
    """
    provenance = evidence.provenance(claim.applies.target)
    try:
        found = _answer(claim, evidence, provenance)
        if isinstance(found, str):
            return Record(claim, NOT_TESTABLE, f"{found[:1].upper()}{found[1:]}.", None, provenance)
        verdict, why = verdict_of(found, claim, provenance)
        reasons = _reasons(claim, found, verdict, evidence)
    except ExpressionError as error:
        raise BadInput(claim.path, f"claim {claim.id!r}: {error}") from None
    sentences = [s for s in (why, reasons) if s] or [_plain(found)]
    return Record(claim, verdict, " ".join(sentences), found, provenance)


def _answer(claim: Claim, evidence: ClaimEvidence, provenance: Provenance | None) -> Decided | str:
    """The first decision that this evidence can make, or why none of them can be made."""
    only = claim.applies.architecture
    if only and provenance and architecture(provenance) != only:
        return f"stated for {only}; this evidence is from {provenance['gpu']}"
    lacking = []
    for decide in claim.decide:
        try:
            scopes = select(claim, decide, evidence)
            return decide_over(claim, decide, scopes, evidence.functions(decide.over))
        except Unanswered as why:
            lacking.append(str(why))
    return "; ".join(dict.fromkeys(lacking)) or UNDECIDABLE


def verdict_of(found: Decided, claim: Claim, provenance: Provenance | None) -> tuple[str, str]:
    """(verdict, why it is not simply confirmed or refuted, '' otherwise).

    A result that holds confirms. One that does not hold refutes where the claim is about the same
    GPU, or about no GPU, or says itself why the GPU does not matter (``independent``). Otherwise
    another architecture's measurement cannot refute it: the two differ. Of another library's kernel, and
    of a GPU that nobody names, no measurement of FlashInfer says anything.
    """
    if lacking := _incomparable(claim, provenance):
        return NOT_TESTABLE, lacking
    if found.within_noise:
        return NOT_TESTABLE, _inside_noise(found)
    if found.holds:
        return CONFIRMED, ""
    gpu, stated_for = claim.published.gpu, claim.published.architecture
    measured_on = architecture(provenance or {})
    if claim.independent or not (gpu or stated_for) or same_gpu(gpu, provenance):
        return REFUTED, ""
    if stated_for and measured_on and stated_for != measured_on:
        return DIFFERS, ""
    return NOT_TESTABLE, (
        f"It differs, but the figure is of another GPU ({gpu or stated_for}): "
        "only that GPU could refute it."
    )


def _incomparable(claim: Claim, provenance: Provenance | None) -> str:
    """Why no measurement of FlashInfer on a GPU confirms or refutes the figure; '' where one does."""
    published = claim.published
    if published.library:
        return (
            f"The figure is of a kernel of {published.library}: FlashInfer's in the same setup stands beside it "
            "and says nothing about it."
        )
    unnamed = published.gpu and not published.architecture
    if unnamed and not claim.independent and not same_gpu(published.gpu, provenance):
        return "The source does not name its GPU, and a rate says nothing about another one's."
    return ""


def _inside_noise(found: Decided) -> str:
    if found.margin is None or found.noise is None:
        return "Too close to call: what the measurement is uncertain by turns the answer."
    unit = found.expected.unit
    distance, floor = (amount(size, unit) for size in (found.margin, found.noise))
    return f"Too close to call: {distance} from the limit, and the measurement is uncertain by {floor}."


def _reasons(claim: Claim, found: Decided, verdict: str, evidence: ClaimEvidence) -> str:
    """The sentences whose ``when`` is true at the deciding point, their placeholders filled in."""
    functions = evidence.functions(found.decide.over)
    wanted = found.expected
    scope = found.scope.with_values(
        measured=found.measured,
        expected=wanted.value,
        low=wanted.low,
        high=wanted.high,
        verdict=verdict,
    )
    said = [
        expression.filled_in(
            reason.say, _forgiving(scope, claim, *placeholders(reason.say)), functions
        )
        for reason in claim.reasons
        if evaluate(reason.when, _forgiving(scope, claim, reason.when), functions) is True
    ]
    return " ".join(text.strip() for text in said if text)


def _forgiving(scope: Scope, claim: Claim, *texts: str) -> Scope:
    """Of a claim with several decisions a reason may name what only another one has: it is unknown."""
    if len(claim.decide) == 1:
        return scope
    return scope.with_values(**{name: scope.get(name) for text in texts for name in names(text)})


def _plain(found: Decided) -> str:
    """What was compared with what, for a claim that gives no reason of its own."""
    if isinstance(found.measured, bool):
        where = f" at {found.scope.point}" if found.scope.point else ""
        return f"That {'holds' if found.measured else 'does not hold'}{where}."
    least, most = allowed(found.decide, found.expected)
    unit = found.expected.unit
    if least == most:
        return (
            "That is exactly it." if found.holds else f"It would have to be {amount(least, unit)}."
        )
    ends = [
        f"{word} {amount(end, unit)}"
        for word, end in (("at least", least), ("at most", most))
        if math.isfinite(end)
    ]
    return f"The claim allows {' and '.join(ends)}."


def summary(records: Sequence[Record], evidence: ClaimEvidence) -> JsonObject:
    """The counts by verdict, and the noise floors by target."""
    counts = Counter(record.verdict for record in records)
    return {
        "schema": 1,
        "provenance": evidence.provenance(""),
        "summary": {verdict: counts[verdict] for verdict in VERDICTS} | {"total": len(records)},
        "noise": {name: found.get("noise") or {} for name, found in evidence.results.items()},
    }


class JudgedClaim(answer.AnswerPart):
    """A claim with its verdict, and with what else claims.json has of it."""

    model_config = ConfigDict(extra="allow")

    id: str
    """The id of the claim."""
    statement: str
    """The sentence that is claimed."""
    target: str
    """The kernel target that the claim is about."""
    verdict: str
    """One of: confirmed, refuted, differs by architecture, not testable here."""
    reason: str
    """The reason for the verdict, in sentences."""
    measured: JsonObject | None
    """The value that decides, with its unit and point; null where no decision could be made."""
    unit: str
    """The unit of the values that are compared."""
    evidence: list[ClaimCited]
    """The values that the verdict rests on."""
    gpu: str | None
    """The GPU that these values were measured on."""
    tier: answer.Tier | None
    """The tier of these values."""


class ClaimsAnswer(answer.Answer):
    """Claims judged by what was measured."""

    ROWS: ClassVar[tuple[str, ...]] = ("claims",)
    command: Literal["claims"] = "claims"
    """The command that wrote this JSON."""
    summary: dict[str, int]
    """How many claims have each verdict, and how many there are in total."""
    claims: list[JudgedClaim]
    """Each claim with its verdict."""
