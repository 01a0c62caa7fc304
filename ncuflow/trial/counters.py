"""What ncu counts of the sides of a trial: one process a side, which launches every point once in its NVTX range.

There are two tiers, for each pass over a launch costs time. Points of the same time get the few counters that a verdict
needs first; points whose times differ all that a sweep asks for, with stall reasons and samples.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ncuflow.capture import machine, ncu
from ncuflow.capture.profiler import Batch
from ncuflow.evidence.points import read_progress
from ncuflow.findings import profiled
from ncuflow.gpu.turns import Held
from ncuflow.io import scratch
from ncuflow.model import Kernel
from ncuflow.parsers import ncu as reports
from ncuflow.process import CaptureError
from ncuflow.sweep.points import Planned

# Of the registry: where the time goes, and the traffic that most often explains it. A test holds that these take two
# passes, with what the sections add, on every chip.
FIRST = (
    "duration_ns", "cycles_elapsed", "sm_clock_hz", "inst_executed", "issue_active", "warps_active_per_scheduler",
    "warp_latency_per_issue", "dram_bytes_read", "dram_bytes_write", "l2_hit_pct", "spill_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Tier:
    """A set of counters. keys: of the registry, None: all; sections: of ncu, which add what no list of counters has."""

    name: Literal["few", "all"]
    keys: tuple[str, ...] | None
    sections: tuple[str, ...]


FEW = Tier("few", FIRST, ("LaunchStats", "Occupancy"))
ALL = Tier(
    "all", None, ("LaunchStats", "Occupancy", "SpeedOfLight", "WarpStateStats", "SourceCounters")
)


@dataclass
class SideBatch(Batch):
    """Points that a side of a trial launches under ncu. command: the side's."""

    command: Sequence[str] = field(default_factory=list)

    def program(self) -> list[str]:
        return [*self.command, "--trace", self.place("points.json"), self.place("progress.jsonl")]


def lacking() -> str | None:
    """Why nothing can be counted here; None where it seems to be possible."""
    if machine.tool("ncu") is None:
        return "ncu is not on PATH"
    return ncu.REMEDY if machine.counters_refused_here() else None


def counted(
    target: str,
    points: Sequence[Planned],
    tier: Tier,
    side: tuple[Sequence[str], Mapping[str, str]],
    held: Held,
    limit_s: float,
) -> dict[str, list[Kernel]]:
    """Kernels of each point with what was counted of them, in launch order; a point without is not there.

    side: its command and environment. Raises CaptureError with why nothing was counted at any point.
    """
    command, env = side
    with scratch() as folder:
        args = _arguments(target, tier, held, limit_s)
        entries = [point.as_dict() for point in points]
        batch = SideBatch("ncu", args, entries, held, folder, command=command)
        outcome = batch.run(ncu.ncu_command(batch), {**env, **held.environ})
        if batch.progress.refused:
            raise CaptureError(ncu.REMEDY)
        report = folder / f"{args.name}.ncu-rep"
        if not report.exists():
            raise CaptureError(_why(batch, batch.ending(outcome) or "ncu wrote no report"))
        found: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in profiled.kernels(reports.read(report, batch.ids), report.name):
            if kernel["point"] in batch.ids:
                found[kernel["point"]].append(kernel)
    return dict(found)


def _arguments(target: str, tier: Tier, held: Held, limit_s: float) -> argparse.Namespace:
    """What `ncuflow ncu` would be given; the clocks stay as they are, as in the timing."""
    words = argparse.Namespace(target=target, name=tier.name, timeout=limit_s, clock_control="none")
    words.sections, words.rules, words.import_source = ",".join(tier.sections), False, False
    words.registry, words.metrics = tier.keys is None, None
    if tier.keys is not None:
        words.metrics = ",".join(ncu.registry_counters(held.gpu, tier.keys))
    return words


def _why(batch: SideBatch, ending: str) -> str:
    """What went wrong, in one line: of a point, or what was printed last."""
    failed = [r["reason"] for r in read_progress(batch.progress.records) if r.get("reason")]
    said = [*batch.progress.tail, *failed][-1:]
    return ": ".join([ending, *said])
