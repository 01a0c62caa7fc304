"""What a FlashInfer wrapper's plan() chose.

plan() keeps its choice as a list of integers in ``wrapper._plan_info``. The positions below are
those of ToVector() in FlashInfer's include/flashinfer/attention/scheduler.cuh, the same in 0.5.3,
0.6.18 and 0.7.2; the length tells which plan it is.
"""

from __future__ import annotations

from typing import Any

# length of the list -> {name: (position, kind)}
_LAYOUTS: dict[int, dict[str, tuple[int, type]]] = {
    10: {"padded_batch_size": (0, int), "split_kv": (9, bool)},  # DecodePlanInfo
    15: {  # PrefillPlanInfo: fa2, and decode on tensor cores
        "padded_batch_size": (0, int),
        "cta_tile_q": (3, int),
        "split_kv": (14, bool),
    },
    9: {"same_schedule_for_all_heads": (8, bool)},  # PrefillPlanSM90Info: fa3
}


def plan_info(wrapper: Any) -> dict[str, Any]:
    """The choices of the last plan(), e.g. {"backend": "fa2", "split_kv": False, ...}.

    Reads private attributes, so whatever cannot be read is left out: this never raises.
    """
    found: dict[str, Any] = {}
    try:
        backend = getattr(wrapper, "resolved_backend", None) or getattr(wrapper, "_backend", None)
        if isinstance(backend, str):
            found["backend"] = backend
        values = [int(value) for value in wrapper._plan_info]
        for name, (position, kind) in _LAYOUTS.get(len(values), {}).items():
            found[name] = kind(values[position])
    except Exception:  # another FlashInfer may keep its plan elsewhere
        pass
    return found
