"""What pages conclude from the recordings: each statement here was once wrong or misleading.

The points are found by what they are, not by name: recordings are replaced.
"""

from __future__ import annotations

import copy
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import ROOT, Recorded, some, some_by_default

from ncuflow.claims import files
from ncuflow.claims.audit import judge
from ncuflow.claims.evidence import ClaimEvidence
from ncuflow.compare import attribution
from ncuflow.experiments.record import read as read_trials
from ncuflow.experiments.recorded import advise
from ncuflow.expression import evaluate, holds
from ncuflow.findings import jit, stored
from ncuflow.findings.choices import divided, effects, every_tried, tried_elsewhere, with_a_change
from ncuflow.findings.join import WAITED, is_torchs
from ncuflow.findings.opportunities import UNTRIED, MeasuredOpportunity, found, graph, scopes
from ncuflow.findings.steps import planned
from ncuflow.findings.waits import stall_tree
from ncuflow.format import MISSING, percent
from ncuflow.gpu.table import device
from ncuflow.io import read_json
from ncuflow.model import Kernel, Point, Results
from ncuflow.pages.markdown import figures, guide, guide_kernels
from ncuflow.pages.markdown.pages import conclusion, report_context, to_try
from ncuflow.pages.markdown.rendering import environment
from ncuflow.pages.section import (
    _opportunity,
    brought,
    opportunity_rows,
    target_section,
)
from ncuflow.pages.series import axis_of, best, sent, series_of, usual
from ncuflow.target.contract import Choice, known
from scripts import tried as tried_script

NOW = "0.7.2"
SHIPPED = sorted(
    (path.parent.relative_to(ROOT / "recordings").as_posix(), target)
    for path in (ROOT / "recordings").glob(f"h*/{NOW}/*/manifest.json")
    for target in read_json(path)["targets"]
    if any((path.parent / target).glob("*/*.ncu-rep.xz"))  # a recording may be of times alone
)


EVERY = pytest.mark.parametrize(("recording", "target"), SHIPPED)


def kernels(results: Results) -> Iterator[Kernel]:
    return (k for p in results["points"] if p["status"] == "ok" for k in p["kernels"])


def of(recorded: Recorded, *targets: str) -> Iterator[tuple[str, Results]]:
    """Recordings and the results of these targets in them."""
    return ((r, recorded(r, t)) for r, t in SHIPPED if not targets or t in targets)


def macros() -> Any:
    return environment().get_template("_macros.j2").make_module({"provenance": {}})


@EVERY
def test_the_filter_of_a_page_takes_what_ran_there_and_nothing_of_torch(
    recording: str, target: str, recorded: Recorded
) -> None:
    results = recorded(recording, target)
    launched = guide_kernels.launch_counts(results["points"])
    pattern = str(guide_kernels.kernel_filter(target, launched)).partition("regex:")[2].strip('"')
    for kernel in some(kernels(results)):
        name = kernel["name"]
        if "(CuTe DSL)" in name:  # ncu's option is held against the mangled name
            name = str(kernel["demangled"])
        assert bool(re.search(pattern, name)) != is_torchs(kernel), name


def test_the_filter_of_a_page_takes_no_kernel_whose_name_contains_one_of_its(
    recorded: Recorded,
) -> None:
    named = {
        "merge_state": "PersistentVariableLengthMergeStatesKernel",
        "rmsnorm": "kernel_cutlass_kernel_flashinfernormkernelsrmsnormQKRMSNormKernel_object_at",
    }
    for recording, results in some(of(recorded, *named)):
        launched = guide_kernels.launch_counts(results["points"])
        pattern = str(guide_kernels.kernel_filter(results["target"], launched))
        found = pattern.partition("regex:")[2].strip('"')
        assert not re.search(found, named[results["target"]]), (recording, found)


def test_the_code_path_has_a_place_for_each_of_flashinfers_kernels_that_ran(
    recorded: Recorded,
) -> None:
    seen = 0
    for recording, results in of(recorded, *(set(known()) - {"apis"})):  # which are of many files
        index = stored.optional(ROOT / "recordings" / recording / "source_index.json")
        if path := guide_kernels.code_path(results["target"], index, results):
            places = {symbol: where for symbol, where, _ in path["kernels"]}
            own = {k["name"] for k in kernels(results) if "flashinfer" in (k["demangled"] or "")}
            assert all(places[name] for name in own), (recording, results["target"])
            seen += len(own)
    assert seen


def test_every_reason_that_a_page_names_has_a_meaning_on_the_guides_page(
    recorded: Recorded,
) -> None:
    """And a tree says whether it counts hidden waits: by samples of cycles without an issue a barrier that other warps hide
    weighs less than by the ratios of all warps."""
    text = (ROOT / "templates/guide/reference.md.j2").read_text()
    assert "By ratios" in text and "hidden ones too" in text
    named, bases = set(), set()
    for _, results in of(recorded):
        for point in results["points"]:
            named |= {point["measurement"].get(f"{which}_stall") for which in ("top", "second")}
        for kernel in [*results["deep"], *kernels(results)]:
            if tree := stall_tree(kernel):
                named |= {reason.reason for reason in tree.top()}
        bases |= {tree.basis for kernel in results["deep"] if (tree := stall_tree(kernel))}
    assert named - {None} <= set(guide.REMEDIES)
    assert "samples" in bases


def test_a_variable_is_cited_where_its_default_is_read() -> None:
    recording = next(r for r, _ in SHIPPED if r.endswith("default"))
    index = stored.optional(ROOT / "recordings" / recording / "source_index.json")
    for row in some(guide_kernels.environment(index)):
        file, _, line = row["place"].rpartition(":")
        reads = [r for r in index["environment"][row["name"]] if r["file"] == file]
        (cited,) = [r for r in reads if r["line"] == int(line)]
        assert cited["default"] is not None or all(r["default"] is None for r in reads), row["name"]


def test_what_is_not_covered_is_no_backend_that_a_target_has() -> None:
    _, _, rest = (ROOT / "docs/kernels.md").read_text().partition("## Not covered")
    rows = re.findall(r"^\| (.+?) \|", rest.partition("## ")[0], re.M)
    names = {"cuDNN": "cudnn", "CuTe DSL": "cute-dsl", "TensorRT-LLM": "trtllm-gen", "CUTLASS": "cutlass"}  # fmt: skip
    backends = {backend.name for target in known().values() for backend in target.backends}
    for words, name in names.items():
        assert name not in backends or not any(f"{words}'s" in row for row in rows), words
    assert "4-bit caches" not in rest


def rows(recording: str, target: str, recorded: Recorded) -> list[MeasuredOpportunity]:
    return found(recorded(recording, target))


@EVERY
def test_what_was_tried_anywhere_is_not_said_to_be_untried(
    recording: str, target: str, recorded: Recorded
) -> None:
    """In another recording of the GPU and version, in an advice, or as a change of FlashInfer's source."""
    results = recorded(recording, target)
    others = tried_elsewhere(results)
    every_scope, untried = scopes(results), [one for one in found(results) if one.group == UNTRIED]

    def tried(one: MeasuredOpportunity) -> bool:
        return any(
            (not t.where or holds(t.where, every_scope[p])) and t.tells(one.mosts.get(p, one.most))
            for t in others
            for p in one.points
            if t.what == one.opportunity.what
        )

    assert [one.opportunity.what for one in untried if tried(one)] == []


def test_what_was_tried_elsewhere_turns_where_its_condition_does(recorded: Recorded) -> None:
    """A cache of 8 bits gains on tensor cores and costs on CUDA cores; tensor cores go by the longest sequence."""
    recording = "h200/0.7.2/default"
    told = rows(recording, "decode", recorded)
    bits = [o for o in told if o.opportunity.what == "a KV cache of 8 bits"]
    groups = {o.group: o for o in bits}
    assert groups.keys() == {"won", "lost", "untried"} and len(bits) == 3
    # It cost where 80 % of the cycles issue: that says nothing of a head of its own for each query head, where a third do.
    assert all("_K32_" in p for p in groups["untried"].points)
    assert not any("_K32_" in p for p in groups["lost"].points)
    (grouped,) = [o for o in told if "longest_share <=" in o.where]
    assert grouped.where.startswith("batch > 1 and ") and not any(
        "/B1_" in p for p in grouped.points
    )
    against = [(t, pair) for t in grouped.elsewhere for pair in t.pairs]
    for one, pair in some(against):
        assert pair.change > 0 and holds(grouped.where, one.facts(pair)), pair.at
        assert pair.at in brought(grouped)


def test_the_file_of_trials_is_what_changes_advices_and_a_recording_say(recorded: Recorded) -> None:
    stored_rows = [one.row() for one in every_tried()]
    made = [*tried_script.of_changes(), *tried_script.of_advices()]
    for recording, results in of(recorded, *(set(known()) - {"apis"})):
        made += tried_script.of_results(results, recording.replace("/", "-"))
    assert all(one.row() in stored_rows for one in made)


# Folders of changes that no opportunity names, and why.
UNNAMED = {"decode-heads-fast": "3 % where decode-uneven-chunks, which is named, brings a quarter"}


def test_each_change_that_was_tried_is_an_opportunitys_trial() -> None:
    named = {one.trial for target in known().values() for one in target.opportunities}
    for path in some(sorted((ROOT / "examples/changes").glob("*/README.md"))):
        if not path.read_text().startswith("# Planted") and path.parent.name not in UNNAMED:
            assert path.parent.name in named, path


def test_what_points_of_a_sweep_try_is_a_choice_and_no_roof_is_a_mechanism() -> None:
    for one in some(one for target in known().values() for one in target.opportunities):
        larger = re.match(
            "points with a larger", one.how
        )  # is other traffic, and stands in the table of points
        roof = re.fullmatch(r".*\(1 - \w*dram_pct / 100\)", one.bound)
        assert not larger and not roof, one.what


@pytest.mark.parametrize(
    ("target", "what", "condition"),
    [
        ("prefill", "contiguous K and V", "cached == 0"),  # a prefix in the cache is in pages
        ("decode", "no split", "lengths == 'even'"),  # a split cuts the longest of unequal ones
        ("rmsnorm", "CUDA norms for few rows", "norm == 'auto'"),
    ],
)
def test_a_change_is_advised_where_it_can_be_made(
    target: str, what: str, condition: str, recorded: Recorded
) -> None:
    for point in some(advised(recorded, what, target)):
        assert holds(condition, point["params"]), point["point"]


def test_half_of_the_bits_saves_half_of_the_pipes_time(recorded: Recorded) -> None:
    rows = [one for _, results in of(recorded, "prefill") for one in found(results)]
    for one in some(one for one in rows if one.opportunity.what.startswith("queries, keys")):
        assert one.most <= one.facts["tensor_pipe_elapsed_pct"] / 200 + 1e-9


def test_a_norm_that_only_a_setting_gives_is_no_default_and_the_hosts_side_is_told(
    recorded: Recorded,
) -> None:
    """CuTe DSL is FlashInfer's choice, faster for many rows; its calls take the host longer, which few rows wait for."""
    for recording in ("h200/0.7.2/default", "h100/0.7.2/default"):
        results = recorded(recording, "rmsnorm")
        told = {one.opportunity.what: one for one in found(results)}
        for what in ("the CuTe DSL norms", "shared memory without bank conflicts"):
            assert told[what].departs == (("norm", "cuda"),)
        few = told["the CUDA norms for few rows, outside a CUDA graph"]
        assert not few.departs and few.group == "won" and few.effect
        assert (few.effect.metric, len(few.effects)) == ("step_us", 4)
        assert all(-0.5 < effect.change < -0.35 for effect in few.effects)
        (beside,) = guide.shown_choices(results)["norm"]["beside"]
        assert beside["metric"] == "host time of the call" and beside["summary"]["most"] < -0.35
        index = stored.optional(ROOT / "recordings" / recording / "source_index.json")
        (read,) = index["environment"]["FLASHINFER_USE_CUDA_NORM"]
        (row,) = [r for r in opportunity_rows(results, index) if r["what"] == "the CuTe DSL norms"]
        assert row["source"] == f"norm/__init__.py:{read['line']}"


def test_a_replayed_decode_takes_longer_at_every_batch(recorded: Recorded) -> None:
    """As its advice says: its padded grid does as many instructions in more time, of many sequences too."""
    (launch,) = (c for c in known()["decode"].compared if c.key == "launch")
    for recording in ("h200/0.7.2/default", "h100/0.7.2/default"):
        results = recorded(recording, "decode")
        found = effects(replace(launch, metrics=("time_cold_us",)), results)
        assert {dict(one.fixed)["batch"] for one in found} >= {1, 8, 32, 128}
        assert all(one.change > 0.03 and one.verdict == "differs" for one in found)


@EVERY
def test_at_most_is_a_mechanisms_and_never_the_roof_alone(
    recording: str, target: str, recorded: Recorded
) -> None:
    wrong = []
    for one in rows(recording, target, recorded):
        bound = evaluate(one.opportunity.bound, one.facts) if one.opportunity.bound else None
        text = _opportunity(one, target, None)["most"]
        bounded = bound is not None and bound <= one.room * (1 + 1e-9)
        if not text.startswith(percent(bound) if bounded else MISSING):
            wrong.append((one.opportunity.what, text))
    assert wrong == []


def test_smaller_chunks_are_advised_where_the_least_chunk_binds(recorded: Recorded) -> None:
    for point in some(advised(recorded, "smaller chunks", "decode")):
        p = point["params"]
        chunks = -(-p["kv_len"] // max(128, p["page_size"]))
        assert point["info"]["split_kv"], point["point"]
        grids = [k["grid_size"] for k in point["kernels"]]
        assert p["batch"] * p["kv_heads"] * chunks in grids, point["point"]


def advised(recorded: Recorded, what: str, *targets: str) -> Iterator[Any]:
    """The points at which a change of such a name is advised."""
    for _, results in of(recorded, *targets):
        points = {p["point"]: p for p in results["points"]}
        for one in found(results):
            if what in one.opportunity.what:
                yield from (points[name] for name in one.points)


def test_a_merge_is_advised_where_its_blocks_have_more_than_one_item(recorded: Recorded) -> None:
    for point in some(advised(recorded, "merge kernel", "decode", "prefill")):
        p = point["params"]
        merge = next(k for k in point["kernels"] if "Merge" in k["name"])
        assert p["batch"] * p.get("seq_len", 1) * p["qo_heads"] > merge["grid_size"], point["point"]


def test_what_a_default_call_gains_comes_first_and_what_is_forced_under_its_heading(
    recorded: Recorded,
) -> None:
    for recording, target in SHIPPED:
        told = rows(recording, target, recorded)
        forced = [bool(one.departs) for one in told]
        assert forced == sorted(forced), (recording, target)
    prefill = rows("h200/0.7.2/default", "prefill", recorded)
    assert not prefill[0].departs and prefill[0].opportunity.what != "fa3 instead of fa2"
    for one in prefill:
        if all("_fa2_" in point for point in one.points):
            assert ("backend", "fa2") in one.departs
    advice = opportunity_rows(recorded("h200/0.7.2/default", "prefill"), None)
    page = str(macros().opportunities(advice, True, []))
    before, _, after = page.partition('**Only for callers who set `backend="fa2"`:**')
    assert "fa3 instead of fa2" in after and "fa3 instead of fa2" not in before
    sections = {"p": {"name": "p", "title": "P", "opportunities": advice}}
    assert not any("fa2" in row["at"] for row in to_try(sections))


def test_a_pair_with_a_merge_on_one_side_tells_nothing_of_the_backend(recorded: Recorded) -> None:
    """Of fa2 with a split against fa3 most is the merge's: "no split" has that, and fa2 without it against fa3 the rest."""
    for recording in ("h200/0.7.2/default", "h100/0.7.2/default"):
        results = recorded(recording, "prefill")
        merged = {p["point"] for p in results["points"] if p["measurement"].get("merge_pct")}
        assert merged
        prices = {choice.key: effects(choice, results) for choice in known()["prefill"].compared}
        assert not merged & {e.base_point for e in prices["backend"]}
        assert merged & {e.base_point for e in prices["prefill_split"]}
        assert prices["backend_whole"]
        for one in found(results):
            if one.opportunity.what == "fa3 instead of fa2":
                assert not merged & set(one.points)


def test_no_rule_is_told_of_two_pairs(recorded: Recorded) -> None:
    few = []
    for _, results in of(recorded):
        for choice in known()[results["target"]].compared:
            pairs = effects(replace(choice, metrics=choice.metrics[:1]), results)
            few += divided(pairs) if 0 < len(pairs) <= 2 else []
    for part in some(few):
        assert not re.search("[<>]| and ", part.where), part


def test_a_kernels_own_best_point_is_no_ceiling_that_it_is_held_against(recorded: Recorded) -> None:
    sections = {t: target_section(recorded(r, t)) for r, t in SHIPPED if r == "h200/0.7.2/default"}
    for section in sections.values():
        head = "of its best point" if section["passed"] else "of measured peak"
        assert f"| {head} |" in str(macros().points_table(section))
    told = conclusion({}, sections, [])
    named = {told["nearest"][1]} if told["nearest"] else set()
    assert not named & {s["title"] for s in sections.values() if s["passed"]}


def test_the_hosts_call_stands_beside_the_kernels_and_in_what_a_choice_changes(
    recorded: Recorded,
) -> None:
    """A graph spares the host, and its kernels take longer: both are told."""
    for _, results in some(of(recorded, "decode")):
        section = target_section(results)
        rows = [p["measurement"] for p in results["points"] if p["status"] == "ok"]
        bound = [m for m in rows if (m["host_launch_us"] or 0) > (m["time_cold_us"] or 1e9)]
        assert len(section["waiting"]) == len(bound)
        text = str(macros().points_table(section))
        assert "| host's call |" in text and (f"At {len(bound)} of" in text) == bool(bound)
        launch = guide.shown_choices(results)["launch"]
        if graph := section[
            "graph"
        ]:  # it pays where the call is longer than what kernels take in it
            assert graph["pays"] <= sum(
                m["host_launch_us"] > m["time_cold_us"] * (1 + graph["longer"]) for m in bound
            )
        if launch["summary"]:
            metrics = {beside["metric"] for beside in launch["beside"]}
            assert {"cold time", "hot time"} & metrics


def test_tensor_cores_are_no_advice_where_they_gain_nothing(recorded: Recorded) -> None:
    imported = '{% from "guide/_section.md.j2" import versus with context %}'
    template = environment().from_string(imported + '{% include "guide/decode/selection.md.j2" %}')
    told = []
    for _, results in of(recorded, "decode"):
        choices = guide.shown_choices(results)
        lines = template.render(C=choices, provenance={}).splitlines()
        (row,) = [line for line in lines if "GQA |" in line]
        if summary := choices["cores_grouped"]["summary"]:
            told.append(("use_tensor_cores=True" in row, summary["least"] <= -0.02))
    assert all(advice == gains for advice, gains in some(told))


def test_a_bar_of_the_merge_kernel_says_so(recorded: Recorded) -> None:
    results = recorded("h200/0.7.2/default", "prefill")
    for point in some(p for p in results["points"] if p["status"] == "ok"):
        merged = "Merge" in (point["measurement"]["main_kernel"] or "")
        assert bool(figures._of_merge(point)) == merged, point["point"]


# What was measured with different versions is no side.
ALIKE = [one for one in SHIPPED if one[0] != f"h200/{NOW}/cases"]


@pytest.mark.parametrize("shipped", some_by_default(ALIKE, 3), ids="-".join)
def test_a_rule_that_asks_for_a_default_is_no_rule(shipped):
    """Whoever sets nothing follows it."""
    recording, target = shipped
    advice = advise(ROOT / "recordings" / recording, [target], (), "time_cold_us", 0.02)
    fastest = [rule for rule in advice.rules if rule.rule.endswith("is among the fastest")]
    asked = {shape.shape for shape in advice.shapes if shape.advised != shape.shape}
    assert [rule.rule for rule in fastest if not asked & {*rule.holds}] == []


def test_the_default_is_timed_where_a_point_asks_for_what_it_is():
    """On compute capability 9.0 the backend "auto" is fa3: a point of fa3 is that call."""
    advice = advise(ROOT / "recordings/h200/0.7.2/kernels", ["prefill"], (), "time_cold_us", 0.02)
    fa3 = [s for s in advice.shapes if any("_fa3_" in c.point and c.time_us for c in s.choices)]
    assert fa3
    for shape in fa3:
        default = shape.choice(shape.shape)
        assert default and default.time_us, shape.shape


def test_kernels_that_take_longer_under_ncu_are_not_said_to_take_no_longer(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = SimpleNamespace(causes=[])
    monkeypatch.setattr(attribution, "explain", lambda *_: nothing)
    advice = advise(ROOT / "recordings/h200/0.7.2/decode", ["decode"], (), "time_cold_us", 0.02)
    points = {p["point"]: p for p in recorded("h200/0.7.2/decode", "decode")["points"]}

    def spent(name: str) -> float:
        return sum(kernel["duration_ns"] or 0 for kernel in points[name]["kernels"])

    causes = [cause.partition("; under ncu") for shape in advice.shapes for cause in shape.cause]
    for ratio, _, why in some(cause for cause in causes if cause[2]):
        slow, fast = re.findall(r"decode/\S+", ratio)
        longer = spent(slow) > 1.01 * spent(fast)
        assert ("take no longer" in why) != longer, why


@pytest.mark.parametrize(
    ("recording", "target", "what", "change"),
    [
        (f"h200/{NOW}/default", "decode", "shorter chunks for uneven lengths", "decode-uneven-chunks"),
        (f"h100/{NOW}/default", "decode", "shorter chunks for uneven lengths", "decode-uneven-chunks"),
        (f"h200/{NOW}/kernels", "sampling", "several blocks a row when top-p is applied", "top-p-blocks"),
        (f"h200/{NOW}/kernels", "cascade", "fa2 for levels that leave fa3's tiles empty", "cascade-fa2-levels"),
    ],
)  # fmt: skip
def test_a_patch_that_was_faster_stands_in_the_row_that_it_is_one_of(
    recording: str, target: str, what: str, change: str, recorded: Recorded
) -> None:
    results = recorded(recording, target)
    (one,) = [row for row in rows(recording, target, recorded) if row.opportunity.what == what]
    here = [t for t in one.elsewhere if t.gpu == results["provenance"]["gpu"]]
    assert [t.source for t in here] == [f"examples/changes/{change}"] and one.group == "won"
    (told,) = [r for r in opportunity_rows(results, None) if r["what"] == what]
    assert "not tried" not in told["brought"] and change in told["brought"]


def test_flat_decode_stays_the_advice_and_the_patch_that_turns_it_stands_beside(
    recorded: Recorded,
) -> None:
    """What is installed runs fa3 for each level; with fa2 where fa3's tiles are empty the cascade is ahead of flat decode."""
    section = target_section(recorded(f"h200/{NOW}/kernels", "cascade"))
    template = environment().from_string(
        '{% from "guide/_section.md.j2" import versus with context %}'
        '{% include "guide/cascade/selection.md.j2" %}'
    )
    choices = guide.shown_choices(recorded(f"h200/{NOW}/kernels", "cascade"))
    (row,) = template.render(C=choices, s=section, provenance={}).strip().splitlines()
    assert row.startswith("| sequences that share a prefix | flat decode")
    assert "cascade-fa2-levels" in row


def test_no_trial_says_that_its_sides_did_other_work() -> None:
    """They are one call: of a launch it says how many blocks and instructions there were, behind what explains more."""
    for path in some(sorted((ROOT / "examples/changes").glob("*/trial*.json.xz"))):
        (trial,) = read_trials(path)
        for point in trial.points:
            told = [cause for cause in point.causes if cause.kind == "other_work"]
            assert all("work" not in f"{c.what} {c.base}" for c in told), path
            if told and point.timing:
                way = 1 if point.timing.change_us > point.timing.base_us else -1
                most = max(way * (c.delta_us or 0.0) for c in point.causes)
                assert way * (point.causes[0].delta_us or 0.0) == most, path


def test_no_page_tells_a_median_of_two() -> None:
    for path in [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]:
        assert not re.search(r"median of (2|two)\b", path.read_text()), path


@pytest.mark.parametrize("gpu", ["h100", "h200"])
def test_tensor_cores_for_gqa_hold_for_lengths_that_are_said(gpu: str, recorded: Recorded) -> None:
    """They lost where a long sequence ran alone at the end: the condition is the share of it, and no batch size is."""
    results = recorded(f"{gpu}/{NOW}/default", "decode")
    (choice,) = (c for c in known()["decode"].compared if c.key == "cores_grouped")
    tried = [effect for effect in effects(choice, results) if effect.fixed]
    parts = divided(tried)
    (gains,) = (part for part in parts if "longest_share <=" in part.where)
    (loses,) = (part for part in parts if part is not gains and with_a_change(part.effects))
    assert ("<" in loses.where or ">" in loses.where) == (len(loses.effects) >= 3)
    assert "`longest_share`" in (ROOT / "templates/guide/reference.md.j2").read_text()
    assert all(one.change < 0 or one.verdict == "within noise" for one in gains.effects)
    assert all(one.change > 0 or one.verdict == "within noise" for one in loses.effects)
    assert len(gains.effects) >= 5
    assert "lognormal" in {dict(effect.fixed)["lengths"] for effect in loses.effects}
    said = [row for row in found(results) if row.opportunity.what == "tensor cores for GQA"]
    told = [row.where for row in said if row.effect and row.effect.change < 0]
    assert told == [f"batch > 1 and {gains.where}"]  # a single sequence is no pair of the choice
    shown = guide.shown_choices(results)["cores_grouped"]["fared"]
    assert shown.count("where `batch > 1 and longest_share") == shown.count(" where ")


def test_a_headline_says_which_call_and_setting_it_is_of(recorded: Recorded) -> None:
    """The best rate of sampling is softmax's, that of the cascade flat decode's, that of decode one without grouped heads."""
    seen = set()
    macro = environment().get_template("_macros.j2").make_module({"provenance": {}}).headline
    for recording, target in SHIPPED:
        results = recorded(recording, target)
        if top := (section := target_section(results))["best"]:
            said = re.sub(r"\W", "", str(macro(section)))  # an underscore is escaped in Markdown
            calls = {p["params"].get("variant") for p in results["points"] if p["status"] == "ok"}
            if len(calls) > 1:
                assert f"variant{top['params']['variant']}" in said, (recording, target)
                seen.add(target)
            if target == "decode" and recording.endswith("default"):
                assert "kv_heads32" in said and top["params"]["qo_heads"] == 32
    assert {"rope", "merge_state", "sampling", "cascade"} <= seen
    for page in ("INDEX", "final-report", "analysis"):
        assert "headline(t)" in (ROOT / f"templates/{page}.md.j2").read_text(), page


def test_what_is_measured_of_the_jit_anywhere_tests_what_is_claimed_of_it() -> None:
    """Evidence without such a measurement has another's, and its points say whose."""
    asked = [c for c in files.load(ROOT / "claims") if c.id.startswith("jit-")]
    judged = {c.id: judge(c, ClaimEvidence({})) for c in asked}
    assert {name: judged[name].verdict for name in judged} == {
        "jit-cold-10-to-500-ms": "refuted",
        "jit-disk-hit": "not testable here",  # 9.9 of 10 ms: too close to call
        "jit-memory-hit": "confirmed",
        "jit-library-name": "refuted",
        "jit-hashed-uri": "refuted",
    }
    for record in judged.values():
        cited = some(record.as_json()["evidence"])
        assert all("of FlashInfer" in one["point"] for one in cited), record.as_json()["id"]
    assert "Too close to call" in judged["jit-disk-hit"].reason


def test_the_jit_of_elsewhere_is_what_was_measured_there() -> None:
    told = jit.elsewhere()
    measured = read_json(ROOT / told["report"])
    assert {key: told[key] for key in ("gpu", "flashinfer", "cpu_count")} == {
        key: measured[key] for key in ("gpu", "flashinfer", "cpu_count")
    }
    for name, module in some(measured["modules"].items()):
        mine, own = told["modules"][name], jit.summary(name, module)
        for key, value in jit.summary(name, mine).items():
            if key.endswith("_s") and key != "first_launch_s":
                assert value == pytest.approx(own[key], rel=1e-3), (name, key)


def test_every_latency_bound_kernel_of_tensor_instructions_has_a_cause(recorded: Recorded) -> None:
    """How many warps a scheduler has, how often the pipe gets an MMA and could take one, and what one more block would need."""
    told = 0
    for recording, target in SHIPPED:
        results = recorded(recording, target)
        found = guide_kernels.waiting(results)
        of = {point["point"]: point["measurement"] for point in results["points"]}
        for row in found["rows"]:
            told += 1
            busy = of[row["point"]]["tensor_pipe_pct"] / 100  # of active cycles, by its own counter
            assert row["takes"] / row["every"] == pytest.approx(busy, rel=0.03), row
            assert row["eligible"] < row["warps"] and row["takes"] < row["every"], row
            assert row["limit"] and row["stall"]
    assert told >= 6
    prefill = recorded("h200/0.7.2/default", "prefill")
    waits = [
        p
        for p in prefill["points"]
        if p["measurement"]["limiter"] == "latency" and not p["measurement"]["merge_pct"]
    ]
    found = guide_kernels.waiting(prefill)
    assert found["points"] == len(waits) and all(row["further"] for row in found["rows"])


def test_a_block_more_fits_with_what_it_is_said_to_need(recorded: Recorded) -> None:
    gpu = device("NVIDIA H200")
    for row in some(guide_kernels.waiting(recorded("h200/0.7.2/default", "prefill"))["rows"]):
        said = str(row["further"])
        registers = int(re.search(r"registers \d+ → (\d+)", said)[1])  # type: ignore[index]
        kernel = next(
            k
            for p in recorded("h200/0.7.2/default", "prefill")["points"]
            if p["point"] == row["point"]
            for k in p["kernels"]
        )
        threads = kernel["block_size"] or 0
        assert gpu.fits(threads, registers, 0)["registers"] > row["limit"].blocks
        assert gpu.fits(threads, registers + 8, 0)["registers"] <= row["limit"].blocks


def test_what_could_save_most_is_bounded_by_a_mechanism(recorded: Recorded) -> None:
    """A report that names what nobody tried and could save most says by how much: a dash is no such answer."""
    for recording in ("h200/0.7.2/default", "h100/0.7.2/default"):
        targets = [target for of, target in SHIPPED if of == recording]
        rows = to_try({name: target_section(recorded(recording, name)) for name in targets})
        bounds = [bool(row["bound"]) for row in rows if row["group"] == UNTRIED]
        assert some(bounds)[0] and bounds == sorted(bounds, reverse=True)


def test_bytes_that_pass_dram_beyond_those_needed_have_a_cause(recorded: Recorded) -> None:
    told = {}
    for recording, target in SHIPPED:
        for row in target_section(recorded(recording, target))["moved_more"]:
            assert row["m"]["moved_ratio"] > 1.5 and row["why"], row["id"]
            told[row["id"]] = row["why"]
    split = {name for name, why in told.items() if why.startswith("the states of the split")}
    assert any("tinygemm" in name and "read again" in why for name, why in told.items())
    for recording, target in SHIPPED:
        points = recorded(recording, target)["points"]
        assert all(p["measurement"]["merge_pct"] for p in points if p["point"] in split)


def test_each_kernel_of_a_call_has_its_share_and_its_limit(recorded: Recorded) -> None:
    """The merge is not prefill: of the point that launches most kernels each is told."""
    told = set()
    for recording, target in SHIPPED:
        points = [p for p in recorded(recording, target)["points"] if p["status"] == "ok"]
        if call := guide_kernels.calls(points):
            most = max(len(p["kernels"]) for p in points)
            assert len(call["rows"]) == most and all(row["limited"] for row in call["rows"])
            assert sum(row["share"] for row in call["rows"]) == pytest.approx(1)
            told.add(target)
    assert {"decode", "prefill"} <= told


def test_a_choice_that_launched_the_same_has_no_price_and_prefill_no_graph(
    recorded: Recorded,
) -> None:
    """Both sides of a split that plan() did not make are one launch; no prefill was measured in a CUDA graph."""
    decode, prefill = (recorded("h200/0.7.2/default", name) for name in ("decode", "prefill"))
    assert guide.shown_choices(decode)["decode_split"]["fared"] == "the same launch"
    assert "the same launch" not in guide.shown_choices(prefill)["prefill_split"]["fared"]
    assert "pays" not in str(macros().points_table(target_section(prefill)))
    (graph,) = [target_section(decode)["graph"]]
    assert 0.08 < graph["longer"] < 0.2 and 0 < graph["pays"] < len(
        target_section(decode)["waiting"]
    )


def test_the_budget_of_a_step_says_that_each_part_is_the_fastest() -> None:
    """Its norm is that of the CUDA kernels, where the default takes another."""
    assert (
        "each part by FlashInfer's fastest choice"
        in (ROOT / "templates/guide/serving.md.j2").read_text()
    )


def test_a_change_that_was_measured_at_another_point_says_where_and_counts_all_its_pairs(
    recorded: Recorded,
) -> None:
    results = recorded("h200/0.7.2/default", "decode")
    (row,) = [
        r
        for r in opportunity_rows(results, None)
        if r["what"] == "smaller chunks for short sequences"
    ]
    assert row["changed_at"] == "B1_L1024_H32_K8_D128_P16_f16_cc" != row["at"]
    assert row["saved"] == pytest.approx(0.234 + 0.055, abs=2e-3)


def test_a_graph_is_advised_of_at_the_points_at_which_the_page_says_that_it_pays(
    recorded: Recorded,
) -> None:
    names = ("cores", "backend", "split", "pdl")
    every_graph = [(r, results, graph(results)) for r, results in of(recorded, "decode")]
    for recording, results, told in some(one for one in every_graph if one[2].longer is not None):
        rows_ = [o for o in found(results) if o.opportunity.what == "a CUDA graph"]
        pays = {point for point, yes in told.pays.items() if yes}
        assert {point for row in rows_ for point in row.points} == pays, recording
        assert target_section(results)["graph"]["pays"] == len(pays)
        params = {p["point"]: p["params"] for p in results["points"]}
        pairs = {tuple(params[e.base_point][n] for n in names) for e in _of_launch(results)}
        for point, yes in some(told.pays.items()):  # what no pair of its cores tells is not told
            assert (yes is None) == (tuple(params[point][n] for n in names) not in pairs), point


def _of_launch(results: Results) -> list[Any]:
    (choice,) = (c for c in known()["decode"].compared if c.parameter == "launch")
    return effects(replace(choice, metrics=("time_cold_us",)), results)


def test_what_a_caller_sets_is_told_as_a_caller_writes_it(recorded: Recorded) -> None:
    said = {
        row["sets"]
        for target in ("decode", "prefill", "rmsnorm")
        for row in opportunity_rows(recorded("h200/0.7.2/default", target), None)
    }
    assert said == {"", "use_tensor_cores=True", 'backend="fa2"', "FLASHINFER_USE_CUDA_NORM=1"}


def test_the_rule_of_a_choice_stands_beside_what_contradicts_it(recorded: Recorded) -> None:
    decode = guide.shown_choices(recorded("h200/0.7.2/default", "decode"))
    said = decode["cores_grouped"]["fared"]
    assert said.endswith(
        "; counterexample: +23.5 % at `B64_L2048_lognormal_H32_K8_D128_P16_f16_cc`"
    )
    rope = guide.shown_choices(recorded("h200/0.7.2/default", "rope"))
    assert "counterexample" not in rope["rope_llama31"]["fared"]  # a patch is no llama31 call


def test_a_trial_is_told_of_the_rows_own_point_first(recorded: Recorded) -> None:
    rows = opportunity_rows(recorded("h200/0.7.2/default", "decode"), None)
    (row,) = (r for r in rows if r["what"] == "shorter chunks for uneven lengths")
    assert row["brought"].startswith(row["changed"]) and not row["changed_at"]
    assert f"at `{row['at']}`" in row["brought"]
    assert -float(row["changed"].split()[0].replace("−", "-")) <= float(row["most"].split()[0])


def test_what_gains_at_some_points_is_not_called_slower(recorded: Recorded) -> None:
    rows = opportunity_rows(recorded("h200/0.7.2/default", "decode"), None)
    page = str(macros().opportunities(rows, True, []))
    (line,) = (one for one in page.splitlines() if "CUDA cores for uneven lengths" in one)
    assert line.startswith("Faster at some points, slower at others: ")


def test_shared_memory_limits_blocks_only_where_an_sm_has_no_more(recorded: Recorded) -> None:
    """What ncu reports is what the launch was given of it, as much as the blocks need that registers let in."""
    named = []
    for _, results in of(recorded):
        gpu = results["provenance"]["gpu"]
        points = {p["point"]: p for p in results["points"]}
        for row in guide_kernels.launches([p for p in points.values() if p["status"] == "ok"], gpu):
            kernel = max(points[row["point"]]["kernels"], key=lambda k: k["duration_ns"] or 0)
            blocks = min(
                kernel["metrics"].get(f"occupancy_limit_{name}") or 99
                for name in ("registers", "shared_mem", "warps", "blocks")
            )
            if "shared memory" in row["limits"] and len(row["limits"]) > 1:
                named.append(
                    device(gpu).fits(kernel["block_size"], kernel["registers"], row["smem"])[
                        "shared memory"
                    ]
                    <= blocks
                )
    assert all(named)


def test_what_writes_as_much_as_it_reads_is_held_against_a_copy(recorded: Recorded) -> None:
    default = "h200/0.7.2/default"
    sections = {t: target_section(recorded(default, t)) for r, t in SHIPPED if r == default}
    copied = {name for name, section in sections.items() if section["copied"]}
    assert copied == {"rmsnorm", "rope"}
    for name in copied:
        read = sections[name]["best"]["m"]["gbs_fraction_measured"]
        assert read < sections[name]["copied"] <= 1


def test_a_choice_that_only_the_host_feels_is_not_counted_as_changing_no_time(
    recorded: Recorded,
) -> None:
    default = "h200/0.7.2/default"
    results = {t: recorded(default, t) for r, t in SHIPPED if r == default}
    said = report_context(results, {t: target_section(r) for t, r in results.items()})
    every_choice = [c for r in results.values() for c in guide.shown_choices(r).values()]
    host = {
        c["choice"].key
        for c in every_choice
        if c["summary"] and any(b["summary"]["within"] < b["summary"]["pairs"] for b in c["beside"])
    }
    assert "rope_inplace" in host
    still = [
        c for c in every_choice if c["summary"] and c["summary"]["within"] == c["summary"]["pairs"]
    ]
    # Where both sides launched the same, the pair says nothing of the choice.
    told = [c for c in still if c["fared"] != guide.SAME_LAUNCH]
    assert 0 < len(told) < len(still)
    assert said["alike"] == len([c for c in told if c["choice"].key not in host])


ENGINES = "h200/0.7.2/engines"


def _choice(key: str) -> Choice:
    return next(choice for choice in known()["moe"].compared if choice.key == key)


def test_halving_the_bytes_of_weights_saves_no_more_than_half(recorded: Recorded) -> None:
    """The pair with the default tactic of 16 bits said −93 %."""
    for one in some(effects(_choice("moe_fp8"), recorded(ENGINES, "moe"))):
        assert one.base_point.endswith("bf16_even_tuned") and one.other_point.endswith("fp8_even")
        assert one.in_turns and -0.5 < one.change < -0.3


def test_torch_is_held_against_tuned_tactics(recorded: Recorded) -> None:
    """Against the default ones torch took a quarter of the time."""
    found = effects(_choice("moe_torch"), recorded(ENGINES, "moe"))
    assert len(found) == 9 and all("_tuned" in one.base_point for one in found)
    assert all(0.15 < one.change < 1.5 for one in found)


def _waiting(results: Results) -> Results:
    """The results as they were when torch's calls waited for the GPU: with gaps in their times."""
    gaps = copy.deepcopy(results)
    for point in gaps["points"]:
        if "/torch_" in point["point"]:
            point["problems"] = [WAITED]
            point["measurement"]["problems"] = WAITED
    return gaps


def test_times_with_gaps_of_the_host_are_compared_with_nothing(recorded: Recorded) -> None:
    whole = recorded(ENGINES, "moe")
    results = _waiting(whole)
    assert effects(_choice("moe_torch"), whole) and not effects(_choice("moe_torch"), results)
    section = target_section(results)
    assert not any("torch_" in one["label"] for one in section["waiting"])
    ((why, points),) = section["incomplete"]
    assert why.startswith("not compared: ") and points
    assert all("/torch_" in point for point in points)


def test_a_row_is_held_against_the_roof_that_it_is_nearest_to(recorded: Recorded) -> None:
    for target, point, name, share in (
        ("gemm", "mm_torch_M1024_N28672_K4096_bf16", "bf16 products", 0.98),
        ("gemm", "mm_torch_M16_N28672_K4096_bf16", "DRAM", 0.934),
        ("mla_decode", "B32_L2048_H16_P64_bf16_fa2", "DRAM", 0.35),
    ):
        section = target_section(recorded(ENGINES, target))
        row = section["roofs"][f"{target}/{point}"]
        assert section["two_roofs"] and row["name"] == name
        assert row["share"] == pytest.approx(share, abs=0.005)
    assert not target_section(recorded("h200/0.7.2/default", "decode"))["two_roofs"]


def test_tinygemm_is_advised_for_narrow_weights_alone(recorded: Recorded) -> None:
    few = "a kernel for few rows"
    (one,) = [r for r in rows(ENGINES, "gemm", recorded) if r.opportunity.what == few]
    assert {p.split("_N")[1].split("_")[0] for p in one.points} == {"256"}


def _points(recorded: Recorded, target: str, of: str = ENGINES) -> list[Point]:
    return [p for p in recorded(of, target)["points"] if p["status"] == "ok"]


@pytest.mark.parametrize(
    ("target", "of"), [("gemm", ENGINES), ("moe", ENGINES), ("allreduce", "h200/0.7.2/ranks")]
)
def test_a_headline_is_of_a_call_of_flashinfers_whatever_a_rival_reaches(
    target: str, of: str, recorded: Recorded
) -> None:
    """torch.mm and NCCL led two of these."""
    points = _points(recorded, target, of)
    assert any("rival" in point["info"] for point in points)
    top = best(points, "gbs")
    assert top and "rival" not in top["info"]


def test_a_time_with_gaps_of_the_host_has_no_share_of_a_roof(recorded: Recorded) -> None:
    section = target_section(_waiting(recorded(ENGINES, "moe")))
    shares = {name: one["share"] for name, one in section["roofs"].items()}
    assert all((share is None) == ("/torch_" in name) for name, share in shares.items())
    assert "torch" not in section["best"]["label"]
    few = _waiting(recorded(ENGINES, "moe"))
    few["points"] = [p for p in few["points"] if p["params"]["tokens"] == 1][:5]
    text = str(macros().points_table(target_section(few)))
    assert "| – | the GPU waited for the host |" in text and "limited by" not in text


def test_a_product_of_8_bits_is_held_against_products_though_none_was_measured(
    recorded: Recorded,
) -> None:
    """A product at three quarters of the tensor cores' peak was called 26 % of DRAM."""
    roofs = target_section(recorded(ENGINES, "gemm"))["roofs"]
    many, few = (roofs[f"gemm/mm_fp8_cublas_M{m}_N28672_K4096_fp8"] for m in (8192, 1))
    assert (many["name"], few["name"]) == ("fp8 products, by the datasheet", "DRAM")
    assert 0.7 < many["share"] < 0.85


def test_a_change_that_was_measured_is_none_that_is_not_known(recorded: Recorded) -> None:
    """Weights of 8 bits: half the time by a pair, and "not known" above it."""
    results = recorded(ENGINES, "moe")
    section = target_section(results)
    assert "weights of 8 bits" not in section["undecided"]
    told = {row["what"]: row for row in section["opportunities"]}
    assert told["weights of 8 bits"]["group"] == told["tuned tactics"]["group"] == "won"


def test_losses_of_unlike_size_are_told_apart_by_what_they_depend_on(recorded: Recorded) -> None:
    """Eight query tokens: five times the time at 128 heads, 1.6 times at 16, of which a median of both was told."""
    (choice,) = [c for c in known()["mla_decode"].compared if (c.base, c.other) == (1, 8)]
    parts = divided(effects(choice, recorded(ENGINES, "mla_decode")))
    assert [part.where for part in parts] == ["heads == 128", "heads == 16"]
    large, small = ([e.change for e in part.effects] for part in parts)
    assert min(large) > 4 and max(small) < 1
    (fa3,) = [c for c in known()["mla_decode"].compared if (c.base, c.other) == ("fa2", "fa3")]
    assert len(divided(effects(fa3, recorded(ENGINES, "mla_decode")))) == 1


def test_a_draw_after_a_softmax_reads_what_l2_still_has(recorded: Recorded) -> None:
    results = recorded(ENGINES, "sampling")
    (choice,) = [c for c in known()["sampling"].compared if c.after]
    by_id = {p["point"]: p["measurement"] for p in results["points"]}
    found = effects(choice, results)
    assert len(found) == 3
    for one in found:
        softmax = by_id[one.base_point.replace("from_probs", "softmax")]
        draw = by_id[one.base_point]
        assert one.base == pytest.approx(softmax["time_cold_us"] + draw["time_hot_us"])
        assert one.base < softmax["time_cold_us"] + draw["time_cold_us"]


RANKS = "h200/0.7.2/ranks"


def _peak(section: dict[str, Any], **context: Any) -> str:
    made: Any = environment().get_template("_macros.j2").make_module({"provenance": {}, **context})
    return str(made.peak(section, alone=True))


def test_what_links_limit_is_ranked_drawn_and_told_by_its_bus_bandwidth(recorded: Recorded) -> None:
    """One shot of 4 ranks sends twice what it has to, and takes longer."""
    results, points = recorded(RANKS, "allreduce"), _points(recorded, "allreduce", RANKS)
    section = target_section(results)
    rates = {p["point"]: (sent(p) or {})["gbs"] for p in points}
    own = [rates[p["point"]] for p in points if "rival" not in p["info"]]
    assert section["best"]["sent"]["gbs"] == max(own) == pytest.approx(238.4, abs=0.1)
    assert _peak(section).endswith("63 % of a copy between two GPUs (378 GB/s), norm included")
    alike: dict[Any, list[Any]] = defaultdict(list)
    for point in points:
        params = point["params"]
        alike[params["ranks"], params["tokens"] * params["hidden"]].append(point)
    for same in alike.values():
        fastest = min(same, key=lambda p: p["measurement"]["time_cold_us"])
        assert rates[fastest["point"]] == max(rates[p["point"]] for p in same)
    (axes,) = figures.sweep(results).axes
    assert axes.get_ylabel() == "GB/s (2(n − 1)/n of a message / cold event time)"
    lines: list[Any] = list(axes.lines)
    assert max(y for line in lines for y in line.get_ydata()) >= max(own)


def test_the_most_of_products_is_told_by_type(recorded: Recorded) -> None:
    """8 bits had no ceiling, and 804 TFLOPS were more than any product."""
    section = target_section(recorded(ENGINES, "gemm"))
    said = _peak(section)
    assert said.startswith("fp8: 1 517 TFLOPS (`mm_fp8_cublas_M8192") and "; bf16: 804" in said
    assert said.endswith("more than cuBLAS of 8192^3 (794)")
    assert section["passed"] == "cuBLAS of 8192^3"  # torch.mm reaches 804 too
    assert "| 804 | 100 % of its best point |" in str(macros().points_table(section))
    assert target_section(recorded("h200/0.7.2/default", "prefill"))["faster"] is None


def test_beside_products_the_ceiling_is_named_for_what_it_is(recorded: Recorded) -> None:
    section = target_section(recorded(ENGINES, "mla_decode"))
    assert _peak(section, beside=["gemm"]).endswith("72 % of cuBLAS of 8192^3 in bf16")
    assert _peak(section).endswith("72 % of the fastest bf16 matrix product measured here")


def _guide_page(recorded: Recorded, of: str, *targets: str) -> str:
    sections = {name: target_section(recorded(of, name)) for name in targets}
    kernels = {n: guide.kernel(known()[n], recorded(of, n), s) for n, s in sections.items()}
    rows = [row for kernel in kernels.values() if (row := guide.performance(kernel))]
    told = {"performance": rows, "sizes": [], "stalls": [], "generators": []}
    frame = '{% from "_macros.j2" import reads_roofline, reads_sweep with context %}'
    frame += '{% from "guide/_section.md.j2" import missing, short, rate, fraction, change, versus, where with context %}'
    page = environment().from_string(frame + '{% include "guide/reference.md.j2" %}')
    return page.render(K=kernels, guide=told, targets=sections, provenance={})


def test_expected_performance_is_flashinfers_and_of_the_nearest_roof(recorded: Recorded) -> None:
    """The rows were torch's and NCCL's, and a product of 8 bits had no share."""
    page = _guide_page(recorded, ENGINES, "gemm", "moe")
    assert "backend torch" not in page
    assert "backend cutlass, tactics tuned) | tokens" in page
    assert "4 096: 716 TFLOPS, 90 % of bf16 prod" in page
    ranks = _guide_page(recorded, RANKS, "allreduce")
    assert "(variant auto, ranks 4, hidden 8192)" in ranks and "any kernel of which" not in ranks


def test_what_is_itself_the_ceiling_is_counted_in_the_conclusion(recorded: Recorded) -> None:
    sections = {t: target_section(recorded(ENGINES, t)) for t in ("gemm", "moe", "mla_decode")}
    told = conclusion({}, sections, [])
    assert told["above"] == ["Matrix products"] and told["nearest"][1] == "Mixture of experts"
    assert "S.above" in (ROOT / "templates/final-report.md.j2").read_text()


def test_without_counters_kernels_have_no_row_and_no_marks(recorded: Recorded) -> None:
    template = environment().get_template("analysis.md.j2")
    sections = {"moe": target_section(recorded(ENGINES, "moe"))}
    page = template.render(provenance=sections["moe"]["provenance"], targets=sections, stopped=[])
    assert "Not in this evidence: counters" in page
    assert "None" not in page and "Each mark" not in page and "roofline.svg" not in page


@pytest.mark.parametrize(
    ("of", "target"), [(ENGINES, "moe"), (ENGINES, "gemm"), (RANKS, "allreduce")]
)
def test_the_base_of_a_figure_is_a_shape_that_was_measured_of_no_rival(
    of: str, target: str, recorded: Recorded
) -> None:
    points = _points(recorded, target, of)
    base = dict(usual(points, axis_of(points)))
    own = [point for point in points if "rival" not in point["info"]]
    assert any(base.items() <= point["params"].items() for point in own)


def test_a_library_that_a_caller_names_is_no_default_and_no_rival_is_advised(
    recorded: Recorded,
) -> None:
    """cuBLAS for fp8 stood under FlashInfer's default calls, and torch's calls were told of arguments of FlashInfer's."""
    found = [r for r in rows(ENGINES, "gemm", recorded) if r.opportunity.what == "a CUDA graph"]
    assert found and not any("_torch_" in point for row in found for point in row.points)
    assert all(
        "cublas" not in row.point and "skip_check" not in row.opportunity.change for row in found
    )
    told = {row["what"]: row for row in opportunity_rows(recorded(ENGINES, "gemm"), None)}
    # a router's kernels are calls of their own, which no backend leads to
    assert (
        told["a CUDA graph"]["most"] == "85 % of the call"
        and "router" in told["a CUDA graph"]["at"]
    )


def test_an_empty_kernel_is_told_of_the_points_that_it_is_half_of(recorded: Recorded) -> None:
    """It was the median of all sessions, of which others had such points."""
    results = recorded(ENGINES, "recurrent")
    rows = [p["measurement"] for p in results["points"]]
    floors = [r["time_floor_us"] for r in rows if r["time_cold_us"] < 2 * r["time_floor_us"]]
    for row in rows:
        row["time_floor_us"] *= 1 if row["time_floor_us"] in floors else 0.9
    section = target_section(results)
    assert (section["launches"], section["floor"]) == (len(floors), median(floors))
    (steps,) = [c for c in known()["recurrent"].compared if c.key == "recurrent_steps"]
    assert steps.given == "traffic"  # four tokens of more time are each of less


def test_a_weight_of_8_bits_is_known_by_either_call(recorded: Recorded) -> None:
    (choice,) = [c for c in known()["gemm"].compared if c.key == "gemm_fp8"]
    found = effects(choice, recorded(ENGINES, "gemm"))
    assert [round(one.change, 3) for one in found] == [-0.461, -0.462, -0.47]
    assert len(effects(choice, recorded(f"h200/{NOW}/kernels", "gemm"))) == 2
    section = target_section(recorded(ENGINES, "gemm"))
    assert "a weight of 8 bits" not in section["undecided"]
    told = {row["what"]: row for row in section["opportunities"]}
    assert told["a weight of 8 bits"]["changed"] == "−46.1 %"


def test_what_fewer_rows_gain_is_no_reason_for_the_library(recorded: Recorded) -> None:
    imported = '{% from "guide/_section.md.j2" import versus with context %}'
    template = environment().from_string(imported + '{% include "guide/gemm/selection.md.j2" %}')
    lines = {
        of: template.render(C=guide.shown_choices(recorded(of, "gemm"))).splitlines()
        for of in (ENGINES, f"h200/{NOW}/kernels")
    }
    assert '`mm_bf16(…, backend="cublaslt")` | torch.mm: 0.1 % more time' in lines[ENGINES][0]
    assert "tinygemm" in lines[ENGINES][1] and "13.3 % less time" in lines[ENGINES][1]
    assert "one pair of M 1, N 256" in lines[ENGINES][1]
    assert "`mm_M1_16_K7168_N256`" in lines[ENGINES][2] and "+18.5 %" in lines[ENGINES][2]
    assert "; host time of the call −82.5 % to −78.0 %" in lines[ENGINES][2]
    assert "tinygemm's time against cuBLASLt: +18.4 %" in lines[f"h200/{NOW}/kernels"][0]


def test_the_hosts_call_of_a_library_stands_beside_its_kernels(recorded: Recorded) -> None:
    """The same kernels, of which the call takes the host 13 or 480 µs, "change no time"."""
    shown = guide.shown_choices(recorded(ENGINES, "gemm"))
    (host,) = shown["gemm_torch"]["beside"]
    assert host["summary"]["differs"] + host["summary"]["untested"] == 6
    assert host["summary"]["most"] < -0.9


def test_weights_of_8_bits_are_advised_to_who_tuned_those_of_16(recorded: Recorded) -> None:
    results = recorded(ENGINES, "moe")
    told = {row["what"]: row for row in opportunity_rows(results, None)}
    assert not any("fp8" in point for point in told["tuned tactics"]["points"])
    assert told["weights of 8 bits"]["sets"] == "flashinfer.autotune(tune_mode=True)"
    of = {"provenance": results["provenance"]}
    rows = opportunity_rows(results, None)
    told_of = environment().get_template("_macros.j2").make_module(of)
    assert "**Against calls that were tuned by `flashinfer" in told_of.opportunities(rows, True, [])
    shown = guide.shown_choices(results)
    assert all("sessions" not in one["fared"] for one in shown.values() if one["summary"])


def test_two_shots_and_nccl_are_advised_where_they_were_timed(recorded: Recorded) -> None:
    found = rows("h200/0.7.2/ranks", "allreduce", recorded)
    shots, nccl = ([r for r in found if r.opportunity.what.startswith(w)] for w in ("two", "NCCL"))
    assert [len(r.effects) for r in (*shots, *nccl)] == [2, 6]
    for row in (*shots, *nccl):
        assert all(e.in_turns and e.verdict == "differs" and e.change < 0 for e in row.effects)
        assert row.group == "won" and not row.departs


def test_the_noise_of_a_short_launch_is_not_that_of_a_long_one(recorded: Recorded) -> None:
    """1.8 % of 9 µs made 1.3 % of 369 µs noise."""
    (choice,) = [c for c in known()["gemm"].compared if c.key == "gemm_groupwise_torch"]
    results = recorded(ENGINES, "gemm")
    pairs = [p for p in results["pairs"] if p["base"] != p["other"] or "_N256_" in p["base"]]
    found = {
        e.base_point.split("_M")[1].split("_")[0]: e
        for e in effects(choice, results | {"pairs": pairs})
        if e.metric == "time_cold_us"
    }
    assert found["8192"].verdict == "differs" and (found["8192"].floor or 1) < 0.01
    assert found["1024"].verdict == "within noise"


def test_a_call_that_was_timed_in_turns_is_judged_without_the_first_of_each(
    recorded: Recorded,
) -> None:
    """With them a call of 290 µs took longer than its kernels of 305, and 47 % of another was the host's."""
    results = recorded(ENGINES, "gemm")
    host = {p["point"]: p["measurement"]["host_launch_us"] for p in results["points"]}
    assert host["gemm/groupwise_deepgemm_M16_N4096_K7168_fp8"] == pytest.approx(19.1, abs=0.05)
    assert host["gemm/groupwise_deepgemm_M1_N4096_K7168_fp8"] == 18.26  # in no pair
    waiting = [one["label"] for one in target_section(results)["waiting"]]
    assert waiting and "mm_cublaslt_M1024_N28672_K4096_bf16" not in waiting
    (row,) = [r for r in rows(ENGINES, "gemm", recorded) if r.opportunity.what == "a CUDA graph"]
    assert row.most == pytest.approx(0.848, abs=0.005)  # a router's, by an empty launch
    (choice,) = [c for c in known()["gemm"].compared if c.key == "gemm_groupwise_torch"]
    calls = effects(replace(choice, metrics=("host_launch_us",)), results)
    assert min(e.change for e in calls) == pytest.approx(-0.2, abs=0.005)  # -0.3 with them
    for one in results["points"]:  # what `ncuflow compare` reads says the same
        assert one["runs"]["host_us"][0] == [one["measurement"]["host_launch_us"]]
    for side in (side for pair in results["pairs"] for side in pair["sides"]):
        told: Any = side
        assert told["host_n"] == len(told["host_samples_us"]) == 18
        assert told["host_q25_us"] <= told["host_us"] <= told["host_q75_us"]
    called = [one["label"] for one in target_section(recorded(ENGINES, "sampling"))["waiting"]]
    assert called and all("_V32000_" in label for label in called)


def test_a_graph_is_advised_of_every_call_that_one_takes_as_it_is(recorded: Recorded) -> None:
    """KDA of one sequence takes the host 25 times as long as the GPU; its page named a state of 16 bits alone."""
    most = {}
    for target in ("gemm", "mla_decode", "moe", "prefill", "recurrent", "rmsnorm", "sampling"):
        for row in rows(ENGINES, target, recorded):
            if row.opportunity.what == "a CUDA graph":
                most[target] = row.most
                points = {p["point"]: p for p in recorded(ENGINES, target)["points"]}
                shown = [points[name] for name in row.points]
                assert not any("rival" in p["info"] or p["measurement"]["plan_us"] for p in shown)
    assert most.keys() == {"gemm", "moe", "recurrent", "rmsnorm", "sampling"}
    assert most["recurrent"] == pytest.approx(0.956, abs=0.001)
    told = {r["what"]: r for r in opportunity_rows(recorded(ENGINES, "gemm"), None)}
    assert told["a CUDA graph"]["source"] == ""  # which decides nothing of it
    drawn = {r["what"]: r for r in opportunity_rows(recorded(ENGINES, "sampling"), None)}
    assert "`seed` and `offset` as tensors" in drawn["a CUDA graph"]["change"]


def test_a_graph_has_its_bound_where_a_record_tells_no_empty_launch(recorded: Recorded) -> None:
    (row,) = [r for r in rows("h200/0.6.18/again", "rmsnorm", recorded) if r.opportunity.what == "a CUDA graph"]  # fmt: skip
    assert row.facts["time_floor_us"] is None
    assert row.bounded and row.most == pytest.approx(1 - 2.23 / 4.916)


def test_tokens_of_8_bit_experts_stand_with_the_experts_that_they_went_through() -> None:
    """All were told as through those of the first pair."""
    sizes = ((16, 8, 2), (128, 8, 2), (64, 128, 8))
    pairs = [{"params": {"tokens": t, "experts": e, "top_k": k}} for t, e, k in sizes]
    none: dict[str, Any] = {"summary": None}
    fp8 = {"summary": {"pairs": 3}, "pairs": pairs}
    given = {"moe_cute": none, "moe_mono": none, "moe_tactics": none, "moe_fp8": fp8}
    template = environment().get_template("guide/moe/selection.md.j2")
    page = template.render(C=given, versus=lambda *_: "")
    assert "(16 and 128 tokens, 2 of 8 experts; 64 tokens, 8 of 128 experts; of one token" in page


def test_a_copy_is_said_to_be_passed_where_the_read_was_faster(recorded: Recorded) -> None:
    template = environment().get_template("environment.md.j2")
    for recording, said in ((ENGINES, False), (f"h200/{NOW}/default", True)):
        results = recorded(recording, "rmsnorm")
        machine = {"ceilings": results["ceilings"], "findings": []}
        page = template.render(
            provenance=results["provenance"], machine=machine, SOFTWARE={}, jit=None
        )
        assert ("loses time at each turn" in page) == said


def test_the_page_of_mla_says_what_flashinfer_takes_by_default() -> None:
    template = environment().get_template("guide/mla_decode/algorithm.md.j2")
    assert "By default (`auto`) FlashInfer takes fa3" in template.render()


def test_a_line_that_covers_another_is_named_by_both(recorded: Recorded) -> None:
    """On 2 GPUs FlashInfer's choice is one shot: of two lines in one place a reader saw one."""
    points = _points(recorded, "allreduce", RANKS)
    lines = series_of(points, axis_of(points))
    assert "base; within 3 %: variant oneshot" in [line.label for line in lines]
    every = [(a, b) for i, a in enumerate(lines) for b in lines[:i] if a.x == b.x]
    assert all(any(abs(p - q) > 0.03 * q for p, q in zip(a.y, b.y, strict=True)) for a, b in every)
    shown = sum(
        1 + line.label.count("variant oneshot") * ("within" in line.label) for line in lines
    )
    assert axis_of(points).further == 20 - shown


@pytest.mark.parametrize("target", ["moe", "gemm", "mla_decode"])
def test_a_legend_leaves_its_figure_half_of_the_width(recorded: Recorded, target: str) -> None:
    """Labels of 80 characters left the lines of MoE a fifth."""
    (axes,) = figures.sweep(recorded(ENGINES, target)).axes
    assert axes.get_position().width > 0.5
    legend = axes.get_legend()
    labels = [text.get_text() for text in legend.get_texts()] if legend else []
    lines = [line for label in labels for line in label.splitlines()]
    assert len(lines) > len(labels) or target == "mla_decode"
    settings = [line for line in lines if "ceiling" not in line and line != "base"]
    assert all(re.search(r"[a-z] \S", line) for line in settings)  # a setting is whole


def test_plan_has_its_price_without_a_trace(recorded: Recorded) -> None:
    """Its 0.7 to 1.2 ms beside kernels of 30 to 570 µs stood nowhere, as no kernel's name was known."""
    points = _points(recorded, "mla_decode")
    rows = {row.kernel: row for row in planned(points)}
    assert {name: row.points for name, row in rows.items()} == {"fa2": 8, "fa3": 8}
    assert all(700 < row.plan_us < 1300 and row.low > 2 for row in rows.values())
    assert guide.chapter(recorded(ENGINES, "mla_decode"), None)["plans"] == [*rows.values()]


def test_what_streams_is_limited_by_dram_though_nothing_was_counted(recorded: Recorded) -> None:
    made: Any = environment().get_template("_macros.j2").make_module({"provenance": {}})
    for target, share in (("moe", 0.9), ("mla_decode", 0.0), ("sampling", 0.3)):
        best_one = target_section(recorded(ENGINES, target))["best"]
        near = (best_one["m"]["gbs_fraction_measured"] or 0) >= 0.9
        assert near == (share == 0.9)
        assert ("DRAM limits it" in made.limited(best_one)) == near
    ranks = target_section(recorded(RANKS, "allreduce"))["best"]
    assert "without its peers" in made.limited(ranks)


def test_claims_of_kernels_that_were_not_measured_are_counted_and_not_listed() -> None:
    one = {
        "published": {"value": None, "range": None, "flashinfer": None},
        "source": {"document": "a"},
        "needs": None,
    }
    one |= {"verdict": "not testable here", "measured": None, "independent": None, "points": []}
    every = [
        one
        | {"id": target or "none", "target": target, "statement": f"Of {target}.", "reason": "No."}
        for target in ("decode", "decode", "jit", "moe", None)
    ]
    summary = dict.fromkeys(("refuted", "confirmed", "differs by architecture"), 0)
    told = {
        "claims": every,
        "provenance": {"tier": "C"},
        "summary": summary | {"not testable here": 5},
    }
    template = environment().get_template("claims.md.j2")
    of = {"tier": "C", "recording": None, "note": None}
    page = template.render(claims=told, provenance=of, targets={"moe": {}})
    assert "Of kernels that this evidence has no point of: 2 of decode." in page
    assert "(`decode`)" not in page and all(
        f"(`{name}`)" in page for name in ("jit", "moe", "none")
    )
