"""Profile the points of a batch under Nsight Compute.

    ncuflow ncu TARGET --points P.json --out DIR --name sweep --registry --sections "A,B"
    ncuflow ncu TARGET --points P.json --out DIR --name deep --registry --sections "A,SourceCounters" --rules

Writes DIR/NAME.ncu-rep and DIR/NAME.json. A point that breaks the CUDA context is an error, and the others are profiled
again without it. Exit status: 0 complete; 1 nothing usable, nothing
written; 2 bad input; 3 some points lost, the report stands; 5 the driver refuses counters, or the preflight found ncu unfit.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from ncuflow.evidence.points import Contents
from ncuflow.evidence.scrub import scrub_report
from ncuflow.gpu.nvml import DriverQuery, VisibleGpu
from ncuflow.io import UsageError
from ncuflow.parsers import chips, reader
from ncuflow.parsers.registry import METRICS, counters
from ncuflow.process import CaptureError, ProcessExit, output_of, python_environment
from ncuflow.run.profiler import LOST, UNFIT, Batch, CaptureAsked, capture, parse_version, tool
from ncuflow.target.contract import Target, load

INTEGER = ("int4", "int8")
DURATION = "gpu__time_duration.sum"
REMEDY = (
    "the driver refuses performance counters (ERR_NVGPUCTRPERM): run as root, give the container "
    "--cap-add=SYS_ADMIN, or put `options nvidia NVreg_RestrictProfilingToAdminUsers=0` into "
    "/etc/modprobe.d/nvidia.conf and reload the driver"
)


@dataclass(frozen=True, kw_only=True)
class NcuAsked(CaptureAsked):
    """What a profile is given."""

    name: str = "sweep"
    """name of both files (default: sweep)"""
    repeats: int = 1
    """launches of each point (default: 1)"""
    sections: str | None = None
    """ncu sections, separated by commas"""
    registry: bool = False
    """collect the counters of the metric registry"""
    metrics: str | None = None
    """further metrics, as ncu's --metrics takes them"""
    rules: bool = False
    """apply NVIDIA's rules, half as long again per kernel"""
    import_source: bool = False
    """embed source files (never ship such a report)"""
    clock_control: Literal["none", "base"] = "none"
    """default: none"""


def ncu_program() -> str:
    """The ncu to run: NCUFLOW_NCU, else PATH, else the CUDA toolkit's."""
    return tool("ncu") or "ncu"


def ncu_command(batch: Batch, asked: NcuAsked) -> list[str]:
    """The command line."""
    command = [ncu_program(), "--nvtx", "--profile-from-start", "off"]
    # `all`: a virtual environment's python may be a launcher whose child does the work.
    command += ["--clock-control", asked.clock_control, "--target-processes", "all"]
    # ncu applies its rules while it holds the GPU, and not to a report that it wrote before.
    command += [
        "-f",
        "-o",
        batch.path(asked.name),
        "--apply-rules",
        "yes" if asked.rules else "no",
    ]
    for section in _words(asked.sections):
        command += ["--section", section]
    keys = registry_keys(load(batch.target))
    known = registry_counters(batch.held.gpu, keys) if asked.registry else ()
    metrics = [*known, *_words(asked.metrics)]
    if metrics:
        command += ["--metrics", ",".join(metrics)]
    if asked.import_source:
        command += ["--import-source", "yes"]
    # It flushes L2 itself, and no compiler changes what it counts.
    return command + batch.program("--no-flush")


def registry_keys(target: Target) -> tuple[str, ...]:
    """The keys of the registry that a target is profiled for. Integer operations of tensor cores, three of 25 passes on a
    GH100, are asked for where a value of one of its parameters can begin with int8 or int4."""
    values = {value for choices in target.choices.values() for value in choices}
    integer = any(str(value).startswith(INTEGER) for value in values)
    return tuple(key for key in METRICS if integer or not key.startswith("tensor_int_ops"))


def registry_counters(gpu: VisibleGpu, keys: tuple[str, ...] | None = None) -> tuple[str, ...]:
    """The counters behind the metric registry, or these keys of it, by the names of this GPU's chip; of one that it
    lacks, those that all chips have."""
    capability = DriverQuery(gpu.uuid).capability()
    chip = chips.chip_of(".".join(map(str, capability)) if capability else None)
    return counters(chip) if keys is None else counters(chip, keys)


def count_kernels(report: Path, points: Sequence[str]) -> Contents | None:
    """Kernels of a report by NVTX range, or None if the reader (ncu-report) is not installed."""
    found, wanted = Contents(), set(points)
    try:
        context = reader.load(report)
    except ImportError:
        return None
    for _, action in reader.actions(context):
        _count_action(action, wanted, found)
    return found


def command(target: str, /, *, asked: Annotated[NcuAsked, Parameter(name="*")]) -> int:
    """Profile, check what came back, and move it into place. Returns the exit status.

    Args:
        target: kernel target, as `ncuflow launch` knows it
    """
    if not (asked.registry or _words(asked.sections)):
        raise UsageError("give --registry or --sections")
    return capture("ncu", ".ncu-rep", target, asked, lambda batch: _profile(batch, asked))


def _profile(batch: Batch, asked: NcuAsked) -> int:
    command, report = ncu_command(batch, asked), batch.stage / f"{asked.name}.ncu-rep"
    outcome = batch.run(command, {**python_environment(), **batch.held.environ})
    if batch.progress.refused:
        raise CaptureError(REMEDY, UNFIT)
    found = count_kernels(report, batch.ids) if report.exists() else Contents()
    if found is not None and found.total == 0:
        return batch.nothing(report, batch.ending(outcome) or "ncu wrote no kernel")
    return _keep(batch, report, command, outcome, found)


def _keep(
    batch: Batch, report: Path, command: Sequence[str], outcome: ProcessExit, found: Contents | None
) -> int:
    notes, profiled = [], batch.progress.kernels
    truncated = found is not None and found.total < profiled
    if found is None:
        notes = ["completeness not checked: the package ncu-report is not installed"]
    elif truncated:
        notes = [f"the report holds {found.total} of the {profiled} kernels that ncu profiled"]
    lost = batch.lost(found, outcome)
    if not scrub_report(report):
        notes.append(
            "the report's layout is unknown: host name and command line are as ncu stored them"
        )
    status = batch.keep(report, command, ncu_version(), found, lost, outcome, notes)
    return LOST if truncated else status


def ncu_version() -> str | None:
    """`2025.3.1.0`, as `ncu --version` says it."""
    return parse_version(output_of([ncu_program(), "--version"]) or "")


def _count_action(action: Any, wanted: set[str], found: Contents) -> None:
    found.total += 1
    point = next((name for name in _nvtx_names(action) if name in wanted), None)
    if point is None:
        found.unattributed += 1
        return
    found.kernels[point] = found.kernels.get(point, 0) + 1
    metric = action.metric_by_name(DURATION)
    value = metric.value() if metric is not None else None
    if metric is not None and (value is None or math.isnan(value)):
        found.failed[point] = found.failed.get(point, 0) + 1


def _nvtx_names(action: Any) -> list[str]:
    state = action.nvtx_state()
    if state is None:
        return []
    domains = [state.domain_by_id(d) for d in state.domains()]
    return [name for domain in domains for name in reversed(domain.push_pop_ranges())]


def _words(text: str | None) -> list[str]:
    return [word for word in re.split(r"[,\s]+", text or "") if word]
