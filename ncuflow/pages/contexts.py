"""Contexts: what each page's template is given. Numbers are chosen here and formatted there."""

from __future__ import annotations

from typing import Any

from ncuflow.findings.provenance import together
from ncuflow.model import Point, Results
from ncuflow.pages import Context, guide, guide_choices, opportunities
from ncuflow.pages.findings import Findings
from ncuflow.pages.series import axis_of, spread, usual
from ncuflow.target import known

MOST_ROWS = 24  # of a table on a page; the CSV beside it has them all


def page_context(page: str, findings: Findings, target: str | None) -> Context:
    """The template context of a page. A target's page reads that target's results and no other."""
    if page == "target":
        if target is None:
            raise ValueError("page target: needs --target")
        section = target_section(findings.target(target), findings.source_index)
        return {"provenance": section["provenance"], "t": section}
    if page == "jit":
        jit = findings.optional("jit_analysis")
        return {"provenance": jit["provenance"], "jit": jit}
    machine = findings.optional("environment_info")
    context: Context = {
        "provenance": machine["provenance"],
        "machine": machine,
        "jit": findings.optional("jit_analysis"),
    }
    if page == "environment":
        return context
    context["targets"] = {
        name: target_section(found, findings.source_index)
        for name, found in findings.targets.items()
    }
    measured = together(results["provenance"] for results in findings.targets.values())
    context["provenance"] = measured or machine["provenance"]
    context["stopped"] = [(title(name), reason) for name, reason in findings.stopped.items()]
    records = findings.optional("claims")
    if records is not None:
        records = findings.optional("claims_summary") | {"claims": records}
    context["claims"] = records
    if page == "final-report":
        context["choices"] = [
            choice
            for results in findings.targets.values()
            for choice in guide_choices.shown_choices(results).values()
            if choice["summary"]
        ]
    if page == "kernel-dev-guide":
        context |= guide.context(findings)
    return context


def title(name: str) -> str:
    """The title of a target; its name where the evidence is of one that is not here."""
    target = known().get(name)
    return target.title if target else name.replace("_", " ").capitalize()


def target_section(results: Results, index: Any = None) -> Context:
    """What pages say of one target; index: of the FlashInfer that was measured."""
    points = results["points"]
    good = [p for p in points if p["status"] == "ok"]
    axis = axis_of(good)
    return {
        "name": results["target"],
        "title": title(results["target"]),
        "provenance": results["provenance"],
        "ceilings": results["ceilings"],
        "axis": axis,
        "base": ", ".join(f"{name} {value}" for name, value in usual(good, axis)),
        "total": len(points),
        "good": len(good),
        "warnings": results["warnings"],
        "not_good": [p for p in points if p["status"] != "ok"],
        "incomplete": [p for p in good if p["measurement"]["problems"]],
        "shown": [_shown(p) for p in spread(good, MOST_ROWS)],
        "best": _best(good, axis.rate),
        "limiters": _limiters(good),
        "opportunities": opportunities.rows(results, index),
        "has_counters": any(p["measurement"]["time_ncu_us"] for p in good),
        "has_trace": any(p["measurement"]["time_insitu_us"] for p in good),
    }


def _shown(point: Point) -> Context:
    m = point["measurement"]
    return {
        "label": point["point"].split("/", 1)[1],
        "id": point["point"],
        "m": m,
        "params": point["params"],
    }


def _best(points: list[Point], rate: str) -> Context | None:
    """The point of the highest rate, without which a page has nothing to lead with."""
    rated = [p for p in points if p["measurement"][rate] is not None]
    return _shown(max(rated, key=lambda p: p["measurement"][rate])) if rated else None


def _limiters(points: list[Point]) -> list[Context]:
    """How many points each limiter bounds, the most frequent first, with the range of sizes."""
    groups: dict[str, list[Context]] = {}
    for point in points:
        groups.setdefault(point["measurement"]["limiter"], []).append(_shown(point))
    return [
        {"limiter": name, "count": len(members), "fastest": min(members, key=_time), "slowest": max(members, key=_time)}
        for name, members in sorted(groups.items(), key=lambda g: -len(g[1]))
    ]  # fmt: skip


def _time(shown: Context) -> float:
    return float(shown["m"]["time_cold_us"] or 0)
