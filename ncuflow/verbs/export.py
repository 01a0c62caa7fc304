"""Results in the formats of other tools.

    ncuflow export bencher --results outputs/MACHINE/results --out bmf.json
    ncuflow export benchmark-action --results … --out benchmark.json
    ncuflow export junit --results … [--require gate.yaml] [--comparison compare.json] --out junit.xml
    ncuflow export summary --results … [--require …] [--comparison …] --out summary.md
    ncuflow export summary --upgrade upgrade.json --out summary.md
    ncuflow export trace --tables outputs/MACHINE/tables/TARGET --out trace.json
    ncuflow export script POINT --out point.py           (`ncuflow export script --help` says more)

bencher           Bencher Metric Format: latency (ns) and throughput per point
benchmark-action  github-action-benchmark's customSmallerIsBetter
junit             one case per gated point
summary           GitHub step summary: what does not hold first, 1 MiB at most
annotations       GitHub's workflow commands: an error for each point that does not hold
trace             Chrome Trace JSON of the nsys timeline, which ui.perfetto.dev opens
"""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from ncuflow.export import check
from ncuflow.export.formats import GATED, PLAIN, compared, trace, upgraded
from ncuflow.findings import stored
from ncuflow.io import UsageError, not_over, write_text


def command(
    format: Literal["bencher", "benchmark-action", "junit", "summary", "annotations", "trace"],
    /,
    *,
    out: Path,
    results: Path | None = None,
    tables: Path | None = None,
    require: Path | None = None,
    comparison: Path | None = None,
    upgrade: Path | None = None,
    threshold: Annotated[float, Parameter(validator=check.finite)] = check.THRESHOLD,
) -> None:
    """Results in another tool's format.

    Args:
        format: see above
        out: file to write
        results: outputs/MACHINE/results
        tables: trace: outputs/MACHINE/tables/TARGET
        require: junit, summary, annotations: the file that `ncuflow check` takes
        comparison: junit, summary, annotations: a compare.json
        upgrade: junit, summary, annotations: what `ncuflow upgrade --out` wrote; no --results then
        threshold: of the comparison, or the upgrade; 0.05 of 1
    """
    if format == "trace":
        if tables is None:
            raise UsageError("trace needs --tables")
        write_text(out, trace(tables))
        return
    if upgrade is not None and format in GATED:
        not_over(out, upgrade)
        write_text(out, GATED[format]({}, upgraded(upgrade, threshold)))
        return
    if results is None:
        raise UsageError(f"{format} needs --results")
    not_over(out, require, comparison, *results.glob(f"*{stored.SUFFIX}"))
    found = stored.folder(results)
    if format in PLAIN:
        write_text(out, PLAIN[format](found))
        return
    cases = check.judge(check.load(require), found) if require else []
    cases += compared(comparison, threshold) if comparison else []
    write_text(out, GATED[format](found, cases))
