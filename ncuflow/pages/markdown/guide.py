"""The kernel guide's context: what a kernel was, where it sits, what it waits for; and the frame around the kernels' pages.

Everything is read from findings. What evidence lacks is None or empty here, and stands in no chapter: the frame
lists it once.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from ncuflow.expression import names
from ncuflow.findings import limiter, waits
from ncuflow.findings.choices import (
    CHANGES,
    Effect,
    divided,
    effects,
    same_launches,
    summary,
    tried_elsewhere,
    within,
)
from ncuflow.findings.columns import BY_NAME
from ncuflow.findings.join import is_torchs, main_kernel
from ncuflow.findings.kernelname import Decoder, decode
from ncuflow.findings.opportunities import turning
from ncuflow.findings.steps import LAYERS, Step, planned, steps
from ncuflow.io import read_yaml, resource
from ncuflow.model import Kernel, Point, Results
from ncuflow.pages import Context
from ncuflow.pages.markdown import guide_kernels
from ncuflow.pages.section import Findings, fared, file_and_line, roof, turned
from ncuflow.pages.series import as_sent, axis_of, best, faster, sent, varying
from ncuflow.target.contract import Choice, Option, Target, known, template_folders
from ncuflow.target.launch import Params

MOST_STEPS = 6
SIZES = (1, 32, 128)  # requests or rows of a call, as a reader looks them up
COUNTED = ("batch", "rows")  # the parameters that count them
MOST_SIZED = 3  # lines of a target
MOST_LINES = 4  # crossings per target that are spelt out
# Parameters by which a sweep grows, the first that a target varies is the one that is read.
GROWTH = ("seq_len", "batch", "rows", "tokens", "kv_len")


def context(findings: Findings, shown: Mapping[str, Context]) -> Context:
    """The frame's part of the template context; ``guide`` is its only key.

    shown: what the other pages say of each target (``contexts.target_section``).
    """
    index = findings.source_index
    jit = findings.optional("jit_analysis")
    # An older recording knows nothing of a target that was added since.
    covered = {*findings.targets, *findings.stopped, *(index["targets"] if index else known())}
    kernels = {
        name: kernel(target, findings.targets[name], shown[name])
        for name, target in known().items()
        if name in shown and shown[name]["good"]
    }
    return {
        "guide": {
            "kernels": kernels,
            "unmeasured": [
                target.heading or target.title
                for name, target in known().items()
                if name in covered and name not in kernels and name not in findings.stopped
            ],
            "version": (index or {}).get("version"),
            "environment": guide_kernels.environment(index),
            "other_variables": guide_kernels.other_variables(index),
            "jit": guide_kernels.jit(jit),
            "commands": guide_kernels.commands(findings.evidence),
            "stalls": [(name, waits.meaning(name), text) for name, text in REMEDIES.items()],
            "steps": _steps(findings),
            "layers": LAYERS,
            "performance": [row for k in kernels.values() if (row := performance(k))],
            "engine": guide_kernels.ENGINE,
            "columns": SIZES,
            "sizes": [row for k in kernels.values() for row in by_size(k)],
            "generators": guide_kernels.generators(index),
        }
    }


def _steps(findings: Findings) -> list[Step]:
    """Steps of as many shapes as there are, two of each phase of one."""
    found: dict[Any, list[Step]] = {}
    for step in steps(findings.targets):
        found.setdefault((step.attention.phase, step.shape), []).append(step)
    return [step for alike in found.values() for step in alike[:2]][:MOST_STEPS]


def kernel(target: Target, results: Results, shown: Context) -> Context:
    """What the frame says of one measured kernel."""
    points = [p for p in results["points"] if p["status"] == "ok"]
    axis = shown["axis"]
    return {
        "name": target.name,
        "heading": target.heading or target.title,
        "prose": prose(target.name),
        "axis": axis.name,
        "rate": axis.rate,
        "best": best(points, axis.rate),
        "points": points,
        "opportunities": shown["opportunities"],
        "choices": shown_choices(results),
        "batches": (rows := batches(points, target)),
        "grouped": grouped(rows),
    }


def chapter(results: Results, index: Any) -> Context:
    """What the page of one kernel says beyond its points: algorithm, source, launches, waits, settings."""
    name = results["target"]
    target, names = known().get(name), Decoder((index or {}).get("templates"))
    points = [p for p in results["points"] if p["status"] == "ok"]
    choices = shown_choices(results)
    own = [kernel.name for kernel in target.source.kernels] if target else []
    capability = str(results["provenance"].get("compute_capability") or "")
    return {
        "about": target.about if target else "",
        "prose": prose(name),
        "code": guide_kernels.code_path(name, index, results),
        "version": (index or {}).get("version"),
        "functions": guide_kernels.functions(index),
        "scheduler": (index or {}).get("scheduler") or {},
        "points": points,
        "limited_by": limiters(points),
        "regime_changes": regime_changes(points, main_axis(points)),
        "trees": trees(points, results["deep"]),
        "hot": hot_kernels(results["deep"], index, results["provenance"].get("flashinfer")),
        "parameters": guide_kernels.parameter_tables(points, names, own),
        "launched": guide_kernels.launches(points, results["provenance"].get("gpu") or ""),
        "choices": choices,
        "resolved": {
            p["point"]: target.resolves(target.parameters | p["params"], capability) for p in points
        }
        if target
        else {},
        "rivals": sorted({str(p["info"]["rival"]) for p in points if "rival" in p["info"]}),
        "ran": sorted({kernel["name"] for p in points for kernel in p["kernels"]}),
        "plans": planned(points),
        "instructions": guide_kernels.instructions(results),
        "waiting_mma": guide_kernels.waiting(results),
        "call": guide_kernels.calls(points),
        "tails": guide_kernels.tails(points, main_axis(points)),
        "options": options(results, choices, index),
        "split": guide_kernels.split_rows(
            target, points, results["provenance"].get("sm_count"), names
        )
        if target
        else [],
    }


def batches(points: list[Any], target: Target) -> list[Any]:
    """Points that leave all but ``batch``, ``kv_heads`` and ``cores`` at the target's defaults, most KV heads first."""
    if not {"batch", "kv_heads"} <= target.parameters.keys():
        return []
    usual = {k: v for k, v in target.parameters.items() if k not in ("batch", "kv_heads", "cores")}
    found = [p for p in points if all(p["params"][k] == v for k, v in usual.items())]

    def place(point: Point) -> tuple[Any, ...]:
        params = point["params"]
        return -params["kv_heads"], params.get("cores") or "", params["batch"]

    return sorted(found, key=place)


def grouped(points: list[Any]) -> Context | None:
    """Of the largest batch that was measured with several numbers of KV heads: {batch, kv_len, times: (KV heads, µs of the
    fastest cores), most first}."""
    least: dict[tuple[int, int], dict[int, float]] = {}
    for params, us in ((p["params"], p["measurement"]["time_cold_us"]) for p in points):
        of = least.setdefault((params["batch"], params.get("kv_len", 0)), {})
        of[params["kv_heads"]] = min(us, of.get(params["kv_heads"], us))
    size = max((size for size, of in least.items() if len(of) > 1), default=None)
    if size is None:
        return None
    times = sorted(least[size].items(), reverse=True)
    return {"batch": size[0], "kv_len": size[1], "times": times}


def prose(target: str) -> list[str]:
    """Names of the templates and examples that were written for a target."""
    return [
        path.name for folder in template_folders() for path in (folder / "guide" / target).glob("*")
    ]


def example(target: str) -> str:
    """The code of its calls, one file that runs as it is; of a target without one, a word where to get it."""
    found = [
        path for folder in template_folders() for path in (folder / "guide" / target).glob("*.py")
    ]
    without = "# A point's call: ncuflow export script POINT --out point.py\n"
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(found)) or without


def main_axis(points: list[Point]) -> str:
    """The parameter along which a target is read: of GROWTH, where points lie along it, the first of three values or more."""
    found = varying(points)
    along = [name for name in GROWTH if name in found and _line(points, name)]
    long = [name for name in along if len(found[name]) >= limiter.FEWEST_JUDGED]
    return next(iter(long + along), axis_of(points).name)


def limiters(points: list[Point]) -> list[tuple[str, int]]:
    """(verdict, points), the most frequent first; points without counters aside."""
    rows = [point["measurement"] for point in points]
    counts = Counter(said for row in rows if (said := limiter.kind(row)))
    return sorted(counts.items(), key=lambda c: (-c[1], c[0]))


def regime_changes(points: list[Point], axis: str) -> list[Context]:
    """Where lines of the sweep cross, with only those parameters that tell the lines apart."""
    differing = varying(points)
    axes = [
        axis,
        *(a for a in GROWTH if a != axis and len(differing.get(a, ())) >= limiter.FEWEST_JUDGED),
    ]
    every = [c for a in axes for c in limiter.regime_changes(points, a)]
    shown = [c for c in every if c.kind == "crosses"][:MOST_LINES]
    apart = {k for k in dict(differing) if len({dict(c.fixed).get(k) for c in shown}) > 1}
    # One that does not cross differs from one that does in this alone.
    pairs = [
        (dict(c.fixed), dict(o.fixed))
        for c in shown
        for o in every
        if (c.axis, "crosses") != (o.axis, o.kind)
    ]
    unlike = [
        {k for k in one if one[k] != other.get(k)}
        for one, other in pairs
        if one.keys() == other.keys()
    ]
    apart |= {key for keys in unlike if len(keys) == 1 for key in keys}
    return [
        {"c": c, "label": ", ".join(f"{k} {v}" for k, v in c.fixed if k in apart)} for c in shown
    ]


def performance(found: Context) -> Context | None:
    """One row of the quick reference, along the axis of the sweep figure, without rivals; None where no two points lie along one.

    Of the longest lines that with the highest rate: its smallest, middle and largest point; fixed: its other parameters, of
    those that differ between points; best: that of all points; faster: one of another type; roofs: that of each.
    """
    if found["axis"] == "point":
        return None
    axis, rate = found["axis"], found["rate"]
    rated = [
        as_sent(p)
        for p in found["points"]
        if p["measurement"][rate] is not None and "rival" not in p.get("info", {})
    ]
    lines = limiter.lines_along(rated, axis)
    line = max(lines, key=lambda line: (len(line), max(p["measurement"][rate] for p in line)))
    middle = line[len(line) // 2] if len(line) > 2 else None
    cells, top = [line[0], middle, line[-1]], as_sent(found["best"])
    over = ", bus bandwidth and of a copy between two GPUs" * (sent(line[0]) is not None)
    return {
        "name": found["name"],
        "heading": found["heading"] + over,
        "axis": axis,
        "fixed": {k: line[0]["params"][k] for k in varying(rated) if k != axis},
        "rate": rate,
        "cells": cells,
        "best": top,
        "faster": faster(found["points"], rate, top),
        "roofs": {p["point"]: roof(p["measurement"], rate) for p in [*cells, top] if p},
    }


def by_size(found: Context) -> list[Context]:
    """Rows of a target with two of ``SIZES`` or more: {heading, axis, fixed, rate, cells: a point for each size, or None}."""
    rows: list[Context] = []
    differing = varying(found["points"])
    for axis in COUNTED:
        for line in limiter.lines_along([as_sent(p) for p in found["points"]], axis):
            sized = {p["params"][axis]: p for p in line if p["measurement"]["time_cold_us"]}
            cells = [sized.get(size) for size in SIZES]
            if sum(cell is not None for cell in cells) >= 2:
                fixed = {k: line[0]["params"][k] for k in differing if k != axis}
                row = {"heading": found["heading"], "axis": axis, "rate": found["rate"]}
                rows.append(row | {"fixed": fixed, "cells": cells})
    return rows[:MOST_SIZED]


def _line(points: list[Point], axis: str) -> list[Point] | None:
    lines = [line for line in limiter.lines_along(points, axis) if len(line) >= 2]
    return lines[0] if lines else None


# --- waits and choices: stall trees, hot lines, pairs and how they fared, settings --------------------

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
    for row in waits.told_apart(kernel.get("lines") or ()):
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
    every = [one for one in tried_elsewhere(results) if one.what in named]
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
