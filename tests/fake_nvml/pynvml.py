"""NVML of a machine that is none: what NCUFLOW_TEST_NVML, a file, says of its GPUs. What it does not say is not supported."""

# ruff: noqa: N802
import json
import os
from pathlib import Path
from types import SimpleNamespace

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = "SM", "MEM", "GPU"
ASKED = []  # the questions of this process, in order


class NVMLError(Exception):
    pass


def _machine():
    path = Path(os.environ.get("NCUFLOW_TEST_NVML", "/nowhere"))
    if not path.exists():
        raise NVMLError("NVML Shared Library Not Found")
    text = path.read_text(encoding="utf-8")
    return json.loads(text.replace("{node}", os.environ.get("SLURMD_NODENAME", "")))


def nvmlInit():
    _machine()


def nvmlSystemGetDriverVersion():
    return _machine()["driver"]


def nvmlDeviceGetCount():
    return len(_machine()["gpus"])


def nvmlDeviceGetHandleByIndex(index):
    return _machine()["gpus"][index]


def nvmlDeviceGetHandleByUUID(uuid):
    for gpu in _machine()["gpus"]:
        if gpu["UUID"] == uuid:
            return gpu
    raise NVMLError("Not Found")


def __getattr__(name):
    question = name.removeprefix("nvmlDeviceGet")
    if question == name:
        raise AttributeError(name)

    def answer(gpu, *kind):
        ASKED.append(question)
        told = gpu.get("".join([question, *kind]))
        if told is None:
            raise NVMLError("Not Supported")
        return SimpleNamespace(total=told) if question == "MemoryInfo" else told

    return answer
