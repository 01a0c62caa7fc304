"""Choices and their measured effects: pairs of points that differ in one parameter and nothing else.

Where the evidence has the two timed in turns, those samples decide, held against pairs of a point with
itself; else the two points' own series do, held against the noise floor of the evidence
(``ncuflow.findings.noise``). A difference that the floor covers is within noise whatever a test says.

What was tried of a choice anywhere (in another recording of the GPU and FlashInfer version, as a change by `ncuflow try`, or in
an advice) pages have from ``tried.yaml``, which ``scripts/tried.py`` writes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Protocol, TypeVar

from ncuflow.expression import evaluate, holds, names, terms
from ncuflow.findings import noise, statistics
from ncuflow.findings.join import WAITED
from ncuflow.findings.noise import FASTER
from ncuflow.format import change, percent
from ncuflow.io import JsonObject, read_yaml
from ncuflow.model import Measurement, NoiseFloor, Point, Results, Row, Turns
from ncuflow.target.contract import Choice, known, traits

Fixed = tuple[tuple[str, Any], ...]
Samples = tuple[float, ...]
ALPHA = 0.01
# Between the times of pairs that all gain, or all lose: from there on what tells them apart is told.
FURTHER = math.log(1.5)
APART = 0.05  # by how much pairs with a change differ from those within noise, to be told apart
# Pairs of a side from which a bound of a parameter is told; of fewer only the values themselves are.
FEWEST_RULED = 3
FAR = 10  # times as long: from there on a launch has not the noise of the shorter one
FEWEST_SAMPLES = 8  # per side, for the normal approximation
# column -> the samples in the results file that it is the median of
SAMPLES = {
    "time_cold_us": "cold_us",
    "time_hot_us": "hot_us",
    "host_launch_us": "host_us",
    "plan_us": "plan_us",
}
# Of a launch among many: what the host takes, or the GPU, whichever is longer. By metric, the GPU's time: with its inputs in
# L2, as what another kernel has just written is, or in DRAM, as each layer's KV cache is.
STEPS = {"step_us": "hot_us", "step_cold_us": "cold_us"}


# What a launch takes whose input the launch before it has just written, of one that is timed with its input in DRAM.
WRITTEN_BEFORE = {"time_cold_us": "time_hot_us"}


class Compared(Protocol):
    """A change and whether it is one."""

    @property
    def change(self) -> float:
        """other / base − 1."""

    @property
    def verdict(self) -> str:
        """As an ``Effect`` has it."""


Told = TypeVar("Told", bound=Compared)


@dataclass(frozen=True)
class Effect:
    """One pair. change: other / base − 1; floor: relative noise floor of that, or None.

    low, high: 95 % interval of the change, the floor included; p: of the two-sided test of the launches alone,
    without the floor, None where it was not made; verdict: differs | within noise | not tested (this evidence keeps no spread);
    in_turns: the two were timed as a pair; traits: what follows from the parameters (``Target.traits``);
    apart: the two were measured with other software, in sessions of their own.
    """

    metric: str
    base_point: str
    other_point: str
    fixed: Fixed
    base: float
    other: float
    change: float
    p: float | None = None
    floor: float | None = None
    verdict: str = "not tested"
    low: float | None = None
    high: float | None = None
    in_turns: bool = False
    traits: Fixed = ()
    apart: bool = False

    @property
    def facts(self) -> dict[str, Any]:
        """What tells the pair from others, by name."""
        return dict(self.fixed + self.traits)


@dataclass(frozen=True)
class Subgroup:
    """Pairs of a choice that fare alike.

    where: what tells them from others, an expression over their parameters and traits, or "".
    """

    where: str
    effects: tuple[Effect, ...]


Untested = tuple[Effect, tuple[Samples, Samples]]
_TESTS: dict[tuple[Samples, Samples], statistics.Found] = {}


def effects(choice: Choice, results: Results) -> list[Effect]:
    """The effect of a choice at every pair that the evidence has, in the order of its points."""
    points = [
        point
        for point in results["points"]
        if point["status"] == "ok" and WAITED not in point["problems"]
    ]
    turns = {(pair["base"], pair["other"]): pair for pair in results.get("pairs") or ()}
    # The launches that a base needs before its own.
    before: dict[Fixed, list[Point]] = defaultdict(list)
    if choice.after is not None:
        for point in points:
            if point["params"].get(choice.parameter) == choice.after:
                before[choice.fixed(point["params"])].append(point)
    found = []
    for first, second in choice.pairs([point["params"] for point in points]):
        base, other = points[first], points[second]
        fixed = choice.fixed(base["params"])
        if (
            choice.alone
            and evaluate(choice.alone, {**base["measurement"], **base["params"]}) is False
        ):
            continue
        if choice.after is not None:
            summed = [
                _apart(base, other, metric, results.get("noise") or {}, fixed, before[fixed])
                for metric in choice.metrics
            ]
            found += summed if before[fixed] else []
            continue
        pair = _turned(turns, base, other)
        for metric in choice.metrics:
            rows = base["measurement"], other["measurement"]
            far = _floor(metric, rows, results.get("noise") or {})
            one = pair and _in_turns(pair, metric, turns.values(), fixed, far)
            found.append(one or _apart(base, other, metric, results.get("noise") or {}, fixed))
    by_id, target = {point["point"]: point for point in points}, str(results.get("target"))
    known = [
        (
            replace(
                one,
                traits=tuple(traits(target, by_id[one.base_point]["params"]).items()),
                apart=not one.in_turns
                and _software(by_id[one.base_point]) != _software(by_id[one.other_point]),
            ),
            samples,
        )
        for one, samples in filter(None, found)
    ]
    if choice.of_kernels:
        known = [(_of_kernels(one, by_id), samples) for one, samples in known]
    tests = _tested([samples for _, samples in known])
    return [_judged(one, test) for (one, _), test in zip(known, tests, strict=True)]


def _software(point: Point) -> list[Any]:
    row: Row = dict(point["measurement"])
    return [value for name, value in row.items() if name.endswith("_version")]


def _of_kernels(one: Effect, by_id: Mapping[str, Point]) -> Effect:
    """The effect of a choice of kernels: where both sides launch the same, what they differ by is noise, and so its floor."""
    if not same_launches(by_id[one.base_point], by_id[one.other_point]):
        return one
    return replace(one, floor=max(one.floor or 0.0, math.expm1(abs(math.log1p(one.change)))))


LAUNCH = ("demangled", "grid", "block", "registers", "smem_static_bytes", "smem_dynamic_bytes")


def same_launches(base: Point, other: Point) -> bool:
    """Whether two points are known to launch the same kernels on the same grids, with as many registers and as much shared
    memory. Attributes of a launch, programmatic dependent launch for one, and what plan() wrote are not in a profile."""
    sides = [
        [[dict(kernel).get(name) for name in LAUNCH] for kernel in p["kernels"]]
        for p in (base, other)
    ]
    return bool(base["kernels"]) and sides[0] == sides[1]


def in_turns(results: Results) -> list[Effect]:
    """The effect of every two points that were timed in turns, whatever choice tells them apart."""
    turns = results.get("pairs") or []
    pairs = [pair for pair in turns if pair["base"] != pair["other"]]
    found = [_in_turns(pair, metric, turns, ()) for pair in pairs for metric in SAMPLES]
    known = [one for one in found if one]
    tests = _tested([samples for _, samples in known])
    return [_judged(one, test) for (one, _), test in zip(known, tests, strict=True)]


def between(base: Point, other: Point, metric: str, results: Results) -> Effect | None:
    """What one point takes against another, whatever tells them apart; None where either lacks the metric."""
    turns = {(pair["base"], pair["other"]): pair for pair in results.get("pairs") or ()}
    found = _turned(turns, base, other)
    one = found and _in_turns(found, metric, turns.values(), ())
    one = one or _apart(base, other, metric, results.get("noise") or {}, ())
    return _judged(one[0], _tested([one[1]])[0]) if one else None


def _turned(turns: Mapping[tuple[str, str], Turns], base: Point, other: Point) -> Turns | None:
    """Two points that were timed in turns, the base first; None where they were not."""
    pair = turns.get((base["point"], other["point"]))
    if turned := turns.get((other["point"], base["point"])):
        return turned | {"base": base["point"], "other": other["point"], "sides": turned["sides"][::-1]}  # fmt: skip
    return pair


def _apart(
    base: Point,
    other: Point,
    metric: str,
    floors: Mapping[str, NoiseFloor],
    fixed: Fixed,
    before: Sequence[Point] = (),
) -> Untested | None:
    """One metric of two points that were timed apart; None where either lacks it. before: points that the base needs too, and
    reads what they wrote."""
    own = WRITTEN_BEFORE.get(metric, metric) if before else metric
    own = own if base["measurement"].get(own) else metric
    a, b = base["measurement"].get(own), other["measurement"].get(metric)
    more = [point["measurement"].get(metric) for point in before]
    if not a or b is None or None in more:
        return None
    spent = math.fsum(time or 0.0 for time in more)
    a += spent
    floor = _floor(metric, (base["measurement"], other["measurement"]), floors)
    one = Effect(metric, base["point"], other["point"], fixed, a, b, b / a - 1, floor=floor)
    ours, theirs = _samples(base, SAMPLES.get(own)), _samples(other, SAMPLES.get(metric))
    return one, (tuple(time + spent for time in ours), theirs)


def _in_turns(
    pair: Turns, metric: str, others: Iterable[Turns], fixed: Fixed, far: float | None = None
) -> Untested | None:
    """One metric of a pair that was timed in turns; None where it has no times of it. far: the floor where only points that
    take much less time were timed against themselves."""
    if metric not in (*SAMPLES, *STEPS) or not pair["sides"]:
        return None
    # Hot launches one by one between events are not what a point's hot time is: recordings of before have those.
    if metric == "time_hot_us" and any(side.get("hot_group") is None for side in pair["sides"]):
        return None
    if any(dict(side).get(_timed(side, metric)) is None for side in pair["sides"]):
        return None
    (a, base_samples), (b, other_samples) = _sides(pair, metric)
    alike = [_sides(one, metric) for one in others if one["base"] == one["other"] and one["sides"]]
    floor = max(
        (math.expm1(abs(math.log(other / base))) for (base, _), (other, _) in alike), default=None
    )
    # That of a launch much shorter says nothing of this one.
    if far is not None and all(base * FAR < a for (base, _), _ in alike):
        floor = far if alike else None
    one = Effect(metric, pair["base"], pair["other"], fixed, a, b, b / a - 1, floor=floor)
    return replace(one, in_turns=True), (base_samples, other_samples)


def _sides(pair: Turns, metric: str) -> list[tuple[float, Samples]]:
    """(median, samples) of the base and of the other."""
    found = []
    for side in pair["sides"]:
        times: Row = dict(side)
        name = _timed(times, metric)
        found.append((float(times[name]), tuple(times[name.replace("_us", "_samples_us")] or ())))
    return found


def _timed(times: Mapping[str, Any], metric: str) -> str:
    """The column of a side's times that a metric is; of a step the longer one."""
    return SAMPLES.get(metric) or max("host_us", STEPS[metric], key=lambda key: times[key] or 0)


def _tested(pairs: Sequence[tuple[Samples, Samples]]) -> list[statistics.Found]:
    """The test of each pair of samples; without one where a side has too few.

    Many are tested at once, since one takes milliseconds, and only what is new: opportunities ask for the pairs
    that effects have asked for.
    """
    enough = [pair for pair in dict.fromkeys(pairs) if min(map(len, pair)) >= FEWEST_SAMPLES]
    new = [pair for pair in enough if pair not in _TESTS]
    _TESTS.update(zip(new, statistics.of_launches(new, alpha=1 - noise.CONFIDENCE), strict=True))
    return [_TESTS.get(pair, (None, None, None)) for pair in pairs]


def _judged(one: Effect, test: statistics.Found) -> Effect:
    """The effect with its test."""
    p, below, above = test
    verdict = _verdict(p, one.change, one.floor)
    if below is None or above is None:
        return replace(one, verdict=verdict)
    half = math.hypot((above - below) / 2, math.log1p(one.floor or 0.0))
    low, high = (math.expm1(math.log(one.other / one.base) + sign * half) for sign in (-1, 1))
    # The interval has the floor in it: where it holds no change, the launches alone told the sides apart.
    if low <= 0 <= high:
        verdict = "within noise"
    return replace(one, p=p, low=low, high=high, verdict=verdict)


def _samples(point: Point, key: str | None) -> Samples:
    return tuple((point.get("samples") or {}).get(key) or ()) if key else ()


def _floor(
    metric: str, rows: tuple[Measurement, Measurement], floors: Mapping[str, NoiseFloor]
) -> float | None:
    """Floor of a ratio: the relative floors of both sides, added in quadrature."""
    sides = [noise.floor_at(metric, row, floors) for row in rows]
    known = [side for side in sides if side is not None]
    return math.hypot(*known) if known else None


def _verdict(p: float | None, change: float, floor: float | None) -> str:
    # As a factor: half the time is as far from no change as twice the time. The floor may be the change itself, but for rounding.
    if floor is not None and abs(math.log1p(change)) <= math.log1p(floor) * (1 + 1e-9):
        return "within noise"
    if p is None:
        return "not tested"
    return "differs" if p < ALPHA else "within noise"


def with_a_change(found: Iterable[Told]) -> list[Told]:
    """Those that show a change, faster or slower."""
    return [effect for effect in found if effect.verdict != "within noise"]


def telling(found: Sequence[Told]) -> Told | None:
    """Of trials the one that changed the most, in the direction of most of them."""
    changed = with_a_change(found) or found
    if not changed:
        return None
    gains = median(effect.change for effect in changed) < 0
    return (min if gains else max)(changed, key=lambda effect: effect.change)


def within(choice: Choice, asked: Iterable[Mapping[str, Any]]) -> list[str]:
    """Of the condition of a choice's pairs the terms that not all of some points meet: what pairs tell is of no others."""
    points = [{**dict.fromkeys(names(choice.where)), **point} for point in asked]
    return [term for term in terms(choice.where) if not all(holds(term, p) for p in points)]


def divided(found: Sequence[Effect]) -> list[Subgroup]:
    """The pairs by how they fare: those that gain and those that lose, else those with a change and those without; of gains and
    losses what lies between them, within noise, is a part of its own.

    One part where all fare alike, and where no parameter or trait tells those apart that do not.
    """
    changed = with_a_change(found)
    sides = (
        [effect for effect in changed if effect.change < 0],
        [effect for effect in changed if effect.change > 0],
    )
    if not all(sides):
        sides = changed, [effect for effect in found if effect not in changed]
        least, most = (([abs(effect.change) for effect in side]) for side in sides)
        if least and most and min(least) < max(most) + APART:
            return [Subgroup("", tuple(found))]
        if not most and len(changed) >= FEWEST_RULED:
            sides = _far_apart(changed)
    some, others = ([effect.facts for effect in side] for side in sides)
    apart = separating(some, others) if some and others else []
    # A trait follows from the parameters: where a number of these tells them apart, it says the same.
    derived = {name for name, _ in found[0].traits} if found else set()
    told = [(term, names(term[0])[0]) for term in apart]
    if any(type(some[0][name]) is int and name not in derived for _, name in told):
        apart = [term for term, name in told if name not in derived]
    if len(found) < FEWEST_RULED and len(apart) > 1:
        apart = []  # two points differ in much: which of it tells them apart, they do not say
    if not apart:
        return [Subgroup("", tuple(found))]
    first, second = (" and ".join(term[side] for term in apart) for side in (0, 1))
    parts = [
        Subgroup(where, tuple(effect for effect in found if holds(where, effect.facts)))
        for where in (first, second)
    ]
    between = [effect for effect in found if not any(effect in part.effects for part in parts)]
    if between:
        of = names(apart[0][0])[0]
        where = _among(of, {effect.facts.get(of) for effect in between})
        if any(holds(where, effect.facts) for part in parts for effect in part.effects):
            return [Subgroup("", tuple(found))]  # what lies between has nothing of its own
        parts.append(Subgroup(where, tuple(between)))
    return parts


def _far_apart(found: Sequence[Effect]) -> tuple[list[Effect], list[Effect]]:
    """Pairs on either side of the widest gap between their changes, as factors, the larger changes first; all on one side where
    none is wide."""
    ordered = sorted(found, key=lambda effect: -abs(math.log1p(effect.change)))
    factors = [abs(math.log1p(effect.change)) for effect in ordered]
    gaps = [first - second for first, second in pairwise(factors)]
    if not gaps or max(gaps) < FURTHER:
        return ordered, []
    place = gaps.index(max(gaps)) + 1
    return ordered[:place], ordered[place:]


def separating(
    some: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> list[tuple[str, str]]:
    """The parameters and traits whose values tell some from others: a condition for each side, a bound where
    it is one of at least ``FEWEST_RULED``, else the values themselves."""
    found = []
    for name in some[0]:
        mine: set[Any] = {facts.get(name) for facts in some}
        theirs: set[Any] = {facts.get(name) for facts in others}
        numbers = all(type(value) in (int, float) for value in mine | theirs)
        if numbers and max(mine) < min(theirs):
            bounds = f"<= {max(mine)}", f">= {min(theirs)}"
        elif numbers and max(theirs) < min(mine):
            bounds = f">= {min(mine)}", f"<= {max(theirs)}"
        elif numbers or mine & theirs:
            continue
        else:
            bounds = "", ""
        sides = zip(bounds, (some, others), (mine, theirs), strict=True)
        first, second = (
            f"{name} {bound}" if bound and len(side) >= FEWEST_RULED else _among(name, values)
            for bound, side, values in sides
        )
        found.append((first, second))
    return found


def _among(name: str, values: set[Any]) -> str:
    numbers = all(type(value) in (int, float) for value in values)
    listed = sorted(values) if numbers else sorted(values, key=str)
    return f"{name} == {listed[0]!r}" if len(listed) == 1 else f"{name} in {listed!r}"


def summary(found: Sequence[Effect], own: Sequence[str] = ()) -> Row | None:
    """How a choice fares over its pairs; None without pairs. own: what all the pairs meet, told with a condition of some.

    {pairs, differs, within, untested, in_turns, apart: counts; least, median, most: change over all, no median where beyond
    noise some gain and others lose; confidence: of the intervals; parts: [(where, summary)] of pairs that fare unlike}
    """
    if not found:
        return None
    parts = [
        (" and ".join([*own, part.where]), _summary(part.effects))
        for part in divided(found)
        if part.where
    ]
    return _summary(found) | {"parts": parts}


def _summary(found: Sequence[Effect]) -> Row:
    verdicts = [p.verdict for p in found]
    changes = [p.change for p in found]
    fare = {math.copysign(1, p.change) for p in with_a_change(found)}
    return {
        "pairs": len(found),
        "differs": verdicts.count("differs"),
        "within": verdicts.count("within noise"),
        "untested": verdicts.count("not tested"),
        "in_turns": sum(p.in_turns for p in found),
        "apart": sum(p.apart for p in found),
        "confidence": noise.CONFIDENCE,
        "least": min(changes),
        "median": median(changes) if len(fare) < 2 else None,
        "most": max(changes),
    }


CHANGES = "examples/changes/"
MUCH = 0.1  # of the time: how much more a point without a trial must be able to bring than the tried one


@dataclass(frozen=True)
class TriedPair:
    """One pair of a trial: the change at a point, with low and high where the source keeps its interval.

    most: what the mechanism could bring there, of 1, where one bounds it; params: of the point, those that are not as the target
    has them; control: whether the change, which is meant to gain, need not gain there.
    """

    at: str
    change: float
    low: float | None
    high: float | None
    verdict: str
    most: float | None
    params: Mapping[str, Any]
    control: bool = False

    def row(self) -> JsonObject:
        """As it is stored: numbers with as many digits as a page can need."""
        found = {n: round(v, 5) if isinstance(v, float) else v for n, v in asdict(self).items()}
        return {n: v for n, v in found.items() if v or n != "control"}


@dataclass(frozen=True)
class Tried:
    """Trials of one opportunity that fare alike.

    where: what tells them from others, an expression over parameters, or ""; source: where they lie; pairs: at least one that
    is no control; abroad: it is of another GPU than what it stands beside.
    """

    target: str
    what: str
    where: str
    gpu: str
    flashinfer: str
    source: str
    pairs: tuple[TriedPair, ...]
    abroad: bool = False

    @property
    def tried(self) -> list[TriedPair]:
        """The pairs without the controls."""
        return [pair for pair in self.pairs if not pair.control]

    @property
    def told(self) -> TriedPair:
        """The pair that changed the most."""
        found = telling(self.tried)
        assert found is not None
        return found

    def at(self, label: str) -> TriedPair:
        """The pair at a point, by its label; that which changed the most where there is none."""
        return next((pair for pair in self.tried if pair.at == label), self.told)

    @property
    def faster(self) -> bool:
        """Whether it saved time, beyond noise and by as much as matters."""
        return self.told.change <= -FASTER and self.told.verdict != "within noise"

    def facts(self, pair: TriedPair) -> JsonObject:
        """The parameters of a pair, and what follows from them."""
        target = known().get(self.target)
        params = {**(target.parameters if target else {}), **pair.params}
        return {**params, **traits(self.target, params)}

    def tells(self, most: float) -> bool:
        """Whether it tells of a point that can gain so much: a loss does not where that is much more than at its own."""
        near = (pair.most is None or most < pair.most + MUCH for pair in self.tried)
        return self.faster or any(near)

    def against(self, gains: bool, where: str) -> Tried | None:
        """The pairs that meet a condition and change the time the other way, by as much as matters; None without any."""
        found = tuple(
            pair
            for pair in self.tried
            if pair.verdict != "within noise" and (pair.change >= FASTER if gains else pair.change <= -FASTER)
            and (not where or holds(where, self.facts(pair)))
        )  # fmt: skip
        return replace(self, where="", pairs=found) if found else None

    def words(self, where: str = "", short: bool = False, label: str = "") -> str:
        """What it brought, and where it lies; where: the condition that is told beside it; short: without the interval; label: of
        the point that it is told of, whose own pair comes first."""
        told, tried = self.at(label), self.tried
        text = change(told.change)
        if told.low is not None and told.high is not None and not short:
            text += f" ({change(told.low)} to {change(told.high)})"
        if told.verdict == "within noise":
            ends = told.low is not None and told.high is not None
            sure = ends and not (told.low or 0) <= 0 <= (told.high or 0)
            text += f", less than {percent(FASTER)}" if sure else ", within noise"
        text += f" at `{told.at}`"
        if len(tried) > 1:
            text += f", over {len(tried)} {_ends(tried)}"
        if controls := [pair for pair in self.pairs if pair.control]:
            text += f", where it need not gain {_ends(controls)}"
        apart = f" where `{self.where}`" if self.where not in where else ""
        return f"{text}{apart}, in `{self.source}`" + f" on {self.gpu}" * self.abroad

    def row(self) -> JsonObject:
        """As it is stored."""
        found = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "abroad"}
        return found | {"pairs": [pair.row() for pair in self.pairs]}


def _ends(pairs: Sequence[TriedPair]) -> str:
    changes = sorted({change(pair.change): pair.change for pair in pairs}.values())
    return " to ".join(map(change, dict.fromkeys((changes[0], changes[-1]))))


def of_effects(
    effects: Iterable[Effect],
    params: Mapping[str, Mapping[str, Any]],
    controls: Collection[str] = (),
    mosts: Mapping[str, float] | None = None,
    **about: Any,
) -> Tried | None:
    """The record of some pairs; None without any that is no control. params, mosts: by their base points; controls: among
    those."""
    target = known().get(about["target"])
    usual = target.parameters if target else {}
    pairs = tuple(
        TriedPair(
            at=one.base_point.split("/", 1)[1],
            change=one.change,
            low=one.low,
            high=one.high,
            verdict=one.verdict,
            most=(mosts or {}).get(one.base_point),
            params={n: v for n, v in params[one.base_point].items() if n not in usual or usual[n] != v},
            control=one.base_point in controls,
        )
        for one in effects
    )  # fmt: skip
    return Tried(pairs=pairs, **about) if any(not pair.control for pair in pairs) else None


@cache
def every_tried() -> tuple[Tried, ...]:
    """All that is stored."""
    rows: list[JsonObject] = read_yaml(Path(__file__).with_name("tried.yaml")) or []
    return tuple(
        Tried(**row | {"pairs": tuple(TriedPair(**pair) for pair in row["pairs"])}) for row in rows
    )


def tried_elsewhere(results: Results) -> list[Tried]:
    """What was tried on the GPU and with the FlashInfer of some results, and does not lie in their own recording; of a change of
    FlashInfer's source that was tried on other GPUs alone, that, with the GPU beside its place."""
    about: JsonObject = dict(results.get("provenance") or {})
    mine = results["target"], about.get("flashinfer")
    near = [one for one in every_tried() if (one.target, one.flashinfer) == mine]
    here = [t for t in near if t.gpu == about.get("gpu") and t.source != about.get("recording")]
    told = {one.what for one in here}
    changes = [t for t in near if t.source.startswith(CHANGES) and t.what not in told]
    return here + [replace(t, abroad=True) for t in changes if t.gpu != about.get("gpu")]
