"""Steps: what the measured parts of a model's step add up to, by its shape.

A step of decode has a token of each sequence, one of prefill all tokens of its prompts. Parts are points of the same number of
tokens and the same heads; one that no point was measured of is None, and not in the sum.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from ncuflow.model import Point, Results

LAYERS = 32  # of the step that pages add up
NORMS = 2  # of a layer, each with its residual add: before attention and before the feed-forward network
HALF = ("f16", "bf16")  # as many bytes and FLOPs
SAMPLED = (
    "top_k_top_p",
    "top_p",
    "from_logits",
    "from_probs",
)  # what a sampler runs, the most that was measured
Time = float | None


@dataclass(frozen=True)
class Parts:
    """Times in µs: plan of the host once a step, norm, rope, append and attention of a layer, sampling once a step."""

    plan: Time
    attention: Time
    norm: Time
    rope: Time
    append: Time
    sampling: Time


@dataclass(frozen=True)
class Step:
    """A step: phase (prefill, decode), its point of attention, shape (query heads, KV heads, head dimension) and parts."""

    phase: str
    point: str
    shape: tuple[int, int, int]
    parts: Parts

    @property
    def measured(self) -> int:
        return sum(getattr(self.parts, part.name) is not None for part in fields(Parts))

    def total(self, layers: int = LAYERS) -> float:
        """The measured parts one after another, in µs."""
        p = self.parts
        layer = sum(t or 0 for t in (p.attention, p.rope, p.append)) + NORMS * (p.norm or 0)
        return (p.plan or 0) + layers * layer + (p.sampling or 0)


def steps(results: Mapping[str, Results]) -> list[Step]:
    """Steps of which more was measured than attention and its plan(), those of most parts first, then of fewest KV heads.

    Of a shape and a size attention is the fastest choice that was measured: backend, cores, layout.
    """
    fastest: dict[tuple[Any, ...], Step] = {}
    for phase in ("decode", "prefill"):
        for point in _good(results, phase):
            if (step := _step(phase, point, results)) is None:
                continue
            p = point["params"]
            key = (phase, step.shape, p["batch"], p["kv_len" if phase == "decode" else "seq_len"])
            best = fastest.get(key)
            if best is None or (step.parts.attention or 0) < (best.parts.attention or 0):
                fastest[key] = step
    found = [step for step in fastest.values() if step.measured > 2]
    return sorted(found, key=lambda step: (-step.measured, step.shape[1], step.phase))


def _step(phase: str, point: Point, results: Mapping[str, Results]) -> Step | None:
    p, row = point["params"], point["measurement"]
    plain = p.get("lengths", "even") == "even" and p.get("kv", "same") == "same"
    if (
        not plain
        or p["dtype"] not in HALF
        or p.get("window")
        or p.get("soft_cap")
        or not row["time_cold_us"]
    ):
        return None
    if phase == "prefill" and not p["causal"]:
        return None
    shape = (p["qo_heads"], p["kv_heads"], p["head_dim"])
    tokens = p["batch"] * (1 if phase == "decode" else p["seq_len"])
    parts = Parts(
        plan=row["plan_us"],
        attention=row["time_cold_us"],
        norm=_least(results, "rmsnorm", lambda q: (q["rows"], q["hidden"]) == (tokens, shape[0] * shape[2]),
                    ("fused_add_rmsnorm",)),
        rope=_least(results, "rope", lambda q: (q["tokens"], q["qo_heads"], q["kv_heads"], q["head_dim"]) == (tokens, *shape)),
        append=_least(results, "kv_append", lambda q: q["variant"] == "kv" and (
            q["batch"] * q["append_len"], q["kv_heads"], q["head_dim"]) == (tokens, *shape[1:])),
        sampling=_least(results, "sampling", lambda q: q["batch"] == p["batch"], SAMPLED),
    )  # fmt: skip
    return Step(phase, point["point"], shape, parts)


def _good(results: Mapping[str, Results], target: str) -> Iterator[Point]:
    points = results[target]["points"] if target in results else ()
    return (point for point in points if point["status"] == "ok")


def _least(
    results: Mapping[str, Results],
    target: str,
    fits: Callable[[Mapping[str, Any]], bool],
    variants: tuple[str, ...] = (),
) -> Time:
    """The shortest cold time of the points that fit, of the first of the variants that one is of."""
    fitting = [p for p in _good(results, target) if fits(p["params"])]
    for variant in variants or (None,):
        times = [
            p["measurement"]["time_cold_us"]
            for p in fitting
            if variant in (None, p["params"].get("variant"))
            and p["params"].get("dtype", "f16") in HALF
            and p["measurement"]["time_cold_us"]
        ]
        if times:
            return float(min(times))
    return None
