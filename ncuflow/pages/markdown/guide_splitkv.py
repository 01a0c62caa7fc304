"""Split-KV: what the scheduler's rule says of a point, beside what was launched.

The rule is FlashInfer's (include/flashinfer/attention/scheduler.cuh), written out again in
``ncuflow.static.launches``, so that a sweep can be held against it. It is a prediction; the launched grid
is the evidence.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil

from ncuflow.findings.join import main_kernel, ratio, total
from ncuflow.findings.kernelname import MERGE, Decoder
from ncuflow.findings.occupancy import occupancy_limit
from ncuflow.model import Params, Point
from ncuflow.pages import Context
from ncuflow.pages.markdown.series import spread
from ncuflow.static.launches import FA2_BLOCKS, shortest_chunk

MOST_ROWS = 6


@dataclass(frozen=True)
class Work:
    """What the rule needs: sequences, KV pages of each, KV heads, query tiles per sequence."""

    batch: int
    pages: int
    page_size: int
    kv_heads: int
    tiles: int = 1


def chunks(work: Work, slots: int) -> int:
    """KV chunks per sequence that the rule chooses for a GPU that holds ``slots`` blocks at once.

    One if the unsplit grid fills the GPU; else by the smallest chunk whose grid still fits.
    """
    if work.batch * work.tiles * work.kv_heads >= slots:
        return 1
    most, tiles = slots // work.kv_heads, work.batch * work.tiles
    return ceil(work.pages / shortest_chunk(most, tiles, work.pages, work.page_size))


def rows(points: list[Point], sm_count: int | None, names: Decoder) -> list[Context]:
    """One row per point of an attention sweep that a splitting scheduler planned.

    launched: blocks per sequence, query tile and KV head (1: not split); rule: chunks predicted,
    None where a CUDA graph pads the split grid; merge_us and merge_share: of the merge kernel.
    """
    found = [row for point in points if (row := _row(point, sm_count, names))]
    return spread(found, MOST_ROWS)


def _row(point: Point, sm_count: int | None, names: Decoder) -> Context | None:
    params = point["params"]
    merge = [k for k in point["kernels"] if k["name"].startswith(MERGE)]
    main = main_kernel([k for k in point["kernels"] if not k["name"].startswith(MERGE)])
    if main is None or "kv_heads" not in params:
        return None
    decoded = names.decode(main["demangled"] or main["name"])
    work = _work(params, decoded.value("CTA_TILE_Q"))
    slots = _slots(decoded.name, main["metrics"], sm_count)
    if work is None or slots is None or not main["grid_size"]:
        return None
    fills = work.batch * work.tiles * work.kv_heads >= slots
    padded = params.get("launch") == "graph" and not fills
    merge_ns = sum(k["duration_ns"] or 0 for k in merge) if merge else None
    return {
        "point": point["point"],
        "params": params,
        "kernel": main["name"],
        "grid": main["grid_size"],
        "slots": slots,
        "launched": main["grid_size"] / (work.batch * work.tiles * work.kv_heads),
        "rule": None if padded else chunks(work, slots),
        "padded": padded,
        "plan": point["info"],
        "merge_us": merge_ns / 1e3 if merge_ns is not None else None,
        "merge_share": ratio(merge_ns, total((merge_ns, main["duration_ns"]))),
    }


def _work(params: Params, tile: str | None) -> Work | None:
    """None for kernels that do not split (fa3) and points without pages."""
    page = params.get("page_size") if params.get("layout", "paged") == "paged" else 1
    length = params.get("kv_len", params.get("seq_len"))
    if params.get("backend") == "fa3" or not page or not length:
        return None
    queries = params.get("seq_len", 1) * params["qo_heads"] // params["kv_heads"]
    tiles = ceil(queries / int(tile)) if tile and tile.isdigit() else 1
    return Work(params["batch"], ceil(length / page), page, params["kv_heads"], tiles)


def _slots(kernel: str, metrics: Mapping[str, float | None], sm_count: int | None) -> int | None:
    """Blocks that the scheduler thinks the GPU holds: from occupancy, or two per SM for fa2."""
    if sm_count is None:
        return None
    if kernel.startswith("BatchPrefill"):
        return FA2_BLOCKS * sm_count
    limit = occupancy_limit(metrics)
    return limit.blocks * sm_count if limit else None
