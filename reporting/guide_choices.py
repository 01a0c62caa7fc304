"""Choices of a target for the guide: their pairs, how they fared, and what the rows are called."""

from __future__ import annotations

from typing import Any

from analysis.choices import CHOICES, Choice, Price, prices, summary
from analysis.columns import BY_NAME
from reporting.series import spread, varying

Row = dict[str, Any]
MOST_ROWS = 8
METRICS = {
    "time_cold_us": "cold time",
    "time_hot_us": "hot time",
    "host_launch_us": "host time of the call",
}


def of_target(results: Row) -> dict[str, Row]:
    """Choice key -> {choice, summary (None without pairs), rows}."""
    names = varying([p for p in results["points"] if p["status"] == "ok"])
    return {c.key: _shown(c, results, set(names)) for c in CHOICES if c.target == results["target"]}


def _shown(choice: Choice, results: Row, names: set[str]) -> Row:
    found = prices(choice, results)
    first = [p for p in found if p.metric == choice.metrics[0]]
    return {
        "choice": choice,
        "summary": summary(first),
        "metric": METRICS.get(choice.metrics[0], BY_NAME[choice.metrics[0]].formula),
        "rows": [_row(p, names - {choice.parameter}) for p in spread(found, MOST_ROWS)],
        "more": max(0, len(found) - MOST_ROWS),
        "several": len(choice.metrics) > 1,
    }


def _row(price: Price, names: set[str]) -> Row:
    label = ", ".join(f"{k} {v}" for k, v in price.fixed if k in names)
    return {"label": label or "the only pair", "metric": METRICS[price.metric], "price": price}
