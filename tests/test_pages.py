"""Pages: exact text, numbers from findings alone, and what the sample on the web shows."""

import json
import re
import shutil
from html import unescape
from pathlib import Path

import pytest
from command import python
from conftest import DEFAULT, ROOT, some
from markdown_it import MarkdownIt

from ncuflow import format as fmt
from ncuflow.findings.ceilings import environment_info
from ncuflow.findings.opportunities import found as opportunities
from ncuflow.format import Struck
from ncuflow.io import BadInput, read_json, write_json
from ncuflow.pages import series
from ncuflow.pages.markdown import figures, gpu_pages, guide, pages, rendering
from ncuflow.pages.section import Findings, target_section
from ncuflow.target.contract import known

SAMPLE = ROOT / "docs" / "sample"
TEMPLATES = sorted([*(ROOT / "templates").glob("*.j2"), *(ROOT / "scripts").rglob("*.j2")])
# Digits that are names, not measurements: tiers, section numbers, standards, units, sizes of a digit count.
NAMES = re.compile(
    r"\{\{.*?\}\}|\{%.*?%\}|\{#.*?#\}|```.*?```|`[^`]*`|sm_\d+|float32|fp16|fp32|bf16|L[12]\b|arXiv[: ]\d+\.\d+|-j\d"
    r"|\]\([^)]*\)|^\d+\. |[A-Z]\d\b|CUDA-\d+|FA[23]\b|fa[23]\b|FlashAttention-\d|Llama 3\.1|1e-\d|of 1\b",
    re.DOTALL | re.MULTILINE,
)


@pytest.mark.parametrize("folder", ["reports", "figures"])
def test_the_sample_has_the_pages_that_the_recording_renders(finished, folder):
    """Their words may be older: a sentence changes in one commit, and ``snakemake -j1 sample`` follows."""
    made = {p.name: p for p in (finished.outputs / folder).iterdir()}
    shown = {p.name: p for p in (SAMPLE / folder).iterdir()}
    assert set(shown) == set(made)
    for name, path in shown.items():
        if folder == "reports":
            title, _, origin = path.read_text().splitlines()[:3]
            assert made[name].read_text().splitlines()[:3] == [title, "", origin], name


def test_the_sample_is_what_readme_and_docs_lead_to():
    """Nothing lies in the folder that no reader is led to."""
    looked = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), ROOT / "benchmarks/RESULTS.md"]
    led = set()
    while looked:
        page = looked.pop()
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            target = (page.parent / link).resolve()
            if target.is_relative_to(SAMPLE) and target not in led:
                led.add(target)
                looked += [target] if target.suffix == ".md" else []
    assert {p for p in SAMPLE.rglob("*") if p.is_file()} - led == set()


def test_links_and_pictures_of_the_sample_exist():
    for page in some((SAMPLE / "reports").glob("*.md")):
        for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
            if not link.startswith("http"):
                assert (page.parent / link).resolve().exists(), f"{page.name} -> {link}"


def words(text: str) -> int:
    """Words of a page beside its code: what has a letter or a digit."""
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    return sum(bool(re.search(r"\w", word)) for word in prose.split())


def test_a_kernel_is_told_in_2500_words_and_all_pages_in_190_kb(finished):
    pages = {p.stem: p.read_text() for p in (finished.outputs / "reports").glob("*.md")}
    assert {name: n for name in known() if (n := words(pages.get(name, ""))) > 2500} == {}
    assert words(pages["final-report"]) <= 1200
    sizes = {name: len(text.encode()) for name, text in pages.items()}
    assert sum(sizes.values()) <= 190_000
    assert sum(sizes.values()) - sizes["claims"] <= 150_000


def test_every_page_states_gpu_versions_date_and_tier():
    for page in some((SAMPLE / "reports").glob("*.md")):
        origin = r"> Tier [ABC] \(.*\) · .+ · .*FlashInfer .* · \d{4}-\d\d-\d\d"
        assert re.match(origin, page.read_text().splitlines()[2]), page.name


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda p: p.name)
def test_no_measured_number_is_typed_into_a_template(template: Path):
    left = NAMES.sub("", template.read_text(encoding="utf-8"))
    assert not re.findall(r"\d+(?:\.\d+)?\s*(?:%|µs|ms|GB|TB|TFLOP|FLOP|×|times)", left)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: fmt.number(None), "–"),
        (lambda: fmt.number(0), "0"),
        (lambda: fmt.number(4231.4), "4 231"),
        (lambda: fmt.number(0.04166), "0.0417"),
        (lambda: fmt.number(5.4321e-8), "5.43e-8"),
        (lambda: fmt.number(999.9), "1000"),
        (lambda: fmt.si(146.2e9, "FLOP"), "146 GFLOP"),
        (lambda: fmt.percent(0.8836), "88 %"),
        (lambda: fmt.change(-0.0004), "0.0 %"),
        (lambda: fmt.change(-0.0006), "−0.1 %"),
        (lambda: fmt.change(0.25), "+25.0 %"),
        (lambda: fmt.micro(0.5), "0.5 µs"),
        (lambda: fmt.micro(12.3e6), "12.3 s"),
        (lambda: fmt.with_unit(None, "GB/s"), "–"),
        (lambda: fmt.with_unit(1, "producer warps"), "1 producer warp"),
        (lambda: fmt.with_unit(1.0, "ms"), "1 ms"),
        (lambda: rendering.FILTERS["unit"](Struck(6000.0), "GB/s"), "~~6 000 GB/s~~"),
    ],
)
def test_format(call, text):
    assert call() == text


def test_pages_rendered_together_are_those_rendered_alone(finished):
    def findings():
        return Findings(finished.outputs / "results", DEFAULT)

    names = ["claims", "kernel-dev-guide", "INDEX"]
    shared = findings()
    together = {name: pages.render(name, shared) for name in names}
    assert all(text == pages.render(name, findings()) for name, text in together.items())


def test_a_claim_is_shown_as_it_is_stated(finished):
    """The underscores of a name are no emphasis."""
    page = (finished.outputs / "reports/claims.md").read_text()
    shown = unescape(MarkdownIt().enable("table").render(page))
    stated = json.loads((finished.outputs / "results/claims.json").read_text())
    assert any(claim["statement"].count("_") > 1 for claim in stated)
    for claim in stated:
        assert claim["statement"] in shown, claim["id"]


def test_a_sweep_along_one_axis_has_a_base_without_parentheses(finished):
    found = Findings(finished.outputs / "results", DEFAULT)
    first, *rest = found.targets["decode"]["points"]
    alike = first["params"].items() - {("batch", first["params"]["batch"])}
    other = next(p for p in rest if alike <= p["params"].items())
    found.targets["decode"]["points"] = [first, other]
    page = pages.render("target", found, "decode")
    assert "named by what sets it apart from the base;" in page
    assert "()" not in re.sub(r"`[^`]*`|```.*?```", "", page, flags=re.DOTALL).replace("plan()", "")


def test_a_sweep_without_an_axis_has_no_figure_of_a_rate_over_it(finished):
    """Points of many APIs at one size, or one point: there is no line to draw."""
    found = Findings(finished.outputs / "results", DEFAULT)
    found.targets["decode"]["points"] = found.targets["decode"]["points"][:1]
    for page in (pages.render("analysis", found), pages.render("target", found, "decode")):
        assert "decode-sweep.svg" not in page
        assert "over point" not in page


def test_where_nobody_looked_for_a_change_none_is_ruled_out(finished, monkeypatch):
    found = Findings(finished.outputs / "results", DEFAULT)
    assert "No change is declared" not in pages.render("target", found, "rmsnorm")
    monkeypatch.setattr(known()["rmsnorm"], "opportunities", ())
    page = pages.render("target", found, "rmsnorm")
    assert "No change is declared" in page and "Nothing in this evidence" not in page


def test_a_rate_of_a_launch_is_not_said_to_be_a_kernels(finished):
    """Where half of a cold time is an empty kernel's, the GB/s beside it are not what the kernel moves."""
    found = Findings(finished.outputs / "results", DEFAULT)
    points = found.targets["rmsnorm"]["points"]
    for point in points:
        point["measurement"]["time_floor_us"] = point["measurement"]["time_cold_us"] / 2
    assert "the rate there is that of a launch" not in pages.render("target", found, "rmsnorm")
    points[0]["measurement"]["time_floor_us"] *= 1.01
    page = pages.render("target", found, "rmsnorm")
    assert re.search(rf"At 1 of {len(points)} points an empty kernel's [\d.]+ µs is half", page)


def test_the_headline_has_burst_and_sustained_rates_with_their_clocks(finished):
    text = (finished.outputs / "reports/prefill.md").read_text()
    points = Findings(finished.outputs / "results", DEFAULT).targets["prefill"]["points"]
    row = max((p["measurement"] for p in points), key=lambda m: m["tflops"] or 0)
    rates = r"Burst ([\d ]+) TFLOPS at ([\d ]+) MHz, sustained ([\d ]+) TFLOPS at ([\d ]+) MHz"
    columns = ("tflops", "clock_cold_mhz", "tflops_sustained", "clock_sustained_mhz")
    said = [int(value.replace(" ", "")) for value in re.search(rates, text).groups()]
    assert said == [round(row[column]) for column in columns]
    beside = "launches whose power held the clock down ran below it"
    assert beside in (finished.outputs / "reports/environment.md").read_text()


def test_pages_are_about_the_targets_that_are_named(finished):
    """The folder may hold what an earlier run made of others."""
    folders = finished.outputs / "results", DEFAULT
    found = Findings(*folders, names=["rope", "decode"])
    assert list(found.targets) == ["decode", "rope"]
    assert found.optional("jit_analysis") is None and found.optional("environment_info")
    assert "rmsnorm.md" not in pages.render("INDEX", found)
    with_jit = Findings(*folders, names=["decode", "jit"])
    jit = finished.outputs / "results/jit_analysis.json"
    assert list(with_jit.targets) == ["decode"]
    assert bool(with_jit.optional("jit_analysis")) == jit.exists()
    assert "rmsnorm" in Findings(*folders).targets


@pytest.fixture
def impossible(finished, tmp_path):
    """Findings in which one number of decode cannot be true."""
    results = shutil.copytree(finished.outputs / "results", tmp_path / "results")
    path = results / "decode_results.json"
    content = json.loads(path.read_text())
    content["points"][0]["measurement"]["sol_memory_pct"] = 117.0
    path.write_text(json.dumps(content))
    return results, DEFAULT


def test_an_impossible_number_stops_its_own_page_and_no_other(impossible):
    with pytest.raises(BadInput, match=r"decode_results\.json: .*sol_memory_pct = 117"):
        pages.render("target", Findings(*impossible), "decode")
    assert pages.render("target", Findings(*impossible), "prefill").startswith("# Prefill")


@pytest.mark.parametrize("page", ["INDEX", "analysis", "kernel-dev-guide", "final-report"])
def test_the_overview_pages_stand_and_name_what_was_stopped(impossible, finished, page):
    text = pages.render(page, Findings(*impossible))
    (notice,) = [line for line in text.splitlines() if "= 117 %" in line]
    assert notice.startswith("| Decode attention | decode/") and "sol_memory_pct = 117 %" in notice
    assert "B256_L2048_H32_K32_D128_P16_f16_cc" not in text and "(decode.md)" not in text
    whole = (finished.outputs / f"reports/{page}.md").read_text()
    assert notice not in whole and "Stopped" not in whole
    assert "RMSNorm" in text


def test_pages_stand_where_every_target_was_stopped(impossible):
    found = Findings(*impossible, names=["decode"])
    assert "| Decode attention |" in pages.render("INDEX", found)
    assert all(pages.render(page, found) for page in ("analysis", "final-report"))


def test_without_strictness_the_number_is_struck_through_on_every_page(impossible):
    found = Findings(*impossible, strict=False)
    text = pages.render("analysis", found)
    assert "## Struck through" in text and "Stopped" not in text


def test_the_overview_figure_has_no_point_with_an_impossible_number(
    impossible, tmp_path, monkeypatch
):
    results = json.loads((impossible[0] / "decode_results.json").read_text())
    names = [point["point"] for point in results["points"]]
    drawn = []
    monkeypatch.setattr(figures, "roofline", lambda found, levels: drawn.extend(found))
    monkeypatch.setattr(figures, "save", lambda *_: None)
    of = dict(zip(("results", "evidence"), impossible, strict=True))
    pages.command([], **of, targets=["decode"], out_dir=tmp_path, figures=tmp_path)
    assert [point["point"] for one in drawn for point in one["points"]] == names[1:]


def test_named_points_stand_in_a_thinned_table():
    points = [{"point": str(n)} for n in range(100)]
    kept = [p["point"] for p in series.spread(points, 5, {"7", "61"})]
    assert kept == ["0", "7", "25", "50", "61", "74", "99"]
    assert len(series.spread(points, 5)) == 5


def test_the_best_and_the_deep_points_stand_on_the_page_of_each_kernel(finished):
    for path in some((finished.outputs / "results").glob("*_results.json")):
        results = json.loads(path.read_text())
        section = target_section(results)
        named = {k["point"] for k in results["deep"]} & {p["point"] for p in results["points"]}
        assert named | {section["best"]["id"]} <= {p["id"] for p in section["shown"]}


def test_each_knob_has_a_line_and_a_choice_that_prices_it(finished):
    index = read_json(DEFAULT / "source_index.json.xz")
    for path in some((finished.outputs / "results").glob("*_results.json")):
        results = json.loads(path.read_text())
        target = known()[results["target"]]
        for row in guide.options(results, guide.shown_choices(results), index):
            assert row["effect"], f"{target.name}: {row['option'].choice} is no choice"
            # what the index of that day does not have is named by its file
            file, _, line = row["place"].rpartition(":")
            indexed = any(name.endswith(f"/flashinfer/{line}") for name in index["functions"])
            assert line.isdigit() or not (file or indexed), row["place"]
            assert row["default"] or not row["option"].signature, row["option"].name


def test_a_device_is_named_in_one_line_without_markup(tmp_path):
    older = ROOT / "recordings/h200/0.7.2/default"
    machine = environment_info(older, older.name)
    machine["provenance"]["gpu"] = "H200\n# Faster|<script>alert(1)</script>"
    write_json(tmp_path / "environment_info.json", machine)
    text = gpu_pages.render(tmp_path / "environment_info.json")
    assert text.count("H200 # Faster\\|&lt;script>alert(1)&lt;/script>") == 2
    assert "<script" not in text and "\n# Faster" not in text


def test_the_page_of_a_machine_waits_for_no_statistics():
    """It is the first page of a newcomer, and scipy takes longer to load than the page to make."""
    heavy = {"numpy", "scipy", "pandas", "matplotlib"}
    code = (
        f"import sys, ncuflow.pages.markdown.gpu_pages; print(sorted({heavy} & {{*sys.modules}}))"
    )
    assert python("-c", code).stdout.strip() == "[]"


def test_the_final_report_tries_first_what_saved_most_over_all_kernels(finished):
    found = Findings(finished.outputs / "results", DEFAULT)
    text = (finished.outputs / "reports/final-report.md").read_text()
    table = text.split("## What to Try First")[1].split("\n## ")[0].split("|---|")[-1]
    rows = [line for line in table.splitlines() if line.startswith("| [")]
    whats = [re.search(r"\*\*(.+?)\*\*", row)[1] for row in rows]
    every = [o for r in found.targets.values() for o in opportunities(r) if not o.departs]
    won = sorted((o for o in every if o.group == "won"), key=lambda o: -o.saved)
    assert whats[: len(won)] == [o.opportunity.what for o in won]
    assert all(row.endswith("| not tried |") for row in rows[len(won) :])
    lost = {o.opportunity.what for o in every if o.group == "lost"}
    assert not lost & set(whats[len(won) :])


def test_the_conclusion_is_made_of_findings(finished):
    found = Findings(finished.outputs / "results", DEFAULT)
    text = (finished.outputs / "reports/final-report.md").read_text()
    said = text.split("## Conclusion")[1]
    rows = [p["measurement"] for r in found.targets.values() for p in r["points"]]
    bound, partly, waiting = (sum(row["verdict"] == v for row in rows) for v in ("bound", "partly", "latency"))  # fmt: skip
    units = f"{bound} keep a hardware unit at 80 % of its peak or above, {partly} one from 60 % to below 80 %"
    assert f"Of {len(rows)} points, {units}, and {waiting} keep none at 60 %" in said
    every = [one for r in found.targets.values() for one in opportunities(r)]
    trials = [one for one in every if one.group != "untried" and not one.departs]
    tried, won = ({o.opportunity.what for o in of} for of in (trials, [o for o in trials if o.group == "won"]))  # fmt: skip
    changes = f"Of {len(tried)} changes of default calls that were tried"
    assert f"{changes}, {len(won)} save time somewhere" in said
    plans = [row for row in rows if row["plan_us"]]
    longer = sum(row["plan_us"] > row["time_cold_us"] for row in plans)
    assert f"at {longer} of {len(plans)} points that have one" in said
    assert 3 <= len(re.findall(r"[a-z)%`]\. ", said + " ")) <= 5


def test_the_analysis_stands_kernels_beside_each_other_and_repeats_no_page(finished):
    text = (finished.outputs / "reports/analysis.md").read_text()
    assert re.findall(r"^## (.+)$", text, re.M) == ["At Their Best Points"]
    section = text.split("## At Their Best Points")[1]
    for results in Findings(finished.outputs / "results", DEFAULT).targets.values():
        assert section.count(f"\n| {target_section(results)['title']}") == 1


def test_l2_is_as_busy_as_its_own_counters_say(finished):
    """ncu's L2 throughput of the best decode point is as ncu-ui has it, above DRAM's by the fills from it; L2's own is less, and
    named beside it."""
    found = Findings(finished.outputs / "results", DEFAULT)
    section = target_section(found.results("decode"))
    own, as_ncu = section["best"]["l2_pct"], section["best"]["m"]["sol_l2_pct"]
    assert own < as_ncu
    text = (finished.outputs / "reports/analysis.md").read_text()
    assert f"| {as_ncu:.0f} % ({own:.0f} %) |" in text.split("## At Their Best Points")[1]
