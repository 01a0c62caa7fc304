"""Profiling under a fake ncu: limits, refusals, lost points, what is stored."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import fake_gpus
import pytest
from fake_gpus import TOKEN, program

from ncuflow import process
from ncuflow.cli import dispatch
from ncuflow.evidence.points import Contents
from ncuflow.gpu.lock import BEGINS, STARTS, WAITS
from ncuflow.parsers import chips, registry
from ncuflow.process import CaptureError
from ncuflow.run import ncu, profiler
from ncuflow.run.profiler import ProfilerOutput
from ncuflow.target.contract import load

POINTS = ["decode/B1", "decode/B32", "decode/B128"]


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with points, a fake GPU, and a token in the environment."""
    monkeypatch.setattr(process, "GRACE_S", 0.2)
    return fake_gpus.bench(monkeypatch, tmp_path, POINTS, UUID="GPU-aaaa", Name="NVIDIA H200")


# A fake ncu: knows its -o and the program's --out, and answers --version.
FAKE = """
[ "$1" = --version ] && { echo "Version 2025.3.1.0 (build 36398880)"; exit; }
all="$*"
while [ $# -gt 0 ]; do
  case $1 in -o) report=$2.ncu-rep;; --out) out=$2;; --points) points=$2;; esac; shift
done
"""


REPORTS = FAKE + 'echo report >"$report"; env >seen; echo "$all" >args; cp "$points" given.json\n'


def profile(bench: Path, *more: str) -> int:
    words = ["decode", "--points", "points.json", "--out", "out", "--sections", "SpeedOfLight"]
    return dispatch(["ncu", *words, *more])


def recorded(bench: Path) -> dict[str, Any]:
    return json.loads((bench / "out/sweep.json").read_text())


def timed(bench: Path, **status: str) -> None:
    """A timing whose points, by their batch, ended so."""
    rows = [json.dumps({"point": f"decode/{point}", "status": s}) for point, s in status.items()]
    (bench / "timing.jsonl").write_text("\n".join(rows))


@pytest.fixture
def holds(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets a report hold these kernels: without more one of each point."""

    def found(kernels: dict[str, int], failed: dict[str, int] | None = None) -> None:
        result = Contents(kernels, failed or {}, 0, sum(kernels.values()))
        monkeypatch.setattr(ncu, "count_kernels", lambda report, points: result)

    found(dict.fromkeys(POINTS, 1))
    return found


@pytest.mark.usefixtures("holds")
def test_a_complete_sweep(bench: Path) -> None:
    program(bench, "ncu", REPORTS)
    assert profile(bench) == 0
    record = recorded(bench)
    assert record["points"] == POINTS
    assert record["kernels"] == dict.fromkeys(POINTS, 1)
    assert record["lost"] == []
    origin = record["origin"]
    assert (record["tool"], origin["ncu"], origin["gpu"]) == ("ncu", "2025.3.1.0", "NVIDIA H200")
    assert origin["nsys"] is None and origin["python"] == platform.python_version()
    assert sorted(p.name for p in (bench / "out").iterdir()) == ["sweep.json", "sweep.ncu-rep"]
    assert TOKEN not in (bench / "seen").read_text()
    assert "CUDA_VISIBLE_DEVICES=GPU-aaaa" in (bench / "seen").read_text()
    # The range opens late, rules are applied where they are asked for, and no absolute path is stored.
    words = (bench / "args").read_text()
    assert "--nvtx --profile-from-start off --clock-control none" in words
    assert "-m ncuflow launch decode --mode trace" in words and "--repeats 1 --no-flush" in words
    assert "--apply-rules no" in words and "--unchecked" not in words
    text = (bench / "out/sweep.json").read_text()
    assert str(bench) not in text and '"/' not in text and record["command"][0] == "ncu"
    assert profile(bench, "--name", "deep", "--rules") == 0
    words = (bench / "args").read_text()
    assert "--apply-rules yes" in words and "--import-source" not in words
    assert (bench / "out/deep.ncu-rep").exists()


CHIPS = {"9.0": "gh100", "8.0": "ga100", "10.0": "gb100", "12.0": "gb202", "13.0": chips.ANY}


@pytest.mark.usefixtures("holds")
@pytest.mark.parametrize(("capability", "chip"), CHIPS.items())
def test_the_registrys_counters_are_asked_for_by_the_names_of_this_gpu(
    bench: Path, monkeypatch: pytest.MonkeyPatch, capability: str, chip: str
) -> None:
    told = [int(part) for part in capability.split(".")]
    fake_gpus.put(monkeypatch, bench, fake_gpus.H200 | {"CudaComputeCapability": told})
    program(bench, "ncu", REPORTS)
    assert profile(bench, "--registry", "--metrics", "one.sum,two.sum") == 0
    words = (bench / "args").read_text().split()
    asked = words[words.index("--metrics") + 1].split(",")
    known = registry.counters(chip, ncu.registry_keys(load("decode")))
    assert asked == [*known, "one.sum", "two.sum"]
    assert not any(name.startswith(("launch__", "derived__")) for name in asked)


def test_integer_operations_of_tensor_cores_are_counted_where_a_target_has_them() -> None:
    decode = load("decode")
    choices = {**decode.choices, "dtype": ("f16", "int8")}
    left = {*registry.METRICS} - {*ncu.registry_keys(decode)}
    assert left == {"tensor_int_ops", "tensor_int_ops_peak_per_second"}
    assert ncu.registry_keys(replace(decode, choices=choices)) == tuple(registry.METRICS)


def test_points_that_one_took_along_are_profiled_again_without_it(bench: Path, holds: Any) -> None:
    """As `ncuflow launch` leaves it: the point that broke the CUDA context, and those after it."""
    broken = r'{"point": "decode/B1", "status": "error", "reason": "illegal access"}\n'
    broken += r'{"point": "decode/B32", "status": "lost", "reason": "the GPU was lost"}\n'
    rest = r'{"point": "decode/B32", "status": "ok"}\n{"point": "decode/B128", "status": "ok"}\n'
    runs = 'echo report >"$report"; cat $points >>launched; grep -q B1\\" $points'
    program(bench, "ncu", FAKE + f"{runs} && printf '{broken}' >$out || printf '{rest}' >$out")
    holds(dict.fromkeys(POINTS[1:], 1))
    assert profile(bench) == 3
    launched = (bench / "launched").read_text()
    assert [launched.count(f'"{point}"') for point in POINTS] == [1, 2, 2]
    record = recorded(bench)
    assert record["points"] == POINTS
    assert record["lost"] == [{"point": "decode/B1", "reason": "error: illegal access"}]


def test_a_lost_gpu_that_no_point_is_blamed_for_is_not_profiled_again(bench: Path, holds) -> None:
    lines = r'{"point": "decode/B1", "status": "lost", "reason": "gone"}\n'
    program(bench, "ncu", FAKE + f"echo report >$report; echo x >>runs; printf '{lines}' >$out")
    holds({POINTS[1]: 1})
    assert profile(bench) == 3
    assert (bench / "runs").read_text() == "x\n"


def test_lost_points_are_named_and_the_report_stands(
    bench: Path, holds: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = r'{"point": "decode/B1", "status": "ok"}\n'
    lines += r'{"point": "decode/B32", "status": "error", "reason": "out of memory"}\n'
    program(bench, "ncu", FAKE + f"echo report >$report; printf '{lines}' >$out")
    holds({POINTS[0]: 1})
    assert profile(bench) == 3
    assert (bench / "out/sweep.ncu-rep").exists()
    assert recorded(bench)["lost"] == [
        {"point": "decode/B32", "reason": "error: out of memory"},
        {"point": "decode/B128", "reason": "not reached"},
    ]
    assert "lost: decode/B128: not reached" in capsys.readouterr().err


def test_a_kernel_without_duration_is_a_lost_point_and_a_truncated_report_is_not_complete(
    bench: Path, holds: Any
) -> None:
    profiled = (
        "for i in 1 2 3 4 5; do echo '==PROF== Profiling \"K\" - 0: 0%....100% - 33 passes'; done\n"
    )
    program(bench, "ncu", REPORTS + profiled)
    assert profile(bench) == 3
    assert "the report holds 3 of the 5 kernels that ncu profiled" in recorded(bench)["notes"]
    holds(dict.fromkeys(POINTS, 2), {POINTS[1]: 1})
    assert profile(bench) == 3
    lost = {"point": POINTS[1], "reason": "failed: 1 of 2 kernels have no duration"}
    assert recorded(bench)["lost"] == [lost]


WAIT = "exec 3<>fifo; read x <&3"


def test_time_limit_names_what_was_not_reached(bench: Path, holds: Any) -> None:
    os.mkfifo(bench / "fifo")
    partial = 'printf \'{"point": "decode/B1", "status": "ok"}\\n\' >$out.partial;'
    program(bench, "ncu", REPORTS + partial + WAIT)
    holds({POINTS[0]: 1})
    assert profile(bench, "--timeout", "1") == 3
    lost = recorded(bench)["lost"]
    assert [entry["point"] for entry in lost] == POINTS[1:]
    assert all("not reached: stopped at the time limit" in entry["reason"] for entry in lost)


def test_a_hang_without_a_report_writes_nothing(bench: Path) -> None:
    os.mkfifo(bench / "fifo")
    program(bench, "ncu", FAKE + WAIT)
    with pytest.raises(CaptureError, match="time limit") as error:
        profile(bench, "--timeout", "1")
    assert error.value.code == 1
    assert list((bench / "out").iterdir()) == []


def test_refused_counters_are_one_line_with_the_remedy(bench: Path) -> None:
    said = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission"
    program(bench, "ncu", FAKE + f"echo '{said}'; exit 1")
    with pytest.raises(CaptureError, match="NVreg_RestrictProfilingToAdminUsers=0") as error:
        profile(bench)
    assert error.value.code == 5
    assert "\n" not in str(error.value)
    assert list((bench / "out").iterdir()) == []


def test_only_points_that_timed_well_are_profiled_and_those_unchecked(
    bench: Path, holds: Any
) -> None:
    timed(bench, B1="ok", B32="wrong", B128="skipped")
    program(bench, "ncu", REPORTS)
    holds({POINTS[0]: 1})
    assert profile(bench, "--timing", "timing.jsonl") == 0
    assert [point["id"] for point in json.loads((bench / "given.json").read_text())] == [POINTS[0]]
    assert "--unchecked" in (bench / "args").read_text()


def test_no_point_that_timed_well_means_nothing_is_profiled(bench: Path) -> None:
    timed(bench, B1="error", B32="error")  # the third has no record at all
    program(bench, "ncu", "touch started")
    assert profile(bench, "--timing", "timing.jsonl") == 3
    assert not (bench / "started").exists()
    (report,) = (bench / "out").glob("*.ncu-rep")
    record = json.loads(report.with_suffix(".json").read_text())
    assert report.stat().st_size == 0 and (record["points"], record["kernels"]) == ([], {})
    assert [loss["reason"] for loss in record["lost"]] == ["error: None"] * 2 + ["not reached"]


def test_bad_points_are_refused_before_anything_runs(bench: Path) -> None:
    for text in ("not json", '{"id": 1}', '[{"name": "x"}]'):
        (bench / "points.json").write_text(text)
        with pytest.raises(Exception, match=r"points\.json"):
            profile(bench)
        assert not (bench / "out").exists()


def test_progress_says_point_kernels_elapsed_and_left(tmp_path: Path) -> None:
    now = [0.0]
    records = tmp_path / "progress.jsonl"
    progress = ProfilerOutput("decode sweep", 4, records, clock=lambda: now[0])
    records.write_text('{"point": "a"}\n{"point": "b"}\n{"point": "cut sho')
    now[0] = 20.0
    progress.line('==PROF== Profiling "BatchDecode" - 2 (3/8): 0%....100% - 33 passes')
    said = "decode sweep: point 3 of 4, 1 kernels, 20 s elapsed, about 20 s left"
    assert progress.describe() == said


def test_that_it_waits_for_the_gpu_is_said_and_is_no_part_of_what_has_passed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [0.0]
    progress = ProfilerOutput("rope sweep", 4, tmp_path / "p.jsonl", clock=lambda: now[0])
    said = {WAITS: 30.0, STARTS: 2.0}, {WAITS: 7.0, BEGINS: 5.0}, {WAITS: 60.0, BEGINS: 5.0}
    for text, seconds in ((text, seconds) for part in said for text, seconds in part.items()):
        progress.line(text)
        now[0] += seconds
    lines = capsys.readouterr().err.splitlines()
    assert lines == [text for part in said for text in part]
    assert progress.waited() == 97
    assert progress.describe().endswith("0 kernels, 12 s elapsed")


def test_a_tool_is_quoted_by_its_last_complaint_without_folders(tmp_path: Path) -> None:
    progress = ProfilerOutput("rope trace", 4, tmp_path / "p.jsonl")
    for text in (
        "Could not find QdstrmImporter in /opt/nsys/host-linux-x64.",
        "[1/1] [=====40%       ] report.sqlite",
        "Generated:",
        "    /tmp/somebody/probe.qdstrm",
    ):
        progress.line(text)
    assert progress.last == "Could not find QdstrmImporter in host-linux-x64."


def test_version_texts() -> None:
    assert profiler.parse_version("Version 2025.3.1.0 (build 36398880)") == "2025.3.1.0"
    nsys = "NVIDIA Nsight Systems version 2023.4.4.54-234433681190v0"
    assert profiler.parse_version(nsys) == "2023.4.4.54"
    assert profiler.parse_version("") is None
