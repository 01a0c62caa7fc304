"""Why a change is faster or slower: what is counted of both sides, and what is made of it."""

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trial_data
from conftest import ROOT, some
from fake_race import FAKE
from test_trial_command import Machine, made_machine

from ncuflow.experiments import text, why
from ncuflow.experiments.record import PointTrial, Trial
from ncuflow.experiments.why import ALL, FEW, FIRST
from ncuflow.findings import profiled
from ncuflow.model import Kernel
from ncuflow.pages.html.experiments import rendered
from ncuflow.parsers import ncu
from ncuflow.parsers.chips import CHIPS
from ncuflow.parsers.registry import METRICS, counters
from ncuflow.run.ncu import registry_keys
from ncuflow.sweep.points import Planned
from ncuflow.target.contract import load
from scripts import nvperf

PLANTED = ROOT / "recordings/h200/0.6.18"


@pytest.mark.parametrize("chip", CHIPS)
def test_the_few_counters_take_two_passes(chip: str) -> None:
    occupancy = METRICS["achieved_occupancy_pct"].candidates(chip)[0].names
    asked = dict.fromkeys([*counters(chip, FEW.keys or ()), *occupancy])
    assert nvperf.ChipCounters(chip).passes(asked) <= 2
    assert len(FIRST) <= 11 and set(counters(chip, FIRST)) < set(counters(chip))


def kernels(side: str) -> dict[str, list[Kernel]]:
    """The decode kernels of a recorded capture by point."""
    (path,) = (PLANTED / side / "decode").glob("*/sweep.ncu-rep.xz")
    found: dict[str, list[Kernel]] = {}
    for kernel in profiled.kernels(ncu.read(path)):
        found.setdefault(str(kernel["point"]), []).append(kernel)
    return found


def timed(base_us: float, change_us: float, outcome: Any = "slower") -> PointTrial:
    return PointTrial(
        point="p", outcome=outcome, timing=trial_data.timing(base_us, change_us, 0.01)
    )


@pytest.fixture(scope="module")
def planted() -> tuple[list[Kernel], list[Kernel]]:
    """Kernels of one point before and after a slow-down that was planted."""
    base, change = kernels("baseline"), kernels("planted-slow-downs")
    point = max(base, key=lambda name: us(change[name]) / us(base[name]))
    return base[point], change[point]


def us(side: list[Kernel]) -> float:
    return sum((kernel["duration_ns"] or 0) / 1e3 for kernel in side)


def test_causes_of_a_planted_slow_down_add_up_to_it(planted):
    base, change = planted
    point = timed(us(base), us(change))
    why.note(point, ALL, planted, (None, None))
    assert point.counters is not None and point.counters.tier == "all"
    explained = sum(cause.delta_us or 0 for cause in point.causes)
    assert point.unexplained_us is not None and point.causes
    assert explained + point.unexplained_us == pytest.approx(us(change) - us(base), rel=1e-3)
    with_parts = some(cause for cause in point.causes if cause.parts)
    for cause in with_parts:
        assert sum(p.delta_us for p in cause.parts) == pytest.approx(cause.delta_us, rel=1e-3)


def test_what_is_left_within_the_noise_of_the_base_is_said_to_be_so(planted):
    point = timed(us(planted[0]), us(planted[1]) + 0.1 * us(planted[0]))
    point.timing.noise.high = 0.2
    why.note(point, ALL, planted, (None, None))
    assert point.remainder == "no more than runs of one side differ by"


def test_a_record_of_counters_has_no_value_that_was_not_counted(planted):
    base, change = ([dict(kernel) for kernel in side] for side in planted)
    base[0]["metrics"] = {**base[0]["metrics"], "dram_bytes_read": None}
    point = timed(us(planted[0]), us(planted[1]))
    why.note(point, ALL, (base, change), (None, None))  # type: ignore[arg-type]
    assert point.counters is not None
    assert "dram_bytes_read" not in point.counters.base[0].metrics
    assert point.counters.change[0].metrics["dram_bytes_read"] > 0
    assert point.counters.change[0].stalls and set(point.counters.change[0].metrics) <= set(METRICS)


def test_the_same_time_has_counters_and_no_causes(planted):
    point = timed(100.0, 100.0, "same")
    why.note(point, FEW, planted, (None, None))
    assert point.counters is not None and point.causes == [] and point.unexplained_us is None


def test_a_side_without_a_kernel_says_which(planted: tuple[list[Kernel], list[Kernel]]) -> None:
    point = timed(100.0, 110.0)
    why.note(point, ALL, (planted[0], []), (None, None))
    assert point.counters is None and point.no_counters == "ncu saw no kernel of the change"


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A machine with a profiler that is none, whose reports are read as if they were some."""
    if not (shutil.which("ninja") and shutil.which("c++") and shutil.which("git")):
        pytest.skip("needs ninja, git and a compiler")
    folder = tmp_path_factory.mktemp("profiled")
    found = made_machine(folder)
    with (folder / "parsers/ncu.py").open("a") as reader:
        reader.write((FAKE / "reports.py").read_text())
    program = folder / "ncu"
    program.write_text(f"#!{sys.executable}\n{(FAKE / 'profiler.py').read_text()}")
    program.chmod(0o755)
    yield found


def tried(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, change: Path, *words: str
) -> tuple[int, str, Trial]:
    monkeypatch.setenv("NCUFLOW_NCU", str(machine.folder / "ncu"))
    status, said, found = machine.tried(change, *words)
    assert found is not None, said
    return status, said, Trial.model_validate(found)


def test_both_sides_are_counted_and_what_differs_is_explained(machine, monkeypatch):
    """Of the change it is the overlay's library that the profiler sees, and the overlay's source that is quoted."""
    patch = machine.patch("  return 100.0", "  // later\n  return 110.0")
    blocks = '[{"module": ["toy", "plain"]}]'
    page, calls = machine.folder / "try.html", machine.folder / "calls"
    monkeypatch.setenv("NCUFLOW_TEST_CALLS", str(calls))
    words = ("--blocks", blocks, "--html", str(page))
    status, said, trial = tried(machine, monkeypatch, patch, *words)
    assert status == 3 and trial.ncu == "2025.3.1.0" and trial.no_counters is None, said
    slower, same = trial.points
    assert slower.counters is not None and same.counters is not None
    assert (slower.counters.tier, same.counters.tier) == ("all", "few")
    assert slower.counters.base[0].duration_us == 100
    assert slower.counters.change[0].duration_us == 110
    hot = [side[0].hot[0] for side in (slower.counters.base, slower.counters.change)]
    lines = [(7, "return 100.0;"), (8, "return 110.0;")]
    assert [(place.line, place.text) for place in hot] == lines
    (cause,) = slower.causes
    assert cause.delta_us == 10 and [part.what for part in cause.parts] == ["long_scoreboard"]
    assert trial.change.diff is not None and "+  return 110.0;" in trial.change.diff.splitlines()
    assert page.read_text(encoding="utf-8") == rendered([trial])
    assert same.causes == [] and same.counters.base[0].stalls == {}
    commands = [json.loads(line) for line in calls.read_text(encoding="utf-8").splitlines()]
    assert [command[command.index("--clock-control") + 1] for command in commands] == ["none"] * 2
    asked = [set(command[command.index("--metrics") + 1].split(",")) for command in commands]
    # one process a side: the point of the same time is counted beside the other
    assert asked == [set(counters("gh100", registry_keys(load("decode"))))] * 2
    packages = [[word for word in command if word.startswith("--package=")] for command in commands]
    assert [len(found) for found in packages] == [0, 1]
    assert "twice/toy_n3: +10 µs ToyKernel: same registers and launch" in said
    assert "+10 µs long_scoreboard" in said


@pytest.mark.parametrize("same", [0, 2, 9])
def test_points_of_the_same_time_have_processes_of_their_own_where_they_are_many(same, monkeypatch):
    """And where nothing differs, those of the few counters alone."""
    asked: list[tuple[str, int]] = []

    def counted(target: str, points: Any, tier: Any, *rest: Any) -> dict[str, Any]:
        asked.append((tier.name, len(points)))
        return {}

    monkeypatch.setattr(why, "counted", counted)
    monkeypatch.setattr(why, "lacking", lambda: None)
    monkeypatch.setattr(why, "ncu_version", lambda: "2025.3.1")
    points = [trial_data.point(str, n, 100.0, "same") for n in range(same)]
    for slower, expected in (
        (0, [("few", same)] * 2 if same else []),
        (1, [("all", 1)] * 2 + [("few", 9)] * 2 if same == 9 else [("all", 1 + same)] * 2),
    ):
        asked.clear()
        trial = trial_data.trial(points=points + [trial_data.point(str, 20)] * slower)
        planned = [Planned(point.point, "twice", {}) for point in trial.points]
        sides: Any = dict.fromkeys(("base", "change"), why.CountedSide([], {}, Path("x")))
        why.explain(trial, planned, sides, None, 1.0, lambda line: None)  # type: ignore[arg-type]
        assert asked == expected


@pytest.mark.exhaustive
def test_without_permission_one_line_says_so(machine, monkeypatch):
    patch = machine.patch("return 100.0", "return 110.0")
    monkeypatch.setenv("NCUFLOW_TEST_REFUSED", "1")
    _, said, trial = tried(machine, monkeypatch, patch)
    assert trial.points[0].counters is None
    assert "ERR_NVGPUCTRPERM" in str(trial.points[0].no_counters)
    assert said.count("twice/toy_n3: no counters: the driver refuses performance counters") == 1


@pytest.mark.exhaustive
def test_without_ncu_one_line_says_so(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    patch = machine.patch("return 100.0", "return 110.0")
    _, said, trial = tried(machine, monkeypatch, patch, "--no-counters")
    assert trial.no_counters == "not asked for (--no-counters)" and trial.points[0].counters is None
    monkeypatch.setenv("NCUFLOW_NCU", str(machine.folder / "none"))
    monkeypatch.setenv("CUDA_HOME", str(machine.folder))
    status, said, found = machine.tried(patch)
    assert status == 3 and found is not None
    if shutil.which("ncu") is None:
        assert found["no_counters"] == "ncu is not on PATH"
        assert said.count("no counters: ncu is not on PATH") == 1


def test_the_screen_says_what_adds_most(planted: tuple[list[Kernel], list[Kernel]]) -> None:
    point = timed(us(planted[0]), us(planted[1]))
    why.note(point, ALL, planted, (None, None))
    lines = list(text.reasons(point))
    first = point.causes[0]
    assert len(lines) == 2 and lines[0].startswith(f"p: {first.delta_us:+.3g} µs {first.what}")
    most = max((part for part in first.parts if part.base), key=lambda part: abs(part.delta_us))
    assert lines[1].startswith(f"  {most.delta_us:+.3g} µs {most.what}")


def test_the_screen_says_how_much_of_the_difference_the_counters_cover(planted):
    point = timed(us(planted[0]), us(planted[1]))
    why.note(point, ALL, planted, (None, None))
    assert point.timing is not None
    late = point.timing.change_us - point.timing.base_us
    point.remainder = "compared in cycles"
    for covered, told in ((0.9, False), (0.3, True), (1.5, True)):
        point.unexplained_us = (1 - covered) * late
        *_, last = text.reasons(point)
        said = f"  counters cover {covered * late:+.3g} µs of the timed {late:+.3g} µs: compared in cycles"
        assert (last == said) == told
