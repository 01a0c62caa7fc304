"""Results of a GPU that was not there, and times predicted for it."""

from __future__ import annotations

import math
import re
import shutil
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from conftest import ROOT, some
from hostile import check

from ncuflow.cli import dispatch
from ncuflow.findings.ceilings import datasheet
from ncuflow.findings.columns import COLUMNS
from ncuflow.gpu.table import device, of_architecture
from ncuflow.io import read_json, write_json
from ncuflow.static import predict
from ncuflow.static.predict import (
    ACROSS,
    COVERED,
    OTHER_GPU,
    BoundedPoint,
    Model,
    Residual,
    width,
    width_of,
)
from ncuflow.static.results import Facts, default_blocks, every_recorded, recorded, results, stored
from ncuflow.target.contract import load
from ncuflow.targets import rmsnorm as rmsnorm_target

A100 = device("NVIDIA A100-SXM4-80GB")


@pytest.fixture(scope="module")
def rmsnorm():
    return results(load("rmsnorm"), default_blocks()["rmsnorm"], stored("8.0"), A100)


def test_nothing_of_it_is_a_measurement(rmsnorm):
    measured = {c.name for c in COLUMNS if c.source in ("events", "nsys")}
    measured |= {"time_ncu_us", "limiter"}
    for point in some(rmsnorm["points"]):
        row = point["measurement"]
        assert (point["tier"], row["tier"], row["gpu"]) == ("S", "S", A100.gpu)
        assert not {name for name in measured if row[name] not in (None, "unknown")}


def test_launches_and_occupancy_stand_where_counters_would(rmsnorm):
    (fused,) = [p for p in rmsnorm["points"] if p["point"].endswith("add_R4096_D4096_f16_cuda")]
    row, (kernel,) = fused["measurement"], fused["kernels"]
    assert (row["grid_size"], row["block_size"], row["smem_bytes"]) == (4096, 512, 16448)
    blocks = min(A100.fits(512, row["registers"], 16448).values())
    assert row["waves"] == pytest.approx(4096 / (blocks * 108))
    assert row["theoretical_occupancy_pct"] == pytest.approx(100 * blocks * 16 / 64)
    assert kernel["demangled"].endswith("FusedAddRMSNormKernel<(unsigned int)8, __half>")


def test_an_a100_runs_the_norms_of_cute_dsl(rmsnorm):
    by_point = {p["point"].split("/")[1]: p for p in rmsnorm["points"]}
    row, (kernel,) = (by_point["fused_add_R4096_D4096_f16"][k] for k in ("measurement", "kernels"))
    # two rows of 8 KB and their residuals, and eight partial sums
    assert (row["grid_size"], row["block_size"], row["smem_bytes"]) == (2048, 128, 32784)
    assert kernel["demangled"] == rmsnorm_target.cute_name("fused_add_rmsnorm", "f16", 4096, False)
    assert kernel["registers"] == 126
    # dependent launch is not compiled in where the GPU has none
    (plain,) = by_point["rmsnorm_R4096_D4096_f16"]["kernels"]
    (without,) = by_point["rmsnorm_R4096_D4096_f16_nopdl"]["kernels"]
    assert plain["demangled"] == without["demangled"]


def test_rows_of_a_cluster_have_no_rule():
    long = [{"hidden": 131072}]
    (point,) = results(load("rmsnorm"), long, stored("8.0"), A100)["points"]
    (kernel,) = point["kernels"]  # a block a row, and nothing compiled of it
    assert (kernel["grid"], kernel["registers"], kernel["metrics"]) == ("4096,1,1", None, {})
    hopper = results(load("rmsnorm"), long, stored("9.0"), device("NVIDIA H200"))
    said = "not compiled: the clusters of a norm of 131072 elements"
    assert hopper["points"][0]["problems"] == [said]


def test_points_of_another_architecture_are_skipped_and_what_was_not_compiled_is_named():
    (point,) = results(load("prefill"), [{"backend": ["fa3"]}], stored("8.0"), A100)["points"]
    assert point["status"] == "skipped" and "9.0" in point["reason"]
    assert point["kernels"] == []
    facts = stored("8.0")
    without = replace(facts, content=facts.content | {"kernels": []})
    (point,) = results(load("decode"), [{}], without, A100)["points"]
    assert "not compiled: flashinfer::BatchDecodeWithPagedKVCacheKernel<" in point["problems"][0]
    assert point["measurement"]["grid_size"] is None


def test_the_gpu_of_an_architecture():
    assert of_architecture("80") == A100
    assert of_architecture("90", "NVIDIA H100 80GB HBM3").sm_count == 132
    with pytest.raises(ValueError, match=r"arch 75: .*120, 80, 86, 89, 90"):
        of_architecture("75")
    # GeForce does half of the others' arithmetic in fp16 with fp32 sums
    assert of_architecture("120", "NVIDIA GeForce RTX 5090").mma_flops == 512
    assert of_architecture("86", "NVIDIA A40").mma_flops == 1024
    with pytest.raises(ValueError, match="arch 80: no NVIDIA H200"):
        of_architecture("80", "NVIDIA H200")


def made(n=40, noise=0.0, dram=0.7, sm=0.4, cycles=3000.0, seed=1):
    """Cases of one kernel that follow the model's own law."""
    random = np.random.default_rng(seed)
    found = []
    for i in range(n):
        bounds = 10 ** random.uniform(-1, 3, 2)
        one = BoundedPoint(f"p{i}", "t", "k", *bounds, cycle_ns=0.5, floor_us=3.0)
        us = math.hypot(one.dram_us / dram, one.sm_us / sm) + 3.0 + cycles * 0.5 / 1e3
        found.append(replace(one, measured_us=us * math.exp(random.normal(0, noise))))
    return found


def test_a_law_that_holds_is_found_and_a_faster_gpu_follows_from_it():
    cases = made()
    model = Model(cases)
    assert max(abs(r.off) for r in model.residuals) < 0.01
    one = replace(cases[0], cycle_ns=0.25, measured_us=None)
    twice = replace(one, dram_us=one.dram_us / 2, sm_us=one.sm_us / 2)
    expected = math.hypot(twice.dram_us / 0.7, twice.sm_us / 0.4) + 3.0 + 0.75
    assert sum(model.parts(twice)) == pytest.approx(expected, rel=0.01)


def test_intervals_cover_what_they_promise():
    model = Model(made(300, noise=0.1))
    fresh = made(300, noise=0.1, seed=2)
    inside = [p.low <= p.measured_us <= p.high for p in model.predict(fresh, model.residuals)]
    assert COVERED - 0.07 < sum(inside) / len(inside) < 1


def test_a_point_is_predicted_by_the_others_and_a_kernel_that_was_not_measured_is_not():
    cases = made()
    wrong = replace(cases[0], measured_us=100 * cases[0].measured_us)
    model = Model([wrong, *cases[1:]])
    assert sum(model.parts(wrong, wrong.point)) == pytest.approx(cases[0].measured_us, rel=0.01)
    other = replace(cases[0], target="another")
    assert model.parts(other) is None and model.predict([other], model.residuals) == []


def test_points_of_latency_have_an_interval_of_their_own():
    steady, noisy = [Residual(True, 0.01)] * 30, [Residual(False, 0.5)] * 30
    both = [*steady, *noisy]
    assert (width_of(both, True), width_of(both, False)) == (0.01, 0.5)
    assert width_of([*steady, *noisy[:2]], False) == 0.5  # too few of the kind: all count
    model = Model(made())
    (one,), (wide,) = (model.predict(made(1), both, wider) for wider in (1.0, 2.0))
    assert wide.high / wide.us == pytest.approx((one.high / one.us) ** 2)


def test_no_launch_is_shorter_than_its_bounds_allow():
    model = Model(made())
    (free,) = model.predict(made(1), [Residual(True, 3.0)] * 20)
    bound = replace(made(1)[0], least_us=0.9 * free.us)
    (held,) = model.predict([bound], [Residual(True, 3.0)] * 20)
    assert free.low < 0.1 * free.us
    assert held.low == pytest.approx(0.9 * held.us)


def test_what_a_launch_reads_passes_dram_whatever_l2_holds(rmsnorm):
    """A launch is timed after a flush: L2 may keep what is written, and no input."""
    gbs, l2 = datasheet(A100.gpu)["dram_gbs"], A100.l2_bytes
    decode = results(load("decode"), [{}, {"batch": [1]}], stored("8.0"), A100)
    found = {c.point: c for c in predict.cases([decode, rmsnorm], 3.0)[0]}
    for batch in (1, 32):  # one tensor fits into L2 altogether
        read = (1 + 2 * 2048) * batch * 32 * 128 * 2
        one = found[f"decode/B{batch}_L2048_H32_K32_D128_P16_f16_cc"]
        assert one.least_us == pytest.approx(read / gbs / 1e3)
    norms = {r: found[f"rmsnorm/rmsnorm_R{r}_D4096_f16"] for r in (512, 16384)}
    small, large = (norms[r].least_us * gbs * 1e3 for r in norms)
    assert small == pytest.approx((512 + 1) * 4096 * 2)
    assert large == pytest.approx((2 * 16384 + 1) * 4096 * 2 - l2)
    # nothing is known of a target that does not say what it writes
    unknown = {**decode, "target": "none of these"}
    assert predict.cases([unknown], 3.0)[0][0].least_us < one.least_us


def test_a_split_prefill_is_not_predicted_by_its_attention_alone():
    """Its merge took 42 of 62 µs on an H200. That of decode merges a row for each sequence, and is small beside the KV cache."""
    names = ("prefill", "decode")
    made = [results(load(n), default_blocks()[n], stored("8.0"), A100) for n in names]
    found, refusals = predict.cases(made, 3.0, merged=False)
    points = [point for one in made for point in one["points"]]
    split = {p["point"] for p in points if any("MergeStates" in k["name"] for k in p["kernels"])}
    known = {one.point for one in found}
    assert {name.split("/")[0] for name in split & known} == {"decode"}
    (refused,) = split - known
    assert "_split16" in refused and "the KV cache is split" in refusals[refused]
    assert refused.removesuffix("_split16") + "_nosplit" in known
    assert refused in {one.point for one in predict.cases(made, 3.0)[0]}


@pytest.mark.parametrize(("few", "found"), [(0, 0.1), (5, 0.1), (15, 0.5)])
def test_the_width_of_an_interval_is_never_less_than_what_was_seen(few, found):
    assert width([*[0.1] * (100 - few), *[-0.5] * few]) == found


SIDES = {"NVIDIA H200": 1 / 4.8, "NVIDIA H100 80GB HBM3": 1 / 3.35}


def timed(rmsnorm, gpu, scale):
    """The same points as if they had been measured, at a rate of DRAM alone."""
    points = []
    for point in rmsnorm["points"]:
        row = dict(point["measurement"], time_floor_us=3.0)
        row["time_cold_us"] = 5.0 + scale * row["bytes_analytic"] / 1e6
        points.append({**point, "measurement": row})
    return {**rmsnorm, "points": points, "provenance": {**rmsnorm["provenance"], "gpu": gpu}}


OTHERS = {"gpu": "NVIDIA B200", "compute_capability": "10.0", "sm_count": 148}
B200 = device("NVIDIA H200").model_copy(update=OTHERS | {"mma_flops": None, "wgmma_flops": None})


def test_what_another_gpu_computes_by_another_kernel_is_not_predicted(monkeypatch):
    """On a B200 from a GPU on which fa2, fa3 and decode on CUDA cores were measured."""
    monkeypatch.setattr(predict, "device", lambda name: B200 if "B200" in name else device(name))
    more = [{"kv_heads": 8, "layout": "ragged"}, {"kv_heads": 8, "backend": "fa3"}]
    blocks = {"prefill": [*default_blocks()["prefill"], *more]}
    blocks |= {"decode": default_blocks()["decode"]}

    def static(capability, gpu):
        return [results(load(name), blocks[name], stored(capability), gpu) for name in blocks]

    hopper = device("NVIDIA H200")
    here = [timed(one, hopper.gpu, 1) for one in static("9.0", hopper)]
    there = static("10.0", B200)
    found = predict.predictions(here, there)
    why, times = found["not_predicted"], {p["point"]: p for p in found["points"]}
    every = {p["point"] for one in there for p in one["points"]}
    assert {*why} | {*times} == every and not {*why} & {*times}
    name = "prefill/paged_S4096_B1_H32_K8_D128_f16"
    assert why[f"{name}_fa3_c"] == "fa3 needs compute capability 9.0, this GPU has 10.0"
    assert why[f"{name}_trtllm_gen_c"] == "no rule says what trtllm-gen launches"
    assert why[f"{name}_fa2_c"] == "no peak of mma.sync is known on compute capability 10.0"
    one = times["decode/B32_L2048_H32_K32_D128_P16_f16_cc"]
    # the width of another architecture's interval, and never less than DRAM takes
    factor = found["left_out"]["factors"]["bounds" if one["bounded"] else "latency"]
    assert one["high"] / one["us"] == pytest.approx(factor**ACROSS)
    # a kernel that was measured of no point is not taken for another of its target
    (decode,) = (one for one in here if one["target"] == "decode")
    cores = decode | {"points": [p for p in decode["points"] if "_cc" not in p["point"]]}
    lacking = predict.predictions([cores], there)
    said = lacking["not_predicted"]["decode/B32_L2048_H32_K32_D128_P16_f16_cc"]
    assert said == "BatchDecodeWithPagedKVCacheKernel was not measured"
    assert not [p for p in lacking["points"] if "_cc" in p["point"]]


def test_a_norm_of_the_cute_dsl_is_predicted_by_its_own_kernel(rmsnorm):
    """Its name is what reports of a measured GPU call it; of a kernel of PyTorch nothing is said."""
    (apart,) = [p for p in rmsnorm["points"] if "add_then_rmsnorm_R512_" in p["point"]]
    assert apart["measurement"]["main_kernel"] is None
    kernels = {p["measurement"]["main_kernel"] for p in rmsnorm["points"]}
    assert kernels == {
        None, "RMSNormKernel (CuTe DSL)", "FusedAddRMSNormKernel (CuTe DSL)", "RMSNormKernel", "FusedAddRMSNormKernel"
    }  # fmt: skip


def test_two_measured_gpus_validate_each_other(rmsnorm):
    here, there = (timed(rmsnorm, *side) for side in SIDES.items())
    found = predict.predictions([here], [there])
    assert found["crossed"]["n"] == len(found["points"]) > 20
    assert found["crossed"]["median_error"] < 0.02
    assert predict.predictions([here], [rmsnorm])["crossed"] is None
    # Another GPU widens the intervals, and another architecture more.
    for side in (here, there):
        side["provenance"]["compute_capability"] = "9.0"
    found = [predict.predictions([here], [other])["across"] for other in (here, there, rmsnorm)]
    assert found == [1.0, OTHER_GPU, ACROSS]
    assert 1 < OTHER_GPU < ACROSS
    with pytest.raises(ValueError, match="NVIDIA Nothing: no datasheet"):
        predict.predictions([timed(rmsnorm, "NVIDIA Nothing", 1)], [rmsnorm])


@pytest.mark.parametrize("slower", [2.0, 0.5])
def test_the_bias_of_predictions_has_the_sign_of_what_they_are_off(rmsnorm, slower):
    here, there = (timed(rmsnorm, "NVIDIA H200", 1 / 4.8) for _ in range(2))
    for point in there["points"]:
        point["measurement"]["time_cold_us"] *= slower
    crossed = predict.predictions([here], [there])["crossed"]
    off = [p["us"] / p["measured_us"] - 1 for p in crossed["points"]]
    assert crossed["bias"] == pytest.approx(median(off), rel=0.1)
    assert crossed["bias"] == pytest.approx(1 / slower - 1, rel=0.1)


def test_the_page_of_two_measured_gpus_has_every_point_beside_its_prediction(rmsnorm, tmp_path):
    for name, scale in SIDES.items():
        write_json(tmp_path / name / "rmsnorm_results.json", timed(rmsnorm, name, scale))
    here, there = (str(tmp_path / name) for name in SIDES)
    page = tmp_path / "predictions.md"
    command = ["predict-page", "--measured", here, "--out", str(page), "--on"]
    assert dispatch([*command, there]) == 0
    text = page.read_text()
    assert text.count("| `rmsnorm/rmsnorm_R4096_D4096_f16` |") == len(SIDES)
    assert "## NVIDIA H100 80GB HBM3, predicted from NVIDIA H200" in text
    write_json(tmp_path / "static/rmsnorm_results.json", rmsnorm)
    with pytest.raises(SystemExit):  # one side has no times
        dispatch([*command, str(tmp_path / "static")])


MEASURED = """
claims:
  - id: somebodys
    statement: A norm of somebody's reaches 4.45 % of the bandwidth.
    source: {document: a page, section: a table}
    published: {value: 4.45, unit: "% of peak", gpu: NVIDIA A100, architecture: sm_80, convention: x and y once}
    applies: {target: rmsnorm, where: variant == "rmsnorm" and rows == 32 and hidden == 4096}
    decide: {value: 100 * gbs_fraction_datasheet, aggregate: max, compare: within, tolerance: {relative: 0.1}}
"""


def test_the_page_says_what_is_predicted_and_what_stays_open(rmsnorm, tmp_path, monkeypatch):
    files = str(shutil.copytree(ROOT / "claims", tmp_path / "claims"))
    (tmp_path / "claims/measured.yaml").write_text(MEASURED, encoding="utf-8")
    sides = {"here": timed(rmsnorm, "NVIDIA H200", 1 / 4.8), "there": rmsnorm}
    for name, found in sides.items():
        write_json(tmp_path / name / "rmsnorm_results.json", found)
        folder = ["--results", str(tmp_path / name)]
        claims = ["--claims", files, "--out", str(tmp_path / name / "claims.json")]
        assert dispatch(["check", "claims", *folder, *claims]) == 0
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    predictions = f"{there}/predictions.json"
    on = ["--measured", here, "--on", there, "--out", predictions]
    assert dispatch(["static", "predict", *on]) == 0
    claims = ["--claims", files, "--out", f"{there}/claims_predicted.json"]
    of = ["--results", there, "--predictions", predictions]
    assert dispatch(["claims-predicted", *of, *claims]) == 0
    facts = ["--facts", str(recorded("8.0")), "--beside", str(recorded("9.0"))]
    facts += ["--modules", str(recorded("8.0"))]
    page = tmp_path / "INDEX.md"
    command = ["static-page", "--results", there, "--measured", here, *facts, "--out", str(page)]
    assert dispatch(command) == 0
    text = page.read_text()
    assert "Tier S (static: compiled, not run) · NVIDIA A100-SXM4-80GB" in text
    assert "| point | predicted, not measured | interval |" in text
    assert "is not known before one of them is measured" in text
    assert "| `cascade` | 20, 29 to 56 |" in text
    # a figure of somebody's A100 beside what is predicted for it and how it counts, and no verdict of it
    interval = r"4.\d+ \(\d.\d+ to \d+(\.\d+)?\) % of peak; x and y once"
    start = r"\| A norm of somebody's reaches 4.45 % of the bandwidth. \|"
    assert re.search(rf"{start} a measured time \| {interval} \|\n", text)
    assert re.search(rf"{start} 4.45 % of peak \| {interval} \| yes \|\n", text)
    counted = "of 1 figure 1 inside the interval, 0 on its edge, 0 outside; 1 from one document"
    assert counted in text
    assert "bias, which their intervals do not take away: rmsnorm is predicted" in text
    # what somebody only expected tests no prediction, which may speak against it
    expected = text[text.index("## What was expected") :]
    assert "of 3 figures 0 inside the interval, 0 on its edge, 3 outside" in expected
    start = r"\| RMSNorm at batch 1 reaches 5 % of the bandwidth. \|"
    interval = r"0\.\d+ \(0\.\d+ to 0\.\d+\) % of peak"
    assert re.search(rf"{start} predicted not to hold \| {interval} \|", text)
    assert re.search(rf"{start} 5 % of peak \| {interval} \| \*\*no\*\* \|", expected)
    name = "FusedAddRMSNormKernel<8, __half>"
    of = [stored(of).kernels[f"flashinfer::norm::{name}"]["registers"] for of in ("8.0", "9.0")]
    assert f"\n| `{name}` | {of[0]} / {of[1]} |" in text
    check(lambda: dispatch(command) or page.read_text(), monkeypatch, ("# ", ""))


def test_facts_of_single_modules_are_no_facts_of_a_sweep():
    assert {path.parent.name for path in every_recorded()} == {"static", "modules"}
    assert recorded("7.5") is None
    for capability in ("8.0", "8.9", "9.0", "10.0", "10.3", "12.0"):
        assert recorded(capability).parent.name == "static"
    for path in every_recorded():
        assert all(m["built"] == m["sources"] for m in Facts(read_json(path)).modules()), path


def test_static_pages_need_no_gpu_and_no_compiler_where_facts_are_recorded(project):
    rules = project.planned("--config", "source=recorded", "arch=80", "--", "static")
    assert {"static_results", "static_claims", "predictions", "static_pages"} <= set(rules)
    assert "static_facts" not in rules
    kept = (project.folder / "recordings").resolve()
    (project.folder / "recordings").unlink()
    (project.folder / "recordings").mkdir()
    for one in kept.iterdir():
        if not one.name.startswith(("static", "sm_")):
            (project.folder / "recordings" / one.name).symlink_to(one)
    rules = project.planned("--config", "source=recorded", "arch=80", "--", "static")
    assert "static_facts" in rules
