"""A capture that failed for good: its points are lost, and everything after it is made without them.

    ncuflow give-up nsys TARGET --points P.json --out DIR/trace.sqlite --log LOG
    ncuflow give-up time TARGET --points P.json --out DIR/timing.jsonl [--pairs Q.json --pairs-out DIR/pairs.jsonl] --log LOG

Leaves what a capture leaves that lost every point: an empty report and its record, or the times as far as they came. LOG is
what the capture printed, whose last words are the reason. A note beside the files (``trace.loss.json``) tells the run at
its end what is missing, and the next run to try again.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict

from ncuflow.evidence.points import NOT_CAPTURED, keep_nothing, read_points
from ncuflow.io import read_as, write_json
from ncuflow.private import masked_line
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


def command(
    tool: Literal["ncu", "nsys", "time"],
    target: str,
    /,
    *,
    points: Path,
    out: Path,
    log: Path,
    pairs: Path | None = None,
    pairs_out: Path | None = None,
) -> None:
    """Write what stands in the place of the capture. Raises BadInput or CaptureError where its plan cannot be read.

    Args:
        tool: what failed
        target: kernel target
        points: points.json of the batch
        out: the report, or timing.jsonl
        log: what the capture printed
        pairs: time: the points that are timed in turns
        pairs_out: time: for the records of the pairs
    """
    # it is recorded, which a path of this machine must not be
    found = FailedCapture(tool=tool, target=target, reason=masked_line(cause([log])))
    if tool != "time":
        said = [
            {"point": point["id"], "status": NOT_CAPTURED, "reason": found.reason}
            for point in read_points(points)
        ]
        ids = [record["point"] for record in said]
        keep_nothing(tool, out, ids, said, f"{NOT_CAPTURED}: {found.reason}")
    elif not out.exists():  # a lost GPU closes its file itself
        from ncuflow.run.launch import LaunchAsked, close_lost

        asked = LaunchAsked(points=points, out=out, pairs=pairs, pairs_out=pairs_out)
        close_lost(asked, load(target), f"{NOT_CAPTURED}: {found.reason}")
    write_json(out.with_name(f"{out.stem}.loss.json"), found.model_dump())
    print(f"given up: {tool} of {target}: {found.reason}", file=sys.stderr)


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
