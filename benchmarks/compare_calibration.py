"""How often comparing one binary with itself calls a change, and how often a real one is found.

    python benchmarks/compare_calibration.py [--trials 100] [--points 40]

Runs of a point differ by 0.8 % (log-normal over points); with --modes a share of the points has two
modes 11 % apart, one of them drawn for each run. One calm point is made 8 % or 15 % slower.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from ncuflow.findings.statistics import decide, estimates  # noqa: E402

Array = Any
WITHIN, BETWEEN, SHARED, MODES_APART, LAUNCHES = 0.004, 0.008, 0.005, 0.11, 20
ALPHA, THRESHOLD = 0.05, 0.03


def side(rng: Any, deviations: Array, two_moded: Array, runs: int) -> Array:
    """Times of points x runs x launches, µs."""
    points = len(deviations)
    level = rng.normal(0, 1, (points, runs)) * deviations[:, None] + rng.normal(
        0, SHARED, (1, runs)
    )
    level += two_moded[:, None] * rng.integers(0, 2, (points, runs)) * MODES_APART
    return 100 * np.exp(level[:, :, None] + rng.normal(0, WITHIN, (points, runs, LAUNCHES)))


def verdicts(base: Array, head: Array) -> list[str]:
    found, _ = estimates(list(zip(base.tolist(), head.tolist(), strict=True)), ALPHA)
    return [estimate.verdict for estimate in decide(found, ALPHA, THRESHOLD)]


def trial(rng: Any, points: int, runs: int, modes: float) -> tuple[bool, float, bool, bool]:
    """(a false alarm, share of points called same, 8 % found, 15 % found)."""
    deviations = BETWEEN * np.exp(rng.normal(0, 0.7, points))
    two_moded = rng.random(points) < modes
    base, head = (side(rng, deviations, two_moded, runs) for _ in range(2))
    same = verdicts(base, head)
    calm = int(np.argmin(abs(deviations - BETWEEN) + two_moded))
    found = []
    for slower in (1.08, 1.15):
        changed = head.copy()
        changed[calm] *= slower
        found.append(verdicts(base, changed)[calm] == "slower")
    alarm = any(verdict in ("slower", "faster") for verdict in same)
    return alarm, same.count("same") / points, found[0], found[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--points", type=int, default=40)
    parser.add_argument("--modes", type=float, nargs="*", default=[0.0, 0.1])
    args = parser.parse_args()
    print(
        "| two-moded points | runs per side | A/A with a false alarm | points same | +8 % | +15 % |"
    )
    print("|---:|---:|---:|---:|---:|---:|")
    for modes in args.modes:
        for runs in (1, 2, 3, 5, 8):
            rng = np.random.default_rng(1)
            rows = [trial(rng, args.points, runs, modes) for _ in range(args.trials)]
            cells = [f"{100 * float(np.mean(column)):.0f} %" for column in zip(*rows, strict=True)]
            print(f"| {100 * modes:.0f} % | {runs} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
