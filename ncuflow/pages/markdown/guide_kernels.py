"""Launched kernels: template arguments, launch shapes and what limits their occupancy."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ncuflow.findings.join import main_kernel
from ncuflow.findings.kernelname import COMPILED_FOR, Decoder
from ncuflow.findings.occupancy import occupancy_limit
from ncuflow.model import Point
from ncuflow.pages import Context

MOST_INSTANCES = 4  # columns of a parameter table
MOST_LAUNCHES = 10


def parameter_tables(points: list[Point], names: Decoder, own: Collection[str]) -> list[Context]:
    """A table per kernel: {kernel, instances (example points), rows (parameter, meaning, values)}.

    An instance is one set of template arguments; all that the sweep launched are counted, the
    first four of a kernel are columns. A mangled name has no parameter to read, and no rows.
    Kernels of FlashInfer, and those of the target's ``own``.
    """
    found: dict[str, dict[tuple[str, ...], Context]] = {}
    for point in points:
        for kernel in point["kernels"]:
            demangled = kernel["demangled"] or ""
            decoded = names.decode(demangled)
            if "flashinfer" not in demangled and decoded.name not in own:
                continue
            values = tuple(a.value for a in decoded.arguments)
            instances = found.setdefault(decoded.name, {})
            entry = instances.setdefault(values, {"decoded": decoded, "points": []})
            if point["point"] not in entry["points"]:
                entry["points"].append(point["point"])
    return [_table(name, list(instances.values())) for name, instances in found.items()]


def _table(name: str, instances: list[Context]) -> Context:
    shown = instances[:MOST_INSTANCES]
    decoded = [i["decoded"] for i in shown]
    columns = [
        {a.parameter: a for a in (*d.arguments, *d.derived) if a.parameter != COMPILED_FOR}
        for d in decoded
    ]
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


def launches(points: list[Point]) -> list[Context]:
    """Launch shapes of the main kernels, one per distinct (kernel, block, registers, shared memory).

    Each: {point, kernel, grid, block, registers, smem, theoretical, achieved, limits}.
    """
    found: dict[tuple[Any, ...], Context] = {}
    for point in points:
        kernel = main_kernel(point["kernels"])
        if kernel is None:
            continue
        smem = (kernel["smem_static_bytes"] or 0) + (kernel["smem_dynamic_bytes"] or 0)
        key = (kernel["name"], kernel["block"], kernel["registers"], smem)
        metrics = kernel["metrics"]
        limit = occupancy_limit(metrics)
        row = {
            "point": point["point"],
            "kernel": kernel["name"],
            "grid": kernel["grid"],
            "block": kernel["block"],
            "registers": kernel["registers"],
            "smem": smem,
            "theoretical": metrics.get("theoretical_occupancy_pct"),
            "achieved": metrics.get("achieved_occupancy_pct"),
            "limits": limit.resources if limit else (),
        }
        found.setdefault(key, row)
    return list(found.values())[:MOST_LAUNCHES]
