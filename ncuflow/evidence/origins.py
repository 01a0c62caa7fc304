"""What captures say that they were made with, held against what the preflight said of the machine."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ncuflow.evidence import points
from ncuflow.evidence.provenance import environment
from ncuflow.io import conforming, opened, read_json
from ncuflow.model import PAIRS, REPORTS, VERSIONS, Origin, StoredOrigin
from ncuflow.process import CaptureError

RECORDS = re.compile(rf"(({'|'.join(REPORTS)})\.json|(timing(\.\d+)?|{PAIRS})\.jsonl)(\.xz)?")


class WithOrigin(BaseModel):
    """A capture record or a line of timing.jsonl: the part that says what it was made with."""

    origin: StoredOrigin | None = None


def check(evidence: Path) -> None:
    """Raises CaptureError where a capture is of another GPU than environment.json, or that names a version that
    no capture was made with. Records of before they said so are passed over."""
    said = environment(evidence).provenance
    named: dict[str, set[str]] = defaultdict(set)
    for path, origin in of(evidence):
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


def of(evidence: Path) -> Iterator[tuple[Path, Origin]]:
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
        return points.read_records(plain)
