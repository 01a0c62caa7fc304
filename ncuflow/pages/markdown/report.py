"""The final report's context: what to try over all kernels, what is chosen, and what this evidence says in a few sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from ncuflow.findings.limiter import BOUND, CEILING, LATENCY, PARTLY, WAITING
from ncuflow.findings.opportunities import GROUPS, LOST, UNTRIED, WON
from ncuflow.findings.steps import planned
from ncuflow.model import Point, Results
from ncuflow.pages import Context
from ncuflow.pages.markdown import guide_choices

# Rows of all kernels; each kernel's page has all of its own.
MOST_TO_TRY = 12
MOST_CHOICES = 20


def context(results: Mapping[str, Results], sections: Mapping[str, Context]) -> Context:
    """choices: those that change most, of which not all pairs are within noise; further: how many
    such are not among them; alike: how many others; first: rows to try; says: facts of the conclusion."""
    shown = [
        choice
        for found in results.values()
        for choice in guide_choices.shown_choices(found).values()
        if choice["summary"]
    ]
    changing = [c for c in shown if c["summary"]["within"] < c["summary"]["pairs"]]
    strongest = sorted(map(_strength, changing), reverse=True)[:MOST_CHOICES]
    rows = to_try(sections)
    return {
        "choices": [choice for choice in changing if _strength(choice) in strongest],
        "further": max(0, len(changing) - MOST_CHOICES),
        "alike": len(shown) - len(changing),
        "first": [row for row in rows if row["group"] != LOST][:MOST_TO_TRY],
        "says": conclusion(results, sections, rows),
    }


def to_try(sections: Mapping[str, Context]) -> list[Context]:
    """The opportunities of all kernels as their pages have them, by what they saved, then by what they can of the same work."""
    rows = [
        row | {"target": section["name"], "title": section["title"]}
        for section in sections.values()
        for row in section["opportunities"]
    ]
    return sorted(
        rows,
        key=lambda row: (
            GROUPS.index(row["group"]),
            -row["saved"],
            not row["same_work"],
            -row["bound"],
        ),
    )


def conclusion(
    results: Mapping[str, Results], sections: Mapping[str, Context], rows: Iterable[Context]
) -> Context:
    """What this evidence says as a whole.

    verdicts: points by verdict; nearest, furthest: the best points nearest to and furthest from the highest rate measured
    here, None below two; won, lost, untried: rows to try; plans: quotients of plan() and the kernel's time by point.
    """
    points = [p for found in results.values() for p in found["points"] if p["status"] == "ok"]
    verdicts = Counter(p["measurement"].get("verdict") for p in points)
    rated = sorted(
        (share, section["title"])
        for section in sections.values()
        if section["best"] and (share := _share(section)) is not None
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
        "nearest": rated[-1] if len(rated) > 1 else None,
        "furthest": rated[0] if len(rated) > 1 else None,
        "won": by_group[WON],
        "lost": by_group[LOST],
        "untried": by_group[UNTRIED],
        "plans": _plans(points),
    }


def _strength(choice: Context) -> float:
    return float(max(abs(choice["summary"]["least"]), abs(choice["summary"]["most"])))


def _share(section: Context) -> float | None:
    """Of the highest rate measured here, of FLOP or of bytes: that of which the best point has the larger part."""
    row = section["best"]["m"]
    shares = [row[f"{rate}_fraction_measured"] for rate in ("tflops", "gbs")]
    return max((share for share in shares if share is not None), default=None)


def _plans(points: list[Point]) -> Context | None:
    """Of the points with a plan(): how many, and at how many it takes the host longer than the kernels the GPU."""
    timed = [p for p in points if planned([p])]
    longer = [p for p in timed if planned([p])[0].most > 1]
    return {"points": len(timed), "longer": len(longer)} if timed else None
