"""Warp stall reasons: the field's names, NVIDIA's meaning, the aliases of the per-PC samples."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

from ncuflow.io import read_yaml
from ncuflow.parsers.chips import ANY

RATIO = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
SAMPLES = "smsp__pcsamp_warps_issue_stalled_{}"
NOT_ISSUED = "_not_issued"
OTHER = "other"
_RATIO = re.compile(re.escape(RATIO).replace(r"\{\}", r"(\w+)"))
_SAMPLES = re.compile(re.escape(SAMPLES).replace(r"\{\}", rf"(\w+?)({NOT_ISSUED})?"))
_PART = "_pipe_"  # some chips count, beside a reason, the part of it that is of one pipe


@dataclass(frozen=True)
class StallReason:
    """What a resident warp was doing in a cycle.

    kind: "stall", or "selected" and "not_selected", which are eligible warps and no stall;
    pcsamp: the name that the per-PC samples use for the same reason; chips: those that have it.
    """

    reason: str
    meaning: str
    kind: str = "stall"
    pcsamp: str = ""
    chips: Sequence[str] = (ANY,)

    def on(self, chip: str) -> bool:
        """Whether a chip has it; of ANY, whether all do."""
        return ANY in self.chips or chip in self.chips

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


class Unnamed(NamedTuple):
    """Counters of reasons that have no name here, by the column of the row `other` that they are of."""

    ratio: tuple[str, ...]
    samples: tuple[str, ...]
    samples_not_issued: tuple[str, ...]


@lru_cache(maxsize=16)  # the kernels of a report have the same
def unnamed(counters: tuple[str, ...]) -> Unnamed:
    """Those among the counters of a kernel. A part of a reason, by its pipe, is in that reason already."""
    found: list[list[str]] = [[], [], []]
    for counter in counters:
        if counter.startswith(_STARTS) and (column := _column(counter)) is not None:
            found[column].append(counter)
    return Unnamed(*map(tuple, found))


@cache
def _column(counter: str) -> int | None:
    """Where among the columns of Unnamed a counter belongs; None where its reason has a name."""
    ratio, samples = _RATIO.fullmatch(counter), _SAMPLES.fullmatch(counter)
    match = ratio or samples
    if match is None or {match[1], match[1].partition(_PART)[0]} & _KNOWN:
        return None
    return 0 if ratio else 2 if match[2] else 1


_KNOWN = {name for r in STALL_REASONS.values() for name in (r.reason, r.pcsamp)}
_STARTS = tuple(form.partition("{")[0] for form in (RATIO, SAMPLES))
