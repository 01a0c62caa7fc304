"""GPUs that are none, for the tests' own process and for those that it starts: `fake_nvml/pynvml.py` in NVML's place; and
programs that are none, in a folder where a profiler is to run."""

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

FOLDER = Path(__file__).parent / "fake_nvml"
DRIVER = "580.159.04"
# What NVML tells of an H200, by the ends of its functions' names; MHz, bytes, °C, mW, a mask.
H200 = {
    "UUID": "GPU-aaaa", "Name": "NVIDIA H200", "CudaComputeCapability": [9, 0], "MemoryInfo": 143771 << 20,
    "ClockInfoSM": 1980, "ClockInfoMEM": 3201, "MaxClockInfoSM": 1980, "MaxClockInfoMEM": 3201,
    "CurrentClocksThrottleReasons": 0, "TemperatureGPU": 31, "PowerUsage": 77240, "ComputeRunningProcesses": [],
}  # fmt: skip
# Of an old one a driver tells little.
V100 = {"UUID": "GPU-cccc", "Name": "Tesla V100-SXM2-16GB", "CudaComputeCapability": [7, 0]}


def write(folder: Path, *gpus: dict[str, Any]) -> None:
    """The file that says of these GPUs."""
    (folder / "nvml.json").write_text(json.dumps({"driver": DRIVER, "gpus": gpus}))


def environment(folder: Path) -> dict[str, str]:
    """Variables for a process that is to see the GPUs that a folder's file says of."""
    paths = os.pathsep.join(filter(None, [str(FOLDER), os.environ.get("PYTHONPATH")]))
    return {"NCUFLOW_TEST_NVML": str(folder / "nvml.json"), "PYTHONPATH": paths}


def put(monkeypatch: pytest.MonkeyPatch, folder: Path, *gpus: dict[str, Any]) -> ModuleType:
    """Let this process and its children see these GPUs, in place of any that are here; returns the module in NVML's place."""
    write(folder, *gpus)
    for name, value in environment(folder).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    spec = importlib.util.spec_from_file_location("pynvml", FOLDER / "pynvml.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)
    return module


def no_driver(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Let this process and its children see no driver."""
    put(monkeypatch, folder)
    (folder / "nvml.json").unlink()


TOKEN = "hf_planted_token_value"


def bench(monkeypatch: pytest.MonkeyPatch, folder: Path, points: Sequence[str], **gpu: Any) -> Path:
    """The working folder, with these points, a GPU and a folder of programs; the environment holds a token."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("NCUFLOW_LOCK_DIR", str(folder / "locks"))
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    for name in ("GPU_LOCK", "NCU", "NSYS", "NSYS_LD_LIBRARY_PATH"):
        monkeypatch.delenv(f"NCUFLOW_{name}", raising=False)
    planned = [{"id": point, "target": point.split("/")[0], "params": {}} for point in points]
    (folder / "points.json").write_text(json.dumps(planned))
    put(monkeypatch, folder, gpu)
    return folder


def program(folder: Path, name: str, body: str) -> None:
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)
