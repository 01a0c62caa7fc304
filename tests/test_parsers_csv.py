"""What `ncu --csv` prints: raw and details pages, with all that stands around them."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncuflow.cli import dispatch
from ncuflow.io import BadInput
from ncuflow.parsers import ncu_csv, reader, units
from ncuflow.parsers.registry import METRICS

REPORTS = sorted((Path(__file__).parents[1] / "recordings").glob("*/*/*/sweep.ncu-rep.xz"))
HEAD = ["ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream",
        "Block Size", "Grid Size", "Device", "CC"]  # fmt: skip
LAUNCH = ["0", "77", "python", "127.0.0.1", "void ns::Norm<8, float>(const float *, int)", "1", "7",
          "(32, 8, 1)", "(128, 1, 1)", "0", "9.0"]  # fmt: skip
DETAILS = [*HEAD, "Section Name", "Metric Name", "Metric Unit", "Metric Value", "Rule Name",
           "Rule Type", "Rule Description", "Estimated Speedup Type", "Estimated Speedup"]  # fmt: skip
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


def read(folder: Path, text: str) -> tuple[dict, dict[str, float | None]]:
    """The one kernel of an export, and its metrics by registry key."""
    path = folder / "x.csv"
    path.write_text(text)
    report = ncu_csv.read(path)
    (kernel,) = report.kernels
    return kernel, {row["key"]: row["value"] for row in report.metrics}


def test_the_raw_page(tmp_path):
    kernel, metrics = read(
        tmp_path,
        raw(
            ("gpu__time_duration.sum", "us", "1,234.56"),
            ("dram__bytes_read.sum", "Mbyte", "4.25"),
            ("sm__throughput.avg.pct_of_peak_sustained_elapsed", "%", "37.5"),
            ("launch__registers_per_thread", "register/thread", "40"),
            ("device__attribute_display_name", "", "NVIDIA H200"),
            ("l2_cache", "", "n/a"),
        ),
    )
    assert (kernel["name"], kernel["demangled"]) == ("Norm", LAUNCH[4])
    assert (kernel["grid"], kernel["block"]) == ("128,1,1", "32,8,1")
    assert (kernel["grid_size"], kernel["block_size"], kernel["stream"]) == (128, 256, 7)
    assert (kernel["device"], kernel["compute_capability"]) == ("NVIDIA H200", "9.0")
    assert (kernel["duration_ns"], kernel["registers"]) == (1_234_560.0, 40)
    assert metrics["dram_bytes_read"] == 4_250_000
    assert metrics["sm_throughput_pct"] == 37.5
    assert kernel["problems"] is None


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
    _, named = read(tmp_path, details(("gpu__time_duration.sum", "ns", "84,480")))
    assert named["duration_ns"] == 84_480.0


def test_rules_of_the_details_page(tmp_path):
    rule = line(
        *LAUNCH,
        "Occupancy",
        "",
        "",
        "",
        "TheoreticalOccupancy",
        "OPT",
        "16.00 warps",
        "local",
        "12.5",
    )
    path = tmp_path / "x.csv"
    path.write_text(details(("Duration", "ns", "1000")) + rule)
    (found,) = ncu_csv.read(path).rules
    assert (found["rule"], found["section"], found["type"]) == (
        "TheoreticalOccupancy", "Occupancy", "optimization",
    )  # fmt: skip
    assert (found["message"], found["speedup_pct"], found["speedup_type"]) == (
        "16.00 warps",
        12.5,
        "local",
    )


@pytest.mark.parametrize(
    ("duration", "share", "expected"),
    [("1,234.5", "37.5", 1_234_500.0), ("1.234,5", "37,5", 1_234_500.0), ("1234,5", "37", 1_234_500.0),
     ("0,25", "5", 250.0), ("1,234", "37.25", 1_234_000.0), ("1.234", "37,25", 1_234_000.0)],
)  # fmt: skip
def test_numbers_of_both_conventions(duration, share, expected, tmp_path):
    kernel, _ = read(tmp_path, details(("Duration", "us", duration), ("L2 Hit Rate", "%", share)))
    assert kernel["duration_ns"] == expected


def test_numbers_of_two_conventions_in_one_file_are_refused(tmp_path):
    with pytest.raises(BadInput, match="decimal points and with decimal commas"):
        read(tmp_path, details(("Duration", "us", "1,234.5"), ("L2 Hit Rate", "%", "37,5")))


def test_two_runs_in_one_file_and_short_rows(tmp_path):
    path = tmp_path / "x.csv"
    once = raw(("gpu__time_duration.sum", "ns", "500"), ("lts__t_sectors.sum", "sector", "8"))
    short = line("1", *LAUNCH[1:], "700")
    path.write_text(once + short + once)
    report = ncu_csv.read(path)
    assert [k["duration_ns"] for k in report.kernels] == [500.0, 700.0, 500.0]
    assert [m["kernel"] for m in report.metrics if m["key"] == "l2_bytes"] == [0, 2]


def test_a_value_without_its_unit_is_null_here_too(tmp_path):
    kernel, _ = read(tmp_path, raw(("gpu__time_duration.sum", "", "84480")))
    assert kernel["duration_ns"] is None and "no unit" in kernel["problems"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("==ERROR== ERR_NVGPUCTRPERM - no permission\n", "it says: ERR_NVGPUCTRPERM"),
        (line(*DETAILS), "no kernel in it"),
        ("a,b,c\n1,2,3\n", "no kernel in it"),
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
    path.write_text(line(*HEAD, "gpu__time_duration.sum") + text)
    try:
        ncu_csv.read(path)
    except BadInput:
        return


def test_every_label_is_of_a_counter_that_is_read():
    read_names = {
        n for m in METRICS.values() for s in m.sources.values() for c in s for n in c.names
    }
    assert set(ncu_csv.LABELS.values()) <= read_names
    for (_, unit), name in ncu_csv.LABELS.items():
        assert not units.expected_unit(name) or unit.startswith(units.expected_unit(name))


@pytest.mark.skipif(not REPORTS, reason="no recorded report here")
def test_a_real_report_printed_as_csv_gives_the_same_rows(tmp_path):
    """The raw page of a recorded report, as ncu prints it, read back."""
    from ncuflow.io import opened
    from ncuflow.parsers import ncu

    source = min(REPORTS, key=lambda path: path.stat().st_size)
    text = ""
    with opened(source) as plain:
        for index, action in reader.actions(reader.load(plain)):
            metrics = [
                (name, action.metric_by_name(name).unit(), str(action.metric_by_name(name).value()))
                for name in action.metric_names()
                if "," not in name and '"' not in str(action.metric_by_name(name).value())
            ]
            text += raw(*metrics).replace(line(*LAUNCH)[:-1], line(str(index), *LAUNCH[1:])[:-1])
    path = tmp_path / "x.csv"
    path.write_bytes(lzma.compress(text.encode()))
    direct, printed = ncu.read(source, with_lines=False), ncu_csv.read(path)
    assert [m["value"] for m in printed.metrics] == [m["value"] for m in direct.metrics]
    assert [s["share"] for s in printed.stalls] == [s["share"] for s in direct.stalls]
