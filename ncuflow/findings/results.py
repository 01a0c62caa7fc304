"""Per target: the tables of one kernel target become ``results/<target>_results.json`` and its measurement table.

ncuflow results --target decode --tables DIR --evidence ROOT --out FILE.json --measurements FILE.parquet
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ncuflow import model
from ncuflow.evidence.provenance import load_provenance, of_captures
from ncuflow.findings import ceilings, join, noise
from ncuflow.findings.columns import COLUMNS, measurement
from ncuflow.findings.join import Joined, tensor_types
from ncuflow.io import BadInput, write_json
from ncuflow.parquet import read_columns, read_table, write_table
from ncuflow.record import Series, places, quartiles
from ncuflow.target.contract import known

if TYPE_CHECKING:
    import pyarrow as pa


def read(tables: Path, name: str) -> list[Any]:
    """Rows of one table of a target (``model.TABLES``); none where the evidence has no such table."""
    path = tables / f"{name}.parquet"
    return read_table(path) if path.exists() else []


def read_some(tables: Path, name: str, columns: Sequence[str]) -> dict[str, list[Any]]:
    """The values of some columns of a table; none where the evidence has no such table."""
    path = tables / f"{name}.parquet"
    return read_columns(path, columns) if path.exists() else {column: [] for column in columns}


def grouped(rows: list[Any], *keys: str) -> dict[Any, list[Any]]:
    """Rows by the value of one key, or by the tuple of several, in first-seen order."""
    out: dict[Any, list[Any]] = defaultdict(list)
    for row in rows:
        out[row[keys[0]] if len(keys) == 1 else tuple(row[k] for k in keys)].append(row)
    return out


def kernels(tables: Path) -> list[model.Kernel]:
    """Kernel rows with what was measured of each nested inside: metrics by key, stalls, breakdown, rules."""
    nested = ("stalls", "breakdown", "rules")
    found = {name: grouped(read(tables, name), "report", "kernel") for name in ("metrics", *nested)}
    rows = read(tables, "kernels")
    for row in rows:
        key = (row["report"], row["kernel"])
        row["metrics"] = {m["key"]: m["value"] for m in found["metrics"][key]}
        row["tensor_types"] = tensor_types(found["metrics"][key])
        row |= {name: [_without_key(part) for part in found[name][key]] for name in nested}
    return rows


def _without_key(row: model.Row) -> Any:
    return {name: row[name] for name in row if name not in model.OfKernel.__annotations__}


def results(target: str, tables: Path, evidence: Path, recording: str | None) -> model.Results:
    """Everything that is known of one target, joined on the point id."""
    environment = load_provenance(evidence, recording)
    machine = ceilings.machine(environment["gpu"], ceilings.load(evidence, environment["gpu"]))
    all_kernels = kernels(tables)
    captures: list[model.CaptureRow] = read(tables, "captures")
    _same_gpu([(k["report"], k["device"]) for k in all_kernels], environment["gpu"], evidence)
    _same_gpu([(c["report"], c["gpu"]) for c in captures], environment["gpu"], evidence)
    of_batch = {
        batch: of_captures(environment, rows) for batch, rows in grouped(captures, "batch").items()
    }
    sweep = grouped([k for k in all_kernels if k["batch"] != model.DEEP], "point")
    timeline = grouped(read(tables, "timeline"), "point")
    lost = grouped(read(tables, "lost"), "point")
    timed: list[model.TimingRow] = read(tables, "timing")
    runs = grouped(timed, "point")

    def joined(timing: model.TimingRow) -> Joined:
        """Of the run that counters and trace are of; of further runs, the times alone."""
        point, first, params = timing["point"], not timing["run"], json.loads(timing["params"])
        _known_kinds(target, point, params, evidence)
        kernels, operations = (sweep[point], timeline[point]) if first else ([], [])
        losses = [f"{loss['tool']}: {loss['reason']}" for loss in lost[point]] if first else []
        if timing["cold_queued"] is False:
            losses.append(join.WAITED)
        made = of_batch.get(timing["batch"], environment)
        return Joined(timing, params, kernels, operations, machine, made, losses)

    first = [t for t in timed if not t["run"]]
    machine = ceilings.raised(
        machine, [measurement(joined(t)) for t in first if t["status"] == "ok"]
    )
    points = [point_of(joined(t), runs[t["point"]]) for t in first]
    pairs = _pairs(tables)
    _settle(points, pairs)
    again = grouped([t for t in timed if t["run"]], "run").values()
    repeats = [[measurement(joined(timing)) for timing in rows] for rows in again]
    return {
        "schema": 1,
        "target": target,
        "provenance": of_captures(environment, captures),
        "warnings": [
            {"report": row["report"], "text": row["warnings"]}
            for row in captures
            if row["warnings"]
        ],
        "ceilings": machine,
        "points": points,
        "deep": _deep([k for k in all_kernels if k["batch"] == model.DEEP], tables),
        "pairs": pairs,
        "noise": noise.floors(points, repeats),
    }


def _known_kinds(target: str, point: str, params: model.Params, evidence: Path) -> None:
    """BadInput where a parameter is of another kind than the target's."""
    try:
        if declared := known().get(target):
            declared.completed(params)
    except ValueError as error:
        raise BadInput(evidence, f"{point}: {error}") from None


def _same_gpu(devices: list[tuple[str, str | None]], gpu: str | None, evidence: Path) -> None:
    """BadInput where a report is of another model than the evidence is filed under (a MIG slice is none)."""
    for report, device in devices:
        if gpu and device and not device.startswith(gpu):
            raise BadInput(evidence, f"{report} is of {device}, but environment.json is of {gpu}")


def _runs(timed: list[model.TimingRow]) -> dict[str, list[Any]]:
    """Samples of each run by series, µs; of host and plan times, which move between runs, the medians."""
    ordered = sorted((t for t in timed if t["status"] == "ok"), key=lambda t: t["run"])
    return {
        "cold_us": [t["cold_samples_us"] for t in ordered],
        "hot_us": [t["hot_samples_us"] for t in ordered],
        "host_us": [[t["host_us"]] for t in ordered if t["host_us"] is not None],
        "plan_us": [[t["plan_us"]] for t in ordered if t["plan_us"] is not None],
    }


def point_of(joined: Joined, timed: list[model.TimingRow]) -> model.Point:
    """What results say of a point; timed: its rows of the timing table, of all runs."""
    timing, row = joined.timing, measurement(joined)
    return {
        "point": timing["point"],
        "params": joined.params,
        "tier": row["tier"],
        "status": timing["status"],
        "reason": timing["reason"],
        "problems": list(joined.lost),
        "check": {
            "rel_l2": timing["check_rel_l2"],
            "max_abs": timing["check_max_abs"],
            "tolerance": timing["check_tolerance"],
        },
        "info": json.loads(timing["info"] or "{}"),
        "measurement": row,
        "samples": {
            "cold_us": timing["cold_samples_us"],
            "hot_us": timing["hot_samples_us"],
            "host_us": timing["host_samples_us"],
            "plan_us": timing["plan_samples_us"],
        },
        "kernels": list(joined.kernels),
        "runs": _runs(timed) if timed else {},
    }


# Of a pair's host times in each turn: the first find nothing in the host's caches.
FIRST_CALLS, TURN = 2, 5


def _later(times: Sequence[float]) -> list[float]:
    """Of the host's times of a side, a turn after the other, those of later calls."""
    return [time for i, time in enumerate(times) if i % TURN >= FIRST_CALLS]


def _settle(points: list[model.Point], pairs: list[model.Turns]) -> None:
    """The host's time of a pair's side, and of a point that has the side's, becomes the median, in µs, of later calls."""
    sides = set()
    for pair in pairs:
        for name, side in zip((pair["base"], pair["other"]), pair["sides"], strict=False):
            times = side.get("host_samples_us") or []
            sides.add((name, *times))
            if settled := _later(times):
                low, middle, high = quartiles(settled)
                side |= {"host_samples_us": settled, "host_us": middle, "host_n": len(settled)}
                side |= {"host_q25_us": low, "host_q75_us": high}
    for point in points:
        times = point["samples"]["host_us"] or []
        if (settled := _later(times)) and (point["point"], *times) in sides:
            point["samples"]["host_us"] = settled
            point["measurement"]["host_launch_us"] = median(settled)
            point["runs"]["host_us"][:1] = [[median(settled)]]  # of the run that the pairs are of


def _deep(kernels: list[model.Kernel], tables: Path) -> list[model.Kernel]:
    lines = grouped(read(tables, "lines"), "report", "kernel")
    for kernel in kernels:
        found = lines[kernel["report"], kernel["kernel"]]
        kernel["lines"] = [_without_key(line) for line in found]
    return kernels


def _pairs(tables: Path) -> list[model.Turns]:
    """The pairs that were timed in turns; of each side the times, without what names it."""
    return [
        {
            "base": base["point"],
            "other": other["point"],
            "status": base["status"],
            "reason": base["reason"],
            "sides": [_times(side) for side in (base, other) if base["status"] == "ok"],
        }
        for base, other in grouped(read(tables, "pairs"), "pair").values()
    ]


def _times(row: model.Row) -> Any:
    return {place.column: row[place.column] for place in places(Series)}


def table_of(found: model.Results) -> pa.Table:
    """The measurement rows of all points as a table."""
    import pyarrow as pa

    kinds = {"text": pa.string(), "int": pa.int64(), "float": pa.float64()}
    schema = pa.schema([pa.field(column.name, kinds[column.kind]) for column in COLUMNS])
    return pa.Table.from_pylist([point["measurement"] for point in found["points"]], schema=schema)


def command(
    *,
    target: str,
    tables: Path,
    evidence: Path,
    out: Path,
    measurements: Path,
    recording: str | None = None,
) -> None:
    """The results of a target, and its measurement table.

    Args:
        recording: name of the recording; absent for live evidence
    """
    found = results(target, tables, evidence, recording)
    write_table(measurements, table_of(found))
    write_json(out, found, levels=3)
