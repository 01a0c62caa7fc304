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
from ncuflow.io import UsageError, emit, not_over, write_text
from ncuflow.verbs.options import OutFile, blocks_of


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


def script(
    point: str,
    /,
    *,
    blocks: str | None = None,
    kernel: int | None = None,
    known: list[str] | None = None,
    out: OutFile = None,
) -> None:
    """A point, or a kernel of a step, as a Python file that stands alone: torch and FlashInfer, for your own ncu or nsys.

        ncuflow export script decode/B32_L2048_H32_K32_D128_P16_f16_cc --out point.py
        ncuflow export script decode --blocks '[{"batch": 4, "kv_len": 8192}]' --out point.py
        ncuflow export script trace.json.gz --kernel 1 --known page_size=16 --out kernel.py

    The inputs, plan() and the call are the target's own source, with all of the project that it needs. A point is named by
    its id, as `ncuflow trace` takes it, where a sweep of the settings or results under outputs/ have it; any other by its
    target and one block of parameters, what is left out having the target's default. The file says how it is profiled.
    The kernel of a trace has the number that `ncuflow step` gives it. Its file says when it runs whether it launched the
    trace's grid and block, and ends with status 1 where not.

    Args:
        point: id of a point, name of a target, or a trace
        blocks: parameters of the target's point, as JSON
        kernel: of a trace, the number of the kernel in `ncuflow step`
        known: of a trace, NAME=NUMBER …, as `ncuflow step` takes it
        out: default: standard output
    """
    from ncuflow.export import script

    name = out.name if out else script.NAME
    if kernel is None:
        if known or Path(point).is_file():
            raise UsageError("a trace goes with --kernel, and --known with both")
        target, one = script.planned(point, blocks_of(blocks))
        emit(script.script(target, one, name), out)
        return
    if blocks:
        raise UsageError("--blocks goes with a target, not with --kernel")
    not_over(out, Path(point))
    emit(script.of_step(Path(point), kernel, known, name), out)
