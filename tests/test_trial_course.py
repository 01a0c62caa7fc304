"""The course of a trial, on sides that are no processes and a device that measures nothing."""

import json
import os
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from fake_device import Device, fake_target, made

from ncuflow.experiments.text import case_lines
from ncuflow.race.measure import HOST_LOOKS, Sides, checked, plan_curve, timed
from ncuflow.race.record import MeasuredPoint
from ncuflow.race.rounds import LOOKS
from ncuflow.race.sides import BaseError, LostError, SideError
from ncuflow.race.worker import LAUNCHES, SEEDS, Worker, first_error
from ncuflow.run import timing
from ncuflow.run.timing import Burst


class Paced(Device):
    """A device on which a launch takes so long, a little more or less."""

    def __init__(self, us: float = 100.0, name: str = "") -> None:
        super().__init__()
        self.us, self.name = us, name
        self.random = random.Random(name)

    def cold(self, run: Callable[[], None], n: int) -> Burst:
        run()
        jittered = self.us * self.random.gauss(1, 0.001)
        return Burst([jittered] * n, True, 1900.0, self.throttle())


class Local:
    """A side in this process: what it is asked and answers goes through JSON, as on a pipe."""

    def __init__(
        self, log: list[str], name: str, us: float = 100.0, plan: bool = False, **kinds: Any
    ) -> None:
        self.log, self.name = log, name
        self.device = Paced(us, name)
        self.target = fake_target(self.device, **kinds)
        prepare = self.target.prepare
        planned = (lambda: None) if plan else None
        self.target.prepare = lambda p, seed=0: replace(prepare(p, seed), plan=planned)
        self.target.edges = lambda p: [{"n": 10 * p["n"]}]
        self.worker = Worker(self.target, lambda: self.device)
        self.lost_at: tuple[str, str] | None = None

    def ask(self, do: str, limit_s: float, **words: Any) -> dict[str, Any]:
        point = words.get("point", {}).get("id", "")
        self.log.append(f"{self.name} {do} {point}".strip())
        if self.lost_at == (do, point):
            raise LostError("did not end within 5 s, and was stopped")
        request = json.dumps({"do": do, **words})
        answer: dict[str, Any] = json.loads(json.dumps(self.worker.answer(json.loads(request))))
        if "error" in answer:
            raise (SideError if answer["alive"] else LostError)(answer["error"])
        return answer


class Both:
    """A process that has both FlashInfers: its calls take so long by the side, µs."""

    def __init__(
        self, log: list[str], plans: dict[str, float], calls: dict[str, float], jitter: float
    ):
        self.log, self.table = log, {"call": calls, "plan": plans}
        self.chance, self.jitter = random.Random(2), jitter
        self.lost_at = ""

    def ask(self, do: str, limit_s: float, **words: Any) -> dict[str, Any]:
        self.log.append(f"both {do} {words.get('name', '')}".strip())
        if do == self.lost_at:
            raise LostError("its process ended with signal 9")
        if do != "turns":
            return {"status": "ok"}
        return {
            kind: {name: [us * self.chance.gauss(1, self.jitter)] * 9 for name, us in times.items()}
            for kind, times in self.table.items()
        }


class Trial:
    def __init__(
        self,
        change: dict[str, Any] | None = None,
        base: dict[str, Any] | None = None,
        host: bool = False,
        both: tuple[dict[str, float], dict[str, float], float] | None = None,
    ):
        self.log: list[str] = []
        self.base = Local(self.log, "base", **(base or {}))
        self.change = Local(self.log, "change", **(change or {}))
        self.control = Local(self.log, "control", **(base or {}))
        core = max(os.sched_getaffinity(0)) if host else None
        self.both = Both(self.log, *both) if both else None
        self.sides = Sides(self.base, self.change, self.control, 5.0, core, self.both)

    def run(self, n: int = 1, effect: float = 0.02) -> list[MeasuredPoint]:
        points = made(n)
        trials = checked(self.sides, self.base.target, points, self.log.append)
        timed(self.sides, points, trials, effect, lambda line: None)
        return trials


@pytest.mark.parametrize(
    ("us", "outcome"), [(100.0, "same"), (101.0, "same"), (110.0, "slower"), (90.0, "faster")]
)
def test_a_right_change_is_timed_and_judged(us: float, outcome: str) -> None:
    (found,) = Trial({"us": us}).run()
    assert (found.outcome, found.reason) == (outcome, None)
    assert found.timing is not None
    assert found.timing.change.low < us / 100 - 1 < found.timing.change.high
    assert found.timing.noise.low < 0 < found.timing.noise.high
    assert found.timing.base_us == pytest.approx(100, rel=0.01)
    assert found.timing.rounds == LOOKS[0]
    assert [case.id for case in found.cases] == ["fake/p1", "fake/p10"]


def test_base_and_change_are_timed_in_turns_there_and_back() -> None:
    trial = Trial()
    trial.run()
    bursts = [line.split()[0] for line in trial.log if line.endswith(" burst")]
    there = ["base", "change", "control"]
    assert bursts[:12] == [*there, *there[::-1], *there[::-1], *there]
    assert trial.base.device.log.count("settle") == 2 * LOOKS[0]


@pytest.mark.parametrize(
    ("change", "control", "outcome"),
    [(5.6, 5.0, "same"), (4.9, 4.4, "same"), (6.1, 5.0, "slower"), (4.0, 5.1, "faster")],
)
def test_processes_of_short_kernels_lie_apart_for_good(change, control, outcome) -> None:
    """By up to 0.7 µs on an H200, at kernels of 5 µs and of 14 µs: 12 % of one, and no difference of either."""
    trial = Trial()
    for side, us in ((trial.base, 5.0), (trial.change, change), (trial.control, control)):
        side.device.us = us
    (found,) = trial.run()
    assert found.outcome == outcome
    assert found.timing is not None and found.timing.base_us == pytest.approx(5, rel=0.01)


@pytest.fixture
def host_times(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Host times of sides by name, µs, each a little more or less; without a plan() where that is None."""

    def timed(
        plans: dict[str, float] | None, calls: dict[str, float], jitter: float = 0.004
    ) -> None:
        chance = random.Random(0)

        def of(table: dict[str, float]) -> Callable[..., list[float]]:
            return lambda device, what, n: [table[device.name] * chance.gauss(1, jitter)] * n

        monkeypatch.setattr(timing, "call_times", of(calls))
        monkeypatch.setattr(timing, "plan_times", of(plans or {}))

    return timed


@pytest.mark.parametrize(
    ("plan", "control", "outcome", "apart"),
    [
        (100.0, 100.0, "same", "same"),
        (101.0, 100.0, "same", "same"),
        (105.0, 100.0, "slower", "same"),  # two processes of the base may differ by as much
        (120.0, 100.0, "slower", "slower"),
        (60.0, 100.0, "faster", "faster"),
        (105.0, 107.0, "undecided", "same"),
        (115.0, 118.0, "undecided", "undecided"),
    ],
)
def test_host_times_are_judged_in_the_same_turns(host_times, plan, control, outcome, apart) -> None:
    calls = dict.fromkeys(("base", "change", "control"), 20.0)
    plans = {"base": 100.0, "change": plan, "control": control}
    host_times(plans, calls)
    for both, expected in (((plans, calls, 0.004), outcome), (None, apart)):
        trial = Trial(host=True, change={"plan": True}, base={"plan": True}, both=both)
        (found,) = trial.run()
        assert found.outcome == "same" and found.timing is not None
        assert found.call is not None and found.call.outcome == "same"
        assert found.plan is not None and found.plan.outcome == expected
        assert found.plan.effect == (0.03 if both else 0.1)
        assert found.plan.base_us == pytest.approx(100, rel=0.01)
        assert found.plan.change.low < plan / 100 - 1 < found.plan.change.high
        if expected == "undecided":  # the host alone goes on, and costs the GPU nothing
            assert found.plan.rounds == HOST_LOOKS[-1] > found.timing.rounds


def test_short_calls_differ_by_less_than_the_host_can_tell(host_times) -> None:
    calls = {"base": 5.0, "change": 5.2, "control": 5.0}
    host_times(None, calls)
    (found,) = Trial(host=True, both=(calls, calls, 0.004)).run()
    assert found.call is not None and found.call.outcome == "same"
    assert found.call.change.estimate > 0.03, found.call


def test_each_process_follows_every_other_one_on_the_core_and_never_itself(host_times) -> None:
    calls = dict.fromkeys(("base", "change", "control"), 20.0)
    host_times(calls, calls)
    trial = Trial(host=True)
    trial.run()
    hosts = [line.split()[0] for line in trial.log if line.endswith(" host")]
    follow = [pair for pair in pairwise(hosts[:12]) if pair[0] != pair[1]]
    assert len({*follow}) == 6 and len(follow) == 11
    assert [hosts[:12].count(name) for name in calls] == [4, 4, 4]
    assert hosts[12:24] == hosts[:12][::-1]


@pytest.mark.parametrize("lost_at", ["prepare", "turns"])
def test_what_becomes_of_the_process_that_has_both_says_nothing_of_the_change(host_times, lost_at):
    same = dict.fromkeys(("base", "change", "control"), 20.0)
    host_times(same, same)
    trial = Trial(host=True, both=(same, same, 0.0))
    assert trial.both is not None
    trial.both.lost_at = lost_at
    (found,) = trial.run()
    assert found.outcome == "same"
    # Before it is timed there, processes of their own serve.
    assert (found.call is not None) == (lost_at == "prepare")


def test_ten_of_ten_controls_are_the_same_and_nine_of_ten_planted_5_percent_are_found(host_times):
    """Each trial with noise of its own, of 2 % of a median, and with launches that lie up to 1 % apart for good."""
    calls, found = dict.fromkeys(("base", "change", "control"), 20.0), dict[float, list[str]]()
    chance = random.Random(1)
    for planted in (1.0, 1.05):
        for _ in range(10):
            apart = [100.0 * chance.uniform(0.995, 1.005) for _ in range(3)]
            plans = {"base": apart[0], "change": planted * apart[1], "control": apart[2]}
            (one,) = Trial(host=True, both=(plans, calls, 0.02)).run()
            assert one.call is not None and one.plan is not None
            found.setdefault(planted, []).append(one.plan.outcome)
            assert one.call.outcome == "same"
    assert found[1.0] == ["same"] * 10
    assert found[1.05].count("slower") >= 9


def test_processes_that_lie_apart_as_on_an_h200_are_called_the_same(host_times) -> None:
    """Ten upgrades to itself, each of processes that lie up to 7 % apart for good."""
    chance = random.Random(3)
    for _ in range(10):
        apart = [20.0 * chance.uniform(0.965, 1.035) for _ in range(3)]
        calls = dict(zip(("base", "change", "control"), apart, strict=True))
        host_times(calls, calls, 0.02)
        (one,) = Trial(host=True).run()
        assert one.call is not None and one.call.outcome in ("same", "undecided")


def test_what_the_host_does_beside_is_no_time_of_a_call(host_times, monkeypatch) -> None:
    """Two of three calls are held up, on one side by more than on the others."""
    same = dict.fromkeys(("base", "change", "control"), 20.0)
    host_times(same, same)
    calls, late = timing.call_times, {"base": 1.1, "change": 1.6, "control": 1.2}

    def held_up(device: Any, run: Callable[[], None], n: int) -> list[float]:
        found = calls(device, run, n)
        return [t * late[device.name] if i % 3 else t for i, t in enumerate(found)]

    monkeypatch.setattr(timing, "call_times", held_up)
    (found,) = Trial(host=True).run()
    assert found.call is not None and found.call.outcome == "same"


def test_how_plan_grows_is_a_slope_with_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """The base's plan() grows as the square root, the change's as the number of sequences."""
    trial, chance = Trial(host=True, change={"plan": True}, base={"plan": True}), random.Random(0)
    power = {"base": 0.5, "control": 0.5, "change": 1.0}

    def plan_times(device: Any, plan: Callable[[], None], n: int) -> list[float]:
        return [100.0 * plan() ** power[device.name] * chance.gauss(1, 0.01)] * n  # type: ignore[func-returns-value]

    monkeypatch.setattr(timing, "plan_times", plan_times)
    monkeypatch.setattr(timing, "call_times", lambda device, run, n: [1.0] * n)
    for side in (trial.base, trial.change, trial.control):
        prepare = side.target.prepare
        side.target.prepare = lambda p, seed=0, prepare=prepare: replace(
            prepare(p, seed), plan=lambda: p["n"]
        )
    points = dict(zip((1, 2, 3), made(3), strict=True))
    found = plan_curve(trial.sides, points)
    assert found is not None and [one.batch for one in found.points] == [1, 2, 3]
    assert found.base.low < 0.5 < found.base.high < found.change.low < 1.0 < found.change.high
    last = found.points[-1].timing
    assert last.change.estimate == pytest.approx(3**0.5 - 1, abs=0.02)
    assert last.noise.low < 0 < last.noise.high
    plain = Trial(host=True)
    assert plan_curve(plain.sides, {1: made(1)[0]}) is None


def test_without_plan_there_is_none_and_without_a_core_no_host_time(host_times: Any) -> None:
    host_times(None, dict.fromkeys(("base", "change", "control"), 20.0))
    (found,) = Trial(host=True).run()
    assert found.call is not None and found.plan is None
    (found,) = Trial().run()
    assert found.call is None and found.plan is None


@pytest.mark.parametrize("point", ["p1", "p10"])
def test_a_wrong_change_is_never_timed_and_names_point_and_element(point: str) -> None:
    trial = Trial({point: 2.5})
    (found,) = trial.run()
    assert found.outcome == "wrong" and found.timing is None
    assert found.reason == f"fake/{point}: relative L2 error 0.25 is above 0.01"
    bad = next(case for case in found.cases if case.status == "wrong")
    assert bad.worst is not None and bad.seed == SEEDS[0]
    assert (bad.worst.index, bad.worst.got, bad.worst.expected) == ([0], 2.5, 2.0)
    assert not any("burst" in line or "open" in line for line in trial.log)


def test_one_wrong_point_keeps_all_from_being_timed() -> None:
    trial = Trial({"p2": 2.5})
    right, wrong = trial.run(2)
    assert (right.outcome, wrong.outcome) == ("unchecked", "wrong")
    assert right.reason == "not timed: the change is wrong at another point"
    assert not any("burst" in line for line in trial.log)


def test_a_result_that_was_kept_from_another_call_is_caught() -> None:
    """Each input is prepared twice with other seeds, and the first call's result is wrong for the second."""
    trial = Trial()
    prepare = trial.change.target.prepare
    first: list[float] = []

    def keeping(p: dict[str, Any], seed: int) -> Any:
        launch = prepare(p, seed)
        value = 2.0 + seed
        first.append(value)
        launch.output, launch.reference = lambda: (first[0],), lambda: (value,)
        return launch

    trial.change.target.prepare = keeping
    (found,) = trial.run()
    assert found.outcome == "wrong" and found.cases[0].seed == 1
    assert trial.change.device.log.count("poison") >= 2


def test_a_launch_on_another_stream_than_the_callers_is_wrong_where_the_base_is_right() -> None:
    trial = Trial()
    trial.change.device.on_side_stream = lambda launch: (2.5,)
    (found,) = trial.run()
    assert found.outcome == "wrong" and found.timing is None
    assert "launched from a stream of its own: relative L2 error 0.25" in str(found.reason)
    bad = next(case for case in found.cases if case.status == "wrong")
    assert bad.worst is not None and (bad.worst.got, bad.worst.expected) == (2.5, 2.0)
    trial = Trial()
    for side in (trial.change, trial.base):
        side.device.on_side_stream = lambda launch: (2.5,)
    (found,) = trial.run()
    assert found.outcome == "same" and [case.status for case in found.cases] == ["ok", "ok"]


def extreme(side: Local, results: dict[str, float]) -> None:
    """Give launches of a side inputs after which they return these results; the reference stays 2."""
    prepare = side.target.prepare

    def prepared(p: dict[str, Any], seed: int) -> Any:
        launch = prepare(p, seed)
        got = {"now": launch.output()}
        launch.output = lambda: got["now"]
        put = partial(dict.__setitem__, got, "now")
        launch.extremes = {what: partial(put, (value,)) for what, value in results.items()}
        return launch

    side.target.prepare = prepared


def test_a_change_that_is_wrong_with_extreme_inputs_is_not_timed() -> None:
    trial = Trial()
    extreme(trial.base, {"an infinity": 2.0, "no token": 2.0})
    extreme(trial.change, {"an infinity": 2.0, "no token": 2.5})
    (found,) = trial.run()
    assert found.outcome == "wrong" and found.timing is None
    assert found.reason == "fake/p1: with no token: relative L2 error 0.25 is above 0.02"
    bad = next(case for case in found.cases if case.status == "wrong")
    assert case_lines(bad) == [
        "fake/p1: wrong: with no token: relative L2 error 0.25 is above 0.02",
        f"  worst element: output 0 at [0]: 2.5, expected 2 (seed {SEEDS[0]})",
    ]
    assert bad.worst is not None
    bad.worst.got = bad.worst.expected = None  # JSON has no infinities
    worst = "  worst element: output 0 at [0]: not finite, expected not finite"
    assert case_lines(bad)[1].startswith(worst)


def test_with_extreme_inputs_only_what_the_base_does_right_is_asked_of_a_change() -> None:
    """One by one: what the base does wrong hides nothing else that the change does."""
    trial = Trial()
    extreme(trial.base, {"an infinity": 3.0, "no token": 2.0})
    extreme(trial.change, {"an infinity": 2.5, "no token": 2.0})
    (found,) = trial.run()
    assert found.outcome == "same" and [case.status for case in found.cases] == ["ok", "ok"]
    trial = Trial()
    extreme(trial.base, {"an infinity": 3.0, "no token": 2.0})
    extreme(trial.change, {"an infinity": 2.5, "no token": 2.5})
    (found,) = trial.run()
    assert found.outcome == "wrong" and "with no token" in str(found.reason)


@pytest.mark.parametrize("who", ["change", "base"])
def test_a_side_that_is_lost_at_extreme_inputs_ends_the_trial(who: str) -> None:
    trial = Trial()
    extreme(trial.change, {"no token": 2.5})
    getattr(trial, who).lost_at = ("side_stream", "fake/p1")
    if who == "base":
        with pytest.raises(BaseError, match="fake/p1: the base: did not end"):
            trial.run()
    else:
        (found,) = trial.run()
        assert found.outcome == "lost" and found.timing is None


def test_what_is_not_written_is_wrong() -> None:
    trial = Trial()
    trial.change.device.unwritten = True
    (found,) = trial.run()
    assert found.outcome == "wrong" and "not finite everywhere" in str(found.reason)


def test_what_the_base_cannot_do_either_is_not_the_changes() -> None:
    trial = Trial({"p10": 2.5}, {"p10": 3.0})
    (found,) = trial.run()
    assert found.outcome == "same"
    assert found.cases[1].status == "skipped"
    assert "the base is no better: relative L2 error 0.5" in str(found.cases[1].reason)
    (found,) = Trial({"p1": 2.5}, {"p1": 3.0}).run()
    assert found.outcome == "skipped" and found.timing is None


def test_an_error_at_a_point_is_the_changes_where_the_base_is_right() -> None:
    (found,) = Trial({"p1": RuntimeError("no kernel image")}).run()
    assert (found.outcome, found.timing) == ("error", None)
    assert "no kernel image" in str(found.reason)


def test_a_point_that_the_gpu_cannot_run_is_skipped_and_others_are_timed() -> None:
    first, second = Trial({"p1": "skip"}, {"p1": "skip"}).run(2)
    assert (first.outcome, first.reason) == ("skipped", "not here")
    assert second.outcome == "same"


def test_a_change_that_hangs_costs_itself_alone_and_is_named() -> None:
    trial = Trial()
    trial.change.lost_at = ("check", "fake/p10")
    lost, after = trial.run(2)
    why = "fake/p10: did not end within 5 s, and was stopped"
    assert (lost.outcome, lost.reason) == ("lost", why)
    assert (after.outcome, after.reason) == ("unchecked", "the trial ended at fake/p10")
    assert not any("base" in line for line in trial.log)


def test_a_change_that_breaks_the_gpus_context_is_lost() -> None:
    trial = Trial({"p1": RuntimeError("illegal memory access")})
    trial.change.device.answers = False
    (found,) = trial.run()
    assert found.outcome == "lost" and "illegal memory access" in str(found.reason)


def test_a_change_that_hangs_while_it_is_timed_leaves_what_was_measured() -> None:
    trial = Trial()
    trial.change.lost_at = ("open", "fake/p2")
    first, second, third = trial.run(3)
    assert (first.outcome, second.outcome, third.outcome) == ("same", "lost", "unchecked")
    assert third.reason == "the trial ended at fake/p2"


@pytest.mark.parametrize("what", [("open", "fake/p1"), ("burst", "")])
@pytest.mark.parametrize("side", ["base", "control"])
def test_a_base_that_fails_is_no_fault_of_the_change(side: str, what: tuple[str, str]) -> None:
    trial = Trial()
    getattr(trial, side).lost_at = what
    with pytest.raises(BaseError, match="the base: did not end"):
        trial.run()


def test_an_input_of_two_points_is_checked_once() -> None:
    trial = Trial()
    trial.change.target.edges = trial.base.target.edges = lambda p: [{"n": 9}, dict(p)]
    first, second = trial.run(2)
    assert [case.id for case in first.cases] == ["fake/p1", "fake/p9"]
    assert [case.id for case in second.cases] == ["fake/p2", "fake/p9"]
    assert trial.log.count("change check fake/p9") == 1


def test_a_throttled_burst_is_taken_again_and_counted_where_it_stays_so() -> None:
    trial = Trial()
    cap = ("sw_power_cap",)
    trial.base.device.throttled = [(), cap]  # the first is of launches that say how long one takes
    (found,) = trial.run()
    assert found.timing is not None and found.timing.throttled == 0
    trial = Trial()
    trial.base.device.throttled = [(), *[cap] * (1 + timing.RETAKES)]
    (found,) = trial.run()
    assert found.timing is not None and found.timing.throttled == 1


def test_a_burst_holds_as_many_launches_as_its_time_allows() -> None:
    for us, n in ((100.0, LAUNCHES), (4500.0, 4), (1e5, 3)):
        side = Local([], "base", us)
        side.ask("open", 1.0, point=made(1)[0].as_dict())
        assert len(side.ask("burst", 1.0)["times"]) == n


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('/p/decode.cuh(123): error: identifier "x" is undefined', ("/p/decode.cuh", 123, 'identifier "x" is undefined')),
        ("/p/a.cu(7): catastrophic error: cannot open source file", ("/p/a.cu", 7, "cannot open source file")),
        ("/p/a.h:12:5: error: expected ';' before '}' token", ("/p/a.h", 12, "expected ';' before '}' token")),
        ("/p/a.h:1:10: fatal error: no.h: No such file or directory", ("/p/a.h", 1, "no.h: No such file or directory")),
        ("/p/a.cu(7): error #20: it is undefined", ("/p/a.cu", 7, "it is undefined")),
    ],
)  # fmt: skip
def test_the_first_error_of_a_compiler_has_file_and_line(line, expected):
    before = ["[1/3] nvcc -Werror -c /p/error.cu", "FAILED: x.o", "/p/a.h(3): warning: error-prone"]
    found = first_error([*before, line, "/p/b.cu(9): error: second"])
    assert found is not None
    assert (found.file, found.line, found.message) == expected


def test_a_build_that_names_no_place_has_no_first_error() -> None:
    assert first_error(["ninja: build stopped: subcommand failed.", "1 error detected"]) is None
