"""The generator of synthetic points: it multiplies and renames, and changes no number."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from conftest import ROOT

from benchmarks import reports, synthetic
from ncuflow.evidence import location
from ncuflow.evidence.recording import verify
from ncuflow.flow.evidence import recorded
from ncuflow.model import SHARED
from ncuflow.parsers import ncu, tables

RECORDING = ROOT / "recordings/h200/0.6.18/baseline"
REPORT = min(RECORDING.glob("*/b*/sweep.ncu-rep.xz"), key=lambda path: path.stat().st_size)
NAMES = ("point", "nvtx", "nvtx_ranges", "kernel", "report", "batch", "reason", "plan")


def numbers(rows: list[dict]) -> list[str]:
    return [repr({k: v for k, v in row.items() if k not in NAMES}) for row in rows]


@pytest.fixture(scope="module")
def multiplied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("synthetic") / "recording"
    synthetic.multiply(RECORDING, points_asked_for(), out)
    return out


def points_asked_for() -> int:
    """One more than the recording has."""
    own = json.loads((RECORDING / "manifest.json").read_text())["targets"]
    return 1 + sum(
        len(ids) for found in own.values() for b, ids in found.items() if b not in SHARED
    )


def test_it_is_a_whole_recording(multiplied):
    assert verify(multiplied) > 0
    name = f"{location.name(RECORDING)}-synthetic-{points_asked_for()}"
    assert recorded(multiplied).recording == name


def test_every_point_says_that_it_is_synthetic(multiplied):
    manifest = json.loads((multiplied / "manifest.json").read_text())
    assert "synthetic" in manifest["name"] and "not measured" in manifest["synthetic"]
    for target, batches in manifest["targets"].items():
        for batch, ids in batches.items():
            assert all("~syn" in point for point in ids)
            found = tables.collect(multiplied, [multiplied / target / batch])
            assert {row["point"] for row in found["timing"]} == set(ids)
            assert all(row["reason"].startswith("synthetic: a copy of") for row in found["timing"])
            for name in ("kernels", "metrics", "stalls", "timeline"):
                assert {row["point"] for row in found[name]} <= {*ids, None}


def test_the_numbers_are_those_of_the_recording(multiplied):
    target, batch = REPORT.parent.parent.name, REPORT.parent
    copy = min((multiplied / target).iterdir())
    real = tables.collect(RECORDING, [batch])
    made = tables.collect(multiplied, [copy])
    for name in ("kernels", "metrics", "stalls", "rules", "timeline", "timing"):
        assert numbers(made[name]) == numbers(real[name]), name
    assert real["kernels"] and made["kernels"]


def test_a_report_of_many_kernels_repeats_them(tmp_path):
    long = tmp_path / "long.ncu-rep"
    long.write_bytes(reports.repeat(REPORT, 40))
    found, real = ncu.read(long), ncu.read(REPORT)
    assert len(found.kernels) == 40
    assert set(numbers(found.kernels)) == set(numbers(real.kernels))


def test_a_report_of_points_has_one_kernel_each(tmp_path):
    made = tmp_path / "points.ncu-rep"
    made.write_bytes(reports.of_points(REPORT, ["a/1", "a/2", "a much longer name/3"]))
    assert [k["point"] for k in ncu.read(made).kernels] == ["a/1", "a/2", "a much longer name/3"]


@pytest.mark.parametrize("content", [b"", b"NVR", b"Kernel Name,Value\n"])
def test_what_is_no_report_is_refused(tmp_path, content):
    path = tmp_path / "x.ncu-rep"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="not an Nsight Compute report"):
        reports.read(path)
