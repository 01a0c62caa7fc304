"""Warp stall reasons: the field's names, NVIDIA's meaning, the aliases of the per-PC samples."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from ncuflow.io import read_yaml
from ncuflow.model import Row
from ncuflow.parsers.chips import ANY

RATIO = "smsp__average_warps_issue_stalled_{}_per_issue_active.ratio"
SAMPLES = "smsp__pcsamp_warps_issue_stalled_{}"
NOT_ISSUED = "_not_issued"
OTHER = "other"
_RATIO = re.compile(re.escape(RATIO).replace(r"\{\}", r"(\w+)"))
_SAMPLES = re.compile(re.escape(SAMPLES).replace(r"\{\}", rf"(\w+?)({NOT_ISSUED})?"))
WARP_LATENCY = "smsp__average_warp_latency_per_inst_issued.ratio"
MOST_REST = 0.05  # of the warp latency, that reasons which a report lacks may be for the others to have shares
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

    @cached_property
    def ratio(self) -> str:
        """ncu name: warps in this state per issued instruction (cycles)."""
        return RATIO.format(self.reason)

    @cached_property
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


# --- of a kernel ------------------------------------------------------------------------------


def stalls_of(kernel: Any) -> list[Row]:
    """Rows of a kernel's stall reasons, by ratio and by samples; those with neither are left out.

    kernel: a `Profiled` of `ncu`.
    """
    rows = []
    for reason in STALL_REASONS.values():
        ratio = kernel.number(reason.ratio)
        samples = kernel.integer(reason.samples)
        if ratio is None and samples is None and reason.ratio not in kernel.invalid:
            continue
        idle = kernel.integer(reason.samples + NOT_ISSUED)
        rows.append(_row(reason.reason, ratio, samples, idle))
    needed = {reason.reason for reason in STALL_REASONS.values() if reason.on(kernel.chip)}
    more = kernel.unnamed
    if any(more):
        rows.append(_other(kernel, more))
    of_ratios, of_samples = (needed | ({OTHER} if counted else set()) for counted in more[:2])
    rest = _rest(kernel, rows, of_ratios)
    if rest is not None:
        rows = _with_rest(rows, rest)
        of_ratios = {str(row["reason"]) for row in rows if row["ratio"] is not None}
    return _with_shares(rows, {"ratio": of_ratios, "samples": of_samples})


def _rest(kernel: Any, rows: list[Row], needed: set[str]) -> float | None:
    """What the ratios leave of the warp latency, in cycles, where reasons are missing that can be no more than a little.

    Old versions of ncu lack a reason of their chip. None where none is missing, or what the ratios leave is too much,
    or less than none: then passes differ, and nothing follows.
    """
    ratios = {str(r["reason"]): float(r["ratio"]) for r in rows if r["ratio"] is not None}
    missing = needed - ratios.keys()
    latency = kernel.number(WARP_LATENCY)
    wrong = {OTHER, *(r.reason for r in STALL_REASONS.values() if r.ratio in kernel.invalid)}
    if not ratios or not latency or not missing or missing & wrong:
        return None
    whole = sum(ratios.values()) / latency
    return max(0.0, latency * (1 - whole)) if abs(1 - whole) <= MOST_REST else None


def _row(reason: str, ratio: Any = None, samples: Any = None, not_issued: Any = None) -> Row:
    return {
        "reason": reason, "kind": STALL_REASONS[reason].kind, "ratio": ratio, "samples": samples,
        "samples_not_issued": not_issued,
    }  # fmt: skip


def _with_rest(rows: list[Row], rest: float) -> list[Row]:
    """Rows of stalls with a rest in the row of the reasons without a name."""
    other = next((row for row in rows if row["reason"] == OTHER), _row(OTHER))
    more = other | {"ratio": (other["ratio"] or 0.0) + rest}
    return [*(row for row in rows if row["reason"] != OTHER), *([more] if more["ratio"] else [])]


def _other(kernel: Any, more: Unnamed) -> Row:
    """The row of the reasons that have no name here; null where one of them has no number."""
    ratios = [kernel.number(name) for name in more.ratio]
    counts = ([kernel.integer(name) for name in names] for names in more[1:])
    return _row(OTHER, *map(_added, (ratios, *counts)))


def _added(values: list[Any]) -> Any:
    return sum(values) if values and None not in values else None


def _with_shares(rows: list[Row], every: Mapping[str, set[str]]) -> list[Row]:
    """Each stall's share of all stalls, by ratios, or by samples where the report has no ratios.

    Null where some of `every` reason are missing: the largest of a few is not the largest.
    """
    found = {
        by: {row["reason"]: row[by] for row in rows if row[by] is not None}
        for by in ("ratio", "samples")
    }
    values = next((values for by, values in found.items() if values.keys() >= every[by]), {})
    stalls = {
        row["reason"]: values[row["reason"]]
        for row in rows
        if row["kind"] == "stall" and row["reason"] in values
    }
    whole = sum(stalls.values())
    for row in rows:
        row["share"] = stalls[row["reason"]] / whole if whole and row["reason"] in stalls else None
    return rows
