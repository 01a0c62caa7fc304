"""The plan of a batch: which points it holds, as ``points.json``.

python -m capture.plan decode b888f5a00 --blocks '[{"batch": [1, 32]}]' --size 64 --out points.json
python -m capture.plan decode deep --blocks '[{"batch": 32}]' --out points.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from capture.process import CaptureError, cli
from parsers.files import write_json
from targets import load, sweep


def plan(target: str, batch: str, blocks: list[dict[str, object]], size: int) -> list[sweep.Point]:
    """Points of one batch of a target's sweep. Raises CaptureError if the sweep has no such batch."""
    points = sweep.points(load(target), blocks)
    if batch == "deep":
        return points
    found = sweep.batches(points, size)
    if batch not in found:
        raise CaptureError(
            f"{target}: no batch {batch} in this sweep; there are: {', '.join(found)}"
        )
    return found[batch]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("batch")
    parser.add_argument(
        "--blocks", type=json.loads, required=True, help="the sweep's blocks, as JSON"
    )
    parser.add_argument("--size", type=int, default=64, help="points a batch")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    points = plan(args.target, args.batch, args.blocks, args.size)
    write_json(args.out, [point.as_dict() for point in points])
    return 0


if __name__ == "__main__":
    cli(main)
