"""What the driver says of the GPUs here, by NVML; by libcuda what NVML has no question for: SMs, L2, memory of a program.

What it does not tell, for want of support or permission, on a MIG slice or without a driver, is None.
"""

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from ncuflow.io import JsonObject
from ncuflow.process import CaptureError

IDLE = "gpu_idle"  # the one reason that holds nothing back
# Bits of nvmlClocksEventReason* (nvml.h), which nvidia-smi shows as clocks_throttle_reasons.active.
_REASONS = {
    0x1: IDLE,
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}
_ATTRIBUTES = {"major": 75, "minor": 76, "sm_count": 16, "l2_bytes": 38}  # CU_DEVICE_ATTRIBUTE_*


class NoGpuError(CaptureError):
    """There is no GPU that this process may use."""


@dataclass(frozen=True)
class VisibleGpu:
    """A GPU as NVML lists it."""

    index: int
    uuid: str
    name: str


def visible() -> list[VisibleGpu]:
    """The GPUs that this process may use, in the order of CUDA_VISIBLE_DEVICES. Raises NoGpuError that says why there is none."""
    if not (found := _listed()):
        raise NoGpuError("no NVIDIA GPU: the driver lists none")
    gpus = select_visible(found, os.environ.get("CUDA_VISIBLE_DEVICES"))
    if not gpus:
        raise NoGpuError("CUDA_VISIBLE_DEVICES: leaves none of the GPUs that the driver lists")
    return gpus


def needed(without: str) -> None:
    """Raises NoGpuError where there is none, with the command that works without."""
    try:
        visible()
    except NoGpuError as error:
        raise NoGpuError(f"{error}; {without} works without a GPU") from None


def names() -> list[str]:
    """Names of the visible GPUs; empty without one."""
    return [gpu.name for gpu in _here()]


def driver() -> str | None:
    """Version of the driver."""
    with suppress(NoGpuError):
        nvml = _library()
        with suppress(nvml.NVMLError):
            return str(nvml.nvmlSystemGetDriverVersion())
    return None


def capabilities() -> list[str]:
    """Compute capabilities of the visible GPUs, e.g. ["9.0"]; empty without one."""
    versions = {DriverQuery(gpu.uuid).capability() for gpu in _here()}
    return [f"{major}.{minor}" for major, minor in sorted(filter(None, versions))]


def _here() -> list[VisibleGpu]:
    with suppress(NoGpuError):
        return visible()
    return []


def select_visible(gpus: Sequence[VisibleGpu], allowed: str | None) -> list[VisibleGpu]:
    """The GPUs that a value of CUDA_VISIBLE_DEVICES leaves, in its order.

    As in CUDA, the first bad entry ends the list.
    """
    if allowed is None:
        return list(gpus)
    chosen: list[VisibleGpu] = []
    for entry in (part.strip() for part in allowed.split(",")):
        matches = [gpu for gpu in gpus if _matches(gpu, entry)]
        if len(matches) != 1:
            break
        chosen.append(matches[0])
    return chosen


def _matches(gpu: VisibleGpu, entry: str) -> bool:
    return entry == str(gpu.index) or (entry.startswith("GPU-") and gpu.uuid.startswith(entry))


def _library() -> Any:
    """The module pynvml, with NVML at work. Raises NoGpuError where it is not."""
    try:
        import pynvml

        pynvml.nvmlInit()  # counted, and never given back: to begin takes long, to go on does not
    except ImportError:
        raise NoGpuError("no NVIDIA GPU is known: nvidia-ml-py is not installed") from None
    except pynvml.NVMLError as error:
        raise NoGpuError(f"no NVIDIA driver: {error}") from None
    return pynvml


def _listed() -> list[VisibleGpu]:
    """All GPUs; without those that NVML cannot reach, which have fallen off the bus."""
    nvml = _library()
    found, count = [], 0
    with suppress(nvml.NVMLError):
        count = nvml.nvmlDeviceGetCount()
    for index in range(count):
        with suppress(nvml.NVMLError):
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            uuid, name = nvml.nvmlDeviceGetUUID(gpu), nvml.nvmlDeviceGetName(gpu)
            found.append(VisibleGpu(index, uuid, name))
    return found


def throttle_reasons(mask: int) -> list[str]:
    """Names of NVML's clock throttle reasons; an unknown bit is kept as a number."""
    return [
        _REASONS.get(1 << bit, f"reason_{1 << bit:#x}")
        for bit in range(mask.bit_length())
        if mask >> bit & 1
    ]


class DriverQuery:
    """What NVML tells of one GPU."""

    def __init__(self, uuid: str) -> None:
        """uuid: as NVML has it or, without "GPU-", as CUDA has it."""
        self._gpu: Any = None
        with suppress(NoGpuError):
            self._nvml = _library()
            with suppress(self._nvml.NVMLError):
                full = f"GPU-{uuid.removeprefix('GPU-')}"
                self._gpu = self._nvml.nvmlDeviceGetHandleByUUID(full)

    def _asked(self, question: str, kind: str | None = None) -> Any:
        """The answer of nvmlDeviceGet<question>, of a `kind` where there are several."""
        if self._gpu is None:
            return None
        words = [getattr(self._nvml, f"NVML_{kind}")] if kind else []
        with suppress(self._nvml.NVMLError):
            return getattr(self._nvml, f"nvmlDeviceGet{question}")(self._gpu, *words)
        return None

    def capability(self) -> tuple[int, int] | None:
        """Compute capability, (9, 0) for 9.0."""
        found = self._asked("CudaComputeCapability")
        return tuple(found) if found else None

    def throttle(self) -> list[str] | None:
        """Reasons that hold the clocks back now."""
        mask = self._asked("CurrentClocksThrottleReasons")
        return None if mask is None else throttle_reasons(mask)

    def clocks(self) -> JsonObject | None:
        """{"sm_mhz", "mem_mhz", "throttle": [reasons]}; None where none of them is known."""
        found = {
            "sm_mhz": self._asked("ClockInfo", "CLOCK_SM"),
            "mem_mhz": self._asked("ClockInfo", "CLOCK_MEM"),
            "throttle": self.throttle(),
        }
        return None if set(map(type, found.values())) == {type(None)} else found

    def processes(self) -> int | None:
        """How many programs compute on it."""
        found = self._asked("ComputeRunningProcesses")
        return None if found is None else len(found)

    def facts(self) -> JsonObject | None:
        """The GPU and its state: MiB, MHz, °C, W, and in words what holds its clocks back; None without a GPU."""
        if self._gpu is None:
            return None
        memory, power = self._asked("MemoryInfo"), self._asked("PowerUsage")
        reasons = self.throttle()
        return {
            "gpu": self._asked("Name"),
            "compute_capability": _dotted(self.capability()),
            "driver": driver(),
            "memory_mib": None if memory is None else memory.total / 2**20,
            "sm_mhz": self._asked("ClockInfo", "CLOCK_SM"),
            "sm_max_mhz": self._asked("MaxClockInfo", "CLOCK_SM"),
            "memory_mhz": self._asked("ClockInfo", "CLOCK_MEM"),
            "memory_max_mhz": self._asked("MaxClockInfo", "CLOCK_MEM"),
            "throttle": reasons and [name.replace("_", " ") for name in reasons if name != IDLE],
            "temperature_c": self._asked("Temperature", "TEMPERATURE_GPU"),
            "power_w": None if power is None else power / 1e3,
        }


def first() -> DriverQuery:
    """The first visible GPU; one that tells nothing where there is none."""
    return DriverQuery(next((gpu.uuid for gpu in _here()), ""))


def cuda() -> JsonObject:
    """The first visible GPU as a program has it: name, uuid, compute_capability, sm_count, l2_bytes, memory_bytes."""
    names = ("name", "uuid", "compute_capability", "sm_count", "l2_bytes", "memory_bytes")
    found: JsonObject = dict.fromkeys(names)
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return found
    gpu, value, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    text, uuid = ctypes.create_string_buffer(256), ctypes.create_string_buffer(16)
    if library.cuInit(0) or library.cuDeviceGet(ctypes.byref(gpu), 0):
        return found
    attributes = {
        name: value.value
        for name, attribute in _ATTRIBUTES.items()
        if library.cuDeviceGetAttribute(ctypes.byref(value), attribute, gpu) == 0
    }
    if library.cuDeviceTotalMem_v2(ctypes.byref(size), gpu) == 0:
        attributes["memory_bytes"] = size.value
    if library.cuDeviceGetName(text, len(text), gpu) == 0:
        found["name"] = text.value.decode()
    if library.cuDeviceGetUuid(uuid, gpu) == 0:
        found["uuid"] = str(UUID(bytes=uuid.raw))
    if {"major", "minor"} <= attributes.keys():
        found["compute_capability"] = _dotted((attributes["major"], attributes["minor"]))
    return found | {name: attributes[name] for name in names if name in attributes}


def _dotted(capability: Sequence[int] | None) -> str | None:
    return ".".join(map(str, capability)) if capability else None
