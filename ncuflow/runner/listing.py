"""What can be measured here: the kernel targets, and FlashInfer's APIs by their trace templates.

    ncuflow targets                                  on this machine
    ncuflow targets --results apis_results.json      with what a capture of the target `apis` came to

Nothing is run: of an API that is "ready", a capture says whether it builds and agrees with its reference. Without
FlashInfer or without a GPU the list says so, and has the rest.
"""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from ncuflow.gpu import nvml
from ncuflow.io import emit, read_as
from ncuflow.target.contract import known

Row = dict[str, str]


class _Parameters(BaseModel):
    api: str


class _Call(BaseModel):
    params: _Parameters
    status: str
    reason: str | None
    info: dict[str, str | int | float | bool | None]


class _ApiResults(BaseModel):
    """Results of the target ``apis``: the part that says what its calls came to."""

    points: list[_Call]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--results", type=Path, help="of a capture of such APIs, as JSON")
    parser.add_argument("--format", choices=("text", "json", "markdown"), default="text")


def run(args: argparse.Namespace) -> None:
    """Raises BadInput where --results has no results of the target ``apis``."""
    facts, why = gpu()
    measured = measured_apis(args.results) if args.results else {}
    rows = [*targets(facts, why), *apis(facts, measured)]
    if args.format == "json":
        emit(json.dumps(rows, indent=1) + "\n", None)
        return
    ready = sum(row["status"] in ("ready", "measured") for row in rows)
    total = f"{ready} of {len(rows)} can be measured here"
    if args.format == "markdown":
        cells = [[f"`{row['name']}`", row["status"], row["what"].replace("|", "/")] for row in rows]
        head = [f"{total}.", "", "| name | status | what, or why not |", "|---|---|---|"]
        emit("\n".join([*head, *(f"| {' | '.join(row)} |" for row in cells)]) + "\n", None)
        return
    wide = max(len(row["name"]) for row in rows)
    lines = [f"{row['name']:{wide}}  {row['status']:9} {row['what']}" for row in rows]
    emit("\n".join([*lines, total]) + "\n", None)


def gpu() -> tuple[dict[str, Any] | None, str]:
    """(facts of the GPU here or None, why there is none)."""
    if find_spec("torch") is None:
        return None, "torch is not installed"
    found = nvml.capabilities()
    return ({"compute_capability": found[0]}, "") if found else (None, "no GPU here")


def targets(facts: dict[str, Any] | None, why: str) -> list[Row]:
    """A row of each kernel target: whether its default point runs on this GPU."""
    rows = []
    for target in known().values():
        reason = why if facts is None else target.skip(target.parameters, facts)
        status = "not here" if reason else "ready"
        rows.append({"name": target.name, "status": status, "what": reason or target.title})
    return rows


def apis(facts: dict[str, Any] | None, measured: dict[str, Row]) -> list[Row]:
    """A row of each API with a trace template: what a capture of it came to, else whether it may be tried."""
    rows = []
    for target in known().values():
        try:
            for name, api, why in target.workload.listed(facts) if target.workload.listed else ():
                row = {"name": name, "status": "not here" if why else "ready", "what": why or api}
                rows.append(measured.get(name, row))
        except ImportError:
            lacks = "FlashInfer is not installed"
            rows += [*measured.values(), {"name": target.name, "status": "not here", "what": lacks}]
    return rows


def measured_apis(results: Path) -> dict[str, Row]:
    """{API: its row} of a results file of the target ``apis``."""
    rows = {}
    for point in read_as(results, _ApiResults, "the results of single APIs").points:
        name, good = point.params.api, point.status == "ok"
        what = str(point.info.get("api") or "") if good else point.reason or point.status
        rows[name] = {"name": name, "status": "measured" if good else "not here", "what": what}
    return rows
