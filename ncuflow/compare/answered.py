"""What `ncuflow compare --json` prints: a comparison, with what its numbers are."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any, Literal

from pydantic import ConfigDict, Field

from ncuflow.answer import Answer, AnswerColumn, AnswerPart, cut
from ncuflow.compare.records import Comparison


class ComparedPoint(AnswerPart):
    """One point, or one matched kernel, on both sides; with what else compare.json has of it."""

    model_config = ConfigDict(extra="allow")

    id: str
    """of the point; of reports NVTX range, name and index"""
    trace: str | None
    """the words before a column that `ncuflow trace` takes; null of a kernel of a report"""
    metric: str
    """which of the metrics leads"""
    base: float
    """time on the first side, µs"""
    head: float
    """on the second, µs"""
    relative: float
    """head over base, less 1"""
    low: float | None
    """lower bound of it; null where a side has one value"""
    high: float | None
    """upper bound of it"""
    p: float | None
    """of the test, corrected; null where none was made"""
    verdict: str
    """slower, faster, same, too noisy to tell; not tested: too few samples on a side; not judged"""
    metrics: dict[str, Any]
    """each metric of the point with the same fields"""
    causes: list[dict[str, Any]]
    """what explains the change, the largest first"""


class CompareAnswer(Answer):
    """What got slower between two sides, and why: all that compare.json has, the points that changed first."""

    command: Literal["compare"] = "compare"
    """the command that answers"""
    base: dict[str, Any]
    """the first side: its name and where it was measured"""
    head: dict[str, Any]
    """the second side"""
    differences: list[dict[str, Any]]
    """what differs between them besides the kernels"""
    settings: dict[str, Any]
    """alpha, threshold and floor, of 1"""
    statistics: dict[str, Any]
    """how many tests were made, the floors by metric, and what cannot be known"""
    points: list[ComparedPoint]
    """what both have"""
    only_base: list[str]
    """what the first side alone has"""
    only_head: list[str]
    """what the second side alone has"""
    not_compared: list[dict[str, Any]]
    """points that were not right, or not timed, on a side"""
    gpus: dict[str, Any] | None
    """what the second GPU changes; null where both are of one"""
    comparison: int = Field(alias="schema")
    """version of compare.json, whose fields these are"""


def answered(found: Comparison, columns: Mapping[str, str], limit: int | None) -> CompareAnswer:
    """The answer of a comparison, with so many points at most. columns: of the measurement, by metric."""
    changed = {point.id for point in found.changed}
    ordered = [*found.changed, *(point for point in found.points if point.id not in changed)]
    points, left_out = cut(ordered, limit)
    content = asdict(replace(found, points=points))
    tiers = {side.provenance.get("tier") for side in (found.base, found.head)}
    metrics = sorted({metric for point in points for metric in point.metrics})
    for row in content["points"]:
        row["trace"] = shlex.quote(row["id"]) if row["metric"] in columns else None
    about = {
        f"metrics.{name}": AnswerColumn(
            unit="µs",
            metric=columns.get(name, ""),
            tier=tiers.copy().pop() if len(tiers) == 1 else None,
        )
        for name in metrics
    }
    return CompareAnswer.model_validate(content | {"columns": about, "left_out": left_out})
