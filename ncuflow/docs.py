"""docs/tables.md, metrics.md and measurements.md, from the records, the registry and the columns.

ncuflow docs            write them
ncuflow docs --check    exit 1 where a file is not what would be written
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from ncuflow.findings.columns import COLUMNS
from ncuflow.io import write_text
from ncuflow.model import TABLES
from ncuflow.parsers.breakdown import UNITS
from ncuflow.parsers.registry import GROUPS, Metric
from ncuflow.parsers.schema import row, schema
from ncuflow.parsers.stalls import STALL_REASONS

FOLDER = Path("docs")
HEAD = "<!-- Written by `ncuflow docs`: edit model.py or the registry instead. -->\n"
TABLES_INTRO = """\
# Tables

`ncuflow tables` reads the captures of a target into these tables, as Parquet and CSV
(lists are JSON text in CSV), under `outputs/<machine>/tables/<target>/`. Parquet carries unit,
meaning and source of each column in its field metadata. A null is a value that is not known, never
0; NaN does not occur.
"""
METRICS_INTRO = """\
# Metrics

The registry: every quantity read from an Nsight Compute report, under the key that tables,
findings and pages use. Sources are tried in order until the report holds one; `ga100` is for
compute capability 8.x and below, `gh100` for 9.0 and above. Values are stored in the unit given
here, whatever unit the report uses. A counter that is absent gives no row; one that is there
without a usable number gives null and a problem of its kernel.
"""
STALLS_INTRO = """\
## Stall reasons

What a resident warp waits for. `ratio` is
`smsp__average_warps_issue_stalled_<reason>_per_issue_active.ratio`, `samples` is
`smsp__pcsamp_warps_issue_stalled_<reason>`, under its own name where that differs. The ratios of
all rows add up to `warp_latency_per_issue` as far as one launch is like the next: reasons and latency
are counted in several replay passes, and for launches of a few microseconds the sum has been seen
two thirds off (`stall_sum` of the reader's JSON is the quotient; its table marks shares with ≈ where it is
more than 5 % off). A share is of all reasons that the architecture has; where some were not
collected there is none. Stalls matter only where `issue_active` is low:
schedulers that issue in every cycle lose nothing to them.

| reason | kind | a warp waits for | name in the samples |
|---|---|---|---|
"""
UNITS_INTRO = """
## Units

The largest counter of a breakdown is the throughput that it is a breakdown of (table `breakdown`), and names the
unit that a launch keeps busiest.

| unit | on pages | what its counters count | counters that begin with |
|---|---|---|---|
"""
MEASUREMENTS_INTRO = """\
# Measurements

One row per point, in `tables/<target>/measurements.{parquet,csv}` and under `measurement` in
`results/<target>_results.json`. A value that any term of its formula lacks is null. Names in a formula are
other columns, or registry keys of [metrics.md](metrics.md). Made by `ncuflow docs`.

A number on a page is traced to its report, kernel and metric with its point and column:

```bash
.venv/bin/ncuflow trace POINT COLUMN
```

| column | unit | from | formula |
|---|---|---|---|
"""


def tables_page() -> str:
    """The text of docs/tables.md."""
    return HEAD + TABLES_INTRO + "".join("\n" + "\n".join(_table(t)) + "\n" for t in TABLES)


def _table(name: str) -> Iterator[str]:
    yield f"## {name}\n\nA row: {row(name)}.\n"
    yield "| column | type | unit | meaning | source |\n|---|---|---|---|---|"
    for field in schema(name):
        about = {key.decode(): value.decode() for key, value in field.metadata.items()}
        null = ", null" if field.nullable else ""
        source = f"`{about['source']}`" if about["source"] else ""
        kind = f"{field.type}{null}".replace("list<element: double>", "list of double")
        yield f"| `{field.name}` | {kind} | {about['unit']} | {about['meaning']} | {source} |"


def metrics_page() -> str:
    """The text of docs/metrics.md."""
    groups = [f"\n## {name}\n\n{''.join(map(_metric, group))}" for name, group in GROUPS.items()]
    return HEAD + METRICS_INTRO + "".join(groups) + "\n" + _stalls() + _units()


def _metric(metric: Metric) -> str:
    unit = f", {metric.unit}" if metric.unit else ""
    sources = "".join(
        f"  - {arch + ': ' if arch != '*' else ''}`{source}`\n"
        for arch, listed in metric.sources.items()
        for source in listed
    )
    return f"- **`{metric.key}`** ({metric.label}{unit}): {metric.meaning}.\n{sources}"


def _stalls() -> str:
    rows = "".join(
        f"| `{r.reason}` | {r.kind.replace('_', ' ')} | {r.meaning} | "
        f"{f'`{r.pcsamp}`' if r.pcsamp else ''} |\n"
        for r in STALL_REASONS.values()
    )
    return STALLS_INTRO + rows


def _units() -> str:
    rows = "".join(
        f"| `{name}` | {u.label} | {u.meaning} | {', '.join(f'`{p}`' for p in u.prefixes if p)} |\n"
        for name, u in UNITS.items()
    )
    return UNITS_INTRO + rows


def measurements_page() -> str:
    """The text of docs/measurements.md."""
    rows = [f"| `{c.name}` | {c.unit} | {c.source} | {c.formula} |" for c in COLUMNS]
    return MEASUREMENTS_INTRO + "\n".join(rows) + "\n"


PAGES = {
    "tables.md": tables_page,
    "metrics.md": metrics_page,
    "measurements.md": measurements_page,
}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--check", action="store_true", help="compare instead of writing")


def run(args: argparse.Namespace) -> int:
    """Write the pages, or with --check say which is out of date and return 1."""
    stale = []
    for name, page in PAGES.items():
        path = FOLDER / name
        if not args.check:
            write_text(path, page())
        elif not path.exists() or path.read_text(encoding="utf-8") != page():
            stale.append(path)
    for path in stale:
        print(f"{path} is out of date: run ncuflow docs", file=sys.stderr)
    return 1 if stale else 0
