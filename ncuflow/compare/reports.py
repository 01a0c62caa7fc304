"""Two Nsight Compute reports of any program: kernels matched by NVTX range, or by name and order.

Launches of one kernel in one range, on one grid, are samples of it. One sample a side has no
statistics, and the answer says so; what differs between the two launches is told all the same.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncuflow.compare import attribution, differences
from ncuflow.findings import statistics
from ncuflow.format import micro, quantity
from ncuflow.parsers import ncu

if TYPE_CHECKING:
    from ncuflow.compare.verdict import Settings

Row = dict[str, Any]
ONE_SAMPLE = "one sample a side: no statistics"
MOST_PARTS, LEAST_SHARE = 4, 0.05


def compare(base: Path, head: Path, settings: Settings) -> Row:
    """The comparison as JSON; points as in ``compare.json``, one a matched kernel.

    Raises BadInput where a file is no complete report.
    """
    kernels, untimed = zip(*(_kernels(path) for path in (base, head)), strict=True)
    pairs, removed, added = match(kernels[0], kernels[1])
    sides = [tuple([[k["duration_ns"] / 1e3 for k in side]] for side in pair) for pair in pairs]
    found, floor = statistics.estimates(sides, settings.alpha, settings.floor)  # type: ignore[arg-type]
    decided = statistics.decide(found, settings.alpha, settings.threshold)
    points = [_point(a, b, e, settings) for (a, b), e in zip(pairs, decided, strict=True)]
    provenance = [_provenance(side) for side in kernels]
    differ = differences.of_sides(provenance[0], provenance[1], [])
    return {
        "schema": 1,
        "base": {"name": str(base), "provenance": provenance[0]},
        "head": {"name": str(head), "provenance": provenance[1]},
        "differences": [asdict(difference) for difference in differ],
        "mixed_causes": differences.mixed(differ),
        "settings": asdict(settings),
        "notes": _notes(points, floor, untimed),
        "points": sorted(points, key=lambda point: -abs(point["delta"])),
        "only_base": [_name(group) for group in removed],
        "only_head": [_name(group) for group in added],
    }


def _kernels(path: Path) -> tuple[list[Row], int]:
    """(timed kernels in launch order with metrics, stalls and lines, how many were not timed)."""
    report = ncu.read(path, with_lines=True)
    rows = {k["kernel"]: k | {"metrics": {}, "stalls": [], "lines": []} for k in report.kernels}
    for metric in report.metrics:
        rows[metric["kernel"]]["metrics"][metric["key"]] = metric["value"]
    for stall in report.stalls:
        rows[stall["kernel"]]["stalls"].append(stall)
    for line in report.lines:
        rows[line["kernel"]]["lines"].append(line)
    timed = [row | {"report": path.name} for row in rows.values() if row["duration_ns"]]
    return timed, len(rows) - len(timed)


def match(
    base: list[Row], head: list[Row]
) -> tuple[list[tuple[list[Row], list[Row]]], list[list[Row]], list[list[Row]]]:
    """(pairs, only in base, only in head) of launch groups.

    By NVTX range and name where both reports share a range, else by name. Launches on one and the
    same grid all along are samples of one kernel; otherwise they pair off in order, a sample each.
    """
    by_range = bool({k["nvtx"] for k in base} & {k["nvtx"] for k in head} - {None})
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


def _groups(kernels: list[Row], by_range: bool) -> dict[tuple[str | None, str], list[Row]]:
    out: dict[tuple[str | None, str], list[Row]] = defaultdict(list)
    for kernel in kernels:
        out[kernel["nvtx"] if by_range else None, kernel["name"]].append(kernel)
    return out


def _name(group: list[Row]) -> str:
    kernel = group[0]
    where = f"{kernel['nvtx']}: " if kernel["nvtx"] else ""
    return f"{where}{kernel['name']} #{kernel['kernel']}"


def _point(base: list[Row], head: list[Row], e: statistics.Estimate, settings: Settings) -> Row:
    """A matched kernel; causes where the change matters or could not be tested."""
    a, b = _typical(base), _typical(head)
    delta = e.head - e.base
    causes: list[Row] = []
    unexplained = None
    if abs(e.relative) > settings.threshold and e.verdict != statistics.SAME:
        before, after = ({"kernels": [k], "deep": [k], "measurement": {}} for k in (a, b))
        causes, unexplained = attribution.explain(before, after, "cold_us", delta)
    tested = e.low is not None and e.high is not None
    return {
        "id": _name(head),
        "base": e.base,
        "head": e.head,
        "delta": delta,
        "relative": e.relative,
        "interval": [e.base * e.low, e.base * e.high] if tested else None,  # type: ignore[operator]
        "verdict": e.verdict if tested else None,
        "basis": e.basis if tested else ONE_SAMPLE,
        "samples": list(e.samples),
        "causes": causes,
        "unexplained": unexplained,
    }


def _typical(group: list[Row]) -> Row:
    """The launch of the median duration."""
    return sorted(group, key=lambda kernel: kernel["duration_ns"])[len(group) // 2]


def _provenance(kernels: list[Row]) -> Row:
    """What a report knows of its machine: the GPU."""
    return {"gpu": next((k["device"] for k in kernels if k["device"]), None)}


def _notes(points: list[Row], floor: statistics.Floor, untimed: tuple[int, ...]) -> list[str]:
    single = sum(point["interval"] is None for point in points)
    out = [f"{single} of {len(points)} kernel(s) have {ONE_SAMPLE}."] if single else []
    if single < len(points):
        out.append(
            "One run a side: how far two runs differ is not known, so only changes beyond "
            f"{100 * floor.value:.0f} % count ({floor.source})."
        )
    if any(untimed):
        out.append(f"{untimed[0]} and {untimed[1]} kernel(s) have no duration and are left out.")
    return out


# --- as text ----------------------------------------------------------------------------------


def table(document: Row) -> str:
    """The comparison for a terminal: differences, then a line a kernel with what moved below it."""
    out = [f"base {document['base']['name']}", f"head {document['head']['name']}"]
    out += [f"differs: {d['axis']}: {d['base']} → {d['head']}" for d in document["differences"]]
    if document["mixed_causes"]:
        out.append("several things differ at once: their effects cannot be told apart")
    out += [f"note: {note}" for note in document["notes"]] + [""]
    for point in document["points"]:
        verdict = point["verdict"] or point["basis"]
        out.append(
            f"{micro(point['base']):>10} → {micro(point['head']):>10}  "
            f"{100 * point['relative']:+7.1f} %  {point['id']}  [{verdict}]"
        )
        out += [f"    {line}" for line in _why(point)]
    out += [f"only in base: {name}" for name in document["only_base"]]
    out += [f"only in head: {name}" for name in document["only_head"]]
    if not document["points"]:
        out.append("no kernel is in both reports")
    elif not any(point["causes"] for point in document["points"]):
        least = 100 * document["settings"]["threshold"]
        out.append(f"nothing changed: no matched kernel moved by more than {least:g} %")
    return "\n".join(out) + "\n"


def _why(point: Row) -> list[str]:
    out = []
    for cause in point["causes"]:
        out.append(f"{cause['what']}: {cause['base']} → {cause['head']}")
        large = [p for p in cause["parts"] if abs(p["share_of_cause"] or 0) >= LEAST_SHARE]
        out += [
            f"  {p['delta_us']:+.3g} µs {p['what']} ({p['base']:.3g} → {p['head']:.3g} {p['unit']})"
            for p in large[:MOST_PARTS]
            if p["base"] is not None
        ]
        out += [
            f"  {f['what']}: {_value(f['base'], f['unit'])} → {_value(f['head'], f['unit'])}"
            for f in cause["facts"]
            if f["kind"] != "template"
        ]
    return out


def _value(value: Any, unit: str) -> str:
    return quantity(value, unit) if isinstance(value, float) else str(value)
