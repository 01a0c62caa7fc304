"""The machine: what the preflight found, as ``results/environment_info.json``.

ncuflow environment --evidence ROOT [--recording NAME] --out FILE.json
"""

from __future__ import annotations

import argparse
from pathlib import Path

from ncuflow.findings import ceilings
from ncuflow.findings.provenance import load_provenance
from ncuflow.io import read_json, write_json
from ncuflow.model import MachineInfo


def environment_info(evidence: Path, recording: str | None) -> MachineInfo:
    """Provenance, preflight findings and ceilings of the machine that made the evidence."""
    preflight = read_json(evidence / "environment.json")
    measured = evidence / "ceilings.json"
    provenance = load_provenance(evidence, recording)
    return {
        "schema": 1,
        "provenance": provenance,
        "findings": preflight["findings"],
        "ceilings": ceilings.machine(
            provenance["gpu"], read_json(measured) if measured.exists() else None
        ),
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--evidence", type=Path, required=True)
    parser.add_argument("--recording")
    parser.add_argument("--out", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    write_json(args.out, environment_info(args.evidence, args.recording))
