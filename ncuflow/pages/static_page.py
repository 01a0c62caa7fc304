"""The page of a GPU that was not there: launches, kernels beside another architecture's, predictions, open claims.

ncuflow static-page --results DIR --facts static.json.xz --measured DIR [--beside static.json.xz]
                    [--modules static.json.xz…] --out FILE.md
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ncuflow.claims.record import CONFIRMED, REFUTED
from ncuflow.findings.kernelname import Decoder, canonical
from ncuflow.findings.occupancy import occupancy_limit
from ncuflow.io import read_json, write_text
from ncuflow.model import Kernel, Results
from ncuflow.pages import Context
from ncuflow.pages.pages import environment
from ncuflow.static import sass
from ncuflow.static.facts import Facts
from ncuflow.static.predict import read
from ncuflow.target import load, ordered

# Column -> which instructions of the hot loop it counts.
LOOP = {
    "tensor": sass.FAMILIES[0],
    "LDSM": "LDSM",
    "async copies": "LDGSTS|UTMALDG",
    "global loads": r"LDG\b",
    "barriers": "BAR|SYNCS|WARPSYNC",
    "MUFU": "MUFU",
}


def context(
    results: Path, facts: Facts, beside: Facts | None, measured: Path, built: Sequence[Facts]
) -> Context:
    """What the template is given."""
    found = {one["target"]: one for one in read(results)}
    predicted = read_json(results / "predictions.json")
    decoder = Decoder()
    launched = [k for one in found.values() for p in one["points"] for k in p["kernels"]]
    return {
        "provenance": next(iter(found.values()))["provenance"],
        "content": facts.content,
        "beside": beside.content if beside else None,
        "chapters": [
            {"title": load(name).title, **_chapter(found[name], predicted, decoder)}
            for name in ordered(list(found))
        ],
        "columns": list(LOOP),
        "kernels": list(_kernels(launched, facts, beside)),
        "predicted": predicted,
        "modules": sorted((m for one in built for m in one.modules()), key=lambda m: m["module"]),
        "claims": _claims(read_json(results / "claims.json"), read_json(measured / "claims.json")),
        "measured": read_json(measured / "claims_summary.json")["provenance"],
    }


def _chapter(found: Results, predicted: Mapping[str, Any], decoder: Decoder) -> Context:
    times = {point["point"]: point for point in predicted["points"]}
    rows, arguments = [], {}
    for point in found["points"]:
        for kernel in point["kernels"]:
            limit = occupancy_limit(kernel["metrics"])
            decoded = decoder.decode(kernel["demangled"] or kernel["name"])
            arguments[kernel["demangled"]] = decoded
            rows.append({**kernel, "point": point["point"], "decoded": decoded, "limit": limit})
    return {
        "rows": rows,
        "kernels": [decoded for decoded in arguments.values() if decoded.arguments],
        "times": [
            times[p["point"]] | {"id": p["point"]} for p in found["points"] if p["point"] in times
        ],
        "unable": [(p["point"], p["reason"]) for p in found["points"] if p["status"] == "skipped"],
        "lost": [(p["point"], "; ".join(p["problems"])) for p in found["points"] if p["problems"]],
    }


def _kernels(launched: Sequence[Kernel], facts: Facts, beside: Facts | None) -> Iterator[Context]:
    """Each launched kernel that was compiled, once: its facts on both architectures."""
    for name in dict.fromkeys(canonical(k["demangled"]) for k in launched if k["demangled"]):
        here = facts.kernels.get(name)
        there = beside.kernels.get(name) if beside else None
        if here:
            yield {
                "name": _short(name),
                "sides": [side and {**side, "loop": _loop(side)} for side in (here, there)],
            }


def _short(name: str) -> str:
    """A kernel's name and template arguments without namespaces."""
    return name.replace("flashinfer::", "").replace("norm::", "")


def _loop(kernel: Mapping[str, Any]) -> Context | None:
    """Of the hot loop: instructions, and how many of each column of LOOP."""
    hot = kernel["hot_loop"]
    if hot is None:
        return None
    counted = {name: sass.count(hot["mix"], family) for name, family in LOOP.items()}
    return {"instructions": hot["instructions"], **counted}


def _claims(static: Sequence[Mapping[str, Any]], measured: Sequence[Mapping[str, Any]]) -> Context:
    """Claims by what decides them: here without a run, on the measured GPU alone, neither."""
    decided = {CONFIRMED, REFUTED}
    there = {record["id"] for record in measured if record["verdict"] in decided}
    here = {record["id"] for record in static if record["verdict"] in decided}
    everything = [record["id"] for record in static]
    return {
        "total": len(everything),
        "before": len(everything) - len(there),
        "here": len(here),
        "there": len(there - here),
        "open": [record for record in static if record["id"] not in here | there],
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--results", type=Path, required=True, help="of tier S, with claims and predictions"
    )
    parser.add_argument(
        "--facts", type=Path, required=True, help="static facts of the architecture"
    )
    parser.add_argument("--beside", type=Path, help="those of another one")
    parser.add_argument(
        "--modules", type=Path, nargs="*", default=[], help="facts to list modules of"
    )
    parser.add_argument("--measured", type=Path, required=True, help="results of the measured GPU")
    parser.add_argument("--out", type=Path, required=True)


def run(args: argparse.Namespace) -> None:
    facts = Facts(read_json(args.facts))
    beside = Facts(read_json(args.beside)) if args.beside else None
    built = [Facts(read_json(path)) for path in args.modules]
    given = context(args.results, facts, beside, args.measured, built)
    text = environment().get_template("static.md.j2").render(given)
    write_text(args.out, text.rstrip() + "\n")
