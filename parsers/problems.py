"""What is wrong with the data of one profiled kernel, in words that stand beside its numbers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from ncuflow.model import Row
from ncuflow.parsers.chips import ANY

DURATION = "gpu__time_duration.sum"
FAILED = "profiling of this kernel failed"
TENSOR_PIPE = ("tensor_pipe_pct", "tensor_pipe_elapsed_pct")
TENSOR_WORK = 1.0  # per cent: the pipe takes some FP16 instructions of other kernels too
TENSOR_BUSY = 10.0  # per cent: it takes no more of those
# The passes of a launch differ by a fifth at most (recorded reports, from 1.8 µs on); what is misread does by 1000.
MOST_APART = 10.0


def of(
    kernel: Any, row: Row, metrics: Sequence[Row], points: Collection[str] | None
) -> Iterator[str]:
    """Of a `Profiled` of the reader with its row and its metrics; points: the ids that it may be of."""
    if row["duration_ns"] is None:
        # Of a kernel that failed the time is there, and no number; an export may just not have it.
        failed = row["grid_size"] is None and DURATION in kernel.invalid
        yield f"{FAILED}: no duration and no launch metrics" if failed else "no duration"
    if row["device"] is None:
        yield "no device name"
    for why in dict.fromkeys(kernel.invalid.values()):
        named = sorted(name for name, reason in kernel.invalid.items() if reason == why)
        more = f" and {len(named) - 3} more" if len(named) > 3 else ""
        yield f"{why} in {', '.join(named[:3])}{more}"
    if points is not None and row["point"] is None:
        yield "in no NVTX range of the plan"
    found = {metric["key"]: metric["value"] for metric in metrics}
    yield from _uncounted(kernel, found)
    yield from _apart(found)


def _uncounted(kernel: Any, found: Row) -> Iterator[str]:
    """That the tensor pipe worked, and the report does not hold what counts its operations."""
    busy = max(filter(None, (found.get(key) for key in TENSOR_PIPE)), default=0.0)
    counted = found.keys() & {"tensor_flops", "tensor_int_ops"}
    # Zero FLOPs of a busy pipe leave integer operations, which a sweep does not always count.
    if busy >= TENSOR_BUSY and counted == {"tensor_flops"} and not found["tensor_flops"]:
        counted = set()
    if busy >= TENSOR_WORK and not counted:
        hint = f': ncu --metrics "$(ncuflow counters {kernel.chip})"' if kernel.chip != ANY else ""
        yield f"tensor operations are not counted, or not all{hint}"


def _apart(found: Row) -> Iterator[str]:
    """That time, clock and cycles cannot all be right."""
    ns, clock, cycles = (found.get(key) for key in ("duration_ns", "sm_clock_hz", "cycles_elapsed"))
    if (
        ns
        and clock
        and cycles
        and not 1 / MOST_APART < (times := ns * 1e-9 * clock / cycles) < MOST_APART
    ):
        yield f"duration × SM clock is {times:.3g} times the elapsed cycles: one of the three is wrong"
