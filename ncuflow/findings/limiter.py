"""The limiter of a launch: the unit that bounds it, or the wait that keeps all units from their peaks.

The breakdown of Speed of Light says for how much of a launch each hardware unit worked at its sustained peak. What
the busiest leaves of the time are waits: SMs that hold no block, and blocks that wait for what is not there yet.
The verdict is that of NVIDIA's Speed-of-Light rule: from 80 % of its peak on a unit bounds the launch, below 60 %
the launch is latency-bound, and between the two the busiest unit and the waits share it. Both are bounds: to keep a
unit busy for p of the time is p of the time however short the waits become, and no wait that ends brings more than
its share. Here too: what lets no more blocks onto an SM, and where along a sweep the limiter changes.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

from ncuflow.findings.kernelname import MERGE
from ncuflow.model import BreakdownRow, Point, Row
from ncuflow.parsers.breakdown import UNITS

# NVIDIA's Speed-of-Light rule: from the first on a unit bounds a launch, as DRAM and the tensor pipe sustain little
# more; below the second nothing does, and latency is the issue.
CEILING = 80.0  # %
LATENCY = 60.0  # %
BOUND, PARTLY, WAITING = "bound", "partly", "latency"
# Of the kernels' time, per cent from which on the main kernel's verdict is the call's without its name and share.
ALONE = 95.0
# Percentage points below which two shares are a draw. Captured again, the largest counter of a launch moves by
# less than this in nine of ten launches (a test holds it for the recordings).
DRAW = 3.0
WAITS = {
    "latency": "latency",
    "blocks": "too few blocks",
    "tail": "launch and tail",
    "waits": "waits",
}
PADDED = 50.0  # per cent of the tensor FLOPs from which on padding is said: more of it than work
MERGING = 5.0  # per cent of the time from which on a merge is said beside the main kernel
UNKNOWN = "unknown"
OTHER = "other"  # of UNITS: none that has a name
MEMORY = ("dram", "l2", "l1", "lsu", "memory")  # units that move data; the others compute or issue


@dataclass(frozen=True)
class Share:
    """A unit or a wait, its share of the time in per cent, and of a unit the counter that says so."""

    name: str
    pct: float
    counter: str | None = None


@dataclass(frozen=True)
class Limiter:
    """How the time of a launch was used. Empty where its report has no breakdown.

    units: each hardware unit at its busiest counter, the busiest first; they overlap. waits: what the busiest
    of them leaves, the longest first: ``blocks`` (a slot that no block of the grid ever fills), ``tail`` (an SM that gets one has
    no block yet or no more) and ``latency`` (blocks are there and wait); ``waits`` is what cannot be told apart.
    """

    units: tuple[Share, ...] = ()
    waits: tuple[Share, ...] = ()

    @property
    def room(self) -> float | None:
        """Per cent of the time that ends with all waits, while the busiest unit does the same work."""
        return sum(wait.pct for wait in self.waits) if self.units else None

    @property
    def name(self) -> str:
        """A unit of ``UNITS``, one of ``WAITS``, or unknown."""
        return self._contest[0].name if self.units else UNKNOWN

    @property
    def draw(self) -> str | None:
        """The unit or wait to name beside the limiter; None where there is none.

        Beside a unit at its peak, and beside a wait, what takes as much of the time. Between the thresholds no unit
        is at its peak, and each that could limit counts.
        """
        if not self.units:
            return None
        first, *rest = self._contest
        near = rest and (first.pct - rest[0].pct < DRAW or self.verdict == PARTLY)
        return rest[0].name if near else None

    @property
    def verdict(self) -> str | None:
        """Bound (by a unit), partly (by a unit, and by waits) or latency; None where nothing is known."""
        if not self.units:
            return None
        if self.units[0].pct >= CEILING:
            return BOUND
        return PARTLY if self.units[0].pct >= LATENCY else WAITING

    @property
    def _contest(self) -> tuple[Share, ...]:
        """The units that could limit where one could, else waits."""
        return tuple(unit for unit in self.units if unit.pct >= LATENCY) or self.waits


def judge(
    parts: Iterable[BreakdownRow], metrics: Mapping[str, float | None], grid: int | None = None
) -> Limiter:
    """The limiter of one launch, from its breakdown, its metrics by registry key, and the blocks of its grid."""
    units: dict[str, Share] = {}
    for part in parts:
        if part["unit"] not in units or part["pct"] > units[part["unit"]].pct:
            units[part["unit"]] = Share(part["unit"], part["pct"], part["counter"])
    if not units:
        return Limiter()
    busiest_first = sorted(units.values(), key=lambda share: -share.pct)
    waits = _waits(max(0.0, 100 - busiest_first[0].pct), metrics, grid)
    return Limiter(tuple(busiest_first), tuple(sorted(waits, key=lambda share: -share.pct)))


def rolled_up(parts: Iterable[BreakdownRow], metrics: Mapping[str, float | None]) -> str | None:
    """Why L2's throughput does not limit a launch although it is as high as what does; None where it is not.

    NVIDIA rolls it up (``lts__throughput``) from counters of which a report may lack those that lead it: then it is above all
    that are there, and the breakdown of Speed of Light, which a verdict goes by, has no part as high.
    """
    most: dict[str, float] = {}
    for part in parts:
        most[part["unit"]] = max(part["pct"], most.get(part["unit"], 0.0))
    rolled, own = metrics.get("l2_throughput_pct"), most.get("l2")
    if rolled is None or own is None or rolled - own < DRAW or rolled <= max(most.values()) - DRAW:
        return None
    return (
        f"L2's {_pct(rolled)} are NVIDIA's roll-up (lts__throughput), which is above every counter of L2 that the report has: "
        f"the busiest of them is at {_pct(own)}, and the verdict goes by those."
    )


def _waits(left: float, metrics: Mapping[str, float | None], grid: int | None) -> list[Share]:
    """What the busiest unit leaves of the time, in per cent, by why as far as the counters tell."""
    waves, active = metrics.get("waves"), metrics.get("sm_cycles_active")
    elapsed = metrics.get("cycles_elapsed")
    if waves is None:
        return [Share("waits", left)]
    blocks = min(left, 100 * max(0.0, 1 - waves))
    if active is None or not elapsed:
        return [Share("blocks", blocks), Share("waits", left - blocks)]
    never = 0.0 if waves >= 1 else _never(grid, metrics)
    if never is None:
        return [Share("blocks", blocks), Share("waits", left - blocks)]
    # Each is counted in a replay pass of its own: the quotient may be above 1 by what those differ.
    tail = min(left - blocks, 100 * max(0.0, 1 - active / elapsed - never))
    return [Share("latency", left - blocks - tail), Share("tail", tail), Share("blocks", blocks)]


def _never(grid: int | None, metrics: Mapping[str, float | None]) -> float | None:
    """The part of the SMs that the grid has no block for, as blocks go to SMs without one first; None where not known.

    They are idle for all of the time, and their slots are among those that no block fills.
    """
    sms = metrics.get("sm_count")
    return None if grid is None or not sms else max(0.0, 1 - grid / sms)


def label(name: str, counter: str | None = None) -> str:
    """The name of a unit or a wait on pages; of a unit without one, with NVIDIA's counter, where it is known."""
    said = UNITS[name].label if name in UNITS else WAITS.get(name, "not known")
    return f"{said}, {counter.partition('.')[0]}" if name == OTHER and counter else said


def kind(row: Mapping[str, Any]) -> str | None:
    """The verdict of a measurement row without its figures, as points are counted by; None where nothing is known."""
    if row.get("verdict") is None:
        return None
    names = [label(name) for name in (row["limiter"], row["draw"]) if name]
    if row["verdict"] == BOUND:
        return f"bound by {' and '.join(names)}"
    if row["verdict"] == PARTLY:
        return f"{', '.join(names)}, otherwise latency-bound"
    return _latency_bound(names)


def columns(found: Limiter, waves: float | None) -> Row:
    """The columns of a measurement row that say a verdict, of a launch alone."""
    first, second = (*found.units, None, None)[:2]
    return {
        "verdict": found.verdict,
        "limiter": found.name,
        "draw": found.draw,
        "busiest_unit": first and first.name,
        "busiest_pct": first and first.pct,
        "busiest_counter": first and first.counter,
        "second_unit": second and second.name,
        "second_pct": second and second.pct,
        "waves": waves,
    }


def nature(row: Mapping[str, Any]) -> str | None:
    """Memory-bound, compute-bound, either in part, or latency-bound; None where nothing is known."""
    if row.get("verdict") is None:
        return None
    if row["verdict"] == WAITING:
        return "latency-bound"
    bound = "memory-bound" if row["busiest_unit"] in MEMORY else "compute-bound"
    return bound if row["verdict"] == BOUND else f"partly {bound}"


def words(row: Mapping[str, Any]) -> str | None:
    """The verdict of a measurement row as pages say it; None where nothing is known.

    Of a call of several kernels it is that of the one that takes the most time, with its name and share.
    """
    if row.get("verdict") is None:
        return None
    said, share, merge = _in_words(row), row.get("main_pct"), row.get("merge_pct")
    if share is None or share >= ALONE:
        return said
    merging = str(row["main_kernel"]).startswith(MERGE)
    name = "merge kernel" if merging else row["main_kernel"]
    beside = f"; merging takes {merge:.0f} %" if merge and merge >= MERGING and not merging else ""
    return f"{name}, {share:.0f} % of the time: {said}{beside}"


def _in_words(row: Mapping[str, Any]) -> str:
    """What limits the main kernel, with the shares of its units."""
    busiest, name = _pct(row["busiest_pct"]), label(row["busiest_unit"], row.get("busiest_counter"))
    draw = row["draw"] is not None and row["draw"] == row["second_unit"]
    second = f"{label(row['draw'])} {_pct(row['second_pct'])}" if draw else ""
    if row["verdict"] == BOUND:
        return f"bound by {name} ({busiest} of its peak)" + (f" and {second}" if second else "")
    if row["verdict"] == PARTLY:
        return f"{name} {busiest}{', ' if second else ''}{second}, otherwise latency-bound"
    waits = [_wait(row, wait) for wait in (row["limiter"], row["draw"]) if wait]
    padding = row.get("tensor_padding_pct") if row["busiest_unit"] == "tensor" else None
    padded = f", {padding:.0f} % of its work is padding" if padding and padding >= PADDED else ""
    return f"{_latency_bound(waits)}; busiest: {name} ({busiest}{padded})"


def _pct(value: float) -> str:
    """In whole per cent, but never rounded up to a threshold that the value does not reach."""
    short = value < round(value) in (LATENCY, CEILING)
    return f"{floor(10 * value) / 10:.1f} %" if short else f"{value:.0f} %"


def _wait(row: Mapping[str, Any], name: str) -> str:
    waves = row.get("waves")
    return label(name) + (f": {waves:.2g} waves" if name == "blocks" and waves is not None else "")


def _latency_bound(waits: list[str]) -> str:
    """Latency of blocks that are there is what the word means; other waits are named beside it."""
    named = [wait for wait in waits if wait not in (WAITS["latency"], WAITS["waits"])]
    return "latency-bound" + (f" ({', '.join(named)})" if named else "")


# --- occupancy: what lets no more blocks onto an SM ------------------------------------------

RESOURCES = {
    "occupancy_limit_registers": "registers",
    "occupancy_limit_shared_mem": "shared memory",
    "occupancy_limit_warps": "warps",
    "occupancy_limit_blocks": "block slots",
    "occupancy_limit_barriers": "barriers",
}


@dataclass(frozen=True)
class OccupancyLimit:
    """blocks: that an SM holds at once; resources: those that run out first."""

    blocks: int
    resources: tuple[str, ...]


def occupancy_limit(metrics: Mapping[str, float | None]) -> OccupancyLimit | None:
    """The limit of a launch by its metrics; None where the report has none."""
    limits = {name: metrics.get(key) for key, name in RESOURCES.items()}
    known = {name: limit for name, limit in limits.items() if limit is not None}
    if not known:
        return None
    least = min(known.values())
    return OccupancyLimit(
        int(least), tuple(name for name, limit in known.items() if limit == least)
    )


# --- regime changes: where, along a sweep, a kernel stops being latency-bound ----------------

# Read off the limiter of each point, not off a model: between two neighbouring points of a line the verdict changes.

Fixed = tuple[tuple[str, Any], ...]
FEWEST_JUDGED = 3  # points of a line that say anything about where it crosses


@dataclass(frozen=True)
class RegimeChange:
    """One line of a sweep: all parameters but ``axis`` equal.

    kind: crosses | always (a unit could at each point) | never | mixed (falls back at a larger size);
    below, above: the neighbouring axis values, None where it does not cross; before, after: their
    limiters; ``after`` of a line that does not cross is the limiter of its largest point.
    """

    axis: str
    fixed: Fixed
    values: tuple[Any, ...]
    kind: str
    after: str
    point: str
    below: Any = None
    above: Any = None
    before: str | None = None


def other_parameters(point: Point, axis: str) -> Fixed:
    """The parameters of a point other than ``axis``, hashable."""
    return tuple((k, v) for k, v in sorted(point["params"].items()) if k != axis)


def lines_along(points: Sequence[Point], axis: str) -> list[list[Point]]:
    """Points of status ok in lines along ``axis``, each sorted by it, the longest line first."""
    groups: dict[Fixed, list[Point]] = {}
    for point in points:
        if point["status"] == "ok" and axis in point["params"]:
            groups.setdefault(other_parameters(point, axis), []).append(point)
    ordered = [sorted(g, key=lambda p: p["params"][axis]) for g in groups.values()]
    return sorted(ordered, key=lambda g: -len(g))


def regime_change(line: list[Point], axis: str) -> RegimeChange | None:
    """Where one line crosses; None if fewer than three of its points have a verdict."""
    judged = [p for p in line if p["measurement"]["limiter"] in (*UNITS, *WAITS)]
    if len(judged) < FEWEST_JUDGED:
        return None
    bound = [p["measurement"]["limiter"] in UNITS for p in judged]
    first = bound.index(True) if any(bound) else None
    if first is None or all(bound):
        kind, after = ("never" if first is None else "always"), judged[-1]
    else:
        kind = "crosses" if first and all(bound[first:]) else "mixed"
        after = judged[first]
    before = judged[first - 1] if first else None
    return RegimeChange(
        axis,
        other_parameters(line[0], axis),
        tuple(p["params"][axis] for p in judged),
        kind,
        after["measurement"]["limiter"],
        after["point"],
        before["params"][axis] if before else None,
        after["params"][axis] if kind in ("crosses", "mixed") else None,
        before["measurement"]["limiter"] if before else None,
    )


def regime_changes(points: Sequence[Point], axis: str) -> list[RegimeChange]:
    """The regime change of each line of a sweep that is long enough to have one."""
    found = (regime_change(line, axis) for line in lines_along(points, axis))
    return [change for change in found if change]
