"""The machine: what the preflight found, as ``results/environment_info.json``.

python -m ncuflow.findings.machine --evidence ROOT [--recording NAME] --out FILE.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ncuflow.findings import ceilings
from ncuflow.findings.provenance import load_provenance
from ncuflow.io import main_guard, write_json
from ncuflow.model import MachineInfo


def environment_info(evidence: Path, recording: str | None) -> MachineInfo:
    """Provenance, preflight findings and ceilings of the machine that made the evidence."""
    preflight = json.loads((evidence / "environment.json").read_text())
    measured = evidence / "ceilings.json"
    provenance = load_provenance(evidence, recording)
    return {
        "schema": 1,
        "provenance": provenance,
        "findings": preflight["findings"],
        "ceilings": ceilings.machine(
            provenance["gpu"], json.loads(measured.read_text()) if measured.exists() else None
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--evidence", type=Path, required=True)
    parser.add_argument("--recording")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write_json(args.out, environment_info(args.evidence, args.recording))


if __name__ == "__main__":
    main_guard(main)
