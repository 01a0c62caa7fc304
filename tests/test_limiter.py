"""The limiter: units against waits, draws, and over every recorded launch that the named unit is the largest entry."""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations
from pathlib import Path

import pytest

from ncuflow.findings import limiter
from ncuflow.findings.join import main_kernel
from ncuflow.parsers import ncu
from ncuflow.parsers.breakdown import UNITS

RECORDED = sorted((Path(__file__).parents[1] / "recordings").glob("*/*/*/sweep.ncu-rep.xz"))
CYCLES = {"cycles_elapsed": 1000.0}


def judge(waves=4.0, active=1000.0, **units):
    parts = [
        {"parent": "sm_throughput_pct", "counter": f"{unit}_{i}", "unit": unit, "pct": pct}
        for unit, found in units.items()
        for i, pct in enumerate(found if isinstance(found, tuple) else (found,))
    ]
    return limiter.judge(parts, CYCLES | {"waves": waves, "sm_cycles_active": active})


@pytest.mark.parametrize(
    ("units", "launch", "name", "draw", "verdict"),
    [
        ({"dram": 92.3, "l2": 64.8}, {}, "dram", None, "ceiling"),
        ({"dram": 80.0, "l2": 64.8}, {}, "dram", None, "ceiling"),
        ({"dram": 79.9, "l2": 64.8}, {}, "dram", None, "leads"),
        # The busiest counter of a unit stands for it; another unit's second is no matter.
        ({"l1": (31.0, 72.3), "l2": (59.4, 57.4), "dram": 51.5}, {}, "l1", None, "leads"),
        ({"dram": 58.4, "issue": 56.2}, {}, "dram", "issue", "draw"),
        ({"dram": 85.0, "l2": 84.0}, {}, "dram", "l2", "draw"),
        # Nothing turns at 60 %.
        ({"tensor": 61.0, "l1": 50.0}, {}, "tensor", None, "leads"),
        ({"tensor": 59.0, "l1": 50.0}, {}, "tensor", None, "leads"),
        # Below a half the waits are the larger part, and near it neither is.
        ({"tensor": 42.0, "l1": 38.0}, {}, "latency", None, "leads"),
        ({"tensor": 51.0, "l1": 30.0}, {}, "tensor", "latency", "draw"),
        ({"tensor": 49.0, "l1": 30.0}, {}, "latency", "tensor", "draw"),
        ({"tensor": 42.0}, {"active": 600.0}, "tail", None, "leads"),
        ({"tensor": 42.0}, {"active": 710.0}, "tail", "latency", "draw"),
        ({"dram": 24.0}, {"waves": 0.16, "active": 900.0}, "blocks", None, "leads"),
        ({"dram": 30.0}, {"waves": 0.97, "active": 900.0}, "latency", None, "leads"),
    ],
)  # fmt: skip
def test_name_and_draw(units, launch, name, draw, verdict):
    found = judge(**units, **launch)
    assert (found.name, found.draw, found.verdict) == (name, draw, verdict)


def test_waits_add_up_to_what_the_busiest_unit_leaves():
    found = judge(waves=0.8, active=850.0, dram=40.0, l2=30.0)
    assert {wait.name: wait.pct for wait in found.waits} == pytest.approx(
        {"latency": 25.0, "blocks": 20.0, "tail": 15.0}
    )
    busy = judge(waves=0.1, active=500.0, dram=95.0)
    assert sum(wait.pct for wait in busy.waits) == pytest.approx(5.0)
    over = judge(active=1020.0, dram=101.0)  # counted in different replay passes
    assert [wait.pct for wait in over.waits] == [0.0, 0.0, 0.0]


def test_what_is_not_counted_is_not_told_apart():
    found = limiter.judge([], CYCLES)
    assert (found.name, found.draw, found.verdict) == ("unknown", None, None)
    alone = limiter.judge([{"parent": "", "counter": "c", "unit": "dram", "pct": 30.0}], {})
    assert [(wait.name, wait.pct) for wait in alone.waits] == [("waits", 70.0)]
    filled = limiter.judge(
        [{"parent": "", "counter": "c", "unit": "dram", "pct": 30.0}], {"waves": 0.9}
    )
    assert {wait.name: wait.pct for wait in filled.waits} == pytest.approx(
        {"waits": 60.0, "blocks": 10.0}
    )


@pytest.fixture(scope="module")
def launches():
    """(point, kernel name) → the breakdown and limiter of each capture of a point's main kernel."""
    found = defaultdict(list)
    for path in RECORDED:
        report = ncu.read(path, with_lines=False)
        kernels = defaultdict(list)
        for kernel in report.kernels:
            at = kernel["kernel"]
            kernel["breakdown"] = [part for part in report.breakdown if part["kernel"] == at]
            kernel["metrics"] = {m["key"]: m["value"] for m in report.metrics if m["kernel"] == at}
            kernels[kernel["point"]].append(kernel)
        for point, of_point in kernels.items():
            main = main_kernel(of_point)
            judged = limiter.judge(main["breakdown"], main["metrics"])
            recording = path.parts[-4]
            found[point, main["demangled"]].append((recording, main["breakdown"], judged))
    return found


def test_every_recorded_verdict_names_the_largest_entry(launches):
    judged = [launch for captures in launches.values() for launch in captures]
    assert len(judged) > 100
    for _, parts, found in judged:
        largest = max(parts, key=lambda part: part["pct"])
        assert (found.units[0].name, found.units[0].pct) == (largest["unit"], largest["pct"])
        assert found.units[0].name in UNITS and found.name != limiter.UNKNOWN
        if found.verdict == "ceiling":
            assert largest["pct"] >= limiter.CEILING
        unit = found.name == largest["unit"]
        assert unit == (largest["pct"] >= 50), "a unit leads where it works for half of the time"


def test_a_launch_captured_again_stays_within_a_draw(launches):
    moved = []
    for captures in launches.values():
        same = [c for c in captures if c[0] in ("v0.6.18", "flashinfer-0.6.18")]
        for (_, parts, _), (_, again, _) in combinations(same, 2):
            largest = max(parts, key=lambda part: part["pct"])
            pct = next(p["pct"] for p in again if p["counter"] == largest["counter"])
            moved.append(abs(pct - largest["pct"]))
    assert len(moved) >= 10
    assert sum(by < limiter.DRAW for by in moved) >= 0.9 * len(moved)
