"""Warp stall reasons: the field's names, NVIDIA's meaning, the aliases of the per-PC samples."""

from __future__ import annotations

from dataclasses import dataclass

RATIO = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
SAMPLES = "smsp__pcsamp_warps_issue_stalled_{}"


@dataclass(frozen=True)
class StallReason:
    """What a resident warp was doing in a cycle.

    kind: "stall", or "selected" and "not_selected", which are eligible warps and no stall;
    pcsamp: the name that the per-PC samples use for the same reason; architectures: that have it.
    """

    reason: str
    meaning: str
    kind: str = "stall"
    pcsamp: str = ""
    architectures: tuple[str, ...] = ("ga100", "gh100")

    @property
    def ratio(self) -> str:
        """ncu name: warps in this state per issued instruction (cycles)."""
        return RATIO.format(self.reason)

    @property
    def samples(self) -> str:
        """ncu name: per-PC samples in this state; with `_not_issued`, those without an issue."""
        return SAMPLES.format(self.pcsamp or self.reason)


_REASONS = (
    StallReason(
        "long_scoreboard",
        "a scoreboard dependency on an L1TEX operation (global, local, surface, texture)",
    ),
    StallReason(
        "short_scoreboard",
        (
            "a scoreboard dependency on an MIO operation other than L1TEX: shared memory, "
            "special functions, some branches; tensor cores are not among them"
        ),
    ),
    StallReason(
        "math_pipe_throttle",
        "an execution pipe to be available (the tensor pipe included)",
    ),
    StallReason(
        "gmma",
        "WARPGROUP.ARRIVES, the ordering of warpgroup MMA (sm_90)",
        pcsamp="warpgroup_arrive",
        architectures=("gh100",),
    ),
    StallReason(
        "wait",
        "a fixed-latency execution dependency",
    ),
    StallReason(
        "barrier",
        "sibling warps at a CTA barrier",
    ),
    StallReason(
        "membar",
        "a memory barrier",
    ),
    StallReason(
        "mio_throttle",
        "a free entry in the MIO instruction queue (shared memory, special functions, branches)",
    ),
    StallReason(
        "lg_throttle",
        "a free entry in the LSU instruction queue for local and global memory",
    ),
    StallReason(
        "tex_throttle",
        "a free entry in the TEX instruction queue",
    ),
    StallReason(
        "imc_miss",
        "an immediate constant cache (IMC) miss",
    ),
    StallReason(
        "no_instruction",
        (
            "selection for instruction fetch, or an instruction cache miss (short kernels start "
            "with cold caches)"
        ),
        pcsamp="no_instructions",
    ),
    StallReason(
        "branch_resolving",
        "a branch target to be computed and the warp's PC to be updated",
    ),
    StallReason(
        "dispatch_stall",
        "the dispatcher, which holds back the warp for conflicts or unavailable resources",
    ),
    StallReason(
        "drain",
        (
            "after EXIT, all memory instructions to complete so that the warp's resources can "
            "be freed"
        ),
    ),
    StallReason(
        "sleeping",
        "a nanosleep to expire",
    ),
    StallReason(
        "misc",
        "a miscellaneous hardware reason",
    ),
    StallReason(
        "not_selected",
        "nothing: eligible, but the scheduler picked another warp (no stall)",
        "not_selected",
    ),
    StallReason(
        "selected",
        "nothing: picked by the scheduler, it issued an instruction (no stall)",
        "selected",
    ),
)

STALL_REASONS: dict[str, StallReason] = {r.reason: r for r in _REASONS}
