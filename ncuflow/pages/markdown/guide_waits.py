"""Waits and choices of a target for the guide: stall trees, hot lines, pairs and how they fared, settings."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ncuflow.expression import names
from ncuflow.findings import limiter, waits
from ncuflow.findings.choices import Effect, divided, effects, same_launches, summary, within
from ncuflow.findings.columns import BY_NAME
from ncuflow.findings.join import is_torchs, main_kernel
from ncuflow.findings.kernelname import decode
from ncuflow.findings.opportunities import turning
from ncuflow.findings.tried import CHANGES, elsewhere
from ncuflow.findings.waits import told_apart
from ncuflow.io import read_yaml, resource
from ncuflow.model import Kernel, Point, Results
from ncuflow.pages import Context
from ncuflow.pages.context.section import fared, file_and_line, turned
from ncuflow.target.contract import Choice, Option, known
from ncuflow.target.launch import Params

MOST_TREES = 2
REMEDIES: dict[str, str] = read_yaml(resource("templates/guide/remedies.yaml"))
# NVIDIA's rules of what a launch allows and reaches: the table of launches has both.
OCCUPANCY = ("TheoreticalOccupancy", "AchievedOccupancy")
LEAST_SHOWN = 0.01  # of all cycles: a smaller reason is not drawn


def trees(points: list[Point], deep: list[Kernel]) -> list[Context]:
    """One stall tree per kind of kernel: of its deep profile, else of its longest point in the sweep.

    Each: {point, kernel, deep, tree, lines (drawn), top (reasons), rules (NVIDIA's), busiest (its
    unit) and room (per cent of the time that is left beside that unit's work)}.
    """
    chosen: dict[str, tuple[str | None, Kernel, bool]] = {}
    for kernel in deep:
        if not is_torchs(kernel):
            chosen.setdefault(_kind(kernel), (kernel["point"], kernel, True))
    longest = sorted(points, key=lambda p: -(p["measurement"]["time_ncu_us"] or 0))
    for point in longest:
        main = main_kernel(point["kernels"])
        if main is not None and not is_torchs(main):
            chosen.setdefault(_kind(main), (point["point"], main, False))
    found = (_stall_context(*kernel) for kernel in chosen.values())
    return [shown for shown in found if shown][:MOST_TREES]


def _kind(kernel: Kernel) -> str:
    """Kernels that differ in what they wait for: by name, and by what their target tells them apart."""
    found = decode(kernel["demangled"] or kernel["name"])
    parameters = [
        target.source.apart[found.name]
        for target in known().values()
        if found.name in target.source.apart
    ]
    return " ".join([found.name, *(found.value(parameter) or "" for parameter in parameters)])


def _stall_context(point: str | None, kernel: Kernel, deep: bool) -> Context | None:
    tree = waits.stall_tree(kernel)
    if tree is None:
        return None
    found = limiter.judge(kernel["breakdown"], kernel["metrics"])
    return {
        "point": point,
        "kernel": kernel["name"],
        "busiest": found.units[0].name if found.units else None,
        "room": found.room,
        "deep": deep,
        "tree": tree,
        "lines": drawn(tree),
        "top": [(r, _most_at(kernel, r.reason)) for r in tree.top()],
        "rules": [rule for rule in waits.advice(kernel, 4) if rule["rule"] not in OCCUPANCY][:2],
    }


def _most_at(kernel: Kernel, reason: str) -> str | None:
    """The source line that most samples of a reason are of, ``prefill.cuh:1140``; None without samples."""
    lines: Counter[str] = Counter()
    for row in told_apart(kernel.get("lines") or ()):
        if row["reason"] == reason and row["file"]:
            lines[f"{row['file'].rpartition('flashinfer/')[2]}:{row['line']}"] += row["samples"]
    return max(lines, key=lambda line: lines[line]) if lines else None


def drawn(tree: waits.Tree) -> list[str]:
    """The tree as text, a line per node, shares of active scheduler cycles right-aligned."""
    rows: list[tuple[str, float, float | None]] = [
        ("active scheduler cycles", 1.0, None),
        ("├─ issued an instruction", tree.issued, None),
        ("└─ issued nothing", tree.not_issued, None),
    ]
    groups = [g for g in tree.groups if g.share >= LEAST_SHOWN]
    rest = tree.not_issued - sum(g.share for g in groups)
    for at, group in enumerate(groups):
        last = at == len(groups) - 1 and rest < LEAST_SHOWN / 10
        rows.append((f"   {'└─' if last else '├─'} {group.name}", group.share, None))
        rows += _reasons(group, "   " if last else "│  ")
    if rest >= LEAST_SHOWN / 10:
        rows.append(("   └─ all else", rest, None))
    width = max(len(label) for label, _, _ in rows) + 2
    return [
        f"{label:<{width}}{100 * share:5.1f} %"
        + ("" if error is None else f"  ± {100 * error:.1f}")
        for label, share, error in rows
    ]


def _reasons(group: waits.StallGroup, bar: str) -> list[tuple[str, float, float | None]]:
    shown = [r for r in group.reasons if r.share >= LEAST_SHOWN]
    out = []
    for at, reason in enumerate(shown):
        branch = "└─" if at == len(shown) - 1 else "├─"
        error = None
        if reason.uncertainty is not None and reason.of_stalls:
            error = reason.uncertainty * reason.share / reason.of_stalls
        out.append((f"   {bar}{branch} {reason.reason}", reason.share, error))
    return out


def hot_kernels(deep: list[Kernel], index: Any, version: str | None) -> list[Context]:
    """The hot lines of each deep-profiled kernel; kernels without samples are left out."""
    out = []
    for kernel in deep:
        lines = waits.hottest(kernel, index, version)
        if lines and not is_torchs(kernel):
            out.append(
                {
                    "point": kernel["point"],
                    "kernel": kernel["name"],
                    "lines": lines,
                    "samples": sum(row["samples"] for row in kernel["lines"]),
                    "coverage": waits.coverage(kernel),
                }
            )
    return out


SAME_LAUNCH = "the same launch"  # of both sides of all pairs, which say nothing of the choice
HOST = "host_launch_us"  # what shortens it may lengthen the kernels, which stand beside it
METRICS = {
    "time_cold_us": "cold time",
    "time_hot_us": "hot time",
    "host_launch_us": "host time of the call",
}


def shown_choices(results: Results) -> dict[str, Context]:
    """Choice key -> {choice, target, summary and how it fared (None without pairs), metric, pairs}."""
    target = known().get(results["target"])
    return {c.key: _choice(c, results) for c in (target.compared if target else ())}


def options(results: Results, shown: dict[str, Context], index: Any) -> list[Context]:
    """[{option, default, place, effect}]: the settings of a target's API, the effect by the summary of its choice."""
    target = known().get(results["target"])
    return [
        {
            "option": option,
            "default": _default(option, index),
            "place": file_and_line(option.symbol, results["target"], index),
            "effect": shown.get(option.choice),
        }
        for option in (target.options if target else ())
    ]


def _default(option: Option, index: Any) -> str | None:
    """As the call's signature states it, or the source that reads a variable of the environment; None where neither does."""
    known = index or {}
    parameters = (known.get("signatures") or {}).get(option.signature) or ()
    stated = [p["default"] for p in parameters if p["name"] == option.name]
    read = [r["default"] for r in (known.get("environment") or {}).get(option.name) or ()]
    return next((default for default in stated + read if default is not None), None)


def _choice(choice: Choice, results: Results) -> Context:
    found = effects(choice, results)
    first = [p for p in found if p.metric == choice.metrics[0]]
    params = [point["params"] for point in results["points"] if point["status"] == "ok"]
    own = _said(choice, params)
    counted = summary(first, own)
    return {
        "choice": choice,
        "target": results["target"],
        "summary": counted,
        "fared": counted
        and (
            SAME_LAUNCH
            if _same(choice, first, results)
            else fared(counted) + _turned(choice, first, results)
        ),
        "metric": METRICS.get(choice.metrics[0], BY_NAME[choice.metrics[0]].formula),
        "beside": [
            {"metric": METRICS.get(metric, metric), "fared": fared(of), "summary": of}
            for metric in (choice.metrics[1:] if HOST in choice.metrics else ())
            if (of := summary([p for p in found if p.metric == metric], own))
        ],
        "pairs": _pairs(first, results["points"]),
    }


def _turned(choice: Choice, found: list[Effect], results: Results) -> str:
    """What went the other way under the same conditions in other places."""
    target = known()[results["target"]]
    named = {
        one.what
        for one in target.opportunities
        if one.choice == choice.key and not one.inverted and one.metric == choice.metrics[0]
    }
    every = [one for one in elsewhere(results) if one.what in named]
    others = [one for one in every if not one.source.startswith(CHANGES)]
    other_way = [tried for part in divided(found) for tried in turning(part, others)]
    return f"; counterexample: {turned(other_way)}" if other_way else ""


def _same(choice: Choice, found: list[Effect], results: Results) -> bool:
    """Whether a choice that acts through what is launched left that as it was in all its pairs: times tell nothing of it."""
    by_id = {point["point"]: point for point in results["points"]}
    acts = choice.of_kernels or choice.parameter == "split"
    return acts and all(same_launches(by_id[e.base_point], by_id[e.other_point]) for e in found)


def _said(choice: Choice, points: list[Params]) -> list[str]:
    """What a choice asks of points that not all have, told with a condition of its pairs; of two parameters its title tells."""
    bases = [params for params in points if params.get(choice.parameter) == choice.base]
    return [term for term in within(choice, bases) if len(names(term)) == 1]


def _pairs(found: list[Effect], points: list[Point]) -> list[Context]:
    """The two points of each comparison: {effect, params (of the base), other_params, base, other (their measurements)}."""
    by_id = {point["point"]: point for point in points}
    return [
        {
            "effect": p,
            "params": by_id[p.base_point]["params"],
            "other_params": by_id[p.other_point]["params"],
            "base": by_id[p.base_point]["measurement"],
            "other": by_id[p.other_point]["measurement"],
        }
        for p in found
    ]
