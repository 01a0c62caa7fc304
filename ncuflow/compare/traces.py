"""Two traces, of nsys or of torch's profiler, of any program: kernels by name, the launches of a name being its samples."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import fsum
from pathlib import Path
from textwrap import wrap
from typing import Any

import numpy as np

from ncuflow.compare import records, reports
from ncuflow.findings import kernelname, statistics
from ncuflow.format import (
    MISSING,
    Sheet,
    change,
    columns,
    in_one_unit,
    micro,
    number,
    percent,
    short,
    with_unit,
)
from ncuflow.io import BadInput, clean, printable
from ncuflow.parsers.show import read_trace
from ncuflow.parsers.timeline import GRAPH, KERNEL, UNSAID, Timeline

UNLIKE = (
    "Not judged: a trace has several kernels of that name, whose launches are no samples of one."
)
TOP = 20  # kernels that the text lists
MANYFOLD = 9  # of 1: the change from which on it is told as a factor
WIDEST = 60  # characters of a name in a sentence
Times = Mapping[str, Sequence[float]]  # µs of the launches of each kernel


@dataclass(frozen=True)
class TraceSide:
    """What one trace has of the devices that were chosen. order: the names as they ran, GPU by GPU; busy_us: the operations of
    each device added up; copies: the names that are no kernel's."""

    name: str
    gpu: str | None
    times: Times
    order: Sequence[str]
    busy_us: Mapping[int, float]
    copies: frozenset[str] = frozenset()


def compare(
    base: Path,
    head: Path,
    settings: records.Thresholds,
    device: int | None = None,
    maps: Mapping[str, str] | None = None,
) -> records.Comparison:
    """A point per kernel that both traces have, with the time of each launch and of all of them.

    device: the GPU that is compared; by default all that a trace has, added up; maps: names of the base that are others in the
    head. Raises BadInput where a file is no trace, has no such device or kernel, and where no kernel is in both.
    """
    sides = [_side(path, device) for path in (base, head)]
    sides[0] = _renamed(sides[0], _mapped(maps or {}, (base, head), sides))
    placed = _in_place(*sides)
    sides[0] = _renamed(sides[0], placed)
    pairs = _pairs(sides[0].times, sides[1].times)
    paired = [dict(_named(pairs, side.times)) for side in sides]
    if not pairs:
        raise BadInput(
            head, f"has no kernel in common with {sides[0].name}: nothing can be compared"
        )
    samples = [([[*a]], [[*b]]) for a, b in pairs.values()]
    found, floor = statistics.estimates(samples, settings.alpha, settings.floor)
    unlike = [name in _several(paired) for name in pairs]
    none = {"p": None, "low": None, "high": None}
    found = [replace(one, **none) if no else one for one, no in zip(found, unlike, strict=True)]  # type: ignore[arg-type]
    decided = [
        replace(one, verdict=statistics.NOT_JUDGED) if no else one
        for one, no in zip(
            statistics.decide(found, settings.alpha, settings.threshold), unlike, strict=True
        )
    ]
    points = [
        _point(name, *pair, one) for (name, pair), one in zip(pairs.items(), decided, strict=True)
    ]
    points.sort(key=lambda point: -abs(point.metrics[records.TOTAL].delta))
    named = [records.Named(side.name, {"gpu": side.gpu}) for side in sides]
    alone = [_alone(side.times, {*of}) for side, of in zip(sides, paired, strict=True)]
    notes = [
        *_notes(sides, floor),
        *_placed(placed),
        *_unpaired(sides, alone),
        *[UNLIKE] * any(unlike),
    ]
    return reports.comparison(named, settings, points, {records.EACH: floor}, notes, alone)


def _several(paired: Sequence[Mapping[str, str]]) -> set[str]:
    """Pairs by the bare name of which a trace has several kernels: their launches are no samples of one."""
    counts = [Counter(side.values()) for side in paired]
    return {name for count in counts for name, many in count.items() if many > 1}


def _side(path: Path, device: int | None) -> TraceSide:
    timeline = read_trace(path)
    rows = timeline.rows
    devices = [int(one) for one in np.unique(rows["device"])]
    if device is not None and device not in devices:
        raise BadInput(path, f"no operation of GPU {device}; it has {', '.join(map(str, devices))}")
    chosen = [device] if device is not None else devices
    length = (rows["end"] - rows["start"]) / 1e3
    busy = {one: float(length[rows["device"] == one].sum()) for one in chosen}
    gpus = {timeline.devices.get(one) for one in chosen} - {None}
    gpu = gpus.pop() if len(gpus) == 1 else None
    times, order = _times(timeline, length, chosen)
    copies = frozenset(clean(one.name) for one in timeline.kinds if one.kind not in (KERNEL, GRAPH))
    return TraceSide(printable(path.name), gpu, times, order, busy, copies)


def _times(timeline: Timeline, length: Any, devices: Sequence[int]) -> tuple[Times, list[str]]:
    """The launches of each name, and all names as they ran, one GPU after the other."""
    out: dict[str, list[float]] = defaultdict(list)
    order = []
    mine = np.flatnonzero(np.isin(timeline.rows["device"], devices) & (length > 0))
    mine = mine[np.argsort(timeline.rows["device"][mine], kind="stable")]
    names = [None if one.kind == GRAPH else clean(one.name) for one in timeline.kinds]
    for what, time in zip(timeline.rows["what"][mine].tolist(), length[mine].tolist(), strict=True):
        if (name := names[what]) is not None:
            out[name].append(time)
            order.append(name)
    return out, order


def _mapped(
    maps: Mapping[str, str], paths: Sequence[Path], sides: Sequence[TraceSide]
) -> dict[str, str]:
    """The whole names of the base that are others in the head. Raises BadInput where a side has none of that name."""
    found: dict[str, str] = {}
    for pair in maps.items():
        own = [
            [name for name in side.times if wanted in (name, kernelname.bare(name))]
            for wanted, side in zip(pair, sides, strict=True)
        ]
        for wanted, names, path in zip(pair, own, paths, strict=True):
            if not names:
                raise BadInput(path, f"has no kernel {wanted!r}, which --map names")
        found |= dict.fromkeys(own[0], own[1][0])
    return found


def _renamed(side: TraceSide, names: Mapping[str, str]) -> TraceSide:
    times: dict[str, list[float]] = defaultdict(list)
    for name, launches in side.times.items():
        times[names.get(name, name)] += launches
    return replace(side, times=times, order=[names.get(name, name) for name in side.order])


def _in_place(base: TraceSide, head: TraceSide) -> dict[str, str]:
    """Names of the base that are others in the head, by what ran before and after them: of each trace one name alone stands
    there, most of its launches do, and neither is a copy."""
    pairs = _pairs(base.times, head.times)
    places = [_places(side, dict(_named(pairs, side.times))) for side in (base, head)]
    alone = [[name for name in of if [*of.values()].count(of[name]) == 1] for of in places]
    by_place = {places[1][name]: name for name in alone[1]}
    found = {name: by_place.get(places[0][name]) for name in alone[0]}
    return {name: other for name, other in found.items() if other is not None}


def _places(side: TraceSide, paired: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Of each name that has no pair, the pairs that most often ran before and after it."""
    seen: dict[str, Counter[tuple[str | None, str | None]]] = defaultdict(Counter)
    keys = [paired.get(name) for name in side.order]
    around = zip([None, *keys], side.order, [*keys[1:], None], strict=False)
    for before, name, after in around:
        if name not in paired:
            seen[name][before, after] += 1
    most = {name: counts.most_common(1)[0] for name, counts in seen.items()}
    return {
        name: place
        for name, (place, times) in most.items()
        if place != (None, None) and 2 * times >= seen[name].total() and name not in side.copies
    }


def _unpaired(sides: Sequence[TraceSide], alone: Sequence[Sequence[str]]) -> Iterator[str]:
    """What the sums of both leave out."""
    for side, names in zip(sides, alone, strict=True):
        if names:
            took, whole = (
                fsum(fsum(side.times[name]) for name in of) for of in (names, side.times)
            )
            kernels = f"{with_unit(len(names), 'kernels')} that the other has not"
            yield f"{side.name}: {micro(took)} of {micro(whole)} in {kernels}."


def _placed(names: Mapping[str, str]) -> Iterator[str]:
    if names:
        called = kernelname.told_apart([*names, *names.values()])
        pairs = [(short(called[a], WIDEST), short(called[b], WIDEST)) for a, b in names.items()]
        said = ", ".join(f"{a} → {b}" for a, b in pairs[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        yield f"Paired by what ran before and after them (--map says other pairs): {said}{more}."


def _pairs(base: Times, head: Times) -> dict[str, tuple[Sequence[float], Sequence[float]]]:
    """Launches of both sides by name: the whole name, and of what is left the name without template arguments."""
    same = {name: (base[name], head[name]) for name in base if name in head}
    rest = [_by_bare_name(side, same) for side in (base, head)]
    return same | {name: (rest[0][name], rest[1][name]) for name in rest[0] if name in rest[1]}


def _by_bare_name(side: Times, without: Mapping[str, Any]) -> dict[str, list[float]]:
    out: dict[str, list[float]] = defaultdict(list)
    for name, launches in side.items():
        if name not in without:
            out[kernelname.bare(name)] += launches
    return out


def _named(pairs: Mapping[str, Any], side: Times) -> Iterator[tuple[str, str]]:
    """(a name of a side, the pair that it is in) of all that are in one."""
    for name in side:
        for key in (name, kernelname.bare(name)):
            if key in pairs:
                yield name, key
                break


def _alone(side: Times, paired: set[str]) -> list[str]:
    """Names of one side alone, those that took most first."""
    alone = [name for name in side if name not in paired]
    return sorted(alone, key=lambda name: -fsum(side[name]))


def _point(
    name: str, base: Sequence[float], head: Sequence[float], e: statistics.Estimate
) -> records.PointChange:
    before, after = fsum(base), fsum(head)
    each = records.MetricChange(**vars(e))
    total = records.MetricChange(
        base=before, head=after, relative=after / before - 1, low=None, high=None, p=None,
        floor=None, basis="none", runs=(1, 1), samples=e.samples,
    )  # fmt: skip
    metrics = {records.EACH: each, records.TOTAL: total}
    return records.PointChange(
        **vars(each), id=name, target=kernelname.bare(name), metric=records.EACH, metrics=metrics
    )


def _notes(sides: Sequence[TraceSide], floor: statistics.Floor) -> Iterator[str]:
    for side in sides:
        if UNSAID in side.busy_us:
            yield f"{side.name}: operations without a GPU are added to the others."
        of = [time for device, time in side.busy_us.items() if device != UNSAID]
        if len(of) > 1:
            worse = percent(max(of) * len(of) / fsum(of) - 1, 1) if fsum(of) else "–"
            yield (
                f"{side.name}: {len(of)} GPUs, each busy {micro(min(of))} to {micro(max(of))}, are added up "
                f"(--device takes one); imbalance {worse}: the busiest above their mean."
            )
    yield (
        "One trace per side: how far two runs differ is not known, so only changes beyond "
        f"{100 * floor.value:.0f} % count ({floor.source})."
    )


# --- as text ----------------------------------------------------------------------------------


def table(found: records.Comparison) -> str:
    """The comparison on one screen: the kernels whose launches together changed most."""
    totals = [point.metrics[records.TOTAL] for point in found.points]
    before, after = (fsum(getattr(one, side) for one in totals) for side in ("base", "head"))
    out = [f"base {found.base.name}", f"head {found.head.name}", *reports.told(found)]
    both = f"{micro(before)} → {micro(after)} ({_change(after / before - 1)})"
    out += ["", f"{with_unit(len(totals), 'kernels and copies')} of both take {both}", ""]
    listed = sheet(found)
    out.append(replace(listed, head="", rows=listed.rows[:TOP]).text())
    if rest := totals[TOP:]:
        out.append(f"and {len(rest)} more, together {_moved(fsum(one.delta for one in rest))}")
    for name, alone in ((found.base.name, found.only_base), (found.head.name, found.only_head)):
        if alone:
            called = kernelname.told_apart(alone[:3])
            names = ", ".join(short(called[one], WIDEST // 2) for one in alone[:3])
            more = f"{names}{', …' * (len(alone) > 3)}"
            out += wrap(f"{with_unit(len(alone), 'kernels')} in {name} alone: {more}", columns())
    return "\n".join(out) + "\n"


def sheet(found: records.Comparison) -> Sheet:
    """A row for each kernel: the time of all its launches on both sides, and how that of one changed."""
    totals = [point.metrics[records.TOTAL] for point in found.points]
    whole = fsum(one.base for one in totals)
    unit, took = in_one_unit([time for one in totals for time in (one.base, one.head)])
    by, moved = in_one_unit([abs(one.delta) for one in totals])
    called = kernelname.told_apart([point.id for point in found.points])
    rows = []
    for at, (point, total) in enumerate(zip(found.points, totals, strict=True)):
        n, m = total.samples
        both = [took[2 * at], took[2 * at + 1], _sign(total.delta) + moved[at]]
        share, count = f"{100 * total.base / whole:.1f}", str(n) if n == m else f"{n} → {m}"
        each = MISSING if point.verdict == statistics.NOT_JUDGED else _change(point.relative)
        rows.append([called[point.id], *both, share, count, each, _interval(point), point.verdict])
    sure = f"{100 * (1 - found.settings.alpha):g} % interval"
    header = ("kernel", f"base, {unit}", "head", f"moved, {by}", "of base, %", "n", "each", sure, "verdict")  # fmt: skip
    return Sheet(
        header, rows, f"{found.base.name} → {found.head.name}", left=1, long=(0,), spare=(4, 7, 3)
    )


def _change(relative: float) -> str:
    """A change; one that is no longer read in per cent as a factor."""
    return f"× {number(1 + relative)}" if relative > MANYFOLD else change(relative)


def _interval(point: records.PointChange) -> str:
    return " to ".join(map(_change, point.interval or ()))


def _moved(us: float) -> str:
    return f"{_sign(us)}{micro(abs(us))}"


def _sign(us: float) -> str:
    return "−" if us < 0 else "+"
