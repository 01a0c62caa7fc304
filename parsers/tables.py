"""All captures of one target → its tables, as Parquet and CSV.

    ncuflow tables --evidence ROOT --target decode --out tables/decode BATCHDIR…

A batch folder holds points.json, timing.jsonl, trace.sqlite and sweep.ncu-rep with their capture
records, or, named `deep`, deep.ncu-rep; each may be `.xz`, and trace and sweep may be absent (no
nsys, no counters).
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError, model_validator

from ncuflow import parquet, record
from ncuflow.io import BadInput, fault, opened, parsed, present, read_as, read_json
from ncuflow.model import DEEP, PAIRS, REPORTS, SHARED, TABLES, Origin, Row, StoredOrigin
from ncuflow.parsers import ncu, reader

if TYPE_CHECKING:
    import pyarrow as pa

    from ncuflow.parsers.nsys import Trace

T = TypeVar("T")


class TimingLine(record.PointRecord):
    """One line of timing.jsonl: a point, checked and timed, and what it was timed with."""

    origin: StoredOrigin | None = None
    """None in records of an earlier format"""

    @model_validator(mode="after")
    def _borne_out(self) -> TimingLine:
        _times_where_ok(self.status, self.timing)
        if self.status == "ok" and self.check and self.check.failed:
            error, allowed = self.check.rel_l2, self.check.tolerance
            raise ValueError(f"ok, but its error {error} is above {allowed}")
        return self


def _times_where_ok(status: str, times: object) -> None:
    if (status == "ok") != (times is not None):
        raise ValueError(f"{status}, but {'without' if times is None else 'with'} times")


class PairLine(record.PairRecord):
    """One line of pairs.jsonl: two points timed in turns, and what they were timed with."""

    origin: StoredOrigin | None = None
    """None in records of an earlier format"""

    @model_validator(mode="after")
    def _borne_out(self) -> PairLine:
        _times_where_ok(self.status, self.sides)
        if self.point != f"{self.base} | {self.other}":
            raise ValueError(f"{self.point} is not of its sides {self.base} and {self.other}")
        return self


def read(path: str | Path, plan: Collection[str] | None = None) -> list[Row]:
    """Rows of a file, plain or `.xz`; a later record of a point replaces an earlier one.

    plan: the ids of the points that it must hold, and no others. Raises BadInput, with the line
    number, on a line that is no record, and where the records are not those of the plan.
    """
    rows = {row["point"]: row for row in _records(path, flatten)}
    _planned(path, rows.keys(), plan)
    return list(rows.values())


def read_pairs(path: str | Path, plan: Collection[str] | None = None) -> list[Row]:
    """Rows of a pairs.jsonl, plain or `.xz`, a row per side. Raises BadInput on a line that is none, on a pair that
    stands there twice, and where the pairs are not those of the plan."""
    seen: set[str] = set()

    def once(content: Any) -> list[Row]:
        rows = sides(content)
        if rows[0]["pair"] in seen:
            raise ValueError(f"{rows[0]['pair']} a second time")
        seen.add(rows[0]["pair"])
        return rows

    found = [row for rows in _records(path, once) for row in rows]
    _planned(path, seen, plan)
    return found


def _records(path: str | Path, read_one: Callable[[Any], T]) -> Iterator[T]:
    """What ``read_one`` makes of each line; BadInput, with the line number, where it refuses one."""
    with opened(path) as plain:
        text = plain.read_bytes().decode("utf-8", "replace")
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield read_one(parsed(line))
            except ValueError as error:
                what = f"line {number}: no timing record ({_why(error)})"
                raise BadInput(path, what) from None


def _planned(path: str | Path, points: Collection[str], plan: Collection[str] | None) -> None:
    if plan is None:
        return
    absent, strange = set(plan) - set(points), set(points) - set(plan)
    if absent:
        raise BadInput(path, f"{len(absent)} planned points have no record, {min(absent)} for one")
    if strange:
        raise BadInput(path, f"{min(strange)} is not in the plan")


def _why(error: Exception) -> str:
    if isinstance(error, ValidationError):
        return fault(error)
    return str(error).splitlines()[0]


def flatten(content: Any) -> Row:
    """One record as a flat row. Raises ValueError where it is none."""
    line = TimingLine.model_validate(content)
    # Early records hold a sustained time also where it is the host's.
    if line.timing and line.timing.starved:
        line.timing.sustained = None
    found = record.row(line) | {"origin": line.origin}
    if line.clocks is not None:
        reasons = line.clocks.reasons
        found |= {
            "throttled": line.clocks.throttled,
            "throttle_reasons": "; ".join(dict.fromkeys(reasons)) or None,
        }
    return found


def sides(content: Any) -> list[Row]:
    """Both sides of one pair as flat rows. Raises ValueError where it is none."""
    pair = PairLine.model_validate(content)
    of_both = {"pair": pair.point, "status": pair.status, "reason": pair.reason}
    times = [record.row(side) for side in pair.sides or ()] or [{}, {}]
    named = (("base", pair.base), ("other", pair.other))
    return [
        of_both | {"side": side, "point": point, "origin": pair.origin} | found
        for (side, point), found in zip(named, times, strict=True)
    ]


Tables = dict[str, list[Any]]  # rows; or tables of them, as `packed` makes
NCU_TABLES: tuple[str, ...] = ("kernels", "metrics", "stalls", "breakdown", "rules", "lines")
NSYS_TABLES: tuple[str, ...] = ("timeline", "ranges")


class Loss(BaseModel):
    """A point that a capture did not get, and why."""

    point: str
    reason: str | None = None


class CaptureRecord(BaseModel):
    """What a capture said of itself when it was made: the part that its report is held against.

    kernels: number by point; unattributed: kernels of no point. Null where nobody counted.
    """

    points: list[str] = []
    kernels: dict[str, int] | None = None
    unattributed: int | None = None
    lost: list[Loss] = []
    notes: list[str] = []
    origin: StoredOrigin | None = None

    @property
    def nothing(self) -> bool:
        """No point was ok, so there was nothing to profile and the report is an empty file."""
        return self.kernels == {} and not self.points and bool(self.lost)


@dataclass(frozen=True, eq=False)
class BatchReport:
    """A report of a batch, its capture record, and the point ids that it may name (None: any)."""

    tool: str
    path: Path
    record: CaptureRecord
    points: set[str] | None


def collect(root: Path, batches: Iterable[Path], kept: Callable[[Tables], Tables] = dict) -> Tables:
    """Rows of all tables of a target; kept: what the rows of a report or trace become as soon as it is read.

    Raises BadInput on a file that cannot be used.
    """
    tables: Tables = defaultdict(list)
    folders = list(batches)
    captures = [capture for folder in folders for capture in _captures(folder)]
    _one_batch_per_point(folders)
    traces = [capture for capture in captures if capture.tool == "trace"]
    reports = [capture for capture in captures if capture not in traces]
    longest_first = sorted(reports, key=lambda report: report.tool != DEEP)

    for folder in folders:
        _times_and_losses(tables, root, folder)
    bad = _not_right(tables["timing"])

    def rows_of(capture: BatchReport, content: ncu.Report | Trace) -> Tables:
        return kept(_of_right_points(_rows(root, capture, content), bad))

    # Before the traces, whose rows each child that reads a report would share.
    requests = [ncu.Request(report.path, report.points) for report in longest_first]
    found = zip(longest_first, ncu.read_all(requests), strict=True)
    rows = {report: rows_of(report, content) for report, content in found}
    for trace in traces:
        from ncuflow.parsers import nsys  # with numpy: who keeps a recording goes without

        rows[trace] = rows_of(trace, nsys.read(trace.path, trace.points))
    for capture in [*traces, *reports]:
        for name, more in rows[capture].items():
            tables[name] += more
    return tables


def _not_right(timing: Iterable[Row]) -> set[str]:
    """The points that the run which counters and traces are of did not find right."""
    return {row["point"] for row in timing if not row["run"] and row["status"] != "ok"}


def _of_right_points(rows: Tables, bad: Collection[str]) -> Tables:
    """What profilers say, which may come before the timing, without those points."""
    named = rows.keys() - {"captures"}
    return rows | {name: [row for row in rows[name] if row["point"] not in bad] for name in named}


def _captures(folder: Path) -> Iterator[BatchReport]:
    if not folder.is_dir():
        raise BadInput(folder, "no such batch folder")
    points = set(_points(folder))
    for tool, name in REPORTS.items():
        path, record = present(folder / name), _record(folder, tool)
        if path and not record.nothing:
            yield BatchReport(tool, path, record, points | set(record.points) or None)


def _one_batch_per_point(folders: Iterable[Path]) -> None:
    by_name = {folder.name: folder for folder in folders}
    shared = shared_point({name: _points(folder) for name, folder in by_name.items()})
    if shared:
        point, (first, *_, last) = shared
        what = f"holds {point}, as does batch {first}; remove the stale one"
        raise BadInput(by_name[last], what)


def shared_point(batches: Mapping[str, Iterable[str]]) -> tuple[str, list[str]] | None:
    """The first point that several batches (name -> point ids) hold, with their names; those aside whose
    points are those of other batches.

    A batch that another sweep left holds points of this one's: their kernels would count twice.
    """
    holders: dict[str, list[str]] = defaultdict(list)
    for batch in sorted(set(batches) - SHARED):
        for point in batches[batch]:
            holders[point].append(batch)
    return min((found for found in holders.items() if len(found[1]) > 1), default=None)


def _times_and_losses(tables: Tables, root: Path, folder: Path) -> None:
    plan = _points(folder) or None
    for run, times in _runs(folder):
        key, rows = _key(root, times), read(times, plan)
        tables["captures"].append(key | _capture("timing", _origin(times, rows)))
        tables["timing"] += [key | {"run": run} | row for row in rows]
    in_turns = present(folder / "pairs.jsonl")
    if in_turns:
        key, rows = _key(root, in_turns), read_pairs(in_turns, _pairs(folder))
        if rows:
            tables["captures"].append(key | _capture(PAIRS, _origin(in_turns, rows)))
        tables["pairs"] += [key | row for row in rows]
    for tool, name in REPORTS.items():
        key = _key(root, folder / name) | {"tool": tool}
        tables["lost"] += [key | loss.model_dump() for loss in _record(folder, tool).lost]


def _origin(path: Path, rows: list[Row]) -> Origin | None:
    """What one process made these rows with, which is taken out of them. Raises BadInput where they do not agree."""
    found = [row.pop("origin") for row in rows]
    if any(other != found[0] for other in found):
        what = "records of several runs, made with different versions or at other times"
        raise BadInput(path, what)
    return found[0] if found else None


def _capture(tool: str, origin: Origin | None, warnings: Iterable[str] = ()) -> Row:
    """A row of the captures table, its key aside."""
    return {
        "tool": tool,
        "warnings": "; ".join(warnings) or None,
        **(origin or dict.fromkeys(Origin.__annotations__)),
    }


def _runs(folder: Path) -> list[tuple[int, Path]]:
    """timing.jsonl is run 0; timing.1.jsonl and so on are further runs of the same points."""
    name = re.compile(r"timing(?:\.(\d+))?\.jsonl(?:\.xz)?")
    found = ((name.fullmatch(path.name), path) for path in folder.glob("timing*.jsonl*"))
    return sorted((int(number[1] or 0), path) for number, path in found if number)


def _key(root: Path, path: Path) -> Row:
    """Where a row came from: the report's path below the evidence root, and the batch."""
    try:
        below = path.resolve().relative_to(root.resolve())
    except ValueError:
        raise BadInput(path, f"not below the evidence root {root}") from None
    return {"report": below.as_posix().removesuffix(".xz"), "batch": path.parent.name}


def _pairs(folder: Path) -> list[str] | None:
    """Names of the planned pairs, which are the points of pairs.json two by two, of points.json in recordings that have
    a batch for them; None where there is no plan."""
    own = present(folder / "pairs.json") is not None
    points = _points(folder, "pairs.json" if own else "points.json")
    names = [f"{base} | {other}" for base, other in zip(points[::2], points[1::2], strict=False)]
    return names if names or own else None


def _points(folder: Path, name: str = "points.json") -> list[str]:
    """Point ids of a batch's plan in its order; none where there is no plan (deep)."""
    path = present(folder / name)
    if path is None:
        return []
    try:
        return [str(point["id"]) for point in read_json(path)]
    except (TypeError, KeyError):
        raise BadInput(path, "not a list of points") from None


def _record(folder: Path, tool: str) -> CaptureRecord:
    """The capture record of a tool; an empty one where there is none."""
    path = present(folder / f"{tool}.json")
    return read_as(path, CaptureRecord, "a capture record") if path else CaptureRecord()


def _rows(root: Path, capture: BatchReport, content: ncu.Report | Trace) -> Tables:
    """What a report or a trace adds to each table."""
    if isinstance(content, ncu.Report):
        kernels, names = content.kernels, NCU_TABLES
    else:
        kernels = [row for row in content.timeline if row["kind"] == "kernel"]
        names = NSYS_TABLES
    _same_kernels(capture.path, Counter(k["point"] for k in kernels), capture.record)
    key = _key(root, capture.path)
    found = {name: [key | row for row in getattr(content, name)] for name in names}
    said = [*capture.record.notes, *content.problems]
    return found | {"captures": [key | _capture(capture.tool, capture.record.origin, said)]}


def _same_kernels(path: Path, found: Counter[str | None], record: CaptureRecord) -> None:
    """A report that lost kernels at a block boundary, and a trace that lost rows or ranges, are well
    formed, as is another batch's: only the record can tell."""
    if record.kernels is None:
        return
    counted: dict[str | None, int] = dict(record.kernels.items())
    if record.unattributed is not None:
        counted[None] = record.unattributed
    for point in [*counted, *(point for point in found if point is not None)]:
        if found[point] != counted.get(point, 0):
            what = f"{found[point]} kernels of {point or 'no point'}, but its capture record says"
            raise BadInput(path, f"{what} {counted.get(point, 0)}")


def packed(rows: Tables) -> Tables:
    """What a report or a trace adds, with a table in place of the rows of each but the captures: it takes less memory, which
    children that read others share."""
    report = Path(rows["captures"][0]["report"])
    return rows | {n: [_built(n, rows[n], report)] for n in rows if n != "captures"}


def write(tables: Tables, out: Path) -> None:
    """Every table as out/<name>.parquet and .csv; nothing is written unless all rows fit.

    Raises BadInput where a value does not fit its column.
    """
    for name, table in {name: _built(name, tables[name], out) for name in TABLES}.items():
        parquet.write_table(out / f"{name}.parquet", table)


def _built(name: str, rows: list[Any], where: Path) -> pa.Table:
    try:
        return parquet.build(name, rows)
    except ValueError as error:
        raise BadInput(where, str(error)) from None


def share(_: Iterable[str]) -> None:
    """Load what reading a target takes: children of this process find it done."""
    from ncuflow.parsers import nsys  # noqa: F401 - for the children to inherit

    reader.preload()
    TimingLine.model_rebuild()
    PairLine.model_rebuild()


def command(batches: list[Path], /, *, evidence: Path, target: str, out: Path) -> None:
    """The tables of a target.

    Args:
        evidence: evidence root
        target: kernel target
        out: folder for the tables
        batches: batch folders of the target
    """
    tables = collect(evidence, batches, packed)
    stray = {row["target"] for row in tables["timing"]} - {target}
    if stray:
        raise BadInput(batches[0], f"times of {', '.join(sorted(stray))}, not {target}")
    write(tables, out)
