"""What decides a claim, in words: the facts that its entry on the page lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ncuflow.format import change, number, percent, with_unit
from ncuflow.io import JsonObject

Claim = Mapping[str, Any]


def with_words(claims: Sequence[JsonObject]) -> list[JsonObject]:
    """The claims with what is told of each, what is not known left out: [[name, text]…]."""
    return [claim | {"told": _told(claim)} for claim in claims]


def _told(claim: Claim) -> list[tuple[str, str]]:
    published, measured = claim["published"], claim["measured"]
    apart, floor = (claim["difference"] or {}).get("relative"), claim["noise_floor"]
    found = {
        "published": _published(published),
        "measured": _measured(measured),
        "difference": None if apart is None else change(apart),
        "rule": _rule(claim),
        "tolerance": _tolerance(claim),
        "noise floor": None if floor is None else _amount(floor, claim["unit"]),
    }
    return [(name, text) for name, text in found.items() if text]


def _amount(value: Any, unit: str | None) -> str:
    """A value of a claim, in its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        f"{percent(value, 1)} of the ceiling"
        if unit == "of the ceiling"
        else with_unit(value, unit or "")
    )


def _published(found: Claim | None) -> str | None:
    """The published figure or range, and the GPU that it was measured on or is expected of."""
    figure = _figure(found) if found else None
    if not figure or not found or not found.get("gpu"):
        return figure
    return f"{figure}, {'expected of' if found['expected'] else 'on'} {found['gpu']}"


def _figure(found: Claim) -> str | None:
    unit = found["unit"]
    if found["value"] is not None:
        return _amount(found["value"], unit)
    if not found["range"]:
        return None
    low, high = found["range"]
    if low is None or high is None:
        return f"at most {_amount(high, unit)}" if low is None else f"at least {_amount(low, unit)}"
    return _amount(low, unit) if low == high else f"{number(low)}–{_amount(high, unit)}"


def _measured(found: Claim | None) -> str | None:
    if not found or found["value"] is None:
        return None
    value = _amount(found["value"], found["unit"])
    if not found["aggregate"]:
        return value
    return f"{value}, {found['aggregate']} over {number(found['known'])} points"


def _rule(claim: Claim) -> str | None:
    """How the values are taken together, and what that is compared with."""
    if not claim["compare"]:
        return None
    compared = (claim["published"] or {}).get("compared") or {}
    limit, value = claim["limit"], compared.get("value")
    bounds = [
        limit if limit is not None else value if value is not None else compared.get(end)
        for end in ("low", "high")
    ]
    against = (
        [] if claim["compare"] == "holds" else dict.fromkeys(b for b in bounds if b is not None)
    )
    words = [
        f"{(claim['measured'] or {}).get('aggregate') or 'value'} over {claim['over']}",
        claim["compare"],
    ]
    return " ".join([*words, " and ".join(_amount(one, claim["unit"]) for one in against)]).strip()


def _tolerance(claim: Claim) -> str | None:
    found = claim["tolerance"]
    if not found:
        return None
    if found.get("relative") is None:
        return f"± {_amount(found['absolute'], claim['unit'])}"
    return f"± {percent(found['relative'], 1)} of the figure"
