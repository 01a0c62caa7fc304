"""Claims: each statement of ``claims/*.yaml`` gets a verdict from the measurements.

    ncuflow check claims --results DIR --claims claims --out FILE.json [--targets NAME…]
        [--source-index FILE]

FILE.json is the list of records; FILE_summary.json beside it has the counts and the noise floors.

Verdicts: confirmed, refuted, differs by architecture, not testable here. docs/claims.md has the
rules.
"""

from pathlib import Path

from ncuflow.claims import files
from ncuflow.claims.audit import ClaimsAnswer, judge, summary
from ncuflow.claims.evidence import load
from ncuflow.findings import stored
from ncuflow.io import UsageError, write_json
from ncuflow.verbs.options import AS_TEXT, Printed

share = stored.share


def command(
    *,
    results: Path,
    claims: Path,
    targets: list[str] | None = None,
    source_index: Path | None = None,
    out: Path | None = None,
    printed: Printed = AS_TEXT,
) -> None:
    """The verdict of each claim.

    Args:
        results: folder of *_results.json
        claims: folder of claim files
        targets: of these alone (jit: the JIT); default: all
        source_index: source_index.json of the evidence
        out: claims.json; needed without --json
    """
    if out is None and not printed.json:
        raise UsageError("give --out, or --json")
    evidence = load(results, source_index, targets)
    records = [judge(claim, evidence) for claim in files.load(claims)]
    made, counts = [record.as_json() for record in records], summary(records, evidence)
    if out is not None:
        write_json(out, made)
        write_json(out.with_name(f"{out.stem}_summary.json"), counts)
    if printed.json:
        found = ClaimsAnswer.model_validate({"claims": made, "summary": counts["summary"]})
        printed.tell(found, "")
