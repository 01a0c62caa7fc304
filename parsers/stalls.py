"""Warp stall reasons: the field's names, NVIDIA's meaning, the aliases of the per-PC samples."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ncuflow.io import read_yaml
from ncuflow.parsers.registry import ANY

RATIO = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
SAMPLES = "smsp__pcsamp_warps_issue_stalled_{}"
# The two kinds of counters of a reason, by the column of its row that they are read into.
COUNTERS = {
    "ratio": re.compile(r"smsp__average_warps_issue_stalled_(\w+)_per_issue_active\.ratio"),
    "samples": re.compile(r"smsp__pcsamp_warps_issue_stalled_(\w+?)(?:_not_issued)?"),
}
_PART = "_pipe_"  # some chips count, beside a reason, the part of it that is of one pipe


@dataclass(frozen=True)
class StallReason:
    """What a resident warp was doing in a cycle.

    kind: "stall", or "selected" and "not_selected", which are eligible warps and no stall;
    pcsamp: the name that the per-PC samples use for the same reason; architectures: those that have it.
    """

    reason: str
    meaning: str
    kind: str = "stall"
    pcsamp: str = ""
    architectures: Sequence[str] = (ANY,)

    def on(self, arch: str) -> bool:
        """Whether an architecture has it, or, of ANY, all do."""
        return ANY in self.architectures or arch in self.architectures

    @property
    def ratio(self) -> str:
        """ncu name: warps in this state per issued instruction (cycles)."""
        return RATIO.format(self.reason)

    @property
    def samples(self) -> str:
        """ncu name: per-PC samples in this state; with `_not_issued`, those without an issue."""
        return SAMPLES.format(self.pcsamp or self.reason)


STALL_REASONS = {
    entry["reason"]: StallReason(**entry)
    for entry in read_yaml(Path(__file__).with_name("stalls.yaml"))
}


def on_all(counted: Iterable[str]) -> set[str]:
    """The reasons that every chip has, and what else is `counted`: reasons as counters call them."""
    known = {alias: r.reason for r in STALL_REASONS.values() for alias in (r.reason, r.pcsamp)}
    found = {
        known.get(name, name) for name in counted if name in known or _whole(name) not in known
    }
    return found | {reason.reason for reason in STALL_REASONS.values() if reason.on(ANY)}


def _whole(name: str) -> str:
    return name.split(_PART)[0]
