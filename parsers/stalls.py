"""Warp stall reasons: the field's names, NVIDIA's meaning, the aliases of the per-PC samples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ncuflow.io import read_yaml

RATIO = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
SAMPLES = "smsp__pcsamp_warps_issue_stalled_{}"


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
    architectures: Sequence[str] = ("ga100", "gh100")

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
