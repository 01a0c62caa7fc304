"""The bottleneck tree: throughput first, never a stall reason."""

from __future__ import annotations

import pytest

from ncuflow.findings.bottleneck import judge


@pytest.mark.parametrize(
    ("metrics", "limiter", "unit"),
    [
        ({"sm_throughput_pct": 20, "memory_throughput_pct": 93, "dram_throughput_pct": 93,
          "l2_throughput_pct": 60}, "memory", "dram"),
        ({"sm_throughput_pct": 20, "memory_throughput_pct": 70, "dram_throughput_pct": 20,
          "l1_throughput_pct": 70}, "memory", "l1"),
        ({"sm_throughput_pct": 20, "memory_throughput_pct": 95, "dram_throughput_pct": 88,
          "l2_throughput_pct": 95}, "memory", "dram"),
        ({"sm_throughput_pct": 20, "memory_throughput_pct": 95, "dram_throughput_pct": 60,
          "l2_throughput_pct": 95}, "memory", "l2"),
        ({"sm_throughput_pct": 20, "memory_throughput_pct": 95, "dram_throughput_pct": 85,
          "l2_throughput_pct": 95}, "memory", "dram"),
        ({"sm_throughput_pct": 20, "memory_throughput_pct": 95, "dram_throughput_pct": 84,
          "l2_throughput_pct": 95}, "memory", "l2"),
        ({"sm_throughput_pct": 75, "memory_throughput_pct": 30, "tensor_pipe_pct": 60}, "compute", "tensor"),
        ({"sm_throughput_pct": 75, "memory_throughput_pct": 30, "tensor_pipe_pct": 2}, "compute", "sm"),
        ({"sm_throughput_pct": 70, "memory_throughput_pct": 72, "dram_throughput_pct": 72}, "balanced", "dram"),
        ({"sm_throughput_pct": 8, "memory_throughput_pct": 12, "waves": 0.2}, "grid", "sm"),
        ({"sm_throughput_pct": 8, "memory_throughput_pct": 12, "waves": 0.97}, "latency", "sm"),
        ({"sm_throughput_pct": 30, "memory_throughput_pct": 40, "waves": 5}, "latency", "sm"),
        ({"sm_throughput_pct": 30}, "unknown", None),
        ({}, "unknown", None),
    ],
)  # fmt: skip
def test_limiter(metrics, limiter, unit):
    found = judge(metrics)
    assert (found.limiter, found.unit) == (limiter, unit)


def test_short_scoreboard_does_not_make_a_launch_compute_bound():
    metrics = {"sm_throughput_pct": 30, "memory_throughput_pct": 92, "dram_throughput_pct": 92}
    assert judge(metrics | {"stall_short_scoreboard": 0.9}).limiter == "memory"


def test_no_level_is_busier_than_the_memory_throughput_that_decides():
    metrics = {"sm_throughput_pct": 20, "memory_throughput_pct": 65, "dram_throughput_pct": 40}
    found = judge(metrics | {"l2_throughput_pct": 79, "l1_throughput_pct": 90})
    assert (found.unit, found.pct) == ("l2", 65)
    assert judge(metrics | {"memory_throughput_pct": 58, "l2_throughput_pct": 69}).pct == 58
