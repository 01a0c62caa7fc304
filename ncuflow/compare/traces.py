"""What nsys saw in the launches of each point: copies, fills, and idle time between operations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from ncuflow.findings.join import idle_us

COLUMNS = ["report", "point", "launch", "kind", "name", "start_ns", "end_ns", "duration_ns"]


@dataclass(frozen=True)
class Copies:
    """Copies or fills of one kind in a launch: how many, and their µs together (medians)."""

    count: float
    us: float


@dataclass(frozen=True)
class Traced:
    """A launch as nsys saw it, medians over the launches; copies by kind and direction."""

    copies: dict[str, Copies]
    idle_us: float


def read(path: Path) -> dict[str, Traced]:
    """By point, from a timeline table; empty where there is none."""
    return of_timeline(pd.read_parquet(path, columns=COLUMNS)) if path.exists() else {}


def of_timeline(timeline: pd.DataFrame) -> dict[str, Traced]:
    """Of rows of no point (the flush between launches, plan() before them) there is nothing.

    A point that two reports traced has launches in both.
    """
    return {str(point): _traced(rows) for point, rows in timeline.groupby("point")}


def _traced(rows: pd.DataFrame) -> Traced:
    launches = rows.groupby(["report", "launch"])
    idle = launches.apply(lambda one: idle_us(zip(one["start_ns"], one["end_ns"], strict=True)))
    moved = rows[rows["kind"].isin(["memcpy", "memset"]) & rows["duration_ns"].notna()]
    named = moved["name"].notna() & (moved["name"] != moved["kind"])
    what = moved["kind"].where(~named, moved["kind"] + " " + moved["name"].fillna(""))
    each = (moved["duration_ns"] / 1e3).groupby([moved["report"], moved["launch"], what])
    # A launch without such a copy counts as 0 of them.
    count, us = (
        found.unstack(fill_value=0).reindex(idle.index, fill_value=0).median()
        for found in (each.size(), each.sum())
    )
    copies = {str(kind): Copies(float(count[kind]), float(us[kind])) for kind in what.unique()}
    return Traced(copies, float(idle.median()))
