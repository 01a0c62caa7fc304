"""Launches of the recordings, read from their reports: what static evidence is held against."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import NamedTuple

from conftest import ROOT

from ncuflow.findings.kernelname import canonical
from ncuflow.io import opened
from ncuflow.parsers import ncu, reader
from ncuflow.target.contract import load
from ncuflow.target.launch import Params

H200 = {"h200/0.7.2/default": (0, 7)}  # recording -> FlashInfer
LIMITS = {"registers": "registers", "shared memory": "shared_mem"}
LIMITS |= {"warps": "warps", "block slots": "blocks"}


class Launched(NamedTuple):
    """A kernel as ncu saw it. shared: (static, dynamic) bytes; fits: blocks of an SM by resource, of
    shared memory by the part of the SM's that the driver set aside (carved, bytes)."""

    target: str
    params: Params
    point: str
    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    registers: int
    shared: tuple[int, int]
    fits: dict[str, int]
    carved: int


@cache
def launched(recording: str) -> tuple[tuple[Launched, ...], ...]:
    """Launches of every profiled point of a recording, a tuple each, in order; FlashInfer's alone."""
    found = []
    for report in sorted((ROOT / "recordings" / recording).glob("*/*/*.ncu-rep.xz")):
        points = {p["id"]: p for p in json.loads((report.parent / "points.json").read_text())}
        of_point: dict[str, list[Launched]] = {}
        with opened(report) as plain:
            for _, action in reader.actions(reader.load(plain)):
                (name,) = [r for r in ncu.nvtx_ranges(action) if r in points]
                one = _launched(action, points[name])
                if re.match("flashinfer::|kernel_cutlass_kernel_flashinfer", one.kernel):
                    of_point.setdefault(name, []).append(one)
        found += [tuple(kernels) for kernels in of_point.values()]
    return tuple(found)


def _launched(action, point) -> Launched:
    def number(metric: str) -> int:
        return action.metric_by_name(f"launch__{metric}").as_uint64()

    return Launched(
        point["target"],
        {**load(point["target"]).parameters, **point["params"]},
        point["id"],
        canonical(action.name(action.NameBase_DEMANGLED)),
        tuple(number(f"grid_dim_{axis}") for axis in "xyz"),
        tuple(number(f"block_dim_{axis}") for axis in "xyz"),
        number("registers_per_thread"),
        (number("shared_mem_per_block_static"), number("shared_mem_per_block_dynamic")),
        {name: number(f"occupancy_limit_{key}") for name, key in LIMITS.items()},
        number("shared_mem_config_size"),
    )
