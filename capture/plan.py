"""The plan of a batch: which points it holds, as ``points.json``.

python -m capture.plan --points '[{"id": …, "target": …, "params": {…}}, …]' --out points.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from capture.process import cli
from parsers.files import write_json


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=json.loads, required=True, help="the points, as JSON")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    write_json(args.out, args.points)
    return 0


if __name__ == "__main__":
    cli(main)
