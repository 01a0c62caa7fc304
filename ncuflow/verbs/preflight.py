"""Preflight: what is here, what is missing, and what to do about it.

    ncuflow preflight [--out environment.json] [--ceilings ceilings.json] [--recorded]

Works on any machine, exit status 0. A finding that is not "ok" carries a remedy. With --ceilings it measures, too, what
the GPU reaches, holds its lock meanwhile, and asks whether torch sees the GPU; where that cannot be measured every figure
is null, with the reason.
"""

from pathlib import Path
from typing import Annotated, Literal

from ncuflow.io import write_json
from ncuflow.run.preflight import PreflightAnswer, measured
from ncuflow.verbs.options import AS_TEXT, Each, Printed


def command(
    *,
    out: Path | None = None,
    ceilings: Path | None = None,
    recorded: bool = False,
    no_counters: bool = False,
    probe: Annotated[list[Literal["ncu", "nsys"]] | None, Each] = None,
    clock_policy: str = "boost",
    printed: Printed = AS_TEXT,
) -> None:
    """What can be measured here.

    Args:
        out: environment.json
        ceilings: ceilings.json: what the GPU reaches
        recorded: recorded evidence is used, whatever is here
        no_counters: ncu is not run: tier B at best
        probe: with --ceilings: make a tiny profile by ncu, by nsys; may be repeated
        clock_policy: what to record about clocks (default: boost)
    """
    result = measured(recorded, clock_policy, not no_counters, ceilings, probe or ())
    if out is not None:
        write_json(out, result)
    told = {name: value for name, value in result.items() if name != "schema"}
    poor = [row for row in result["findings"] if row["status"] != "ok"]
    lines = [f"tier {result['tier']}: {result['tier_reason']}"]
    lines += [f"{row['status']:8}{row['check']}: {row['found']}; {row['remedy']}" for row in poor]
    printed.tell(PreflightAnswer(**told), "\n".join(lines) + "\n")
