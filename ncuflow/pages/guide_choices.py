"""Choices of a target for the guide: their pairs, how they fared, and what the rows are called."""

from __future__ import annotations

from typing import Any

from ncuflow.findings.choices import CHOICES, Choice, Price, prices, summary
from ncuflow.findings.columns import BY_NAME
from ncuflow.findings.join import ratio
from ncuflow.pages.series import spread, varying

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


def fused_traffic(points: list[Row]) -> list[Row]:
    """Bytes of the separate and the fused add with norm, where both were measured.

    Each: {rows, hidden, separate, fused (measurements), saved_analytic, saved_dram (fractions)}.
    """
    by_variant: dict[str, dict[tuple[Any, ...], Row]] = {}
    for point in points:
        p = point["params"]
        key = (p.get("rows"), p.get("hidden"), p.get("dtype"))
        by_variant.setdefault(p.get("variant", ""), {})[key] = point["measurement"]
    separate = by_variant.get("add_then_rmsnorm", {})
    fused = by_variant.get("fused_add_rmsnorm", {})
    return [
        {
            "rows": key[0],
            "hidden": key[1],
            "separate": separate[key],
            "fused": fused[key],
            "saved_analytic": _saved(separate[key], fused[key], "bytes_analytic"),
            "saved_dram": _saved(separate[key], fused[key], "bytes_dram_counted"),
        }
        for key in separate
        if key in fused
    ]


def _saved(before: Row, after: Row, column: str) -> float | None:
    kept = ratio(after[column], before[column])
    return None if kept is None else 1 - kept


def _row(price: Price, names: set[str]) -> Row:
    label = ", ".join(f"{k} {v}" for k, v in price.fixed if k in names)
    return {"label": label or "the only pair", "metric": METRICS[price.metric], "price": price}
