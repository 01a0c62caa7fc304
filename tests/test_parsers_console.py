"""What ncu prints on a console, as it is pasted: of today's versions and of old ones, with what stands around it."""

from __future__ import annotations

import textwrap

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncuflow.cli import dispatch
from ncuflow.explain.verb import explain
from ncuflow.io import BadInput
from ncuflow.parsers import ncu, ncu_text

LINE = "    ----------------------- ----------- ------------\n"
SPEED = f"""\
    Section: GPU Speed Of Light Throughput
{LINE}    Metric Name             Metric Unit Metric Value
{LINE}    DRAM Frequency                  Ghz         2.60
    SM Frequency                    Ghz         1.75
    Elapsed Cycles                cycle       13,485
    Memory Throughput                 %        72.56
    DRAM Throughput                   %        72.56
    Duration                         us         6.75
    Compute (SM) Throughput           %        31.10
{LINE}
    OPT   Est. Speedup: 27.4%
          Memory is more heavily utilized than Compute: look at
          the Memory Workload Analysis section.

    WRN   A second rule of it.

"""
GRID = "    Grid Size                                     64\n"
LAUNCH = f"    Section: Launch Statistics\n{LINE}{GRID}{LINE}"
FIRST = "  void ns::add<2, float>(float *) (64, 1, 1)x(128, 1, 1), Context 1, Stream 7, Device 0, CC 9.0\n"
HEAD = '==PROF== Profiling "add" - 0: 0%....50%....100% - 9 passes\nloss 0.25\n[9] app@127.0.0.1\n'
OLD = """\
[25462] add@127.0.0.1
  add, 2021-Mar-05 10:11:12, Context 1, Stream 13
    Section: GPU Speed Of Light
    ---------------------------------------------------------------------- --------------- ------------------------------
    SM Frequency                                                             cycle/usecond                         763.55
    Elapsed Cycles                                                                   cycle                      2,184,141
    Memory [%]                                                                           %                          91.78
    SOL DRAM                                                                             %                           9.08
    Duration                                                                       msecond                           2.86
    SOL L2 Cache                                                                         %                          26.39
    SM [%]                                                                               %                          41.95
    ---------------------------------------------------------------------- --------------- ------------------------------
    OK    The kernel is utilizing greater than 80.0% of the available compute or memory performance.

    Section: Launch Statistics
    ---------------------------------------------------------------------- --------------- ------------------------------
    Block Size                                                                                                        256
    Grid Size                                                                                                      65,536
    Registers Per Thread                                                   register/thread                             16
    ---------------------------------------------------------------------- --------------- ------------------------------
"""


def read(folder, text: str) -> ncu.Report:
    path = folder / "pasted.txt"
    path.write_text(text)
    return ncu_text.read(path)


def values(report: ncu.Report, kernel: int = 0) -> dict[str, float]:
    return {row["key"]: row["value"] for row in report.metrics if row["kernel"] == kernel}


PASTES = {
    "whole": HEAD + FIRST + SPEED,
    "from the process on": "[9] app@127.0.0.1\n" + FIRST + SPEED,
    "from the kernel on": FIRST + SPEED,
    "without indentation": "\n".join(map(str.strip, (FIRST + SPEED).splitlines())) + "\n",
    "in a quotation": textwrap.indent(FIRST + SPEED, "> "),
    "with other line ends": (HEAD + FIRST + SPEED).replace("\n", "\r\n"),
}


@pytest.mark.parametrize("text", PASTES.values(), ids=PASTES)
def test_a_paste_is_read_as_a_report(text, tmp_path, capsys):
    report = read(tmp_path, text)
    (kernel,) = report.kernels
    assert kernel.items() >= {
        "name": "add", "demangled": "void ns::add<2, float>(float *)", "grid": "64,1,1", "block": "128,1,1", "stream": 7,
        "compute_capability": "9.0", "duration_ns": 6750.0,
    }.items()  # fmt: skip
    found = values(report)
    assert found["sm_clock_hz"] == 1.75e9 and found["cycles_elapsed"] == 13_485
    assert (found["dram_throughput_pct"], found["sm_throughput_pct"]) == (72.56, 31.1)
    assert [(r["type"], r["speedup_pct"], r["speedup_type"]) for r in report.rules] == [
        ("optimization", 27.4, "global"), ("warning", None, None),
    ]  # fmt: skip
    assert report.rules[0]["message"].endswith("look at the Memory Workload Analysis section.")
    assert (report.problems, kernel["problems"]) == ([], "no device name")
    for verb in ("show", "explain"):
        dispatch([verb, str(tmp_path / "pasted.txt")])
        assert "add" in capsys.readouterr().out
    explained = explain(tmp_path / "pasted.txt")
    assert explained.limit and explained.limit.words == "DRAM 73 %, otherwise latency-bound"
    assert len(explained.suggestions) == 2  # both rules of the section


def test_the_form_of_old_versions(tmp_path):
    report = read(tmp_path, OLD + FIRST + SPEED)
    old, new = report.kernels
    assert old.items() >= {
        "name": "add", "stream": 13, "duration_ns": 2_860_000.0, "grid": None, "grid_size": 65_536, "block_size": 256,
        "registers": 16,
    }.items()  # fmt: skip
    found = values(report)
    assert (found["memory_throughput_pct"], found["sm_throughput_pct"]) == (91.78, 41.95)
    assert (found["dram_throughput_pct"], found["l2_throughput_pct"]) == (9.08, 26.39)
    assert new["duration_ns"] == 6750.0
    limit = explain(tmp_path / "pasted.txt", 0).limit
    assert limit and limit.words == "bound by memory (92 % of its peak)"


def test_several_sections_and_tables_of_others(tmp_path):
    """A table of the program is none of a section."""
    table = "a b c\n--- --- ---\nDuration us 1.00\n--- --- ---\n"
    report = read(tmp_path, table + FIRST + SPEED + LAUNCH + table)
    assert values(report)["duration_ns"] == 6750.0 and report.kernels[0]["grid_size"] == 64
    assert report.problems == []


def test_wherever_a_paste_is_cut_no_value_is_wrong_and_a_loss_is_told(tmp_path):
    text = HEAD + FIRST + SPEED + FIRST + SPEED
    whole = read(tmp_path, text)
    expected = [values(whole, kernel) for kernel in (0, 1)]
    refused = told = 0
    for at in range(1, len(text), 7):
        try:
            report = read(tmp_path, text[:at])
        except BadInput:
            refused += 1
            continue
        for kernel in report.kernels:
            found = values(report, kernel["kernel"])
            assert found == {key: expected[0][key] for key in found}
            if len(found) < len(expected[0]):
                assert report.problems or "lacks" in kernel["problems"], text[:at][-60:]
                told += 1
    assert refused and told > 20


@pytest.mark.parametrize(
    "line", ["    Duration                         us\n", "    Duration us 6.75\n", "x" * 200_000 + "\n"]
)  # fmt: skip
def test_a_row_that_is_none_is_left_out(tmp_path, line):
    text = FIRST + SPEED.replace("    Duration                         us         6.75\n", line)
    report = read(tmp_path, text)
    assert report.kernels[0]["duration_ns"] is None and "sm_throughput_pct" in values(report)
    assert report.problems == [] or "left out" in report.problems[0]


@given(st.text(alphabet="[9] a@b, Context1Stream7(x)->Section:\n-", max_size=300))
def test_no_text_makes_a_traceback(text):
    ncu_text.console_table(FIRST + text)


@pytest.mark.parametrize("piece", ["(1, 1, 1)x", ", Context 1", "[9] a@", "- ", "@ "])
def test_a_long_line_is_read_in_time_that_grows_with_its_length(piece):
    """What is quadratic takes minutes for one of these."""
    ncu_text.console_table(FIRST + (piece * (130_000 // len(piece)) + "\n") * 8)
