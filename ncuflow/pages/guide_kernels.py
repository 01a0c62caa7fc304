"""Launched kernels: template arguments, launch shapes and what limits their occupancy."""

from __future__ import annotations

from typing import Any

from ncuflow.findings.join import main_kernel
from ncuflow.findings.kernelname import decode

Row = dict[str, Any]
MOST_INSTANCES = 4  # columns of a parameter table
MOST_LAUNCHES = 10
LIMITS = {
    "occupancy_limit_registers": "registers",
    "occupancy_limit_shared_mem": "shared memory",
    "occupancy_limit_warps": "warps",
    "occupancy_limit_blocks": "block slots",
    "occupancy_limit_barriers": "barriers",
}


def parameter_tables(points: list[Row]) -> list[Row]:
    """A table a kernel: {kernel, instances (example points), rows (parameter, meaning, values)}.

    An instance is one set of template arguments; all that the sweep launched are counted, the
    first four of a kernel are columns. FlashInfer's kernels only.
    """
    found: dict[str, dict[tuple[str, ...], Row]] = {}
    for point in points:
        for kernel in point["kernels"]:
            if "flashinfer" not in (kernel["demangled"] or ""):
                continue
            decoded = decode(kernel["demangled"])
            values = tuple(a.value for a in decoded.arguments)
            instances = found.setdefault(decoded.name, {})
            entry = instances.setdefault(values, {"decoded": decoded, "points": []})
            if point["point"] not in entry["points"]:
                entry["points"].append(point["point"])
    return [_table(name, list(instances.values())) for name, instances in found.items()]


def _table(name: str, instances: list[Row]) -> Row:
    shown = instances[:MOST_INSTANCES]
    decoded = [i["decoded"] for i in shown]
    columns = [{a.parameter: a for a in (*d.arguments, *d.derived)} for d in decoded]
    first = list(dict.fromkeys(p for column in columns for p in column))
    rows = []
    for parameter in first:
        arguments = [column.get(parameter) for column in columns]
        meaning = next((a.meaning for a in arguments if a), None)
        rows.append((parameter, meaning, [a.value if a else None for a in arguments]))
    return {
        "kernel": name,
        "instances": [i["points"] for i in shown],
        "more": len(instances) - len(shown),
        "rows": rows,
    }


def launches(points: list[Row]) -> list[Row]:
    """Launch shapes of the main kernels, one a distinct (kernel, block, registers, shared memory).

    Each: {point, kernel, grid, block, registers, smem, theoretical, achieved, limits}.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for point in points:
        kernel = main_kernel(point["kernels"])
        if kernel is None:
            continue
        smem = (kernel["smem_static_bytes"] or 0) + (kernel["smem_dynamic_bytes"] or 0)
        key = (kernel["name"], kernel["block"], kernel["registers"], smem)
        metrics = kernel["metrics"]
        row = {
            "point": point["point"],
            "kernel": kernel["name"],
            "grid": kernel["grid"],
            "block": kernel["block"],
            "registers": kernel["registers"],
            "smem": smem,
            "theoretical": metrics.get("theoretical_occupancy_pct"),
            "achieved": metrics.get("achieved_occupancy_pct"),
            "limits": occupancy_limiters(metrics),
        }
        found.setdefault(key, row)
    return list(found.values())[:MOST_LAUNCHES]


def occupancy_limiters(metrics: Row) -> list[str]:
    """The resources that allow the fewest blocks on an SM; empty where the report has no limits."""
    known = {name: metrics[key] for key, name in LIMITS.items() if metrics.get(key) is not None}
    least = min(known.values(), default=None)
    return [name for name, limit in known.items() if limit == least]


def blocks_per_sm(metrics: Row) -> int | None:
    """Blocks that fit on an SM at once; None where the report has no limits."""
    known = [metrics[key] for key in LIMITS if metrics.get(key) is not None]
    return int(min(known)) if known else None
