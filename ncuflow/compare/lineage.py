"""What became of a change over comparisons in a row: in which step it came, and whether a later one took it back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import log, log1p

from ncuflow.compare.records import Cause, Comparison, MetricChange

COLD = "cold_us"
Step = tuple[int, MetricChange]


@dataclass(frozen=True)
class Shift:
    """Points of a target that changed in one step for one cause; steps count from 0.

    changes: of each point; back: the step that brought their times back to what they were, with its changes, None where none did.
    """

    target: str
    step: int
    points: list[str]
    changes: list[MetricChange]
    back: int | None
    returned: list[MetricChange]

    @property
    def cause(self) -> Cause | None:
        """What took most of the change of the first point."""
        return _first(self.changes[0])

    @property
    def undone(self) -> Cause | None:
        """What took most of its way back."""
        return _first(self.returned[0]) if self.returned else None


def shifts(found: Sequence[Comparison]) -> list[Shift]:
    """Changes of the time of a launch by target, step and cause, in this order."""
    steps: dict[tuple[str, str], list[Step]] = defaultdict(list)
    for index, comparison in enumerate(found):
        for point in comparison.points:
            row = point.metrics.get(COLD)
            if row is not None and row.changed:
                steps[point.target, point.id].append((index, row))
    groups: dict[
        tuple[str, int, int, str], list[tuple[str, MetricChange, MetricChange | None]]
    ] = {}
    for (target, name), changed in steps.items():
        for (step, row), back in _paired(changed, found[0].settings.threshold):
            kind = " ".join(cause.kind + cause.what for cause in (_first(row),) if cause)
            key = (target, step, back[0] if back else len(found), kind)
            groups.setdefault(key, []).append((name, row, back[1] if back else None))
    return [
        Shift(
            target,
            step,
            [name for name, _, _ in members],
            [row for _, row, _ in members],
            back if back < len(found) else None,
            [row for _, _, row in members if row],
        )
        for (target, step, back, _), members in sorted(groups.items(), key=lambda item: item[0])
    ]


def _paired(changed: Sequence[Step], threshold: float) -> Iterator[tuple[Step, Step | None]]:
    """Each change of a point, with the later one after which its time is again what it was before."""
    taken: set[int] = set()
    for place, (step, row) in enumerate(changed):
        if step in taken:
            continue
        near = log1p(max(threshold, row.floor or 0.0))
        later = (one for one in changed[place + 1 :] if abs(log(one[1].head / row.base)) <= near)
        back = next(later, None)
        if back:
            taken.add(back[0])
        yield (step, row), back


def _first(row: MetricChange) -> Cause | None:
    known = [cause for cause in row.causes if cause.share_of_delta is not None]
    return max(known, key=lambda cause: cause.share_of_delta or 0.0, default=None)
