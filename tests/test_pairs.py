"""Pairs of points: timed in turns, refused as a whole where one side is."""

from __future__ import annotations

from typing import Any

import pytest
from fake_device import Device, as_written, fake_target, made

from ncuflow.runner import pairs
from ncuflow.runner.job import Record, Run


def ran_pairs(device: Device, n: int = 1, **kinds: Any) -> tuple[int, list[dict[str, Any]]]:
    records: list[Record] = []
    run = Run(device, fake_target(device, **kinds), "pairs")
    status = pairs.run_pairs(run, pairs.pairs_of(made(2 * n)), records.append)
    return status, as_written([*records, *run.rest])


def test_both_sides_are_timed_and_named() -> None:
    status, (record,) = ran_pairs(Device())
    assert (status, record["status"]) == (0, "ok")
    assert (record["base"], record["other"]) == ("fake/p1", "fake/p2")
    assert [side["cold"]["n"] for side in record["sides"]] == [pairs.ROUNDS * pairs.LAUNCHES] * 2


@pytest.mark.parametrize(("kind", "found", "status"), [("skip", "skipped", 0), (2.5, "wrong", 3)])
def test_a_pair_with_one_side_refused_has_no_times(kind: Any, found: str, status: int) -> None:
    device = Device()
    code, (bad, good) = ran_pairs(device, n=2, p2=kind)
    assert (code, bad["status"], bad["sides"]) == (status, found, None)
    assert bad["reason"].startswith("fake/p2: ")
    assert good["status"] == "ok"


def test_an_error_is_of_one_pair_and_a_lost_gpu_of_all_that_follow() -> None:
    device = Device()
    code, (bad, good) = ran_pairs(device, n=2, p1=RuntimeError("no kernel image"))
    assert (code, bad["status"], good["status"]) == (3, "error", "ok")
    device.answers = False
    code, (bad, lost) = ran_pairs(device, n=2, p1=RuntimeError("illegal memory access"))
    assert (code, lost["status"], lost["sides"]) == (4, "lost", None)
    assert "fake/p1 | fake/p2" in lost["reason"]


def test_a_point_without_a_partner_is_an_error() -> None:
    with pytest.raises(ValueError, match="odd number"):
        pairs.pairs_of(made(3))
