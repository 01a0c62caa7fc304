"""On a GPU: small points of each target are right, and a planted wrong result is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from ncuflow.findings.ceilings import datasheet
from ncuflow.runner import ceilings, sweep
from ncuflow.target import known, load

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[1]
# one small block a target; decode and prefill cover what they can without another build
SMALL: dict[str, list[dict[str, Any]]] = {
    "decode": [{"batch": 2, "kv_len": 100, "launch": ["eager", "graph"], "page_size": [1, 16]}],
    "merge_state": [{"seq_len": 64, "variant": ["merge_state", "merge_states"]}],
    "prefill": [{"seq_len": 300, "batch": 2, "layout": ["paged", "ragged"]}],
    "rmsnorm": [
        {"rows": 33, "variant": ["rmsnorm", "fused_add_rmsnorm", "add_then_rmsnorm"]},
    ],
    "rope": [
        {
            "tokens": 96,
            "batch": 2,
            "inplace": [True, False],
            "style": ["neox", "interleaved"],
            "variant": ["rope", "rope_pos_ids", "llama31", "llama31_pos_ids", "cos_sin_cache"],
        }
    ],
}


def run(folder: Path, name: str, mode: str, fault: str = "") -> tuple[int, list[dict[str, Any]]]:
    """(exit status, records) of the command line on the small points of a target."""
    found = sweep.points(load(name), SMALL[name])
    points, out = folder / "points.json", folder / "out.jsonl"
    points.write_text(json.dumps([point.as_dict() for point in found]), "utf-8")
    command = [sys.executable, "-m", "ncuflow", "launch", name, "--mode", mode]
    command += ["--points", str(points), "--out", str(out)]
    environment = {**os.environ, "NCUFLOW_FAULT": fault}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True, check=False
    )
    assert out.exists(), done.stderr
    return done.returncode, [json.loads(line) for line in out.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("name", sorted(known()))
def test_small_points_agree_with_the_reference(name: str, tmp_path: Path) -> None:
    status, records = run(tmp_path, name, "check")
    reasons = {record["point"]: record["reason"] for record in records if record["reason"]}
    assert (status, reasons) == (0, {})
    assert all(0 < record["check"]["rel_l2"] < record["check"]["tolerance"] for record in records)


@pytest.mark.parametrize("name", sorted(known()))
def test_a_planted_wrong_result_is_refused_and_not_timed(name: str, tmp_path: Path) -> None:
    status, records = run(tmp_path, name, "time", "wrong:*")
    assert status == 3
    assert {record["status"] for record in records} == {"wrong"}
    assert all(record["timing"] is None for record in records)


def test_times_are_positive_and_hot_is_no_slower_than_cold(tmp_path: Path) -> None:
    status, records = run(tmp_path, "rmsnorm", "time")
    assert status == 0
    for record in records:
        cold, hot = (record["timing"][kind] for kind in ("cold", "hot"))
        assert cold["n"] >= 5 and hot["n"] >= 5
        assert 0 < hot["median"] <= 1.1 * cold["median"]
        assert cold["queued"] and hot["queued"]


@pytest.fixture(scope="module")
def device() -> Any:
    pytest.importorskip("torch")
    from ncuflow.runner.gpu import Gpu

    return Gpu()


def test_a_cold_launch_finds_nothing_in_l2(device: Any) -> None:
    """A copy that L2 holds takes longer when it was flushed; launched one by one on both sides."""
    source = device.torch.ones(device.properties.L2_cache_size // 4, dtype=device.torch.int8)
    source = source.cuda()
    copy = device.torch.empty_like(source)
    cold, hot = (
        median(burst.times)
        for burst in (
            device.cold(lambda: copy.copy_(source), 30),
            device.hot(lambda: copy.copy_(source), 30, 1),
        )
    )
    assert cold > 1.15 * hot


def test_a_host_that_falls_behind_is_told(device: Any) -> None:
    value = device.torch.zeros(1, device="cuda")
    assert device.cold(lambda: value.add_(1), 5).queued
    assert not device.cold(lambda: sum(range(2_000_000)) and value.add_(1), 5).queued


def test_ceilings_lie_below_the_datasheet_and_not_far(device: Any) -> None:
    published = datasheet(device.facts()["name"])
    if published is None:
        pytest.skip("no datasheet of this GPU")
    measured = ceilings.measure(device, 10)
    assert 0.6 < measured["copy_gbs"]["value"] / published["dram_gbs"] < 1.02
    for dtype in ("f16", "bf16"):
        reached = measured["matmul_tflops"][dtype]["value"] / published["tensor_tflops"]
        assert 0.5 < reached < 1.02
