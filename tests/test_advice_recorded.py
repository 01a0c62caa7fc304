"""An advice of recordings: what won there, by how much, and why, without a GPU."""

import json
import re
from pathlib import Path

import pytest
from command import ncuflow
from conftest import ROOT, some

from ncuflow.cli import dispatch
from ncuflow.experiments import choices, recorded, text
from ncuflow.experiments.record import Advice, AdvisedShape
from ncuflow.io import BadInput
from ncuflow.pages.html import experiments as page

DECODE = ROOT / "recordings/h200/0.7.2/decode"


@pytest.fixture(scope="module")
def advice() -> Advice:
    return recorded.advise(DECODE, ["decode"], {}, "time_cold_us", 0.02)


def shape(advice: Advice, name: str) -> AdvisedShape:
    return next(one for one in advice.shapes if one.shape == f"decode/{name}")


def test_fa3_in_decode_is_slower_and_counters_say_why(advice: Advice) -> None:
    for batch in (1, 16, 64):
        one = shape(advice, f"B{batch}_L2048_H32_K8_D128_P16_f16_cc")
        slow = next(c for c in one.choices if c.settings["backend"] == "fa3")
        assert slow.fate == "slower" and slow.behind is not None and slow.behind.low > 1
        assert slow.asked["wrapper"] == {"use_tensor_cores": True, "backend": "fa3"}
        # What `auto` was there is recorded, so that it is no choice beside fa2 but the same one.
        (auto,) = (c for c in one.choices if c.point in one.best)
        assert (auto.settings["backend"], auto.resolved) == ("auto", {"backend": "fa2"})
        (fa2,) = (c for c in one.choices if c.settings["backend"] == "fa2")
        assert fa2.fate == "same"
        assert fa2.reason == f"the call of {auto.point}: backend=auto is fa2 here"
        assert "backend auto = fa2" in text.advice_text(advice)
        (why,) = one.cause
        assert why.startswith(f"{slow.point} takes ") and f"times as long as {auto.point}: " in why
        assert "it is PrefillWithKVCacheKernel on a grid of 132,1,1, latency-bound" in why
        assert "99 % of its work is padding" in why and "32.0 times the FLOPs on tensor" in why


@pytest.fixture(scope="module")
def measured_here(advice: Advice) -> Advice:
    """The same as if it were measured on this machine, where nothing says why."""
    found = advice.model_copy(deep=True)
    for one in found.shapes:
        one.cause = []
    return found


def test_reports_alone_tell_the_same_causes_as_results_do(advice, measured_here):
    recorded.explain_from(measured_here, DECODE / "decode/b18a3f74b")
    told = {one.shape: one.cause for one in measured_here.shapes}
    for one in some(s for s in advice.shapes if any("PrefillWithKVCache" in t for t in s.cause)):
        # a report has not the work that was asked for, nor times of the same digits
        ours, theirs = ([t.split(": ", 1)[1] for t in of] for of in (told[one.shape], one.cause))
        assert ours == theirs


def test_a_part_that_went_the_other_way_is_no_cause(advice: Advice) -> None:
    """A graph pads the grid and its kernels take longer: that is the cause, and none is made of what went the other way."""
    one = shape(advice, "B1_L2048_H32_K32_D128_P16_f16_cc")
    (why,) = one.cause
    assert re.search(
        r": launch \(\d+ % of it\), grid 16,32,1 → grid 24,32,1, ncu: [\d.]+ → [\d.]+ µs", why
    )


def test_what_holds_no_counters_of_points_is_refused(advice: Advice, tmp_path: Path) -> None:
    with pytest.raises(BadInput):
        recorded.explain_from(advice, tmp_path)
    (tmp_path / "x.ncu-rep").write_text("no report")
    with pytest.raises(BadInput):
        recorded.explain_from(advice, tmp_path)


def test_the_default_loses_where_a_kv_head_has_four_query_heads(advice: Advice) -> None:
    one = shape(advice, "B128_L2048_H32_K8_D128_P16_f16_cc")
    chosen = one.choice(one.advised)
    assert one.outcome == "winner" and chosen is not None
    assert chosen.settings["cores"] == "tensor" and one.regret is not None
    assert 0.2 < one.regret.low < one.regret.estimate < one.regret.high < 0.4
    assert one.layers is not None and not one.in_turns


def test_a_default_that_was_not_recorded_is_a_choice_that_was_not_timed(advice: Advice) -> None:
    one = shape(advice, "B64_L2048_H32_K8_D128_P16_f16_cc")
    assert one.choices[0].point == one.shape and one.choices[0].fate == "skipped"
    assert [choice.departs for choice in one.choices] == [0, 1, 2, 2]
    lines = text.advice_text(advice).splitlines()
    (row,) = (line for line in lines if line.startswith(f"{one.shape} "))
    assert "not timed" in row and "3 of 4" in row


def test_a_default_that_was_timed_is_never_called_not_timed(advice: Advice) -> None:
    one = shape(advice, "B128_L2048_H32_K8_D128_P16_f16_cc").model_copy(update={"regret": None})
    assert text.longer(one) == "+28.3 %, no interval"


def test_a_shape_with_one_choice_has_no_advice(advice: Advice) -> None:
    assert "decode/B32_L2048_H32_K32_D128_P16_f16_cc" not in {one.shape for one in advice.shapes}
    assert all(sum(c.time_us is not None for c in one.choices) > 1 for one in some(advice.shapes))


def test_pairs_in_turns_decide_where_there_are_some() -> None:
    place = ROOT / "recordings/h100/0.7.2/default"
    found = recorded.advise(place, ["decode"], {}, "time_cold_us", 0.02)
    assert found.tier == "C" and found.gpu == "NVIDIA H100 80GB HBM3"
    turned = [one for one in found.shapes if one.in_turns]
    assert some(turned) and len(turned) > len(found.shapes) / 2
    pages = recorded.advise(place, ["decode"], {"page_size": [1, 16]}, "time_cold_us", 0.02)
    assert len(pages.shapes) <= len(found.shapes) + 1
    assert any("page_size" in choice.settings for one in pages.shapes for choice in one.choices)


def test_a_rule_holds_at_every_shape_or_names_those_at_which_it_does_not(advice: Advice) -> None:
    rules = {rule.rule: rule for rule in advice.rules}
    slow = rules["decode: with cores=tensor, backend=fa3 is slower than another choice"]
    assert len(slow.holds) == 4 and not slow.fails
    one = advice.shapes[-1].model_copy(deep=True)
    one.best = [c.point for c in one.choices if c.settings["backend"] == "fa3"]
    rules = choices.rules([*advice.shapes[:-1], one], advice.metric)
    found = {rule.rule for rule in rules}
    assert "decode: with cores=tensor, backend=fa3 is slower than another choice" not in found
    # fa2 is nowhere advised in place of the default, which is the same call.
    assert "decode: with cores=tensor, backend=fa2 is among the fastest" not in found


def test_a_rule_is_about_shapes_that_tell_and_says_under_which_setting(advice: Advice) -> None:
    """Where CUDA cores win, fa2 and fa3 on tensor cores both lose: that one is slower shows in their times alone."""
    shapes = [one.model_copy(deep=True) for one in advice.shapes]
    held = "decode: with cores=tensor, backend=fa3 is slower than another choice"
    fast = "decode: with cores=tensor, backend=fa2 is among the fastest"
    for one in some(s for s in shapes if any(c.settings["backend"] == "fa3" for c in s.choices)):
        other = one.choices[0].model_copy(update={"point": "elsewhere", "settings": {}})
        one.choices.append(other)
        one.best = ["elsewhere"]
    lost = {rule.rule: rule for rule in choices.rules(shapes, advice.metric)}
    assert len(lost[held].holds) == 4 and fast not in lost
    for one in shapes:
        for choice in one.choices:
            choice.behind = None
    assert held not in {rule.rule for rule in choices.rules(shapes, advice.metric)}


def test_of_what_saves_the_host_time_a_time_of_the_gpu_makes_no_rule() -> None:
    """A CUDA graph: decode prices it by the host's time first, and takes no less on the GPU."""
    place = ROOT / "recordings/h200/0.7.2/default"
    found = recorded.advise(place, ["decode"], {}, "time_cold_us", 0.02)
    rules = {rule.rule: rule for rule in found.rules}
    assert not any("launch=" in rule for rule in rules)
    # Findings tell the pairs apart by the same condition: the longest sequence's share of the tokens.
    told = rules["decode: cores=tensor is among the fastest"]
    assert told.where == "batch > 1 and longest_share <= 0.125" and len(told.holds) >= 10
    (counterexample,) = told.fails
    assert "lognormal" in counterexample
    assert text.ruled(told).endswith(f"is among the fastest; not at {counterexample}")
    # Nor by any time that a default is among the fastest: nobody has to follow that.
    for metric in ("step_us", found.metric):
        told = {rule.rule for rule in choices.rules(found.shapes, metric)}
        assert not any("launch=eager" in rule or "pdl=auto" in rule for rule in told)


def test_the_page_shows_ties_in_grey(advice: Advice) -> None:
    text = page.rendered_advice(advice)
    assert 'class="tie"><a href="#decode_B1_L2048_H32_K32_D128_P16_f16_cc">default' in text
    assert "cores=tensor backend=fa3" in text and text.count("<details") == len(advice.shapes)


def test_a_choice_has_one_colour_whatever_is_known_of_its_backend(advice: Advice) -> None:
    """At one shape `auto` is said to be fa2, at the other nobody measured fa2; what was not measured is no tie."""
    text = page.rendered_advice(advice)
    assert text.count('<td class="c0"><a href="#') == 5 and 'class="c1"><a' not in text
    assert '<td class="none"></td>' in text and "td.none" not in text


def test_what_is_no_recording_is_refused(tmp_path):
    with pytest.raises(BadInput):
        dispatch(["advise", "--recorded", str(tmp_path)])
    done = ncuflow("advise", "--recorded", DECODE, "--apply", "flashinfer-store", "x")
    assert "tunes on a GPU" in done.stderr


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--audit", "x", "--html", "y"], "--html is of an advice: not with --audit"),
        (["--audit", "x", "--apply", "python", "y"], "--apply is of an advice"),
        (["--audit", "x", "y", "--counters", "z"], "--counters is of an advice"),
        (["--audit", "x", "--also", "page_size=1"], "--also is of an advice"),
        (["--audit", "x", "y", "z"], "one store, or two to compare"),
        (["--recorded", str(DECODE), "--counters", "x"], "a recording has its own"),
        (["--recorded", str(DECODE), "--also", "pagesize=1"], "'pagesize' is a parameter of none"),
        (["--target", "decode", "--blocks", "[{}]", "--also", "m=1"], "'m' is a parameter of none"),
        (["--target", "decode", "--blocks", "[{}]", "--also", "kv=9"], "--also: "),
        (["--target", "decode", "--blocks", '[{"m": 1}]'], "unknown parameter 'm'"),
        (["--target", "decoed", "--blocks", "[{}]"], "unknown kernel target 'decoed'"),
    ],
)
def test_what_would_be_given_and_not_done_is_bad_usage(words, why):
    done = ncuflow("advise", *words)
    assert done.returncode == 2 and why in done.stderr


@pytest.mark.parametrize(
    ("option", "content", "why"),
    [
        ("--points", [{"target": "decoed"}], "unknown kernel target 'decoed'"),
        ("--points", {}, "not a list of points"),
        ("--workload", {"sweep": "a", "sweeps": {"a": {"decode": [{"m": 1}]}}}, "unknown parameter 'm'"),
        ("--workload", {"sweep": "a", "sweeps": {"a": {"decoed": [{}]}}}, "unknown kernel target"),
    ],
)  # fmt: skip
def test_what_is_wrong_in_a_file_is_told_with_its_name(option, content, why, tmp_path):
    path = tmp_path / "given.json"
    path.write_text(json.dumps(content))
    with pytest.raises(BadInput, match=f"given.json: .*{why}"):
        dispatch(["advise", option, str(path)])
