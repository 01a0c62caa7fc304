"""One launch of a report of ncu, or one kernel of a trace of nsys, which has times and no counters → its explanation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, Literal, cast

from ncuflow.answer import Tier
from ncuflow.explain import record
from ncuflow.findings import limiter, profiled, stored, waits
from ncuflow.findings.columns import BY_NAME
from ncuflow.findings.derivation import LINES
from ncuflow.findings.join import total
from ncuflow.format import micro, pct, percent
from ncuflow.io import BadInput, JsonObject, UsageError
from ncuflow.model import VERSIONS, Kernel, Measurement, Provenance, Rule, Stall
from ncuflow.parsers import breakdown, demangled
from ncuflow.parsers.ncu import FAILED, Report
from ncuflow.parsers.show import ROUGH, dims, stall_sum
from ncuflow.parsers.stalls import RATIO, STALL_REASONS

if TYPE_CHECKING:
    from ncuflow.parsers.nsys import Trace

REGEX = "regex:"  # as ncu's --kernel-name has it
FEW = 5  # names that an error lists
MOST_ADVICE = 8
SAMPLED = "smsp__pcsamp_warps_issue_stalled_*"
IN_PERCENT = {"share", "uncertainty"}  # of a line; where it was found they are of 1
TIMES = ("duration_ns", "gpu__time_duration.sum")
MISSING = {
    name: record.Missing(what=what, brought_by=brought_by)
    for name, what, brought_by in (
        ("limit", "how busy each hardware unit was (the breakdown of Speed of Light)", "--section SpeedOfLight"),
        ("parts", "which pipe of the SM and which memory it is (the breakdown of Speed of Light)", "--section SpeedOfLight"),
        ("time", "the time of the launch", "--metrics gpu__time_duration.sum"),
        ("waves", "how many waves of blocks the grid is", "--section LaunchStats"),
        ("stalls", "what warps wait for (all stall reasons)", "--section WarpStateStats"),
        ("lines", "where warps wait (samples by instruction)", "--section SourceCounters"),
        ("line table", "which source lines the sampled instructions are of", "nvcc -lineinfo when the kernel is compiled"),
        ("rules", "what NVIDIA's rules say", "--set full (with --apply-rules yes)"),
    )
}  # fmt: skip
# What ncu does not print although it has counted it.
NOT_PRINTED = {
    name: MISSING[name].model_copy(update={"brought_by": f"ncu --export FILE{option}"})
    for name, option in (("parts", ""), ("stalls", ", or --page raw"), ("lines", " --section SourceCounters"))
}  # fmt: skip


@dataclass(frozen=True)
class TraceWords:
    """What `ncuflow trace` is told of where numbers of a tier are: a point or a launch, and the folder where one has to be
    named."""

    source: str
    tier: Tier
    folder: Path | None = None

    def to(self, name: str) -> str:
        """The words that it takes for a number of this name, as a shell reads them."""
        return shlex.join([self.source, name, *([str(self.folder)] if self.folder else [])])

    def number(self, value: float, unit: str, metric: str, name: str | None) -> record.Number:
        """A number that is there; name: by which it is traced, None where it is not."""
        trace = None if name is None else self.to(name)
        return record.Number(value=value, unit=unit, metric=metric, tier=self.tier, trace=trace)


def of_report(
    report: Report, kernel: str | int | None = None, kind: str = "ncu"
) -> record.Explanation:
    """The explanation of one launch of a report that was read with its lines.

    kernel: index of the launch, or a pattern of its name; by default as `choose` takes it. Raises BadInput where
    the report has none of that name or index.
    """
    every = profiled.kernels(report)
    chosen, alike = choose(every, kernel, report.file)
    found = of_kernel(chosen, alike, report.ncu_version, kind)
    notes = [*also_named(every, kernel), *found.notes]
    if kernel is None and profiled.total(alike) and len(alike) < len(every):
        notes.append(share(alike, every, "report"))
    return found.model_copy(update={"notes": notes})


def of_every(report: Report) -> list[tuple[record.Explanation, float | None]]:
    """Each kernel of a report by its longest launch, those whose launches take the most time first, with what all launches of
    that name take of the time of the report (of 1)."""
    every = profiled.kernels(report)
    whole = profiled.total([one for one in every if one["duration_ns"]])
    found = []
    for alike in profiled.by_name(every):
        timed = [one for one in alike if one["duration_ns"]]
        one = of_kernel(profiled.longest(alike), alike, report.ncu_version, "ncu")
        found.append((one, profiled.total(timed) / whole if whole and timed else None))
    return found


def choose(
    every: Sequence[Kernel], kernel: str | int | None, called: str
) -> tuple[Kernel, list[Kernel]]:
    """(the launch that is asked for, all launches of its whole name). Raises BadInput where there is none.

    By default it is the longest of the kernel whose launches take the most time together. A number is
    an index; else, of the name with or without template arguments, a part, a pattern (`*`, `?`) or regex:EXPRESSION.
    """
    if kernel is None:
        found = next(iter(profiled.by_name(every)), [])
    elif str(kernel).isdecimal():
        found = [one for one in every if str(one["kernel"]) == (str(kernel).lstrip("0") or "0")]
    else:
        found = [one for one in every if _named(one, str(kernel))]
    if not found:
        names = list(dict.fromkeys(one["name"] for one in every))
        more = f" and {len(names) - FEW} more" if len(names) > FEW else ""
        what = f"has no kernel {kernel}; it has {len(every)}: {', '.join(names[:FEW])}{more}"
        raise BadInput(called, what)
    chosen = profiled.longest(found)
    own = profiled.whole_name(chosen)
    return chosen, [one for one in every if profiled.whole_name(one) == own]


def also_named(every: Sequence[Kernel], kernel: str | int | None) -> Iterator[str]:
    """That a pattern fits several kernels, of which one is explained."""
    if kernel is not None and not str(kernel).isdecimal():
        fit = profiled.by_name([one for one in every if _named(one, str(kernel))])
        if len(fit) > 1:
            yield f"{kernel} fits {len(fit)} kernels: explained is the one with the longest launch"


def share(alike: Sequence[Kernel], every: Sequence[Kernel], of: str) -> str:
    """What the launches of one name take of all kernels' time, and whether that is the most. Those without a time count in
    neither."""
    alike, timed = ([one for one in some if one["duration_ns"]] for some in (alike, every))
    own, whole = profiled.total(alike), profiled.total(timed)
    groups = profiled.by_name(timed)
    most = len(groups) > 1 and 0 < own == profiled.total(groups[0])
    rank = f", the most of its {len(groups)} kernels" if most else ""
    untimed = len(every) - len(timed)
    without = f" with a time, {untimed} {'has' if untimed == 1 else 'have'} none" if untimed else ""
    return (
        f"all its launches ({len(alike)}) take {micro(own / 1e3)} together, {percent(own / whole if whole else None, 1)} "
        f"of the time of all ({len(timed)}{without}) of the {of}{rank}"
    )


def _named(kernel: Kernel, pattern: str) -> bool:
    names = [kernel["name"], kernel["demangled"] or ""]
    if pattern.startswith(REGEX):
        try:
            return any(re.search(pattern.removeprefix(REGEX), name) for name in names)
        except re.error as error:
            raise UsageError(f"{pattern}: no regular expression ({error})") from None
    if any(sign in pattern for sign in "*?"):
        return any(fnmatchcase(name, pattern) for name in names)
    return any(pattern in name for name in names)


def of_kernel(
    kernel: Kernel,
    alike: Sequence[Kernel],
    ncu_version: str | None,
    kind: str = "ncu",
) -> record.Explanation:
    """The explanation of a launch; alike: all launches of its name in its report, itself among them."""
    origin = profiled.provenance(kernel, ncu_version)
    row = profiled.row(kernel, origin)
    point = kernel["point"]
    at = TraceWords(f"{kernel['report']}#{kernel['kernel']}", row["tier"])
    judged, lines = limited(row, at), waiting_lines(kernel, at)
    bound = headroom(row, at)
    return record.Explanation(
        subject=subject(kernel, alike, point if point and stored.is_point(point) else None),
        lineage=lineage(PurePath(kernel["report"]).name, kind, origin),
        time=_time(kernel, at),
        limit=judged,
        stalls=(stalls := stalled(kernel, at)),
        lines=lines,
        headroom=bound,
        suggestions=advised(kernel, at, bound),
        missing=list(_missing(kernel, row, stalls, lines, kind)),
        notes=list(_notes(kernel)),
    )


def subject(kernel: Kernel, alike: Sequence[Kernel], point: str | None = None) -> record.Subject:
    """Which launch it is."""
    smem = total((kernel["smem_static_bytes"], kernel["smem_dynamic_bytes"]))
    return record.Subject(
        name=kernel["name"],
        demangled=kernel["demangled"],
        index=kernel["kernel"],
        report=PurePath(kernel["report"]).name,
        launches=len(alike),
        untimed=sum(one["duration_ns"] is None for one in alike),
        nvtx=kernel["nvtx"],
        point=point,
        grid=dims(kernel["grid"]),
        block=dims(kernel["block"]),
        registers=kernel["registers"],
        smem_bytes=None if smem is None else int(smem),
    )


def lineage(file: str, kind: str, origin: Provenance) -> record.Lineage:
    """Where the numbers come from."""
    known: JsonObject = dict(origin)
    return record.Lineage(
        file=file,
        kind=cast(Any, kind),
        tier=origin["tier"],
        gpu=origin["gpu"],
        compute_capability=origin["compute_capability"],
        versions={label: str(known[key]) for key, label in VERSIONS.items() if known.get(key)},
        date=origin["date"],
    )


def number(
    row: Measurement, column: str, at: TraceWords, metric: str | None = None
) -> record.Number | None:
    """A column of a measurement as a number; None where it is null. at: what `ncuflow trace` takes before its name."""
    value = row[column]
    if value is None:
        return None
    return at.number(float(value), BY_NAME[column].unit, metric or column, column)


def _time(kernel: Kernel, at: TraceWords) -> record.Number | None:
    (key, metric), ns = TIMES, kernel["duration_ns"]
    return None if ns is None else at.number(ns, "ns", metric, key)


def limited(row: Measurement, at: TraceWords) -> record.LimitedBy | None:
    """What limits it; None where the counters do not tell."""
    words, kind, nature = limiter.words(row), limiter.kind(row), limiter.nature(row)
    if not (words and kind and nature):
        return None
    units = [
        record.Busy(
            name=row[f"{rank}_unit"], label=limiter.label(row[f"{rank}_unit"], counter), share=share
        )
        for rank, counter in (("busiest", row["busiest_counter"]), ("second", None))
        if row[f"{rank}_unit"] and (share := number(row, f"{rank}_pct", at, counter))
    ]
    waits = [
        record.Busy(name=name, label=limiter.label(name), share=share)
        for name in limiter.WAITS
        if f"{name}_pct" in BY_NAME and (share := number(row, f"{name}_pct", at))
    ]
    verdict = cast(Literal["bound", "partly", "latency"], row["verdict"])
    waits.sort(key=lambda wait: -wait.share.value)
    return record.LimitedBy(
        words=words, kind=kind, nature=nature, verdict=verdict, units=units, waits=waits
    )


def stalled(kernel: Kernel, at: TraceWords) -> list[record.Stalled]:
    """The stall reasons by share, the largest first; none where not all were counted."""
    known = [s for s in kernel["stalls"] if s["kind"] == "stall" and s["share"]]
    part = waits.mbarrier_part(kernel)
    at_barrier = at.number(100 * part, "%", SAMPLED, LINES) if part else None
    return [
        record.Stalled(
            reason=stall["reason"],
            meaning=waits.meaning(stall["reason"]),
            share=at.number(
                100 * (stall["share"] or 0.0), "%", _counter(stall), f"stall_{stall['reason']}"
            ),
            at_mbarrier=at_barrier if stall["reason"] == "long_scoreboard" else None,
        )
        for stall in sorted(known, key=lambda s: -(s["share"] or 0.0))
    ]


def _counter(stall: Stall) -> str:
    """The counter that a stall's share is of: ratios, or samples where there are none."""
    reason = stall["reason"]
    return RATIO.format(reason) if stall["ratio"] is not None else STALL_REASONS[reason].samples


def waiting_lines(
    kernel: Kernel, at: TraceWords, index: Any = None, version: str | None = None
) -> list[record.WaitingLine]:
    """The hottest lines of a launch with samples, the hottest first; index and version as of `hotlines.hottest`."""
    if not kernel.get("lines"):
        return []
    return [
        record.WaitingLine(
            **{
                name: getattr(line, name)
                for name in record.WaitingLine.model_fields.keys() - IN_PERCENT
            },
            share=at.number(
                100 * line.share, "%", SAMPLED, f"{line.file}:{line.line}" if line.file else LINES
            ),
            uncertainty=None if line.uncertainty is None else 100 * line.uncertainty,
        )
        for line in waits.hottest(kernel, index, version)
    ]


def headroom(row: Measurement, at: TraceWords) -> record.Headroom | None:
    """What the busiest unit leaves of the time; None where none is known."""
    busiest = number(row, "busiest_pct", at, row["busiest_counter"])
    if busiest is None:
        return None
    most = busiest.model_copy(update={"value": max(0.0, 100 - busiest.value)})
    name = limiter.label(row["busiest_unit"], row["busiest_counter"])
    words = f"what {name}, its busiest unit, leaves for what this launch moves and computes, at its clocks"
    return record.Headroom(most=most, words=words)


def advised(
    kernel: Kernel, at: TraceWords, room: record.Headroom | None
) -> list[record.Suggestion]:
    """NVIDIA's own rules that fired, in the order of `stalltree.advice`."""
    most = room.most if room else None
    return [_advised(rule, at, most) for rule in waits.advice(kernel, MOST_ADVICE)]


def _advised(rule: Rule, at: TraceWords, room: record.Number | None) -> record.Suggestion:
    percent, of = rule["speedup_pct"], rule["speedup_type"] or ""
    name = rule["rule"]
    estimate = None if percent is None else at.number(percent, "%", f"rule {name}", name)
    scopes: dict[str, Literal["kernel", "part"]] = {"global": "kernel", "local": "part"}
    known = [bound for bound in (estimate if of == "global" else None, room) if bound]
    return record.Suggestion(
        what=rule["message"],
        by=f"NVIDIA's rule {name}",
        estimate=estimate,
        scope=scopes.get(of),
        most=min(known, key=lambda bound: bound.value, default=None),
    )


def _missing(
    kernel: Kernel,
    row: Measurement,
    stalls: list[record.Stalled],
    lines: list[record.WaitingLine],
    kind: str,
) -> Iterator[record.Missing]:
    if FAILED in (kernel["problems"] or ""):
        return  # another section would not have helped
    missing = MISSING if kind == "ncu" else MISSING | NOT_PRINTED
    if kernel["duration_ns"] is None:
        yield MISSING["time"]
    if row["verdict"] is None:
        yield MISSING["limit"]
    elif breakdown.are_wholes(kernel["breakdown"]):
        yield missing["parts"]
    if row["verdict"] is not None and row["waves"] is None:
        yield MISSING["waves"]
    if not stalls:
        # Where the section is there, its summary is: what ncu prints of it has no more than that.
        there = kernel["metrics"].get("warp_latency_per_issue") is not None
        yield (missing if there else MISSING)["stalls"]
    if not lines:
        yield missing["lines"]
    elif not waits.coverage(kernel):
        yield MISSING["line table"]
    if not kernel["rules"]:
        yield MISSING["rules"]


def _notes(kernel: Kernel) -> Iterator[str]:
    if kernel["problems"]:
        yield kernel["problems"]
    added = stall_sum(kernel["stalls"], kernel["metrics"].get("warp_latency_per_issue"))
    if added is not None and abs(added - 1) > ROUGH:
        yield (
            f"the stall reasons add up to {pct(100 * added)} of the warp latency: the replay passes that counted them "
            "were not alike, and their shares are rough"
        )


# --- of a trace ------------------------------------------------------------------------------

COUNTERS = record.Missing(
    what="what limits it, what its warps wait for and where: a trace has no counters",
    brought_by="ncu --set full -k {} -c 1",
)


def of_trace(trace: Trace, kernel: str | int | None = None) -> record.Explanation:
    """The explanation of the launch that `launch.choose` takes.

    Raises BadInput where the trace has no such kernel.
    """
    every = profiled.traced(trace)
    if not every:
        raise BadInput(trace.file, "a trace without kernels")
    chosen, alike = choose(every, kernel, trace.file)
    at = TraceWords(f"{trace.file}#{chosen['kernel']}", profiled.RECORDED)
    return record.Explanation(
        subject=subject(chosen, alike),
        lineage=record.Lineage(
            file=PurePath(trace.file).name, kind="nsys", tier=profiled.RECORDED, gpu=chosen["device"], compute_capability=None,
            versions={"nsys": trace.nsys_version} if trace.nsys_version else {}, date=None,
        ),
        time=at.number(
            chosen["duration_ns"] or 0.0, "ns", "end - start of CUPTI_ACTIVITY_KIND_KERNEL", "duration_ns"
        ),
        limit=None, stalls=[], lines=[], headroom=None, suggestions=[],
        missing=[COUNTERS.model_copy(update={"brought_by": COUNTERS.brought_by.format(_only(chosen, every))})],
        notes=[*also_named(every, kernel), share(alike, every, "trace"), *trace.problems],
    )  # fmt: skip


def pattern(name: str) -> str:
    """The kernel as ncu's -k takes it, a word of a shell: its name is anybody's."""
    return shlex.quote(f"regex:^{re.escape(name)}$")


def _only(chosen: Kernel, every: Sequence[Kernel]) -> str:
    """What of ncu's options takes this launch, in a run like the one that was traced: it knows a kernel by its function
    name, which templates share, and counts the launches of that name."""
    before = sum(one["name"] == chosen["name"] for one in every[: every.index(chosen)])
    full = chosen["demangled"] or ""
    name = full if demangled.CUTE_MANGLED.fullmatch(full) else demangled.function(chosen["name"])
    return pattern(name) + (f" -s {before}" if before else "")
