"""Provenance: on which GPU, with which versions, when, and how directly a number was measured."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from ncuflow.io import read_json
from ncuflow.model import Provenance

TIERS = {
    "A": "live counters",
    "B": "live, without hardware counters",
    "C": "recorded elsewhere",
}


def load_provenance(evidence: Path, recording: str | None) -> Provenance:
    """Provenance of an evidence folder; recorded evidence is tier C whatever it was when it was taken.

    Raises FileNotFoundError where the folder holds no ``environment.json``.
    """
    stored = read_json(evidence / "environment.json")["provenance"]
    out = {key: stored.get(key) for key in Provenance.__annotations__}
    recorded = {"tier": "C", "recording": recording} if recording else {}
    return cast(Provenance, out | recorded)


def one_line(provenance: Mapping[str, Any]) -> str:
    """Origin in one line, for figures and page headers: tier, GPU, versions, date."""
    versions = ", ".join(
        f"{name} {provenance[key]}"
        for name, key in (
            ("driver", "driver"), ("CUDA", "cuda"), ("torch", "torch"), ("FlashInfer", "flashinfer"),
            ("CuTe DSL", "cutlass_dsl"), ("ncu", "ncu"), ("nsys", "nsys"),
        )
        if provenance.get(key)
    )  # fmt: skip
    tier = provenance["tier"]
    return f"Tier {tier} ({TIERS[tier]}) · {provenance['gpu']} · {versions} · {provenance['date']}"
