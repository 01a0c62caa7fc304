"""Where the steps of a trace begin and end: by ranges, by replays of CUDA graphs, or by the period of the kernels' names;
and what their time is made of beside their kernels: gaps, what ran at once, communication that nothing hid."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median

import numpy as np

from ncuflow.findings.kernelname import COMMUNICATION, COPY, SAMPLING, bare, family
from ncuflow.format import percent
from ncuflow.io import read_yaml
from ncuflow.parsers.nsys_sql import THREAD
from ncuflow.parsers.timeline import GRAPH, KERNEL, UNSAID, Ints, Numbered, Timeline
from ncuflow.step.annotate import REPLAY
from ncuflow.step.record import GapsOfStep
from ncuflow.target.launch import ENDLESS

LEAST, ALIKE = 3, 0.5  # steps that nothing marks: so many repeats, of kernels that agree by so much
RANGES, REPLAYS, PERIOD, LAYERS, WHOLE = (
    "ranges (NVTX, or of the profiler)", "replays of CUDA graphs", "the period of the kernels' names", "steps, or layers of one",
    f"no steps told: none is marked, nothing repeats {LEAST} times or more with kernels alike by {percent(ALIKE)}; all is shown",
)  # fmt: skip
PREFILL, DECODE, MIXED, UNKNOWN = "prefill", "decode", "mixed", "unknown"
COVERED = 0.5  # of the kernels, in ranges that are taken for steps
FEWEST = 3  # kernels of a step
# characters of a step's name; a search takes up to the square of what it looks through
LONGEST = 1 << 10
FETCH = "Device-to-Host"
WORDS = read_yaml(Path(__file__).with_name("words.yaml"))
_VLLM = re.compile(
    r"execute_(?:\d+_)?context_(?P<prompts>\d+)\((?P<ctx>[\w_]+)\)_generation_(?P<decodes>\d+)\((?P<gen>[\w_]+)\)"
)
_SGLANG = re.compile(r"step\[(?P<kind>\w+) bs=(?P<batch>\d+)(?: toks=(?P<tokens>\d+))?")


@dataclass
class StepSpan:
    """A step: the places of its operations among the timeline's rows, in the order of their starts; how it was found; what
    its label says of it (tokens, batch, kv_tokens…); host: begin and end of its range or of its calls, in ns."""

    rows: Ints
    kind: str = UNKNOWN
    label: str = ""
    said: dict[str, int] = field(default_factory=dict)
    replayed: bool = False
    host: tuple[int, int] | None = None


def found(timeline: Timeline, device: int) -> tuple[list[StepSpan], str]:
    """(steps of a GPU in the order of time, how they were found); one span of all where nothing tells steps apart."""
    rows = timeline.rows
    places = np.flatnonzero(rows["device"] == device)
    kernels = _is(timeline, KERNEL, GRAPH)[rows["what"]]
    for pattern in WORDS["steps"]:
        spans = _of_ranges(timeline, re.compile(pattern, re.IGNORECASE), places)
        inside = sum(int(kernels[span.rows].sum()) for span in spans)
        if spans and inside >= COVERED * int(kernels[places].sum()):
            return _classified(timeline, spans), RANGES
    spans, how = _by_period(timeline, places)
    return _classified(timeline, spans), how


def busiest(timeline: Timeline) -> int:
    """The device on which most time was spent: one of several is looked at."""
    rows = timeline.rows
    devices, inverse = np.unique(rows["device"], return_inverse=True)
    spent = np.bincount(inverse, weights=(rows["end"] - rows["start"]).astype(float))
    return int(devices[int(np.argmax(spent))])


def _is(timeline: Timeline, *kinds: str) -> np.ndarray:
    return np.array([one.kind in kinds for one in timeline.kinds], dtype=bool)


# --- ranges -----------------------------------------------------------------------------------------


def threads(timeline: Timeline) -> tuple[Ints, Ints]:
    """The threads of ranges, and of the calls of operations; all one where a trace numbers those of its calls otherwise."""
    ranges, calls = timeline.ranges.arrays()["thread"], timeline.rows["thread"]
    if np.isin(ranges, np.concatenate((calls, calls & ~THREAD))).any():
        return ranges, calls
    return np.zeros_like(ranges), np.zeros_like(calls)


def holds(scope: int, calls: Ints) -> np.ndarray:
    """Whether a range is of the thread of each call: nsys has ranges of whole processes too."""
    found: np.ndarray = calls == scope
    return found | (calls & ~THREAD == scope) if scope and not scope & THREAD else found


def _of_ranges(timeline: Timeline, pattern: re.Pattern[str], places: Ints) -> list[StepSpan]:
    """A span for each range of such a name in which something was launched, by the time of its call on its thread; those
    inside of another of them are part of it."""
    chosen = [
        number
        for number, text in enumerate(timeline.texts)
        if pattern.search(text[:LONGEST]) and not text.startswith(REPLAY)
    ]
    ranges = timeline.ranges.arrays()
    if not chosen or not len(timeline.ranges):
        return []
    listed = np.flatnonzero(np.isin(ranges["name"], chosen))
    listed = listed[np.lexsort((-ranges["end"][listed], ranges["start"][listed]))]
    scopes, callers = threads(timeline)
    rows, spans, last = timeline.rows, [], dict[int, int]()
    every = places[np.argsort(rows["call"][places], kind="stable")]
    own = {
        scope: every[holds(scope, callers[every])] for scope in np.unique(scopes[listed]).tolist()
    }
    calls = {scope: rows["call"][order] for scope, order in own.items()}
    for one in listed.tolist():
        start, end, scope = int(ranges["start"][one]), int(ranges["end"][one]), int(scopes[one])
        if end <= last.get(scope, UNSAID):
            continue
        first, behind = np.searchsorted(calls[scope], (start, end + 1))
        inside = own[scope][first:behind]
        if np.count_nonzero(rows["call"][inside] >= 0) < FEWEST:
            continue
        last[scope] = end
        label = timeline.texts[int(ranges["name"][one])]
        spans.append(StepSpan(np.sort(inside), label=label, host=(start, end)))
    return spans


def parse_range(label: str) -> dict[str, int]:
    """What a range's name says of its step: prompts, decodes, tokens, and of the KV cache all tokens that are read."""
    said: dict[str, int] = {}
    if ENDLESS.search(label):
        return said
    if match := _VLLM.search(label):
        said |= {"prompts": int(match["prompts"]), "decodes": int(match["decodes"])}
        tokens = [_summed(match[name]) for name in ("ctx", "gen")]
        if None not in [one for one, _ in tokens]:
            said["tokens"] = sum(one or 0 for one, _ in tokens)
            said["prompt_tokens"] = tokens[0][0] or 0
        if squares := re.match(r"(?:sq\d+sk\d+sqsq|\d+_)(\d+)", match["ctx"]):
            said["prompt_squares"] = int(squares[1])
        for name, (_, kv) in zip(("prompt_kv_tokens", "decodes_kv_tokens"), tokens, strict=True):
            if kv is not None:
                said[name] = kv
    elif match := _SGLANG.search(label):
        batch, decodes = int(match["batch"]), "DECODE" in match["kind"].upper()
        said |= {"decodes" if decodes else "prompts": batch}
        said["tokens"] = int(match["tokens"] or (batch if decodes else 0)) or batch
    return said


def _summed(text: str) -> tuple[int | None, int | None]:
    """(tokens, tokens of the KV cache) of "sq32sk32785sqsq…", "888_788544" or "888"."""
    if match := re.match(r"sq(\d+)sk(\d+)", text):
        return int(match[1]), int(match[2])
    match = re.match(r"\d+", text)
    return (int(match[0]), None) if match else (None, None)


# --- the period -------------------------------------------------------------------------------------


@dataclass
class Tokens:
    """What was launched, in order: each kernel by itself, and the kernels that one call launched together as one: the replay of
    a graph. of: by operation, its token; by token: name, a number; graph; samples, whether it draws the step's tokens; copies."""

    of: Ints
    name: Ints
    graph: np.ndarray
    samples: np.ndarray
    copies: np.ndarray
    fetched: np.ndarray


def _tokens(timeline: Timeline, places: Ints) -> Tokens:
    rows, kinds = timeline.rows, timeline.kinds
    what, key = rows["what"][places], rows["key"][places]
    families = [family(one.name) if one.kind == KERNEL else COPY for one in kinds]
    numbers = Numbered()
    short = np.array([numbers[bare(one.name)] for one in kinds], np.int64)
    _, first, inverse, counts = np.unique(
        key, return_index=True, return_inverse=True, return_counts=True
    )
    whole = np.array([one.kind == GRAPH for one in kinds], dtype=bool)[what]
    grouped = (key >= 0) & ((counts[inverse] >= FEWEST) | whole)
    leader = np.where(grouped, first[inverse], np.arange(len(places)))
    leads = leader == np.arange(len(places))
    of = (np.cumsum(leads) - 1)[leader]
    # A replay is called by its kernels: a sum of numbers that each name has.
    factors = np.random.default_rng(0).integers(1, 1 << 62, len(numbers) + 1, np.int64)
    names = np.zeros(int(leads.sum()), np.int64)
    np.add.at(names, of, factors[short[what]])
    samples = np.zeros(len(names), dtype=bool)
    np.logical_or.at(samples, of, np.array([one == SAMPLING for one in families])[what])
    copies = np.array([one == COPY for one in families])[what][leads]
    fetched = np.array([one.kind != KERNEL and one.name == FETCH for one in kinds])[what][leads]
    return Tokens(of, names, grouped[leads], samples, copies & ~grouped[leads], fetched)


def _by_period(timeline: Timeline, places: Ints) -> tuple[list[StepSpan], str]:
    """Steps that end with what a step ends with: its sampling, or else what is launched least often and yet again and again."""
    tokens = _tokens(timeline, places)
    ends = _ends(tokens)
    order = np.argsort(tokens.of, kind="stable")
    behind = np.searchsorted(tokens.of[order], np.array(ends), "right")
    graphs = np.cumsum(tokens.graph)
    spans, first, seen = [], 0, 0
    for end, last in zip(ends, behind.tolist(), strict=True):
        joined = places[np.sort(order[first:last])]
        replayed = int(graphs[end]) > seen
        spans.append(StepSpan(joined, replayed=replayed))
        first, seen = last, int(graphs[end])
    spans = _without_strangers(spans)
    alike = _alike(timeline, spans) if len(spans) >= LEAST else 0.0
    if alike < ALIKE:
        return [StepSpan(places)], WHOLE
    how = REPLAYS if all(span.replayed for span in spans) else PERIOD
    if any(span.replayed for span in spans) and how == PERIOD:
        how = f"{PERIOD}, {REPLAYS}"
    told = tokens.samples.any() or tokens.graph.any()
    return (
        spans,
        f"{how} ({len(spans)} repeats, alike by {percent(alike)}{'' if told else f': {LAYERS}'})",
    )


def _alike(timeline: Timeline, spans: Sequence[StepSpan]) -> float:
    """Of the median span, the share of its kernels, by their names, that it has in common with one that is alike: another of
    the same kernels, or a neighbour."""
    names = Numbered()
    short = np.array([names[bare(one.name)] for one in timeline.kinds], np.int64)
    what = timeline.rows["what"]
    held = [Counter(short[what[span.rows]].tolist()) for span in spans]
    often = Counter(frozenset(one.items()) for one in held)
    shares = []
    for place, one in enumerate(held):
        near = held[max(0, place - 1) : place] + held[place + 1 : place + 2]
        same = often[frozenset(one.items())] > 1
        shares.append(
            1.0 if same else max((one & other).total() / (one | other).total() for other in near)
        )
    return median(shares)


def _ends(tokens: Tokens) -> list[int]:
    """The places of the last tokens of steps."""
    samples = np.flatnonzero(tokens.samples)
    if len(samples):
        apart = np.append(np.diff(samples), FEWEST + 1) > FEWEST
        last: list[int] = samples[apart | tokens.graph[samples]].tolist()
        if len(last) >= LEAST:
            return [_fetched(tokens, end) for end in last]
    names, counts = np.unique(tokens.name[~tokens.copies], return_counts=True)
    often = counts[counts >= LEAST]
    if len(often) and often.max() == len(tokens.name):  # one kernel, or one graph, again and again
        return [*range(len(tokens.name))] if tokens.graph.all() else []
    if not len(often):
        return []
    # As many steps as most of the names that are launched least often say.
    values, alike = np.unique(often, return_counts=True)
    pairs = zip(alike.tolist(), values.tolist(), strict=True)
    count = min((-same if value <= 64 else 0, value) for same, value in pairs)[1]
    chosen = {*names[counts == count].tolist()}
    anchor = next(name for name in tokens.name.tolist() if name in chosen)
    starts = np.flatnonzero(tokens.name == anchor)
    return [*(starts[1:] - 1).tolist(), len(tokens.name) - 1] if len(starts) > 1 else []


def _fetched(tokens: Tokens, end: int) -> int:
    """The end with the copy that brings what was sampled to the host, close behind it: the host then has all of the step."""
    near = np.flatnonzero(tokens.fetched[end + 1 : end + 1 + FEWEST])
    others = np.flatnonzero((tokens.copies & ~tokens.fetched)[end + 1 : end + 1 + FEWEST])
    if not len(near) or (len(others) and others[0] < near[0]):
        return end
    return end + 1 + int(near[0])


def _without_strangers(spans: list[StepSpan]) -> list[StepSpan]:
    """Without a first or last one that has far more or fewer operations than any other: the trace began or ended in it."""
    if len(spans) < 3:
        return spans
    sizes = [len(span.rows) for span in spans]
    for place in (0, -1):
        others = sizes[1:] if place == 0 else sizes[:-1]
        if not any(0.8 * n <= sizes[place] <= 1.25 * n for n in others):
            spans = spans[1:] if place == 0 else spans[:-1]
            sizes = others
            if len(spans) < 3:
                break
    return spans


# --- what kind of step it is --------------------------------------------------------------------------


def _classified(timeline: Timeline, spans: list[StepSpan]) -> list[StepSpan]:
    rows = timeline.rows
    seen: dict[bytes, str] = {}
    for span in spans:
        span.said = parse_range(span.label)
        numbers = np.unique(rows["what"][span.rows])
        kind = _labelled(span) or seen.get(numbers.tobytes())
        span.kind = kind or seen.setdefault(numbers.tobytes(), _by_kernels(timeline, numbers))
        span.replayed = bool(in_graphs(timeline, span.rows).any())
        if span.host is None:
            called = rows["call"][span.rows]
            known = called[called >= 0]
            ends = rows["called"][span.rows]
            span.host = (int(known.min()), int(ends.max())) if len(known) else None
    return spans


def in_graphs(timeline: Timeline, at: Ints) -> np.ndarray:
    """Whether each operation is of a CUDA graph: as the trace says, or as one of many that a call launched."""
    keys = timeline.rows["key"][at]
    _, inverse, together = np.unique(keys, return_inverse=True, return_counts=True)
    many = (keys >= 0) & (together[inverse] >= 2 * FEWEST)
    return many | (timeline.rows["graph"][at] >= 0)  # type: ignore[no-any-return]


def _labelled(span: StepSpan) -> str | None:
    if span.said:
        prompts, decodes = (span.said.get(name, 0) for name in ("prompts", "decodes"))
        return MIXED if prompts and decodes else PREFILL if prompts else DECODE
    words = set(re.findall(r"[a-z]+", span.label.lower()))
    for kind, of in WORDS["kinds"].items():
        if words & {*of}:
            return str(kind)
    return None


_DECODES = re.compile(WORDS["decodes"], re.IGNORECASE)
_PROMPTS = re.compile(WORDS["prompts"], re.IGNORECASE)


def _by_kernels(timeline: Timeline, numbers: Ints) -> str:
    """By the kernels of its attention; one of a prefill kernel's smallest query tile is a decode on tensor cores."""
    names = {timeline.kinds[n].name for n in numbers.tolist()}
    attention = [name for name in names if family(name) == "attention" and "Merge" not in name]
    decodes = [name for name in attention if _DECODES.search(name) or _smallest(name)]
    prefills = [name for name in attention if name not in decodes and _PROMPTS.search(name)]
    if decodes and prefills:
        return MIXED
    return DECODE if decodes else PREFILL if prefills else UNKNOWN


def _smallest(name: str) -> bool:
    found = re.search(
        r"BatchPrefillWith\w+<.*KernelTraits<[^,]*MaskMode\)\d,\s*(?:\([\w ]+\))?(\d+)", name
    )
    return bool(found and found[1] == "16")


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
