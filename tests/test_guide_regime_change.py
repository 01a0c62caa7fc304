"""Where a sweep crosses from launch and latency to a ceiling."""

import pytest

from ncuflow.findings.limiter import regime_changes
from ncuflow.pages.markdown import guide


def points(*limiters, status="ok"):
    return [
        {"point": f"p{2**i}", "status": status, "params": {"batch": 2**i, "kv_len": 2048},
         "measurement": {"limiter": limiter}}
        for i, limiter in enumerate(limiters)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("limiters", "kind", "below", "above"),
    [
        (("blocks", "latency", "dram", "dram"), "crosses", 2, 4),
        (("dram", "l2", "tensor"), "always", None, None),
        (("blocks", "latency", "latency"), "never", None, None),
        (("blocks", "dram", "latency"), "mixed", 1, 2),
        (("dram", "latency", "dram"), "mixed", None, 1),
        (("blocks", "unknown", "latency", "dram"), "crosses", 4, 8),
    ],
)
def test_kinds(limiters, kind, below, above):
    (found,) = regime_changes(points(*limiters), "batch")
    assert (found.kind, found.below, found.above) == (kind, below, above)


def test_order_of_points_does_not_matter():
    (found,) = regime_changes(points("blocks", "dram", "dram")[::-1], "batch")
    assert (found.below, found.above, found.before, found.after) == (1, 2, "blocks", "dram")


def test_two_points_or_other_parameters_are_no_line():
    assert regime_changes(points("blocks", "dram"), "batch") == []
    assert regime_changes(points("blocks", "dram", "dram", status="wrong"), "batch") == []
    assert regime_changes(points("blocks", "dram", "dram"), "rows") == []


def test_a_line_that_crosses_is_told_from_those_that_never_do():
    """By what sets it apart from them alone: the backend, and not the heads, which differ along with the mask."""
    found = [
        point | {"params": point["params"] | {"backend": backend, "causal": causal, "heads": 8 + 24 * causal}}
        for backend, causal, limiters in (
            ("fa2", True, ("latency", "latency", "latency")),
            ("fa3", True, ("latency", "tensor", "tensor")),
            ("fa2", False, ("latency", "latency", "latency")),
        )
        for point in points(*limiters)
    ]  # fmt: skip
    (line,) = guide.regime_changes(found, "batch")
    assert line["label"] == "backend fa3"
    (alone,) = guide.regime_changes(found[3:6], "batch")
    assert alone["label"] == ""
