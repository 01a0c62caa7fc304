"""Copies: an nsys export goes through the tables, and an added copy is a cause with its time."""

from __future__ import annotations

from pathlib import Path

import pytest
from compare_data import compare, delta, pair, point, sweep
from test_parsers_nsys import PID, Export

from ncuflow.compare.attribution import Traced
from ncuflow.compare.records import Thresholds
from ncuflow.compare.verdict import Side
from ncuflow.io import write_json
from ncuflow.parsers import tables

POINT = "decode/B8"
LAUNCHES = 10
KERNEL_NS, COPY_NS, GAP_NS, FLUSH_NS, PREPARED_NS = 40_000, 5_900, 1_000, 90_000, 30_000


class Recorder:
    """A host thread that calls, and a GPU that does the work later, one operation after another."""

    def __init__(self) -> None:
        self.export = Export()
        self.host = self.gpu = self.calls = 0

    def operation(self, table: str, duration: int, gap: int = 0, **columns: int) -> None:
        self.calls += 1
        self.export.call(self.host, self.host + 10, self.calls, name=1 if table == "KERNEL" else 4)
        self.host += 20
        start = max(self.gpu + gap, self.host)
        self.gpu = start + duration
        if table == "KERNEL":
            self.export.kernel(start, self.gpu, self.calls)
        else:
            where = {"deviceId": 0, "streamId": 7, "globalPid": PID, "correlationId": self.calls}
            self.export.add(table, start=start, end=self.gpu, bytes=1 << 20, **where, **columns)

    def named(self, name: str, *operations: tuple) -> None:
        begin = self.host = self.host + 100
        for table, duration, gap, columns in operations:
            self.operation(table, duration, gap, **columns)
        self.export.range(begin, self.host, name)
        self.host += 100


def trace(folder: Path, copies: list[int]) -> Path:
    """Tables of a side: ten launches, with these copies (ns) in each; a slow first one.

    Around the launches there is what a run does besides: inputs copied in, plan(), the L2 flush.
    """
    run = Recorder()
    to_device, on_device = {"copyKind": 1}, {"copyKind": 8}
    run.operation("MEMCPY", PREPARED_NS, **to_device)
    run.named(f"plan:{POINT}", ("MEMCPY", PREPARED_NS, 0, to_device))
    for launch in range(LAUNCHES):
        run.operation("MEMSET", FLUSH_NS)
        slow = 20 if launch == 0 else 1
        copied = [("MEMCPY", slow * ns, GAP_NS, on_device) for ns in copies]
        run.named(POINT, ("KERNEL", KERNEL_NS, 0, {}), *copied)
        run.operation("MEMCPY", PREPARED_NS, **on_device)
    batch = folder / "evidence/decode/b0"
    batch.mkdir(parents=True)
    write_json(batch / "points.json", [{"id": POINT, "target": "decode", "params": {}}])
    run.export.write(batch / "trace.sqlite")
    tables.write(tables.collect(folder / "evidence", [batch]), folder / "tables/decode")
    return folder / "tables"


def sides(us: float) -> tuple[Side, Side]:
    """Two sides of a sweep; POINT takes ``us`` in the head, and neither side was traced."""
    head = sweep()
    head[7] = head[7] | point(POINT, us)
    return pair(sweep(), head)


def found(base: Side, head: Side) -> dict:
    (row,) = (p for p in compare(base, head, Thresholds())["points"] if p["id"] == POINT)
    return row


@pytest.mark.parametrize("before", [[], [COPY_NS]])
def test_an_added_copy_is_a_cause_with_the_time_of_one_launch(
    before: list[int], tmp_path: Path
) -> None:
    """Several copies of a launch count together."""
    base, head = sides(49.9 if not before else 60.0)
    more = [COPY_NS] if not before else [2 * COPY_NS, COPY_NS]
    base.tables = trace(tmp_path / "base", before)
    head.tables = trace(tmp_path / "head", before + more)
    row = found(base, head)["metrics"]["cold_us"]
    copy, gap = row["causes"]
    assert (copy["kind"], copy["what"]) == ("copy_added", "memcpy Device-to-Device")
    assert (copy["base"], copy["head"]) == (len(before), len(before) + len(more))
    assert copy["delta_us"] == pytest.approx(sum(more) / 1e3)
    assert copy["share_of_delta"] == pytest.approx(copy["delta_us"] / delta(row))
    assert (gap["kind"], gap["delta_us"]) == ("gap", pytest.approx(len(more) * GAP_NS / 1e3))
    explained = copy["delta_us"] + gap["delta_us"]
    assert row["unexplained"] == pytest.approx(delta(row) - explained)


def test_copies_and_fills_outside_the_launches_are_not_theirs(tmp_path: Path) -> None:
    folder = trace(tmp_path, [])
    assert Side("x", {}, {POINT: point(POINT, 1.0)}, folder).traced == {POINT: Traced({}, 0.0)}


@pytest.mark.parametrize("without", ["base", "head"])
def test_a_side_without_a_trace_has_no_known_copies(without: str, tmp_path: Path) -> None:
    base, head = sides(49.9)
    for side in (base, head):
        if side.name != without:
            side.tables = trace(tmp_path / side.name, [COPY_NS])
    document = compare(base, head, Thresholds())
    row = next(p for p in document["points"] if p["id"] == POINT)
    assert (row["verdict"], row["causes"]) == ("slower", [])
    assert row["unexplained"] == delta(row)
    (note,) = [n for n in document["statistics"]["notes"] if "nsys" in n]
    assert note.startswith("1 point changed")
