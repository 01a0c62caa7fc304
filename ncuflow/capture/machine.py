"""What this machine has: GPU, driver, tools, packages. Queries only, no slow import."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from ncuflow.origin import package_version
from ncuflow.process import output_of
from ncuflow.runner.nvml import IDLE, throttle_reasons

GPU_FIELDS = {
    "gpu": "name",
    "compute_capability": "compute_cap",
    "driver": "driver_version",
    "memory_mib": "memory.total",
    "sm_mhz": "clocks.sm",
    "sm_max_mhz": "clocks.max.sm",
    "memory_mhz": "clocks.mem",
    "memory_max_mhz": "clocks.max.mem",
    "throttle": "clocks_throttle_reasons.active",
    "temperature_c": "temperature.gpu",
    "power_w": "power.draw",
}
DRIVER_ATTRIBUTES = {"sm_count": 16, "l2_bytes": 38}  # CU_DEVICE_ATTRIBUTE_*
CAP_SYS_ADMIN = 21
PACKAGES = ("torch", "flashinfer-python", "flashinfer", "nvidia-cutlass-dsl", "ncu-report")
PARAMS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")


def gpus() -> tuple[str, ...]:
    """ "name, driver" of each visible GPU, or of the first that CUDA_VISIBLE_DEVICES names; empty without a driver."""
    visible, program = os.environ.get("CUDA_VISIBLE_DEVICES"), shutil.which("nvidia-smi")
    return () if visible == "" or program is None else _listed(program, visible)


def gpu_names() -> list[str]:
    """Names of the GPUs that `gpus` lists."""
    return [row.split(", ")[0] for row in gpus()]


@cache  # asked several times by a run that begins, and up to half a second each
def _listed(program: str, visible: str | None) -> tuple[str, ...]:
    chosen = [] if visible is None else [f"--id={visible.split(',')[0].strip()}"]
    query = [program, *chosen, "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return tuple((output_of(query) or "").splitlines())


def gpu_query(uuid: str | None = None) -> str | None:
    """nvidia-smi's row for a GPU (default: the first visible one), or None."""
    if shutil.which("nvidia-smi") is None:
        return None
    visible = uuid or os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
    select = [f"--id={visible}"] if visible else []
    query = f"--query-gpu={','.join(GPU_FIELDS.values())}"
    return output_of(["nvidia-smi", *select, query, "--format=csv,noheader,nounits"])


def parse_gpu(text: str | None) -> dict[str, Any] | None:
    """`gpu_query`'s first row as {field: value}; what the driver does not tell is None."""
    lines = (text or "").strip().splitlines()
    cells = [cell.strip() for cell in lines[0].split(",")] if lines else []
    if len(cells) != len(GPU_FIELDS):
        return None
    row: dict[str, Any] = dict(zip(GPU_FIELDS, (_known(cell) for cell in cells), strict=True))
    for key in GPU_FIELDS:
        if key.endswith(("_mib", "_mhz", "_c", "_w")) and row[key] is not None:
            row[key] = float(row[key])
    if row["throttle"] is not None:
        reasons = throttle_reasons(int(row["throttle"], 16))
        row["throttle"] = [name.replace("_", " ") for name in reasons if name != IDLE]
    return row


def driver_attributes() -> dict[str, int | None]:
    """{sm_count, l2_bytes, memory_bytes} of device 0 from libcuda; None where unknown."""
    found: dict[str, int | None] = {**dict.fromkeys(DRIVER_ATTRIBUTES), "memory_bytes": None}
    try:
        cuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return found
    device, value, size = ctypes.c_int(), ctypes.c_int(), ctypes.c_size_t()
    if cuda.cuInit(0) or cuda.cuDeviceGet(ctypes.byref(device), 0):
        return found
    for name, attribute in DRIVER_ATTRIBUTES.items():
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, device) == 0:
            found[name] = value.value
    if cuda.cuDeviceTotalMem_v2(ctypes.byref(size), device) == 0:
        found["memory_bytes"] = size.value
    return found


def counters_refused(params: str | None, status: str | None, uid: int) -> bool | None:
    """Whether the driver refuses performance counters to this process; None if it does not tell.

    `params` is /proc/driver/nvidia/params, `status` /proc/self/status. Root without CAP_SYS_ADMIN
    (a container) is refused as well.
    """
    match = re.search(r"RmProfilingAdminOnly:\s*(\d)", params or "")
    if match is None:
        return None
    if match.group(1) == "0":
        return False
    capabilities = re.search(r"^CapEff:\s*([0-9a-fA-F]+)", status or "", re.MULTILINE)
    if capabilities is None:
        return uid != 0
    return not int(capabilities.group(1), 16) >> CAP_SYS_ADMIN & 1


def counters_refused_here() -> bool | None:
    """`counters_refused` of this process."""
    return counters_refused(read_text(PARAMS), read_text(STATUS), os.getuid())


def read_text(path: Path) -> str | None:
    """A small file's text, or None."""
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return None


def tool(name: str, environ: Mapping[str, str] | None = None) -> str | None:
    """Path of ncu, nsys or nvcc: NCUFLOW_NCU, NCUFLOW_NSYS; else PATH; else the CUDA toolkit."""
    environ = os.environ if environ is None else environ
    toolkit = Path(environ.get("CUDA_HOME") or "/usr/local/cuda") / "bin" / name
    return shutil.which(environ.get(f"NCUFLOW_{name.upper()}") or name) or shutil.which(toolkit)


def installed() -> str:
    """What the preflight would look at, in one line: where that is another one, it has to look again."""
    tools = [tool(name) or name for name in ("nvidia-smi", "ncu", "nsys", "nvcc", "ninja", "g++")]
    found = [(path, Path(path).stat().st_mtime_ns if Path(path).is_file() else 0) for path in tools]
    packages = [package_version(name) for name in PACKAGES]
    return f"{found} {packages} {gpus()} {counters_refused_here()}"


def tier_reason(gpu: Mapping[str, Any] | None, counters: bool = True) -> tuple[str, str]:
    """("A" | "B" | "C", why): live counters, live without counters, or recorded evidence.

    gpu: what `parse_gpu` knows of it; counters: whether the run collects any. Starts no process and imports nothing.
    """
    if shutil.which("nvidia-smi") is None:
        return "C", "no NVIDIA driver here (nvidia-smi is not on PATH)"
    if gpu is None:
        return "C", "nvidia-smi lists no GPU"
    missing = [name for name in ("torch", "flashinfer") if importlib.util.find_spec(name) is None]
    if missing:
        return "C", f"not installed: {', '.join(missing)}"
    if not counters:
        return "B", "counters were not asked for (ncu: enabled)"
    if tool("ncu") is None:
        return "B", "ncu is not on PATH"
    if counters_refused_here():
        return "B", "the driver refuses performance counters"
    return "A", "GPU, ncu and counters are available"


def _known(cell: str) -> str | None:
    return None if cell.startswith("[") or cell in ("N/A", "") else cell
