"""The timeline of the GPU's use in a run: who loaded, waited for it and had it, and how much of the time anybody did.

    python benchmarks/gpu_use.py outputs/<machine>/gpu-use.jsonl [--since S] [--table] --out benchmarks/gpu-use.svg

A row is a turn of a job, in the order in which they had the GPU; programs append to the file, so S names the seconds since the
epoch from which on it counts (the run's start), and the first event is second 0 without it. On standard output: JSON with the
seconds, the share held, and those in which it was idle while somebody loaded; with --table, where the seconds of each
kind of job went, as a table of Markdown.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import matplotlib as mpl
from matplotlib.figure import Figure

from ncuflow.gpu import use
from ncuflow.gpu.use import Holding
from ncuflow.io import write_text
from ncuflow.pages.markdown.figures import svg

BEFORE = ("loads", "waits")
SHADES = {"loads": "#d0d0d0", "waits": "#f1dfa8", "has the GPU": "#2a6f97"}


def spans(one: Holding) -> dict[str, tuple[float, float]]:
    """(begin, end) of each part of a job, by the words of SHADES."""
    waits = one.begins if one.waits is None else one.waits
    loads = waits if one.loads is None else one.loads
    ends = ((loads, waits), (waits, one.begins), (one.begins, one.ends))
    return dict(zip(SHADES, ends, strict=True))


def summary(held: Sequence[Holding], since: float) -> dict[str, Any]:
    """Seconds, the share in which the GPU was held, and the longest time in which nobody had it."""
    until = max(one.ends for one in held)
    order = sorted(held, key=lambda one: one.begins)
    gaps, free = [], since
    for one in order:
        gaps.append((round(one.begins - free, 1), one.job))
        free = max(free, one.ends)
    share = use.share(held, since, until)
    return {
        "seconds": round(until - since, 1),
        "held": None if share is None else round(share, 3),
        "jobs": len(held),
        "longest_gaps_before": [[job, s] for s, job in sorted(gaps, reverse=True)[:5] if s > 0],
    }


def parts(one: Holding) -> dict[str, float]:
    """Seconds of a job: before it had the GPU, and with it."""
    ready = one.begins if one.ready is None else one.ready
    done = one.ends if one.done is None else one.done
    outside = {name: end - begin for name, (begin, end) in spans(one).items() if name in BEFORE}
    return outside | {
        "begin": ready - one.begins,
        "points": done - ready,
        "ends": one.ends - done,
    }


def kind(job: str) -> str:
    """`ncu sweep` of "ncu decode sweep": a job without its target."""
    first, *rest = job.split()
    return " ".join([first, *rest[1:]])


def table(held: Sequence[Holding]) -> str:
    """A row for each kind of job: how many, and the seconds of all of them together."""
    sums: dict[str, Counter[str]] = {}
    for one in held:
        sums.setdefault(kind(one.job), Counter()).update({"jobs": 1, **parts(one)})
    columns = ["jobs", *BEFORE, "begin", "points", "ends"]
    lines = [f"| | {' | '.join(columns)} |", f"|---|{'---:|' * len(columns)}"]
    for name, found in sums.items():
        values = [f"{found['jobs']:.0f}", *(f"{found[column]:.1f}" for column in columns[1:])]
        lines.append(f"| {name} | {' | '.join(values)} |")
    return "\n".join(lines)


def timeline(held: Sequence[Holding], since: float) -> Figure:
    """A row a job, the first on top."""
    figure = Figure(figsize=(9, 0.8 + 0.24 * len(held)), layout="constrained")
    axes = figure.add_subplot()
    for name, shade in SHADES.items():
        begins, ends = zip(*(spans(one)[name] for one in held), strict=True)
        widths = [end - begin for begin, end in zip(begins, ends, strict=True)]
        left = [begin - since for begin in begins]
        axes.barh(range(len(held)), widths, left=left, color=shade, label=name)
    axes.set_yticks(range(len(held)), [one.job for one in held])
    axes.invert_yaxis()
    axes.set(xlabel="seconds", xlim=(0, None))
    axes.legend(loc="upper right", frameon=False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="gpu-use.jsonl of a run")
    parser.add_argument("--since", type=float, help="seconds since the epoch")
    parser.add_argument("--table", action="store_true", help="a table of the kinds of jobs as well")
    parser.add_argument("--out", type=Path, required=True, help="the figure, an SVG")
    args = parser.parse_args()
    held = [one for one in use.read(args.file) if one.begins >= (args.since or 0.0)]
    if not held:
        parser.exit(2, f"error: {args.file}: nobody had a GPU\n")
    since = args.since or min(min(begin for begin, _ in spans(one).values()) for one in held)
    mpl.rcParams |= {"svg.hashsalt": "ncuflow", "svg.fonttype": "none"}
    write_text(args.out, svg(timeline(held, since)))
    print(json.dumps(summary(held, since)))
    if args.table:
        print(table(held))


if __name__ == "__main__":
    main()
