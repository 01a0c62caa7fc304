"""Claims: each statement of ``claims/*.yaml`` gets a verdict from the measurements.

    python -m ncuflow.claims.audit --results DIR --claims claims --out FILE.json [--targets NAME…]
        [--source-index FILE]

FILE.json is the list of records; FILE_summary.json beside it has the counts and the noise floors.

Verdicts: confirmed, refuted, differs by architecture, not testable here. docs/claims.md has the
rules.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path
from typing import Any

from ncuflow.claims import files
from ncuflow.claims.decision import Expected, Outcome, decide_over, expected
from ncuflow.claims.evidence import Evidence, Unanswered, load, select
from ncuflow.claims.expression import ExpressionError, evaluate, names
from ncuflow.claims.scope import Origin, Scope
from ncuflow.findings.join import architecture
from ncuflow.io import BadInput, main_guard, write_json

Row = dict[str, Any]
CONFIRMED, REFUTED = "confirmed", "refuted"
DIFFERS, NOT_TESTABLE = "differs by architecture", "not testable here"
VERDICTS = (CONFIRMED, REFUTED, DIFFERS, NOT_TESTABLE)
_PLACEHOLDER = re.compile(r"\{([^{}:]+)(?::([^{}]*))?\}")


def judge(claim: Row, evidence: Evidence) -> Row:
    """The record of one claim.

    Raises BadInput naming file and claim for an expression or a format that is wrong.
    """
    try:
        return _judged(claim, evidence)
    except ExpressionError as error:
        raise BadInput(claim["path"], f"claim {claim['id']!r}: {error}") from None


def _judged(claim: Row, evidence: Evidence) -> Row:
    provenance = evidence.provenance(claim["applies"]["target"])
    found = _answer(claim, evidence, provenance)
    if isinstance(found, str):
        return _record(claim, provenance, NOT_TESTABLE, None, _needs(claim, found))
    verdict, why = verdict_of(found, claim, provenance)
    reason = _reasons(claim, found, verdict, evidence)
    sentences = [s for s in (why, reason) if s] or [_plain(found)]
    return _record(claim, provenance, verdict, found, " ".join(sentences))


def _answer(claim: Row, evidence: Evidence, provenance: Row | None) -> Outcome | str:
    """The first decision that this evidence can make, or why none of them can be made."""
    only = claim["applies"].get("architecture")
    if only and provenance and architecture(provenance) != only:
        return f"stated for {only}; this evidence is from {provenance['gpu']}"
    lacking = []
    for decide in claim["decide"]:
        try:
            scopes = select(claim, decide, evidence)
            return decide_over(claim, decide, scopes, _functions(decide, evidence))
        except Unanswered as why:
            lacking.append(str(why))
    return "; ".join(dict.fromkeys(lacking)) or "no measurement of this pipeline decides it"


def _functions(decide: Row, evidence: Evidence) -> Row:
    over_source = decide.get("over") == "source" and evidence.source is not None
    return evidence.source.functions if over_source and evidence.source else {}


def verdict_of(found: Outcome, claim: Row, provenance: Row | None) -> tuple[str, str]:
    """(verdict, why it is not simply confirmed or refuted, '' otherwise).

    A result that holds confirms. One that does not hold refutes where the claim is about the same
    GPU, or about no GPU, or says itself why the GPU does not matter (``independent``). Otherwise
    another architecture's measurement cannot refute it: the two differ.
    """
    if found.within_noise:
        return NOT_TESTABLE, _inside_noise(found)
    if found.holds:
        return CONFIRMED, ""
    published = claim["published"]
    stated_for, measured_on = published.get("architecture"), architecture(provenance or {})
    if claim.get("independent"):
        return REFUTED, ""
    if not (published.get("gpu") or stated_for) or _same_gpu(published.get("gpu"), provenance):
        return REFUTED, ""
    if stated_for and measured_on and stated_for != measured_on:
        return DIFFERS, ""
    return NOT_TESTABLE, (
        f"It differs, but the figure is of another GPU ({published.get('gpu') or stated_for}): "
        "only that GPU could refute it."
    )


def _inside_noise(found: Outcome) -> str:
    if found.margin is None or found.noise is None:
        return "Inside the noise floor: an input that is moved by its floor turns the answer."
    unit = found.expected.unit
    distance, floor = (f"{size:.3g} {unit}".strip() for size in (found.margin, found.noise))
    return f"The distance to the limit ({distance}) is smaller than the noise floor ({floor})."


def _same_gpu(stated: str | None, provenance: Row | None) -> bool:
    models = [_model(stated), _model((provenance or {}).get("gpu"))]
    return None not in models and models[0] == models[1]


def _model(gpu: str | None) -> str | None:
    found = re.search(r"RTX \d+|\b(?!GB)[A-Z]{1,3}\d{2,3}[A-Z]?\b", gpu or "")
    return found[0] if found else None


def _needs(claim: Row, lacking: str) -> str:
    """A sentence each for what is missing and what it would take."""
    needs = f" Needs: {claim['needs'].strip()}" if claim.get("needs") else ""
    return f"{lacking[:1].upper()}{lacking[1:]}.{needs}"


def _reasons(claim: Row, found: Outcome, verdict: str, evidence: Evidence) -> str:
    """The sentences whose ``when`` is true at the deciding point, their placeholders filled in."""
    functions = _functions(found.decide, evidence)
    wanted = found.expected
    scope = found.scope.with_values(
        measured=found.measured,
        expected=wanted.value,
        low=wanted.low,
        high=wanted.high,
        verdict=verdict,
    )
    said = [
        _filled(reason["say"], scope, functions, claim)
        for reason in claim.get("reasons", ())
        if evaluate(str(reason["when"]), _forgiving(reason["when"], scope, claim), functions)
        is True
    ]
    return " ".join(text.strip() for text in said if text)


def _forgiving(text: Any, scope: Scope, claim: Row) -> Scope:
    """Of a claim with several decisions a reason may name what only another one has:

    here it is unknown.
    """
    if len(claim["decide"]) == 1:
        return scope
    return scope.with_values(**{name: scope.get(name) for name in names(str(text))})


def _filled(text: str, scope: Scope, functions: Row, claim: Row) -> str | None:
    """``{expression:format}`` replaced by its value; None where a value is unknown."""
    parts: list[str] = []
    end = 0
    for match in _PLACEHOLDER.finditer(text):
        value = evaluate(match[1], _forgiving(match[1], scope, claim), functions)
        if value is None:
            return None
        parts += [text[end : match.start()], _formatted(value, match, claim)]
        end = match.end()
    return "".join([*parts, text[end:]])


def _formatted(value: Any, placeholder: re.Match[str], claim: Row) -> str:
    try:
        return format(value, placeholder[2] or "")
    except (TypeError, ValueError) as error:
        what = f"claim {claim['id']!r}: {placeholder[0]}: {error}"
        raise BadInput(claim["path"], what) from None


def _plain(found: Outcome) -> str:
    if isinstance(found.measured, bool):
        where = f" at {found.scope.point}" if found.scope.point else ""
        return f"{found.decide['value']} is {str(found.measured).lower()}{where}."
    inside = "within" if found.holds else "outside"
    return f"Measured {found.measured:.4g} {found.expected.unit}: {inside} what the claim allows."


def _record(
    claim: Row, provenance: Row | None, verdict: str, found: Outcome | None, reason: str
) -> Row:
    here = provenance or {}
    published = _published(claim, found)
    return {
        "id": claim["id"],
        "file": claim["file"],
        "statement": " ".join(claim["statement"].split()),
        "source": claim["source"],
        "target": claim["applies"]["target"],
        "verdict": verdict,
        "another_gpu": _another_gpu(claim, found, provenance),
        "published": published,
        "measured": _measured(found),
        "unit": (published["compared"] or published)["unit"],
        "difference": _difference(found),
        "tolerance": found.decide.get("tolerance") if found else None,
        "compare": found.decide["compare"] if found else None,
        "limit": found.decide.get("limit") if found else None,
        "over": found.decide.get("over", "points") if found else None,
        "evidence": _evidence(found),
        "points": [{"point": point, "value": value} for point, value in found.values]
        if found
        else [],
        "reason": reason,
        "independent": claim.get("independent"),
        "needs": claim.get("needs") if verdict == NOT_TESTABLE else None,
        "gpu": here.get("gpu"),
        "architecture": architecture(here),
        "tier": here.get("tier"),
        "flashinfer": here.get("flashinfer"),
        "noise_floor": found.noise if found else None,
    }


def _another_gpu(claim: Row, found: Outcome | None, provenance: Row | None) -> str | None:
    """The GPU of the published figure, where it is not the one that was measured."""
    stated: str | None = claim["published"].get("gpu")
    on_gpu = found is not None and found.decide.get("over", "points") in ("points", "jit")
    return stated if on_gpu and stated and not _same_gpu(stated, provenance) else None


def _published(claim: Row, found: Outcome | None) -> Row:
    """The published figure as stated, and as it is compared where that is another unit."""
    keys = ("value", "range", "unit", "convention", "gpu", "architecture", "ceiling", "flashinfer")
    out = {key: claim["published"].get(key) for key in keys}
    wanted = found.expected if found else expected(claim, {})
    return out | {"compared": _row(wanted)}


def _row(wanted: Expected) -> Row:
    return {"value": wanted.value, "low": wanted.low, "high": wanted.high, "unit": wanted.unit}


def _measured(found: Outcome | None) -> Row | None:
    if found is None:
        return None
    return {
        "value": found.measured,
        "unit": "" if isinstance(found.measured, bool) else found.expected.unit,
        "aggregate": found.decide.get("aggregate", "all"),
        "point": found.scope.point,
        "points": len(found.values),
        "known": sum(value is not None for _, value in found.values),
    }


def _difference(found: Outcome | None) -> Row | None:
    """Measured minus published; for a range, minus its nearer end (0 inside)."""
    if found is None or isinstance(found.measured, bool):
        return None
    wanted, value = found.expected, float(found.measured)
    nearest = wanted.value
    if nearest is None:
        ends = [end for end in (wanted.low, wanted.high) if end is not None]
        inside = len(ends) == 2 and ends[0] <= value <= ends[1]
        nearest = value if inside else min(ends, key=lambda end: abs(end - value), default=None)
    if nearest is None:
        return None
    relative = (value - nearest) / abs(nearest) if nearest else None
    return {"absolute": value - nearest, "relative": relative, "unit": wanted.unit}


def _evidence(found: Outcome | None) -> list[Row]:
    """The measured value first, with its formula, then every input it was computed from."""
    if found is None:
        return []
    text = " ".join(str(found.decide["value"]).split())
    inputs = [
        _cited(
            found.scope.origin(name) or Origin(None, found.scope.point, None, name, None),
            name,
            found.scope[name],
        )
        for name in names(text)
        if name not in ("published", "ceiling")
    ]
    reports = dict.fromkeys(row["report"] for row in inputs if row["report"])
    if found.decide.get("over") == "source":
        reports = {"source_index.json": None}
    whole = Origin(", ".join(reports) or None, found.scope.point, None, "the claim's value", text)
    return [_cited(whole, "value", found.measured), *inputs]


def _cited(origin: Origin, name: str, value: Any) -> Row:
    return {
        "name": name,
        "report": origin.report,
        "point": origin.point,
        "kernel": origin.kernel,
        "metric": origin.metric,
        "value": value,
        "formula": origin.formula,
    }


def judge_all(claims: list[Row], evidence: Evidence) -> Row:
    """Every claim's record, the counts by verdict, the noise floors by target."""
    records = [judge(claim, evidence) for claim in claims]
    counts = Counter(record["verdict"] for record in records)
    provenance = evidence.machine or next(
        (r["provenance"] for r in evidence.results.values()), None
    )
    return {
        "schema": 1,
        "provenance": provenance,
        "summary": {verdict: counts[verdict] for verdict in VERDICTS} | {"total": len(records)},
        "noise": {name: found.get("noise") or {} for name, found in evidence.results.items()},
        "claims": records,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=Path, required=True, help="folder of *_results.json")
    parser.add_argument("--targets", nargs="*", help="of these alone (jit: the JIT); default: all")
    parser.add_argument("--claims", type=Path, required=True, help="folder of claim files")
    parser.add_argument("--source-index", type=Path, help="source_index.json of the evidence")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    claims = files.load(args.claims)
    found = judge_all(claims, load(args.results, args.source_index, args.targets))
    write_json(args.out, found.pop("claims"))
    write_json(args.out.with_name(f"{args.out.stem}_summary.json"), found)


if __name__ == "__main__":
    main_guard(main)
