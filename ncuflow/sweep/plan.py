"""The plan of a batch: which points it holds, as ``points.json``.

ncuflow plan --points '[{"id": …, "target": …, "params": {…}}, …]' --out points.json
ncuflow plan --target decode --blocks '[{"batch": [1, 32]}]' --out points.json
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ncuflow.io import UsageError, parsed, write_json
from ncuflow.sweep import points as sweep
from ncuflow.target.contract import known, load


def configure(parser: argparse.ArgumentParser) -> None:
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--points", type=_points, help="the points, as JSON")
    what.add_argument("--pairs", type=_pairs, help="points two by two, as JSON; [] for none")
    what.add_argument("--blocks", type=objects, help="blocks of a sweep (with --target), as JSON")
    parser.add_argument("--target", choices=list(known()), help="kernel target of the blocks")
    parser.add_argument("--out", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    if args.blocks is not None and args.target is None:
        raise UsageError("--blocks needs --target")
    points = args.points if args.pairs is None else args.pairs
    try:
        if points is None:
            points = [point.as_dict() for point in sweep.points(load(args.target), args.blocks)]
        write_json(args.out, points)
    except ValueError as error:
        raise UsageError(str(error)) from None


def objects(text: str, empty: bool = False) -> list[dict[str, Any]]:
    """A JSON list of one object or more; ``empty``: or none."""
    try:
        found = parsed(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error})") from None
    listed = isinstance(found, list) and all(isinstance(one, dict) for one in found)
    if not listed or not (found or empty):
        raise argparse.ArgumentTypeError("not a list of one object or more")
    return list(found)


def _points(text: str) -> list[dict[str, Any]]:
    return _checked(objects(text))


def _pairs(text: str) -> list[dict[str, Any]]:
    return _checked(objects(text, empty=True))


def _checked(points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    if not all({"id", "target", "params"} <= point.keys() for point in points):
        raise argparse.ArgumentTypeError("a point without id, target and params")
    return points
