"""Which shape the ranges around a launch state: its own call's, or of a CUDA graph's node that of the call in its capture."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from ncuflow.findings import kernelname
from ncuflow.parsers.timeline import KERNEL, Ints, Launched, Timeline
from ncuflow.step import shapes
from ncuflow.step.annotate import REPLAY, replayed
from ncuflow.step.shapes import IN_CAPTURE, IN_RANGE, Shape

Stated = tuple[str, str]  # text of a range, and where that stood
NONE: Stated = ("", "")
REDUCES = re.compile(r"split_?k_?reduce", re.IGNORECASE)  # of a product that cuBLAS splits along k
NESTED = 4  # ranges that state a shape, around a call


class Ranges:
    """The ranges of a timeline that state a shape."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, texts = timeline, timeline.texts
        ranges = timeline.ranges.arrays()
        stating = [
            n
            for n in np.unique(ranges["name"]).tolist()
            if texts[n].startswith(REPLAY) or shapes.of_range(texts[n]) or shapes.sized(texts[n])
        ]
        mine = np.flatnonzero(np.isin(ranges["name"], stating))
        mine = mine[np.argsort(ranges["start"][mine], kind="stable")]
        self._starts, self._ends = ranges["start"][mine], ranges["end"][mine]
        self._names = ranges["name"][mine]

    def of(self, rows: Ints) -> list[Stated]:
        """For each row, in the order of their starts, the innermost range around its call; of a graph's node the range that its
        call had in the capture."""
        found, replays = [], defaultdict[tuple[str, int], list[int]](list)
        calls, keys = (self.timeline.rows[name][rows].tolist() for name in ("call", "key"))
        for place, (call, key) in enumerate(zip(calls, keys, strict=True)):
            text = self._around(call)
            if text.startswith(REPLAY):
                replays[text, key].append(place)
                text = ""
            found.append((text, IN_RANGE) if text else NONE)
        whats = self.timeline.rows["what"][rows].tolist()
        for (text, _), places in replays.items():
            kinds = [self.timeline.kinds[whats[place]] for place in places]
            for place, stated in zip(places, nodes(text, kinds), strict=True):
                found[place] = (stated, IN_CAPTURE) if stated else NONE
        return found

    def _around(self, call: int) -> str:
        place = int(np.searchsorted(self._starts, call, "right")) - 1 if call >= 0 else -1
        for one in range(place, max(-1, place - NESTED), -1):
            if self._ends[one] >= call:
                return self.timeline.texts[int(self._names[one])]
        return ""


def nodes(text: str, kinds: Sequence[Launched]) -> Iterator[str]:
    """For each kernel of a replay, in order, the range of its call in the capture; "" where it is not told which call that is:
    the calls of a target are of several shapes, and not as many as its kernels."""
    calls: dict[str, list[str]] = defaultdict(list)
    stated: dict[str, Shape] = {}
    for one in replayed(text):
        shape = shapes.of_range(one)
        if shape is not None and shape.target is not None:
            calls[shape.target.name].append(one)
            stated[shape.target.name] = shape
    owners = [next((n for n, s in stated.items() if _begins(kind, s)), "") for kind in kinds]
    told = {
        name: iter(own)
        for name, own in calls.items()
        if len(own) == owners.count(name) or len({*own}) == 1
    }
    for name in owners:
        yield next(told[name], calls[name][-1]) if name in told else ""


def _begins(one: Launched, stated: Shape) -> bool:
    """Whether a kernel is the first of such a call."""
    if one.kind != KERNEL or REDUCES.search(one.name) or stated.target is None:
        return False
    finishes = kernelname.decode(one.name).name in stated.target.rules.finishers
    return not finishes and shapes.is_of(one, stated)
