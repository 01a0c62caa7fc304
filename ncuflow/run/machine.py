"""What this machine has: GPU, driver, tools, packages. Queries only, no slow import."""

import importlib.util
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ncuflow.gpu import nvml
from ncuflow.origin import package_version

CAP_SYS_ADMIN = 21
PACKAGES = ("torch", "flashinfer-python", "flashinfer", "nvidia-cutlass-dsl", "ncu-report")
PARAMS = Path("/proc/driver/nvidia/params")
STATUS = Path("/proc/self/status")


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
    tools = [tool(name) or name for name in ("ncu", "nsys", "nvcc", "ninja", "g++")]
    found = [(path, Path(path).stat().st_mtime_ns if Path(path).is_file() else 0) for path in tools]
    packages = [package_version(name) for name in PACKAGES]
    return f"{found} {packages} {nvml.names()} {nvml.driver()} {counters_refused_here()}"


def tier_reason(gpu: Mapping[str, Any] | None, counters: bool = True) -> tuple[str, str]:
    """("A" | "B" | "C", why): live counters, live without counters, or recorded evidence.

    gpu: what `nvml.DriverQuery` knows of it; counters: whether the run collects any. Starts no process and imports nothing.
    """
    if gpu is None:
        return "C", "no NVIDIA GPU is visible"
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
