"""Where a sweep crosses from launch and latency to a ceiling."""

from __future__ import annotations

import pytest

from ncuflow.findings.crossing import crossings


def points(*limiters, status="ok"):
    return [
        {"point": f"p{2**i}", "status": status, "params": {"batch": 2**i, "kv_len": 2048},
         "measurement": {"bottleneck": limiter, "bottleneck_unit": "dram"}}
        for i, limiter in enumerate(limiters)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("limiters", "kind", "below", "above"),
    [
        (("grid", "latency", "memory", "memory"), "crosses", 2, 4),
        (("memory", "balanced", "compute"), "always", None, None),
        (("grid", "latency", "latency"), "never", None, None),
        (("grid", "memory", "latency"), "mixed", 1, 2),
        (("memory", "latency", "memory"), "mixed", None, 1),
        (("grid", "unknown", "latency", "memory"), "crosses", 4, 8),
    ],
)
def test_kinds(limiters, kind, below, above):
    (found,) = crossings(points(*limiters), "batch")
    assert (found.kind, found.below, found.above) == (kind, below, above)


def test_order_of_points_does_not_matter():
    (found,) = crossings(points("grid", "memory", "memory")[::-1], "batch")
    assert (found.below, found.above, found.before, found.after) == (1, 2, "grid", "memory")


def test_two_points_or_other_parameters_are_no_line():
    assert crossings(points("grid", "memory"), "batch") == []
    assert crossings(points("grid", "memory", "memory", status="wrong"), "batch") == []
    assert crossings(points("grid", "memory", "memory"), "rows") == []
