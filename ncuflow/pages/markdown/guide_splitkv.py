"""Split-KV: what the scheduler's rule says of a point, beside what was launched.

The rule is the target's (``Target.splits``): FlashInfer's, written out again, so that a sweep can be
held against it. It is a prediction; the launched grid is the evidence.
"""

from __future__ import annotations

from ncuflow.findings.join import main_kernel, ratio, total
from ncuflow.findings.kernelname import MERGE, Decoder
from ncuflow.findings.limiter import occupancy_limit
from ncuflow.model import Point
from ncuflow.pages import Context
from ncuflow.pages.markdown.series import spread
from ncuflow.target.contract import Target

MOST_ROWS = 6


def rows(
    target: Target, points: list[Point], sm_count: int | None, names: Decoder
) -> list[Context]:
    """One row per point of an attention sweep that a splitting scheduler planned.

    launched: blocks per sequence, query tile and KV head (1: not split); rule: chunks predicted,
    None where a CUDA graph pads the split grid; merge_us and merge_share: of the merge kernel.
    """
    found = [row for point in points if (row := _row(target, point, sm_count, names))]
    return spread(found, MOST_ROWS)


def _row(target: Target, point: Point, sm_count: int | None, names: Decoder) -> Context | None:
    merge = [k for k in point["kernels"] if k["name"].startswith(MERGE)]
    main = main_kernel([k for k in point["kernels"] if not k["name"].startswith(MERGE)])
    if main is None or sm_count is None or not main["grid_size"]:
        return None
    decoded = names.decode(main["demangled"] or main["name"])
    split = target.rules.splits(target.completed(point["params"]), decoded.name, decoded.value)
    limit = occupancy_limit(main["metrics"])
    fits = limit.blocks if limit else None
    if split is None or not (sm_blocks := split.sm_blocks or fits):
        return None
    slots = sm_blocks * sm_count
    padded = split.padded and split.blocks < slots
    merge_ns = sum(k["duration_ns"] or 0 for k in merge) if merge else None
    return {
        "point": point["point"],
        "params": point["params"],
        "kernel": main["name"],
        "grid": main["grid_size"],
        "slots": slots,
        "launched": main["grid_size"] / split.blocks,
        "rule": None if padded else split.chunks(slots),
        "padded": padded,
        "plan": point["info"],
        "merge_us": merge_ns / 1e3 if merge_ns is not None else None,
        "merge_share": ratio(merge_ns, total((merge_ns, main["duration_ns"]))),
    }
