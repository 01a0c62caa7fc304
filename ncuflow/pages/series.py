"""Series: how the points of a sweep fall into lines of a figure or rows of a table."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from operator import eq
from statistics import mode
from typing import Any

from ncuflow.findings.join import WAITED, led_by_torch, ratio
from ncuflow.format import percent, plain
from ncuflow.model import Kernel, Point, Results
from ncuflow.pages import Context
from ncuflow.target.contract import known

Line = tuple[tuple[Any, ...], list[Point]]
MOST_SERIES = 8
COMPUTE_INTENSITY = 50.0  # FLOP per byte above which a target's rate is read in FLOPS
# % of the bytes: where more never passed DRAM, it was less busy than the rate says
PAST_DRAM = 10.0
MMA_FLOP = 4096  # of an HMMA.16816: in these the cadence of any tensor instruction is told
MOVED = 1.5  # times the bytes needed: from there on what passes DRAM is told
# Peaks of two tensor instructions differ by a third or more (HMMA does 2/3 of HGMMA); replay passes by a per cent.
SAME_PEAK = 1.1
SAME_RATE = 0.03  # by which two lines differ at most that are drawn as one


@dataclass(frozen=True)
class Axis:
    """name: the parameter along x, or "point"; rate: the measurement column along y; others: what also varies.

    further: how many lines are beyond those that a figure holds and those that these cover.
    """

    name: str
    rate: str
    others: tuple[str, ...]
    further: int = 0


@dataclass(frozen=True)
class Curve:
    """One line: x, the rate, and the rate at the quartiles of the time."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float]
    high: list[float]


def varying(points: list[Point]) -> dict[str, list[Any]]:
    """Parameters that take more than one value over the points, with their values in first-seen order."""
    values: dict[str, list[Any]] = defaultdict(list)
    for point in points:
        for name, value in point["params"].items():
            if value not in values[name]:
                values[name].append(value)
    return {name: found for name, found in values.items() if len(found) > 1}


def axis_of(points: list[Point]) -> Axis:
    """Of the numeric parameters along which two points lie, that with most values is x; "point" where there is none.

    A target of high intensity is read in FLOPS.
    """
    found = varying(points)
    numeric = [n for n, v in found.items() if all(type(x) in (int, float) for x in v)]
    numeric.sort(key=lambda n: -len(found[n]))
    intensities = sorted(p["measurement"]["ai_analytic"] or 0 for p in points) or [0]
    rate = "tflops" if intensities[len(intensities) // 2] > COMPUTE_INTENSITY else "gbs"
    axes = [Axis(name, rate, tuple(n for n in found if n != name)) for name in numeric]
    for axis in axes:
        lines = _all_lines(points, axis)
        if any(len(members) > 1 for _, members in lines):
            shown = sum(len(alike) for alike in _together(points, axis))
            return replace(axis, further=len(lines) - shown)
    return Axis("point", rate, tuple(found))


def series_of(points: list[Point], axis: Axis) -> list[Curve]:
    """The lines of a figure, the longest first; ``axis.further`` counts those that it leaves out. One that would be covered has
    its name beside that of the line over it."""
    base = [value for _, value in usual(points, axis)]
    shown = []
    for alike in _together(points, axis):
        names = [_label(key, base, axis.others) for key, _ in alike]
        first, *others = sorted(names, key=len)
        label = first + f"; within {percent(SAME_RATE)}: {'; '.join(others)}" * bool(others)
        shown.append(_series(label, alike[0][1], axis))
    return shown


def drawn(points: list[Point], axis: Axis) -> list[Point]:
    """The points of these lines: what is drawn, and what its ceilings are those of."""
    return [point for alike in _together(points, axis) for point in alike[0][1]]


def usual(points: list[Point], axis: Axis) -> list[tuple[str, Any]]:
    """The settings beside the axis of the line that has most of the most frequent ones: a rival's where there is no other."""
    lines = [line for alike in _together(points, axis) for line in alike]
    own = [line for line in lines if not any("rival" in p.get("info", {}) for p in line[1])]
    keys = [key for key, _ in own or lines]
    modes = list(map(mode, zip(*keys, strict=True)))
    near = max(keys, key=lambda key: sum(map(eq, key, modes)), default=())
    return list(zip(axis.others, near, strict=False))


def _together(points: list[Point], axis: Axis) -> list[list[Line]]:
    """At most eight lines, each with those that it would cover; the best point's always among them, as a page leads with that
    point, and over those that it covers."""
    found: list[list[Line]] = []
    top = best(points, axis.rate)
    for line in _all_lines(points, axis):
        alike = next((one for one in found if _covers(one[0], line, axis)), None)
        if alike is None:
            found.append([line])
        else:
            alike.insert(0 if top in line[1] else len(alike), line)
    leading = next((alike for alike in found if top in alike[0][1]), None)
    if leading is None or leading in found[:MOST_SERIES]:
        return found[:MOST_SERIES]
    return [*found[: MOST_SERIES - 1], leading]


def _covers(first: Line, second: Line, axis: Axis) -> bool:
    """Whether two lines of two points or more have the same x, and all but the same rates."""
    mine, theirs = (
        {p["params"][axis.name]: as_sent(p)["measurement"][axis.rate] for p in members}
        for _, members in (first, second)
    )
    alike = len(mine) > 1 and mine.keys() == theirs.keys()
    return alike and all(abs(theirs[x] - y) <= SAME_RATE * y for x, y in mine.items())


def _all_lines(points: list[Point], axis: Axis) -> list[Line]:
    """Lines of at least two points, the longest first; the best point is drawn even if alone."""
    groups: dict[tuple[Any, ...], list[Point]] = defaultdict(list)
    for point in points:
        if point["measurement"][axis.rate] is not None and axis.name in point["params"]:
            groups[tuple(point["params"].get(n) for n in axis.others)].append(point)
    top = best(points, axis.rate)
    lines = [(key, group) for key, group in groups.items() if len(group) > 1 or top in group]
    return sorted(lines, key=lambda line: -len(line[1]))


def best(points: list[Point], rate: str) -> Point | None:
    """The point of the highest rate (over links, where they are its roof) of FlashInfer's calls whose main kernel is its own and
    of those that have a share of a ceiling, if there are any: a rate above what streams is that of what L2 kept. Of rates of
    bytes that of those whose bytes passed DRAM, if there are any. None where none has a rate."""
    own = _own(points, rate)
    held = [p for p in own if p["measurement"].get(f"{rate}_fraction_measured") is not None] or own
    moved = [p for p in held if (p["measurement"].get("bytes_beyond_dram_pct") or 0) < PAST_DRAM]
    return _fastest(moved if rate == "gbs" and moved else held, rate)


def faster(points: list[Point], rate: str, top: Point) -> Point | None:
    """The point of another type that computes more than the best one and has no ceiling of its type; None where there is none."""
    more = _fastest(_own(points, rate), rate) if rate == "tflops" else None
    kinds = [
        p and (p["measurement"].get("flop_type") or p["measurement"].get("dtype"))
        for p in (more, top)
    ]
    return more if kinds[0] != kinds[1] else None


def _own(points: list[Point], rate: str) -> list[Point]:
    """Points with a rate: of FlashInfer's calls by kernels of its own, if there are any."""
    rated = [
        p
        for p in points
        if p["measurement"][rate] is not None and WAITED not in p.get("problems", ())
    ]
    calls = [p for p in rated if "rival" not in p.get("info", {})] or rated
    return [p for p in calls if not led_by_torch(p["kernels"])] or calls


def _fastest(points: list[Point], rate: str) -> Point | None:
    return max(points, key=lambda p: float(as_sent(p)["measurement"][rate] or 0), default=None)


def sent(point: Point) -> Context | None:
    """The bus bandwidth: what each rank has to send over its links, GB/s; a copy between two GPUs measured beside it, and its
    share, of 1, of that. None of a point whose target sends nothing."""
    row = point["measurement"]
    target = known().get(str(row.get("target")))
    if target is None or target.sent is None:
        return None
    rate = ratio(target.sent(target.completed(point["params"])), row["time_cold_us"], 1e-3)
    link = point["info"].get("link_gb_s")
    return {"gbs": rate, "link": link, "share": ratio(rate, link)}


def as_sent(point: Point) -> Point:
    """A point with the rate and the share of its links, where those are its roof."""
    over = sent(point)
    if over is None:
        return point
    rates = {"gbs": over["gbs"], "gbs_fraction_measured": over["share"]}
    return point | {"measurement": point["measurement"] | rates}


def _label(key: tuple[Any, ...], base: list[Any], names: tuple[str, ...]) -> str:
    """What sets a line apart from the usual settings; ``base`` where nothing does."""
    apart = [
        _setting(name, value)
        for name, value, common in zip(names, key, base, strict=True)
        if value != common
    ]
    return ", ".join(apart) or "base"


def _setting(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name} {value}"  # a word alone, such as "off", may be a value of several parameters


def _series(label: str, members: list[Point], axis: Axis) -> Curve:
    members = sorted(members, key=lambda p: p["params"][axis.name])
    rows = [as_sent(p)["measurement"] for p in members]
    rates = [r[axis.rate] for r in rows]
    cold = [r["time_cold_us"] for r in rows]
    slow = [r["time_cold_q75_us"] or r["time_cold_us"] for r in rows]
    fast = [r["time_cold_q25_us"] or r["time_cold_us"] for r in rows]
    return Curve(
        label,
        [p["params"][axis.name] for p in members],
        rates,
        [y * t / s for y, t, s in zip(rates, cold, slow, strict=True)],
        [y * t / f for y, t, f in zip(rates, cold, fast, strict=True)],
    )


def spread(items: list[Any], most: int, named: Collection[Any] = ()) -> list[Any]:
    """At most ``most`` of the items, evenly over their order, first and last kept, and points that are named."""
    if len(items) <= most:
        return items
    step = (len(items) - 1) / (most - 1)
    chosen = {round(i * step) for i in range(most)}
    if named:
        chosen |= {place for place, point in enumerate(items) if point["point"] in named}
    return [items[place] for place in sorted(chosen)]


def tensor_kinds(all_results: Sequence[Results]) -> dict[str, str]:
    """Point id -> the tensor instruction that it ran; a point that ran none is not in it.

    Told apart by the peak per cycle, which no clock moves; named by the SASS of a deep profile.
    """
    points = {p["point"]: tensor_peak(p["kernels"]) for r in all_results for p in r["points"]}
    deep = [(tensor_peak([kernel]), kernel) for r in all_results for kernel in r["deep"]]
    lowest = _groups([*points.values(), *(peak for peak, _ in deep)])
    names: dict[float, set[str]] = {first: set() for first in lowest.values()}
    for peak, kernel in deep:
        if peak:
            names[lowest[peak]] |= _matrix_opcodes(kernel)
    alone = len(names) == 1
    labels = {
        first: "/".join(sorted(found))
        or ("tensor" if alone else f"{plain(first, '.0f')} FLOP/cycle")
        for first, found in names.items()
    }
    return {point: labels[lowest[peak]] for point, peak in points.items() if peak}


def tensor_peak(kernels: Iterable[Kernel]) -> float | None:
    """FLOP per cycle and SM, at most, of the instruction in the longest kernel that ran one."""
    for kernel in sorted(kernels, key=lambda k: -(k["duration_ns"] or 0)):
        of = kernel["metrics"].get
        peak, clock, sms = of("tensor_flops_peak_per_second"), of("sm_clock_hz"), of("sm_count")
        if peak and clock and sms:
            return float(peak / clock / sms)
    return None


def _groups(peaks: list[float | None]) -> dict[float, float]:
    """Peak -> the lowest peak of its group; a group ends below a gap."""
    out: dict[float, float] = {}
    first = last = 0.0
    for peak in sorted(peak for peak in peaks if peak):
        first = first if peak < SAME_PEAK * last else peak
        out[peak] = first
        last = peak
    return out


def _matrix_opcodes(kernel: Kernel) -> set[str]:
    """HMMA, HGMMA and the like in a kernel's SASS; HFMA2.MMA is no matrix instruction."""
    opcodes = {(line["opcode"] or "").split(".")[0] for line in kernel["lines"]}
    return {opcode for opcode in opcodes if opcode.endswith("MMA")}
