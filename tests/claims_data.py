"""A claim, its file and its evidence, for the tests of claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml
from results_data import entry, results

from ncuflow.claims import audit, files
from ncuflow.claims.evidence import ClaimEvidence

ROOT = Path(__file__).parents[1]
A100 = {"gpu": "NVIDIA A100 80GB", "architecture": "sm_80"}
POINTS = (
    entry("decode/B1", {"batch": 1, "heads": 8}, gbs=1000.0, time_cold_us=10.0),
    entry("decode/B32", {"batch": 32, "heads": 8}, gbs=2000.0, time_cold_us=50.0),
    entry("decode/B128", {"batch": 128, "heads": 8}, gbs=4000.0, time_cold_us=100.0),
)


def claim(**changes: Any) -> dict[str, Any]:
    base = {
        "id": "x",
        "statement": "Decode reaches a rate.",
        "source": {"document": "a talk", "section": "1"},
        "published": {"value": 4000, "unit": "GB/s"},
        "applies": {"target": "decode"},
        "decide": decide("gbs", "within", tolerance={"relative": 0.1}),
    }  # fmt: skip
    return base | changes


def write(folder: Path, *found: dict[str, Any], **top: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "talk.yaml").write_text(yaml.safe_dump({"claims": list(found)} | top))
    return folder


def judged(
    tmp_path: Path, *points: Any, evidence: ClaimEvidence | None = None, **changes: Any
) -> Any:
    (loaded,) = files.load(write(tmp_path / "claims", claim(**changes)))
    found = audit.judge(loaded, evidence or ClaimEvidence({"decode": results(*(points or POINTS))}))
    return json.loads(json.dumps(found.as_json()))


def decide(value: str, compare: str, aggregate: str = "max", **more: Any) -> dict[str, Any]:
    return {"value": value, "compare": compare, "aggregate": aggregate, **more}
