"""Opportunities: what the evidence of a target suggests to change, what that can bring at most, and what it brought.

What applies to FlashInfer's default call comes before what applies only to who sets something else. What won comes
first, then what nobody tried; what was tried and brought nothing stands last.

The most is the bound that a target declares: a mechanism, whose condition holds at that launch. What the roofs and an
empty kernel leave of the time bounds it too, and is none by itself: that every kernel could be at its roof is no advice.
A trial is an effect, which a target declares as a choice, or what was tried elsewhere (``ncuflow.findings.choices``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ncuflow import expression
from ncuflow import format as fmt
from ncuflow.expression import evaluate, holds
from ncuflow.findings import choices, columns, limiter
from ncuflow.findings.choices import (
    CHANGES,
    MUCH,
    STEPS,
    Effect,
    Subgroup,
    Tried,
    divided,
    telling,
    tried_elsewhere,
    with_a_change,
)
from ncuflow.findings.noise import FASTER, floor_at
from ncuflow.findings.scope import Scope, point_scope, possible_names
from ncuflow.io import BadInput
from ncuflow.model import Point, Results, Row
from ncuflow.parsers.registry import METRICS
from ncuflow.target.contract import Choice, Opportunity, Target, known

WON, UNTRIED, LOST = GROUPS = ("won", "untried", "lost")
UNCOUNTED = "what it rests on was not counted"
LEAST = 0.01  # of the time: what can bring less is no opportunity to try


UNITS = {metric.key: metric.unit for metric in METRICS.values()} | {
    "merge_us": "µs", "merge_dram_pct": "%", "merge_issue_pct": "%", **dict.fromkeys(STEPS, "µs"),
    "split_issue_active": "of 1", "split_tensor_pipe_elapsed_pct": "%",
} | {column.name: column.unit for column in columns.COLUMNS}  # fmt: skip


@dataclass(frozen=True)
class MeasuredOpportunity:
    """An opportunity in the evidence, at the point where it brought the most (or cost the most, where it lost), or else could.

    where: the points that it is about, of those that show it, an expression over their parameters; "" for all of them.
    points: those points; told: of them, those that count: FlashInfer's default calls where trials of these stand beside others;
    most, room: of 1, of the metric's time; effect: of the trial, None where it was not tried, and
    then ``reason`` says why; effects: of all trials; alike: where trials changed nothing; layers: after how many launches a
    longer plan() is paid for, the fewest and the most of its pairs, None where in turns none was longer and saved; calls:
    effects of the host's call of those pairs that save time of the GPU, and take longer where the host launches one after
    another; untried: beside trials, the point without one that could bring much more than the point here, and what it could,
    of 1; mosts: what it can bring at most at each of FlashInfer's default calls that a mechanism bounds, of 1; bounded: whether
    one bounds it here, and not the roofs alone; departs: what callers have to set to have any of the points, by name, where
    none of them is FlashInfer's default call; elsewhere: what was tried of it in other places, which decides where it was not
    tried here, and else went the other way.
    """

    opportunity: Opportunity
    where: str
    point: str
    facts: Scope
    points: tuple[str, ...]
    most: float
    room: float
    effect: Effect | None
    effects: tuple[Effect, ...]
    reason: str
    layers: tuple[int, int] | None
    alike: str = ""
    told: tuple[str, ...] = ()
    untried: tuple[str, float] | None = None
    calls: tuple[Effect, ...] = ()
    mosts: Mapping[str, float] = field(default_factory=dict)
    bounded: bool = False
    departs: tuple[tuple[str, Any], ...] = ()
    elsewhere: tuple[Tried, ...] = ()

    @property
    def group(self) -> str:
        """One of ``GROUPS``."""
        if self.effect is None:
            return UNTRIED if not self.elsewhere else WON if self.elsewhere[0].faster else LOST
        return (
            WON if self.effect.change <= -FASTER and self.effect.verdict != "within noise" else LOST
        )

    @property
    def saved(self) -> float:
        """The shares of the time that its trials saved, added up over their points; 0 where it won nowhere."""
        if self.effect is None:
            pairs = self.elsewhere[0].tried if self.group == WON else []
            return sum(max(0.0, -pair.change) for pair in pairs if pair.verdict != "within noise")
        changed = with_a_change(self.counted) if self.group == WON else []
        return sum(max(0.0, -effect.change) for effect in changed)

    @property
    def counted(self) -> tuple[Effect, ...]:
        """The trials at the points that are told; all where none was tried there."""
        return tuple(e for e in self.effects if e.base_point in self.told) or self.effects


def found(
    results: Results,
    target: Target | None = None,
    every: Mapping[str, Scope] | None = None,
    tried: Sequence[Tried] | None = None,
) -> list[MeasuredOpportunity]:
    """The opportunities that show in the results: what saved the most, what could bring the most, what cost the most.

    every: the scopes of the results, where somebody has them; tried: elsewhere, None for all that is known. Raises BadInput where
    a target's declaration is wrong.
    """
    target = target or known().get(results["target"])
    if target is None:
        return []
    every = scopes(results) if every is None else every
    others = tried_elsewhere(results) if tried is None else tried
    try:
        shown = [
            row
            for one in target.opportunities
            for row in _found(
                one, target, results, every, [t for t in others if t.what == one.what]
            )
        ]
    except expression.ExpressionError as error:
        raise BadInput(target.file, f"an opportunity: {error}") from None
    kept = [row for row in shown if row.group != UNTRIED or row.most >= LEAST]
    return sorted(kept, key=_place)


def _place(row: MeasuredOpportunity) -> tuple[Any, ...]:
    return bool(row.departs), GROUPS.index(row.group), -row.saved, -row.most * row.bounded


def undecided(
    results: Results, target: Target | None = None, every: Mapping[str, Scope] | None = None
) -> list[str]:
    """The opportunities whose condition is known to hold nowhere, and somewhere is not known; every: as in ``found``."""
    target = target or known().get(results["target"])
    found, every = [], scopes(results) if every is None else every
    for one in target.opportunities if target else ():
        answers = [evaluate(one.where, scope) for scope in every.values()]
        if None in answers and True not in answers:
            found.append(one.what)
    return found


def scopes(results: Results) -> dict[str, Scope]:
    """What is known of each point that ran and gave the right result."""
    possible = possible_names(results)
    points = [point for point in results["points"] if point["status"] == "ok"]
    pays = graph(results).pays
    return {
        point["point"]: point_scope(point, results, possible).with_values(
            graph_pays=pays.get(point["point"])
        )
        for point in points
    }


@dataclass(frozen=True)
class GraphLaunch:
    """What launching from a CUDA graph brings. longer: how much longer kernels took in one, of 1, at the most of its pairs, None
    where no pair was measured; pays: by point that launches itself, whether the host's call takes longer than its kernels would
    in a graph, beyond noise: by the point's own pair, else by those that choose all else alike; None where there are none;
    paired: the points with a pair of their own."""

    longer: float | None
    pays: Mapping[str, bool | None]
    paired: frozenset[str] = frozenset()


def graph(results: Results) -> GraphLaunch:
    """Of a target with a choice of the launch; empty for any other."""
    target = known().get(results["target"])
    choice = next((c for c in (target.compared if target else ()) if c.parameter == "launch"), None)
    if target is None or choice is None:
        return GraphLaunch(None, {})
    points = [p for p in results["points"] if p["status"] == "ok"]
    pairs, calls = (
        choices.effects(replace(choice, metrics=(metric,)), results)
        for metric in ("time_cold_us", "step_cold_us")
    )
    own = {pair.base_point: pair.change for pair in pairs}
    told = {c.base_point: c.verdict == "differs" and c.change < 0 for c in calls if c.in_turns}

    def alike(point: Point) -> tuple[Any, ...]:
        params = target.parameters | point["params"]
        return tuple(params[name] for name in target.free(params) if name != "launch")

    longer: dict[tuple[Any, ...], float] = {}
    for point in points:
        if point["point"] in own:
            longer[alike(point)] = max(own[point["point"]], longer.get(alike(point), 0.0))
    pays: dict[str, bool | None] = {}
    for point in points:
        row = point["measurement"]
        host, cold = row["host_launch_us"], row["time_cold_us"]
        if point["params"].get("launch") != choice.base or not host or not cold:
            continue
        growth = own.get(point["point"], longer.get(alike(point)) if pairs else 0.0)
        floors = results.get("noise") or {}
        noisy = max(floor_at(name, row, floors) or 0 for name in ("host_launch_us", "time_cold_us"))
        by_time = None if growth is None else host > cold * (1 + growth) * (1 + noisy)
        pays[point["point"]] = told.get(point["point"], by_time)
    return GraphLaunch(max(own.values(), default=None), pays, frozenset(own))


def worded(one: Opportunity, scope: Scope) -> str:
    """What the evidence shows, each value in its unit; of the parts between semicolons those whose values are all known."""
    said = str(expression.filled_in(one.shown, scope, shown=_in_its_unit)).split("; ")
    return "; ".join(part for part in said if fmt.MISSING not in part.split()) or UNCOUNTED


def _in_its_unit(name: str, value: Any) -> str:
    unit = UNITS.get(name, "")
    if unit in ("%", "pct"):
        return fmt.pct(value)
    if unit in ("of 1", "/cycle"):
        return fmt.percent(value)
    if name in ("busiest_unit", "second_unit"):
        return limiter.label(str(value))
    return fmt.quantity(value, {"B": "byte", "/thread": ""}.get(unit, unit))


def room(before: Scope, after: Scope, metric: str) -> float:
    """What the roofs leave of a time, of 1, for the work of ``after``: measured ceilings, else the datasheet's.

    No launch takes less than an empty kernel's; a step
    that the host takes longer for than the GPU cannot be shorter than what the GPU takes.
    """
    return max(0.0, 1 - float(max(roofs(before, after, metric).values()) / before[metric]))


def roofs(before: Scope, after: Scope, metric: str) -> dict[str, float]:
    """What a time cannot be shorter than, µs by the column that says so; 0 of what is not known."""
    if metric in STEPS:
        alone = f"time_{STEPS[metric]}"
        return {alone: before[alone]}
    launched = (before.get("time_floor_us") or 0.0) if metric == "time_cold_us" else 0.0
    # What L2 keeps waits for no DRAM.
    passed, needed = after.get("bytes_dram_counted"), after.get("bytes_analytic")
    moved = "bytes_dram_counted" if passed and needed and passed < needed else "bytes_analytic"
    return {
        moved: _roof_us(after, moved, "dram_gbs", 1e-3),
        "flops_analytic": _roof_us(after, "flops_analytic", "tensor_tflops", 1e-6),
        "time_floor_us": launched,
    }


def _roof_us(facts: Scope, work: str, ceiling: str, scale: float) -> float:
    peak = facts.get(f"ceiling_{ceiling}_measured") or facts.get(f"ceiling_{ceiling}_datasheet")
    amount = facts.get(work)
    # What is not known bounds nothing.
    return float(amount / peak * scale) if peak and amount else 0.0


def _found(
    one: Opportunity,
    target: Target,
    results: Results,
    every: Mapping[str, Scope],
    others: Sequence[Tried],
) -> list[MeasuredOpportunity]:
    """A row for the points that show it; where some gain by it and others lose, one for each."""
    shown = [
        point for point, known in every.items() if holds(one.where, known) and known[one.metric]
    ]
    if not shown:
        return []
    choice = next((choice for choice in target.compared if choice.key == one.choice), None)
    if choice and one.inverted:
        choice = replace(choice, base=choice.other, other=choice.base)
    tried, reason = _trials(one, choice, results, set(shown))
    every = {**every, **_as_timed(tried, results, every)}
    parts = divided(tried) if tried else [Subgroup("", ())]
    set_apart = departures(target, results)
    bounds = _Bounds(
        one, every, {effect.base_point: effect.other_point for effect in tried}, set_apart
    )
    if not tried and others:
        return _by_others(others, shown, bounds, reason)
    own = choices.within(choice, [every[point] for point in shown]) if choice and tried else []
    if choice:
        own += [
            term
            for term in _asked(one, choice, parts, results, every)
            if target.parameters.keys() >= {*expression.names(term)} - {choice.parameter}
        ]
    parts = [
        replace(part, where=" and ".join([*own, *filter(None, [part.where])])) for part in parts
    ]
    changed = [part for part in parts if with_a_change(part.effects)]
    alike = next((part.where for part in parts if changed and part not in changed), "")
    return [
        replace(
            _row(part, [point for point in shown if not part.where or holds(part.where, every[point])], bounds, reason),
            alike=alike, layers=_layers(choice, part.effects, results), calls=_calls(choice, part.effects, results),
            elsewhere=turning(part, others),
        )
        for part in changed or parts
    ]  # fmt: skip


def _asked(
    one: Opportunity,
    choice: Choice,
    parts: Sequence[Subgroup],
    results: Results,
    every: Mapping[str, Scope],
) -> list[str]:
    """The terms of its condition that a reader of the parts' conditions has to know: at points that meet such a condition, and a
    term not, pairs fare the other way."""
    pairs = [
        pair
        for pair in with_a_change(choices.effects(replace(choice, metrics=(one.metric,)), results))
        if abs(pair.change) >= FASTER and not holds(one.where, every[pair.base_point])
    ]
    misled = [
        every[pair.base_point]
        for part in parts
        if part.where and (told := telling(part.effects))
        for pair in pairs
        if pair.change * told.change < 0 and holds(part.where, every[pair.base_point])
    ]
    return [term for term in expression.terms(one.where) if any(not holds(term, s) for s in misled)]


def turning(part: Subgroup, others: Sequence[Tried]) -> tuple[Tried, ...]:
    """Of what was tried elsewhere under the same condition that which went the other way than the trials here."""
    found = telling(part.effects)
    if found is None:
        return ()
    gains = found.change < 0 and found.verdict != "within noise"
    return tuple(filter(None, (t.against(gains, part.where) for t in others)))


def _by_others(
    others: Sequence[Tried], shown: Sequence[str], bounds: _Bounds, reason: str
) -> list[MeasuredOpportunity]:
    """Rows of what was tried elsewhere alone: one for each condition that points here meet at which it tells, and one for the
    points of none."""
    rows, left = [], list(shown)
    for where in dict.fromkeys(t.where for t in others):
        told = sorted((t for t in others if t.where == where), key=lambda t: -len(t.tried))
        met = [p for p in left if not where or holds(where, bounds.every[p])]
        mine = [p for p in met if any(t.tells(bounds.most(p)) for t in told)]
        if mine:
            terms = [where] if where and len(met) < len(shown) else []
            terms += _apart(mine, [p for p in met if p not in mine], bounds, others[0].target)
            row = _row(Subgroup(" and ".join(terms), ()), mine, bounds, reason)
            rows.append(replace(row, elsewhere=tuple(told)))
            left = [p for p in left if p not in mine]
    if left:
        taken = [p for p in shown if p not in left]
        apart = " and ".join(_apart(left, taken, bounds, others[0].target))
        rows.append(_row(Subgroup(apart, ()), left, bounds, reason))
    return rows


def _apart(some: Sequence[str], others: Sequence[str], bounds: _Bounds, target: str) -> list[str]:
    """The first parameter that tells some points from others, as a condition; nothing where none does."""
    names = known()[target].parameters if target in known() else ()
    sides = [[{n: bounds.every[p].get(n) for n in names} for p in side] for side in (some, others)]
    return [term for term, _ in choices.separating(*sides)[:1]] if all(sides) else []


def departures(target: Target, results: Results) -> dict[str, tuple[tuple[str, Any], ...]]:
    """By point, what its caller sets beside FlashInfer's defaults, or what FlashInfer makes of those on this GPU."""
    capability = str(dict(results.get("provenance") or {}).get("compute_capability") or "")
    found = {}
    for point in results["points"]:
        params = target.parameters | point["params"]
        free = target.free(params)
        made = free | target.resolves({**params, **free}, capability)
        found[point["point"]] = tuple(
            (name, params[name])
            for name in made
            if params.get(name) not in (free.get(name, made[name]), made[name])
        )
    return found


@dataclass(frozen=True)
class _Bounds:
    """What an opportunity can bring at most at a point, of 1. after: the points of its trials with the change; departs: what
    callers set to have a point."""

    one: Opportunity
    every: Mapping[str, Scope]
    after: Mapping[str, str]
    departs: Mapping[str, tuple[tuple[str, Any], ...]]

    def room(self, point: str) -> float:
        """What the roofs leave for the work that remains."""
        if self.one.other_work and point not in self.after:
            return 1.0
        return room(self.every[point], self.every[self.after.get(point, point)], self.one.metric)

    def most(self, point: str) -> float:
        left = self.room(point)
        bound = self.mechanism(point)
        return left if bound is None else max(0.0, min(left, bound))

    def mechanism(self, point: str) -> float | None:
        """What the declared bound says there; None where none is declared, or a value that it needs is not known."""
        scope = self.every[point]
        # An older record does not tell what an empty launch took: without it the bound is wider, and holds.
        scope = scope.with_values(time_floor_us=scope.known.get("time_floor_us") or 0.0)
        bound = evaluate(self.one.bound, scope) if self.one.bound else None
        return None if bound is None else float(bound)

    def bounded(self, point: str) -> bool:
        """Whether a mechanism bounds it there, and not the roofs alone."""
        bound = self.mechanism(point)
        return bound is not None and bound <= self.room(point) * (1 + 1e-9)

    def mostly(self, point: str, other: str) -> bool:
        """Whether a mechanism leaves much more at a point than another one has."""
        return self.bounded(point) and self.most(point) >= self.most(other) + MUCH

    def default(self, points: Sequence[str]) -> list[str]:
        """Those that are FlashInfer's default call; all where none is."""
        return [point for point in points if not self.departs.get(point)] or list(points)


def _row(
    part: Subgroup, points: Sequence[str], bounds: _Bounds, reason: str
) -> MeasuredOpportunity:
    counted = [effect for effect in part.effects if not bounds.departs.get(effect.base_point)]
    usual = bounds.default([effect.base_point for effect in with_a_change(part.effects)])
    effect = telling([e for e in part.effects if e.base_point in usual] or part.effects)
    at = (
        effect.base_point
        if effect
        else max(bounds.default(points), key=lambda p: (bounds.bounded(p), bounds.most(p)))
    )
    sets = [set(bounds.departs.get(point) or ()) for point in points]
    untried = [point for point in points if effect and point not in bounds.after]
    left = max(untried, key=bounds.most, default=None)
    return MeasuredOpportunity(
        bounds.one, part.where, at, bounds.every[at], tuple(points), bounds.most(at), bounds.room(at),
        effect, part.effects, reason, None,
        mosts={p: bounds.most(p) for p in bounds.default(points) if bounds.bounded(p)},
        told=tuple(bounds.default(points) if counted and len(counted) < len(part.effects) else points),
        untried=(left, bounds.most(left)) if left and bounds.mostly(left, at) else None,
        bounded=bounds.bounded(at),
        departs=tuple(sorted(set.intersection(*sets) or sets[0], key=str)) if all(sets) else (),
    )  # fmt: skip


def _trials(
    one: Opportunity, choice: Choice | None, results: Results, shown: set[str]
) -> tuple[list[Effect], str]:
    """The effects at the points that show it, and why there is none."""
    if choice is None:
        return [], one.how or f"`ncuflow try` a change as `{CHANGES}{one.trial}` is"
    by_id = {point["point"]: point for point in results["points"]}
    choice = replace(choice, metrics=(one.metric,))
    pairs = [effect for effect in choices.effects(choice, results) if effect.base_point in shown]
    tried = [
        effect
        for effect in pairs
        if not (one.relaunches or choice.of_kernels)
        or not choices.same_launches(by_id[effect.base_point], by_id[effect.other_point])
    ]  # fmt: skip
    if pairs and not tried:
        return [], "the same kernels ran on the same grids with it and without"
    failed = [
        p
        for p in results["points"]
        if p["params"].get(choice.parameter) == choice.other and p["reason"]
    ]
    untried = one.how or f"points with `{choice.parameter}: {choice.other}` in the sweep"
    return tried, next((str(p["reason"]) for p in failed), untried)


def _as_timed(
    tried: Sequence[Effect], results: Results, every: Mapping[str, Scope]
) -> dict[str, Scope]:
    """What is known of the points that a trial has a time of: that time is theirs.

    What the host takes for a call moves between processes and hosts: a bound from another process's time is none.
    """
    sides = {
        frozenset((pair["base"], pair["other"])): dict(
            zip((pair["base"], pair["other"]), pair["sides"], strict=True)
        )
        for pair in results.get("pairs") or ()
        if pair["sides"]
    }
    timed = {}
    for effect in tried:
        own: Row = {effect.metric: effect.base}
        if effect.metric in STEPS and effect.in_turns:
            side = sides[frozenset((effect.base_point, effect.other_point))][effect.base_point]
            alone = STEPS[effect.metric]
            own |= {"host_launch_us": side["host_us"], f"time_{alone}": side[alone]}
        timed[effect.base_point] = every[effect.base_point].with_values(**own)
    return timed


def _layers(
    choice: Choice | None, effects: Sequence[Effect], results: Results
) -> tuple[int, int] | None:
    """How many launches it takes to save what a longer plan() costs, where a pair's own timing tells the two plans apart.

    Timed apart, plan() moves more between two runs of one point than choices move it.
    """
    gains = {
        (effect.base_point, effect.other_point): effect.base - effect.other
        for effect in effects
        if effect.metric not in STEPS and effect.change < 0
    }
    if choice is None or not gains:
        return None
    plans = choices.effects(replace(choice, metrics=("plan_us",)), results)
    after = [
        math.ceil((plan.other - plan.base) / gains[pair])
        for plan in plans
        if (pair := (plan.base_point, plan.other_point)) in gains
        and (plan.in_turns, plan.verdict) == (True, "differs")
        and plan.change > 0
    ]
    return (min(after), max(after)) if after else None


def _calls(
    choice: Choice | None, effects: Sequence[Effect], results: Results
) -> tuple[Effect, ...]:
    """The effects of the host's call at those of the pairs, timed in turns, that gain by it in a CUDA graph alone."""
    gains = {
        (effect.base_point, effect.other_point): effect
        for effect in with_a_change(effects)
        if effect.metric not in STEPS and effect.change < 0
    }
    if choice is None or not gains:
        return ()
    calls = choices.effects(replace(choice, metrics=("host_launch_us",)), results)
    return tuple(
        call
        for call in calls
        if (gain := gains.get((call.base_point, call.other_point)))
        and (call.in_turns, call.verdict) == (True, "differs")
        and call.other > max(call.base, gain.base)
    )
