"""Choices of a target for the guide: their pairs, how they fared, and what the rows are called."""

from __future__ import annotations

from typing import Any

from ncuflow.findings.choices import Effect, effects, summary
from ncuflow.findings.columns import BY_NAME
from ncuflow.model import Point, Results
from ncuflow.pages import Context
from ncuflow.pages.markdown import opportunities
from ncuflow.target.contract import Choice, Knob, known

METRICS = {
    "time_cold_us": "cold time",
    "time_hot_us": "hot time",
    "host_launch_us": "host time of the call",
}


def shown_choices(results: Results) -> dict[str, Context]:
    """Choice key -> {choice, target, summary and how it fared (None without pairs), metric, pairs}."""
    target = known().get(results["target"])
    return {c.key: _shown(c, results) for c in (target.prices if target else ())}


def knobs(results: Results, shown: dict[str, Context], index: Any) -> list[Context]:
    """[{knob, default, place, price}]: the settings of a target's API, the price by the summary of its choice."""
    target = known().get(results["target"])
    return [
        {
            "knob": knob,
            "default": _default(knob, index),
            "place": opportunities.place(knob.symbol, results["target"], index),
            "price": shown.get(knob.choice),
        }
        for knob in (target.knobs if target else ())
    ]


def _default(knob: Knob, index: Any) -> str | None:
    """As the call's signature states it, or the source that reads a variable of the environment; None where neither does."""
    known = index or {}
    parameters = (known.get("signatures") or {}).get(knob.signature) or ()
    stated = [p["default"] for p in parameters if p["name"] == knob.name]
    read = [r["default"] for r in (known.get("environment") or {}).get(knob.name) or ()]
    return next((default for default in stated + read if default is not None), None)


def _shown(choice: Choice, results: Results) -> Context:
    found = effects(choice, results)
    first = [p for p in found if p.metric == choice.metrics[0]]
    counted = summary(first)
    return {
        "choice": choice,
        "target": results["target"],
        "summary": counted,
        "fared": counted and opportunities.fared(counted),
        "metric": METRICS.get(choice.metrics[0], BY_NAME[choice.metrics[0]].formula),
        "pairs": _pairs(first, results["points"]),
    }


def _pairs(found: list[Effect], points: list[Point]) -> list[Context]:
    """The two points of each price: {price, params (of the base), other_params, base, other (their measurements)}."""
    by_id = {point["point"]: point for point in points}
    return [
        {
            "price": p,
            "params": by_id[p.base_point]["params"],
            "other_params": by_id[p.other_point]["params"],
            "base": by_id[p.base_point]["measurement"],
            "other": by_id[p.other_point]["measurement"],
        }
        for p in found
    ]
