"""The points of a batch, the folder that they are captured in, and which of them a capture found again."""

from __future__ import annotations

import glob
import json
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncuflow.io import JsonObject, read_json, replacing, write_json
from ncuflow.process import CaptureError

if TYPE_CHECKING:
    from ncuflow.model import Origin

GOOD = ("ok", "traced")
NO_KERNEL = "no kernel in its NVTX range"
NOT_CAPTURED = "not captured"  # status of a point whose capture failed for good


@dataclass
class Contents:
    """What a report holds: kernels per point, failed ones among them, kernels of no point."""

    kernels: dict[str, int] = field(default_factory=dict)
    failed: dict[str, int] = field(default_factory=dict)
    unattributed: int = 0
    total: int = 0


def read_points(path: Path) -> list[JsonObject]:
    """The plan of a batch: [{"id", "target", "params"}].

    Raises BadInput or CaptureError for anything else.
    """
    points = read_json(path)
    if not isinstance(points, list) or not all(isinstance(p, dict) and "id" in p for p in points):
        raise CaptureError(f"{path}: not a list of points with an id")
    return points


def timed_ok(points: Sequence[Mapping[str, Any]], timing: Path | None) -> list[JsonObject]:
    """The points whose timing record says ok; all of them without a timing file."""
    if timing is None:
        return [dict(point) for point in points]
    good = {record.get("point") for record in read_records(timing) if record.get("status") == "ok"}
    return [dict(point) for point in points if point["id"] in good]


def read_records(path: Path) -> list[JsonObject]:
    """The complete records of a JSONL file; a line cut short by a killed writer is left out."""
    try:
        lines = path.read_text("utf-8", "replace").splitlines()
    except FileNotFoundError:
        return []
    records = []
    for line in lines:
        try:
            record = json.loads(line)
        except ValueError:
            continue
        if isinstance(record, dict):
            records.append(record)
    return records


def read_progress(path: Path) -> list[JsonObject]:
    """Records of a run, finished (PATH) or cut short (PATH.partial, as ncuflow.run.launch leaves it)."""
    return read_records(path) or read_records(path.with_name(f"{path.name}.partial"))


@contextmanager
def staging(folder: Path, name: str) -> Iterator[Path]:
    """A fresh hidden folder inside `folder`, so that moving out of it is atomic; removed at the end, with what was not moved.

    What a killed run left of the same name goes first: of one result there is one maker at a time.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for left in folder.glob(f".{glob.escape(name)}.*"):
        shutil.rmtree(left, ignore_errors=True)
    path = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=folder))
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def all_failed(points: Iterable[str], progress: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a run came to every point and none of them was ok."""
    status = {record.get("point"): record.get("status") for record in progress}
    return all(status.get(point) not in (None, *GOOD) for point in points)


def keep_nothing(
    tool: str,
    report: Path,
    points: Sequence[str],
    progress: Sequence[Mapping[str, Any]],
    note: str = "no point was ok",
) -> None:
    """A batch without a point to profile is no failed capture: its report is an empty file, and the
    record beside it says why each point is missing."""
    lost = lost_points(points, Contents(), progress, "")
    for entry in lost:
        print(f"lost: {entry['point']}: {entry['reason']}", file=sys.stderr)
    record = capture_record(tool, None, [], [], Contents(), lost, 0.0, [note])
    with replacing(report) as temporary:
        temporary.touch()
    write_json(report.with_suffix(".json"), record)


def lost_points(
    points: Iterable[str], found: Contents, progress: Sequence[Mapping[str, Any]], ended: str
) -> list[dict[str, str]]:
    """Why each point without a usable kernel is missing; `ended`: how the run ended, "" if well."""
    said = {record.get("point"): record for record in progress}
    lost = []
    for point in points:
        if found.kernels.get(point, 0) == 0:
            lost.append({"point": point, "reason": _reason(said.get(point), ended)})
        elif found.failed.get(point, 0):
            count = f"{found.failed[point]} of {found.kernels[point]} kernels"
            lost.append({"point": point, "reason": f"failed: {count} have no duration"})
    return lost


def capture_record(
    tool: str,
    origin: Origin | None,
    command: Sequence[str],
    points: Sequence[str],
    found: Contents | None,
    lost: Sequence[Mapping[str, str]],
    wall_s: float,
    notes: Sequence[str] = (),
) -> JsonObject:
    """The JSON that lies beside a report and says what it should hold."""
    return {
        "tool": tool,
        "origin": origin,
        "command": list(command),
        "points": list(points),
        "kernels": None if found is None else dict(found.kernels),
        "failed": {} if found is None else dict(found.failed),
        "unattributed": None if found is None else found.unattributed,
        "lost": [dict(entry) for entry in lost],
        "notes": list(notes),
        "wall_s": round(wall_s, 2),
    }


def _reason(record: Mapping[str, Any] | None, ended: str) -> str:
    if record is None:
        return f"not reached: {ended}" if ended else "not reached"
    if record.get("status", "ok") not in GOOD:
        return f"{record.get('status')}: {record.get('reason')}"
    return NO_KERNEL
