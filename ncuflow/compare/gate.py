"""The gate of a comparison for CI: a significant slow-down beyond a threshold fails it.

ncuflow gate compare.json [--threshold 0.05]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ncuflow.io import BadInput, UsageError, read_json

Row = dict[str, Any]
THRESHOLD = 0.05
NOTHING_TESTED = 3
LABELS = {"cold_us": "time", "host_us": "host time of the launch", "plan_us": "plan time"}


def slowdowns(document: Row, threshold: float) -> list[tuple[str, str, Row]]:
    """(point, metric, row) of each significant slow-down beyond the threshold, largest first."""
    found = [
        (point["id"], metric, row)
        for point in document["points"]
        for metric, row in point["metrics"].items()
        if row["verdict"] == "slower" and row["relative"] > threshold
    ]
    return sorted(found, key=lambda item: -item[2]["relative"])


def line(point: str, metric: str, row: Row) -> str:
    """One slow-down as one line, with its first cause."""
    low, high = (100 * bound for bound in row["interval_relative"])
    cause = f"; {row['causes'][0]['what']}" if row["causes"] else ""
    return (
        f"{point}: {LABELS[metric]} {row['base']:.4g} → {row['head']:.4g} µs "
        f"({100 * row['relative']:+.1f} %, {low:+.1f} to {high:+.1f} %){cause}"
    )


def weaknesses(document: Row) -> list[str]:
    """What a passing gate does not cover."""
    out = list(document["statistics"]["notes"])
    if document["mixed_causes"]:
        axes = ", ".join(d["axis"] for d in document["differences"] if d["cause"])
        out.append(f"several things differ at once: {axes}.")
    for key, what in (
        ("only_base", "in the base only"),
        ("not_compared", "not right or not timed on a side"),
    ):
        if document[key]:
            out.append(f"{len(document[key])} point(s) {what}.")
    return out


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("comparison", type=Path, help="compare.json")
    parser.add_argument("--threshold", type=float, default=THRESHOLD, help="%(default)s of 1")


def run(args: argparse.Namespace) -> int:
    """Print the verdict on a ``compare.json`` and return its status.

    0: no slow-down beyond the threshold; 1: at least one; 3: nothing was tested, which is no pass.
    """
    path, threshold = args.comparison, args.threshold
    if not threshold >= 0:
        raise UsageError("--threshold is not negative")
    document = read_json(path)
    try:
        found = slowdowns(document, threshold)
        notes = weaknesses(document)
        tests = document["statistics"]["tests"]
    except (KeyError, TypeError, AttributeError):
        raise BadInput(path, "not the JSON of a comparison") from None
    for text in notes:
        print(f"note: {text}", file=sys.stderr)
    for item in found:
        print(line(*item))
    if not tests:
        print("compare_gate: nothing was tested, so nothing passes")
        return NOTHING_TESTED
    count = len(document["points"])
    verdict = f"{len(found)} slow-down(s)" if found else "no slow-down"
    print(f"compare_gate: {verdict} beyond {100 * threshold:g} % on {count} point(s)")
    return 1 if found else 0
