"""Synthetic results of one target, in the shape that ``ncuflow.findings.results`` writes."""

from __future__ import annotations

from typing import Any

from ncuflow.findings.columns import COLUMNS

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
    return {
        "schema": 1, "target": points[0]["point"].split("/")[0], "provenance": PROVENANCE | provenance, "ceilings": {},
        "points": list(points), "deep": [], "noise": {}, "warnings": [],
    }  # fmt: skip
