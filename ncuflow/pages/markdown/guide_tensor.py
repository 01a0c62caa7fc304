"""Tensor instructions and tails: why one attention kernel stays below another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ncuflow.findings import limiter
from ncuflow.findings.join import is_merge
from ncuflow.model import Point, Results
from ncuflow.pages import Context
from ncuflow.pages.markdown.series import tensor_kinds, tensor_peak, varying


def instructions(results: Results) -> list[Context]:
    """A row per tensor instruction, the slowest first: {name, kernels, peak, points, reached, at}.

    name: of its SASS, None where no deep profile has it; peak: FLOP per clock and SM; reached: the highest rate in
    TFLOPS that was counted of it, at that point.
    """
    kinds = tensor_kinds([results])
    found: dict[str, list[Point]] = {}
    for point in results["points"]:
        if point["status"] == "ok" and point["point"] in kinds:
            found.setdefault(kinds[point["point"]], []).append(point)
    rows = [_row(name, points) for name, points in found.items()]
    return sorted(rows, key=lambda row: row["peak"])


def _row(name: str, points: list[Point]) -> Context:
    best = max(points, key=lambda p: p["measurement"]["tensor_tflops_counted"] or 0)
    peaks = [peak for p in points if (peak := tensor_peak(p["kernels"]))]
    return {
        "name": name if name.isupper() else None,  # else no deep profile has its opcode
        "kernels": sorted({k["name"] for p in points for k in p["kernels"] if not is_merge(k)}),
        "peak": max(peaks),
        "points": len(points),
        "reached": best["measurement"]["tensor_tflops_counted"],
        "at": best["point"],
    }


def tails(points: Sequence[Point], axis: str) -> list[Context]:
    """Launch and tail along the axis: {label, values: [(value, per cent of the time)]} of lines under a causal mask.

    A line per backend, the longest; a point whose merge takes longer than its attention is left out.
    """
    causal = [p for p in points if p["params"].get("causal") and not _merges(p)]
    lines = [
        line for line in limiter.lines_along(causal, axis) if len(line) >= limiter.FEWEST_JUDGED
    ]
    backends = varying(causal).get("backend", ())
    return [
        {"label": backend, "values": [_tail(p, axis) for p in line]}
        for backend in backends
        if (line := next((x for x in lines if x[0]["params"]["backend"] == backend), None))
    ]


def _merges(point: Point) -> bool:
    return point["measurement"]["tail_pct"] is None or any(map(is_merge, point["kernels"]))


def _tail(point: Point, axis: str) -> tuple[Any, float]:
    return point["params"][axis], float(point["measurement"]["tail_pct"])
