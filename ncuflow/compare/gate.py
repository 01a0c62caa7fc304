"""The gate of a comparison for CI: a significant slow-down beyond a threshold fails it.

ncuflow gate compare.json [--threshold 0.05]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path

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


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("comparison", type=Path, help="compare.json")
    parser.add_argument("--threshold", type=limit, default=THRESHOLD, help="%(default)s of 1")


def run(args: argparse.Namespace) -> int:
    """Print the verdict on a ``compare.json`` and return its status.

    0: no slow-down beyond the threshold; 1: at least one; 3: nothing was tested, which is no pass.
    """
    found = records.read(args.comparison)
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
