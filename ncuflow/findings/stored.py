"""Results as they were written: a file is taken for the results of a target where it has their shape."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

from pydantic import BaseModel, ConfigDict

from ncuflow.io import BadInput, conforming, read_json
from ncuflow.model import Results

SUFFIX = "_results.json"


class _Point(BaseModel):
    model_config = ConfigDict(strict=True)
    point: str
    status: Literal["ok", "wrong", "skipped", "error", "lost"]
    params: dict[str, Any]
    measurement: dict[str, float | int | str | None]
    kernels: list[dict[str, Any]]


class _Results(BaseModel):
    model_config = ConfigDict(strict=True)
    target: str
    provenance: dict[str, Any]
    points: list[_Point]
    deep: list[dict[str, Any]]


def results(path: Path) -> Results:
    """The results of a target. Raises BadInput where the file is none, or of another target than its name says."""
    content = read_json(path)
    target = conforming(path, content, _Results, "the results of a target").target
    if path.name != target + SUFFIX:
        raise BadInput(path, f"has the results of {target}")
    return cast(Results, content)
