"""Pairs of points: timed in turns, refused as a whole where one side is."""

from __future__ import annotations

from typing import Any

import pytest
from fake_device import Device, as_written, fake_target, made

from ncuflow.runner import pairs
from ncuflow.runner.job import Record, Run
from ncuflow.runner.run import run_points


def ran_pairs(device: Device, n: int = 1, **kinds: Any) -> tuple[int, list[dict[str, Any]]]:
    records: list[Record] = []
    run = Run(device, fake_target(device, **kinds), "time", rounds=1)
    run.pairs = pairs.pairs_of(made(2 * n))
    status = run_points(run, [], records.append)
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


def timed(device: Device, pairs_of: list[tuple[int, int]], n: int, **kinds: Any) -> dict[str, Any]:
    """Records by name of a run that times n points and then these pairs of them."""
    points, records = made(n), []
    run = Run(device, fake_target(device, **kinds), "time", rounds=1)
    run.pairs = [(points[base - 1], points[other - 1]) for base, other in pairs_of]
    status = run_points(run, points, records.append)
    found = {record["point"]: record for record in as_written([*records, *run.rest])}
    assert len(found) == n + len(pairs_of)
    return {"status": status} | found


def test_a_point_is_checked_once_for_its_timing_and_all_its_pairs() -> None:
    device = Device()
    found = timed(device, [(1, 2), (2, 3), (1, 3), (1, 1)], 3)
    assert found["status"] == 0 and found["fake/p1 | fake/p3"]["sides"]
    assert device.log.count("poison") == 3


def test_pairs_of_a_point_that_is_not_ok_are_refused_for_its_reason() -> None:
    device = Device()
    found = timed(device, [(1, 2), (3, 4), (5, 5)], 6, p2=2.5, p3=RuntimeError("no"), p5="skip")
    refused = [
        found[name] for name in ("fake/p1 | fake/p2", "fake/p3 | fake/p4", "fake/p5 | fake/p5")
    ]
    assert [pair["status"] for pair in refused] == ["wrong", "error", "skipped"]
    assert [pair["reason"] for pair in refused] == [
        f"{name}: {found[name]['reason']}" for name in ("fake/p2", "fake/p3", "fake/p5")
    ]
    assert device.log.count("poison") == 4  # of p1, p2, p4 and p6


def test_a_launch_stays_for_the_next_pair_and_no_longer() -> None:
    target, prepared = fake_target(Device()), []
    prepare = target.prepare
    target.prepare = lambda p, seed: prepared.append(p["n"]) or prepare(p, seed)
    points = made(4)
    run = Run(Device(), target, "time")
    order = [(1, 2), (3, 4), (1, 3), (2, 2)]
    run.pairs = [(points[a - 1], points[b - 1]) for a, b in order]
    found: list[Record] = []
    run_points(run, [], found.append)
    assert [record.point for record in found] == [
        f"fake/p{a} | fake/p{b}" for a, b in [(1, 2), (1, 3), (3, 4), (2, 2)]
    ]
    assert prepared == [1, 2, 3, 4, 2, 2]


def test_a_gpu_that_is_lost_at_a_point_is_lost_to_all_that_follows() -> None:
    device = Device()
    device.answers = False
    found = timed(device, [(1, 2), (3, 1)], 3, p2=RuntimeError("an illegal memory access"))
    assert (found["status"], found["fake/p2"]["status"]) == (4, "error")
    refused = found["fake/p1 | fake/p2"]
    assert (refused["status"], refused["sides"]) == ("error", None)
    assert refused["reason"] == "fake/p2: RuntimeError: an illegal memory access"
    for name in ("fake/p1", "fake/p3", "fake/p3 | fake/p1"):
        assert found[name]["status"] == "lost"
        assert found[name]["reason"].startswith("the GPU was lost at fake/p1 | fake/p2: ")


def test_a_point_without_a_partner_is_an_error() -> None:
    with pytest.raises(ValueError, match="odd number"):
        pairs.pairs_of(made(3))
