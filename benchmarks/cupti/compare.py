"""Counters of CUPTI's range profiler, taken in the process that times, beside ncu's of the same points.

    python benchmarks/cupti/compare.py --out cupti.json      on a GPU: both tools, 5 launches each; PASS or FAIL a line
    python benchmarks/cupti/outcome.py cupti.json            the outcome as a page: benchmarks/cupti/OUTCOME.md

An experiment: ncu starts the measured program anew, which costs more than what it then counts. CUPTI's range profiler
(CUDA 12.6 and later) reads the same counters without that. Are its numbers ncu's? The counters are those of the first
tier of `ncuflow try`; the process times each point by events, counts it, and times it again. A point whose modules are
not compiled is left out, and named; `--points DIR` writes what `ncuflow build --points DIR/*.json` compiles.

Three ways to count, from the one that is nearest to ncu's:

auto    a range around each kernel; every pass is a launch of our own, the L2 cache flushed before it as for the events
user    a range around each call, all launches of a point in one collection: the fewest starts and stops, but the time
        holds what lies between launch and kernel, and kernels of one call are counted together
replay  a range around each kernel, which CUPTI launches again for each pass: nothing is flushed in between, so the
        second pass finds the caches warm

CUPTI flushes no cache and locks no clock. It names no kernel either: a range has a number, and grid, registers and
occupancy are for other interfaces to tell. CUPTI and ncu cannot profile one process, so ncu has one of its own.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.cupti import outcome  # noqa: E402
from ncuflow.experiments.why import FEW, FIRST, CountedSide, counted  # noqa: E402
from ncuflow.gpu import lock  # noqa: E402
from ncuflow.io import CommandError, read_json, scratch, write_json  # noqa: E402
from ncuflow.model import Kernel  # noqa: E402
from ncuflow.process import minimal_environment, run_child  # noqa: E402
from ncuflow.run.ncu import ncu_version  # noqa: E402
from ncuflow.sweep.points import Planned, points  # noqa: E402
from ncuflow.target.contract import load  # noqa: E402

# Of the sweeps `default` and `serving`: launches of some and of hundreds of microseconds, of one kernel and of more.
POINTS: dict[str, list[dict[str, Any]]] = {
    "rmsnorm": [{"rows": [128, 16384], "norm": "cuda"}],
    "rope": [{"variant": "cos_sin_cache", "tokens": 16384}],
    "merge_state": [{"variant": "merge_state", "seq_len": 4096}],
    "activation": [{"variant": "silu", "tokens": 4096}],
    "decode": [{"batch": 32, "kv_len": 512}],
}
REPEATS = 5
LIMIT_S = 42.0  # of each of the two processes


def planned() -> list[Planned]:
    return [point for name, blocks in POINTS.items() for point in points(load(name), blocks)]


def compare(repeats: int) -> dict[str, Any]:
    """Both tools on the points that can run here; `outcome.py` reads it. Raises CommandError where CUPTI gave nothing."""
    with lock.gpu_lock() as held, scratch() as folder:
        environment = {**minimal_environment(), **held.environ}
        command = [sys.executable, str(Path(__file__).with_name("counting.py")), f"--repeats={repeats}"]  # fmt: skip
        source, out = folder / "points.json", folder / "counted.json"
        write_json(source, [point.as_dict() for point in planned()])
        words = ["--count", str(source), str(out)]
        ended = run_child([*command, *words], env=environment, timeout=LIMIT_S, on_line=print, inherited=held.locks)  # fmt: skip
        record: dict[str, Any] = {"status": ended.returncode, "wall_s": ended.wall_s}
        if not out.exists():
            raise CommandError(f"nothing was counted by CUPTI: status {ended.returncode}", 1)
        record |= {"repeats": repeats, "cupti": read_json(out), "ncu_version": ncu_version()}
        chosen = [point for point in planned() if point.id in record["cupti"]["points"]]
        if not chosen:
            raise CommandError(f"no point can run here: {record['cupti']['left_out']}", 1)
        started = time.perf_counter()
        record |= {"ncu": {}, "ncu_error": None}
        try:
            side = CountedSide(command, environment, folder)
            found = counted("cupti", chosen, FEW, side, held, LIMIT_S)
            record["ncu"] = {name: [_kept(kernel) for kernel in found[name]] for name in found}
        except CommandError as error:
            record["ncu_error"] = str(error)
        record["ncu_wall_s"] = time.perf_counter() - started
    return record


def _kept(kernel: Kernel) -> dict[str, Any]:
    values = {key: kernel["metrics"].get(key) for key in FIRST}
    return {"name": kernel["name"], "passes": kernel["passes"], "values": values}


def write_points(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in POINTS:
        entries = [point.as_dict() for point in planned() if point.target == name]
        write_json(folder / f"{name}.json", entries)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, help="the record of a comparison, JSON")
    what.add_argument("--points", type=Path, metavar="DIR", help="write the points of each target")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    args = parser.parse_args()
    if args.points:
        write_points(args.points)
    else:
        try:
            record = compare(args.repeats)
        except CommandError as error:
            print(f"error: {error}", file=sys.stderr)
            return 1
        write_json(args.out, record)
        good, lines = outcome.judged(record)
        print("\n".join(lines))
        return 0 if good else 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
