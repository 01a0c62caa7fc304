"""The view of any program's reports: what it says is what the project says elsewhere of the same file."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from command import ncuflow
from conftest import DEFAULT, ROOT, some
from results_data import launched
from test_html import blocks
from test_parsers_console import FIRST, SPEED
from test_parsers_csv import raw

from ncuflow.cli import dispatch
from ncuflow.compare import reports
from ncuflow.findings import limiter
from ncuflow.findings.join import Joined
from ncuflow.io import BadInput
from ncuflow.pages.html import view as page
from ncuflow.parsers import detail, ncu, show
from ncuflow.parsers.detail import Counter, Detail, SampledInstruction
from ncuflow.view import files, launch_detail, model
from ncuflow.view.model import NextBlock, View

CORPUS = ROOT.parent / "shared/corpus"  # public reports of other GPUs: pytest -m corpus
SWEEP = next(DEFAULT.glob("rmsnorm/b*/sweep.ncu-rep.xz"))
DECODE = DEFAULT / "decode/deep/deep.ncu-rep.xz"
DEEP = DEFAULT / "merge_state/deep/deep.ncu-rep.xz"
# Of ncu's every section, which no recording has: a deep capture leaves out what no page reads.
SET_FULL = ROOT / "tests/data/rmsnorm_set_full.ncu-rep.xz"


@pytest.fixture(scope="module")
def sweep() -> Any:
    (found,) = files.view([SWEEP]).reports
    return found


@pytest.fixture(scope="module")
def deep() -> Any:
    (found,) = files.view([DEEP]).reports
    return found


@pytest.fixture(scope="module")
def decode() -> Any:
    (found,) = files.view([DECODE]).reports
    return found


@pytest.fixture(scope="module")
def full() -> Any:
    """Norms, profiled with ``ncu --set full``."""
    (found,) = files.view([SET_FULL]).reports
    return found


def same_as_show(path: Path) -> None:
    """Every launch of a view has the values that ``ncuflow show`` prints."""
    (view,) = files.view([path]).reports
    _, document, _ = show.show_report(str(path))
    launches = {launch.index: launch for kernel in view.kernels for launch in kernel.launches}
    assert view.problems == document["report"]["problems"]
    assert view.devices == document["report"]["devices"]
    assert launches.keys() == {kernel["index"] for kernel in document["kernels"]}
    for shown in document["kernels"]:
        kernel = launches[shown["index"]].kernel
        assert kernel["metrics"] == shown["metrics"]
        assert {s["reason"]: s["ratio"] for s in kernel["stalls"]} == shown["stalls"]
        for name in ("name", "demangled", "device", "duration_ns"):
            assert kernel[name] == shown[name]
        assert (kernel["nvtx"] or "") == "/".join(shown["nvtx"])


@pytest.mark.parametrize("path", [SWEEP, DEEP], ids=lambda path: path.parent.name)
def test_values_are_those_of_show(path):
    same_as_show(path)


@pytest.mark.corpus
@pytest.mark.parametrize("path", sorted(CORPUS.glob("*.ncu-rep")), ids=lambda path: path.stem)
def test_values_of_other_gpus_are_those_of_show(path):
    same_as_show(path)


def test_a_page_is_not_written_over_a_folder_s_name(tmp_path):
    done = ncuflow("view", SWEEP, "--out", f"{tmp_path}/none/")
    assert done.returncode == 2 and "none/' is a folder's name; name a file in it" in done.stderr
    assert not [*tmp_path.iterdir()]


def test_launches_of_one_name_are_one_kernel(sweep):
    assert len(sweep.kernels) < sum(len(kernel.launches) for kernel in sweep.kernels)
    names = [(kernel.name, kernel.demangled) for kernel in sweep.kernels]
    assert len(set(names)) == len(names)
    for kernel in sweep.kernels:
        known = sorted(launch.kernel["duration_ns"] for launch in kernel.launches)
        spread = kernel.duration
        assert (spread.n, spread.least, spread.most) == (len(known), known[0], known[-1])
        assert kernel.longest_launch.kernel["duration_ns"] == known[-1]
        assert spread.total == pytest.approx(sum(known))
    totals = [kernel.duration.total for kernel in sweep.kernels]
    assert totals == sorted(totals, reverse=True)


def test_a_verdict_is_that_of_the_columns_of_a_measurement(sweep):
    """A page of a measured target and a view say the same of one launch."""
    from ncuflow.findings.columns import BY_NAME

    for kernel in some(sweep.kernels):
        launch = kernel.longest_launch
        joined: Any = Joined({}, {}, [launch.kernel], [], {}, {})  # type: ignore[typeddict-item]
        names = "verdict limiter draw busiest_unit busiest_pct second_unit second_pct waves"
        row = {name: BY_NAME[name].compute(joined) for name in names.split()}
        assert launch.words == limiter.words(row)
        assert limiter.kind(launch.row) == limiter.kind(row)


def test_code_has_all_samples_in_its_instructions(deep):
    looked = deep.details[deep.kernels[0].longest_launch.index]
    pcs = {instruction.pc for instruction in looked.code.instructions}
    assert {row["pc"] for row in looked.code.samples} <= pcs
    assert min(pcs) == 0
    samples = sum(row["samples"] for row in looked.code.samples)
    stalls = sum(s["samples"] or 0 for s in deep.kernels[0].longest_launch.kernel["stalls"])
    assert samples == stalls > 0
    assert any(
        name.endswith("include/flashinfer/attention/cascade.cuh") for name in looked.code.files
    )


def test_the_memory_chart_has_the_registrys_bytes(deep):
    kernel = deep.kernels[0].longest_launch
    flows = {(f.source, f.target, f.label): f for f in deep.details[kernel.index].memory.flows}
    metrics = kernel.kernel["metrics"]
    assert flows["dram", "l2", "read"].value == metrics["dram_bytes_read"]
    assert flows["l2", "dram", "written"].value == metrics["dram_bytes_write"]


def test_the_memory_chart_sums_sectors_and_takes_the_registry_where_counters_lack():
    sysmem = "lts__t_sectors_srcunit_tex_aperture_sysmem_op_{}.sum"
    counters = {
        sysmem.format("write"): Counter(2, "sector"),
        sysmem.format("atom"): Counter(1, "sector"),
        sysmem.format("red"): Counter(1, "sector"),
        sysmem.format("write") + launch_detail.PERCENT: Counter(7, "%"),
        sysmem.format("red") + launch_detail.PERCENT: Counter(9, "%"),
    }
    chart = launch_detail.chart(counters, {"dram_bytes_read": 64.0, "l2_hit_pct": 50.0})
    flows = {(f.source, f.target): f for f in chart.flows}
    assert (flows["l2", "system"].value, flows["l2", "system"].pct) == (4 * launch_detail.SECTOR, 9)
    assert flows["dram", "l2"].value == 64 and ("l2", "dram") not in flows
    assert chart.boxes["l2"] == [("hit rate", 50.0, "%")]
    del counters[sysmem.format("red")]  # of what is counted in part no sum is told
    flows = launch_detail.chart(counters, {"dram_bytes_read": 64.0}).flows
    assert ("l2", "system") not in {(flow.source, flow.target) for flow in flows}
    assert launch_detail.chart({}, {"l2_hit_pct": 50.0}) is None


def tables_of(counters: dict[str, Counter]) -> dict[str, dict[str, dict[str, float | None]]]:
    """Table -> row -> column -> value."""
    return {
        table.name: {
            row.label: dict(zip([label for label, _ in table.columns], row.values, strict=True))
            for row in table.rows
        }
        for table in launch_detail.tables(counters)
    }


def test_the_memory_tables_have_what_ncu_and_show_have(full):
    launch = full.kernels[0].longest_launch
    looked = full.details[launch.index]
    found = tables_of(looked.detail.counters)
    own = {name: counter.value for name, counter in looked.detail.counters.items()}
    assert list(found) == ["L1TEX", "Shared memory", "L2", "DRAM"]
    loads = found["L1TEX"]["global loads"]
    assert loads["requests"] == own["l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum"]
    rate = own["l1tex__t_sector_pipe_lsu_mem_global_op_ld_hit_rate.pct"]
    assert loads["hit rate"] == pytest.approx(rate)
    assert loads["missed"] == 32 * own["l1tex__t_sectors_pipe_lsu_mem_global_op_ld_lookup_miss.sum"]
    assert found["L2"]["all"]["hit rate"] == pytest.approx(
        own["lts__t_sector_hit_rate.pct"], rel=0.01
    )
    assert found["L2"]["L1TEX reads"]["missed, DRAM"] == 32 * own[
        "lts__t_sectors_srcunit_tex_aperture_device_op_read_lookup_miss.sum"
    ]  # fmt: skip
    metrics = launch.kernel["metrics"]
    assert found["DRAM"]["reads"]["bytes"] == metrics["dram_bytes_read"]
    assert found["DRAM"]["writes"]["bytes"] == metrics["dram_bytes_write"]
    assert found["Shared memory"]["all"]["wavefronts"] == metrics["smem_wavefronts"]
    assert found["Shared memory"]["copies from global (LDGSTS)"]["wavefronts"] is None
    # no access went there, and there is no peer
    assert "local loads" not in found["L1TEX"] and "missed, a peer" not in found["L2"]["all"]


def test_a_memory_table_has_no_value_of_what_is_not_counted():
    requests, sectors = (
        f"l1tex__t_{of}_pipe_lsu_mem_local_op_st" for of in ("requests", "sectors")
    )
    made = {f"{requests}.sum": Counter(4, ""), f"{sectors}.sum": Counter(8, "sector")}
    only = {"requests": 4, "sectors": 8, "sectors per request": 2, "bytes": 256}
    assert tables_of(made) == {"L1TEX": {"local stores": only}}
    hits = {f"{sectors}_lookup_{of}.sum": Counter(0, "") for of in ("hit", "miss")}
    whole = tables_of(made | hits)["L1TEX"]["local stores"]
    assert "hit rate" not in whole and whole["missed"] == 0
    assert tables_of({}) == {}


def test_memory_efficiency_of_instructions_sums_to_that_of_the_kernel(decode):
    looked = decode.details[decode.kernels[0].longest_launch.index]
    own = looked.detail.counters
    for key, names in (("sectors", detail.SECTORS[0]), ("wavefronts", detail.WAVEFRONTS[0])):
        found = some(access for one in looked.code.instructions if (access := getattr(one, key)))
        for at, name in enumerate(names):
            assert sum(access[at] for access in found) == own[name].value > 0
        assert all(access.asked >= access.ideal for access in found)


def instances(values: dict[int, float]) -> Any:
    """A metric of a report with a value for each instruction."""
    at, found = [*values], [*values.values()]
    ids = SimpleNamespace(value=at.__getitem__)
    return SimpleNamespace(
        has_correlation_ids=lambda: True, num_instances=lambda: len(at),
        correlation_ids=lambda: ids, value=found.__getitem__,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "ideal", "names"),
    [
        ("memory_l2_theoretical_sectors_global", "memory_l2_theoretical_sectors_global_ideal", detail.SECTORS),
        ("memory_l2_sectors_global", "memory_l2_sectors_global_ideal", detail.SECTORS),
        ("memory_l2_transactions_global", "memory_ideal_l2_transactions_global", detail.SECTORS),
        ("memory_l1_wavefronts_shared", "memory_l1_wavefronts_shared_ideal", detail.WAVEFRONTS),
        ("memory_l1_sectors_shared", "memory_l1_sectors_shared_ideal", detail.WAVEFRONTS),
        ("memory_shared_transactions", "memory_ideal_shared_transactions", detail.WAVEFRONTS),
    ],
)  # fmt: skip
def test_memory_efficiency_is_read_by_the_names_of_any_version(asked, ideal, names):
    held = {asked: instances({16: 8.0, 32: 4.0}), ideal: instances({16: 2.0})}
    action = SimpleNamespace(metric_by_name=held.get)
    assert detail._accesses(action, names) == {16: detail.Access(8, 2)}


def test_fp64_is_counted_for_the_roofline_or_not_known():
    ticks = [f"{unit}__cycles_elapsed.avg.per_second" for unit in ("smsp", "sm")]
    clocks = dict.fromkeys(ticks, Counter(1e9, "hz"))
    clocks[launch_detail.FP64_PEAK] = Counter(64, "inst/cycle")
    counts = {
        launch_detail.EXECUTED.format(op): n for op, n in (("dadd", 1), ("dmul", 2), ("dfma", 3))
    }
    # 1 + 2 + 2 × 3, in 1 µs, of which each cycle is a thousandth
    made = clocks | {name: Counter(n, "inst") for name, n in counts.items()}
    rates = clocks | {
        f"{name}.per_cycle_elapsed": Counter(n / 1000, "") for name, n in counts.items()
    }
    of = kernel(duration_ns=1000.0)
    of["metrics"] |= {"dram_bytes_read": 3.0, "dram_bytes_write": 6.0}
    for counters in (made, rates):
        found = launch_detail.roofline(of, Detail(counters=counters))
        assert found.flops == {"FP64": pytest.approx(9)} and found.bytes == {"DRAM": 9}
        assert found.compute == (("FP64", 128e9),)
    del made[launch_detail.EXECUTED.format("dmul")]
    assert launch_detail.fp64_flops(made, 1000.0) is None
    assert launch_detail.roofline(of, Detail(counters=made)) is None


def kernel(**given: Any) -> Any:
    limits = {"registers": 3, "shared_mem": 8, "warps": 8, "blocks": 32}
    metrics = {f"occupancy_limit_{name}": float(limit) for name, limit in limits.items()}
    own = {"block_size": 256, "grid_size": 8, "registers": 70, "smem_dynamic_bytes": 0}
    return launched("k") | own | {"metrics": metrics} | given


def test_the_next_block_is_read_off_the_calculators_curve():
    curve = [(32, 64.0), (64, 32.0), (70, 24.0), (80, 24.0)]
    found = files.occupancy(kernel(), Detail(curves={"registers": curve}))
    assert (found.blocks, found.resources) == (3, ("registers",))
    assert found.needs == (NextBlock("registers", 70, 64),)
    flat = files.occupancy(kernel(), Detail(curves={"registers": [(32, 24.0), (70, 24.0)]}))
    assert flat.needs == (), "another resource runs out as well: no number of registers helps"


def test_the_next_block_leaves_room_for_what_the_driver_takes_of_each():
    """A block more of what is said, each with the driver's part, fits into the shared memory of an SM; a step more does not."""
    (path,) = (ROOT / "recordings/h200/0.7.2/decode/decode").glob("b*/sweep.ncu-rep.xz")
    (full,) = files.view([path]).reports
    launch = full.kernels[1].longest_launch
    counters = full.details[launch.index].detail.counters
    whole, driver = (int(counters[f"launch__shared_mem_{of}"].value)
                     for of in ("config_size", "per_block_driver"))  # fmt: skip
    (needed,) = launch.occupancy.needs
    blocks = launch.occupancy.blocks + 1
    assert (needed.resource, driver) == ("shared memory", 1024)
    assert blocks * (needed.most + driver) <= whole < blocks * (needed.most + 512 + driver)
    curve = dict(full.details[launch.index].detail.curves["shared memory"])
    assert curve[whole - driver] == 4, "the largest block still fits"


def test_chance_is_no_spread(decode):
    """Two divergent branches of a scheduler more than another's are not what the others wait for."""
    branches = "smsp__sass_branch_targets_threads_divergent"
    launches = [decode.details[kernel.longest_launch.index] for kernel in decode.kernels]
    few = {one.detail.counters[f"{branches}.max"].value: one for one in launches}
    (most, shown) = next((n, one) for n, one in few.items() if n)
    assert 0 < most < 10 and branches not in {one.counter for one in shown.spread}
    assert all(one.most >= 100 for one in shown.spread) and shown.spread


def test_what_is_copied_past_l1_is_part_of_what_is_read():
    """Counters of a decode kernel on an H200, whose cp.async leaves L1 out."""
    past = "sm__sass_l1tex_m_xbar2l1tex_read_bytes_mem_global_op_ldgsts_cache_bypass.sum"
    counted = {"l1tex__m_xbar2l1tex_read_bytes.sum": 1_074_623_296.0, past: 1_072_628_224.0}
    found = launch_detail.chart(
        {name: Counter(value, "byte") for name, value in counted.items()}, {}
    )
    flows = {(flow.source, flow.target): flow for flow in found.flows}
    past, read = flows["l2", "shared"], flows["l2", "l1"]
    assert 0.9 * read.value < past.value < read.value and past.label.startswith("of it")


def test_what_no_kernel_has_is_said_once_with_its_option():
    one = files.kernel_view([kernel()], {})
    said = {lack.what: lack.option for lack in files.missing([one], {}, True)}
    assert said["stall reasons"] == "ncu --section WarpStateStats"
    assert said["memory chart"] == "ncu --section MemoryWorkloadAnalysis_Chart"
    assert "occupancy" not in said and "duration" not in said


def test_ranges_are_a_tree_with_times():
    (outer,) = model.tree(
        [(["a", "b"], "k", 2.0), (["a"], "k", 3.0), (["a", "b"], "j", None), ([], "k", 9.0)]
    )
    assert (outer.name, outer.count, outer.total_ns) == ("a", 3, 5.0)
    assert outer.kernels == {"k": 5.0, "j": 0.0}
    (inner,) = outer.children
    assert (inner.name, inner.count, inner.total_ns) == ("b", 2, 2.0)


def test_sources_come_from_below_the_folder_alone(tmp_path):
    folder = tmp_path / "folder"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "a.cu").write_text("one\ntwo\n")
    (tmp_path / "secret.cu").write_text("secret")
    (folder / "link.cu").symlink_to(tmp_path / "secret.cu")
    (folder / "circle.cu").symlink_to("circle.cu")
    names = [
        "/home/me/project/src/a.cu",
        "/x/../../secret.cu",
        f"{tmp_path}/secret.cu",
        "/p/link.cu",
    ]
    names += ["C:\\p\\src\\a.cu", "/p/\x00", "/p/circle.cu"]
    code = launch_detail.code(
        Detail(instructions=[SampledInstruction(0, "EXIT", None, 0, 1, 1, 32)], files=names), folder
    )
    assert code.sources == {0: ["one", "two"], 4: ["one", "two"]}
    assert set(code.found.values()) == {"folder"}


@pytest.mark.corpus
def test_a_failed_kernel_and_embedded_sources():
    (view,) = files.view([CORPUS / "esmm_a10g_one_failed_kernel.ncu-rep"]).reports
    failed = view.kernels[-1]
    assert failed.duration is None
    assert failed.longest_launch.words is None
    assert failed.longest_launch.kernel["problems"]
    (view,) = files.view([CORPUS / "cutlass_a100_80gb_pcie_sources_nvtx.ncu-rep"]).reports
    code = view.details[0].code
    at = next(i for i, name in enumerate(code.files) if name.endswith("device_kernel.h"))
    assert code.found[at] == "report" and any("Kernel(" in line for line in code.sources[at])


def test_detail_reads_the_kernels_that_are_asked_for():
    ours = ncu.read(SWEEP, with_lines=False).kernels
    found = detail.read(SWEEP, [3, 1])
    assert sorted(found) == [1, 3]
    for index, of in found.items():
        time = of.counters["gpu__time_duration.sum"]
        assert (round(1e9 * time.value), time.unit) == (round(ours[index]["duration_ns"]), "s")


def test_reports_are_compared_with_the_first():
    same, none = files.view([DEEP, DEEP, SET_FULL]).comparisons
    assert same.head == 1 and same.found and all(p.relative == 0 for p in same.found.points)
    assert none.head == 2 and none.found is None and "no kernel in common" in (none.why or "")


def test_a_trace_has_the_summary_of_show():
    path = next(DEFAULT.glob("merge_state/b*/trace.sqlite.xz"))
    (view,) = files.view([path]).traces
    _, document, launches = show.show_trace(str(path))
    rows = zip(view.summary, document["summary"], strict=True)
    assert [{k: row[k] for k in shown} for row, shown in rows] == document["summary"]
    assert len(view.operations) == len(launches) and view.span_ns == document["report"]["span_ns"]
    for row in view.summary:
        assert sum(row["durations_ns"]) == row["total_ns"]
        assert row["min_ns"] <= row["q25_ns"] <= row["median_ns"] <= row["q75_ns"] <= row["max_ns"]
    in_ranges = [op for op in view.operations if op["nvtx"]]
    assert sum(node.count for node in view.nvtx) == len(in_ranges) > 0


def test_what_ncu_printed_is_viewed_and_says_what_only_a_report_has(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(
        raw(("gpu__time_duration.sum", "us", "2"), ("launch__registers_per_thread", "", "40"))
    )
    (view,) = files.view([path]).reports
    (kernel,) = view.kernels
    told = (kernel.name, kernel.duration.median, kernel.longest_launch.kernel["registers"])
    assert told == ("Norm", 2000, 40)
    said = {lack.what: lack.option for lack in view.missing}
    assert said["memory chart"] == files.ONLY_A_REPORT and "Speed" in "".join(said)
    blocks_of = blocks(page.rendered(files.view([path])))
    assert blocks_of["main"]["reports"][0]["kernels"]["name"] == ["Norm"]
    assert "code 0 0" not in blocks_of


def test_files_of_one_name_are_told_apart():
    assert reports.distinct(["a/x.ncu-rep", "b/y.ncu-rep"]) == ["x.ncu-rep", "y.ncu-rep"]
    assert reports.distinct(["r/a/x", "r/c/x", "z"]) == ["x (1)", "x (2)", "z"]


def test_kernels_of_one_name_are_told_apart_by_the_words_that_differ():
    names = ["void k<4, float>(int)", "void k<8, float>(int)", "j"]
    made = [files.kernel_view([kernel(name=n.split("<")[0], demangled=n)], {}) for n in names]
    assert page.labels(made) == ["void k <4>", "void k <8>", "j"]


def test_what_does_not_fit_is_left_out_from_the_end(deep):
    view = View([deep], [], [])
    whole, small = (blocks(page.rendered(view, budget)) for budget in (page.BUDGET, 16_000))
    assert set(small) < set(whole)
    assert "kernels 0 0" in small and "code 0 0" in whole


def test_the_verb_writes_one_file_that_asks_for_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert dispatch(["view", str(DEEP)]) == 0
    (made,) = tmp_path.iterdir()
    text = made.read_text(encoding="utf-8")
    assert made.name == "deep.html" and "deep.html" in capsys.readouterr().err
    assert "default-src 'none'" in text and '<link rel="icon" href="data:,">' in text
    # No path of the machine that the page was made on.
    assert all(str(DEEP.parent.parent) not in json.dumps(value) for value in blocks(text).values())


def test_the_verb_refuses_what_it_cannot_do(tmp_path):
    report, circle = tmp_path / "no.ncu-rep", tmp_path / "circle.ncu-rep"
    report.write_bytes(b"\x00\x01")
    circle.symlink_to(circle.name)
    for args, said in (
        ([str(report)], "not a report"),
        ([str(circle)], "Too many levels of symbolic links"),
        ([str(DEEP), "--source", str(report)], "not a folder"),
        ([str(DEEP), "--out", str(DEEP)], "one of the files to read"),
    ):
        with pytest.raises(BadInput, match=said):
            dispatch(["view", *args])
    assert {*tmp_path.iterdir()} == {report, circle}


def test_no_section_is_advised_that_what_ncu_printed_has(tmp_path) -> None:
    path = tmp_path / "pasted.txt"
    path.write_text(FIRST + SPEED)
    (report,) = files.view([path]).reports
    assert report.kernels[0].longest_launch.words == "DRAM 73 %, otherwise latency-bound"
    lacking = dict(report.missing)
    assert lacking[files.PARTS] == files.ONLY_A_REPORT
    assert "ncu --section SpeedOfLight" not in lacking.values()
    listed = page._report(report)["kernels"]
    assert (listed["failed"], listed["problems"]) == ([False], [1])


def test_a_page_is_the_same_from_a_terminal_of_any_width(full, monkeypatch):
    viewed, pages = View(reports=[full], traces=[], comparisons=[]), set()
    for width in ("60", "200"):
        monkeypatch.setenv("COLUMNS", width)
        pages.add(page.rendered(viewed))
    assert len(pages) == 1
