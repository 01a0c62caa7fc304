"""What a figure was measured on, and how long and how large a command was."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PACKAGES = ("snakemake", "ncu-report", "pyarrow", "pandas")
SAMPLE_S = 0.25  # the kernel goes through all pages for a sample


@dataclass(frozen=True)
class Cost:
    """Wall seconds, CPU seconds, and peak bytes of all processes together (sampled), shared ones once."""

    wall_s: float
    cpu_s: float
    peak_bytes: int
    output: str

    def as_dict(self) -> dict[str, float]:
        return {
            "wall_s": round(self.wall_s, 2),
            "cpu_s": round(self.cpu_s, 2),
            "peak_mb": round(self.peak_bytes / 1e6),
        }


def measure(
    command: Sequence[str], cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Cost:
    """Run a command to its end. Raises CalledProcessError, with its output, where it fails."""
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        child = subprocess.Popen(
            list(command), cwd=cwd, env=None if env is None else dict(env), stdout=output,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        peak = Peak(child.pid)
        # wait4 counts the command and all it waited for, and no other command before it.
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    highest = max(peak.stop(), usage.ru_maxrss * 1024)
    if child.returncode:
        raise subprocess.CalledProcessError(child.returncode, list(command), text)
    return Cost(wall, usage.ru_utime + usage.ru_stime, highest, text)


class Peak:
    """Samples the bytes of a session's processes, summed, and keeps the highest sum."""

    def __init__(self, session: int) -> None:
        self.session, self.highest = session, 0
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._done.set()
        self._thread.join()
        return self.highest

    def _watch(self) -> None:
        while not self._done.wait(SAMPLE_S):
            self.highest = max(self.highest, resident(self.session))


def resident(session: int) -> int:
    """Bytes in memory of the processes of a session; a page that several share counts once (Pss)."""
    total = 0
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            stat = Path(entry.path, "stat").read_text("utf-8").rpartition(")")[2].split()
            if int(stat[3]) == session:
                total += proportional(Path(entry.path, "smaps_rollup").read_text("utf-8"))
        except (OSError, IndexError, ValueError):
            continue  # it ended meanwhile
    return total


def proportional(rollup: str) -> int:
    """The Pss of a process, in bytes; 0 where it has no memory any more."""
    lines = (line.split() for line in rollup.splitlines())
    return next((int(words[1]) * 1024 for words in lines if words[0] == "Pss:"), 0)


def description() -> dict[str, Any]:
    """Cores, processor and versions: what stands beside each figure."""
    cpu = [
        line.split(":", 1)[1].strip()
        for line in Path("/proc/cpuinfo").read_text("utf-8").splitlines()
        if line.startswith("model name")
    ]
    versions: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": cpu[0] if cpu else platform.machine(),
        "python": platform.python_version(),
        "versions": versions,
        "load_1min": round(os.getloadavg()[0], 2),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }
