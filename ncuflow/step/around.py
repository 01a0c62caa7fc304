"""What a step's time on the GPU is made of beside its kernels: gaps, what ran at once, communication that nothing hid."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from ncuflow.findings.kernelfamily import COMMUNICATION, bare, family
from ncuflow.parsers.timeline import Ints, Timeline
from ncuflow.step.record import GapsOfStep
from ncuflow.step.spans import StepSpan

_WAITS = re.compile(
    r"(Stream|Event|Device|Ctx|Context)Synchronize|^cu(da)?Memcpy(DtoH|HtoD)?$|hipDeviceSync"
)
PLAN = re.compile(r"(: |^|\b)plan(\(\))?$")
US = 1e-3  # of a ns


@dataclass(frozen=True)
class BusyTime:
    """Of a step, in us: span, from its first start to its last end; busy, in which anything ran; own: by row, the time that
    nothing had covered that began before; overlapped: several streams at once; dependent: kernels of one stream at once."""

    span: float
    busy: float
    own: np.ndarray
    overlapped: float
    dependent: float
    exposed_communication: float


def busy(timeline: Timeline, span: StepSpan) -> BusyTime:
    """From the rows of a step, which are in the order of their starts."""
    rows = timeline.rows
    start, end, stream = (rows[name][span.rows] for name in ("start", "end", "stream"))
    before = _before(end)
    own = np.clip(end - np.maximum(start, before), 0, None)
    dependent = 0
    for one in np.unique(stream):
        mine = np.flatnonzero(stream == one)
        late = np.clip(_before(end[mine]) - start[mine], 0, (end - start)[mine])
        dependent += int(late.sum())
    together = int((end - start).sum() - own.sum())
    kinds = np.array([family(one.name) == COMMUNICATION for one in timeline.kinds], dtype=bool)
    talks = kinds[rows["what"][span.rows]]
    whole = _covered(start, end)
    return BusyTime(
        span=float(end.max() - start.min()) * US,
        busy=float(whole) * US,
        own=own * US,
        overlapped=max(0, together - dependent) * US,
        dependent=dependent * US,
        exposed_communication=float(whole - _covered(start[~talks], end[~talks])) * US,
    )


def _before(end: Ints) -> Ints:
    """The latest end of all rows before each."""
    latest = np.maximum.accumulate(end) if len(end) else end
    return np.concatenate([np.array([-1], np.int64), latest[:-1]]) if len(end) else end


def _covered(start: Ints, end: Ints) -> int:
    """Time in which any of these ran; they are in the order of their starts."""
    return int(np.clip(end - np.maximum(start, _before(end)), 0, None).sum()) if len(start) else 0


def gaps(timeline: Timeline, span: StepSpan) -> GapsOfStep:
    """The idle times between a step's operations, by what the host did in them."""
    rows, at = timeline.rows, span.rows
    start, end, call, called = (rows[name][at] for name in ("start", "end", "call", "called"))
    idle = np.clip(start - _before(end), 0, None)
    idle[0] = 0
    latest = np.maximum.accumulate(end)
    who = np.maximum.accumulate(np.where(end == latest, np.arange(len(end)), 0))
    waits = _waits(timeline)
    spent = dict.fromkeys(("host_us", "sync_us", "launch_us", "graph_us"), 0.0)
    for place in np.flatnonzero(idle > 0).tolist():
        ended = int(latest[place - 1])
        before = int(who[place - 1])
        same = rows["key"][at[place]] == rows["key"][at[before]] and rows["key"][at[place]] >= 0
        if same:
            why = "graph_us"
        elif call[place] < 0 or call[place] <= ended:
            # The call may have begun before and still have been at it.
            why = "host_us" if called[place] > ended and call[place] >= 0 else "launch_us"
        else:
            why = "sync_us" if _waited(waits, ended, int(call[place])) else "host_us"
        spent[why] += float(idle[place]) * US
    longest = int(np.argmax(idle)) if len(idle) else 0
    names = [
        timeline.kinds[rows["what"][at[p]]].name for p in (int(who[max(longest - 1, 0)]), longest)
    ]
    return GapsOfStep(
        **{name: round(value, 3) for name, value in spent.items()},
        count=int((idle > 0).sum()),
        longest_us=round(float(idle[longest]) * US, 3) if len(idle) else 0.0,
        longest_between=" → ".join(bare(name)[:60] for name in names) if idle.any() else "",
    )


def _waits(timeline: Timeline) -> tuple[Ints, Ints]:
    """Begins and ends of calls that wait for the GPU, in order."""
    if not hasattr(timeline, "_waits"):
        calls = timeline.calls.arrays()
        named = [n for n, text in enumerate(timeline.texts) if _WAITS.search(text)]
        mine = np.flatnonzero(np.isin(calls["name"], named))
        mine = mine[np.argsort(calls["start"][mine])]
        timeline._waits = (calls["start"][mine], calls["end"][mine])  # type: ignore[attr-defined]
    found: tuple[Ints, Ints] = timeline._waits  # type: ignore[attr-defined]
    return found


def _waited(waits: tuple[Ints, Ints], ended: int, asked: int) -> bool:
    """Whether a call that waited for the GPU came back between the end of what ran and the call for the next."""
    place = int(np.searchsorted(waits[0], asked)) - 1
    return place >= 0 and int(waits[1][place]) >= ended


def planned(timeline: Timeline, spans: list[StepSpan]) -> list[float | None]:
    """us of each step in ranges that are called plan, of the host; None where the trace has no such range."""
    named = [n for n, text in enumerate(timeline.texts) if PLAN.search(text)]
    ranges = timeline.ranges.arrays()
    mine = np.flatnonzero(np.isin(ranges["name"], named)) if named else np.zeros(0, np.int64)
    if not len(mine):
        return [None] * len(spans)
    starts, lengths = ranges["start"][mine], (ranges["end"] - ranges["start"])[mine]
    found: list[float | None] = []
    for span in spans:
        first, last = span.host or (0, -1)
        found.append(float(lengths[(starts >= first) & (starts <= last)].sum()) * US)
    return found
