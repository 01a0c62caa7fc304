"""Claims: from measurements to a verdict with its evidence."""

from __future__ import annotations

import json
import lzma
import math
import re
import shutil

import pytest
from claims_data import A100, POINTS, ROOT, claim, decide, judged, write
from command import ncuflow
from conftest import DEFAULT, some
from results_data import entry, kernel, results

from ncuflow.claims import audit, files
from ncuflow.claims.evidence import ClaimEvidence, SourceFacts, load
from ncuflow.findings.jit import jit_analysis
from ncuflow.io import read_json, write_json
from ncuflow.pages.markdown.rendering import FILTERS, environment

# --- verdicts ------------------------------------------------------------------------------------


OTHER_LIBRARY = {"gpu": "NVIDIA H200", "architecture": "sm_90", "library": "flash-attention"}
H100 = {"gpu": "NVIDIA H100 SXM", "architecture": "sm_90"}


@pytest.mark.parametrize(
    ("of", "figure", "more", "verdict", "why"),
    [
        (A100, 1000, {}, "differs by architecture", ""),
        (A100, 1000, {"independent": "It is arithmetic."}, "refuted", ""),
        (H100, 1000, {}, "not testable here", "H100"),  # another model cannot refute
        *(
            (of, figure, {"needs": "It."}, "not testable here", why)
            for figure in (4000, 1000)
            for of, why in (
                (OTHER_LIBRARY, "of flash-attention"),
                ({"gpu": "a GPU that the source does not name"}, "does not name its GPU"),
            )
        ),
        ({}, 4000, {"applies": {"target": "decode", "architecture": "sm_80"}}, "not testable here", "sm_80"),
    ],
)  # fmt: skip
def test_what_a_figure_is_of_decides_whether_it_can_be_refuted(
    tmp_path, of, figure, more, verdict, why
):
    found = judged(tmp_path, published={"value": figure, "unit": "GB/s", **of}, **more)
    assert found["verdict"] == verdict and why in found["reason"]
    assert found["needs"] == more.get("needs", found["needs"])
    assert "applies" in more or found["measured"]["value"] == 4000


def test_on_the_gpu_of_a_figure_it_is_refuted(tmp_path):
    published = {"value": 1000, "unit": "GB/s", **A100}
    there = results(*POINTS, gpu="NVIDIA A100-SXM4-80GB", compute_capability="8.0")
    found = judged(tmp_path, published=published, evidence=ClaimEvidence({"decode": there}))
    assert found["verdict"] == "refuted"


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
    point = entry("decode/B1", {"batch": 1}, gbs=1000.0, time_cold_us=100.0, **noisy)

    def at(figure, value="gbs", compare="at least"):
        published = {"value": figure, "unit": "GB/s" if figure else ""}
        return judged(tmp_path, point, published=published, decide=decide(value, compare))

    near = at(950)
    assert near["verdict"] == "not testable here" and near["needs"] is None
    assert near["reason"] == (
        "Too close to call: 50 GB/s from the limit, and the measurement is uncertain by 105 GB/s."
    )
    assert near["noise_floor"] == pytest.approx(1.57 * 20 / 3 / 100 * 1000)
    assert at(500)["verdict"] == "confirmed"
    yes = at(None, "time_cold_us > 99", "holds")
    assert yes["verdict"] == "not testable here" and "Too close to call" in yes["reason"]


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
        tmp_path, evidence=ClaimEvidence({"decode": results(point) | {"noise": floors}}),
        published={"value": 500, "unit": "GB/s"}, decide=decide(value, compare),
    )  # fmt: skip
    assert (found["verdict"], found["noise_floor"]) == ("confirmed", None)


def test_impossible_numbers_are_no_evidence(tmp_path):
    wrong = entry("decode/B2", {"batch": 2}, gbs=9000.0, ceiling_dram_gbs_datasheet=4800.0)
    folder = tmp_path / "results"
    write_json(folder / "decode_results.json", results(POINTS[0], wrong))
    least = {"published": {"value": 500, "unit": ""}, "decide": decide("gbs", "at least")}
    found = judged(tmp_path, evidence=load(folder, None), **least)
    assert (found["verdict"], found["measured"]["value"]) == ("confirmed", 1000)
    # A kernel without a time leaves the metrics of the longest unknown.
    failed = kernel("Attention") | {"duration_ns": None}
    point = entry("decode/B1", {"batch": 1}, [failed, kernel("Merge", {"l2_hit_pct": 50.0})])
    found = judged(tmp_path, point, decide=decide("l2_hit_pct", "at least"))
    assert "lacks l2_hit_pct at decode/B1" in found["reason"]


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
    evidence = ClaimEvidence({"decode": results(*POINTS)}, jit=jit)

    def of(what, compare, found=evidence, **published):
        return judged(
            tmp_path, evidence=found, applies={"target": "jit"}, published={"unit": "ms", **published},
            decide={"over": "jit", "value": f"1000 * {what}", "compare": compare},
        )  # fmt: skip

    cold = of("cold_build_s", "between", value=None, range=[10, 500])
    assert cold["verdict"] == "refuted" and cold["measured"]["value"] == 38000
    assert cold["evidence"][1]["report"] == "jit/jit_analysis.json"
    disk = of("disk_build_and_load_s", "at least", value=5)
    assert disk["verdict"] == "not testable here"  # one module has no disk hit
    # A host time has the spread of its samples for a floor.
    disk = {"build_and_load_s": 0.0098, "build_and_load_s_samples": [0.0093, 0.0098, 0.0103]}
    sampled = ClaimEvidence({}, jit={"modules": {"rope": {"disk": disk}}})
    found = of("disk_build_and_load_s", "at most", sampled, value=10)
    assert found["noise_floor"] == pytest.approx(0.5)
    assert found["verdict"] == "not testable here" and "Too close to call" in found["reason"]


def side(us, seed):
    samples = [us * (1 + 0.001 * ((seed + 3 * i) % 7 - 3)) for i in range(20)]
    times = {"us": us, "samples_us": samples}
    return {f"{kind}_{of}": v for kind in ("cold", "hot", "host") for of, v in times.items()}


def compared(*pairs, fused=100.0, apart=115.0):
    """Two points far apart in noise, and pairs of them (or of one with itself) that were timed in turns."""
    noisy = {"time_cold_q25_us": 80.0, "time_cold_q75_us": 120.0, "time_cold_n": 9}
    points = [
        entry(f"decode/{variant}", {"variant": variant}, time_cold_us=us, **noisy)
        for variant, us in (("fused", fused), ("apart", apart))
    ]
    turns = [
        {"base": f"decode/{a}", "other": f"decode/{b}", "status": "ok", "reason": None,
         "sides": [side(us, n) for n, us in enumerate(times)]}
        for a, b, times in pairs
    ]  # fmt: skip
    return ClaimEvidence({"decode": results(*points) | {"pairs": turns}})


FASTER = {
    "published": {"value": 1.1, "unit": "×"},
    "decide": {
        "samples": {"a": {"where": 'variant == "apart"'}, "f": {"where": 'variant == "fused"'}},
        "differ": ["variant"], "value": "a_time_cold_us / f_time_cold_us", "compare": "at least",
    },
    "reasons": [
        {"when": "in_turns", "say": "In turns {f_time_cold_us:.0f} and {a_time_cold_us:.0f} µs."},
        {"when": "not in_turns", "say": "Timed apart."},
    ],
}  # fmt: skip


@pytest.mark.parametrize("order", [("apart", "fused", (120.0, 100.0)), ("fused", "apart", (100.0, 120.0))])  # fmt: skip
def test_two_points_that_were_timed_in_turns_are_compared_by_those_times(order, tmp_path):
    found = judged(tmp_path, evidence=compared(order), **FASTER)
    assert found["measured"]["value"] == pytest.approx(1.2)
    assert (found["verdict"], found["reason"]) == ("confirmed", "In turns 100 and 120 µs.")
    assert found["noise_floor"] < 0.01
    assert {row["report"] for row in found["evidence"]} == {"decode/pairs.jsonl"}
    assert found["evidence"][1]["formula"].endswith(", timed in turns")


def test_the_floor_of_a_pair_is_what_pairs_of_a_point_with_itself_differ_by(tmp_path):
    itself = ("fused", "fused", (100.0, 115.0))
    evidence = compared(("apart", "fused", (120.0, 100.0)), itself)
    found = judged(tmp_path, evidence=evidence, **FASTER)
    assert found["verdict"] == "not testable here"
    assert found["noise_floor"] == pytest.approx(1.2 * math.log(1.15), rel=0.05)


@pytest.mark.parametrize("pairs", [(), [("fused", "fused", (100.0, 100.1))]])
def test_points_that_were_timed_apart_have_their_own_times_and_noise(pairs, tmp_path):
    found = judged(tmp_path, evidence=compared(*pairs), **FASTER)
    assert found["measured"]["value"] == pytest.approx(1.15)
    assert (found["verdict"], found["measured"]["known"]) == ("not testable here", 1)
    assert found["noise_floor"] > 0.2 and "Timed apart." in found["reason"]
    assert found["evidence"][0]["report"] == "decode/timing.jsonl"


SERIES = {
    "copy": {"value": 4276.0, "q25": 4274.0, "q75": 4276.0, "n": 30, "method": "a copy"},
    "matrix product, f16": {
        "value": 761.0, "q25": 760.0, "q75": 762.0, "n": 30, "method": "a product",
        "sustained": {"value": 658.0, "q25": 656.4, "q75": 658.8, "n": 21},
    },
}  # fmt: skip


def ceilings(**series):
    sheet = {"dram_gbs": 4800.0, "tensor_tflops": 990.0, "source": "a sheet"}
    measured = {"dram_gbs": 4276.0, "read_gbs": None, "series": series, "tensor_tflops": {}, "source": "a copy"}  # fmt: skip
    return ClaimEvidence({"decode": results(*POINTS) | {"ceilings": {"datasheet": sheet, "measured": measured}}})  # fmt: skip


def test_what_is_of_the_machine_is_decided_by_its_ceilings_and_names_no_point(tmp_path):
    usable = {
        "published": {"value": 265, "unit": "TFLOPS", "ceiling": 312, **A100},
        "decide": {
            "over": "machine", "value": "matmul_tflops_f16_sustained / tensor_tflops_datasheet",
            "compare": "within", "tolerance": {"relative": 0.1},
        },
    }  # fmt: skip
    found = judged(tmp_path, evidence=ceilings(**SERIES), **usable)
    assert found["measured"]["value"] == pytest.approx(658 / 990)
    assert found["measured"]["point"] is None and found["measured"]["points"] == 1
    assert found["verdict"] == "differs by architecture"
    assert found["another_gpu"] == "NVIDIA A100 80GB"
    assert found["noise_floor"] == pytest.approx(658 / 990 * 1.57 * 2.4 / 21**0.5 / 658)
    whole, product, sheet = found["evidence"]
    assert whole["report"] == product["report"] == "ceilings.json" and sheet["report"] is None
    assert (product["formula"], sheet["formula"]) == ("a product", "a sheet")
    burst = usable | {"decide": usable["decide"] | {"value": "matmul_tflops_f16 / 990"}}
    assert judged(tmp_path, evidence=ceilings(**SERIES), **burst)["verdict"] == "confirmed"
    copied = usable | {"decide": usable["decide"] | {"value": "copy_gbs / dram_gbs_datasheet"}}
    found = judged(tmp_path, evidence=ceilings(**SERIES), **copied)
    assert found["measured"]["value"] == pytest.approx(4276 / 4800)


def test_a_ceiling_that_an_earlier_recording_lacks_decides_nothing(tmp_path):
    over = {"over": "machine", "value": "matmul_tflops_f16_sustained", "compare": "at least"}
    none = ClaimEvidence({"decode": results(*POINTS) | {"ceilings": {}}})
    for evidence, why in (
        (ceilings(copy=SERIES["copy"]), "The evidence lacks matmul_tflops_f16_sustained."),
        (none, "The evidence has no ceilings of its machine."),
    ):
        found = judged(tmp_path, evidence=evidence, decide=over | {"limit": 1})
        assert (found["verdict"], found["reason"]) == ("not testable here", why)


@pytest.mark.parametrize(
    ("verdict", "limits", "draw", "said"),
    [
        ("latency", "tail", None, "latency-bound (launch and tail); busiest: DRAM (30 %)"),
        ("latency", "latency", "tail", "latency-bound (launch and tail); busiest: DRAM (30 %)"),
        (None, "unknown", None, None),
    ],
)
def test_a_reason_names_what_limits_the_point_as_pages_do(verdict, limits, draw, said, tmp_path):
    units = {"busiest_unit": "dram", "busiest_pct": 30.0, "second_unit": "l2", "second_pct": 20.0}
    point = entry("decode/B1", {}, gbs=4000.0, limiter=limits, draw=draw, verdict=verdict, **units)
    reasons = [{"when": "known(limited_by)", "say": "What limits it: {limited_by}."}]
    found = judged(tmp_path, point, reasons=reasons)
    assert (f"What limits it: {said}." in found["reason"]) == (said is not None)


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
    assert facts.reads_variable("B12X_TIMING") is None  # what was not searched is no answer
    assert (facts.requires("f", "a"), facts.requires("f", "b")) == (True, False)
    assert [facts.accepts(name, "c") for name in "fgh"] == [False, None, None]
    assert (facts.default("f", "b"), facts.position("f", "b")) == ("False", 1)
    assert facts.exports("rmsnorm") is None


# --- evidence and the command --------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """A results folder of decode, rope and a JIT measurement, with a folder of one claim beside it."""
    write(tmp_path / "claims", claim())
    path = tmp_path / "results"
    path.mkdir()
    (path / "decode_results.json").write_text(json.dumps(results(*POINTS)))
    (path / "rope_results.json").write_text(json.dumps(results(entry("rope/T1", {"tokens": 1}))))
    modules = {"rope": {"target": "rope", "aot": False, "cold": {}}}
    write_json(path / "jit_analysis.json", {"modules": modules, "method": "m", "cpu_count": 8})
    return path


def test_results_of_an_earlier_run_are_no_evidence(folder):
    for targets, named, measured in (
        (["decode"], {"decode"}, False),
        (["rope", "jit"], {"rope"}, True),
        (None, {"decode", "rope"}, True),
    ):
        found = load(folder, None, targets)
        assert (set(found.results), bool(found.jit)) == (named, measured)
        # without one of its own the evidence has another's, and says whose
        said = [" of FlashInfer " in str(scope.point) for scope in some(found.jit_scopes)]
        assert set(said) == {not measured}


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
    words = ["--results", folder, "--claims", folder.parent / "claims"]
    words += [argument.format(results=folder) for argument in arguments]
    words += [] if "--out" in arguments else ["--out", out]
    done = ncuflow("check", "claims", *words)
    assert done.returncode == 2 and not out.exists()
    assert message in done.stderr and len(done.stderr.splitlines()) == 1


# --- what ships ----------------------------------------------------------------------------------


def test_shipped_claims_are_valid_and_worded_out():
    shipped = files.load(ROOT / "claims")
    assert len(shipped) > 100
    assert not [c.id for c in shipped if "placeholder" in c.statement]


def test_page_shows_every_claim(tmp_path):
    expected = {"value": 4000, "unit": "GB/s", "gpu": "a GPU", "expected": True}
    other = claim(id="y", applies={"target": "rope"}, published=expected)
    evidence = ClaimEvidence({"decode": results(*POINTS)})
    judgements = [
        audit.judge(one, evidence) for one in files.load(write(tmp_path / "claims", claim(), other))
    ]
    records = [one.as_json() for one in judgements]
    found = audit.summary(judgements, evidence)
    context = {"provenance": found["provenance"], "claims": found | {"claims": records}}
    page = environment().get_template("claims.md.j2").render(context)
    rows = [line for line in page.splitlines() if line.startswith("|")]
    for record in records:
        (row,) = [row for row in rows if f"(`{record['id']}`)" in row]
        assert record["statement"] in row and record["reason"] in row
        assert ("Needs: " in row) == bool(record["needs"])
    (confirmed,) = [row for row in rows if "(`x`)" in row]
    assert "| 4 000 GB/s | **4 000 GB/s** at `decode/B128` |" in confirmed
    assert "| 4 000 GB/s, expected of a GPU |" in page
    assert re.findall("^##+ (.*)$", page, re.M) == ["Confirmed (1)", "Not testable here (1)"]
    assert max(len(re.findall(r"(?<!\\)\|", row)) for row in rows) <= 5


def test_the_guide_says_which_variables_were_searched(finished):
    index = json.loads(lzma.decompress((DEFAULT / "source_index.json.xz").read_bytes()))
    known = "FLASHINFER_|CUDA_|CUTE_DSL_ARCH$|CC$|CXX$|MAX_JOBS$"
    assert [name for name in index["environment"] if not re.match(known, name)] == []
    guide = " ".join((finished.outputs / "reports/kernel-dev-guide.md").read_text().split())
    said = re.search(r"Its Python modules read (\d+) more that are named `FLASHINFER_…`", guide)
    assert said and 0 < int(said[1]) < len(index["environment"])
    assert "what C++ and CUDA sources read is not listed" in guide


def test_the_page_says_nothing_twice_and_nothing_in_code(finished):
    page = (finished.outputs / "reports/claims.md").read_text()
    assert len(page.encode()) <= 40_000
    rows = [line for line in page.splitlines() if re.match(r"\| .*\(`[a-z0-9.-]+`\) \|", line)]
    assert len(rows) == len(files.load(ROOT / "claims"))
    said = [s for row in rows for s in re.split(r"(?<=\.) ", " ".join(row.split(" | ")[3:]))]
    sentences = [sentence for sentence in said if len(sentence) > 90]
    assert len(some(sentences)) == len(set(sentences))  # two claims may be measured alike
    for leftover in ("KernelTraits", "&lt;", "{", "no figure", "noise floor", " == ", "\\*"):
        assert leftover not in page.split("## Refuted")[1], leftover
    ids = {found[1] for row in rows for found in re.finditer(r"\(`([^`]+)`\) \|", row)}
    assert {found[1] for found in re.finditer(r"[Aa]s for `([^`]+)`", page)} <= ids


def test_a_figure_that_a_statement_has_is_in_the_published_column():
    """Percentages and rates that are no limit of a rule, nor a code, are figures to compare with."""
    for one in some(files.load(ROOT / "claims")):
        figures = re.findall(r"\d[\d.]* ?(?:%|TFLOPS|GB/s|TB/s|ms\b)", one.statement)
        has = one.published.value is not None or one.published.range
        assert has or not figures, one.id


JIT = ROOT / "tests/data/jit-flashinfer-0.6.18"  # measured on an H200; no shipped recording has one


@pytest.fixture(scope="module")
def recorded(finished, tmp_path_factory):
    """Verdicts of the shipped claims on the recorded evidence, by id; the JIT's of another capture."""
    folder = tmp_path_factory.mktemp("claims")
    out = folder / "claims.json"
    results = shutil.copytree(finished.outputs / "results", folder / "results")
    write_json(results / "jit_analysis.json", jit_analysis(JIT, JIT.name))
    index = DEFAULT / "source_index.json.xz"
    words = ["--results", results, "--claims", ROOT / "claims", "--source-index", index]
    assert ncuflow("check", "claims", *words, "--out", out).returncode == 0
    return {record["id"]: record for record in json.loads(out.read_text())}


@pytest.fixture(scope="module")
def measured_points(finished):
    """Every point of the recorded evidence, by id."""
    found = (finished.outputs / "results").glob("*_results.json")
    return {point["point"]: point for path in found for point in read_json(path)["points"]}


CONFIRMED, REFUTED, DIFFERS = "confirmed", "refuted", "differs by architecture"
# What short points jitter by withholds no verdict from long ones.
LONG = ("decode-87-percent-of-bandwidth", "decode-tokens-mha", "expectation-decode-b32", "expectation-decode-b128",
        "public-decode-bandwidth-h100-b64-1k", "example-target-rmsnorm")  # fmt: skip


# The report's best-known claims: 98.5 % of tensor peak, 10 to 500 ms of cold JIT, about 40 % less traffic, the rates at which
# RMSNorm and RoPE top, what short_scoreboard is, 4 KV chunks at batch 128, a cache that is 5 to 10 % faster.
NAMED = ("prefill-98-percent-of-tensor-peak", "jit-cold-10-to-500-ms", "fused-add-saves-40-percent",
         "rmsnorm-peaks-at-26-percent", "rope-peaks-at-40-percent-cached", "short-scoreboard-is-tensor-latency",
         "decode-4-chunks", "rope-cache-5-to-10-percent-faster-large")  # fmt: skip


@pytest.mark.parametrize(
    ("name", "verdicts"),
    [
        *((name, {CONFIRMED, REFUTED, DIFFERS}) for name in NAMED),
        *((name, {CONFIRMED, DIFFERS}) for name in LONG),
        ("gap-decode-tensor-use", {CONFIRMED}),  # tensor cores are another kernel's
        ("prefill-tile-q", {CONFIRMED}),  # the merge of a forced split has no tile
        ("prefill-tensor-use-s512-b1", {DIFFERS}),  # as planned, not without a split
        ("short-scoreboard-leads-in-prefill", {REFUTED}),  # said of kernels as such
        ("decode-always-memory-bound", {REFUTED}),  # a batch of one waits
        ("example-target-prefill", {"not testable here"}),  # of no length
        ("rope-cache-5-to-10-percent-faster-small", {DIFFERS}),  # both of the two
        ("rope-limited-by-coalescing", {REFUTED}),
        ("public-a100-usable-peak", {DIFFERS}),
        ("fused-add-faster", {CONFIRMED}),
    ],
)
def test_a_recorded_verdict_is_of_what_the_claim_is_about(recorded, name, verdicts):
    assert recorded[name]["verdict"] in verdicts, recorded[name]["reason"]


PUBLISHED_FOR = {  # what each source says of its setup, beside the sequence length
    "public-fa2-h100": {"layout": "ragged", "qo_heads": 16, "kv_heads": 16, "head_dim": 128, "backend": "fa2"},
    "public-fa3-h100": {"layout": "ragged", "qo_heads": 16, "kv_heads": 16, "head_dim": 128, "backend": "fa3"},
    "public-fa2-a100": {"layout": "ragged", "head_dim": 128, "backend": "fa2"},
    "public-flashinfer-a100-pcie": {"layout": "ragged", "qo_heads": 32, "kv_heads": 32, "batch": 1, "backend": "fa2"},
    "public-decode-bandwidth": {"qo_heads": 32, "kv_heads": 32, "page_size": 16, "cores": "cuda", "launch": "eager"},
    "public-rope-19456": {"qo_heads": 32, "kv_heads": 8, "head_dim": 128},
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED_FOR)
def test_a_public_figure_is_held_against_its_own_setup_alone(recorded, measured_points, name):
    records = [record for id, record in recorded.items() if id.startswith(name)]
    compared = [measured_points[row["point"]]["params"] for r in records for row in r["points"]]
    assert records and all(PUBLISHED_FOR[name].items() <= setup.items() for setup in compared)
    for record in records:
        assert record["measured"] or re.match(r"No \w+ point was measured with", record["reason"])


def test_what_flash_attention_reached_is_decided_by_no_kernel_of_flashinfer(recorded):
    found = [r for id, r in recorded.items() if id.startswith(("public-fa2", "public-fa3"))]
    assert len(found) == 11
    for record in found:
        assert record["verdict"] == "not testable here" and record["published"]["library"]
        assert "contiguous K and V" in record["needs"] and "heads" in record["needs"]


def test_a_source_has_one_date_and_one_address_for_each_of_its_sections():
    pages = {(c.source.document, c.source.section): set() for c in files.load(ROOT / "claims")}
    for c in files.load(ROOT / "claims"):
        pages[c.source.document, c.source.section].add((c.source.url, c.source.date))
    assert [page for page, said in pages.items() if len(said) > 1] == []
    dated = [c.source for c in files.load(ROOT / "claims") if c.source.url and c.source.date]
    for source in dated:  # an address that has a day in it is of that day
        day = re.search(r"/(\d{4})/(\d{2})/(\d{2})/", source.url)
        assert day is None or "-".join(day.groups()) == source.date
        assert not re.fullmatch(r"https://[^/]+/", source.url), "the page, not its front door"


A100_RUNS = {  # of the hands-on report's FlashInfer on A100: the kernel, and no choice that nobody made
    "prefill": {"backend": "fa2", "layout": "paged", "split": "auto", "causal": True, "dtype": "f16"},
    "decode": {"cores": "cuda", "split": "auto", "pdl": "auto", "launch": "eager", "dtype": "f16"},
}  # fmt: skip


def test_what_differs_by_architecture_differs_in_the_same_kernel(recorded, measured_points):
    differs = [r for r in recorded.values() if r["verdict"] == "differs by architecture"]
    assert len(differs) > 20
    for record in differs:
        for row in record["points"]:
            for name in (row["point"] or "").split(" / ") if row["point"] else []:
                point = measured_points[name]
                wanted = A100_RUNS.get(record["target"], {})
                assert wanted.items() <= point["params"].items(), (record["id"], name)
        if record["target"] == "rmsnorm" and record["measured"]["aggregate"] != "max":
            points = [measured_points[row["point"]] for row in record["points"]]
            assert not [k for p in points for k in p["kernels"] if "CuTe" in k["name"]], record[
                "id"
            ]


def test_a_batch_of_one_that_waits_is_not_memory_bound():
    (always,) = [c for c in files.load(ROOT / "claims") if c.id == "decode-always-memory-bound"]
    waits = {"batch": 1, "cores": "cuda"}
    point = entry("decode/B1", waits, sol_memory_pct=22.0, sol_sm_pct=19.0)
    assert audit.judge(always, ClaimEvidence({"decode": results(point)})).verdict == "refuted"


def test_one_figure_in_other_words_has_one_verdict(recorded):
    same = [recorded[LONG[at]] for at in (0, 1, 3)]
    assert len({(record["verdict"], record["measured"]["point"]) for record in same}) == 1


def test_what_a_source_expects_is_not_said_to_be_measured(recorded):
    for name, record in some(recorded.items()):
        if "Warp Stall Breakdown" in record["source"]["section"] and record["published"]["range"]:
            assert record["published"]["expected"], name


def test_the_norm_of_the_report_is_the_cuda_kernel(recorded, measured_points):
    for name in ("rmsnorm-no-shared-memory", "rmsnorm-threads", "expectation-rmsnorm-b128"):
        for row in recorded[name]["points"]:
            (ran,) = measured_points[row["point"]]["kernels"]
            assert ran["name"] == "RMSNormKernel"
    assert recorded["rmsnorm-no-shared-memory"]["measured"]["value"] == 64


def test_coalescing_is_judged_by_what_the_sms_ask_l2_for(recorded):
    assert recorded["rope-limited-by-coalescing"]["evidence"][1]["name"] == "l2_bytes_l1"


def test_no_median_of_recorded_evidence_is_of_one_or_two(recorded):
    of = [r["measured"] for r in recorded.values() if r["measured"]]
    assert not [m for m in of if m["aggregate"] == "median" and m["known"] < 3]
    assert recorded["rope-cache-5-to-10-percent-faster-small"]["measured"]["known"] == 1
    assert [m for m in of if m["known"] == 2 and m["aggregate"] != "median"]


def test_the_benefit_of_fusing_is_decided_by_points_timed_in_turns(recorded):
    found = recorded["fused-add-faster"]
    assert found["noise_floor"] < 0.03
    assert found["evidence"][0]["report"].endswith("/pairs.jsonl")
    assert found["reason"].startswith("Timed in turns at 16384 rows of 4096")


def test_the_usable_peak_is_the_sustained_one_and_of_no_point(recorded):
    found = recorded["public-a100-usable-peak"]
    assert found["measured"]["point"] is None
    sustained = read_json(DEFAULT / "ceilings.json")["matmul_tflops"]["f16"]["sustained"]["value"]
    words = f"Here a large matrix product sustains {sustained:.0f} of 990 TFLOPS"
    assert found["reason"].startswith(words)


def test_a_rate_of_analytic_bytes_is_called_one_and_what_l2_kept_is_said(recorded):
    few = recorded["expectation-rmsnorm-b128"]["reason"]  # what it writes stays in L2
    assert re.fullmatch(
        r"Here \d+ GB/s of analytic bytes\. "
        r"Under ncu 1\.1 MB of these 2\.1 MB passed DRAM within the launch; the rest did not\.",
        few,
    )
    many = recorded["rmsnorm-peaks-at-26-percent"]["reason"]
    assert re.match(r"The most is \d+ GB/s of analytic bytes, at 16384 rows of 8192", many)
    assert "passed DRAM" not in many


def test_use_of_the_tensor_pipe_is_that_of_the_whole_kernel(recorded, measured_points):
    found = recorded["gap-decode-tensor-use"]
    point = measured_points[found["measured"]["point"]]
    ran = {kernel["name"]: kernel["metrics"] for kernel in point["kernels"]}
    main = ran[point["measurement"]["main_kernel"]]
    assert main["tensor_pipe_elapsed_pct"] < main["tensor_pipe_pct"]
    assert found["measured"]["value"] == main["tensor_pipe_elapsed_pct"]
    assert "runs on CUDA cores" in found["reason"]


def test_the_least_busy_prefill_is_limited_by_what_its_page_says(recorded, measured_points):
    found = recorded["prefill-compute-bound"]
    limits = FILTERS["limited_by"](measured_points[found["measured"]["point"]]["measurement"])
    assert f"What limits it: {limits}. " in found["reason"] and limits.startswith("latency-bound (")


def test_every_recorded_claim_that_is_decided_has_evidence(recorded):
    for record in some(recorded.values()):
        decided = record["verdict"] != "not testable here"
        assert record["reason"]
        assert not decided or (record["evidence"] and record["measured"]), record["id"]
        if record["id"] in NAMED:
            assert isinstance(record["measured"]["value"], int | float)
            assert record["evidence"][0]["report"] and record["evidence"][0]["formula"]


def test_a_rival_is_no_evidence_of_what_flashinfer_does(tmp_path):
    rival = {**POINTS[2], "info": {**POINTS[2].get("info", {}), "rival": "torch 2.11"}}
    found = judged(tmp_path, *POINTS[:2], rival)
    assert found["measured"]["value"] == 2000
