"""An advice of what was recorded: of each shape the choices that the evidence has, by its pairs in turns, else apart.

Where two choices were timed in turns, those samples decide; else the two points' own series do, held against the noise of
the evidence (``ncuflow.findings.choices``). Counters say where the difference between the default and the advised one lies:
what limits each, and what each executes, reads and computes.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import Any

from ncuflow.compare import attribution, verdict
from ncuflow.experiments import choices
from ncuflow.experiments.record import Advice, AdvisedChoice, AdvisedShape
from ncuflow.findings import choices as evidence
from ncuflow.findings import limiter, profiled, stored
from ncuflow.findings.choices import Effect
from ncuflow.format import quantity, si
from ncuflow.io import BadInput, JsonObject, conforming, read_as
from ncuflow.model import SOFTWARE, Kernel, Point, Results
from ncuflow.parsers import ncu
from ncuflow.race.record import Relative, ShapeOutcome
from ncuflow.record import Check
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import Target, known, load

CAUSES = 2  # of two launches of the same kernels
LEAST_SHARE = 0.05  # of the difference: a smaller part of it is no cause
LEAST_RATIO = 1.25  # of a counter: a smaller difference is not said
# Counters of which kernels of other code have other amounts for the same work: the key, how it is said, and its unit.
AMOUNTS = (
    ("inst_executed", "executes {} the instructions", ""),
    ("dram_bytes_read", "reads {} the bytes from DRAM", "B"),
    ("tensor_flops", "computes {} the FLOPs on tensor cores", "FLOP"),
)


@dataclass(frozen=True)
class CountedChoice:
    """What counters say of a choice. row: columns of its measurement, as `ncuflow.findings.limiter` reads them."""

    point: str
    profile: attribution.Profile
    row: Mapping[str, Any]

    @property
    def kernels(self) -> Sequence[Kernel]:
        return self.profile.kernels

    def total(self, key: str) -> float | None:
        """A counter of all kernels together; None where one lacks it."""
        values = [kernel["metrics"].get(key) for kernel in self.kernels]
        known = [value for value in values if value is not None]
        return sum(known) if known and len(known) == len(values) else None


Counts = Mapping[str, CountedChoice]  # by point


def of_side(side: verdict.Side) -> Counts:
    """The points of results that were profiled."""
    return {
        name: CountedChoice(name, side.profile(name), point["measurement"])
        for name, point in side.points.items()
        if point["kernels"]
    }


@contextmanager
def counts(folder: Path) -> Iterator[Counts]:
    """What was counted: results, a recording, or a folder with reports of `ncuflow ncu`. Raises BadInput where it is none."""
    reports = sorted([*folder.rglob("*.ncu-rep"), *folder.rglob("*.ncu-rep.xz")])
    if stored.is_recording(folder) or (folder / "results").is_dir() or not reports:
        with stored.results_of(folder, None) as place:
            yield of_side(verdict.load(place))
    else:
        yield _of_reports(reports)


def _of_reports(reports: Sequence[Path]) -> Counts:
    found: dict[str, list[Kernel]] = defaultdict(list)
    for path in reports:
        for kernel in profiled.kernels(ncu.read(path, with_lines=False), path.name):
            if kernel["point"]:
                found[kernel["point"]].append(kernel)
    if not found:
        raise BadInput(reports[0], "no launch in a range that is named after a point")
    rows = {n: profiled.row_of(k, profiled.provenance(k[0], None)) for n, k in found.items()}
    return {
        name: CountedChoice(name, attribution.Profile(kernels=kernels), rows[name])
        for name, kernels in found.items()
    }


def explain_from(advice: Advice, folder: Path) -> None:
    """Put into an advice, from counters of the same points, why the default and the slowest of what was counted take longer than
    the advised choice."""
    with counts(folder) as found:
        for shape in advice.shapes:
            shape.cause = list(_of_shape(shape, found))


def _of_shape(shape: AdvisedShape, found: Counts) -> Iterator[str]:
    taken = shape.choice(shape.advised)
    if taken is None or taken.point not in found or taken.time_us is None:
        return
    slower = [
        one for one in shape.choices if one.fate == "slower" and one.time_us and one.point in found
    ]
    slower.sort(key=lambda one: -(one.time_us or 0.0))
    default = [one for one in slower if one.point == shape.shape]
    for one in dict.fromkeys(choice.point for choice in [*default, *slower[:1]]):
        other = shape.choice(one)
        assert other is not None and other.time_us is not None
        flops = load(shape.target).work({**shape.params, **other.settings}).flops
        yield from causes(
            found[taken.point], found[one], (taken.time_us, other.time_us), flops=flops
        )


def causes(
    taken: CountedChoice,
    other: CountedChoice,
    times: tuple[float, float],
    noise_us: float = 0.0,
    flops: float | None = None,
) -> list[str]:
    """Why the second of two choices takes longer than the first; times: of both, µs; flops: that the shape asks for."""
    ratio = f"{other.point} takes {times[1] / times[0]:.2f} times as long as {taken.point}"
    names = [sorted(kernel["name"] for kernel in one.kernels) for one in (taken, other)]
    if names[0] != names[1]:
        sides = f"it is {_limit(other, flops)}; the other is {_limit(taken, flops)}"
        return [". ".join([f"{ratio}: {sides}", *filter(None, [_amounts(taken, other)])])]
    found = attribution.explain(taken.profile, other.profile, *times, noise_us).causes
    least = LEAST_SHARE * (times[1] - times[0])
    worth = [c for c in found if c.delta_us is not None and c.delta_us >= least]
    if not worth:
        return [f"{ratio}; under ncu, which runs each kernel alone, {_spent(taken, other)}"]
    return [f"{ratio}: {cause.line}" for cause in worth[:CAUSES]]


def _spent(taken: CountedChoice, other: CountedChoice) -> str:
    """What the kernels of both take under ncu, and on which grids, where no cause was found that is told."""
    own, more = (
        sum(kernel["duration_ns"] or 0 for kernel in one.kernels) for one in (taken, other)
    )
    if not own or more <= own * (1 + LONGER):
        return "its kernels take no longer"
    text = f"its kernels take {quantity(more / 1e3, 'µs')}, not {quantity(own / 1e3, 'µs')}"
    grids = [", ".join(str(k["grid_size"]) for k in one.kernels) for one in (taken, other)]
    blocks = f" (blocks {grids[1]}, not {grids[0]})" if grids[0] != grids[1] else ""
    return f"{text}{blocks}; why, no counter tells"


def _limit(choice: CountedChoice, flops: float | None) -> str:
    """What limits a choice, with the name of its kernel and its grid."""
    main = profiled.longest(choice.kernels)
    row = dict(choice.row)
    computed = choice.total("tensor_flops")
    if row.get("tensor_padding_pct") is None and flops and computed:
        row["tensor_padding_pct"] = 100 * max(0.0, 1 - flops / computed)
    said = limiter.words(row) or "not judged: its report lacks the breakdown"
    where = f"{main['name']} on a grid of {main['grid']}"
    return f"{where}, {said.removeprefix(main['name']).removeprefix(', ')}"


def _amounts(taken: CountedChoice, other: CountedChoice) -> str:
    """Of what the other has more or less, by counters."""
    found = []
    for key, words, unit in AMOUNTS:
        own, more = taken.total(key), other.total(key)
        if own and more and not 1 / LEAST_RATIO < more / own < LEAST_RATIO:
            times = f"{more / own:.1f} times" if more > own else f"{100 * more / own:.0f} % of"
            amounts = f" ({si(more, unit)}, not {si(own, unit)})"
            found.append(words.format(times) + amounts)
    return f"It {', '.join(found)}" if found else ""


LONGER = 0.01  # of the time of kernels under ncu: what takes more takes longer
NONE = Relative(estimate=0.0, low=0.0, high=0.0)


def read(path: Path) -> Advice:
    """What `ncuflow advise --out` wrote, with a default of each parameter that an older one lacks.

    Raises BadInput where it is that of nothing.
    """
    found = read_as(path, Advice, "an advice")
    for shape in found.shapes:
        try:
            target = load(shape.target)
            for settings in ({}, *(choice.settings for choice in shape.choices)):
                target.completed({**shape.params, **settings})
            shape.params = dict(target.completed(shape.params))
        except ValueError as error:
            raise BadInput(path, f"{shape.shape}: {error}") from None
    found.tier = "C"
    return found


def advise(
    folder: Path, targets: Sequence[str] | None, also: choices.Also, metric: str, effect: float
) -> Advice:
    """The advice of a recording, or of the outputs of a run, for every shape of which it has several choices.

    Raises BadInput where the folder is neither, or lacks a target.
    """
    with stored.results_of(folder, targets) as place:
        found = stored.folder(place, targets)
        side = verdict.load(place, targets)
        counts = of_side(side)
        every = [
            ShapeEvidence(known()[name], results, counts, also, metric, effect, group)
            for name, results in found.items()
            if name in known()
            for group in _shapes(known()[name], results, also)
        ]
        shapes = [one.advised() for one in every if len(one.timed) > 1]
    about = side.provenance
    advice = {
        "tier": about["tier"],
        "recording": about.get("recording"),
        "gpu": about.get("gpu"),
        "versions": {label: about.get(key) for key, label in SOFTWARE.items()},
        "date": about["date"],
        "metric": metric,
        "effect": effect,
        "alpha": evidence.ALPHA,
        "shapes": shapes,
        "rules": choices.rules(shapes, metric),
    }
    return conforming(folder, advice, Advice, "evidence that an advice can be made of")


def _shapes(target: Target, results: Results, also: choices.Also) -> Iterable[Sequence[Point]]:
    """The points of each shape."""
    groups: dict[tuple[tuple[str, Any], ...], list[Point]] = {}
    for point in results["points"]:
        groups.setdefault(choices.fixed(target, point["params"], also), []).append(point)
    return groups.values()


@dataclass
class ShapeEvidence:
    """The points of one shape. default: that of FlashInfer's defaults, which may be none of them; same: those that make the call
    of an earlier one, as ``choices.same_calls`` says; timed: the others, the fastest first."""

    target: Target
    results: Results
    counts: Counts
    also: choices.Also
    metric: str
    effect: float
    group: Sequence[Point]

    def __post_init__(self) -> None:
        params = {**self.group[0]["params"], **self.target.free(self.group[0]["params"])}
        self.default = Planned(self.target.point_id(params), self.target.name, params)
        # Where the default itself was not recorded, the point that asks for what FlashInfer makes of it is the same call.
        capability = str(self.results["provenance"].get("compute_capability") or "")
        made = {**params, **self.target.resolves(params, capability)}
        ids = {point["point"] for point in self.group}
        if self.default.id not in ids and (told := self.target.point_id(made)) in ids:
            self.default = Planned(told, self.target.name, made)
        self.told = {p["point"]: self._described(_planned(self.target, p)) for p in self.group}
        ordered = sorted(self.group, key=lambda point: self.told[point["point"]]["departs"])
        self.all = {point["point"]: point for point in ordered}
        timed = [point for point in ordered if self._time(point) is not None]
        self.same = choices.same_calls(
            {p["point"]: self.told[p["point"]]["settings"] for p in timed},
            {p["point"]: p.get("info") or {} for p in timed},
        )
        apart = [p for p in self.group if self._time(p) is not None and p["point"] not in self.same]
        self.timed = [p["point"] for p in sorted(apart, key=lambda p: self._time(p) or 0.0)]
        self.effects = {name: self._between(self.timed[0], name) for name in self.timed[1:]}

    def _described(self, point: Planned) -> JsonObject:
        return choices.described(self.target, self.default, point, self.also)

    def _time(self, point: Point) -> float | None:
        """The metric of a point that was right."""
        value = point["measurement"].get(self.metric) if point["status"] == "ok" else None
        return value if isinstance(value, float) and value > 0 else None

    def _between(self, name: str, other: str) -> Effect | None:
        return evidence.between(self.all[name], self.all[other], self.metric, self.results)

    def advised(self) -> AdvisedShape:
        outcomes = {name: self._outcome(point) for name, point in self.all.items()}
        best = [name for name in self.timed if outcomes[name] != "slower"]
        taken = min(best, key=lambda name: (self.told[name]["departs"], best.index(name)))
        default = self.default.id if self.default.id in self.timed else None
        measured = self._between(taken, default) if default not in (None, taken) else None
        every = [found for found in (*self.effects.values(), measured) if found is not None]
        several: ShapeOutcome = (
            "undecided" if "undecided" in {outcomes[name] for name in best} else "tie"
        )
        found = AdvisedShape(
            target=self.target.name,
            shape=self.default.id,
            params=dict(self.default.params),
            outcome="winner" if len(best) == 1 else several,
            best=best,
            advised=taken,
            regret=NONE if taken == self.default.id else _relative(measured),
            in_turns=bool(every) and all(one.in_turns for one in every),
            cause=list(self._causes(taken, [n for n in (default, self.timed[-1]) if n], outcomes)),
            choices=[self._choice(point, outcomes[name]) for name, point in self.all.items()],
        )
        if self.default.id not in self.all:
            reason = "the default is not among what was recorded"
            lacking = self._described(self.default) | {"fate": "skipped", "reason": reason}
            found.choices = [AdvisedChoice(**lacking), *found.choices]
        found.layers = layers(found)
        return found

    def _outcome(self, point: Point) -> str:
        name = point["point"]
        if point["status"] != "ok":
            return point["status"]
        if name in self.same or name == self.timed[0]:
            return "same" if name in self.same else "best"
        measured = self.effects.get(name)
        if measured is None or measured.verdict == "not tested":
            return "undecided"
        surely = measured.verdict == "differs" and (
            measured.low is None or measured.low > self.effect / 2
        )
        return "slower" if surely else "best"

    def _choice(self, point: Point, outcome: Any) -> AdvisedChoice:
        name, plan = point["point"], point["measurement"].get("plan_us")
        check: Mapping[str, Any] = dict(point.get("check") or {})
        known_check = {k: v for k, v in check.items() if k in Check.model_fields}
        reason = point["reason"]
        if name in self.same:
            first, made = self.same[name]
            reason = choices.folded(first, self.told[first]["settings"], made)
        return AdvisedChoice(
            **self.told[name],
            fate=outcome,
            reason=reason,
            resolved=dict(next((made for first, made in self.same.values() if first == name), {})),
            check=Check(**known_check) if check else None,
            time_us=self._time(point),
            behind=NONE if name == self.timed[0] else _relative(self.effects.get(name)),
            plan_us=plan if isinstance(plan, float) else None,
        )

    def _causes(
        self, taken: str, others: Sequence[str], outcomes: Mapping[str, str]
    ) -> Iterator[str]:
        """What the launches of others have, by counters and trace, that those of the advised choice have not."""
        for name in dict.fromkeys(others):
            measured = self._between(taken, name)
            if name == taken or measured is None or outcomes[name] != "slower":
                continue
            if {taken, name} <= self.counts.keys():
                half = ((measured.high or 0.0) - (measured.low or 0.0)) / 2 * measured.base
                sides = (self.counts[taken], self.counts[name])
                yield from causes(*sides, (measured.base, measured.other), half)


def _planned(target: Target, point: Point) -> Planned:
    return Planned(point["point"], target.name, dict(point["params"]))


def _relative(measured: Effect | None) -> Relative | None:
    """The change with its interval; None where the evidence keeps no spread."""
    if measured is None or measured.low is None or measured.high is None:
        return None
    return Relative(estimate=measured.change, low=measured.low, high=measured.high)


def layers(shape: AdvisedShape) -> int | None:
    """After how many layers the advised choice has paid what its plan() takes longer than the default's: 0 where that takes
    no longer. None where it gains nothing for sure, or a time is not known."""
    chosen, default = shape.choice(shape.advised), shape.choice(shape.shape)
    if chosen is None or default is None or chosen is default or shape.regret is None:
        return None
    if None in (chosen.plan_us, default.plan_us) or shape.regret.low <= 0:
        return None
    more = chosen.plan_us - default.plan_us  # type: ignore[operator]
    gain = default.time_us - chosen.time_us  # type: ignore[operator]
    return None if gain <= 0 else max(0, ceil(more / gain))
