"""Why a point changed: kernels, copies and gaps of both sides, in microseconds.

A cause explains a part of the change; the parts of all causes and what stays unexplained add up to
it. Within a cause that is a kernel, ``parts`` splits its time (``decomposition``) and ``facts``
lists what else differs. A fact has no share: registers or bytes do not add up, they say why the
parts moved.
"""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

from ncuflow.compare import decomposition
from ncuflow.compare.records import Cause, ChangeTerm, Fact, Value
from ncuflow.findings import kernelname, limiter
from ncuflow.findings.join import idle_us
from ncuflow.format import number, with_unit
from ncuflow.model import Kernel, Row
from ncuflow.parquet import read_columns

MOST_LINES = 5
CLOCK_DECIDES = 0.5  # of a kernel's change
# Times as many instructions, or blocks, and more: two launches too unlike to share the time between them out.
OTHER_WORK = 4.0
# Of the timed change: causes that come to more than this, or to the opposite of it, are those of other runs.
MOST_EXPLAINED = 1.2
SMALL_REST = 0.05  # of the timed change
IN_ACTIVE = "compared in active cycles"
SAME_INSTRUCTIONS = 0.02
LEAST_LINE = 0.03  # of a kernel's change: a source line that moved by less is left out
SHOWN = 40  # characters of names that are not decoded
NOTHING = "–"  # where a side has no arguments of its own


# --- what nsys saw in the launches of each point ----------------------------------------------

TRACED = ("report", "point", "launch", "kind", "name", "start_ns", "end_ns", "duration_ns")


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


def traced(path: Path) -> dict[str, Traced]:
    """By point, from a timeline table; empty where there is none."""
    columns = read_columns(path, TRACED) if path.exists() else {}
    rows = zip(*columns.values(), strict=True)
    return of_timeline(dict(zip(columns, row, strict=True)) for row in rows)


def of_timeline(rows: Iterable[Row]) -> dict[str, Traced]:
    """Of rows of no point (the flush between launches, plan() before them) there is nothing.

    A point that two reports traced has launches in both.
    """
    points: dict[str, dict[tuple[str, int], list[Row]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row["point"] is not None:
            points[row["point"]][row["report"], row["launch"]].append(row)
    return {point: _traced([*launches.values()]) for point, launches in points.items()}


def _traced(launches: Sequence[Sequence[Row]]) -> Traced:
    idle = [idle_us((row["start_ns"], row["end_ns"]) for row in launch) for launch in launches]
    moved: list[dict[str, list[float]]] = []
    for launch in launches:
        moved.append(defaultdict(list))
        for row in launch:
            if row["kind"] in ("memcpy", "memset") and row["duration_ns"] is not None:
                named = row["name"] and row["name"] != row["kind"]
                what = f"{row['kind']} {row['name']}" if named else row["kind"]
                moved[-1][what].append(row["duration_ns"] / 1e3)
    # A launch without such a copy counts as 0 of them.
    times = {what: [own.get(what, []) for own in moved] for what in chain(*moved)}
    copies = {
        what: Copies(float(median(map(len, each))), median(map(math.fsum, each)))
        for what, each in times.items()
    }
    return Traced(copies, median(idle))


@dataclass(frozen=True)
class Profile:
    """What is known of one side of a point beside its times.

    kernels: in launch order, empty without counters; deep: profiled with their lines; gap_us:
    measured between kernels; info: what plan() chose; traced: None where nsys did not look; rates: of the timing run.
    """

    kernels: Sequence[Kernel] = ()
    deep: Sequence[Kernel] = ()
    gap_us: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    traced: Traced | None = None
    rates: decomposition.LaunchRates = field(default_factory=decomposition.LaunchRates)


@dataclass(frozen=True)
class Explained:
    """Causes by explained part, the µs that they leave of the timed change, and why they leave them."""

    causes: list[Cause]
    unexplained: float
    remainder: str


def explain(
    base: Profile,
    head: Profile,
    base_us: float,
    head_us: float,
    noise_us: float = 0.0,
    one_call: bool = False,
) -> Explained:
    """What changed the time of a point from base_us to head_us; noise_us: by how much two runs of one side may differ;
    one_call: both sides were called alike, so they do the same work, however unlike their launches are."""
    delta_us = head_us - base_us
    found = _of_device(base, head, one_call)
    explained = sum(cause.delta_us or 0.0 for cause in found)
    rest = delta_us - explained
    beyond = bool(delta_us) and not 0 <= explained / delta_us <= MOST_EXPLAINED
    if beyond:
        # Runs that differ by more than the timed ones do say what moved, and not how much of the timed change that is.
        shared = [c if abs(rest) <= noise_us else replace(c, parts=[]) for c in found]
    else:
        shared = [replace(c, share_of_delta=_share(c.delta_us, delta_us)) for c in found]
    sign = math.copysign(1, delta_us)
    shared.sort(key=lambda c: (c.kind != "other_work", -sign * (c.delta_us or 0)))
    return Explained(shared, rest, _remainder(found, rest, delta_us, noise_us))


def _remainder(found: Sequence[Cause], rest: float, delta_us: float, noise_us: float) -> str:
    """Why causes leave µs of a change, or explain more than all of it."""
    if not found:
        return "nothing that both sides recorded differs"
    if abs(rest) <= max(noise_us, SMALL_REST * abs(delta_us)):
        return "no more than runs of one side differ by"
    clocks = next((cause.evidence for cause in found if IN_ACTIVE in cause.evidence), None)
    if clocks:
        return "kernels that are compared in active cycles: what an idle SM adds is not among them"
    return (
        f"ncu's and nsys's launches differ by {delta_us - rest:+.3g} µs, the timed ones by {delta_us:+.3g}: "
        "they are other runs, each kernel measured alone"
    )


def _share(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole else None


def _of_device(base: Profile, head: Profile, one_call: bool = False) -> list[Cause]:
    pairs, removed, added = match(*_kernels_of(base, head))
    found = [cause for a, b in pairs for cause in _of_pair(a, b, base, head, one_call)]
    found += _of_rest(removed, added)
    chosen = list(_chosen(base, head))
    found = [
        replace(cause, facts=[*chosen, *cause.facts]) if cause.kind == "kernel_replaced" else cause
        for cause in found
    ]
    found += [*_of_copies(base.traced, head.traced), *_of_gaps(base, head)]
    return [cause for cause in found if cause.delta_us or cause.facts]


def _chosen(base: Profile, head: Profile) -> Iterator[Fact]:
    """What plan() chose otherwise: a fact where another kernel ran, and a mere name where the same one did."""
    for name, before in base.info.items():
        if before != head.info.get(name, before):
            yield Fact("plan", f"plan(): {name}", before, head.info[name])


# --- kernels ----------------------------------------------------------------------------------


def _kernels_of(base: Profile, head: Profile) -> tuple[Sequence[Kernel], Sequence[Kernel]]:
    """The kernels of both sides; none where a side was not profiled: nothing was added there."""
    return (base.kernels, head.kernels) if base.kernels and head.kernels else ([], [])


def match(
    base: Iterable[Kernel], head: Iterable[Kernel]
) -> tuple[list[tuple[Kernel, Kernel]], list[Kernel], list[Kernel]]:
    """(pairs, only in base, only in head): by short name in launch order, as many leftovers by time.

    Where one side launches a name more often, a launch has that for a partner which executes as many instructions.
    Of one kernel and four others nothing says which of the four took its place: they are no pair.
    """
    left, came = _by_name(base), _by_name(head)
    pairs: list[tuple[Kernel, Kernel]] = []
    for name in came:
        fewer, more = sorted((left[name], came[name]), key=len)
        alike = len(fewer) == len(more)
        for kernel in fewer:
            other = more.pop(0 if alike else _likest(kernel, more))
            pairs.append((kernel, other) if fewer is left[name] else (other, kernel))
        fewer.clear()
    removed, added = (list(chain(*side.values())) for side in (left, came))
    if len(removed) != len(added):
        return pairs, removed, added
    for kernels in (removed, added):
        kernels.sort(key=lambda kernel: -(kernel["duration_ns"] or 0))
    return pairs + list(zip(removed, added, strict=True)), [], []


def _by_name(kernels: Iterable[Kernel]) -> dict[str, list[Kernel]]:
    found: dict[str, list[Kernel]] = defaultdict(list)
    for kernel in kernels:
        found[kernel["name"]].append(kernel)
    return found


def _likest(kernel: Kernel, others: Sequence[Kernel]) -> int:
    """Which of the others executes the most similar number of instructions; the first where that is not known."""

    def unlike(place: int) -> float:
        pair = [one["metrics"].get("inst_executed") for one in (kernel, others[place])]
        return abs(math.log(pair[0] / pair[1])) if pair[0] and pair[1] else 0.0

    return min(range(len(others)), key=unlike)


def _of_rest(removed: Sequence[Kernel], added: Sequence[Kernel]) -> list[Cause]:
    """Kernels without a counterpart: one cause for all where both sides have some, or else one each."""
    times = [
        sum((kernel["duration_ns"] or 0) / 1e3 for kernel in kernels)
        for kernels in (removed, added)
    ]
    timed = all(kernel["duration_ns"] is not None for kernel in (*removed, *added))
    if not (removed and added and timed):
        alone = [_alone(kernel, "kernel_removed", -1) for kernel in removed]
        return alone + [_alone(kernel, "kernel_added", 1) for kernel in added]
    before, after = (with_unit(len(kernels), "kernels") for kernels in (removed, added))
    what = f"{before} → {after} of other names"
    gone, came = ([kernel["name"] for kernel in kernels] for kernels in (removed, added))
    evidence = f"ncu: {times[0]:.4g} → {times[1]:.4g} µs in all, {_place(*added)}"
    delta_us, facts = times[1] - times[0], list(_work_of(removed, added))
    return [Cause("kernel_replaced", what, gone, came, delta_us, evidence, facts=facts)]


def _work_of(removed: Sequence[Kernel], added: Sequence[Kernel]) -> Iterator[Fact]:
    """What the kernels of each side execute and move together, where that is known of all."""
    for row in COUNTERS:
        if row[2] in ADD_UP:
            yield from _counted(row, *(_sum(row[2], kernels) for kernels in (removed, added)))


def _sum(key: str, kernels: Sequence[Kernel]) -> float | None:
    values = [kernel["metrics"].get(key) for kernel in kernels]
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _alone(kernel: Kernel, kind: str, sign: int) -> Cause:
    time, name = kernel["duration_ns"], kernel["name"]
    delta_us = None if time is None else sign * time / 1e3
    what = f"one more kernel: {name}" if sign > 0 else f"one kernel fewer: {name}"
    base, head = (None, name) if sign > 0 else (name, None)
    return Cause(kind, what, base, head, delta_us, f"ncu: {_place(kernel)}")


def _place(*kernels: Kernel) -> str:
    report = kernels[0].get("report")
    if len(kernels) == 1 or not report:
        return f"{report} kernel {kernels[0]['kernel']}" if report else "report"
    return f"{report} kernels {', '.join(str(kernel['kernel']) for kernel in kernels)}"


def _of_pair(
    base: Kernel, head: Kernel, base_side: Profile, head_side: Profile, one_call: bool
) -> Iterator[Cause]:
    """Two launches of what should be one kernel; the kind says what changed first of all."""
    if base["duration_ns"] is None or head["duration_ns"] is None:
        return
    facts = [*facts_of(base, head), *_lines(base, head, base_side, head_side)]
    sides = base_side.rates, head_side.rates
    split = decomposition.split(base, head, sides)
    kind = _kind(base, head, facts, split.parts, decomposition.of_other_gpus(sides), one_call)
    if kind == "kernel_replaced" or not same_work(base, head):
        # How long the warps of one wait says nothing of the other: their facts stand beside each other.
        split = decomposition.Split((head["duration_ns"] - base["duration_ns"]) / 1e3, [])
    what, before, after = _headline(kind, base, head, facts, split.parts)
    times = f"{base['duration_ns'] / 1e3:.4g} → {head['duration_ns'] / 1e3:.4g} µs"
    evidence = (
        f"ncu: {times}{_clocks(base, head, split.cycles) if split.cycles else ''}, {_place(head)}"
    )
    yield Cause(kind, what, before, after, split.delta_us, evidence, parts=split.parts, facts=facts)


def _clocks(base: Kernel, head: Kernel, cycles: str) -> str:
    """That ncu's durations are not compared, and why."""
    ghz = [(decomposition.profiled_hz(kernel) or 0) / 1e9 for kernel in (base, head)]
    return f" at {ghz[0]:.2f} and {ghz[1]:.2f} GHz, {IN_ACTIVE if cycles == 'active' else 'compared in cycles'}"


def same_work(base: Kernel, head: Kernel) -> bool:
    """Whether two launches executed about as many instructions on about as many blocks, as far as is known."""
    times = _times(base, head).values()
    return all(1 / OTHER_WORK < many < OTHER_WORK for many in times)


def _times(base: Kernel, head: Kernel) -> dict[str, float]:
    """How many times the blocks and the instructions of the first launch the other has, where both are known."""
    counts: dict[str, list[Any]] = {
        "blocks": [kernel.get("grid_size") for kernel in (base, head)],
        "instructions": [kernel["metrics"].get("inst_executed") for kernel in (base, head)],
    }
    return {what: pair[1] / pair[0] for what, pair in counts.items() if pair[0] and pair[1]}


def _kind(
    base: Kernel,
    head: Kernel,
    facts: Iterable[Fact],
    parts: Iterable[ChangeTerm],
    other_gpu: bool,
    one_call: bool = False,
) -> str:
    kinds = {fact.kind for fact in facts}
    if base["name"] != head["name"]:
        return "kernel_replaced"
    if not (one_call or same_work(base, head)):
        return "other_work"
    # What ran differs: a change of clock would not be the first thing.
    first = {
        "template": "template",
        "code": "code",
        "launch": "launch_shape",
        "instructions": "gpu" if other_gpu else "execution",
    }
    for of_fact, kind in first.items():
        if of_fact in kinds:
            return kind
    if other_gpu:
        return "gpu"
    total = sum(part.delta_us for part in parts)
    clock = sum(part.delta_us for part in parts if part.kind == decomposition.CLOCK)
    return "clock" if total and clock / total >= CLOCK_DECIDES else "execution"


_WHAT = {
    "template": "{name}: template arguments",
    "code": "{name}: compiled code",
    "launch_shape": "{name}: launch",
    "clock": "{name}: SM clock",
    "execution": "{name}: same registers and launch, other execution",
    "kernel_replaced": "another kernel",
    "gpu": "{name}: the same registers and launch on another GPU; what limits it",
    "other_work": "{name}: {times}",
}


def _headline(
    kind: str, base: Kernel, head: Kernel, facts: Sequence[Fact], parts: Sequence[ChangeTerm]
) -> tuple[str, Value, Value]:
    times = ", ".join(
        f"{number(many, 2)} × the {what}" for what, many in _times(base, head).items()
    )
    what = _WHAT[kind].format(name=head["name"], times=times)
    if kind == "kernel_replaced":
        return what, base["name"], head["name"]
    if kind == "clock":
        clock = next(part for part in parts if part.kind == decomposition.CLOCK)
        return what, *_ghz(clock)
    if kind == "gpu":
        return what, _limit_of(base), _limit_of(head)
    if kind == "other_work":
        return what, _work(base), _work(head)
    if kind == "execution" and any(fact.kind == "instructions" for fact in facts):
        what = f"{head['name']}: same registers and launch, other instructions"
    named = [fact for fact in facts if fact.kind == kind.removesuffix("_shape")]
    if kind == "template" and any({fact.base, fact.head} & {None, NOTHING} for fact in named):
        # a parameter that came is a mark of other code, not what moved the time
        what = f"{head['name']}: other code (template parameters that one side does not have)"
    if not named:
        return what, (base["duration_ns"] or 0) / 1e3, (head["duration_ns"] or 0) / 1e3
    sides = [[(f.what, f.base) for f in named], [(f.what, f.head) for f in named]]
    before, after = (
        ", ".join(f"{name} {'absent' if value is None else value}" for name, value in side)
        for side in sides
    )
    return what, before, after


def _ghz(clock: ChangeTerm) -> tuple[str, str]:
    before, after = (f"{(hz or 0) / 1e9:.3f} GHz" for hz in (clock.base, clock.head))
    return before, after


def _limit_of(kernel: Kernel) -> str:
    """``DRAM 88 % of its peak``, or that no unit limits the launch."""
    unit = decomposition.limits(kernel)
    return f"{limiter.label(unit.name)} {unit.pct:.0f} % of its peak" if unit else "waits"


def _work(kernel: Kernel) -> str:
    executed, moved = kernel["metrics"].get("inst_executed"), decomposition.dram_bytes(kernel)
    counted = [
        f"{value / scale:.3g} {unit}"
        for value, scale, unit in ((executed, 1e6, "M instructions"), (moved, 1e6, "MB of DRAM"))
        if value is not None
    ]
    return ", ".join([f"grid {kernel['grid']}", *counted])


# --- facts ------------------------------------------------------------------------------------

# (kind, label, registry key, unit, least relative change, least absolute change)
Counted = tuple[str, str, str, str, float, float]
COUNTERS: tuple[Counted, ...] = (
    ("instructions", "instructions executed", "inst_executed", "", SAME_INSTRUCTIONS, 0.0),
    ("clock", "SM clock", "sm_clock_hz", "hz", 0.02, 0.0),
    ("dram", "DRAM bytes read", "dram_bytes_read", "byte", 0.05, 1e5),
    ("dram", "DRAM bytes written", "dram_bytes_write", "byte", 0.05, 1e6),
    ("l2", "L2 bytes that L1 asked for", "l2_bytes_l1", "byte", 0.05, 1e6),
    ("l2", "L2 hit rate", "l2_hit_pct", "%", 0.0, 3.0),
    ("spills", "local memory bytes (spills)", "spill_bytes", "byte", 0.05, 1e4),
    ("conflicts", "shared-memory bank conflicts", "smem_bank_conflicts", "", 0.2, 1e4),
    ("tensor", "tensor pipe busy", "tensor_pipe_pct", "%", 0.0, 2.0),
    ("tensor", "tensor FLOPs", "tensor_flops", "FLOP", 0.02, 1e6),
    ("issue", "instructions issued per cycle", "issue_active", "", 0.05, 0.0),
    ("occupancy", "active warps per scheduler", "warps_active_per_scheduler", "", 0.05, 0.0),
    ("occupancy", "theoretical occupancy", "theoretical_occupancy_pct", "%", 0.0, 0.5),
    ("waves", "waves", "waves", "", 0.05, 0.0),
)  # fmt: skip
# of these, what several kernels do together
ADD_UP = {
    "inst_executed", "dram_bytes_read", "dram_bytes_write", "l2_bytes_l1", "spill_bytes",
    "smem_bank_conflicts", "tensor_flops",
}  # fmt: skip


def facts_of(base: Kernel, head: Kernel) -> Iterator[Fact]:
    """What differs between two kernel rows: template, launch, resources, then counters."""
    if base["name"] == head["name"]:  # another template has other parameters, not other values
        yield from _template(base["demangled"], head["demangled"])
    shape: tuple[tuple[str, str, Value, Value], ...] = (
        ("launch", "grid", base["grid"], head["grid"]),
        ("launch", "block", base["block"], head["block"]),
        ("code", "registers", base["registers"], head["registers"]),
        ("code", "static shared memory", base["smem_static_bytes"], head["smem_static_bytes"]),
        ("smem", "dynamic shared memory", base["smem_dynamic_bytes"], head["smem_dynamic_bytes"]),
        ("occupancy", "blocks that an SM can hold", _limit(base), _limit(head)),
    )
    yield from (Fact(*row) for row in shape if None not in row and row[2] != row[3])
    for row in COUNTERS:
        yield from _counted(row, _counter(base, row[2]), _counter(head, row[2]))


def _counter(kernel: Kernel, key: str) -> float | None:
    """A counter of a launch; its clock is that of its duration."""
    if key == "sm_clock_hz":
        return decomposition.profiled_hz(kernel)
    return kernel["metrics"].get(key)


def _counted(row: Counted, a: float | None, b: float | None) -> Iterator[Fact]:
    """A counter of both sides, where it differs beyond its noise."""
    kind, what, _, unit, relative, absolute = row
    if a is not None and b is not None:
        least = max(relative * max(abs(a), abs(b)), absolute)
        if abs(b - a) > least:
            yield Fact(kind, what, a, b, unit)


def _limit(kernel: Kernel) -> str | None:
    """``4 (registers)``: the resource that lets the fewest blocks onto an SM."""
    limit = limiter.occupancy_limit(kernel["metrics"])
    return f"{limit.blocks} ({limit.resources[0]})" if limit else None


def _template(base: str | None, head: str | None) -> Iterator[Fact]:
    if not base or not head or base == head:
        return
    before, after = (_arguments(name) for name in (base, head))
    if any(parameter.startswith("#") for parameter in before | after):
        yield from _unnamed(base, head)
        return
    differ = [name for name in before | after if before.get(name) != after.get(name)]
    for name in differ:
        yield Fact("template", name, before.get(name), after.get(name))
    if not differ and _head_of(base) != _head_of(head):
        yield Fact("template", "arguments not decoded", *_first_difference(base, head))


def _unnamed(base: str, head: str) -> Iterator[Fact]:
    """Where a template's parameters are not known (another version's), the arguments of one side alone."""
    before, after = (re.findall(r"[^<>,\s][^<>,]*", _head_of(name)) for name in (base, head))
    moved = SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    only: tuple[list[str], list[str]] = ([], [])
    for tag, i, j, k, m in moved:
        if tag != "equal":
            only[0].extend(before[i:j])
            only[1].extend(after[k:m])
    if any(only):
        gone, came = (", ".join(texts) or NOTHING for texts in only)
        yield Fact("template", "only here:", gone, came)


def _arguments(demangled: str) -> dict[str, str]:
    return {a.parameter: a.value for a in kernelname.decode(demangled).arguments}


def _head_of(demangled: str) -> str:
    """Without the parameter list, which repeats the template arguments."""
    return demangled.rsplit(">(", 1)[0]


def _first_difference(base: str, head: str) -> tuple[str, str]:
    start = next((i for i, (a, b) in enumerate(zip(base, head, strict=False)) if a != b), 0)
    return base[start : start + SHOWN], head[start : start + SHOWN]


def _lines(base: Kernel, head: Kernel, base_side: Profile, head_side: Profile) -> list[Fact]:
    """Source lines that moved most in the kernel's direction: their share of the samples × the deep-profiled duration."""
    before, after = _by_line(base, base_side), _by_line(head, head_side)
    if not (before and after):
        return []
    change = ((head["duration_ns"] or 0) - (base["duration_ns"] or 0)) / 1e3
    along = math.copysign(1.0, change)
    both = {line: (before.get(line, 0.0), after.get(line, 0.0)) for line in before | after}
    moved = {line: along * (b - a) for line, (a, b) in both.items()}
    top = sorted(moved, key=lambda line: -moved[line])[:MOST_LINES]
    least = LEAST_LINE * abs(change)
    return [Fact("line", line, *both[line], "µs") for line in top if moved[line] > least]


def _by_line(kernel: Kernel, side: Profile) -> dict[str, float]:
    """µs by source line of the deep profile of this kernel; empty where there is none."""
    for deep in side.deep:
        if deep["name"] == kernel["name"] and deep.get("lines") and deep["duration_ns"]:
            counts: Counter[str] = Counter()
            for row in deep["lines"]:
                known = row["file"] and row["line"]
                place = f"{row['file']}:{row['line']}" if known else row["opcode"] or "unknown"
                counts[place] += row["samples"]
            total, time = counts.total(), deep["duration_ns"] / 1e3
            return {place: n / total * time for place, n in counts.items()} if total else {}
    return {}


# --- copies and gaps: what nsys saw -----------------------------------------------------------


def _of_copies(base: Traced | None, head: Traced | None) -> Iterator[Cause]:
    """Nothing where a side has no trace: what was not looked at was not added."""
    if base is None or head is None:
        return
    none = Copies(0, 0.0)
    for what in base.copies | head.copies:
        a, b = base.copies.get(what, none), head.copies.get(what, none)
        kind = "added" if b.count > a.count else "removed" if b.count < a.count else "changed"
        evidence = "nsys: copies and fills of a launch"
        yield Cause(f"copy_{kind}", what, a.count, b.count, b.us - a.us, evidence)


def _of_gaps(base: Profile, head: Profile) -> Iterator[Cause]:
    """Without the timelines of both sides: their measured gaps between kernels."""
    between, a, b = "kernels", base.gap_us, head.gap_us
    if base.traced and head.traced:
        between, a, b = "kernels, copies and fills", base.traced.idle_us, head.traced.idle_us
    if a is not None and b is not None and a != b:
        what = f"idle time between the {between} of a launch"
        yield Cause("gap", what, a, b, b - a, "nsys: gaps of a launch")
