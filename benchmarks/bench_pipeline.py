"""The pipeline on recorded evidence: wall, memory, time to the DAG, and how they grow.

    python benchmarks/bench_pipeline.py --out benchmarks/results/pipeline.json
    python benchmarks/bench_pipeline.py --sizes 100,1000,10000 --jobs 1,2

The recording itself, its 10 and 100 fold, and 100, 1 000 and 10 000 points; the multiplied ones
are made by synthetic.py. Each size: a dry run, ``all``, ``all`` again with nothing to do.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks import synthetic
from benchmarks.machine import description, measure
from ncuflow.evidence import location

ROOT = Path(__file__).parents[1]
PARTS = ("Snakefile", "workflows", "config", "profiles", "ncuflow", "parsers", "targets", "templates", "claims")  # fmt: skip
# The yardstick of a run, as busy as the machine is at that moment: Snakemake's command, and what the modules that `all`
# loads import of others at their top (python -X importtime -m snakemake … all); pandas is loaded by pyarrow. scipy.stats, a third
# of it, is what they imported once: it stays, so that figures compare.
LIBRARIES = (
    "import jinja2, markdown_it, matplotlib.figure, ncu_report, numpy, pandas, pyarrow.compute, pyarrow.csv,"
    " pyarrow.parquet, pydantic, scipy.stats, snakemake.cli, yaml"
)
FOLDS = (10, 100)
SIZES = (100, 1000, 10000)
Figures = dict[str, Any]


def sizes_of(recording: Path, folds: tuple[int, ...], sizes: tuple[int, ...]) -> list[int]:
    """Points to measure, ascending; 0 stands for the recording as it is."""
    return [0, *sorted({own_points(recording) * fold for fold in folds} | set(sizes))]


def own_points(recording: Path) -> int:
    """Points of a recording, deep ones left out as synthetic.py does."""
    targets = json.loads((recording / "manifest.json").read_text("utf-8"))["targets"]
    return sum(len(ids) for found in targets.values() for b, ids in found.items() if b != "deep")


def run_size(recording: Path, points: int, jobs: int, folder: Path) -> Figures:
    """Figures of one size at -j `jobs`, in a fresh working copy below `folder`.

    `all_over_import` and `again_over_import` are wall times over that of importing the LIBRARIES just before.
    """
    project = Path(tempfile.mkdtemp(prefix="project-", dir=folder))
    for name in PARTS:
        if (ROOT / name).is_dir():
            ignore = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, project / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy(ROOT / name, project / name)
    command = [sys.executable, "-m", "snakemake", f"-j{jobs}", "all", "--config", "source=recorded"]
    command += [f"recording={recording}"]
    env = os.environ | {"XDG_CACHE_HOME": str(project / "cache")}
    found: Figures = {
        "points": points or own_points(recording),
        "synthetic": bool(points),
        "jobs": jobs,
    }
    imports = [sys.executable, "-c", LIBRARIES]
    measure(imports, cwd=project, env=env)  # fills the file cache; not counted
    for name, words in (
        ("import", imports),
        ("dag", [*command, "-n", "-q"]),
        ("all", command),
        ("again", command),
    ):
        cost = measure(words, cwd=project, env=env)
        found |= {f"{name}_{key}": value for key, value in cost.as_dict().items()}
    for name in ("all", "again"):
        found[f"{name}_over_import"] = round(found[f"{name}_wall_s"] / found["import_wall_s"], 2)
    shutil.rmtree(project)
    return found


def with_slopes(rows: list[Figures]) -> list[Figures]:
    """The rows with `slope`: d log(wall) / d log(points) since the next smaller size."""
    for row in rows:
        smaller = [r for r in rows if r["jobs"] == row["jobs"] and r["points"] < row["points"]]
        row["slope"] = None
        if smaller:
            other = max(smaller, key=lambda r: r["points"])
            grown = math.log(row["all_wall_s"] / other["all_wall_s"])
            row["slope"] = round(grown / math.log(row["points"] / other["points"]), 2)
    return rows


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(",") if part)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--recording", type=Path, default=ROOT / location.default())
    parser.add_argument("--folds", type=numbers, default=FOLDS)
    parser.add_argument("--sizes", type=numbers, default=SIZES)
    parser.add_argument("--jobs", type=numbers, default=(1, 2), help="-j values, in this one run")
    parser.add_argument("--out", type=Path, help="JSON with all figures")
    args = parser.parse_args()
    recording = args.recording.resolve()
    rows: list[Figures] = []
    with tempfile.TemporaryDirectory(prefix="ncuflow-bench-") as name:
        folder = Path(name)
        for points in sizes_of(recording, args.folds, args.sizes):
            evidence = folder / f"points-{points}" if points else recording
            if points:
                synthetic.multiply(recording, points, evidence)
            for jobs in args.jobs:
                rows.append(run_size(evidence, points, jobs, folder))
                print(json.dumps(rows[-1]), flush=True)
            if points:
                shutil.rmtree(evidence)
    found = {"benchmark": "pipeline", "machine": description(), "rows": with_slopes(rows)}
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
