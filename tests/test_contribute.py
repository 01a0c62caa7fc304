"""A recording of a GPU that no recording is of, from one command: a B200 that is none, and what is refused."""

import json
from pathlib import Path

import fake_gpus
import pytest
from fake_machine import Machine, make

from ncuflow.cli import dispatch

B200 = fake_gpus.H200 | {"Name": "NVIDIA B200", "CudaComputeCapability": [10, 0]}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A fake machine with a B200 in it."""
    made = make(tmp_path, points=2)
    device = made.folder / "ncuflow/run/gpu.py"
    text = device.read_text()
    told = '"name": "NVIDIA H200", "compute_capability": "9.0"'
    assert told in text
    device.write_text(text.replace(told, '"name": "NVIDIA B200", "compute_capability": "10.0"'))
    fake_gpus.write(made.folder, B200)
    made.install("flashinfer_python", "0.7.2.post1")
    # FlashInfer's source is what no machine without it has.
    made.captures.parent.mkdir(parents=True)
    (made.captures.parent / "source_index.json").write_text("{}")
    return made


def test_one_command_makes_a_verified_recording_where_its_gpu_says(machine, capsys):
    done = machine.run("contribute")
    assert done.returncode == 0, done.stdout + done.stderr
    folder = machine.folder / "recordings/b200/0.7.2/default"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["name"] == "b200-0.7.2-default"
    assert manifest["provenance"]["gpu"] == "NVIDIA B200"
    points = {point for batch in manifest["targets"]["toy"].values() for point in batch}
    assert points == {"toy/n1", "toy/n2"}
    assert "verified: NVIDIA B200, FlashInfer 0.7.2.post1: points 2 ok" in done.stdout
    assert dispatch(["record", "--verify", str(folder)]) == 0
    again = machine.run("contribute")
    assert again.returncode != 0 and "is there and not empty" in again.stdout
