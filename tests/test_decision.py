"""Decisions: which points decide a claim, and with which value."""

import pytest
from claims_data import POINTS, decide, judged
from results_data import entry, kernel


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
    times = {("f", 1): 2.0, ("s", 1): 4.0, ("f", 2): 5.0, ("s", 2): 30.0, ("s", 3): 1.0}
    points = [
        entry(f"decode/{kind}{rows}", {"variant": kind, "rows": rows}, time_cold_us=time)
        for (kind, rows), time in times.items()
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
    how = decide("gbs", "at least", "all")
    every = judged(tmp_path, *points, published={"value": 500, "unit": ""}, decide=how)
    assert every["verdict"] == "not testable here"
    assert "lacks gbs at decode/B9" in every["reason"]
    failing = judged(tmp_path, *points, published={"value": 5000, "unit": ""}, decide=how)
    assert failing["verdict"] == "refuted"


def test_first_decision_that_has_an_answer_decides(tmp_path):
    both = [decide("dram_gbs_counted", "at least"), decide("gbs", "at least")]
    found = judged(tmp_path, decide=both, needs="Counters.", published={"value": 3000, "unit": ""})
    assert found["verdict"] == "confirmed" and found["needs"] is None
    found = judged(
        tmp_path, decide=both[:1], needs="Counters.", published={"value": 3000, "unit": ""}
    )
    assert (found["verdict"], found["needs"]) == ("not testable here", "Counters.")
    assert found["reason"] == "The evidence lacks dram_gbs_counted at decode/B1."


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


@pytest.mark.parametrize(
    ("limit", "verdict", "measured"),
    [(15, "confirmed", 17.2), (40, "refuted", 37.5), (20, "not testable here", None)],
)
def test_two_values_are_no_median_and_decide_where_they_agree(tmp_path, limit, verdict, measured):
    points = [entry(f"decode/B{n}", {"batch": n}, gbs=rate) for n, rate in ((1, 37.5), (2, 17.2))]
    found = judged(
        tmp_path, *points, published={"value": limit, "unit": "% faster"},
        decide=decide("gbs", "at least", "median"),
    )  # fmt: skip
    assert (found["verdict"], (found["measured"] or {}).get("value")) == (verdict, measured)
    if measured is None:
        assert "points that there are do not agree: 17.2 % faster and 37.5 %" in found["reason"]
    else:
        assert found["measured"]["aggregate"] == "nearest to the limit"


def test_a_single_value_was_chosen_by_nothing(tmp_path):
    how = decide("gbs", "at least", "median")
    found = judged(tmp_path, POINTS[2], decide=how)
    assert (found["measured"]["value"], found["measured"]["aggregate"]) == (4000, None)
    found = judged(tmp_path, decide=how, published={"value": 1500, "unit": "GB/s"})
    assert (found["measured"]["value"], found["measured"]["aggregate"]) == (2000, "median")
