"""The page of a comparison: what differs, what changed and why, what stays unexplained.

    ncuflow compare-page --comparison A.json [B.json …] --figures DIR … --out FILE.md

Several comparisons of one sweep, each side compared with the one before it, make one page that
leads with the times of all sides.
"""

from __future__ import annotations

import argparse
import os
import re
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from ncuflow.format import MISSING, quantity
from ncuflow.io import read_json, write_text
from ncuflow.pages.pages import environment

Row = dict[str, Any]
MOST_CHANGED = 12  # told in full, with a waterfall each
MOST_ROWS = 60
MOST_PARTS, LEAST_SHARE = 5, 0.05
LABELS = {
    "cold_us": "time",
    "cold_us_short": "time of short launches",
    "host_us": "host",
    "plan_us": "plan",
}
CHANGED = ("slower", "faster")
# facts that a reader of the page wants first; bytes and rates follow in the order found
FIRST = ("template", "launch", "code", "smem", "occupancy")
MOST_FACTS = 12
SAID_BY_PARTS = ("instructions executed", "SM clock", "active warps a scheduler")


def changed(document: Row) -> list[Row]:
    """Points that changed: slow-downs first, the largest relative change first."""
    found = [point for point in document["points"] if point["verdict"] in CHANGED]
    return sorted(found, key=lambda p: (p["verdict"] != "slower", -abs(p["relative"])))


def figure_name(point: Row) -> str | None:
    """File name of a point's waterfall; None for a host time, which has one cause and no parts."""
    if point["metric"] != "cold_us":
        return None
    return f"waterfall-{re.sub(r'[^A-Za-z0-9]+', '-', point['id'])}.svg"


def context(document: Row, figures: str | None) -> Row:
    """What the template is given of one comparison. figures: their folder, from the page."""
    found = changed(document)
    rest = [point for point in document["points"] if point["verdict"] not in CHANGED]
    return document | {
        "figures": figures,
        "targets": _counts(document["points"]),
        "changed": found,
        "told": [_told(point) for point in found[:MOST_CHANGED]],
        "rows": (found + sorted(rest, key=lambda p: -abs(p["relative"])))[:MOST_ROWS],
        "causes_of_all": [d["axis"] for d in document["differences"] if d["cause"]],
    }


def _counts(points: list[Row]) -> dict[str, Counter[str]]:
    out: dict[str, Counter[str]] = defaultdict(Counter)
    for point in points:
        out[point["target"]][point["verdict"]] += 1
    return dict(sorted(out.items()))


def _told(point: Row) -> Row:
    causes = []
    for cause in point["causes"]:
        if abs(cause["share_of_delta"] or 0) >= LEAST_SHARE or cause["delta_us"] is None:
            facts = [_fact(fact) for fact in _ordered(cause["facts"]) if not _said(fact, cause)]
            causes.append(cause | {"parts": _large(cause["parts"]), "facts": facts})
    also = [
        (metric, row)
        for metric, row in point["metrics"].items()
        if metric != point["metric"] and row["verdict"] in CHANGED
    ]
    return point | {"causes": causes, "figure": figure_name(point), "also": also}


def _said(fact: Row, cause: Row) -> bool:
    """The headline or a part of the cause says it already."""
    in_parts = bool(cause["parts"]) and fact["what"] in SAID_BY_PARTS
    return fact["kind"] == "template" == cause["kind"] or in_parts


def _large(parts: list[Row]) -> list[Row]:
    return [p for p in parts if abs(p["share_of_cause"] or 0) >= LEAST_SHARE][:MOST_PARTS]


def _ordered(facts: list[Row]) -> list[Row]:
    first = [fact for kind in FIRST for fact in facts if fact["kind"] == kind]
    rest = [fact for fact in facts if fact["kind"] not in FIRST]
    lines = [fact for fact in rest if fact["kind"] == "line"]
    return (first + [f for f in rest if f["kind"] != "line"])[:MOST_FACTS] + lines


def _fact(fact: Row) -> Row:
    both = {side: value(fact[side], fact["unit"]) for side in ("base", "head")}
    return fact | both


def value(found: Any, unit: str) -> str:
    """A fact's value: a number with its unit, text and lists as code."""
    if found is None or found == "":
        return MISSING
    if isinstance(found, bool) or not isinstance(found, int | float):
        return f"`{found}`"
    return quantity(found, unit)


# --- several sides ----------------------------------------------------------------------------


def series(documents: list[Row]) -> Row:
    """All sides of comparisons that follow one another: a time for each side of every point."""
    sides = [documents[0]["base"], *(document["head"] for document in documents)]
    times: dict[str, list[float | None]] = {}
    for index, document in enumerate(documents):
        for point in document["points"]:
            row = point["metrics"].get("cold_us")
            if row is not None:
                own = times.setdefault(point["id"], [None] * len(sides))
                own[index] = row["base"] if own[index] is None else own[index]
                own[index + 1] = row["head"]
    verdicts = [{point["id"]: point for point in document["points"]} for document in documents]
    rows: list[Row] = [
        {"id": name, "times": own, "steps": [found.get(name) for found in verdicts]}
        for name, own in times.items()
    ]
    moved = [row for row in rows if any(s and s["verdict"] in CHANGED for s in row["steps"])]
    return {
        "sides": sides,
        "rows": (moved or rows)[:MOST_ROWS],
        "moved": len(moved),
        "points": len(rows),
    }


def render(documents: list[Row], figures: list[str | None]) -> str:
    """The Markdown of one comparison or of several that follow one another."""
    given = {
        "comparisons": [context(d, f) for d, f in zip(documents, figures, strict=True)],
        "series": series(documents) if len(documents) > 1 else None,
        "labels": LABELS,
    }
    return environment().get_template("compare.md.j2").render(given).rstrip() + "\n"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--comparison", type=Path, nargs="+", required=True)
    parser.add_argument("--figures", type=Path, nargs="*", default=[], help="one a comparison")
    parser.add_argument("--out", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    folders: list[str | None] = [os.path.relpath(f, args.out.parent) for f in args.figures]
    folders += [None] * (len(args.comparison) - len(folders))
    write_text(args.out, render([read_json(path) for path in args.comparison], folders))
