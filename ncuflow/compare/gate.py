"""The gate of a comparison for CI: a significant slow-down beyond a threshold fails it.

ncuflow gate compare.json [--threshold 0.05]
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ncuflow import answer
from ncuflow.compare import records
from ncuflow.compare.records import Comparison, MetricChange
from ncuflow.findings.statistics import SLOWER
from ncuflow.format import with_unit

THRESHOLD = 0.05
NOTHING_TESTED = 3


def limit(text: str) -> float:
    """A threshold of the command line; beyond an infinite one nothing would be slower."""
    value = float(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not finite, or negative")
    return value


def slowdowns(found: Comparison, threshold: float) -> list[tuple[str, MetricChange]]:
    """(point, change) of each significant slow-down beyond the threshold, largest first; host times are not judged."""
    slow = [
        (point.id, row)
        for point in found.points
        for row in point.metrics.values()
        if row.verdict == SLOWER and row.relative > threshold
    ]
    return sorted(slow, key=lambda item: -item[1].relative)


def line(point: str, row: MetricChange) -> str:
    """One slow-down as one line, with its first cause."""
    low, high = (100 * bound for bound in row.interval or (row.relative, row.relative))
    cause = f"; {row.causes[0].what}" if row.causes else ""
    return (
        f"{point}: time {row.base:.4g} → {row.head:.4g} µs "
        f"({100 * row.relative:+.1f} %, {low:+.1f} to {high:+.1f} %){cause}"
    )


def weaknesses(found: Comparison) -> Iterator[str]:
    """What a passing gate does not cover."""
    yield from found.statistics.notes
    if found.mixed_causes:
        yield f"several things differ at once: {', '.join(found.causes)}."
    if found.only_base:
        yield f"{with_unit(len(found.only_base), 'points')} in the base only."
    if found.not_compared:
        yield f"{with_unit(len(found.not_compared), 'points')} not right or not timed on a side."


class SlowDown(answer.AnswerPart):
    """A significant slow-down beyond the threshold."""

    point: str
    """its id"""
    trace: str
    """the words before a column that `ncuflow trace` takes; the time is of time_cold_us"""
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
    cause: str | None
    """the first thing that explains it"""


class GateAnswer(answer.Answer):
    """Whether a comparison passes."""

    command: Literal["gate"] = "gate"
    """the command that answers"""
    threshold: float
    """slow-downs beyond it fail, of 1"""
    passed: bool | None
    """null where nothing was tested, which is no pass"""
    points: int
    """how many were compared"""
    slowdowns: list[SlowDown]
    """the largest first"""
    notes: list[str]
    """what a pass does not cover"""


ANSWER = GateAnswer
TIME = answer.AnswerColumn(unit="µs", metric="time_cold_us", tier=None)
SHARE = answer.AnswerColumn(unit="of 1", metric="", tier=None)


def _answered(found: Comparison, threshold: float, limit: int | None) -> int:
    """Print the answer, and return the status."""
    slow = slowdowns(found, threshold)
    kept, left_out = answer.cut(slow, limit)
    tested = bool(found.statistics.tests)
    rows = [
        SlowDown(
            point=point, trace=shlex.quote(point), base=row.base, head=row.head, relative=row.relative,
            low=row.low, high=row.high, cause=row.causes[0].what if row.causes else None,
        )
        for point, row in kept
    ]  # fmt: skip
    columns = {"base": TIME, "head": TIME, **dict.fromkeys(("relative", "low", "high"), SHARE)}
    answer.tell(
        GateAnswer(
            threshold=threshold, passed=not slow if tested else None, points=len(found.points),
            slowdowns=rows, notes=[*weaknesses(found)], columns=columns, left_out=left_out,
        )
    )  # fmt: skip
    return int(bool(slow)) if tested else NOTHING_TESTED


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("comparison", type=Path, help="compare.json")
    parser.add_argument("--threshold", type=limit, default=THRESHOLD, help="%(default)s of 1")
    answer.options(parser)


def run(args: argparse.Namespace) -> int:
    """Print the verdict on a ``compare.json`` and return its status.

    0: no slow-down beyond the threshold; 1: at least one; 3: nothing was tested, which is no pass.
    """
    found = records.read(args.comparison)
    if args.json:
        return _answered(found, args.threshold, args.limit)
    for text in weaknesses(found):
        print(f"note: {text}", file=sys.stderr)
    slow = slowdowns(found, args.threshold)
    for item in slow:
        print(line(*item))
    if not found.statistics.tests:
        print("compare_gate: nothing was tested, so nothing passes")
        return NOTHING_TESTED
    verdict = with_unit(len(slow), "slow-downs") if slow else "no slow-down"
    beyond = f"beyond {100 * args.threshold:g} % on {with_unit(len(found.points), 'points')}"
    print(f"compare_gate: {verdict} {beyond}")
    return 1 if slow else 0
