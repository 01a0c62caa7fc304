"""One point as a Python file that stands alone: torch and FlashInfer, to be run under your own ncu or nsys.

    ncuflow export script decode/B32_L2048_H32_K32_D128_P16_f16_cc --out point.py
    ncuflow export script decode --blocks '[{"batch": 4, "kv_len": 8192}]' --out point.py

The inputs, plan() and the call are the target's own source, with all of the project that it needs. A point is named by
its id, as `ncuflow trace` takes it, where a sweep of the settings or results under outputs/ have it; any other by its
target and one block of parameters, what is left out having the target's default. The file says how it is profiled.
"""

from __future__ import annotations

from ncuflow.export.script import NAME, planned, script
from ncuflow.io import emit
from ncuflow.verbs.options import OutFile, blocks_of


def command(
    point: str,
    /,
    *,
    blocks: str | None = None,
    out: OutFile = None,
) -> None:
    """A point as a file of Python.

    Args:
        point: id of a point, or name of a target
        blocks: parameters of the target's point, as JSON
        out: default: standard output
    """
    target, one = planned(point, blocks_of(blocks))
    emit(script(target, one, out.name if out else NAME), out)
