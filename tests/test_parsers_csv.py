"""What `ncu --csv` prints: raw and details pages, with all that stands around them."""

from __future__ import annotations

import collections
import functools
import lzma
import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncuflow.cli import dispatch
from ncuflow.io import BadInput, opened
from ncuflow.parquet import build
from ncuflow.parsers import chips, ncu, ncu_text, reader, registry
from ncuflow.parsers.registry import METRICS, counters

(RECORDED,) = (Path(__file__).parents[1] / "recordings/h200/0.7.2/versions/rmsnorm").glob(
    "b*/sweep.ncu-rep.xz"
)
HEAD = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
        "Block Size", "Grid Size", "Device", "CC"]  # fmt: skip
LAUNCH = ["0", "77", "python", "127.0.0.1", "void ns::Norm<8, float>(const float *, int)", "1", "7",
          "(32, 8, 1)", "(128, 1, 1)", "0", "9.0"]  # fmt: skip
DETAILS = [*HEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name",
           "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup"]  # fmt: skip
TIME = "gpu__time_duration.sum"
NOISE = '==PROF== Connected to process 77 (/usr/bin/python)\nloss 0.25, 3 rows\n"quoted" output\n'


def line(*cells: str) -> str:
    return ",".join(f'"{cell}"' for cell in cells) + "\n"


def details(*metrics: tuple[str, str, str], section: str = "S") -> str:
    rows = (line(*LAUNCH, section, *metric, "", "", "", "", "") for metric in metrics)
    return NOISE + line(*DETAILS) + "".join(rows)


def raw(*metrics: tuple[str, str, str]) -> str:
    return (
        NOISE
        + line(*HEAD, *(name for name, _, _ in metrics))
        + line(*[""] * len(HEAD), *(unit for _, unit, _ in metrics))
        + line(*LAUNCH, *(value for _, _, value in metrics))
        + "==PROF== Disconnected\n"
    )


def exported(folder: Path, text: str | bytes) -> ncu.Report:
    path = folder / "x.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return ncu_text.read(path)


def read(folder: Path, text: str) -> tuple[dict, dict[str, float | None]]:
    """The one kernel of an export, and its metrics by registry key."""
    report = exported(folder, text)
    (kernel,) = report.kernels
    return kernel, {row["key"]: row["value"] for row in report.metrics}


def test_the_raw_page(tmp_path):
    page = raw(
        (TIME, "us", "1,234.56"),
        ("dram__bytes_read.sum", "Mbyte", "4.25"),
        ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "37.5"),
        ("launch__registers_per_thread", "register/thread", "40"),
        ("device__attribute_display_name", "", "NVIDIA H200"),
        ("l2_cache", "", "n/a"),
    )
    kernel, metrics = read(tmp_path, page)
    assert kernel.items() >= {
        "name": "Norm", "demangled": LAUNCH[4], "grid": "128,1,1", "block": "32,8,1", "grid_size": 128, "block_size": 256,
        "stream": 7, "device": "NVIDIA H200", "compute_capability": "9.0", "duration_ns": 1_234_560.0, "registers": 40,
        "problems": None,
    }.items()  # fmt: skip
    assert (metrics["dram_bytes_read"], metrics["sm_throughput_pct"]) == (4_250_000, 37.5)


def test_the_details_page_by_label_and_by_name(tmp_path):
    """Two metrics are called Memory Throughput: the unit tells them apart."""
    by_label = details(
        ("Duration", "usecond", "84.48"),
        ("Memory Throughput", "%", "88.1"),
        ("Memory Throughput", "Tbyte/second", "4.1"),
        ("SM Frequency", "cycle/nsecond", "1.98"),
        ("Dynamic Shared Memory Per Block", "Kbyte/block", "16.38"),
        ("", "", ""),
    )
    kernel, metrics = read(tmp_path, by_label)
    assert kernel["duration_ns"] == 84_480.0
    assert metrics["memory_throughput_pct"] == 88.1
    assert metrics["sm_clock_hz"] == pytest.approx(1.98e9)
    assert metrics["smem_dynamic"] == pytest.approx(16_380)
    _, named = read(tmp_path, details((TIME, "ns", "84,480")))
    assert named["duration_ns"] == 84_480.0


WIDE = (TIME, "sm__throughput.avg.pct_of_peak_sustained_elapsed", "launch__registers_per_thread")
UNITS = ("us", "%", "register/thread")
GUI = ("ID", "Kernel Name", "Device Name")
FIRST = ("0", "void k<int, 2>(int)", "NVIDIA A40", "1,012.50", "37.5", "40")
SECOND = ("1", "other", "NVIDIA A40", "11.25", "3.5", "16")
EXPORTS = {
    "units below": line(*GUI, *WIDE) + line("", "", "", *UNITS),
    "units in brackets": line(*GUI, *(f"{n} [{u}]" for n, u in zip(WIDE, UNITS, strict=True))),
    "units in parentheses": line(*GUI, *(f"{n} ({u})" for n, u in zip(WIDE, UNITS, strict=True))),
}  # fmt: skip


@pytest.mark.parametrize("head", EXPORTS.values(), ids=EXPORTS)
def test_the_raw_page_that_the_gui_exports_is_read_like_ncus_own(tmp_path, head, capsys):
    report = exported(tmp_path, head + line(*FIRST) + line(*SECOND))
    assert [kernel["duration_ns"] for kernel in report.kernels] == [1_012_500.0, 11_250.0]
    assert [kernel["registers"] for kernel in report.kernels] == [40, 16]
    assert [m["value"] for m in report.metrics if m["key"] == "sm_throughput_pct"] == [37.5, 3.5]
    assert [kernel["problems"] for kernel in report.kernels] == [None, None]
    assert (report.problems, report.devices) == ([chips.unknown(None)], ["NVIDIA A40"])
    dispatch(["show", str(tmp_path / "x.csv")])
    assert capsys.readouterr().out.startswith("x.csv: NVIDIA A40, 2 kernels\n")


@pytest.mark.parametrize("between", [",", ";", "\t", '";"', '"\t"'])
def test_an_export_that_a_spreadsheet_saved_again_names_how_to_export(tmp_path, between):
    text = line(*GUI, *WIDE) + line("", "", "", *UNITS) + line(*FIRST) + line(*SECOND)
    if '"' not in between:
        text = re.sub('(?m)^"|"$', "", text)
    with pytest.raises(BadInput, match=r"saved it again.* ncu --import REPORT --csv --page raw"):
        exported(tmp_path, text.replace('","', between))


def test_without_units_a_percentage_is_known_and_a_time_is_not(tmp_path):
    kernel, _ = read(tmp_path, raw((TIME, "", "84480")))
    assert kernel["duration_ns"] is None and "no unit" in kernel["problems"]
    report = exported(tmp_path, line(*GUI, *WIDE) + line(*FIRST))
    (kernel,) = report.kernels
    found = {m["key"]: m["value"] for m in report.metrics}
    assert (found["sm_throughput_pct"], found["registers"]) == (37.5, 40)
    assert kernel["duration_ns"] is None and kernel["registers"] == 40
    assert report.problems == [ncu_text.NO_UNITS, chips.unknown(None)]


@pytest.mark.parametrize("page", [details, raw])
def test_a_device_that_an_export_names_in_a_row_is_in_its_heading(tmp_path, capsys, page):
    name = ("device__attribute_display_name", "", "NVIDIA A10G")
    exported(tmp_path, page(name, (TIME, "us", "7.25")))
    dispatch(["show", str(tmp_path / "x.csv")])
    out = capsys.readouterr().out
    assert out.startswith("x.csv: NVIDIA A10G, 1 kernel\n") and "no device name" not in out


@pytest.mark.parametrize(
    ("cell", "device"), [("0", None), ("NVIDIA A40", "NVIDIA A40"), ("0 - Tesla T4", "Tesla T4")]
)
def test_a_device_column_has_a_number_or_a_name(tmp_path, cell, device):
    page = raw((TIME, "us", "7.25")).replace('"0","9.0"', f'"{cell}","9.0"')
    assert exported(tmp_path, page).kernels[0]["device"] == device


def test_the_launch_of_an_old_export_stands_among_its_metrics(tmp_path, capsys):
    """Before 2022 it has no columns for it; nor are the throughputs called as they are today."""
    head = [n for n in DETAILS if n not in ("Block Size", "Grid Size", "Device", "CC")]
    at = [text for name, text in zip(HEAD, LAUNCH, strict=True) if name in head]
    metrics = (("SOL DRAM", "%", "12.5"), ("SM [%]", "%", "31.25"))
    metrics += (("Grid Size", "", "2,048"), ("Block Size", "", "256"))
    rows = [line(*at, "S", *metric, "", "", "", "", "") for metric in metrics]
    kernel, found = read(tmp_path, line(*head) + "".join(rows))
    assert (kernel["grid"], kernel["grid_size"], kernel["block_size"]) == (None, 2048, 256)
    assert found == {"dram_throughput_pct": 12.5, "sm_throughput_pct": 31.25}
    assert kernel["problems"] == "no duration; no device name"
    dispatch(["show", str(tmp_path / "x.csv")])
    assert " 2048 blk " in capsys.readouterr().out


@pytest.mark.parametrize(
    "name", ["Stream", "Device", "CC", "Block Size", "Grid Size", "Process ID"]
)
@pytest.mark.parametrize("text", ["\N{SUPERSCRIPT TWO}", "9" * 400, "text", "-1", "1e999", ""])
def test_a_cell_of_a_launch_that_is_no_number_is_null(tmp_path, name, text):
    whole = details(("Duration", "us", "84.48"))
    at = [text if column == name else cell for column, cell in zip(HEAD, LAUNCH, strict=True)]
    try:
        (kernel,) = exported(tmp_path, whole.replace(line(*LAUNCH)[:-1], line(*at)[:-1])).kernels
    except BadInput:  # a shape that is none: the row is not whole
        assert name.endswith("Size")
        return
    build("kernels", [{"report": "r", "batch": "b", **kernel}])


def test_rules_of_the_details_page(tmp_path):
    rule = ("Occupancy", "", "", "", "TheoreticalOccupancy", "OPT", "16.00 warps", "local", "12.5")
    page = details(("Duration", "ns", "1000")) + line(*LAUNCH, *rule)
    (found,) = exported(tmp_path, page).rules
    assert found.items() >= {
        "rule": "TheoreticalOccupancy", "section": "Occupancy", "type": "optimization", "message": "16.00 warps",
        "speedup_pct": 12.5, "speedup_type": "local",
    }.items()  # fmt: skip


@pytest.mark.parametrize(
    ("duration", "share", "expected"),
    [("1,234.5", "37.5", 1_234_500.0), ("1,234", "37.25", 1_234_000.0), ("1,234", "5", 1_234_000.0),
     ("84.487", "37.25", 84_487.0)],
)  # fmt: skip
def test_thousands_are_set_apart_by_commas(duration, share, expected, tmp_path):
    kernel, _ = read(tmp_path, details(("Duration", "us", duration), ("L2 Hit Rate", "%", share)))
    assert kernel["duration_ns"] == expected


@pytest.mark.parametrize(
    ("duration", "share"),
    [("1.234,5", "37,5"), ("1234,5", "37"), ("0,25", "5"), ("1.234", "37,25"), ("1.234.567", "5"),
     ("1,5e+03", "5"), ("1,234.5", "37,5"), ("84.487", "37")],
)  # fmt: skip
def test_numbers_that_may_have_a_decimal_comma_are_refused(duration, share, tmp_path):
    said = r"a decimal comma: .* ncu --import REPORT --csv --page raw$"
    with pytest.raises(BadInput, match=said):
        read(tmp_path, details(("Duration", "us", duration), ("L2 Hit Rate", "%", share)))


def test_cycles_and_instructions_of_the_details_page(tmp_path):
    labels = (("Elapsed Cycles", "cycle", "12,319,469"), ("SM Active Cycles", "cycle", "12,217.85"))
    _, metrics = read(tmp_path, details(*labels, ("Executed Instructions", "inst", "16,105,472")))
    assert metrics["cycles_elapsed"] == 12_319_469 and metrics["sm_cycles_active"] == 12_217.85
    assert metrics["inst_executed"] == 16_105_472


def test_a_line_that_is_too_long_for_a_cell_is_passed_over(tmp_path):
    once = details(("Duration", "ns", "500"))
    long = f'"{"x" * 200_000}"\n'
    assert exported(tmp_path, long + once + long).problems == []
    lost = f'"1","77","python","{"x" * 200_000}","k"\n'
    assert exported(tmp_path, once + lost).problems == ["a row that cannot be read is left out"]


def test_operations_of_a_chip_that_is_not_known_are_not_zero(tmp_path):
    named = "sm__ops_path_tensor_op_{}_dst_fp32_sparsity_off.sum"
    counts = {"hmma_src_fp16": "0", "utcomma_src_fp4": "30,064,771,072"}
    text = raw((TIME, "ns", "500"), *((named.format(op), "", n) for op, n in counts.items()))
    kernel, metrics = read(tmp_path, text.replace('"9.0"', '"10.0"'))
    assert metrics == {"duration_ns": 500.0, "tensor_flops": 30_064_771_072.0}
    kernel, metrics = read(tmp_path, text.replace('"9.0"', '"13.0"'))
    assert kernel["compute_capability"] == "13.0" and metrics == {"duration_ns": 500.0}
    (said,) = exported(tmp_path, text.replace('"9.0"', '"13.0"')).problems
    assert "a chip of compute capability 13.0" in said and "--query-metrics" in said


SECTORS = ((TIME, "ns", "500"), ("lts__t_sectors.sum", "sector", "8"))


def test_two_runs_in_one_file_and_short_rows(tmp_path):
    short = line("1", *LAUNCH[1:], "700")
    report = exported(tmp_path, raw(*SECTORS) + short + raw(*SECTORS))
    assert [k["duration_ns"] for k in report.kernels] == [500.0, 700.0, 500.0]
    told = "no device name"
    lacks = f"{told}; its row lacks the last 1 columns"
    assert [k["problems"] for k in report.kernels] == [told, lacks, told]
    assert [m["kernel"] for m in report.metrics if m["key"] == "l2_bytes"] == [0, 2]


UNQUOTED = details(("Duration", "ns", "84,480")).replace('"', "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", "it says: ERR_NVGPUCTRPERM"),
        (line(*DETAILS), "no kernel in it"),
        ("a,b,c\n1,2,3\n", "no kernel in it"),
        ("Time (%),Total Time (ns),Instances\n75.0,3000,3\n", "it is from `nsys stats`: give the"),
        (" Time(%)  Total Time (ns)  Name\n -----  -----\n  75.0  3 k\n", "from `nsys stats`"),
        ("Start (ns),Duration (ns),CorrId\n1,2,3\n", "from `nsys stats`"),
        (raw(("lts__t_sec\nloss 0.25\ntors.sum", "sector", "8")), "no kernel in it"),
        (UNQUOTED, "without ncu's quotes"),
        (UNQUOTED.replace(",", ";"), "without ncu's quotes"),
        (
            details(("Duration", "us", "7.25")).partition("7.25")[0],
            "kernel 0 is left out; no line break at its end",
        ),
    ],
)
def test_a_file_without_kernels_is_named(text, words, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=words):
        dispatch(["show", str(path)])


@given(st.text(max_size=300))
def test_no_text_makes_a_traceback(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("c") / "x.csv"
    path.write_text(line(*HEAD, TIME) + text)
    try:
        ncu_text.read(path)
    except BadInput:
        return


def test_every_label_is_of_a_counter_that_is_read():
    sources = [
        one for metric in METRICS.values() for some in metric.sources.values() for one in some
    ]
    read_names = {name for one in sources for name in one.names}
    assert set(ncu_text.LABELS.values()) <= read_names | {"launch__grid_size", "launch__block_size"}
    for (_, unit), name in ncu_text.LABELS.items():
        assert not registry.expected_unit(name) or unit.startswith(registry.expected_unit(name))


def test_a_real_report_printed_as_csv_gives_the_same_rows(tmp_path):
    """The raw page of a recorded report, as ncu prints it, read back."""
    text = ""
    with opened(RECORDED) as plain:
        for index, action in reader.actions(reader.load(plain)):
            named = ((name, action.metric_by_name(name)) for name in action.metric_names())
            metrics = [(name, metric.unit(), str(metric.value())) for name, metric in named]
            usable = [one for one in metrics if "," not in one[0] and '"' not in one[2]]
            text += raw(*usable).replace(line(*LAUNCH)[:-1], line(str(index), *LAUNCH[1:])[:-1])
    direct = ncu.read(RECORDED, with_lines=False)
    printed = exported(tmp_path, lzma.compress(text.encode()))
    assert [m["value"] for m in printed.metrics] == [m["value"] for m in direct.metrics]
    assert [s["share"] for s in printed.stalls] == [s["share"] for s in direct.stalls]


# --- an export that is cut short --------------------------------------------------------------


def printed(value: float) -> str:
    """A number as ncu prints it: two digits of a fraction, thousands apart."""
    return f"{value:,.2f}" if value % 1 else f"{value:,.0f}"


@functools.cache
def recorded_metrics() -> list[list[tuple[str, str, float]]]:
    """(name, unit, value) of some counters of three kernels of a recorded report."""
    found = []
    with opened(RECORDED) as plain:
        for _, action in reader.actions(reader.load(plain), 0, 3):
            names = [n for n in counters("gh100") if action.metric_by_name(n) is not None]
            metrics = [(n, action.metric_by_name(n)) for n in [*names[:9], *names[9::12]]]
            found.append([(name, m.unit(), m.value()) for name, m in metrics])
    return found


def export(page: str) -> str:
    """Those kernels as ncu prints them, behind its messages of having profiled them."""
    messages, rows = "", []
    for index, metrics in enumerate(recorded_metrics()):
        name = f"void ns::Norm<{index}, float>(int)"
        messages += f'==PROF== Profiling "Norm" - {index}: 0%....50%....100% - 9 passes\n'
        launch = [str(index), *LAUNCH[1:4], name, *LAUNCH[5:]]
        cells = [(name, unit, printed(value)) for name, unit, value in metrics]
        if page == "raw":
            names, units, values = zip(*cells, strict=True)
            rows = rows or [line(*HEAD, *names), line(*[""] * len(HEAD), *units)]
            rows.append(line(*launch, *values))
        else:
            rule = ("", "", "", "R", "OPT", 'of ""x""', "local", printed(12.5))
            of_metrics = [line(*launch, "S", *metric)[:-1] + ",\n" for metric in cells]
            rows = rows or [line(*DETAILS)]
            rows += [*of_metrics[:3], line(*launch, "S", *rule), *of_metrics[3:]]
    return messages + "".join(rows)


def test_what_is_there_of_a_cut_kernel_is_not_taken_for_all_of_it(tmp_path):
    """Its tensor operations may be of two instructions, and a quote in its name looks like the end of a cell."""
    duration, named = SECTORS[0], "sm__ops_path_tensor_op_{}_sparsity_off.sum"
    counts = {"hgmma_src_fp16": "7", "hmma_src_fp16_dst_fp32": "9"}
    both = [(named.format(name), "", count) for name, count in counts.items()]
    page = details(duration, *both) + line("1", *LAUNCH[1:], "S", *duration, "", "", "", "", "")
    for row in page.splitlines()[-4:-1]:
        page += row.replace('"0"', '"1"', 1) + "\n"
    report = exported(tmp_path, page.removesuffix('9","","","","",""\n'))
    (kernel,) = report.kernels
    assert kernel["kernel"] == 0
    assert [m["value"] for m in report.metrics if m["key"] == "tensor_flops"] == [16]
    quoted = line("1", *LAUNCH[1:], "5").replace("void ns::Norm<8", 'void ns::Norm<""x""')
    report = exported(tmp_path, raw(duration) + quoted.partition('"x""')[0])
    assert [k["name"] for k in report.kernels] == ["Norm"] and len(report.problems) == 2


@pytest.mark.parametrize(
    ("whole", "mixed"),
    [
        ('"700"', '"70"0"'),  # a quote
        ('"700","8"', '"700","0.25","8"'),  # a cell, by which the last moves out of the table
        ('"1","77","python",', '"1","77",'),  # a cell less, by which all others move
    ],
)
def test_a_row_with_something_else_in_it_gives_no_value(whole, mixed, tmp_path):
    text = raw(*SECTORS) + line("1", *LAUNCH[1:], "700", "8")
    assert [k["duration_ns"] for k in exported(tmp_path, text).kernels] == [500.0, 700.0]
    report = exported(tmp_path, text.replace(whole, mixed))
    assert [k["duration_ns"] for k in report.kernels] == [500.0]
    assert "something else stands within a row" in report.problems[0]


@pytest.mark.parametrize(
    ("form", "lost"), [("table", '34.5"\n'), ("json", ',"1,234.5"\n'), ("csv", '34.5"\n')]
)
def test_show_says_that_an_export_is_cut_short(form, lost, tmp_path, capsys):
    path = tmp_path / "x.csv"
    cut = line("1", *LAUNCH[1:], "S", "Duration", "us", "1,234.5").removesuffix(lost)
    path.write_text(details(("Duration", "us", "84.48")) + cut)
    dispatch(["show", str(path), "--format", form])
    printed = "".join(capsys.readouterr())
    assert "cut short in the middle of a row: kernel 1 is left out" in printed
    assert "84480.0" in printed or "84.5" in printed


def content(report: ncu.Report) -> dict:
    """All values that were read, by what they are of."""
    values = {(k["kernel"], name): k[name] for k in report.kernels for name in k}
    values |= {(m["kernel"], m["key"], m["metric"]): m["value"] for m in report.metrics}
    values |= {(r["kernel"], r["rule"]): (r["message"], r["speedup_pct"]) for r in report.rules}
    return {of: v for of, v in values.items() if v is not None and of[1] != "problems"}


@pytest.mark.parametrize("page", ["raw", "details"])
def test_wherever_an_export_is_cut_no_value_is_wrong_and_a_loss_is_told(page, tmp_path):
    data = export(page).encode()
    whole = exported(tmp_path, data)
    expected, told = content(whole), {"no device name"}
    assert (len(whole.kernels), whole.problems, len(expected) > 60) == (3, [], True)
    assert {k["problems"] for k in whole.kernels} == told
    some = random.Random(page).sample(range(1, len(data)), 225)
    ends = [found.end() - back for found in re.finditer(rb"\n", data) for back in (0, 1, 2)]
    kinds = collections.Counter()
    for at in {*some, *ends} - {len(data)}:
        try:
            report = exported(tmp_path, data[:at])
        except BadInput:
            kinds["refused"] += 1
            continue
        found = content(report)
        assert found == {of: expected.get(of) for of in found}, data[:at][-60:]
        kinds["fewer" if len(found) < len(expected) else "all"] += 1
        said = report.problems or {k["problems"] for k in report.kernels} - told
        assert said or found == expected, data[:at][-60:]
    assert kinds["refused"] > 20 and kinds["fewer"] > 50 and kinds["all"]
