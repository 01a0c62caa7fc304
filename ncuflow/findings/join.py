"""The join: what events, nsys and ncu say of one point, brought together for the columns of its measurement.

Everything here is a pure function over plain rows, so that it can be tested without a report.
A value that any of its terms lacks is None, never zero.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ncuflow import model
from ncuflow.findings import kernelname, limiter
from ncuflow.target.contract import known

TORCH = "at::native::"
# The problem of a point whose cold times have gaps of the host in them.
WAITED = "not compared: the GPU waited for the host between its kernels, cold"
TENSOR_OPERATIONS = ("tensor_flops", "tensor_int_ops")
SOURCE_TYPES = re.compile(r"_src_((?:[a-z]+\d+_)*?[a-z]+\d+)(?=_dst|_sparsity|\.|$)")
CALLED = {"fp16": "f16"}  # as points call it
NARROW = {"fp4", "fp6", "fp8"}  # mixed by one instruction, which has the rate of fp8


@dataclass(frozen=True)
class Joined:
    """All that is known of one point.

    timing: its row of the timing table; params: of it; operations: its rows of the timeline;
    ceilings: those of the machine; lost: what a capture did not get, and why; row: the columns of its
    measurement as far as they are computed.
    """

    timing: model.TimingRow
    params: model.Params
    kernels: Sequence[model.Kernel]
    operations: Sequence[model.Operation]
    ceilings: model.Ceilings
    provenance: model.Provenance
    lost: Sequence[str] = ()
    row: model.Measurement = field(default_factory=dict)

    @property
    def problems(self) -> str | None:
        """What is missing or failed."""
        named = [f"{k['name']}: {k['problems']}" for k in self.kernels if k["problems"]]
        return "; ".join([*self.lost, *named]) or None

    @cached_property
    def main(self) -> model.Kernel | None:
        """The kernel that stands for the point."""
        return main_kernel(self.kernels)

    @cached_property
    def metrics(self) -> Mapping[str, float | None]:
        """Metrics of the main kernel by registry key; none where there is no main kernel."""
        return self.main["metrics"] if self.main else {}

    @cached_property
    def stalls(self) -> list[model.Stall]:
        """Stalls of the main kernel with a known share, the largest first."""
        known = [s for s in (self.main["stalls"] if self.main else ()) if s["kind"] == "stall"]
        shared = [s for s in known if s["share"] is not None]
        return sorted(shared, key=lambda s: -(s["share"] or 0))

    @cached_property
    def limiter(self) -> limiter.Limiter:
        """What limits the main kernel."""
        main = self.main
        if main is None:
            return limiter.judge((), self.metrics)
        return limiter.judge(main["breakdown"], self.metrics, main["grid_size"])

    @cached_property
    def merge_pct(self) -> float | None:
        """Of the kernels' time, per cent in which a kernel merges what another one split; None without both."""
        merges = [kernel for kernel in self.kernels if is_merge(kernel)]
        spent, whole = (total(k["duration_ns"] for k in some) for some in (merges, self.kernels))
        return ratio(spent, whole, 100) if len(merges) < len(self.kernels) else None

    @cached_property
    def main_pct(self) -> float | None:
        """Of the kernels' time, per cent that the main one takes; None where it is the only one."""
        if self.main is None or len(self.kernels) < 2:
            return None
        return ratio(self.main["duration_ns"], total(k["duration_ns"] for k in self.kernels), 100)

    @cached_property
    def others_pct(self) -> float | None:
        """Of the kernels' time, per cent in which neither the main kernel runs nor a merge; None without another."""
        others = [k for k in self.kernels if k is not self.main and not is_merge(k)]
        spent, whole = (total(k["duration_ns"] for k in some) for some in (others, self.kernels))
        return ratio(spent, whole, 100) if self.main and others else None

    @cached_property
    def launches(self) -> list[list[model.Operation]]:
        """What ran on the GPU in each launch of the point that nsys saw, copies aside."""
        found: dict[int | None, list[model.Operation]] = defaultdict(list)
        for operation in self.operations:
            if operation["kind"] in ("kernel", "graph"):
                found[operation["launch"]].append(operation)
        return list(found.values())


def ratio(numerator: float | None, denominator: float | None, scale: float = 1.0) -> float | None:
    """``numerator / denominator * scale``; None if either is None or the denominator is 0."""
    if numerator is None or not denominator:
        return None
    return numerator / denominator * scale


def total(values: Iterable[float | None]) -> float | None:
    """The sum; None if there is nothing to add or any term is unknown."""
    terms = list(values)
    if not terms or any(term is None for term in terms):
        return None
    return sum(term for term in terms if term is not None)


def architecture(provenance: Mapping[str, Any]) -> str | None:
    """``sm_90`` from compute capability ``9.0``."""
    capability = provenance.get("compute_capability")
    return "sm_" + str(capability).replace(".", "") if capability else None


def main_kernel(kernels: Sequence[model.Kernel]) -> model.Kernel | None:
    """The longest kernel of a point: the one whose limiter, stalls and occupancy stand for it, a merge as any other.

    None where one of several has no time: it may be the longest. Where none has one, as in what was compiled and
    not run, the kernel beside a merge stands for the point.
    """
    times = [kernel["duration_ns"] for kernel in kernels]
    if None not in times:
        return max(kernels, key=lambda kernel: kernel["duration_ns"] or 0, default=None)
    others = [kernel for kernel in kernels if not is_merge(kernel)]
    return others[0] if len(others) == 1 and not any(times) else None


def is_merge(kernel: model.Kernel) -> bool:
    """Whether a kernel merges what a split over the KV cache left."""
    return kernel["name"].startswith(kernelname.MERGE)


def is_torchs(kernel: model.Kernel) -> bool:
    """Whether a kernel is PyTorch's own: the add of a separate add and norm, a fill. Not FlashInfer's to change."""
    return TORCH in (kernel["demangled"] or "")


def led_by_torch(kernels: Sequence[model.Kernel]) -> bool:
    """Whether the main kernel of a point is PyTorch's, so that its rate and limiter say nothing of FlashInfer's."""
    main = main_kernel(kernels)
    return main is not None and is_torchs(main)


def tensor_peak(kernels: Sequence[model.Kernel]) -> float | None:
    """FLOP/s at most of the tensor instruction in the longest kernel that ran one: a merge after it runs none."""
    ran = [kernel for kernel in kernels if kernel["metrics"].get("tensor_flops_peak_per_second")]
    longest = max(ran, key=lambda kernel: kernel["duration_ns"] or 0, default=None)
    return longest["metrics"]["tensor_flops_peak_per_second"] if longest else None


def tensor_types(metrics: Iterable[Mapping[str, Any]]) -> list[str]:
    """Types of the operands, as the counters of tensor operations that are not 0 name them; where one counter is of
    several types those, joined by /.

    metrics: rows of the metrics table of one kernel.
    """
    counted = [m["metric"] for m in metrics if m["key"] in TENSOR_OPERATIONS and m["value"]]
    groups = {
        tuple(CALLED.get(name, name) for name in names.split("_"))
        for text in counted
        for names in SOURCE_TYPES.findall(text)
    }
    return sorted({"fp8" if len(g) > 1 and NARROW.issuperset(g) else "/".join(g) for g in groups})


def of_dram(joined: Joined) -> bool:
    """Whether DRAM can be the roof of a point: of what ranks send each other their links are."""
    target = known().get(joined.timing["target"])
    return target is None or target.sent is None


def flop_type(kernels: Sequence[model.Kernel], declared: Any) -> str | None:
    """The type that a call computes with: that of its longest kernel with tensor operations, joined by + where they are
    several; fp32 where counters saw none; and as it was declared where they do not tell."""
    ran = [kernel for kernel in kernels if kernel.get("tensor_types")]
    if ran:
        longest = max(ran, key=lambda kernel: kernel["duration_ns"] or 0)
        types = "+".join(longest["tensor_types"])
        return str(declared) if declared in types.split("/") else types
    counted = [with_idle_tensor_pipe(kernel["metrics"]).get("tensor_flops") for kernel in kernels]
    idle = bool(counted) and all(flops == 0 for flops in counted)
    return "fp32" if idle else declared and str(declared)


def idle_us(spans: Iterable[tuple[int, int]]) -> float:
    """µs between the first start and the last end (both in ns) in which nothing ran."""
    ordered = sorted(spans)
    idle, until = 0, ordered[0][0]
    for start, end in ordered:
        idle += max(0, start - until)
        until = max(until, end)
    return idle / 1e3


def with_idle_tensor_pipe(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """The metrics, with no tensor FLOPs where the tensor pipe never ran: some reports leave them out then."""
    pipe = (metrics.get("tensor_pipe_pct"), metrics.get("tensor_pipe_elapsed_pct"))
    return ({"tensor_flops": 0.0} if 0 in pipe else {}) | dict(metrics)
