"""Claims: each statement of ``claims/*.yaml`` gets a verdict from the measurements; where it needs a time and none was
measured, predicted times say what they can.

    ncuflow claims-predicted --results DIR --predictions predictions.json --claims claims --out FILE.json

DIR has the results of a GPU that was not there, and claims.json. Of each claim that nothing there decides and
that is of this architecture or of none, FILE.json says what the whole interval of the predictions says:

    predicted to hold        at every time of the intervals
    predicted not to hold    at none
    open                     the interval lies on both sides, or what the claim needs is no time

It is a word of its own: no prediction confirms or refutes. A figure that was published of this architecture is a
measurement of somebody's, which no prediction overrules: it stays open, and FILE.json has it, to be held against
the interval. What somebody expected without measuring it is predicted to hold or not like any other claim.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median, median_low
from typing import Any, ClassVar, Literal, NamedTuple, cast

from pydantic import ConfigDict

from ncuflow import answer, expression
from ncuflow.claims import decision, files
from ncuflow.claims.evidence import ClaimEvidence, Unanswered, select
from ncuflow.claims.files import Claim, Decision
from ncuflow.expression import ExpressionError, evaluate, names, placeholders
from ncuflow.findings import stored
from ncuflow.findings.columns import BY_NAME
from ncuflow.findings.join import architecture
from ncuflow.findings.scope import Scope
from ncuflow.io import BadInput, JsonObject, read_json, write_json
from ncuflow.model import Provenance, Results

UNDECIDABLE = "No measurement of this pipeline decides it"


def judge(claim: Claim, evidence: ClaimEvidence) -> decision.Record:
    """The record of one claim.

    Raises BadInput naming file and claim for an expression or a format that is wrong.
    """
    provenance = evidence.provenance(claim.applies.target)
    try:
        found = _answer(claim, evidence, provenance)
        if isinstance(found, str):
            return decision.Record(
                claim, decision.NOT_TESTABLE, f"{found[:1].upper()}{found[1:]}.", None, provenance
            )
        verdict, why = verdict_of(found, claim, provenance)
        reasons = _reasons(claim, found, verdict, evidence)
    except ExpressionError as error:
        raise BadInput(claim.path, f"claim {claim.id!r}: {error}") from None
    sentences = [s for s in (why, reasons) if s] or [_plain(found)]
    return decision.Record(claim, verdict, " ".join(sentences), found, provenance)


def _answer(
    claim: Claim, evidence: ClaimEvidence, provenance: Provenance | None
) -> decision.Decided | str:
    """The first decision that this evidence can make, or why none of them can be made."""
    only = claim.applies.architecture
    if only and provenance and architecture(provenance) != only:
        return f"stated for {only}; this evidence is from {provenance['gpu']}"
    lacking = []
    for decide in claim.decide:
        try:
            scopes = select(claim, decide, evidence)
            return decision.decide_over(claim, decide, scopes, evidence.functions(decide.over))
        except Unanswered as why:
            lacking.append(str(why))
    return "; ".join(dict.fromkeys(lacking)) or UNDECIDABLE


def verdict_of(
    found: decision.Decided, claim: Claim, provenance: Provenance | None
) -> tuple[str, str]:
    """(verdict, why it is not simply confirmed or refuted, '' otherwise).

    A result that holds confirms. One that does not hold refutes where the claim is about the same
    GPU, or about no GPU, or says itself why the GPU does not matter (``independent``). Otherwise
    another architecture's measurement cannot refute it: the two differ. Of another library's kernel, and
    of a GPU that nobody names, no measurement of FlashInfer says anything.
    """
    if lacking := _incomparable(claim, provenance):
        return decision.NOT_TESTABLE, lacking
    if found.within_noise:
        return decision.NOT_TESTABLE, _inside_noise(found)
    if found.holds:
        return decision.CONFIRMED, ""
    gpu, stated_for = claim.published.gpu, claim.published.architecture
    measured_on = architecture(provenance or {})
    if claim.independent or not (gpu or stated_for) or decision.same_gpu(gpu, provenance):
        return decision.REFUTED, ""
    if stated_for and measured_on and stated_for != measured_on:
        return decision.DIFFERS, ""
    return decision.NOT_TESTABLE, (
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
    if unnamed and not claim.independent and not decision.same_gpu(published.gpu, provenance):
        return "The source does not name its GPU, and a rate says nothing about another one's."
    return ""


def _inside_noise(found: decision.Decided) -> str:
    if found.margin is None or found.noise is None:
        return "Too close to call: what the measurement is uncertain by turns the answer."
    unit = found.expected.unit
    distance, floor = (decision.amount(size, unit) for size in (found.margin, found.noise))
    return f"Too close to call: {distance} from the limit, and the measurement is uncertain by {floor}."


def _reasons(claim: Claim, found: decision.Decided, verdict: str, evidence: ClaimEvidence) -> str:
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


def _plain(found: decision.Decided) -> str:
    """What was compared with what, for a claim that gives no reason of its own."""
    if isinstance(found.measured, bool):
        where = f" at {found.scope.point}" if found.scope.point else ""
        return f"That {'holds' if found.measured else 'does not hold'}{where}."
    least, most = decision.allowed(found.decide, found.expected)
    unit = found.expected.unit
    if least == most:
        return (
            "That is exactly it."
            if found.holds
            else f"It would have to be {decision.amount(least, unit)}."
        )
    ends = [
        f"{word} {decision.amount(end, unit)}"
        for word, end in (("at least", least), ("at most", most))
        if math.isfinite(end)
    ]
    return f"The claim allows {' and '.join(ends)}."


def summary(records: Sequence[decision.Record], evidence: ClaimEvidence) -> JsonObject:
    """The counts by verdict, and the noise floors by target."""
    counts = Counter(record.verdict for record in records)
    return {
        "schema": 1,
        "provenance": evidence.provenance(""),
        "summary": {verdict: counts[verdict] for verdict in decision.VERDICTS}
        | {"total": len(records)},
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
    evidence: list[decision.ClaimCited]
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


HOLDS, FAILS, OPEN = "predicted to hold", "predicted not to hold", "open"
ENDS = ("us", "low", "high")  # of a prediction: the time itself, and its interval
RATES = ("tflops", "gbs", "gbs_fraction_datasheet", "tflops_fraction_datasheet")
Times = Mapping[str, Mapping[str, float]]  # point -> ends
Sides = Mapping[str, ClaimEvidence]  # end -> the results with such times


class PredictedRange(NamedTuple):
    """What a claim's value may be at a point: as predicted, lowest and highest."""

    value: decision.Answer
    low: decision.Answer
    high: decision.Answer
    point: str | None


def at(results: Results, times: Times, end: str) -> Results:
    """Results with the predicted times of one end where a measured one would stand, and the rates that follow."""
    points = []
    for point in results["points"]:
        row = dict(point["measurement"])
        if row["time_cold_us"] is None and point["point"] in times:
            row["time_cold_us"] = times[point["point"]][end]
            for name in RATES:
                over, under = (row[term] for term in BY_NAME[name].terms)
                row[name] = None if None in (over, under) else over / under * BY_NAME[name].scale
        points.append({**point, "measurement": row})
    return cast(Results, {**results, "points": points})


def predicted_verdict(claim: Claim, sides: Sides) -> JsonObject | None:
    """The first decision that predictions can answer; None where none can."""
    for decide in claim.decide:
        if decide.over == "points":
            try:
                ranges = list(_ranges(claim, decide, sides))
            except Unanswered:
                continue
            if any(ranges):
                return _judged(claim, decide, ranges)
    return None


def _judged(claim: Claim, decide: Decision, ranges: Sequence[PredictedRange | None]) -> JsonObject:
    wanted = decision.expected(claim, decide)
    margin = decision.margins(decide, wanted)
    known = [r for r in ranges if r is not None]
    unknown = len(known) < len(ranges)
    if decide.aggregate in ("max", "min", "median"):
        known = [_aggregated(decide.aggregate, known)]
    middle = [v for v in (wanted.value, wanted.low, wanted.high) if v is not None]
    worst = {r: min(margin(r.low), margin(r.high)) for r in known}
    best = {r: _best(margin, r, sum(middle) / len(middle) if middle else 0.0) for r in known}
    some = decide.aggregate == "any"
    holds = any(w >= 0 for w in worst.values()) if some else min(worst.values()) >= 0
    fails = max(best.values()) < 0 if some else any(b < 0 for b in best.values())
    if unknown:  # it could be the one that turns the answer
        holds, fails = holds and some, fails and decide.aggregate == "all"
    shown = (max if some else min)(known, key=best.__getitem__ if fails else worst.__getitem__)
    quoted = decide.compare == "within" and claim.published.gpu is not None
    measured = quoted and not claim.published.expected
    return {
        "verdict": OPEN if measured else HOLDS if holds else FAILS if fails else OPEN,
        "figure": wanted.value if quoted else None,
        "expected": claim.published.expected,
        "unit": "" if isinstance(shown.value, bool) else wanted.unit,
        "points": len(ranges),
        **shown._asdict(),
    }


def _ranges(claim: Claim, decide: Decision, sides: Sides) -> Iterator[PredictedRange | None]:
    """What the value may be at each point; None where something else than a time is unknown."""
    given = {"published": claim.published.value, "ceiling": claim.published.ceiling}
    corners = []
    for corner in _corners(decide, sides):
        scopes = select(claim, decide, next(iter(corner.values())), corner)
        corners.append([scope.with_values(**given) for scope in scopes])
    yield from (_range(decide, scopes) for scopes in zip(*corners, strict=True))


def _corners(decide: Decision, sides: Sides) -> Iterator[Mapping[str, ClaimEvidence]]:
    """As predicted, then every combination of ends: of the points, or of each sample against the others."""
    for end in ENDS:
        yield dict.fromkeys(decide.samples or [""], sides[end])
    for one in decide.samples or {}:
        for mine, theirs in (("low", "high"), ("high", "low")):
            yield {name: sides[mine if name == one else theirs] for name in decide.samples or {}}


def _range(decide: Decision, scopes: Sequence[Scope]) -> PredictedRange | None:
    values = [decision.value_at(decide.value, scope, {}) for scope in scopes]
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return None
    return PredictedRange(known[0], min(known), max(known), scopes[0].point)


def _aggregated(kind: str, ranges: Sequence[PredictedRange]) -> PredictedRange:
    """The range of a maximum, a minimum or a median, at the point that has it as predicted."""
    one: Callable[..., Any] = median_low if kind == "median" else max if kind == "max" else min
    value, low, high = (one(ends) for ends in zip(*(r[:3] for r in ranges), strict=True))
    return PredictedRange(value, low, high, next(r.point for r in ranges if r.value == value))


def _best(margin: Callable[[decision.Answer], float], r: PredictedRange, middle: float) -> float:
    """The largest margin inside a range: at an end, or at what is allowed in between."""
    inside = min(max(middle, float(r.low)), float(r.high))
    return max(margin(v) for v in (r.low, r.high, *([] if isinstance(r.low, bool) else [inside])))


def of_another_gpu(published: Mapping[str, Any], here: str | None) -> bool:
    """Whether a figure is of a GPU of another architecture, or of one that its source does not name."""
    return bool(published["gpu"]) and published["architecture"] != here


# A published figure nearer to an end of the interval than this part of its width (as logarithms) lies on its edge.
EDGE = 0.03
INSIDE, ON_EDGE, OUTSIDE = "yes", "on its edge", "no"


class Bias(NamedTuple):
    """How often a target's predicted rates are above the published ones, and below, and by what factor in the median."""

    target: str
    above: int
    below: int
    median: float


def interval_side(found: Mapping[str, Any]) -> str:
    """Where the published figure of an answer lies: inside its interval, on an edge of it, or outside."""
    low, figure, high = (found[key] for key in ("low", "figure", "high"))
    near = EDGE * math.log(high / low) if low > 0 else 0.0
    if any(end > 0 and abs(math.log(figure / end)) <= near for end in (low, high)):
        return ON_EDGE
    return INSIDE if low < figure < high else OUTSIDE


def once(records: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Of records with a figure each one for a source and a point: what a source derives from one measurement is one."""
    first: dict[tuple[str, str | None], Mapping[str, Any]] = {}
    for record in records:
        first.setdefault((record["source"]["document"], record["predicted"]["point"]), record)
    return [*first.values()]


def biases(records: Sequence[Mapping[str, Any]]) -> list[Bias]:
    """Of each target, from records with a predicted and a published figure."""
    ratios: dict[str, list[float]] = {}
    for record in records:
        found = record["predicted"]
        target = found["point"].partition("/")[0]
        ratios.setdefault(target, []).append(found["value"] / found["figure"])
    return [
        Bias(target, sum(r > 1 for r in of), sum(r < 1 for r in of), median(of))
        for target, of in sorted(ratios.items())
    ]


def command(*, results: Path, predictions: Path, claims: Path, out: Path) -> None:
    """What predictions say of claims.

    Args:
        results: of tier S, with claims.json
        predictions: of `ncuflow static predict`
        claims: folder of claim files
    """
    found = stored.folder(results)
    times = {point["point"]: point for point in read_json(predictions)["points"]}
    sides = {
        end: ClaimEvidence({name: at(one, times, end) for name, one in found.items()})
        for end in ENDS
    }
    here = architecture(next(iter(found.values()))["provenance"])
    records = {record["id"]: record for record in read_json(results / "claims.json")}
    judged = {}
    for claim in files.load(claims):
        record = records[claim.id]
        if record["verdict"] == decision.NOT_TESTABLE and not of_another_gpu(
            record["published"], here
        ):
            answer = predicted_verdict(claim, sides)
            if answer:
                judged[claim.id] = answer
    write_json(out, judged)
