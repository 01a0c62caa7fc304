"""The stall tree: what the schedulers of a launch did with their cycles, in shares that sum to 1.

    active scheduler cycles (1)
    ├─ an instruction issued     issue_active, counted
    └─ nothing issued            1 − issue_active
       ├─ memory                 attributed: (1 − issue_active) × share of the stalls
       │  └─ long_scoreboard …
       └─ execution, shared memory, constant cache, synchronisation, front end …

The first split is counted, the second is an attribution. In a cycle in which nothing issues several
warps wait, each for its own reason, and the hardware names none of them as the cause. The cycle is
charged to the reasons in proportion to the warps that waited: by the per-PC samples taken while
nothing issued, where the report has enough of them, else by the stall ratios (cycles in the state
per issued instruction). ``selected`` and ``not_selected`` warps were ready and are not charged.
Where a deep profile shows which long_scoreboard are waits at an mbarrier, those stand apart: they wait
for other warps, not for a load of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ncuflow.findings import roles
from ncuflow.model import Kernel, Rule, Stall
from ncuflow.parsers.stalls import STALL_REASONS

GROUPS = {
    "memory (L1TEX, L2, DRAM)": (
        "long_scoreboard", "lg_throttle", "tex_throttle", "drain",
    ),
    "constant cache": ("imc_miss",),  # of immediate constants: no load through L1TEX waits for it
    "shared memory and special functions": ("short_scoreboard", "mio_throttle"),
    "execution": ("math_pipe_throttle", "gmma", "wait", "dispatch_stall"),
    "synchronisation": ("barrier", "membar", "sleeping", roles.MBARRIER),
    "front end": ("no_instruction", "branch_resolving"),
}  # fmt: skip
OTHER = "other"
ENOUGH_SAMPLES = 1000  # below it a share of 10 % is uncertain by a fifth of itself
SIGMAS = 2.0
# Fires for any kernel: it wants memory allocated as compressible, which torch does not do.
NOT_ADVICE = ("MemoryL2Compression",)


@dataclass(frozen=True)
class StallShare:
    """One stall reason.

    share: of all active cycles; of_stalls: of the cycles in which nothing issued; meaning: what
    NVIDIA says a warp waits for; uncertainty: half-width of of_stalls at two standard errors,
    None where the shares come from ratios, which are counted.
    """

    reason: str
    meaning: str | None
    share: float
    of_stalls: float
    uncertainty: float | None = None


@dataclass(frozen=True)
class StallGroup:
    """Reasons that wait for the same part of the machine, the largest first."""

    name: str
    share: float
    reasons: tuple[StallShare, ...]


@dataclass(frozen=True)
class Tree:
    """issued + the groups' shares = 1. basis: samples (then how many, ``samples``) or ratio."""

    issued: float
    not_issued: float
    groups: tuple[StallGroup, ...]
    basis: str
    samples: int | None

    def top(self, n: int = 3, least: float = 0.1) -> list[StallShare]:
        """The reasons that matter: at most ``n``, each at least ``least`` of the stall cycles."""
        reasons = sorted((r for g in self.groups for r in g.reasons), key=lambda r: -r.share)
        return [r for r in reasons if r.of_stalls >= least][:n]


def stall_tree(kernel: Kernel) -> Tree | None:
    """The tree of a profiled kernel; None without issue activity or stalls."""
    issued = kernel["metrics"].get("issue_active")
    stalls = [s for s in kernel["stalls"] if s["kind"] == "stall"]
    basis, weights = _weights(stalls)
    if part := roles.mbarrier_part(kernel):
        waited = weights.pop("long_scoreboard", 0.0)
        weights |= {"long_scoreboard": (1 - part) * waited, roles.MBARRIER: part * waited}
    total = sum(weights.values())
    if issued is None or not total:
        return None
    issued = min(1.0, issued)
    samples = round(total) if basis == "samples" else None
    reasons = [
        _reason(name, weight / total, 1 - issued, samples)
        for name, weight in weights.items()
        if weight > 0
    ]
    return Tree(issued, 1 - issued, tuple(_grouped(reasons)), basis, samples)


def _weights(stalls: list[Stall]) -> tuple[str, dict[str, float]]:
    """("samples" or "ratio", weight by reason); unknown weights are left out."""
    taken = {s["reason"]: s.get("samples_not_issued") for s in stalls}
    known = {name: float(n) for name, n in taken.items() if n is not None}
    if sum(known.values()) >= ENOUGH_SAMPLES:
        return "samples", known
    ratios = {s["reason"]: s.get("ratio") for s in stalls}
    return "ratio", {name: r for name, r in ratios.items() if r is not None}


def _reason(name: str, of_stalls: float, not_issued: float, samples: int | None) -> StallShare:
    error = sampling_error(of_stalls, samples)
    return StallShare(name, meaning(name), of_stalls * not_issued, of_stalls, error)


def meaning(name: str) -> str | None:
    """What a warp waits for, by the reason's name; None of a reason that is not known."""
    known = STALL_REASONS.get(name)
    return roles.MEANING if name == roles.MBARRIER else known.meaning if known else None


def sampling_error(share: float, samples: int | None) -> float | None:
    """Half-width of a share seen in ``samples`` samples: two binomial standard errors, or None.

    A lower bound, for neighbouring samples of a warp are not independent. Two added successes and
    failures (Agresti and Coull) keep it wide where few samples were taken.
    """
    if not samples:
        return None
    n = samples + 4
    p = (share * samples + 2) / n
    return SIGMAS * math.sqrt(p * (1 - p) / n)


def _grouped(reasons: list[StallShare]) -> list[StallGroup]:
    group_of = {reason: group for group, members in GROUPS.items() for reason in members}
    members: dict[str, list[StallShare]] = {}
    for reason in sorted(reasons, key=lambda r: (-r.share, r.reason)):
        members.setdefault(group_of.get(reason.reason, OTHER), []).append(reason)
    groups = [
        StallGroup(n, sum(r.share for r in found), tuple(found)) for n, found in members.items()
    ]
    return sorted(groups, key=lambda g: (-g.share, g.name))


def advice(kernel: Kernel, most: int = 2) -> list[Rule]:
    """NVIDIA's own rules that fired for this kernel, the largest estimated speed-up first.

    Estimates of the whole kernel (global) come before those of a part of it (local).
    One message of each rule.
    """
    fired = [
        rule
        for rule in kernel["rules"]
        if rule["type"] in ("optimization", "warning") and rule["rule"] not in NOT_ADVICE
    ]
    fired.sort(key=_gain)
    unique: dict[str, Rule] = {}
    for rule in fired:
        unique.setdefault(rule["rule"], rule)
    return list(unique.values())[:most]


def _gain(rule: Rule) -> tuple[bool, float, str]:
    return rule["speedup_type"] != "global", -(rule["speedup_pct"] or 0), rule["rule"]
