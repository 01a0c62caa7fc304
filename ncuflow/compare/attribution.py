"""Why a point changed: kernels, copies, launch and plan of both sides, in microseconds.

A cause explains a part of the change; the parts of all causes and what stays unexplained add up to
it. Within a cause that is a kernel, ``parts`` splits its time (``decomposition``) and ``facts``
lists what else differs. A fact has no share: registers or bytes do not add up, they say why the
parts moved.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from difflib import SequenceMatcher
from statistics import median
from typing import Any

from ncuflow.compare import decomposition
from ncuflow.findings import kernelname
from ncuflow.findings.join import idle_us

Row = dict[str, Any]
MOST_LINES = 5
CLOCK_DECIDES = 0.5  # of a kernel's change
SAME_INSTRUCTIONS = 0.02
RESOURCES = ("registers", "shared_mem", "warps", "blocks", "barriers")


@dataclass(frozen=True)
class Fact:
    """Something that differs, with both values in ``unit``."""

    kind: str
    what: str
    base: Any
    head: Any
    unit: str = ""


@dataclass
class Cause:
    """One explanation. ``delta_us`` is what it adds to the time, ``share_of_delta`` that over Δ.

    kind: kernel_added, kernel_removed, kernel_replaced, template, code, launch_shape, clock,
    execution, copy_added, copy_removed, copy_changed, gap, host_launch, plan.
    """

    kind: str
    what: str
    base: Any
    head: Any
    delta_us: float | None
    evidence: str
    share_of_delta: float | None = None
    parts: list[Row] = field(default_factory=list)
    facts: list[Row] = field(default_factory=list)


def explain(
    base: Row,
    head: Row,
    metric: str,
    delta_us: float,
    times: tuple[float | None, float | None] = (None, None),
) -> tuple[list[Row], float]:
    """(causes by explained part, what they leave unexplained in µs) of one changed point.

    base, head: points of ``<target>_results.json``, each with ``kernels`` and, where known,
    ``operations`` (copies seen by nsys, ``operations_of``), ``idle_us`` (``idle_of``) and ``deep``
    (deep-profiled kernels with their lines); metric: cold_us, host_us or plan_us; times: what the
    metric was on both sides, over all runs.
    """
    found = (
        _of_device(base, head)
        if metric == "cold_us"
        else [_of_host(base, head, metric, delta_us, times)]
    )
    for cause in found:
        cause.share_of_delta = _share(cause.delta_us, delta_us)
    found.sort(key=lambda cause: -(cause.share_of_delta or 0.0))
    explained = sum(cause.delta_us or 0.0 for cause in found)
    return [asdict(cause) for cause in found], delta_us - explained


def _share(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole else None


def _of_device(base: Row, head: Row) -> list[Cause]:
    pairs, removed, added = match(*_kernels_of(base, head))
    found = [
        _of_pair(a, b, base, head) for a, b in pairs if _us(a) is not None and _us(b) is not None
    ]
    found += [_alone(kernel, "kernel_removed") for kernel in removed]
    found += [_alone(kernel, "kernel_added") for kernel in added]
    found += _of_copies(base.get("operations"), head.get("operations"))
    return [cause for cause in [*found, *_of_gaps(base, head)] if cause.delta_us or cause.facts]


# --- kernels ----------------------------------------------------------------------------------


def _kernels_of(base: Row, head: Row) -> tuple[list[Row], list[Row]]:
    """The kernels of both sides; none where a side was not profiled: nothing was added there."""
    sides = base["kernels"], head["kernels"]
    return sides if all(sides) else ([], [])


def match(
    base: Iterable[Row], head: Iterable[Row]
) -> tuple[list[tuple[Row, Row]], list[Row], list[Row]]:
    """(pairs, only in base, only in head): by short name in launch order, leftovers by time."""
    waiting: dict[str, list[Row]] = defaultdict(list)
    for kernel in base:
        waiting[kernel["name"]].append(kernel)
    pairs, added = [], []
    for kernel in head:
        if waiting[kernel["name"]]:
            pairs.append((waiting[kernel["name"]].pop(0), kernel))
        else:
            added.append(kernel)
    removed = [kernel for kernels in waiting.values() for kernel in kernels]
    by_time: Callable[[Row], float] = lambda kernel: -(kernel["duration_ns"] or 0)  # noqa: E731
    removed.sort(key=by_time)
    added.sort(key=by_time)
    replaced = list(zip(removed, added, strict=False))
    return pairs + replaced, removed[len(replaced) :], added[len(replaced) :]


def _us(kernel: Row) -> float | None:
    return None if kernel["duration_ns"] is None else kernel["duration_ns"] / 1e3


def _alone(kernel: Row, kind: str) -> Cause:
    sign = 1 if kind == "kernel_added" else -1
    time = _us(kernel)
    names = (None, kernel["name"]) if sign > 0 else (kernel["name"], None)
    what = f"{'one more' if sign > 0 else 'one less'} kernel: {kernel['name']}"
    delta = None if time is None else sign * time
    return Cause(kind, what, names[0], names[1], delta, _origin(kernel))


def _origin(kernel: Row) -> str:
    where = f"{kernel['report']} kernel {kernel['kernel']}" if kernel.get("report") else "report"
    return f"ncu: {where}"


def _of_pair(base: Row, head: Row, base_point: Row, head_point: Row) -> Cause:
    """Two launches of what should be one kernel; the kind says what changed first of all."""
    facts = list(facts_of(base, head)) + _lines(base, head, base_point, head_point)
    parts = decomposition.parts(base, head)
    delta = (head["duration_ns"] - base["duration_ns"]) / 1e3
    kind = _kind(base, head, facts, parts)
    what, before, after = _headline(kind, base, head, facts)
    evidence = f"ncu: {_us(base):.4g} → {_us(head):.4g} µs, {_origin(head).removeprefix('ncu: ')}"
    cause = Cause(kind, what, before, after, delta, evidence)
    cause.parts = [_part(part, delta) for part in parts]
    cause.facts = [asdict(fact) for fact in facts]
    return cause


def _part(part: decomposition.Part, delta_us: float) -> Row:
    row = asdict(part)
    time = row.pop("delta_ns") / 1e3
    return row | {"delta_us": time, "share_of_cause": _share(time, delta_us)}


def _kind(base: Row, head: Row, facts: list[Fact], parts: list[decomposition.Part]) -> str:
    kinds = {fact.kind for fact in facts}
    if base["name"] != head["name"]:
        return "kernel_replaced"
    if "template" in kinds:
        return "template"
    if "code" in kinds:
        return "code"
    if "launch" in kinds:
        return "launch_shape"
    if "instructions" in kinds:  # what ran differs: a change of clock would not be the first thing
        return "execution"
    total = sum(part.delta_ns for part in parts)
    clock = sum(part.delta_ns for part in parts if part.kind == "SM clock")
    return "clock" if total and clock / total >= CLOCK_DECIDES else "execution"


_WHAT = {
    "template": "{name}: template arguments",
    "code": "{name}: compiled code",
    "launch_shape": "{name}: launch",
    "clock": "{name}: SM clock",
    "execution": "{name}: same code and launch, other execution",
    "kernel_replaced": "another kernel",
}


def _headline(kind: str, base: Row, head: Row, facts: list[Fact]) -> tuple[str, Any, Any]:
    what = _WHAT[kind].format(name=head["name"])
    if kind == "execution" and any(fact.kind == "instructions" for fact in facts):
        what = f"{head['name']}: same registers and launch, other instructions"
    if kind == "kernel_replaced":
        return what, base["name"], head["name"]
    wanted = {"launch_shape": "launch"}.get(kind, kind)
    if kind == "clock":
        clocks = [f"{k['metrics']['sm_clock_hz'] / 1e9:.3f} GHz" for k in (base, head)]
        return what, clocks[0], clocks[1]
    named = [fact for fact in facts if fact.kind == wanted]
    if not named:
        return what, _us(base), _us(head)
    before, after = (
        ", ".join(f"{fact.what} {'absent' if value is None else value}" for fact, value in side)
        for side in ([(f, f.base) for f in named], [(f, f.head) for f in named])
    )
    return what, before, after


# --- facts ------------------------------------------------------------------------------------

# (kind, label, registry key, unit, least relative change, least absolute change)
COUNTERS = (
    ("instructions", "instructions executed", "inst_executed", "", SAME_INSTRUCTIONS, 0.0),
    ("clock", "SM clock", "sm_clock_hz", "hz", 0.02, 0.0),
    ("dram", "DRAM bytes read", "dram_bytes_read", "byte", 0.05, 1e5),
    ("dram", "DRAM bytes written", "dram_bytes_write", "byte", 0.05, 1e6),
    ("l2", "L2 bytes", "l2_bytes", "byte", 0.05, 1e6),
    ("l2", "L2 hit rate", "l2_hit_pct", "%", 0.0, 3.0),
    ("spills", "local memory bytes (spills)", "spill_bytes", "byte", 0.05, 1e4),
    ("conflicts", "shared-memory bank conflicts", "smem_bank_conflicts", "", 0.2, 1e4),
    ("tensor", "tensor pipe busy", "tensor_pipe_pct", "%", 0.0, 2.0),
    ("tensor", "tensor FLOPs", "tensor_flops", "FLOP", 0.02, 1e6),
    ("issue", "instructions issued a cycle", "issue_active", "", 0.05, 0.0),
    ("occupancy", "active warps a scheduler", "warps_active_per_scheduler", "", 0.05, 0.0),
    ("occupancy", "theoretical occupancy", "theoretical_occupancy_pct", "%", 0.0, 0.5),
    ("waves", "waves", "waves", "", 0.05, 0.0),
)  # fmt: skip
SHAPE = (
    ("launch", "grid", "grid"),
    ("launch", "block", "block"),
    ("code", "registers", "registers"),
    ("code", "static shared memory", "smem_static_bytes"),
    ("smem", "dynamic shared memory", "smem_dynamic_bytes"),
)


def facts_of(base: Row, head: Row) -> Iterator[Fact]:
    """What differs between two kernel rows: template, launch, resources, then counters."""
    if base["name"] == head["name"]:  # another template has other parameters, not other values
        yield from _template(base["demangled"], head["demangled"])
    for kind, what, name in SHAPE:
        a, b = base.get(name), head.get(name)
        if a is not None and b is not None and a != b:
            yield Fact(kind, what, a, b)
    limits = _limit(base["metrics"]), _limit(head["metrics"])
    if None not in limits and limits[0] != limits[1]:
        yield Fact("occupancy", "blocks an SM can hold", *limits)
    for kind, what, key, unit, relative, absolute in COUNTERS:
        a, b = base["metrics"].get(key), head["metrics"].get(key)
        if (
            a is not None
            and b is not None
            and abs(b - a) > max(relative * max(abs(a), abs(b)), absolute)
        ):
            yield Fact(kind, what, a, b, unit)


def _limit(metrics: Row) -> str | None:
    """``4 (registers)``: the resource that lets the fewest blocks onto an SM."""
    known = {
        resource: metrics[f"occupancy_limit_{resource}"]
        for resource in RESOURCES
        if metrics.get(f"occupancy_limit_{resource}") is not None
    }
    if not known:
        return None
    least = min(known, key=lambda resource: known[resource])
    return f"{known[least]:.0f} ({least.replace('shared_mem', 'shared memory')})"


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
        gone, came = (", ".join(texts) or "–" for texts in only)
        yield Fact("template", "only here:", gone, came)


def _arguments(demangled: str) -> dict[str, str]:
    return {a.parameter: a.value for a in kernelname.decode(demangled).arguments}


def _head_of(demangled: str) -> str:
    """Without the parameter list, which repeats the template arguments."""
    return demangled.rsplit(">(", 1)[0]


def _first_difference(base: str, head: str, width: int = 40) -> tuple[str, str]:
    start = next((i for i, (a, b) in enumerate(zip(base, head, strict=False)) if a != b), 0)
    return base[start : start + width], head[start : start + width]


def _lines(base: Row, head: Row, base_point: Row, head_point: Row) -> list[Fact]:
    """Source lines that gained most: their share of the samples × the deep-profiled duration."""
    before, after = _deep(base, base_point), _deep(head, head_point)
    if before is None or after is None:
        return []
    times = _by_line(before), _by_line(after)
    both = {line: [side.get(line, 0.0) for side in times] for line in times[0] | times[1]}
    top = sorted(both, key=lambda line: both[line][0] - both[line][1])[:MOST_LINES]
    gained = [line for line in top if both[line][1] > both[line][0]]
    return [Fact("line", line, both[line][0], both[line][1], "µs") for line in gained]


def _deep(kernel: Row, point: Row) -> Row | None:
    for found in point.get("deep") or []:
        if found["name"] == kernel["name"] and found["lines"] and found["duration_ns"]:
            return dict(found)
    return None


def _by_line(kernel: Row) -> dict[str, float]:
    counts: dict[str, float] = defaultdict(float)
    for row in kernel["lines"]:
        known = row["file"] and row["line"]
        place = f"{row['file']}:{row['line']}" if known else row["opcode"] or "unknown"
        counts[place] += row["samples"]
    total = sum(counts.values())
    time = kernel["duration_ns"] / 1e3
    return {place: n / total * time for place, n in counts.items()} if total else {}


# --- copies and gaps: what nsys saw -----------------------------------------------------------


def operations_of(timeline: Iterable[Row]) -> list[Row]:
    """Copies and fills of one launch: kind, name, count, µs (medians over the launches).

    timeline: the rows of one point; a point that two reports traced has launches in both.
    """
    launches: dict[Any, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in timeline:
        own = launches[row["report"], row["launch"]]
        if row["kind"] in ("memcpy", "memset") and row["duration_ns"] is not None:
            own[row["kind"], row["name"] or row["kind"]].append(row["duration_ns"] / 1e3)
    seen = dict.fromkeys(key for own in launches.values() for key in own)
    return [
        {"kind": kind, "name": name,
         "count": median(len(own.get((kind, name), ())) for own in launches.values()),
         "us": median(sum(own.get((kind, name), ())) for own in launches.values())}
        for kind, name in seen
    ]  # fmt: skip


def idle_of(timeline: Iterable[Row]) -> float | None:
    """Idle µs between the kernels, copies and fills of one launch (median over the launches)."""
    launches: dict[Any, list[tuple[int, int]]] = defaultdict(list)
    for row in timeline:
        launches[row["report"], row["launch"]].append((row["start_ns"], row["end_ns"]))
    return median(map(idle_us, launches.values())) if launches else None


def _of_copies(base: list[Row] | None, head: list[Row] | None) -> Iterator[Cause]:
    """Nothing where a side has no trace: what was not looked at was not added."""
    if base is None or head is None:
        return
    before, after = ({(op["kind"], op["name"]): op for op in side} for side in (base, head))
    for key in before | after:
        a, b = before.get(key), after.get(key)
        (less, us), (more, after_us) = (
            (op["count"], op["us"]) if op else (0, 0.0) for op in (a, b)
        )
        kind = "added" if more > less else "removed" if more < less else "changed"
        what = f"{key[0]} {key[1]}" if key[0] != key[1] else key[0]
        evidence = "nsys: copies and fills of a launch"
        yield Cause(f"copy_{kind}", what, less, more, after_us - us, evidence)


def _of_gaps(base: Row, head: Row) -> Iterator[Cause]:
    """Without the timelines of both sides: their measured gaps between kernels."""
    a, b = (point.get("idle_us") for point in (base, head))
    between = "kernels, copies and fills"
    if a is None or b is None:
        a, b = (point["measurement"].get("kernel_gap_us") for point in (base, head))
        between = "kernels"
    if a is not None and b is not None and a != b:
        what = f"idle time between the {between} of a launch"
        yield Cause("gap", what, a, b, b - a, "nsys: gaps of a launch")


# --- the host ---------------------------------------------------------------------------------

_HOST = {
    "host_us": ("host_launch", "host time of the call that launches", "host_launch_us"),
    "plan_us": ("plan", "host time of plan()", "plan_us"),
}


def _of_host(
    base: Row, head: Row, metric: str, delta_us: float, times: tuple[float | None, float | None]
) -> Cause:
    kind, what, column = _HOST[metric]
    if None in times:
        times = base["measurement"].get(column), head["measurement"].get(column)
    a, b = times
    facts = [Fact("launches", *row) for row in _launches(base, head)]
    for name in (base.get("info") or {}) | (head.get("info") or {}):
        before, after = ((point.get("info") or {}).get(name) for point in (base, head))
        if before != after:
            facts.append(Fact("plan_info", name, before, after))
    evidence = f"perf_counter around the call; {_gpu_work(base, head, facts)}"
    return Cause(kind, what, a, b, delta_us, evidence, facts=[asdict(f) for f in facts])


def _gpu_work(base: Row, head: Row, facts: list[Fact]) -> str:
    if any(fact.kind == "launches" for fact in facts):
        return "the GPU work differs too"
    if not all(_kernels_of(base, head)):
        return "the kernels of a side are not known"
    traced = None not in (base.get("operations"), head.get("operations"))
    return "the GPU work is the same" if traced else "the same kernels; copies were not traced"


def _launches(base: Row, head: Row) -> Iterator[tuple[str, Any, Any]]:
    names = [[kernel["name"] for kernel in side] for side in _kernels_of(base, head)]
    if names[0] != names[1]:
        yield "kernels", ", ".join(names[0]), ", ".join(names[1])
    before, after = (point.get("operations") for point in (base, head))
    if before is None or after is None:
        return
    copies = [sum(op["count"] for op in found) for found in (before, after)]
    if copies[0] != copies[1]:
        yield "copies and fills", copies[0], copies[1]
