"""Per target: the tables of one kernel target become ``results/<target>_results.json`` and its measurement table.

python -m ncuflow.findings.results --target decode --tables DIR --evidence ROOT --out FILE.json --measurements FILE.parquet
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ncuflow.findings import ceilings, join, noise
from ncuflow.findings.columns import COLUMNS
from ncuflow.findings.provenance import load_provenance
from ncuflow.io import BadInput, main_guard, read_table, without, write_json, write_table
from ncuflow.parsers.timing import KINDS

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]


def read(tables: Path, name: str) -> list[Row]:
    """Rows of one table of a target; none where the evidence has no such table."""
    path = tables / f"{name}.parquet"
    return read_table(path) if path.exists() else []


def grouped(rows: list[Row], *keys: str) -> dict[Any, list[Row]]:
    """Rows by the value of one key, or by the tuple of several, in first-seen order."""
    out: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        out[row[keys[0]] if len(keys) == 1 else tuple(row[k] for k in keys)].append(row)
    return out


def kernels(tables: Path) -> list[Row]:
    """Kernel rows with what was measured of each nested inside: metrics by key, stalls, rules."""
    metrics = grouped(read(tables, "metrics"), "report", "kernel")
    stalls = grouped(read(tables, "stalls"), "report", "kernel")
    rules = grouped(read(tables, "rules"), "report", "kernel")
    rows = read(tables, "kernels")
    for row in rows:
        key = (row["report"], row["kernel"])
        row["metrics"] = {m["key"]: m["value"] for m in metrics[key]}
        row["stalls"] = [_without_key(s) for s in stalls[key]]
        row["rules"] = [_without_key(r) for r in rules[key]]
    return rows


def _without_key(row: Row) -> Row:
    return {name: row[name] for name in row if name not in ("report", "point", "kernel")}


def results(target: str, tables: Path, evidence: Path, recording: str | None) -> Row:
    """Everything that is known of one target, joined on the point id."""
    provenance = load_provenance(evidence, recording)
    measured = _json(evidence / "ceilings.json")
    machine = ceilings.machine(provenance["gpu"], measured)
    all_kernels = kernels(tables)
    _same_gpu(all_kernels, provenance["gpu"], evidence)
    deep = [k for k in all_kernels if k["batch"] == "deep"]
    sweep = grouped([k for k in all_kernels if k["batch"] != "deep"], "point")
    launches = grouped(read(tables, "timeline"), "point")
    lost = grouped(read(tables, "lost"), "point")
    timed = read(tables, "timing")
    runs = grouped(timed, "point")
    points = []
    for timing in timed:
        point = timing["point"]
        timing["params"] = json.loads(timing["params"])
        if timing["run"]:
            continue
        problems = [f"{loss['tool']}: {loss['reason']}" for loss in lost[point]]
        row = join.row(timing, sweep[point], launches[point], machine, provenance, problems)
        points.append(_entry(timing, row, sweep[point], problems) | {"runs": _runs(runs[point])})
    found = {
        "schema": 1,
        "target": target,
        "provenance": provenance,
        "ceilings": machine,
        "points": points,
        "deep": _deep(deep, tables),
    }
    again = grouped([t for t in timed if t["run"]], "run")
    repeats = [[join.row(t, [], [], machine, provenance) for t in rows] for rows in again.values()]
    return found | {"noise": noise.of_results(found, repeats)}


def _same_gpu(kernel_rows: list[Row], gpu: str | None, evidence: Path) -> None:
    """BadInput where a kernel ran on another model than the evidence is filed under (a MIG slice is none)."""
    for kernel in kernel_rows:
        device = kernel["device"]
        if gpu and device and not device.startswith(gpu):
            what = f"{kernel['report']} is of {device}, but environment.json is of {gpu}"
            raise BadInput(evidence, what)


def _runs(timed: list[Row]) -> Row:
    """Samples of each run by metric, µs; of host and plan times, which move between runs, the medians."""
    ordered = sorted((t for t in timed if t["status"] == "ok"), key=lambda t: t["run"])
    return {
        "cold_us": [t["cold_samples_us"] for t in ordered],
        "hot_us": [t["hot_samples_us"] for t in ordered],
        "host_us": [[t["host_us"]] for t in ordered if t["host_us"] is not None],
        "plan_us": [[t["plan_us"]] for t in ordered if t["plan_us"] is not None],
    }


def _entry(timing: Row, row: Row, kernel_rows: list[Row], problems: list[str]) -> Row:
    return {
        "point": timing["point"],
        "params": timing["params"],
        "tier": row["tier"],
        "status": timing["status"],
        "reason": timing["reason"],
        "problems": problems,
        "check": {key: timing[f"check_{key}"] for key in ("rel_l2", "max_abs", "tolerance")},
        "info": json.loads(timing["info"] or "{}"),
        "measurement": row,
        "samples": {f"{kind}_us": timing[f"{kind}_samples_us"] for kind in KINDS},
        "kernels": kernel_rows,
    }


def _deep(kernel_rows: list[Row], tables: Path) -> list[Row]:
    lines = grouped(read(tables, "lines"), "report", "kernel")
    return [
        row | {"lines": [_without_key(line) for line in lines[row["report"], row["kernel"]]]}
        for row in kernel_rows
    ]


def measurements(found: Row) -> pa.Table:
    """The measurement rows of all points as a table."""
    import pyarrow as pa

    kinds = {"text": pa.string(), "int": pa.int64(), "float": pa.float64()}
    schema = pa.schema([pa.field(column.name, kinds[column.kind]) for column in COLUMNS])
    return pa.Table.from_pylist([point["measurement"] for point in found["points"]], schema=schema)


def _json(path: Path) -> Any:
    return json.loads(path.read_text()) if path.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", required=True)
    parser.add_argument("--tables", type=Path, required=True)
    parser.add_argument("--evidence", type=Path, required=True)
    parser.add_argument("--recording", help="name of the recording; absent for live evidence")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--measurements", type=Path, required=True)
    args = parser.parse_args()
    without("numpy", "pandas")
    found = results(args.target, args.tables, args.evidence, args.recording)
    write_table(args.measurements, measurements(found))
    write_json(args.out, found, levels=3)


if __name__ == "__main__":
    main_guard(main)
