"""Opportunities: never above the room, each tried or with a reason, ranked by what they brought."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from conftest import DEFAULT, Recorded, some
from results_data import entry, launched

from ncuflow.expression import holds
from ncuflow.findings import stored
from ncuflow.findings.choices import Effect, effects, summary
from ncuflow.findings.opportunities import (
    MeasuredOpportunity,
    found,
    room,
    scopes,
    undecided,
    worded,
)
from ncuflow.findings.scope import Scope
from ncuflow.io import BadInput, read_json
from ncuflow.model import Results
from ncuflow.pages.markdown.pages import to_try
from ncuflow.pages.section import (
    _opportunity,
    brought,
    fared,
    file_and_line,
    opportunity_rows,
)
from ncuflow.target.contract import Choice, Opportunity, Target, known
from ncuflow.target.source import Symbol


def declared(**more: Any) -> Opportunity:
    usual = {"what": "b", "shown": "busy {busiest_pct}", "where": "side == 'a'", "choice": "ab"}
    return Opportunity(
        symbol=Symbol("f", "x.cuh"), change="take b", **usual | more,
    )  # fmt: skip


AB = Choice("ab", "a or b", "side", "a", "b")


def target(*declared: Opportunity, **more: Any) -> Target:
    made = Target(
        name="t", title="T", parameters={"side": "a"}, id="{side}", work=lambda p: None, prepare=lambda p: None,  # type: ignore[arg-type,return-value]
        **{"compared": (AB,)} | more,
    )  # fmt: skip
    made.opportunities = declared
    return made


def point(side: str, cold: float, grid: str = "1,1,1", **columns: Any) -> dict[str, Any]:
    samples = [cold * (1 + 0.001 * (n % 5)) for n in range(30)]
    measured = {
        "time_cold_us": cold, "time_hot_us": cold, "host_launch_us": 1.0, "bytes_analytic": 1e6, "flops_analytic": 0,
        "ceiling_dram_gbs_measured": 1000.0, "ceiling_tensor_tflops_measured": 1.0, "busiest_pct": 40.0, "plan_us": 10.0,
        "limiter": None, "draw": None,
    }  # fmt: skip
    ran = launched("k", demangled="k", grid=grid)
    found = entry(f"t/{side}", {}, [ran], **measured | columns)
    return found | {"params": {"side": side}, "reason": None, "samples": {"cold_us": samples}}


def of(*points: dict[str, Any], noise: float = 0.001) -> Any:
    floors = {"time_cold_us": {"floor": noise}}
    return {"target": "t", "provenance": {}, "points": list(points), "pairs": [], "noise": floors}


def turns(spread: float = 0.001, **times: tuple[float, float]) -> dict[str, Any]:
    """The pair of a and b, timed in turns: what is not given took 1 µs."""
    sides: list[dict[str, Any]] = [{"hot_group": 8}, {"hot_group": 8}]
    for name in ("cold", "plan", "host", "hot"):
        wide = spread if name == "plan" else 0.001
        for side, time in zip(sides, times.get(name, (1.0, 1.0)), strict=True):
            side[f"{name}_us"] = time
            side[f"{name}_samples_us"] = [time * (1 + wide * (n % 5 - 2)) for n in range(30)]
    return {"base": "t/a", "other": "t/b", "status": "ok", "reason": None, "sides": sides}


def test_what_a_trial_brought_stands_beside_its_bound() -> None:
    (one,) = found(of(point("a", 4.0), point("b", 2.0)), target(declared(bound="0.7")))
    assert one.effect and (one.effect.change, one.saved) == pytest.approx((-0.5, 0.5))
    assert (one.most, one.room) == pytest.approx((0.7, 0.75))


def test_no_bound_is_above_the_room_which_is_for_the_work_that_is_left() -> None:
    """A megabyte at 1 000 GB/s takes a µs, and of 2 µs no change leaves less."""
    (one,) = found(of(point("a", 2.0)), target(declared(bound="0.9")))
    assert one.most == one.room == pytest.approx(0.5)
    assert not found(of(point("a", 1.0)), target(declared(bound="0.9")))
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


def test_what_changes_no_launch_was_not_tried_and_a_trial_that_failed_is_the_reason() -> None:
    same = of(point("a", 4.0), point("b", 2.0))
    (one,) = found(same, target(declared(relaunches=True)))
    assert one.effect is None and one.reason.startswith("the same kernels ran")
    other = of(point("a", 4.0), point("b", 2.0, grid="2,1,1"))
    assert found(other, target(declared(relaunches=True)))[0].effect
    failed = point("b", 2.0) | {"status": "error", "reason": "does not compile"}
    (one,) = found(of(point("a", 4.0), failed), target(declared()))
    assert (one.effect, one.reason) == (None, "does not compile")
    (one,) = found(of(point("a", 4.0)), target(declared()))
    assert one.reason == "points with `side: b` in the sweep"


def sized(side: str, size: int | str, cold: float) -> dict[str, Any]:
    return point(side, cold) | {"point": f"t/{side}_{size}", "params": {"side": side, "size": size}}


def test_what_won_comes_first_and_what_brought_nothing_last() -> None:
    untried = declared(choice="", how="think")

    def groups(*points: dict[str, Any]) -> list[str]:
        return [one.group for one in found(of(*points), target(declared(), untried))]

    assert groups(point("a", 4.0), point("b", 3.0)) == ["won", "untried"]
    assert groups(point("a", 4.0), point("b", 5.0)) == ["untried", "lost"]
    assert groups(point("a", 4.0), point("b", 4.0)) == ["untried", "lost"]


def test_wins_are_ordered_by_what_they_save_over_all_their_points() -> None:
    """Half of the time at one point is less than three tenths of it at three."""
    points = [sized(*one) for n in (1, 2, 3) for one in (("a", n, 4.0), ("b", n, 2.8))]
    points += [sized("a", 4, 4.0), sized("c", 4, 2.0)]
    ac = Choice("ac", "a or c", "side", "a", "c")
    both = target(declared(what="c", choice="ac"), declared(what="b"), compared=(AB, ac))
    rows = found(of(*points), both)
    assert [one.opportunity.what for one in rows] == ["b", "c"]


def test_where_the_sign_turns_there_is_a_row_for_each_side_with_its_condition() -> None:
    sides = [sized("a", 1, 4.0), sized("b", 1, 3.0), sized("a", 8, 4.0), sized("b", 8, 6.0)]
    won, lost = found(of(*sides, sized("a", 9, 4.0)), target(declared()))
    # of two pairs no bound is told, but their values
    assert (won.group, won.where, won.points) == ("won", "size == 1", ("t/a_1",))
    assert (lost.group, lost.where, lost.points) == ("lost", "size == 8", ("t/a_8",))
    more = [*sides, sized("a", 2, 4.0), sized("b", 2, 3.0), sized("a", 9, 4.0)]
    won, lost = found(of(*more), target(declared()))
    assert (won.where, won.points) == ("size in [1, 2]", ("t/a_1", "t/a_2"))
    assert (lost.where, lost.points) == ("size == 8", ("t/a_8",))
    assert won.effect and won.effect.change == pytest.approx(-0.25)
    alike = [sized("a", 8, 4.0), sized("b", 8, 4.0)]
    (row,) = found(of(*sides[:2], *alike), target(declared()))
    assert (row.where, row.points) == ("size == 1", ("t/a_1",))
    assert brought(row).endswith("; no difference where `size == 8`")


def test_a_sign_that_no_parameter_decides_is_said_with_the_range() -> None:
    turning = [sized("a", n, 4.0) for n in (1, 2, 3)]
    turning += [sized("b", n, cold) for n, cold in ((1, 2.0), (2, 5.0), (3, 3.0))]
    (row,) = found(of(*turning), target(declared()))
    said = "; over 3 pairs −50.0 % to +25.0 %, and no parameter tells which gain"
    assert brought(row).endswith(said)


def test_a_point_that_could_bring_more_and_was_not_tried_stands_beside_the_trial() -> None:
    """A trial where little is to be had says nothing of a point with more room."""
    tried = [point("a", 1.25), point("b", 1.2)]
    more, less = sized("a", "more", 4.0), sized("a", "less", 1.1)
    (one,) = found(of(*tried, more, less), target(declared(bound="0.7")))
    assert one.point == "t/a" and one.most == pytest.approx(0.2)
    assert one.untried == ("t/a_more", 0.7)
    assert brought(one).endswith("; not tried at `a_more`, at most 70 %")
    (one,) = found(of(*tried, more), target(declared()))  # the roofs alone bound nothing
    assert one.untried is None and not one.bounded
    (one,) = found(of(*tried, less), target(declared(bound="0.7")))
    assert one.untried is None and "not tried" not in brought(one)


def test_a_longer_plan_is_paid_for_by_launches() -> None:
    evidence = of(point("a", 4.0), point("b", 2.0, plan_us=99.0))
    (one,) = found(evidence, target(declared()))
    assert one.layers is None  # plans that were timed apart say nothing of each other
    for plan, spread, layers in ((15.0, 0.001, (3, 3)), (15.0, 0.3, None), (5.0, 0.001, None)):
        pair = turns(spread, cold=(4.0, 2.0), plan=(10.0, plan))
        (one,) = found(evidence | {"pairs": [pair]}, target(declared()))
        assert one.layers == layers  # 5 µs longer, 2 µs saved by each


def test_the_room_of_a_step_is_that_of_the_process_that_timed_it() -> None:
    """Another process's host took 5 µs for the call, and from that 3 µs could not be half."""
    points = point("a", 4.0, time_hot_us=3.0, host_launch_us=5.0), point("b", 4.0)
    pair = turns(cold=(4.0, 4.0), host=(12.0, 1.0), hot=(3.0, 4.0))
    (one,) = found(of(*points) | {"pairs": [pair]}, target(declared(metric="step_us")))
    assert one.effect and one.effect.change == pytest.approx(4 / 12 - 1)
    assert one.room == pytest.approx(0.75)
    assert one.facts["host_launch_us"] == 12.0
    assert _opportunity(one, "t", None)["shown"].endswith(" (times of the pair)")
    assert "on the pair's host" in brought(one)
    (apart,) = found(of(*points), target(declared(metric="step_us")))
    assert "pair" not in _opportunity(apart, "t", None)["shown"]


def test_what_is_not_known_meets_no_condition() -> None:
    unknown = Scope({"side": "a", "busiest_pct": 41.7}, frozenset({"waves"}))
    for where in ("waves >= 0", "waves < 0", "not waves >= 0"):
        assert not found(of(point("a", 4.0)), target(declared(where=where)))
    assert worded(declared(shown="{busiest_pct}; {waves} waves"), unknown) == "42 %"


def test_a_condition_over_what_is_missing_is_neither_met_nor_unmet() -> None:
    """Of evidence without counters a page does not say that nothing suggests a change."""
    for waves, names in ((None, ["chunks"]), (0.4, []), (2.0, [])):
        one = declared(what="chunks", where="side == 'a' and waves < 1")
        assert undecided(of(point("a", 4.0, waves=waves)), target(one)) == names
    assert undecided(of(point("c", 4.0, waves=None)), target(one)) == []  # false whatever it is
    merges = target(
        declared(where="merge_pct > 0")
    )  # where one kernel ran alone nothing is known to merge
    assert undecided(of(point("a", 4.0)), merges) == []
    assert undecided(of(point("a", 4.0) | {"kernels": []}), merges) == ["b"]


def test_a_condition_over_what_nothing_is_called_is_one_clear_error() -> None:
    mine = target(declared(where="wavs > 1"), file=Path("mine.py"))
    with pytest.raises(BadInput, match=r"mine\.py: an opportunity: unknown name 'wavs'"):
        found(of(point("a", 4.0)), mine)


def test_a_symbol_is_found_in_the_index_or_is_its_file() -> None:
    functions = {"data/include/flashinfer/x.cuh": [[7, 9, "f"]]}
    api = {"python": {"symbol": "a.b", "file": "a.py", "line": 3}}
    index = {"functions": functions, "targets": {"t": {"api": api}}}
    for symbol, known_to, place in (
        (Symbol("f", "x.cuh"), index, "x.cuh:7"),
        (Symbol("g", "x.cuh"), index, "x.cuh"),
        (Symbol("f", "x.cuh"), None, "x.cuh"),
        (Symbol("b", "a.py"), index, "a.py:3"),
    ):
        assert file_and_line(symbol, "t", known_to) == place


def test_no_gain_of_the_evidence_is_above_its_room(finished: Any, recorded: Recorded) -> None:
    evidence = [*stored.folder(finished.outputs / "results").values()]
    further = ("activation", "decode", "gemm", "prefill", "sampling")
    evidence += [recorded("h200/0.7.2/kernels", target) for target in further]
    for one in some(one for results in evidence for one in found(results)):
        assert 0 <= one.most <= one.room <= 1, one
        told = one.effect or one.elsewhere or one.reason
        assert told, f"{one.opportunity.what}: neither a trial nor a reason"
        for effect in one.effects:
            least = -effect.change if effect.high is None else -effect.high
            assert least <= one.room, f"{effect.base_point}: a gain above the room"
        if one.effect and one.effect.high is not None:
            assert -one.effect.high <= one.most, f"{one.opportunity.what}: above its bound"


def test_each_kernel_with_counters_has_a_table_of_lines(finished: Any) -> None:
    index = read_json(DEFAULT / "source_index.json.xz")
    for target, results in some(stored.folder(finished.outputs / "results").items()):
        for row in some(opportunity_rows(results, index)):
            # of a header that the index of that day does not have, the file alone is named
            header, _, line = row["source"].rpartition(":")
            indexed = any(name.endswith(f"/flashinfer/{line}") for name in index["functions"])
            assert line.isdigit() or not (header or indexed), f"{target}: {row['what']} has no line"
            assert "nan" not in " ".join(map(str, row.values())).lower().split(), row


def named(results: Results, what: str) -> list[MeasuredOpportunity]:
    return [one for one in found(results) if one.opportunity.what == what]


@pytest.mark.parametrize("name", ["h100/0.7.2/default", "h200/0.7.2/default"])
def test_the_largest_win_of_who_takes_fa2_is_fa3_without_what_the_merge_takes(recorded, name):
    """The points of the other side ask for FlashInfer's choice, which is fa3 there."""
    results = recorded(name, "prefill")
    (one,) = named(results, "fa3 instead of fa2")
    assert (one.where, one.group, dict(one.departs)) == ("", "won", {"backend": "fa2"})
    by_id = {point["point"]: point for point in results["points"]}
    for effect in one.effects:
        fa2, auto = by_id[effect.base_point], by_id[effect.other_point]
        assert (fa2["params"]["backend"], auto["params"]["backend"]) == ("fa2", "auto")
        assert auto["info"]["backend"] == "fa3" and len(fa2["kernels"]) == 1
        assert effect.in_turns and -0.5 < effect.change < -0.1
    assert len(one.effects) == 6
    assert median(effect.change for effect in one.effects) == pytest.approx(-0.4, abs=0.02)


def test_the_time_of_an_empty_kernel_and_of_other_kernels_bounds_a_gain() -> None:
    (one,) = found(of(point("a", 8.0, time_floor_us=2.0)), target(declared(bound="0.9")))
    assert one.most == one.room == pytest.approx(0.75)
    # the one kernel of a call has all of its time, though the column of its share is empty
    (alone,) = found(of(point("a", 8.0)), target(declared(bound="0.5 * main_pct / 100")))
    assert alone.bounded and alone.most == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("recording", "kernel", "choice", "said"),
    [
        # no parameter tells which gain
        ("default", "rmsnorm", "norm", "+2.6 % in the median, −3.4 % to +29.8 %, 3 within noise"),
        ("default", "rope", "rope_cache", r"−27.7 % to −16.2 % where `tokens in \[512, 4096\]`; \+.*"),
        ("kernels", "decode", "decode_kv", "−22.8 % where `cores == 'tensor'`; +36.9 % where `cores == 'cuda'`"),
        ("kernels", "gemm", "gemm_tiny", "+18.4 % to +477.9 %"),  # of two there is no middle
    ],
)  # fmt: skip
def test_no_median_stands_over_opposite_signs(recorded, recording, kernel, choice, said):
    found = summary(of_choice(recorded(f"h200/0.7.2/{recording}", kernel), choice))
    assert found and (found["median"] is None or choice in ("gemm_tiny", "norm"))
    assert fared(found) == said or re.fullmatch(said, fared(found))


def test_trials_within_noise_stand_apart_or_are_counted(recorded: Recorded) -> None:
    rows = named(recorded("h200/0.7.2/default", "rope"), "the cos/sin cache")
    (one,) = (one for one in rows if one.group == "lost")
    assert brought(one).split("; ")[1:3] == [
        "over 3 pairs +2.6 % in the median, +1.6 % to +2.9 %",
        "no difference where `tokens == 19456`",
    ]
    first, *others = one.effects
    doubtful = replace(one, effects=(replace(first, verdict="within noise"), *others))
    said = "over 3 pairs +2.6 % in the median, +1.6 % to +2.9 %, 1 of them within noise"
    assert brought(doubtful).split("; ")[1] == said


def test_the_advice_is_for_the_kernel_that_ran(recorded: Recorded) -> None:
    """Its shared memory, and its line, are those of a CUDA kernel; most points ran the CuTe DSL one."""
    what = "shared memory without bank conflicts"
    (norm,) = named(recorded("h200/0.7.2/default", "rmsnorm"), what)
    assert norm.points and all(point.endswith("_cuda") for point in norm.points)
    assert not named(recorded("h200/0.7.2/kernels", "rmsnorm"), what)


ADVISED = [
    # of one request's call 71 % is the attention kernel's, which leaves 80 % of the places empty
    ("h200/0.7.2/default", "decode", "smaller chunks for short sequences", (None, (0.56, 0.58), None)),
    # recording, target, advice: group, most, change; what instructions hold up is advised fewer of them
    ("h200/0.7.2/kernels", "activation", "GELU by tanh", ("won", None, -0.14)),
    ("h200/0.7.2/kernels", "rmsnorm", "LayerNorm's weights by vector loads", (None, (0.6, 0.8), None)),
    # held against softmax and draw together, 71.4 and 43.9 µs
    ("h200/0.7.2/kernels", "sampling", "sampling from logits", ("won", (0.8, 0.9), -0.54)),
    # only the pages of the window: 2.15 GB are read where it needs 270 MB
    ("h200/0.7.2/kernels", "decode", "only the pages of the window", (None, (0.874, 0.876), None)),
    # on tensor cores plan() splits nothing, as there are blocks enough: the longest request's run alone
    ("h200/0.7.2/kernels", "decode", "CUDA cores for uneven lengths", ("won", None, 205.0 / 419.3 - 1)),
]  # fmt: skip


@pytest.mark.parametrize(("recording", "kernel", "what", "told"), ADVISED)
def test_what_recordings_advise(recorded, recording, kernel, what, told):
    (one,) = named(recorded(recording, kernel), what)
    group, most, change = told
    assert group in (None, one.group)
    assert most is None or most[0] < one.most < most[1]
    assert (one.effect and one.effect.change) == (change and pytest.approx(change, abs=0.01))


def test_what_saves_of_the_same_work_is_tried_before_what_saves_of_a_step() -> None:
    """83 % of a step that holds one launch alone says less than 64 % of a kernel's time."""
    merge = {"group": "untried", "saved": 0, "same_work": False, "sets": ""}
    merge |= {"what": "graph", "bound": 0.83}
    kernel = merge | {"what": "kernel", "bound": 0.64, "same_work": True}
    sections = {"t": {"name": "t", "title": "T", "opportunities": [merge, kernel]}}
    assert [row["what"] for row in to_try(sections)] == ["kernel", "graph"]


def test_the_report_tells_what_a_caller_chooses_from_what_is_fixed(finished: Any) -> None:
    text = (finished.outputs / "reports/final-report.md").read_text()
    heads = ("A caller chooses", "The model fixes", "The traffic fixes")
    tables = {head: text.split(f"| {head} | from ")[1].split("\n\n")[0] for head in heads}
    for title, fixed_by in (("NeoX", heads[1]), ("log-normal lengths (decode)", heads[2])):
        assert [head for head, table in tables.items() if title in table] == [fixed_by]
    # What a choice changes nothing of is in its chapter alone.
    assert "Llama 3.1" not in "".join(tables.values())
    chapter = (finished.outputs / "reports/rope.md").read_text()
    assert "| Plain or Llama 3.1 scaling (fixed by the model) |" in chapter
    assert "fa2 or FlashInfer's choice (prefill)" in tables["A caller chooses"]
    fixed = {c.key: c.given for target in known().values() for c in target.compared if c.given}
    assert fixed["decode_zipf"] == "traffic" and fixed["prefill_window"] == "model"
    page = (finished.outputs / "reports/prefill.md").read_text()
    (cap,) = [line for line in page.splitlines() if line.startswith("| `logits_soft_cap` |")]
    assert "; fixed by the model |" in cap


def of_choice(results: Results, key: str) -> list[Effect]:
    choice = next(c for c in known()[results["target"]].compared if c.key == key)
    return effects(replace(choice, metrics=choice.metrics[:1]), results)


def test_what_is_said_of_a_split_kernel_is_not_its_merges(recorded: Recorded) -> None:
    """At 512 tokens the merge is the longest kernel: its issue activity and its waves are not those of attention."""
    results = recorded("h200/0.7.2/default", "prefill")
    (point,) = [p for p in results["points"] if p["point"].endswith("/paged_S512_B1_H32_K8_D128_f16_fa2_c")]  # fmt: skip
    split, merge = sorted(point["kernels"], key=lambda kernel: kernel["name"])
    assert merge["name"] == point["measurement"]["main_kernel"]
    (whole,) = named(results, "no split of a short KV")
    assert whole.point == point["point"]
    said = f"fill {split['metrics']['waves']:.2g} of a wave"
    assert said in worded(whole.opportunity, whole.facts)


def test_an_untried_change_says_how_to_try_it_once_and_batching_on_which_cores(finished):
    guide = (finished.outputs / "reports/kernel-dev-guide.md").read_text()
    section = guide.split("### Continuous Batching")[1].split("\n###")[0]
    grouped = [line.split(" | ")[0] for line in section.splitlines() if ", 8, " in line]
    assert {"| 128, 8, cuda", "| 128, 8, tensor"} <= set(grouped)
    page = (finished.outputs / "reports/prefill.md").read_text()
    table = page.split("| not tried |")[1].split("\n\n")[0]
    assert "how to try it" in table.splitlines()[0] and table.count("not tried") == 0
    assert "`ncuflow try` the patch |" in table and "it brought" not in page


FAST_HEADS = "heads on the fast axis of the grid, the longest query tiles first"


@pytest.mark.parametrize("name", ["h100/0.7.2/default", "h200/0.7.2/default"])
def test_a_causal_tail_is_shown_with_the_trial_of_another_order_of_blocks(recorded, name):
    results = recorded(name, "prefill")
    (one,) = named(results, FAST_HEADS)
    shares = {p.split("_S")[1].split("_")[0]: None for p in one.points}
    assert {"2048", "4096", "8192"} <= shares.keys() and "512" not in shares
    assert one.most == pytest.approx(0.35, abs=0.01) and "_fa2_c" in one.point
    (tried,) = [t for t in one.elsewhere if t.gpu == results["provenance"]["gpu"]]
    assert tried.source == "examples/changes/prefill-heads-fast" and one.group == "won"
    assert tried.told.change == pytest.approx(-0.243, abs=0.003) and -tried.told.change < one.most
    # what it is to leave as it was stands apart
    assert len(tried.tried) == 9 and max(pair.change for pair in tried.tried) < -0.04
    assert "where it need not gain +0." in brought(one)


@pytest.mark.parametrize("kernel", ["decode", "merge_state", "prefill", "rmsnorm", "rope"])
def test_no_evidence_is_shown_twice(recorded: Recorded, kernel: str) -> None:
    """Where DRAM is the busiest unit, how busy it is stands there once."""
    for point in some(scopes(recorded("h200/0.7.2/default", kernel)).values()):
        for one in some(known()[kernel].opportunities):
            assert not holds(one.where, point) or worded(one, point).count("DRAM") < 2


def test_a_graph_saves_none_of_the_time_in_which_kernels_read_their_cache_from_dram(recorded):
    """A layer's KV cache is not in L2, where a hot launch finds it: 10 µs on an H100, and 15 µs from DRAM."""
    (one,) = named(recorded("h100/0.7.2/default", "decode"), "a CUDA graph")
    assert one.effect and (one.effect.metric, one.group) == ("step_cold_us", "won")
    assert one.point == "decode/B1_L2048_H32_K8_D128_P16_f16_cc"
    # the host's call of that pair, and its cold launches
    assert (one.effect.base, one.facts["time_cold_us"]) == pytest.approx((40.6, 14.8), abs=0.1)
    assert 0 < -one.effect.change <= one.most
    assert one.most == pytest.approx(1 - one.facts["time_cold_us"] / one.effect.base)


@pytest.mark.parametrize("name", ["h100/0.7.2/default", "h200/0.7.2/default"])
def test_no_trial_brought_more_than_was_left_by_the_bytes_that_pass_dram(recorded, name):
    """Of the bytes of two states that are merged L2 keeps a part: DRAM moves 87 of 102 MB."""
    results = recorded(name, "merge_state")
    (one,) = named(results, "merge_state for two states")
    assert one.effect and one.effect.change == pytest.approx(-0.055, abs=0.01)
    (after,) = [p["measurement"] for p in results["points"] if p["point"] == one.effect.other_point]
    assert after["bytes_dram_counted"] < 0.86 * after["bytes_analytic"]
    needed_us = after["bytes_dram_counted"] / after["ceiling_dram_gbs_measured"] / 1e3
    assert one.room == pytest.approx(1 - needed_us / one.effect.base)
    assert one.room == pytest.approx({"h100": 0.17, "h200": 0.31}[name[:4]], abs=0.01)
    assert -one.effect.change < one.room


def test_a_gain_of_the_gpu_says_where_the_hosts_call_takes_it(recorded: Recorded) -> None:
    """The call with a cos/sin cache takes the host longer than the kernel that it replaces takes the GPU, for few tokens."""
    rows = named(recorded("h100/0.7.2/default", "rope"), "the cos/sin cache")
    (won,) = [one for one in rows if one.group == "won"]
    gains = {(effect.base_point, effect.other_point): effect for effect in won.effects}
    assert len(won.calls) == 1 < len(gains)
    for call in won.calls:
        gain = gains[call.base_point, call.other_point]
        assert gain.change < 0 and call.other > max(call.base, gain.base)
    said = (
        "; at `rope_pos_ids_inplace_T512_H32_K8_D128_f16_neox` the host takes 15.5 µs"
        " instead of 8.75 µs for the call: slower outside a CUDA graph"
    )
    assert said in brought(won)
    every = found(recorded("h100/0.7.2/default", "rope"))
    assert {one.opportunity.what for one in every if one.calls} == {"the cos/sin cache"}
