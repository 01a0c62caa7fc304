"""Digests of every table of every recording: what a change of recordings or of parsers must leave as it is.

python tests/table_digests.py      # write them anew, where a table was meant to change
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from ncuflow import parquet  # noqa: E402
from ncuflow.model import TABLES  # noqa: E402
from ncuflow.parsers import tables  # noqa: E402

FILE = ROOT / "tests/data/table-digests.json"
Digests = dict[str, dict[str, str]]


def of_recording(folder: Path) -> Digests:
    """ "recording/target" -> table -> digest of its rows."""
    targets = json.loads((folder / "manifest.json").read_text())["targets"]
    return {
        f"{folder.relative_to(ROOT / 'recordings')}/{target}": _of_target(
            folder, [folder / target / name for name in sorted(batches)]
        )
        for target, batches in targets.items()
    }


def _of_target(root: Path, batches: list[Path]) -> dict[str, str]:
    found = tables.collect(root, batches)
    return {name: _digest(parquet.build(name, found[name]).to_pylist()) for name in TABLES}


def _digest(rows: list[dict[str, object]]) -> str:
    text = json.dumps(rows, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def recordings() -> list[Path]:
    return sorted(path.parent for path in (ROOT / "recordings").glob("*/*/*/manifest.json"))


if __name__ == "__main__":
    written: Digests = {}
    for recording in recordings():
        written |= of_recording(recording)
    FILE.write_text(json.dumps(written, indent=1) + "\n")
