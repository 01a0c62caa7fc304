"""How long comparing 1 000 points takes, imports included. It should stay below 5 s.

python benchmarks/bench_compare.py [--points 1000] [--runs 5] [--changed 0.1]
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from compare_data import kernel, point, side, with_runs  # noqa: E402

from ncuflow.compare.verdict import Side  # noqa: E402
from ncuflow.io import write_json  # noqa: E402


def write(folder: Path, found: Side) -> Path:
    """The results folder of a side."""
    rows = [p | {"samples": {"cold_us": p["runs"]["cold_us"][0]}} for p in found.points.values()]
    content = {"target": "decode", "provenance": found.provenance, "points": rows}
    write_json(folder / "results/decode_results.json", content)
    return folder / "results"


def sides(points: int, runs: int, changed: float) -> tuple[Side, Side]:
    """Two sides of so many points, a share of which runs a worse kernel in the second."""
    rng = random.Random(1)
    found = []
    for name in ("base", "head"):
        rows = []
        for i in range(points):
            worse = name == "head" and i < changed * points
            one = kernel(tile=1, long_scoreboard=8.0) if worse else kernel()
            rows.append(
                with_runs(rng, point(f"decode/B{i}", 260.0 if worse else 200.0, [one]), runs)
            )
        found.append(side(name, rows))
    return found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--changed", type=float, default=0.1, help="share of points, of 1")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base, head = sides(args.points, args.runs, args.changed)
        written = [write(Path(folder, name), one) for name, one in (("a", base), ("b", head))]
        command = [sys.executable, "-m", "ncuflow", "compare", *map(str, written)]
        command += ["--format", "json", "--out", f"{folder}/c.json"]
        started = time.perf_counter()
        subprocess.run(command, cwd=ROOT, check=True)
        took = time.perf_counter() - started
    print(
        f"{args.points} points, {args.runs} run(s) per side, {args.changed:.0%} changed: {took:.2f} s"
    )


if __name__ == "__main__":
    main()
