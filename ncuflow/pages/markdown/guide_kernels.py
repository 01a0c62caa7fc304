"""Launched kernels: template arguments, launch shapes and what limits their occupancy."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ncuflow.findings.join import main_kernel
from ncuflow.findings.kernelname import COMPILED_FOR, Decoder
from ncuflow.findings.limiter import occupancy_limit
from ncuflow.model import Point
from ncuflow.pages import Context

MOST_LAUNCHES = 6
LEAST_ALIKE = 5  # rows that two kernels must share for the second to refer to the first
TYPES = ("DType", "IdType")  # the id of a point says which


def parameter_tables(points: list[Point], names: Decoder, own: Collection[str]) -> list[Context]:
    """A table per kernel: {kernel, instances (how many), example (points), rows (parameter, values, meaning), alike, of}.

    An instance is one set of template arguments, and a parameter's values are those of all that were launched. A mangled
    name has no parameter to read, and no rows. Kernels of FlashInfer, and those of the target's ``own``.
    """
    found: dict[str, dict[tuple[str, ...], Any]] = {}
    for point in points:
        for kernel in point["kernels"]:
            demangled = kernel["demangled"] or ""
            decoded = names.decode(demangled)
            if "flashinfer" in demangled or decoded.name in own:
                values = tuple(a.value for a in decoded.arguments)
                found.setdefault(decoded.name, {}).setdefault(values, decoded)
    tables = [_table(name, list(instances.values())) for name, instances in found.items()]
    return [_shortened(table, tables[:at]) for at, table in enumerate(tables)]


def _shortened(table: Context, before: list[Context]) -> Context:
    """A table without the rows of the table above that it is most like: ``alike`` are their parameters, ``of`` that kernel."""
    rows = table["rows"]
    shared = [(sum(row in rows for row in above["rows"]), above) for above in before]
    most, above = max(shared, key=lambda one: one[0], default=(0, None))
    if above is None or most < LEAST_ALIKE:
        return table | {"alike": [], "of": None}
    return table | {
        "rows": [row for row in rows if row not in above["rows"]],
        "alike": [row[0] for row in rows if row in above["rows"]],
        "of": above["kernel"],
    }


def _table(name: str, instances: list[Any]) -> Context:
    values: dict[str, dict[str, None]] = {}
    meanings: dict[str, str | None] = {}
    for decoded in instances:
        for argument in (*decoded.arguments, *decoded.derived):
            if argument.parameter != COMPILED_FOR and not argument.parameter.startswith(TYPES):
                values.setdefault(argument.parameter, {})[argument.value] = None
                meanings.setdefault(argument.parameter, argument.meaning)
    return {
        "kernel": name,
        "instances": len(instances),
        "rows": [(parameter, list(of), meanings[parameter]) for parameter, of in values.items()],
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
