"""Choices of a target for the guide: their pairs, how they fared, and what the rows are called."""

from __future__ import annotations

from ncuflow.findings.choices import Price, prices, summary
from ncuflow.findings.columns import BY_NAME
from ncuflow.model import Point, Results
from ncuflow.pages import Context
from ncuflow.pages.series import spread, varying
from ncuflow.target import Choice, known

MOST_ROWS = 8
METRICS = {
    "time_cold_us": "cold time",
    "time_hot_us": "hot time",
    "host_launch_us": "host time of the call",
}


def shown_choices(results: Results) -> dict[str, Context]:
    """Choice key -> {choice, summary (None without pairs), rows}."""
    names = varying([p for p in results["points"] if p["status"] == "ok"])
    target = known().get(results["target"])
    return {c.key: _shown(c, results, set(names)) for c in (target.prices if target else ())}


def _shown(choice: Choice, results: Results, names: set[str]) -> Context:
    found = prices(choice, results)
    first = [p for p in found if p.metric == choice.metrics[0]]
    return {
        "choice": choice,
        "target": results["target"],
        "summary": summary(first),
        "metric": METRICS.get(choice.metrics[0], BY_NAME[choice.metrics[0]].formula),
        "rows": [_row(p, names - {choice.parameter}) for p in spread(found, MOST_ROWS)],
        "more": max(0, len(found) - MOST_ROWS),
        "pairs": _pairs(first, results["points"]),
        "several": len(choice.metrics) > 1,
    }


def _pairs(found: list[Price], points: list[Point]) -> list[Context]:
    """The two points of each price: {params (of the base), base, other (their measurements)}."""
    by_id = {point["point"]: point for point in points}
    return [
        {
            "params": by_id[p.base_point]["params"],
            "base": by_id[p.base_point]["measurement"],
            "other": by_id[p.other_point]["measurement"],
        }
        for p in found
    ]


def _row(price: Price, names: set[str]) -> Context:
    label = ", ".join(f"{k} {v}" for k, v in price.fixed if k in names)
    return {"label": label or "the only pair", "metric": METRICS[price.metric], "price": price}
