"""What a step's time on the GPU is made of beside its kernels: gaps, what ran at once, communication that nothing hid."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ncuflow.findings.kernelname import COMMUNICATION, bare, family
from ncuflow.parsers.timeline import UNSAID, Ints, Timeline
from ncuflow.step.detection import FETCH, StepSpan
from ncuflow.step.record import GapsOfStep

_WAITS = re.compile(
    r"(Stream|Event|Device|Ctx|Context)Synchronize|^cu(da)?Memcpy(DtoH|HtoD)?$|hipDeviceSync"
)
PLAN = re.compile(r"(: |^|\b)plan(\(\))?$")
US = 1e-3  # of a ns


@dataclass(frozen=True)
class BusyTime:
    """Of a step, in us: span, from its first start to its last end; busy, in which anything ran; own: by row, the time that
    nothing had covered that began before; overlapped: several streams at once; dependent: kernels of one stream at once, both
    None where an operation does not say its stream."""

    span: float
    busy: float
    own: np.ndarray
    overlapped: float | None
    dependent: float | None
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
    whole, streams = _covered(start, end), bool((stream != UNSAID).all())
    return BusyTime(
        span=float(end.max() - start.min()) * US,
        busy=float(whole) * US,
        own=own * US,
        overlapped=max(0, together - dependent) * US if streams else None,
        dependent=dependent * US if streams else None,
        exposed_communication=float(whole - _covered(start[~talks], end[~talks])) * US,
    )


def _before(end: Ints) -> Ints:
    """The latest end of all rows before each."""
    latest = np.maximum.accumulate(end) if len(end) else end
    return np.concatenate([np.array([-1], np.int64), latest[:-1]]) if len(end) else end


def _covered(start: Ints, end: Ints) -> int:
    """Time in which any of these ran; they are in the order of their starts."""
    return int(np.clip(end - np.maximum(start, _before(end)), 0, None).sum()) if len(start) else 0


HOST, SYNC, LAUNCH, GRAPHED = "host_us", "sync_us", "launch_us", "graph_us"  # why the GPU was idle


def gaps(timeline: Timeline, span: StepSpan) -> GapsOfStep:
    """The idle times between a step's operations, by what the host did in them."""
    idle, who, why = _idle(timeline, span)
    spent = {name: float(idle[why == name].sum()) * US for name in (HOST, SYNC, LAUNCH, GRAPHED)}
    longest = int(np.argmax(idle)) if len(idle) else 0
    names = [
        timeline.kinds[timeline.rows["what"][span.rows[p]]].name
        for p in (int(who[max(longest - 1, 0)]), longest)
    ]
    return GapsOfStep(
        **{name: round(value, 3) for name, value in spent.items()},
        count=int((idle > 0).sum()),
        longest_us=round(float(idle[longest]) * US, 3) if len(idle) else 0.0,
        longest_between=" → ".join(bare(name)[:60] for name in names) if idle.any() else "",
    )


def _idle(timeline: Timeline, span: StepSpan) -> tuple[Ints, Ints, np.ndarray]:
    """Of each of a step's operations: the idle time before it, which had ended last when it began, and why it was idle, "" of
    one before which nothing was."""
    rows, at = timeline.rows, span.rows
    start, end, call = (rows[name][at] for name in ("start", "end", "call"))
    called = _called(timeline, at)
    idle = np.clip(start - _before(end), 0, None)
    idle[0] = 0
    latest = np.maximum.accumulate(end)
    who = np.maximum.accumulate(np.where(end == latest, np.arange(len(end)), 0))
    waits = _waits(timeline)
    why = np.full(len(at), "", dtype="<U9")
    for place in np.flatnonzero(idle > 0).tolist():
        ended = int(latest[place - 1])
        before = int(who[place - 1])
        same = rows["key"][at[place]] == rows["key"][at[before]] and rows["key"][at[place]] >= 0
        if same:
            why[place] = GRAPHED
        elif call[place] < 0 or call[place] <= ended:
            # The call may have begun before and still have been at it.
            why[place] = HOST if called[place] > ended and call[place] >= 0 else LAUNCH
        else:
            why[place] = SYNC if _waited(waits, ended, int(call[place])) else HOST
    return idle, who, why


def _called(timeline: Timeline, at: Ints) -> Ints:
    """When the host had asked for each operation: when its call came back. A call that fetches from the GPU and came back
    after the copy began had asked at its begin, and waited for the GPU since."""
    rows = timeline.rows
    start, call, called = (rows[name][at] for name in ("start", "call", "called"))
    fetches = np.array([FETCH in one.name for one in timeline.kinds], dtype=bool)[rows["what"][at]]
    return np.where(fetches & (called > start), call, called)


@dataclass(frozen=True)
class HostSlack:
    """How much sooner than it did each operation of a step could begin, in us, were what runs before it shorter and the host as
    slow as it was: infinite where only the GPU was waited for. waited: where the host itself had waited for the GPU, so that
    its later calls come sooner too."""

    sooner: np.ndarray
    waited: np.ndarray

    def gained(self, saved: np.ndarray) -> float:
        """us by which the step ends sooner where its operations take so much less each."""
        lead = shift = 0.0
        parts = np.concatenate([[0], np.flatnonzero(self.waited), [len(saved)]])
        for first, behind in pairwise(parts.tolist()):
            if first and self.waited[first]:
                shift = lead
            rest = saved[first:behind][::-1].cumsum()[::-1]  # from each operation to the last
            bounds = self.sooner[first:behind] + shift + rest
            lead = min(lead + float(rest[0]), float(bounds.min())) if len(rest) else lead
        return lead


def slack(timeline: Timeline, span: StepSpan) -> HostSlack:
    """Of a step whose calls the trace has; infinite where it has none."""
    rows, at = timeline.rows, span.rows
    start, key, call = (rows[name][at] for name in ("start", "key", "call"))
    _, _, why = _idle(timeline, span)
    sooner = np.clip(start - np.maximum(_called(timeline, at), call), 0, None) * US
    sooner[why == HOST] = 0.0
    replayed = np.concatenate([[False], (key[1:] == key[:-1]) & (key[1:] >= 0)])
    sooner[(call < 0) | replayed | np.isin(why, (SYNC, GRAPHED))] = np.inf
    return HostSlack(sooner, why == SYNC)


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
