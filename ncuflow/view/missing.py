"""What a report does not hold of any kernel, each with the option that would bring it: said once, not in every panel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ncuflow.parsers import breakdown
from ncuflow.view.model import KernelView, LaunchDetail, LaunchView, MissingMetric

SECTION = "ncu --section {}"
PARTS, STALLS = "what Speed of Light is made of", "stall reasons"
# (what is shown, the option that brings it, whether a launch has it).
OF_LAUNCHES: tuple[tuple[str, str, Callable[[LaunchView], bool]], ...] = (
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
OF_DETAIL: tuple[tuple[str, str, Callable[[LaunchDetail], bool]], ...] = (
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
    kernels: Sequence[KernelView], details: Mapping[int, LaunchDetail], closely: bool
) -> list[MissingMetric]:
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
    return [MissingMetric(*one) for one in (*found, *of_details)]
