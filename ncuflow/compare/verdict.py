"""What got slower, and why: two sides of results, or two reports of ncu or nsys of any program."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from heapq import nlargest
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any, cast

from ncuflow.compare import attribution, decomposition, records, reports
from ncuflow.compare.records import (
    EACH,
    Cause,
    Comparison,
    MetricChange,
    Named,
    NotCompared,
    PointChange,
    Statistics,
    Thresholds,
)
from ncuflow.findings import statistics, stored
from ncuflow.findings.statistics import ENOUGH_RUNS, NOT_JUDGED, Estimate, Floor, Runs
from ncuflow.format import Sheet, with_unit
from ncuflow.io import BadInput, MissingFile
from ncuflow.model import VERSIONS, Kernel, Measurement, Point, Results
from ncuflow.parsers.show import is_trace

# metric -> column of the measurement; of several that changed at a point, its page begins with the first
METRICS = {"cold_us": "time_cold_us", "host_us": "host_launch_us", "plan_us": "plan_us"}
# A slow process is slow on the host at every point, however many, and two recordings are two processes: these times are
# shown and not judged. In turns on one host they are compared (`pairs` of a sweep).
HOST = {"host_us": "launching call", "plan_us": "plan()"}
SHORT_US = 20.0  # launches below this are a group of their own
FEWEST_POINTS = 3  # of such a group
SETTING_DECIDES = 0.5  # of a change: what a setting that one side lacks takes at least
OTHER_WORK = 1e-3  # of the FLOPs or bytes that a call is: more is another call


@dataclass
class Side:
    """One side of a comparison: points by id, and where the tables beside the results lie.

    deep: the deep-profiled kernels of each point.
    """

    name: str
    provenance: Mapping[str, Any]
    points: dict[str, Point]
    tables: Path | None = None
    deep: dict[str, list[Kernel]] = field(default_factory=dict)

    @cached_property
    def traced(self) -> dict[str, attribution.Traced]:
        """What nsys saw, by point, of every target that has a timeline table."""
        if self.tables is None:
            return {}
        targets = {name.partition("/")[0] for name in self.points}
        found = [
            attribution.traced(self.tables / target / "timeline.parquet") for target in targets
        ]
        return {point: seen for points in found for point, seen in points.items()}

    def profile(self, name: str) -> attribution.Profile:
        """What explains a change of this point."""
        point = self.points[name]
        mhz = point["measurement"].get("clock_cold_mhz")
        return attribution.Profile(
            kernels=point["kernels"],
            deep=self.deep.get(name, ()),
            gap_us=point["measurement"].get("kernel_gap_us"),
            info=point.get("info") or {},
            traced=self.traced.get(name),
            rates=decomposition.LaunchRates(
                gpu=self.provenance.get("gpu"),
                clock_ghz=mhz / 1e3 if mhz else None,
                dram_gbs=point["measurement"].get("ceiling_dram_gbs_datasheet"),
            ),
        )


def load(folder: Path, targets: Sequence[str] | None = None) -> Side:
    """The results of one side, of these targets or all. Raises BadInput where the folder holds none."""
    side = Side("", {}, {}, folder.parent / "tables", defaultdict(list))
    for name, content in stored.folder(folder, targets).items():
        path = folder / f"{name}{stored.SUFFIX}"
        _check_same_machine(path, side.provenance or content["provenance"], content)
        side.provenance = side.provenance or content["provenance"]
        side.points |= {point["point"]: point for point in content["points"]}
        for kernel in content["deep"]:
            side.deep[kernel["point"] or ""].append(kernel)
    side.name = side.provenance.get("recording") or folder.parent.name
    return side


def _check_same_machine(path: Path, provenance: Mapping[str, Any], content: Results) -> None:
    """A side is one GPU and one set of versions: what mixes them is compared with nothing."""
    for key in content["provenance"].get("mixed") or ():
        what = f"{VERSIONS[key]} {content['provenance'][key]}"  # type: ignore[literal-required]
        raise BadInput(path, f"{what}: measured apart, so not one side")
    for difference in records.of_sides(provenance, content["provenance"], []):
        if difference.cause:
            what = f"{difference.axis} {difference.head}, the rest of this side {difference.base}"
            raise BadInput(path, f"{what}: measured apart, so not one side")
    gpus = {point["measurement"].get("gpu") or provenance["gpu"] for point in content["points"]}
    if gpus - {provenance["gpu"]}:
        raise BadInput(path, f"points of {' and '.join(sorted(gpus))}: not one side")


def runs_of(point: Point, metric: str) -> Runs:
    """Samples of each run of a point; a lone median where none were kept; empty if not timed."""
    kept = point.get("runs", {}).get(metric) or [point.get("samples", {}).get(metric)]
    known = [[sample for sample in run or () if sample is not None] for run in kept]
    value = point["measurement"].get(METRICS[metric])
    return [run for run in known if run] or ([[value]] if value else [])


# --- the comparison ---------------------------------------------------------------------------


def compare(base: Side, head: Side, settings: Thresholds) -> Comparison:
    """Everything that ``compare.json`` holds. Raises BadInput where no point is on both sides."""
    common = [name for name in base.points if name in head.points]
    if not common:
        what = f"has no point in common with {base.name}: nothing can be compared"
        raise BadInput(head.name, what)
    estimates, floors = _estimates(base, head, common, settings)
    points = [_point(base, head, name, found) for name, found in estimates.items()]
    pairs = _measured(base, head, estimates)
    alike = _measured(base, head, [name for name in estimates if _same_kernels(base, head, name)])
    return Comparison(
        base=Named(base.name, base.provenance),
        head=Named(head.name, head.provenance),
        differences=records.of_sides(base.provenance, head.provenance, alike),
        settings=settings,
        points=points,
        statistics=Statistics(
            tests=sum(row.p is not None for point in points for row in point.metrics.values()),
            floors=floors,
            notes=[
                *notes(points, floors),
                *_paced_by_host(points, floors),
                *_host_apart(points, floors),
                *_unseen(base, head, points),
            ],
        ),
        only_base=[name for name in base.points if name not in head.points],
        only_head=[name for name in head.points if name not in base.points],
        not_compared=[
            NotCompared(name, *_states(base, head, name))
            for name in common
            if name not in estimates
        ],
        gpus=records.two_gpus(base.provenance, head.provenance, pairs),
    )


def _measured(
    base: Side, head: Side, names: Iterable[str]
) -> list[tuple[Measurement, Measurement]]:
    return [(base.points[name]["measurement"], head.points[name]["measurement"]) for name in names]


def _same_kernels(base: Side, head: Side, name: str) -> bool:
    """Whether ncu saw kernels of the same names at a point: others run at a clock of their own."""
    before, after = (
        [kernel["name"] for kernel in side.points[name]["kernels"]] for side in (base, head)
    )
    return before == after


def _estimates(
    base: Side, head: Side, common: Sequence[str], settings: Thresholds
) -> tuple[dict[str, dict[str, Estimate]], dict[str, Floor]]:
    """(point -> metric -> estimate with its verdict, floors by group of points)."""
    sides = (base.points, head.points)
    good = [
        name
        for name in common
        if all(_ok(points[name]) for points in sides) and _same_work(base, head, name)
    ]
    found: dict[tuple[str, str], Estimate] = {}
    floors: dict[str, Floor] = {}
    for metric in METRICS:
        runs = {
            name: (runs_of(sides[0][name], metric), runs_of(sides[1][name], metric))
            for name in good
        }
        timed = {name: pair for name, pair in runs.items() if all(pair)}
        enough = math.inf if metric in HOST else ENOUGH_RUNS
        for label, group in _by_length(metric, timed).items():
            if group:
                some, floors[label] = statistics.estimates(
                    list(group.values()), settings.alpha, settings.floor, enough
                )
                found |= {(name, metric): one for name, one in zip(group, some, strict=True)}
    judged = {key: one for key, one in found.items() if key[1] not in HOST}
    verdicts = statistics.decide(list(judged.values()), settings.alpha, settings.threshold)
    decided = dict(zip(judged, verdicts, strict=True))
    by_point: dict[str, dict[str, Estimate]] = {name: {} for name in good}
    for (name, metric), one in found.items():
        shown = replace(one, p=None, verdict=NOT_JUDGED)
        by_point[name][metric] = decided.get((name, metric), shown)
    return {name: metrics for name, metrics in by_point.items() if metrics}, floors


def _by_length(
    metric: str, sides: dict[str, tuple[Runs, Runs]]
) -> dict[str, dict[str, tuple[Runs, Runs]]]:
    """Points whose noise is judged together: a launch of few µs moves by more of itself than a long one.

    Label of the floor -> points; short on one side is short. One group where either would be too
    small to know its own noise.
    """
    cold = metric == "cold_us"
    short = {p: pair for p, pair in sides.items() if cold and min(map(_middle, pair)) < SHORT_US}
    long = {p: pair for p, pair in sides.items() if p not in short}
    if min(len(short), len(long)) < FEWEST_POINTS:
        return {metric: sides}
    return {metric: long, f"{metric}_short": short}


def _middle(runs: Runs) -> float:
    return median(median(run) for run in runs)


def _ok(point: Point) -> bool:
    return point["status"] == "ok"


def _same_work(base: Side, head: Side, name: str) -> bool:
    """Whether the call was asked for as many FLOPs and bytes on both sides, as far as is known."""
    for key in ("flops_analytic", "bytes_analytic"):
        a, b = (side.points[name]["measurement"].get(key) for side in (base, head))
        if a is not None and b is not None and abs(a - b) > OTHER_WORK * max(a, b):
            return False
    return True


def _states(base: Side, head: Side, name: str) -> tuple[str, str]:
    """Why a point is not compared, by side."""
    points = base.points[name], head.points[name]
    if all(map(_ok, points)) and not _same_work(base, head, name):
        rows = [point["measurement"] for point in points]
        before, after = (
            f"not the same work: {row['flops_analytic']:.4g} FLOPs, {row['bytes_analytic']:.4g} bytes"
            for row in rows
        )
        return before, after
    return _state(points[0]), _state(points[1])


def _state(point: Point) -> str:
    if _ok(point):
        return "ok" if runs_of(point, "cold_us") else "not timed"
    return f"{point['status']}: {point.get('reason') or 'no reason given'}"


def _point(base: Side, head: Side, name: str, estimates: Mapping[str, Estimate]) -> PointChange:
    """One point: the metric that leads, spelled out, and all metrics beside it."""
    rows = {metric: MetricChange(**vars(estimate)) for metric, estimate in estimates.items()}
    lead = next(iter(rows))
    if rows[lead].changed:
        row = rows[lead]
        sides = base.profile(name), head.profile(name)
        found = attribution.explain(*sides, row.base, row.head, _noise(row))
        if not found.causes and lead == "cold_us":
            found = _by_setting(base, head, name, row) or found
        rows[lead] = replace(row, **vars(found))
    target = name.partition("/")[0]
    return PointChange(**vars(rows[lead]), id=name, target=target, metric=lead, metrics=rows)


def _by_setting(
    base: Side, head: Side, name: str, row: MetricChange
) -> attribution.Explained | None:
    """What a setting that only the second side knows explains: its own point without that takes most of the way back."""
    own = head.points[name]["params"]
    for other, point in head.points.items():
        differs = [key for key, value in point["params"].items() if value != own.get(key)]
        known = base.points.get(other)
        us = point["measurement"].get("time_cold_us")
        if len(differs) != 1 or not us or not _ok(point) or known is None or _ok(known):
            continue
        share = (row.head - us) / (row.head - row.base)
        if SETTING_DECIDES <= share <= attribution.MOST_EXPLAINED:
            (key,) = differs
            what = f"{key} {own.get(key)}, which the first side does not know: with {key} {point['params'][key]}"
            evidence = f"cold time of {other}"
            cause = Cause("setting", what, us, row.head, row.head - us, evidence, share)
            rest = us - row.base
            return attribution.Explained(
                [cause], rest, "what else moved with that setting as it was: not profiled"
            )
    return None


def _noise(row: MetricChange) -> float:
    """By how many µs two runs of a side may differ: half the interval, or the floor where that is what counts."""
    low, high = row.interval or (0.0, 0.0)
    return row.base * max((high - low) / 2, row.floor or 0.0)


_FLOOR_SOURCE = {
    "repeats": "at least 99 % of the pairs of two runs of one side lie no further apart",
    "configured": "configured",
    "assumed": "assumed: without a repeat nobody knows how far two runs of one binary differ here",
}


def notes(points: Sequence[PointChange], floors: Mapping[str, Floor]) -> Iterator[str]:
    """What the verdicts cannot know, in sentences."""
    runs = [sorted(point.runs[side] for point in points) or [ENOUGH_RUNS] for side in (0, 1)]
    if min(own[0] for own in runs) < ENOUGH_RUNS:
        counts = [f"{own[0]} to {own[-1]}" if own[0] < own[-1] else f"{own[0]}" for own in runs]
        floor = next(iter(floors.values()))
        short = floors.get("cold_us_short")
        of_short = (
            f", {100 * short.value:.1f} % where a side takes less than {SHORT_US:.0f} µs,"
            if short
            else ""
        )
        yield (
            f"{counts[0]} and {counts[1]} runs per side, fewer than {ENOUGH_RUNS}: only changes "
            f"beyond the noise floor of {100 * floor.value:.1f} %{of_short} count "
            f"({_FLOOR_SOURCE[floor.source]})."
        )
    untested = [statistics.verdict_in_words(point) for point in points if point.basis == "none"]
    for words in sorted(set(untested) - {NOT_JUDGED}):
        yield f"{with_unit(untested.count(words), 'points')} {words} on a side."


def _paced_by_host(points: Sequence[PointChange], floors: Mapping[str, Floor]) -> Iterator[str]:
    """A note on points whose call outlasts its kernels, where its host time moved without a verdict.

    Launched one by one these run at the host's pace, so "same" is no word on what a caller waits for.
    """
    moved = []
    for point in points:
        host, cold = point.metrics.get("host_us"), point.metrics.get("cold_us")
        if host is None or cold is None:
            continue
        slower_host = host.base > cold.base or host.head > cold.head
        if slower_host and statistics.beyond(host.relative, floors["host_us"].value):
            moved.append((abs(math.log1p(host.relative)), point.id, host))
    if moved:
        listed = "; ".join(
            f"`{name}` {host.base:.0f} → {host.head:.0f} µs" for _, name, host in nlargest(3, moved)
        )
        yield (
            f"At {with_unit(len(moved), 'points')} the call takes the host longer than its kernels take the GPU, and took "
            f"it another time on each side ({listed}). Launched one by one these run at the host's pace."
        )


def _host_apart(points: Sequence[PointChange], floors: Mapping[str, Floor]) -> Iterator[str]:
    """A note on the host times of two sides that lie further apart than those of two runs of one side."""
    apart = [
        (abs(math.log1p(row.relative)), metric, point.id, row)
        for point in points
        for metric, row in point.metrics.items()
        if metric in HOST and statistics.beyond(row.relative, floors[metric].value)
    ]
    if apart:
        listed = "; ".join(
            f"{HOST[metric]} of `{name}` {row.base:.0f} → {row.head:.0f} µs"
            for _, metric, name, row in nlargest(3, apart)
        )
        yield (
            "Host times are shown, not judged: two recordings are two processes, and how fast their hosts were belongs to no "
            f"version. {with_unit(len(apart), 'host times')} moved further than two runs of one side lie "
            f"apart{', the most' if len(apart) > 3 else ''}: {listed}. Only "
            "runs in turns on one host tell whether the version did it."
        )


def _unseen(base: Side, head: Side, points: Sequence[PointChange]) -> Iterator[str]:
    """Notes on changed times whose causes may be ones that a side without a trace, or without counters, does not show."""
    changed = [p.id for p in points if "cold_us" in p.metrics and p.metrics["cold_us"].changed]
    untraced = [p for p in changed if not (p in base.traced and p in head.traced)]
    if untraced:
        yield (
            f"{with_unit(len(untraced), 'points')} changed that nsys did not trace on both sides: a copy or a fill"
            " that came or went there would stay unexplained."
        )
    sides = base.points, head.points
    uncounted = [p for p in changed if not all(side[p].get("kernels") for side in sides)]
    if uncounted:
        some = ", ".join(f"`{name}`" for name in uncounted[:3])
        yield (
            f"{with_unit(len(uncounted), 'points')} changed that ncu did not profile on both sides ({some}): which"
            " kernels came, went or took another time there stays unexplained."
        )


def of_paths(
    base: Path,
    head: Path,
    settings: Thresholds,
    base_targets: Sequence[str] | None = None,
    head_targets: Sequence[str] | None = None,
    device: int | None = None,
    maps: Mapping[str, str] | None = None,
) -> Comparison:
    """Two folders of results, of outputs or of recordings, two reports of ncu, or two traces, held against each other.

    device: of traces, the GPU; maps: of these, names of the base that are others in the head. Raises BadInput where a
    side cannot be read, and where nothing is on both.
    """
    for side in (base, head):
        if not side.exists():
            raise MissingFile(side, "no such file or folder")
    if base.is_dir() != head.is_dir():
        file, folder = (head, base) if base.is_dir() else (base, head)
        raise BadInput(file, f"a file, and {folder} is a folder: two of a kind are compared")
    if not base.is_dir():
        if all(path.is_file() and is_trace(path) for path in (base, head)):
            from ncuflow.compare import traces  # with numpy, which reports do without

            return traces.compare(base, head, settings, device, maps)
        return reports.compare(base, head, settings)
    with (
        stored.results_of(base, base_targets) as before,
        stored.results_of(head, head_targets) as after,
    ):
        return compare(load(before, base_targets), load(after, head_targets), settings)


def compared(
    base: str | Path,
    head: str | Path,
    alpha: float = Thresholds.alpha,
    threshold: float = Thresholds.threshold,
    floor: float | None = None,
) -> Comparison:
    """What got slower between two reports, two folders of results or two recordings, and why: what `ncuflow compare` prints.

    alpha: significance after the correction; threshold: of 1, smaller changes do not matter; floor: of 1, how far two runs
    of the same lie apart, where that is known from elsewhere. Raises BadInput where nothing is on both sides.
    """
    return of_paths(Path(base), Path(head), Thresholds(alpha, threshold, floor))


def as_text(found: Comparison) -> str:
    """The text of a comparison, of traces or of anything else."""
    return str(_told_by(found).table(found))


def sheet(found: Comparison) -> Sheet:
    """The same as one table."""
    return cast(Sheet, _told_by(found).sheet(found))


def _told_by(found: Comparison) -> ModuleType:
    """What has the words for it."""
    if all(point.metric != EACH for point in found.points):
        return reports
    from ncuflow.compare import traces

    return traces
