"""Render pages of kernels: findings and templates in, Markdown out.

ncuflow pages PAGE… --results DIR --evidence ROOT --out-dir DIR [--targets NAME…]
ncuflow pages target --target NAME --results DIR --evidence ROOT --out-dir DIR
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from ncuflow.evidence.points import NOT_CAPTURED
from ncuflow.evidence.provenance import together
from ncuflow.findings import choices, stored
from ncuflow.findings.jit import elsewhere
from ncuflow.findings.limiter import BOUND, CEILING, LATENCY, PARTLY, WAITING
from ncuflow.findings.opportunities import GROUPS, LOST, UNTRIED, WON
from ncuflow.findings.steps import planned
from ncuflow.io import write_text
from ncuflow.model import Point, Results
from ncuflow.pages import Context
from ncuflow.pages.markdown import guide
from ncuflow.pages.markdown.rendering import compile_shared, environment, single_spaced, text
from ncuflow.pages.section import Findings, target_section, title
from ncuflow.target.contract import known

CAPTURED = {
    "timing": "times",
    "trace": "traces (nsys)",
    "sweep": "counters (ncu)",
    "deep": "source lines (ncu)",
}


def page_context(page: str, findings: Findings, target: str | None) -> Context:
    """The template context of a page. A target's page reads that target's results and no other."""
    # Beside products that were measured, that of the preflight is not the fastest.
    beside = [name for name in known() if (findings.evidence / name).is_dir()]
    if page == "target":
        if target is None:
            raise ValueError("page target: needs --target")
        results, index = findings.target(target), findings.source_index
        section = target_section(results, index) | guide.chapter(results, index)
        return {"provenance": section["provenance"], "t": section, "beside": beside}
    if page == "jit":
        jit = findings.required("jit_analysis")
        return {"provenance": jit["provenance"], "jit": jit}
    machine = findings.required("environment_info")
    context: Context = {
        "beside": beside,
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
        context["report"] = report_context(findings.targets, context["targets"])
        context["report"] |= {
            "jit": (measured_jit := context["jit"] or elsewhere()),
            "unbuilt": _unbuilt(findings.targets, measured_jit),
            "built": stored.optional(findings.evidence / "build.json"),
        }
    if page == "kernel-dev-guide":
        context |= guide.context(findings, context["targets"])
    return context


def _unbuilt(targets: Iterable[str], jit: Mapping[str, Any]) -> list[str]:
    """The modules of these targets whose compilation can be measured and was not."""
    measured = {row["module"] for row in jit["summary"] if row["cold_s"] is not None}
    declared = [one.name for name in targets if (of := known().get(name)) for one in of.build.jit]
    return [name for name in declared if name not in measured]


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


# Rows of all kernels; each kernel's page has all of its own.
MOST_TO_TRY = 10
MOST_CHOICES = 12  # that callers are free to make, and that a model or the traffic fixes
MOST_FIXED = 5


def report_context(results: Mapping[str, Results], sections: Mapping[str, Context]) -> Context:
    """choices: those that change most, of which not all pairs are within noise; further: how many
    such are not among them; alike: how many others; first: rows to try; says: facts of the conclusion."""
    shown = [
        choice
        for found in results.values()
        for choice in guide.shown_choices(found).values()
        if choice["summary"]
    ]
    changing = [c for c in shown if any(map(_changes, (c, *c["beside"])))]
    by_strength = sorted(changing, key=_strength, reverse=True)
    free = [c for c in by_strength if not c["choice"].given][:MOST_CHOICES]
    fixed = [c for c in by_strength if c["choice"].given][:MOST_FIXED]
    rows = to_try(sections)
    return {
        "choices": [choice for choice in changing if choice in free + fixed],
        "further": len(changing) - len(free + fixed),
        "alike": len([c for c in shown if c not in changing and c["fared"] != guide.SAME_LAUNCH]),
        "first": (shown_rows := [row for row in rows if row["group"] != LOST])[:MOST_TO_TRY],
        "cut": max(0, len(shown_rows) - MOST_TO_TRY),
        "says": conclusion(results, sections, rows),
    }


def to_try(sections: Mapping[str, Context]) -> list[Context]:
    """The opportunities of all kernels as their pages have them, at FlashInfer's default calls, by what they saved, then by what
    they can, of the same work first; those that no mechanism bounds last."""
    rows = [
        row | {"target": section["name"], "title": section["title"]}
        for section in sections.values()
        for row in section["opportunities"]
    ]
    return sorted(
        (row for row in rows if not row["sets"]),
        key=lambda row: (
            GROUPS.index(row["group"]),
            -row["saved"],
            not row["bound"],
            not row["same_work"],
            -row["bound"],
        ),
    )


def conclusion(
    results: Mapping[str, Results], sections: Mapping[str, Context], rows: Iterable[Context]
) -> Context:
    """What this evidence says as a whole.

    verdicts: points by verdict; above: titles whose best point is itself above the highest rate measured; nearest: the best point
    of the others nearest to it, None below two; won, lost, untried: rows to try; plans: quotients of plan() and the kernel's time
    by point.
    """
    points = [p for found in results.values() for p in found["points"] if p["status"] == "ok"]
    verdicts = Counter(p["measurement"].get("verdict") for p in points)
    rated = sorted(
        (share, section["title"])
        for section in sections.values()
        # a point that is itself the ceiling is near to nothing but itself
        if section["best"] and not section["passed"] and (share := _share(section)) is not None
    )
    by_group: dict[str, list[Context]] = {group: [] for group in GROUPS}
    for row in rows:
        by_group[row["group"]].append(row)
    return {
        "points": len(points),
        "bound": verdicts[BOUND],
        "partly": verdicts[PARTLY],
        "waiting": verdicts[WAITING],
        "ceiling": CEILING,
        "latency": LATENCY,
        "above": [section["title"] for section in sections.values() if section["passed"]],
        "nearest": rated[-1] if len(rated) > 1 else None,
        "won": by_group[WON],
        "lost": by_group[LOST],
        "untried": by_group[UNTRIED],
        "plans": _plans(points),
    }


def _changes(compared: Context) -> bool:
    return bool(compared["summary"]["within"] < compared["summary"]["pairs"])


def _strength(choice: Context) -> float:
    told = [compared["summary"] for compared in (choice, *choice["beside"])]
    return float(max(abs(summary[end]) for summary in told for end in ("least", "most")))


def _share(section: Context) -> float | None:
    """Of the highest rate measured here, of FLOP or of bytes: that of which the best point has the larger part."""
    if section["copied"]:
        return float(section["copied"])
    row = section["best"]["m"]
    shares = [row[f"{rate}_fraction_measured"] for rate in ("tflops", "gbs")]
    return max((share for share in shares if share is not None), default=None)


def _plans(points: list[Point]) -> Context | None:
    """Of the points with a plan(): how many, and at how many it takes the host longer than the kernels the GPU."""
    timed = [p for p in points if planned([p])]
    longer = [p for p in timed if planned([p])[0].median > 1]
    return {"points": len(timed), "longer": len(longer)} if timed else None


def render(page: str, findings: Findings, target: str | None = None) -> str:
    """The text of a page. ``page`` names a template; ``target`` is set for a target's own page."""
    context = page_context(page, findings, target)
    page_text = single_spaced(environment().get_template(f"{page}.md.j2").render(context))
    if findings.struck:
        lines = "".join(f"- {text(reason)}\n" for reason in findings.struck)
        page_text += f"\n## Struck through\n\n{lines}"
    return page_text


def share(words: Sequence[str]) -> None:
    """Load what the pages of all targets are made of: children of this process find it done."""
    stored.share(words)
    choices.every_tried()
    compile_shared()
    if "--figures" in words:
        from ncuflow.pages.markdown import figures  # noqa: F401 - for the children to inherit


def command(
    pages: list[str],
    /,
    *,
    results: Path,
    evidence: Path,
    out_dir: Path,
    targets: list[str] | None = None,
    target: str | None = None,
    figures: Path | None = None,
    usage: Path | None = None,
    no_strict: bool = False,
) -> None:
    """Pages of findings, and their figures.

    Args:
        pages: target, INDEX, analysis, …
        targets: that the pages are about (with jit, the JIT too); default: all of the folder
        target: of page target, whose file has this name
        figures: folder for figures: the target's, or one of all targets
        usage: folder for the code of the target's calls
        no_strict: strike impossible numbers through instead
    """
    findings = Findings(results, evidence, not no_strict, targets)
    # None is written before all are rendered.
    texts = {page: render(page, findings, target) for page in pages}
    if figures:
        from ncuflow.pages.markdown.figures import (
            draw_all,  # with matplotlib, which most pages do without
        )

        names = [n for n in ([target] if target else targets or findings.targets) if n != "jit"]
        impossible = {one.point for n in names for one in findings.impossible(n)}
        draw_all([*map(findings.results, names)], figures, None if target else impossible)
    if usage and target:
        write_text(usage / f"{target}.py", guide.example(target))
    for page, content in texts.items():
        write_text(out_dir / f"{target or page}.md", content)
