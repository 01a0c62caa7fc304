"""Pairs of points: timed in turns, refused as a whole where one side is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from fake_device import Device, as_written, fake_target, made

from ncuflow.run import timing, visits
from ncuflow.run.prepare import Record, Run
from ncuflow.run.visits import run_points, shuffled


def timed(
    device: Device,
    pairs_of: list[tuple[int, int]],
    n: int,
    rounds: int = 1,
    repeats: int | None = None,
    watch: Any = None,
    order: int = 0,
    visits_all: bool = False,
    **kinds: Any,
) -> dict[str, Any]:
    """Records by name, in their order, of a run that times n points and these pairs of them; in the device's log "<p1" is
    where p1 is prepared, and "p1 ok" where its record comes."""
    points, records = made(max(n, *map(max, pairs_of))), []
    target = fake_target(device, **kinds)
    prepare = target.prepare
    target.prepare = lambda p, seed: device.log.append(f"<p{p['n']}") or prepare(p, seed)
    run = Run(device, target, "time", repeats, rounds=rounds, watch=watch, order=order)
    run.visits_all = visits_all
    run.pairs = [(points[base - 1], points[other - 1]) for base, other in pairs_of]

    def emit(record: Record) -> None:
        device.log.append(f"{record.point.replace('fake/', '')} {record.status}")
        records.append(record)

    status = run_points(run, points[:n], emit)
    found = {record["point"]: record for record in as_written([*records, *run.rest])}
    assert len(found) == len(records) + len(run.rest) == n + len(pairs_of)
    return {"status": status} | found


def distinct(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cold burst has times of its own, so that series can be told apart, and the host stays ahead."""
    taken, cold = count(), device.cold

    def apart(run: Any, n: int) -> timing.Burst:
        number = next(taken)
        return replace(cold(run, n), times=[100.0 + number + i / 100 for i in range(n)])

    monkeypatch.setattr(device, "cold", apart)
    monkeypatch.setattr(timing, "call_times", lambda device, run, n: [1.0] * n)


def test_a_point_is_checked_once_for_its_timing_and_all_its_pairs() -> None:
    device = Device()
    found = timed(device, [(1, 2), (2, 3), (1, 3), (1, 1)], 3)
    assert found["status"] == 0 and found["fake/p1 | fake/p3"]["sides"]
    assert device.log.count("poison") == 3


def test_pairs_of_a_point_that_is_not_ok_are_refused_for_its_reason() -> None:
    device = Device()
    found = timed(device, [(1, 2), (3, 4), (5, 5)], 6, p2=2.5, p3=RuntimeError("no"), p5="skip")
    for pair, of, status in (("p1 | fake/p2", "p2", "wrong"), ("p3 | fake/p4", "p3", "error"),
                             ("p5 | fake/p5", "p5", "skipped")):  # fmt: skip
        reason = f"fake/{of}: {found[f'fake/{of}']['reason']}"
        refused = found[f"fake/{pair}"]
        assert (refused["status"], refused["reason"]) == (status, reason)
    assert device.log.count("poison") == 4  # of p1, p2, p4 and p6


def test_a_launch_stays_for_the_next_pair_and_no_longer() -> None:
    device = Device()
    found = timed(device, [(1, 2), (3, 4), (1, 3), (2, 2)], 0)
    taken = [(1, 2), (1, 3), (3, 4), (2, 2)]
    assert list(found)[1:] == [f"fake/p{a} | fake/p{b}" for a, b in taken]
    assert [e for e in device.log if e.startswith("<p")] == [f"<p{n}" for n in (1, 2, 3, 4, 2, 2)]


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
        visits.pairs_of(made(3))


# --- the points of pairs ----------------------------------------------------------------------


def test_a_point_of_a_pair_is_made_ready_once_and_has_the_times_of_its_side(monkeypatch):
    device = Device()
    distinct(device, monkeypatch)
    found = timed(device, [(1, 2), (1, 3)], 3)
    assert found["status"] == 0
    log = Counter(device.log)
    assert [log[f"<p{n}"] for n in (1, 2, 3)] == [1, 1, 1] and log["poison"] == 3
    for place, entry in enumerate(device.log):
        if entry.startswith("steady") and not device.log[place - 1].startswith("steady"):
            assert "settle" in device.log[:place][-2:]
    assert log["cold 5"] == 2 * 2 * visits.PAIR_ROUNDS and not log["cold 30"]
    first, second = (found[f"fake/p1 | fake/p{n}"]["sides"] for n in (2, 3))
    assert first[0]["cold"] != second[0]["cold"]
    assert first[0]["cold"]["n"] == visits.PAIR_ROUNDS * visits.PAIR_LAUNCHES
    for point, side in [("fake/p1", first[0]), ("fake/p2", first[1]), ("fake/p3", second[1])]:
        record = found[point]
        assert (record["status"], record["check"]["rel_l2"]) == ("ok", 0.0)
        for kind in ("cold", "hot", "host", "plan"):
            assert record["timing"][kind] == side[kind]
        assert record["timing"]["sustained"]["n"] and side["sustained"] is None
        assert record["info"]["split_kv"] is False and record["peak_memory_bytes"] == 1234


def test_a_point_of_a_pair_has_a_visit_s_samples_and_conditions() -> None:
    device = Device()
    device.states = [{"sm_mhz": mhz, "mem_mhz": 2600, "throttle": []} for mhz in range(1500, 1510)]
    device.throttled = [(), ("sw_power_cap",)] * 4
    found = timed(device, [(1, 1)], 1)
    record, (side, _) = found["fake/p1"], found["fake/p1 | fake/p1"]["sides"]
    assert record["timing"]["cold"]["n"] == record["timing"]["host"]["n"] == timing.REPEATS
    assert (record["timing"]["cold"]["floor_us"], record["clocks"]["retakes"]) == (2.5, 1)
    # From before the pair to after the sustained rate, which the pair's own clocks do not have yet.
    assert [record["clocks"][when]["sm_mhz"] for when in ("before", "after")] == [1500, 1504]
    assert [side["clocks"][when]["sm_mhz"] for when in ("before", "after")] == [1500, 1502]


def test_a_point_of_no_pair_is_visited_by_itself_before_all_pairs() -> None:
    device = Device()
    found = timed(device, [(2, 4)], 5)
    lone = [p.id for p in shuffled(made(5), 0, 0) if p.id not in ("fake/p2", "fake/p4")]
    assert list(found)[1:] == [*lone, "fake/p2 | fake/p4", "fake/p2", "fake/p4"]
    assert device.log.count("cold 30") == 3
    places = [found[point]["order"]["positions"] for point in [*lone, "fake/p2", "fake/p4"]]
    assert places == [[0], [1], [2], [3], [4]]


@pytest.mark.parametrize(("kind", "found"), [(2.5, "wrong"), ("skip", "skipped")])
def test_a_point_whose_partner_is_refused_is_visited_by_itself(kind: Any, found: str) -> None:
    device = Device()
    records = timed(device, [(1, 2), (3, 4)], 4, p2=kind)
    assert records["fake/p2"]["status"] == records["fake/p1 | fake/p2"]["status"] == found
    assert records["fake/p1 | fake/p2"]["reason"] == f"fake/p2: {records['fake/p2']['reason']}"
    assert records["fake/p1"]["status"] == "ok" and device.log.count("cold 30") == 1
    assert records["fake/p1"]["timing"]["cold"]["n"] == 30
    assert records["fake/p1"]["check"]["rel_l2"] == 0.0
    assert device.log.count("poison") == (3 if kind == "skip" else 4)  # nobody is checked twice


def test_a_point_whose_partner_is_wrong_has_the_times_of_its_next_pair() -> None:
    device = Device()
    records = timed(device, [(1, 2), (1, 3)], 3, p2=2.5)
    assert [records[f"fake/p{n}"]["status"] for n in (1, 2, 3)] == ["ok", "wrong", "ok"]
    assert device.log.count("cold 30") == 0 and device.log.count("<p1") == 1


def test_what_fails_beside_another_launch_alone_is_measured_alone() -> None:
    device = Device()

    def second() -> None:
        if "<p1" in device.log and "release" not in device.log[device.log.index("<p1") :]:
            raise RuntimeError("CUDA out of memory")

    records = timed(device, [(1, 2)], 2, p2=second)
    pair = records["fake/p1 | fake/p2"]
    assert pair["status"] == "error"
    assert pair["reason"] == "fake/p2: RuntimeError: CUDA out of memory"
    assert [records[f"fake/p{n}"]["status"] for n in (1, 2)] == ["ok", "ok"]
    assert device.log.count("cold 30") == 2


def test_the_points_of_a_pair_that_failed_are_visited_before_their_next_one(monkeypatch):
    """What fails by one of them shall not fail all its pairs, each of which may cost a process."""
    device, pair, taken = Device(), timing.pair, []

    def first_fails(*given: Any) -> Any:
        taken.append(given)
        if len(taken) == 1:
            raise RuntimeError("no")
        return pair(*given)

    monkeypatch.setattr(timing, "pair", first_fails)
    found = timed(device, [(1, 2), (1, 3)], 3)
    first, *alone, second, third = list(found)[1:]
    assert (first, second, third) == ("fake/p1 | fake/p2", "fake/p1 | fake/p3", "fake/p3")
    assert sorted(alone) == ["fake/p1", "fake/p2"]
    # Nothing of the pair stays beside them.
    assert device.log.count("<p1") == 3 and device.log.count("poison") == 3


def test_the_bases_of_pairs_are_in_a_random_order_of_the_process_and_theirs_together() -> None:
    sides = [(1, 2), (3, 4), (1, 5), (6, 7), (8, 9), (3, 9)]
    taken = set()
    for order in (*range(5), 0):
        found = timed(Device(), sides, 9, order=order)
        names = [name for name in found if "|" in name]
        bases = [name.split(" ")[0] for name in names]
        assert sorted(bases, key=bases.index) == bases
        assert next(name for name in names if name.startswith("fake/p1 ")) == "fake/p1 | fake/p2"
        taken.add((order, *names))
    assert len(taken) == 5 and len({names[1:] for names in taken}) > 2


@pytest.mark.parametrize(
    ("asked", "visits", "launches"),
    [({"rounds": 3}, 3, 30), ({"repeats": 31}, 1, 31), ({"repeats": 10}, 1, 10), ({"visits_all": True}, 1, 30)],
)  # fmt: skip
def test_other_visits_than_a_pair_measures_are_visits_of_their_own(asked, visits, launches):
    device = Device()
    found = timed(device, [(1, 2)], 2, **asked)
    assert found["fake/p1"]["timing"]["cold"]["n"] == launches
    assert len(found["fake/p1"]["order"]["positions"]) == visits
    assert device.log.count("<p1") == visits + 1 and device.log.count("poison") == 2
    assert list(found)[-1] == "fake/p1 | fake/p2"


def test_the_other_side_of_another_batch_has_no_record_here() -> None:
    device = Device()
    sides = [(1, 3), (2, 3), (1, 4), (2, 4)]
    found = timed(device, sides, 2, p4=2.5)
    names = [f"fake/p{base} | fake/p{other}" for base, other in sides]
    assert set(found) - {"status"} == {"fake/p1", "fake/p2", *names}
    assert [found[name]["status"] for name in names] == ["ok", "ok", "wrong", "wrong"]
    assert device.log.count("poison") == 4  # p4 is not tried again


def test_a_compiler_in_a_pair_is_its_error_and_beside_the_sustained_rate_its_points(monkeypatch):
    """The points of a pair that failed are measured again."""
    for method, statuses in (("cold", ["error", "ok", "ok"]), ("steady", ["ok", "error", "ok"])):
        device, watch = Device(), SimpleNamespace(started=3)
        if method == "steady":
            distinct(device, monkeypatch)
        whole = getattr(device, method)

        def compiles(run: Any, n: int, *more: int, whole: Any = whole, watch: Any = watch) -> Any:
            watch.started += watch.started == 3 and (n == 5 or bool(more))
            return whole(run, n, *more)

        monkeypatch.setattr(device, method, compiles)
        found = timed(device, [(1, 2)], 2, watch=watch)
        records = [found[name] for name in ("fake/p1 | fake/p2", "fake/p1", "fake/p2")]
        assert [record["status"] for record in records] == statuses
        (failed,) = (record for record in records if record["status"] == "error")
        assert "ninja or nvcc ran after the warm-up" in failed["reason"]
        assert failed.get("timing") is failed.get("sides") is None
        assert device.log.count("cold 30") == (2 if method == "cold" else 0)


def test_the_memory_of_a_point_is_asked_for_from_its_own_begin_on() -> None:
    device = Device()
    device.begin = lambda: device.log.append("begin")  # type: ignore[method-assign]
    timed(device, [(1, 2)], 3)
    prepared = [place for place, entry in enumerate(device.log) if entry.startswith("<p")]
    assert len(prepared) == 3
    assert {device.log[place - 1] for place in prepared} == {"begin"}
