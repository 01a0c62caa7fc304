"""The ncu reader: real reports, silences of the reader package, damaged files, the command."""

from __future__ import annotations

import functools
import json
import lzma
import math
import os
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import pytest
from command import ncuflow
from conftest import ROOT, some, some_by_default
from hypothesis import given
from hypothesis import strategies as st
from test_parsers_nsys import SLOW

from ncuflow.cli import dispatch
from ncuflow.io import BadInput
from ncuflow.parquet import build
from ncuflow.parsers import lines, ncu, reader, registry
from ncuflow.parsers.chips import CHIPS, chip_of
from ncuflow.parsers.registry import METRICS, PEAK
from ncuflow.parsers.stalls import OTHER, RATIO, SAMPLES, STALL_REASONS, stalls_of

show = functools.partial(ncuflow, "show")
H200 = ROOT / "recordings/h200/0.7.2/default"
CORPUS = ROOT.parent / "shared/corpus"  # public reports of other GPUs: pytest -m corpus
RECORDED = sorted(ROOT.glob("recordings/*/**/*.ncu-rep.xz"), key=lambda p: p.stat().st_size)
TABLES = ("kernels", "metrics", "stalls", "breakdown", "rules", "lines")


@functools.cache
def smallest() -> bytes:
    """The real report to damage: a small one, cut down to its first kernel's block."""
    (path,) = ROOT.glob("recordings/h200/0.7.2/versions/rmsnorm/b*/sweep.ncu-rep.xz")
    return first_kernels(lzma.decompress(path.read_bytes()), 1)


def first_kernels(data: bytes, count: int) -> bytes:
    """A well-formed report of the first kernels only, made of whole blocks; cubins are left out."""
    found, kept = 0, []
    for block in blocks(data):
        kept = kept or [data[: block.at]]
        if found >= count:
            break
        found += block.header.get(reader.RESULTS, 0)
        if block.header.get(reader.RESULTS) or not block.header.get(reader.SOURCES):
            kept.append(data[block.at : block.until])
    return b"".join(kept)


class Block(NamedTuple):
    """A block of a report: where it starts, its header, the integers of that, and its payload's end."""

    at: int
    start: int
    end: int
    header: dict[int, int]
    until: int


def blocks(data: bytes) -> Iterator[Block]:
    _, at = next(reader.messages(data, 4))
    while at < len(data):
        start, end = next(reader.messages(data, at))
        header = reader.integers(data, start, end)
        until = end + header.get(reader.PAYLOAD_SIZE, 0)
        yield Block(at, start, end, header, until)
        at = until


def of_another_chip(data: bytes, names: Mapping[bytes, bytes], major: int) -> bytes:
    """A report of compute capability 9.0 made one of `major`.0 whose counters have other names."""
    made, listed = [], []  # each block adds to the names that results refer to
    for block in blocks(data):
        made, fields = made or [data[: block.at]], []
        for field in reader.fields(data, block.start, block.end):
            fields.append(data[field.start : field.end])
            if (field.number,) == reader.STRING_TABLE:
                new = [data[f.value : f.end] for f in reader.fields(data, field.value, field.end)]
                listed += new
                fields[-1] = text(4, b"".join(text(1, names.get(name, name)) for name in new))
        header, payload = b"".join(fields), data[block.end : block.until]
        if CAPABILITY in listed and payload:
            value = reader.integer(1, listed.index(CAPABILITY)) + b"\x12\x02\x28"
            assert value + b"\x09" in payload
            payload = payload.replace(value + b"\x09", value + bytes([major]))
        made += [len(header).to_bytes(4, "little"), header, payload]
    return b"".join(made)


CAPABILITY = b"device__attribute_compute_capability_major"


def text(number: int, value: bytes) -> bytes:
    """A text as a field of a message."""
    return (
        reader.integer(0, number << 3 | reader.TEXT)[1:] + reader.integer(0, len(value))[1:] + value
    )


@functools.cache
def warpgroup_mma() -> bytes:
    """The recorded kernels up to the first that runs HGMMA."""
    place = recorded_path("prefill", "sweep")
    counted = "sm__ops_path_tensor_op_hgmma_src_fp16_sparsity_off.sum"
    (first, *_) = (m["kernel"] for m in recorded("prefill").metrics if m["metric"] == counted)
    return first_kernels(lzma.decompress(place.read_bytes()), first + 1)


@functools.cache
def recorded(target: str, tool: str = "sweep") -> ncu.Report:
    """A report of the recording, its samples too where it is a deep one."""
    return ncu.read(recorded_path(target, tool), with_lines=tool == "deep")


def recorded_path(target: str, tool: str) -> Path:
    (path,) = H200.glob(f"{target}/*/{tool}.ncu-rep.xz")
    return path


def fits_the_schema(report: ncu.Report) -> None:
    for name in TABLES:
        build(name, [{"report": "r", "batch": "b", **row} for row in getattr(report, name)])


def by_kernel(rows, value):
    out = defaultdict(dict)
    for row in rows:
        out[row["kernel"]][row.get("key") or row["reason"]] = row[value]
    return out


# --- what real reports say --------------------------------------------------------------------


FA2, FA3 = ("op_hmma_src_fp16", (600e12, 680e12)), ("op_hgmma_src_fp16", (890e12, 970e12))


@pytest.mark.parametrize(
    ("point", "pairs", "gflop", "ran"),
    [
        ("S4096_B1_H32_K32_D128_f16_fa2_c", 4096 * 4096 / 2, 146.2, FA2),
        ("S4096_B1_H32_K8_D128_f16_auto_c", 4096 * 4096 / 2, 143.9, FA3),
        ("S2048_C8192_B1_H32_K8_D128_f16_fa2_c", 2048 * 8192 + 2048 * 2048 / 2, 320.0, FA2),
    ],
)
def test_tensor_work_and_the_ceiling_of_the_instruction_that_ran(point, pairs, gflop, ran):
    """Of 32 heads of 128, and the masked part of the tiles on the diagonal beyond what the mask leaves."""
    every = [m for m in recorded("prefill").metrics if m["point"] == f"prefill/paged_{point}"]
    rows = {m["key"]: m for m in every}  # the last kernel is ours
    instruction, (least, most) = ran
    work, peak = (rows[f"tensor_flops{what}"] for what in ("", "_peak_per_second"))
    assert work["value"] / 1e9 == pytest.approx(gflop, abs=0.05)
    assert 1.03 < work["value"] / (4 * 32 * 128 * pairs) < 1.07
    assert instruction in work["metric"] and instruction in peak["metric"]
    assert least < peak["value"] < most
    assert rows["dram_peak_bytes_per_second"]["value"] == pytest.approx(4.81e12, rel=0.002)


def test_flops_from_rates_are_those_from_counted_instructions():
    report = recorded("decode", "deep")
    values = by_kernel(report.metrics, "value")[0]
    opcodes = {"FFMA": 17334272, "FADD": 6358016, "FMUL": 3473408}  # warp instructions, same kernel
    counted = 32 * (2 * opcodes["FFMA"] + opcodes["FADD"] + opcodes["FMUL"])
    assert values["fp32_flops"] == pytest.approx(counted, rel=0.02)
    assert values["fp16_adds"] == pytest.approx(2 * 32 * 16809984, rel=0.02)  # all HADD2.F32
    assert values["fp16_flops"] < 0.01 * values["fp32_flops"]


@pytest.mark.parametrize(
    "name", [("prefill",), ("decode",), ("rmsnorm",), ("rope",), ("decode", "deep")], ids="-".join
)
def test_stall_reasons_add_up_to_the_warp_latency(name):
    report = recorded(*name)
    metrics, ratios = by_kernel(report.metrics, "value"), by_kernel(report.stalls, "ratio")
    # short launches differ between the passes that their counters come from
    long = [kernel["kernel"] for kernel in report.kernels if kernel["duration_ns"] >= 50_000]
    assert len(long) >= 2
    for kernel in long:
        latency = metrics[kernel]["warp_latency_per_issue"]
        assert sum(ratios[kernel].values()) == pytest.approx(latency, rel=0.03)


def test_pc_samples_add_up_and_lines_are_relative():
    report = recorded("decode", "deep")
    for kernel in some(report.kernels):
        at = kernel["kernel"]
        by_reason = {s["reason"]: s["samples"] for s in report.stalls if s["kernel"] == at}
        sampled, held, sass = defaultdict(int), defaultdict(int), {}
        for row in some(row for row in report.lines if row["kernel"] == at):
            sampled[row["reason"]] += row["samples"]
            held[row["pc"]] += row["samples"]
            sass[row["pc"]] = row["sass"]
            assert row["samples_not_issued"] <= row["samples"]
        assert dict(sampled) == {r: n for r, n in by_reason.items() if n}
        least = 1e-3 * sum(held.values())  # its SASS is read where an instruction holds samples
        assert all((sass[pc] is not None) == (held[pc] >= least) for pc in held)
    files = {row["file"] for row in report.lines}
    assert any(f and f.startswith("include/flashinfer/") for f in files)
    assert not any(f and (f.startswith("/") or "site-packages" in f) for f in files)
    assert min(row["pc"] for row in report.lines) < 4096
    opcodes = {row["opcode"] for row in report.lines if row["sass"]}
    assert None not in opcodes and {"HADD2.F32", "BAR.SYNC"} <= {
        ".".join(opcode.split(".")[:2]) for opcode in opcodes
    }


def test_points_come_from_ranges():
    report, point = recorded("decode"), "decode/B32_L2048_H32_K32_D128_P16_f16_cc"
    assert point in {k["point"] for k in report.kernels}
    assert report.ncu_version == "2025.3.1"
    assert report.devices == ["NVIDIA H200"]
    rule_texts = "".join(r["message"] for r in report.rules)
    assert "@url" not in rule_texts and "@section" not in rule_texts
    planned = ncu.read(recorded_path("decode", "sweep"), {point}, with_lines=False)
    assert {k["point"] for k in planned.kernels} == {None, point}
    assert any("no NVTX range of the plan" in (k["problems"] or "") for k in planned.kernels)


def test_the_innermost_range_of_the_plan_is_the_point():
    assert ncu._point(["toy/a", "toy/b", "call"], {"toy/a", "toy/b"}) == "toy/b"
    assert ncu._point(["toy/a", "call"], None) == "toy/a"


@pytest.mark.corpus
def test_a_failed_kernel_is_kept_with_nulls():
    report = ncu.read(CORPUS / "esmm_a10g_one_failed_kernel.ncu-rep", with_lines=False)
    *good, failed = report.kernels
    assert all(k["duration_ns"] > 0 and k["problems"] is None for k in good)
    assert failed["duration_ns"] is None and failed["grid"] is None
    assert "profiling of this kernel failed" in failed["problems"]
    values = by_kernel(report.metrics, "value")[failed["kernel"]]
    assert values["duration_ns"] is None and values["sm_throughput_pct"] is None
    assert {key for key, value in values.items() if value is not None} <= {"passes", "sm_count"}
    assert report.ncu_version == "2023.1.1"


@pytest.mark.corpus
def test_nested_ranges_and_old_floats():
    report = ncu.read(CORPUS / "manual_nvtx_rtx3070.ncu-rep", with_lines=False)
    assert report.kernels[0]["nvtx_ranges"] == ["run_test", "init_data"]
    assert {k["point"] for k in report.kernels} == {"run_test"}
    assert all(isinstance(k["registers"], int) for k in report.kernels)
    assert all(s["ratio"] is None and s["samples"] is not None for s in report.stalls)
    shares = [s["share"] for s in report.stalls if s["kernel"] == 0 and s["kind"] == "stall"]
    assert sum(shares) == pytest.approx(1)


@pytest.mark.corpus
def test_a100_reads_its_own_names():
    report = ncu.read(CORPUS / "silu_a100_sxm4_40gb_full.ncu-rep", with_lines=False)
    values = by_kernel(report.metrics, "value")[0]
    assert values["tensor_flops"] == 0 and "tensor_flops_peak_per_second" not in values
    assert values["dram_peak_bytes_per_second"] == pytest.approx(1.555e12, rel=0.001)
    assert values["l1_bytes"] > values["dram_bytes_read"]
    assert [k["compute_capability"] for k in report.kernels] == ["8.0"] * 3
    assert all(k["point"] is None for k in report.kernels)


@pytest.mark.parametrize("path", some_by_default(RECORDED, 7), ids=lambda p: p.parent.parent.name)
def test_recorded_reports_fit_the_schema(path):
    report = ncu.read(path)
    fits_the_schema(report)
    lasted = {m["kernel"]: m["value"] for m in report.metrics if m["key"] == "duration_ns"}
    # the passes of a launch of 1.8 µs may disagree, and the counter is null with its reason beside it
    assert {k["problems"] for k in report.kernels if lasted[k["kernel"]] >= 2000} == {None}


# --- files that are no report -----------------------------------------------------------------

NOT_REPORTS = {
    "empty": (b"", "empty file"),
    "csv": (b'"ID","Kernel Name","Metric"\n"0","k","1"\n', "CSV"),
    "prof": (b"==PROF== Connected to process 1\nhello\n", "CSV output"),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n",
        "git-LFS pointer",
    ),
    "sqlite": (b"SQLite format 3\0" + bytes(100), "SQLite database"),
    "nsys": (b"NVIDIA Tegra Profiler Report 2023@4", "Nsight Systems report"),
    "text": (b"hello\n", "text file"),
    "magic": (b"NVR\0", "truncated"),
    "half magic": (b"NV", "too short"),
    "noise": (bytes(range(256)), "unknown kind"),
    "xz": (b"\xfd7zXZ\0garbage", "xz archive"),
}


@pytest.mark.parametrize("case", NOT_REPORTS)
def test_what_is_no_report_is_named(case, tmp_path):
    data, words = NOT_REPORTS[case]
    with pytest.raises(BadInput) as error:
        read_damaged(tmp_path, data)
    assert words in error.value.what
    assert error.value.path == str(tmp_path / "x.ncu-rep")


def test_missing_file_folder_and_no_kernels(tmp_path):
    with pytest.raises(BadInput, match="no such file"):
        ncu.read(tmp_path / "absent.ncu-rep")
    with pytest.raises(BadInput, match="folder"):
        ncu.read(tmp_path)
    session = next(blocks(smallest()))  # the first block, without results
    with pytest.raises(BadInput, match="no kernels"):
        read_damaged(tmp_path, smallest()[: session.until])


@SLOW
@given(st.data())
def test_a_truncated_report_is_always_noticed(tmp_path, data):
    whole = smallest()
    kept = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(BadInput) as error:
        read_damaged(tmp_path, whole[:kept])
    assert kept < 4 or "truncated" in error.value.what or "no kernels" in error.value.what


@SLOW
@given(st.data())
def test_a_damaged_report_is_noticed_or_read_into_numbers(tmp_path, data):
    damaged = bytearray(smallest())
    for _ in range(data.draw(st.integers(1, 8))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    try:
        report = read_damaged(tmp_path, damaged)
    except BadInput:
        return
    fits_the_schema(report)
    json.dumps([report.kernels, report.metrics, report.stalls], allow_nan=False).encode()


# --- damage that would leave plausible numbers ------------------------------------------------


def read_damaged(folder: Path, data: bytes | bytearray, **how: bool) -> ncu.Report:
    path = folder / "x.ncu-rep"
    path.write_bytes(data)
    return ncu.read(path, **how)


def counter_name(data: bytes, name: bytes) -> int:
    """Where the field that holds a counter's name starts, in the string table."""
    return data.index(b"\n" + bytes([len(name)]) + name)


@pytest.mark.parametrize("change", ["tag", "swallow", "repeat", "control"])
def test_a_string_table_that_shifts_the_names_of_counters_is_refused(change, tmp_path):
    damaged = bytearray(smallest())
    at = counter_name(damaged, b"device__attribute_implementation")
    if change == "tag":
        damaged[at] ^= 1 << 4  # another field: the name drops out of the table
    elif change == "swallow":
        following = damaged[at + 35]
        damaged[at + 1] += following + 2  # the name takes in its neighbour
    elif change == "repeat":
        damaged[counter_name(damaged, b"launch__grid_dim_x") + 19] ^= 1  # now a second …_y
    else:
        damaged[at + 10] = 0x1F
    with pytest.raises(BadInput, match="a damaged Nsight Compute report"):
        read_damaged(tmp_path, damaged)


@pytest.mark.parametrize("results", [0, 5, 100])
def test_a_block_header_must_announce_what_its_payload_holds(results, tmp_path):
    damaged = bytearray(smallest())
    block = next(block for block in blocks(damaged) if block.header.get(reader.RESULTS))
    fields = reader.fields(damaged, block.start, block.end)
    damaged[next(f for f in fields if f.number == reader.RESULTS).value] = results
    with pytest.raises(BadInput, match=f"announces {results} entries and holds 1"):
        read_damaged(tmp_path, damaged)


def test_without_the_reader_s_knowledge_of_the_chip_no_time_is_believed(tmp_path):
    whole = smallest()
    name = b"device__attribute_implementation"
    (kernel,) = read_damaged(tmp_path, whole.replace(name, name[:-1] + b"x")).kernels
    assert kernel["duration_ns"] is None
    assert "no unit (NVIDIA's reader does not know this GPU" in kernel["problems"]
    assert "gpu__time_duration.sum" in read_damaged(tmp_path, whole).metrics[0]["metric"]
    name = b"device__attribute_display_name"
    (kernel,) = read_damaged(tmp_path, whole.replace(name, name[:-1] + b"x")).kernels
    assert kernel["device"] is None and "no device name" in kernel["problems"]


def test_the_reader_works_from_a_folder_whose_name_is_not_ascii(tmp_path):
    import ncu_report

    place = tmp_path / "jürgen" / "ncu_report"
    place.parent.mkdir()
    place.symlink_to(Path(ncu_report.__file__).parent)
    (tmp_path / "x.ncu-rep").write_bytes(smallest())
    asked = (
        "import ncu_report; from ncuflow.parsers import ncu; print(ncu_report.__file__);"
        f"print(ncu.read({str(tmp_path / 'x.ncu-rep')!r}).kernels[0]['duration_ns'])"
    )
    # And the library of counters is loaded once for all children.
    asked += "; print('libnvperf_host' in open('/proc/self/maps').read())"
    environment = os.environ | {"PYTHONPATH": str(place.parent)}
    command = [sys.executable, "-c", asked]
    said = subprocess.check_output(command, cwd=ROOT, env=environment, text=True).split()
    assert said[0] == str(place / "__init__.py") and said[2] == "True"
    assert float(said[1]) == ncu.read(tmp_path / "x.ncu-rep").kernels[0]["duration_ns"]


THROUGHPUT = "sm__throughput.avg.pct_of_peak_sustained_elapsed"


@pytest.mark.parametrize(
    ("name", "value", "unit", "why"),
    [
        ("gpu__time_duration.sum", 84480.0, "", "no unit"),
        ("gpu__time_duration.sum", 84480.0, "byte", "a unit other than s"),
        ("gpu__time_duration.sum", 0.0, "ns", "no time of 0 to 3600 s"),
        ("gpu__time_duration.sum", 84480.0, "s", "no time of 0 to 3600 s"),
        ("dram__bytes_read.sum", 5.0, "", "no unit"),
        ("lts__t_sectors.sum", 5.0, "byte", "a unit other than sector"),
        (THROUGHPUT, 111.0, "%", "more than 110 %"),
        *(("x", value, "byte", "no usable number") for value in (math.nan, math.inf, -math.inf, -0.5)),
    ],
)  # fmt: skip
def test_a_value_that_its_name_rules_out_is_null_with_a_problem(name, value, unit, why):
    kernel = ncu.Profiled(fake_action(**{name: fake_metric(value, unit)}), 0)
    for _ in range(2):
        with pytest.raises(registry.NotANumber):
            kernel.counter(name)
    assert kernel.invalid[name].startswith(why) and set(kernel.invalid) == {name}


@pytest.mark.parametrize(("text", "device"), [("NVIDIA H200", "NVIDIA H200"), ("132", None)])
def test_a_display_name_that_is_a_number_is_none(text, device):
    action = fake_action(device__attribute_display_name=fake_metric(text))
    action.NameBase_DEMANGLED, action.name = 2, lambda base=0: "k"
    assert ncu._identity(ncu.Profiled(action, 0), [])["device"] == device


def test_a_derived_value_beyond_all_numbers_is_null_with_a_problem():
    """Both counters are plausible; their product is not."""
    both = {
        "dram__bytes.sum.peak_sustained": fake_metric(1e5, "byte/cycle"),
        "dram__cycles_elapsed.avg.per_second": fake_metric(1e11, "hz"),
    }
    kernel = ncu.Profiled(fake_action(**both), 0)
    (peak,) = (m for m in ncu._metrics(kernel) if m["key"] == "dram_peak_bytes_per_second")
    assert peak["value"] is None
    assert kernel.invalid[peak["metric"]] == "more than 1e+15 byte/s"


def of_chip(capability, **metrics):
    """A kernel that ran on a GPU of a compute capability."""
    for part, number in zip(("major", "minor"), capability.split("."), strict=True):
        metrics[f"device__attribute_compute_capability_{part}"] = fake_metric(int(number))
    return ncu.Profiled(fake_action(**metrics), 0)


def stall_shares(capability, reasons, *others):
    metrics = {STALL_REASONS[r].ratio: fake_metric(1.0, "cycle") for r in reasons}
    metrics |= {name: fake_metric(1.0, "cycle") for name in others}
    rows = stalls_of(of_chip(capability, **metrics))
    return {row["reason"]: row["share"] for row in rows}


NAMED = [reason for reason in STALL_REASONS if reason != OTHER]


# A chip of which nothing is known may lack what Blackwell does.
LACKS = dict.fromkeys(("7.5", "8.0", "8.6", "8.9"), ("gmma",)) | dict.fromkeys(
    ("10.0", "10.3", "11.0", "12.0", "12.1", "13.0"), ("gmma", "imc_miss")
)


@pytest.mark.parametrize(("capability", "lacks"), [("9.0", ()), *LACKS.items()])
def test_shares_need_every_reason_of_the_chip(capability, lacks):
    """Where only `wait` was collected, it is not "wait 100 %"."""
    its = [reason for reason in NAMED if reason not in lacks]
    assert stall_shares(capability, its)["wait"] == pytest.approx(1 / (17 - len(lacks)))
    assert stall_shares(capability, ["wait"]) == {"wait": None}
    assert set(stall_shares(capability, its[1:]).values()) == {None}
    assert not lacks or set(stall_shares("9.0", its).values()) == {None}


@pytest.mark.parametrize("capability", ["9.0", "10.0", "13.0"])
def test_a_reason_without_a_name_is_other_with_its_share(capability):
    its = [reason for reason in NAMED if STALL_REASONS[reason].on(chip_of(capability))]
    stalls = sum(STALL_REASONS[reason].kind == "stall" for reason in its)
    part = RATIO.format("long_scoreboard_pipe_l1tex")
    assert stall_shares(capability, its, part)["wait"] == pytest.approx(1 / stalls)
    assert OTHER not in stall_shares(capability, its, part)
    shares = stall_shares(capability, its, RATIO.format("tensor_memory"), RATIO.format("tile"))
    assert shares["wait"] == pytest.approx(1 / (stalls + 2))
    assert shares[OTHER] == pytest.approx(2 / (stalls + 2))
    assert sum(share for share in shares.values() if share) == pytest.approx(1)


LATENCY = "smsp__average_warp_latency_per_inst_issued.ratio"


def with_latency(latency, without=(), **more):
    """Rows of the reasons of a GA102, 1 cycle each but of those without, and the warp latency, as ncu 2020.2 has them."""
    its = [r for r in NAMED if STALL_REASONS[r].on("ga102") and r not in without]
    metrics = {STALL_REASONS[r].ratio: fake_metric(1.0, "cycle") for r in its}
    metrics |= {LATENCY: fake_metric(latency, "cycle"), **more}
    return len(its), {row["reason"]: row for row in stalls_of(of_chip("8.6", **metrics))}


@pytest.mark.parametrize(
    ("part", "kept"), [(0.96, True), (0.99, True), (0.94, False), (1.06, False), (1.01, None)]
)
def test_what_a_missing_reason_can_be_at_most_is_other(part, kept):
    """All but `branch_resolving` sum to nearly all of the warp latency: the rest is no more than it was. More than a little
    leaves no shares; ratios above the latency, of two passes that were hardly alike, leave no rest."""
    count = with_latency(1.0)[0] - 1
    _, rows = with_latency(count / part, ["branch_resolving"])
    assert (OTHER in rows) == bool(kept) and "branch_resolving" not in rows
    if not kept:
        assert (rows["wait"]["share"] is None) == (kept is False)
        return
    rest = count / part - count
    assert rows[OTHER]["ratio"] == pytest.approx(rest)
    shares = {reason: row["share"] for reason, row in rows.items() if row["kind"] == "stall"}
    assert shares["wait"] == pytest.approx(1 / (len(shares) - 1 + rest))
    assert shares[OTHER] == pytest.approx(rest * shares["wait"])
    assert sum(shares.values()) == pytest.approx(1)
    sampled = {SAMPLES.format("branch_resolving"): fake_metric(7)}
    _, rows = with_latency(count / part, ["branch_resolving"], **sampled)
    assert rows["branch_resolving"]["share"] is None and rows["wait"]["share"] > 0


def test_a_reason_that_is_no_number_leaves_no_shares():
    count = with_latency(1.0)[0] - 1
    nan = {STALL_REASONS["wait"].ratio: fake_metric(math.nan, "cycle")}
    _, rows = with_latency(count / 0.99, **nan)
    assert {row["share"] for row in rows.values()} == {None}
    metrics = {STALL_REASONS[reason].ratio: fake_metric(1.0, "cycle") for reason in NAMED}
    metrics[RATIO.format("tensor_memory")] = fake_metric(math.nan, "cycle")
    unnamed = stalls_of(of_chip("9.0", **metrics))
    assert unnamed[-1]["reason"] == OTHER and unnamed[-1]["ratio"] is None
    assert {row["share"] for row in unnamed} == {None}


def test_where_every_reason_is_counted_nothing_is_added():
    count, rows = with_latency(20.0)
    assert len(rows) == count and OTHER not in rows and rows["wait"]["share"] > 0


def test_samples_of_a_reason_without_a_name_are_other():
    metrics = {STALL_REASONS[reason].samples: fake_metric(10) for reason in NAMED}
    tile, rows = SAMPLES.format("tile_allocation_stall"), {}
    metrics |= {tile: fake_metric(30), f"{tile}_not_issued": fake_metric(20)}
    for row in stalls_of(of_chip("9.0", **metrics)):
        rows[row["reason"]] = row
    assert rows[OTHER]["samples"] == 30 and rows[OTHER]["samples_not_issued"] == 20
    assert rows[OTHER]["share"] == pytest.approx(30 / 200) and rows[OTHER]["ratio"] is None


OPS = "sm__ops_path_tensor_op_{}_sparsity_off.sum"
HMMA, HGMMA = OPS.format("hmma_src_fp16_dst_fp32"), OPS.format("hgmma_src_fp16")
FP4, INT8 = OPS.format("utcomma_src_fp4_dst_fp32"), OPS.format("utcimma_src_int8")
NEW = OPS.format("utcnmma_src_fp2_dst_fp32")


def tensor_work(capability, **counts):
    """What is read of a kernel's tensor operations; every count has a peak of 10 a second."""
    metrics = {name: fake_metric(count) for name, count in counts.items()}
    metrics |= {name + PEAK: fake_metric(10.0) for name in counts}
    rows = {m["key"]: m["value"] for m in ncu._metrics(of_chip(capability, **metrics))}
    return {key: value for key, value in rows.items() if key.startswith("tensor_")}


@pytest.mark.parametrize("capability", ["10.0", "12.0"])
def test_tensor_work_that_no_source_names_is_not_zero(capability):
    idle = {HMMA: 0.0, OPS.format("imma_src_int8"): 0.0}
    assert tensor_work(capability, **idle) == {}
    assert tensor_work(capability, **idle, **{NEW: 30e9}) == {}
    mixed = {HMMA: 5e9, OPS.format("imma_src_int8"): 7e9}
    assert tensor_work(capability, **mixed, **{NEW: 30e9}) == {
        "tensor_int_ops": 7e9, "tensor_int_ops_peak_per_second": 10.0,
    }  # fmt: skip
    assert tensor_work(capability, **mixed, **{OPS.format("utcnmma_src_int2"): 1.0}) == {
        "tensor_flops": 5e9, "tensor_flops_peak_per_second": 10.0,
    }  # fmt: skip
    assert len(tensor_work(capability, **mixed, **{NEW: 0.0})) == 4


@pytest.mark.parametrize(
    ("capability", "work", "integer"),
    [
        ("10.0", FP4, INT8),
        ("10.3", OPS.format("utcqmma_src_fp8_dst_fp32"), OPS.format("imma_src_int8")),
        ("11.0", OPS.format("utchmma_src_fp16_dst_fp16"), INT8),
        ("12.0", "sm__ops_path_tensor_src_fp4_dst_fp32_sparsity_on.sum", OPS.format("imma_src_int8")),
        ("8.9", "sm__ops_path_tensor_src_fp8_sparsity_off.sum", "sm__ops_path_tensor_src_int8_sparsity_off.sum"),
        ("7.5", "sm__ops_path_tensor_src_fp16_dst_fp16.sum", "sm__ops_path_tensor_src_int8.sum"),
    ],
)  # fmt: skip
def test_tensor_work_is_read_by_the_names_of_the_chip(capability, work, integer):
    assert tensor_work(capability, **{work: 30064771072.0, integer: 4.0}) == {
        "tensor_flops": 30064771072.0, "tensor_flops_peak_per_second": 10.0,
        "tensor_int_ops": 4.0, "tensor_int_ops_peak_per_second": 10.0,
    }  # fmt: skip
    assert tensor_work("8.0", **{work: 30064771072.0}) == {}
    assert tensor_work("13.0", **{work: 30064771072.0, integer: 4.0}) == {}


def test_tensor_work_is_zero_where_every_counter_of_the_chip_says_so():
    for chip, (_, capabilities) in CHIPS.items():
        capability, (source,) = capabilities[0], METRICS["tensor_flops"].candidates(chip)
        every = dict.fromkeys(source.names, 0.0)
        assert tensor_work(capability, **every) == {"tensor_flops": 0.0}
        assert tensor_work(capability, **every | {source.names[0]: 3.0})["tensor_flops"] == 3.0
        assert tensor_work(capability, **dict.fromkeys(source.names[:-1], 0.0)) == {}
    assert tensor_work("9.0", **{HMMA: 0.0}) == {}  # HGMMA may have run
    assert tensor_work("9.0", **{HMMA: 0.0, HGMMA: 4.0})["tensor_flops"] == 4.0


@pytest.mark.parametrize("capability", ["13.0", "12.0", "9.0", "8.7"])
@pytest.mark.parametrize("name", ["dram__bytes_read.sum", "dram__bytes_op_read.sum"])
def test_a_counter_that_the_file_has_is_read_whatever_the_chip(capability, name):
    (row,) = ncu._metrics(of_chip(capability, **{name: fake_metric(5.0, "byte")}))
    assert (row["key"], row["metric"], row["value"]) == ("dram_bytes_read", name, 5.0)


PIPE = "sm__pipe_tensor_cycles_active{}.avg.pct_of_peak_sustained_active"
LSU = "l1tex__data_pipe_lsu_wavefronts.sum"


@pytest.mark.parametrize(
    ("capability", "metrics", "values"),
    [
        # The names of other chips come after those of its own.
        ("12.0", {"dram__bytes_read.sum": (5.0, "byte"), "dram__bytes_op_read.sum": (6.0, "byte")}, [6.0]),
        ("9.0", {"dram__bytes_read.sum": (5.0, "byte"), "dram__bytes_op_read.sum": (6.0, "byte")}, [5.0]),
        # Of chips whose tensor cores read a memory of their own, this is a part.
        ("10.0", {LSU: (2.0,)}, []),
        ("9.0", {LSU: (2.0,)}, [256.0]),
        # Ada's is half of what its tensor pipe did.
        ("8.9", {PIPE.format(""): (40.0, "%")}, []),
        ("8.9", {PIPE.format("_v2"): (80.0, "%")}, [80.0]),
        ("10.0", {PIPE.format(""): (80.0, "%")}, [80.0]),
        ("8.6", {PIPE.format(""): (80.0, "%")}, [80.0]),
    ],
)  # fmt: skip
def test_a_counter_counts_by_what_it_is_of_the_chip(capability, metrics, values):
    given = {name: fake_metric(*value) for name, value in metrics.items()}
    assert [row["value"] for row in ncu._metrics(of_chip(capability, **given))] == values


# What GH100 counts of its own, and how GB100 calls the same of its instructions; the other names are of both.
GB100 = {
    "op_hgmma_src_fp16_sparsity": "op_utchmma_src_fp16_dst_fp32_sparsity",
    "op_hgmma_src_bf16": "op_utchmma_src_bf16",
    "op_hgmma_src_tf32": "op_utchmma_src_tf32",
    "op_igmma_src_int8": "op_utcimma_src_int8",
    "tensor_src_fp8_sparsity": "tensor_op_utcqmma_src_fp4_fp6_fp8_dst_fp32_sparsity",
    "stalled_gmma_": "without_gmma_",
    "stalled_imc_miss_": "without_imc_miss_",
}


def made_of(tmp_path, names, major):
    """The last kernel of warpgroup_mma(), its metrics by key and its stalls by reason, as a chip of other names has it."""
    whole = warpgroup_mma()
    own = {name for name in names_of(whole) if any(old in name for old in names)}
    renamed = {}
    for name in own:
        new = name
        for old, other in names.items():
            new = new.replace(old, other)
        renamed[name.encode()] = new.encode()
    report = read_damaged(tmp_path, of_another_chip(whole, renamed, major), with_lines=False)
    last = report.kernels[-1]
    found = {m["key"]: m["value"] for m in report.metrics if m["kernel"] == last["kernel"]}
    stalls = {s["reason"]: s for s in report.stalls if s["kernel"] == last["kernel"]}
    return report, last, found, stalls


def names_of(data):
    for block in blocks(data):
        for table in reader.descend(data, block.start, block.end, reader.STRING_TABLE):
            fields = reader.fields(data, table.value, table.end)
            yield from (data[field.value : field.end].decode() for field in fields)


def as_recorded():
    first = next(m["kernel"] for m in recorded("prefill").metrics if "_hgmma_" in m["metric"])
    return {m["key"]: m["value"] for m in recorded("prefill").metrics if m["kernel"] == first}


def test_a_report_of_blackwell_says_what_one_of_hopper_does(tmp_path):
    report, kernel, found, stalls = made_of(tmp_path, GB100, 10)
    assert kernel["compute_capability"] == "10.0" and kernel["problems"] is None
    assert report.problems == []
    before = as_recorded()
    assert before["tensor_flops"] > 1e9 and before["tensor_flops_peak_per_second"] > 8e14
    assert found == {key: value for key, value in before.items() if key != "l1_bytes"}
    assert not {"gmma", "imc_miss"} & {*stalls} and stalls["long_scoreboard"]["share"] > 0
    shares = [stall["share"] for stall in stalls.values() if stall["kind"] == "stall"]
    assert sum(shares) == pytest.approx(1)


def test_the_samples_of_a_reason_without_a_name_are_other_at_each_instruction(tmp_path):
    whole = first_kernels(lzma.decompress(recorded_path("rmsnorm", "deep").read_bytes()), 1)
    old, new = SAMPLES.format("wait").encode(), SAMPLES.format("tensor_memory").encode()
    names = {old + end: new + end for end in (b"", b"_not_issued")}
    found = [read_damaged(tmp_path, data) for data in (whole, of_another_chip(whole, names, 10))]
    before, after = ([line | {"sass": None, "opcode": None} for line in r.lines] for r in found)
    waits = [line for line in before if line["reason"] == "wait"]
    assert waits and waits == [
        line | {"reason": "wait"} for line in after if line["reason"] == OTHER
    ]
    (wait,) = (stall for stall in found[0].stalls if stall["reason"] == "wait")
    (other,) = (stall for stall in found[1].stalls if stall["reason"] == OTHER)
    for column in ("samples", "samples_not_issued"):
        assert other[column] == wait[column] > 0


def test_without_the_counters_of_blackwell_there_are_no_flops_and_it_is_said(tmp_path):
    lost = {old: f"lost_{old}" for old in GB100 if "src_" in old}
    _, kernel, found, _ = made_of(tmp_path, GB100 | lost, 10)
    assert "tensor_flops" not in found and "tensor_flops_peak_per_second" not in found
    assert found["tensor_pipe_pct"] > 1
    assert "tensor operations are not counted" in kernel["problems"]
    assert "$(ncuflow static counters gb100)" in kernel["problems"]


@pytest.mark.parametrize(
    ("busy", "flops", "integer", "said"),
    [(80.0, 0.0, None, 1), (80.0, 0.0, 7.0, 0), (80.0, 5.0, None, 0), (1.7, 0.0, None, 0), (1.7, None, None, 1)],
)  # fmt: skip
def test_a_tensor_pipe_that_works_without_flops_has_operations_that_nobody_counted(
    busy, flops, integer, said
):
    values = {"tensor_pipe_pct": busy, "tensor_flops": flops, "tensor_int_ops": integer}
    rows = [{"key": key, "value": value} for key, value in values.items() if value is not None]
    row = {"duration_ns": 1.0, "device": "GPU"}
    assert (
        len([*ncu.problems_of(SimpleNamespace(chip="gh100", invalid={}), row, rows, None)]) == said
    )


def test_a_report_of_a_chip_that_is_not_known_says_so(tmp_path, capsys):
    report, kernel, found, stalls = made_of(tmp_path, {}, 13)
    (said,) = report.problems
    assert "a chip of compute capability 13.0" in said and "--query-metrics --chips" in said
    before = as_recorded()
    assert found == {key: before[key] for key in before if not key.startswith("tensor_flops")
                     and not key.startswith("tensor_int")}  # fmt: skip
    assert stalls["gmma"]["share"] > 0
    assert kernel["problems"] == "tensor operations are not counted, or not all"
    dispatch(["show", str(tmp_path / "x.ncu-rep")])
    assert f"! {said}" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("smsp__warps_active.avg.per_cycle_active", 16),
        ("smsp__warps_eligible.avg.per_cycle_active", 16),
        ("smsp__issue_active.avg.per_cycle_active", 1),
        ("smsp__thread_inst_executed_per_inst_executed.ratio", 32),
    ],
)
def test_a_value_above_what_a_gpu_has_is_null_with_a_problem(name, most):
    for value, known in ((most, True), (1.09 * most, True), (1.2 * most, False)):
        kernel = ncu.Profiled(fake_action(**{name: fake_metric(value)}), 0)
        (row,) = ncu._metrics(kernel)
        assert row["value"] == (value if known else None)
        assert kernel.invalid.get(name, f"more than {most} ").startswith(f"more than {most} ")
        assert (name in kernel.invalid) is not known


HOSTILE = "\x1b\u202e\u2066"  # 7 bytes


@pytest.mark.parametrize("form", ["table", "json", "csv"])
def test_whatever_text_a_report_holds_a_terminal_may_show_it(form, tmp_path, capsys):
    whole = smallest()
    name = b"kernel_cutlass_kernel_flashinfer"
    assert name in whole and b"NVIDIA H200" in whole and b"rmsnorm/rmsnorm" in whole
    for text in (name, b"NVIDIA H200", b"rmsnorm/rmsnorm"):
        whole = whole.replace(text, HOSTILE.encode() + text[7:])
    path = tmp_path / f"{HOSTILE}.ncu-rep"
    path.write_bytes(whole)
    (kernel,) = ncu.read(path).kernels
    assert kernel["device"] == "???H200" and kernel["name"].startswith("???cutlass")
    assert kernel["nvtx"].startswith("???/rmsnorm")
    dispatch(["show", str(path), "--format", form])
    printed = "".join(capsys.readouterr())
    assert "???cutlass_kernel" in printed
    assert printed.replace("\n", "").isprintable()


def test_a_file_name_that_is_no_utf_8_is_read(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/r\xe9sum\xe9.ncu-rep"))
    path.write_bytes(smallest())
    report = ncu.read(path)
    assert report.file == f"{tmp_path}/r\ufffdsum\ufffd.ncu-rep" and report.kernels
    done = show(path)
    assert (done.returncode, done.stderr) == (0, "")


# --- counters: the silences of the reader -----------------------------------------------------


def fake_metric(value, unit="", has_value=True):
    of = {"value": value, "unit": unit, "has_value": has_value, "kind": 0}
    return SimpleNamespace(**{name: partial(lambda one: one, one) for name, one in of.items()})


def fake_action(**metrics):
    return SimpleNamespace(metric_by_name=metrics.get, metric_names=lambda: tuple(metrics))


def test_a_false_zero_is_absent():
    kernel = ncu.Profiled(fake_action(x=fake_metric(0.0, has_value=False)), 0)
    assert kernel.counter("x") is None
    assert ncu.Profiled(fake_action(x=fake_metric(0.0)), 0).counter("x") == (0.0, 0)


def test_units_of_a_report_are_normalised():
    metrics = {
        "gpu__time_duration.sum": fake_metric(2.5, "usecond"),
        "dram__bytes_read.sum": fake_metric(1.5, "Gbyte"),
        "sm__cycles_elapsed.avg.per_second": fake_metric(1.7, "cycle/nsecond"),
    }
    rows = {m["key"]: m["value"] for m in ncu._metrics(ncu.Profiled(fake_action(**metrics), 0))}
    assert rows == {"duration_ns": 2500.0, "dram_bytes_read": 1.5e9, "sm_clock_hz": 1.7e9}


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("see @section:LaunchStats:Launch Statistics@.", "see Launch Statistics."),
        ("the @url:fused:https://docs.nvidia.com/x/#y@ one", "the fused one"),
        ("at @sass:Line 12:0x1454@ and 5 @ 3", "at Line 12 (0x1454) and 5 @ 3"),
        ("@source:decode.cuh:0x7f1454a0@ waits", "decode.cuh (0x7f1454a0) waits"),
    ],
)
def test_rule_markup_is_stripped(text, plain):
    assert ncu.plain_text(text) == plain


@pytest.mark.parametrize(
    ("name", "relative"),
    [
        ("/r/v/site-packages/flashinfer/data/include/flashinfer/attention/decode.cuh",
         "include/flashinfer/attention/decode.cuh"),
        ("/home/u/.cache/flashinfer/0.6/gen/norm/norm.cu", "flashinfer/0.6/gen/norm/norm.cu"),
        ("/usr/local/cuda-13.0/include/cuda_fp16.hpp", "include/cuda_fp16.hpp"),
        (r"C:\Users\me\kernel.cu", "me/kernel.cu"),
        ("kernel.cu", "kernel.cu"),
        ("", None),
    ],
)  # fmt: skip
def test_source_files_lose_the_machine(name, relative):
    assert lines.relative(name) == relative


def test_texts_of_an_instruction_may_be_shown():
    action = fake_action()
    action.name = lambda: "k\u202e"
    place = lines._columns(action, ("LDG.E R2, [R4]\x1b", "a\u2066.cu", 3), shown=True)
    assert (place["sass"], place["opcode"]) == ("LDG.E R2, [R4]?", "LDG.E")
    assert (place["file"], place["function"]) == ("a?.cu", "k?")


# --- the command ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def report_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("ncu") / "a report (1).ncu-rep"
    path.write_bytes(smallest())
    return path


def test_json_is_strict_and_complete(report_file):
    done = show(report_file, "--format", "json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout, parse_constant=lambda name: pytest.fail(name))
    assert document["report"]["kernels"] == len(document["kernels"]) == 1
    kernel = document["kernels"][0]
    assert kernel["metrics"]["duration_ns"] == kernel["duration_ns"] > 0
    assert set(kernel["throughput"]) == {"sm", "memory", "dram", "l2", "l1"}
    assert kernel["stalls"] and kernel["problems"] == []
    told = shlex.quote(
        f"{report_file}#0"
    )  # which `ncuflow trace` takes, and nothing else has the folder
    assert kernel.pop("trace") == told and str(report_file.parent) not in json.dumps(document)


def test_a_table_fits_a_terminal_and_names_the_top_stall_and_csv_has_a_row_a_kernel(
    report_file, tmp_path
):
    table = show(report_file).stdout
    assert max(map(len, table.splitlines())) <= 100 and "top stall" in table
    out = tmp_path / "out.csv"
    done = show(report_file, "--format", "csv", "--out", out)
    assert (done.returncode, done.stdout) == (0, "")
    assert len(out.read_text().splitlines()) == 2


def test_bad_input_is_one_line_and_exit_2(tmp_path):
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(b"")
    out = tmp_path / "out.json"
    done = show(path, "--format", "json", "--out", out)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith(f"error: {path}: ") and done.stderr.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.ncu-rep"]


def test_the_reader_package_does_not_write_over_our_line(tmp_path, capfd):
    damaged = bytearray(smallest())
    damaged[-4000:-2000] = b"\xff" * 2000
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(damaged)
    done = show(path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    with ncu.silenced():
        os.write(2, b"E0000 message_lite.cc: Can't parse message")
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"


def test_kernels_that_the_reader_leaves_out_are_noticed(report_file, monkeypatch):
    framing = reader.Container(results=2, ncu_version=None)
    monkeypatch.setattr(reader, "check", lambda *_: framing)
    with pytest.raises(BadInput, match="1 of 2 kernels"):
        ncu.read(report_file)


# --- what no GPU can have ----------------------------------------------------------------------

LAUNCHED = {
    f"launch__{of}_dim_{axis}": fake_metric(2.0) for of in ("grid", "block") for axis in "xyz"
}


@pytest.mark.parametrize(
    ("name", "value", "lost", "said"),
    [
        ("sm__cycles_elapsed.avg.per_second", fake_metric(1e300, "hz"), "sm_clock_hz", "more than 1e+10 hz"),
        ("launch__registers_per_thread", fake_metric(16_000), "registers", "more than 255"),
        ("launch__grid_dim_x", fake_metric(2**40), "grid", "more than 2147483647"),
        ("launch__block_dim_z", fake_metric(65), "block", "more than 64"),
        ("launch__grid_size", fake_metric(1e60), None, "more than"),
        ("launch__stream_id", fake_metric(1e30), "stream", "more than"),
        ("launch__shared_mem_per_block_dynamic", fake_metric(-8, "byte"), "smem_dynamic_bytes", "no usable number"),
    ],
)  # fmt: skip
def test_what_no_gpu_can_have_is_a_problem_and_no_number(name, value, lost, said):
    row, metrics = added(**LAUNCHED | {name: value})
    assert said in row["problems"] and name in row["problems"]
    found = row | metrics
    assert lost is None or found[lost] is None
    build("kernels", [{"report": "r", "batch": "b", **row}])


def kernel_of(**metrics):
    """A kernel of an action that has nothing beside these metrics."""
    action = fake_action(**metrics)
    action.NameBase_DEMANGLED, action.name, action.nvtx_state = 2, lambda base=0: "k", lambda: None
    action.rule_results_as_dicts = list
    return ncu.Profiled(action, 0)


def added(**metrics):
    """The row of such a kernel in a report, and its metrics by key."""
    report = ncu.Report("x")
    ncu.add_kernel(report, kernel_of(**metrics), ncu.Request("x", with_lines=False), None)
    (row,) = report.kernels
    return row, {metric["key"]: metric["value"] for metric in report.metrics}


@pytest.mark.parametrize(("ns", "said"), [(1e3, False), (2e3, False), (1e6, True), (1.0, True)])
def test_time_clock_and_cycles_that_cannot_all_be_right_are_named(ns, said):
    metrics = {
        "gpu__time_duration.sum": fake_metric(ns, "ns"),
        "sm__cycles_elapsed.avg.per_second": fake_metric(1.5e9, "hz"),
        "gpc__cycles_elapsed.max": fake_metric(1500.0, "cycle"),
    }
    row, _ = added(**metrics)
    assert row["duration_ns"] == ns
    assert ("one of the three is wrong" in row["problems"]) == said


def test_a_kernel_has_failed_where_its_time_is_no_number_and_not_where_nobody_asked_for_it():
    failed, _ = added(**{"gpu__time_duration.sum": fake_metric(math.nan, "ns")})
    assert failed["problems"].startswith(ncu.FAILED)
    assert added()[0]["problems"].startswith("no duration")


def test_the_blocks_of_a_grid_are_known_by_its_shape_and_where_there_is_none_by_their_count():
    alone = {"launch__grid_size": fake_metric(64.0)}
    shaped, counted = (ncu._launch(kernel_of(**metrics)) for metrics in (LAUNCHED, alone))
    assert (shaped["grid"], shaped["grid_size"]) == ("2,2,2", 8)
    assert (counted["grid"], counted["grid_size"]) == (None, 64)


def test_an_instruction_that_the_reader_does_not_know_is_none():
    for text, expected in (("???", ""), (" FFMA R1, R2 ", "FFMA R1, R2"), (None, "")):
        action = SimpleNamespace(sass_by_pc=lambda pc, text=text: text)
        assert lines.disassembled(action, 0) == expected
