"""Provenance: on which GPU, with which versions, when, and how directly a number was measured."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from ncuflow.io import read_as
from ncuflow.model import CaptureRow, Origin, Provenance

TIERS = {
    "A": "live counters",
    "B": "live, without hardware counters",
    "C": "recorded elsewhere",
    "S": "static: compiled, not run",
}
Count = Annotated[int, Field(gt=0)]
AND = " and "
DAY = r"\d{4}-\d\d-\d\d"
VERSIONS = {
    "driver": "driver",
    "cuda": "CUDA",
    "torch": "torch",
    "flashinfer": "FlashInfer",
    "cutlass_dsl": "CuTe DSL",
    "ncu": "ncu",
    "nsys": "nsys",
}


class Finding(BaseModel):
    """What the preflight found of one thing."""

    check: str
    status: Literal["ok", "warn", "missing", "fail"]
    found: str
    remedy: str | None = None


class Made(BaseModel):
    """The machine that an evidence was made on; None where nobody could say."""

    model_config = ConfigDict(strict=True, extra="allow")
    tier: Literal["A", "B", "C", "S"]
    gpu: str | None
    compute_capability: str | None = None
    sm_count: Count | None = None
    l2_bytes: Count | None = None
    memory_bytes: Count | None = None
    driver: str | None = None
    cuda: str | None = None
    torch: str | None = None
    flashinfer: str | None = None
    cutlass_dsl: str | None = None
    ncu: str | None = None
    nsys: str | None = None
    python: str | None = None
    date: str | None = None
    clock_policy: str | None = None


class Environment(BaseModel):
    """``environment.json``."""

    provenance: Made
    findings: list[Finding] = []


def environment(evidence: Path) -> Environment:
    """What the preflight wrote of the machine. Raises BadInput where it is not that."""
    return read_as(evidence / "environment.json", Environment, "what a preflight found")


def load_provenance(evidence: Path, recording: str | None) -> Provenance:
    """Provenance of an evidence folder; recorded evidence is tier C whatever it was when it was taken.

    Raises BadInput where the folder holds no ``environment.json``, or one that is none.
    """
    stored = environment(evidence).provenance.model_dump()
    out = {key: stored.get(key) for key in Provenance.__annotations__}
    recorded = {"tier": "C", "recording": recording} if recording else {}
    return cast(Provenance, out | recorded | {"mixed": []})


def of_captures(environment: Provenance, captures: Iterable[CaptureRow]) -> Provenance:
    """Provenance of what these captures measured: what each wrote down itself, and the environment's where
    one is of a format that did not."""
    made = [
        cast(Provenance, environment | {key: dict(row)[key] for key in Origin.__annotations__})
        if row["python"]
        else environment
        for row in captures
    ]
    return together(made) or environment


def together(parts: Iterable[Provenance]) -> Provenance | None:
    """One provenance of several: where they differ, the values side by side, and the key in ``mixed``."""
    ordered = [dict(part) for part in sorted(parts, key=lambda part: part["date"] or "")]
    if not ordered:
        return None
    out = dict(ordered[-1])
    mixed = {key for part in ordered for key in cast(list[str], part.get("mixed") or [])}
    for key in VERSIONS:
        values = dict.fromkeys(
            v for part in ordered if part.get(key) for v in str(part[key]).split(AND)
        )
        if key == "cutlass_dsl" and values and not all(part.get(key) for part in ordered):
            values["none"] = None  # with it FlashInfer takes other kernels
        out[key] = AND.join(values) or None
        mixed |= {key} if len(values) > 1 else set()
    days = [day for part in ordered for day in re.findall(DAY, str(part["date"]))]
    if len(set(days)) > 1:
        out["date"] = f"{min(days)} to {max(days)}"
    return cast(Provenance, out | {"mixed": [key for key in VERSIONS if key in mixed]})


def named(values: Mapping[str, Any], keys: Iterable[str], suffix: str = "") -> str:
    """Versions by name: ``FlashInfer 0.7.2, ncu 2025.3.1.0``; of what is not known, nothing.

    suffix: of the keys in ``values``: ``_version`` in a measurement row.
    """
    known = ((VERSIONS[key], values.get(key + suffix)) for key in keys)
    return ", ".join(f"{name} {version}" for name, version in known if version)


def one_line(provenance: Mapping[str, Any]) -> str:
    """Origin in one line, for figures and page headers: tier, GPU, versions, date."""
    tier, mixed = provenance["tier"], provenance.get("mixed")
    line = f"Tier {tier} ({TIERS[tier]}) · {provenance['gpu'] or 'no GPU'} · {named(provenance, VERSIONS)} · {provenance['date']}"
    return (
        f"{line} · not all measured with one {', '.join(VERSIONS[key] for key in mixed)}"
        if mixed
        else line
    )
