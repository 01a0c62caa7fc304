"""The limiter: units against waits, draws, and over every recorded launch that the named unit is the largest entry."""

from __future__ import annotations

from collections import defaultdict

import pytest
from conftest import ROOT

from ncuflow.findings import limiter
from ncuflow.findings.join import main_kernel
from ncuflow.findings.kernelname import MERGE
from ncuflow.parsers import ncu
from ncuflow.parsers.breakdown import UNITS

CAPTURES = ("0.7.2/default", "0.7.2/kernels")
RECORDED = [path for name in CAPTURES for path in ROOT.glob(f"recordings/h200/{name}/*/*/sweep.ncu-rep.xz")]  # fmt: skip
CYCLES = {"cycles_elapsed": 1000.0, "sm_count": 80.0}


def judge(waves=4.0, active=1000.0, grid=1000, **units):
    parts = [
        {"parent": "sm_throughput_pct", "counter": f"{unit}_{i}", "unit": unit, "pct": pct}
        for unit, found in units.items()
        for i, pct in enumerate(found if isinstance(found, tuple) else (found,))
    ]
    launch = {"waves": waves, "sm_cycles_active": active}
    return limiter.judge(parts, CYCLES | launch, grid)


@pytest.mark.parametrize(
    ("units", "launch", "name", "draw", "verdict"),
    [
        ({"dram": 92.3, "l2": 64.8}, {}, "dram", None, "bound"),
        ({"dram": 80.0, "l2": 64.8}, {}, "dram", None, "bound"),
        ({"dram": 85.0, "l2": 84.0}, {}, "dram", "l2", "bound"),
        # Below 80 % no unit is at its peak: each that could limit is named, and waits beside them.
        ({"dram": 79.9, "l2": 54.8}, {}, "dram", None, "partly"),
        ({"dram": 72.5, "issue": 66.5}, {}, "dram", "issue", "partly"),
        # The busiest counter of a unit stands for it; another unit's second is no matter.
        ({"l1": (61.0, 72.3), "l2": (59.4, 57.4), "dram": 51.5}, {}, "l1", None, "partly"),
        ({"tensor": 60.0, "l1": 58.0}, {}, "tensor", None, "partly"),
        # Below 60 % a unit is only named as the busiest, whether it works for more than half of the time or not.
        ({"tensor": 59.9, "l1": 58.0}, {}, "latency", None, "latency"),
        ({"tensor": 42.0}, {"active": 600.0}, "tail", None, "latency"),
        ({"tensor": 42.0}, {"active": 710.0}, "tail", "latency", "latency"),
        ({"dram": 24.0}, {"waves": 0.16, "active": 900.0}, "blocks", None, "latency"),
        ({"dram": 30.0}, {"waves": 0.97, "active": 900.0}, "latency", None, "latency"),
    ],
)  # fmt: skip
def test_name_and_draw(units, launch, name, draw, verdict):
    found = judge(**units, **launch)
    assert (found.name, found.draw, found.verdict) == (name, draw, verdict)


def waits(found):
    return {wait.name: wait.pct for wait in found.waits}


def row(busiest, second=("l2", 40.0), limiter="dram", draw=None, verdict="bound", **more):
    return {
        "limiter": limiter, "draw": draw, "verdict": verdict, "busiest_unit": busiest[0], "busiest_pct": busiest[1],
        "second_unit": second[0], "second_pct": second[1], "waves": 0.161, "main_pct": None, "merge_pct": None,
        "main_kernel": "Attention", **more,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("found", "said", "counted"),
    [
        (row(("dram", 86.2)), "bound by DRAM (86 % of its peak)", "bound by DRAM"),
        (row(("dram", 86.2), ("l2", 85.0), draw="l2"), "bound by DRAM (86 % of its peak) and L2 85 %", "bound by DRAM and L2"),
        (row(("issue", 74.1), limiter="issue", verdict="partly"), "instruction issue 74 %, otherwise latency-bound",
         "instruction issue, otherwise latency-bound"),
        (row(("dram", 72.5), ("issue", 66.5), draw="issue", verdict="partly"),
         "DRAM 72 %, instruction issue 66 %, otherwise latency-bound", "DRAM, instruction issue, otherwise latency-bound"),
        (row(("tensor", 55.0), limiter="latency", verdict="latency"), "latency-bound; busiest: tensor pipe (55 %)",
         "latency-bound"),
        (row(("dram", 24.0), limiter="blocks", draw="tail", verdict="latency"),
         "latency-bound (too few blocks: 0.16 waves, launch and tail); busiest: DRAM (24 %)",
         "latency-bound (too few blocks, launch and tail)"),
        (row(("tensor", 58.0), limiter="latency", verdict="latency", tensor_padding_pct=99.2),
         "latency-bound; busiest: tensor pipe (58 %, 99 % of its work is padding)", "latency-bound"),
        # No figure is rounded up to a threshold that it does not reach.
        (row(("dram", 79.98), verdict="partly"), "DRAM 79.9 %, otherwise latency-bound", "DRAM, otherwise latency-bound"),
        # Of several kernels the longest is named, and a merge is said.
        (row(("dram", 86.2), main_pct=96.0, merge_pct=4.0), "bound by DRAM (86 % of its peak)", "bound by DRAM"),
        (row(("dram", 86.2), main_pct=80.0, merge_pct=20.0),
         "Attention, 80 % of the time: bound by DRAM (86 % of its peak); merging takes 20 %", "bound by DRAM"),
        (row(("issue", 74.1), limiter="issue", verdict="partly", main_pct=66.3, merge_pct=66.3, main_kernel=f"{MERGE}Kernel"),
         "merge kernel, 66 % of the time: instruction issue 74 %, otherwise latency-bound",
         "instruction issue, otherwise latency-bound"),
        # What has no name here has NVIDIA's.
        (row(("other", 86.2), busiest_counter="idc__request_cycles_active.avg.pct"),
         "bound by another unit, idc__request_cycles_active (86 % of its peak)", "bound by DRAM"),
        ({"verdict": None}, None, None),
    ],
)  # fmt: skip
def test_words(found, said, counted):
    assert limiter.words(found) == said
    assert limiter.kind(found) == counted


@pytest.mark.parametrize(
    ("unit", "verdict", "nature"),
    [("dram", "bound", "memory-bound"), ("lsu", "bound", "memory-bound"), ("fma", "bound", "compute-bound"),
     ("l2", "partly", "partly memory-bound"), ("l1", "latency", "latency-bound")],
)  # fmt: skip
def test_nature(unit, verdict, nature):
    """Loads and stores that fill their pipe, in a naive matrix product for one, are no arithmetic."""
    assert limiter.nature(row((unit, 91.0), verdict=verdict)) == nature


def test_waits_add_up_to_what_the_busiest_unit_leaves():
    found = judge(waves=0.8, active=850.0, dram=40.0, l2=30.0)
    assert waits(found) == pytest.approx({"latency": 25.0, "blocks": 20.0, "tail": 15.0})
    busy = judge(waves=0.1, active=500.0, dram=95.0)
    assert sum(wait.pct for wait in busy.waits) == pytest.approx(5.0)
    over = judge(active=1020.0, dram=101.0)  # counted in different replay passes
    assert [wait.pct for wait in over.waits] == [0.0, 0.0, 0.0]


def test_an_sm_without_any_block_is_no_tail():
    """Of 80 SMs with a block each 64 have one: their idle time is 2 % of the 22 that no SM is active in."""
    found = judge(waves=0.8, active=780.0, grid=64, l1=44.5)
    assert waits(found) == pytest.approx({"latency": 33.5, "blocks": 20.0, "tail": 2.0})
    # each SM has a block, most have two
    several = judge(waves=0.8, active=780.0, held=2.0, l1=30.0)
    assert waits(several) == pytest.approx({"latency": 28.0, "blocks": 20.0, "tail": 22.0})
    part = {"parent": "", "counter": "c", "unit": "l1", "pct": 44.5}
    unknown = limiter.judge([part], CYCLES | {"sm_cycles_active": 780.0, "waves": 0.8})
    assert waits(unknown) == pytest.approx({"waits": 35.5, "blocks": 20.0})


def test_what_is_not_counted_is_not_told_apart():
    found = limiter.judge([], CYCLES)
    assert (found.name, found.draw, found.verdict) == ("unknown", None, None)
    part = {"parent": "", "counter": "c", "unit": "dram", "pct": 30.0}
    assert waits(limiter.judge([part], {})) == {"waits": 70.0}
    filled = waits(limiter.judge([part], {"waves": 0.9}))
    assert filled == pytest.approx({"waits": 60.0, "blocks": 10.0})


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
            judged = limiter.judge(main["breakdown"], main["metrics"], main["grid_size"])
            found[point, main["demangled"]].append((main["breakdown"], judged))
    return found


@pytest.mark.parametrize(
    ("point", "kernel", "units", "verdict"),
    [
        # Above half of the time a unit is not the limit yet: two of five cycles of each of these are waits.
        ("prefill/paged_S8192_B1_H32_K8_D128_f16_fa2_c", "BatchPrefill", ["latency"], "latency"),
        ("mla_decode/B128_L2048_H128_P64_bf16_fa3", "MLA", ["latency"], "latency"),
        # The same bytes take SiLU 85 µs and this 99: erf's instructions limit it beside DRAM.
        ("activation/gelu_T4096_D14336_bf16", "", ["dram", "issue"], "partly"),
        ("activation/silu_T4096_D14336_bf16", "", ["dram", None], "bound"),
        # Two thirds of the time are the merge's.
        ("prefill/paged_S512_B1_H32_K32_D128_f16_fa2_c", MERGE, ["issue", None], "partly"),
        ("prefill/paged_S512_B1_H32_K8_D128_f16_fa2_c_split16", MERGE, ["issue", None], "partly"),
    ],
)  # fmt: skip
def test_what_an_expert_says_of_recorded_launches(launches, point, kernel, units, verdict):
    of_point = [
        (name, found) for (named, name), captures in launches.items() if named == point
        for _, found in captures
    ]  # fmt: skip
    assert of_point
    for name, found in of_point:
        assert kernel in name
        assert [found.name, found.draw][: len(units)] == units
        assert found.verdict == verdict


def test_every_recorded_verdict_names_the_largest_entry(launches):
    judged = [launch for captures in launches.values() for launch in captures]
    assert len(judged) > 100
    for parts, found in judged:
        largest = max(parts, key=lambda part: part["pct"])
        assert (found.units[0].name, found.units[0].pct) == (largest["unit"], largest["pct"])
        assert found.units[0].name in UNITS and found.name != limiter.UNKNOWN
        assert (found.verdict == "bound") == (largest["pct"] >= 80)
        assert (found.verdict == "latency") == (largest["pct"] < 60) == (found.name not in UNITS)


def rolled_up(throughput, **units):
    parts = [{"unit": unit, "pct": pct} for unit, pct in units.items()]
    return limiter.rolled_up(parts, {"l2_throughput_pct": throughput})


def test_a_roll_up_of_l2_above_its_counters_is_said_beside_another_verdict():
    said = rolled_up(92.5, dram=90.7, l2=63.6)
    assert "92 %" in said and "64 %" in said and "lts__throughput" in said
    assert rolled_up(89.0, dram=90.7, l2=63.6), "nearly as high as what limits it"


@pytest.mark.parametrize(
    ("l2", "units"),
    [
        (61.4, {"dram": 77.1, "l2": 30.7}),  # nobody would take it for the limiter
        (92.5, {"dram": 60.0, "l2": 92.5}),  # its own counter leads it: it is the limiter
        (92.5, {"dram": 60.0, "l2": 91.0}),
        (92.5, {"dram": 60.0}),  # no counter of L2: nothing is known of it
        (None, {"dram": 90.0, "l2": 63.0}),
        (92.5, {}),
    ],
)
def test_a_roll_up_that_misleads_nobody_is_not_said(l2, units):
    assert rolled_up(l2, **units) is None
