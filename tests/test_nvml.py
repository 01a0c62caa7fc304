"""What the driver says of GPUs: what it does not tell is None, and where there is none one line says why."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import fake_gpus
import pytest
from command import python

from ncuflow.gpu import nvml
from ncuflow.gpu.nvml import DriverQuery, NoGpuError

H200, V100 = fake_gpus.H200, fake_gpus.V100
TWO = [H200, H200 | {"UUID": "GPU-bbbb1111-2", "Name": "NVIDIA H100 80GB HBM3"}]


def test_the_facts_of_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake_gpus.put(monkeypatch, tmp_path, H200 | {"CurrentClocksThrottleReasons": 0x5})
    assert nvml.first().facts() == {
        "gpu": "NVIDIA H200",
        "compute_capability": "9.0",
        "driver": "580.159.04",
        "memory_mib": 143771.0,
        "sm_mhz": 1980,
        "sm_max_mhz": 1980,
        "memory_mhz": 3201,
        "memory_max_mhz": 3201,
        "throttle": ["sw power cap"],  # and idle, which holds nothing back
        "temperature_c": 31,
        "power_w": 77.24,
    }


def test_what_is_not_told_is_null_and_never_zero(monkeypatch, tmp_path):
    fake_gpus.put(monkeypatch, tmp_path, V100)
    told = nvml.first()
    facts = told.facts()
    known = {key for key, value in facts.items() if value is not None}
    assert known == {"gpu", "compute_capability", "driver"}
    assert told.throttle() is told.clocks() is told.processes() is None
    some = DriverQuery("cccc")  # as CUDA has it
    assert some.capability() == (7, 0)
    fake_gpus.put(monkeypatch, tmp_path, V100 | {"ClockInfoSM": 345})
    assert nvml.first().clocks() == {"sm_mhz": 345, "mem_mhz": None, "throttle": None}


def test_a_gpu_that_is_not_there_tells_nothing(monkeypatch, tmp_path):
    fake_gpus.put(monkeypatch, tmp_path, H200)
    assert DriverQuery("GPU-other").facts() is DriverQuery("MIG-aaaa").clocks() is None
    fake_gpus.no_driver(monkeypatch, tmp_path)
    assert nvml.first().facts() is nvml.first().capability() is nvml.driver() is None
    assert nvml.names() == nvml.capabilities() == []


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no package", "no NVIDIA GPU is known: nvidia-ml-py is not installed"),
        ("no driver", "no NVIDIA driver: NVML Shared Library Not Found"),
        ("no GPU", "no NVIDIA GPU: the driver lists none"),
        ("none left", "CUDA_VISIBLE_DEVICES: leaves none of the GPUs that the driver lists"),
    ],
)
def test_no_gpu_is_one_line_that_says_why(monkeypatch, tmp_path, case, words):
    fake_gpus.put(monkeypatch, tmp_path, *([H200] if case == "none left" else []))
    if case == "no package":
        monkeypatch.setitem(sys.modules, "pynvml", None)
    elif case == "no driver":
        fake_gpus.no_driver(monkeypatch, tmp_path)
    elif case == "none left":
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7")
    with pytest.raises(NoGpuError) as refused:
        nvml.visible()
    assert str(refused.value) == words
    assert nvml.names() == []


def test_a_gpu_that_has_fallen_off_the_bus_is_passed_over(monkeypatch, tmp_path):
    fake_gpus.put(monkeypatch, tmp_path, {"UUID": "GPU-lost"}, H200)
    assert [(gpu.index, gpu.name) for gpu in nvml.visible()] == [(1, "NVIDIA H200")]


@pytest.mark.parametrize(
    ("allowed", "indices"),
    [
        (None, [0, 1]),
        ("1,0", [1, 0]),
        ("GPU-bbbb", [1]),
        ("0,7,1", [0]),  # as in CUDA, what follows a bad entry is not seen
        ("", []),
        ("-1", []),
    ],
)
def test_visible_gpus_follow_cuda_visible_devices(monkeypatch, tmp_path, allowed, indices):
    fake_gpus.put(monkeypatch, tmp_path, *TWO)
    if allowed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", allowed)
    names = ["NVIDIA H200", "NVIDIA H100 80GB HBM3"]
    assert nvml.names() == [names[index] for index in indices]


def test_capabilities_are_those_of_the_visible_gpus(monkeypatch, tmp_path):
    newer = H200 | {"UUID": "GPU-bbbb", "CudaComputeCapability": [10, 0]}
    fake_gpus.put(monkeypatch, tmp_path, newer, H200, V100 | {"CudaComputeCapability": None})
    assert nvml.capabilities() == ["9.0", "10.0"]


def test_throttle_reasons_are_named_and_unknown_bits_kept() -> None:
    assert nvml.throttle_reasons(0) == []
    assert nvml.throttle_reasons(0x24) == ["sw_power_cap", "sw_thermal_slowdown"]
    assert nvml.throttle_reasons(0x400) == ["reason_0x400"]


LIBCUDA = """
#include <string.h>
int cuInit(unsigned flags) { return REFUSES; }
int cuDeviceGet(int *gpu, int ordinal) { *gpu = 7 + ordinal; return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int gpu) { *bytes = 5000000000 + gpu; return 0; }
int cuDeviceGetName(char *name, int size, int gpu) { strncpy(name, "NVIDIA H200", size); return gpu != 7; }
int cuDeviceGetUuid(char *uuid, int gpu) { for (int i = 0; i < 16; i++) uuid[i] = i; return gpu != 7; }
int cuDeviceGetAttribute(int *value, int attribute, int gpu)
{
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 132 : 50;
    return gpu != 7 || attribute == 38;
}
"""


@pytest.mark.skipif(not shutil.which("cc"), reason="needs a C compiler")
@pytest.mark.parametrize("refuses", [False, True])
def test_what_nvml_is_not_asked_for_is_asked_of_the_cuda_driver(tmp_path, refuses):
    library = ["cc", "-shared", "-fPIC", f"-DREFUSES={int(refuses)}", "-x", "c", "-"]
    library += ["-o", str(tmp_path / "libcuda.so.1")]
    subprocess.run(library, input=LIBCUDA, text=True, check=True)
    code = "import json; from ncuflow.gpu import nvml; print(json.dumps(nvml.cuda()))"
    found = json.loads(python("-c", code, LD_LIBRARY_PATH=str(tmp_path)).stdout)
    assert found.pop("l2_bytes") is None  # it does not tell
    if refuses:
        assert {*found.values()} == {None}
        return
    assert found == {
        "name": "NVIDIA H200",
        "uuid": "00010203-0405-0607-0809-0a0b0c0d0e0f",
        "compute_capability": "9.0",
        "sm_count": 132,
        "memory_bytes": 5000000007,
    }


def test_the_names_that_are_asked_for_are_those_of_the_package() -> None:
    package = pytest.importorskip("pynvml")
    code = Path(nvml.__file__).read_text("utf-8")
    questions = {word.partition('"')[0] for word in code.split('_asked("')[1:]}
    assert len(questions) > 5
    assert [name for name in questions if not hasattr(package, f"nvmlDeviceGet{name}")] == []
    for kind in ("CLOCK_SM", "CLOCK_MEM", "TEMPERATURE_GPU"):
        assert hasattr(package, f"NVML_{kind}")
