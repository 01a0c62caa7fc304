"""How many tokens each sequence of a batch has: all alike, or uneven as on a server."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from statistics import NormalDist

from ncuflow.target.launch import Params, Written

SIGMA = 1.0  # of the log-normal lengths: one sequence in six has more than 1.6 times the mean
LENGTHS = Written(
    ("even", "lognormal", "zipf"),
    r"[1-9]\d*x(0|[1-9]\d*)(_[1-9]\d*x(0|[1-9]\d*))*",
    "1x32768_31x512",
)


def lengths(p: Params, mean: str) -> list[int]:
    """Tokens of each sequence, at least one; of a list as it says, none as well.

    ``p["lengths"]``: "even", all of the parameter that ``mean`` names; "lognormal" and "zipf", the
    quantiles of that distribution, longest first, with the same sum; or a list such as
    1x32768_31x512, one sequence of 32768 tokens and 31 of 512.
    """
    kind, batch = p["lengths"], p["batch"]
    if kind == "even":
        return [p[mean]] * batch
    if kind == "zipf":
        return _scaled([1 / rank for rank in range(1, batch + 1)], p[mean])
    if kind == "lognormal":
        normal = NormalDist(sigma=SIGMA)
        shares = [(batch - i - 0.5) / batch for i in range(batch)]
        return _scaled([math.exp(normal.inv_cdf(share)) for share in shares], p[mean])
    parts = [tuple(map(int, part.split("x"))) for part in kind.split("_")]
    return [length for count, length in parts for _ in range(count)]


def label(p: Params, mean: str) -> str:
    """The lengths in a point's id: "2048" where all are alike, "2048_zipf", or the list."""
    if p["lengths"] == "even":
        return str(p[mean])
    return p["lengths"] if listed(p) else f"{p[mean]}_{p['lengths']}"


def listed(p: Params) -> bool:
    """Whether the lengths are a list, and the mean has no meaning."""
    return re.match(r"\d", p["lengths"]) is not None


def refusal(p: Params) -> str | None:
    """Why the lengths cannot be those of the batch; None if they can."""
    found = lengths(p, "batch")  # of a list alone is the number known
    if listed(p) and len(found) != p["batch"]:
        return f"lengths {p['lengths']} are those of {len(found)} sequences, not of {p['batch']}"
    if listed(p) and not any(found):
        return f"lengths {p['lengths']} leave no sequence a token"
    return None


def edges(p: Params, mean: str) -> list[Params]:
    """Lengths at which a kernel goes wrong, in place of a point's: one token, just below, at and above a page, all of
    these in one batch, sequences without a token between and behind others, and an uneven one."""
    page = p["page_size"]
    found = list(dict.fromkeys((1, max(1, page - 1), page, page + 1)))
    each = [{mean: length, "lengths": "even"} for length in found]
    mixed = "_".join(f"1x{length}" for length in found)
    return [
        *each,
        {"batch": len(found), "lengths": mixed},
        {"batch": 5, "lengths": f"1x0_1x{page + 1}_2x0_1x1"},
        {"batch": 2, "lengths": f"1x{page}_1x0"},
        {"lengths": "zipf"},
    ]


def _scaled(weights: Sequence[float], mean: int) -> list[int]:
    """Whole numbers from 1 in proportion to the weights, whose sum is exactly that of the mean."""
    total = mean * len(weights)
    spare = total - len(weights)
    exact = [1 + spare * weight / sum(weights) for weight in weights]
    found = [int(value) for value in exact]
    by_rest = sorted(range(len(exact)), key=lambda i: found[i] - exact[i])
    for i in by_rest[: total - sum(found)]:
        found[i] += 1
    return found
