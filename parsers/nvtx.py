"""NVTX ranges of a trace, and which of them were open when something happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from ncuflow.parsers.nsys_sql import Database, integer

PUSH_POP, START_END = (59, 70), (60, 71)
THREAD = 0xFFFFFF  # the thread's part of a globalTid; the rest is the process


@dataclass(frozen=True)
class NvtxRange:
    """One range. `start`, `end` in ns (end None: never closed); `scope` is what it holds for: a
    thread for push/pop, a process for start/end; `number` counts the ranges of its name."""

    name: str
    start: int
    end: int | None
    scope: int
    number: int


def read(db: Database, problems: list[str]) -> list[NvtxRange]:
    """All named ranges, by start; of those that start together, the longer first.

    Ranges with impossible times are counted in `problems`.
    """
    found, left_out = [], 0
    columns = ("start", "end", "eventType", "text", "textId", "globalTid")
    for start, end, kind, text, identifier, thread in db.rows("NVTX_EVENTS", *columns):
        name = text if isinstance(text, str) and text else db.string(identifier)
        begins, ends, tid = integer(start), integer(end), integer(thread) or 0
        if name is None or kind not in PUSH_POP + START_END:
            continue
        if begins is None or begins < 0 or (ends is not None and ends < begins):
            left_out += 1
            continue
        found.append((begins, ends, name, tid if kind in PUSH_POP else tid & ~THREAD))
    if left_out:
        problems.append(f"{left_out} NVTX ranges without usable times were left out")
    found.sort(key=lambda r: (r[0], -_end(r[1])))
    counts: dict[str, int] = defaultdict(int)
    ranges = []
    for begins, ends, name, scope in found:
        ranges.append(NvtxRange(name, begins, ends, scope, counts[name]))
        counts[name] += 1
    return ranges


def _end(end: int | None) -> int:
    return 1 << 62 if end is None else end


def open_at(
    ranges: Iterable[NvtxRange], moments: Iterable[tuple[int, int]]
) -> list[list[NvtxRange]]:
    """For each (thread, time) the ranges open then, outermost first (process, then thread)."""
    listed = list(moments)
    by_scope: dict[int, list[NvtxRange]] = defaultdict(list)
    for item in ranges:
        by_scope[item.scope].append(item)
    found: list[list[NvtxRange]] = [[] for _ in listed]
    wanted: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for index, (thread, time) in enumerate(listed):
        for scope in dict.fromkeys((thread & ~THREAD, thread)):
            wanted[scope].append((time, index))
    for scope in sorted(wanted):  # a process's number is below those of its threads
        _sweep(by_scope.get(scope, []), sorted(wanted[scope]), found)
    return found


def _sweep(
    ranges: list[NvtxRange], moments: list[tuple[int, int]], found: list[list[NvtxRange]]
) -> None:
    """One pass over time: ranges open as their start is reached, drop behind their end."""
    position = 0
    active: list[NvtxRange] = []
    for time, index in moments:
        while position < len(ranges) and ranges[position].start <= time:
            active.append(ranges[position])
            position += 1
        active = [item for item in active if _end(item.end) >= time]
        found[index] += active


def encloses(outer: NvtxRange, inner: NvtxRange) -> bool:
    """`outer` began before `inner` and was still open at its end."""
    return outer.start <= inner.start and _end(outer.end) >= _end(inner.end)


def point_range(open_ranges: list[NvtxRange], points: Collection[str] | None) -> NvtxRange | None:
    """The range that names the point: innermost of the plan, or without a plan the outermost."""
    if points is None:
        return open_ranges[0] if open_ranges else None
    return next((item for item in reversed(open_ranges) if item.name in points), None)
