"""Files of any of the kinds that ``ncuflow show`` reads → one view: of a report its launches judged, those of one name together,
some of them looked at closely; of a trace what ran."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ncuflow.compare import records, reports
from ncuflow.explain.launch import of_kernel
from ncuflow.findings import limiter, profiled, waits
from ncuflow.io import BadInput, sniff_packed
from ncuflow.model import Kernel, Row
from ncuflow.parsers import breakdown, detail, ncu, ncu_text, show
from ncuflow.record import quartiles
from ncuflow.view import launch_detail, model
from ncuflow.view.launch_detail import roofline

if TYPE_CHECKING:
    from ncuflow.parsers.nsys import Trace

REPORT, PRINTED, TRACE = ("ncu-rep",), ("csv", "text"), ("sqlite", "nsys-rep")


def view(paths: Sequence[str | Path], source: Path | None = None) -> model.View:
    """All files in their order; source: a folder below which source files are looked for.

    Raises BadInput where one cannot be read.
    """
    found = [(path, kind_of(path)) for path in paths]
    named = zip(found, reports.distinct([str(path) for path in paths]), strict=True)
    read = [replace(_viewed(path, kind, source), file=name) for (path, kind), name in named]
    return model.View(
        reports=[one for one in read if isinstance(one, model.ReportView)],
        traces=[one for one in read if isinstance(one, model.TraceView)],
        comparisons=list(_comparisons(found)) if any(k not in TRACE for _, k in found) else [],
    )


def kind_of(path: str | Path) -> str:
    """What a file is, by its content. Raises BadInput where it is no report of ncu or nsys."""
    kind, words = sniff_packed(path)
    if kind not in (*REPORT, *PRINTED, *TRACE):
        raise show.strange(path, "ncu or nsys", kind, words)
    return kind


def _viewed(path: str | Path, kind: str, source: Path | None) -> model.ReportView | model.TraceView:
    if kind in TRACE:
        return _trace_view(profiled.trace(path))
    if kind in PRINTED:
        return _report_view(ncu_text.read(path), "ncu csv")
    return _report_view(ncu.read(path, with_lines=False), "ncu", source, path)


def _comparisons(found: Sequence[tuple[str | Path, str]]) -> Iterator[model.ComparedReports]:
    """The first report with each further one; ``head`` counts reports, traces aside."""
    (base, kind), *others = [(Path(path), kind) for path, kind in found if kind not in TRACE]
    for head, (path, its) in enumerate(others, 1):
        if {kind, its} - set(REPORT):
            yield model.ComparedReports(
                head, None, "what ncu printed is not compared: it has no lines"
            )
            continue
        try:
            yield model.ComparedReports(head, reports.compare(base, path, records.Thresholds()))
        except BadInput as error:
            yield model.ComparedReports(head, None, error.what)


def _trace_view(trace: Trace) -> model.TraceView:
    """The view of a trace that was read."""
    ranges = [(row["nvtx"].split("/") if row["nvtx"] else []) for row in trace.timeline]
    document = show.trace_document(trace, _summary(trace.timeline), [])
    return model.TraceView(
        file=Path(trace.file).name,
        devices=list(dict.fromkeys(trace.devices.values())),
        version=trace.nsys_version,
        problems=trace.problems,
        span_ns=document["report"]["span_ns"],
        summary=document["summary"],
        operations=trace.timeline,
        ranges=trace.ranges,
        nvtx=model.tree(
            (names, row["name"], row["duration_ns"])
            for names, row in zip(ranges, trace.timeline, strict=True)
        ),
    )


def _summary(rows: list[Row]) -> list[Row]:
    """As ``show`` has it, with the quartiles and the durations in order."""
    times: dict[tuple[str, str], list[int]] = defaultdict(list)
    for row in rows:
        times[row["kind"], row["name"] or "–"].append(row["duration_ns"])
    out = []
    for row in show.summary(rows):
        found = times[row["kind"], row["name"]]
        q25, _, q75 = quartiles(found)
        out.append(row | {"q25_ns": q25, "q75_ns": q75, "durations_ns": found})
    return out


MOST_CLOSE = 48  # kernels of a report that are looked at closely: the disassembler takes up to seconds for each
THREADS_PER_WARP = 32


def _report_view(
    report: ncu.Report, tool: str, source: Path | None = None, path: str | Path | None = None
) -> model.ReportView:
    """The view of a report that was read; tool: what wrote it, "ncu" or "ncu csv".

    source: a folder below which source files are looked for; path: of the report of ncu, of which more than the
    registry is read; None where it is none.
    """
    groups = profiled.by_name(profiled.kernels(report, Path(report.file).name))
    wanted = {profiled.longest(group)["kernel"]: group for group in groups[:MOST_CLOSE]}
    found = {} if path is None else detail.read(path, wanted)
    for index, of in found.items():
        profiled.longest(wanted[index])["lines"] = of.samples
    kernels = [kernel_view(group, found) for group in groups]
    looked = {
        kernel.longest_launch.index: launch_detail.of_launch(
            kernel.longest_launch, found[kernel.longest_launch.index], source
        )
        for kernel in kernels
        if kernel.longest_launch.index in found
    }
    return model.ReportView(
        file=Path(report.file).name,
        tool=tool,
        devices=report.devices,
        version=report.ncu_version,
        problems=report.problems,
        kernels=kernels,
        explained={
            index: of_kernel(profiled.longest(group), group, report.ncu_version, tool)
            for index, group in wanted.items()
        },
        details=looked,
        nvtx=model.tree((k["nvtx_ranges"], k["name"], k["duration_ns"]) for k in report.kernels),
        missing=missing(kernels, looked, path is not None),
    )


def kernel_view(group: Sequence[Kernel], details: Mapping[int, detail.Detail]) -> model.KernelView:
    """The launches of one name; details: of those that are looked at closely."""
    launches = tuple(launch(kernel, details.get(kernel["kernel"])) for kernel in group)
    first = group[0]
    return model.KernelView(
        name=first["name"],
        demangled=first["demangled"],
        launches=launches,
        longest=list(group).index(profiled.longest(group)),
        duration=distribution(kernel["duration_ns"] for kernel in group),
    )


def launch(kernel: Kernel, of: detail.Detail | None = None) -> model.LaunchView:
    """One launch, judged."""
    return model.LaunchView(
        kernel=kernel,
        limiter=limiter.judge(kernel["breakdown"], kernel["metrics"], kernel["grid_size"]),
        tree=waits.stall_tree(kernel),
        occupancy=occupancy(kernel, of),
        roofline=roofline(kernel, of),
    )


def distribution(values: Iterable[float | None]) -> model.Distribution | None:
    """Of the known values; None where there is none."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    q25, median, q75 = quartiles(known)
    return model.Distribution(len(known), min(known), q25, median, q75, max(known), sum(known))


# --- one launch ---------------------------------------------------------------------------------


def occupancy(kernel: Kernel, of: detail.Detail | None) -> model.Occupancy | None:
    """Occupancy with its limits; None where the report has none."""
    metrics = kernel["metrics"]
    limit = limiter.occupancy_limit(metrics)
    if limit is None:
        return None
    limits = {name: metrics.get(key) for key, name in limiter.RESOURCES.items()}
    return model.Occupancy(
        blocks=limit.blocks,
        resources=limit.resources,
        limits={name: int(value) for name, value in limits.items() if value is not None},
        theoretical_pct=metrics.get("theoretical_occupancy_pct"),
        achieved_pct=metrics.get("achieved_occupancy_pct"),
        needs=tuple(_needs(kernel, of, limit.blocks, limit.resources) if of else ()),
    )


def _needs(
    kernel: Kernel, of: detail.Detail, blocks: int, resources: Sequence[str]
) -> Iterable[model.NextBlock]:
    """What would let one block more onto an SM, by the calculator's own curves in the report.

    A curve moves one resource alone: where several run out together none of them reaches the next block.
    """
    threads, warps = kernel["block_size"], 0
    if threads:
        warps = -(-threads // THREADS_PER_WARP)
    static, dynamic = kernel["smem_static_bytes"], kernel["smem_dynamic_bytes"]
    now = {
        "registers": kernel["registers"],
        "shared memory": None if static is None or dynamic is None else static + dynamic,
    }
    for resource in resources:
        held, curve = now.get(resource), of.curves.get(resource, [])
        if held is None or not warps:
            continue
        enough = [x for x, fits in curve if x < held and fits >= (blocks + 1) * warps]
        if enough:
            yield model.NextBlock(resource, held, max(enough))


SECTION = "ncu --section {}"
PARTS, STALLS = "what Speed of Light is made of", "stall reasons"
# (what is shown, the option that brings it, whether a launch has it).
OF_LAUNCHES: tuple[tuple[str, str, Callable[[model.LaunchView], bool]], ...] = (
    ("duration", SECTION.format("SpeedOfLight"), lambda one: one.kernel["duration_ns"] is not None),
    ("Speed of Light, and with it the verdict", SECTION.format("SpeedOfLight"), lambda one: bool(one.kernel["breakdown"])),
    (PARTS, SECTION.format("SpeedOfLight"), lambda one: not breakdown.are_wholes(one.kernel["breakdown"])),
    ("grid, block, registers and shared memory", SECTION.format("LaunchStats"),
     lambda one: one.kernel["grid_size"] is not None),
    ("occupancy", SECTION.format("Occupancy"), lambda one: one.occupancy is not None),
    ("issue activity of the schedulers", SECTION.format("SchedulerStats"),
     lambda one: one.kernel["metrics"].get("issue_active") is not None),
    (STALLS, SECTION.format("WarpStateStats"), lambda one: bool(one.kernel["stalls"])),
    ("roofline", SECTION.format("SpeedOfLight_RooflineChart") + ", or --set roofline",
     lambda one: one.roofline is not None),
    ("NVIDIA's rules", "ncu --apply-rules yes", lambda one: bool(one.kernel["rules"])),
    ("NVTX ranges", "ncu --nvtx", lambda one: bool(one.kernel["nvtx"])),
)  # fmt: skip
OF_DETAIL: tuple[tuple[str, str, Callable[[model.LaunchDetail], bool]], ...] = (
    ("memory chart", SECTION.format("MemoryWorkloadAnalysis_Chart"), lambda one: one.memory is not None),
    ("use of the pipes", SECTION.format("ComputeWorkloadAnalysis"), lambda one: bool(one.pipes)),
    ("instruction mix", SECTION.format("InstructionStats"), lambda one: bool(one.opcodes)),
    ("spread over SMs and slices", SECTION.format("WorkloadDistribution"), lambda one: bool(one.spread)),
    ("instructions with their samples", SECTION.format("SourceCounters"), lambda one: one.code is not None),
    ("source lines", "nvcc -lineinfo when the program is built",
     lambda one: one.code is not None and bool(one.code.files)),
    ("text of the source", "ncu --import-source yes, or ncuflow view --source FOLDER",
     lambda one: one.code is not None and bool(one.code.sources)),
)  # fmt: skip
ONLY_A_REPORT = "a report: ncu --export FILE, where this is what ncu printed"


def missing(
    kernels: Sequence[model.KernelView], details: Mapping[int, model.LaunchDetail], closely: bool
) -> list[model.MissingMetric]:
    """What no kernel of a report has."""
    launches = [launch for kernel in kernels for launch in kernel.launches]
    of_launches = [(w, option) for w, option, has in OF_LAUNCHES if not any(map(has, launches))]
    if not closely:
        # ncu does not print them of the details page, although it has counted them.
        found = [(w, ONLY_A_REPORT if w in (PARTS, STALLS) else o) for w, o in of_launches]
        of_details = [(what, ONLY_A_REPORT) for what, _, _ in OF_DETAIL]
    else:
        looked = details.values()
        found = of_launches
        of_details = [(w, option) for w, option, has in OF_DETAIL if not any(map(has, looked))]
    return [model.MissingMetric(*one) for one in (*found, *of_details)]
