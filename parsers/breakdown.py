"""Speed of Light taken apart: the counters whose largest is a kernel's SM or memory throughput, each with its unit."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

from ncuflow.model import Row
from ncuflow.parsers.registry import METRICS

PARENTS = ("sm_throughput_pct", "memory_throughput_pct")


class Unit(NamedTuple):
    """A hardware unit: its name on pages, what its counters count, and what they begin with."""

    label: str
    meaning: str
    prefixes: tuple[str, ...]


# The first whose prefix fits is the unit of a counter.
UNITS = {
    "dram": Unit("DRAM", "cycles with a transfer (turn-around included), sectors, and what it fills into L2",
                 ("dram__", "fbpa__", "lts__d_sectors_fill_device")),
    "l2": Unit("L2", "tags, data banks, its ports to the crossbar and L1's", ("lts__", "l1tex__m_")),
    "l1": Unit("L1/shared", "L1TEX and shared memory: the data pipe (a wavefront a cycle), banks, requests, write-back",
               ("l1tex__",)),
    "tensor": Unit("tensor pipe", "matrix multiply-add (HMMA, HGMMA, …)", ("sm__pipe_tensor",)),
    "fp64": Unit("FP64 pipe", "double precision", ("sm__pipe_fp64",)),
    "fma": Unit("FMA pipe", "FP32, and integer multiply-add", ("sm__pipe_fma",)),
    "fp16": Unit("FP16 pipe", "half precision outside the tensor pipe, where it has a pipe of its own",
                 ("sm__inst_executed_pipe_fp16",)),
    "alu": Unit("ALU pipe", "integer, logic, comparison, conversion", ("sm__pipe_alu",)),
    "xu": Unit("XU pipe", "special functions: exponent, sine, reciprocal root, some conversions",
               ("sm__inst_executed_pipe_xu",)),
    "lsu": Unit("LSU pipe", "instructions to the load-store unit", ("sm__inst_executed_pipe_lsu",)),
    "mio": Unit("MIO", "the queues between the schedulers and LSU, XU and shared memory", ("sm__mio",)),
    "issue": Unit("instruction issue", "the schedulers: one instruction a cycle each",
                  ("sm__issue_active", "sm__inst_executed.")),
    "other": Unit("another unit", "branch, uniform, texture, constant cache, NVIDIA's internal counters", ("",)),
}  # fmt: skip
# On some chips the tensor and FP64 pipes stand behind one that the quarters of an SM share.
SHARED, BEHIND = "sm__pipe_shared", ("tensor", "fp64")


@cache
def unit_of(counter: str) -> str:
    """The unit that a counter of a breakdown is of."""
    return next(name for name, unit in UNITS.items() if counter.startswith(unit.prefixes))


def rows(kernel: Any) -> Iterator[Row]:
    """Each counter of a kernel's two breakdowns that holds a number; none where its report has no breakdown.

    kernel: a `Profiled` of the reader.
    """
    for parent in PARENTS:
        source = METRICS[parent].candidates(kernel.architecture)[0]
        named = kernel.text(f"breakdown:{source}")
        found = {name: kernel.number(name) for name in (named or "").split(",") if name}
        known = {name: pct for name, pct in found.items() if pct is not None}
        for name, pct in known.items():
            unit = _behind(known) if name.startswith(SHARED) else unit_of(name)
            yield {"parent": parent, "counter": name, "unit": unit, "pct": pct}


def _behind(known: dict[str, float]) -> str:
    """The pipe that keeps the shared one busy: the busier of those behind it."""
    busiest = {
        unit: max((pct for name, pct in known.items() if unit_of(name) == unit), default=0.0)
        for unit in BEHIND
    }
    return max(BEHIND, key=lambda unit: busiest[unit])
