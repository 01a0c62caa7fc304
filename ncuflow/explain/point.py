"""The main kernel of a point → its explanation, from what events, nsys and ncu say of it, and what its target suggests."""

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from ncuflow.evidence import location
from ncuflow.explain import launch, record
from ncuflow.explain.launch import TraceWords
from ncuflow.findings import opportunities, stored
from ncuflow.findings.choices import STEPS, Effect
from ncuflow.findings.columns import BY_NAME
from ncuflow.findings.join import main_kernel
from ncuflow.findings.scope import Scope, point_scope, possible_names
from ncuflow.findings.stored import Place
from ncuflow.format import change
from ncuflow.model import VERSIONS, Kernel, Measurement, Point, Results

COLD = "time_cold_us"
# What a time cannot be shorter than, by the name in `opportunities.roofs`: in words, the ceiling's columns, and the rate's.
ROOFS = {
    "bytes_analytic": ("moving its bytes", "dram_gbs", "gbs"),
    "bytes_dram_counted": ("moving the bytes that pass DRAM", "dram_gbs", "dram_gbs_counted"),
    "flops_analytic": ("doing its FLOPs", "tensor_tflops", "tflops"),
}
SOURCES = {"measured": "that this GPU reached", "datasheet": "of the datasheet"}
NO_COUNTERS = record.Missing(
    what="counters of this point", brought_by="a capture with ncu (docs/capture.md)"
)
NOT_DEEP = record.Missing(
    what="where its warps wait, by line", brought_by="the point under `deep` in config/config.yaml"
)
NOT_TIMED = record.Missing(what="a time of this point", brought_by="a capture (docs/capture.md)")


def of_point(found: Place, name: str, folder: Path | None = None) -> record.Explanation:
    """The explanation of a point that a place has. folder: the place as `ncuflow trace` is told it, where it is."""
    results, entry, facts, at = _known(found, name, folder)
    row, main = entry["measurement"], main_kernel(entry["kernels"])
    deep = _deep(results, entry, main)
    bound = headroom(facts, row, at) if row[COLD] else None
    lines = _lines(found, results, deep, at) if deep else []
    stalls = launch.stalled(main, at) if main else []
    tries = list(_suggestions(results, name, facts, row, at))
    if not tries and main:
        tries = launch.advised(main, at, launch.headroom(row, at))
    return record.Explanation(
        subject=_subject(entry, main),
        lineage=_lineage(found, row),
        time=launch.number(row, COLD, at),
        limit=launch.limited(row, at),
        stalls=stalls,
        lines=lines,
        headroom=bound,
        suggestions=tries,
        missing=_missing(row, main, lines),
        notes=[text for text in (entry["reason"], row["problems"]) if text],
    )


def suggested_at(found: Place, name: str) -> list[record.Suggestion]:
    """What the target suggests at a point that a place has; none where it suggests nothing."""
    results, entry, facts, at = _known(found, name, found.named)
    return list(_suggestions(results, name, facts, entry["measurement"], at))


def _known(
    found: Place, name: str, folder: Path | None
) -> tuple[Results, Point, Scope, TraceWords]:
    """Its target's results, it in them, what is known of it, and how its numbers are traced."""
    results = found.results(name.split("/", 1)[0])
    entry = next(point for point in results["points"] if point["point"] == name)
    facts = point_scope(entry, results, possible_names(results))
    return results, entry, facts, TraceWords(name, entry["measurement"]["tier"], folder)


def _deep(results: Results, entry: Point, main: Kernel | None) -> Kernel | None:
    """The launch of the point's main kernel that was profiled with samples by line; None where none was."""
    for kernel in results["deep"]:
        if main and kernel["point"] == entry["point"] and kernel["name"] == main["name"]:
            return kernel
    return None


def _lines(
    found: Place, results: Results, deep: Kernel, at: TraceWords
) -> list[record.WaitingLine]:
    """Its hottest lines, with the functions that they are in where the evidence has an index of the sources."""
    index = stored.optional(found.named / "source_index.json") if found.recording else None
    return launch.waiting_lines(deep, at, index, results["provenance"]["flashinfer"])


def _subject(entry: Point, main: Kernel | None) -> record.Subject:
    if main is None:
        return record.Subject(launches=0, untimed=0, point=entry["point"])
    alike = [kernel for kernel in entry["kernels"] if kernel["name"] == main["name"]]
    return launch.subject(main, alike, entry["point"])


def _lineage(found: Place, row: Measurement) -> record.Lineage:
    versions = {label: row[f"{key}_version"] for key, label in VERSIONS.items()}
    told = location.as_given(found.named)
    return record.Lineage(
        file=found.named.name if told.is_absolute() else str(told),
        kind="recording" if found.recording else "outputs",
        tier=row["tier"],
        gpu=row["gpu"],
        compute_capability=_capability(row["architecture"]),
        versions={name: version for name, version in versions.items() if version},
        date=row["date"],
    )


def _capability(architecture: str | None) -> str | None:
    """9.0 of sm_90."""
    digits = (architecture or "").removeprefix("sm_")
    return f"{digits[:-1]}.{digits[-1]}" if len(digits) > 1 else None


def headroom(facts: Scope, row: Measurement, at: TraceWords) -> record.Headroom | None:
    """What the roofs leave of the cold time; None where none is known."""
    roofs = opportunities.roofs(facts, facts, COLD)
    highest = max(roofs, key=lambda name: roofs[name])
    if not roofs[highest]:
        return None
    column, what = highest, "the launch of an empty kernel"
    if highest in ROOFS:
        work, ceiling, rate = ROOFS[highest]
        of = next(name for name in SOURCES if row[f"ceiling_{ceiling}_{name}"])
        what = f"{work} at the highest rate {SOURCES[of]}"
        share = f"{rate}_fraction_{of}"
        column = share if row.get(share) is not None else rate
    most = at.number(100 * opportunities.room(facts, facts, COLD), "%", column, column)
    return record.Headroom(most=most, words=f"{what} takes the rest")


def _suggestions(
    results: Results, name: str, facts: Scope, row: Measurement, at: TraceWords
) -> Iterator[record.Suggestion]:
    """What the target suggests at this point, but for what was tried and brought nothing."""
    room = opportunities.room(facts, facts, COLD) if row[COLD] else 1.0
    for one in opportunities.found(results):
        own = next((effect for effect in one.effects if effect.base_point == name), None)
        won = own and own.change < 0 and own.verdict != "within noise"
        if name not in one.points or one.group == opportunities.LOST or (own and not won):
            continue
        declared, scope = one.opportunity, _scope(one, own, results)
        # A pair was timed apart from the point: of the same work its room is the point's all the same.
        bound = one.mosts.get(name)
        most = bound if bound is None or scope != "point" else min(bound, room)
        metric = declared.metric
        traced = metric if metric in BY_NAME else None
        yield record.Suggestion(
            what=f"{declared.what}: {declared.change}",
            why=opportunities.worded(declared, facts),
            by=f"target {results['target']}",
            scope=scope,
            most=None if most is None else at.number(100 * most, "%", metric, traced),
            tried=_tried(own or one.effect, name) or (one.elsewhere[0].words() if one.elsewhere else None),
        )  # fmt: skip


def _scope(
    one: opportunities.MeasuredOpportunity, own: Effect | None, results: Results
) -> Literal["point", "step", "other work"]:
    """What it changes the time of: where the pair's other point counts other work, no roof of this work bounds it."""
    if one.opportunity.metric in STEPS:
        return "step"
    rows = {point["point"]: point["measurement"] for point in results["points"]}
    pair = [rows[name] for name in (own.base_point, own.other_point)] if own else []
    works = {(row["flops_analytic"], row["bytes_analytic"]) for row in pair}
    return "other work" if one.opportunity.other_work or len(works) > 1 else "point"


def _tried(effect: Effect | None, name: str) -> str | None:
    """What the trial brought here, or at the point that tells the most."""
    if effect is None:
        return None
    text = change(effect.change)
    if effect.low is not None and effect.high is not None:
        text += f" ({change(effect.low)} to {change(effect.high)})"
    text += " of a step" * (effect.metric in STEPS)
    text += "" if effect.in_turns else ", not timed in turns"
    return text if effect.base_point == name else f"{text} at {effect.base_point}"


def _missing(
    row: Measurement, main: Kernel | None, lines: list[record.WaitingLine]
) -> list[record.Missing]:
    found = [NOT_TIMED] if row[COLD] is None else []
    if main is None:
        return [*found, NO_COUNTERS]
    found += [launch.MISSING["limit"]] if row["verdict"] is None else []
    return found if lines else [*found, NOT_DEEP]
