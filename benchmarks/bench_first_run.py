"""A first run on a machine with a GPU: the look at it, the smallest sweep and the default one, from no compiled module.

    python benchmarks/bench_first_run.py --out first-run.json [--runs environment,again,smoke,all,changed]

Each run is a command of Snakemake with the seconds of its parts: those of the jobs of a rule, added up. They overlap, and
a profiler's count from its start, also while it waits for the GPU. Outputs and compiled modules lie in a folder of their
own, which is kept until the end: `again` and `changed` find what the runs before them left. As root the page cache is
dropped before the first run, because on a fresh machine nothing of torch has been read. All of it takes 12 to 20 minutes
of an H200 with 16 cores.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import description
from ncuflow.evidence.provenance import origin
from ncuflow.gpu import nvml
from ncuflow.run.preflight import tool_versions

ROOT = Path(__file__).parents[1]
# Of each run the words of the command and its settings. The last one has other points of one target.
RUNS = {
    "environment": (["-j1", "environment"], []),
    "again": (["-j1", "--forceall", "environment"], []),
    "smoke": (["-j12", "all"], ["sweep=smoke", "machine=smoke"]),
    "all": (["-j12", "all"], ["machine=default"]),
    "changed": (
        ["-j12", "all"],
        ["machine=default", "sweeps={'default': {'rmsnorm': [{'rows': [64, 16384]}]}}"],
    ),
}
PARTS = ("preflight", "build", "time", "pairs", "trace", "profile", "profile_deep")


def jobs(folder: Path) -> dict[tuple[str, str], tuple[float, float]]:
    """(rule, command) -> (start, end) of all that Snakemake has noted of jobs in this folder."""
    found = {}
    for path in (folder / ".snakemake/metadata").glob("**/*"):
        if path.is_file() and _is_output(path.name):
            noted = json.loads(path.read_text("utf-8"))
            if noted.get("starttime"):  # noted once per file that the job made
                span = noted["starttime"], noted["endtime"]
                found[noted["rule"], str(noted["shellcmd"])] = span
    return found


def _is_output(name: str) -> bool:
    """Whether a file of the metadata is named after an output, in base64."""
    try:
        return bool(base64.b64decode(name, validate=True))
    except ValueError:
        return False


def run(words: list[str], settings: list[str], folder: Path) -> dict[str, Any]:
    """Wall seconds of a command, its parts, and what it said. Raises CalledProcessError where it fails."""
    before = jobs(folder)
    snakemake = [sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile")]
    modules = f"build={{'jobs': null, 'folder': '{folder / 'modules'}'}}"
    command = [*snakemake, "-d", str(folder), *words, "--config", modules, *settings]
    started = time.perf_counter()
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    wall = time.perf_counter() - started
    parts: defaultdict[str, float] = defaultdict(float)
    for job, (start, end) in jobs(folder).items():
        if before.get(job, (0.0, 0.0))[0] < start:
            parts[job[0] if job[0] in PARTS else "the rest"] += end - start
    return {
        "wall_s": round(wall, 1),
        "parts_s": {rule: round(seconds, 1) for rule, seconds in parts.items()},
        "said": done.stderr.replace(f"{ROOT}/", "").splitlines(),
    }


def drop_page_cache() -> bool:
    """Whether files will be read from the disk again. Only root may ask for that, and not in every container."""
    os.sync()
    try:
        Path("/proc/sys/vm/drop_caches").write_text("3", encoding="utf-8")
    except OSError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--runs", default=",".join(RUNS), help=f"of {', '.join(RUNS)}, in this order"
    )
    parser.add_argument("--out", type=Path, help="JSON with all figures")
    args = parser.parse_args()
    gpu = nvml.first().facts() or parser.exit(2, "error: no GPU is visible\n")
    tools = tool_versions()
    made = origin(gpu["gpu"], gpu["driver"], **tools)
    found: dict[str, Any] = {"benchmark": "first run", "machine": description() | made, "runs": {}}
    found["page_cache_dropped"] = drop_page_cache()
    with tempfile.TemporaryDirectory(prefix="first-run-") as name:
        for label in args.runs.split(","):
            found["runs"][label] = run(*RUNS[label], Path(name))
            print(
                label,
                found["runs"][label]["wall_s"],
                "s",
                found["runs"][label]["parts_s"],
                flush=True,
            )
            if args.out:  # a run of minutes may be the last
                args.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
