"""Reading a report of 1 000 kernels: ncuflow.parsers.ncu against a loop over NVIDIA's reader and ncu's own export.

    python benchmarks/bench_parse.py --kernels 1000 --out benchmarks/results/parse.json

The report is made of the kernels of a recorded one over and over (reports.py); all sides read
the same file. Each side is a process of its own, from its start to its rows in memory,
`--repeats` times in turn. CPU is that of all processes of a side. Without ncu on PATH its side is
left out and says so.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import reports
from benchmarks.machine import Cost, description, measure
from ncuflow.evidence import location

ROOT = Path(__file__).parents[1]
OURS = """
import sys
from pathlib import Path
from ncuflow.parsers import ncu
report = ncu.read(Path(sys.argv[1]))
print(len(report.kernels), len(report.metrics) + len(report.stalls) + len(report.rules))
"""
PLAIN = """
import sys
import ncu_report
context = ncu_report.load_report(sys.argv[1])
rows, values = [], 0
for number in range(context.num_ranges()):
    found = context.range_by_idx(number)
    for index in range(found.num_actions()):
        action = found.action_by_idx(index)
        rows.append({name: action[name].value() for name in action})
        values += len(rows[-1])
print(len(rows), values)
"""
THEIRS = """
import io, subprocess, sys
import pandas
command = ["ncu", "--import", sys.argv[1], "--csv", "--page", "raw"]
done = subprocess.run(command, capture_output=True, text=True, check=True)
frame = pandas.read_csv(io.StringIO(done.stdout), thousands=",", low_memory=False)
print(len(frame) - 1, (len(frame) - 1) * len(frame.columns))
"""
EXPORT = "ncu --import --csv --page raw, pandas"
SIDES = {"ncuflow.parsers.ncu": OURS, "a loop over ncu_report": PLAIN, EXPORT: THEIRS}


def run_side(code: str, report: Path) -> Cost:
    return measure([sys.executable, "-c", code, str(report)], cwd=ROOT)


def summary(costs: list[Cost]) -> dict[str, Any]:
    """Medians of a side's runs, and what it says it read."""
    kernels, cells = map(int, costs[0].output.split()[-2:])
    return {
        "cpu_s": round(statistics.median(cost.cpu_s for cost in costs), 2),
        "cpu_s_all": [round(cost.cpu_s, 2) for cost in costs],
        "wall_s": round(statistics.median(cost.wall_s for cost in costs), 2),
        "wall_s_all": [round(cost.wall_s, 2) for cost in costs],
        "peak_mb": round(max(cost.peak_bytes for cost in costs) / 1e6),
        "kernels": kernels,
        "values": cells,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    default = ROOT / location.default() / "rmsnorm"
    parser.add_argument(
        "--report", type=Path, default=next(default.glob("b*/sweep.ncu-rep*"), None)
    )
    parser.add_argument("--kernels", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="JSON with all figures")
    args = parser.parse_args()
    sides = {name: code for name, code in SIDES.items() if name != EXPORT or shutil.which("ncu")}
    with tempfile.TemporaryDirectory(prefix="ncuflow-bench-") as folder:
        report = Path(folder) / f"kernels-{args.kernels}.ncu-rep"
        report.write_bytes(reports.repeat(args.report, args.kernels))
        size = report.stat().st_size
        costs: dict[str, list[Cost]] = {name: [] for name in sides}
        for _ in range(args.repeats):
            for name, code in sides.items():
                costs[name].append(run_side(code, report))
    found = {
        "benchmark": "parse",
        "machine": description(),
        "report_mb": round(size / 1e6),
        "sides": {name: summary(of) for name, of in costs.items()},
        "left_out": None if len(sides) == len(SIDES) else "ncu is not on PATH",
    }
    text = json.dumps(found, indent=1)
    print(text)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
