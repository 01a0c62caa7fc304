"""A run: which points are measured, what its records say, and how it ends."""

from types import SimpleNamespace

import pytest
from conftest import some
from fake_device import Device, as_written, fake_target, made, ran

from ncuflow.run import prepare, timing
from ncuflow.run.prepare import Record, Run, _worst
from ncuflow.run.visits import run_points, shuffled
from ncuflow.target.launch import NotHereError

NAN = float("nan")


# --- statuses ---------------------------------------------------------------------------------


def test_a_right_point_is_timed_and_its_record_is_complete() -> None:
    status, (record,) = ran(Device())
    assert status == 0
    assert record["point"] == "fake/p1" and record["target"] == "fake"
    assert record["params"] == {"n": 1}
    assert (record["status"], record["reason"]) == ("ok", None)
    assert record["check"] == {"rel_l2": 0.0, "max_abs": 0.0, "tolerance": 0.01}
    assert record["work"] == {"flops": 1, "bytes": 2, "convention": "none"}
    assert record["info"] == {"split_kv": False, "seed": 7}
    assert record["peak_memory_bytes"] == 1234
    assert record["clocks"] is None
    assert record["timing"].keys() == {"cold", "hot", "sustained", "host", "plan"}
    assert record["timing"]["cold"]["floor_us"] == 2.5
    assert record["order"] == {"run": 0, "positions": [0, 0, 0]}


@pytest.mark.parametrize("mode", ["time", "trace", "check"])
def test_a_wrong_point_is_refused_and_the_next_one_follows(mode: str) -> None:
    device = Device()
    status, (wrong, right) = ran(device, mode, n=2, p1=2.5)
    assert status == 3
    assert wrong["status"] == "wrong" and wrong["timing"] is None
    assert wrong["reason"] == "relative L2 error 0.25 is above 0.01"
    assert wrong["check"]["rel_l2"] == 0.25 and wrong["check"]["max_abs"] == 0.5
    assert right["status"] == "ok"
    first = device.log[: device.log.index("release")]
    assert not {"start", "flush", "cold 3"} & set(first)


@pytest.mark.parametrize("output", [NAN, float("inf")])
def test_an_output_that_is_not_finite_never_passes(output: float) -> None:
    status, (record,) = ran(Device(), p1=output)
    assert (status, record["status"]) == (3, "wrong")
    assert record["reason"] == "the output is not finite everywhere"
    assert record["check"]["rel_l2"] is None and record["check"]["max_abs"] is None


def test_an_output_that_was_not_written_everywhere_is_wrong() -> None:
    device = Device()
    device.unwritten = True
    _, (record,) = ran(device)
    assert record["status"] == "wrong" and record["timing"] is None


def test_a_skipped_point_keeps_its_reason_and_is_no_failure() -> None:
    device = Device()
    status, (record,) = ran(device, p1="skip")
    assert status == 0 and device.log == []
    assert (record["status"], record["reason"]) == ("skipped", "not here")


def test_a_point_that_turns_out_not_to_be_for_here_is_skipped() -> None:
    status, (other, good) = ran(Device(), n=2, p1=NotHereError("its module is not built in 120 s"))
    assert (status, good["status"]) == (0, "ok")
    assert (other["status"], other["timing"]) == ("skipped", None)
    assert other["reason"] == "its module is not built in 120 s"


def test_an_error_is_of_one_point_and_its_reason_one_line() -> None:
    error = RuntimeError("no kernel image\nCompile with TORCH_USE_CUDA_DSA")
    status, (bad, good) = ran(Device(), n=2, p1=error)
    assert status == 3
    assert (bad["status"], bad["reason"]) == ("error", "RuntimeError: no kernel image")
    assert good["status"] == "ok"


def test_a_gpu_lost_in_a_later_round_leaves_what_was_measured() -> None:
    device, visits = Device(), []

    def lost_at_the_second_visit() -> None:
        if device.log[-1] == "run" and device.log[-2] == "release":  # the warm-up of a visit
            visits.append(1)
        if len(visits) == 2:
            device.answers = False
            raise RuntimeError("illegal memory access")

    status, records = ran(device, n=3, p3=lost_at_the_second_visit)
    found = {r["point"]: r for r in records}
    assert status == 4 and found["fake/p3"]["status"] == "error"
    for point in ("fake/p1", "fake/p2"):
        assert found[point]["status"] == "ok" and found[point]["timing"]["cold"]["n"] >= 5
        assert 1 <= len(found[point]["order"]["positions"]) <= 2


def test_rounds_have_orders_of_their_own_and_another_run_others() -> None:
    points = made(12)
    turns = [(run, number) for run in (0, 1) for number in range(3)]
    orders = [tuple(p.id for p in shuffled(points, *turn)) for turn in turns]
    assert len(set(orders)) == 6
    assert all(sorted(order) == sorted(p.id for p in points) for order in orders)
    assert orders[0] == tuple(p.id for p in shuffled(points, 0, 0))


def test_a_point_is_checked_once_and_measured_in_every_round() -> None:
    device = Device()
    _, records = ran(device, n=2)
    assert device.log.count("poison") == 2
    assert device.log.count("release") == 2 * timing.ROUNDS
    for record in records:
        assert record["check"]["rel_l2"] == 0.0
        assert record["timing"]["cold"]["n"] == timing.REPEATS


def test_each_visit_of_a_timed_point_is_told() -> None:
    device, told = Device(), []
    run = Run(device, fake_target(device), "time", visited=told.append)
    assert run_points(run, made(2), lambda record: None) == 0
    assert sorted(told) == ["fake/p1"] * timing.ROUNDS + ["fake/p2"] * timing.ROUNDS


@pytest.mark.parametrize("moment", ["poison", "cold"])
def test_a_compiler_after_the_warm_up_is_an_error(moment: str) -> None:
    device, watch = Device(), SimpleNamespace(started=3)
    run = Run(device, fake_target(device), "time", watch=watch)
    records: list[Record] = []
    call = getattr(device, moment)
    setattr(device, moment, lambda *given: (setattr(watch, "started", 4), call(*given))[1])
    assert run_points(run, made(1), records.append) == 3
    (record,) = as_written(records)
    assert record["status"] == "error" and record["timing"] is None
    assert "ninja or nvcc ran after the warm-up" in record["reason"]


# --- order ------------------------------------------------------------------------------------


def test_the_checked_run_is_warm_poisoned_and_restored_first() -> None:
    device = Device()
    ran(device, "check")
    assert device.log == ["run", "run", "poison", "reset", "run", "release"]


def test_inputs_are_restored_before_each_timed_series() -> None:
    device = Device()
    ran(device)
    timed = [place for place, entry in enumerate(device.log) if entry.startswith(("cold", "hot"))]
    for place in some(timed):
        assert "reset" in device.log[place - 2 : place], place


def test_trace_opens_the_profiler_around_the_launches_only() -> None:
    device = Device()
    run = Run(device, fake_target(device), "trace", repeats=2)
    run_points(run, made(1), lambda record: None)
    traced = device.log[device.log.index("start") :]
    launch = ["flush", "<fake/p1", "run", "fake/p1>"]
    plan = ["<plan:fake/p1", "plan", "plan:fake/p1>"]
    assert traced == ["start", *plan, *launch, *launch, "stop", "release"]


def test_trace_without_flush_leaves_the_cache_alone() -> None:
    device = Device()
    run = Run(device, fake_target(device), "trace", repeats=1, flush=False)
    run_points(run, made(1), lambda record: None)
    assert not {"flush", "settle"} & set(device.log) and "<fake/p1" in device.log


def test_an_unchecked_trace_runs_no_reference_and_still_warms_up_and_restores() -> None:
    device = Device()
    run = Run(device, fake_target(device, p1=2.5), "trace", repeats=1, checked=False)
    records: list[Record] = []
    assert run_points(run, made(1), records.append) == 0
    assert device.log[: device.log.index("start")] == ["run", "run", "reset", "settle"]
    assert as_written(records)[0]["check"] is None


def test_a_trace_takes_the_points_in_the_order_it_is_told_and_those_after_a_lost_gpu_are_lost():
    device = Device()
    device.answers = False
    run = Run(device, fake_target(device, p2=RuntimeError("lost")), "trace", repeats=1)
    run.first = lambda left: left[-1]
    records: list[Record] = []
    assert run_points(run, made(4), records.append) == 4
    assert [record.point for record in records] == ["fake/p4", "fake/p3", "fake/p2"]
    assert [record.point for record in run.rest] == ["fake/p1"]


# --- planted faults ---------------------------------------------------------------------------


def test_a_planted_delay_spins_after_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 0.2, 0.4, 0.6])
    monkeypatch.setattr(prepare.time, "perf_counter", lambda: next(clock))
    device = Device()
    launch = fake_target(device).prepare({"n": 1})
    faults = prepare.planted_faults({prepare.VARIABLE: "delay:fake/*:500000"})
    prepare.plant(launch, "fake/p1", faults).run()
    assert device.log == ["run"] and next(clock, None) is None


def test_a_planted_copy_copies_what_the_launch_wrote() -> None:
    class Buffer:
        copies = 0

        def clone(self):
            return self

        def copy_(self, other):
            Buffer.copies += 1

    launch = fake_target(Device()).prepare({"n": 1})
    launch.buffers = lambda: (Buffer(), Buffer())
    faulty = prepare.plant(launch, "fake/p1", prepare.planted_faults({prepare.VARIABLE: "copy:*"}))
    faulty.run()
    faulty.run()
    assert Buffer.copies == 4


@pytest.mark.parametrize("text", ["slow:*", "wrong", "wrong:", "delay:*", "delay:*:much"])
def test_a_fault_that_is_not_understood_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="NCUFLOW_FAULT"):
        prepare.planted_faults({prepare.VARIABLE: text})


def test_a_planted_break_is_one_of_a_kernel() -> None:
    torch = pytest.importorskip("torch")
    device = Device()
    fault = prepare.planted_faults({prepare.VARIABLE: "break:fake/p1"})
    launch = prepare.plant(fake_target(device).prepare({"n": 1}), "fake/p1", fault)
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(RuntimeError, match="single nonzero value"),
    ):
        zeros = torch.zeros
        patch.setattr(torch, "zeros", lambda n, device: zeros(n))
        launch.run()
    assert device.log == ["run"]


def test_several_faults_and_none() -> None:
    assert prepare.planted_faults({}) == []
    found = prepare.planted_faults({prepare.VARIABLE: "wrong:a/*;delay:b:20"})
    assert found == [prepare.Fault("wrong", "a/*"), prepare.Fault("delay", "b", 20.0)]


@pytest.mark.parametrize("strange", [float("nan"), float("inf")])
def test_an_error_that_is_no_number_anywhere_has_no_largest(strange: float) -> None:
    assert _worst([0.5, 0.25]) == 0.5
    assert _worst([0.5, strange, 0.25]) is None and _worst([]) is None
