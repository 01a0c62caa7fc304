"""Synthetic results of one target, in the shape that ``ncuflow.findings.results`` writes."""

from __future__ import annotations

from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from typing_extensions import is_typeddict

from ncuflow.findings.columns import COLUMNS
from ncuflow.model import Results

Row = dict[str, Any]
PROVENANCE: Row = {
    "tier": "A", "gpu": "NVIDIA H200", "compute_capability": "9.0", "sm_count": 132,
    "l2_bytes": 60 << 20, "memory_bytes": 141 << 30,
    "flashinfer": "0.6.18.post1", "date": "2026-11-20",
    "recording": None, "driver": None, "cuda": None, "torch": None, "ncu": None, "nsys": None, "cutlass_dsl": None,
    "mixed": [],
}  # fmt: skip


def launched(name: str = "Kernel", **given: Any) -> Row:
    """A kernel as results hold it: what is not given is as it mostly is, or empty."""
    return {
        "report": "decode/b0/sweep.ncu-rep", "batch": "b0", "kernel": 0, "name": name, "demangled": None, "nvtx": None,
        "grid": "64,1,1", "block": "128,1,1", "grid_size": 64, "block_size": 128, "registers": 64, "smem_static_bytes": 0,
        "smem_dynamic_bytes": 1024, "duration_ns": 100e3, "problems": None, "metrics": {}, "breakdown": [], "stalls": [],
        "rules": [],
    } | given  # fmt: skip


def kernel(name: str = "Kernel", metrics: Row | None = None, **stalls: float) -> Row:
    """A kernel whose stall ratios are given; shares are of their sum."""
    total = sum(stalls.values())
    shares = [
        {"reason": reason, "kind": "stall", "ratio": ratio, "share": ratio / total}
        for reason, ratio in stalls.items()
    ]
    demangled = f"void {name}<int>()"
    return launched(name, demangled=demangled, metrics=metrics or {}, stalls=shares)


def entry(point: str, params: Row, kernels: list[Row] | None = None, **columns: Any) -> Row:
    """A point with a measurement row: every column unknown but those given."""
    target = point.split("/")[0]
    row = dict.fromkeys(column.name for column in COLUMNS)
    row |= {"point": point, "target": target, "tier": "A", "status": "ok", "dtype": "f16"}
    row |= {"gpu": PROVENANCE["gpu"]} | columns
    return {
        "point": point, "params": {"dtype": "f16", **params}, "tier": "A", "status": row["status"],
        "problems": [], "info": {}, "measurement": row, "kernels": kernels or [],
    }  # fmt: skip


def results(*points: Row, **provenance: Any) -> Row:
    """``<target>_results.json`` of the points' target."""
    given = {
        "schema": 1, "target": points[0]["point"].split("/")[0], "provenance": PROVENANCE | provenance, "ceilings": {},
        "points": list(points), "deep": [], "noise": {}, "warnings": [],
    }  # fmt: skip
    return completed(given, Results)


def completed(value: Any, kind: Any) -> Any:
    """What is given, with null, an empty list or object for each field that it lacks.

    kind: a type, of records where it holds some. What is not of this type is left as it is, for a check to find.
    """
    if is_typeddict(kind):
        if not isinstance(value, dict):
            return value
        needed, records = _fields(kind)
        lacking = {name: _empty(one) for name, one in needed.items() if name not in value}
        return {
            **value,
            **{name: completed(value[name], one) for name, one in records.items() if name in value},
            **{n: empty for n, empty in lacking.items() if empty is not ...},
        }
    if not _holds_records(kind):
        return value
    of = get_args(kind)
    if isinstance(value, list) and get_origin(kind) is list:
        return [completed(one, of[0]) for one in value]
    if isinstance(value, dict) and get_origin(kind) is dict:
        return {name: completed(one, of[1]) for name, one in value.items()}
    return value


@cache  # a file of results has thousands of records of a few types
def _fields(kind: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Types by name of the fields that a record has to have, in their order, and of those that hold records."""
    hints = get_type_hints(kind)
    needed = {name: one for name, one in hints.items() if name in kind.__required_keys__}
    return needed, {name: one for name, one in hints.items() if _holds_records(one)}


@cache
def _holds_records(kind: Any) -> bool:
    inside = get_origin(kind) in (list, dict) and _holds_records(get_args(kind)[-1])
    return is_typeddict(kind) or inside


def _empty(kind: Any) -> Any:
    """Of a type what is not known; ``...`` of one that has no such value."""
    if type(None) in get_args(kind):
        return None
    if is_typeddict(kind):
        return completed({}, kind)
    made = get_origin(kind) or kind
    return made() if made in (list, dict) else ...
