"""Opportunities as pages show them: a row each, ranked, with FlashInfer's line and what a trial brought."""

from __future__ import annotations

from typing import Any

from ncuflow import format as fmt
from ncuflow.findings.choices import STEP, Price
from ncuflow.findings.opportunities import Found, found, said
from ncuflow.model import Results
from ncuflow.pages import Context
from ncuflow.target.contract import Symbol


def rows(results: Results, index: Any) -> list[Context]:
    """[{what, at, more, shown, source, change, most, brought}], text but for the number of further points."""
    return [_row(one, results["target"], index) for one in found(results)]


def _row(one: Found, target: str, index: Any) -> Context:
    declared = one.opportunity
    return {
        "what": declared.what,
        "at": one.point.split("/", 1)[1],
        "shown": said(declared, one.facts) + " (times of the pair)" * _on_its_host(one.price),
        "more": one.points - 1,
        "source": place(declared.symbol, target, index),
        "change": declared.change,
        "most": fmt.percent(one.most) + (" of a step" if declared.metric == STEP else ""),
        "brought": brought(one),
    }  # fmt: skip


def brought(one: Found) -> str:
    """What the trial changed, with its interval and the range over all; or why there is none, and how to try."""
    price = one.price
    if price is None:
        return f"not tried: {one.reason}"
    text = f"{change(price.change)}"
    if price.low is not None and price.high is not None:
        text += f" ({change(price.low)} to {change(price.high)})"
    text += ", within noise" if price.verdict == "within noise" else ""
    text += "" if price.in_turns else ", not timed in turns"
    text += " on the pair's host" * _on_its_host(price)
    changes = [price.change for price in one.prices]
    if len(changes) > 1:
        text += f"; over {len(changes)} pairs {change(min(changes))} to {change(max(changes))}"
    if one.layers:
        text += f"; its plan() takes longer, which {one.layers} {'launch pays' if one.layers == 1 else 'launches pay'} for"
    if one.untried:
        text += f"; not tried at `{one.untried[0].split('/', 1)[1]}`, at most {fmt.percent(one.untried[1])}"
    return text


def _on_its_host(price: Price | None) -> bool:
    """Whether a price is that of a step timed in turns: what a host takes for a call is the host's own."""
    return price is not None and price.in_turns and price.metric == STEP


def change(value: float) -> str:
    """A relative change with its sign."""
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{fmt.percent(abs(value), 1)}"


def place(symbol: Symbol, target: str, index: Any) -> str:
    """``pos_enc.cuh:1594`` where the index of the measured FlashInfer has the symbol, else its file."""
    known = index or {}
    for name, functions in (known.get("functions") or {}).items():
        if name.endswith(f"/flashinfer/{symbol.header}"):
            line = next((line for line, _, function in functions if function == symbol.name), None)
            return f"{symbol.header}:{line}" if line else symbol.header
    entry = (known.get("targets") or {}).get(target) or {}
    for step in (entry.get("api") or {}).values():
        if step["symbol"].endswith(f".{symbol.name}"):
            return f"{step['file']}:{step['line']}"
    return symbol.header
