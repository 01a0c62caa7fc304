"""Claims: from a YAML file and measurements to a verdict with its evidence."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from results_data import entry, kernel, results

from analysis import claim_files, claims
from analysis.claim_evidence import Evidence, load
from analysis.expression import ExpressionError, evaluate, names
from analysis.source_facts import SourceFacts
from parsers.files import BadInput
from reporting.pages import environment

ROOT = Path(__file__).parents[1]
A100 = {"gpu": "NVIDIA A100 80GB", "architecture": "sm_80"}
POINTS = (
    entry("decode/B1", {"batch": 1, "heads": 8}, gbs=1000.0, time_cold_us=10.0),
    entry("decode/B32", {"batch": 32, "heads": 8}, gbs=2000.0, time_cold_us=50.0),
    entry("decode/B128", {"batch": 128, "heads": 8}, gbs=4000.0, time_cold_us=100.0),
)


def claim(**changes: Any) -> dict[str, Any]:
    base = {
        "id": "x",
        "statement": "Decode reaches a rate.",
        "source": {"document": "a talk", "section": "1"},
        "published": {"value": 4000, "unit": "GB/s"},
        "applies": {"target": "decode"},
        "decide": decide("gbs", "within", tolerance={"relative": 0.1}),
    }  # fmt: skip
    return base | changes


def write(folder: Path, *found: dict[str, Any], **top: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "talk.yaml").write_text(yaml.safe_dump({"claims": list(found)} | top))
    return folder


def judged(tmp_path: Path, *points: Any, evidence: Evidence | None = None, **changes: Any) -> Any:
    (loaded,) = claim_files.load(write(tmp_path / "claims", claim(**changes)))
    return claims.judge(loaded, evidence or Evidence({"decode": results(*(points or POINTS))}))


def decide(value: str, compare: str, aggregate: str = "max", **more: Any) -> dict[str, Any]:
    return {"value": value, "compare": compare, "aggregate": aggregate, **more}


# --- expressions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + 1", 3),
        ("a * missing", None),
        ("missing > 1", None),
        ("not missing", None),
        ("a == 1 and missing", False),
        ("a == 2 and missing", None),
        ("a == 2 or missing", True),
        ("1 / (a - 2)", None),
        ("nan + 1", None),
        ("known(missing)", False),
        ("max(a, missing)", None),
        ("1 < a < 3", True),
        ('name in ["x", "y"]', True),
        ('count(names, "Merge")', 1),
        ('capture(name2, "tile([0-9]+)") * 2', 256),
        ("a if a > 1 else missing", 2),
    ],
)
def test_expression_keeps_what_is_unknown_unknown(text, value):
    scope = {
        "a": 2, "missing": None, "nan": float("nan"), "name": "x", "name2": "tile128",
        "names": ["Decode", "Merge"],
    }  # fmt: skip
    assert evaluate(text, scope) == value


@pytest.mark.parametrize(
    "text",
    [
        "a.b",
        "a[0]",
        "__import__('os')",
        "(lambda: 1)()",
        "[x for x in a]",
        "max(a, key=len)",
        "2 ** 10 ** 10",
        "'x' * 9",
        "a +",
        "b",
    ],
)
def test_expression_refuses_everything_else(text):
    with pytest.raises(ExpressionError):
        evaluate(text, {"a": [1]})


def test_names_are_those_of_values_in_order():
    assert names("max(b, 2 * a) - b") == ["b", "a"]


# --- decisions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("published", "how", "verdict", "measured"),
    [
        ({"value": 3700}, decide("gbs", "within", tolerance={"relative": 0.1}), "confirmed", 4000),
        ({"value": 3600}, decide("gbs", "within", tolerance={"relative": 0.1}), "refuted", 4000),
        ({"value": 4100}, decide("gbs", "at least"), "refuted", 4000),
        ({"value": 4100}, decide("gbs", "at least", tolerance={"absolute": 99}), "refuted", 4000),
        ({"value": 4100}, decide("gbs", "at least", tolerance={"absolute": 100}), "confirmed",
         4000),
        ({"value": 900}, decide("gbs", "at most", "min"), "refuted", 1000),
        ({"value": None, "range": [1500, 2500]}, decide("gbs", "between", "median"), "confirmed",
         2000),
        ({"value": None, "range": [None, 3000]}, decide("gbs", "between", "all"), "refuted", 4000),
        ({"value": None, "range": [3000, None]}, decide("gbs", "between", "any"), "confirmed",
         4000),
        ({"value": None}, decide("gbs > 500", "holds", "all"), "confirmed", True),
        ({"value": None}, decide("gbs > 5000", "holds", "any"), "refuted", False),
        ({"value": None}, decide("gbs", "at most", limit=4500), "confirmed", 4000),
        ({"value": 153}, {"over": "arithmetic", "value": "312e3 / 2039", "compare": "within",
                          "tolerance": {"absolute": 1}},
         "confirmed", pytest.approx(153.02, abs=0.01)),
    ],
)  # fmt: skip
def test_each_comparison(tmp_path, published, how, verdict, measured):
    found = judged(tmp_path, published={"unit": "GB/s"} | published, decide=how)
    assert (found["verdict"], found["measured"]["value"]) == (verdict, measured)


def test_record_traces_the_number_to_its_report(tmp_path):
    points = [
        entry("decode/B1", {"batch": 1}, [kernel("Main", long_scoreboard=3, wait=1)], gbs=10.0)
    ]
    found = judged(
        tmp_path, *points,
        published={"value": 70, "unit": "%"},
        decide=decide("100 * stall_long_scoreboard", "within", tolerance={"absolute": 10}),
    )  # fmt: skip
    whole, stall = found["evidence"]
    assert whole["value"] == 75 and whole["formula"] == "100 * stall_long_scoreboard"
    assert stall == {
        "name": "stall_long_scoreboard", "report": "decode/b0/sweep.ncu-rep", "point": "decode/B1",
        "kernel": "Main",
        "metric": "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
        "value": 0.75, "formula": "ratio / sum of all stall ratios",
    }  # fmt: skip
    assert found["difference"]["absolute"] == 5 and found["tier"] == "A"
    assert found["gpu"] == "NVIDIA H200"


def test_where_and_globs_select_points(tmp_path):
    found = judged(
        tmp_path, applies={"target": "decode", "points": "decode/B*", "where": "batch < 100"}
    )
    assert found["measured"]["value"] == 2000
    assert {p["point"] for p in found["points"]} == {"decode/B1", "decode/B32"}
    assert judged(tmp_path, applies={"target": "decode", "points": "*/B9*"})["verdict"] == (
        "not testable here"
    )


def test_a_point_whose_where_is_unknown_is_not_selected(tmp_path):
    points = [entry("decode/B1", {"batch": 1}, gbs=4000.0), POINTS[0]]  # the first has no heads
    found = judged(tmp_path, *points, applies={"target": "decode", "where": "heads == 8"})
    assert found["measured"]["value"] == 1000


def test_wrong_and_failed_points_are_no_evidence(tmp_path):
    points = [entry("decode/B1", {"batch": 1}, gbs=4000.0, status="wrong"), POINTS[0]]
    assert judged(tmp_path, *points)["measured"]["value"] == 1000


def test_points_of_two_samples_are_paired_on_the_other_parameters(tmp_path):
    points = [
        entry(f"decode/{kind}{rows}", {"variant": kind, "rows": rows}, time_cold_us=time)
        for kind, rows, time in [
            ("f", 1, 2.0),
            ("s", 1, 4.0),
            ("f", 2, 5.0),
            ("s", 2, 30.0),
            ("s", 3, 1.0),
        ]
    ]
    how = decide(
        "slow_time_cold_us / fast_time_cold_us * rows", "within", "max",
        samples={"fast": {"where": 'variant == "f"'}, "slow": {"where": 'variant == "s"'}},
        differ=["variant"], tolerance={"relative": 0.01},
    )  # fmt: skip
    found = judged(tmp_path, *points, published={"value": 12, "unit": "×"}, decide=how)
    assert found["verdict"] == "confirmed"
    assert found["measured"]["points"] == 2
    assert found["measured"]["point"] == "decode/f2 / decode/s2"
    assert {e["point"] for e in found["evidence"][1:3]} == {"decode/f2", "decode/s2"}


def test_missing_values_leave_a_claim_undecided_unless_they_do_not_matter(tmp_path):
    points = [POINTS[0], entry("decode/B9", {"batch": 9})]
    every = judged(
        tmp_path,
        *points,
        published={"value": 500, "unit": ""},
        decide=decide("gbs", "at least", "all"),
    )
    assert every["verdict"] == "not testable here"
    assert "lacks gbs at decode/B9" in every["reason"]
    failing = judged(
        tmp_path,
        *points,
        published={"value": 5000, "unit": ""},
        decide=decide("gbs", "at least", "all"),
    )
    assert failing["verdict"] == "refuted"


def test_first_decision_that_has_an_answer_decides(tmp_path):
    both = [decide("dram_gbs_counted", "at least"), decide("gbs", "at least")]
    found = judged(tmp_path, decide=both, needs="Counters.", published={"value": 3000, "unit": ""})
    assert found["verdict"] == "confirmed" and found["needs"] is None
    found = judged(
        tmp_path, decide=both[:1], needs="Counters.", published={"value": 3000, "unit": ""}
    )
    assert found["verdict"] == "not testable here" and found["reason"].endswith("Needs: Counters.")


@pytest.mark.parametrize(
    ("aggregate", "comparison", "limit", "verdict"),
    [
        ("max", "at least", 500, "confirmed"),
        ("max", "at least", 5000, None),
        ("max", "at most", 500, "refuted"),
        ("max", "at most", 5000, None),
        ("min", "at least", 5000, "refuted"),
        ("min", "at least", 500, None),
        ("min", "at most", 5000, "confirmed"),
        ("min", "at most", 500, None),
        ("any", "at least", 500, "confirmed"),
        ("any", "at least", 5000, None),
        ("max", "within", 1000, None),
        ("min", "within", 5000, None),
        ("median", "at least", 500, None),
        ("median", "at most", 500, None),
    ],
)
def test_an_aggregate_decides_only_what_an_unknown_value_cannot_turn(
    tmp_path, aggregate, comparison, limit, verdict
):
    points = [POINTS[0], entry("decode/B9", {"batch": 9})]  # 1000 GB/s, and unknown
    how = decide("gbs", comparison, aggregate)
    found = judged(tmp_path, *points, published={"value": limit, "unit": ""}, decide=how)
    assert found["verdict"] == (verdict or "not testable here")
    complete = judged(tmp_path, POINTS[0], published={"value": limit, "unit": ""}, decide=how)
    assert complete["verdict"] != "not testable here"


def test_a_range_is_undecided_where_an_unknown_value_could_leave_it(tmp_path):
    points = [POINTS[0], entry("decode/B9", {"batch": 9})]
    published = {"value": None, "range": [500, 2000], "unit": "GB/s"}
    how = decide("gbs", "between")
    assert judged(tmp_path, points[0], published=published, decide=how)["verdict"] == "confirmed"
    assert judged(tmp_path, *points, published=published, decide=how)["measured"] is None


@pytest.mark.parametrize("others", [[], ["decode/B3"]])
def test_the_median_is_a_value_of_the_point_that_is_named(tmp_path, others):
    """Of two middle values the lower, with that point's floor: no gap between points is noise."""
    noisy = {"time_cold_q25_us": 90.0, "time_cold_q75_us": 110.0, "time_cold_n": 9}
    points = [
        entry("decode/B1", {"batch": 1}, gbs=1000.0, time_cold_us=100.0, **noisy),
        entry("decode/B2", {"batch": 2}, gbs=2000.0, time_cold_us=100.0, **noisy),
        *(entry(other, {"batch": 3}, gbs=500.0) for other in others),
    ]
    how = decide("gbs", "at least", "median")
    found = judged(tmp_path, *points, published={"value": 800, "unit": "GB/s"}, decide=how)
    assert (found["measured"]["value"], found["measured"]["point"]) == (1000, "decode/B1")
    assert found["evidence"][0]["value"] == found["evidence"][1]["value"] == 1000
    assert found["noise_floor"] == pytest.approx(1.57 * 20 / 3 / 100 * 1000)
    assert found["verdict"] == "confirmed"


# --- verdicts ------------------------------------------------------------------------------------


def test_another_architecture_differs_and_is_not_refuted(tmp_path):
    published = {"value": 1000, "unit": "GB/s", **A100}
    assert judged(tmp_path, published=published)["verdict"] == "differs by architecture"
    why = "It is arithmetic."
    assert judged(tmp_path, published=published, independent=why)["verdict"] == "refuted"
    same_gpu = Evidence(
        {"decode": results(*POINTS, gpu="NVIDIA A100-SXM4-80GB", compute_capability="8.0")}
    )
    assert judged(tmp_path, published=published, evidence=same_gpu)["verdict"] == "refuted"


def test_another_model_of_the_same_architecture_cannot_refute(tmp_path):
    h100 = {"value": 1000, "unit": "GB/s", "gpu": "NVIDIA H100 SXM", "architecture": "sm_90"}
    found = judged(tmp_path, published=h100)
    assert found["verdict"] == "not testable here"
    assert "H100" in found["reason"] and found["measured"]["value"] == 4000


def test_a_figure_of_another_gpu_is_compared_as_a_fraction_of_its_ceiling(tmp_path):
    points = [entry("decode/B1", {"batch": 1}, gbs=4200.0, gbs_fraction_datasheet=0.875)]
    published = {"value": 1771, "unit": "GB/s", "ceiling": 2039, **A100}
    found = judged(
        tmp_path, *points, published=published,
        decide=decide("gbs_fraction_datasheet", "within", tolerance={"relative": 0.05}),
    )  # fmt: skip
    assert found["verdict"] == "confirmed" and found["another_gpu"] == "NVIDIA A100 80GB"
    assert found["published"]["compared"]["value"] == pytest.approx(1771 / 2039)
    assert found["measured"]["unit"] == "of the ceiling"


def test_no_verdict_inside_the_noise_floor(tmp_path):
    noisy = {"time_cold_q25_us": 90.0, "time_cold_q75_us": 110.0, "time_cold_n": 9}
    points = [entry("decode/B1", {"batch": 1}, gbs=1000.0, time_cold_us=100.0, **noisy)]
    near = judged(
        tmp_path,
        *points,
        published={"value": 950, "unit": "GB/s"},
        decide=decide("gbs", "at least"),
    )
    assert near["verdict"] == "not testable here" and near["needs"] is None
    assert near["reason"] == (
        "The distance to the limit (50 GB/s) is smaller than the noise floor (105 GB/s)."
    )
    assert near["noise_floor"] == pytest.approx(1.57 * 20 / 3 / 100 * 1000)
    far = judged(
        tmp_path,
        *points,
        published={"value": 500, "unit": "GB/s"},
        decide=decide("gbs", "at least"),
    )
    assert far["verdict"] == "confirmed"
    yes = judged(
        tmp_path,
        *points,
        published={"value": None, "unit": ""},
        decide=decide("time_cold_us > 99", "holds"),
    )
    assert yes["verdict"] == "not testable here" and "noise floor" in yes["reason"]


def test_noise_of_independent_inputs_adds_in_squares(tmp_path):
    noisy = {
        f"time_{kind}_{name}": value
        for kind in ("cold", "hot")
        for name, value in (("us", 100.0), ("q25_us", 90.0), ("q75_us", 110.0), ("n", 9))
    }
    how = decide("time_cold_us + time_hot_us", "at least")
    found = judged(
        tmp_path, entry("decode/B1", {"batch": 1}, **noisy),
        published={"value": 1, "unit": "µs"}, decide=how,
    )  # fmt: skip
    assert found["noise_floor"] == pytest.approx(2**0.5 * 1.57 * 20 / 3)


@pytest.mark.parametrize(
    ("value", "compare"),
    [("gbs_hot if known(gbs_hot) else gbs", "at least"), ("gbs > 500 or gbs_hot > 500", "holds")],
)
def test_an_unknown_input_that_does_not_matter_adds_no_noise(tmp_path, value, compare):
    point = entry("decode/B1", {"batch": 1}, gbs=1000.0)
    floors = {"gbs_hot": {"floor": 0.01, "n": 30}}
    found = judged(
        tmp_path, evidence=Evidence({"decode": results(point) | {"noise": floors}}),
        published={"value": 500, "unit": "GB/s"}, decide=decide(value, compare),
    )  # fmt: skip
    assert (found["verdict"], found["noise_floor"]) == ("confirmed", None)


def test_a_kernel_without_a_time_leaves_the_metrics_of_the_longest_unknown(tmp_path):
    failed = kernel("Attention") | {"duration_ns": None}
    point = entry("decode/B1", {"batch": 1}, [failed, kernel("Merge", {"l2_hit_pct": 50.0})])
    found = judged(tmp_path, point, decide=decide("l2_hit_pct", "at least"))
    assert "lacks l2_hit_pct at decode/B1" in found["reason"]


def test_only_the_architecture_that_applies_can_test(tmp_path):
    found = judged(tmp_path, applies={"target": "decode", "architecture": "sm_80"})
    assert found["verdict"] == "not testable here" and "sm_80" in found["reason"]


def test_impossible_numbers_are_no_evidence(tmp_path):
    points = [
        POINTS[0],
        entry("decode/B2", {"batch": 2}, gbs=9000.0, ceiling_dram_gbs_datasheet=4800.0),
    ]
    found = judged(
        tmp_path, *points, published={"value": 500, "unit": ""}, decide=decide("gbs", "at least")
    )
    assert (found["verdict"], found["measured"]["value"]) == ("confirmed", 1000)


def test_reasons_are_filled_in_from_the_deciding_point(tmp_path):
    reasons = [
        {"when": "gbs > 3000", "say": "At batch {batch} {gbs / 1000:.1f} TB/s, {verdict}."},
        {"when": "gbs < 3000", "say": "never"},
        {"when": "known(gbs)", "say": "{dram_gbs_counted:.0f} is unknown, so this is left out."},
    ]
    assert judged(tmp_path, reasons=reasons)["reason"] == "At batch 128 4.0 TB/s, confirmed."


# --- other evidence than points ------------------------------------------------------------------


def test_jit_modules_are_rows(tmp_path):
    jit = {"modules": {
        "decode": {"target": "decode", "cold": {"build_s": 10.0, "uri": "decode_f16"},
                   "cache": {"a/x.so": 1}},
        "rope": {"target": "rope", "cold": {"build_s": 38.0, "uri": "rope"},
                 "disk": {"build_and_load_s": 0.01}},
    }}  # fmt: skip
    evidence = Evidence({"decode": results(*POINTS)}, jit=jit)
    cold = judged(
        tmp_path, evidence=evidence, applies={"target": "jit"},
        published={"value": None, "range": [10, 500], "unit": "ms"},
        decide={"over": "jit", "value": "1000 * cold_build_s", "compare": "between"},
    )  # fmt: skip
    assert cold["verdict"] == "refuted" and cold["measured"]["value"] == 38000
    assert cold["evidence"][1]["report"] == "jit/jit_analysis.json"
    disk = judged(
        tmp_path, evidence=evidence, applies={"target": "jit"},
        published={"value": 5, "unit": "ms"},
        decide={"over": "jit", "value": "1000 * disk_build_and_load_s", "compare": "at least"},
    )  # fmt: skip
    assert disk["verdict"] == "not testable here"  # one module has no disk hit


def test_source_facts_answer_or_say_that_they_cannot():
    facts = SourceFacts({
        "functions": {"data/include/flashinfer/norm.cuh": [[1, 9, "RMSNormKernel"]]},
        "environment": {"FLASHINFER_JIT_DEBUG": []},
        "signatures": {"f": [
            {"name": "a", "kind": "positional", "default": None},
            {"name": "b", "kind": "positional", "default": "False"},
        ], "g": [{"name": "rest", "kind": "var_keyword", "default": None}]},
    })  # fmt: skip
    assert facts.header_defines("RMSNormKernel") is True
    assert facts.header_defines("Llama31RoPEKernel") is False
    assert facts.header_defines("RMSNormKernel", "other.cuh") is None
    assert facts.reads_variable("FLASHINFER_JIT_DEBUG") is True
    assert (facts.requires("f", "a"), facts.requires("f", "b")) == (True, False)
    assert (facts.accepts("f", "c"), facts.accepts("g", "c"), facts.accepts("h", "c")) == (
        False,
        None,
        None,
    )
    assert (facts.default("f", "b"), facts.position("f", "b")) == ("False", 1)
    assert facts.exports("rmsnorm") is None


# --- files ---------------------------------------------------------------------------------------


def test_a_claim_needs_no_code(tmp_path):
    """The documentation's example, written to a folder, appears in the output with a verdict."""
    example = re.search(
        r"```yaml\n(defaults:.*?)```", (ROOT / "docs/claims.md").read_text(), re.DOTALL
    )
    folder, found = tmp_path / "claims", tmp_path / "results"
    folder.mkdir()
    found.mkdir()
    (folder / "talk.yaml").write_text(example[1])
    point = entry(
        "decode/B128", {"batch": 128, "kv_len": 2048}, gbs=4200.0, gbs_fraction_datasheet=0.875,
        sol_memory_pct=95.0,
    )  # fmt: skip
    (found / "decode_results.json").write_text(json.dumps(results(point)))
    out = tmp_path / "claims.json"
    command = [
        "-m",
        "analysis.claims",
        "--results",
        str(found),
        "--claims",
        str(folder),
        "--out",
        str(out),
    ]
    subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
    (record,) = json.loads(out.read_text())
    content = json.loads(out.with_name("claims_summary.json").read_text())
    assert record["verdict"] == "confirmed" and record["source"]["document"] == "a talk"
    assert record["reason"] == "4200 GB/s were measured; under ncu memory is 95 % busy."
    assert content["summary"] == {
        "confirmed": 1, "refuted": 0, "differs by architecture": 0, "not testable here": 0,
        "total": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"aplies": 1}, "aplies"),
        ({"published": {"value": "many", "unit": ""}}, "published.value"),
        ({"decide": {"value": "gbs", "compare": "about"}}, "compare"),
        ({"decide": {"value": "gbs +", "compare": "within"}}, "not an expression"),
        ({"id": "Not An Id"}, "id"),
    ],
)
def test_an_error_in_a_file_names_file_claim_and_key(tmp_path, broken, message):
    with pytest.raises(BadInput) as raised:
        claim_files.load(write(tmp_path / "claims", claim(), claim(**({"id": "y"} | broken))))
    assert "talk.yaml" in str(raised.value) and message in str(raised.value)
    assert broken.get("id", "y") in str(raised.value)


JIT = {"over": "jit", "value": "cold_build_s", "compare": "at least"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"applies": {"target": "decod"}}, "unknown target 'decod'; there are: decode, "),
        ({"applies": {"target": "decod"}, "decide": []}, "unknown target 'decod'"),
        ({"decide": JIT | {"select": {"target": "jti"}}}, "unknown target 'jti'"),
        (
            {"decide": decide("a_gbs", "within", samples={"a": {}, "b": {"target": "rop"}})},
            "unknown target 'rop'",
        ),
        ({"applies": {"target": "jit"}}, "jit has no points; it needs over: jit"),
        ({"decide": decide("gbs", "within", select={"target": "jit"})}, "jit has no points"),
    ],
)
def test_a_target_that_decides_nothing_names_file_and_claim(tmp_path, changes, message):
    folder = write(tmp_path / "claims", claim(**changes))
    with pytest.raises(BadInput, match=f"{folder / 'talk.yaml'}: claim 'x': {message}"):
        claim_files.load(folder)


def test_jit_is_a_target_of_what_is_decided_over_it_or_over_the_source(tmp_path):
    source = {"over": "source", "value": 'reads_variable("A")', "compare": "holds"}
    for how in ([], JIT, source, [JIT, source]):
        folder = write(tmp_path / "claims", claim(applies={"target": "jit"}, decide=how))
        assert claim_files.load(folder)


def test_an_id_is_used_once(tmp_path):
    with pytest.raises(BadInput, match=r"already in talk\.yaml"):
        claim_files.load(write(tmp_path / "claims", claim(), claim()))


def test_a_wrong_name_names_claim_and_name(tmp_path):
    named = re.escape(str(tmp_path / "claims/talk.yaml"))
    with pytest.raises(BadInput, match=rf"^{named}: claim 'x'.*unknown name 'gsb'"):
        judged(tmp_path, decide=decide("gsb", "within"))


@pytest.mark.parametrize("say", ["{gbs:.0q}", "{batch:s}", "{kernel_names:.1f}"])
def test_a_wrong_format_names_claim_and_placeholder(tmp_path, say):
    point = entry("decode/B1", {"batch": 1}, [kernel()], gbs=4000.0)
    named = re.escape(f"{tmp_path / 'claims/talk.yaml'}: claim 'x': {say}: ")
    with pytest.raises(BadInput, match=named):
        judged(tmp_path, point, reasons=[{"when": True, "say": f"At {say}."}])


def test_cases_and_defaults_are_laid_over(tmp_path):
    cases = [
        {"id": "small", "statement": "Small.", "applies": {"where": "batch < 9"}},
        {"id": "large", "statement": "Large.", "published": {"value": 2}},
    ]
    base = claim(applies={"target": "decode", "where": "heads == 8"}, cases=cases)
    del base["source"]["document"]
    folder = write(tmp_path / "claims", base, defaults={"source": {"document": "a book"}})
    small, large = claim_files.load(folder)
    assert (small["id"], large["id"]) == ("x-small", "x-large")
    assert small["applies"]["where"] == "(heads == 8) and (batch < 9)"
    assert large["published"] == {"value": 2, "unit": "GB/s"}
    assert small["source"] == {"document": "a book", "section": "1"}


# --- evidence and the command --------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A results folder of decode, rope and a JIT measurement, with a folder of one claim beside it."""
    write(tmp_path / "claims", claim())
    path = tmp_path / "results"
    path.mkdir()
    (path / "decode_results.json").write_text(json.dumps(results(*POINTS)))
    (path / "rope_results.json").write_text(json.dumps(results(entry("rope/T1", {"tokens": 1}))))
    (path / "jit_analysis.json").write_text(json.dumps({"modules": {"rope": {"target": "rope"}}}))
    return path


def test_results_of_an_earlier_run_are_no_evidence(folder):
    found = load(folder, None, ["decode"])
    assert (set(found.results), found.jit_scopes) == ({"decode"}, [])
    found = load(folder, None, ["rope", "jit"])
    assert (set(found.results), len(found.jit_scopes)) == ({"rope"}, 1)
    found = load(folder, None)
    assert (set(found.results), len(found.jit_scopes)) == ({"decode", "rope"}, 1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--source-index", "nope.json"], "error: nope.json: no such file"),
        (["--targets", "decode", "rmsnorm"], "rmsnorm_results.json: no such file"),
        (["--out", "{results}"], "/results: Is a directory"),
    ],
)
def test_what_the_command_cannot_read_or_write_is_one_line(folder, arguments, message):
    out = folder.parent / "claims.json"
    command = [sys.executable, "-m", "analysis.claims", "--results", str(folder)]
    command += ["--claims", str(folder.parent / "claims"), "--out", str(out)]
    command += [argument.format(results=folder) for argument in arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and not out.exists()
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


# --- what ships ----------------------------------------------------------------------------------


def test_shipped_claims_are_valid_and_worded_out():
    shipped = claim_files.load(ROOT / "claims")
    assert len(shipped) > 100
    assert not [c["id"] for c in shipped if "placeholder" in c["statement"]]


def test_page_shows_every_claim(tmp_path):
    loaded = claim_files.load(
        write(tmp_path / "claims", claim(), claim(id="y", applies={"target": "rope"}))
    )
    found = claims.judge_all(loaded, Evidence({"decode": results(*POINTS)}))
    page = (
        environment()
        .get_template("claims.md.j2")
        .render(provenance=found["provenance"], claims=found)
    )
    for record in found["claims"]:
        assert f"### {record['id']}\n" in page
    assert "**confirmed**" in page and "**not testable here**" in page
    tables = [line for line in page.splitlines() if line.startswith("|")]
    assert max(line.count("|") - line.count("\\|") for line in tables) <= 9


NAMED = {  # the report's best-known claims, each with the id of the record that puts it to the test
    "98.5 % of tensor peak": "prefill-98-percent-of-tensor-peak",
    "10–500 ms cold JIT": "jit-cold-10-to-500-ms",
    "~40 % less traffic": "fused-add-saves-40-percent",
    "RMSNorm tops at 26 %": "rmsnorm-peaks-at-26-percent",
    "RoPE tops at 40 %": "rope-peaks-at-40-percent-cached",
    "short_scoreboard = tensor latency": "short-scoreboard-is-tensor-latency",
    "4 KV chunks at batch 128": "decode-4-chunks",
    "cache 5–10 % faster": "rope-cache-5-to-10-percent-faster-large",
}


@pytest.fixture(scope="module")
def recorded(finished, tmp_path_factory):
    """Verdicts of the shipped claims on the recorded evidence, by id."""
    out = tmp_path_factory.mktemp("claims") / "claims.json"
    index = ROOT / "recordings" / "h200" / "source_index.json"
    command = [
        sys.executable,
        "-m",
        "analysis.claims",
        "--results",
        str(finished.outputs / "results"),
    ]
    command += ["--claims", str(ROOT / "claims"), "--out", str(out)]
    command += ["--source-index", str(index)]
    subprocess.run(command, cwd=ROOT, check=True)
    return {record["id"]: record for record in json.loads(out.read_text())}


@pytest.mark.parametrize("name", NAMED)
def test_named_claims_get_a_verdict_with_a_traced_number(recorded, name):
    found = recorded[NAMED[name]]
    assert found["verdict"] in ("confirmed", "refuted", "differs by architecture"), found["reason"]
    assert isinstance(found["measured"]["value"], int | float)
    assert found["evidence"][0]["report"] and found["evidence"][0]["formula"]


def test_every_recorded_claim_that_is_decided_has_evidence(recorded):
    for record in recorded.values():
        decided = record["verdict"] != "not testable here"
        assert record["reason"]
        assert not decided or (record["evidence"] and record["measured"]), record["id"]
