"""Claims held against predicted times: decided only where the whole interval lies on one side."""

from __future__ import annotations

import pytest
from claims_data import A100, claim, decide, write
from results_data import entry, results

from ncuflow.claims import files
from ncuflow.claims.audit import (
    ENDS,
    at,
    biases,
    interval_side,
    of_another_gpu,
    once,
    predicted_verdict,
)
from ncuflow.claims.evidence import ClaimEvidence

WORK = {"flops_analytic": 1e9, "bytes_analytic": 1e9, "ceiling_dram_gbs_datasheet": 2000.0}
POINTS = results(
    entry("decode/B1", {"batch": 1}, **WORK),
    entry("decode/B32", {"batch": 32}, **WORK),
)
# 1e9 bytes: 1000 GB/s between 800 and 1250; 500 between 400 and 625
TIMES = {
    "decode/B1": {"us": 1000.0, "low": 800.0, "high": 1250.0},
    "decode/B32": {"us": 2000.0, "low": 1600.0, "high": 2500.0},
}


def judged(tmp_path, times=TIMES, **changes):
    (loaded,) = files.load(write(tmp_path / "claims", claim(**changes)))
    return predicted_verdict(
        loaded, {end: ClaimEvidence({"decode": at(POINTS, times, end)}) for end in ENDS}
    )


def test_predicted_times_stand_where_none_was_measured():
    row = at(POINTS, TIMES, "low")["points"][0]["measurement"]
    assert (row["time_cold_us"], row["gbs"], row["gbs_fraction_datasheet"]) == (800, 1250, 0.625)
    measured = results(entry("decode/B1", {"batch": 1}, time_cold_us=7.0, **WORK))
    assert at(measured, TIMES, "low")["points"][0]["measurement"]["time_cold_us"] == 7
    assert POINTS["points"][0]["measurement"]["time_cold_us"] is None


@pytest.mark.parametrize(
    ("published", "how", "verdict"),
    [
        ({"value": 700}, decide("gbs", "at least"), "predicted to hold"),
        ({"value": 1300}, decide("gbs", "at least"), "predicted not to hold"),
        ({"value": 900}, decide("gbs", "at least"), "open"),  # inside 800 to 1250
        ({"value": 390}, decide("gbs", "at least", "min"), "predicted to hold"),
        ({"value": 450}, decide("gbs", "at least", "min"), "open"),
        ({"value": 650}, decide("gbs", "at most", "all"), "predicted not to hold"),
        ({"value": 650}, decide("gbs", "at most", "any"), "predicted to hold"),
        ({"value": None, "range": [300, 2000]}, decide("gbs", "between", "all"),
         "predicted to hold"),
        # at one end below, at the other above, and inside in between
        ({"value": None, "range": [900, 1100]}, decide("gbs", "between", "max"), "open"),
        ({"value": None, "range": [630, 790]}, decide("gbs", "between", "any"),
         "predicted not to hold"),
        ({"value": None}, decide("gbs > 300", "holds", "all"), "predicted to hold"),
        ({"value": None}, decide("gbs > 450", "holds", "all"), "open"),
    ],
)  # fmt: skip
def test_the_whole_interval_decides(tmp_path, published, how, verdict):
    found = judged(tmp_path, published={"unit": "GB/s"} | published, decide=how)
    assert found["verdict"] == verdict


def test_a_ratio_takes_the_worst_of_both_intervals(tmp_path):
    samples = {"one": {"where": "batch == 1"}, "many": {"where": "batch == 32"}}
    how = decide("many_time_cold_us / one_time_cold_us", "at least", samples=samples)
    how |= {"differ": ["batch"]}
    found = judged(tmp_path, published={"value": 2, "unit": "×"}, decide=how)
    assert (found["low"], found["value"], found["high"]) == (1600 / 1250, 2, 2500 / 800)
    assert found["verdict"] == "open"


@pytest.mark.parametrize(("expected", "verdict"), [(None, "open"), (True, "predicted not to hold")])
def test_no_prediction_overrules_a_figure_of_the_gpu_itself_but_what_was_expected(
    tmp_path, expected, verdict
):
    how = decide("gbs", "within", tolerance={"relative": 0.1})
    figure = {"value": 9000, "unit": "GB/s", **A100} | ({"expected": True} if expected else {})
    found = judged(tmp_path, published=figure, decide=how)
    assert (found["verdict"], found["figure"]) == (verdict, 9000)
    assert not expected or found["expected"] is True


def test_what_else_is_unknown_is_not_decided(tmp_path):
    lacking = {"decode/B1": TIMES["decode/B1"]}
    for times, figure, verdict in (
        (TIMES, 2000, "predicted to hold"),
        (lacking, 2000, "open"),
        # one point that fails is enough, whatever the other may be
        (lacking, 700, "predicted not to hold"),
    ):
        at_most = {
            "published": {"value": figure, "unit": "GB/s"},
            "decide": decide("gbs", "at most", "all"),
        }
        assert judged(tmp_path, times, **at_most)["verdict"] == verdict
    assert judged(tmp_path, decide=decide("sol_memory_pct", "at least", limit=60)) is None


def test_a_figure_of_another_architecture_is_not_this_gpus():
    for gpu, architecture, other in (
        ("NVIDIA H100 SXM", "sm_90", True),
        ("NVIDIA A100 80GB", "sm_80", False),
        ("a GPU that the source does not name", None, True),
        (None, None, False),
    ):
        assert bool(of_another_gpu({"gpu": gpu, "architecture": architecture}, "sm_80")) == other


def figure(point: str, published: float, value: float, document: str = "a report") -> dict:
    """A published figure beside a prediction whose interval spans a factor of two each way."""
    ends = {"value": value, "low": value / 2, "high": 2 * value}
    predicted = {"point": point, "figure": published, **ends}
    return {"source": {"document": document}, "predicted": predicted}


@pytest.mark.parametrize(
    ("published", "where"),
    [(10, "yes"), (19, "yes"), (19.7, "on its edge"), (20.3, "on its edge"), (5, "on its edge"), (21, "no"), (4, "no")],
)  # fmt: skip
def test_a_figure_at_an_end_of_the_interval_is_neither_inside_nor_outside(published, where):
    assert interval_side(figure("decode/B1", published, 10)["predicted"]) == where


def test_what_one_source_derives_from_one_measurement_counts_once():
    """53 000 tokens per second are 1 771 GB/s, and 82 over 53 thousand is 1.5."""
    rows = [
        figure("decode/B128", 87, 91), figure("decode/B128", 0.873, 0.91), figure("decode/B1", 46, 54),
        figure("decode/B128", 87, 91, "another"),
    ]  # fmt: skip
    assert once(rows) == [rows[0], rows[2], rows[3]]


def test_the_bias_of_predictions_is_that_of_each_target():
    rows = [figure(f"decode/B{n}", 80, 80 + n) for n in (4, 8, 16)]
    rows += [figure(f"prefill/S{us}", 70, us) for us in (50, 60, 77)]
    found = {bias.target: tuple(bias[1:]) for bias in biases(rows)}
    assert found == {"decode": (3, 0, 1.1), "prefill": (1, 2, 60 / 70)}
