"""Which shape a launch had: said by a range around it, by the profiler, or told from the launch itself and what else is known;
or why it is not told."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from ncuflow.findings import kernelname
from ncuflow.io import BadInput, read_json
from ncuflow.parsers.timeline import KERNEL, UNSAID, Ints, Launched, Operator, Timeline
from ncuflow.step import detection
from ncuflow.step.annotate import REPLAY
from ncuflow.step.detection import WORDS
from ncuflow.sweep.workloads import dumped
from ncuflow.target.contract import Target, known
from ncuflow.target.launch import (
    ENDLESS,
    Between,
    Host,
    LaunchSignature,
    NoRuleError,
    Params,
    PartError,
    UnsaidError,
)
from ncuflow.target.workload import OPEN

# Names that others wrote may be as long as they like: each word is looked at once.
RANGE = re.compile(r"\b(?P<target>\w++)\((?P<params>\w++=[^()]*+)\)")
CALLED = re.compile(r"\b\w++::\w++")
SIZES = "sizes = [["
DUMP = "the dump"
FINISHES = "it finishes the call before it"
Stated = tuple[str, str]  # text of a range, and where that stood
NONE: Stated = ("", "")
REDUCES = re.compile(r"split_?k_?reduce", re.IGNORECASE)  # of a product that cuBLAS splits along k
NESTED = 4  # ranges that state a shape, around a call
IN_RANGE, IN_CAPTURE = "a range around the launch", "the capture of its graph"
UNEQUAL = "the calls of its graph's capture are not as many as its kernels, which others may have launched"
NARROW = re.compile(WORDS["narrow"], re.IGNORECASE)
WIDE = ("bf16", "f16")
CONTINUED = "the range of a call that launched more before"


@dataclass(frozen=True)
class Shape:
    """target: None where none knows the kernel; candidates: none where it was refused; finishes: it is the rest of the call of
    the kernel before it."""

    target: Target | None
    candidates: tuple[Params, ...] = ()
    source: str = ""
    refusal: str | None = None
    certain: Mapping[str, Any] = field(default_factory=dict)
    finishes: bool = False


@dataclass(frozen=True)
class KnownFacts:
    """What is known besides a launch: by name the least and the most, and where it is from."""

    values: Mapping[str, Between]
    sources: Mapping[str, str]

    def joined(self, more: Mapping[str, int | Between], source: str) -> KnownFacts:
        """With more of them; what was known before stays."""
        values, sources = dict(self.values), dict(self.sources)
        for name, value in more.items():
            if name not in values:
                values[name] = (value, value) if isinstance(value, int) else value
                sources[name] = source
        return KnownFacts(values, sources)


NOTHING = KnownFacts({}, {})


def of_dump(folder: Path) -> KnownFacts:
    """What a folder of FLASHINFER_TRACE_DUMP=1 says of a model: of each axis the one value that all definitions agree in.

    Raises BadInput where the folder holds no definition.
    """
    found: dict[str, set[int]] = {}
    read = 0
    for path in dumped(folder):
        try:
            content = read_json(path)
        except BadInput:  # a killed server leaves one half-written
            continue
        name = content.get("name") if isinstance(content, dict) else None
        axes = content.get("axes") if isinstance(content, dict) else None
        if not isinstance(name, str) or not isinstance(axes, dict):
            continue
        read += 1
        values = {axis: one.get("value") for axis, one in axes.items() if isinstance(one, dict)}
        for kind, axis, ours in WORDS["axes"]:
            if name.startswith(kind) and (value := _size(values.get(axis))):
                found.setdefault(ours, set()).add(value)
        if name.startswith(tuple(WORDS["gated"])) and (both := _size(values.get("hidden_size"))):
            found.setdefault("intermediate", set()).add(both // 2)
    if not read:
        raise BadInput(folder, "holds no definition of FlashInfer's")
    sure = {name: values.pop() for name, values in found.items() if len(values) == 1}
    return NOTHING.joined(sure, DUMP)


def _size(value: object) -> int | None:
    """A constant that a model may have."""
    return value if type(value) is int and 0 < value < 1 << 31 else None


def of_range(text: str, source: str = IN_RANGE) -> Shape | None:
    """The shape that a range states as TARGET(parameter=value, …); None of another range, and of a replay's, which states
    many."""
    for match in () if text.startswith(REPLAY) else RANGE.finditer(text):
        if ENDLESS.search(match["params"]):
            continue
        target = known().get(match["target"])
        if target is None:
            continue
        words = [word.partition("=") for word in match["params"].split(",")]
        params = {name.strip(): _read(value.strip()) for name, _, value in words}
        own = {name: value for name, value in params.items() if name in target.parameters}
        unsaid = [name for name, value in own.items() if value == OPEN and name in target.choices]
        left = {name: target.choices[name] for name in unsaid}
        each = product(*left.values())
        return Shape(target, tuple(own | dict(zip(left, one, strict=True)) for one in each), source)
    return None


def is_of(one: Launched, stated: Shape) -> bool:
    """Whether a kernel may be of the call that states a shape: of its target, or of a library with names of its own."""
    targets = kernelname.targets_of(kernelname.decode(one.name).name)
    if stated.target in targets or (stated.target and stated.target.rules.whole):
        return True
    if targets or stated.target is None:
        return False
    own = {kernelname.family(kernel.name) for kernel in stated.target.source.kernels}
    own.discard(kernelname.OTHER)
    return kernelname.family(one.name) in (own or {"GEMM"})


def sized(text: str) -> Operator | None:
    """The operator of a range that torch.autograd.profiler.emit_nvtx(record_shapes=True) opens."""
    before, _, behind = text.partition(SIZES)
    inner, ended, _ = behind.partition("]]")
    called, sizes = CALLED.search(before), f"[{inner}]"
    if not ended or called is None or ENDLESS.search(sizes):
        return None
    rows = re.findall(r"\[([\d, ]*+)\]", sizes)
    return Operator(
        called[0], tuple(tuple(int(n) for n in re.findall(r"\d+", row)) for row in rows), ()
    )


def _read(text: str) -> Any:
    """A value as a range has it; 50.0 is whole."""
    if text in ("True", "False"):
        return text == "True"
    return int(text.partition(".")[0]) if re.fullmatch(r"-?\d+(\.0+)?", text) else text


def of_operator(operator: Operator) -> Shape | None:
    """The shape that a framework's operator had; None of one that no target reads."""
    for target in known().values():
        params = target.rules.operators(operator.name, operator.dims, operator.types)
        if params is not None:
            return Shape(target, (params,), f"the shapes of {operator.name}")
    return None


def of_launch(
    one: Launched, facts: KnownFacts, hosts: Sequence[Host], graph: bool = False
) -> Shape:
    """What the launch of a kernel tells, by the rules of each target that may have launched it."""
    short = kernelname.decode(one.name).name
    targets = kernelname.targets_of(short)
    if not targets:
        return Shape(None, refusal="no target of ncuflow's has this kernel", source="")
    refused: Shape | None = None
    for target in targets:
        found = _by_target(target, short, one, facts, hosts, graph)
        if found.candidates or found.finishes:
            return found
        refused = found if refused is None or len(found.certain) > len(refused.certain) else refused
    assert refused is not None
    return refused


def _by_target(
    target: Target, short: str, one: Launched, facts: KnownFacts, hosts: Sequence[Host], graph: bool
) -> Shape:
    if short in target.rules.finishers:
        return Shape(target, source="the launch", refusal=FINISHES, finishes=True)
    if one.grid is None or one.block is None:
        return Shape(target, refusal="the trace has no grid and block for it that a GPU launches")
    if target.rules.shapes is None:
        return Shape(target, refusal=f"no rule of {target.name} tells a shape from this launch")
    name = kernelname.canonical(one.name)
    decoded, built = kernelname.decode(one.name), kernelname.built(one.name)
    dynamic = one.shared if one.dynamic is None else one.dynamic
    seen = LaunchSignature(
        short,
        lambda of: decoded.value(of) or built.get(of),
        one.grid,
        one.block,
        dynamic,
        name,
        graph,
        facts.values,
    )
    try:
        every = list(target.rules.shapes(seen))
    except PartError as error:
        return Shape(target, refusal=str(error), finishes=True)
    except UnsaidError as error:
        return Shape(target, source=_source(seen, facts), refusal=str(error), certain=error.params)
    candidates = [params for params in every if _possible(target, params)]
    held = _launching_alike(target, candidates, one, name, dynamic, hosts)
    if every and not held:
        why = "FlashInfer's launch rules, as they are known here, launch no shape so"
        return Shape(target, source=_source(seen, facts), refusal=why, certain=common(candidates))
    return Shape(target, tuple(held), _source(seen, facts))


def _possible(target: Target, params: Params) -> bool:
    """Whether a point may be so: no size is below one, as that of a launch which is no such kernel's."""
    try:
        target.completed(params)
    except ValueError:
        return False
    return True


def _launching_alike(
    target: Target,
    candidates: Iterable[Params],
    one: Launched,
    name: str,
    dynamic: int | None,
    hosts: Sequence[Host],
) -> list[Params]:
    """The candidates that the rules, read forwards, launch so; all of what they do not know."""
    rule = target.rules.launches
    if rule is None or not hosts:
        return list(candidates)
    kept = []
    for params in candidates:
        whole = target.completed(params)
        verdicts = [_launches(rule, whole, one, name, dynamic, host) for host in hosts]
        if True in verdicts or None in verdicts:
            kept.append(params)
    return kept


def _launches(
    rule: Any, params: Params, one: Launched, name: str, dynamic: int | None, host: Host
) -> bool | None:
    """Whether a point launches a kernel as it was seen; None where the rules do not know it."""
    short = kernelname.decode(one.name).name
    try:
        configs = [found for found in rule(params, host) if found is not None]
    except (KeyError, NoRuleError, ZeroDivisionError, StopIteration):
        return None
    mine = [found for found in configs if kernelname.decode(found.kernel).name == short]
    if not mine:
        return False if configs else None
    return any(
        found.grid == one.grid and found.block == one.block and dynamic in (None, found.shared)
        for found in mine
    )


def _source(seen: LaunchSignature, facts: KnownFacts) -> str:
    more = dict.fromkeys(facts.sources[name] for name in sorted(seen.used) if name in facts.sources)
    return ", ".join(["the launch", *more])


def common(candidates: Sequence[Params]) -> Params:
    """Parameters in which all candidates agree."""
    first = candidates[0] if candidates else {}
    return {
        name: value
        for name, value in first.items()
        if all(one.get(name) == value for one in candidates)
    }


def agreed(shapes: Iterable[Shape]) -> dict[str, int]:
    """What the launches of a step say of each other: where all that say it agree."""
    found: dict[str, set[int]] = {}
    for shape in shapes:
        if shape.target is None:
            continue
        params = common(shape.candidates) if shape.candidates else shape.certain
        for name, value in shape.target.rules.tells(dict(params)).items():
            found.setdefault(name, set()).add(value)
    return {name: values.pop() for name, values in found.items() if len(values) == 1}


class Ranges:
    """The ranges of a timeline that state a shape."""

    def __init__(self, timeline: Timeline) -> None:
        self.timeline, texts = timeline, timeline.texts
        ranges = timeline.ranges.arrays()
        stating = [
            n
            for n in np.unique(ranges["name"]).tolist()
            if texts[n].startswith(REPLAY) or of_range(texts[n]) or sized(texts[n])
        ]
        mine = np.flatnonzero(np.isin(ranges["name"], stating))
        mine = mine[np.argsort(ranges["start"][mine], kind="stable")]
        scopes, self._threads = detection.threads(timeline)
        self._names, scopes = ranges["name"][mine], scopes[mine]
        self._by_thread = dict[int, list[tuple[Ints, Ints, Ints]]]()  # places, starts and ends
        for thread in np.unique(self._threads).tolist():
            held = [
                np.flatnonzero(scopes == scope)
                for scope in np.unique(scopes).tolist()
                if detection.holds(scope, np.array([thread]))[0]
            ]
            self._by_thread[thread] = [
                (own, ranges["start"][mine[own]], ranges["end"][mine[own]]) for own in held
            ]

    def of(self, rows: Ints) -> list[Stated]:
        """For each row, in the order of their starts, the innermost range around its call; of a graph's node the range that its
        call had in the capture."""
        found, replays, begun = [], defaultdict[tuple[str, int], list[int]](list), set[int]()
        calls, keys, whats = (
            self.timeline.rows[name][rows].tolist() for name in ("call", "key", "what")
        )
        threads = self._threads[rows].tolist()
        for place, (call, key, thread) in enumerate(zip(calls, keys, threads, strict=True)):
            at = self._around(call, thread)
            text = self.timeline.texts[int(self._names[at])] if at >= 0 else ""
            if text.startswith(REPLAY):
                replays[text, key].append(place)
                text = ""
            source = CONTINUED if at in begun else IN_RANGE
            if self.timeline.kinds[whats[place]].kind == KERNEL and is_whole(of_range(text)):
                begun.add(at)
            found.append((text, source) if text else NONE)
        for (text, _), places in replays.items():
            kinds = [self.timeline.kinds[whats[place]] for place in places]
            for place, stated in zip(places, nodes(text, kinds), strict=True):
                found[place] = (
                    (stated, UNEQUAL if stated == UNEQUAL else IN_CAPTURE) if stated else NONE
                )
        return found

    def _around(self, call: int, thread: int) -> int:
        """The place of the innermost range around a call, of its thread or of its process; -1 for none."""
        found = (UNSAID, UNSAID)
        for places, starts, ends in self._by_thread[thread] if call >= 0 else ():
            place = int(np.searchsorted(starts, call, "right")) - 1
            for one in range(place, max(-1, place - NESTED), -1):
                if ends[one] >= call:
                    found = max(found, (int(starts[one]), int(places[one])))
                    break
        return found[1]


def is_whole(stated: Shape | None) -> bool:
    """Whether the kernels of such a call are held together by its range alone."""
    return stated is not None and stated.target is not None and stated.target.rules.whole


def nodes(text: str, kinds: Sequence[Launched]) -> Iterator[str]:
    """For each kernel of a replay, in order, the range of its call in the capture; "" of a call that is not told, and of what
    no other launches; UNEQUAL where the calls of a target are not as many as its kernels, which others may have launched."""
    order, *parts = text.removeprefix(REPLAY).split("; ")
    ranges = dict.fromkeys(order, "") | {part[:1]: part[2:] for part in parts}
    shapes = {letter: of_range(one) for letter, one in ranges.items()}
    stated: dict[str, list[Shape]] = defaultdict(list)
    for shape in shapes.values():
        if shape is not None and shape.target is not None and not is_whole(shape):
            stated[shape.target.name].append(shape)
    owners = [next((n for n, s in stated.items() if _begins(kind, s)), "") for kind in kinds]
    told = {}
    for name, found in stated.items():
        # A call that is not told is of a target whose calls are planned, and may be of any such.
        planned = found[0].target and any(one.plan for one in found[0].target.workload.calls)
        mine = {letter for letter, shape in shapes.items() if shape in found}
        mine |= {letter for letter, one in ranges.items() if planned and not one}
        calls = [ranges[letter] for letter in order if letter in mine]
        if len(calls) == owners.count(name):
            told[name] = iter(calls)
    for name in owners:
        yield (next(told[name]) if name in told else UNEQUAL) if name else ""


def _begins(one: Launched, stated: Sequence[Shape]) -> bool:
    """Whether a kernel is the first of a call of a target, of which a capture stated these shapes."""
    target = stated[0].target
    if one.kind != KERNEL or REDUCES.search(one.name) or target is None:
        return False
    wide = all(of.candidates[0].get("dtype") in WIDE for of in stated)
    if wide and kernelname.family(one.name) == "GEMM" and NARROW.search(one.name):
        return False
    finishes = kernelname.decode(one.name).name in target.rules.finishers
    return not finishes and is_of(one, stated[0])
