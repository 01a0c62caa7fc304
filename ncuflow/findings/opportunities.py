"""Opportunities: what the evidence of a target suggests to change, what that can bring at most, and what it brought.

The most is the bound that a target declares, and never more than the room: what the roofs leave of the time,
for the work that is left after the change. A trial is a price, which a target declares as a choice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ncuflow import expression
from ncuflow import format as fmt
from ncuflow.expression import evaluate, holds
from ncuflow.findings import choices, limiter
from ncuflow.findings.choices import STEP, Price
from ncuflow.findings.columns import COLUMNS
from ncuflow.findings.scope import Scope, point_scope, possible_names
from ncuflow.model import Point, Results
from ncuflow.parsers.registry import METRICS
from ncuflow.target.contract import Choice, Opportunity, Target, known

LEAST = 0.01  # of the time: what can bring less is no opportunity
MUCH = 0.1  # of the time: how much more a point without a trial must be able to bring than the tried one


UNITS = {metric.key: metric.unit for metric in METRICS.values()} | {
    "merge_us": "µs", "merge_dram_pct": "%", "merge_issue_pct": "%", STEP: "µs",
} | {column.name: column.unit for column in COLUMNS}  # fmt: skip


@dataclass(frozen=True)
class Found:
    """An opportunity in the evidence, at the point where it brought the most, or else could.

    points: how many show it; most, room: of 1, of the metric's time; price: of the trial, None where it
    was not tried, and then ``reason`` says why; prices: of all trials; layers: after how many launches a
    longer plan() is paid for, None where in turns it was not longer or nothing is saved; untried: beside trials, the point
    without one that could bring much more than the point here, and what it could, of 1.
    """

    opportunity: Opportunity
    point: str
    facts: Scope
    points: int
    most: float
    room: float
    price: Price | None
    prices: tuple[Price, ...]
    reason: str
    layers: int | None
    untried: tuple[str, float] | None = None

    @property
    def saved(self) -> float:
        """The share of the time that the trial saved, 0 where it saved none or was not made."""
        return (
            max(0.0, -self.price.change) if self.price and self.price.verdict == "differs" else 0.0
        )


def found(results: Results, target: Target | None = None) -> list[Found]:
    """The opportunities that show in the results: what saved the most first, then what is not tried yet."""
    target = target or known().get(results["target"])
    if target is None:
        return []
    points = [point for point in results["points"] if point["status"] == "ok"]
    possible = possible_names(results)
    every = {point["point"]: point_scope(point, results, possible) for point in points}
    shown = [
        _found(one, target, results, every) for one in (target.opportunities if target else ())
    ]
    kept = [one for one in shown if one and max(one.most, one.saved) >= LEAST]
    return sorted(kept, key=lambda one: (-one.saved, one.price is not None, -one.most))


def said(one: Opportunity, scope: Scope) -> str:
    """What the evidence shows, each value in its unit, a dash where there is none."""
    return str(expression.said(one.shown, scope, shown=_in_its_unit))


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

    A step that the host takes longer for than the GPU cannot be shorter than what the GPU takes.
    """
    if metric == STEP:
        least = before["time_hot_us"]
    else:
        moved = _roof_us(after, "bytes_analytic", "dram_gbs", 1e-3)
        least = max(moved, _roof_us(after, "flops_analytic", "tensor_tflops", 1e-6))
    return max(0.0, 1 - float(least / before[metric]))


def _roof_us(facts: Scope, work: str, ceiling: str, scale: float) -> float:
    peak = facts.get(f"ceiling_{ceiling}_measured") or facts.get(f"ceiling_{ceiling}_datasheet")
    amount = facts.get(work)
    return (
        float(amount / peak * scale) if peak and amount else 0.0
    )  # what is not known bounds nothing


def _found(
    one: Opportunity, target: Target, results: Results, every: Mapping[str, Scope]
) -> Found | None:
    shown = [
        point for point, known in every.items() if holds(one.where, known) and known[one.metric]
    ]
    if not shown:
        return None
    choice = next((choice for choice in target.prices if choice.key == one.choice), None)
    if choice and one.turned:
        choice = replace(choice, base=choice.other, other=choice.base)
    tried, reason = _trials(one, choice, results, set(shown))
    every = {**every, **_timed_in_turns(tried, results, every)}
    price = min(tried, key=lambda price: price.change, default=None)
    after = {price.base_point: every[price.other_point] for price in tried}

    def under_roofs(point: str) -> float:
        if one.other_work and point not in after:
            return 1.0
        return room(every[point], after.get(point, every[point]), one.metric)

    def most(point: str) -> float:
        left = under_roofs(point)
        bound = evaluate(one.bound, every[point])
        return left if bound is None else max(0.0, min(left, bound))

    at = price.base_point if price else max(shown, key=most)
    left = max((point for point in shown if price and point not in after), key=most, default=None)
    return Found(
        one, at, every[at], len(shown), most(at), under_roofs(at),
        price, tuple(tried), reason, _layers(choice, price, results),
        (left, most(left)) if left and most(left) >= most(at) + MUCH else None,
    )  # fmt: skip


def _trials(
    one: Opportunity, choice: Choice | None, results: Results, shown: set[str]
) -> tuple[list[Price], str]:
    """The prices at the points that show it, and why there is none."""
    if choice is None:
        return [], one.how
    by_id = {point["point"]: point for point in results["points"]}
    choice = replace(choice, metrics=(one.metric,))
    pairs = [price for price in choices.prices(choice, results) if price.base_point in shown]
    tried = [
        price
        for price in pairs
        if not one.relaunches or _launched(by_id[price.base_point]) != _launched(by_id[price.other_point])
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


def _timed_in_turns(
    tried: Sequence[Price], results: Results, every: Mapping[str, Scope]
) -> dict[str, Scope]:
    """The facts of what a step was timed for in turns, with the times of that pair.

    What the host takes for a call moves between processes and hosts: a bound from another process's time is none.
    """
    timed = {}
    for price in tried:
        for pair in results.get("pairs") or ():
            points = (pair["base"], pair["other"])
            if (
                price.metric == STEP
                and price.in_turns
                and set(points) == {price.base_point, price.other_point}
            ):
                side = pair["sides"][points.index(price.base_point)]
                own = {
                    "host_launch_us": side["host_us"],
                    "time_hot_us": side["hot_us"],
                    STEP: price.base,
                }
                timed[price.base_point] = every[price.base_point].with_values(**own)
    return timed


def _launched(point: Point) -> list[tuple[str | None, str | None]]:
    return [(kernel["demangled"], kernel["grid"]) for kernel in point["kernels"]]


def _layers(choice: Choice | None, price: Price | None, results: Results) -> int | None:
    """How many launches it takes to save what a longer plan() costs, where the pair's own timing tells the two plans apart.

    Timed apart, plan() moves more between two runs of one point than choices move it.
    """
    if choice is None or price is None or price.metric == STEP or price.change >= 0:
        return None
    plans = choices.prices(replace(choice, metrics=("plan_us",)), results)
    mine = (price.base_point, price.other_point)
    for plan in plans:
        told = plan.in_turns and plan.verdict == "differs" and plan.change > 0
        if told and (plan.base_point, plan.other_point) == mine:
            return math.ceil((plan.other - plan.base) / (price.base - price.other))
    return None
