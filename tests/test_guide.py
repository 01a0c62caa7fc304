"""The kernel developer guide: from findings alone, complete or not."""

import json
import re
from itertools import pairwise

import pytest
import results_data
from conftest import DEFAULT, ROOT, some
from results_data import PROVENANCE, entry, launched

from ncuflow.findings.choices import Effect
from ncuflow.findings.jit import summary
from ncuflow.model import Results
from ncuflow.pages.markdown import guide, guide_kernels
from ncuflow.pages.markdown.pages import render
from ncuflow.pages.markdown.rendering import environment
from ncuflow.pages.section import Findings
from ncuflow.parsers.registry import counters
from ncuflow.target.contract import known

TEMPLATES = sorted((ROOT / "templates" / "guide").glob("*.j2"))
GUIDE = "kernel-dev-guide"

NAMES = {
    "decode": "void flashinfer::BatchDecodeWithPagedKVCacheKernel<(flashinfer::PosEncodingMode)0, (unsigned int)2,"
    " (unsigned int)4, (unsigned int)8, (unsigned int)16, (unsigned int)1, (unsigned int)8, Variant, Params>(T9)",
    "rmsnorm": "void flashinfer::norm::RMSNormKernel<(unsigned int)8, __half>(T2 *)",
}


def point(target, params, cold, limiter, counters=True):
    name = f"{target}/" + "_".join(f"{k[0]}{v}" for k, v in params.items())
    moved = 3000e3 * cold  # bytes, at 3 000 GB/s
    row = {
        "time_cold_us": cold, "gbs": 3000.0, "tflops": 3.0,
        "gbs_fraction_measured": 0.75, "ceiling_dram_gbs_measured": 4000.0, "gbs_fraction_datasheet": 0.625,
        "ceiling_dram_gbs_datasheet": 4800.0, "flops_analytic": moved, "bytes_analytic": moved,
        "limiter": limiter, "busiest_unit": "dram", "busiest_pct": 70.0, "second_unit": "l2", "second_pct": 40.0,
        "verdict": "partly", "ai_analytic": 1.0,
    }  # fmt: skip
    kernels = []
    if counters:
        row |= {"time_ncu_us": cold, "issue_active": 0.3, "waves": 0.5, "bytes_dram_counted": moved}
        kernels = [kernel(target, name, cold)]
    given = {"params": params, "tier": "C", "reason": None, "info": {"split_kv": False}}
    return entry(name, {}, kernels, **row) | given


def kernel(target, name, cold):
    demangled = NAMES.get(target, NAMES["rmsnorm"])
    return launched(demangled.split("<")[0].split("::")[-1]) | {
        "report": f"{target}/b0/sweep.ncu-rep", "point": name, "demangled": demangled, "grid": "16,32,1",
        "block": "16,1,8", "grid_size": 512, "duration_ns": cold * 1e3,
        "metrics": {"issue_active": 0.3, "occupancy_limit_registers": 8.0, "occupancy_limit_shared_mem": 6.0},
        "breakdown": [{"parent": "memory_throughput_pct", "counter": "dram__cycles_active", "unit": "dram", "pct": 90.0}],
        "stalls": [
            {"reason": "long_scoreboard", "kind": "stall", "ratio": 6.0, "share": 0.6, "samples_not_issued": None},
            {"reason": "barrier", "kind": "stall", "ratio": 4.0, "share": 0.4, "samples_not_issued": None},
        ],
        "rules": [{"rule": "CPIStall", "section": "s", "message": "a | b", "type": "optimization",
                   "speedup_pct": 12.0, "speedup_type": "global"},
                  {"rule": "TailEffect", "section": "s", "message": "word " * 200 + "to the end", "type": "optimization",
                   "speedup_pct": 9.0, "speedup_type": "global"}],
    }  # fmt: skip


def deep(target, name):
    lines = [
        {"pc": pc, "sass": "LDG R0", "opcode": "LDG", "file": "include/flashinfer/norm.cuh", "line": 70 + pc,
         "function": "k", "samples": 500 - pc, "samples_not_issued": 300, "reason": "long_scoreboard"}
        for pc in (0, 16)
    ]  # fmt: skip
    return kernel(target, name, 9.0) | {"lines": lines, "batch": "deep"}


def results(points, deep=()):
    found = results_data.results(*points, tier="C") | {"deep": [*deep]}
    return results_data.completed(found, Results)


DECODE = {
    "kv_len": 2048,
    "qo_heads": 32,
    "kv_heads": 32,
    "head_dim": 128,
    "page_size": 16,
    "dtype": "f16",
}
TARGETS = ("decode", "rmsnorm", "rope")  # that have evidence


@pytest.fixture
def evidence(tmp_path):
    """Findings with decode, rmsnorm (deep), rope without counters, no prefill and no merge_state."""
    batches = ((1, "blocks"), (8, "latency"), (32, "dram"), (128, "dram"))
    decode = [
        point("decode", DECODE | {"cores": c, "launch": "eager", "batch": b}, 10.0 * b + (c == "cuda"), limiter)
        for c in ("cuda", "tensor")
        for b, limiter in batches
    ]  # fmt: skip
    variants = (("rmsnorm", 2), ("fused_add_rmsnorm", 4), ("add_then_rmsnorm", 5))
    norm = [
        point("rmsnorm", {"variant": v, "rows": r, "hidden": 4096, "dtype": "f16"}, share * r / 4, "dram")
        for v, share in variants
        for r in (32, 4096)
    ]  # fmt: skip
    ids = {"variant": "rope_pos_ids", "tokens": 512}
    rope = [point("rope", ids, 5.0, "unknown", counters=False)]
    root = tmp_path / "results"
    write(root, "decode_results", results(decode))
    write(root, "rmsnorm_results", results(norm, [deep("rmsnorm", norm[0]["point"])]))
    write(root, "rope_results", results(rope))
    write(root, "environment_info", {"provenance": PROVENANCE, "findings": [], "ceilings": {}})
    return tmp_path


def write(folder, name, content):
    folder.mkdir(exist_ok=True, parents=True)
    (folder / f"{name}.json").write_text(json.dumps(content))


def page(evidence):
    return render(GUIDE, Findings(evidence / "results", evidence / "evidence"))


def chapter(evidence, target):
    """The page of one kernel."""
    return render("target", Findings(evidence / "results", evidence / "evidence"), target)


def whole(evidence):
    return "\n".join([page(evidence), *(chapter(evidence, name) for name in TARGETS)])


def test_a_kernel_of_which_nothing_was_measured_has_no_page_and_is_named_once(evidence):
    text = page(evidence)
    (line,) = re.findall(r"^Not measured in this evidence.*", text, re.MULTILINE)
    missing = {t.heading or t.title for n, t in known().items() if n not in TARGETS}
    assert set(line.rstrip(".").split(": ")[1].split(", ")) == missing
    assert re.findall(r"^\d\. \[.*\]\((\w+)\.md\)$", text, re.MULTILINE) == [*TARGETS]


def test_nothing_stands_empty_and_what_is_missing_is_said(evidence):
    for text in (page(evidence), *(chapter(evidence, name) for name in TARGETS)):
        text = re.sub(r"```.*?```", "code", text, flags=re.DOTALL)
        lines = [line for line in text.splitlines() if line.strip()]
        for line, after in zip(lines, [*lines[1:], "#"], strict=True):
            depth, below = (len(one) - len(one.lstrip("#")) for one in (line, after))
            assert not depth or not 0 < below <= depth, line
    assert "*Not in this evidence: a JIT measurement" in page(evidence)
    assert "*Not in this evidence: the command lines of its captures.*" in page(evidence)
    assert "## Warp Stall Breakdown" not in chapter(evidence, "rope")  # which has no counters
    assert "## Hot Lines" not in chapter(evidence, "decode")  # which has no deep profile


def test_numbers_come_from_the_findings(evidence):
    found = chapter(evidence, "decode")
    assert "**In short:** 3 000 GB/s, 75 % of " in found
    assert "**between 8 and 32**, from latency to DRAM" in found
    row = (
        r"\| [\d .]+ µs \| [^|]+ \| [^|]+ \| 3 000 \| 75 % \| DRAM 70 %, otherwise latency-bound \|"
    )
    assert re.search(row, found)
    assert "| 512 | 792 | 16 | 16 |" in found  # launched 16 chunks, as the rule says
    assert (
        "| cuda | tensor | −0.8 % in the median, −9.1 % to −0.1 % | 4 | 0, 4 not tested |" in found
    )
    assert "Of the cycles without issue: `long_scoreboard` 60 %" in found
    assert "| bdy | 1 |" in found


def test_kernels_of_torch_are_timed_and_not_explained(evidence):
    path = evidence / "results" / "rmsnorm_results.json"
    content = path.read_text().replace("flashinfer::norm::RMSNormKernel", "at::native::fill")
    path.write_text(content)
    found = chapter(evidence, "rmsnorm")
    assert "## Warp Stall Breakdown" not in found and "## Hot Lines" not in found


def test_hot_lines_of_the_deep_profile(evidence):
    found = chapter(evidence, "rmsnorm")
    row = "| `include/flashinfer/norm.cuh:70` | – | 50.8 % ± 3 | long_scoreboard 100 % | LDG |"
    assert row in found


def test_jit_source_and_commands_where_the_evidence_has_them(evidence):
    root = evidence / "evidence"
    write(root, "source_index", {
        "version": "0.6.18", "scheduler": {}, "functions": {},
        "environment": {"MAX_JOBS": [{"file": "collect_env.py", "line": 1, "default": None},
                                     {"file": "jit/cpp_ext.py", "line": 347, "default": "'8'"}],
                        "OTHER": [{"file": "x.py", "line": 1, "default": None}]},
        "targets": {"rmsnorm": {
            "api": {"python": {"symbol": "flashinfer.norm.rmsnorm", "file": "norm/__init__.py", "line": 142}},
            "files": {"binding": "data/csrc/norm.cu"}, "templates": ["data/csrc/norm.cu"],
            "kernels": [{"symbol": "RMSNormKernel", "file": "data/include/flashinfer/norm.cuh", "line": 63,
                         "line_end": 137},
                        {"symbol": "Unused", "file": "x.cuh", "line": 1, "line_end": 2}]}},
    })  # fmt: skip
    module = {"target": "rmsnorm", "aot": False, "cache": {".cache/flashinfer/0.6.18/90a/cached_ops/norm/norm.so": 2048},
              "cold": {"uri": "norm", "generation_s": 0.01, "build_s": 33.0, "load_s": 0.002},
              "disk": {"build_and_load_s": 0.005, "memory_hit_s": 2e-6}, "first_launch": {}}  # fmt: skip
    failed = {"target": "rope", "aot": False, "cold": {"error": "no nvcc | at all"}}
    modules = {"rmsnorm": module, "rope": failed}
    rows = [summary(name, found) for name, found in modules.items()]
    jit = {"cpu_count": 16, "method": "fresh processes", "modules": modules, "summary": rows}
    write(evidence / "results", "jit_analysis", jit)
    write(root / "decode" / "b0", "sweep", {"command": ["ncu", "--nvtx", "-o", "a b"]})
    text = page(evidence) + chapter(evidence, "rmsnorm")
    assert "| Python API | `flashinfer.norm.rmsnorm` | `norm/__init__.py:142` |" in text
    assert "`data/include/flashinfer/norm.cuh:63`, at 6 points |" in text
    assert "| kernel | `Unused` | `x.cuh:1`, not launched here |" in text
    jobs = "| `MAX_JOBS` | files that ninja compiles at once | `'8'` | `jit/cpp_ext.py:347` |"
    assert jobs in text
    assert "| rmsnorm | 10 ms | 33 s | 2 000 µs | 5 000 µs | 2 µs | – | – |" in text
    assert "| rope | failed: no nvcc \\| at all |" in text
    assert "norm.so  (2.05 kB)" in text
    assert "ncu --nvtx -o 'a b'" in text


def test_tables_have_as_many_cells_as_columns_and_eight_at_most(evidence):
    text = whole(evidence)
    assert re.search(r"^\|", text, re.MULTILINE)
    width = 0
    for line in text.splitlines():
        if not line.startswith("|"):
            width = 0
            continue
        cells = len(re.split(r"(?<!\\)\|", line.strip())) - 2
        assert cells <= 8, line
        assert width in (0, cells), line
        width = cells


def test_pictures_have_captions(evidence):
    lines = [line for line in whole(evidence).splitlines() if line.strip()]
    pictures = some(after for line, after in pairwise(lines) if line.startswith("!["))
    assert [after for after in pictures if not after.startswith("*")] == []


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda p: p.name)
def test_no_measured_number_is_typed_into_a_template(template):
    text = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "", template.read_text(), flags=re.DOTALL)
    unit = r"(?:%|µs|us|ms|s|[kMGT]B(?:/s)?|GHz|[GT]?FLOPS?)"
    assert not re.findall(rf"\b\d+(?:[.,]\d+)?\s*{unit}(?![\w])", text)
    prose = re.sub(r"```.*?```|arXiv \d+\.\d+|/abs/\S+|Llama 3\.1", "", text, flags=re.DOTALL)
    versions = re.sub(r"\b(?:8\.0|9\.0)\b", "", prose)  # compute capabilities
    assert not re.findall(r"\d+\.\d+", versions)


@pytest.mark.parametrize("arch", ["ga100", "gh100"])
def test_the_registrys_counters_are_shown_as_the_command_that_prints_them(tmp_path, arch):
    names = [*counters(arch)[3:], "one.more.sum"]  # of a registry that has changed since
    command = ["ncu", "--section", "a b", "--metrics", ",".join(names), "python"]
    batch = tmp_path / "decode/b1"
    batch.mkdir(parents=True)
    (batch / "sweep.json").write_text(json.dumps({"command": command}))
    shown = guide_kernels.commands(tmp_path)
    metrics = f'"$(python -m ncuflow static counters {arch})"'
    assert shown["counters"] == f"ncu --section 'a b' --metrics {metrics} python"
    assert shown["timeline"] is None


def test_the_commands_are_those_of_the_first_target_on_the_pages(tmp_path):
    for target in ("activation", "decode", "prefill", "zzz"):
        batch = tmp_path / target / "b1"
        batch.mkdir(parents=True)
        (batch / "sweep.json").write_text(json.dumps({"command": ["ncu", target]}))
    assert guide_kernels.commands(tmp_path)["counters"] == "ncu prefill"


def test_the_estimate_of_a_rule_is_held_against_the_room(evidence):
    rules = re.findall(r"^NVIDIA's rules.*", chapter(evidence, "decode"), re.MULTILINE)
    more = (
        "`CPIStall` 12 % (more than the 10 % that DRAM leaves for the same work); `TailEffect` 9 %."
    )
    assert set(rules) == {f"NVIDIA's rules: {more}"}


def test_an_estimate_that_reads_as_the_room_is_not_called_more_than_it(evidence):
    path = evidence / "results/decode_results.json"
    text = path.read_text()
    (shown,) = set(re.findall(r'"rule": "CPIStall".*?"speedup_pct": ([0-9.]+)', text, re.DOTALL))
    path.write_text(text.replace(f'"speedup_pct": {shown}', '"speedup_pct": 10.3'))
    assert "NVIDIA's rules: `CPIStall` 10 %; `TailEffect`" in chapter(evidence, "decode")


def test_a_target_is_read_along_a_size_that_points_lie_along(evidence):
    """POD's points differ in several sizes at once; GEMM's differ in m alone, and one of them in its batch too."""
    sizes = [(1, 8), (1, 64), (1, 4096), (16, 512)]
    gemm = [
        point("gemm", {"batch": b, "m": m}, cold, "dram") for cold, (b, m) in enumerate(sizes, 10)
    ]
    each = [dict.fromkeys(("context", "batch", "kv_len"), n) for n in (1, 2, 4)]
    pod = [point("pod", params, 10.0 + params["batch"], "dram") for params in each]
    write(evidence / "results", "gemm_results", results(gemm))
    write(evidence / "results", "pod_results", results(pod))
    pod_text, gemm_text = chapter(evidence, "pod"), chapter(evidence, "gemm")
    assert "pod-sweep.svg" not in pod_text
    assert pod_text.count("| `c") >= 3  # every point is in the table of expected behaviour
    assert "rate over m](../figures/gemm-sweep.svg)" in gemm_text
    reference = page(evidence).split("## Quick Reference")[1]
    assert "| m | 8: 3 000 GB/s, 75 % |" in reference and "Prefill and Decode (" not in reference


def sized(size, rate, **params):
    return {
        "point": f"x/{size}_{rate}", "status": "ok", "params": {"size": size} | params, "measurement": {"gbs": rate},
        "kernels": [],
    }  # fmt: skip


def performance(points, axis="size"):
    found = {"points": points, "rate": "gbs", "name": "x", "heading": "X", "axis": axis}
    more = {"best": guide.best(points, "gbs"), "built": lambda _: ""}
    return guide.performance(found | more)


def test_points_of_different_calls_have_no_row_of_sizes():
    assert performance([sized(1, 1.0), sized(2, 1.0)], "point") is None


def test_expected_performance_goes_to_the_largest_size_and_names_the_highest_rate_of_all():
    sizes = (1, 32, 128, 4096, 16384)
    slow = [sized(size, 1.0 * size, backend="a") for size in sizes]
    fast = [sized(size, 2.0 * size, backend="b") for size in sizes]
    other = [sized(1, 1e6, backend="c"), sized(16384, 1e6 + 1, backend="c")]
    row = performance([*slow, *other, *fast])
    assert [p["params"]["size"] for p in row["cells"]] == [1, 128, 16384]
    assert row["fixed"] == {"backend": "b"} and row["best"] is other[1]
    assert performance(other)["cells"] == [other[0], None, other[1]]


def test_a_choice_that_depends_on_the_size_says_where_it_saves_and_where_it_costs():
    where = environment().get_template("guide/_section.md.j2").make_module({}).where
    verdicts = [
        (512, -0.2, "differs"), (1024, -0.1, "differs"), (512, -0.1, "differs"), (2048, 0.01, "within noise"),
        (65536, 0.1, "differs"), (65536, 0.1, "not tested"),
    ]  # fmt: skip
    pairs = [
        {"params": {"tokens": n}, "effect": Effect("time_cold_us", "a", "b", (), 1.0, 1 + by, by, verdict=verdict)}
        for n, by, verdict in verdicts
    ]  # fmt: skip
    said = where({"summary": {}, "pairs": pairs}, "tokens")
    assert said == (
        "less kernel time in 3 of 6 pairs (tokens 512, 1 024) and more kernel time in 1 of 6 pairs (tokens 65 536) beyond noise"
    )
    assert where({"summary": {}, "pairs": pairs[3:4]}, "tokens") == "no difference beyond noise"
    assert where({"summary": None, "pairs": []}, "tokens") == "–"


def test_a_mangled_kernel_has_no_table_of_what_nobody_can_read(evidence):
    path = evidence / "results" / "rmsnorm_results.json"
    content = json.loads(path.read_text())
    for number, one in enumerate(content["points"]):
        (main,) = one["kernels"]
        name = "kernel_cutlass_kernel_flashinfernormkernelsrmsnormRMSNormKernel_object_at__t"
        main["demangled"] = f"{name}{number}"
    path.write_text(json.dumps(content))
    norm = chapter(evidence, "rmsnorm")
    assert "compiled for |" not in norm and "object_at" not in norm
    count = len(content["points"])
    assert f"**`RMSNormKernel (CuTe DSL)`**, {count} instances launched, compiled for" in norm


def test_plan_is_priced_in_layers_of_the_kernel_that_it_plans(evidence):
    """Four kernels of 10 to 1 280 µs: a plan() of 40 µs takes as long as four launches of the first."""
    path = evidence / "results" / "decode_results.json"
    content = json.loads(path.read_text())
    for one in content["points"]:
        one["measurement"]["plan_us"] = 40.0
    content["points"] = [p for p in content["points"] if p["params"]["cores"] == "tensor"]
    path.write_text(json.dumps(content))
    section = chapter(evidence, "decode").split("## Cost of plan()")[1].split("\n## ")[0]
    row = (
        "| `BatchDecodeWithPagedKVCacheKernel` | 4 | 40 µs | 0.312 times | 0.102 to 1.38 | 1 to 2 |"
    )
    assert row in section
    assert "## Cost of plan()" not in chapter(evidence, "rmsnorm")  # which plans nothing


@pytest.fixture(scope="module")
def measured(recorded, tmp_path_factory):
    """A page of a recording, by its kernel."""

    def rendered(target, recording="h200/0.7.2/default"):
        results = tmp_path_factory.mktemp("measured")
        write(results, f"{target}_results", recorded(recording, target))
        return render("target", Findings(results, DEFAULT, names=[target]), target)

    return rendered


def test_a_kernel_like_one_above_it_names_what_it_shares(measured):
    section = measured("pod", "h200/0.7.2/kernels").split("## Key Parameters")[1]
    paged = section.split("**`BatchPrefillWithPagedKVCacheKernel`**")[1].split("**`")[0]
    assert "\nOff: MASK_MODE, " in paged and "| NUM_THREADS |" not in section
    assert "The others, NUM_MMA_D_QK, NUM_MMA_D_VO, " in paged
    assert paged.rstrip().endswith("as of `BatchPrefillWithRaggedKVCacheKernel`.")


def test_a_kernel_wholly_like_one_above_it_is_not_said_to_be_mangled(measured):
    section = measured("rope").split("## Key Parameters")[1].split("\n## ")[0]
    (line,) = [one for one in section.splitlines() if "`BatchQKApplyRotaryPosIdsKernel`**" in one]
    assert line.endswith("split_heads as of `BatchQKApplyRotaryPosIdsCosSinCacheKernel`.")
    assert "compiled for the types" not in section


def test_a_rate_is_held_against_what_is_named_and_never_against_itself(measured):
    decode, norm = measured("decode", "h200/0.6.18/versions"), measured("rmsnorm")
    fastest = "4 433 GB/s, more than any copy or read measured here, at"
    assert decode.split("**In short:**")[1].lstrip().startswith(fastest)
    said = "96 % of the fastest copy measured here, 89 % of the fastest read, at"  # it writes half
    assert said in norm.split("**In short:**")[1]
    said = "of the fastest copy or read measured here (read of 4 GiB of float32 by a kernel of"
    assert said in measured("decode").split("**In short:**")[1]


def test_a_roof_is_called_what_it_is(measured):
    """The copy was the faster one: its share was said of a read as well."""
    short = measured("recurrent", "h200/0.7.2/engines").split("**In short:**")[1]
    assert ", 96 % of the fastest copy measured here, at" in short and "fastest read" not in short


def test_what_a_recording_says_of_itself_stands_under_its_origin(measured, recorded, tmp_path):
    results = recorded("h200/0.7.2/default", "rope")
    results["provenance"] = results["provenance"] | {"note": "Clocks: another card's."}
    write(tmp_path, "rope_results", results)
    noted = render("target", Findings(tmp_path, DEFAULT, names=["rope"]), "rope")
    assert "\n>\n> Clocks: another card's." in noted.split("**In short:**")[0]
    assert "\n>\n>" not in measured("rope").split("**In short:**")[0]


def test_tuned_tactics_have_their_price_beside_them(measured, recorded, tmp_path):
    page = measured("moe", "h200/0.7.2/engines")
    assert "4 032 µs, 90 % of bf16 products; tuning 20 sizes took 69.1 s |" in page
    results = recorded("h200/0.7.2/engines", "moe")
    for point in results["points"]:
        point["info"].pop("tuned_sizes", None)  # as a record has it that tells the seconds alone
    write(tmp_path, "moe_results", results)
    page = render("target", Findings(tmp_path, DEFAULT, names=["moe"]), "moe")
    assert "4 032 µs, 90 % of bf16 products |" in page


def test_rounds_are_not_what_a_draw_from_logits_spends(measured):
    text = " ".join(measured("sampling", "h200/0.7.2/engines").split())
    assert "by calls with top-k or top-p; the others have none." in text


def test_times_by_size_are_those_of_one_line_each(evidence):
    section = page(evidence).split("### Time by Size")[1].split("\n### ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| Decode")]
    assert rows == [
        "| Decode Attention (cores cuda) | batch | 11 µs, 3 000 GB/s | 321 µs, 3 000 GB/s | 1 281 µs, 3 000 GB/s |",
        "| Decode Attention (cores tensor) | batch | 10 µs, 3 000 GB/s | 320 µs, 3 000 GB/s | 1 280 µs, 3 000 GB/s |",
    ]
    assert "| RMSNorm" not in section  # which has one of the sizes


def test_a_guide_without_a_kernel_to_choose_has_no_empty_table(recorded, tmp_path):
    results = tmp_path / "results"
    write(results, "apis_results", recorded("h200/0.7.2/apis", "apis"))
    write(results, "environment_info", {"provenance": PROVENANCE, "findings": [], "ceilings": {}})
    text = render(GUIDE, Findings(results, tmp_path))
    section = text.split("### Kernel Selection Guide")[1].split("\n### ")[0]
    assert section.strip() == "*Not in this evidence: any kernel of which callers choose one.*"


def test_what_a_user_would_call_instead_is_named_with_its_version(recorded, tmp_path):
    found = recorded("h200/0.7.2/engines", "moe")
    assert guide.chapter(found, None)["rivals"] == ["torch 2.11.0, nvidia-cublas 13.1.0.3"]
    write(tmp_path / "results", "moe_results", found)
    text = chapter(tmp_path, "moe")
    assert (
        text.count(
            "Not FlashInfer's, but measured beside it: torch 2.11.0, nvidia-cublas 13.1.0.3."
        )
        == 1
    )
    assert guide.chapter(recorded("h200/0.7.2/engines", "mla_decode"), None)["rivals"] == []


def test_the_algorithm_of_a_norm_is_that_of_the_kernels_that_ran(evidence, finished, recorded, tmp_path):  # fmt: skip
    cuda, cute = "The **CUDA** kernels", "The **CuTe DSL** kernels"
    both = (finished.outputs / "reports/rmsnorm.md").read_text()
    assert cuda in both and cute in both and "`norm/kernels/fused_add_rmsnorm.py`" in both
    alone = chapter(evidence, "rmsnorm")
    assert cuda in alone and cute not in alone
    write(tmp_path / "new", "rmsnorm_results", recorded("h200/0.7.2/kernels", "rmsnorm"))
    new = render("target", Findings(tmp_path / "new", tmp_path), "rmsnorm")
    assert cute in new and cuda not in new


@pytest.mark.parametrize(
    "target", [t for t in known().values() if t.source.kernels], ids=lambda t: t.name
)
def test_ncus_filter_of_a_target_takes_every_kernel_of_it(target):
    option, _, pattern = guide_kernels.kernel_filter(target.name).partition(" regex:")
    assert option == "--kernel-name"
    for kernel in target.source.kernels:
        assert re.search(pattern.strip('"'), kernel.name), kernel.name


def test_the_filter_of_the_norms_takes_cute_dsls_names_and_stands_on_the_page(finished):
    page = (finished.outputs / "reports/rmsnorm.md").read_text()
    pattern = re.search(r'^--kernel-name regex:"(.+?)"$', page, re.M)[1]
    assert "\\" not in pattern  # a fence shows what is typed as it is
    results = json.loads((finished.outputs / "results/rmsnorm_results.json").read_text())
    own = [k for p in results["points"] for k in p["kernels"] if "RMSNorm" in k["name"]]
    names = [k["demangled"] if "(CuTe DSL)" in k["name"] else k["name"] for k in own]
    assert names and all(re.search(pattern, name) for name in names)


def test_an_engines_calls_are_calls_that_targets_measure(evidence):
    apis = {s.rpartition(".")[2] for t in known().values() for s in t.source.api.values()}
    calls = [call["call"] for call in guide_kernels.ENGINE["calls"]]
    assert set(calls) - {"plan", "run"} <= apis and len(calls) == len(set(calls))
    section = page(evidence).split("### Calls in mini-sglang")[1].split("\n### ")[0]
    assert all(f"| `{call}` | `" in section for call in calls)
    assert re.search(r"`sgl-project/mini-sglang` at `[0-9a-f]{9}`", section)
