"""Two sides: what changed is found, put down to its cause, and nothing else is claimed."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path

import pytest
from command import ncuflow
from compare_data import PROVENANCE, compare, delta, kernel, pair, point, side, sweep, with_runs
from conftest import some_by_default
from results_data import completed

from ncuflow.compare import records, verdict
from ncuflow.compare.records import Difference, Thresholds
from ncuflow.compare.verdict import Side, load, runs_of
from ncuflow.export import check
from ncuflow.io import BadInput, write_json
from ncuflow.model import CONDITIONS, VERSIONS, Provenance, Results

LIMITS = Thresholds()


def changed(document: dict) -> dict[str, str]:
    verdicts = {p["id"]: p["verdict"] for p in document["points"]}
    return {id: verdict for id, verdict in verdicts.items() if verdict in ("slower", "faster")}


def of(document: dict, name: str = "decode/B8") -> dict:
    return next(p for p in document["points"] if p["id"] == name)


def notes(document: dict, text: str) -> list[str]:
    return [note for note in document["statistics"]["notes"] if text in note]


def planted(at: int, **change: object) -> tuple[list[dict], list[dict]]:
    """A sweep, and the same with one point replaced: keys of ``point`` in ``change``."""
    base, head = sweep(), sweep()
    head[at] = head[at] | change
    return base, head


def slowed() -> tuple[Side, Side]:
    """Two sides, of which decode/B8 takes 40 % longer in the second."""
    return pair(*planted(7, **point("decode/B8", 60.0)))


@pytest.mark.parametrize("case", some_by_default([*product((1, 3, 5), range(1, 6))], 4))
def test_two_captures_of_one_version_report_no_change(case):
    count, seed = case
    base, head = pair(sweep(), seed=seed, count=count)
    document = compare(base, head, LIMITS)
    assert changed(document) == {}
    assert document["differences"] == []
    assert all(p["causes"] == [] for p in document["points"])


def test_a_slow_down_is_found_with_its_interval_and_the_other_way_round_it_is_a_gain() -> None:
    base, head = slowed()
    document = compare(base, head, LIMITS)
    found = of(document)
    assert changed(document) == {"decode/B8": "slower"} and found["metric"] == "cold_us"
    assert found["low"] < found["relative"] < found["high"]
    assert found["relative"] == pytest.approx(delta(found) / found["base"])
    # A change without evidence stays unexplained.
    assert found["causes"] == [] and found["unexplained"] == pytest.approx(delta(found))
    json.dumps(document, allow_nan=False)
    assert changed(compare(head, base, LIMITS)) == {"decode/B8": "faster"}


def test_a_worse_tile_is_put_down_to_the_template_arguments_registers_and_waiting() -> None:
    good = kernel()
    bad = kernel(tile=1, stages=1, registers=110, warps=4.6, long_scoreboard=6.5)
    time = 43.0 * bad["duration_ns"] / good["duration_ns"]
    base, head = planted(7, **point("decode/B8", time, [bad]))
    scale = 43.0 / (good["duration_ns"] / 1e3)
    for k in (base[7]["kernels"][0], head[7]["kernels"][0]):
        k["duration_ns"] *= scale
        k["metrics"]["inst_executed"] *= scale
    found = of(compare(*pair(base, head), LIMITS))
    first = found["causes"][0]
    assert (found["verdict"], first["kind"]) == ("slower", "template")
    assert first["share_of_delta"] == pytest.approx(1, abs=0.15)
    facts = {f["what"]: (f["base"], f["head"]) for f in first["facts"]}
    assert facts["tile_size_per_bdx"] == ("4", "1") and facts["num_stages_smem"] == ("2", "1")
    assert facts["registers"] == (70, 110)
    assert facts["blocks that an SM can hold"] == ("6 (shared memory)", "4 (registers)")
    grown = {p["what"]: p["delta_us"] for p in first["parts"]}
    assert grown["long_scoreboard"] > 0 and grown["active warps"] > 0
    assert max(grown, key=lambda what: grown[what]) in ("long_scoreboard", "active warps")
    assert sum(grown.values()) == pytest.approx(first["delta_us"])
    assert grown.get("barrier", 0) == pytest.approx(0)


def test_a_host_time_is_shown_and_not_judged() -> None:
    time = sweep()[7]["measurement"]["time_cold_us"]
    base, head = pair(*planted(7, **point("decode/B8", time, host=215.0)))
    document = compare(base, head, LIMITS)
    assert changed(document) == {}
    found = of(document)
    assert (found["metric"], found["verdict"]) == ("cold_us", "same")
    host = found["metrics"]["host_us"]
    assert (host["verdict"], host["p"], host["causes"]) == ("not judged", None, [])
    assert document["statistics"]["tests"] == len(document["points"])
    (note,) = notes(document, "not judged")
    assert "1 host time " in note and "launching call of `decode/B8` 15 → 21" in note


def test_a_process_that_is_slow_on_the_host_is_no_regression() -> None:
    """Every point of a run shifts together, so 24 points are no better evidence than one."""
    base, head = pair(sweep(), count=6)
    for level, found in ((1.0, base), (1.25, head)):
        for row in found.points.values():
            row["runs"]["host_us"] = [[15 * level * s] for s in (1, 1.02, 0.98, 1.4, 1.0, 1.01)]
    document = compare(base, head, LIMITS)
    assert changed(document) == {}
    assert document["statistics"]["floors"]["host_us"]["value"] > 0.25


GDN = [point("gdn/a", 68.0, host=1000.0), point("gdn/b", 300.0, host=48.0)]


def test_a_call_that_outlasts_its_kernels_is_told_where_runs_are_too_few_to_judge_it() -> None:
    """Kernels of 68 µs behind a call of 1 ms, and of 165 µs: the same kernels, and another wait."""
    head = [point("gdn/a", 68.0, host=165.0), point("gdn/b", 300.0, host=20.0)]
    document = compare(*pair(GDN, head, count=1), LIMITS)
    assert changed(document) == {}
    (note,) = notes(document, "host's pace")
    assert note.startswith("At 1 point the") and "`gdn/a`" in note and "gdn/b" not in note
    assert notes(compare(*pair(head, GDN, count=1), LIMITS), "`gdn/a` 1")
    assert not notes(compare(*pair(GDN, GDN, count=1), LIMITS), "host's pace")
    # A call that halved, within a floor of more than double.
    halved = pair(GDN, [point("gdn/a", 68.0, host=480.0), GDN[1]], count=1)
    for floor, told in ((0.9, True), (1.3, False)):
        assert bool(notes(compare(*halved, Thresholds(floor=floor)), "pace")) == told


def test_a_lower_clock_is_the_clock() -> None:
    same = 77e6 * 43e3 / kernel()["duration_ns"]
    base, head = sweep(), sweep()
    base[7] = point("decode/B8", 43.0, [kernel(instructions=same)])
    head[7] = point("decode/B8", 43.0 * 1.2, [kernel(clock=1.9e9 / 1.2, instructions=same)])
    first = of(compare(*pair(base, head), LIMITS))["causes"][0]
    assert first["kind"] == "clock"
    assert {p["what"] for p in first["parts"]} == {"SM clock"}


def test_a_point_that_is_another_call_on_the_other_side_is_not_compared() -> None:
    base, head = slowed()
    for own, work in ((base, 1e9), (head, 2e9)):
        own.points["decode/B8"]["measurement"] |= {"flops_analytic": work, "bytes_analytic": 5e8}
    document = compare(base, head, LIMITS)
    assert "decode/B8" not in {p["id"] for p in document["points"]}
    (left,) = document["not_compared"]
    assert left["base"] == "not the same work: 1e+09 FLOPs, 5e+08 bytes" and "2e+09" in left["head"]


def test_a_change_of_a_point_that_one_side_did_not_profile_says_so() -> None:
    base, head = slowed()
    said = "ncu did not profile on both sides (`decode/B8`)"
    assert not notes(compare(base, head, LIMITS), said)
    base.points["decode/B8"]["kernels"] = []
    base.points["decode/B3"]["kernels"] = []  # unchanged: nothing to explain
    assert notes(compare(base, head, LIMITS), said)


def test_a_launch_that_is_short_on_one_side_is_held_against_the_floor_of_the_short_ones() -> None:
    """Runs of 14 µs differ by more of themselves than those of 400 µs."""
    times = [14.0, 15.0, 14.5, 36.0] + [400.0] * 6
    head = [14.0, 15.0, 36.0, 14.0] + [400.0] * 6
    sides = []
    for seed, side_times in enumerate((times, head)):
        rng = random.Random(seed)
        rows = [point(f"decode/B{i}", us) for i, us in enumerate(side_times)]
        noisy = [0.03 if us < 100 else 0.001 for us in side_times]
        rows = [with_runs(rng, row, 3, own) for row, own in zip(rows, noisy, strict=True)]
        sides.append(side(("base", "head")[seed], rows))
    for pair_of in (sides, sides[::-1]):
        document = compare(*pair_of, LIMITS)
        floors = document["statistics"]["floors"]
        assert floors["cold_us_short"]["pairs"] == 4 * 2 * 3
        assert floors["cold_us"]["value"] < 0.01 < 0.02 < floors["cold_us_short"]["value"]
        assert of(document, "decode/B0")["metrics"]["cold_us"]["floor"] > 0.02
        (note,) = notes(document, "fewer than")
        assert "where a side takes less than 20 µs" in note
        assert "at least 99 % of the pairs of two runs of one side lie no further apart" in note


def test_noise_is_admitted() -> None:
    base, head = pair(sweep(), between=0.15)
    document = compare(base, head, LIMITS)
    assert changed(document) == {}
    assert {p["verdict"] for p in document["points"]} == {"inconclusive"}


def test_one_run_a_side_says_so() -> None:
    (note,) = notes(compare(*pair(sweep(), count=1), LIMITS), "1 and 1 run")
    assert "12.0 %" in note and "assumed" in note
    base, head = pair(sweep(), count=3)
    base.points["decode/B1"]["runs"]["cold_us"] = base.points["decode/B1"]["runs"]["cold_us"][:1]
    (note,) = notes(compare(base, head, LIMITS), "")
    assert note.startswith("1 to 3 and 3 runs per side, fewer than 5")


# --- what differs -----------------------------------------------------------------------------


def test_differences_are_listed_and_mixed_causes_are_named() -> None:
    rng = random.Random(1)
    points = [with_runs(rng, p) for p in sweep(8)]
    base = side("base", points)
    one = verdict.compare(base, side("head", points, flashinfer="0.7.2", ncu="2026.1"), LIMITS)
    assert [(d.axis, d.cause) for d in one.differences] == [
        ("FlashInfer", True), ("ncu", False),
    ]  # fmt: skip
    assert not one.mixed_causes
    two = verdict.compare(base, side("head", points, flashinfer="0.7.2", gpu="NVIDIA H100"), LIMITS)
    assert two.mixed_causes


def test_a_dsl_on_one_side_is_a_difference_that_moves_times() -> None:
    base, head = {"gpu": "NVIDIA H200", "cutlass_dsl": "4.8.1"}, {"gpu": "NVIDIA H200"}
    found = Difference("CuTe DSL", "4.8.1", None, True)
    assert records.of_sides(base, head, []) == [found]
    other = base | {"cutlass_dsl": "4.9.0"}
    assert records.of_sides(base, other, []) == [replace(found, head="4.9.0")]


def test_every_version_and_condition_of_a_provenance_is_an_axis() -> None:
    # which evidence it is: nothing that it was measured under
    which = {"tier", "date", "recording", "mixed", "note"}
    assert CONDITIONS.keys() == Provenance.__annotations__.keys() - which
    tools = {key for key, condition in CONDITIONS.items() if not condition.moves}
    assert tools == {"ncu", "nsys", "python"} and VERSIONS.keys() < CONDITIONS.keys()
    for key, condition in CONDITIONS.items():
        base = dict.fromkeys(CONDITIONS) | {"gpu": "NVIDIA H200", key: "1"}
        found = Difference(condition.label, "1", "2", condition.moves)
        assert records.of_sides(base, base | {key: "2"}, []) == [found]


def test_parts_of_one_name_are_told_apart_by_what_they_have() -> None:
    whole = {"gpu": "NVIDIA H200", "sm_count": 132, "l2_bytes": 60 << 20}
    part = whole | {"sm_count": 66}
    found = Difference("multiprocessors", "132", "66", True)
    assert records.of_sides(whole, part, []) == [found]
    assert records.of_sides(whole, {"gpu": "NVIDIA H200", "sm_count": None}, []) == []
    other = records.of_sides(whole, part | {"gpu": "NVIDIA H100"}, [])
    assert [difference.axis for difference in other] == ["GPU"]


@pytest.mark.parametrize("other", [False, True])
def test_a_clock_that_moved_under_the_same_kernels_is_a_difference(other: bool) -> None:
    base, head = pair(sweep(8))
    for row in head.points.values():
        row["measurement"]["sm_clock_ghz"] = 1.7
        row["kernels"] = [kernel("another")] if other else row["kernels"]
    found = [(d["base"], d["head"]) for d in compare(base, head, LIMITS)["differences"]]
    assert found == ([] if other else [("1.900 GHz", "1.700 GHz")])


def test_points_of_one_side_and_broken_points_are_listed_not_compared() -> None:
    base, head = pair(sweep(8))
    del head.points["decode/B1"]
    head.points["decode/B2"] |= {"status": "wrong", "reason": "off by 3 %"}
    del base.points["decode/B3"]
    document = compare(base, head, LIMITS)
    assert document["only_base"] == ["decode/B1"] and document["only_head"] == ["decode/B3"]
    assert document["not_compared"] == [
        {"id": "decode/B2", "base": "ok", "head": "wrong: off by 3 %"}
    ]
    assert {"decode/B1", "decode/B2", "decode/B3"}.isdisjoint(p["id"] for p in document["points"])


# --- files and commands -----------------------------------------------------------------------


def test_runs_come_in_several_forms() -> None:
    row = point("decode/B1", 10.0)
    assert runs_of(row, "cold_us") == [[10.0]] and runs_of(row, "plan_us") == []
    assert runs_of(row | {"samples": {"cold_us": [9.0, 11.0]}}, "cold_us") == [[9.0, 11.0]]
    assert runs_of(row | {"runs": {"cold_us": [[1.0], []]}}, "cold_us") == [[1.0]]
    assert runs_of(row | {"runs": {"cold_us": [None, [None, 2.0]]}}, "cold_us") == [[2.0]]


def write_side(folder: Path, found: Side) -> Path:
    results = folder / "results"
    results.mkdir(parents=True)
    points = list(found.points.values())
    content = {"target": "decode", "provenance": found.provenance, "points": points, "deep": []}
    write_json(results / "decode_results.json", completed(content, Results))
    return results


def test_the_gate_fails_on_a_slow_down_and_passes_below_its_threshold_and_on_speed_ups(
    tmp_path: Path,
) -> None:
    """And the command writes the same bytes again."""
    sides = [write_side(tmp_path / found.name, found) for found in slowed()]
    slower, back = tmp_path / "compare.json", tmp_path / "back.json"
    done = ncuflow("compare", *sides, "--format", "json", "--out", slower)
    assert (done.returncode, done.stderr) == (
        0,
        f"wrote {slower}, {slower.stat().st_size / 1e3:.3g} kB\n",
    )
    again = ncuflow("compare", *sides, "--format", "json")
    assert again.stdout == slower.read_text(encoding="utf-8")
    done = ncuflow("check", slower, "--threshold", 0.05)
    assert done.returncode == 1
    assert done.stdout.startswith("decode/B8: time ") and "beyond 5 %" in done.stdout
    assert ncuflow("check", slower, "--threshold", 0.5).returncode == 0
    ncuflow("compare", *sides[::-1], "--format", "json", "--out", back)
    assert changed(json.loads(back.read_text())) == {"decode/B8": "faster"}
    assert ncuflow("check", back).returncode == 0


def test_the_gate_says_what_it_did_not_cover(tmp_path: Path) -> None:
    base, head = pair(sweep(8), count=1)
    del head.points["decode/B1"]
    out = tmp_path / "compare.json"
    write_json(out, compare(base, head, LIMITS))
    done = ncuflow("check", out)
    assert done.returncode == 0
    assert "1 point in the base only" in done.stderr and "runs per side" in done.stderr


def _errors(row: dict) -> dict:
    return {"status": "error", "reason": "CUDA error"}


def _untimed(row: dict) -> dict:
    return {"runs": {}, "measurement": dict.fromkeys(row["measurement"])}


def _one_value(row: dict) -> dict:
    return {"runs": {"cold_us": [[10.0]]}}


@pytest.mark.parametrize("damage", [_errors, _untimed, _one_value])
def test_the_gate_does_not_pass_on_nothing(damage: Callable[[dict], dict], tmp_path: Path) -> None:
    base, head = pair(sweep(8))
    for side_of in (base, head) if damage is _one_value else (head,):
        for row in side_of.points.values():
            row |= damage(row)
    out = tmp_path / "compare.json"
    write_json(out, compare(base, head, LIMITS))
    done = ncuflow("check", out)
    assert done.returncode == check.NOTHING_TESTED
    assert done.stdout == "check: nothing was tested, so nothing passes\n"


def test_sides_without_a_common_point_are_one_line(tmp_path: Path) -> None:
    base, head = pair(sweep(8))
    head.points = {"decode/other": head.points["decode/B1"] | {"point": "decode/other"}}
    sides = [write_side(tmp_path / name, found) for name, found in (("a", base), ("b", head))]
    done = ncuflow("compare", *sides, "--out", tmp_path / "compare.json")
    assert done.returncode == 2 and not (tmp_path / "compare.json").exists()
    assert done.stderr == "error: head: has no point in common with base: nothing can be compared\n"


@pytest.mark.parametrize(
    ("provenance", "measurement", "says"),
    [
        ({"flashinfer": "0.7.2"}, {}, "FlashInfer 0.7.2, the rest of this side 0.6.18"),
        ({"gpu": "NVIDIA H100"}, {}, "GPU NVIDIA H100, the rest of this side NVIDIA H200"),
        ({"flashinfer": "0.6.18 and 0.7.2", "mixed": ["flashinfer"]}, {}, "FlashInfer 0.6.18 and 0.7.2: measured apart"),
        ({}, {"gpu": "NVIDIA H100"}, "points of NVIDIA H100"),
    ],
)  # fmt: skip
def test_results_of_two_machines_or_versions_are_not_one_side(
    provenance: dict, measurement: dict, says: str, tmp_path: Path
) -> None:
    base, _ = pair(sweep(2))
    folder = write_side(tmp_path, base)
    rope = point("rope/T1", 10.0)
    rope["measurement"] |= measurement
    content = {"target": "rope", "provenance": {**base.provenance, **provenance}}
    rows = completed(content | {"points": [rope], "deep": []}, Results)
    write_json(folder / "rope_results.json", rows)
    with pytest.raises(BadInput, match=rf"rope_results\.json: {says}.* not one side"):
        load(folder)


def test_the_gate_refuses_what_is_no_comparison(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content in ("", "{}", "[1]"):
        path.write_text(content)
        done = ncuflow("check", path)
        assert done.returncode == 2 and done.stderr.count("\n") == 1
        assert ("the JSON of a comparison" if content else "not JSON") in done.stderr


def test_bad_sides_are_one_line_and_status_2(tmp_path: Path) -> None:
    empty = tmp_path / "results"
    done = ncuflow("compare", empty, empty)
    assert (done.returncode, done.stderr) == (2, f"error: {empty}: no such file or folder\n")
    empty.mkdir()
    assert "no results here" in ncuflow("compare", empty, empty).stderr
    (empty / "decode_results.json").write_text('{"points": 3}')
    with pytest.raises(BadInput, match="not the results of a target"):
        load(empty)


def test_load_reads_what_results_hold_and_a_comparison_is_read_back_as_it_was_written(
    tmp_path: Path,
) -> None:
    sides = pair(*planted(7, **point("decode/B8", 60.0, [kernel(tile=1, warps=5.0)])))
    found = verdict.compare(*sides, LIMITS)
    write_json(tmp_path / "compare.json", asdict(found))
    again = records.read(tmp_path / "compare.json")
    assert again == found and again.changed[0].causes[0].parts
    base, _ = pair(sweep(3))
    side_of = load(write_side(tmp_path / "outputs", base))
    assert side_of.name == "base" and list(side_of.points) == list(base.points)
    assert side_of.provenance["gpu"] == PROVENANCE["gpu"]
    assert side_of.tables == tmp_path / "outputs/tables"
