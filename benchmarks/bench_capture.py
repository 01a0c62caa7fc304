"""Capturing one sweep: the pipeline's batch, ncu alone over a script, nsight-python, and a process a point.

    python benchmarks/bench_capture.py --points 16 [--sides "batch,bare ncu,nsight-python"] [--rounds 5]
        --out benchmarks/results/capture.json

Needs a GPU with counters, ncu, torch, FlashInfer and, for its side, nsight-python (0.9.6 works
with ncu 2025.3; newer ones need 2026.2.1). The sweep is RMSNorm, whose points launch one kernel
each: nsight-python pairs kernels with points by position and expects one. All sides collect the
same counters of the same launches in one run, with the caches flushed and the clocks left alone,
and none compares the points with their references: ours did in the timing run before. What the
sides read is compared. Of several rounds, in each of which every side has its turn, another first in each, wall seconds
are medians, and what was read is of the last.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.machine import description, measure
from ncuflow.gpu import nvml

ROOT = Path(__file__).parents[1]
TARGET = "rmsnorm"
DURATION = "gpu__time_duration.sum"
# What the summary of a kernel is made of: Speed of Light, DRAM, scheduler, stalls, occupancy.
METRICS = (
    DURATION,
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed",
    "dram__bytes_read.sum",
    "dram__bytes_write.sum",
    "dram__cycles_elapsed.avg.per_second",
    "smsp__issue_active.avg.per_cycle_active",
    "smsp__warps_active.avg.per_cycle_active",
    "smsp__warps_eligible.avg.per_cycle_active",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__average_warp_latency_per_inst_issued.ratio",
    "smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",
    "smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio",
    "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum",
    "smsp__inst_executed.sum",
)
NSIGHT = """
import json, sys
sys.path.insert(0, {root!r})
import flashinfer
import nsight
import torch
from ncuflow.target.contract import load

target = load({target!r})
points = json.load(open({points!r}))


@nsight.analyze.kernel(
    configs=[(index,) for index in range(len(points))], runs=1, metrics={metrics!r}, output="quiet",
    clock_control="none", thermal_mode="off", output_prefix={prefix!r},
)
def profile(index):
    launch = target.prepare(points[index]["params"])
    launch.run()
    launch.run()
    torch.cuda.synchronize()
    with nsight.annotate("point"):
        launch.run()
    torch.cuda.synchronize()


frame = profile().to_dataframe()
rows = frame[frame["Metric"] == {duration!r}].sort_values("index")
print("DURATIONS", json.dumps([float(value) for value in rows["AvgValue"]]))
"""
# The least that takes the same counters: one process, no command of ours, nothing read back.
BARE = """
import json, sys
sys.path.insert(0, {root!r})
import flashinfer
import torch
from ncuflow.target.contract import load

target = load({target!r})
for point in json.load(open({points!r})):
    launch = target.prepare(point["params"])
    launch.run()
    launch.run()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStart()
    torch.cuda.nvtx.range_push(point["id"])
    launch.run()
    torch.cuda.nvtx.range_pop()
    torch.cuda.synchronize()
    torch.cuda.cudart().cudaProfilerStop()
"""
Side = dict[str, Any]


def sweep_points(count: int) -> list[dict[str, Any]]:
    """`count` points of the target: rows from 128 on, one kernel each."""
    from ncuflow.sweep import points as sweep
    from ncuflow.target.contract import load

    rows = [128 + 256 * index for index in range(count)]
    found = sweep.points(load(TARGET), [{"variant": "rmsnorm", "rows": rows}])
    return [point.as_dict() for point in found]


def capture(points: list[dict[str, Any]], folder: Path, timing: Path) -> tuple[float, list[float]]:
    """(wall seconds, duration of each point in ns) of one `ncuflow.run.ncu` run, as the pipeline makes it."""
    folder.mkdir(parents=True)
    (folder / "points.json").write_text(json.dumps(points))
    command = [
        sys.executable,
        "-m",
        "ncuflow",
        "ncu",
        TARGET,
        "--points",
        str(folder / "points.json"),
    ]
    command += ["--timing", str(timing), "--out", str(folder)]
    command += ["--sections", "LaunchStats", "--metrics", ",".join(METRICS)]
    cost = measure(command, cwd=ROOT)
    return cost.wall_s, durations(folder / "sweep.ncu-rep", [p["id"] for p in points])


def durations(report: Path, points: list[str]) -> list[float]:
    from ncuflow.parsers import ncu

    found = {k["point"]: k["duration_ns"] for k in ncu.read(report, points).kernels}
    return [found[point] for point in points]


def timed(points: list[dict[str, Any]], folder: Path) -> Path:
    """The points checked and timed, which comes before profiling and is no part of a side."""
    plan, out = folder / "timed.json", folder / "timing.jsonl"
    plan.write_text(json.dumps(points))
    command = [
        sys.executable,
        "-m",
        "ncuflow",
        "launch",
        TARGET,
        "--mode",
        "time",
        "--repeats",
        "3",
    ]
    measure([*command, "--points", str(plan), "--out", str(out)], cwd=ROOT)
    return out


def batch(points: list[dict[str, Any]], folder: Path, timing: Path) -> Side:
    wall, times = capture(points, folder / "batch", timing)
    return side(wall, times)


def process_a_point(points: list[dict[str, Any]], folder: Path, timing: Path) -> Side:
    walls, times = [], []
    for index, point in enumerate(points):
        wall, found = capture([point], folder / f"point-{index}", timing)
        walls.append(wall)
        times += found
    return side(sum(walls), times)


def nsight_python(points: list[dict[str, Any]], folder: Path, _timing: Path) -> Side:
    """The package's own way: a decorated function, in a script that it runs again under ncu."""
    script, plan = folder / "profile_sweep.py", folder / "points.json"
    plan.write_text(json.dumps(points))
    settings = {"root": str(ROOT), "target": TARGET, "points": str(plan), "metrics": list(METRICS)}
    settings |= {"prefix": f"{folder}/nsight-", "duration": DURATION}
    script.write_text(NSIGHT.format(**settings))
    cost = measure([sys.executable, str(script)], cwd=folder)
    text = next(line for line in cost.output.splitlines() if line.startswith("DURATIONS"))
    return side(cost.wall_s, json.loads(text.split(" ", 1)[1]))


def bare_ncu(points: list[dict[str, Any]], folder: Path, _timing: Path) -> Side:
    """ncu over a script that launches the points, with the same metrics and section."""
    script, plan, report = folder / "bare.py", folder / "bare.json", folder / "bare.ncu-rep"
    plan.write_text(json.dumps(points))
    script.write_text(BARE.format(root=str(ROOT), target=TARGET, points=str(plan)))
    command = ["ncu", "--nvtx", "--profile-from-start", "off", "--clock-control", "none", "-f"]
    command += ["--section", "LaunchStats", "--metrics", ",".join(METRICS), "-o", str(report)]
    cost = measure([*command, sys.executable, str(script)], cwd=folder)
    return side(cost.wall_s, durations(report, [point["id"] for point in points]))


def side(wall: float, times: list[float]) -> Side:
    return {"wall_s": round(wall, 2), "points": len(times), "duration_ns": times}


def in_turns(
    runs: dict[str, Callable[..., Side]],
    rounds: int,
    points: list[dict[str, Any]],
    folder: Path,
    timing: Path,
) -> tuple[dict[str, Side], dict[str, str]]:
    """(what each side gave that never failed, the last words of the others, which have no further turn)."""
    found: dict[str, list[Side]] = {}
    failed: dict[str, str] = {}
    labels = list(runs)
    for number in range(rounds):
        first = number % len(labels)
        for label in [*labels[first:], *labels[:first]]:
            if label in failed:
                continue
            place = folder / f"round-{number}-{labels.index(label)}"
            place.mkdir()
            try:
                found.setdefault(label, []).append(runs[label](points, place, timing))
            except subprocess.CalledProcessError as error:
                failed[label] = " / ".join(str(error.output).strip().splitlines()[-4:])
                print(label, "failed:", failed[label], flush=True)
                continue
            print(label, found[label][-1]["wall_s"], "s", flush=True)
    whole = [label for label in labels if label not in failed]
    return {label: over_rounds(found[label]) for label in whole}, failed


def over_rounds(turns: list[Side]) -> Side:
    """The side of its last round, with the median of the wall seconds, and those of each round."""
    walls = [turn["wall_s"] for turn in turns]
    return turns[-1] | {"wall_s": round(statistics.median(walls), 2), "walls_s": walls}


def agreement(one: Side, other: Side) -> dict[str, float]:
    """Median and worst ratio of the kernel times that two sides read."""
    ratios = [a / b for a, b in zip(one["duration_ns"], other["duration_ns"], strict=True)]
    return {
        "median": round(statistics.median(ratios), 4),
        "least": round(min(ratios), 4),
        "most": round(max(ratios), 4),
    }


def tools() -> dict[str, str | None]:
    """Versions of ncu and the GPU; the packages are in the machine's description."""
    text = subprocess.run(["ncu", "--version"], capture_output=True, text=True, check=True).stdout
    version = re.search(r"Version (\S+)", text)
    return {"ncu": version[1] if version else None, "gpu": nvml.names()[0]}


def versions() -> dict[str, str]:
    import importlib.metadata

    names = ("torch", "flashinfer-python", "nsight-python")
    return {n: importlib.metadata.version(n) for n in names if find_spec(n.split("-")[0])}


SIDES = {
    "batch": batch,
    "bare ncu": bare_ncu,
    "nsight-python": nsight_python,
    "process a point": process_a_point,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=16)
    parser.add_argument(
        "--sides", default=",".join(SIDES), help="batch, and what it is held against"
    )
    parser.add_argument("--rounds", type=int, default=1, help="turns of each side (default 1)")
    parser.add_argument("--out", type=Path, help="JSON with all figures")
    args = parser.parse_args()
    if not {"batch"} <= set(args.sides.split(",")) <= set(SIDES):
        parser.exit(2, f"error: --sides: batch, and others of {', '.join(SIDES)}\n")
    if args.rounds < 1:
        parser.exit(2, "error: --rounds must be at least 1\n")
    if not shutil.which("ncu"):
        parser.exit(2, "error: ncu: not on PATH\n")
    points = sweep_points(args.points)
    asked = args.sides.split(",")
    left_out = "nsight-python" in asked and not find_spec("nsight")
    runs = {name: SIDES[name] for name in asked if name != "nsight-python" or not left_out}
    with tempfile.TemporaryDirectory(prefix="bench-", dir=ROOT / "outputs") as name:
        folder = Path(name)
        timing = timed(points, folder)
        batch(points[:1], folder / "warm", timing)  # fills the file cache; not counted
        sides, failed = in_turns(runs, args.rounds, points, folder, timing)
    if "batch" not in sides:
        parser.exit(1, f"error: the batch failed: {failed['batch']}\n")
    ours = sides["batch"]
    found = {
        "benchmark": "capture",
        "machine": description() | tools() | {"packages": versions()},
        "metrics": len(METRICS),
        "rounds": args.rounds,
        "sides": sides,
        "speedup": {k: round(s["wall_s"] / ours["wall_s"], 2) for k, s in sides.items()},
        "agreement": {k: agreement(s, ours) for k, s in sides.items()},
        "failed": failed,
        "left_out": "nsight-python is not installed" if left_out else None,
    }
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({key: found[key] for key in ("speedup", "agreement", "left_out")}))


if __name__ == "__main__":
    (ROOT / "outputs").mkdir(exist_ok=True)
    main()
