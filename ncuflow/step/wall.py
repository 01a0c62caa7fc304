"""What steps take without the profiler, and how long the GPU idles then: a profiler that writes down shapes slows the host."""

import re
from collections.abc import Sequence
from pathlib import Path

from ncuflow.io import BadInput, UsageError
from ncuflow.parsers.show import read_trace
from ncuflow.step.record import StepAnswer, StepGroup
from ncuflow.step.reference import Reference
from ncuflow.step.shapes import NOTHING
from ncuflow.step.summary import SLOWED, Summary

GRAPH = "graph"  # of steps that replay one
ENOUGH = 0.9  # of the time in which the GPU was busy: a step that took less is another
_TIME = re.compile(r"(?:([a-z]+)=)?(\d{1,9}(?:\.\d{1,6})?) ?(s|ms|us|µs)")
_UNITS = {"s": 1e6, "ms": 1e3, "us": 1.0, "µs": 1.0}


def corrected(found: StepAnswer, words: Sequence[str]) -> StepAnswer:
    """The answer with the times that steps take unprofiled. words: TIME, KIND=TIME, or a trace without shapes. Raises UsageError
    where a time is no step's."""
    walls: dict[int, tuple[float, str]] = {}
    for word in words:
        if match := _TIME.fullmatch(word):
            kind, number, unit = match.groups()
            walls[_of(found, kind, word)] = (float(number) * _UNITS[unit], "said by the caller")
        else:
            walls |= _of_trace(found, Path(word))
    groups = [
        _with(group, *walls[at]) if at in walls else group for at, group in enumerate(found.groups)
    ]
    slowed = found.host_slowed and len(walls) < len(groups)
    problems = [one for one in found.problems if one != SLOWED or slowed]
    return found.model_copy(update={"groups": groups, "problems": problems})


def _of(found: StepAnswer, kind: str | None, word: str) -> int:
    """The place of the one group that is meant."""
    said = [(group.kind, group.replayed) for group in found.groups]
    mine = [at for at, (of, replayed) in enumerate(said) if kind in (None, of) or (kind == GRAPH and replayed)]  # fmt: skip
    if kind is not None and len(mine) > 1:
        mine = [at for at in mine if said[at][1] is (kind == GRAPH)]
    if len(mine) != 1:
        names = ", ".join(dict.fromkeys(GRAPH if replayed else of for of, replayed in said))
        raise UsageError(f"--wall {word}: of one kind of step, as KIND=TIME; there are: {names}")
    return mine[0]


def _of_trace(found: StepAnswer, path: Path) -> dict[int, tuple[float, str]]:
    """What steps of the same kinds take in another trace."""
    if not path.is_file():
        raise UsageError(f"--wall {str(path)!r}: TIME as 240ms, KIND=TIME, or a trace")
    other = Summary(read_trace(path), NOTHING, Reference()).answer()
    if other.host_slowed:
        raise BadInput(path, "its profiler wrote down shapes as well")
    times = {
        (group.kind, group.replayed): group.period_us or group.step_us.median
        for group in other.groups
    }
    source = f"the steps of {path.name}"
    return {
        at: (times[group.kind, group.replayed], source)
        for at, group in enumerate(found.groups)
        if (group.kind, group.replayed) in times
    }


def _with(group: StepGroup, wall: float, source: str) -> StepGroup:
    """A group whose step takes so many us; what its choices bring is of that step."""
    if wall < ENOUGH * group.busy_us:
        raise UsageError(f"--wall: {wall:g} µs is no {group.kind} step, whose kernels took {group.busy_us:g}")  # fmt: skip
    share, busy = group.shown_us / wall, group.busy_us / wall
    gains = [
        one.model_copy(
            update={
                "high_pct": round(one.high_pct * busy, 2),
                "low_pct": round(min(one.low_pct * share, one.high_pct * busy), 2),
                "share_pct": round(one.share_pct * share, 2),
            }
        )
        for one in group.gains
    ]
    families = [
        one.model_copy(update={"gain_pct": one.gain_pct and round(one.gain_pct * busy, 2)})
        for one in group.families
    ]
    within = group.gaps.graph_us if group.gaps else 0.0
    idle = round(max(0.0, wall - group.busy_us - within), 3)
    update = {"wall_us": wall, "wall_source": source, "idle_us": idle, "gains": gains}
    return group.model_copy(update={**update, "families": families})
