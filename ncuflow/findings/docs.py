"""``docs/measurements.md`` from the column table.

python -m ncuflow.findings.docs [--check]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ncuflow.findings.columns import COLUMNS
from ncuflow.io import main_guard, write_text

PAGE = Path("docs/measurements.md")
INTRODUCTION = """# Measurements

One row a point, in `tables/<target>/measurements.{parquet,csv}` and under `measurement` in
`results/<target>_results.json`. A value that any term of its formula lacks is null. Names in a formula are
other columns, or registry keys of [metrics.md](metrics.md). Made by `python -m ncuflow.findings.docs`.

A number on a page is traced to its report, kernel and metric with its point and column:

```bash
.venv/bin/python -m ncuflow.findings.lineage outputs/recorded-h200 POINT COLUMN
```

| column | unit | from | formula |
|---|---|---|---|
"""


def page() -> str:
    """The page's text."""
    rows = [f"| `{c.name}` | {c.unit} | {c.source} | {c.formula} |" for c in COLUMNS]
    return INTRODUCTION + "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="exit 1 if the page is not up to date")
    if not parser.parse_args().check:
        write_text(PAGE, page())
        return 0
    if PAGE.exists() and PAGE.read_text() == page():
        return 0
    print(
        f"{PAGE}: not up to date; run python -m ncuflow.findings.docs",
        file=sys.stderr,
    )
    return 1


if __name__ == "__main__":
    main_guard(main)
