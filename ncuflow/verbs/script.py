"""A point, or a kernel of a step, as a Python file that stands alone: torch and FlashInfer, for your own ncu or nsys.

    ncuflow export script decode/B32_L2048_H32_K32_D128_P16_f16_cc --out point.py
    ncuflow export script decode --blocks '[{"batch": 4, "kv_len": 8192}]' --out point.py
    ncuflow export script trace.json.gz --kernel 1 --known page_size=16 --out kernel.py

The inputs, plan() and the call are the target's own source, with all of the project that it needs. A point is named by
its id, as `ncuflow trace` takes it, where a sweep of the settings or results under outputs/ have it; any other by its
target and one block of parameters, what is left out having the target's default. The file says how it is profiled.
The kernel of a trace has the number that `ncuflow step` gives it. Its file says when it runs whether it launched the
trace's grid and block, and ends with status 1 where not.
"""

from pathlib import Path

from ncuflow.export.script import NAME, of_step, planned, script
from ncuflow.io import UsageError, emit, not_over
from ncuflow.verbs.options import OutFile, blocks_of


def command(
    point: str,
    /,
    *,
    blocks: str | None = None,
    kernel: int | None = None,
    known: list[str] | None = None,
    out: OutFile = None,
) -> None:
    """A point, or a kernel of a step, as a file of Python.

    Args:
        point: id of a point, name of a target, or a trace
        blocks: parameters of the target's point, as JSON
        kernel: of a trace, the number of the kernel in `ncuflow step`
        known: of a trace, NAME=NUMBER …, as `ncuflow step` takes it
        out: default: standard output
    """
    name = out.name if out else NAME
    if kernel is None:
        if known or Path(point).is_file():
            raise UsageError("a trace goes with --kernel, and --known with both")
        target, one = planned(point, blocks_of(blocks))
        emit(script(target, one, name), out)
        return
    if blocks:
        raise UsageError("--blocks goes with a target, not with --kernel")
    not_over(out, Path(point))
    emit(of_step(Path(point), kernel, known, name), out)
