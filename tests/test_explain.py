"""An explanation: the judgement of the pages, nothing from counters that are not there, and each number traced."""

from __future__ import annotations

import copy
import json
import os
import re
import shlex
import shutil
from collections import Counter
from functools import cache
from pathlib import Path

import pytest
from conftest import ROOT, some, some_by_default
from nsys_export import Export

from ncuflow.cli import dispatch
from ncuflow.explain import launch
from ncuflow.explain.record import MOST_LINES, Explanation, Number, as_text
from ncuflow.explain.verb import explain
from ncuflow.findings import derivation, limiter, opportunities, profiled, stored
from ncuflow.io import BadInput, UsageError
from ncuflow.model import Kernel
from ncuflow.parsers import ncu, nsys

pytestmark = pytest.mark.usefixtures("read_once")

SHIPPED = ROOT / "recordings/h200/0.7.2/default"
DEEP = SHIPPED / "decode/deep/deep.ncu-rep.xz"
(SWEEP,) = SHIPPED.glob("decode/b*/sweep.ncu-rep.xz")
CORPUS = ROOT.parent / "shared/corpus"
REPORTS = sorted(SHIPPED.glob("*/*/*.ncu-rep.xz"))


@pytest.fixture(scope="module")
def deep() -> list[Kernel]:
    return profiled.kernels(ncu.read(DEEP))


SOL, WARPS = "GPU Speed Of Light Throughput", "Warp State Statistics"
COLUMNS = ("ID", "Kernel Name", "Block Size", "Grid Size", "Device", "CC", "Section Name",
           "Metric Name", "Metric Unit", "Metric Value")  # fmt: skip


def printed(*metrics: tuple[str, ...]) -> str:
    """A launch as ncu prints it as CSV: section, name, unit and value of each metric."""
    launched = ("0", "k(float *)", "(128, 1, 1)", "(64, 1, 1)", "0", "9.0")
    rows = [COLUMNS, *((*launched, *metric) for metric in metrics)]
    return "".join(",".join(f'"{cell}"' for cell in row) + "\n" for row in rows)


def numbers(found: Explanation) -> list[Number]:
    """Every number of an explanation."""
    units = [*found.limit.units, *found.limit.waits] if found.limit else []
    every = [found.time, found.headroom and found.headroom.most]
    every += [one.share for one in (*units, *found.stalls, *found.lines)]
    every += [number for one in found.suggestions for number in (one.estimate, one.most)]
    return [n for n in (*every, *(one.at_mbarrier for one in found.stalls)) if n is not None]


def fits(lines: list[str]) -> bool:
    """On a screen, but for the command that is to be copied."""
    lengths = [len(line) for line in lines if not line.startswith(" " * 9 + "ncuflow trace ")]
    return len(lines) <= MOST_LINES and max(lengths) <= 100


def test_the_printed_trace_runs_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the folder of the explanation, however long the report's own is named, and whatever a shell reads in it."""
    folder = tmp_path / ("a folder's name " * 8).strip()
    folder.mkdir()
    (folder / "a b.csv").write_text(printed((SOL, "Duration", "ns", "1500")))
    monkeypatch.chdir(tmp_path)
    dispatch(["explain", str(folder.relative_to(tmp_path) / "a b.csv")])
    command, *words = shlex.split(capsys.readouterr().out.splitlines()[-1])
    assert command == "ncuflow"
    dispatch(words)
    assert "1500" in capsys.readouterr().out


@pytest.mark.parametrize(
    "report", some_by_default(REPORTS, 4), ids=lambda path: "/".join(path.parts[-3:-1])
)
def test_every_launch_of_the_shipped_reports_fits_on_a_screen(report: Path) -> None:
    found = ncu.read(report)
    for kernel in some(found.kernels):
        lines = as_text(launch.of_report(found, kernel["kernel"])).splitlines()
        assert fits(lines)
        assert kernel["name"][:12] in lines[0]


def test_a_full_screen_is_no_longer(deep) -> None:
    """Where every part has more than fits, what to try has the rest of the screen."""
    found = launch.of_kernel(deep[0], deep[:1], "2025.3.1")
    more = {"missing": [*launch.MISSING.values()], "notes": ["a long word " * 30]}
    lines = as_text(found.model_copy(update=more)).splitlines()
    assert len(lines) > MOST_LINES - 3 and fits(lines)
    assert [line for line in lines if line.startswith("try ")] and lines[-1].startswith(" " * 9)


def test_the_judgement_is_that_of_the_pages(recorded) -> None:
    """What limits a launch alone is what the pages say of a point whose only kernel it is."""
    points = recorded("h200/0.7.2/default", "rmsnorm")["points"]
    rows = {p["point"]: p["measurement"] for p in points if p["measurement"]["kernel_count"] == 1}
    (report,) = (SHIPPED / "rmsnorm").glob("b*/sweep.ncu-rep.xz")
    read = ncu.read(report)
    for kernel in some(kernel for kernel in read.kernels if kernel["point"] in rows):
        row, limit = rows[kernel["point"]], launch.of_report(read, kernel["kernel"]).limit
        assert limit and limit.verdict == row["verdict"]
        assert [one.name for one in limit.units] == [row["busiest_unit"], row["second_unit"]]
        assert limit.units[0].share.value == pytest.approx(row["busiest_pct"])


@pytest.mark.parametrize("index", some_by_default([0, 1, 2], 3))
def test_every_number_is_found_where_its_trace_says(deep, index: int, monkeypatch) -> None:
    monkeypatch.setattr(profiled, "read", cache(profiled.read))  # each number is looked up anew
    found = launch.of_report(ncu.read(DEEP), index)
    samples = sum(line["samples"] for line in deep[index]["lines"])
    assert len(numbers(found)) > 15
    for number in numbers(found):
        assert number.tier == "C" and number.trace
        where, name = shlex.split(number.trace)
        file, _, launched = where.rpartition("#")
        _, *steps = derivation.steps_of_launch(file, int(launched), name)
        if name.startswith("stall_"):
            value = 100 * steps[0].value
        elif ":" in name:
            value = 100 * sum(step.value for step in steps) / samples
        else:
            value = steps[0].value
        bound = number.value == found.headroom.most.value and name == "busiest_pct"
        assert number.value == pytest.approx(100 - value if bound else value), number


def test_a_rule_promises_no_more_than_what_is_left() -> None:
    """NVIDIA's rule takes the blocks of a small grid for more of the time than DRAM leaves, about a tenth."""
    (report,) = (ROOT / "recordings/h200/0.6.1/decode/decode").glob("b*/sweep.ncu-rep.xz")
    found = launch.of_report(ncu.read(report), 2)
    room = found.headroom.most.value
    above = [one for one in found.suggestions if one.estimate and one.estimate.value > room]
    assert {one.by for one in above} >= {"NVIDIA's rule LaunchConfiguration"}
    assert all(one.most.value <= room for one in found.suggestions if one.most is not None)
    assert f"more than the {room:.0f} % left" in " ".join(as_text(found).split())


def without(kernel: Kernel, *names: str) -> Explanation:
    """The explanation of a launch whose report lacks something."""
    poor = copy.deepcopy(kernel)
    for name in names:
        if name in profiled.NESTED:
            poor[name] = []  # type: ignore[literal-required]
        elif name in poor["metrics"]:
            del poor["metrics"][name]
        else:
            poor["stalls"] = [s for s in poor["stalls"] if s["reason"] != name]
            for stall in poor["stalls"]:
                stall["share"] = None  # as the reader leaves it where a reason is missing
    return launch.of_kernel(poor, [poor], "2025.3.1")


@pytest.mark.parametrize(
    ("lacks", "empty", "brought_by"),
    [
        (("breakdown",), ("limit", "headroom"), "SpeedOfLight"),
        (("barrier",), ("stalls",), "WarpStateStats"),
        (("lines",), ("lines",), "SourceCounters"),
        (("rules",), ("suggestions",), "--set full"),
        (("waves",), (), "LaunchStats"),
    ],
)
def test_nothing_is_said_of_what_was_not_counted(deep, lacks, empty, brought_by) -> None:
    whole, found = launch.of_kernel(deep[0], deep[:1], "2025.3.1"), without(deep[0], *lacks)
    for name in empty:
        assert getattr(whole, name) and not getattr(found, name)
    assert [m for m in found.missing if brought_by in m.brought_by]
    assert not [m for m in whole.missing if brought_by in m.brought_by]
    assert brought_by in " ".join(as_text(found).split())


def test_what_is_missing_is_referred_to_where_it_is_said(deep) -> None:
    """Of a launch whose profiling failed nothing is missing that a section would bring."""
    nothing = {"duration_ns": None, "grid_size": None, "breakdown": [], "problems": ncu.FAILED}
    failed = as_text(launch.of_kernel(deep[0] | nothing, [deep[0]], None))  # type: ignore[operator]
    assert re.search(r"(?m)^limit +not known$", failed)
    poor = as_text(without(deep[0], "breakdown"))
    assert "not known: see what is missing" in poor and "\nmissing" in poor
    # Of several launches the count is said.
    twice = [deep[0], {**deep[0], "kernel": 1, "duration_ns": 1.0}]
    chosen, alike = launch.choose(twice, "BatchDecode", "x")  # type: ignore[arg-type]
    found = launch.of_kernel(chosen, alike, None)
    assert (found.subject.launches, found.subject.untimed) == (2, 0)
    assert "the longest of 2 of that name" in as_text(found)
    twice[1]["duration_ns"] = None
    assert "(1 without a time)" in as_text(launch.of_kernel(chosen, alike, None))


def test_a_kernel_is_chosen_by_index_or_name_and_else_it_is_the_longest(deep) -> None:
    longest = max(deep, key=lambda kernel: kernel["duration_ns"])["kernel"]
    assert launch.choose(deep, None, "x")[0]["kernel"] == longest
    assert launch.choose(deep, "2", "x")[0]["kernel"] == 2
    every = profiled.kernels(ncu.read(SWEEP))
    chosen, alike = launch.choose(every[::-1], "BatchDecode*", "x")
    named = [kernel for kernel in every if kernel["name"].startswith("BatchDecode")]
    assert chosen["duration_ns"] == max(kernel["duration_ns"] for kernel in named)
    # Templates of one function name are kernels of their own: for 4, 8 and 1 query heads of a KV head.
    assert len({profiled.whole_name(kernel) for kernel in named}) == 3
    assert {profiled.whole_name(kernel) for kernel in alike} == {profiled.whole_name(chosen)}
    assert 1 < len(alike) < len(named)
    assert explain(SWEEP, "BatchDecode").notes[0].startswith("BatchDecode fits 3 kernels: ")
    assert not [note for note in explain(DEEP, "MergeStates").notes if "fits" in note]
    assert launch.choose(deep, "MergeStates", "x")[0]["name"].startswith("PersistentVariable")
    with pytest.raises(BadInput, match="no kernel gemm; it has 3: BatchDecode"):
        launch.choose(deep, "gemm", "x")
    for none in ("-1", "3", "²", "9" * 5000):
        with pytest.raises(BadInput, match=f"no kernel {none}; it has 3"):
            launch.choose(deep, none, "x")


def timed(name: str, *times: float) -> list[Kernel]:
    """Launches of one name with such times in ns."""
    return [{"name": name, "demangled": None, "duration_ns": time} for time in times]  # type: ignore[misc]


def test_by_default_it_is_the_kernel_whose_launches_take_the_most_time_together() -> None:
    every = [*timed("long", 50.0), *timed("often", 20.0, 30.0, 20.0), *timed("short", 1.0)]
    chosen, alike = launch.choose(every, None, "x")
    assert (chosen["name"], chosen["duration_ns"], len(alike)) == ("often", 30.0, 3)
    said = launch.share(alike, every, "trace")
    assert "(3) take 0.07 µs together, 57.9 %" in said
    assert said.endswith("the most of its 3 kernels")
    assert not launch.share(every[:1], every, "trace").endswith("kernels")
    # What has no time is not in "of all".
    said = launch.share(alike, [*every, *timed("lost", None)], "x")  # type: ignore[arg-type]
    assert "57.9 % of the time of all (5 with a time, 1 has none)" in said
    assert said.endswith("the most of its 3 kernels")
    untimed = [{**one, "duration_ns": None} for one in every]
    assert not launch.share(untimed[:1], untimed, "trace").endswith("kernels")  # type: ignore[arg-type]


def test_what_was_chosen_by_default_is_said() -> None:
    assert any("the most of its 3 kernels" in note for note in explain(DEEP).notes)
    assert not any("the most of" in note for note in explain(DEEP, 0).notes)
    (trace,) = (SHIPPED / "decode").glob("b*/trace.sqlite.xz")
    totals = Counter[str | None]()
    for one in profiled.traced(nsys.read(trace)):
        totals[one["demangled"]] += int(one["duration_ns"])
    found = explain(trace)
    assert found.subject.demangled == totals.most_common(1)[0][0]
    assert "the most of its" in found.notes[0]


def test_instructions_without_source_lines_are_told_apart_by_their_address() -> None:
    """An unrolled loop has the same instruction at several places."""
    report = ncu.read(SHIPPED / "rmsnorm/deep/deep.ncu-rep.xz")
    found = launch.of_report(report, 1)
    samples = Counter[int]()
    for row in report.lines:
        samples[row["pc"]] += row["samples"] * (row["kernel"] == 1)
    assert [line.pc for line in found.lines] == [pc for pc, _ in samples.most_common(5)]
    for line in found.lines[:3]:
        assert f"{line.pc:#x} {line.sass} {line.share.value:.0f}" in as_text(found)
    assert all(line.pc is None for line in launch.of_report(ncu.read(DEEP), 0).lines)


POINT = "decode/B32_L2048_H32_K8_D128_P16_f16_cc"


@pytest.fixture(scope="module")
def point() -> Explanation:
    """The explanation of a point of the recording that ships."""
    return explain(POINT, outputs=SHIPPED)


def test_a_point_is_explained_by_what_its_pages_say(point, recorded) -> None:
    results = recorded("h200/0.7.2/default", "decode")
    entry = next(one for one in results["points"] if one["point"] == POINT)
    row = entry["measurement"]
    assert point.time and point.time.value == row["time_cold_us"]
    assert point.limit and point.limit.words == limiter.words(row)
    assert point.stalls[0].reason == row["top_stall"]
    assert point.lines[1].file.endswith("decode.cuh") and point.lines[1].function
    assert point.lineage.versions["FlashInfer"] == row["flashinfer_version"]
    assert (point.lineage.tier, point.lineage.date) == ("C", row["date"])
    bound = 100 * (1 - row["gbs_fraction_measured"])
    assert point.headroom and point.headroom.most.value == pytest.approx(bound)
    assert fits(as_text(point).splitlines())


def test_a_point_is_told_what_its_target_suggests_there_and_what_trials_brought(point, recorded):
    results = recorded("h200/0.7.2/default", "decode")
    found = [one for one in opportunities.found(results) if POINT in one.points]
    assert [one.what for one in point.suggestions] == [
        f"{one.opportunity.what}: {one.opportunity.change}" for one in found if one.group != "lost"
    ]
    tried = next(one for one in point.suggestions if one.tried)
    effect = next(effect for one in found for effect in one.effects if effect.base_point == POINT)
    assert tried.tried.startswith(f"−{-100 * effect.change:.1f} %")
    work = [one for one in point.suggestions if one.scope == "point" and one.most]
    assert all(one.most.value <= point.headroom.most.value for one in work)


def test_no_suggestion_for_this_work_is_above_its_headroom_and_what_lost_is_none(tmp_path) -> None:
    stored.make_results(SHIPPED, ["prefill", "rmsnorm", "rope"], tmp_path)
    for id in ("S4096_B1_H32_K8_D128_f16_fa2_c", "S2048_B1_H32_K32_D128_f16_fa2_c"):
        one_point = explain(f"prefill/paged_{id}", outputs=tmp_path)
        own = some(one for one in one_point.suggestions if one.scope == "point" and one.most)
        # that the roofs alone leave something is no bound of a change
        assert all(one.most.value < one_point.headroom.most.value - 0.5 for one in own)
    fused = explain("rmsnorm/add_then_rmsnorm_R512_D4096_f16", outputs=tmp_path)
    scopes = {one.what.split(":")[0]: one.scope for one in fused.suggestions}
    assert scopes["the fused add"] == "other work"

    def rotated(tokens: int) -> str:
        name = f"rope/rope_pos_ids_inplace_T{tokens}_H32_K8_D128_f16_neox"
        return " ".join(one.what for one in explain(name, outputs=tmp_path).suggestions)

    few, many = rotated(4096), rotated(65536)
    assert "the cos/sin cache" in few  # −28 % there
    assert "the cos/sin cache" not in many  # +3 % there
    assert "positions by offsets" not in few + many  # +2 %


def test_every_number_of_a_point_is_found_where_its_trace_says(point, monkeypatch) -> None:
    for module, name in ((stored, "results"), (derivation, "read")):
        monkeypatch.setattr(module, name, cache(getattr(module, name)))
    traced = some(number for number in numbers(point) if number.trace is not None)
    with stored.of_point(POINT, SHIPPED) as where:
        for number in traced:
            name, column, folder = shlex.split(number.trace)
            assert (name, folder) == (POINT, str(SHIPPED))
            steps = list(derivation.steps(where.outputs, POINT, column))
            if number.metric == column and number is not point.headroom.most:
                shown = [step.value for step in steps if step.name == column]
                assert number in [one.most for one in point.suggestions] or number.value in shown
                assert len(steps) > 1


def test_a_point_is_looked_for_in_the_outputs_of_this_folder_before_the_recording(
    tmp_path, monkeypatch, point
) -> None:
    monkeypatch.chdir(tmp_path)
    stored.make_results(SHIPPED, ["decode"], tmp_path / "outputs/one")
    found = explain(POINT)
    assert (found.lineage.kind, found.lineage.file) == ("outputs", "outputs/one")
    assert found.time == point.time.model_copy(update={"trace": f"{POINT} time_cold_us"})
    shutil.copytree("outputs/one", "outputs/two")
    with pytest.raises(UsageError, match="outputs/one, outputs/two"):
        explain(POINT)
    with pytest.raises(BadInput, match="no point 'decode/B32_none'; the nearest of 40: decode/B"):
        explain("decode/B32_none", outputs=SHIPPED)


def test_a_report_of_a_recording_is_told_what_the_target_of_its_point_suggests(capsys) -> None:
    found = explain(DEEP, 1)
    assert found.subject.point == POINT
    assert {one.by for one in found.suggestions} == {"target decode"}
    assert dispatch(["explain", str(DEEP), "--kernel", "1", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert Explanation.model_validate(said) == found
    # a roof bounds no change, and a cache of 8 bits lost on CUDA cores
    assert not [one for one in found.suggestions if one.scope == "point" and one.most]
    assert "a KV cache of 8 bits" not in as_text(found)
    by = {one.by.split()[0] for one in launch.of_report(ncu.read(DEEP), 1).suggestions}
    assert by == {"NVIDIA's"}


def test_a_report_of_a_recording_is_told_from_the_same_folder_as_its_recording(monkeypatch) -> None:
    """No absolute path comes of a relative one: what is told goes to others."""
    for folder, recording in ((ROOT, SHIPPED.relative_to(ROOT)), (DEEP.parent, Path("../.."))):
        monkeypatch.chdir(folder)
        found = explain(Path(os.path.relpath(DEEP)), 1)
        traces = [one.most.trace for one in found.suggestions if one.most and one.scope != "point"]
        assert {shlex.split(trace)[2] for trace in traces} <= {str(recording)}
        assert str(ROOT) not in found.model_dump_json()


def test_the_recording_that_ships_is_told_without_where_it_is_installed(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = explain(POINT)
    place = ("recording", "recordings/h200/0.7.2/default")
    assert (found.lineage.kind, found.lineage.file) == place
    assert str(ROOT) not in found.model_dump_json()
    assert explain(POINT, outputs=found.lineage.file).lineage == found.lineage


def test_a_trace_has_times_and_says_what_brings_the_rest(tmp_path) -> None:
    (path,) = (SHIPPED / "decode").glob("b*/trace.sqlite.xz")
    found = explain(path, "MergeStates")
    trace = nsys.read(path)
    own = [row for row in trace.timeline if "MergeStates" in (row["name"] or "")]
    assert (found.limit, found.headroom, found.stalls, found.suggestions) == (None, None, [], [])
    assert found.subject.launches == len(own)
    assert found.time and found.time.value == max(row["duration_ns"] for row in own)
    file, _, index = shlex.split(found.time.trace)[0].rpartition("#")
    steps = list(derivation.steps_of_launch(file, int(index), "duration_ns"))
    assert steps[1].value == found.time.value
    assert "ncu --set full -k 'regex:^Persistent" in found.missing[0].brought_by
    assert "not known" in as_text(found)


def test_a_command_has_the_name_of_a_kernel_as_one_word() -> None:
    hostile = "k<1>; touch 'x' $(id)"
    said = launch.COUNTERS.brought_by.format(launch.pattern(hostile))
    (word,) = [one for one in shlex.split(said) if one.startswith("regex:")]
    assert re.fullmatch(word.removeprefix("regex:"), hostile)


def test_what_ncu_printed_as_csv_is_explained_as_far_as_it_goes(tmp_path) -> None:
    path = tmp_path / "x.csv"
    path.write_text('"ID","Kernel Name","gpu__time_duration.sum"\n"","","us"\n"0","add","5.5"\n')
    found = explain(path)
    assert (found.lineage.kind, found.time.value, found.limit) == ("ncu csv", 5500.0, None)
    assert {"SpeedOfLight", "WarpStateStats"} <= {m.brought_by.split()[-1] for m in found.missing}
    # What has no time in an export has not failed.
    path.write_text(
        printed(
            ("S", "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed", "%", "72.56")
        )
    )
    found = explain(path)
    assert found.notes == ["no duration; no device name"]
    assert "--metrics gpu__time_duration.sum" in [one.brought_by for one in found.missing]


@pytest.mark.parametrize(
    ("sm", "memory", "dram", "l2", "words", "nature"),
    [
        ("9.15", "19.66", "19.66", "8.59", "latency-bound; busiest: DRAM (20 %)", "latency-bound"),
        ("31.10", "91.20", "91.20", "40.00", "bound by DRAM (91 % of its peak)", "memory-bound"),
        ("31.10", "71.20", "30.10", "71.20", "L2 71 %, otherwise latency-bound", "partly memory-bound"),
        # Neither DRAM nor L2, or L2 by counters that the throughput of memory is not of.
        ("31.10", "71.20", "30.10", "40.00", "memory 71 %, otherwise latency-bound", "partly memory-bound"),
        ("31.10", "71.20", "30.10", "88.00", "memory 71 %, otherwise latency-bound", "partly memory-bound"),
        ("85.00", "71.20", "71.20", "40.00", "bound by compute (SM) (85 % of its peak)", "compute-bound"),
        (None, "71.20", "71.20", "40.00", None, None),
    ],
)  # fmt: skip
def test_what_ncu_prints_has_a_limit_by_its_percentages(
    tmp_path, sm, memory, dram, l2, words, nature
) -> None:
    labels = (
        "Compute (SM) Throughput",
        "Memory Throughput",
        "DRAM Throughput",
        "L2 Cache Throughput",
    )
    shares = [
        (SOL, f"{name}", "%", pct)
        for name, pct in zip(labels, (sm, memory, dram, l2), strict=True)
        if pct
    ]
    path = tmp_path / "x.csv"
    waits = (WARPS, "Warp Cycles Per Issued Instruction", "cycle", "9.5")
    path.write_text(printed(*shares, (SOL, "Duration", "us", "6.75"), waits))
    found = explain(path)
    assert (found.limit and (found.limit.words, found.limit.nature)) == (words and (words, nature))
    # No section is advised that the file has.
    advised = [one.brought_by for one in found.missing]
    assert not [option for option in advised if "WarpStateStats" in option]
    assert ("--section SpeedOfLight" in advised) == (words is None)
    if found.limit:
        share = found.limit.units[0].share
        where, name = shlex.split(share.trace or "")
        *_, index = where.rpartition("#")
        steps = list(derivation.steps_of_launch(str(path), int(index), name))
        assert share.value in [step.value for step in steps[2:]]


def test_the_options_that_profile_a_launch_of_a_trace_are_of_no_other(tmp_path) -> None:
    """Two templates have one function name; ncu counts the launches of a name."""
    attention, gemm = "device_kernel<attention<128>>", "device_kernel<gemm<64, 64>>"
    trace = Export()
    for number, name in enumerate(("device_kernel", attention, gemm), 10):
        trace.add("StringIds", id=number, value=name)
    launches = [(10, 11, 300), (10, 12, 200), (10, 12, 250), (7, 7, 400)]
    for at, (short, name, ns) in enumerate(launches):
        trace.kernel(1000 * at, 1000 * at + ns, at, name=short, demangledName=name)
    path = trace.write(tmp_path / "trace.sqlite")
    found = explain(path)
    assert (found.subject.demangled, found.subject.launches) == (gemm, 2)
    assert "39.1 %" in found.notes[0]
    assert found.missing[0].brought_by == "ncu --set full -k 'regex:^device_kernel$' -s 2 -c 1"
    assert "26.1 %" in " ".join(explain(path, "attention<128>").notes)


@pytest.mark.corpus
@pytest.mark.parametrize("report", sorted(CORPUS.glob("*.ncu-rep")), ids=lambda path: path.stem)
def test_reports_of_other_gpus_fit_on_a_screen(report: Path) -> None:
    found = ncu.read(report)
    for kernel in some(found.kernels):
        lines = as_text(launch.of_report(found, kernel["kernel"])).splitlines()
        assert fits(lines)


def test_every_kernel_of_a_report_is_a_line_with_its_verdict(capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    assert dispatch(["explain", str(SWEEP), "--all"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    every = profiled.by_name(profiled.kernels(ncu.read(SWEEP)))
    assert len(lines) == len(every) > 1 and head.startswith("kernel")
    first = explain(SWEEP)
    assert lines[0].startswith(first.subject.name) and first.limit.words in lines[0]
    shares = [float(re.search(r" ([\d.]+) % ", line)[1]) for line in lines]
    assert shares == sorted(shares, reverse=True) and sum(shares) == pytest.approx(100, abs=0.3)
    assert dispatch(["explain", str(SWEEP), "--all", "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    assert [one["subject"]["name"] for one in answers] == [of[0]["name"] for of in every]
