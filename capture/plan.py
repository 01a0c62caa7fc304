"""The plan of a batch: which points it holds, as ``points.json``.

python -m capture.plan --points '[{"id": …, "target": …, "params": {…}}, …]' --out points.json
python -m capture.plan --target decode --blocks '[{"batch": [1, 32]}]' --out points.json
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from capture.process import cli
from parsers.files import write_json
from targets import load, names, sweep


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--points", type=json.loads, help="the points, as JSON")
    what.add_argument(
        "--blocks", type=json.loads, help="blocks of a sweep (with --target), as JSON"
    )
    parser.add_argument("--target", choices=names(), help="kernel target of the blocks")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    if args.blocks is not None and args.target is None:
        parser.error("--blocks needs --target")
    points = args.points
    if points is None:
        try:
            points = [point.as_dict() for point in sweep.points(load(args.target), args.blocks)]
        except ValueError as error:
            parser.error(str(error))
    write_json(args.out, points)
    return 0


if __name__ == "__main__":
    cli(main)
