"""Contexts: what each page's template is given. Numbers are chosen here and formatted there."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from statistics import median
from typing import Any

from ncuflow.evidence.points import NOT_CAPTURED
from ncuflow.evidence.provenance import together
from ncuflow.findings import ceilings, limiter
from ncuflow.findings.join import main_kernel
from ncuflow.findings.opportunities import scopes, undecided
from ncuflow.model import Point, Results
from ncuflow.pages import Context
from ncuflow.pages.markdown import guide, opportunities, report
from ncuflow.pages.markdown.findings import Findings
from ncuflow.pages.markdown.series import PAST_DRAM, axis_of, best, spread, usual
from ncuflow.target.contract import known

CAPTURED = {
    "timing": "times",
    "trace": "traces (nsys)",
    "sweep": "counters (ncu)",
    "deep": "source lines (ncu)",
}
MOST_ROWS = 8  # of a table on a page; the CSV beside it has them all


def page_context(page: str, findings: Findings, target: str | None) -> Context:
    """The template context of a page. A target's page reads that target's results and no other."""
    if page == "target":
        if target is None:
            raise ValueError("page target: needs --target")
        results, index = findings.target(target), findings.source_index
        section = target_section(results, index) | guide.chapter(results, index)
        return {"provenance": section["provenance"], "t": section}
    if page == "jit":
        jit = findings.required("jit_analysis")
        return {"provenance": jit["provenance"], "jit": jit}
    machine = findings.required("environment_info")
    context: Context = {
        "provenance": machine["provenance"],
        "jit": findings.optional("jit_analysis"),
        "targets": _sections(findings),
    }
    measured = together(results["provenance"] for results in findings.targets.values())
    context["provenance"] = measured or machine["provenance"]
    context["stopped"] = [(title(name), reason) for name, reason in findings.stopped.items()]
    context["not_captured"] = _not_captured(findings.targets)
    records = findings.optional("claims")
    if records is not None:
        records = findings.optional("claims_summary") | {"claims": records}
    context["claims"] = records
    if page == "final-report":
        context["report"] = report.context(findings.targets, context["targets"])
    if page == "kernel-dev-guide":
        context |= guide.context(findings, context["targets"])
    return context


def _not_captured(targets: Mapping[str, Results]) -> list[tuple[str, list[str], str]]:
    """(what is missing, of which kernels, why) of captures that failed for good."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for name, results in targets.items():
        for point in results["points"]:
            for said in [*point["problems"], f"timing: {point['reason']}"]:
                what, _, why = said.partition(f": {NOT_CAPTURED}: ")
                if why:
                    found.setdefault((CAPTURED.get(what, what), why), {})[title(name)] = None
    return [(what, list(titles), why) for (what, why), titles in found.items()]


@cache  # the pages over all targets say the same of each
def _sections(findings: Findings) -> dict[str, Context]:
    return {
        name: target_section(found, findings.source_index)
        for name, found in findings.targets.items()
    }


def title(name: str) -> str:
    """The title of a target; its name where the evidence is of one that is not here."""
    target = known().get(name)
    return target.title if target else name.replace("_", " ").capitalize()


def target_section(results: Results, index: Any = None) -> Context:
    """What pages say of one target; index: of the FlashInfer that was measured."""
    points, target = results["points"], known().get(results["target"])
    good = [p for p in points if p["status"] == "ok"]
    axis = axis_of(good)
    top = best(good, axis.rate)
    named = {kernel["point"] for kernel in results["deep"]} | {top["point"] if top else None}
    shown = [_shown(p) for p in spread(good, MOST_ROWS, named)]
    floors = [
        p["measurement"]["time_floor_us"] for p in good if p["measurement"].get("time_floor_us")
    ]
    every = scopes(results)
    advice = opportunities.rows(results, index, every)
    return {
        "name": results["target"],
        "title": title(results["target"]),
        "calls": [
            symbol.rpartition(".")[2]
            for step, symbol in (target.source.api.items() if target else ())
            if step.startswith("python")
        ],
        "provenance": results["provenance"],
        "ceilings": results["ceilings"],
        "axis": axis,
        "base": ", ".join(f"{name} {value}" for name, value in usual(good, axis)),
        "total": len(points),
        "good": len(good),
        "warnings": results.get("warnings") or [],
        "not_good": [p for p in points if p["status"] != "ok"],
        "incomplete": _by_problem(good),
        "shown": shown,
        "best": top and _shown(top),
        "passed": top and ceilings.passed(results["ceilings"], top["measurement"], axis.rate),
        "floor": median(floors) if floors else None,
        "limiters": _limiters(good),
        "span": _span(good),
        "launches": sum(
            m["time_cold_us"] < 2 * m["time_floor_us"]
            for m in (p["measurement"] for p in good)
            if m["time_cold_us"] and m.get("time_floor_us")
        ),
        "past_dram": sum(
            (p["measurement"].get("bytes_beyond_dram_pct") or 0) >= PAST_DRAM for p in good
        ),
        "opportunities": advice,
        "first": opportunities.first(advice, top and top["point"]),
        "looked": bool(target and target.opportunities),
        "undecided": undecided(results, every=every),
        "has_counters": any(p["measurement"]["time_ncu_us"] for p in good),
        "has_trace": any(p["measurement"]["time_insitu_us"] for p in good),
    }


def _shown(point: Point) -> Context:
    m = point["measurement"]
    return {
        "label": point["point"].split("/", 1)[1],
        "id": point["point"],
        "m": m,
        "nature": limiter.nature(m),
        "params": point["params"],
        "l2_pct": _own_l2(point),
    }


def _own_l2(point: Point) -> float | None:
    """How busy L2 is by its own counters: ncu's L2 throughput has the fills from DRAM in it, and follows DRAM."""
    main = main_kernel(point["kernels"])
    units = limiter.judge(main.get("breakdown") or (), main["metrics"]).units if main else ()
    return next((unit.pct for unit in units if unit.name == "l2"), None)


def _by_problem(points: list[Point]) -> list[tuple[str, list[str]]]:
    """(what is missing, the points that lack it), in the order of the points."""
    found: dict[str, list[str]] = {}
    for point in points:
        if problems := point["measurement"]["problems"]:
            found.setdefault(problems, []).append(point["point"])
    return list(found.items())


def _limiters(points: list[Point]) -> list[Context]:
    """How many points have each verdict, the most frequent first, with the range of sizes; those without counters aside."""
    groups: dict[str, list[Context]] = {}
    for point in points:
        if said := limiter.kind(point["measurement"]):
            groups.setdefault(said, []).append(_shown(point))
    return [
        {"limiter": name, "count": len(members), "fastest": min(members, key=_time), "slowest": max(members, key=_time)}
        for name, members in sorted(groups.items(), key=lambda g: -len(g[1]))
    ]  # fmt: skip


def _span(points: list[Point]) -> tuple[float, float] | None:
    """The shortest and the longest cold time, in µs."""
    times = [m["time_cold_us"] for p in points if (m := p["measurement"])["time_cold_us"]]
    return (min(times), max(times)) if times else None


def _time(shown: Context) -> float:
    return float(shown["m"]["time_cold_us"] or 0)
