"""Two reports of ncu of any program: kernels matched by NVTX range, or by name and order.

Launches of one kernel in one range, on one grid, are samples of it. One sample per side has no
statistics, and the answer says so; what differs between the two launches is told all the same.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from textwrap import wrap

from ncuflow.compare import attribution, decomposition, records
from ncuflow.findings import profiled, statistics
from ncuflow.format import Sheet, columns, in_one_unit, quantity, with_unit
from ncuflow.io import BadInput, printable, sniff_packed
from ncuflow.model import Kernel

NCU = "ncu_us"
_NUMBERS = re.compile(
    r", (seq|op_id) = \d+"
)  # of torch's ranges: one call has other ones than the next
MOST_PARTS, LEAST_SHARE = 4, 0.05
Group = list[Kernel]


def compare(base: Path, head: Path, settings: records.Thresholds) -> records.Comparison:
    """As of two sides, a point per matched kernel and ``ncu_us`` its metric.

    Raises BadInput where a file is no complete report, and where no kernel is in both.
    """
    for path, other in ((base, head), (head, base)):
        if sniff_packed(path)[0] in profiled.TRACES:
            what = f"of nsys, and {printable(other.name)} is not: their times are not compared"
            raise BadInput(path, what)
    kernels, untimed = zip(*(_kernels(path) for path in (base, head)), strict=True)
    pairs, removed, added = match(kernels[0], kernels[1])
    if not pairs:
        what = f"has no kernel in common with {printable(base.name)}: nothing can be compared"
        raise BadInput(head, f"{what}; {_left_out(untimed)}" if any(untimed) else what)
    sides = [([_times(a)], [_times(b)]) for a, b in pairs]
    found, floor = statistics.estimates(sides, settings.alpha, settings.floor)
    decided = statistics.decide(found, settings.alpha, settings.threshold)
    points = [_point(a, b, e, settings) for (a, b), e in zip(pairs, decided, strict=True)]
    points.sort(key=lambda point: -abs(point.delta))
    names = distinct([printable(base), printable(head)])
    named = [
        records.Named(name, _provenance(side)) for name, side in zip(names, kernels, strict=True)
    ]
    notes = [*_notes(points, floor, untimed)]
    alone = [[_name(group) for group in groups] for groups in (removed, added)]
    return comparison(named, settings, points, {NCU: floor}, notes, alone)


def comparison(
    sides: list[records.Named],
    settings: records.Thresholds,
    points: list[records.PointChange],
    floors: dict[str, statistics.Floor],
    notes: list[str],
    alone: list[list[str]],
) -> records.Comparison:
    """Of two files, their kernels being the points. alone: kernels of either side that the other has not."""
    tests = sum(point.p is not None for point in points)
    return records.Comparison(
        base=sides[0],
        head=sides[1],
        differences=records.of_sides(sides[0].provenance, sides[1].provenance, []),
        settings=settings,
        points=points,
        statistics=records.Statistics(tests=tests, floors=floors, notes=notes),
        only_base=alone[0],
        only_head=alone[1],
    )


def _times(group: Group) -> list[float]:
    return [(kernel["duration_ns"] or 0) / 1e3 for kernel in group]


def _kernels(path: Path) -> tuple[list[Kernel], int]:
    """(timed kernels in launch order with metrics, stalls and lines, how many were not timed)."""
    every = profiled.launches(path, path.name)
    timed = [kernel for kernel in every if kernel["duration_ns"]]
    return timed, len(every) - len(timed)


def distinct(paths: Sequence[str]) -> list[str]:
    """What files are called: their names, of which several alike are counted. Their folders are nobody else's business."""
    names = [PurePath(printable(path)).name for path in paths]
    alike = Counter(names)
    return [
        name if alike[name] == 1 else f"{name} ({names[: at + 1].count(name)})"
        for at, name in enumerate(names)
    ]


def match(
    base: Sequence[Kernel], head: Sequence[Kernel]
) -> tuple[list[tuple[Group, Group]], list[Group], list[Group]]:
    """(pairs, only in base, only in head) of launch groups.

    By NVTX range and name where both reports share a range, else by name. Launches on one and the
    same grid all along are samples of one kernel; otherwise they pair off in order, a sample each.
    """
    by_range = bool({_range(k) for k in base} & {_range(k) for k in head} - {None})
    before, after = _groups(base, by_range), _groups(head, by_range)
    pairs, removed, added = [], [], []
    for key in before | after:
        a, b = before.get(key, []), after.get(key, [])
        if a and b and all(len({k["grid"] for k in side}) == 1 for side in (a, b)):
            pairs.append((a, b))
            continue
        shared = min(len(a), len(b))
        pairs += [([x], [y]) for x, y in zip(a, b, strict=False)]
        removed += [[kernel] for kernel in a[shared:]]
        added += [[kernel] for kernel in b[shared:]]
    return pairs, removed, added


def _groups(kernels: Sequence[Kernel], by_range: bool) -> dict[tuple[str | None, str], Group]:
    out: dict[tuple[str | None, str], Group] = defaultdict(list)
    for kernel in kernels:
        out[_range(kernel) if by_range else None, kernel["name"]].append(kernel)
    return out


def _range(kernel: Kernel) -> str | None:
    """The range of a launch, without the numbers that torch counts its calls by."""
    return _NUMBERS.sub("", kernel["nvtx"]) if kernel["nvtx"] else None


def _name(group: Group) -> str:
    kernel = group[0]
    where = f"{around}: " if (around := _range(kernel)) else ""
    return f"{where}{kernel['name']} #{kernel['kernel']}"


def _point(
    base: Group, head: Group, e: statistics.Estimate, settings: records.Thresholds
) -> records.PointChange:
    """A matched kernel; causes where the change matters or could not be tested."""
    row = records.MetricChange(**vars(e))
    if abs(row.relative) > settings.threshold and row.verdict != statistics.SAME:
        before, after = (
            attribution.Profile([k], [k], rates=_rates(k)) for k in map(_typical, (base, head))
        )
        row = replace(row, **vars(attribution.explain(before, after, row.base, row.head)))
    name = head[0]["name"]
    return records.PointChange(
        **vars(row), id=_name(head), target=name, metric=NCU, metrics={NCU: row}
    )


def _rates(kernel: Kernel) -> decomposition.LaunchRates:
    """The launches that are compared are ncu's, so its clock is theirs."""
    clock = decomposition.profiled_hz(kernel)
    dram = kernel["metrics"].get("dram_peak_bytes_per_second")
    return decomposition.LaunchRates(kernel["device"], clock and clock / 1e9, dram and dram / 1e9)


def _typical(group: Group) -> Kernel:
    """The launch of the median duration."""
    return sorted(group, key=lambda kernel: kernel["duration_ns"] or 0)[len(group) // 2]


def _provenance(kernels: Sequence[Kernel]) -> dict[str, str | None]:
    """What a report knows of its machine: the GPU."""
    return {"gpu": next((k["device"] for k in kernels if k["device"]), None)}


def _notes(
    points: Sequence[records.PointChange], floor: statistics.Floor, untimed: Sequence[int]
) -> Iterator[str]:
    single = [statistics.verdict_in_words(point) for point in points if point.interval is None]
    for words in sorted(set(single)):
        yield f"{single.count(words)} of {with_unit(len(points), 'kernels')} {words} on a side."
    if len(single) < len(points):
        yield (
            "One run per side: how far two runs differ is not known, so only changes beyond "
            f"{100 * floor.value:.0f} % count ({floor.source})."
        )
    if any(untimed):
        yield f"{_left_out(untimed)}."


def _left_out(untimed: Sequence[int]) -> str:
    return f"{untimed[0]} and {untimed[1]} kernels without a duration are left out"


# --- as text ----------------------------------------------------------------------------------


def table(found: records.Comparison) -> str:
    """The comparison for a terminal: differences, then a line per kernel with what moved below it."""
    out = [f"base {found.base.name}", f"head {found.head.name}", *told(found)]
    if found.mixed_causes:
        out.append("several things differ at once: their effects cannot be told apart")
    out.append("")
    unit, took = in_one_unit([time for point in found.points for time in (point.base, point.head)])
    for point, base, head in zip(found.points, took[::2], took[1::2], strict=True):
        out.append(
            f"{base:>8} → {head:>8} {unit}  "
            f"{100 * point.relative:+7.1f} %  {point.id}  [{statistics.verdict_in_words(point)}]"
        )
        out += [f"    {line}" for cause in point.causes for line in _why(cause)]
    out += [f"only in base: {name}" for name in found.only_base]
    out += [f"only in head: {name}" for name in found.only_head]
    if not found.points:
        out.append("nothing could be compared")
    elif not any(point.causes for point in found.points):
        least = 100 * found.settings.threshold
        out.append(f"nothing changed by more than {least:g} %")
    return "\n".join(out) + "\n"


def told(found: records.Comparison) -> Iterator[str]:
    """What differs between the sides, and what the verdicts cannot know, in lines of the terminal's width."""
    for d in found.differences:
        yield f"differs: {d.axis}: {d.base or 'unknown'} → {d.head or 'unknown'}"
    for note in found.statistics.notes:
        yield from wrap(f"note: {note}", columns(), subsequent_indent="      ")


def sheet(found: records.Comparison) -> Sheet:
    """The same as one table, with the first cause of each change."""
    unit, took = in_one_unit([time for point in found.points for time in (point.base, point.head)])
    rows = [
        [
            point.id, base, head, f"{100 * point.relative:+.1f} %", statistics.verdict_in_words(point),
            next((line for cause in point.causes for line in _why(cause)), ""),
        ]
        for point, base, head in zip(found.points, took[::2], took[1::2], strict=True)
    ]  # fmt: skip
    header = ("kernel", f"base, {unit}", f"head, {unit}", "change", "verdict", "why")
    return Sheet(header, rows, f"{found.base.name} → {found.head.name}")


def _why(cause: records.Cause) -> Iterator[str]:
    yield f"{cause.what}: {_value(cause.base, '')} → {_value(cause.head, '')}"
    for p in decomposition.causes(cause.parts, LEAST_SHARE)[:MOST_PARTS]:
        if p.base is not None:
            yield f"  {p.delta_us:+.3g} µs {p.what} ({p.base:.3g} → {p.head:.3g} {p.unit})"
    for f in cause.facts:
        if f.kind != "template":
            what = f"sampled time of {f.what}" if f.kind == "line" else f.what
            yield f"  {what}: {_value(f.base, f.unit)} → {_value(f.head, f.unit)}"


def _value(value: records.Value, unit: str) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return quantity(value, unit) if isinstance(value, float) else str(value)
