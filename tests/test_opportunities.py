"""Opportunities: never above the room, each tried or with a reason, ranked by what they brought."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import DEFAULT

from ncuflow.findings import stored
from ncuflow.findings.opportunities import found, room, said
from ncuflow.findings.scope import Scope
from ncuflow.io import read_json
from ncuflow.pages.markdown.opportunities import _row, brought, place, rows
from ncuflow.target.contract import Choice, Opportunity, Symbol, Target


def declared(**more: Any) -> Opportunity:
    usual = {"shown": "busy {busiest_pct}", "where": "side == 'a'", "choice": "ab"}
    return Opportunity(
        what="b", symbol=Symbol("f", "x.cuh"), change="take b", **usual | more,
    )  # fmt: skip


def target(*declared: Opportunity) -> Target:
    return Target(
        name="t", title="T", parameters={"side": "a"}, id="{side}", work=lambda p: None, prepare=lambda p: None,  # type: ignore[arg-type,return-value]
        prices=(Choice("ab", "a or b", "side", "a", "b"),), opportunities=declared,
    )  # fmt: skip


def point(side: str, cold: float, grid: str = "1,1,1", **columns: Any) -> dict[str, Any]:
    samples = [cold * (1 + 0.001 * (n % 5)) for n in range(30)]
    measurement = {
        "time_cold_us": cold, "time_hot_us": cold, "host_launch_us": 1.0, "bytes_analytic": 1e6, "flops_analytic": 0,
        "ceiling_dram_gbs_measured": 1000.0, "ceiling_tensor_tflops_measured": 1.0, "busiest_pct": 40.0, "plan_us": 10.0,
        "limiter": None, "draw": None,
    }  # fmt: skip
    kernel = {
        "name": "k", "demangled": "k", "grid": grid, "duration_ns": 1.0, "metrics": {}, "breakdown": [], "stalls": [],
    }  # fmt: skip
    return {
        "point": f"t/{side}", "params": {"side": side}, "status": "ok", "reason": None, "info": {}, "kernels": [kernel],
        "measurement": measurement | columns, "samples": {"cold_us": samples},
    }  # fmt: skip


def of(*points: dict[str, Any], noise: float = 0.001) -> Any:
    floors = {"time_cold_us": {"floor": noise}}
    return {"target": "t", "provenance": {}, "points": list(points), "pairs": [], "noise": floors}


def turns(
    *colds: float,
    plans: tuple[float, float] = (1.0, 1.0),
    hosts: tuple[float, float] = (1.0, 1.0),
    hots: tuple[float, float] = (1.0, 1.0),
    spread: float = 0.001,
) -> dict[str, Any]:
    """The pair of a and b, timed in turns."""
    sides = []
    for cold, plan, host, hot in zip(colds, plans, hosts, hots, strict=True):
        side: dict[str, Any] = {"hot_group": 8}
        for name, time in (("cold", cold), ("plan", plan), ("host", host), ("hot", hot)):
            side[f"{name}_us"] = time
            wide = spread if name == "plan" else 0.001
            side[f"{name}_samples_us"] = [time * (1 + wide * (n % 5 - 2)) for n in range(30)]
        sides.append(side)
    return {"base": "t/a", "other": "t/b", "status": "ok", "reason": None, "sides": sides}


def test_what_a_trial_brought_stands_beside_its_bound() -> None:
    (one,) = found(of(point("a", 4.0), point("b", 2.0)), target(declared(bound="0.7")))
    assert one.price and one.price.change == pytest.approx(-0.5) and one.saved == pytest.approx(0.5)
    assert (one.most, one.room) == (pytest.approx(0.7), pytest.approx(0.75))


def test_no_bound_is_above_the_room() -> None:
    """A megabyte at 1 000 GB/s takes a µs, and of 2 µs no change leaves less."""
    (one,) = found(of(point("a", 2.0)), target(declared(bound="0.9")))
    assert one.most == one.room == pytest.approx(0.5)
    assert not found(of(point("a", 1.0)), target(declared(bound="0.9")))


def test_the_room_is_for_the_work_that_is_left() -> None:
    less = Scope(point("b", 1.0, bytes_analytic=1e5)["measurement"])
    before = Scope(point("a", 2.0)["measurement"])
    assert room(before, less, "time_cold_us") == pytest.approx(0.95)
    step = before.with_values(time_hot_us=3.0, step_us=4.0)
    assert room(step, less, "step_us") == pytest.approx(0.25)


def test_the_roofs_of_a_launch_bound_no_change_that_does_other_work() -> None:
    """Of 2 µs for a megabyte at 1 000 GB/s half is left, but not where the megabyte is not moved."""
    (one,) = found(of(point("a", 2.0)), target(declared(other_work=True)))
    assert one.most == one.room == 1.0
    (one,) = found(of(point("a", 2.0)), target(declared(other_work=True, bound="0.9")))
    assert one.most == 0.9


def test_what_changes_no_launch_was_not_tried() -> None:
    same = of(point("a", 4.0), point("b", 2.0))
    (one,) = found(same, target(declared(relaunches=True)))
    assert one.price is None and one.reason.startswith("the same kernels ran")
    other = of(point("a", 4.0), point("b", 2.0, grid="2,1,1"))
    assert found(other, target(declared(relaunches=True)))[0].price


def test_a_trial_that_failed_is_the_reason() -> None:
    failed = point("b", 2.0) | {"status": "error", "reason": "does not compile"}
    (one,) = found(of(point("a", 4.0), failed), target(declared()))
    assert (one.price, one.reason) == (None, "does not compile")
    (one,) = found(of(point("a", 4.0)), target(declared()))
    assert one.reason == "points with `side: b` in the sweep"


def test_what_saved_most_comes_first_and_what_cost_last() -> None:
    untried = declared(choice="", how="think")
    cost = of(point("a", 4.0), point("b", 5.0))
    assert [o.saved for o in found(cost, target(declared(), untried))] == [0, 0]
    assert [o.price is None for o in found(cost, target(declared(), untried))] == [True, False]
    won = of(point("a", 4.0), point("b", 3.0))
    assert [o.price is None for o in found(won, target(untried, declared()))] == [False, True]


def test_a_point_that_could_bring_more_and_was_not_tried_stands_beside_the_trial() -> None:
    """A trial where little is to be had says nothing of a point with more room."""
    tried = [point("a", 1.25), point("b", 1.2)]
    more, less = (
        point("a", cold) | {"point": f"t/a_{name}", "params": {"side": "a", "size": name}}
        for name, cold in (("more", 4.0), ("less", 1.1))
    )
    (one,) = found(of(*tried, more, less), target(declared()))
    assert one.point == "t/a" and one.most == pytest.approx(0.2)
    assert one.untried == ("t/a_more", pytest.approx(0.75))
    assert brought(one).endswith("; not tried at `a_more`, at most 75 %")
    (one,) = found(of(*tried, less), target(declared()))
    assert one.untried is None and "not tried" not in brought(one)


def test_a_longer_plan_is_paid_for_by_launches() -> None:
    evidence = of(point("a", 4.0), point("b", 2.0, plan_us=99.0))
    (one,) = found(evidence, target(declared()))
    assert one.layers is None  # plans that were timed apart say nothing of each other
    for plan, spread, layers in ((15.0, 0.001, 3), (15.0, 0.3, None), (5.0, 0.001, None)):
        (one,) = found(
            evidence | {"pairs": [turns(4.0, 2.0, plans=(10.0, plan), spread=spread)]},
            target(declared()),
        )
        assert one.layers == layers  # 5 µs longer, 2 µs saved by each


def test_the_room_of_a_step_is_that_of_the_process_that_timed_it() -> None:
    """Another process's host took 5 µs for the call, and from that 3 µs could not be half."""
    points = point("a", 4.0, time_hot_us=3.0, host_launch_us=5.0), point("b", 4.0)
    pair = turns(4.0, 4.0, hosts=(12.0, 1.0), hots=(3.0, 4.0))
    (one,) = found(of(*points) | {"pairs": [pair]}, target(declared(metric="step_us")))
    assert one.price and one.price.change == pytest.approx(4 / 12 - 1)
    assert one.room == pytest.approx(0.75)
    assert one.facts["host_launch_us"] == 12.0
    assert _row(one, "t", None)["shown"].endswith(" (times of the pair)")
    assert "on the pair's host" in brought(one)
    (apart,) = found(of(*points), target(declared(metric="step_us")))
    assert "pair" not in _row(apart, "t", None)["shown"]


def test_what_is_not_known_meets_no_condition() -> None:
    unknown = Scope({"side": "a", "busiest_pct": 41.7}, frozenset({"waves"}))
    for where in ("waves >= 0", "waves < 0", "not waves >= 0"):
        assert not found(of(point("a", 4.0)), target(declared(where=where)))
    assert said(declared(shown="{busiest_pct}, {waves}"), unknown) == "42 %, –"


def test_a_symbol_is_found_in_the_index_or_is_its_file() -> None:
    functions = {"data/include/flashinfer/x.cuh": [[7, 9, "f"]]}
    api = {"python": {"symbol": "a.b", "file": "a.py", "line": 3}}
    index = {"functions": functions, "targets": {"t": {"api": api}}}
    assert place(Symbol("f", "x.cuh"), "t", index) == "x.cuh:7"
    assert (
        place(Symbol("g", "x.cuh"), "t", index) == place(Symbol("f", "x.cuh"), "t", None) == "x.cuh"
    )
    assert place(Symbol("b", "a.py"), "t", index) == "a.py:3"


def test_no_gain_of_the_shipped_evidence_is_above_its_room(finished: Any) -> None:
    shipped = stored.folder(finished.outputs / "results")
    every = [one for results in shipped.values() for one in found(results)]
    assert every
    for one in every:
        assert 0 <= one.most <= one.room <= 1, one
        assert one.price or one.reason, f"{one.opportunity.what}: neither a trial nor a reason"
        for price in one.prices:
            least = -price.change if price.high is None else -price.high
            assert least <= one.room, f"{price.base_point}: a gain above the room"
        if one.price and one.price.high is not None:
            assert -one.price.high <= one.most, f"{one.opportunity.what}: above its bound"


def test_each_kernel_with_counters_has_a_table_of_lines(finished: Any) -> None:
    index = read_json(DEFAULT / "source_index.json.xz")
    for target, results in stored.folder(finished.outputs / "results").items():
        for row in rows(results, index):
            # of a header that the index of that day does not have, the file alone is named
            header, _, line = row["source"].rpartition(":")
            indexed = any(name.endswith(f"/flashinfer/{line}") for name in index["functions"])
            assert line.isdigit() or not (header or indexed), f"{target}: {row['what']} has no line"
            assert "nan" not in " ".join(map(str, row.values())).lower().split(), row


def test_a_parameter_that_a_recording_lacks_hides_no_advice(finished: Any) -> None:
    """The recorded points are of a time before `kv`, whose default the conditions ask for."""
    folder = finished.outputs / "results"
    recorded = read_json(folder / "prefill_results.json")
    assert not any("kv" in point["params"] for point in recorded["points"])
    shipped = stored.folder(folder)
    decode, prefill = (
        {one.opportunity.what: one for one in found(shipped[name])}
        for name in ("decode", "prefill")
    )
    assert "fa3 instead of fa2" in list(prefill)[:2]  # those that the final report names
    assert prefill["fa3 instead of fa2"].facts["kv"] == "same"
    assert prefill["fa3 instead of fa2"].saved > 0.4
    # where it can bring what it promises
    assert prefill["queries, keys and values of 8 bits"].facts["limiter"] == "tensor"
    assert decode["a KV cache of 8 bits"].facts["sol_dram_pct"] >= 80
