"""Why a variant is faster or slower: its compiled code, the counters of both sides, and what a comparison makes of them.

A change of a comment leaves every instruction as it was; one that spills, or that loads in narrower pieces, is seen in the
code before anything is timed. Points of the same time get the few counters that a verdict needs first, for each pass over a
launch costs time; points whose times differ all that a sweep asks for, with stall reasons and samples. Causes are those of
`ncuflow compare`: they add up to the difference, in cycles where ncu ran the sides at other clocks.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Literal

from ncuflow import process
from ncuflow.compare import attribution, decomposition, records
from ncuflow.evidence.points import read_progress
from ncuflow.experiments import record, variant
from ncuflow.findings import profiled, waits
from ncuflow.findings.kernelname import canonical
from ncuflow.format import micro, with_unit
from ncuflow.gpu.lock import Held
from ncuflow.io import CommandError, clean, scratch
from ncuflow.model import Kernel
from ncuflow.parsers import ncu as reports
from ncuflow.parsers import sass
from ncuflow.process import CaptureError
from ncuflow.race.record import TrialTiming
from ncuflow.run import ncu, profiler
from ncuflow.run.ncu import ncu_version
from ncuflow.sweep.points import Planned

LOCAL = r"(LDL|STL)\b"


@dataclass(frozen=True)
class Compiled:
    """A kernel of a library: what it takes, how often each opcode stands in it, and a digest of its code."""

    code: record.KernelCode
    mix: Counter[str]
    digest: str


def compare_code(module: record.ModuleTrial, base: Path, change: Path) -> None:
    """Note in the record of a module how the kernels of its two libraries differ, or why that is not known."""
    try:
        sides = kernels(base), kernels(change)
        names = [name for name in sides[0] | sides[1] if _differ(name, sides)]
        shown = process.demangled(names)
    except CaptureError as error:
        module.not_compared = str(error)
        return
    module.same_kernels = len(sides[0] | sides[1]) - len(names)
    module.kernels = [
        _difference(canonical(shown[name]), *(s.get(name) for s in sides)) for name in names
    ]


def kernels(library: Path) -> dict[str, Compiled]:
    """The kernels of a library by mangled name. Raises CaptureError where the disassembler is missing or fails."""
    return _listed(library, library.stat().st_mtime_ns if library.exists() else 0)


@lru_cache(maxsize=16)  # the base's are held against those of each change
def _listed(library: Path, written: int) -> dict[str, Compiled]:
    listing = process.cuda_output("cuobjdump", "-sass", str(library))
    usage = sass.resources(process.cuda_output("cuobjdump", "-res-usage", str(library)))
    digests = sass.digests(listing)
    return {
        name: Compiled(_code(usage[name], found["mix"]), Counter(found["mix"]), digests[name])
        for name, found in sass.kernels(listing).items()
        if name in usage
    }


def _code(usage: Mapping[str, int], mix: dict[str, int]) -> record.KernelCode:
    return record.KernelCode(
        **usage, local_instructions=sass.count(mix, LOCAL), instructions=sum(mix.values())
    )


def _differ(name: str, sides: tuple[dict[str, Compiled], dict[str, Compiled]]) -> bool:
    base, change = (side.get(name) for side in sides)
    return (
        base is None or change is None or (base.digest, base.code) != (change.digest, change.code)
    )


def _difference(name: str, base: Compiled | None, change: Compiled | None) -> record.KernelTrial:
    more = Counter(change.mix if change else {})
    more.subtract(base.mix if base else {})
    return record.KernelTrial(
        name=name,
        base=None if base is None else base.code,
        change=None if change is None else change.code,
        opcodes={opcode: count for opcode, count in sorted(more.items()) if count},
    )


# Of the registry: where the time goes, and the traffic that most often explains it. A test holds that these take two
# passes, with what the sections add, on every chip.
FIRST = (
    "duration_ns", "cycles_elapsed", "sm_clock_hz", "inst_executed", "issue_active", "warps_active_per_scheduler",
    "warp_latency_per_issue", "dram_bytes_read", "dram_bytes_write", "l2_hit_pct", "spill_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Tier:
    """A set of counters. keys: of the registry, None: all; sections: of ncu, which add what no list of counters has."""

    name: Literal["few", "all"]
    keys: tuple[str, ...] | None
    sections: tuple[str, ...]


FEW = Tier("few", FIRST, ("LaunchStats", "Occupancy"))
ALL = Tier(
    "all", None, ("LaunchStats", "Occupancy", "SpeedOfLight", "WarpStateStats", "SourceCounters")
)


@dataclass
class SideBatch(profiler.Batch):
    """Points that a side of a trial launches under ncu. command: the side's."""

    command: Sequence[str] = field(default_factory=list)

    def program(self, *words: str) -> list[str]:
        return [*self.command, "--trace", self.path("points.json"), self.path("progress.jsonl")]


def lacking() -> str | None:
    """Why nothing can be counted here; None where it seems to be possible."""
    if profiler.tool("ncu") is None:
        return "ncu is not on PATH"
    return ncu.REMEDY if profiler.counters_refused_here() else None


@dataclass(frozen=True)
class CountedSide:
    """A side for ncu. command, env: its program's; package: the folder of its FlashInfer."""

    command: Sequence[str]
    env: Mapping[str, str]
    package: Path


def counted(
    target: str,
    points: Sequence[Planned],
    tier: Tier,
    side: CountedSide,
    held: Held,
    limit_s: float,
) -> dict[str, list[Kernel]]:
    """Kernels of each point with what was counted of them, in launch order; a point without is not there.

    Raises CaptureError with why nothing was counted at any point.
    """
    with scratch() as folder:
        asked = _asked(folder, tier, held, limit_s)
        entries = [point.as_dict() for point in points]
        batch = SideBatch("ncu", target, asked, entries, held, folder, command=side.command)
        outcome = batch.run(ncu.ncu_command(batch, asked), {**side.env, **held.environ})
        if batch.progress.refused:
            raise CaptureError(ncu.REMEDY)
        report = folder / f"{asked.name}.ncu-rep"
        if not report.exists():
            raise CaptureError(_why(batch, batch.ending(outcome) or "ncu wrote no report"))
        found: dict[str, list[Kernel]] = defaultdict(list)
        for kernel in profiled.kernels(reports.read(report, batch.ids), report.name):
            if kernel["point"] in batch.ids:
                found[kernel["point"]].append(kernel)
    return dict(found)


def _asked(folder: Path, tier: Tier, held: Held, limit_s: float) -> ncu.NcuAsked:
    """What `ncuflow ncu` would be given; the clocks stay as they are, as in the timing."""
    every = tier.keys is None
    return ncu.NcuAsked(
        points=folder / "points.json",
        out=folder,
        name=tier.name,
        timeout=limit_s,
        sections=",".join(tier.sections),
        registry=every,
        metrics=None if tier.keys is None else ",".join(ncu.registry_counters(held.gpu, tier.keys)),
    )


def _why(batch: SideBatch, ending: str) -> str:
    """What went wrong, in one line: of a point, or what was printed last."""
    failed = [r["reason"] for r in read_progress(batch.progress.records) if r.get("reason")]
    said = [*batch.progress.tail, *failed][-1:]
    return ": ".join([ending, *said])


DIFFERS = ("slower", "faster")
# Of all counters those that a record keeps beside the first: what a comparison tells, and how busy the units were.
KEPT = dict.fromkeys(
    (
        *FIRST, *(row[2] for row in attribution.COUNTERS), "sm_throughput_pct", "memory_throughput_pct",
        "dram_throughput_pct", "l2_throughput_pct", "l1_throughput_pct", "achieved_occupancy_pct", "l1_hit_pct",
    )
)  # fmt: skip
DIGITS = 5  # that a counter keeps: launches differ by more
LEAST_SHARE, MOST_PARTS, MOST_FACTS, MOST_PLACES = 0.02, 8, 12, 8
# Points of the same time that are counted beside such as differ: the passes of so many take as long as two processes of
# their own take to start (13 s each on an H100).
BESIDE = 8
OTHERS = "smaller parts together"


def explain(
    trial: record.Trial,
    planned: Sequence[Planned],
    sides: Mapping[str, CountedSide],
    held: Held,
    limit_s: float,
    tell: Callable[[str], None],
) -> None:
    """Count both sides ("base", "change") at every timed point, and note what explains the differences."""
    timed = {point.point: point for point in trial.points if point.timing is not None}
    if not timed:
        return
    trial.no_counters = lacking()
    if trial.no_counters is not None:
        return
    trial.ncu = ncu_version()
    here = [point for point in planned if point.id in timed]
    by_tier = {
        tier: [p for p in here if (timed[p.id].outcome in DIFFERS) == (tier is ALL)]
        for tier in (ALL, FEW)
    }
    if by_tier[ALL] and len(by_tier[FEW]) <= BESIDE:
        by_tier = {ALL: here}
    for tier, points in by_tier.items():
        found = {}
        try:
            for name, side in sides.items() if points else ():
                tell(f"{tier.name} counters of the {name} at {with_unit(len(points), 'points')}")
                found[name] = counted(trial.target, points, tier, side, held, limit_s)
        except CommandError as error:
            for point in points:  # it costs the counters of these points alone
                timed[point.id].no_counters = clean(str(error).replace("\n", " "))
            continue
        for point in points:
            pair = [found[name].get(point.id, []) for name in ("base", "change")]
            packages = [sides[name].package for name in ("base", "change")]
            told = ALL if timed[point.id].outcome in DIFFERS else FEW
            note(timed[point.id], told, pair, packages)


def note(
    point: record.PointTrial,
    tier: Tier,
    pair: Sequence[Sequence[Kernel]],
    packages: Sequence[Path | None],
) -> None:
    """Put the kernels of base and change into the record of a point, and what explains a difference of its times."""
    if not all(pair):
        missing = ["base", "change"][[bool(kernels) for kernels in pair].index(False)]
        point.no_counters = f"ncu saw no kernel of the {missing}"
        return
    base, change = (
        [_record(kernel, package, tier) for kernel in kernels]
        for kernels, package in zip(pair, packages, strict=True)
    )
    point.counters = record.PointCounters(tier=tier.name, base=base, change=change)
    if point.outcome in DIFFERS and point.timing is not None:
        _causes(point, point.timing, pair)


def _causes(
    point: record.PointTrial, timing: TrialTiming, pair: Sequence[Sequence[Kernel]]
) -> None:
    # The timed launches took turns, from settled clocks: one clock for both is all that is known of them.
    base, change = (
        attribution.Profile(kernels, kernels, rates=decomposition.LaunchRates(kernels[0]["device"]))
        for kernels in pair
    )
    noise = max(abs(timing.noise.low), abs(timing.noise.high)) * timing.base_us
    found = attribution.explain(
        base, change, timing.base_us, timing.change_us, noise, one_call=True
    )
    point.causes = [_cause(cause) for cause in found.causes]
    point.unexplained_us, point.remainder = _rounded(found.unexplained), found.remainder


def _cause(cause: records.Cause) -> record.TrialCause:
    kept = decomposition.causes(cause.parts, LEAST_SHARE)[:MOST_PARTS]
    rest = sum(term.delta_us for term in cause.parts if term not in kept)
    if len(kept) < len(cause.parts):
        kept = [*kept, records.ChangeTerm(OTHERS, OTHERS, None, None, "", rest)]
    return record.TrialCause(
        kind=cause.kind,
        what=cause.what,
        base=_text(cause.base),
        change=_text(cause.head),
        delta_us=_rounded(cause.delta_us),
        share=_rounded(cause.share_of_delta),
        parts=[_part(term) for term in kept],
        facts=[_fact(fact) for fact in cause.facts[:MOST_FACTS]],
    )


def _part(term: records.ChangeTerm) -> record.TrialTerm:
    delta = _rounded(term.delta_us) or 0.0
    base, change = _rounded(term.base), _rounded(term.head)
    return record.TrialTerm(
        what=term.what, base=base, change=change, unit=term.unit, delta_us=delta
    )


def _fact(fact: records.Fact) -> record.TrialFact:
    base, change = (
        _rounded(value) if isinstance(value, float) else _scalar(value)
        for value in (fact.base, fact.head)
    )
    what = f"samples at {fact.what}" if fact.kind == "line" else fact.what
    return record.TrialFact(what=what, base=base, change=change, unit=fact.unit)


def _scalar(value: records.Value) -> bool | int | float | str | None:
    return _text(value) if isinstance(value, list) else value


def _text(value: records.Value) -> str | None:
    if value is None:
        return None
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return micro(value) if isinstance(value, float) else str(value)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.{DIGITS}g}")


def _record(kernel: Kernel, package: Path | None, tier: Tier) -> record.KernelCounters:
    """A launch with what its tier has, also where it was counted beside those that have all."""
    metrics = {key: _rounded(kernel["metrics"].get(key)) for key in KEPT}
    stalls = {stall["reason"]: _rounded(stall["ratio"]) for stall in kernel["stalls"]}
    shared = [kernel["smem_static_bytes"], kernel["smem_dynamic_bytes"]]
    lines = waits.hottest(kernel, most=MOST_PLACES) if kernel.get("lines") else []
    return record.KernelCounters(
        name=kernel["name"],
        grid=kernel["grid"],
        block=kernel["block"],
        registers=kernel["registers"],
        shared_bytes=None if None in shared else sum(part or 0 for part in shared),
        duration_us=_rounded(kernel["duration_ns"] and kernel["duration_ns"] / 1e3),
        metrics={key: value for key, value in metrics.items() if value is not None},
        stalls={reason: value for reason, value in stalls.items() if value and tier is ALL},
        hot=[_quoted_line(line, package) for line in lines if tier is ALL],
    )


def _quoted_line(line: waits.HotLine, package: Path | None) -> record.HotPlace:
    """A hot line, quoted from the FlashInfer of its own side."""
    root = None if package is None else package / variant.DATA
    return record.HotPlace(
        file=line.file,
        line=line.line,
        text=waits.text_of(root, line.file, line.line),
        sass=line.sass,
        share=_rounded(line.share) or 0.0,
        reason=line.reason,
    )
