"""Provenance: on which GPU, with which versions, when, and how directly a number was measured."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, BeforeValidator, ConfigDict

from ncuflow.evidence.points import read_records
from ncuflow.io import conforming, opened, read_as, read_json
from ncuflow.model import (
    CONDITIONS,
    PAIRS,
    REPORTS,
    VERSIONS,
    CaptureRow,
    Origin,
    Provenance,
    StoredOrigin,
)
from ncuflow.origin import now
from ncuflow.parsers.chips import unknown
from ncuflow.process import CaptureError

TIERS = {
    "A": "live counters",
    "B": "live, without hardware counters",
    "C": "recorded elsewhere",
    "S": "static: compiled, not run",
}
AND = " and "
DAY = r"\d{4}-\d\d-\d\d"


class Finding(BaseModel):
    """What the preflight found of one thing."""

    check: str
    status: Literal["ok", "warn", "missing", "fail"]
    found: str
    remedy: str | None = None


def whole(known: Mapping[str, Any]) -> Provenance:
    """A provenance of what is known, by its keys; None for what is not."""
    found = {key: known.get(key) for key in Provenance.__annotations__ if key != "note"}
    said = {"note": known["note"]} if known.get("note") else {}
    found |= {"mixed": []} | said
    return cast(Provenance, found)


def _stored(content: Any) -> Any:
    return whole(content) if isinstance(content, Mapping) else content


class Environment(BaseModel):
    """``environment.json``; an older one lacks the keys that were added since."""

    model_config = ConfigDict(strict=True)
    provenance: Annotated[Provenance, BeforeValidator(_stored)]
    findings: list[Finding] = []


def environment(evidence: Path) -> Environment:
    """What the preflight wrote of the machine. Raises BadInput where it is not that."""
    return read_as(evidence / "environment.json", Environment, "what a preflight found")


def load_provenance(evidence: Path, recording: str | None) -> Provenance:
    """Provenance of an evidence folder; recorded evidence is tier C whatever it was when it was taken.

    Raises BadInput where the folder holds no ``environment.json``, or one that is none.
    """
    stored = environment(evidence).provenance
    return {**stored, "tier": "C", "recording": recording} if recording else stored


def origin(gpu: str | None, driver: str | None, **tools: str | None) -> Origin:
    """What a capture that starts now is made with: what it is told, and what it finds installed.

    tools: versions of ``ncu`` and ``nsys``, where one is used.
    """
    found = {key: condition.read() for key, condition in CONDITIONS.items() if condition.read}
    known = {"gpu": gpu, "driver": driver, **tools, **found, "date": now()}
    return cast(Origin, {key: known.get(key) for key in Origin.__annotations__})


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
        absent = not all(part.get(key) for part in ordered)
        if CONDITIONS[key].absence and values and absent:
            values["none"] = None
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
    """Origin in one line, for figures and page headers: tier, GPU, versions, date, and what to know of its numbers."""
    tier, mixed = str(provenance.get("tier")), provenance.get("mixed")
    capability = None if tier == "S" else provenance.get("compute_capability")
    said = [
        f"Tier {tier} ({TIERS[tier]})" if tier in TIERS else None, provenance.get("gpu") or "no GPU", named(provenance, VERSIONS),
        str(provenance.get("date") or ""),
        mixed and f"not all measured with one {', '.join(VERSIONS[key] for key in mixed)}",
        capability and unknown(capability),
    ]  # fmt: skip
    return " · ".join(filter(None, said))


RECORDS = re.compile(rf"(({'|'.join(REPORTS)})\.json|(timing(\.\d+)?|{PAIRS})\.jsonl)(\.xz)?")


class WithOrigin(BaseModel):
    """A capture record or a line of timing.jsonl: the part that says what it was made with."""

    origin: StoredOrigin | None = None


def check_origins(evidence: Path) -> None:
    """Raises CaptureError where a capture is of another GPU than environment.json, or that names a version that
    no capture was made with. Records of before they said so are skipped."""
    said = environment(evidence).provenance
    named: dict[str, set[str]] = defaultdict(set)
    for path, origin in origins(evidence):
        whole, gpu = said["gpu"], origin["gpu"]
        if whole and gpu and not gpu.startswith(whole):  # a MIG slice is no other model
            raise CaptureError(f"{path}: is of {gpu}, but environment.json is of {whole}")
        for key in VERSIONS:
            named[key] |= {str(dict(origin)[key] or "")} - {""}
    for key, versions in named.items():
        version = dict(said)[key]
        if version and versions and version not in versions:
            found = f"{VERSIONS[key]} {version}, but its captures of {', '.join(sorted(versions))}"
            raise CaptureError(f"{evidence}: environment.json is of {found}")


def origins(evidence: Path) -> Iterator[tuple[Path, Origin]]:
    """(file, what it says) of every record that does. Raises BadInput where one is of another shape."""
    for path in sorted(evidence.glob("*/*/*")):
        if RECORDS.fullmatch(path.name):
            for record in _records(path):
                found = conforming(path, record, WithOrigin, "of a capture").origin
                if found is not None:
                    yield path, found


def _records(path: Path) -> list[Any]:
    if ".jsonl" not in path.suffixes:
        return [read_json(path)]
    with opened(path) as plain:
        return read_records(plain)
