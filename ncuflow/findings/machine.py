"""The machine: what the preflight found, as ``results/environment_info.json``.

ncuflow environment --evidence ROOT [--recording NAME] --out FILE.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ncuflow.evidence.provenance import environment, load_provenance
from ncuflow.findings import ceilings
from ncuflow.io import write_json
from ncuflow.model import MachineInfo


def environment_info(evidence: Path, recording: str | None) -> MachineInfo:
    """Provenance, preflight findings and ceilings of the machine that made the evidence."""
    provenance = load_provenance(evidence, recording)
    gpu = provenance["gpu"]
    return {
        "schema": 1,
        "provenance": provenance,
        "findings": [
            finding.model_dump(exclude_unset=True) for finding in environment(evidence).findings
        ],
        "ceilings": ceilings.machine(gpu, ceilings.load(evidence, gpu)),
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evidence", type=Path, required=True)
    parser.add_argument("--recording")
    parser.add_argument("--out", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    write_json(args.out, environment_info(args.evidence, args.recording))
