"""One kernel of a trace of nsys → its explanation, which has times and no counters."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import PurePath

from ncuflow.explain.launch import TraceWords, also_named, choose, share, subject
from ncuflow.explain.record import Explanation, Lineage, Missing, Number
from ncuflow.findings import profiled
from ncuflow.io import BadInput
from ncuflow.model import Kernel
from ncuflow.parsers import cute, demangled
from ncuflow.parsers.nsys import Trace

COUNTERS = Missing(
    what="what limits it, what its warps wait for and where: a trace has no counters",
    brought_by="ncu --set full -k {} -c 1",
)


def of_trace(trace: Trace, kernel: str | int | None = None) -> Explanation:
    """The explanation of the launch that `launch.choose` takes.

    Raises BadInput where the trace has no such kernel.
    """
    every = profiled.traced(trace)
    if not every:
        raise BadInput(trace.file, "a trace without kernels")
    chosen, alike = choose(every, kernel, trace.file)
    return Explanation(
        subject=subject(chosen, alike),
        lineage=Lineage(
            file=PurePath(trace.file).name, kind="nsys", tier=profiled.RECORDED, gpu=chosen["device"], compute_capability=None,
            versions={"nsys": trace.nsys_version} if trace.nsys_version else {}, date=None,
        ),
        time=Number(
            value=chosen["duration_ns"] or 0.0, unit="ns", metric="end - start of CUPTI_ACTIVITY_KIND_KERNEL",
            tier=profiled.RECORDED, trace=TraceWords(f"{trace.file}#{chosen['kernel']}").to("duration_ns"),
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
    name = full if cute.MANGLED.fullmatch(full) else demangled.function(chosen["name"])
    return pattern(name) + (f" -s {before}" if before else "")
