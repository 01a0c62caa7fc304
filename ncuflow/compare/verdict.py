"""What got slower, and why: two sides of results, or two Nsight Compute reports of any program.

ncuflow compare RESULTS_DIR RESULTS_DIR --out compare.json
ncuflow compare A.ncu-rep B.ncu-rep [--format table|json]
"""

from __future__ import annotations

import argparse
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from ncuflow.compare import attribution, differences, reports
from ncuflow.io import BadInput, UsageError, dump_json, emit, read_json

Row = dict[str, Any]
# metric -> column of the measurement; the first that changed leads a point
METRICS = {"cold_us": "time_cold_us", "host_us": "host_launch_us", "plan_us": "plan_us"}
# A slow process is slow on the host at every point: points do not tell its runs apart, however
# many.
HOST = ("host_us", "plan_us")
CHANGED = ("slower", "faster")
SHORT_US = 20.0  # launches below this are a group of their own
FEWEST_POINTS = 3  # of such a group


@dataclass(frozen=True)
class Settings:
    """alpha: significance after the correction; threshold: changes below it do not matter (of 1);
    floor: A/A floor known from elsewhere, used where the evidence has no repeats."""

    alpha: float = 0.05
    threshold: float = 0.03
    floor: float | None = None


@dataclass
class Side:
    """One side of a comparison: points by id, and where the tables beside the results lie."""

    name: str
    provenance: Row
    points: dict[str, Row]
    tables: Path | None = None
    _traced: dict[str, dict[str, Row]] = field(default_factory=dict)

    def traced(self, point: Row) -> Row:
        """The point with what nsys saw in its launches: ``operations`` and ``idle_us``, None if not traced."""
        target = point["target"]
        if target not in self._traced:
            self._traced[target] = _traced(self.tables, target)
        unknown = {"operations": None, "idle_us": None}
        return point | self._traced[target].get(point["point"], unknown)


def load(folder: Path) -> Side:
    """The results of one side. Raises BadInput where the folder holds none."""
    if not folder.is_dir():
        raise BadInput(folder, "no such folder" if not folder.exists() else "not a folder")
    files = sorted(folder.glob("*_results.json"))
    if not files:
        raise BadInput(folder, "no *_results.json here: not the results of a side")
    points: dict[str, Row] = {}
    provenance: Row = {}
    for path in files:
        content = read_json(path)
        try:
            provenance = provenance or content["provenance"]
            points |= _points(content)
        except (KeyError, TypeError, AttributeError) as error:
            raise BadInput(path, f"not the results of a target ({error!r})") from None
    name = provenance.get("recording") or folder.parent.name
    return Side(name, provenance, points, folder.parent / "tables")


def _points(content: Row) -> dict[str, Row]:
    deep: dict[str, list[Row]] = defaultdict(list)
    for kernel in content.get("deep") or []:
        deep[kernel["point"]].append(kernel)
    return {
        p["point"]: p | {"target": content["target"], "deep": deep[p["point"]]}
        for p in content["points"]
    }


def _traced(tables: Path | None, target: str) -> dict[str, Row]:
    """By point: copies and fills of a launch, idle time in it, from the timeline table if there is one."""
    path = tables / target / "timeline.parquet" if tables else None
    if path is None or not path.exists():
        return {}
    import pyarrow.parquet as pq

    columns = ["report", "point", "launch", "kind", "name", "start_ns", "end_ns", "duration_ns"]
    rows: dict[str, list[Row]] = defaultdict(list)
    for row in pq.read_table(path, columns=columns).to_pylist():
        rows[row["point"]].append(row)  # of no point: the flush between launches, plan() before
    return {
        point: {
            "operations": attribution.operations_of(found),
            "idle_us": attribution.idle_of(found),
        }
        for point, found in rows.items()
        if point is not None
    }


def runs_of(point: Row, metric: str) -> list[list[float]]:
    """Samples of each run of a point; a lone median where none were kept; empty if not timed.

    ``runs`` of a point is {metric: [[µs, …], …]} or, for cold_us alone, that list itself.
    """
    runs = point.get("runs") or {}
    if isinstance(runs, list):
        runs = {"cold_us": runs}
    kept = runs.get(metric) or [(point.get("samples") or {}).get(metric)]
    known = [[sample for sample in run or () if sample is not None] for run in kept]
    value = point["measurement"].get(METRICS[metric])
    return [run for run in known if run] or ([[value]] if value else [])


# --- the comparison ---------------------------------------------------------------------------


def compare(base: Side, head: Side, settings: Settings) -> Row:
    """Everything that ``compare.json`` holds. Raises BadInput where no point is on both sides."""
    from ncuflow.findings import statistics

    common = [p for p in base.points if p in head.points]
    if not common:
        what = f"has no point in common with {base.name}: nothing can be compared"
        raise BadInput(head.name, what)
    good = [p for p in common if _ok(base.points[p]) and _ok(head.points[p])]
    found: list[statistics.Estimate] = []
    keys: list[tuple[str, str]] = []
    floors: dict[str, Row] = {}
    for metric in METRICS:
        sides = {
            p: pair for p in good if all(pair := _pair(base.points[p], head.points[p], metric))
        }
        enough = math.inf if metric in HOST else statistics.ENOUGH_RUNS
        for label, group in _by_length(metric, sides).items():
            some, floor = statistics.estimates(
                list(group.values()), settings.alpha, settings.floor, enough
            )
            if some:
                floors[label] = asdict(floor)
            found += some
            keys += [(p, metric) for p in group]
    decided = statistics.decide(found, settings.alpha, settings.threshold)
    by_point: dict[str, dict[str, statistics.Estimate]] = defaultdict(dict)
    for (point, metric), estimate in zip(keys, decided, strict=True):
        by_point[point][metric] = estimate
    entries = [_entry(base, head, p, by_point[p]) for p in good if by_point[p]]
    document = _document(base, head, settings, entries, floors)
    document["statistics"]["notes"] += _untraced(base, head, entries)
    return document | {
        "only_base": [p for p in base.points if p not in head.points],
        "only_head": [p for p in head.points if p not in base.points],
        "not_compared": [
            {"id": p, "base": _state(base.points[p]), "head": _state(head.points[p])}
            for p in common
            if not by_point.get(p)
        ],
    }


def _by_length(metric: str, sides: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Points whose noise is judged together: a launch of few µs moves by more of itself than a long one.

    Label of the floor -> points. One group where either would be too small to know its own noise.
    """
    short = {
        p: pair
        for p, pair in sides.items()
        if metric == "cold_us" and median(pair[0][0]) < SHORT_US
    }
    long = {p: pair for p, pair in sides.items() if p not in short}
    if min(len(short), len(long)) < FEWEST_POINTS:
        return {metric: sides}
    return {metric: long, f"{metric}_short": short}


def _ok(point: Row) -> bool:
    return bool(point["status"] == "ok")


def _state(point: Row) -> str:
    if _ok(point):
        return "ok" if runs_of(point, "cold_us") else "not timed"
    return f"{point['status']}: {point.get('reason') or 'no reason given'}"


def _pair(base: Row, head: Row, metric: str) -> tuple[list[list[float]], list[list[float]]]:
    return runs_of(base, metric), runs_of(head, metric)


def _entry(base: Side, head: Side, point: str, estimates: dict[str, Any]) -> Row:
    """One point: the metric that leads, spelled out, and all metrics beside it."""
    rows = {metric: _row(estimate) for metric, estimate in estimates.items()}
    changed = [metric for metric, row in rows.items() if row["verdict"] in CHANGED]
    if changed:
        a, b = base.traced(base.points[point]), head.traced(head.points[point])
        for metric in changed:
            row = rows[metric]
            row["causes"], row["unexplained"] = attribution.explain(
                a, b, metric, row["delta"], (row["base"], row["head"])
            )
    lead = changed[0] if changed else next(iter(rows))
    return (
        {"id": point, "target": base.points[point]["target"], "metric": lead}
        | rows[lead]
        | {"metrics": rows}
    )


def _untraced(base: Side, head: Side, entries: Sequence[Row]) -> Iterator[str]:
    """A note on changed times whose causes may be ones that only a trace shows."""
    changed = [
        e["id"]
        for e in entries
        if "cold_us" in e["metrics"] and e["metrics"]["cold_us"]["verdict"] in CHANGED
    ]
    unknown = [
        point
        for point in changed
        if any(side.traced(side.points[point])["operations"] is None for side in (base, head))
    ]
    if unknown:
        yield (
            f"{len(unknown)} point(s) changed that nsys did not trace on both sides: a copy or a fill"
            " that came or went there would stay unexplained."
        )


def _row(e: Any) -> Row:
    """An estimate as JSON: times in µs, ``interval`` of the change in µs, fractions of 1."""
    relative = None if e.low is None else [e.low, e.high]
    return {
        "base": e.base,
        "head": e.head,
        "delta": e.head - e.base,
        "relative": e.relative,
        "interval": None if relative is None else [e.base * bound for bound in relative],
        "interval_relative": relative,
        "verdict": e.verdict,
        "p": e.p,
        "q": e.q,
        "floor": e.floor,
        "basis": e.basis,
        "runs": list(e.runs),
        "samples": list(e.samples),
        "causes": [],
        "unexplained": None,
    }


def _document(base: Side, head: Side, settings: Settings, entries: list[Row], floors: Row) -> Row:
    pairs = [
        (base.points[e["id"]]["measurement"], head.points[e["id"]]["measurement"]) for e in entries
    ]
    found = differences.of_sides(base.provenance, head.provenance, pairs)
    return {
        "schema": 1,
        "base": {"name": base.name, "provenance": base.provenance},
        "head": {"name": head.name, "provenance": head.provenance},
        "differences": [asdict(difference) for difference in found],
        "mixed_causes": differences.mixed(found),
        "settings": asdict(settings),
        "statistics": {
            "tests": sum(row["p"] is not None for e in entries for row in e["metrics"].values()),
            "correction": "Benjamini-Hochberg over all points and metrics",
            "floors": floors,
            "notes": notes(entries, floors),
        },
        "summary": {"points": len(entries)} | dict(Counter(e["verdict"] for e in entries)),
        "points": entries,
    }


_FLOOR_SOURCE = {
    "repeats": "the largest difference between two runs of one side",
    "configured": "configured",
    "assumed": "assumed: without a repeat nobody knows how far two runs of one binary differ here",
}


def notes(entries: Sequence[Row], floors: Row) -> list[str]:
    """What the verdicts cannot know, in sentences."""
    from ncuflow.findings.statistics import ENOUGH_RUNS

    out = []
    runs = [sorted(e["runs"][side] for e in entries) or [ENOUGH_RUNS] for side in (0, 1)]
    if min(own[0] for own in runs) < ENOUGH_RUNS:
        counts = [f"{own[0]} to {own[-1]}" if own[0] < own[-1] else f"{own[0]}" for own in runs]
        floor = next(iter(floors.values()))
        short = floors.get("cold_us_short")
        of_short = f", {100 * short['value']:.1f} % below {SHORT_US:.0f} µs," if short else ""
        out.append(
            f"{counts[0]} and {counts[1]} run(s) a side, fewer than {ENOUGH_RUNS}: only changes "
            f"beyond the A/A floor of {100 * floor['value']:.1f} %{of_short} count "
            f"({_FLOOR_SOURCE[floor['source']]})."
        )
    untested = sum(e["basis"] == "none" for e in entries)
    if untested:
        out.append(f"{untested} point(s) have one value a side: no statistics, so no verdict.")
    return out


# --- command line -----------------------------------------------------------------------------


def configure(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("base", type=Path, metavar="A", help="folder of results, or a report of ncu (.ncu-rep)")
    add("head", type=Path, metavar="B", help="the same of the other side")
    add("--out", help="file to write; standard output by default")
    add("--format", choices=("table", "json"), default="table", help="of two reports")
    add("--alpha", type=float, default=Settings.alpha, help="significance after the correction")
    add("--threshold", type=float, default=Settings.threshold, help="smaller changes do not matter")
    add("--floor", type=float, help="A/A floor known from elsewhere, of 1")


def run(args: argparse.Namespace) -> None:
    if not (0 < args.alpha < 1 and args.threshold >= 0 and (args.floor or 0) >= 0):
        raise UsageError("--alpha lies between 0 and 1; --threshold and --floor are not negative")
    settings = Settings(args.alpha, args.threshold, args.floor)
    if args.base.is_dir() and args.head.is_dir():
        emit(dump_json(compare(load(args.base), load(args.head), settings)), args.out)
        return
    found = reports.compare(args.base, args.head, settings)
    emit(dump_json(found) if args.format == "json" else reports.table(found), args.out)
