"""A capture that failed for good: its points are lost, and everything after it is made without them.

    ncuflow give-up nsys TARGET --points P.json --out DIR/trace.sqlite --log LOG
    ncuflow give-up time TARGET --points P.json --out DIR/timing.jsonl [--pairs Q.json --pairs-out DIR/pairs.jsonl] --log LOG

Leaves what a capture leaves that lost every point: an empty report and its record, or the times as far as they came. LOG is
what the capture printed, whose last words are the reason. A note beside the files (``trace.loss.json``) tells the run at
its end what is missing, and the next run to try again.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from ncuflow.evidence.points import NOT_CAPTURED, keep_nothing, read_points
from ncuflow.io import read_as, write_json
from ncuflow.process import cause
from ncuflow.target.contract import load

NOTE = re.compile(r"(timing(\.\d+)?|trace|sweep|deep)\.loss\.json")
KINDS = (".json", ".jsonl", ".sqlite", ".ncu-rep")


class FailedCapture(BaseModel):
    """A capture that failed for good."""

    model_config = ConfigDict(strict=True, extra="forbid")
    tool: str
    """what failed: ncu, nsys or time"""
    target: str
    """the kernel target"""
    reason: str
    """its last words"""


def give_up(args: argparse.Namespace) -> FailedCapture:
    """Write what stands in the place of the capture. Raises BadInput or CaptureError where its plan cannot be read."""
    found = FailedCapture(tool=args.tool, target=args.target, reason=cause([args.log]))
    if args.tool != "time":
        said = [
            {"point": point["id"], "status": NOT_CAPTURED, "reason": found.reason}
            for point in read_points(args.points)
        ]
        ids = [record["point"] for record in said]
        keep_nothing(args.tool, args.out, ids, said, f"{NOT_CAPTURED}: {found.reason}")
    elif not args.out.exists():  # a lost GPU closes its file itself
        from ncuflow.run.launch import close_lost

        close_lost(args, load(args.target), f"{NOT_CAPTURED}: {found.reason}")
    write_json(args.out.with_name(f"{args.out.stem}.loss.json"), found.model_dump())
    return found


def _notes(root: Path) -> Iterator[tuple[Path, FailedCapture]]:
    for path in sorted(root.glob("*/*/*.loss.json")):
        if NOTE.fullmatch(path.name):
            yield path, read_as(path, FailedCapture, "a note of a failed capture")


def messages(root: Path, targets: Iterable[str]) -> list[str]:
    """A line for each reason for which captures of these targets are missing."""
    found: dict[tuple[str, str], list[str]] = defaultdict(list)
    for _, loss in _notes(root):
        if loss.target in targets:
            found[loss.tool, loss.reason].append(loss.target)
    return [
        f"lost: {tool} of {', '.join(dict.fromkeys(those))}: {reason}"
        for (tool, reason), those in found.items()
    ]


def forget(root: Path, tables: Path) -> None:
    """Remove what stands for captures that failed, so that they are tried again: their files, the tables that lack them, and
    what the preflight found of the tools."""
    for path, _ in _notes(root):
        stem = path.name.removesuffix(".loss.json")
        left = [path.with_name(f"{stem}{kind}") for kind in KINDS]
        left += [path.with_name("pairs.jsonl")] if stem == "timing" else []
        left += (tables / path.parent.parent.name).glob("*")
        for file in [*left, root / "environment.json", path]:
            file.unlink(missing_ok=True)


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tool", choices=("ncu", "nsys", "time"))
    parser.add_argument("target", help="kernel target")
    parser.add_argument("--points", type=Path, required=True, help="points.json of the batch")
    parser.add_argument("--out", type=Path, required=True, help="the report, or timing.jsonl")
    parser.add_argument("--pairs", type=Path, help="time: the points that are timed in turns")
    parser.add_argument("--pairs-out", type=Path, help="time: for the records of the pairs")
    parser.add_argument("--log", type=Path, required=True, help="what the capture printed")


def run(args: argparse.Namespace) -> None:
    found = give_up(args)
    print(f"given up: {found.tool} of {found.target}: {found.reason}", file=sys.stderr)
